//! What all requests share: the models, the options, the keys.

use crate::ServerOptions;
use crate::bodies::Bodies;
use crate::error::Failure;
use crate::fields::Fields;
use crate::models::{Catalog, Lease, Models, Served};
use crate::openai::Store;
use axum::http::StatusCode;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::watch;

/// The state of the server.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) models: Arc<Models>,
    /// Stored responses.
    pub(crate) responses: Store,
    /// What the bodies of requests take.
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) started: Instant,
    pub(crate) draining: AtomicBool,
    /// The ids of responses that are made in the background, and of those that nobody has read when the server is about to end.
    pub(crate) background: watch::Sender<BTreeSet<String>>,
    keys: Vec<[u8; 32]>,
    ids: RandomState,
    count: AtomicU64,
}

impl App {
    pub(crate) fn new(catalog: Catalog, options: ServerOptions) -> Result<App, welte::Error> {
        let hash = |key: &String| sha256(key);
        Ok(App {
            models: Arc::new(Models::new(catalog, &options)?),
            keys: options.api_keys.iter().map(hash).collect(),
            responses: Store::new(options.stored_responses),
            bodies: Arc::new(Bodies::new(options.bodies_memory, options.encoders)),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            background: watch::Sender::default(),
            ids: RandomState::new(),
            count: AtomicU64::new(0),
            options,
        })
    }

    /// The model that a request names, or the default one, for use. Loads it if need be.
    pub(crate) async fn lease(&self, name: Option<&str>) -> Result<Lease, Failure> {
        self.models.lease(name, &self.options).await
    }

    /// As [`App::lease`], for the field `model`, which may be missing.
    pub(crate) async fn lease_of(&self, fields: &mut Fields) -> Result<Lease, Failure> {
        let name: Option<String> = fields.take("model")?;
        self.lease(name.as_deref()).await
    }

    /// As [`App::lease_of`], for APIs whose specification requires the field: so does `strict`.
    pub(crate) async fn lease_named(&self, fields: &mut Fields) -> Result<Lease, Failure> {
        let name: Option<String> = fields.take("model")?;
        if name.is_none() && self.options.strict {
            return Err(fields.wrong("model", "is required"));
        }
        self.lease(name.as_deref()).await
    }

    /// The model that a request names, or the default one, if it is loaded.
    pub(crate) fn peek(&self, name: Option<&str>) -> Result<Arc<Served>, Failure> {
        let entry = self.models.find(name)?;
        entry.loaded().ok_or_else(|| {
            let message = format!(
                "model {:?} is not loaded; its first request loads it",
                entry.id
            );
            Failure::new(StatusCode::CONFLICT, message)
        })
    }

    /// A new id, which cannot be guessed.
    pub(crate) fn id(&self, prefix: &str) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let (a, b) = (self.ids.hash_one((count, 0)), self.ids.hash_one((count, 1)));
        format!("{prefix}{a:016x}{:08x}", b as u32)
    }

    /// A hash that nobody outside can compute.
    pub(crate) fn hash(&self, value: &impl Hash) -> u64 {
        self.ids.hash_one(value)
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

    /// Clients see the names of files only, unless the server is verbose.
    pub(crate) fn without_folders(&self, mut failure: Failure) -> Failure {
        for folder in self.models.folders().filter(|_| !self.options.verbose) {
            failure.message = failure.message.replace(&folder, "");
        }
        failure
    }

    /// The server may end without this background response.
    pub(crate) fn forget_background(&self, id: &str) {
        self.background.send_if_modified(|ids| ids.remove(id));
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

pub(crate) fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}
