//! Perplexity by the protocol of llama-perplexity, so that the numbers can be compared.

use crate::{Error, Stepper};

/// The score of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log likelihood.
    pub ppl: f64,
    /// Its standard error.
    pub error: f64,
    /// Tokens scored.
    pub scored: usize,
    /// Chunks of the text.
    pub chunks: usize,
}

/// Running sums of negative log likelihoods.
#[derive(Default)]
struct Sums {
    nll: f64,
    squares: f64,
    count: usize,
}

impl Sums {
    fn result(&self, chunks: usize) -> Perplexity {
        let count = self.count.max(1) as f64;
        let mean = self.nll / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        let ppl = mean.exp();
        Perplexity {
            ppl,
            error: ppl * (variance / (count - 1.0).max(1.0)).sqrt(),
            scored: self.count,
            chunks,
        }
    }
}

/// Scores a tokenised text. The text is cut into chunks of `chunk` tokens; an incomplete last chunk is left out. Each
/// chunk is computed on its own, with its first token replaced by `bos` if there is one. Its second half is scored.
/// `seen` gets the score so far after every chunk and ends the run by returning false.
pub fn perplexity(
    stepper: &mut Stepper,
    tokens: &[u32],
    chunk: usize,
    bos: Option<u32>,
    seen: &mut dyn FnMut(Perplexity) -> bool,
) -> Result<Perplexity, Error> {
    check_chunk(chunk, stepper.model().context())?;
    check_length(tokens, 2 * chunk, chunk)?;
    let mut sums = Sums::default();
    let mut done = 0;
    for original in tokens.chunks_exact(chunk) {
        let own = begun(original, bos);
        // Logits at position p predict token p + 1: positions chunk/2 .. chunk-2 are scored.
        let first = chunk / 2;
        stepper.clear();
        stepper.feed(&own[..first])?;
        stepper.score(&own[first..chunk - 1], &mut |position, logits| {
            let nll = negative_log_likelihood(logits, original[position + 1]);
            sums.nll += nll;
            sums.squares += nll * nll;
            sums.count += 1;
        })?;
        done += 1;
        if !seen(sums.result(done)) {
            break;
        }
    }
    Ok(sums.result(done))
}

/// Refuses chunks that are too small to be scored, or larger than the context.
pub(crate) fn check_chunk(chunk: usize, context: usize) -> Result<(), Error> {
    if chunk < 4 || chunk > context {
        return Err(Error::ChunkSize { chunk, context });
    }
    Ok(())
}

/// Refuses a text of fewer tokens than these.
pub(crate) fn check_length(tokens: &[u32], least: usize, chunk: usize) -> Result<(), Error> {
    let tokens = tokens.len();
    if tokens < least {
        return Err(Error::TooShort { tokens, chunk });
    }
    Ok(())
}

/// A chunk with `bos` in place of its first token, if there is one.
pub(crate) fn begun(chunk: &[u32], bos: Option<u32>) -> Vec<u32> {
    let mut own = chunk.to_vec();
    if let Some(bos) = bos {
        own[0] = bos;
    }
    own
}

fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - top).exp()).sum();
    let own = logits
        .get(token as usize)
        .copied()
        .unwrap_or(f32::NEG_INFINITY);
    sum.ln() - f64::from(own - top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_logits_score_the_vocabulary() {
        let nll = negative_log_likelihood(&[3.0; 50], 7);
        assert!((nll.exp() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn sums_give_mean_and_error() {
        let sums = Sums {
            nll: 4.0 * 2.0,
            squares: 4.0 * 4.0,
            count: 4,
        };
        let result = sums.result(1);
        assert!((result.ppl - 2f64.exp()).abs() < 1e-12 && result.error == 0.0);
    }
}
