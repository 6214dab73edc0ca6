//! Mixed steps: a token of every sequence that decodes, and a piece of the waiting prompts, in one pass over the weights.

use super::{ContextLost, Scheduler};
use crate::engine::sequence::Sequence;
use welte_device::{Context, MixedStep};

impl Scheduler {
    /// Whether the device has mixed steps with room for every slot.
    pub(super) fn can_mix(&self, context: &dyn Context) -> bool {
        self.rows_for_all && context.mixes()
    }

    /// True if this turn computes prompts together with the sequences that decode.
    pub(super) fn mixes(&self, context: &dyn Context) -> bool {
        let begins =
            |s: &Sequence| s.is_filling() && s.restore.is_none() && !s.embeds && !s.next_run().0;
        self.can_mix(context)
            && self.running.iter().any(begins)
            && self.running.iter().any(|s| !s.is_filling())
    }

    /// One mixed step. Nothing is guessed meanwhile. Now and then only the sequences that decode have a step, so that its time is
    /// known.
    pub(super) fn compute_mixed(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        let decoding = self.running.iter().filter(|s| s.is_decoding()).count();
        if decoding > 0 && self.pace.measures(decoding) {
            return self.decode(context, true);
        }
        self.plan_chain(context, true)?;
        let generated = self.starts.len();
        if generated == 0 {
            return self.compute_prompts(context);
        }
        self.rows_of_starts();
        let budget = (generated + self.pace.rows()).min(self.prompt.rows);
        self.plan_rows(false, budget);
        let step = MixedStep {
            pass: self.prompt.index,
            rows: &self.rows,
            generated,
            outputs: &self.outputs,
        };
        let begun = self.shared.clock.now();
        if let Err(error) = context.step_mixed(&step).map(drop) {
            return self.fault(context, error);
        }
        let (took, waiting) = (self.shared.clock.since(begun), self.waiting_for_each());
        self.pace.mixed(self.rows.len() - generated, took, waiting);
        self.totals.decode_steps += 1;
        self.finish_prompts(context, generated)
    }
}
