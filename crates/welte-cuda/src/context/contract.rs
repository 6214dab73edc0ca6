//! The context as the device contract has it: requests are checked here, once, and errors name the device.
#![allow(unsafe_code)]

use super::ranks::Seated;
use super::shelf::PinnedShelf;
use super::{CudaContext, DECODE};
use crate::Error;
use crate::lower::MAILBOX_SLOTS;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Choice, Context, Control, DeviceId, Emitted, Error as DeviceError, LogprobQuery,
    Logprobs, MaskBoard, Profile, Replay, ReplayTools, Replaying, Shelf, SlotAdapter, SlotState,
    Stage, Step, StepOptions, StepPlan, check_draft, draft_by_steps,
};
use welte_table::{BufferId, Class, PageRuns, PassKind, Program};

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

    /// Runs a part of a step that was checked, whose output rows are `chosen` unless all are. Returns the number of floats in
    /// the output rows that are on the host then.
    fn run_part(
        &mut self,
        step: &Step,
        plan: &StepPlan,
        options: StepOptions<'_>,
        chosen: &[u32],
    ) -> Result<usize, Error> {
        let (pass, rows, count) = (plan.pass, &step.rows[..], plan.outputs);
        self.gpu.current()?;
        match options.stage {
            Stage::Begin => {
                self.last = (pass, 0);
                return self.upload_step(pass, rows, chosen, 0).map(|()| 0);
            }
            Stage::Run(_) => {
                let commands = options.stage.commands().unwrap_or_default();
                let ran = self.replay(pass, commands, false, rows, count);
                return ran.map(|()| 0);
            }
            Stage::Whole | Stage::End => {}
        }
        let mut choices = std::mem::take(&mut self.choices);
        choices.clear();
        if options.tokens.is_some() {
            choices.extend(step.choices());
        }
        let by_host = choices.iter().any(|one| self.is_left_to_host(one.slot));
        let ran = match options.tokens {
            Some(tokens) if options.stage == Stage::Whole && !by_host && !choices.is_empty() => {
                self.step_and_pick(pass, rows, chosen, &choices, tokens)
                    .map(|()| 0)
            }
            tokens => {
                let values = if options.stage == Stage::Whole {
                    self.run_step(pass, rows, chosen, count)
                } else {
                    self.last = (pass, count);
                    self.stays = false;
                    self.fetch_outputs()
                };
                match (values, tokens) {
                    (Ok(_), Some(tokens)) => self.pick_all(&choices, tokens).map(|()| 0),
                    (values, _) => values,
                }
            }
        };
        self.choices = choices;
        ran
    }

    /// The result of a request that was checked.
    pub(super) fn done<T>(&self, result: Result<T, Error>) -> Result<T, DeviceError> {
        match self.seated.as_ref().and_then(Seated::fault) {
            Some(fault) => Err(fault),
            None => result.map_err(|error| error.on(self.id())),
        }
    }
}

impl Context for CudaContext {
    fn program(&self) -> &Arc<Program> {
        &self.loaded.program
    }

    fn chain_slots(&self) -> usize {
        let program = &self.loaded.program;
        if self.decodes() {
            (program.passes[DECODE].rows.min(program.slots) as usize).min(MOST_CHAIN_SLOTS)
        } else {
            0
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

    fn shelf_place(&self) -> Option<u64> {
        Shelf::place_bytes(&self.loaded.program)
    }

    fn make_shelf(&mut self, places: u32) -> Result<(), DeviceError> {
        self.shelf = None;
        let made = PinnedShelf::new(&self.gpu, &self.loaded.program, places);
        self.shelf = Some(self.done(made)?);
        Ok(())
    }

    fn shelve(&mut self, place: u32, pages: &[u32]) -> Result<(), DeviceError> {
        self.put_on_shelf(place, pages)
    }

    fn fetch(&mut self, place: u32, pages: &[u32]) -> Result<(), DeviceError> {
        self.fetch_from_shelf(place, pages)
    }

    fn has_fetched(&mut self, wait: bool) -> Result<bool, DeviceError> {
        self.shelf_has_fetched(wait)
    }

    fn read_shelf(&mut self, range: Range<usize>, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read_from_shelf(range, bytes)
    }

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], DeviceError> {
        let plan = self.checks.step(&self.loaded.program, step, &options)?;
        let mut chosen = std::mem::take(&mut self.chosen_rows);
        chosen.clear();
        // All rows of the decode pass are output rows: they are not chosen.
        if self.passes[plan.pass].kind != PassKind::Decode {
            chosen.extend(step.chosen());
        }
        let ran = self.run_part(step, &plan, options, &chosen);
        self.chosen_rows = chosen;
        let values = self.done(ran)?;
        Ok(self.outputs(values))
    }

    fn draft(
        &mut self,
        step: &mut Step,
        wanted: &[u32],
        tokens: &mut [u32],
    ) -> Result<(), DeviceError> {
        let program = self.loaded.program.clone();
        let plan = self.checks.step(&program, step, &StepOptions::default())?;
        if self.passes[plan.pass].kind != PassKind::Draft || !self.drafts_ahead(step) {
            return draft_by_steps(step, wanted, tokens, &mut |step, tokens| {
                self.step(step, StepOptions::tokens(tokens)).map(drop)
            });
        }
        let most = check_draft(&program, step, wanted, tokens)?;
        let guessed = self.draft_ahead(plan.pass, step, wanted, tokens, most);
        self.done(guessed)
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), DeviceError> {
        self.checks.slot_state(&self.loaded.program, slot, state)?;
        self.masks.clear(slot);
        self.slots[slot as usize].set(state);
        match SlotAdapter::entry(&self.loaded.program, slot, state.adapter) {
            Some((table, at, bytes)) => self.write_bytes(table, at, &bytes),
            None => Ok(()),
        }
    }

    /// Persistent kernels have other sums than those that adapters take.
    fn mixes_adapters(&self) -> bool {
        false
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.masks.clone()
    }

    fn sample(&mut self, picks: &[Choice], tokens: &mut [u32]) -> Result<(), DeviceError> {
        let (pass, outputs) = self.last;
        let logits = match self.passes[pass].kind {
            PassKind::Embed => 0,
            _ if self.stays => 0,
            PassKind::Decode | PassKind::Prompt | PassKind::Draft => outputs,
        };
        self.checks
            .choices(&self.loaded.program, picks, tokens, logits)?;
        let picked = self.pick_all(picks, tokens);
        self.done(picked)
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), DeviceError> {
        let (pass, outputs) = self.last;
        let outputs = match self.passes[pass].kind {
            PassKind::Decode | PassKind::Prompt => outputs,
            PassKind::Embed | PassKind::Draft => 0,
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
        let pass = self.checks.chain(&self.loaded.program, starts, most)?;
        self.chain_pass = pass;
        let made = self.chain_of_slots(starts, control, emit);
        // The outputs belonged to the chain.
        self.last = (pass, 0);
        made
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
    fn replaying(&mut self) -> Replaying {
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

    fn tuning(&mut self) -> Option<String> {
        self.tuning_in_words()
    }
}
