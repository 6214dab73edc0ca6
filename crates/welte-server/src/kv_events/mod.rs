//! Tells routers which prompts are cached here, as vLLM does: events over ZeroMQ, and those of the past on request.
//!
//! A thread per model waits for changes of its prefix tree and makes batches of them. A batch goes to every subscriber of its
//! topic that keeps up, and to a store for those who missed it.

mod blocks;
mod zmtp;

use crate::times::since_1970;
use blocks::Blocks;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use welte::PrefixChange;
use zmtp::Said;

/// Batches that are kept for those who missed them, and their bytes.
const MOST_KEPT: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;
/// Batches that a subscriber may lag. Then it loses some, and can ask for them.
const MOST_WAITING: usize = 1000;
/// Changes of a batch.
const MOST_CHANGES: usize = 1024;
/// Connections of each kind, and topics of each.
const MOST_PEERS: usize = 64;
const MOST_TOPICS: usize = 64;
/// How long a peer may take to greet or to take a message, and how often a router is looked for.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What follows the last batch of the past: the number -1.
const END: [u8; 8] = [0xff; 8];

/// Events of prefix caches for routers.
#[derive(Clone)]
pub struct KvEvents(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    replay: Option<String>,
    topic: String,
    seed: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the next batch.
    next: u64,
    /// The last batches, and the bytes of all.
    kept: VecDeque<(u64, Arc<[u8]>)>,
    bytes: usize,
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    /// Beginnings of topics.
    topics: Arc<Mutex<Vec<Vec<u8>>>>,
    messages: mpsc::Sender<Arc<[u8]>>,
}

/// Where subscribers are.
#[derive(Debug, PartialEq, Eq)]
enum Endpoint {
    /// They connect to this address of ours.
    Listen(String),
    /// They listen there.
    Connect(String),
}

impl std::fmt::Debug for KvEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KvEvents").field(&self.0.endpoint).finish()
    }
}

/// `HOST:PORT` of `tcp://HOST:PORT`, where `*` stands for all addresses of this machine.
fn address(endpoint: &str) -> std::result::Result<(String, bool), String> {
    let wrong =
        || format!("{endpoint:?} is not an endpoint such as tcp://*:5557 or tcp://indexer:5557");
    let address = endpoint.strip_prefix("tcp://").ok_or_else(wrong)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    match host {
        "*" => Ok((format!("0.0.0.0:{port}"), true)),
        _ => Ok((address.to_string(), false)),
    }
}

impl KvEvents {
    /// `endpoint`: `tcp://*:PORT` waits for subscribers, `tcp://HOST:PORT` connects to one. `replay`: where past events can be
    /// asked for. `{model}` in the topic is the model's name. `seed`: what vLLM calls PYTHONHASHSEED.
    pub fn new(
        endpoint: &str,
        replay: Option<&str>,
        topic: &str,
        seed: &str,
    ) -> std::result::Result<KvEvents, String> {
        let (place, listens) = address(endpoint)?;
        let endpoint = match listens {
            true => Endpoint::Listen(place),
            false => Endpoint::Connect(place),
        };
        let replay = replay.map(|endpoint| address(endpoint).map(|(place, _)| place));
        Ok(KvEvents(Arc::new(Inner {
            endpoint,
            replay: replay.transpose()?,
            topic: topic.to_string(),
            seed: seed.to_string(),
            state: Mutex::default(),
        })))
    }

    /// Where an engine sends its changes. They end with the engine.
    pub(crate) fn watch(&self, model: &str, block_size: usize) -> Result<Sender<PrefixChange>> {
        let (sender, changes) = std::sync::mpsc::channel();
        let topic = self.0.topic.replace("{model}", model);
        let inner = self.0.clone();
        let thread = std::thread::Builder::new().name("welte-kv-events".into());
        thread.spawn(move || inner.follow(&changes, &topic, block_size))?;
        Ok(sender)
    }

    /// Begins to listen and to connect.
    pub(crate) async fn start(&self) -> Result<()> {
        let named =
            |place: &str, error: Error| Error::new(error.kind(), format!("{place}: {error}"));
        if let Some(place) = &self.0.replay {
            let listener = TcpListener::bind(place).await;
            let listener = listener.map_err(|error| named(place, error))?;
            tokio::spawn(accept(listener, self.0.clone(), Inner::replay));
        }
        match &self.0.endpoint {
            Endpoint::Listen(place) => {
                let listener = TcpListener::bind(place).await;
                let listener = listener.map_err(|error| named(place, error))?;
                tokio::spawn(accept(listener, self.0.clone(), Inner::publish));
            }
            Endpoint::Connect(place) => {
                let (place, inner) = (place.clone(), self.0.clone());
                tokio::spawn(async move {
                    loop {
                        if let Ok(stream) = TcpStream::connect(&place).await {
                            let ended = inner.clone().publish(stream).await;
                            tracing::debug!(place, ?ended, "a subscriber has gone");
                        }
                        tokio::time::sleep(LOOK_AGAIN).await;
                    }
                });
            }
        }
        Ok(())
    }
}

/// Serves the peers that connect, some at a time.
async fn accept<F>(listener: TcpListener, inner: Arc<Inner>, serve: fn(Arc<Inner>, TcpStream) -> F)
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        };
        if count.fetch_add(1, Ordering::Relaxed) >= MOST_PEERS {
            count.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (inner, count) = (inner.clone(), count.clone());
        tokio::spawn(async move {
            let ended = serve(inner, stream).await;
            count.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!(%peer, ?ended, "a peer of the cache's events has gone");
        });
    }
}

/// As the result of work that may not take long.
async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the changes of an engine until it ends.
    fn follow(&self, changes: &Receiver<PrefixChange>, topic: &str, block_size: usize) {
        let mut blocks = Blocks::new(&self.seed);
        let mut events = Vec::new();
        while let Ok(first) = changes.recv() {
            let more = changes.try_iter().take(MOST_CHANGES - 1);
            for change in std::iter::once(first).chain(more) {
                blocks.take(change, &mut events);
            }
            self.send(topic, block_size, &mut events);
        }
        blocks.take(PrefixChange::Cleared, &mut events);
        self.send(topic, block_size, &mut events);
    }

    /// Sends events to all subscribers and keeps them.
    fn send(&self, topic: &str, block_size: usize, events: &mut Vec<blocks::Event>) {
        if events.is_empty() {
            return;
        }
        let payload = blocks::batch(since_1970().as_secs_f64(), block_size, events);
        events.clear();
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let message: Arc<[u8]> = message(topic.as_bytes(), number.to_be_bytes(), &payload).into();
        state.subscribers.retain(|subscriber| {
            let topics = subscriber.topics.lock();
            let topics = topics.unwrap_or_else(PoisonError::into_inner);
            let wants = topics
                .iter()
                .any(|begin| topic.as_bytes().starts_with(begin));
            drop(topics);
            if wants {
                // One that lags loses the batch.
                let _ = subscriber.messages.try_send(message.clone());
            }
            !subscriber.messages.is_closed()
        });
        state.bytes += payload.len();
        state.kept.push_back((number, payload.into()));
        while state.kept.len() > MOST_KEPT || state.bytes > MOST_BYTES {
            let Some((_, gone)) = state.kept.pop_front() else {
                break;
            };
            state.bytes -= gone.len();
        }
    }

    /// Serves a subscriber.
    async fn publish(self: Arc<Inner>, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        in_time(zmtp::greet(&mut stream, "PUB", &["SUB", "XSUB"])).await?;
        let (mut from, mut to) = stream.into_split();
        let (messages, mut queue) = mpsc::channel::<Arc<[u8]>>(MOST_WAITING);
        let topics = Arc::new(Mutex::new(Vec::new()));
        let answers = messages.clone();
        let subscriber = Subscriber {
            topics: topics.clone(),
            messages,
        };
        self.state().subscribers.push(subscriber);
        let listens = async {
            loop {
                let frame = zmtp::read_frame(&mut from).await?;
                let mut topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
                match Said::of(&frame) {
                    Said::Subscribe(topic) if topics.len() < MOST_TOPICS => topics.push(topic),
                    Said::Subscribe(_) => return Err(Error::from(ErrorKind::QuotaExceeded)),
                    Said::Cancel(topic) => {
                        let found = topics.iter().position(|known| *known == topic);
                        found.map(|at| topics.remove(at));
                    }
                    Said::Ping(pong) => drop(answers.try_send(pong.into())),
                    Said::Nothing => {}
                }
            }
        };
        let speaks = async {
            while let Some(message) = queue.recv().await {
                in_time(to.write_all(&message)).await?;
            }
            Ok(())
        };
        // Dropping the queue takes the subscriber from the list at the next batch.
        tokio::select! {
            ended = listens => ended,
            ended = speaks => ended,
        }
    }

    /// Serves somebody who asks for the batches from a number on.
    async fn replay(self: Arc<Inner>, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        in_time(zmtp::greet(
            &mut stream,
            "ROUTER",
            &["REQ", "DEALER", "ROUTER"],
        ))
        .await?;
        loop {
            let mut last = zmtp::read_frame(&mut stream).await?;
            while last.more {
                last = zmtp::read_frame(&mut stream).await?;
            }
            if let Said::Ping(pong) = Said::of(&last) {
                in_time(stream.write_all(&pong)).await?;
            }
            let Ok(first) = last.body.as_slice().try_into().map(u64::from_be_bytes) else {
                continue;
            };
            let kept: Vec<(u64, Arc<[u8]>)> = {
                let state = self.state();
                let known = state.kept.iter().filter(|(number, _)| *number >= first);
                known.cloned().collect()
            };
            for (number, batch) in kept {
                let message = message(b"", number.to_be_bytes(), &batch);
                in_time(stream.write_all(&message)).await?;
            }
            in_time(stream.write_all(&message(b"", END, b""))).await?;
        }
    }
}

/// A message of three frames.
fn message(first: &[u8], number: [u8; 8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + first.len() + 32);
    zmtp::add_frame(&mut out, first, true);
    zmtp::add_frame(&mut out, &number, true);
    zmtp::add_frame(&mut out, payload, false);
    out
}

#[cfg(test)]
mod tests;
