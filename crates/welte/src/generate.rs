//! Generation: from the tokens of a prompt to pieces of text.

use crate::chain_length::{Consumer, chain_length};
use crate::{Error, Session};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use welte_table::Sampling;
use welte_text::Splitter;

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
}

/// Durations and bytes of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Computing the prompt, without its cached tokens.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// From the call to the first token.
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
}

/// The text so far and the conditions that end it.
struct Text {
    generated: Vec<u32>,
    raw: Vec<u8>,
    /// Where each token's bytes end in `raw`.
    ends: Vec<usize>,
    splitter: Splitter,
    stop: Option<StopReason>,
    allowed: usize,
    at_limit: StopReason,
}

/// A generation in flight.
struct Generation {
    text: Text,
    /// Sampled, not yet fed.
    last: u32,
    end_tokens: Vec<u32>,
    longest: usize,
    prompt: usize,
    cached: usize,
    timings: Timings,
    start: Instant,
    consumer: Consumer,
}

impl Text {
    /// Takes the next token. Returns false if it ends the generation.
    fn take(
        &mut self,
        token: u32,
        ends: &[u32],
        bytes: &[u8],
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> bool {
        if ends.contains(&token) {
            self.stop = Some(StopReason::End(token));
            return false;
        }
        self.generated.push(token);
        self.raw.extend_from_slice(bytes);
        self.ends.push(self.raw.len());
        let split = self.splitter.push(bytes);
        if !split.text.is_empty() && sink(&split.text).is_break() {
            self.stop = Some(StopReason::Callback);
        }
        if let Some(stop) = split.stopped {
            self.stop = Some(StopReason::StopString(stop));
        }
        if self.stop.is_none() && self.generated.len() >= self.allowed {
            self.stop = Some(self.at_limit.clone());
        }
        self.stop.is_none()
    }

    /// Drops the token in which the stop string begins, and all after it.
    fn rewind(&mut self, stop: &str) {
        let stop = stop.as_bytes();
        let found = self
            .raw
            .windows(stop.len().max(1))
            .position(|window| window == stop);
        let keep = found.unwrap_or(self.raw.len());
        let count = self.ends.iter().take_while(|end| **end <= keep).count();
        self.generated.truncate(count);
    }
}

impl Session {
    /// Continues a prompt. The prefix that the session's caches share with it is not computed again. `callback` gets each
    /// piece of text as soon as it is final: whole characters that cannot be part of a stop string. It may end the
    /// generation.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// use std::ops::ControlFlow;
    /// let mut options = welte::LoadOptions::default();
    /// options.context = 64;
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_| ())?;
    /// let mut session = model.session()?;
    /// let mut options = welte::GenerateOptions::default();
    /// options.max_tokens = 8;
    /// let outcome = session.generate(&[1, 2, 3], &options, &mut |_piece| ControlFlow::Continue(()))?;
    /// assert!(outcome.tokens.len() <= 8);
    /// # Ok(()) }
    /// ```
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        callback: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let consumer = if options.stop.is_empty() {
            Consumer::Callback
        } else {
            Consumer::StopStrings
        };
        let mut generation = self.begin(prompt, options, consumer, callback)?;
        while generation.text.stop.is_none() {
            self.advance(&mut generation, callback)?;
        }
        Ok(self.finish(generation, callback))
    }

    /// As [`Session::generate`], but as an iterator of pieces.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// let mut options = welte::LoadOptions::default();
    /// options.context = 64;
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_| ())?;
    /// let mut session = model.session()?;
    /// let mut options = welte::GenerateOptions::default();
    /// options.max_tokens = 8;
    /// let mut pieces = session.pieces(&[1, 2, 3], &options)?;
    /// for piece in &mut pieces {
    ///     print!("{}", piece?);
    /// }
    /// assert!(pieces.outcome().is_some());
    /// # Ok(()) }
    /// ```
    pub fn pieces(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Pieces<'_>, Error> {
        let mut ready = String::new();
        let generation = self.begin(prompt, options, Consumer::Pull, &mut |piece| {
            ready.push_str(piece);
            ControlFlow::Continue(())
        })?;
        Ok(Pieces {
            session: self,
            generation: Some(generation),
            ready,
            outcome: None,
        })
    }

    /// Computes the prompt and the first token.
    fn begin(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        consumer: Consumer,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        let start = Instant::now();
        let context = self.model().context();
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(Error::ContextFull {
                prompt: prompt.len(),
                context,
            });
        }
        check_options(options, self.model().vocab())?;
        let shared = self
            .tokens()
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let cached = shared.min(prompt.len() - 1);
        self.stepper.truncate(cached);
        let room = context - prompt.len();
        let text = Text {
            generated: Vec::new(),
            raw: Vec::new(),
            ends: Vec::new(),
            splitter: Splitter::new(options.stop.clone()),
            stop: (options.max_tokens == 0).then_some(StopReason::Length),
            allowed: options.max_tokens.min(room),
            at_limit: if options.max_tokens <= room {
                StopReason::Length
            } else {
                StopReason::ContextFull
            },
        };
        let mut generation = Generation {
            text,
            last: 0,
            end_tokens: if options.ignore_end {
                Vec::new()
            } else {
                self.model().end_tokens().to_vec()
            },
            longest: options
                .chain
                .unwrap_or(usize::MAX)
                .min(self.model().inner.max_chain),
            prompt: prompt.len(),
            cached,
            timings: Timings::default(),
            start,
            consumer,
        };
        let cancelled = self.stepper.feed(&prompt[cached..])?.is_empty();
        generation.timings.prompt = start.elapsed();
        if cancelled {
            generation.text.stop = Some(StopReason::Cancelled);
        }
        if generation.text.stop.is_none() {
            self.first_token(&mut generation, options, sink)?;
        }
        Ok(generation)
    }

    fn first_token(
        &mut self,
        generation: &mut Generation,
        options: &GenerateOptions,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut bias = options.bias.clone();
        if options.ignore_end {
            bias.extend(
                self.model()
                    .end_tokens()
                    .iter()
                    .map(|&token| (token, f32::NEG_INFINITY)),
            );
        }
        self.stepper
            .set_sampling(&options.sampling, &bias, &generation.end_tokens)?;
        let token = self.stepper.sample()?;
        generation.last = token;
        generation.timings.first_token = generation.start.elapsed();
        generation.text.take(
            token,
            &generation.end_tokens,
            bytes_of(self.model(), token),
            sink,
        );
        Ok(())
    }

    /// Runs one chain.
    fn advance(
        &mut self,
        generation: &mut Generation,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let Generation {
            text,
            last,
            end_tokens,
            ..
        } = generation;
        let n = chain_length(
            generation.consumer,
            text.allowed - text.generated.len(),
            generation.longest,
        );
        let (model, first) = (self.model().clone(), self.tokens().len());
        let start = *last;
        let count = self.stepper.chain(start, n, &mut |token| {
            *last = token;
            text.take(token, end_tokens, bytes_of(&model, token), sink)
        })?;
        let timings = &mut generation.timings;
        timings.decoded += count;
        timings.bytes += (first..first + count)
            .map(|depth| model.bytes_per_token(depth + 1))
            .sum::<u64>();
        if text.stop.is_none() && (count == 0 || self.stepper.is_cancelled()) {
            text.stop = Some(StopReason::Cancelled);
        }
        Ok(())
    }

    fn finish(
        &mut self,
        generation: Generation,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Outcome {
        let Generation {
            mut text,
            mut timings,
            start,
            prompt,
            cached,
            ..
        } = generation;
        timings.generation = start
            .elapsed()
            .saturating_sub(timings.first_token.max(timings.prompt));
        self.stepper.resume();
        let stop = text.stop.take().unwrap_or(StopReason::Cancelled);
        if let StopReason::StopString(string) = &stop {
            text.rewind(string);
            self.stepper.truncate(prompt + text.generated.len());
        } else if stop != StopReason::Callback {
            let rest = text.splitter.finish();
            if !rest.is_empty() {
                // The generation has ended, so its answer does not matter.
                let _ = sink(&rest);
            }
        }
        Outcome {
            tokens: text.generated,
            stop,
            timings,
            prompt_tokens: prompt,
            cached_tokens: cached,
        }
    }
}

fn bytes_of(model: &crate::Model, token: u32) -> &[u8] {
    model.inner.tokenizer.as_ref().map_or(&[], |tokenizer| {
        if (token as usize) < tokenizer.vocab_size() {
            tokenizer.token_bytes(token)
        } else {
            &[]
        }
    })
}

/// Refuses options that are out of range.
fn check_options(options: &GenerateOptions, vocab: u32) -> Result<(), Error> {
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

/// An iterator over the pieces of a generation. Dropping it ends the generation.
pub struct Pieces<'a> {
    session: &'a mut Session,
    generation: Option<Generation>,
    ready: String,
    outcome: Option<Outcome>,
}

impl Pieces<'_> {
    /// The result, once the iterator has ended.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            let generation = self.generation.as_mut()?;
            let ready = &mut self.ready;
            let mut sink = |piece: &str| {
                ready.push_str(piece);
                ControlFlow::Continue(())
            };
            if generation.text.stop.is_none() {
                if let Err(error) = self.session.advance(generation, &mut sink) {
                    self.generation = None;
                    return Some(Err(error));
                }
            } else if let Some(generation) = self.generation.take() {
                self.outcome = Some(self.session.finish(generation, &mut sink));
            }
        }
        Some(Ok(std::mem::take(&mut self.ready)))
    }
}
