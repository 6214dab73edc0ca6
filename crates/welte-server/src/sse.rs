//! Responses that are streamed: server-sent events, and JSON line by line.

use crate::answer::{Answer, Answers, Event, More, Said};
use crate::error::Failure;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_core::Stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

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

/// A value of server-sent events.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// The same, with an event's type as its name.
pub(crate) fn named(value: &Value) -> String {
    let kind = value["type"].as_str().unwrap_or_default();
    format!("event: {kind}\n{}", data(value))
}

/// A response that streams answers.
pub(crate) fn response<F: Format>(
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
    streamed(stream, kind)
}

/// A response with a stream of bytes.
pub(crate) fn streamed<S>(stream: S, kind: &'static str) -> Response
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
