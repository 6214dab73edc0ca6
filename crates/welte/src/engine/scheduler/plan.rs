//! The planner: the rows of the next step of a turn, or the chain that takes its place.

use super::work::{Owner, Plan, Work, pick};
use super::{ContextLost, Scheduler};
use crate::engine::sequence::{Part, Sequence};
use std::ops::Range;
use welte_device::{Context, Role, Want};
use welte_table::{Input, Row};

impl Scheduler {
    /// Plans the next step of a kind. [`Sequence::part`] says how many rows or steps each sequence has.
    pub(super) fn plan(
        &mut self,
        context: &mut dyn Context,
        work: Work,
    ) -> Result<Plan, ContextLost> {
        self.step.clear();
        self.owners.clear();
        match work {
            Work::Prompts => self.plan_rows(context, Role::Prompt, self.budget())?,
            Work::Texts => self.plan_texts(context)?,
            Work::Known => self.plan_rows(context, Role::Generated, self.decode.rows)?,
            Work::Next { mixed } => return self.plan_next(context, mixed),
        }
        Ok(self.planned_step())
    }

    fn planned_step(&self) -> Plan {
        if self.step.is_empty() {
            Plan::Nothing
        } else {
            Plan::Step
        }
    }

    /// Rows of one role of sequences that are being filled, up to `budget` in the whole step, in the order of admission. Rows
    /// that complete a prompt are picked for a token.
    fn plan_rows(
        &mut self,
        context: &mut dyn Context,
        role: Role,
        budget: usize,
    ) -> Result<(), ContextLost> {
        self.pages.features.begin();
        let generated = self.step.rows.len();
        let mut later = self.running.iter().filter(|s| s.is_filling()).count();
        for (at, sequence) in self.running.iter_mut().enumerate() {
            later -= usize::from(sequence.is_filling());
            let mut left = budget.saturating_sub(self.step.rows.len());
            let computes = sequence.is_filling() && !sequence.waits_for_pages() && !sequence.embeds;
            if !computes || sequence.rests || left == 0 {
                continue;
            }
            let (own, run) = sequence.next_run();
            if own != role {
                continue;
            }
            let scores = sequence.is_scoring() && role == Role::Prompt;
            if scores {
                // Each sequence after it may need an output row.
                let taken = generated + self.step.chosen().count() + later;
                left = left.min(self.prompt.outputs.saturating_sub(taken).max(1));
            }
            let first = sequence.computed;
            let checkpoint = self.pages.next_checkpoint(sequence) - first;
            let wanted = run.min(left).min(checkpoint);
            // Where the budget would cut a span, the first one of a step comes whole: a step has room for it.
            let span = sequence.end_of_span(first).map_or(0, |end| end - first);
            let whole = self.step.rows.len() == generated && span <= self.prompt.rows - generated;
            let wanted = wanted.max(if whole { span } else { 0 });
            let count = match self.pages.features.whole(context, sequence, wanted) {
                Ok(count) => count,
                Err(error) => {
                    sequence.part = Part::Victim;
                    return self.fault(context, error);
                }
            };
            if count == 0 {
                continue;
            }
            let rows = self.step.add(role, sequence.rows(first..first + count));
            sequence.part = Part::Planned(count);
            let complete = first + count == sequence.target() && sequence.generated() == 0;
            let chooses = complete && sequence.begins_by_choice();
            let picks = self.step.picks.len();
            if scores {
                let scored = rows.start..rows.end - u32::from(complete);
                let values = scored.map(|row| pick(row, Want::Values));
                self.step.picks.extend(values);
            }
            if chooses {
                let token = Want::Token { draft: None };
                self.step.picks.push(pick(rows.end - 1, token));
            }
            let picks = self.step.picks.len() - picks;
            self.owners.push(Owner { at, picks });
        }
        Ok(())
    }

    /// The next tokens of all sequences that decode: a chain; one step while prompts are waiting, with guesses, or for more
    /// slots than chains take. A mixed step has no guesses. Now and then those who decode have a step of their own, so
    /// that its time is known.
    fn plan_next(&mut self, context: &mut dyn Context, mixed: bool) -> Result<Plan, ContextLost> {
        let decoding = self.running.iter().filter(|s| s.is_decoding()).count();
        let measures = mixed && decoding > 0 && self.pace.measures(decoding);
        let drafts = self.plan_chain(context, mixed)?;
        if drafts && !self.starts.is_empty() {
            self.guess();
            self.keep_states(context)?;
        }
        let alone = !mixed || measures;
        if !drafts && alone && self.starts.len() <= context.chain_slots() {
            return Ok(if self.starts.is_empty() {
                Plan::Nothing
            } else {
                Plan::Chain
            });
        }
        self.rows_of_starts();
        let generated = self.step.rows.len();
        if mixed && generated == 0 {
            self.plan_rows(context, Role::Prompt, self.budget())?;
        } else if !alone {
            let budget = generated + self.pace.rows();
            self.plan_rows(context, Role::Prompt, budget.min(self.prompt.rows))?;
        }
        Ok(self.planned_step())
    }

    /// A row for the last token of each sequence of the chain, and one for each of its guesses. All are picked.
    fn rows_of_starts(&mut self) {
        for (at, sequence) in self.running.iter_mut().enumerate() {
            if sequence.part.count() == 0 {
                continue;
            }
            let guesses = match (&sequence.draft, &self.drafting) {
                (Some(draft), Some(_)) => draft.guesses(),
                _ => &[],
            };
            let inputs = [sequence.tokens[sequence.computed]];
            let inputs = inputs.iter().chain(guesses);
            let (slot, shift) = (sequence.slot, sequence.shift());
            let rows = (sequence.computed as u32..).zip(inputs);
            let rows = rows.map(|(at, token)| Row::new(*token, at, slot).shifted(shift));
            let rows = self.step.add(Role::Generated, rows);
            let drafts = guesses.iter().copied().map(Some).chain([None]);
            let picks = rows.zip(drafts);
            let picks = picks.map(|(row, draft)| pick(row, Want::Token { draft }));
            self.step.picks.extend(picks);
            let picks = guesses.len() + 1;
            sequence.part = Part::Planned(picks);
            self.owners.push(Owner { at, picks });
        }
    }
}

impl Sequence {
    /// The rows of some of its tokens.
    pub(super) fn rows(&self, tokens: Range<usize>) -> impl Iterator<Item = Row> {
        let ((second, skipped), slot) = (self.second, self.slot);
        let numbered = tokens.clone().zip(&self.tokens[tokens]);
        numbered.map(move |(at, token)| {
            let position = at as u32 + if at < second { 0 } else { skipped };
            let ahead = self.end_of_span(at).map_or(0, |end| end - 1 - at);
            let row = Row {
                reach: position + ahead as u32,
                ..Row::new(*token, position, slot)
            };
            self.with_media(at, row)
        })
    }

    /// A row as its place among the media demands: a feature, or a token with the coordinates that follow a medium.
    fn with_media(&self, at: usize, row: Row) -> Row {
        let next = self.media.partition_point(|placed| placed.rows.end <= at);
        let within = self.media.get(next).filter(|m| m.rows.contains(&at));
        let Some(placed) = within else {
            let before = next.checked_sub(1).map(|last| &self.media[last]);
            return row.shifted(before.map_or(0, |placed| placed.shift.1));
        };
        let index = (at - placed.rows.start) as u32;
        // A feature that is not in the buffer has no number that a device accepts.
        let first = placed.features.map_or(u32::MAX, |first| first + index);
        Row {
            input: Input::Feature(first),
            axes: placed.axes(at),
            ..row
        }
    }
}
