//! What the model's own draft layer needs for its guesses.

use std::time::Duration;
use welte_device::{Context, Error, Step};
use welte_table::Program;

/// What the draft layer needs.
pub(super) struct Own {
    pub(super) step: Step,
    /// Where the sequences run that are guessed for.
    pub(super) open: Vec<usize>,
    /// How many guesses each of them wants.
    pub(super) wanted: Vec<u32>,
    /// The guesses: first ones, second ones and so on.
    pub(super) tokens: Vec<u32>,
    /// How long the guesses took that are verified next.
    pub(super) took: Duration,
    /// They followed a step of generated rows.
    pub(super) only_guesses: bool,
    /// Guesses stay at the position of their row.
    pub(super) stays: bool,
}

impl Own {
    pub(super) fn new(program: &Program) -> Own {
        let rows = program.most_rows() as usize;
        Own {
            stays: program.guesses_stay(),
            step: Step::with_room(rows),
            open: Vec::with_capacity(rows),
            wanted: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            took: Duration::ZERO,
            only_guesses: false,
        }
    }

    /// Computes the step at hand and what follows from its guesses.
    pub(super) fn guess(&mut self, context: &mut dyn Context) -> Result<(), Error> {
        let most = self.wanted.iter().copied().max().unwrap_or(0);
        self.tokens.clear();
        self.tokens.resize(most as usize * self.wanted.len(), 0);
        context.draft(&mut self.step, &self.wanted, &mut self.tokens)
    }
}
