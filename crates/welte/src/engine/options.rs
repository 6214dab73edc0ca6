//! How an engine works.

use super::clock::Clock;
use crate::{Error, Model, PrefixChange, PrefixStoreOptions};
use std::sync::mpsc::Sender;

/// How an engine works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Requests that may wait beside those that run. Further ones are refused with [`Error::Busy`](crate::Error::Busy).
    pub queue: usize,
    /// Where guesses of the next tokens come from.
    pub speculation: Speculation,
    /// The most tokens that are guessed for a request at a time. The rows of a decode step bound it, too.
    pub draft_max: usize,
    /// Guess even where it does not pay: for tests.
    #[doc(hidden)]
    pub speculate_always: bool,
    /// Bytes of host memory for prefixes that the device's memory has no room for; 0: none. All of it is taken at once.
    pub prefix_host_bytes: u64,
    /// Where prefixes are kept on disk, so that they outlive eviction and the process; `None`: nowhere.
    pub prefix_store: Option<PrefixStoreOptions>,
    /// Who is told of the prefixes that come into memory and leave it; `None`: nobody.
    pub prefix_changes: Option<Sender<PrefixChange>>,
    /// Where it takes the time from: for tests.
    #[doc(hidden)]
    pub clock: Clock,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            queue: 256,
            speculation: Speculation::default(),
            draft_max: 16,
            speculate_always: false,
            prefix_host_bytes: 0,
            prefix_store: None,
            prefix_changes: None,
            clock: Clock::default(),
        }
    }
}

/// Where guesses of the next tokens come from.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Speculation {
    /// The model's own draft layer, if it has one; otherwise earlier text.
    #[default]
    Auto,
    /// There are none.
    Off,
    /// What followed the last tokens where they occurred before, in prompt and answer.
    Ngram,
    /// The model's own draft layer ([`Model::has_draft_layer`]).
    Own,
    /// A smaller model with the same vocabulary, loaded with at least as many slots.
    Model(Model),
}

impl Speculation {
    /// What it means for a model.
    pub(crate) fn resolved(&self, model: &Model) -> Result<Speculation, Error> {
        match self {
            Speculation::Auto if model.has_draft_layer() => Ok(Speculation::Own),
            Speculation::Auto => Ok(Speculation::Ngram),
            Speculation::Own if !model.has_draft_layer() => Err(Error::NoDraftLayer {
                origin: model.origin().to_string(),
            }),
            known => Ok(known.clone()),
        }
    }
}
