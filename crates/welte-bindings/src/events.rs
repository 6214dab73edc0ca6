//! A response that is streamed: server-sent events, or JSON line by line.

use crate::merge::Merged;
use crate::problem::message_in;
use crate::waiting::{Alive, LOOK, OnText, Waiter};
use crate::{Kind, Problem};
use axum::body::BodyDataStream;
use axum::response::Response;
use futures_core::Stream;
use serde_json::Value;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Instant;

/// The events of a response. Dropping it ends the request.
pub struct Events {
    waiter: Waiter,
    body: BodyDataStream,
    /// Bytes that have come and are not taken.
    bytes: Vec<u8>,
    /// When the caller was last asked whether it still wants the answer.
    asked: Option<Instant>,
    over: bool,
}

impl Events {
    pub(crate) fn new(waiter: Waiter, response: Response) -> Events {
        Events {
            waiter,
            body: response.into_body().into_data_stream(),
            bytes: Vec::new(),
            asked: None,
            over: false,
        }
    }

    /// The next event, which is JSON; `None` at the end.
    pub fn next(&mut self, alive: Alive) -> Result<Option<String>, Problem> {
        loop {
            // Events may come so fast that nobody waits.
            if self.asked.is_none_or(|at| at.elapsed() >= LOOK) {
                self.asked = Some(Instant::now());
                if !alive() {
                    self.over = true;
                    self.bytes.clear();
                    return Err(Problem::cancelled());
                }
            }
            while let Some(line) = self.line() {
                let data = match line.strip_prefix("data:") {
                    Some(data) => data.trim(),
                    // The names of events and the empty lines after them.
                    None if !line.starts_with('{') => continue,
                    None => line.trim(),
                };
                if data == "[DONE]" {
                    self.over = true;
                    return Ok(None);
                }
                if data.starts_with("{\"error\"") {
                    self.over = true;
                    return Err(Problem::new(Kind::Internal, message_in(data)));
                }
                return Ok(Some(data.to_string()));
            }
            if self.over {
                return Ok(None);
            }
            let body = &mut self.body;
            let more = poll_fn(|context| Pin::new(&mut *body).poll_next(context));
            match self.waiter.wait(more, alive)? {
                Some(Ok(more)) => self.bytes.extend_from_slice(&more),
                Some(Err(error)) => {
                    return Err(Problem::new(Kind::Internal, error.to_string()));
                }
                None => {
                    self.over = true;
                    // The last line may lack its end.
                    self.bytes.push(b'\n');
                }
            }
        }
    }

    /// Reads to the end and puts the response together. Ending it from `on_text` is not an error.
    pub(crate) fn merge(mut self, on_text: OnText, alive: Alive) -> Result<Value, Problem> {
        let mut merged = Merged::default();
        while let Some(event) = self.next(alive)? {
            let chunk = serde_json::from_str(&event).map_err(|error| {
                Problem::new(Kind::Internal, format!("an event is not JSON: {error}"))
            })?;
            let text = merged.add(chunk);
            if !text.is_empty() && on_text(&text).is_break() {
                merged.cancel();
                break;
            }
        }
        Ok(merged.finish())
    }

    fn line(&mut self) -> Option<String> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let rest = self.bytes.split_off(end + 1);
        let line = std::mem::replace(&mut self.bytes, rest);
        Some(String::from_utf8_lossy(&line).trim_end().to_string())
    }
}
