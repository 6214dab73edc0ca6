//! Decoding: a chain of the sequences whose tokens are computed, or a step of one row each.

use super::{ContextLost, Scheduler, order};
use crate::engine::draft::Speculator;
use welte_device::{ChainStart, Context, Error as DeviceError, is_token};

impl Scheduler {
    /// Decodes all sequences whose tokens are computed: one token each while prompts are waiting or if `one` says so, else a
    /// chain.
    pub(super) fn decode(
        &mut self,
        context: &mut dyn Context,
        one: bool,
    ) -> Result<(), ContextLost> {
        let drafts = self.plan_chain(context, one)?;
        if self.starts.is_empty() {
            return Ok(());
        }
        let begun = self.shared.clock.now();
        let sequences = self.starts.len();
        let tokens = match sequences <= context.chain_slots() {
            _ if drafts => self.verify(context)?,
            true => self.chain(context)?,
            false => self.decode_once(context)?,
        };
        if tokens > 0 {
            let steps = if drafts {
                1
            } else {
                tokens.div_ceil(sequences)
            };
            let step = self.shared.clock.since(begun) / steps as u32;
            self.totals.generated_tokens += tokens as u64;
            self.totals.decode_steps += steps as u64;
            // Mixed steps are compared with steps without guesses.
            if !drafts || !self.can_mix(context) {
                self.pace.decoded(sequences, step);
            }
            if let Some(speculator) = self.speculator.as_mut().filter(|_| !drafts) {
                speculator.decoded(sequences, tokens, step);
            }
        }
        self.settle(context);
        Ok(())
    }

    /// Plans a chain of every sequence that decodes. If pages are short it is shortened, and if there is no page for one
    /// step, the newest sequence is preempted. True if the chain consists of guesses to verify: it has a step for each. With
    /// `one`, the chain has one step and no guesses.
    pub(super) fn plan_chain(
        &mut self,
        context: &mut dyn Context,
        one: bool,
    ) -> Result<bool, ContextLost> {
        self.renew_slots(context)?;
        let mut at = 0;
        while let Some(sequence) = self.running.get_mut(at) {
            let next = sequence.computed + 1;
            if !sequence.is_decoding() {
                at += 1;
                continue;
            }
            match self.pages.reserve(context, sequence, next, true) {
                Ok(room) if room >= next => at += 1,
                Ok(_) => at -= usize::from(self.preempt() < at),
                Err(error) => {
                    sequence.planned = 1;
                    self.fault(context, error)?;
                }
            }
        }
        self.starts.clear();
        let drafts = !one && self.plan_drafts();
        let filling = self.running.iter().any(|s| s.is_filling()) || self.could_admit();
        let single = one || filling || !self.guides_keep_up();
        let speculator = self.speculator.as_ref();
        let mut common = match single {
            _ if drafts => usize::MAX,
            true => 1,
            false => speculator.map_or(usize::MAX, Speculator::longest_chain),
        };
        for at in 0..self.running.len() {
            let sequence = &mut self.running[at];
            if !sequence.is_decoding() {
                continue;
            }
            let wanted = sequence.longest_chain(drafts).min(common);
            let end = sequence.computed + wanted;
            match self.pages.reserve(context, sequence, end, false) {
                Ok(room) if room < end => common = (room - sequence.computed).max(1),
                Ok(_) => {}
                Err(error) => {
                    sequence.planned = 1;
                    return self.fault(context, error).map(|()| drafts);
                }
            }
        }
        for sequence in self.running.iter_mut().filter(|s| s.is_decoding()) {
            let steps = sequence.longest_chain(drafts).min(common);
            sequence.planned = steps;
            if let Some(guide) = &sequence.guide {
                guide.set_chains(!drafts && steps > 1);
            }
            self.starts.push(ChainStart {
                slot: sequence.slot,
                token: sequence.tokens[sequence.computed],
                position: sequence.computed as u32,
                steps: steps as u32,
            });
        }
        Ok(drafts)
    }

    /// Tells the device the sampling states that have changed.
    fn renew_slots(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        for sequence in self.running.iter_mut().filter(|s| s.slot_changed) {
            sequence.slot_changed = false;
            if let Err(error) = sequence.enter_slot(context) {
                sequence.planned = 1;
                return self.fault(context, error);
            }
        }
        Ok(())
    }

    /// True if a request waits that the next turn can admit.
    fn could_admit(&self) -> bool {
        let best = self.waiting.iter().min_by_key(|sequence| order(sequence));
        let waits = best.is_some_and(|sequence| !sequence.set_back);
        waits && !self.short && !self.free_slots.is_empty()
    }

    /// Runs the chain. Returns the tokens that it made.
    fn chain(&mut self, context: &mut dyn Context) -> Result<usize, ContextLost> {
        let (running, shared) = (&mut self.running, &self.shared);
        let control = &shared.control;
        let waits = !self.waiting.is_empty();
        let deadline = self.waiting.iter().filter_map(|s| s.deadline).min();
        let (speculator, sequences) = (&self.speculator, self.starts.len());
        let mut tokens = 0;
        let done = context.chain(&self.starts, control, &mut |emitted| {
            let running = running.iter_mut().find(|s| s.slot == emitted.slot);
            let Some(sequence) = running else {
                return false;
            };
            tokens += usize::from(is_token(emitted.token));
            let goes_on = sequence.take_of_chain(emitted.token, emitted.logprobs.as_ref());
            if sequence.has_forced_run() {
                control.stop();
            }
            // A slot is free, or somebody has waited too long.
            if waits && !goes_on || deadline.is_some_and(|at| shared.clock.now() >= at) {
                control.stop();
            }
            if let (Some(speculator), Some(draft)) = (speculator, &sequence.draft)
                && speculator.pays(draft, sequence.remaining(), sequences)
            {
                control.stop();
            }
            goes_on
        });
        match done {
            Ok(()) => {
                self.running.iter_mut().for_each(|s| s.planned = 0);
                Ok(tokens)
            }
            Err(error) => self.fault(context, error).map(|()| 0),
        }
    }

    /// Decodes one token of every start by a step, for devices whose chains take fewer slots. Returns the tokens made.
    fn decode_once(&mut self, context: &mut dyn Context) -> Result<usize, ContextLost> {
        self.rows_of_starts();
        self.picks.clear();
        let pick = |(output, start): (u32, &ChainStart)| start.pick(output);
        self.picks.extend((0..).zip(&self.starts).map(pick));
        if let Err(error) = self.step_and_sample(context) {
            return self.fault(context, error).map(|()| 0);
        }
        for sequence in self.running.iter_mut().filter(|s| s.planned > 0) {
            sequence.computed += 1;
        }
        self.hand_out(context)?;
        Ok(self.picks.len())
    }

    /// A row for each start.
    pub(super) fn rows_of_starts(&mut self) {
        self.rows.clear();
        self.rows.extend(self.starts.iter().map(ChainStart::row));
    }

    /// Runs the planned rows through the decode pass, and chooses a token for each pick.
    pub(super) fn step_and_sample(&mut self, context: &mut dyn Context) -> Result<(), DeviceError> {
        let pass = self.decode.index;
        let (rows, picks, chosen) = (&self.rows, &self.picks, &mut self.chosen);
        chosen.clear();
        chosen.resize(picks.len(), 0);
        context.step_and_sample(pass, rows, &[], picks, chosen)
    }
}
