//! A context: buffers, phases and step state, all made once; then replay, which allocates nothing.
#![allow(unsafe_code)]

use crate::dispatch::LoweredPass;
use crate::load::Inner;
use crate::lower::Lowering;
use crate::memory::Block;
use crate::ops::State;
use crate::ops::sample::Samplers;
use crate::panicked;
use crate::scratch::{Scratch, Sizes, chain_slots, first_list, most_phases};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Checks, Context, Control, Emitted, Error, LogprobQuery, Logprobs, MaskBoard,
    MixedStep, Pick, Profile, SKIPPED, SlotState, is_token,
};
use welte_table::{BufferId, Class, Op, PassKind, Program, Row};

/// The decode pass: verified programs begin with it.
const DECODE: usize = 0;

/// Everything that replay changes.
pub(crate) struct CpuContext {
    inner: Arc<Inner>,
    buffers: Vec<Block>,
    scratch: Scratch,
    passes: Vec<LoweredPass>,
    /// Whether generated rows and prompt rows can share a step.
    mixes: bool,
    state: State,
    checks: Checks,
    /// Chunks of each phase in the step at hand.
    chunks: Vec<u32>,
    /// The slots of the chain at hand that have not stopped.
    live: Vec<ChainStart>,
    /// The pass of the last step.
    last_pass: usize,
    /// Output rows of the last step from which tokens may be chosen.
    logits: usize,
    profile: Option<Vec<Profile>>,
    /// Number, begin and end of each command of the last step that was profiled.
    ran: Vec<(u32, u64, u64)>,
    allocated: BTreeMap<Class, u64>,
}

// SAFETY: the raw pointers lead into blocks that the context owns, or into weights that nobody writes.
unsafe impl Send for CpuContext {}

impl CpuContext {
    /// Allocates everything that replay needs.
    pub(crate) fn new(inner: Arc<Inner>) -> Result<CpuContext, Error> {
        let program = &*inner.program;
        let sizes = Sizes::of(program, inner.team.threads(), inner.isa);
        let mut allocated = BTreeMap::new();
        let mut count = |class: Class, bytes: u64| *allocated.entry(class).or_insert(0) += bytes;
        count(Class::Weights, inner.arena.len() as u64);
        let mut buffers = Vec::with_capacity(program.buffers.len());
        for spec in &program.buffers {
            buffers.push(Block::new(spec.bytes, &spec.name)?);
            count(spec.class, spec.bytes);
        }
        for (_, class, bytes) in sizes.entries() {
            count(class, bytes);
        }
        let scratch = Scratch::new(&sizes)?;
        let lowering = Lowering {
            inner: &inner,
            buffers: &buffers,
            scratch: &scratch,
        };
        let passes: Result<Vec<_>, _> = program.passes.iter().map(|p| lowering.pass(p)).collect();
        let passes = passes?;
        let mixes = lowering.mixes();
        let slots = program.slots as usize;
        let (vocab, context) = (program.vocab as usize, program.context as usize);
        let caches = 0..program.caches.len();
        let state = State {
            step: 0,
            rows: vec![Row::default(); sizes.rows],
            live: 0,
            generated: 0,
            outputs: Vec::with_capacity(sizes.rows),
            pages: caches
                .flat_map(|cache| Checks::first_pages(program, cache))
                .collect(),
            plain_argmax: vec![false; sizes.rows],
            samplers: Samplers::new(slots, sizes.lanes, vocab, context),
        };
        Ok(CpuContext {
            chunks: Vec::with_capacity(most_phases(program)),
            live: Vec::with_capacity(slots),
            checks: Checks::new(program),
            buffers,
            scratch,
            passes,
            mixes,
            state,
            last_pass: DECODE,
            logits: 0,
            profile: None,
            ran: Vec::new(),
            allocated,
            inner,
        })
    }

    /// Makes a step that was checked the one at hand. The first `generated` rows are outputs besides those that are chosen.
    fn begin(&mut self, pass: usize, rows: &[Row], generated: usize, outputs: &[u32]) {
        self.state.generated = generated;
        self.state.outputs.clear();
        self.state.outputs.extend(0..generated as u32);
        self.state.outputs.extend_from_slice(outputs);
        self.state.rows[..rows.len()].copy_from_slice(rows);
        self.state.live = rows.len();
        self.write_tokens();
        self.last_pass = pass;
        self.logits = 0;
    }

    /// Ends the step at hand: tokens may be chosen from its output rows.
    fn end(&mut self) -> &[f32] {
        let rows = self.output_rows();
        if self.inner.program.passes[self.last_pass].kind != PassKind::Embed {
            self.logits = rows;
        }
        self.results(self.last_pass, rows)
    }

    /// Output rows of the step at hand.
    fn output_rows(&self) -> usize {
        let pass = &self.inner.program.passes[self.last_pass];
        match pass.kind {
            PassKind::Decode if pass.is_middle() => 0,
            PassKind::Decode => self.state.live,
            PassKind::Prompt | PassKind::Embed => self.state.outputs.len(),
        }
    }

    /// Copies the tokens of the step's rows to the tokens buffer.
    fn write_tokens(&mut self) {
        let tokens = self.inner.program.tokens as usize;
        let (words, _) = self.buffers[tokens].as_mut_slice().as_chunks_mut::<4>();
        let rows = &self.state.rows[..self.state.live];
        for (word, row) in words.iter_mut().zip(rows) {
            *word = row.token.to_ne_bytes();
        }
    }

    /// A row's token in the tokens buffer.
    fn token(&self, row: usize) -> u32 {
        let tokens = self.inner.program.tokens as usize;
        let (words, _) = self.buffers[tokens].as_slice().as_chunks::<4>();
        u32::from_ne_bytes(words[row])
    }

    /// The first `rows` output rows of a pass.
    fn results(&self, pass: usize, rows: usize) -> &[f32] {
        let LoweredPass { result, width, .. } = &self.passes[pass];
        // SAFETY: lowering checked that the output rows lie in their buffer; nothing runs while we are borrowed.
        unsafe { std::slice::from_raw_parts(result.start, rows * width) }
    }

    /// Answers a query about the first `rows` output rows of a pass.
    fn answer(&self, pass: usize, rows: usize, query: &LogprobQuery) -> Logprobs {
        let vocab = self.inner.program.vocab as usize;
        let first = query.output as usize * vocab;
        Logprobs::of(&self.results(pass, rows)[first..][..vocab], query)
    }

    /// Runs commands of the step at hand.
    fn replay(&mut self, commands: Range<usize>, sample: bool) -> Result<(), Error> {
        let (input_rows, output_rows) = (self.state.live, self.output_rows());
        if sample {
            let rows = &self.state.rows[..input_rows];
            for (plain, row) in self.state.plain_argmax.iter_mut().zip(rows) {
                *plain = self.state.samplers.is_plain_argmax(row.slot as usize);
            }
        }
        self.state.step += 1;
        let inner = &*self.inner;
        let pass = &inner.program.passes[self.last_pass];
        let lowered = &self.passes[self.last_pass];
        self.chunks.clear();
        for phase in &lowered.phases {
            let index = phase.command as usize;
            let runs =
                commands.contains(&index) && (sample || pass.commands[index].op != Op::Sample);
            let chunks = match runs {
                true => phase.chunks(&self.state, input_rows, output_rows),
                false => 0,
            };
            self.chunks.push(chunks as u32);
        }
        let (state, scratch) = (&self.state, &self.scratch);
        let work = |first: usize| {
            move |phase: usize, chunk: usize, thread: usize| {
                let phase = &lowered.phases[first + phase];
                let memory = scratch.of_thread(thread);
                // SAFETY: every thread has its own memory; the rows were checked, and the context is borrowed mutably,
                // so nobody else runs a step on these buffers.
                unsafe { phase.run(state, input_rows, output_rows, chunk, memory) };
            }
        };
        let Some(profile) = &mut self.profile else {
            let ran = inner.team.run(&self.chunks, &work(0));
            return ran.map_err(|_| panicked());
        };
        self.ran.clear();
        let begun = Instant::now();
        for (index, phase) in lowered.phases.iter().enumerate() {
            if self.chunks[index] == 0 {
                continue;
            }
            let start = begun.elapsed().as_nanos() as u64;
            let ran = inner.team.run(&self.chunks[index..=index], &work(index));
            ran.map_err(|_| panicked())?;
            let end = begun.elapsed().as_nanos() as u64;
            let command = &pass.commands[phase.command as usize];
            let entry = &mut profile[command.op as usize];
            entry.ns += end - start;
            match self.ran.last_mut() {
                Some(last) if last.0 == phase.command => last.2 = end,
                _ => {
                    self.ran.push((phase.command, start, end));
                    let rows = phase.rows(input_rows, output_rows);
                    entry.count(&inner.program, command, &state.rows[..input_rows], rows);
                }
            }
        }
        Ok(())
    }
}

impl Context for CpuContext {
    fn program(&self) -> &Arc<Program> {
        &self.inner.program
    }

    fn chain_slots(&self) -> usize {
        chain_slots(&self.inner.program)
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
        let program = &self.inner.program;
        let at = self.checks.pages(program, cache, slot, first, pages)?;
        let at = first_list(program, program.caches[cache].buffer) + at;
        self.state.pages[at..at + pages.len()].copy_from_slice(pages);
        Ok(())
    }

    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        let program = &self.inner.program;
        let spec = self.checks.cache(program, cache, [from, to])?;
        let bytes = self.buffers[spec.buffer as usize].as_mut_slice();
        for (source, target) in spec.page_copies(program.page, from, to) {
            bytes.copy_within(source, target);
        }
        Ok(())
    }

    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        let program = &self.inner.program;
        let spec = self.checks.page(program, cache, page, bytes.len())?;
        let buffer = self.buffers[spec.buffer as usize].as_slice();
        let mut at = 0;
        for range in spec.page_ranges(program.page, page) {
            let run = at..at + range.len();
            at = run.end;
            bytes[run].copy_from_slice(&buffer[range]);
        }
        Ok(())
    }

    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let program = &self.inner.program;
        let spec = self.checks.page(program, cache, page, bytes.len())?;
        let buffer = self.buffers[spec.buffer as usize].as_mut_slice();
        let mut at = 0;
        for range in spec.page_ranges(program.page, page) {
            let run = at..at + range.len();
            at = run.end;
            buffer[range].copy_from_slice(&bytes[run]);
        }
        Ok(())
    }

    fn step(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<&[f32], Error> {
        self.checks.step(&self.inner.program, pass, rows, outputs)?;
        self.begin(pass, rows, 0, outputs);
        self.replay(0..usize::MAX, false)?;
        Ok(self.end())
    }

    fn mixes(&self) -> bool {
        self.mixes
    }

    fn step_mixed(&mut self, step: &MixedStep<'_>) -> Result<&[f32], Error> {
        if !self.mixes {
            return Err(Error::request(
                "a mixed step; prompts of this program have another arithmetic",
            ));
        }
        self.checks.mixed_step(&self.inner.program, step)?;
        self.begin(step.pass, step.rows, step.generated, step.outputs);
        self.replay(0..usize::MAX, false)?;
        Ok(self.end())
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.checks.slot_state(&self.inner.program, slot, state)?;
        self.state.samplers.set(slot as usize, state);
        Ok(())
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.state.samplers.masks().clone()
    }

    fn sample(&mut self, picks: &[Pick], tokens: &mut [u32]) -> Result<(), Error> {
        let program = &self.inner.program;
        self.checks.picks(program, picks, tokens, self.logits)?;
        let vocab = program.vocab as usize;
        for (nth, pick) in picks.iter().enumerate() {
            if Pick::is_skipped(picks, tokens, nth) {
                tokens[nth] = SKIPPED;
                continue;
            }
            let (row, slot) = (pick.output as usize, pick.slot as usize);
            let logits = &self.results(self.last_pass, self.logits)[row * vocab..][..vocab];
            tokens[nth] = self.state.samplers.choose(0, slot, logits, pick.position);
            if is_token(tokens[nth]) {
                self.state.samplers.remember(slot, tokens[nth]);
            }
        }
        Ok(())
    }

    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        let program = &self.inner.program;
        self.checks
            .logprobs(program, queries, answers, self.logits)?;
        for (query, answer) in queries.iter().zip(answers) {
            *answer = self.answer(self.last_pass, self.logits, query);
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
        self.checks.chain(&self.inner.program, starts, most)?;
        self.live.clear();
        let begins = starts.iter().filter(|start| start.steps > 0);
        self.live.extend(begins);
        self.last_pass = DECODE;
        self.logits = 0;
        self.state.generated = 0;
        self.state.outputs.clear();
        while !self.live.is_empty() && !control.is_stopped() {
            self.state.live = self.live.len();
            for (row, start) in self.state.rows.iter_mut().zip(&self.live) {
                *row = start.row();
            }
            self.write_tokens();
            self.replay(0..usize::MAX, true)?;
            let mut kept = 0;
            for row in 0..self.live.len() {
                let (start, token) = (self.live[row], self.token(row));
                let (slot, position) = (start.slot, start.position + 1);
                if is_token(token) {
                    self.state.samplers.remember(slot as usize, token);
                }
                let query = self.state.samplers.logprob_query(slot as usize, row, token);
                let logprobs = query.map(|query| self.answer(DECODE, self.live.len(), &query));
                let wanted = emit(Emitted {
                    slot,
                    position,
                    token,
                    logprobs,
                });
                let ended = !is_token(token) || self.state.samplers.ends_at(slot as usize, token);
                if wanted && !ended && start.steps > 1 {
                    self.live[kept] = ChainStart {
                        slot,
                        token,
                        position,
                        steps: start.steps - 1,
                    };
                    kept += 1;
                }
            }
            self.live.truncate(kept);
        }
        Ok(())
    }

    fn begin_step(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<(), Error> {
        self.checks
            .begin(&self.inner.program, pass, rows, outputs)?;
        self.begin(pass, rows, 0, outputs);
        Ok(())
    }

    fn run_commands(&mut self, commands: Range<usize>) -> Result<(), Error> {
        self.checks.begun()?;
        self.replay(commands, false)
    }

    fn end_step(&mut self) -> Result<&[f32], Error> {
        self.checks.end()?;
        Ok(self.end())
    }

    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let program = &self.inner.program;
        self.checks.buffer(program, id, first, bytes.len())?;
        let from = &self.buffers[id as usize].as_slice()[first as usize..];
        bytes.copy_from_slice(&from[..bytes.len()]);
        Ok(())
    }

    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        let program = &self.inner.program;
        self.checks.buffer(program, id, first, bytes.len())?;
        let to = &mut self.buffers[id as usize].as_mut_slice()[first as usize..];
        to[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.profile = on.then(Profile::zeros);
        self.ran.clear();
        Ok(())
    }

    fn profile(&self) -> Vec<Profile> {
        self.profile.clone().unwrap_or_default()
    }

    /// One lane: the whole team.
    fn last_step(&self) -> Timeline {
        match self.ran.is_empty() {
            true => Timeline::default(),
            false => {
                let rows = &self.state.rows[..self.state.live];
                Timeline::in_order(&self.inner.program, self.last_pass, rows, &self.ran)
            }
        }
    }
}
