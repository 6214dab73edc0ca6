//! What the scheduler tells the engine's handles about itself after each turn.

use super::Scheduler;
use crate::engine::Status;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Publishes how full the engine is.
    pub(super) fn publish_status(&self) {
        let (free, total) = (self.pages.free(), self.pages.total());
        let held = |sequence: &Sequence| sequence.lists.iter().map(Vec::len).sum::<usize>();
        let held: usize = self.running.iter().map(held).sum();
        self.shared.inbox().status = Status {
            running: self.running.len(),
            waiting: self.waiting.len(),
            free_slots: self.free_slots.len(),
            free_pages: free,
            held_pages: held.min(total - free),
            pages: total,
        };
    }

    /// Publishes how full the engine is, and a snapshot if one is wanted.
    pub(super) fn publish(&self) {
        self.publish_status();
        let wanted = self.shared.inbox().snapshot_wanted.take();
        if let Some(mut snapshot) = wanted {
            snapshot.fill(&self.running, &self.waiting, &self.pages);
            snapshot.prompt_tokens = self.totals.prompt_tokens;
            snapshot.generated_tokens = self.totals.generated_tokens;
            snapshot.decode_steps = self.totals.decode_steps;
            self.shared.inbox().snapshot = Some(snapshot);
        }
    }
}
