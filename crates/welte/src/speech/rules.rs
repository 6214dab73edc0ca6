//! What a token may be: rules of timestamps, suppressed tokens, and the choice among the rest.

use super::tokens::Tokens;

/// What one text of a window may look like.
pub(super) struct Rules {
    pub(super) tokens: Tokens,
    /// The text has timestamps.
    pub(super) timestamps: bool,
    /// The latest first timestamp.
    pub(super) most_initial: u32,
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) token: u32,
    /// The logarithm of its probability among those that were allowed.
    pub(super) logprob: f32,
}

const NEVER: f32 = f32::NEG_INFINITY;

impl Rules {
    /// Takes the logits of what may not follow `text` away.
    pub(super) fn apply(&self, text: &[u32], logits: &mut [f32]) {
        let t = &self.tokens;
        let mut never = |token: u32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = NEVER;
            }
        };
        t.suppressed.iter().for_each(|token| never(*token));
        never(t.no_timestamps);
        if text.is_empty() {
            t.suppressed_first.iter().for_each(|token| never(*token));
        }
        let first = (t.timestamps as usize).min(logits.len());
        if !self.timestamps {
            return logits[first..].fill(NEVER);
        }
        let end = (t.end as usize).min(logits.len());
        let is = |back: usize| {
            let token = text.len().checked_sub(back).map(|at| text[at]);
            token.map(|token| t.is_timestamp(token))
        };
        // Timestamps come in pairs, an end and the next beginning, but for the first and the last one.
        let (last, before) = (is(1) == Some(true), is(2) != Some(false));
        match (last, before) {
            (true, true) => logits[first..].fill(NEVER),
            (true, false) => logits[..end].fill(NEVER),
            _ => {}
        }
        let latest = text.iter().rev().find(|token| t.is_timestamp(**token));
        if let Some(latest) = latest {
            // An end may be the same as the beginning after it; otherwise time goes on.
            let from = *latest as usize + usize::from(!last || before);
            let from = from.clamp(first, logits.len());
            logits[first..from].fill(NEVER);
        }
        if text.is_empty() {
            logits[..first].fill(NEVER);
            let beyond = (first + self.most_initial as usize + 1).min(logits.len());
            logits[beyond..].fill(NEVER);
        }
        // If some timestamp is likelier than any text, it is one.
        let (texts, times) = logits.split_at_mut(first);
        let most = texts.iter().copied().fold(NEVER, f32::max);
        if log_sum(times) > most {
            texts.fill(NEVER);
        }
    }

    /// The likeliest token, or a random one if `temperature` is above 0.
    pub(super) fn choose(&self, logits: &[f32], temperature: f32, noise: &mut Noise) -> Chosen {
        let token = if temperature > 0.0 {
            sample(logits, temperature, noise)
        } else {
            best(logits)
        };
        Chosen {
            token,
            logprob: logits[token as usize] - log_sum(logits),
        }
    }
}

/// The number of the largest logit, the lowest on a tie.
pub(super) fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (at, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = at;
        }
    }
    best as u32
}

fn sample(logits: &[f32], temperature: f32, noise: &mut Noise) -> u32 {
    let most = logits.iter().copied().fold(NEVER, f32::max);
    let weight = |logit: &f32| f64::from((logit - most) / temperature).exp();
    let sum: f64 = logits.iter().map(weight).sum();
    let mut rest = noise.next() * sum;
    for (at, logit) in logits.iter().enumerate() {
        let weight = weight(logit);
        if weight > 0.0 {
            rest -= weight;
            if rest < 0.0 {
                return at as u32;
            }
        }
    }
    best(logits)
}

/// The logarithm of the sum of exponentials.
pub(super) fn log_sum(logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(NEVER, f32::max);
    if most == NEVER {
        return NEVER;
    }
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - most).exp())
        .sum();
    most + sum.ln() as f32
}

/// Random numbers that follow from a seed.
pub(super) struct Noise(pub(super) u64);

impl Noise {
    /// From 0 to below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text is 0 to 9, the end is 10, tasks are 11 to 19, timestamps are 20 to 29.
    fn tokens() -> Tokens {
        Tokens {
            end: 10,
            start: 11,
            previous: 12,
            transcribe: Some(13),
            translate: Some(14),
            no_speech: Some(15),
            no_timestamps: 19,
            timestamps: 20,
            languages: vec![("en", 16)],
            suppressed: vec![3, 11, 12, 13, 14, 15],
            suppressed_first: vec![4, 10],
            vocab: 30,
        }
    }

    /// What may follow a text, if all logits are the same but for `favoured`.
    fn allowed(timestamps: bool, text: &[u32], favoured: &[u32]) -> Vec<u32> {
        let rules = Rules {
            tokens: tokens(),
            timestamps,
            most_initial: 4,
        };
        let mut logits = vec![0.0; 30];
        favoured
            .iter()
            .for_each(|token| logits[*token as usize] = 9.0);
        rules.apply(text, &mut logits);
        (0..30)
            .filter(|token| logits[*token as usize] > NEVER)
            .collect()
    }

    #[test]
    fn timestamps_come_in_pairs_and_rise() {
        // The first is a timestamp, and not a late one.
        assert_eq!(allowed(true, &[], &[5]), [20, 21, 22, 23, 24]);
        // After it comes text or the end, whatever is likelier.
        let texts = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 16, 17, 18];
        assert_eq!(allowed(true, &[21], &[25]), texts);
        // After text: text, or a timestamp from the last one on; only timestamps if these are likelier together.
        let after = allowed(true, &[21, 5], &[5]);
        assert!(after.contains(&5) && after.contains(&22) && !after.contains(&21));
        assert_eq!(
            allowed(true, &[21, 5], &[25]),
            [22, 23, 24, 25, 26, 27, 28, 29]
        );
        // An end that begins a pair: the same again, a later one, or the end of the text.
        let pair = allowed(true, &[21, 5, 24], &[10]);
        assert!(
            pair.contains(&24) && pair.contains(&10) && !pair.contains(&23) && !pair.contains(&5)
        );
        // A pair is followed by text.
        assert!(
            !allowed(true, &[21, 5, 24, 24], &[])
                .iter()
                .any(|token| *token >= 20)
        );
    }

    #[test]
    fn without_timestamps_only_lists_matter() {
        assert_eq!(
            allowed(false, &[], &[]),
            [0, 1, 2, 5, 6, 7, 8, 9, 16, 17, 18]
        );
        assert_eq!(
            allowed(false, &[5], &[25]),
            [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 16, 17, 18]
        );
    }

    #[test]
    fn samples_follow_their_probabilities() {
        let rules = Rules {
            tokens: tokens(),
            timestamps: false,
            most_initial: 0,
        };
        let mut logits = vec![NEVER; 30];
        (logits[5], logits[6]) = (3f32.ln(), 0.0);
        let greedy = rules.choose(&logits, 0.0, &mut Noise(1));
        assert_eq!(greedy.token, 5);
        assert!((greedy.logprob - 0.75f32.ln()).abs() < 1e-6);
        let mut noise = Noise(7);
        let count = (0..4000).filter(|_| rules.choose(&logits, 1.0, &mut noise).token == 5);
        let share = count.count() as f32 / 4000.0;
        assert!((share - 0.75).abs() < 0.03, "{share}");
    }
}
