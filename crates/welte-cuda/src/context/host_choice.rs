//! Choices on the host, for settings that the sampling kernel does not know: DRY, typical-p, top-n-sigma, XTC and dynamic
//! temperature. The logits of a step are on the host anyway.

use super::slots::Running;
use super::{CudaContext, DECODE, floats_of};
use crate::Error;
use welte_device::{Control, Emitted, Logprobs, Pick, SKIPPED, is_token};

impl CudaContext {
    /// True if the host chooses the slot's tokens.
    pub(super) fn is_left_to_host(&self, slot: u32) -> bool {
        self.slots[slot as usize].is_left_to_host()
    }

    /// Chooses tokens from output rows of the last step in turn, each where its slot demands.
    pub(super) fn pick_one_by_one(
        &mut self,
        picks: &[Pick],
        tokens: &mut [u32],
    ) -> Result<(), Error> {
        for (nth, pick) in picks.iter().enumerate() {
            if Pick::is_skipped(picks, tokens, nth) {
                tokens[nth] = SKIPPED;
            } else if self.is_left_to_host(pick.slot) {
                tokens[nth] = self.pick_on_host(pick);
            } else {
                self.pick(std::slice::from_ref(pick), &mut tokens[nth..=nth])?;
            }
        }
        Ok(())
    }

    fn pick_on_host(&mut self, pick: &Pick) -> u32 {
        let (pass, outputs) = self.last;
        let width = self.passes[pass].width as usize;
        let first = pick.output as usize * width;
        let logits = floats_of(&self.outputs, outputs * width);
        let logits = &logits[first..first + self.loaded.program.vocab as usize];
        let slot = &mut self.slots[pick.slot as usize];
        let scratch = &mut self.scratch;
        let token = scratch.choose(slot.host(), &self.masks, pick.slot, logits, pick.position);
        if is_token(token) {
            slot.remember(token);
            slot.mark_changed();
        }
        token
    }

    /// Decodes a chain by a step and a choice per token.
    pub(super) fn run_by_steps(
        &mut self,
        running: &mut Vec<Running>,
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        loop {
            running.retain(|one| one.left > 0);
            if running.is_empty() || control.is_stopped() {
                return Ok(());
            }
            self.choose_for(running)?;
            for (output, one) in running.iter_mut().enumerate() {
                let token = self.chosen[output];
                let logprobs = self.logprobs_on_request(one.row.slot, output, token)?;
                one.left -= 1;
                one.row.token = token;
                one.row.position += 1;
                let goes_on = emit(Emitted {
                    slot: one.row.slot,
                    position: one.row.position,
                    token,
                    logprobs,
                });
                let ends = self.slots[one.row.slot as usize].ends_with(token);
                if ends || !goes_on || !is_token(token) {
                    one.left = 0;
                }
            }
        }
    }

    /// The probability of a token that an output row of the last step has given, if chains of the slot report it.
    fn logprobs_on_request(
        &mut self,
        slot: u32,
        output: usize,
        token: u32,
    ) -> Result<Option<Logprobs>, Error> {
        let Some(query) = self.slots[slot as usize].logprob_query(output, token) else {
            return Ok(None);
        };
        let mut answer = [Logprobs::default()];
        self.ask_logprobs(&[query], &mut answer)?;
        Ok(Some(answer[0]))
    }

    /// One step over these rows. Their next tokens are in `chosen` then.
    fn choose_for(&mut self, running: &[Running]) -> Result<(), Error> {
        let mut rows = std::mem::take(&mut self.chained);
        rows.clear();
        rows.extend(running.iter().map(|one| one.row));
        let stepped = self.run_step(DECODE, &rows, &[], rows.len());
        let mut picks = std::mem::take(&mut self.picks);
        picks.clear();
        picks.extend((0..).zip(&rows).map(|(output, row)| Pick {
            output,
            slot: row.slot,
            position: row.position + 1,
            draft: None,
        }));
        self.chained = rows;
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        chosen.resize(picks.len(), 0);
        let picked = stepped.and_then(|_| self.pick_one_by_one(&picks, &mut chosen));
        (self.picks, self.chosen) = (picks, chosen);
        picked
    }
}
