//! The passes of encoders that a scheduler has.

use super::encoder::Job;
use super::pieces::Pieces;
use std::collections::VecDeque;

/// The passes at hand.
#[derive(Default)]
pub(crate) struct Encoding {
    /// The next one to have a piece comes first.
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) pieces: Pieces,
    /// The last turn had a piece.
    pub(crate) had_turn: bool,
}

impl Encoding {
    /// True if there is something to encode.
    pub(crate) fn waits(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Takes new passes, and gives back those that nobody wants any more.
    pub(crate) fn take(&mut self, arrived: &mut Vec<Job>) {
        self.jobs.extend(arrived.drain(..));
        for _ in 0..self.jobs.len() {
            match self.jobs.pop_front() {
                Some(job) if job.is_cancelled() => job.end(Ok(())),
                Some(job) => self.jobs.push_back(job),
                None => {}
            }
        }
    }

    /// Ends all passes.
    pub(crate) fn clear(&mut self) {
        self.jobs.clear();
    }
}
