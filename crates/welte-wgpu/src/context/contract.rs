//! The contract's methods.

use super::WgpuContext;
use super::clock::Clock;
use std::collections::BTreeMap;
use std::sync::Arc;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Choice, Context, Control, Emitted, Error, LogprobQuery, Logprobs, MaskBoard,
    Profile, SKIPPED, SlotAdapter, SlotState, Stage, Step, StepOptions,
};
use welte_table::{BufferId, Class, PassKind, Program};
use wgpu::Buffer;

impl WgpuContext {
    /// Where a program's buffer begins.
    fn place(&self, id: BufferId) -> (&Buffer, u64) {
        match (&self.caches[id as usize], self.sizes.places[id as usize]) {
            (Some(cache), _) => (cache, 0),
            (None, place) => (&self.arena, place.unwrap_or(0)),
        }
    }

    /// Reads bytes of a buffer.
    pub(super) fn read(&self, buffer: &Buffer, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let (mut done, all) = (0, bytes.len() as u64);
        while done < all {
            // Copies are of whole words.
            let first = (at + done) / 4 * 4;
            let skipped = at + done - first;
            let count = (all - done).min(self.sizes.staging - 4 - skipped);
            let copied = (skipped + count).next_multiple_of(4);
            let mut encoder = self.encoder();
            encoder.copy_buffer_to_buffer(buffer, first, &self.staging, 0, copied);
            let index = self.gpu().submit(encoder);
            let out = &mut bytes[done as usize..][..count as usize];
            let read = |from: &[u8]| out.copy_from_slice(&from[skipped as usize..][..out.len()]);
            self.gpu().mapped(&self.staging, copied, index, read)?;
            done += count;
        }
        Ok(())
    }

    /// Writes bytes to a buffer, and keeps the other bytes of the words at both ends.
    fn write(&self, buffer: &Buffer, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = at + bytes.len() as u64;
        let (first, last) = (at / 4 * 4, end.next_multiple_of(4));
        if (first, last) == (at, end) {
            self.gpu().queue.write_buffer(buffer, at, bytes);
            return Ok(());
        }
        let mut words = vec![0; (last - first) as usize];
        self.read(buffer, first, &mut words)?;
        words[(at - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.gpu().queue.write_buffer(buffer, first, &words);
        Ok(())
    }

    /// Ends the step at hand, whose output rows were read: tokens may be chosen from them.
    fn end(&mut self) -> &[f32] {
        if self.program().passes[self.step.pass].kind != PassKind::Embed {
            self.step.logits = self.step.outputs;
        }
        &self.step.values
    }

    /// Submits what was written, so that the driver can take back the memory it lies in.
    fn settle(&self) -> Result<(), Error> {
        let index = self.gpu().submit(self.encoder());
        self.gpu().wait(index)
    }
}

impl Context for WgpuContext {
    fn program(&self) -> &Arc<Program> {
        &self.weights.program
    }

    fn chain_slots(&self) -> usize {
        let program = self.program();
        let rows = program.passes.first().map_or(1, |pass| pass.rows);
        program.slots.min(rows) as usize
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
    ) -> Result<(), Error> {
        let program = &self.weights.program;
        let at = self.checks.pages(program, cache, slot, first, pages)?;
        let at = self.sizes.lists[cache] as u64 + at as u64;
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_ne_bytes()).collect();
        self.gpu().queue.write_buffer(&self.pages, 4 * at, &bytes);
        Ok(())
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        let program = self.weights.program.clone();
        let spec = self.checks.cache(&program, cache, [from, to])?;
        let (buffer, _) = self.place(spec.buffer);
        let mut encoder = self.encoder();
        for (source, target) in spec.page_copies(program.page, from, to) {
            let (start, end, target) = (source.start as u64, source.end as u64, target as u64);
            let bytes = end - start;
            if [start, bytes, target]
                .iter()
                .any(|at| !at.is_multiple_of(4))
            {
                let mut run = vec![0; bytes as usize];
                self.read(buffer, start, &mut run)?;
                self.write(buffer, target, &run)?;
                continue;
            }
            // A buffer cannot be copied to itself.
            let passage = self.sizes.passage;
            encoder.copy_buffer_to_buffer(buffer, start, &self.arena, passage, bytes);
            encoder.copy_buffer_to_buffer(&self.arena, passage, buffer, target, bytes);
        }
        self.gpu().submit(encoder);
        self.gpu().check()
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        let program = self.weights.program.clone();
        let spec = self.checks.page(&program, cache, page, bytes.len())?;
        let (buffer, _) = self.place(spec.buffer);
        let mut at = 0;
        for range in spec.page_ranges(program.page, page) {
            let run = &mut bytes[at..at + range.len()];
            at += run.len();
            self.read(buffer, range.start as u64, run)?;
        }
        Ok(())
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let program = self.weights.program.clone();
        let spec = self.checks.page(&program, cache, page, bytes.len())?;
        let (buffer, _) = self.place(spec.buffer);
        let mut at = 0;
        for range in spec.page_ranges(program.page, page) {
            let run = &bytes[at..at + range.len()];
            at += run.len();
            self.write(buffer, range.start as u64, run)?;
        }
        self.settle()
    }

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        let plan = self.checks.step(&self.weights.program, step, &options)?;
        if options.stage.begins() {
            let outputs: Vec<u32> = match self.program().passes[plan.pass].kind {
                PassKind::Decode => Vec::new(),
                PassKind::Prompt | PassKind::Embed | PassKind::Draft => step.chosen().collect(),
            };
            self.begin(plan.pass, &step.rows, &outputs);
        }
        match options.stage {
            Stage::Begin => return Ok(&[]),
            Stage::Run(_) => {
                let commands = options.stage.commands().unwrap_or_default();
                return self.run(commands).map(|()| &[][..]);
            }
            Stage::Whole => self.replay(false)?,
            Stage::End => self.read_outputs(self.encoder())?,
        }
        let Some(tokens) = options.tokens else {
            return Ok(self.end());
        };
        self.end();
        let choices: Vec<Choice> = step.choices().collect();
        self.sample(&choices, tokens).map(|()| &[][..])
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.checks.slot_state(&self.weights.program, slot, state)?;
        self.masks.clear(slot);
        self.slots[slot as usize].set(state);
        self.samplers.forget(slot);
        match SlotAdapter::entry(self.program(), slot, state.adapter) {
            Some((table, at, bytes)) => self.write_bytes(table, at, &bytes),
            None => Ok(()),
        }
    }

    /// Products with a low-rank part do not compute the norm before them.
    fn mixes_adapters(&self) -> bool {
        false
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.masks.clone()
    }

    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        let logits = self.step.logits;
        self.checks
            .choices(&self.weights.program, choices, tokens, logits)?;
        for (nth, choice) in choices.iter().enumerate() {
            tokens[nth] = if Choice::is_skipped(choices, tokens, nth) {
                SKIPPED
            } else {
                self.choose(choice.output as usize, choice.slot, choice.position)
            };
        }
        Ok(())
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        let logits = self.step.logits;
        self.checks
            .logprobs(&self.weights.program, queries, answers, logits)?;
        for (query, answer) in queries.iter().zip(answers) {
            *answer = Logprobs::of(self.logits(query.output as usize), query);
        }
        Ok(())
    }

    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let most = self.chain_slots();
        let pass = self.checks.chain(&self.weights.program, starts, most)?;
        self.run_chain(pass, starts, control, emit)
    }

    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.checks
            .buffer(&self.weights.program, id, first, bytes.len())?;
        let (buffer, at) = self.place(id);
        self.read(buffer, at + first, bytes)
    }

    /// The next submission takes the bytes along.
    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        self.checks
            .buffer(&self.weights.program, id, first, bytes.len())?;
        let (buffer, at) = self.place(id);
        self.write(buffer, at + first, bytes)
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.clock = None;
        if on {
            let commands = self.program().passes.iter().map(|p| p.commands.len());
            self.clock = Clock::new(self.gpu(), commands.max().unwrap_or(0))?;
        }
        self.profile = on.then(Profile::zeros);
        self.step.ran.clear();
        Ok(())
    }

    fn profile(&self) -> Vec<Profile> {
        self.profile.clone().unwrap_or_default()
    }

    /// One lane: the whole GPU.
    fn last_step(&self) -> Timeline {
        if self.step.ran.is_empty() {
            Timeline::default()
        } else {
            Timeline::in_order(
                &self.weights.program,
                self.step.pass,
                &self.step.rows,
                &self.step.ran,
            )
        }
    }
}
