//! Guesses of the next tokens, which a step verifies: a row for the last token of each sequence and one for each guess.

use super::work::Drafting;
use super::{ContextLost, Scheduler};
use crate::Speculated;
use crate::engine::sequence::{Part, Sequence};
use std::time::Duration;
use welte_device::{Context, Error as DeviceError};

impl Scheduler {
    /// Plans guesses for the sequences that decode. True if there are any.
    pub(super) fn plan_drafts(&mut self) -> bool {
        let Some(speculator) = &mut self.speculator else {
            return false;
        };
        speculator.plan(&mut self.running, self.decode.rows)
    }

    /// Guesses as planned.
    pub(super) fn guess(&mut self) {
        let begun = self.shared.clock.now();
        let speculator = self.speculator.as_mut();
        let only_guesses = speculator.is_none_or(|s| s.guess(&mut self.running));
        for sequence in self.running.iter_mut().filter(|s| s.part.count() > 0) {
            if let Some(draft) = &mut sequence.draft {
                draft.guess(&sequence.tokens, sequence.part.count() - 1);
            }
        }
        self.check_guesses();
        let mut took = self.shared.clock.since(begun);
        let mut only_guesses = only_guesses;
        if let Some(own) = self.own.as_mut() {
            took += std::mem::take(&mut own.took);
            only_guesses &= own.only_guesses;
        }
        self.drafting = Some(Drafting { took, only_guesses });
    }
}

impl Scheduler {
    /// Copies the recurrent states of sequences that have guesses. Without room for the copies there are no guesses.
    pub(super) fn keep_states(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        if !self.pages.has_states() {
            return Ok(());
        }
        let begun = self.shared.clock.now();
        for at in 0..self.running.len() {
            let sequence = &mut self.running[at];
            let Some(draft) = &mut sequence.draft else {
                continue;
            };
            if sequence.part.count() == 0 || draft.guesses().is_empty() {
                continue;
            }
            match self.pages.keep_states(context, sequence) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(draft) = &mut sequence.draft {
                        draft.drop_guesses();
                    }
                }
                Err(error) => {
                    // The others are planned again.
                    for sequence in &mut self.running {
                        sequence.part = Part::Idle;
                        self.pages.forget_states(sequence);
                    }
                    self.running[at].part = Part::Victim;
                    self.drafting = None;
                    return self.fault(context, error);
                }
            }
        }
        if let Some(drafting) = &mut self.drafting {
            drafting.took += self.shared.clock.since(begun);
        }
        Ok(())
    }

    /// After guesses were verified: if one was wrong, the states go back, and the tokens since then are computed again.
    pub(super) fn settle_states(
        &mut self,
        context: &mut dyn Context,
        at: usize,
        (first, rows): (usize, usize),
    ) -> Result<(), DeviceError> {
        let sequence = &mut self.running[at];
        if sequence.kept.is_empty() {
            return Ok(());
        }
        if sequence.computed == first + rows {
            self.pages.forget_states(sequence);
            return Ok(());
        }
        sequence.computed = first;
        let restored = self.pages.restore_states(context, sequence);
        if restored.is_err() {
            sequence.part = Part::Victim;
        }
        restored
    }
}

impl Sequence {
    /// A step has verified guesses, and made `made` tokens.
    pub(super) fn verified(
        &mut self,
        guesses: usize,
        made: usize,
        drafting: Duration,
        verifying: Duration,
    ) {
        let right = made.saturating_sub(1);
        if let Some(draft) = &mut self.draft {
            draft.verified(right);
        }
        self.out.report(|report| {
            let figures = &mut report.speculated;
            figures.rounds += 1;
            figures.drafted += guesses;
            figures.accepted += right;
            figures.by_position[..right.min(Speculated::POSITIONS)]
                .iter_mut()
                .for_each(|count| *count += 1);
            figures.drafting += drafting;
            figures.verifying += verifying;
        });
    }
}
