//! Chains of several slots: steps of a row per slot, each sampled on the device, a few of them enqueued ahead.

use super::chain::Wait;
use super::{CudaContext, DECODE};
use crate::Error;
use welte_device::{ChainStart, Control, Emitted, Logprobs, is_token};
use welte_table::Row;

/// Steps that may be enqueued beyond the last one seen.
const AHEAD: u32 = 3;

/// A slot of a chain.
#[derive(Clone, Copy)]
pub(super) struct Running {
    /// The row of its next step.
    pub(super) row: Row,
    /// Tokens that it may still make.
    pub(super) left: u32,
}

impl Running {
    pub(super) fn new(start: &ChainStart) -> Running {
        Running {
            row: start.row(),
            left: start.steps,
        }
    }
}

impl CudaContext {
    /// Decodes a checked chain.
    pub(super) fn chain_of_slots(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let mut running = std::mem::take(&mut self.running);
        running.clear();
        running.extend(starts.iter().map(Running::new));
        let by_host = starts.iter().any(|start| self.is_left_to_host(start.slot));
        let result = match by_host {
            true => self.run_by_steps(&mut running, control, emit),
            false => self.run_slots(&mut running, control, emit),
        };
        self.running = running;
        result
    }

    /// Slots leave the chain one after the other. The last one goes on alone.
    fn run_slots(
        &mut self,
        running: &mut Vec<Running>,
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        self.gpu.current()?;
        loop {
            running.retain(|one| one.left > 0);
            match running[..] {
                [] => return Ok(()),
                [one] => return self.run_alone(one, control, emit),
                _ if control.is_stopped() => return Ok(()),
                _ => {}
            }
            let mut rows = std::mem::take(&mut self.chained);
            rows.clear();
            rows.extend(running.iter().map(|one| one.row));
            let made = self.run_together(running, &rows, control, emit);
            self.chained = rows;
            made?;
        }
    }

    fn run_alone(
        &mut self,
        one: Running,
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let Row {
            token,
            mut position,
            slot,
        } = one.row;
        let start = ChainStart {
            slot,
            token,
            position,
            steps: one.left,
        };
        let emitted = self.decode(&start, control, &mut |token, logprobs| {
            position += 1;
            emit(Emitted {
                slot,
                position,
                token,
                logprobs,
            })
        });
        emitted.map(|_| ())
    }

    /// Steps of all slots until one of them stops. `rows` are those of the first step. Slots that have stopped have no tokens left
    /// then.
    fn run_together(
        &mut self,
        running: &mut [Running],
        rows: &[Row],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let count = rows.len() as u32;
        let steps = running.iter().map(|one| one.left).min().unwrap_or(0);
        for row in rows {
            self.upload_sampler(row.slot)?;
        }
        self.cancel_word.set_flag(0);
        self.upload_step(DECODE, rows, &[], steps)?;
        self.clear_rows_fault()?;
        let first = self.serial.wrapping_add(1);
        // A state cannot go back, so every step that is enqueued must count.
        let states = self.has_states();
        let ahead = if states { 1 } else { AHEAD };
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
                if one.left == 0 {
                    continue;
                }
                let serial = first.wrapping_add(seen * count + nth);
                let awaited = self.await_slot(one.row.slot, serial, control)?;
                let Some((token, logprobs)) = awaited else {
                    return self.leave_slots(rows);
                };
                one.left -= 1;
                one.row.token = token;
                one.row.position += 1;
                let slot = &mut self.slots[one.row.slot as usize];
                if is_token(token) {
                    slot.remember(token);
                }
                let emitted = Emitted {
                    slot: one.row.slot,
                    position: one.row.position,
                    token,
                    logprobs,
                };
                let ends = !is_token(token) || slot.ends_with(token);
                let refused = !emit(emitted);
                if refused {
                    // The device goes on with it.
                    self.slots[one.row.slot as usize].mark_changed();
                }
                if ends || refused {
                    one.left = 0;
                }
                going_on &= one.left > 0;
            }
            seen += 1;
            going_on &= !(states && control.is_stopped());
        }
        Ok(())
    }

    /// Enqueues a step of these rows, and the choice of their tokens. The device has advanced the rows since they were uploaded.
    fn launch_slots(&mut self, rows: &[Row]) -> Result<(), Error> {
        if self.launch_rows(DECODE, rows.len())? {
            let logits = self.passes[DECODE].result;
            self.launch_sample(0, rows.len() as u32, logits, self.rows_fault())?;
        } else {
            self.replay(DECODE, 0..usize::MAX, true, rows, rows.len())?;
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
                return match self.rows_gave_up(0)? {
                    true => Ok(None),
                    false => Err(error),
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
