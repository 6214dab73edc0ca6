//! Chains: the host begins each step when it has the tokens of the last one.

use crate::context::SplitContext;
use welte_device::{ChainStart, Error, Logprobs, Made, StepChain};

impl StepChain for SplitContext {
    fn live(&mut self) -> &mut Vec<ChainStart> {
        &mut self.live
    }

    fn step_live(&mut self) -> Result<(), Error> {
        self.decode()?;
        self.choices.clear();
        let numbered = (0..).zip(&self.live);
        let choices = numbered.map(|(output, start)| start.choice(output));
        self.choices.extend(choices);
        self.tokens.clear();
        self.tokens.resize(self.choices.len(), 0);
        self.choose()
    }

    fn choose_live(&mut self, row: usize) -> Result<Made, Error> {
        let (slot, token) = (self.live[row].slot, self.tokens[row]);
        Ok(Made {
            token,
            logprobs: self.logprobs_on_request(slot, row, token)?,
            ends: self.slots[slot as usize].ends_at(token),
        })
    }
}

impl SplitContext {
    /// The probability of a token, if chains of its slot report it.
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
        self.near.logprobs(&[query], &mut answer)?;
        Ok(Some(answer[0]))
    }
}
