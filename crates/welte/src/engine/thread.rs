//! The engine's thread: owns the context and gives it to the scheduler, turn by turn.

use super::scheduler::Scheduler;
use super::shared::Shared;
use crate::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use welte_device::{Context, Error as DeviceError};

/// Makes a context: at the start, and again if the device loses one.
pub(crate) type MakeContext = Box<dyn FnMut() -> Result<Box<dyn Context>, DeviceError> + Send>;

/// The scheduler with its context.
pub struct Driver {
    shared: Arc<Shared>,
    scheduler: Scheduler,
    /// `None` only while a lost context is replaced.
    context: Option<Box<dyn Context>>,
    make: MakeContext,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        scheduler: Scheduler,
        context: Box<dyn Context>,
        make: MakeContext,
    ) -> Driver {
        Driver {
            shared,
            scheduler,
            context: Some(context),
            make,
        }
    }

    /// Works until the engine is closed or fails. A panic ends all requests with an error.
    pub(crate) fn run(mut self) {
        let work = || {
            while (!self.scheduler.is_idle() && !self.shared.is_closing()) || self.shared.wait() {
                if let Err(error) = self.turn() {
                    return Some(error.to_string());
                }
            }
            if let Some(context) = &mut self.context {
                self.scheduler.save(context.as_mut());
            }
            None
        };
        let why = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(why) => why,
            Err(panic) => Some(format!("a fault of ours: {}", message(panic.as_ref()))),
        };
        self.shared.closed(why.clone());
        self.scheduler
            .end_all(|| Error::EngineStopped { why: why.clone() });
    }

    /// One turn. An error ends the engine.
    pub fn turn(&mut self) -> Result<(), Error> {
        let Some(context) = &mut self.context else {
            return Err(Error::EngineStopped { why: None });
        };
        if self.scheduler.turn(context.as_mut()).is_ok() {
            return Ok(());
        }
        // The device may not have the memory for two.
        self.context = None;
        self.scheduler.start_over();
        let mut context = (self.make)()?;
        self.scheduler.renew(context.as_mut())?;
        self.context = Some(context);
        Ok(())
    }

    /// The scheduler, for simulations.
    #[cfg(test)]
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Ends the engine as its thread would, once it was asked to.
    #[cfg(test)]
    pub(crate) fn finish(mut self) {
        if let Some(context) = &mut self.context {
            self.scheduler.save(context.as_mut());
        }
        self.scheduler
            .end_all(|| Error::EngineStopped { why: None });
    }

    /// True if no request is left.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.shared.inbox().is_empty()
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message")
}
