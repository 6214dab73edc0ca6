//! Chains: the host begins each step when it has the tokens of the last one.

use crate::context::SplitContext;
use welte_device::{ChainStart, Control, Emitted, Error, Logprobs, is_token};

impl SplitContext {
    /// Decodes checked slots until all have stopped.
    pub(crate) fn run_chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        self.live.clear();
        self.live
            .extend(starts.iter().filter(|start| start.steps > 0));
        while !self.live.is_empty() && !control.is_stopped() {
            self.rows.clear();
            self.rows.extend(self.live.iter().map(ChainStart::row));
            self.decode()?;
            self.picks.clear();
            let numbered = (0..).zip(&self.live);
            let picks = numbered.map(|(output, start)| start.pick(output));
            self.picks.extend(picks);
            self.tokens.clear();
            self.tokens.resize(self.picks.len(), 0);
            self.choose()?;
            let mut kept = 0;
            for row in 0..self.live.len() {
                let (start, token) = (self.live[row], self.tokens[row]);
                let (slot, position) = (start.slot, start.position + 1);
                let wanted = emit(Emitted {
                    slot,
                    position,
                    token,
                    logprobs: self.logprobs_on_request(slot, row, token)?,
                });
                let ended = !is_token(token) || self.slots[slot as usize].ends_at(token);
                if wanted && !ended && start.steps > 1 {
                    self.live[kept] = ChainStart {
                        slot,
                        token,
                        position,
                        steps: start.steps - 1,
                    };
                    kept += 1;
                }
            }
            self.live.truncate(kept);
        }
        // The outputs belonged to the chain.
        self.logits = 0;
        Ok(())
    }

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
