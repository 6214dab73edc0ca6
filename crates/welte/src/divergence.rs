//! How far a model's predictions are from another's on the same text: the Kullback-Leibler divergence.

use crate::perplexity::{begun, check_chunk, check_length};
use crate::{Error, Stepper};

/// How far a model's predictions are from another's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divergence {
    /// Mean over the positions, in nats.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// The largest of a position.
    pub largest: f64,
    /// Share of the positions at which both find the same token the likeliest.
    pub same_top: f64,
    /// Positions compared.
    pub positions: usize,
}

/// Running sums over positions.
#[derive(Default)]
struct Sums {
    sum: f64,
    squares: f64,
    largest: f64,
    same: usize,
    count: usize,
}

impl Sums {
    fn add(&mut self, base: &[f32], own: &[f32]) {
        let kl = divergence_of(base, own);
        self.sum += kl;
        self.squares += kl * kl;
        self.largest = self.largest.max(kl);
        self.same += usize::from(top(base) == top(own));
        self.count += 1;
    }

    fn result(&self) -> Divergence {
        let count = self.count.max(1) as f64;
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        Divergence {
            mean,
            error: (variance / (count - 1.0).max(1.0)).sqrt(),
            largest: self.largest,
            same_top: self.same as f64 / count,
            positions: self.count,
        }
    }
}

/// Compares `own` with `base` over a tokenised text. Chunks are cut and scored as by [`perplexity`](crate::perplexity).
/// `seen` gets the result so far after every chunk and ends the run by returning false.
pub fn divergence(
    own: &mut Stepper,
    base: &mut Stepper,
    tokens: &[u32],
    chunk: usize,
    bos: Option<u32>,
    seen: &mut dyn FnMut(Divergence) -> bool,
) -> Result<Divergence, Error> {
    let context = own.model().context().min(base.model().context());
    check_chunk(chunk, context)?;
    let (known, base_known) = (own.model().vocab(), base.model().vocab());
    if known != base_known {
        return Err(Error::VocabularyMismatch {
            own: known,
            base: base_known,
        });
    }
    check_length(tokens, 2 * chunk, chunk)?;
    let vocab = own.model().vocab() as usize;
    let mut sums = Sums::default();
    let mut wanted = Vec::new();
    for original in tokens.chunks_exact(chunk) {
        let text = begun(original, bos);
        let first = chunk / 2;
        for stepper in [&mut *own, &mut *base] {
            stepper.clear();
            stepper.feed(&text[..first])?;
        }
        // A few positions at a time bound the logits in memory.
        for some in text[first..chunk - 1].chunks(PIECE) {
            wanted.clear();
            base.score(some, &mut |_, logits| wanted.extend_from_slice(logits))?;
            let mut rows = wanted.chunks_exact(vocab);
            own.score(some, &mut |_, logits| {
                if let Some(base) = rows.next() {
                    sums.add(base, logits);
                }
            })?;
        }
        if !seen(sums.result()) {
            break;
        }
    }
    Ok(sums.result())
}

/// Positions whose logits are held at once.
const PIECE: usize = 16;

/// Which logit is the largest, the first of equals.
fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best
}

/// The largest logit, and the logarithm of the sum of exponentials above it.
fn normaliser(logits: &[f32]) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
    top + sum.ln()
}

fn divergence_of(base: &[f32], own: &[f32]) -> f64 {
    let (p_all, q_all) = (normaliser(base), normaliser(own));
    let kl: f64 = base
        .iter()
        .zip(own)
        .map(|(&p, &q)| {
            let (p, q) = (f64::from(p) - p_all, f64::from(q) - q_all);
            let weight = p.exp();
            if weight > 0.0 { weight * (p - q) } else { 0.0 }
        })
        .sum();
    kl.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_predictions_do_not_diverge() {
        let logits = [0.5, -2.0, 7.0];
        let shifted = logits.map(|l| l + 4.0);
        assert!(divergence_of(&logits, &shifted) < 1e-9);
    }

    #[test]
    fn a_known_divergence() {
        // Of (1/2, 1/2) from (1/4, 3/4): ln 2 - ln(3)/2.
        let kl = divergence_of(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        assert!((kl - (2f64.ln() - 3f64.ln() / 2.0)).abs() < 1e-7, "{kl}");
    }

    #[test]
    fn sums_count_agreement() {
        let mut sums = Sums::default();
        sums.add(&[1.0, 0.0], &[1.0, 0.0]);
        sums.add(&[1.0, 0.0], &[0.0, 1.0]);
        let result = sums.result();
        assert_eq!((result.positions, result.same_top), (2, 0.5));
        assert!(result.largest > result.mean && result.mean > 0.0);
    }
}
