//! Chains. Where the GPU can choose the tokens of every slot, steps run ahead of the host: it feeds the tokens back.

use super::WgpuContext;
use super::samplers::{UNDECIDED, are_known};
use crate::launch::Choice;
use crate::plan::IN_FLIGHT;
use std::collections::VecDeque;
use welte_device::{ChainStart, Control, Emitted, Error, HostSlot, Logprobs, Made};
use welte_table::CacheKind;
use wgpu::SubmissionIndex;

type Emit<'a> = &'a mut dyn FnMut(Emitted) -> bool;

impl WgpuContext {
    /// Decodes checked slots by a pass until all have stopped.
    pub(super) fn run_chain(
        &mut self,
        pass: usize,
        starts: &[ChainStart],
        control: &Control,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        self.live.clear();
        self.live.extend(starts.iter().filter(|s| s.steps > 0));
        while !self.live.is_empty() && !control.is_stopped() {
            self.begin_live(pass);
            match self.choice() {
                Some(choice) => self.steps_ahead(choice, control, emit)?,
                None => {
                    self.replay(true)?;
                    self.choose_on_host(|_| None, emit);
                }
            }
            self.live.retain(|start| start.steps > 0);
        }
        // The outputs belonged to the chain.
        self.step.logits = 0;
        Ok(())
    }

    /// Makes a step of the live slots.
    pub(super) fn begin_live(&mut self, pass: usize) {
        let mut rows = std::mem::take(&mut self.step.rows);
        rows.clear();
        rows.extend(self.live.iter().map(ChainStart::row));
        self.begin(pass, &rows, &[]);
        self.step.rows = rows;
    }

    /// How the GPU chooses the tokens of the live slots while the host does not look; `None`: it cannot.
    fn choice(&self) -> Option<Choice> {
        let slots = || self.live.iter().map(|s| &self.slots[s.slot as usize]);
        if self.profile.is_some() || slots().any(|s| s.logprob_query(0, 0).is_some()) {
            return None;
        }
        if slots().all(HostSlot::is_plain_argmax) {
            Some(Choice::Argmax)
        } else {
            slots().all(are_known).then_some(Choice::Sampler)
        }
    }

    /// Emits the tokens of a step whose output rows were read: those that the GPU has `chosen`, by row, or else the host's choice.
    fn choose_on_host(&mut self, chosen: impl Fn(usize) -> Option<u32>, emit: Emit<'_>) {
        for row in 0..self.live.len() {
            let start = self.live[row];
            if start.steps == 0 {
                continue;
            }
            let token = match chosen(row) {
                Some(token) => {
                    self.slots[start.slot as usize].remember(token);
                    token
                }
                None => self.choose(row, start.slot, start.position + 1),
            };
            let query = self.slots[start.slot as usize].logprob_query(row, token);
            let logprobs = query.map(|query| Logprobs::of(self.logits(row), &query));
            self.advance(row, token, logprobs, emit);
        }
    }

    /// Emits a live slot's token. A slot that stops has no steps left.
    fn advance(&mut self, row: usize, token: u32, logprobs: Option<Logprobs>, emit: Emit<'_>) {
        let ends = self.slots[self.live[row].slot as usize].ends_at(token);
        let made = Made {
            token,
            logprobs,
            ends,
        };
        self.live[row].advance(made, emit);
    }

    /// Steps of the live slots, some of them in flight, until one slot stops or the host must choose.
    fn steps_ahead(
        &mut self,
        choice: Choice,
        control: &Control,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        if choice == Choice::Sampler {
            self.update_samplers();
        }
        let fewest = self.live.iter().map(|start| start.steps).min().unwrap_or(0);
        // A step too many would change recurrent state. In a cache of attention it writes beyond the end, which is not read.
        let has_state = |kind| matches!(kind, CacheKind::Recurrent { .. });
        let ahead = if self.program().caches.iter().any(|c| has_state(c.kind)) {
            1
        } else {
            IN_FLIGHT
        };
        let mut flying: VecDeque<(usize, SubmissionIndex)> = VecDeque::with_capacity(IN_FLIGHT);
        let mut submitted = 0;
        let mut last = false;
        loop {
            last = last || control.is_stopped();
            while !last && submitted < fewest && flying.len() < ahead {
                let place = submitted as usize % IN_FLIGHT;
                flying.push_back((place, self.submit_step(choice, place, submitted)));
                submitted += 1;
            }
            let Some((place, index)) = flying.pop_front() else {
                return Ok(());
            };
            self.read_tokens(place, index)?;
            // Tokens that were made after the request to stop are left out.
            let stopped = control.is_stopped();
            if self.is_undecided() && !stopped {
                return self.decide(emit);
            }
            for row in 0..self.live.len() {
                let start = self.live[row];
                if start.steps > 0 && !stopped {
                    let token = self.step.tokens[row];
                    self.slots[start.slot as usize].remember(token);
                    self.advance(row, token, None, emit);
                } else {
                    self.samplers.forget_history(start.slot);
                }
            }
            last = last || self.live.iter().any(|start| start.steps == 0);
        }
    }

    /// Tells the GPU how the live slots choose.
    pub(super) fn update_samplers(&mut self) {
        let (gpu, histories) = (&self.weights.gpu, self.sizes.histories);
        for start in &self.live {
            let slot = &self.slots[start.slot as usize];
            self.samplers
                .update(gpu, start.slot, slot, &self.state, histories);
        }
    }

    /// True if the GPU has left the token of a live slot to the host.
    fn is_undecided(&self) -> bool {
        let mut rows = self.live.iter().zip(&self.step.tokens);
        rows.any(|(start, token)| start.steps > 0 && *token == UNDECIDED)
    }

    /// Chooses the tokens that the GPU has left to the host in the step whose tokens were read. An undecided row repeats its step,
    /// so the last step in flight has left its logits. What other rows have made in later steps is made again.
    fn decide(&mut self, emit: Emit<'_>) -> Result<(), Error> {
        self.read_outputs(self.encoder())?;
        for start in &self.live {
            self.samplers.forget_history(start.slot);
        }
        let tokens = std::mem::take(&mut self.step.tokens);
        let decided = |row: usize| Some(tokens[row]).filter(|token| *token != UNDECIDED);
        self.choose_on_host(decided, emit);
        self.step.tokens = tokens;
        Ok(())
    }

    /// Submits a step whose tokens the GPU feeds back, `after` steps after the one at hand.
    fn submit_step(&self, choice: Choice, place: usize, after: u32) -> SubmissionIndex {
        let mut encoder = self.encoder();
        let positions = self.positions() + after;
        self.record(&mut encoder, &(0..usize::MAX), Some(choice), positions);
        // Where `sample` reports the tokens.
        let tokens = self.sizes.scratch;
        let bytes = self.live.len() as u64 * 4;
        encoder.copy_buffer_to_buffer(&self.arena, tokens, &self.tokens[place], 0, bytes);
        self.gpu().submit(encoder)
    }

    /// Waits for a step in flight and reads its tokens.
    pub(super) fn read_tokens(
        &mut self,
        place: usize,
        index: SubmissionIndex,
    ) -> Result<(), Error> {
        let (gpu, buffer) = (&self.weights.gpu, &self.tokens[place]);
        let bytes = self.live.len() as u64 * 4;
        let tokens = &mut self.step.tokens;
        gpu.mapped(buffer, bytes, index, |bytes| {
            let (words, _) = bytes.as_chunks::<4>();
            tokens.clear();
            tokens.extend(words.iter().map(|word| u32::from_ne_bytes(*word)));
        })
    }
}
