//! A session: one conversation, extended by generation.

use crate::{Error, Model, Stepper};
use std::sync::Arc;
use welte_device::Control;

/// Stops a session's generation from another thread or a signal handler.
#[derive(Clone, Debug)]
pub struct CancelHandle(pub(crate) Arc<Control>);

impl CancelHandle {
    /// Ends the current generation, or the next one, with [`StopReason::Cancelled`](crate::StopReason::Cancelled).
    pub fn cancel(&self) {
        self.0.stop();
    }

    /// True from [`cancel`](CancelHandle::cancel) until the generation has ended.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_stopped()
    }
}

/// One conversation.
pub struct Session {
    pub(crate) stepper: Stepper,
}

impl Session {
    pub(crate) fn new(model: &Model) -> Result<Session, Error> {
        let stepper = Stepper::new(model)?;
        Ok(Session { stepper })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.stepper.model()
    }

    /// A handle that stops generation from elsewhere.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.stepper.cancel_handle()
    }

    /// The tokens in the caches.
    pub fn tokens(&self) -> &[u32] {
        self.stepper.tokens()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.stepper.clear();
    }

    /// The stepper beneath: the session's text, step by step.
    pub fn stepper(&mut self) -> &mut Stepper {
        &mut self.stepper
    }
}
