//! The consumer's side of a request: tokens become text in the caller's thread, so the text does not depend on timing.

use super::channel::{Channel, Finish, Next};
use super::sequence::Sequence;
use super::spelling::Spelling;
use super::{CancelHandle, Engine, Request};
use crate::{Error, Outcome, RequestProgress, StopReason, Timings};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use web_time::{Duration, Instant};
use welte_device::Logprobs;
use welte_text::Splitter;

/// The answer to a request: an iterator of pieces of text, blocking or asynchronous, or of tokens. A piece consists of
/// whole characters that cannot be part of a stop string. Dropping the stream ends the request.
pub struct Stream {
    engine: Engine,
    out: Arc<Channel>,
    cancelled: Arc<AtomicBool>,
    text: Text,
    spelling: Spelling,
    stops: Arc<[String]>,
    ready: String,
    /// The text that each token gave which the request has as answered.
    answered: Vec<String>,
    pub(super) number: u64,
    prompt: usize,
    /// What the end of the budget means.
    at_limit: StopReason,
    started: Instant,
    /// Nothing more comes.
    over: bool,
    outcome: Option<Outcome>,
}

/// The tokens so far and their text.
struct Text {
    generated: Vec<u32>,
    raw: Vec<u8>,
    /// Where each token's bytes end in `raw`.
    ends: Vec<usize>,
    splitter: Splitter,
    /// The first so many tokens were known.
    answered: usize,
    /// Of each of the others, if they were asked for.
    logprobs: Vec<Logprobs>,
    /// Those that the caller has taken.
    reported: usize,
    /// Tokens that the caller has taken beside their text.
    told: usize,
}

impl Text {
    /// Takes the next token. Returns the text that is final now, and the stop string if one is complete.
    fn take(&mut self, token: u32, bytes: &[u8]) -> (String, Option<String>) {
        self.generated.push(token);
        self.raw.extend_from_slice(bytes);
        self.ends.push(self.raw.len());
        let split = self.splitter.push(bytes);
        (split.text, split.stopped)
    }

    /// The bytes of all tokens, also of those that were taken as tokens.
    fn spell(&mut self, spelling: &Spelling) {
        self.raw.clear();
        self.ends.clear();
        for token in &self.generated {
            self.raw.extend_from_slice(spelling.bytes(*token));
            self.ends.push(self.raw.len());
        }
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
        self.logprobs.truncate(count.saturating_sub(self.answered));
    }

    /// Tokens whose text is final.
    fn settled(&self) -> usize {
        let keep = self.raw.len().saturating_sub(self.splitter.held());
        let ends = self.ends.iter().rev();
        self.ends.len() - ends.take_while(|end| **end > keep).count()
    }
}

impl Stream {
    pub(crate) fn new(
        engine: &Engine,
        sequence: &Sequence,
        request: Request,
        cancelled: Arc<AtomicBool>,
        started: Instant,
    ) -> Stream {
        let (options, prompt) = (request.options, sequence.prompt);
        let (room, answered) = (sequence.max_len() - prompt, &sequence.tokens[prompt..]);
        let spelling = Spelling::new(engine.model(), &options.printed_controls);
        let mut text = Text {
            generated: Vec::with_capacity(room),
            raw: Vec::new(),
            ends: Vec::new(),
            splitter: Splitter::new(options.stop.clone()),
            answered: answered.len(),
            logprobs: Vec::with_capacity(options.logprobs.map_or(0, |_| room)),
            reported: 0,
            told: answered.len(),
        };
        let answered = answered.iter();
        let answered = answered.map(|token| text.take(*token, spelling.bytes(*token)).0);
        let answered = answered.collect();
        Stream {
            engine: engine.clone(),
            out: sequence.out.clone(),
            cancelled,
            text,
            spelling,
            stops: options.stop,
            ready: String::new(),
            answered,
            number: 0,
            prompt,
            at_limit: if options.max_tokens == room {
                StopReason::Length
            } else {
                StopReason::ContextFull
            },
            started,
            over: false,
            outcome: None,
        }
    }

    /// The request's number. Requests of an engine are numbered in their order.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The result, once the stream has ended without an error.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Tokens so far. Some of them may be part of the next piece.
    pub fn generated(&self) -> usize {
        match &self.outcome {
            Some(outcome) => outcome.tokens.len(),
            None => self.text.generated.len(),
        }
    }

    /// The probabilities of tokens since the last call, if they were asked for: of those whose text is part of the pieces
    /// so far, or that [`Stream::next_token`] returned. After the end, of all tokens of the outcome.
    pub fn take_logprobs(&mut self) -> &[Logprobs] {
        let text = &mut self.text;
        let known = text.logprobs.len();
        let to = if self.over || text.ends.len() <= text.answered {
            known
        } else {
            text.settled().saturating_sub(text.answered).min(known)
        };
        let from = text.reported.min(to);
        text.reported = text.reported.max(to);
        &text.logprobs[from..to]
    }

    /// The tokens since the last call, with those whose text is held back: a request that continues after them gives the
    /// text that follows the pieces so far. After the end, those of the outcome.
    pub fn take_tokens(&mut self) -> &[u32] {
        let text = &mut self.text;
        let tokens = match &self.outcome {
            Some(outcome) => &outcome.tokens,
            None => &text.generated,
        };
        let from = text.told.min(tokens.len());
        text.told = text.told.max(tokens.len());
        &tokens[from..]
    }

    /// The text that each token gave which the request has as answered. It is not part of the pieces.
    pub fn take_answered(&mut self) -> Vec<String> {
        std::mem::take(&mut self.answered)
    }

    /// How far the request is; `None` while it waits.
    pub fn progress(&self) -> Option<RequestProgress> {
        let report = self.out.reported();
        let admitted = report.admitted?;
        let now = report.ended.unwrap_or_else(|| self.out.clock().now());
        let first = report.first.unwrap_or(now);
        Some(RequestProgress {
            prompt_tokens: self.prompt,
            cached_tokens: report.cached.min(self.prompt),
            computed_tokens: match report.first {
                Some(_) => self.prompt,
                None => report.computed.min(self.prompt),
            },
            prompt: first.saturating_duration_since(admitted),
            generated: self.generated(),
            generation: now.saturating_duration_since(first),
        })
    }

    /// The probabilities of the prompt's tokens from the second on, if they were asked for: all of them once the first
    /// token or the end has come.
    pub fn prompt_logprobs(&self) -> Vec<Logprobs> {
        self.out.prompt_logprobs()
    }

    /// A handle that cancels the request.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.engine.cancel_handle(&self.cancelled)
    }

    /// Waits for the whole text.
    pub fn complete(mut self) -> Result<(String, Outcome), Error> {
        let mut text = String::new();
        for piece in &mut self {
            text.push_str(&piece?);
        }
        match self.outcome.take() {
            Some(outcome) => Ok((text, outcome)),
            None => Err(Error::EngineStopped { why: None }),
        }
    }

    /// Waits for the next token; `None` at the end. This is for callers that want tokens in place of text: the tokens taken
    /// are missing in the pieces. With stop strings the last token is the one that completes a stop string; the outcome has
    /// the tokens before it. Allocates nothing before the end.
    pub fn next_token(&mut self) -> Option<Result<u32, Error>> {
        match self.is_at_work().then(|| self.out.next())? {
            Some(next) => self.token(next),
            None => None,
        }
    }

    /// As [`Stream::next_token`], without waiting.
    pub fn poll_token(&mut self) -> Poll<Option<Result<u32, Error>>> {
        if !self.is_at_work() {
            return Poll::Ready(None);
        }
        match self.out.try_next() {
            Some(next) => Poll::Ready(self.token(next)),
            None => Poll::Pending,
        }
    }

    /// As [`Stream::next_token`], for an executor.
    pub fn poll_next_token(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<u32, Error>>> {
        if !self.is_at_work() {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.out.poll(context));
        Poll::Ready(next.and_then(|next| self.token(next)))
    }

    fn token(&mut self, next: Next) -> Option<Result<u32, Error>> {
        match next {
            Next::Token(token, logprobs) => {
                self.text.generated.push(token);
                self.text.logprobs.extend(logprobs);
                Some(Ok(token))
            }
            Next::End(end) => self.end(end).err().map(Err),
        }
    }

    /// Ends the stream as if a callback had asked for it.
    pub(crate) fn stop(&mut self, why: StopReason) {
        if !self.over {
            self.finish(why, 0);
        }
    }

    /// True unless the stream is over. A cancelled stream ends here, so tokens that have already arrived do not matter.
    fn is_at_work(&mut self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) {
            self.stop(StopReason::Cancelled);
        }
        !self.over
    }

    /// Takes what has come. The text goes to `ready`.
    fn advance(&mut self, next: Next) -> Result<(), Error> {
        let token = match next {
            Next::Token(token, logprobs) => {
                self.text.logprobs.extend(logprobs);
                token
            }
            Next::End(end) => return self.end(end),
        };
        let (piece, stopped) = self.text.take(token, self.spelling.bytes(token));
        self.ready.push_str(&piece);
        if let Some(stop) = stopped {
            self.finish(StopReason::StopString(stop), 0);
        }
        Ok(())
    }

    fn end(&mut self, end: Result<Finish, Error>) -> Result<(), Error> {
        match end {
            Ok(Finish::End(token)) => self.finish(StopReason::End(token), 1),
            Ok(Finish::Stop(which)) => {
                // Whoever reads tokens has not met it.
                self.text.spell(&self.spelling);
                let stop = self.stops.get(which).cloned().unwrap_or_default();
                self.finish(StopReason::StopString(stop), 0);
            }
            Ok(Finish::Length) => self.finish(self.at_limit.clone(), 0),
            Ok(Finish::Cancelled) => self.finish(StopReason::Cancelled, 0),
            Ok(Finish::Deadline) => self.finish(StopReason::Deadline, 0),
            Err(error) => {
                self.leave();
                return Err(error);
            }
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.over = true;
        self.out.leave();
    }

    /// Computes the outcome. `more`: tokens that were decoded and are not part of the text.
    fn finish(&mut self, stop: StopReason, more: usize) {
        self.leave();
        self.cancelled.store(false, Ordering::Relaxed);
        let answered = self.text.answered;
        let chosen = self.text.generated.len() - answered + more;
        let decoded = chosen.saturating_sub(1);
        match &stop {
            StopReason::StopString(string) => self.text.rewind(string),
            StopReason::Callback => {}
            _ => self.ready.push_str(&self.text.splitter.finish()),
        }
        let report = self.out.reported();
        let ended = report.ended.unwrap_or_else(|| self.out.clock().now());
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.saturating_duration_since(from),
            _ => Duration::ZERO,
        };
        let begun = report.admitted.map(|_| report.first.unwrap_or(ended));
        let model = self.engine.model();
        let before = self.prompt + answered;
        let bytes = (1..=decoded).map(|i| model.bytes_per_token(before + i));
        let bytes = bytes.fold(0, u64::saturating_add);
        // A right guess needs no step of its own.
        let steps = decoded.saturating_sub(report.speculated.accepted);
        let bytes = u128::from(bytes) * steps as u128 / decoded.max(1) as u128;
        self.outcome = Some(Outcome {
            answered: answered.min(self.text.generated.len()),
            tokens: std::mem::take(&mut self.text.generated),
            stop,
            timings: Timings {
                queued: between(Some(self.started), report.admitted),
                prompt: between(report.admitted, begun),
                generation: between(report.first, Some(ended)),
                first_token: between(Some(self.started), report.first),
                bytes: bytes as u64,
                chosen,
                decoded,
            },
            prompt_tokens: self.prompt,
            cached_tokens: report.cached.min(self.prompt),
            differs_at: report.differs_at,
            preemptions: report.preemptions,
            speculated: report.speculated,
        });
    }

    /// The next piece, once `next` gives what it needs. `Err(())`: it gives nothing yet.
    fn piece(
        &mut self,
        mut next: impl FnMut(&Channel) -> Poll<Option<Next>>,
    ) -> Poll<Option<Result<String, Error>>> {
        while self.ready.is_empty() && self.is_at_work() {
            let advanced = match next(&self.out) {
                Poll::Ready(Some(next)) => self.advance(next),
                Poll::Ready(None) => break,
                Poll::Pending => return Poll::Pending,
            };
            if let Err(error) = advanced {
                return Poll::Ready(Some(Err(error)));
            }
        }
        let piece = std::mem::take(&mut self.ready);
        Poll::Ready((!piece.is_empty()).then_some(Ok(piece)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.out.leave();
    }
}

impl Iterator for Stream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.piece(|out| Poll::Ready(out.next())) {
            Poll::Ready(piece) => piece,
            Poll::Pending => None,
        }
    }
}

impl futures_core::Stream for Stream {
    type Item = Result<String, Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<String, Error>>> {
        self.piece(|out| out.poll(context))
    }
}
