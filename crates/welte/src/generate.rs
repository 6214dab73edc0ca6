//! What to generate, and what came out.

use crate::{Constraint, Error};
use std::time::Duration;
use welte_table::Sampling;

/// What to generate, and when to stop.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate. The end of the context may come first.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Added to the logits of these tokens; minus infinity forbids one.
    pub bias: Vec<(u32, f32)>,
    /// Strings that end generation. They are not part of the output.
    pub stop: Vec<String>,
    /// Control tokens whose spelling becomes part of the text. Other control tokens print nothing.
    pub printed_controls: Vec<u32>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Never choose an end token.
    pub ignore_end: bool,
    /// The longest chain; `None`: the engine's default. It never changes the text.
    pub chain: Option<usize>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: usize::MAX,
            sampling: Sampling::default(),
            bias: Vec::new(),
            stop: Vec::new(),
            printed_controls: Vec::new(),
            constraint: None,
            ignore_end: false,
            chain: None,
        }
    }
}

/// Why generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model chose this end token.
    End(u32),
    /// This stop string appeared.
    StopString(String),
    /// The most tokens were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The callback returned `Break`.
    Callback,
    /// Cancelled from elsewhere.
    Cancelled,
    /// The deadline passed.
    Deadline,
}

/// Durations and bytes of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Waiting for a slot and for pages.
    pub queued: Duration,
    /// Computing the prompt, without its cached tokens.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// From the request to the first token.
    pub first_token: Duration,
    /// Bytes that decoding had to read: weights and caches.
    pub bytes: u64,
    /// Tokens that were decoded in `generation`.
    pub decoded: usize,
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The tokens, without the end token and without those from the stop string on.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Durations and bytes.
    pub timings: Timings,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the caches already.
    pub cached_tokens: usize,
    /// Position of the prompt's first token that differs from the closest cached text. `None`: nothing cached began like
    /// the prompt, or the prompt differs nowhere.
    pub differs_at: Option<usize>,
    /// How often the request gave its pages to others and was computed again.
    pub preemptions: u32,
}

/// Refuses options that are out of range.
pub(crate) fn check_options(options: &GenerateOptions, vocab: u32) -> Result<(), Error> {
    let s = &options.sampling;
    let number = "a finite number";
    let not_negative = "a finite number of at least 0";
    let positive = "a finite number above 0";
    for (field, value, range, good) in [
        (
            "temperature",
            s.temperature,
            not_negative,
            s.temperature >= 0.0,
        ),
        (
            "top_p",
            s.top_p,
            "above 0 and at most 1",
            s.top_p > 0.0 && s.top_p <= 1.0,
        ),
        (
            "min_p",
            s.min_p,
            "from 0 to 1",
            (0.0..=1.0).contains(&s.min_p),
        ),
        (
            "repeat_penalty",
            s.repeat_penalty,
            positive,
            s.repeat_penalty > 0.0,
        ),
        ("frequency_penalty", s.frequency_penalty, number, true),
        ("presence_penalty", s.presence_penalty, number, true),
    ] {
        if !good || !value.is_finite() {
            return Err(Error::Sampling {
                field,
                value,
                range,
            });
        }
    }
    if options.constraint.is_some() && options.ignore_end {
        return Err(Error::Constraint {
            kind: "constraint",
            at: None,
            problem: "it cannot be combined with ignore_end, because only an end token ends it"
                .into(),
        });
    }
    if options.stop.iter().any(String::is_empty) {
        return Err(Error::EmptyStopString);
    }
    for &(token, value) in &options.bias {
        if token >= vocab {
            return Err(Error::Token { token, vocab });
        }
        if value.is_nan() {
            return Err(Error::Bias { token });
        }
    }
    Ok(())
}
