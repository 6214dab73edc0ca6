//! The one place that turns the engine's stream into events (text, reasoning, calls, and the end), and events into the response:
//! server-sent events, or JSON line by line.

use crate::error::Failure;
use crate::lines::{LimitedText, LineLimits};
use crate::models::{Active, Lease};
use crate::rates::floor_share;
use crate::volatile_lines::Changing;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_core::Stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use welte::{Logprobs, Outcome, RequestProgress, StopReason};
use welte_text::calls::{self, CallParser};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Probabilities of tokens, if they were asked for. Their text follows.
    Logprobs(Vec<Logprobs>),
    /// Tokens, if they were asked for. With the event that follows, the events so far are the answer that the tokens so far
    /// give: another server can continue after them.
    Tokens(Vec<u32>),
    /// How fast it was so far, if that was asked for. Text follows.
    Timings(RequestProgress),
    /// How much of the prompt is computed, if that was asked for.
    Progress(RequestProgress),
    Text(String),
    Reasoning(String),
    /// A call of this function begins.
    CallBegin(String),
    /// More of the call's arguments. All of them together are a JSON object, as text.
    CallArguments(String),
    /// The call is complete.
    CallEnd,
    /// The call was malformed. Its source follows as text.
    CallVoid,
    /// The last event.
    End(Box<End>),
}

impl Event {
    /// Whether clients see something of it.
    fn is_shown(&self) -> bool {
        !matches!(self, Event::CallEnd | Event::CallVoid)
    }
}

/// What an answer tells beside its text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// The tokens of each piece of text.
    pub(crate) tokens: bool,
    /// How fast it was so far, before each piece of text.
    pub(crate) timings: bool,
    /// How much of the prompt is computed.
    pub(crate) progress: bool,
    /// The prompt's tokens, at the end.
    pub(crate) prompt: bool,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) reason: Reason,
    pub(crate) outcome: Outcome,
    /// Calls that were malformed. Their source is part of the text.
    pub(crate) problems: Vec<String>,
    /// Lines of the system prompt that change with every request.
    pub(crate) changing: Vec<Changing>,
    /// Share of the memory's speed that decoding reached.
    pub(crate) floor_share: Option<f64>,
    /// Tokens up to the end of the reasoning.
    pub(crate) reasoning_tokens: usize,
    /// Probabilities of the prompt's tokens from the second on, if they were asked for.
    pub(crate) prompt_logprobs: Vec<Logprobs>,
    /// The prompt's tokens, if they were asked for.
    pub(crate) prompt: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// An end token.
    Stop,
    StopString(String),
    Length,
    Calls,
}

/// How to take an answer apart.
#[derive(Clone)]
pub(crate) struct Parsing {
    pub(crate) parser: CallParser,
    /// The end of the prompt that belongs to the answer.
    pub(crate) opening: String,
    /// End after the first call.
    pub(crate) one_call: bool,
}

/// An answer while it is generated. Dropping it ends the request.
pub(crate) struct Answer {
    served: Lease,
    stream: welte::Stream,
    parsing: Option<Parsing>,
    changing: Vec<Changing>,
    lines: Option<LimitedText>,
    report: Report,
    /// The prompt's tokens, if they were asked for.
    prompt: Vec<u32>,
    /// Tokens of the prompt that were reported as computed.
    told: Option<usize>,
    prompt_tokens: usize,
    started: Instant,
    last_piece: Option<Instant>,
    ready: VecDeque<Event>,
    /// Calls that were begun, complete ones, and those that were begun and malformed.
    begun_calls: usize,
    calls: usize,
    void_calls: usize,
    /// Nobody sees a part of it.
    whole: bool,
    problems: Vec<String>,
    reasoning_tokens: usize,
    over: bool,
    failed: bool,
}

/// What a tool has said, or what went wrong.
pub(crate) type Said = Result<String, String>;

/// What follows when calls were made: their results, and how the model goes on.
pub(crate) struct Step {
    pub(crate) results: Vec<(usize, Said)>,
    pub(crate) answers: Vec<Answer>,
    /// Why the model cannot go on. The results count all the same: the calls may have had effects.
    pub(crate) failure: Option<Failure>,
}

impl Step {
    /// Whether something follows the results: further answers, or a failure.
    pub(crate) fn goes_on(&self) -> bool {
        self.failure.is_some() || !self.answers.is_empty()
    }
}

pub(crate) type More = Pin<Box<dyn Future<Output = Step> + Send>>;

impl Answer {
    pub(crate) fn new(
        served: &Lease,
        stream: welte::Stream,
        parsing: Option<Parsing>,
        active: Active,
    ) -> Answer {
        let (started, prompt_tokens) = (active.since, active.prompt_tokens);
        served.active().insert(stream.number(), active);
        let mut answer = Answer {
            started,
            prompt_tokens,
            served: served.clone(),
            stream,
            parsing,
            changing: Vec::new(),
            lines: None,
            report: Report::default(),
            prompt: Vec::new(),
            told: None,
            last_piece: None,
            ready: VecDeque::new(),
            begun_calls: 0,
            calls: 0,
            void_calls: 0,
            whole: false,
            problems: Vec::new(),
            reasoning_tokens: 0,
            over: false,
            failed: false,
        };
        if let Some(parsing) = &mut answer.parsing {
            let events = parsing.parser.push(&parsing.opening);
            answer.take(events, 0);
        }
        answer
    }

    /// Takes the beginning of the answer, which the client has from another server.
    fn resume(&mut self) {
        let answered = self.stream.take_answered();
        for (nth, piece) in answered.into_iter().enumerate() {
            self.split(piece, nth + 1);
            self.ready.clear();
        }
    }

    /// As this answer, with a remark on its prompt.
    pub(crate) fn with_changing(mut self, changing: Vec<Changing>) -> Answer {
        self.changing = changing;
        self
    }

    /// As this answer, with limits of its lines.
    pub(crate) fn with_lines(mut self, limits: Option<LineLimits>) -> Answer {
        self.lines = limits.map(LimitedText::new);
        self.resume();
        self
    }

    /// As this answer, with what it tells beside its text.
    pub(crate) fn with_report(mut self, report: Report, prompt: &[u32]) -> Answer {
        self.report = report;
        if report.prompt {
            self.prompt = prompt.to_vec();
        }
        self
    }

    /// Calls that it has begun before its first event.
    pub(crate) fn begun_calls(&self) -> usize {
        self.begun_calls
    }

    /// Tokens of its prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    fn piece(&mut self, piece: String) {
        let now = Instant::now();
        if let Some(last) = self.last_piece.replace(now) {
            self.served.metrics.piece(now - last);
        }
        self.take_logprobs();
        if self.report.timings
            && let Some(progress) = self.stream.progress()
        {
            self.ready.push_back(Event::Timings(progress));
        }
        let before = self.ready.len();
        self.split(piece, self.stream.generated());
        if let Some(last) = self.last_shown(before) {
            self.take_tokens(last);
        }
    }

    /// The last of the events from this one on that clients see.
    fn last_shown(&self, from: usize) -> Option<usize> {
        let mut new = self.ready.iter().skip(from);
        Some(from + new.rposition(Event::is_shown)?)
    }

    /// Turns a piece of text into events. So many tokens are generated.
    fn split(&mut self, mut piece: String, generated: usize) {
        if let Some(lines) = &mut self.lines {
            piece = lines.push(&piece, Instant::now());
            if lines.is_over() {
                self.stream.cancel_handle().cancel();
            }
        }
        match &mut self.parsing {
            _ if piece.is_empty() => {}
            Some(parsing) => {
                let events = parsing.parser.push(&piece);
                self.take(events, generated);
            }
            None => self.ready.push_back(Event::Text(piece)),
        }
    }

    fn take_logprobs(&mut self) {
        let logprobs = self.stream.take_logprobs().to_vec();
        if !logprobs.is_empty() {
            self.ready.push_back(Event::Logprobs(logprobs));
        }
    }

    /// Takes the tokens before this one of the events that are ready.
    fn take_tokens(&mut self, before: usize) {
        if self.report.tokens {
            let tokens = self.stream.take_tokens().to_vec();
            if !tokens.is_empty() {
                self.ready.insert(before, Event::Tokens(tokens));
            }
        }
    }

    /// Tells how much of the prompt is computed, if more is than before.
    fn take_progress(&mut self) {
        if !self.report.progress {
            return;
        }
        let Some(progress) = self.stream.progress() else {
            return;
        };
        let told = match self.told {
            Some(told) => told,
            None => {
                let first = RequestProgress {
                    computed_tokens: progress.cached_tokens,
                    prompt: Duration::ZERO,
                    ..progress
                };
                self.ready.push_back(Event::Progress(first));
                progress.cached_tokens
            }
        };
        if progress.computed_tokens > told {
            self.ready.push_back(Event::Progress(progress));
        }
        self.told = Some(progress.computed_tokens.max(told));
    }

    /// Takes what the parser has found once so many tokens were generated.
    fn take(&mut self, events: Vec<calls::Event>, generated: usize) {
        let one_call = self
            .parsing
            .as_ref()
            .is_some_and(|parsing| parsing.one_call);
        for event in events {
            if one_call && self.calls > 0 {
                return;
            }
            match event {
                calls::Event::Text(text) => self.ready.push_back(Event::Text(text)),
                calls::Event::Reasoning(text) => {
                    self.reasoning_tokens = generated;
                    self.ready.push_back(Event::Reasoning(text));
                }
                calls::Event::CallBegin { name, .. } => {
                    self.begun_calls += 1;
                    self.ready.push_back(Event::CallBegin(name));
                }
                calls::Event::CallArguments { delta, .. } => {
                    self.ready.push_back(Event::CallArguments(delta));
                }
                calls::Event::CallEnd { .. } => {
                    self.calls += 1;
                    self.ready.push_back(Event::CallEnd);
                    if one_call {
                        self.stream.cancel_handle().cancel();
                    }
                }
                calls::Event::Problem(problem) => {
                    if problem.index.is_some() {
                        self.void_calls += 1;
                        self.ready.push_back(Event::CallVoid);
                    }
                    self.problems.push(problem.to_string());
                }
                _ => {}
            }
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.take_logprobs();
        let before = self.ready.len();
        let events = self.parsing.as_mut().map(|parsing| parsing.parser.finish());
        self.take(events.unwrap_or_default(), self.stream.generated());
        let rest = self.lines.as_mut().map(LimitedText::finish);
        let rest = rest.filter(|rest| !rest.is_empty());
        self.ready.extend(rest.map(Event::Text));
        let Some(outcome) = self.stream.outcome().cloned() else {
            return Err(Failure::server("the engine gave no result"));
        };
        let limited = matches!(
            outcome.stop,
            StopReason::Length | StopReason::ContextFull | StopReason::Deadline
        ) || self.lines.as_ref().is_some_and(LimitedText::is_over);
        let reason = match &outcome.stop {
            _ if limited => Reason::Length,
            // A client that has seen a part of a malformed call must not execute it.
            _ if self.calls > 0 && (self.void_calls == 0 || self.whole) => Reason::Calls,
            StopReason::StopString(string) => Reason::StopString(string.clone()),
            _ => Reason::Stop,
        };
        let whole = self.started.elapsed();
        self.served.metrics.ended(&outcome, limited, whole);
        let seconds = outcome.timings.generation.as_secs_f64();
        let bytes = outcome.timings.bytes as f64;
        let last = self.last_shown(before);
        self.take_tokens(last.unwrap_or(self.ready.len()));
        let bandwidth = self.served.bandwidth;
        let floor_share = floor_share(seconds.recip(), bytes, bandwidth, self.in_cache());
        self.ready.push_back(Event::End(Box::new(End {
            reason,
            // A stop string takes tokens back.
            reasoning_tokens: self.reasoning_tokens.min(outcome.tokens.len()),
            prompt_logprobs: self.stream.prompt_logprobs(),
            prompt: std::mem::take(&mut self.prompt),
            outcome,
            problems: std::mem::take(&mut self.problems),
            changing: std::mem::take(&mut self.changing),
            floor_share,
        })));
        Ok(())
    }

    /// A model in the device's cache is not limited by memory.
    fn in_cache(&self) -> bool {
        let model = &self.served.model;
        model.bytes_per_token(1) <= model.device().cache_bytes
    }
}

impl Stream for Answer {
    type Item = Result<Event, Failure>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, Failure>>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if this.over {
                return Poll::Ready(None);
            }
            let polled = Pin::new(&mut this.stream).poll_next(context);
            this.take_progress();
            if polled.is_pending() && !this.ready.is_empty() {
                continue;
            }
            let failure = match ready!(polled) {
                Some(Ok(piece)) => {
                    this.piece(piece);
                    continue;
                }
                Some(Err(error)) => Some(Failure::from(error)),
                None => {
                    this.over = true;
                    this.end().err()
                }
            };
            if let Some(failure) = failure {
                (this.over, this.failed) = (true, true);
                return Poll::Ready(Some(Err(failure)));
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.served.active().remove(&self.stream.number());
        if self.failed || !self.over {
            self.served.metrics.broken(self.failed);
        }
    }
}

/// The events of several answers with the answers' numbers, as they come.
pub(crate) struct Answers {
    answers: Vec<Option<Answer>>,
    next: usize,
}

impl Answers {
    pub(crate) fn new(answers: Vec<Answer>) -> Answers {
        Answers {
            answers: answers.into_iter().map(Some).collect(),
            next: 0,
        }
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Event), Failure>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, Event), Failure>>> {
        let (count, mut pending) = (self.answers.len(), false);
        for _ in 0..count {
            // Answers take turns.
            let index = self.next % count;
            self.next = index + 1;
            let Some(answer) = &mut self.answers[index] else {
                continue;
            };
            match Pin::new(answer).poll_next(context) {
                Poll::Ready(Some(event)) => {
                    return Poll::Ready(Some(event.map(|event| (index, event))));
                }
                Poll::Ready(None) => self.answers[index] = None,
                Poll::Pending => pending = true,
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(None)
    }

    /// Waits for the whole of every answer.
    pub(crate) async fn collect(mut self) -> Result<Vec<Whole>, Failure> {
        let mut wholes: Vec<Whole> = self.answers.iter().map(|_| Whole::default()).collect();
        for answer in self.answers.iter_mut().flatten() {
            answer.whole = true;
        }
        while let Some(event) = self.next().await {
            let (index, event) = event?;
            wholes[index].add(event);
        }
        Ok(wholes)
    }
}

/// A complete answer.
#[derive(Default)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) logprobs: Vec<Logprobs>,
    end: Option<Box<End>>,
}

impl End {
    /// The tokens that the request did not have as answered.
    pub(crate) fn new_tokens(&self) -> &[u32] {
        &self.outcome.tokens[self.outcome.answered..]
    }
}

impl Whole {
    fn add(&mut self, event: Event) {
        match event {
            Event::Logprobs(logprobs) => self.logprobs.extend(logprobs),
            Event::Tokens(_) | Event::Timings(_) | Event::Progress(_) => {}
            Event::Text(text) => self.text.push_str(&text),
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::CallBegin(name) => self.calls.push((name, String::new())),
            Event::CallArguments(delta) => {
                if let Some((_, arguments)) = self.calls.last_mut() {
                    arguments.push_str(&delta);
                }
            }
            Event::CallEnd => {}
            Event::CallVoid => {
                self.calls.pop();
            }
            Event::End(end) => self.end = Some(end),
        }
    }

    pub(crate) fn end(&self) -> Result<&End, Failure> {
        let none = || Failure::server("the engine gave no result");
        self.end.as_deref().ok_or_else(none)
    }
}

/// Turns an API's events into the text of its stream.
pub(crate) trait Format: Send + Unpin + 'static {
    /// What comes before the first event.
    fn begin(&mut self) -> Vec<Value>;
    /// An event of answer `index`.
    fn event(&mut self, index: usize, event: Event) -> Vec<Value>;
    /// What has to be done once the answers have ended, before they go on.
    fn more(&mut self) -> Option<More> {
        None
    }
    /// What came of that. `goes_on`: further answers follow, or a failure.
    fn resume(&mut self, _results: Vec<(usize, Said)>, _goes_on: bool) -> Vec<Value> {
        Vec::new()
    }
    /// What comes after the last event.
    fn finish(&mut self) -> Vec<Value>;
    /// An error in the middle of the stream.
    fn failure(&mut self, failure: &Failure) -> Value;
    /// A value as it is sent.
    fn write(&self, value: &Value) -> String;
    /// The last words after everything.
    fn close(&self) -> &'static str {
        ""
    }
}

/// A value as an event of server-sent events.
pub(crate) fn sse(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// The same, with an event's type as its name.
pub(crate) fn sse_named(value: &Value) -> String {
    let kind = value["type"].as_str().unwrap_or_default();
    format!("event: {kind}\n{}", sse(value))
}

/// A response that streams answers.
pub(crate) fn respond<F: Format>(
    answers: Vec<Answer>,
    mut format: F,
    kind: &'static str,
) -> Response {
    let ready = format.begin().into();
    let stream = Streaming {
        answers: Answers::new(answers),
        format,
        more: None,
        ready,
        over: false,
    };
    respond_bytes(stream, kind)
}

/// A response with a stream of bytes.
pub(crate) fn respond_bytes<S>(stream: S, kind: &'static str) -> Response
where
    S: Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
{
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies must not collect the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Streaming<F> {
    answers: Answers,
    format: F,
    /// What is being done before the answers go on.
    more: Option<More>,
    ready: VecDeque<Value>,
    over: bool,
}

impl<F: Format> Stream for Streaming<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        let this = &mut *self;
        // What has come meanwhile goes out together.
        let mut text = String::new();
        loop {
            for value in this.ready.drain(..) {
                text.push_str(&this.format.write(&value));
            }
            if this.over {
                break;
            }
            let polled = match &mut this.more {
                Some(more) => match more.as_mut().poll(context) {
                    Poll::Ready(step) => {
                        this.more = None;
                        let goes_on = step.goes_on();
                        this.ready.extend(this.format.resume(step.results, goes_on));
                        this.answers = Answers::new(step.answers);
                        match step.failure {
                            Some(failure) => Poll::Ready(Some(Err(failure))),
                            None => continue,
                        }
                    }
                    Poll::Pending => Poll::Pending,
                },
                None => this.answers.poll(context),
            };
            match polled {
                Poll::Ready(Some(Ok((index, event)))) => {
                    this.ready.extend(this.format.event(index, event));
                }
                Poll::Ready(Some(Err(failure))) => {
                    tracing::warn!(%failure, "an answer failed");
                    this.ready.push_back(this.format.failure(&failure));
                    // The other answers end too.
                    this.answers = Answers::new(Vec::new());
                    this.over = true;
                }
                Poll::Ready(None) => {
                    this.more = this.format.more();
                    if this.more.is_some() {
                        continue;
                    }
                    for value in this.format.finish() {
                        text.push_str(&this.format.write(&value));
                    }
                    text.push_str(this.format.close());
                    this.over = true;
                }
                Poll::Pending if text.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if text.is_empty() {
            Poll::Ready(None)
        } else {
            Poll::Ready(Some(Ok(text.into())))
        }
    }
}
