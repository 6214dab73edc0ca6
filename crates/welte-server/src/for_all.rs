//! The adapter of requests that choose none.

use crate::error::Failure;
use std::sync::{Mutex, MutexGuard, PoisonError};
use welte::{Adapter, Engine};

pub(crate) struct ForAll(Mutex<Option<Adapter>>);

impl ForAll {
    pub(crate) fn new(adapter: Option<Adapter>) -> ForAll {
        ForAll(Mutex::new(adapter))
    }

    pub(crate) fn get(&self) -> Option<Adapter> {
        self.lock().clone()
    }

    /// Sets it. One that is unloaded or replaced between the choice and its storing does not stay: that waits for this.
    pub(crate) fn set(
        &self,
        choose: impl FnOnce() -> Result<Option<Adapter>, Failure>,
    ) -> Result<(), Failure> {
        let mut adapter = self.lock();
        *adapter = choose()?;
        Ok(())
    }

    /// Takes the adapter that was loaded in its place if it has this name.
    pub(crate) fn renew(&self, name: &str, engine: &Engine) {
        let mut adapter = self.lock();
        if adapter.as_ref().is_some_and(|before| before.name() == name) {
            *adapter = engine.adapter(name);
        }
    }

    /// Takes it away if it has this name.
    pub(crate) fn forget(&self, name: &str) {
        self.lock().take_if(|adapter| adapter.name() == name);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Adapter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
