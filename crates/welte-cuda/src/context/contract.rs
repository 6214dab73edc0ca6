//! The context as the device contract has it: requests are checked here, once, and errors name the device.
#![allow(unsafe_code)]

use super::{CudaContext, DECODE};
use crate::Error;
use crate::lower::MAILBOX_SLOTS;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Context, Control, DeviceId, Emitted, Error as DeviceError, LogprobQuery, Logprobs,
    MaskBoard, Pick, Profile, Replay, ReplayTools, Replaying, SlotState,
};
use welte_table::{BufferId, Class, PageRuns, PassKind, Program, Row};

/// The most slots of a chain: the mailbox has room for a few tokens of each.
const MOST_CHAIN_SLOTS: usize = MAILBOX_SLOTS as usize / 16;

impl CudaContext {
    fn id(&self) -> DeviceId {
        self.loaded.device_id()
    }

    /// Copies each run of a page by its address and its place in the page's `bytes`, and waits.
    fn page_transfer(
        &self,
        cache: usize,
        page: u32,
        bytes: usize,
        copy: &mut dyn FnMut(u64, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        let spec = self.checks.page(program, cache, page, bytes)?;
        let start = self.block(spec.buffer)?.start();
        let copied = self.gpu.current().and_then(|()| {
            let mut at = 0;
            for range in spec.page_ranges(program.page, page) {
                let run = at..at + range.len();
                at = run.end;
                copy(start + range.start as u64, run)?;
            }
            self.gpu.synchronise()
        });
        self.done(copied)
    }

    /// The result of a request that was checked.
    fn done<T>(&self, result: Result<T, Error>) -> Result<T, DeviceError> {
        result.map_err(|error| error.on(self.id()))
    }
}

impl Context for CudaContext {
    fn program(&self) -> &Arc<Program> {
        &self.loaded.program
    }

    fn chain_slots(&self) -> usize {
        let program = &self.loaded.program;
        match self.decodes() {
            true => (program.passes[DECODE].rows.min(program.slots) as usize).min(MOST_CHAIN_SLOTS),
            false => 0,
        }
    }

    fn allocated(&self) -> BTreeMap<Class, u64> {
        self.allocated.clone()
    }

    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        let at = self.checks.pages(program, cache, slot, first, pages)?;
        let current = self.gpu.current();
        let uploaded = current.and_then(|()| self.upload_pages(cache, at, pages));
        self.done(uploaded)
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        let spec = self.checks.cache(program, cache, [from, to])?;
        let runs = |number| spec.page_runs(program.page, number);
        let (Some(source), Some(target)) = (runs(from), runs(to)) else {
            return Err(DeviceError::request("pages that are too large"));
        };
        if from == to {
            return Ok(());
        }
        let start = self.block(spec.buffer)?.start();
        let copied = self.gpu.current().and_then(|()| {
            (0..source.count).try_for_each(|run| {
                let at = |runs: &PageRuns| start + runs.first + run * runs.stride;
                // SAFETY: both runs are inside the cache's buffer and belong to different pages.
                unsafe { self.gpu.copy(at(&target), at(&source), source.bytes) }
            })
        });
        self.done(copied)
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.page_transfer(cache, page, bytes.len(), &mut |at, run| {
            // SAFETY: the run is inside the cache's buffer, and the transfer waits.
            unsafe { self.gpu.download(at, &mut bytes[run]) }
        })
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.page_transfer(cache, page, bytes.len(), &mut |at, run| {
            // SAFETY: as in `read_page`.
            unsafe { self.gpu.upload(at, &bytes[run]) }
        })
    }

    fn step(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<&[f32], DeviceError> {
        let program = &self.loaded.program;
        let plan = self.checks.step(program, pass, rows, outputs)?;
        let values = self.run_step(pass, rows, outputs, plan.outputs);
        let values = self.done(values)?;
        Ok(self.outputs(values))
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), DeviceError> {
        self.checks.slot_state(&self.loaded.program, slot, state)?;
        self.masks.clear(slot);
        self.slots[slot as usize].set(state);
        Ok(())
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.masks.clone()
    }

    fn sample(&mut self, picks: &[Pick], tokens: &mut [u32]) -> Result<(), DeviceError> {
        let (pass, outputs) = self.last;
        let logits = match self.passes[pass].kind {
            PassKind::Decode | PassKind::Prompt if !self.stays => outputs,
            _ => 0,
        };
        self.checks
            .picks(&self.loaded.program, picks, tokens, logits)?;
        if picks.iter().any(|pick| self.is_left_to_host(pick.slot)) {
            let picked = self.pick_one_by_one(picks, tokens);
            return self.done(picked);
        }
        let most = self.passes[DECODE].rows as usize;
        for (picks, tokens) in picks.chunks(most).zip(tokens.chunks_mut(most)) {
            let picked = self.pick(picks, tokens);
            self.done(picked)?;
        }
        Ok(())
    }

    fn step_and_sample(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
        picks: &[Pick],
        tokens: &mut [u32],
    ) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        let plan = self.checks.step(program, pass, rows, outputs)?;
        let logits = match self.passes[pass].kind {
            PassKind::Decode | PassKind::Prompt => plan.outputs,
            PassKind::Embed => 0,
        };
        self.checks.picks(program, picks, tokens, logits)?;
        if picks.iter().any(|pick| self.is_left_to_host(pick.slot)) {
            self.step(pass, rows, outputs)?;
            return self.sample(picks, tokens);
        }
        let chosen = self.step_and_pick(pass, rows, outputs, picks, tokens);
        self.done(chosen)
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), DeviceError> {
        let (pass, outputs) = self.last;
        let outputs = match self.passes[pass].kind {
            PassKind::Decode | PassKind::Prompt => outputs,
            PassKind::Embed => 0,
        };
        let program = &self.loaded.program;
        self.checks.logprobs(program, queries, answers, outputs)?;
        let answered = self.ask_logprobs(queries, answers);
        self.done(answered)
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), DeviceError> {
        let most = self.chain_slots();
        self.checks.chain(&self.loaded.program, starts, most)?;
        let made = self.chain_of_slots(starts, control, emit);
        // The outputs belonged to the chain.
        self.last = (DECODE, 0);
        self.done(made)
    }

    fn begin_step(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
    ) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        let plan = self.checks.begin(program, pass, rows, outputs)?;
        self.last = (pass, 0);
        self.begun.0.clear();
        self.begun.0.extend_from_slice(rows);
        self.begun.1 = plan.outputs;
        let uploaded = self
            .gpu
            .current()
            .and_then(|()| self.upload_step(pass, rows, outputs, 0));
        self.done(uploaded)
    }

    fn run_commands(&mut self, commands: Range<usize>) -> Result<(), DeviceError> {
        let pass = self.checks.begun()?;
        let rows = std::mem::take(&mut self.begun.0);
        let outputs = self.begun.1;
        let ran = self
            .gpu
            .current()
            .and_then(|()| self.replay(pass, commands, false, &rows, outputs));
        self.begun.0 = rows;
        self.done(ran)
    }

    fn end_step(&mut self) -> Result<&[f32], DeviceError> {
        let pass = self.checks.end()?;
        self.last = (pass, self.begun.1);
        self.stays = false;
        let fetched = self.gpu.current().and_then(|()| self.fetch_outputs());
        let values = self.done(fetched)?;
        Ok(self.outputs(values))
    }

    fn read_bytes(
        &mut self,
        id: BufferId,
        first: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        self.checks.buffer(program, id, first, bytes.len())?;
        let at = self.block(id)?.start() + first;
        let copied = self.gpu.current().and_then(|()| {
            // SAFETY: the block has these bytes; we wait before they are used.
            unsafe {
                self.gpu.download(at, bytes)?;
            }
            self.gpu.synchronise()
        });
        self.done(copied)
    }

    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let program = &self.loaded.program;
        self.checks.buffer(program, id, first, bytes.len())?;
        let at = self.block(id)?.start() + first;
        let copied = self.gpu.current().and_then(|()| {
            // SAFETY: the block has room, and we wait.
            unsafe {
                self.gpu.upload(at, bytes)?;
            }
            self.gpu.synchronise()
        });
        self.done(copied)
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), DeviceError> {
        let switched = self.gpu.current().and_then(|()| self.switch_profiling(on));
        self.done(switched)
    }

    fn profile(&self) -> Vec<Profile> {
        self.profile.clone().unwrap_or_default()
    }

    fn last_step(&self) -> Timeline {
        self.last_step.clone()
    }

    fn replays(&mut self) -> Option<&mut dyn ReplayTools> {
        Some(self)
    }
}

impl ReplayTools for CudaContext {
    fn replaying(&self) -> Replaying {
        Replaying {
            replay: self.replay,
            note: self.note.clone(),
        }
    }

    fn set_replay(&mut self, replay: Replay) -> Result<(), DeviceError> {
        let changed = self.use_replay(replay);
        self.done(changed)
    }

    fn timeline(&mut self, start: ChainStart) -> Result<Timeline, DeviceError> {
        let most = self.chain_slots().min(1);
        self.checks.chain(&self.loaded.program, &[start], most)?;
        let timeline = self.timed_chain(&start);
        self.done(timeline)
    }

    fn launch_ns(&mut self, times: u32) -> Result<u64, DeviceError> {
        let measured = self.idle_launch_ns(DECODE, times.max(1));
        self.done(measured)
    }

    fn tuning(&self) -> Option<String> {
        self.tuning_in_words()
    }
}
