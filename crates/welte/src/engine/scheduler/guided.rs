//! Sequences with a guide: forced tokens are taken without a choice, and a choice waits for its mask.

use super::{ContextLost, Scheduler};
use crate::Error;
use crate::engine::guide::Advice;
use crate::engine::sequence::Part;
use web_time::{Duration, Instant};
use welte_device::Context;

/// How long a turn waits for masks: while others could go on, and while nobody could.
const PATIENCE: Duration = Duration::from_micros(500);
const IDLE_PATIENCE: Duration = Duration::from_millis(5);

impl Scheduler {
    /// Asks the guides what comes next. Sequences without an answer stall until the next turn. Forced tokens are computed like those
    /// of a preempted sequence: as generated tokens, several rows in a step.
    pub(super) fn follow_guides(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        let mut patience = IDLE_PATIENCE;
        let mut guided = false;
        for sequence in &mut self.running {
            // A sequence that is still being filled is asked once it is complete.
            sequence.stalled = sequence.guide.is_some();
            if sequence.stalled && !sequence.is_filling() {
                guided = true
            } else {
                patience = PATIENCE
            }
        }
        if !guided {
            return Ok(());
        }
        let begun = Instant::now();
        let mut at = 0;
        while let Some(sequence) = self.running.get_mut(at) {
            let guide = sequence.guide.as_ref();
            let Some(guide) = guide.filter(|_| !sequence.is_filling() && sequence.end.is_none())
            else {
                at += 1;
                continue;
            };
            match guide.advice(patience.saturating_sub(begun.elapsed())) {
                Advice::Wait => at += 1,
                Advice::Fail(problem) => {
                    sequence.end = Some(Err(Error::Guidance { problem }));
                    at += 1;
                }
                Advice::Choose => {
                    sequence.stalled = false;
                    patience = PATIENCE;
                    at += 1;
                }
                Advice::Take(count) => {
                    // All rows but the last token's are computed in this turn.
                    let end = sequence.tokens.len() + count - 1;
                    match self.pages.reserve(context, sequence, end, true) {
                        Ok(room) if room >= sequence.tokens.len() => {
                            let fit = room + 1 - sequence.tokens.len();
                            let goes_on = sequence.take_forced(fit);
                            sequence.stalled = !goes_on || fit < count;
                            patience = PATIENCE;
                            // The forced tokens join the slot's history.
                            sequence.slot_changed = true;
                            at += 1;
                        }
                        Ok(_) => at -= usize::from(self.preempt() < at),
                        Err(error) => {
                            sequence.part = Part::Victim;
                            self.fault(context, error)?;
                        }
                    }
                }
            }
        }
        self.retire();
        Ok(())
    }

    /// True if chains may be long: all guided sequences are in the chain, and none of them makes the others wait.
    pub(super) fn guides_keep_up(&self) -> bool {
        let patience = match self.running.len() {
            1 => IDLE_PATIENCE,
            _ => PATIENCE,
        };
        let mut guided = self
            .running
            .iter()
            .filter_map(|s| Some((s, s.guide.as_ref()?)));
        // A step that advances a state cannot be repeated when its mask was late.
        let repeats = !self.pages.has_states();
        guided.all(|(sequence, guide)| repeats && !sequence.stalled && guide.delay() <= patience)
    }

    /// Has the guesses for guided sequences checked. What is not checked in time is not verified.
    pub(super) fn check_guesses(&mut self) {
        let mut patience = IDLE_PATIENCE;
        for sequence in self.running.iter().filter(|s| s.part.count() > 0) {
            match (&sequence.guide, &sequence.draft) {
                (Some(guide), Some(draft)) if !draft.guesses().is_empty() => {
                    guide.propose(draft.guesses());
                }
                _ => patience = PATIENCE,
            }
        }
        let begun = Instant::now();
        for sequence in self.running.iter_mut().filter(|s| s.part.count() > 0) {
            let count = sequence.part.count() - 1;
            if let (Some(guide), Some(draft)) = (&sequence.guide, &mut sequence.draft)
                && !draft.guesses().is_empty()
            {
                draft.check(guide, patience.saturating_sub(begun.elapsed()), count);
            }
        }
    }
}
