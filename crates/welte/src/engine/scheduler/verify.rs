//! Steps that verify guesses: a row for the last token of each sequence and one for each of its guesses.

use super::{ContextLost, Scheduler};
use crate::engine::sequence::Sequence;
use std::time::Instant;
use welte_device::{Context, Pick};
use welte_table::Row;

impl Scheduler {
    /// Plans guesses for the sequences that decode. True if there are any. Steps that verify report no probabilities.
    pub(super) fn plan_drafts(&mut self) -> bool {
        if self.wants_logprobs() {
            return false;
        }
        let Some(speculator) = &mut self.speculator else {
            return false;
        };
        speculator.plan(&mut self.running, self.decode.rows)
    }

    /// Guesses as planned, and verifies the guesses by one step. Returns the tokens that it made.
    pub(super) fn verify(&mut self, context: &mut dyn Context) -> Result<usize, ContextLost> {
        let begun = Instant::now();
        let speculator = self.speculator.as_mut();
        let only_guesses = speculator.is_none_or(|s| s.guess(&mut self.running));
        self.rows.clear();
        self.picks.clear();
        let mut longest = 0;
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            let guesses = sequence.planned - 1;
            let (first, slot) = (sequence.computed, sequence.slot);
            let mut token = sequence.tokens[first];
            let mut row = |position: usize, draft: Option<u32>| {
                let position = position as u32;
                self.picks.push(Pick {
                    output: self.rows.len() as u32,
                    slot,
                    position: position + 1,
                    draft,
                });
                self.rows.push(Row {
                    token,
                    position,
                    slot,
                });
                token = draft.unwrap_or(token);
            };
            let guessed = match &mut sequence.draft {
                Some(draft) => draft.guess(&sequence.tokens, guesses),
                None => &[],
            };
            for (position, guess) in (first..).zip(guessed) {
                row(position, Some(*guess));
            }
            longest = longest.max(guessed.len());
            row(first + guessed.len(), None);
            sequence.planned = guessed.len() + 1;
        }
        let drafting = begun.elapsed();
        self.chosen.clear();
        self.chosen.resize(self.picks.len(), 0);
        let pass = self.decode.index;
        let chosen = &mut self.chosen;
        if let Err(error) = context.step_and_sample(pass, &self.rows, &[], &self.picks, chosen) {
            return self.fault(context, error).map(|()| 0);
        }
        let verifying = begun.elapsed() - drafting;
        if let Some(speculator) = &mut self.speculator {
            let drafting = only_guesses.then_some(drafting);
            speculator.verified(self.rows.len(), longest, drafting, verifying);
        }
        let mut chosen = &self.chosen[..];
        let mut tokens = 0;
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            let (own, others) = chosen.split_at(std::mem::take(&mut sequence.planned));
            chosen = others;
            let accepted = accept(sequence, own);
            tokens += accepted;
            if own.len() > 1 {
                if let Some(draft) = &mut sequence.draft {
                    draft.verified(accepted.saturating_sub(1));
                }
                sequence.out.report(|report| {
                    let figures = &mut report.speculated;
                    figures.rounds += 1;
                    figures.drafted += own.len() - 1;
                    figures.accepted += accepted - 1;
                    figures.drafting += drafting;
                    figures.verifying += verifying;
                });
            }
        }
        Ok(tokens)
    }
}

/// Takes the tokens up to the first wrong guess. What was computed beyond is overwritten later. Returns their number.
fn accept(sequence: &mut Sequence, chosen: &[u32]) -> usize {
    let mut accepted = 0;
    // The first one is never skipped, but may be no token.
    for (nth, token) in chosen.iter().enumerate() {
        if nth > 0 && *token == Pick::SKIPPED {
            break;
        }
        accepted += 1;
        sequence.computed += 1;
        if !sequence.take(*token) {
            break;
        }
    }
    accepted
}
