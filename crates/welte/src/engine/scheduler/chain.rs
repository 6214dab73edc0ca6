//! Planning chains: several steps of all sequences that decode, in one call of the device.

use super::{ContextLost, Scheduler};
use crate::engine::sequence::{Part, Sequence};
use welte_device::{ChainStart, Context};

impl Scheduler {
    /// Plans a chain of every sequence that decodes. If pages are short it is shortened, and if there is no page for one
    /// step, the newest sequence is preempted. True if the chain consists of guesses to verify: it has a step for each. With
    /// `one`, the chain has one step and no guesses.
    pub(super) fn plan_chain(
        &mut self,
        context: &mut dyn Context,
        one: bool,
    ) -> Result<bool, ContextLost> {
        self.renew_slots(context)?;
        self.reserve_next(context)?;
        self.starts.clear();
        let drafts = !one && self.plan_drafts();
        let waits = |s: &Sequence| s.is_filling() || s.rests;
        let filling = self.running.iter().any(waits) || self.could_admit();
        let single = one || filling || self.encoding.waits() || !self.guides_keep_up();
        let speculator = self.speculator.as_ref();
        let mut common = if drafts {
            usize::MAX
        } else if single {
            1
        } else {
            let sequences = self.running.iter().filter(|s| s.is_decoding()).count();
            speculator.map_or(usize::MAX, |s| s.longest_chain(sequences))
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
                    sequence.part = Part::Victim;
                    return self.fault(context, error).map(|()| drafts);
                }
            }
        }
        for sequence in self.running.iter_mut().filter(|s| s.is_decoding()) {
            let steps = sequence.longest_chain(drafts).min(common);
            sequence.part = Part::Planned(steps);
            if let Some(guide) = &sequence.guide {
                guide.set_chains(!drafts && steps > 1);
            }
            self.starts.push(ChainStart {
                slot: sequence.slot,
                token: sequence.tokens[sequence.computed],
                position: sequence.computed as u32,
                steps: steps as u32,
                shift: sequence.shift(),
            });
        }
        Ok(drafts)
    }

    /// Tells the device the sampling states that have changed.
    fn renew_slots(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        for sequence in self.running.iter_mut().filter(|s| s.slot_changed) {
            sequence.slot_changed = false;
            if let Err(error) = sequence.enter_slot(context) {
                sequence.part = Part::Victim;
                return self.fault(context, error);
            }
        }
        Ok(())
    }

    /// Takes a page for the next token of every sequence that decodes, where it needs one. If there is none, the least urgent
    /// sequence is preempted.
    fn reserve_next(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
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
                    sequence.part = Part::Victim;
                    self.fault(context, error)?;
                }
            }
        }
        Ok(())
    }
}
