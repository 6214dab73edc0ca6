//! How many tokens to decode in one submission.

/// Who receives the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// A callback sees every piece and may stop.
    Callback,
    /// Stop strings may end the text after any token.
    StopStrings,
    /// An iterator pulls one piece at a time and may be dropped.
    Pull,
}

/// Length of the next chain: at most `remaining` tokens, and at most `longest`.
pub(crate) fn chain_length(consumer: Consumer, remaining: usize, longest: usize) -> usize {
    let wanted = match consumer {
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
    fn the_shortest_bound_counts_and_a_chain_is_never_empty() {
        use Consumer::*;
        for (consumer, remaining, longest, length) in [
            (Callback, 1000, 256, 64),
            (StopStrings, 1000, 256, 16),
            (Pull, 1000, 256, 1),
            (Callback, 7, 256, 7),
            (Callback, 1000, 5, 5),
            (Callback, 0, 256, 1),
            (StopStrings, 3, 2, 2),
        ] {
            assert_eq!(chain_length(consumer, remaining, longest), length);
        }
    }
}
