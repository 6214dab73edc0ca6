//! Probabilities of tokens: what a caller asks for, and a host implementation.

use crate::argmax;

/// Asks for probabilities that an output row of the last step gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobQuery {
    /// Index of the output row.
    pub output: u32,
    /// The token whose probability is wanted.
    pub token: u32,
    /// The number of likeliest tokens that are wanted too: at most [`Logprobs::MOST`].
    pub top: u32,
}

/// Natural logarithms of probabilities. They are the softmax of the unmodified logits over the whole vocabulary: no
/// bias, penalty, temperature or filter counts. A logit that is not a number counts as minus infinity. If no logit is
/// finite, or one is plus infinity, no token has a probability: all logarithms are minus infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs {
    token: u32,
    logprob: f32,
    top: [(u32, f32); Logprobs::MOST],
    count: u32,
}

impl Default for Logprobs {
    fn default() -> Logprobs {
        Logprobs::new(0, f32::NEG_INFINITY)
    }
}

impl Logprobs {
    /// The most likeliest tokens of a query.
    pub const MOST: usize = 20;

    /// Of this token, and of no others yet.
    pub fn new(token: u32, logprob: f32) -> Logprobs {
        Logprobs {
            token,
            logprob,
            top: [(0, f32::NEG_INFINITY); Logprobs::MOST],
            count: 0,
        }
    }

    /// Appends the next likeliest token. Tokens beyond [`Logprobs::MOST`] are dropped.
    pub fn push(&mut self, token: u32, logprob: f32) {
        if let Some(place) = self.top.get_mut(self.count as usize) {
            *place = (token, logprob);
            self.count += 1;
        }
    }

    /// The token that was asked for.
    pub fn token(&self) -> u32 {
        self.token
    }

    /// The logarithm of its probability.
    pub fn logprob(&self) -> f32 {
        self.logprob
    }

    /// The likeliest tokens, the likeliest first, the lowest index on a tie.
    pub fn top(&self) -> &[(u32, f32)] {
        &self.top[..self.count as usize]
    }

    /// Computes the answer to a query from a row of logits on the host. Allocates nothing.
    pub fn of(logits: &[f32], query: &LogprobQuery) -> Logprobs {
        let number = |v: f32| if v.is_nan() { f32::NEG_INFINITY } else { v };
        let (largest, _) = argmax(logits);
        let log_sum = log_sum(logits, largest);
        let logprob = |value: f32| {
            if largest.is_finite() {
                (f64::from(number(value) - largest) - log_sum) as f32
            } else {
                f32::NEG_INFINITY
            }
        };
        let value = logits.get(query.token as usize).copied();
        let mut answer = Logprobs::new(query.token, logprob(value.unwrap_or(f32::NAN)));
        let wanted = (query.top as usize).min(Logprobs::MOST).min(logits.len());
        // The best so far, in order: a new one is inserted by shifting the worse ones.
        let mut best = [(0u32, f32::NEG_INFINITY); Logprobs::MOST];
        let mut count = 0;
        for (token, value) in (0u32..).zip(logits.iter().copied().map(number)) {
            if count == wanted && (wanted == 0 || value <= best[wanted - 1].1) {
                continue;
            }
            let mut at = count.min(wanted - 1);
            while at > 0 && value > best[at - 1].1 {
                best[at] = best[at - 1];
                at -= 1;
            }
            best[at] = (token, value);
            count = (count + 1).min(wanted);
        }
        for (token, value) in &best[..count] {
            answer.push(*token, logprob(*value));
        }
        answer
    }
}

/// Logarithm of the sum of `exp(value - largest)`, added in a fixed order.
fn log_sum(logits: &[f32], largest: f32) -> f64 {
    const LANES: usize = 16;
    // A partial sum of so few terms loses nothing that matters in single precision.
    const TERMS: usize = 16;
    let mut sum = 0.0;
    for run in logits.chunks(LANES * TERMS) {
        let mut sums = [0.0f32; LANES];
        let (chunks, rest) = run.as_chunks::<LANES>();
        for chunk in chunks {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                *sum += exp(value - largest);
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            *sum += exp(value - largest);
        }
        sum += sums.iter().map(|sum| f64::from(*sum)).sum::<f64>();
    }
    sum.ln()
}

/// The exponential of a number that is not positive, to 4e-7 of its value; 0 below -87 and for what is not a number.
/// Branchless, so that compilers use vectors.
fn exp(x: f32) -> f32 {
    // Adding it rounds to whole numbers, which are in the low bits then.
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let series = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let value = series.into_iter().fold(0.0, |sum, term| sum * r + term);
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x >= -87.0 { value * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_definition() {
        // Their probabilities are 1/2, 1/8, 1/4 and 1/8.
        let logits = [0.5f32, 0.125, 0.25, 0.125].map(|p| p.ln() + 3.0);
        let query = |token, top| LogprobQuery {
            output: 0,
            token,
            top,
        };
        let close = |got: f32, want: f32| assert!((got - want.ln()).abs() < 1e-6, "{got} {want}");
        let one = Logprobs::of(&logits, &query(1, 0));
        assert_eq!((one.token(), one.top().len()), (1, 0));
        close(one.logprob(), 0.125);
        let all = Logprobs::of(&logits, &query(2, 20));
        close(all.logprob(), 0.25);
        let tokens: Vec<u32> = all.top().iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [0, 2, 1, 3]);
        for ((_, got), want) in all.top().iter().zip([0.5, 0.25, 0.125, 0.125]) {
            close(*got, want);
        }
        let two = Logprobs::of(&logits, &query(3, 2));
        assert_eq!(two.top(), &all.top()[..2]);
    }

    #[test]
    fn exponentials_are_close() {
        for i in 0..870_000 {
            let x = -0.0001 * i as f32;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 4e-7, "{x}: {got} {want}");
        }
        assert_eq!(
            [exp(f32::NAN), exp(f32::NEG_INFINITY), exp(-90.0)],
            [0.0; 3]
        );
    }

    #[test]
    fn odd_logits_have_no_probability() {
        let logits = [f32::NAN, 1.0, f32::NEG_INFINITY];
        let query = LogprobQuery {
            output: 0,
            token: 0,
            top: 3,
        };
        let got = Logprobs::of(&logits, &query);
        assert_eq!(got.logprob(), f32::NEG_INFINITY);
        let none = f32::NEG_INFINITY;
        assert_eq!(got.top(), [(1, 0.0), (0, none), (2, none)]);
    }
}
