//! Steps that verify guesses: a row for the last token of each sequence and one for each of its guesses.

use super::{ContextLost, Scheduler};
use crate::engine::sequence::Sequence;
use web_time::Duration;
use welte_device::{Context, Logprobs, Pick, is_token};
use welte_table::Row;

impl Scheduler {
    /// Plans guesses for the sequences that decode. True if there are any.
    pub(super) fn plan_drafts(&mut self) -> bool {
        let Some(speculator) = &mut self.speculator else {
            return false;
        };
        speculator.plan(&mut self.running, self.decode.rows)
    }

    /// Guesses as planned, and verifies the guesses by one step. Returns the tokens that it made.
    pub(super) fn verify(&mut self, context: &mut dyn Context) -> Result<usize, ContextLost> {
        let begun = self.shared.clock.now();
        let speculator = self.speculator.as_mut();
        let only_guesses = speculator.is_none_or(|s| s.guess(&mut self.running));
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            if let Some(draft) = &mut sequence.draft {
                draft.guess(&sequence.tokens, sequence.planned - 1);
            }
        }
        self.check_guesses();
        let longest = self.rows_of_guesses();
        let drafting = self.shared.clock.since(begun);
        if let Err(error) = self.step_and_sample(context) {
            return self.fault(context, error).map(|()| 0);
        }
        let verifying = self.shared.clock.since(begun) - drafting;
        if let Some(speculator) = &mut self.speculator {
            let drafting = only_guesses.then_some(drafting);
            speculator.verified(self.rows.len(), longest, drafting, verifying);
        }
        match self.ask_of_guesses(context) {
            Ok(()) => Ok(self.accept_all(drafting, verifying)),
            Err(error) => self.fault(context, error).map(|()| 0),
        }
    }

    /// Plans rows and picks of the sequences that decode. Returns the number of guesses in the longest draft.
    fn rows_of_guesses(&mut self) -> usize {
        self.rows.clear();
        self.picks.clear();
        let mut longest = 0;
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
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
            let guessed = match &sequence.draft {
                Some(draft) => draft.guesses(),
                None => &[],
            };
            for (position, guess) in (first..).zip(guessed) {
                row(position, Some(*guess));
            }
            longest = longest.max(guessed.len());
            row(first + guessed.len(), None);
            sequence.planned = guessed.len() + 1;
        }
        longest
    }

    /// Asks for the probabilities of the tokens that follow right guesses, where they are wanted.
    fn ask_of_guesses(&mut self, context: &mut dyn Context) -> Result<(), welte_device::Error> {
        self.logprobs.clear();
        let mut output = 0;
        for sequence in self.running.iter().filter(|s| s.planned > 0) {
            for token in &self.chosen[output..output + sequence.planned] {
                if let Some(top) = sequence.top.filter(|_| is_token(*token)) {
                    self.logprobs.ask(output, *token, top);
                }
                output += 1;
            }
        }
        self.logprobs.fetch(context).map(drop)
    }

    /// Hands each sequence its tokens. Returns their number.
    fn accept_all(&mut self, drafting: Duration, verifying: Duration) -> usize {
        let mut chosen = &self.chosen[..];
        let mut answers = self.logprobs.answers();
        let mut tokens = 0;
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            let (own, others) = chosen.split_at(std::mem::take(&mut sequence.planned));
            chosen = others;
            let asked = match sequence.top {
                Some(_) => own.iter().filter(|token| is_token(**token)).count(),
                None => 0,
            };
            let (known, later) = answers.split_at(asked);
            answers = later;
            let accepted = accept(sequence, own, known);
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
        tokens
    }
}

/// Takes the tokens up to the first wrong guess, with their probabilities if these are wanted. What was computed beyond is
/// overwritten later. Returns their number.
fn accept(sequence: &mut Sequence, chosen: &[u32], answers: &[Logprobs]) -> usize {
    // Without a token the first row ends the sequence. A later one is chosen again, or forced.
    let more = chosen.iter().skip(1).take_while(|token| is_token(**token));
    let right = &chosen[..1 + more.count()];
    for (nth, token) in right.iter().enumerate() {
        sequence.computed += 1;
        if !sequence.take_untold(*token, answers.get(nth)) {
            return nth + 1;
        }
    }
    sequence.tell(right);
    right.len()
}
