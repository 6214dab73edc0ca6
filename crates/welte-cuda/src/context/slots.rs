//! Chains of several slots: steps of a row per slot, each sampled on the device, a few of them enqueued ahead.

use super::chain::Wait;
use super::{CudaContext, DECODE};
use crate::Error;
use crate::ops::sample::Guess;
use welte_device::{
    ChainStart, Control, Emitted, Error as DeviceError, Logprobs, Made, chain_by_steps, is_token,
};
use welte_table::Row;

/// Steps that may be enqueued beyond the last one seen.
const AHEAD: u32 = 3;

impl CudaContext {
    /// Decodes a checked chain.
    pub(super) fn chain_of_slots(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), DeviceError> {
        if starts.iter().any(|start| self.is_left_to_host(start.slot)) {
            return chain_by_steps(self, starts, control, emit);
        }
        let mut running = std::mem::take(&mut self.running);
        running.clear();
        running.extend_from_slice(starts);
        let result = self.run_slots(&mut running, control, emit);
        self.running = running;
        self.done(result)
    }

    /// Slots leave the chain one after the other. The last one goes on alone; with an adapter, as a chain of one.
    fn run_slots(
        &mut self,
        running: &mut Vec<ChainStart>,
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        self.gpu.current()?;
        loop {
            running.retain(|one| one.steps > 0);
            match running[..] {
                [] => return Ok(()),
                [start] if self.chain_pass == DECODE => {
                    return self.decode(&start, control, emit).map(|_| ());
                }
                _ if control.is_stopped() => return Ok(()),
                _ => {}
            }
            let mut rows = std::mem::take(&mut self.chained);
            rows.clear();
            rows.extend(running.iter().map(ChainStart::row));
            let made = self.run_together(running, &rows, control, emit);
            self.chained = rows;
            made?;
        }
    }

    /// Steps of all slots until one of them stops. `rows` are those of the first step. Slots that have stopped have no tokens left
    /// then.
    fn run_together(
        &mut self,
        running: &mut [ChainStart],
        rows: &[Row],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let count = rows.len() as u32;
        let steps = running.iter().map(|one| one.steps).min().unwrap_or(0);
        for row in rows {
            self.upload_sampler(row.slot)?;
        }
        self.cancel_word.set_flag(0);
        self.upload_step(self.chain_pass, rows, &[], steps)?;
        self.clear_rows_fault()?;
        let first = self.serial.wrapping_add(1);
        // A state cannot go back, so every step that is enqueued must count.
        let states = self.has_states();
        let ahead = if states || self.seated.is_some() {
            1
        } else {
            AHEAD
        };
        let (mut launched, mut seen) = (0, 0);
        let mut going_on = true;
        // Once a slot has stopped, the steps that are enqueued already are awaited. They repeat its last step without effect.
        while seen < launched || (going_on && launched < steps) {
            while going_on && launched < steps && launched - seen < ahead {
                self.launch_slots(rows)?;
                launched += 1;
                self.serial = self.serial.wrapping_add(count);
            }
            for (nth, one) in (0..).zip(running.iter_mut()) {
                if one.steps == 0 {
                    continue;
                }
                let serial = first.wrapping_add(seen * count + nth);
                let awaited = self.await_slot(one.slot, serial, control)?;
                let Some((token, logprobs)) = awaited else {
                    return self.leave_slots(rows);
                };
                let slot = &mut self.slots[one.slot as usize];
                if is_token(token) {
                    slot.remember(token);
                }
                let made = Made {
                    token,
                    logprobs,
                    ends: slot.ends_with(token),
                };
                let mut refused = false;
                one.advance(made, &mut |emitted| {
                    refused = !emit(emitted);
                    !refused
                });
                if refused {
                    // The device goes on with it.
                    slot.mark_changed();
                }
                going_on &= one.steps > 0;
            }
            seen += 1;
            going_on &= !(states && control.is_stopped());
        }
        Ok(())
    }

    /// Enqueues a step of these rows, and the choice of their tokens. The device has advanced the rows since they were uploaded.
    fn launch_slots(&mut self, rows: &[Row]) -> Result<(), Error> {
        let pass = self.chain_pass;
        if self.launch_rows(pass, rows)? {
            if self.stores_for_blocks() {
                self.launch_tap(rows.len())?;
            }
            let logits = self.passes[pass].result;
            self.launch_sample(0, rows.len() as u32, logits, self.rows_fault(), Guess::No)?;
        } else {
            self.replay(pass, 0..usize::MAX, true, rows, rows.len())?;
        }
        self.launch_chain_logprobs(rows)
    }

    /// Waits for the slot's token of that number, and its probability if that is reported. `None` if the chain must end, or begin again with other kernels.
    fn await_slot(
        &mut self,
        slot: u32,
        serial: u32,
        control: &Control,
    ) -> Result<Option<(u32, Option<Logprobs>)>, Error> {
        let mut wait = Wait::new();
        loop {
            if control.is_stopped() && !self.has_states() {
                return Ok(None);
            }
            if let Some(reported) = self.reported(slot, serial) {
                return Ok(Some(reported));
            }
            if let Err(error) = wait.turn(&self.gpu) {
                if self.rows_fault() == 0 {
                    return Err(error);
                }
                self.fetch_rows_fault(0)?;
                self.gpu.synchronise()?;
                return if self.rows_gave_up(0)? {
                    Ok(None)
                } else {
                    Err(error)
                };
            }
        }
    }

    /// Leaves a chain before its steps have been seen. The device may have gone on: the histories of its slots are uploaded again.
    fn leave_slots(&mut self, rows: &[Row]) -> Result<(), Error> {
        self.cancel_word.set_flag(1);
        self.gpu.synchronise()?;
        for row in rows {
            self.slots[row.slot as usize].mark_changed();
        }
        Ok(())
    }
}
