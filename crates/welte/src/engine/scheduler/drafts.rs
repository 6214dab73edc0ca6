//! Guesses of the next tokens, which a step verifies: a row for the last token of each sequence and one for each guess.

use super::Scheduler;
use super::work::Drafting;
use crate::engine::sequence::Sequence;
use std::time::Duration;

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
            figures.drafting += drafting;
            figures.verifying += verifying;
        });
    }
}
