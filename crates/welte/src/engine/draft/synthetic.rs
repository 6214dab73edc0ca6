//! Guesses of a stated quality and cost: they measure the machine part of speculation with random weights.

use crate::{Request, SyntheticDraft};
use web_time::Instant;
use welte_device::noise;

pub(crate) struct Synthetic {
    draft: SyntheticDraft,
    /// Tokens of the prompt.
    prompt: usize,
}

impl Synthetic {
    pub(crate) fn new(draft: &SyntheticDraft, request: &Request) -> Synthetic {
        Synthetic {
            draft: draft.clone(),
            prompt: request.prompt.len().saturating_sub(request.answered),
        }
    }

    pub(crate) fn probability(&self) -> f64 {
        self.draft.agreement
    }

    /// Appends `count` guesses of what follows the tokens.
    pub(crate) fn guess(&self, tokens: &[u32], count: usize, guesses: &mut Vec<u32>) {
        let begun = Instant::now();
        let from = tokens.len() - self.prompt;
        for at in from..from + count {
            let right = self.draft.answer.get(at).copied().unwrap_or(0);
            // Noise as a number from 0 to 1.
            let uniform = (-(-f64::from(noise(1, at as u32, 0))).exp()).exp();
            let wrong = if right == 0 { 1 } else { right - 1 };
            guesses.push(if uniform < self.draft.agreement {
                right
            } else {
                wrong
            });
        }
        while begun.elapsed() < self.draft.each * count as u32 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use web_time::Duration;

    #[test]
    fn guesses_are_as_good_as_stated() {
        let answer: Vec<u32> = (0..10_000).map(|i| i % 7).collect();
        for agreement in [0.0, 0.6, 0.9, 1.0] {
            let draft = SyntheticDraft {
                answer: answer.clone(),
                agreement,
                each: Duration::ZERO,
            };
            let synthetic = Synthetic::new(&draft, &Request::new(vec![1, 2]));
            let mut guesses = Vec::new();
            synthetic.guess(&[1, 2], answer.len(), &mut guesses);
            let right = guesses.iter().zip(&answer).filter(|(a, b)| a == b).count();
            let share = right as f64 / answer.len() as f64;
            assert!((share - agreement).abs() < 0.02, "{share} {agreement}");
        }
    }
}
