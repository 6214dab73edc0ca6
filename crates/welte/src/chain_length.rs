//! How many tokens to decode in one submission: one function decides.

/// Who waits for the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// Nobody looks before the end.
    Silent,
    /// A callback sees every piece, and may stop.
    Callback,
    /// Stop strings may end the text between any two tokens.
    StopStrings,
    /// An iterator pulls piece by piece, and may be dropped.
    Pull,
}

/// Length of the next chain: `remaining` is how many tokens may still come, `longest` what the tables allow.
pub fn chain_length(consumer: Consumer, remaining: usize, longest: usize) -> usize {
    let wanted = match consumer {
        Consumer::Silent => remaining,
        Consumer::Callback => 64,
        Consumer::StopStrings => 16,
        Consumer::Pull => 1,
    };
    wanted.min(remaining).min(longest).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_remains_and_never_nothing() {
        for consumer in [
            Consumer::Silent,
            Consumer::Callback,
            Consumer::StopStrings,
            Consumer::Pull,
        ] {
            for remaining in [0, 1, 7, 10_000] {
                let n = chain_length(consumer, remaining, 256);
                assert!(n >= 1 && n <= remaining.max(1) && n <= 256);
            }
        }
        assert_eq!(chain_length(Consumer::Silent, 1000, 256), 256);
    }
}
