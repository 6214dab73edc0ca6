//! What the model's own draft layer needs for its guesses.

use std::time::Duration;
use welte_device::{Context, Error, Guesses, Step};
use welte_table::{Block, PassKind, Program};

/// What the draft layer needs.
pub(super) struct Own {
    pub(super) step: Step,
    /// Where the sequence of each pick runs: one of a sequence, or of blocks one for each mask.
    pub(super) open: Vec<usize>,
    /// How many guesses each pick wants: one of a mask.
    pub(super) wanted: Vec<u32>,
    /// The guesses: first ones, second ones and so on.
    pub(super) tokens: Vec<u32>,
    /// How long the guesses took that are verified next.
    pub(super) took: Duration,
    /// How often guesses have failed since the last ones that came.
    pub(super) failures: u32,
    /// They followed a step of generated rows.
    pub(super) only_guesses: bool,
    /// Guesses stay at the position of their row.
    pub(super) stays: bool,
    /// Or a block guesses at once.
    pub(super) block: Option<Block>,
    /// The most rows of a step, its most output rows, and the positions of a sequence.
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) context: usize,
}

impl Own {
    pub(super) fn new(program: &Program) -> Own {
        let rows = program.most_rows() as usize;
        let pass = program.pass(PassKind::Draft).map(|at| &program.passes[at]);
        Own {
            stays: program.guesses_stay(),
            block: program.block,
            rows: pass.map_or(0, |pass| pass.rows as usize),
            outputs: pass.map_or(0, |pass| pass.outputs as usize),
            context: program.context as usize,
            step: Step::with_room(rows),
            open: Vec::with_capacity(rows),
            wanted: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            took: Duration::ZERO,
            failures: 0,
            only_guesses: false,
        }
    }

    /// Forgets the step at hand.
    pub(super) fn clear(&mut self) {
        self.step.clear();
        self.open.clear();
        self.wanted.clear();
        self.step.guesses = match self.block {
            Some(_) => Guesses::Masked,
            None if self.stays => Guesses::Staying(0),
            None => Guesses::Moving,
        };
    }

    /// Computes the step at hand and what follows from its guesses.
    pub(super) fn guess(&mut self, context: &mut dyn Context) -> Result<(), Error> {
        let most = self.wanted.iter().copied().max().unwrap_or(0);
        self.tokens.clear();
        self.tokens.resize(most as usize * self.wanted.len(), 0);
        context.draft(&mut self.step, &self.wanted, &mut self.tokens)
    }
}
