//! What the model's own draft layer needs for its guesses.

use crate::engine::sequence::Sequence;
use std::time::Duration;
use welte_device::{
    Context, Error, HostScratch, HostSlot, SlotState, Step, StepOptions, Want, argmax,
};
use welte_table::{Program, Row};

/// Tokens of a sequence that penalties of guesses see.
const HISTORY: usize = 1024;

/// What the draft layer needs.
pub(super) struct Own {
    pub(super) step: Step,
    pub(super) open: Vec<Open>,
    pub(super) tokens: Vec<u32>,
    /// How long the guesses took that are verified next.
    pub(super) took: Duration,
    /// They followed a step of generated rows.
    pub(super) only_guesses: bool,
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

/// A sequence that is guessed for.
pub(super) struct Open {
    /// Where it runs.
    pub(super) at: usize,
    pub(super) wanted: usize,
    /// The row of its last guess.
    pub(super) row: Row,
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
            partial,
            step: Step::with_room(rows),
            open: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            took: Duration::ZERO,
            only_guesses: false,
        }
    }

    /// Computes the step at hand. Its tokens are the next guesses.
    pub(super) fn guess(&mut self, context: &mut dyn Context) -> Result<(), Error> {
        self.tokens.clear();
        let Some(partial) = &mut self.partial else {
            self.tokens.resize(self.open.len(), 0);
            let options = StepOptions::tokens(&mut self.tokens);
            return context.step(&self.step, options).map(drop);
        };
        let values = context.step(&self.step, StepOptions::default())?;
        let rows = values.chunks(partial.tokens.len().max(1));
        for (number, (row, pick)) in rows.zip(&self.step.picks).enumerate() {
            // The row has read the token before the guess.
            let position = self.step.rows[pick.row as usize].position + 2;
            self.tokens.push(partial.choose(number, row, position));
        }
        Ok(())
    }

    /// What a row of the step yields.
    pub(super) fn want(&self) -> Want {
        match self.partial {
            Some(_) => Want::Values,
            None => Want::Token { draft: None },
        }
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
