//! Who has a slot: requests come, are admitted, preempted and retired.

use super::{ContextLost, Scheduler};
use crate::Error;
use crate::engine::sequence::{Part, Sequence};
use std::cmp::Reverse;
use welte_device::{Context, Error as DeviceError};

impl Scheduler {
    /// Takes new requests, and drops those that nobody wants any more.
    pub(super) fn intake(&mut self) {
        // Cleared first: a request that arrives from here on ends the next chain.
        self.shared.control.clear();
        let (arrived, forget) = {
            let mut inbox = self.shared.inbox();
            let arrived = !inbox.arrivals.is_empty();
            self.waiting.append(&mut inbox.arrivals);
            self.new_adapters.append(&mut inbox.adapters);
            self.encoding.take(&mut inbox.passes);
            inbox.ping = false;
            (arrived, std::mem::take(&mut inbox.forget))
        };
        if forget {
            self.pages.clear();
        }
        let before = self.waiting.len();
        self.waiting.retain_mut(|sequence| sequence.is_wanted());
        // A new request may be more urgent, or need fewer pages. So may the next one, if the one that lacked pages has left.
        self.short &= !arrived && !forget && self.waiting.len() == before;
        for sequence in &mut self.running {
            sequence.is_wanted();
        }
        self.retire();
    }

    /// Gives slots and pages to the best waiting requests, as long as the next step has rows for them. A request whose
    /// prompt begins like one that is being computed waits for that one's pages.
    pub(super) fn admit(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        if self.pages.have_come_back() {
            self.short = false;
        }
        while (!self.short || self.running.is_empty()) && self.rows_ahead() < self.budget() {
            let (running, pages) = (&self.running, &self.pages);
            let shares = |s: &Sequence| running.iter().any(|r| pages.would_share(r, s));
            let best = self.waiting.iter().enumerate();
            let best = best.filter(|(_, sequence)| !shares(sequence));
            let best = best.min_by_key(|(_, sequence)| order(sequence));
            let Some((best, first)) = best else { break };
            if first.set_back && !self.running.is_empty() {
                break;
            }
            let Some(slot) = self.free_slots.pop() else {
                break;
            };
            let mut sequence = self.waiting.swap_remove(best);
            sequence.slot = slot;
            let admitted = self.pages.admit(context, &mut sequence);
            let admitted = admitted.and_then(|enough| {
                if enough {
                    sequence.enter_slot(context)?;
                }
                Ok(enough)
            });
            match admitted {
                Ok(true) => {
                    let now = self.shared.clock.now();
                    sequence.out.report(|report| {
                        report.admitted.get_or_insert(now);
                    });
                    sequence.out.progress(sequence.computed);
                    self.running.push(sequence);
                }
                Ok(false) if self.running.is_empty() => {
                    self.free_slots.push(slot);
                    sequence.end = Some(Err(Error::Device(DeviceError::Request(
                        "the page pool is too small for the request".into(),
                    ))));
                }
                Ok(false) => {
                    self.free_slots.push(slot);
                    self.waiting.push(sequence);
                    self.short = true;
                }
                Err(error) => {
                    sequence.part = Part::Victim;
                    self.running.push(sequence);
                    self.fault(context, error)?;
                }
            }
        }
        Ok(())
    }

    /// Rows of prompts that running sequences still need.
    pub(super) fn rows_ahead(&self) -> usize {
        let rest = |s: &Sequence| s.target().saturating_sub(s.computed);
        self.running.iter().map(rest).sum()
    }

    /// Rows of the next step of a prompt.
    pub(super) fn budget(&self) -> usize {
        let decodes = |s: &Sequence| !s.is_filling();
        if self.running.iter().any(decodes) {
            self.pace.rows()
        } else {
            self.prompt.rows
        }
    }

    /// True if a request waits that the next turn can admit.
    pub(super) fn could_admit(&self) -> bool {
        let best = self.waiting.iter().min_by_key(|sequence| order(sequence));
        let waits = best.is_some_and(|sequence| !sequence.set_back);
        waits && !self.short && !self.free_slots.is_empty()
    }

    /// Takes the pages of the least urgent sequence and lets it wait. Returns where it ran.
    pub(super) fn preempt(&mut self) -> usize {
        let all = self.running.iter().enumerate();
        let last = all.max_by_key(|(_, sequence)| order(sequence));
        let at = last.map_or(0, |(at, _)| at);
        let mut sequence = self.running.remove(at);
        self.pages.keep(&mut sequence);
        self.pages.release(&mut sequence);
        sequence.leave_slot();
        self.free_slots.push(sequence.slot);
        sequence.out.report(|report| report.preemptions += 1);
        sequence.set_back = true;
        self.waiting.push(sequence);
        // A more urgent one may fit now.
        self.short = false;
        at
    }

    /// Sequences that have ended give back slot and pages.
    pub(super) fn retire(&mut self) {
        let (pages, free) = (&mut self.pages, &mut self.free_slots);
        let before = self.running.len();
        self.running.retain_mut(|sequence| {
            let Some(end) = &sequence.end else {
                return true;
            };
            if end.is_ok() {
                pages.keep(sequence);
            }
            pages.release(sequence);
            free.push(sequence.slot);
            false
        });
        if self.running.len() < before {
            self.short = false;
            self.waiting.iter_mut().for_each(|s| s.set_back = false);
        }
    }
}

/// Small is urgent: by priority, then by age.
fn order(sequence: &Sequence) -> (Reverse<i32>, u64) {
    (Reverse(sequence.priority), sequence.number)
}
