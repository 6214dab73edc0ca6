//! Models from the Hugging Face hub, in the cache that all programs share.
//!
//! A blocking client: one list of files, then each file by several connections at once, checked against the hub's
//! checksum before it gets its name. Everything that is there already is left as it is, whoever downloaded it.

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
    /// With these settings.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings }
    }

    /// As the environment says.
    pub fn from_env() -> Result<Hub, Error> {
        Settings::from_env().map(Hub::new)
    }

    /// How the hub is asked, and where its cache is.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Everything in the cache.
    pub fn repos(&self) -> Result<Vec<CachedRepo>, Error> {
        self.cache().repos()
    }

    /// What the cache has of one model.
    pub fn repo(&self, name: &ModelName) -> Result<CachedRepo, Error> {
        let found = self.cache().repo(&name.repo)?;
        found.ok_or_else(|| Error::NotCached {
            what: name.repo.clone(),
            cache: self.settings.cache.clone(),
        })
    }

    /// What it would mean to remove a model, a revision or a file from the cache.
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

/// How far a pull is.
#[derive(Debug)]
pub struct Report<'a> {
    /// The file at hand.
    pub file: &'a str,
    /// Bytes of all files that are there.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
    /// What happens.
    pub event: Event,
}

/// What happens with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another process downloads it.
    Waiting,
    /// Its bytes come.
    Downloading,
    /// It is there.
    Done,
}

/// Where progress is told.
pub(crate) struct Progress<'a> {
    tell: &'a mut dyn FnMut(&Report),
    file: String,
    /// Bytes of the files before this one.
    before: u64,
    /// Bytes that had to be downloaded.
    fetched: u64,
    /// Files that could not be checked.
    unchecked: usize,
    total: u64,
}

impl Progress<'_> {
    /// So many bytes of the file are there.
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
