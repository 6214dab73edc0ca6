//! What the scheduler tells the engine's handles about itself after each turn.

use super::Scheduler;
use crate::engine::Status;

impl Scheduler {
    /// Publishes how full the engine is.
    pub(super) fn publish(&self) {
        let wanted = {
            let mut inbox = self.shared.inbox();
            inbox.status = Status {
                running: self.running.len(),
                waiting: self.waiting.len(),
                free_slots: self.free_slots.len(),
                free_pages: self.pages.free(),
                pages: self.pages.total(),
            };
            inbox.snapshot_wanted.take()
        };
        if let Some(mut snapshot) = wanted {
            snapshot.fill(&self.running, &self.waiting, &self.pages);
            [
                snapshot.prompt_tokens,
                snapshot.generated_tokens,
                snapshot.decode_steps,
            ] = self.totals;
            self.shared.inbox().snapshot = Some(snapshot);
        }
    }
}
