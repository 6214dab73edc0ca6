//! What all requests share: the model, the options, the figures.

use crate::ServerOptions;
use crate::engine::History;
use crate::error::Failure;
use crate::metrics::Metrics;
use crate::openai::Store;
use axum::http::StatusCode;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use welte::{ChatTemplate, Engine, Model};
use welte_text::calls::Format;

/// The state of the server.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) served: Served,
    pub(crate) metrics: Metrics,
    /// Stored responses.
    pub(crate) responses: Store,
    pub(crate) started: Instant,
    pub(crate) draining: AtomicBool,
    pub(crate) history: tokio::sync::Mutex<History>,
    /// Requests in the engine, by the numbers that the engine gave them.
    active: Mutex<BTreeMap<u64, Active>>,
    keys: Vec<[u8; 32]>,
    ids: RandomState,
    count: AtomicU64,
}

/// A request in the engine, as the server sees it.
#[derive(Clone)]
pub(crate) struct Active {
    pub(crate) id: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) since: Instant,
}

/// A model with what the server needs beside it.
pub(crate) struct Served {
    pub(crate) id: String,
    pub(crate) model: Model,
    pub(crate) engine: Engine,
    pub(crate) template: Option<ChatTemplate>,
    /// How the model writes calls and reasoning.
    pub(crate) format: Option<Format>,
    /// Control tokens that mark calls and reasoning.
    pub(crate) controls: Vec<u32>,
    /// Seconds since 1970.
    pub(crate) created: u64,
}

impl Served {
    fn new(model: Model, options: &ServerOptions) -> Result<Served, welte::Error> {
        let source = model.chat_template_source();
        let format = source.map(Format::of_template);
        let controls = match (&format, model.tokenizer()) {
            (Some(format), Ok(tokenizer)) => format.control_tokens(tokenizer),
            _ => Vec::new(),
        };
        let template = source.map(|_| model.chat_template()).transpose()?;
        let alias = options.alias.clone();
        Ok(Served {
            id: alias.unwrap_or_else(|| name_of(model.origin())),
            engine: Engine::new(&model, &options.engine)?,
            template,
            format,
            controls,
            created: unix_time().as_secs(),
            model,
        })
    }
}

/// The last part of a path, without `.gguf`.
fn name_of(origin: &str) -> String {
    let last = origin.trim_end_matches('/').rsplit('/').next();
    let last = last.unwrap_or(origin);
    last.strip_suffix(".gguf").unwrap_or(last).to_string()
}

impl App {
    pub(crate) fn new(model: Model, options: ServerOptions) -> Result<App, welte::Error> {
        let hash = |key: &String| sha256(key);
        Ok(App {
            served: Served::new(model, &options)?,
            keys: options.api_keys.iter().map(hash).collect(),
            metrics: Metrics::default(),
            responses: Store::new(options.stored_responses),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            history: tokio::sync::Mutex::default(),
            active: Mutex::default(),
            ids: RandomState::new(),
            count: AtomicU64::new(0),
            options,
        })
    }

    /// The model that a request names. The default is the only one.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<&Served, Failure> {
        let served = &self.served;
        match name {
            Some(name) if name != served.id && !is_default(name, &served.id) => Err(Failure {
                field: Some("model".to_string()),
                ..Failure::new(
                    StatusCode::NOT_FOUND,
                    format!("model {name:?} is not served here; use {:?}", served.id),
                )
            }),
            _ => Ok(served),
        }
    }

    /// A new id, which cannot be guessed.
    pub(crate) fn id(&self, prefix: &str) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let (a, b) = (self.ids.hash_one((count, 0)), self.ids.hash_one((count, 1)));
        format!("{prefix}{a:016x}{:08x}", b as u32)
    }

    /// A seed for a request without one.
    pub(crate) fn seed(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        // JavaScript can represent it, so a client can repeat the request.
        self.ids.hash_one((count, 2)) >> 12
    }

    /// True if no key is needed, or if this is one. Takes the same time for every wrong key.
    pub(crate) fn accepts_key(&self, key: Option<&str>) -> bool {
        if self.keys.is_empty() {
            return true;
        }
        let given = sha256(key.unwrap_or_default());
        let equal = |known: &[u8; 32]| {
            let differ = known
                .iter()
                .zip(&given)
                .fold(0, |all, (a, b)| all | (a ^ b));
            std::hint::black_box(differ) == 0
        };
        self.keys
            .iter()
            .fold(false, |any, known| any | equal(known))
            && key.is_some()
    }

    pub(crate) fn active(&self) -> MutexGuard<'_, BTreeMap<u64, Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Clients of Ollama name a tag.
fn is_default(name: &str, id: &str) -> bool {
    name.strip_suffix(":latest") == Some(id)
}

fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// The time since 1970.
pub(crate) fn unix_time() -> std::time::Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
