//! What the model's own draft layer needs for its guesses.

use crate::engine::sequence::Sequence;
use std::time::Duration;
use welte_device::{
    Context, Error, HostScratch, HostSlot, SlotState, Step, StepOptions, argmax, draft_by_steps,
};
use welte_table::Program;

/// Tokens of a sequence that penalties of guesses see.
const HISTORY: usize = 1024;

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
    /// Of a head that knows a part of the tokens.
    pub(super) partial: Option<Partial>,
}

/// Chooses guesses on the host.
pub(super) struct Partial {
    /// The tokens by their numbers in the head's guesses.
    tokens: Vec<u32>,
    /// Logits of all tokens.
    logits: Vec<f32>,
    scratch: HostScratch,
    /// By open sequence.
    slots: Vec<HostSlot>,
}

impl Own {
    pub(super) fn new(program: &Program, tokens: Option<&[u32]>) -> Own {
        let rows = program.most_rows() as usize;
        let vocab = program.vocab as usize;
        let partial = tokens.map(|tokens| Partial {
            tokens: tokens.to_vec(),
            logits: vec![f32::NEG_INFINITY; vocab],
            scratch: HostScratch::new(vocab, HISTORY),
            slots: (0..program.passes[0].rows)
                .map(|_| HostSlot::new(vocab, HISTORY))
                .collect(),
        });
        Own {
            stays: program.guesses_stay(),
            partial,
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
        let (step, wanted, tokens) = (&mut self.step, &self.wanted, &mut self.tokens);
        let Some(partial) = &mut self.partial else {
            return context.draft(step, wanted, tokens);
        };
        draft_by_steps(step, wanted, tokens, &mut |step, tokens| {
            partial.guess(context, step, tokens)
        })
    }
}

impl Partial {
    /// Takes note of how a sequence's tokens are chosen.
    pub(super) fn set(&mut self, number: usize, sequence: &Sequence) {
        let state = sequence.slot_state();
        let history = &state.history[state.history.len().saturating_sub(HISTORY)..];
        self.slots[number].set(&SlotState {
            history,
            masked: false,
            logprobs: None,
            ..state
        });
    }

    /// Runs a step whose picks want tokens, and chooses these.
    fn guess(
        &mut self,
        context: &mut dyn Context,
        step: &Step,
        tokens: &mut [u32],
    ) -> Result<(), Error> {
        let values = context.step(step, StepOptions::default())?;
        let rows = values.chunks(self.tokens.len().max(1));
        for ((number, row), pick) in rows.enumerate().zip(&step.picks) {
            // The row has read the token before the guess.
            let position = step.rows[pick.row as usize].position + 2;
            tokens[number] = self.choose(number, row, position);
        }
        Ok(())
    }

    fn choose(&mut self, number: usize, row: &[f32], position: u32) -> u32 {
        let slot = &self.slots[number];
        if slot.is_plain_argmax() {
            let (_, best) = argmax(row);
            return self.tokens[best as usize];
        }
        for (token, value) in self.tokens.iter().zip(row) {
            self.logits[*token as usize] = *value;
        }
        self.scratch.guess(slot, &self.logits, position)
    }
}
