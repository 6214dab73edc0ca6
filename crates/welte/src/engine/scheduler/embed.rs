//! Texts whose vectors are wanted. Their rows take turns with those of prompts.

use super::{ContextLost, Scheduler};
use crate::engine::channel::Finish;
use welte_device::Context;
use welte_table::{Op, Pass, Row, params};

impl Scheduler {
    /// One step over texts to embed. It uses the embed pass if a text ends in it, and else the prompt pass, which computes
    /// the same caches.
    pub(super) fn compute_embeddings(
        &mut self,
        context: &mut dyn Context,
    ) -> Result<(), ContextLost> {
        let Some(embed) = self.embed else {
            return Ok(());
        };
        self.plan_embeddings(match self.whole_texts {
            true => embed.rows,
            false => self.budget().min(embed.rows).min(self.prompt.rows),
        });
        if self.rows.is_empty() {
            return Ok(());
        }
        let pass = match self.outputs.is_empty() {
            true => self.prompt,
            false => embed,
        };
        let vectors = match context.step(pass.index, &self.rows, &self.outputs) {
            Ok(vectors) => vectors,
            Err(error) => return self.fault(context, error),
        };
        self.totals.prompt_tokens += self.rows.len() as u64;
        let mut vectors = vectors.chunks_exact((vectors.len() / self.outputs.len().max(1)).max(1));
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            sequence.computed += std::mem::take(&mut sequence.planned);
            if sequence.is_filling() {
                continue;
            }
            if let Some(vector) = vectors.next() {
                sequence.out.set_vector(vector);
            }
            sequence.end = Some(Ok(Finish::Length));
        }
        self.settle(context);
        Ok(())
    }

    /// At most `budget` rows, in the order of admission. The last rows of texts are outputs. Texts that must not be cut wait
    /// until they fit.
    fn plan_embeddings(&mut self, budget: usize) {
        self.rows.clear();
        self.outputs.clear();
        let texts = |s: &&mut super::Sequence| s.embeds && s.is_filling();
        for sequence in self.running.iter_mut().filter(texts) {
            let rest = &sequence.tokens[sequence.computed..];
            let left = budget - self.rows.len();
            let count = match self.whole_texts {
                true if rest.len() > left => continue,
                _ => rest.len().min(left),
            };
            let rows = rest[..count].iter().zip(sequence.computed..);
            let (second, skipped) = sequence.second;
            self.rows.extend(rows.map(|(&token, position)| Row {
                token,
                position: position as u32 + if position < second { 0 } else { skipped },
                slot: sequence.slot,
            }));
            if count > 0 && count == rest.len() {
                self.outputs.push(self.rows.len() as u32 - 1);
            }
            sequence.planned = count;
        }
    }
}

/// True if a vector is made of more than the last row of its text.
pub(super) fn pools_several(pass: &Pass) -> bool {
    let pool = pass.commands.iter().find(|c| c.op == Op::Pool);
    pool.is_some_and(|c| params::Pool::of(&c.params).kind != 0)
}
