//! What to generate, and what came out.

use crate::{Adapter, Constraint, Error};
use std::sync::Arc;
use std::time::Duration;
use welte_device::Logprobs;
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
    /// A repeated run of tokens ends, for DRY, at a token whose text contains one of these.
    pub dry_breakers: Vec<String>,
    /// Strings that end generation. They are not part of the output.
    pub stop: Arc<[String]>,
    /// Control tokens whose spelling becomes part of the text. Other control tokens print nothing.
    pub printed_controls: Vec<u32>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Never choose an end token of the model.
    pub ignore_end: bool,
    /// Tokens that end generation beside the model's end tokens. They are not part of the output.
    pub stop_tokens: Vec<u32>,
    /// No end token and none of `stop_tokens` is chosen before this many tokens. Stop strings still count.
    pub min_tokens: usize,
    /// Report the probability of each generated token and of this many likeliest ones, at most 20.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt from the second on. Such a request does not use the prefix cache.
    pub prompt_logprobs: Option<u32>,
    /// The longest chain; `None`: the engine's default. It never changes the text.
    pub chain: Option<usize>,
    /// The adapter that is added to the model; `None`: the model alone.
    pub adapter: Option<Adapter>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: usize::MAX,
            sampling: Sampling::default(),
            bias: Vec::new(),
            dry_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            stop: Arc::default(),
            printed_controls: Vec::new(),
            constraint: None,
            ignore_end: false,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            logprobs: None,
            prompt_logprobs: None,
            chain: None,
            adapter: None,
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
    /// Tokens that the model chose, with the end token or those of the stop string.
    pub chosen: usize,
    /// Tokens that were decoded in `generation`: all but the first.
    pub decoded: usize,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestProgress {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the caches already.
    pub cached_tokens: usize,
    /// Tokens of the prompt that are in the caches now, those included.
    pub computed_tokens: usize,
    /// Computing the prompt.
    pub prompt: Duration,
    /// Tokens so far.
    pub generated: usize,
    /// From the first token until now, or to the last one.
    pub generation: Duration,
}

/// What speculation did for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Speculated {
    /// Steps that verified guesses.
    pub rounds: usize,
    /// Tokens that were guessed.
    pub drafted: usize,
    /// Guesses that were right.
    pub accepted: usize,
    /// How many of them were the first guess of their round, the second, and so on. Later ones are counted by `accepted` only.
    pub by_position: [u32; Speculated::POSITIONS],
    /// Time in which these rounds guessed. Requests that run together share it.
    pub drafting: Duration,
    /// Time in which they verified.
    pub verifying: Duration,
}

impl Speculated {
    /// Positions of guesses that are counted one by one.
    pub const POSITIONS: usize = 8;
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The tokens, without the end token and without those from the stop string on.
    pub tokens: Vec<u32>,
    /// The first so many of them were known: the request continued an answer.
    pub answered: usize,
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
    /// Tokens that were guessed ahead, and how many guesses were right.
    pub speculated: Speculated,
}

/// The most stop strings, and their length in all, in bytes. Every token's text is compared with all of them.
const MOST_STOPS: usize = 256;
const LONGEST_STOPS: usize = 64 << 10;
/// DRY's breakers are compared with every token of the vocabulary.
const MOST_BREAKERS: usize = 64;
const LONGEST_BREAKERS: usize = 4 << 10;

/// Refuses options that are out of range.
pub(crate) fn check_options(options: &GenerateOptions, vocab: u32) -> Result<(), Error> {
    for option in Sampling::OPTIONS {
        if let Err(range) = option.check(&options.sampling) {
            return Err(Error::Sampling {
                field: option.name,
                value: option.get(&options.sampling) as f32,
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
    for (what, count, max) in [
        ("stop strings", options.stop.len(), MOST_STOPS),
        (
            "bytes of stop strings",
            options.stop.iter().map(String::len).sum(),
            LONGEST_STOPS,
        ),
        (
            "sequence breakers",
            options.dry_breakers.len(),
            MOST_BREAKERS,
        ),
        (
            "bytes of sequence breakers",
            options.dry_breakers.iter().map(String::len).sum(),
            LONGEST_BREAKERS,
        ),
    ] {
        if count > max {
            return Err(Error::TooMany { what, count, max });
        }
    }
    if options.dry_breakers.iter().any(String::is_empty) {
        return Err(Error::EmptyBreaker);
    }
    for top in [options.logprobs, options.prompt_logprobs] {
        let (count, max) = (top.unwrap_or(0) as usize, Logprobs::MOST);
        if count > max {
            let what = "likeliest tokens";
            return Err(Error::TooMany { what, count, max });
        }
    }
    if let Some(&token) = options.stop_tokens.iter().find(|token| **token >= vocab) {
        return Err(Error::Token { token, vocab });
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
