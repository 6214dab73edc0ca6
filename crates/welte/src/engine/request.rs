//! What a caller asks of an engine.

use super::medium::MediumAt;
use crate::GenerateOptions;
use std::ops::Range;
use web_time::{Duration, Instant};

/// A prompt and how to continue it.
///
/// ```
/// let request = welte::Request::new(vec![1, 2, 3]);
/// assert_eq!(request.priority, 0);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The tokens to continue.
    pub prompt: Vec<u32>,
    /// The last so many tokens of the prompt are the answer so far: another engine has made them from the rest of the
    /// prompt and the same options, and was stopped. The answer goes on as it would have there. It counts them: the limits
    /// of tokens include them, and stop strings may begin in them. The stream gives the text that is new.
    pub answered: usize,
    /// Images and other media in the prompt, in order. The model must have been loaded with
    /// [`LoadOptions::features`](crate::LoadOptions::features).
    pub media: Vec<MediumAt>,
    /// Spans of the prompt, in order, whose tokens attend to each other both ways. They are never cut, so each must fit into a step. A prompt with such spans does not use the prefix cache.
    pub both_ways: Vec<Range<usize>>,
    /// What to generate, and when to stop.
    pub options: GenerateOptions,
    /// Requests of a higher priority are computed first. Among equals the older one is.
    pub priority: i32,
    /// When the answer is no longer of use. A request that still waits then fails; one that has begun ends early.
    pub deadline: Option<Instant>,
    /// Reuse cached tokens only where they were computed as part of a prompt. The logits are then exactly those of the
    /// same request alone, even if the prompt contains what the model generated earlier.
    pub exact: bool,
    /// Guess tokens ahead, if the engine does ([`Speculation`](crate::Speculation)). It never changes the text.
    pub speculate: bool,
    /// Guesses for benchmarks and tests.
    #[doc(hidden)]
    pub synthetic_draft: Option<SyntheticDraft>,
    /// Reuse what earlier requests computed, and leave this request's tokens for later ones.
    pub prefix_cache: bool,
}

impl Request {
    /// A request with default options.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            answered: 0,
            media: Vec::new(),
            both_ways: Vec::new(),
            options: GenerateOptions::default(),
            priority: 0,
            deadline: None,
            exact: false,
            speculate: true,
            synthetic_draft: None,
            prefix_cache: true,
        }
    }
}

/// A draft that knows the answer, for benchmarks and tests.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct SyntheticDraft {
    /// The answer that plain decoding gives.
    pub answer: Vec<u32>,
    /// The probability that a guess is right.
    pub agreement: f64,
    /// How long a guess takes.
    pub each: Duration,
}
