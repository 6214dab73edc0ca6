//! Bodies of requests: read within limits, weighed before they are parsed, and parsed away from the threads that serve.
//!
//! A small JSON text can become a large tree: an object with one field takes 6 bytes there and 600 here. So the number of its
//! values is counted first, and the memory of all trees is bounded.

use crate::ServerOptions;
use crate::error::Failure;
use crate::fields::Fields;
use crate::ignored::Ignored;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use futures_core::Stream;
use serde_json::Value;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Objects and lists in a body.
const MOST_CONTAINERS: usize = 100_000;
/// Values in a body.
const MOST_VALUES: usize = 1_000_000;
/// Memory of a parsed object or list, and of each value in it, at most. Lists grow to twice their size.
const CONTAINER_BYTES: usize = 700;
const VALUE_BYTES: usize = 160;
/// Requests whose images are fetched, decoded and encoded at a time. One tile is encoded at a time.
const LOOKING: usize = 4;
/// Requests whose sound a model of speech writes down. They take turns by windows of sound.
const LISTENING: usize = 4;
/// Requests whose sound language models write down. The engine works on several at a time.
const DICTATING: usize = 64;
/// Sessions of the realtime API. They listen as requests do.
const SESSIONS: usize = 64;
/// Smaller bodies are parsed at once.
const PARSED_AT_ONCE: usize = 64 << 10;

/// What bodies may take together.
pub(crate) struct Bodies {
    max_bytes: usize,
    held: AtomicUsize,
    /// Places for work that takes a while.
    places: Arc<Semaphore>,
    /// Places for looking at images. What waits there holds up no text.
    looking: Arc<Semaphore>,
    /// Places for listening to sound.
    listening: Arc<Semaphore>,
    /// Places for language models that write down sound.
    dictating: Arc<Semaphore>,
    /// Places for sessions of the realtime API.
    sessions: Arc<Semaphore>,
}

impl Bodies {
    pub(crate) fn new(max_bytes: usize, places: usize) -> Bodies {
        Bodies {
            max_bytes,
            held: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS))),
            looking: Arc::new(Semaphore::new(LOOKING)),
            listening: Arc::new(Semaphore::new(LISTENING)),
            dictating: Arc::new(Semaphore::new(DICTATING)),
            sessions: Arc::new(Semaphore::new(SESSIONS)),
        }
    }

    /// Does something that takes a while without holding up other requests.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        in_place(&self.places, work).await
    }

    /// The same for looking at images.
    pub(crate) async fn looking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        in_place(&self.looking, work).await
    }

    /// The same for listening to sound.
    pub(crate) async fn listening<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        in_place(&self.listening, work).await
    }

    /// The same for sound that a language model writes down.
    pub(crate) async fn dictating<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        in_place(&self.dictating, work).await
    }

    /// A place for a session of the realtime API.
    pub(crate) fn session(&self) -> Result<OwnedSemaphorePermit, Failure> {
        self.sessions.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{SESSIONS} realtime sessions are open; try again later");
            Failure::new(StatusCode::TOO_MANY_REQUESTS, message)
        })
    }

    /// The most that all bodies may take.
    pub(crate) fn most(&self) -> usize {
        self.max_bytes
    }
}

async fn in_place<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = places.clone().acquire_owned().await;
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    done.await
        .unwrap_or_else(|error| Err(Failure::fault(&error)))
}

/// The memory of a body, until the request is done.
pub(crate) struct Held {
    bodies: Arc<Bodies>,
    bytes: usize,
}

impl Bodies {
    /// Memory that an answer takes beside its request's body.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Result<Held, Failure> {
        let mut held = Held {
            bodies: self.clone(),
            bytes: 0,
        };
        held.add(bytes)?;
        Ok(held)
    }
}

impl Held {
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        let bodies = &self.bodies;
        if self.bytes.saturating_add(bytes) > bodies.max_bytes {
            let message = format!(
                "the request takes more memory than all bodies may ({} MiB); see --bodies-memory",
                bodies.max_bytes >> 20
            );
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        let add = |held: usize| {
            held.checked_add(bytes)
                .filter(|held| *held <= bodies.max_bytes)
        };
        let added = bodies
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if added.is_err() {
            let message = "the bodies of other requests take all memory for bodies; try again";
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Holds so many bytes in all.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Failure> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.add(more),
            None => {
                self.part(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Splits so many bytes off, or as many as there are.
    pub(crate) fn part(&mut self, bytes: usize) -> Held {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Held {
            bodies: self.bodies.clone(),
            bytes,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bodies.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The fields of a request's body, and the memory that they take.
pub(crate) async fn fields(
    bodies: &Arc<Bodies>,
    options: &ServerOptions,
    request: Request,
) -> Result<(Fields, Held), Failure> {
    let (body, ignored, mut held) = bytes(bodies, options, request).await?;
    let small = body.len() <= PARSED_AT_ONCE;
    let parse = move || {
        let weight = Weight::of(&body);
        weight.check()?;
        held.add(weight.bytes())?;
        Ok((Fields::parse(&body, &ignored)?, held))
    };
    if small {
        return parse();
    }
    bodies.aside(parse).await
}

/// Reads a body that may be any JSON value.
pub(crate) async fn value(
    bodies: &Arc<Bodies>,
    options: &ServerOptions,
    request: Request,
) -> Result<(Value, Held), Failure> {
    let (body, _, mut held) = bytes(bodies, options, request).await?;
    Ok((weighed(&body, &mut held)?, held))
}

/// Parses a message that may be any JSON value.
pub(crate) fn parse(bodies: &Arc<Bodies>, text: &str) -> Result<(Value, Held), Failure> {
    let mut held = bodies.hold(text.len())?;
    Ok((weighed(text.as_bytes(), &mut held)?, held))
}

fn weighed(text: &[u8], held: &mut Held) -> Result<Value, Failure> {
    let weight = Weight::of(text);
    weight.check()?;
    held.add(weight.bytes())?;
    let wrong = |error| Failure::request(format!("the body is not valid JSON: {error}"));
    serde_json::from_slice(text).map_err(wrong)
}

/// The bytes of a request's body, what notes its unknown fields, and the memory that it takes.
pub(crate) async fn bytes(
    bodies: &Arc<Bodies>,
    options: &ServerOptions,
    request: Request,
) -> Result<(Vec<u8>, Ignored, Held), Failure> {
    let mut held = bodies.hold(0)?;
    let ignored = request.extensions().get::<Ignored>().cloned();
    let ignored = ignored.unwrap_or_default();
    let body = tokio::time::timeout(
        options.body_timeout,
        read(options.largest_body, request.into_body(), &mut held),
    );
    let body = body.await.unwrap_or_else(|_| {
        let message = "the body did not arrive in time";
        Err(Failure::new(StatusCode::REQUEST_TIMEOUT, message))
    })?;
    Ok((body, ignored, held))
}

/// Reads a body of at most `max_len` bytes.
async fn read(max_len: usize, body: Body, held: &mut Held) -> Result<Vec<u8>, Failure> {
    let too_large = || {
        let message = format!("the body is larger than {max_len} bytes");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let announced = axum::body::HttpBody::size_hint(&body).lower();
    if announced > max_len as u64 {
        return Err(too_large());
    }
    let mut parts = body.into_data_stream();
    let mut all = Vec::new();
    while let Some(part) = poll_fn(|context| Pin::new(&mut parts).poll_next(context)).await {
        let part =
            part.map_err(|error| Failure::request(format!("the body cannot be read: {error}")))?;
        if all.len() + part.len() > max_len {
            return Err(too_large());
        }
        held.add(part.len())?;
        let grown = all.len() + part.len();
        if grown > all.capacity() {
            let capacity = grown.max(2 * all.capacity()).min(max_len);
            let more = all.try_reserve_exact(capacity - all.len());
            more.map_err(|_| {
                let message = "there is no memory for the body; try again";
                Failure::new(StatusCode::TOO_MANY_REQUESTS, message)
            })?;
        }
        all.extend_from_slice(&part);
    }
    Ok(all)
}

/// What a JSON text consists of.
#[derive(Debug, Default, PartialEq)]
struct Weight {
    containers: usize,
    /// At least as many as there are, containers among them.
    values: usize,
}

impl Weight {
    /// Counts what is in a text. It need not be valid.
    fn of(text: &[u8]) -> Weight {
        let mut weight = Weight {
            containers: 0,
            values: 1,
        };
        let mut rest = text.iter();
        while let Some(byte) = rest.next() {
            match byte {
                b'{' | b'[' => {
                    weight.containers += 1;
                    weight.values += 1;
                }
                b',' => weight.values += 1,
                b'"' => {
                    while let Some(byte) = rest.next() {
                        match byte {
                            b'"' => break,
                            b'\\' => {
                                rest.next();
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        weight
    }

    fn check(&self) -> Result<(), Failure> {
        for (count, most, what) in [
            (self.containers, MOST_CONTAINERS, "objects and lists"),
            (self.values, MOST_VALUES, "values"),
        ] {
            if count > most {
                let message = format!("the body has more than {most} {what}");
                return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
            }
        }
        Ok(())
    }

    /// Memory of the parsed text, without that of its strings.
    fn bytes(&self) -> usize {
        self.containers * CONTAINER_BYTES + self.values * VALUE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted() {
        for (text, containers, values) in [
            (r#"{"a": [1, 2], "b": {}}"#, 3, 6),
            (r#""{[,\"{[,""#, 0, 1),
            ("", 0, 1),
            (r#"["a\\", "b"]"#, 1, 3),
            ("[[[", 3, 4),
        ] {
            let counted = Weight::of(text.as_bytes());
            assert_eq!(counted, Weight { containers, values }, "{text}");
        }
    }
}
