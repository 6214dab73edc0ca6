//! Choosing tokens from the output rows of a step.

use super::{CudaContext, DECODE};
use crate::Error;
use crate::ops::sample::Guess;
use welte_device::{Choice, SKIPPED, is_token};
use welte_table::{PassKind, Row};

impl CudaContext {
    /// Chooses tokens from output rows of the last step: as many as the decode pass has rows.
    pub(super) fn pick(&mut self, picks: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        self.gpu.current()?;
        let mut rows = std::mem::take(&mut self.picked);
        rows.clear();
        let row = |pick: &Choice| Row::new(0, pick.position.wrapping_sub(1), pick.slot);
        rows.extend(picks.iter().map(row));
        let launched = self.launch_picks(picks, &rows);
        self.picked = rows;
        launched?;
        self.take_picks(picks, tokens)
    }

    /// Chooses tokens from output rows of the last step, each where its slot demands.
    pub(super) fn pick_all(&mut self, picks: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        if picks.iter().any(|pick| self.is_left_to_host(pick.slot)) {
            return self.pick_one_by_one(picks, tokens);
        }
        let most = self.passes[DECODE].rows as usize;
        let mut parts = picks.chunks(most).zip(tokens.chunks_mut(most));
        parts.try_for_each(|(picks, tokens)| self.pick(picks, tokens))
    }

    /// Runs a checked step and chooses tokens from its output rows, which stay on the device.
    pub(super) fn step_and_pick(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
        picks: &[Choice],
        tokens: &mut [u32],
    ) -> Result<(), Error> {
        self.gpu.current()?;
        let decodes = self.passes[pass].kind == PassKind::Decode;
        let of_rows = decodes && self.are_of_rows(picks, rows);
        let count = if decodes { rows.len() } else { outputs.len() };
        self.last = (pass, count);
        self.stays = true;
        self.cancel_word.set_flag(0);
        loop {
            self.upload_samplers(picks)?;
            self.upload_step(pass, rows, outputs, u32::from(of_rows))?;
            if decodes {
                self.clear_rows_fault()?;
            }
            let together = self.launch_step(pass, rows, count)?;
            if of_rows {
                let fault = if together { self.rows_fault() } else { 0 };
                let logits = self.passes[pass].result;
                self.launch_sample(0, rows.len() as u32, logits, fault, Guess::No)?;
            }
            if !together {
                break;
            }
            self.fetch_rows_fault(0)?;
            self.gpu.synchronise()?;
            // If the persistent kernel gave up, other kernels compute the step again. They write the same places.
            if !self.rows_gave_up(0)? {
                break;
            }
        }
        if of_rows {
            self.take_picks(picks, tokens)?;
        } else {
            self.pick_all(picks, tokens)?;
        }
        Ok(())
    }

    /// True if the picks are those of the rows in turn, and none of them needs the token of another one.
    fn are_of_rows(&self, picks: &[Choice], rows: &[Row]) -> bool {
        let own = |(nth, (pick, row)): (usize, (&Choice, &Row))| {
            pick.output as usize == nth
                && pick.slot == row.slot
                && pick.position == row.position.wrapping_add(1)
        };
        picks.len() == rows.len()
            && picks.iter().zip(rows).enumerate().all(own)
            && self.are_independent(picks)
    }

    /// True if no slot with penalties is picked for twice.
    fn are_independent(&self, picks: &[Choice]) -> bool {
        picks.iter().enumerate().all(|(nth, pick)| {
            let slot = &self.slots[pick.slot as usize];
            !slot.looks_back() || picks[..nth].iter().all(|other| other.slot != pick.slot)
        })
    }

    /// Whether the last step was one of the draft pass: its tokens leave no trace.
    pub(super) fn guesses(&self) -> bool {
        self.passes[self.last.0].kind == PassKind::Draft
    }

    pub(super) fn upload_samplers(&mut self, picks: &[Choice]) -> Result<(), Error> {
        picks
            .iter()
            .try_for_each(|pick| self.upload_sampler(pick.slot))
    }

    /// Enqueues one launch if the picks have consecutive outputs and are independent, else a launch per pick. A slot with
    /// penalties that is picked for twice has its first token in its history then.
    fn launch_picks(&mut self, picks: &[Choice], rows: &[Row]) -> Result<(), Error> {
        self.upload_samplers(picks)?;
        // A wait for a mask would end at the flag.
        self.cancel_word.set_flag(0);
        self.upload_step(DECODE, rows, &[], 1)?;
        let ready = &self.passes[self.last.0];
        let guess = if self.guesses() {
            Guess::Alone
        } else {
            Guess::No
        };
        let (result, row_bytes) = (ready.result, 4 * u64::from(ready.width));
        let logits = |pick: &Choice| result + u64::from(pick.output) * row_bytes;
        let consecutive = picks
            .windows(2)
            .all(|pair| pair[0].output + 1 == pair[1].output);
        // A launch for several rows steps by the width of the decode pass.
        let strided = ready.width == self.passes[DECODE].width;
        match picks {
            [first, ..] if consecutive && strided && self.are_independent(picks) => {
                self.launch_sample(0, picks.len() as u32, logits(first), 0, guess)
            }
            _ => {
                let mut picks = picks.iter().zip(0..);
                picks.try_for_each(|(pick, nth)| self.launch_sample(nth, 1, logits(pick), 0, guess))
            }
        }
    }

    /// Waits for the tokens of picks that are enqueued.
    fn take_picks(&mut self, picks: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        let first = self.serial.wrapping_add(1);
        self.serial = self.serial.wrapping_add(picks.len() as u32);
        let guesses = self.guesses();
        for (nth, pick) in picks.iter().enumerate() {
            tokens[nth] = self.wait_for(first.wrapping_add(nth as u32))?;
            let slot = &mut self.slots[pick.slot as usize];
            if Choice::is_skipped(picks, tokens, nth) {
                // The device has its token in the history.
                tokens[nth] = SKIPPED;
                slot.mark_changed();
            } else if is_token(tokens[nth]) && !guesses {
                slot.remember(tokens[nth]);
            }
        }
        Ok(())
    }
}
