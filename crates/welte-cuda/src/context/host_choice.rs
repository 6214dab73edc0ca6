//! Choices on the host, for settings that the sampling kernel does not know: DRY, typical-p, top-n-sigma, XTC and dynamic
//! temperature. The logits of a step are on the host anyway.

use super::{CudaContext, floats_of};
use crate::Error;
use welte_device::{
    ChainStart, Choice, Error as DeviceError, Logprobs, Made, SKIPPED, StepChain, is_token,
};

impl CudaContext {
    /// True if the host chooses the slot's tokens.
    pub(super) fn is_left_to_host(&self, slot: u32) -> bool {
        self.slots[slot as usize].is_left_to_host()
    }

    /// Chooses tokens from output rows of the last step in turn, each where its slot demands.
    pub(super) fn pick_one_by_one(
        &mut self,
        picks: &[Choice],
        tokens: &mut [u32],
    ) -> Result<(), Error> {
        for (nth, pick) in picks.iter().enumerate() {
            if Choice::is_skipped(picks, tokens, nth) {
                tokens[nth] = SKIPPED;
            } else if self.is_left_to_host(pick.slot) {
                tokens[nth] = self.pick_on_host(pick);
            } else {
                self.pick(std::slice::from_ref(pick), &mut tokens[nth..=nth])?;
            }
        }
        Ok(())
    }

    fn pick_on_host(&mut self, pick: &Choice) -> u32 {
        let (pass, outputs) = self.last;
        let width = self.passes[pass].width as usize;
        let first = pick.output as usize * width;
        let logits = floats_of(&self.outputs, outputs * width);
        let logits = &logits[first..first + self.loaded.program.vocab as usize];
        let guesses = self.guesses();
        let slot = &mut self.slots[pick.slot as usize];
        let scratch = &mut self.scratch;
        if guesses {
            return scratch.guess(slot.host(), logits, pick.position);
        }
        let token = scratch.choose(slot.host(), &self.masks, pick.slot, logits, pick.position);
        if is_token(token) {
            slot.remember(token);
            slot.mark_changed();
        }
        token
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

    /// One step over the live slots. Their next tokens are in `chosen` then.
    fn choose_for_live(&mut self) -> Result<(), Error> {
        let mut rows = std::mem::take(&mut self.chained);
        rows.clear();
        rows.extend(self.running.iter().map(ChainStart::row));
        let mut choices = std::mem::take(&mut self.choices);
        choices.clear();
        let numbered = (0..).zip(&self.running);
        choices.extend(numbered.map(|(output, start)| start.choice(output)));
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        chosen.resize(choices.len(), 0);
        let pass = self.chain_pass;
        let by_host = choices.iter().any(|one| self.is_left_to_host(one.slot));
        let picked = if by_host {
            let stepped = self.run_step(pass, &rows, &[], rows.len());
            stepped.and_then(|_| self.pick_one_by_one(&choices, &mut chosen))
        } else {
            self.step_and_pick(pass, &rows, &[], &choices, &mut chosen)
        };
        (self.choices, self.chosen, self.chained) = (choices, chosen, rows);
        picked
    }
}

impl StepChain for CudaContext {
    fn live(&mut self) -> &mut Vec<ChainStart> {
        &mut self.running
    }

    fn step_live(&mut self) -> Result<(), DeviceError> {
        let chosen = self.choose_for_live();
        self.done(chosen)
    }

    fn choose_live(&mut self, row: usize) -> Result<Made, DeviceError> {
        let (slot, token) = (self.running[row].slot, self.chosen[row]);
        let logprobs = self.logprobs_on_request(slot, row, token);
        Ok(Made {
            token,
            logprobs: self.done(logprobs)?,
            ends: self.slots[slot as usize].ends_with(token),
        })
    }
}
