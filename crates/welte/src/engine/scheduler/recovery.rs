//! Faults of the device: which requests end, whether the context still works, and how a new context takes over.

use super::{ContextLost, Scheduler};
use crate::Error;
use crate::engine::sequence::Part;
use std::sync::Arc;
use welte_device::{Context, Error as DeviceError, Role, StepOptions};
use welte_table::Row;

impl Scheduler {
    /// A device call failed: ends the sequences that took part with its error, and finds out whether the context still works.
    pub(super) fn fault(
        &mut self,
        context: &mut dyn Context,
        error: DeviceError,
    ) -> Result<(), ContextLost> {
        let refused = matches!(error, DeviceError::Request(_));
        let error = Arc::new(error);
        for sequence in self.running.iter_mut().filter(|s| s.part != Part::Idle) {
            sequence.part = Part::Idle;
            sequence.end = Some(Err(Error::Fault(error.clone())));
        }
        self.retire();
        if refused || self.works(context).is_ok() {
            Ok(())
        } else {
            Err(ContextLost)
        }
    }

    /// Whether a context can compute: one row in a free slot.
    pub(crate) fn works(&mut self, context: &mut dyn Context) -> Result<(), DeviceError> {
        let Some(&slot) = self.free_slots.last() else {
            return Ok(());
        };
        let row = Row::new(0, 0, slot);
        self.step.clear();
        self.step.add(Role::Generated, [row]);
        let step = &self.step;
        let run = |c: &mut dyn Context| c.step(step, StepOptions::default()).map(drop);
        let works = self.pages.lend(context, slot, run).unwrap_or(Ok(()));
        self.step.clear();
        works
    }

    /// Makes all sequences wait, to be computed again on a new context.
    pub(crate) fn start_over(&mut self) {
        for mut sequence in self.running.drain(..) {
            sequence.part = Part::Idle;
            self.pages.release(&mut sequence);
            sequence.leave_slot();
            self.free_slots.push(sequence.slot);
            self.waiting.push(sequence);
        }
        self.pages.clear();
        self.short = false;
    }

    /// Ends all requests with an error.
    pub(crate) fn end_all(&mut self, error: impl Fn() -> Error) {
        self.waiting.append(&mut self.shared.inbox().arrivals);
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            sequence.end = Some(Err(error()));
        }
        self.waiting.clear();
        self.running.clear();
        self.encoding.clear();
    }
}
