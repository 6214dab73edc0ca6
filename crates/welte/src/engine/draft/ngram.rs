//! Guesses from the sequence's own text: what followed the last tokens where they occurred before.

use super::rate::Rate;

/// Tokens that must agree for a guess, and tokens of a match that is preferred.
const SHORT: usize = 3;
const LONG: usize = 8;
/// Tokens of a match that are counted.
const MOST: usize = 32;
/// The longest match of each class but the last. Longer matches go on more often.
const CLASSES: [usize; 3] = [4, 8, 16];

/// An index of all tokens so far. Each table has one place per hash, which the last occurrence takes, so memory and the
/// time per token are bounded.
pub(crate) struct Ngram {
    short: Table,
    long: Table,
    /// Where the text may go on as it did before: the position of the expected token, and the length of the match.
    found: Option<(usize, usize)>,
    /// How often the expected token came, by class of match.
    rates: [Rate; CLASSES.len() + 1],
}

/// The position after the last occurrence of each run of `n` tokens.
struct Table {
    n: usize,
    /// 0: none.
    places: Vec<u32>,
}

impl Table {
    fn new(n: usize, max_len: usize) -> Table {
        Table {
            n,
            places: vec![0; (2 * max_len).next_power_of_two().max(1024)],
        }
    }

    /// The place of the last `n` tokens; `None` if there are fewer.
    fn place(&mut self, tokens: &[u32]) -> Option<&mut u32> {
        let (_, last) = tokens.split_at_checked(tokens.len().checked_sub(self.n)?)?;
        let step = |hash: u64, token: &u32| {
            (hash ^ u64::from(*token))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        };
        let hash = last.iter().fold(0, step);
        let at = hash as usize & (self.places.len() - 1);
        self.places.get_mut(at)
    }
}

impl Ngram {
    /// Indexes a prompt, with room for `max_len` tokens in all.
    pub(crate) fn new(prompt: &[u32], max_len: usize) -> Ngram {
        let mut ngram = Ngram {
            short: Table::new(SHORT, max_len),
            long: Table::new(LONG, max_len),
            found: None,
            rates: [
                Rate::expected(0.4),
                Rate::expected(0.55),
                Rate::expected(0.7),
                Rate::expected(0.85),
            ],
        };
        for end in 1..prompt.len() {
            ngram.index(&prompt[..end]);
        }
        if !prompt.is_empty() {
            ngram.look_up(prompt);
            ngram.index(prompt);
        }
        ngram
    }

    /// Takes note of the last of these tokens, which is new.
    pub(crate) fn push(&mut self, tokens: &[u32]) {
        let Some(token) = tokens.last() else { return };
        let found = self.found.take().and_then(|(at, length)| {
            let hit = tokens[at] == *token;
            self.rates[class(length)].count(hit);
            hit.then_some((at + 1, (length + 1).min(MOST)))
        });
        match found {
            Some(_) => self.found = found,
            None => self.look_up(tokens),
        }
        self.index(tokens);
    }

    fn look_up(&mut self, tokens: &[u32]) {
        for table in [&mut self.long, &mut self.short] {
            let least = table.n;
            let at = table.place(tokens).map_or(0, |place| *place as usize);
            let pairs = tokens[..at].iter().rev().zip(tokens.iter().rev());
            let length = pairs.take(MOST).take_while(|(a, b)| a == b).count();
            if length >= least {
                self.found = Some((at, length));
                return;
            }
        }
    }

    fn index(&mut self, tokens: &[u32]) {
        for table in [&mut self.long, &mut self.short] {
            if let Some(place) = table.place(tokens) {
                *place = tokens.len() as u32;
            }
        }
    }

    /// The probability that guess `nth` is right if those before it are; `None` if there is no guess.
    pub(crate) fn probability(&self, nth: usize) -> Option<f64> {
        let (_, length) = self.found?;
        Some(self.rates[class(length + nth)].value())
    }

    /// Appends `count` guesses of what follows the tokens.
    pub(crate) fn guess(&self, tokens: &[u32], count: usize, guesses: &mut Vec<u32>) {
        let Some((at, _)) = self.found else { return };
        for nth in at..at + count {
            // A text that repeats itself goes on repeating.
            let guess = match tokens.get(nth) {
                Some(token) => *token,
                None => guesses[nth - tokens.len()],
            };
            guesses.push(guess);
        }
    }
}

fn class(length: usize) -> usize {
    CLASSES.iter().take_while(|most| length > **most).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn after(text: &[u32]) -> Ngram {
        let mut ngram = Ngram::new(&text[..1], text.len());
        for end in 2..=text.len() {
            ngram.push(&text[..end]);
        }
        ngram
    }

    fn guesses(text: &[u32], count: usize) -> Vec<u32> {
        let mut guesses = Vec::new();
        after(text).guess(text, count, &mut guesses);
        // A prompt is indexed as generated tokens are.
        let mut of_prompt = Vec::new();
        Ngram::new(text, text.len()).guess(text, count, &mut of_prompt);
        assert_eq!(guesses, of_prompt, "{text:?}");
        guesses
    }

    #[test]
    fn text_goes_on_as_it_did_before() {
        assert_eq!(guesses(&[1, 2, 3, 4, 5, 9, 1, 2, 3], 4), [4, 5, 9, 1]);
        // The last occurrence counts.
        assert_eq!(guesses(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1), [5]);
        // A longer match is preferred.
        let mut text = vec![7, 1, 2, 3, 4, 5, 6, 7, 8, 60, 6, 7, 8, 70];
        text.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(guesses(&text, 1), [60]);
        // Two equal tokens are not a match.
        assert!(guesses(&[1, 2, 9, 1, 2], 3).is_empty());
        assert!(guesses(&[1, 2, 3], 3).is_empty());
    }

    #[test]
    fn a_loop_goes_on() {
        assert_eq!(guesses(&[5, 5, 5, 5], 6), [5; 6]);
        assert_eq!(guesses(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn a_match_that_fails_is_given_up() {
        let mut text = vec![1, 2, 3, 4, 9, 1, 2, 3];
        let mut ngram = after(&text);
        assert!(ngram.probability(0).is_some());
        text.push(7);
        ngram.push(&text);
        assert_eq!(ngram.probability(0), None);
    }

    /// Prints what an index of 100,000 tokens costs. `cargo test --release -p welte --lib -- --ignored index_costs`.
    #[test]
    #[ignore = "a measurement"]
    fn index_costs() {
        const TOKENS: usize = 100_000;
        const MORE: usize = 1000;
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state >> 33
        };
        // Text repeats phrases now and then.
        let mut text: Vec<u32> = Vec::new();
        while text.len() < TOKENS + MORE {
            let at = next() as usize % (text.len() + 1);
            match next() % 4 {
                0 => text.extend_from_within(at..(at + 20).min(text.len())),
                _ => text.extend((0..20).map(|_| (next() % 30_000) as u32)),
            }
        }
        let begun = Instant::now();
        let mut ngram = Ngram::new(&text[..TOKENS], TOKENS + MORE);
        let built = begun.elapsed();
        let begun = Instant::now();
        for end in TOKENS + 1..=TOKENS + MORE {
            ngram.push(&text[..end]);
        }
        let pushed = begun.elapsed() / MORE as u32;
        let mut guesses = Vec::with_capacity(16);
        let (mut count, begun) = (0, Instant::now());
        for _ in 0..MORE {
            guesses.clear();
            ngram.found = Some((TOKENS / 2, 8));
            ngram.guess(std::hint::black_box(&text), 16, &mut guesses);
            count += guesses.len();
        }
        let guessed = begun.elapsed() / MORE as u32;
        println!(
            "{TOKENS} tokens: built in {built:?}, a further token {pushed:?}, 16 guesses {guessed:?}"
        );
        assert_eq!(count, 16 * MORE);
    }

    #[test]
    fn probabilities_follow_what_came() {
        // Matches of three tokens that never go on.
        let mut text = Vec::new();
        for other in 10..60 {
            text.extend([1, 2, 3, other]);
        }
        text.extend([1, 2, 3]);
        assert!(after(&text).probability(0).is_some_and(|p| p < 0.1));
        // A loop.
        let text: Vec<u32> = (0..200).map(|i| i % 5).collect();
        assert!(after(&text).probability(0).is_some_and(|p| p > 0.9));
    }

    #[test]
    fn long_matches_are_counted_apart_from_short_ones() {
        let classes = [1, 4, 5, 8, 9, 16, 17, 1000].map(class);
        assert_eq!(classes, [0, 0, 1, 1, 2, 2, 3, 3]);
    }
}
