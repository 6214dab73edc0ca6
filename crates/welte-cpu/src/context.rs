//! A context: buffers, phases and step state, all made once; then replay, which allocates nothing.
#![allow(unsafe_code)]

use crate::dispatch::LoweredPass;
use crate::load::Inner;
use crate::lower::Lowering;
use crate::memory::Block;
use crate::ops::State;
use crate::panicked;
use crate::scratch::{Scratch, Sizes, chain_slots, first_list, most_phases};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Checks, Choice, Context, Control, Emitted, Error, HostScratch, HostSlot,
    LogprobQuery, Logprobs, Made, MaskBoard, Place, Profile, SKIPPED, Seat, SlotState, Step,
    StepChain, StepOptions, StepPlan, chain_by_steps, is_token,
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
    /// Chunks of each phase that run, and the first of them.
    chunks: Vec<u32>,
    first: Vec<u32>,
    /// The slots of the chain at hand that have not stopped.
    live: Vec<ChainStart>,
    /// The tokens that a step wants.
    choices: Vec<Choice>,
    /// The pass of the last step.
    last_pass: usize,
    /// Output rows of the last step from which tokens may be chosen.
    logits: usize,
    profile: Option<Vec<Profile>>,
    /// Number, begin and end of each command of the last step that was profiled.
    ran: Vec<(u32, u64, u64)>,
    allocated: BTreeMap<Class, u64>,
    /// Among the ranks of its program.
    seat: Option<Seat>,
}

// SAFETY: the raw pointers lead into blocks that the context owns, or into weights that nobody writes.
unsafe impl Send for CpuContext {}

impl CpuContext {
    /// Allocates everything that replay needs.
    pub(crate) fn new(inner: Arc<Inner>, seat: Option<Seat>) -> Result<CpuContext, Error> {
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
        if let Some(seat) = &seat {
            seat.reserve(program);
            count(Class::Tables, Seat::bytes(program));
        }
        let scratch = Scratch::new(&sizes)?;
        let lowering = Lowering {
            inner: &inner,
            buffers: &buffers,
            scratch: &scratch,
            seat: seat.as_ref(),
        };
        let passes: Result<Vec<_>, _> = program.passes.iter().map(|p| lowering.pass(p)).collect();
        let passes = passes?;
        let mixes = lowering.mixes();
        let slots = program.slots as usize;
        let (vocab, context) = (program.vocab as usize, program.context as usize);
        let caches = 0..program.caches.len();
        let lanes = (0..sizes.lanes).map(|_| Mutex::new(HostScratch::new(vocab, context)));
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
            slots: (0..slots).map(|_| HostSlot::new(vocab, context)).collect(),
            adapters: vec![None; slots],
            lanes: lanes.collect(),
            masks: match &seat {
                Some(seat) => seat.masks(|| MaskBoard::new(slots, vocab)),
                None => Arc::new(MaskBoard::new(slots, vocab)),
            },
        };
        Ok(CpuContext {
            chunks: Vec::with_capacity(most_phases(program)),
            first: Vec::with_capacity(most_phases(program)),
            live: Vec::with_capacity(slots),
            choices: Vec::with_capacity(sizes.rows),
            checks: Checks::new(program).mixing(mixes).taking_features(),
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
            seat,
            inner,
        })
    }

    /// Makes a step that was checked the one at hand.
    fn begin(&mut self, step: &Step, plan: &StepPlan) {
        let kind = self.inner.program.passes[plan.pass].kind;
        // All rows of the decode pass are output rows: they are not chosen.
        let generated = match kind {
            PassKind::Decode => 0,
            PassKind::Prompt | PassKind::Embed | PassKind::Draft => plan.generated,
        };
        self.state.generated = generated;
        self.state.outputs.clear();
        self.state.outputs.extend(0..generated as u32);
        self.state.outputs.extend(step.chosen());
        self.state.rows[..plan.rows].copy_from_slice(&step.rows);
        self.state.live = plan.rows;
        self.write_tokens();
        self.last_pass = plan.pass;
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
            PassKind::Prompt | PassKind::Embed | PassKind::Draft => self.state.outputs.len(),
        }
    }

    /// Copies the tokens of the step's rows to the tokens buffer.
    fn write_tokens(&mut self) {
        let tokens = self.inner.program.tokens as usize;
        let (words, _) = self.buffers[tokens].as_mut_slice().as_chunks_mut::<4>();
        let rows = &self.state.rows[..self.state.live];
        for (word, row) in words.iter_mut().zip(rows) {
            *word = row.token().to_ne_bytes();
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

    /// The phases of a command of the step at hand, with their chunks. A phase begins when the one before it has ended.
    fn phases_of(&self, command: usize) -> impl Iterator<Item = (usize, u32)> {
        let (input_rows, output_rows) = (self.state.live, self.output_rows());
        let phases = self.passes[self.last_pass].phases.iter().enumerate();
        let own = phases.filter(move |(_, phase)| phase.command as usize == command);
        own.map(move |(at, phase)| {
            let chunks = phase.chunks(&self.state, input_rows, output_rows);
            (at, chunks as u32)
        })
    }

    /// Of the phases of a command, leaves those chunks that lie before or behind a place within it.
    fn cut(&mut self, at: Place, behind: bool) {
        if at.part == 0 {
            return;
        }
        let (threads, mut parts) = (self.inner.team.threads() as u32, at.part);
        let mut next = 0;
        loop {
            let found = self.phases_of(at.command).find(|own| own.0 >= next);
            let Some((phase, all)) = found else { break };
            next = phase + 1;
            let chunk = parts.saturating_mul(threads).min(all);
            parts = parts.saturating_sub(all.div_ceil(threads));
            if behind {
                self.first[phase] = chunk;
                self.chunks[phase] = self.chunks[phase].saturating_sub(chunk);
            } else {
                self.chunks[phase] = chunk.saturating_sub(self.first[phase]);
            }
        }
    }

    /// Runs commands of the step at hand.
    fn replay(&mut self, places: Range<Place>, sample: bool) -> Result<(), Error> {
        let (input_rows, output_rows) = (self.state.live, self.output_rows());
        if sample {
            let rows = &self.state.rows[..input_rows];
            for (plain, row) in self.state.plain_argmax.iter_mut().zip(rows) {
                *plain = self.state.slots[row.slot as usize].is_plain_argmax();
            }
        }
        self.state.step += 1;
        self.chunks.clear();
        let pass = &self.inner.program.passes[self.last_pass];
        // With the one that the end cuts.
        let touched = places.start.command..places.end.command.saturating_add(1);
        for phase in &self.passes[self.last_pass].phases {
            let index = phase.command as usize;
            let begins = touched.contains(&index) && Place::before(index) < places.end;
            let runs = begins && (sample || pass.commands[index].op != Op::Sample);
            let chunks = if runs {
                phase.chunks(&self.state, input_rows, output_rows)
            } else {
                0
            };
            self.chunks.push(chunks as u32);
        }
        self.first.clear();
        self.first.resize(self.chunks.len(), 0);
        self.cut(places.start, true);
        self.cut(places.end, false);
        let inner = &*self.inner;
        let pass = &inner.program.passes[self.last_pass];
        let lowered = &self.passes[self.last_pass];
        let (state, scratch, firsts) = (&self.state, &self.scratch, &self.first);
        let work = |first: usize| {
            move |phase: usize, chunk: usize, thread: usize| {
                let chunk = firsts[first + phase] as usize + chunk;
                let phase = &lowered.phases[first + phase];
                let memory = scratch.of_thread(thread);
                // SAFETY: every thread has its own memory; the rows were checked, and the context is borrowed mutably,
                // so nobody else runs a step on these buffers.
                unsafe { phase.run(state, input_rows, output_rows, chunk, memory) };
            }
        };
        let Some(profile) = &mut self.profile else {
            let ran = inner.team.run(&self.chunks, &work(0));
            return ran.map_err(|_| panicked()).and_then(|()| self.exchanged());
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
                    if places.start > Place::before(phase.command as usize) {
                        // Its first part was counted.
                        continue;
                    }
                    let rows = phase.rows(input_rows, output_rows);
                    entry.count(&inner.program, command, &state.rows[..input_rows], rows);
                }
            }
        }
        self.exchanged()
    }

    /// The error of a rank that has failed, if one has.
    fn exchanged(&self) -> Result<(), Error> {
        self.seat.as_ref().map_or(Ok(()), Seat::check)
    }
}

impl StepChain for CpuContext {
    fn live(&mut self) -> &mut Vec<ChainStart> {
        &mut self.live
    }

    fn step_live(&mut self) -> Result<(), Error> {
        self.state.live = self.live.len();
        for (row, start) in self.state.rows.iter_mut().zip(&self.live) {
            *row = start.row();
        }
        self.write_tokens();
        self.replay(Place::START..Place::END, true)
    }

    fn choose_live(&mut self, row: usize) -> Result<Made, Error> {
        let token = self.token(row);
        let slot = &mut self.state.slots[self.live[row].slot as usize];
        if is_token(token) {
            slot.remember(token);
        }
        let ends = slot.ends_at(token);
        let query = slot.logprob_query(row, token);
        let logprobs = query.map(|query| self.answer(self.last_pass, self.live.len(), &query));
        Ok(Made {
            token,
            logprobs,
            ends,
        })
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

    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        let plan = self.checks.step(&self.inner.program, step, &options)?;
        if options.stage.begins() {
            self.begin(step, &plan);
        }
        if let Some(places) = options.stage.places() {
            self.replay(places, false)?;
        }
        if !options.stage.ends() {
            return Ok(&[]);
        }
        let Some(tokens) = options.tokens else {
            return Ok(self.end());
        };
        self.end();
        let mut choices = std::mem::take(&mut self.choices);
        choices.clear();
        choices.extend(step.choices());
        let sampled = self.sample(&choices, tokens);
        self.choices = choices;
        sampled.map(|()| &[][..])
    }

    /// Every thread has a chunk of each part.
    fn parts(&self, command: usize) -> u32 {
        let threads = self.inner.team.threads() as u32;
        let parts = self.phases_of(command);
        let parts = parts.map(|(_, chunks)| chunks.div_ceil(threads));
        parts.sum::<u32>().max(1)
    }

    fn mixes(&self) -> bool {
        self.mixes
    }

    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.checks.slot_state(&self.inner.program, slot, state)?;
        self.state.masks.clear(slot);
        self.state.slots[slot as usize].set(state);
        self.state.adapters[slot as usize] = state.adapter;
        Ok(())
    }

    fn masks(&self) -> Arc<MaskBoard> {
        self.state.masks.clone()
    }

    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        let program = &self.inner.program;
        self.checks.choices(program, choices, tokens, self.logits)?;
        let vocab = program.vocab as usize;
        let guesses = program.passes[self.last_pass].kind == PassKind::Draft;
        for (nth, choice) in choices.iter().enumerate() {
            if Choice::is_skipped(choices, tokens, nth) {
                tokens[nth] = SKIPPED;
                continue;
            }
            let (row, slot) = (choice.output as usize, choice.slot);
            let logits = &self.results(self.last_pass, self.logits)[row * vocab..][..vocab];
            if guesses {
                tokens[nth] = self.state.guess(slot, logits, choice.position);
                continue;
            }
            tokens[nth] = self.state.choose(0, slot, logits, choice.position);
            if is_token(tokens[nth]) {
                self.state.slots[slot as usize].remember(tokens[nth]);
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
        self.last_pass = self.checks.chain(&self.inner.program, starts, most)?;
        self.logits = 0;
        self.state.generated = 0;
        self.state.outputs.clear();
        chain_by_steps(self, starts, control, emit)
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
        if self.ran.is_empty() {
            Timeline::default()
        } else {
            let rows = &self.state.rows[..self.state.live];
            Timeline::in_order(&self.inner.program, self.last_pass, rows, &self.ran)
        }
    }
}
