//! Chains. Where every slot takes the largest logit, steps run ahead of the host: the GPU chooses the tokens and feeds them back.

use super::{DECODE, WgpuContext};
use crate::plan::IN_FLIGHT;
use std::collections::VecDeque;
use welte_device::{ChainStart, Control, Emitted, Error, Logprobs, is_token};
use welte_table::CacheKind;
use wgpu::SubmissionIndex;

type Emit<'a> = &'a mut dyn FnMut(Emitted) -> bool;

impl WgpuContext {
    /// Decodes checked slots until all have stopped.
    pub(super) fn run_chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        self.live.clear();
        self.live.extend(starts.iter().filter(|s| s.steps > 0));
        while !self.live.is_empty() && !control.is_stopped() {
            self.begin_live();
            if self
                .live
                .iter()
                .all(|start| self.is_chosen_ahead(start.slot))
            {
                self.steps_ahead(control, emit)?;
            } else {
                self.replay(true)?;
                for row in 0..self.live.len() {
                    let start = self.live[row];
                    let token = self.choose(row, start.slot, start.position + 1);
                    let query = self.slots[start.slot as usize].logprob_query(row, token);
                    let logprobs = query.map(|query| Logprobs::of(self.logits(row), &query));
                    self.advance(row, token, logprobs, emit);
                }
            }
            self.live.retain(|start| start.steps > 0);
        }
        // The outputs belonged to the chain.
        self.step.logits = 0;
        Ok(())
    }

    /// Makes a step of the live slots.
    fn begin_live(&mut self) {
        let mut rows = std::mem::take(&mut self.step.rows);
        rows.clear();
        rows.extend(self.live.iter().map(ChainStart::row));
        self.begin(DECODE, &rows, &[]);
        self.step.rows = rows;
    }

    /// True if the GPU can choose the slot's tokens while the host does not look.
    fn is_chosen_ahead(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        let reports = slot.logprob_query(0, 0).is_some();
        slot.is_plain_argmax() && !reports && self.profile.is_none()
    }

    /// Emits a live slot's token. A slot that stops has no steps left.
    fn advance(&mut self, row: usize, token: u32, logprobs: Option<Logprobs>, emit: Emit<'_>) {
        let start = &mut self.live[row];
        let position = start.position + 1;
        let wanted = emit(Emitted {
            slot: start.slot,
            position,
            token,
            logprobs,
        });
        let ended = !is_token(token) || self.slots[start.slot as usize].ends_at(token);
        start.token = token;
        start.position = position;
        start.steps = match wanted && !ended {
            true => start.steps - 1,
            false => 0,
        };
    }

    /// Steps of the live slots, some of them in flight, until one slot stops.
    fn steps_ahead(&mut self, control: &Control, emit: Emit<'_>) -> Result<(), Error> {
        let fewest = self.live.iter().map(|start| start.steps).min().unwrap_or(0);
        // A step too many would change recurrent state. In a cache of attention it writes beyond the end, which is not read.
        let has_state = |kind| matches!(kind, CacheKind::Recurrent { .. });
        let ahead = match self.program().caches.iter().any(|c| has_state(c.kind)) {
            true => 1,
            false => IN_FLIGHT,
        };
        let mut flying: VecDeque<(usize, SubmissionIndex)> = VecDeque::with_capacity(IN_FLIGHT);
        let mut submitted = 0;
        let mut last = false;
        loop {
            last = last || control.is_stopped();
            while !last && submitted < fewest && flying.len() < ahead {
                let place = submitted as usize % IN_FLIGHT;
                flying.push_back((place, self.submit_step(place, submitted)));
                submitted += 1;
            }
            let Some((place, index)) = flying.pop_front() else {
                return Ok(());
            };
            self.read_tokens(place, index)?;
            for row in 0..self.live.len() {
                let start = self.live[row];
                // Tokens that were made after the request to stop are left out.
                if start.steps > 0 && !control.is_stopped() {
                    let token = self.step.tokens[row];
                    self.slots[start.slot as usize].remember(token);
                    self.advance(row, token, None, emit);
                }
            }
            last = last || self.live.iter().any(|start| start.steps == 0);
        }
    }

    /// Submits a step whose tokens the GPU feeds back, so many steps after the one at hand.
    fn submit_step(&self, place: usize, after: u32) -> SubmissionIndex {
        let mut encoder = self.encoder();
        let positions = self.positions() + after;
        self.record(&mut encoder, &(0..usize::MAX), true, positions);
        let tokens = self.sizes.places[self.program().tokens as usize].unwrap_or(0);
        let bytes = self.live.len() as u64 * 4;
        encoder.copy_buffer_to_buffer(&self.arena, tokens, &self.tokens[place], 0, bytes);
        self.gpu().submit(encoder)
    }

    /// Waits for a step in flight and reads its tokens.
    fn read_tokens(&mut self, place: usize, index: SubmissionIndex) -> Result<(), Error> {
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
