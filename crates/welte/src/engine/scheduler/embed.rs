//! Texts whose vectors are wanted. Their rows take turns with those of prompts.

use super::{ContextLost, Scheduler};
use crate::engine::channel::Finish;
use crate::{Error, Model};
use welte_device::Context;
use welte_models::Pooling;
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
            let left_out = sequence.left_out;
            match (vectors.next(), left_out) {
                (Some(vector), 0) => sequence.out.set_vector(vector),
                (Some(first), _) => {
                    if let Some(all) = vectors.next() {
                        let rows = sequence.tokens.len();
                        sequence.out.set_mean_of_rest(all, first, rows, left_out);
                    }
                }
                _ => {}
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
                if sequence.left_out > 0 {
                    // The whole text is in this step.
                    let first = self.rows.len() - count;
                    self.outputs.push((first + sequence.left_out - 1) as u32);
                }
                self.outputs.push(self.rows.len() as u32 - 1);
            }
            sequence.planned = count;
        }
    }
}

/// True if a vector is made of more than the last row of its text.
pub(super) fn pools_several(pass: &Pass) -> bool {
    pooling_of(pass).is_some_and(|kind| kind != Pooling::Last.word())
}

fn pooling_of(pass: &Pass) -> Option<u32> {
    let pool = pass.commands.iter().find(|c| c.op == Op::Pool);
    pool.map(|c| params::Pool::of(&c.params).kind)
}

impl Model {
    /// The first rows to leave out of a vector, of so many that should be.
    pub(in crate::engine) fn pooled_from(&self, left_out: usize) -> Result<usize, Error> {
        let pass = self.inner.embed.map(|embed| &self.program().passes[embed]);
        let Some(pass) = pass else {
            return Ok(0);
        };
        let kind = pooling_of(pass);
        if kind == Some(Pooling::Last.word()) {
            return Ok(0);
        }
        // Means of parts can be told from means of the whole, also after layers that are linear.
        let mut after = pass
            .commands
            .iter()
            .skip_while(|c| c.op != Op::Pool)
            .skip(1);
        let linear = after.all(|c| matches!(c.op, Op::Matmul | Op::Bias));
        match kind == Some(Pooling::Mean.word()) && linear {
            true => Ok(left_out),
            false => Err(Error::PromptPooling {
                origin: self.origin().to_string(),
            }),
        }
    }
}
