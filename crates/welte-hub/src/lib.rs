//! Models from the Hugging Face hub, in the cache that all programs share.
//!
//! A blocking client. It lists the files of a model, downloads each over several connections and checks it against the
//! hub's checksum before naming it. Files that are in the cache already are used, whichever program downloaded them.
//!
//! A snapshot gets its link after that, and a branch its commit when all files are present. The token goes to the hub's
//! address only, never to a redirect's target. Names, sizes and tags from the network are validated before they become
//! paths or allocations.

#![warn(missing_docs)]

mod cache;
mod checksum;
mod choose;
mod download;
mod error;
mod http;
mod listing;
mod name;
mod parts;
mod pull;
mod remove;
mod settings;

pub use cache::{CachedFile, CachedModel, CachedRepo, Snapshot};
pub use checksum::{git_blob, sha256};
pub use error::{Error, human};
pub use name::ModelName;
pub use pull::Pulled;
pub use remove::Removal;
pub use settings::{Proxies, Settings};

use cache::Cache;

/// The hub and its cache.
#[derive(Clone)]
pub struct Hub {
    settings: Settings,
}

impl Hub {
    /// A hub with these settings.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings }
    }

    /// With settings from the environment.
    pub fn from_env() -> Result<Hub, Error> {
        Settings::from_env().map(Hub::new)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Everything in the cache.
    pub fn repos(&self) -> Result<Vec<CachedRepo>, Error> {
        self.cache().repos()
    }

    /// The cached files of one model.
    pub fn repo(&self, name: &ModelName) -> Result<CachedRepo, Error> {
        let found = self.cache().repo(&name.repo)?;
        found.ok_or_else(|| Error::NotCached {
            what: name.repo.clone(),
            cache: self.settings.cache.clone(),
        })
    }

    /// Plans the removal of a model, a revision or a file. Nothing is deleted yet.
    pub fn removal(&self, name: &ModelName) -> Result<Removal, Error> {
        Removal::plan(&self.cache(), name)
    }

    fn cache(&self) -> Cache {
        Cache {
            root: self.settings.cache.clone(),
            links: self.settings.links,
        }
    }
}

/// The progress of a pull.
#[derive(Debug)]
pub struct Report<'a> {
    /// The current file.
    pub file: &'a str,
    /// Bytes that are in the cache.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
    /// What happens to the current file.
    pub event: Event,
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another process is downloading it.
    Waiting,
    /// It is being downloaded.
    Downloading,
    /// It is complete.
    Done,
}

/// Reports progress.
pub(crate) struct Progress<'a> {
    tell: &'a mut dyn FnMut(&Report),
    file: String,
    /// Bytes of the files before the current one.
    before: u64,
    /// Bytes downloaded.
    fetched: u64,
    /// Files without a checksum.
    unchecked: usize,
    total: u64,
}

impl Progress<'_> {
    /// Reports that `bytes` of the current file are there.
    fn at(&mut self, bytes: u64) {
        self.say(bytes, Event::Downloading);
    }

    fn say(&mut self, bytes: u64, event: Event) {
        (self.tell)(&Report {
            file: &self.file,
            done: self.before + bytes,
            total: self.total,
            event,
        });
    }
}
