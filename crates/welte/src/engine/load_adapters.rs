//! Loading and unloading adapters, while requests run or at the start.

use super::adapters::Adapter;
use super::{Engine, Handle};
use crate::adapter::AdapterContent;
use crate::{AdapterSource, Error, Model};
use std::sync::Arc;

impl Engine {
    /// The adapters that requests may name, in the order in which they were loaded.
    pub fn adapters(&self) -> Vec<Adapter> {
        self.handle.shared.adapters.all()
    }

    /// The adapter of this name.
    pub fn adapter(&self, name: &str) -> Option<Adapter> {
        let mut all = self.adapters().into_iter();
        all.find(|adapter| adapter.name() == name)
    }

    /// Loads an adapter. Requests that run are not disturbed.
    pub fn load_adapter(&self, source: &AdapterSource) -> Result<Adapter, Error> {
        self.handle.shared.adapters.check(&source.name)?;
        let content = Arc::new(self.content_of(source)?);
        self.handle.add_adapter(source.clone(), content, false)
    }

    /// Loads an adapter in place of that of its name, if there is one. It takes a free place: the one before keeps its own until requests that
    /// run with it have ended, and stays if the new one cannot be loaded.
    pub fn replace_adapter(&self, source: &AdapterSource) -> Result<Adapter, Error> {
        let content = Arc::new(self.content_of(source)?);
        self.handle.add_adapter(source.clone(), content, true)
    }

    fn content_of(&self, source: &AdapterSource) -> Result<AdapterContent, Error> {
        let (model, dialect) = (&self.model, self.model.inner.dialect);
        AdapterContent::of(model.program(), model.spec(), dialect, source)
    }

    /// Removes an adapter: no further request can name it. Those that run with it end as they would have ended, and its place is
    /// free afterwards.
    pub fn unload_adapter(&self, name: &str) -> Result<(), Error> {
        if self.handle.shared.adapters.remove(name) {
            return Ok(());
        }
        Err(Error::Adapter {
            name: name.to_string(),
            problem: "is not loaded".into(),
        })
    }
}

impl Handle {
    fn add_adapter(
        &self,
        source: AdapterSource,
        content: Arc<AdapterContent>,
        replaces: bool,
    ) -> Result<Adapter, Error> {
        let shared = &self.shared;
        let added = shared.adapters.add(source, content, replaces, |loaded| {
            // Requests that name it come after it.
            shared.inbox().adapters.push(loaded);
        });
        shared.wake();
        added
    }

    /// The adapters that the model was loaded with.
    pub(super) fn add_adapters_of(&self, model: &Model) -> Result<(), Error> {
        for (source, content) in &model.inner.adapters {
            self.add_adapter(source.clone(), content.clone(), false)?;
        }
        Ok(())
    }
}
