//! llama.cpp's figures of an answer.

use crate::answer::End;
use serde_json::{Value, json};
use std::time::Duration;
use welte::RequestProgress;

/// Tokens and the time that they took.
struct Span {
    tokens: usize,
    /// Those that cost a step in this time.
    steps: usize,
    ms: f64,
}

impl Span {
    fn new(tokens: usize, steps: usize, time: Duration) -> Span {
        Span {
            tokens,
            steps,
            ms: time.as_secs_f64() * 1e3,
        }
    }

    fn per_second(&self) -> f64 {
        if self.ms > 0.0 {
            self.steps as f64 * 1e3 / self.ms
        } else {
            0.0
        }
    }

    fn per_token_ms(&self) -> f64 {
        self.ms / self.steps.max(1) as f64 * f64::from(u8::from(self.steps > 0))
    }
}

fn value(cached: usize, prompt: &Span, predicted: &Span) -> Value {
    json!({
        "cache_n": cached,
        "prompt_n": prompt.tokens, "prompt_ms": prompt.ms,
        "prompt_per_token_ms": prompt.per_token_ms(), "prompt_per_second": prompt.per_second(),
        "predicted_n": predicted.tokens, "predicted_ms": predicted.ms,
        "predicted_per_token_ms": predicted.per_token_ms(), "predicted_per_second": predicted.per_second(),
    })
}

/// The figures so far.
pub(crate) fn so_far(progress: &RequestProgress) -> Value {
    let (cached, computed) = (progress.cached_tokens, progress.computed_tokens);
    let prompt = computed.saturating_sub(cached);
    let steps = progress.generated.saturating_sub(1);
    value(
        cached,
        &Span::new(prompt, prompt, progress.prompt),
        &Span::new(progress.generated, steps, progress.generation),
    )
}

/// The figures of a complete answer.
pub(crate) fn of(end: &End) -> Value {
    let (outcome, timings) = (&end.outcome, &end.outcome.timings);
    let prompt = outcome.prompt_tokens.saturating_sub(outcome.cached_tokens);
    let mut value = value(
        outcome.cached_tokens,
        &Span::new(prompt, prompt, timings.prompt),
        &Span::new(timings.chosen, timings.decoded, timings.generation),
    );
    let guessed = &outcome.speculated;
    if guessed.drafted > 0 {
        value["draft_n"] = guessed.drafted.into();
        value["draft_n_accepted"] = guessed.accepted.into();
    }
    value
}

/// How much of the prompt is computed.
pub(crate) fn progress(progress: &RequestProgress) -> Value {
    json!({
        "total": progress.prompt_tokens, "cache": progress.cached_tokens,
        "processed": progress.computed_tokens, "time_ms": progress.prompt.as_millis() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_costs_no_step() {
        let mut progress = RequestProgress {
            prompt_tokens: 12,
            cached_tokens: 2,
            computed_tokens: 12,
            prompt: Duration::from_millis(50),
            generated: 1,
            generation: Duration::ZERO,
        };
        let first = so_far(&progress);
        assert_eq!(first["prompt_n"], 10);
        assert_eq!(first["prompt_per_second"], 200.0);
        assert_eq!(first["predicted_n"], 1);
        assert_eq!(first["predicted_per_second"], 0.0);
        assert_eq!(first["predicted_per_token_ms"], 0.0);
        (progress.generated, progress.generation) = (5, Duration::from_millis(8));
        let fifth = so_far(&progress);
        assert_eq!(fifth["predicted_per_second"], 500.0);
        assert_eq!(fifth["predicted_per_token_ms"], 2.0);
    }
}
