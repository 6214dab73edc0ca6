//! Generation: from the tokens of a prompt to pieces of text.

use crate::policy::{Consumer, chain_length};
use crate::{Error, Session};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use welte_table::Sampling;
use welte_text::Splitter;

/// What to generate, and when to stop.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The most tokens; the context's end comes first if it does.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Added to the logits of these tokens; minus infinity forbids one.
    pub bias: Vec<(u32, f32)>,
    /// Texts at which generation ends; they are not part of the output.
    pub stop: Vec<String>,
    /// Never choose an end token.
    pub ignore_end: bool,
    /// The longest chain; `None` leaves it to the policy. It never changes the text.
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
    /// This stop string came.
    StopString(String),
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// The callback said so.
    Callback,
    /// Cancelled from elsewhere.
    Cancelled,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Computing the prompt (without what was cached).
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// From the call to the first token.
    pub first_token: Duration,
    /// Bytes that decoding had to read: weights, keys and values.
    pub bytes: u64,
    /// Tokens that were decoded in `generation`.
    pub decoded: usize,
}

/// What a generation came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The tokens, without the end token, and without those from the stop string on.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Where the time went.
    pub timings: Timings,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were in the cache already.
    pub cached_tokens: usize,
}

/// The text so far and what may end it.
struct Text {
    generated: Vec<u32>,
    raw: Vec<u8>,
    /// End of each token's bytes in `raw`.
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
    /// Takes the next token; false ends the chain.
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

    /// Drops the tokens from the one in which the stop string begins.
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
    /// Continues a prompt. What the session's cache shares with it is not computed again. `callback` gets each piece of
    /// text as it is certain (whole characters, nothing that may be part of a stop string) and may end the generation.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// use std::ops::ControlFlow;
    /// let options = welte::LoadOptions { context: 64, ..Default::default() };
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_, _| ())?;
    /// let mut session = model.session()?;
    /// let options = welte::GenerateOptions { max_tokens: 8, ..Default::default() };
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

    /// The same as an iterator of pieces.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// let options = welte::LoadOptions { context: 64, ..Default::default() };
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_, _| ())?;
    /// let mut session = model.session()?;
    /// let options = welte::GenerateOptions { max_tokens: 8, ..Default::default() };
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
        let context = self.model.context();
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(Error::ContextFull {
                prompt: prompt.len(),
                context,
            });
        }
        check_options(options, self.model.vocab())?;
        let shared = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let cached = shared.min(prompt.len() - 1);
        self.truncate(cached);
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
                self.model.end_tokens().to_vec()
            },
            longest: options
                .chain
                .unwrap_or(usize::MAX)
                .min(self.model.inner.max_chain),
            prompt: prompt.len(),
            cached,
            timings: Timings::default(),
            start,
            consumer,
        };
        let cancelled = self.feed(&prompt[cached..])?.is_empty();
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
                self.model
                    .end_tokens()
                    .iter()
                    .map(|&token| (token, f32::NEG_INFINITY)),
            );
        }
        self.set_sampling(&options.sampling, &bias);
        let token = self.sample()?;
        generation.last = token;
        generation.timings.first_token = generation.start.elapsed();
        generation.text.take(
            token,
            &generation.end_tokens,
            bytes_of(&self.model, token),
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
        let (model, first) = (self.model.clone(), self.tokens.len());
        let start = *last;
        let count = self.chain(start, n, end_tokens, &mut |token| {
            *last = token;
            text.take(token, end_tokens, bytes_of(&model, token), sink)
        })?;
        let timings = &mut generation.timings;
        timings.decoded += count;
        timings.bytes += (first..first + count)
            .map(|depth| model.bytes_per_token(depth + 1))
            .sum::<u64>();
        if text.stop.is_none() && (count == 0 || self.cancel.load(Ordering::Relaxed)) {
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
        self.cancel.store(false, Ordering::Relaxed);
        let stop = text.stop.take().unwrap_or(StopReason::Cancelled);
        if let StopReason::StopString(string) = &stop {
            text.rewind(string);
            self.truncate(prompt + text.generated.len());
        } else if stop != StopReason::Callback {
            let rest = text.splitter.finish();
            if !rest.is_empty() {
                // Nothing is left to stop.
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

/// Refuses values that mean nothing, instead of computing nonsense.
fn check_options(options: &GenerateOptions, vocab: u32) -> Result<(), Error> {
    let s = &options.sampling;
    if !(s.temperature >= 0.0 && s.temperature.is_finite()) {
        return Err(Error::option(
            "--temp",
            format!(
                "{} is not a temperature; use 0 (greedy) or more",
                s.temperature
            ),
        ));
    }
    if !(s.top_p > 0.0 && s.top_p <= 1.0) {
        return Err(Error::option(
            "--top-p",
            format!("{} is not in (0, 1]", s.top_p),
        ));
    }
    if !(s.min_p >= 0.0 && s.min_p <= 1.0) {
        return Err(Error::option(
            "--min-p",
            format!("{} is not in [0, 1]", s.min_p),
        ));
    }
    if !(s.repeat_penalty > 0.0 && s.repeat_penalty.is_finite()) {
        return Err(Error::option(
            "--repeat-penalty",
            format!("{} must be more than 0 (1 is none)", s.repeat_penalty),
        ));
    }
    if !s.frequency_penalty.is_finite() || !s.presence_penalty.is_finite() {
        return Err(Error::option(
            "--frequency-penalty/--presence-penalty",
            "must be a number",
        ));
    }
    if options.stop.iter().any(String::is_empty) {
        return Err(Error::option("stop string", "is empty; remove it"));
    }
    match options
        .bias
        .iter()
        .find(|(token, value)| *token >= vocab || value.is_nan())
    {
        Some((token, _)) => Err(Error::Token {
            token: *token,
            vocab,
        }),
        None => Ok(()),
    }
}

/// An iterator over the pieces of a generation. Dropping it ends the generation.
pub struct Pieces<'a> {
    session: &'a mut Session,
    generation: Option<Generation>,
    ready: String,
    outcome: Option<Outcome>,
}

impl Pieces<'_> {
    /// What it came to, once the iterator has ended.
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
