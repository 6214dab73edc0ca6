//! Passes of encoders beside the streams: between two pieces, every sequence that decodes has a step.

use super::Scheduler;

impl Scheduler {
    /// True if this turn has a piece of an encoder's pass. If prompts wait, too, they have every other turn.
    pub(super) fn encodes(&mut self) -> bool {
        let filling = self
            .running
            .iter()
            .any(|s| s.is_filling() && !s.waits_for_pages());
        let encodes = self.encoding.waits() && !(filling && self.encoding.had_turn);
        self.encoding.had_turn = encodes;
        encodes
    }

    /// Runs a piece of the next pass. Those of several encoders take turns.
    pub(super) fn encode(&mut self) {
        let Some(mut job) = self.encoding.jobs.pop_front() else {
            return;
        };
        if job.is_cancelled() {
            return job.end(Ok(()));
        }
        let decodes = self.running.iter().any(|s| s.is_decoding());
        let limit = self.pace.encoding(decodes);
        let pieces = &mut self.encoding.pieces;
        let piece = job.at..pieces.end(job.pass.tasks(), job.at, limit);
        let begun = self.shared.clock.now();
        let ran = job.pass.run(piece.clone());
        let took = self.shared.clock.since(begun);
        if let Err(error) = ran {
            return job.end(Err(error));
        }
        job.at = piece.end;
        pieces.ran(job.pass.tasks(), piece, took);
        if job.at.command < job.pass.tasks().len() {
            self.encoding.jobs.push_back(job);
        } else {
            job.end(Ok(()));
        }
    }
}
