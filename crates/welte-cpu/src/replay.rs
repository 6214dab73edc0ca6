//! A session: buffers, lowered tables and step state, all made once; then replay, which allocates nothing.
#![allow(unsafe_code)]

use crate::load::{Inner, Model};
use crate::lower::{LoweredTable, Lowering};
use crate::memory::Block;
use crate::ops::sample::{Sampler, choose_plainly};
use crate::ops::{Bytes, State};
use crate::sizes::{Extra, Sizes, most_phases};
use crate::{Error, reference};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use welte_table::timeline::Timeline;
use welte_table::{BufferId, Class, Op, Row, Sampling, Shape, cost};

/// What one op did since profiling was switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Which op.
    pub op: Op,
    /// How often it ran.
    pub calls: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
    /// Bytes that it had to move at least: weights, activations, and the KV it read.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
}

/// One user of a model: its buffers, KV cache and step state.
pub struct Session {
    model: Model,
    buffers: Vec<Block>,
    extra: Extra,
    tables: Vec<LoweredTable>,
    state: State,
    counts: Vec<u32>,
    keys: Vec<u64>,
    slots: usize,
    /// The table of the last step.
    last_table: usize,
    profile: Option<Vec<Profile>>,
    /// Number, begin and end of each command of the last step that was profiled.
    ran: Vec<(u32, u64, u64)>,
    allocated: BTreeMap<Class, u64>,
}

// SAFETY: the raw pointers lead into blocks that the session owns, or into the model's weights that nobody writes.
unsafe impl Send for Session {}

impl Session {
    /// Allocates everything that replay needs.
    pub fn new(model: &Model) -> Result<Session, Error> {
        let inner: &Inner = &model.inner;
        let program = &*inner.program;
        let sizes = Sizes::of(program, &inner.options);
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
        let extra = Extra::new(&sizes)?;
        let (kv, kv_block) = kv_buffer(inner, &buffers)?;
        let state = State {
            rows: vec![Row::default(); sizes.rows],
            live: 0,
            slot: 0,
            kv: program.kv,
            kv_start: kv,
            pages_per_sequence: (program.kv.context as usize).div_ceil(program.kv.page as usize),
            pages: Vec::new(),
            sampler: Mutex::new(Sampler::new(
                program.vocab as usize,
                program.kv.context as usize,
            )),
        };
        let slots = program
            .buffers
            .get(program.tokens as usize)
            .map_or(0, |b| b.bytes as usize / 4);
        let mut session = Session {
            model: model.clone(),
            buffers,
            extra,
            tables: Vec::new(),
            state,
            counts: Vec::with_capacity(most_phases(program)),
            keys: Vec::with_capacity(sizes.rows),
            slots,
            last_table: 0,
            profile: None,
            ran: Vec::new(),
            allocated,
        };
        let pages = session.state.pages_per_sequence * program.kv.sequences as usize;
        session.state.pages = (0..pages as u32).collect();
        if session.slots < sizes.rows.max(2) {
            return Err(Error::Program(format!(
                "the conveyor must hold {} tokens",
                sizes.rows.max(2)
            )));
        }
        check_kv(&session.state, kv_block)?;
        let lowering = Lowering {
            inner,
            buffers: &session.buffers,
            extra: &session.extra,
        };
        for table in &program.tables {
            let lowered = if inner.options.reference {
                lowering.logits_only(table)?
            } else {
                lowering.lower(table)?
            };
            session.tables.push(lowered);
        }
        Ok(session)
    }

    /// The model it belongs to.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes by class that the model and this session take: what the memory plan says, with
    /// [`device_bytes`](crate::device_bytes) added to it.
    pub fn allocated(&self) -> BTreeMap<Class, u64> {
        self.allocated.clone()
    }

    /// The bytes of a buffer, for tests and for looking at a step that was stopped on the way.
    pub fn buffer(&self, id: BufferId) -> Option<&[u8]> {
        let spec = self.model.inner.program.buffers.get(id as usize)?;
        self.buffers
            .get(id as usize)?
            .as_slice()
            .get(..spec.bytes as usize)
    }

    /// The bytes of a buffer, to write.
    pub fn buffer_mut(&mut self, id: BufferId) -> Option<&mut [u8]> {
        let spec = self.model.inner.program.buffers.get(id as usize)?;
        self.buffers
            .get_mut(id as usize)?
            .as_mut_slice()
            .get_mut(..spec.bytes as usize)
    }

    /// Which KV page each page of each sequence is: `[sequence][page]`. Every entry is below the layout's pages.
    pub fn pages(&self) -> &[u32] {
        &self.state.pages
    }

    /// Replaces the page table.
    pub fn set_pages(&mut self, pages: &[u32]) -> Result<(), Error> {
        let known = self.state.kv.pages;
        if pages.len() != self.state.pages.len() || pages.iter().any(|page| *page >= known) {
            let wanted = self.state.pages.len();
            return Err(Error::Step(format!(
                "a page table has {wanted} entries below {known}"
            )));
        }
        self.keys.clear();
        self.state.pages.copy_from_slice(pages);
        Ok(())
    }

    /// Runs a table over rows (decode: without sampling) and returns the logits: of every row for a batch table, of
    /// the last row otherwise.
    pub fn step(&mut self, table: usize, rows: &[Row]) -> Result<&[f32], Error> {
        self.step_until(table, rows, usize::MAX)?;
        let lowered = &self.tables[table];
        let count = if let Shape::Batch(_) = lowered.shape {
            rows.len()
        } else {
            1
        };
        let vocab = self.model.inner.program.vocab as usize;
        // SAFETY: lowering checked that the logits' rows lie in their buffer; nothing runs while we are borrowed.
        Ok(unsafe { std::slice::from_raw_parts(lowered.logits.start, count * vocab) })
    }

    /// As [`Session::step`], but only the first `commands` commands: to find the first that differs from the
    /// reference.
    pub fn step_until(&mut self, table: usize, rows: &[Row], commands: usize) -> Result<(), Error> {
        self.set_rows(table, rows)?;
        self.replay(table, commands, false)
    }

    /// Sets how tokens are chosen from now on. `history` is the sequence so far; what [`Session::sample`] and
    /// [`Session::chain`] choose is appended to it.
    pub fn set_sampling(&mut self, settings: &Sampling, bias: &[(u32, f32)], history: &[u32]) {
        self.sampler().set(settings, bias, history);
    }

    /// Chooses the token for `position` from the first row of the last step's logits, and appends it to the history.
    /// Allocates nothing. Before any step, the logits are those of the first table's buffer as it stands.
    pub fn sample(&mut self, position: u32) -> u32 {
        let Some(lowered) = self.tables.get(self.last_table) else {
            return 0;
        };
        // SAFETY: as in `step`.
        let logits = unsafe {
            std::slice::from_raw_parts(
                lowered.logits.start,
                self.model.inner.program.vocab as usize,
            )
        };
        let mut sampler = self.sampler();
        let token = sampler.choose(logits, position);
        sampler.remember(token);
        token
    }

    fn sampler(&self) -> MutexGuard<'_, Sampler> {
        self.state
            .sampler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes `n` tokens: reads `start`, chooses the token after it, emits it, reads it, and so on. Ends early after
    /// one of `end_tokens` (which is emitted), when `emit` returns false, or when `cancel` is set. Returns how many
    /// tokens were emitted.
    pub fn chain(
        &mut self,
        start: Row,
        n: usize,
        end_tokens: &[u32],
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, Error> {
        let table = self.tables.iter().position(|t| t.shape == Shape::Decode);
        let table = table.ok_or_else(|| Error::Program("it has no decode table".to_string()))?;
        let context = self.state.kv.context as usize;
        if (start.position as usize).saturating_add(n) > context {
            return Err(Error::Step(format!(
                "{n} tokens from position {} need more than the context of {context}",
                start.position
            )));
        }
        let mut row = start;
        let mut emitted = 0;
        while emitted < n && !cancel.load(Ordering::Relaxed) {
            if emitted == 0 || self.state.slot + 2 >= self.slots {
                self.set_rows(table, &[row])?;
            } else {
                self.state.slot += 1;
                self.state.rows[0] = row;
            }
            self.replay(table, usize::MAX, true)?;
            let token = self.token(self.state.slot + 1);
            self.sampler().remember(token);
            emitted += 1;
            if !emit(token) || end_tokens.contains(&token) {
                break;
            }
            row = Row {
                token,
                position: row.position + 1,
                ..row
            };
        }
        Ok(emitted)
    }

    /// Switches profiling on (from zero) or off. Profiled steps are slower: each phase is timed.
    pub fn set_profiling(&mut self, on: bool) {
        let zero = |op: &Op| Profile {
            op: *op,
            calls: 0,
            ns: 0,
            bytes: 0,
            flops: 0,
        };
        self.profile = on.then(|| Op::ALL.iter().map(zero).collect());
        self.ran.clear();
    }

    /// What each op did since profiling was switched on; empty if it is off.
    pub fn profile(&self) -> &[Profile] {
        self.profile.as_deref().unwrap_or(&[])
    }

    /// When the commands of the last step ran, if it was profiled: one lane, the team's.
    pub fn last_step(&self) -> Timeline {
        let program = &self.model.inner.program;
        match program.tables.get(self.last_table) {
            Some(table) if !self.ran.is_empty() => {
                let rows = &self.state.rows[..self.state.live];
                Timeline::in_order(table, &program.kv, rows, &self.ran)
            }
            _ => Timeline::default(),
        }
    }

    fn token(&self, slot: usize) -> u32 {
        let tokens = self.model.inner.program.tokens as usize;
        let bytes = &self.buffers[tokens].as_slice()[slot * 4..slot * 4 + 4];
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn set_token(&mut self, slot: usize, token: u32) {
        let tokens = self.model.inner.program.tokens as usize;
        self.buffers[tokens].as_mut_slice()[slot * 4..slot * 4 + 4]
            .copy_from_slice(&token.to_ne_bytes());
    }

    /// Checks the rows and makes them the step's.
    fn set_rows(&mut self, table: usize, rows: &[Row]) -> Result<(), Error> {
        let known = self.tables.len();
        let shape = self
            .tables
            .get(table)
            .ok_or_else(|| no_table(table, known))?
            .shape;
        if rows.is_empty() || rows.len() > shape.rows() as usize {
            return Err(Error::Step(format!(
                "{} rows; table {table} takes 1 to {}",
                rows.len(),
                shape.rows()
            )));
        }
        let vocab = self.model.inner.program.vocab;
        let kv = self.state.kv;
        for row in rows {
            if row.token >= vocab {
                return Err(Error::Step(format!(
                    "token {} is not in the vocabulary of {vocab}",
                    row.token
                )));
            }
            if row.position >= kv.context {
                let (position, context) = (row.position, kv.context);
                return Err(Error::Step(format!(
                    "position {position} is beyond the context of {context}"
                )));
            }
            if row.sequence >= kv.sequences {
                return Err(Error::Step(format!(
                    "sequence {}; there are {}",
                    row.sequence, kv.sequences
                )));
            }
        }
        self.keys.clear();
        self.keys.extend(
            rows.iter()
                .map(|row| (row.sequence as u64) << 32 | row.position as u64),
        );
        self.keys.sort_unstable();
        if self.keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Step(
                "two rows have the same sequence and position".to_string(),
            ));
        }
        self.state.rows[..rows.len()].copy_from_slice(rows);
        self.state.live = rows.len();
        self.state.slot = 0;
        self.last_table = table;
        for (slot, row) in rows.iter().enumerate() {
            self.set_token(slot, row.token);
        }
        Ok(())
    }

    /// Runs the first `commands` commands of a table over the rows that are set.
    fn replay(&mut self, table: usize, commands: usize, sample: bool) -> Result<(), Error> {
        if self.model.inner.options.reference {
            return self.replay_reference(table, commands, sample);
        }
        let live = self.state.live;
        let plain_argmax = self.sampler().is_plain_argmax();
        let lowered = &self.tables[table];
        let program = &self.model.inner.program;
        self.counts.clear();
        for phase in &lowered.phases {
            let rows = if phase.single { 1 } else { live };
            let op = program.tables[table].commands[phase.command as usize].op;
            let runs = (phase.command as usize) < commands && (sample || op != Op::Sample);
            let chunks = if runs {
                phase.phase.chunks(&self.state, rows, plain_argmax)
            } else {
                0
            };
            self.counts.push(chunks as u32);
        }
        let (state, extra, inner) = (&self.state, &self.extra, &*self.model.inner);
        let work = |first: usize| {
            move |phase: usize, chunk: usize, thread: usize| {
                let phase = &lowered.phases[first + phase];
                let rows = if phase.single { 1 } else { live };
                // SAFETY: threads are numbered below the count that the scratch was made for; the rows were checked,
                // and the session is borrowed mutably, so nobody else runs a step on these buffers.
                unsafe {
                    let scratch = extra.threads.ptr().add(thread * extra.per_thread).cast();
                    phase.phase.run(state, rows, chunk, scratch);
                }
            }
        };
        let Some(profile) = &mut self.profile else {
            return inner
                .team
                .run(&self.counts, &work(0))
                .map_err(|_| Error::Panicked);
        };
        self.ran.clear();
        let begun = Instant::now();
        for (index, phase) in lowered.phases.iter().enumerate() {
            if self.counts[index] == 0 {
                continue;
            }
            let start = begun.elapsed().as_nanos() as u64;
            inner
                .team
                .run(&self.counts[index..=index], &work(index))
                .map_err(|_| Error::Panicked)?;
            let command = &program.tables[table].commands[phase.command as usize];
            let entry = &mut profile[command.op as usize];
            let end = begun.elapsed().as_nanos() as u64;
            entry.ns += end - start;
            let same = |ran: &&mut (u32, u64, u64)| ran.0 == phase.command;
            if let Some(ran) = self.ran.last_mut().filter(same) {
                ran.2 = end;
            } else {
                self.ran.push((phase.command, start, end));
                entry.calls += 1;
                let rows = if phase.single { 1 } else { live };
                let context = cost::of_context(command, &state.kv, &state.rows[..live]);
                entry.bytes += command.bytes + context.bytes;
                entry.flops += command.flops * rows as u64 + context.flops;
            }
        }
        Ok(())
    }

    fn replay_reference(
        &mut self,
        table: usize,
        commands: usize,
        sample: bool,
    ) -> Result<(), Error> {
        let inner = self.model.inner.clone();
        let program = &*inner.program;
        let step = reference::Step {
            rows: &self.state.rows[..self.state.live],
            slot: self.state.slot,
            pages: &self.state.pages,
            pages_per_sequence: self.state.pages_per_sequence,
        };
        let weights = |id: u32| {
            let spec = program.weights.get(id as usize)?;
            let at = inner.layouts.get(id as usize)?.floats? / 4;
            inner
                .arena
                .as_f32()
                .get(at..at + spec.n as usize * spec.k as usize)
        };
        let commands = commands.min(program.tables[table].commands.len());
        reference::run(
            program,
            &program.tables[table],
            commands,
            &weights,
            &mut self.buffers,
            &step,
        );
        if sample {
            // SAFETY: as in `step`.
            let logits = unsafe {
                std::slice::from_raw_parts(self.tables[table].logits.start, program.vocab as usize)
            };
            let token = {
                let sampler = self.sampler();
                let mut history: Vec<u32> = sampler
                    .last(sampler.settings.penalty_last_n as usize)
                    .collect();
                history.reverse();
                let position = self.state.rows[0].position + 1;
                choose_plainly(logits, &sampler.settings, &sampler.bias, &history, position)
            };
            self.set_token(self.state.slot + 1, token);
        }
        Ok(())
    }
}

fn no_table(table: usize, known: usize) -> Error {
    Error::Step(format!("table {table}; the program has {known}"))
}

/// The KV cache: the only buffer of its class (a program without attention may lack it).
fn kv_buffer(inner: &Inner, buffers: &[Block]) -> Result<(Bytes, usize), Error> {
    let mut found = inner
        .program
        .buffers
        .iter()
        .zip(buffers)
        .filter(|(spec, _)| spec.class == Class::Kv);
    match (found.next(), found.next()) {
        (Some((spec, block)), None) => Ok((Bytes(block.ptr()), spec.bytes as usize)),
        _ => Err(Error::Program("it must have one KV buffer".to_string())),
    }
}

fn check_kv(state: &State, bytes: usize) -> Result<(), Error> {
    let kv = &state.kv;
    let rows = [2, kv.pages, kv.kv_heads, kv.page]
        .iter()
        .try_fold(kv.layers as usize, |product, factor| {
            product.checked_mul(*factor as usize)
        });
    let needed = rows.and_then(|rows| rows.checked_mul(state.kv_row_bytes()));
    if needed.is_none_or(|needed| needed > bytes) {
        return Err(Error::Program(format!(
            "its KV buffer of {bytes} bytes is too small for its layout"
        )));
    }
    Ok(())
}
