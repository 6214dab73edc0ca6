//! Texts whose vectors are wanted. Their rows take turns with those of prompts.

use super::work::{Owner, pick, shares};
use super::{ContextLost, Scheduler};
use crate::engine::channel::Finish;
use crate::engine::sequence::{Part, Picked};
use welte_device::{Context, Role, Want};

impl Scheduler {
    /// Rows of texts to embed, in the order of admission. The last rows of texts are picked. Texts that must not be cut wait until
    /// they fit.
    pub(super) fn plan_texts(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        let Some(embed) = self.embed else {
            return Ok(());
        };
        self.pages.features.begin();
        let most = embed.rows.min(self.prompt.rows);
        let budget = if self.whole_texts {
            embed.rows
        } else {
            self.budget().min(embed.rows).min(self.prompt.rows)
        };
        for (at, sequence) in self.running.iter_mut().enumerate() {
            let (first, end) = (sequence.computed, sequence.tokens.len());
            let left = budget.saturating_sub(self.step.rows.len());
            if !sequence.embeds || !sequence.is_filling() || self.whole_texts && end - first > left
            {
                continue;
            }
            // The first span of a step comes whole.
            let span = sequence.end_of_span(first).map_or(0, |end| end - first);
            let whole = self.step.rows.is_empty() && span <= most;
            let wanted = left.min(end - first).max(if whole { span } else { 0 });
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
            let rows = self
                .step
                .add(Role::Text, sequence.rows(first..first + count));
            sequence.part = Part::Planned(count);
            let picks = self.step.picks.len();
            if first + count == end {
                if sequence.left_out > 0 {
                    // The whole text is in this step.
                    let last_left_out = rows.start + sequence.left_out as u32 - 1;
                    self.step.picks.push(pick(last_left_out, Want::Values));
                }
                let all = match sequence.picked {
                    Picked::Last => rows.end - 1..rows.end,
                    // The whole text is in this step, as here.
                    Picked::First => rows.start..rows.start + 1,
                    Picked::Each { .. } => rows,
                };
                let all = all.map(|row| pick(row, Want::Values));
                self.step.picks.extend(all);
            }
            let picks = self.step.picks.len() - picks;
            self.owners.push(Owner { at, picks });
        }
        if self.step.picks.is_empty() {
            // The prompt pass computes the same caches.
            for span in &mut self.step.spans {
                span.role = Role::Prompt;
            }
        }
        Ok(())
    }

    /// Hands texts that are complete their vectors.
    pub(super) fn settle_texts(&mut self, values: &[f32]) {
        let picks = self.step.picks.len().max(1);
        let width = values.len() / picks;
        let mut vectors = values;
        for share in shares(&self.step, &self.owners) {
            let sequence = &mut self.running[share.at];
            let own = vectors.split_off(..width * share.picks.len());
            let own = own.unwrap_or_default();
            match (sequence.picked, share.picks.len()) {
                (_, 0) => continue,
                (Picked::Each { first }, _) => sequence.out.set_weights(own, width, first),
                (_, 1) => sequence.out.set_vector(own),
                _ => {
                    let (first, all) = own.split_at(width);
                    let (rows, left_out) = (sequence.tokens.len(), sequence.left_out);
                    sequence.out.set_mean_of_rest(all, first, rows, left_out);
                }
            }
            sequence.end = Some(Ok(Finish::Length));
        }
    }
}
