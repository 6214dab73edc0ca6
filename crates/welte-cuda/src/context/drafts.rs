//! Guesses of the program's draft layer: each is what the next one reads, without the host in between.
#![allow(unsafe_code)]

use super::CudaContext;
use crate::Error;
use crate::graph::{Graph, Nodes};
use crate::launch::bytes_of;
use crate::ops::sample::Guess;
use crate::sizes::{STATE_BYTES, state_of};
use welte_device::{Guesses, Replay, Step, Want};
use welte_table::{PassKind, Row};

/// Slots whose further guesses have a graph, and rows that a step verifies for one slot which the draft layer follows by a graph.
const GRAPH_SLOTS: u32 = 4;
const GRAPH_ROWS: u32 = 8;

impl CudaContext {
    /// Builds the graphs of draft steps, unless there are any.
    pub(super) fn prepare_draft_graphs(&mut self) -> Result<(), Error> {
        let program = &self.loaded.program;
        let Some(pass) = program.pass(PassKind::Draft) else {
            return Ok(());
        };
        if !self.draft_graphs.is_empty() {
            return Ok(());
        }
        let outputs = program.passes[pass].outputs;
        let follow = (1..=outputs.min(GRAPH_ROWS)).map(|rows| [rows, 1]);
        let together = (2..=outputs.min(program.slots).min(GRAPH_SLOTS)).map(|rows| [rows; 2]);
        // Of a block several rows guess. Larger ones run the kernels of prompts, which no graph takes.
        let block = program.block.map_or(0, |block| block.size);
        let graphed = if block <= outputs { block } else { 0 };
        let blocks = (1..graphed).map(|guesses| [block, guesses]);
        let others = follow.chain(together).filter(|_| block == 0);
        for size in others.chain(blocks) {
            let all = |nodes: &mut Nodes<'_>| self.add_pass(nodes, pass, size, |_| true);
            let graph = Graph::once(&self.gpu, all)?;
            self.draft_graphs.insert(size, graph);
        }
        Ok(())
    }

    /// Enqueues a draft step over the rows of the step state.
    pub(super) fn launch_draft(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: usize,
    ) -> Result<(), Error> {
        let size = [rows.len() as u32, outputs as u32];
        match self.draft_graphs.get(size) {
            Some(graph) if self.by_graph() => graph.launch(),
            _ => self.replay(pass, 0..usize::MAX, false, rows, outputs),
        }
    }

    /// Whether the device itself can go on from the guesses of a step.
    pub(super) fn drafts_ahead(&self, step: &Step) -> bool {
        let alone = |row: &Row| !self.is_left_to_host(row.slot);
        let wants_token = |want| matches!(want, Want::Token { .. });
        self.mode() != Replay::Allocate
            && self.profile.is_none()
            && self.seated.is_none()
            && step.rows.iter().all(alone)
            && step.picks.iter().all(|pick| wants_token(pick.want))
    }

    /// Runs a checked draft step and goes on from the tokens of its picks, at most `most` of each. The other arguments are those of
    /// [`Context::draft`](welte_device::Context::draft).
    pub(super) fn draft_ahead(
        &mut self,
        pass: usize,
        step: &Step,
        wanted: &[u32],
        tokens: &mut [u32],
        most: u32,
    ) -> Result<(), Error> {
        self.gpu.current()?;
        let (count, rows) = (wanted.len(), &step.rows);
        let mut chosen = std::mem::take(&mut self.chosen_rows);
        chosen.clear();
        chosen.extend(step.chosen());
        let mut open = std::mem::take(&mut self.chained);
        open.clear();
        open.extend(chosen.iter().map(|row| rows[*row as usize]));
        let begun = self.begin_draft(pass, rows, &chosen);
        let made = begun.and_then(|()| self.go_on(pass, &open, wanted, most, step.guesses));
        (self.chosen_rows, self.chained) = (chosen, open);
        // The outputs are those of the last guess.
        self.last = (pass, 0);
        let first = made?;
        for (number, token) in (0u32..).zip(tokens.iter_mut()) {
            let nth = number / count.max(1) as u32;
            if nth < wanted[number as usize % count] {
                *token = self.wait_for(first.wrapping_add(number))?;
            }
        }
        Ok(())
    }

    /// Enqueues a draft step.
    fn begin_draft(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<(), Error> {
        self.cancel_word.set_flag(0);
        self.upload_step(pass, rows, outputs, 0)?;
        self.launch_draft(pass, rows, outputs.len())
    }

    /// Enqueues the choice of the tokens after `rows`, those of the output rows at hand, and the steps that go on with them. Returns the
    /// number of the first token. `guesses` is that of the step ([`Step::guesses`]).
    fn go_on(
        &mut self,
        pass: usize,
        rows: &[Row],
        wanted: &[u32],
        most: u32,
        guesses: Guesses,
    ) -> Result<u32, Error> {
        let (count, logits) = (rows.len() as u32, self.passes[pass].result);
        let first = self.serial.wrapping_add(1);
        for row in rows {
            self.upload_sampler(row.slot)?;
        }
        if count > 0 {
            self.upload_guessing(pass, rows, wanted)?;
        }
        for nth in 0..most {
            if nth > 0 {
                self.launch_draft(pass, rows, rows.len())?;
            }
            let guess = match guesses {
                Guesses::Moving => Guess::Moves,
                Guesses::Staying(before) => Guess::Stays(before + nth),
                Guesses::Masked => Guess::Masked,
            };
            self.launch_sample(0, count, logits, 0, guess)?;
        }
        self.serial = self.serial.wrapping_add(count * most);
        Ok(first)
    }

    /// Enqueues the upload of the step state of rows that are their own output rows, each of which wants so many guesses.
    fn upload_guessing(&mut self, pass: usize, rows: &[Row], wanted: &[u32]) -> Result<(), Error> {
        let states = self.loaded.sizes.states as usize;
        let states = self.step_image[states..].chunks_exact_mut(STATE_BYTES);
        for ((row, left), state) in (0..).zip(wanted).zip(states) {
            state.copy_from_slice(bytes_of(&state_of(self.serial, row, *left)));
        }
        let mut numbers = std::mem::take(&mut self.chosen);
        numbers.clear();
        numbers.extend(0..rows.len() as u32);
        let uploaded = self.upload_step(pass, rows, &numbers, 1);
        self.chosen = numbers;
        uploaded
    }
}
