//! A session: buffers, lowered tables and step state, all made once; then replay, which allocates nothing.
#![allow(unsafe_code)]

use crate::gpu::{DeviceBlock, Event, HostBlock, Kernel};
use crate::graph::Graph;
use crate::launch::{ByRows, Launch, Node, Unit, args};
use crate::load::{Inner, Model, units_of};
use crate::lower::{LoweredTable, Lowering, MAILBOX_SLOTS, Places};
use crate::ops::library::Gemm;
use crate::ops::sample::Sampler;
use crate::sizes::{STEP_HEAD, Sizes};
use crate::{Error, Replay, gpu::Gpu};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use welte_table::{BufferId, BufferRef, Class, Command, Op, Row, Sampling, Shape};

/// Tokens that may be enqueued beyond the last one seen. Enough to keep the GPU busy while the host looks away; each
/// costs a few microseconds per kernel when the chain has ended.
const AHEAD: usize = 8;
/// How long the host spins for a token before it sleeps, and how long it sleeps.
const SPIN: Duration = Duration::from_micros(100);
const NAP: Duration = Duration::from_micros(20);
/// How often it asks whether the GPU still lives.
const PULSE: Duration = Duration::from_millis(20);

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
}

/// A node that is ready to be enqueued.
enum Ready {
    Kernel {
        kernel: Kernel,
        grid: [u32; 3],
        by_rows: ByRows,
        args: Vec<u8>,
    },
    Gemm(Gemm),
    ForRows {
        least: u32,
        most: u32,
        nodes: Vec<Ready>,
    },
}

/// A table, ready to be replayed.
struct ReadyTable {
    shape: Shape,
    /// Per command: its nodes.
    commands: Vec<Vec<Ready>>,
    logits: u64,
    sample: Vec<Ready>,
}

/// One user of a model: its buffers, KV cache and step state.
pub struct Session {
    model: Model,
    tables: Vec<ReadyTable>,
    /// The decode table with and without its `sample`, and as a loop.
    decode_graph: Option<Graph>,
    forward_graph: Option<Graph>,
    loop_graph: Option<Graph>,
    decode: Option<usize>,
    buffers: Vec<DeviceBlock>,
    step_state: DeviceBlock,
    page_table: DeviceBlock,
    sampling: DeviceBlock,
    // Kept for as long as kernels may use them.
    _private: [DeviceBlock; 2],
    pages: Vec<u32>,
    sampler: Sampler,
    /// The sampler's mirror is newer than the device's state.
    sampler_changed: bool,
    mailbox: HostBlock,
    cancel_word: HostBlock,
    logits: HostBlock,
    /// What goes up before a step.
    step_image: Vec<u8>,
    /// Where each row writes, sorted.
    keys: Vec<u64>,
    /// Tokens that the device may have numbered so far.
    serial: u32,
    last_table: usize,
    replay: Replay,
    profile: Option<Vec<Profile>>,
    events: Vec<Event>,
    allocated: BTreeMap<Class, u64>,
    gpu: Arc<Gpu>,
}

impl Session {
    /// Allocates everything that replay needs.
    pub fn new(model: &Model) -> Result<Session, Error> {
        let inner: &Inner = &model.inner;
        let program = &*inner.program;
        let gpu = Arc::new(Gpu::open(inner.options.device)?);
        let sizes = Sizes::of(program, &gpu.info);
        let mut allocated = BTreeMap::new();
        let mut count = |class: Class, bytes: u64| *allocated.entry(class).or_insert(0) += bytes;
        count(Class::Weights, inner.arena.bytes());
        let mut buffers = Vec::with_capacity(program.buffers.len());
        for spec in &program.buffers {
            buffers.push(DeviceBlock::zeroed(&gpu, spec.bytes, &spec.name)?);
            count(spec.class, spec.bytes);
        }
        let mut extra = Vec::new();
        for (name, class, bytes) in sizes.entries() {
            extra.push(DeviceBlock::zeroed(&gpu, bytes, name)?);
            count(class, bytes);
        }
        let [scratch, counters, step_state, page_table, sampling] =
            <[DeviceBlock; 5]>::try_from(extra)
                .map_err(|_| Error::Program("its blocks were not counted".to_string()))?;
        let mailbox = HostBlock::new(&gpu, MAILBOX_SLOTS as usize * 8, "the mailbox")?;
        let cancel_word = HostBlock::new(&gpu, 8, "the cancel word")?;
        let logits_bytes = sizes.logits_rows as usize * program.vocab as usize * 4;
        let logits = HostBlock::new(&gpu, logits_bytes, "logits on the host")?;
        let places = Places {
            buffers: buffers.iter().map(DeviceBlock::start).collect(),
            step: step_state.start(),
            pages: page_table.start(),
            scratch: scratch.start(),
            counters: counters.start(),
            sampler: sampling.start(),
            mailbox: mailbox.device(),
            cancel: cancel_word.device(),
        };
        let tables = ready_tables(inner, &gpu, &places)?;
        let decode = tables.iter().position(|t| t.shape == Shape::Decode);
        let mut session = Session {
            model: model.clone(),
            tables,
            decode_graph: None,
            forward_graph: None,
            loop_graph: None,
            decode,
            buffers,
            step_state,
            page_table,
            sampling,
            _private: [scratch, counters],
            pages: (0..(sizes.pages / 4) as u32).collect(),
            sampler: Sampler::new(program),
            sampler_changed: true,
            mailbox,
            cancel_word,
            logits,
            step_image: vec![0; sizes.step as usize],
            keys: Vec::with_capacity(sizes.rows as usize),
            serial: 0,
            last_table: 0,
            replay: Replay::Eager,
            profile: None,
            events: Vec::new(),
            allocated,
            gpu,
        };
        session.upload_pages()?;
        session.set_replay(inner.options.replay)?;
        session.gpu.synchronise()?;
        Ok(session)
    }

    /// The model it belongs to.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes by class that the model and this session take on the GPU: what the memory plan says, with
    /// [`device_bytes`](crate::device_bytes) added to it.
    pub fn allocated(&self) -> BTreeMap<Class, u64> {
        self.allocated.clone()
    }

    /// A copy of a buffer's bytes, for tests and for looking at a step that was stopped on the way.
    pub fn buffer(&self, id: BufferId) -> Result<Vec<u8>, Error> {
        let block = self.block(id)?;
        let mut bytes = vec![0; block.bytes() as usize];
        self.gpu.current()?;
        // SAFETY: the block has these bytes; we wait before they are used.
        unsafe { self.gpu.download(block.start(), &mut bytes)? };
        self.gpu.synchronise()?;
        Ok(bytes)
    }

    /// Overwrites the start of a buffer.
    pub fn write_buffer(&mut self, id: BufferId, bytes: &[u8]) -> Result<(), Error> {
        let block = self.block(id)?;
        if bytes.len() as u64 > block.bytes() {
            return Err(Error::Step(format!(
                "{} bytes; buffer {id} has {}",
                bytes.len(),
                block.bytes()
            )));
        }
        self.gpu.current()?;
        // SAFETY: the block has room, and we wait.
        unsafe { self.gpu.upload(block.start(), bytes)? };
        self.gpu.synchronise()
    }

    fn block(&self, id: BufferId) -> Result<&DeviceBlock, Error> {
        let known = self.buffers.len();
        self.buffers
            .get(id as usize)
            .ok_or_else(|| Error::Step(format!("buffer {id}; the program has {known}")))
    }

    /// Which KV page each page of each sequence is: `[sequence][page]`. Every entry is below the layout's pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Replaces the page table.
    pub fn set_pages(&mut self, pages: &[u32]) -> Result<(), Error> {
        let known = self.model.inner.program.kv.pages;
        if pages.len() != self.pages.len() || pages.iter().any(|page| *page >= known) {
            let wanted = self.pages.len();
            return Err(Error::Step(format!(
                "a page table has {wanted} entries below {known}"
            )));
        }
        self.pages.copy_from_slice(pages);
        self.gpu.current()?;
        self.upload_pages()?;
        self.gpu.synchronise()
    }

    fn upload_pages(&self) -> Result<(), Error> {
        // SAFETY: plain numbers; the block was made for as many.
        unsafe {
            let bytes =
                std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.pages.len() * 4);
            self.gpu.upload(self.page_table.start(), bytes)
        }
    }

    /// Runs a table over rows (decode: without sampling) and returns the logits: of every row for a batch table, of
    /// the last row otherwise.
    pub fn step(&mut self, table: usize, rows: &[Row]) -> Result<&[f32], Error> {
        self.set_rows(table, rows)?;
        self.upload_step(rows, 0)?;
        match &self.forward_graph {
            Some(graph) if Some(table) == self.decode && self.mode() == Replay::Graph => {
                graph.launch()?;
            }
            _ => self.replay(table, usize::MAX, false, rows)?,
        }
        let ready = &self.tables[table];
        let count = if let Shape::Batch(_) = ready.shape {
            rows.len()
        } else {
            1
        };
        let values = count * self.model.inner.program.vocab as usize;
        let source = ready.logits;
        // SAFETY: lowering checked that the logits' rows lie in their buffer; we wait for the copy.
        unsafe {
            let out = &mut self.logits.as_mut_slice()[..values * 4];
            self.gpu.download(source, out)?;
        }
        self.gpu.synchronise()?;
        // SAFETY: pinned memory is aligned to pages, and any bytes are floats.
        Ok(unsafe { std::slice::from_raw_parts(self.logits.as_slice().as_ptr().cast(), values) })
    }

    /// As [`Session::step`], but only the first `commands` commands: to find the first that differs from the
    /// reference.
    pub fn step_until(&mut self, table: usize, rows: &[Row], commands: usize) -> Result<(), Error> {
        self.set_rows(table, rows)?;
        self.upload_step(rows, 0)?;
        self.replay(table, commands, false, rows)?;
        self.gpu.synchronise()
    }

    /// Sets how tokens are chosen from now on. `history` is the sequence so far; what [`Session::sample`] and
    /// [`Session::chain`] choose is appended to it.
    pub fn set_sampling(&mut self, settings: &Sampling, bias: &[(u32, f32)], history: &[u32]) {
        self.sampler.set(settings, bias, history);
        self.sampler_changed = true;
    }

    /// Chooses the token for `position` from the first row of the last step's logits, and appends it to the history.
    pub fn sample(&mut self, position: u32) -> Result<u32, Error> {
        self.gpu.current()?;
        let table = self.last_table;
        if self.tables.get(table).is_none() {
            return Err(no_table(table, self.tables.len()));
        }
        self.upload_sampler(&[])?;
        let row = Row {
            token: 0,
            position: position.wrapping_sub(1),
            sequence: 0,
        };
        self.upload_step(&[row], 1)?;
        let first = self.serial.wrapping_add(1);
        self.serial = first;
        for node in &self.tables[table].sample {
            self.enqueue(node, 1)?;
        }
        let mut wait = Wait::new();
        let token = loop {
            match self.token(first) {
                Some(token) => break token,
                None => wait.turn(&self.gpu)?,
            }
        };
        self.sampler.remember(token);
        Ok(token)
    }

    /// Decodes `n` tokens: reads `start`, chooses the token after it, emits it, reads it, and so on. Ends early after
    /// one of `end_tokens` (which is emitted), when `emit` returns false, or when `cancel` is set. Returns how many
    /// tokens were emitted. Each is emitted as soon as the device has made it.
    pub fn chain(
        &mut self,
        start: Row,
        n: usize,
        end_tokens: &[u32],
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, Error> {
        let table = self
            .decode
            .ok_or_else(|| Error::Program("it has no decode table".to_string()))?;
        let context = self.model.inner.program.kv.context as usize;
        if (start.position as usize).saturating_add(n) > context {
            return Err(Error::Step(format!(
                "{n} tokens from position {} need more than the context of {context}",
                start.position
            )));
        }
        let mut row = start;
        let mut emitted = 0;
        // A loop on the device may not overtake the mailbox.
        let most = match self.mode() {
            Replay::While => MAILBOX_SLOTS as usize / 2,
            _ => usize::MAX,
        };
        while emitted < n && !cancel.load(Ordering::Relaxed) {
            self.set_rows(table, &[row])?;
            self.upload_sampler(end_tokens)?;
            let wanted = most.min(n - emitted);
            let mut last = row.token;
            let (count, more) =
                self.run_chain(table, row, wanted, end_tokens, cancel, &mut |token| {
                    last = token;
                    emit(token)
                })?;
            emitted += count;
            if !more {
                break;
            }
            row = Row {
                token: last,
                position: row.position + count as u32,
                ..row
            };
        }
        Ok(emitted)
    }

    /// One chain on the device. Returns how many tokens were emitted, and whether it came to its end.
    fn run_chain(
        &mut self,
        table: usize,
        row: Row,
        n: usize,
        ends: &[u32],
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<(usize, bool), Error> {
        let rows = [row];
        self.cancel_word.set_flag(0);
        self.upload_step(&rows, n as u32)?;
        let first = self.serial.wrapping_add(1);
        self.serial = self.serial.wrapping_add(n as u32);
        let ahead = if self.profile.is_some() { 1 } else { AHEAD };
        let (mut launched, mut seen) = (0, 0);
        if self.mode() == Replay::While {
            if let Some(graph) = &self.loop_graph {
                graph.launch()?;
            }
            launched = n;
        }
        let mut wait = Wait::new();
        let mut cut = false;
        let result = loop {
            if launched < n && launched - seen < ahead {
                match (&self.decode_graph, self.mode()) {
                    (Some(graph), Replay::Graph) => graph.launch()?,
                    _ => {
                        let row = Row {
                            position: row.position + launched as u32,
                            ..row
                        };
                        self.replay(table, usize::MAX, true, &[row])?;
                    }
                }
                launched += 1;
            }
            if let Some(token) = self.token(first.wrapping_add(seen as u32)) {
                seen += 1;
                wait = Wait::new();
                self.sampler.remember(token);
                let go_on = emit(token);
                if ends.contains(&token) || seen == n {
                    break Ok((seen, go_on && !ends.contains(&token)));
                }
                cut = cut || !go_on;
                if cut {
                    break Ok((seen, false));
                }
                continue;
            }
            if cancel.load(Ordering::Relaxed) {
                cut = true;
                break Ok((seen, false));
            }
            if launched < n && launched - seen < ahead {
                continue;
            }
            if let Err(error) = wait.turn(&self.gpu) {
                break Err(error);
            }
        };
        if cut {
            // The device may have gone on: stop it, and let its history be what was emitted.
            self.cancel_word.set_flag(1);
            self.gpu.synchronise()?;
            self.sampler_changed = true;
        }
        result
    }

    /// Switches profiling on (from zero) or off. Profiled steps are slower: each command is timed.
    pub fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        let zero = |op: &Op| Profile {
            op: *op,
            calls: 0,
            ns: 0,
            bytes: 0,
        };
        let most = self.tables.iter().map(|t| t.commands.len()).max();
        while on && self.events.len() <= most.unwrap_or(0) {
            self.events.push(Event::new(&self.gpu)?);
        }
        self.profile = on.then(|| Op::ALL.iter().map(zero).collect());
        Ok(())
    }

    /// What each op did since profiling was switched on; empty if it is off.
    pub fn profile(&self) -> &[Profile] {
        self.profile.as_deref().unwrap_or(&[])
    }

    /// Replays chains in another way from now on; graphs that this needs are captured now, if they were not before.
    pub fn set_replay(&mut self, replay: Replay) -> Result<(), Error> {
        let Some(table) = self.decode else {
            return Ok(());
        };
        self.gpu.current()?;
        match replay {
            Replay::Allocate | Replay::Eager => {}
            Replay::Graph if self.decode_graph.is_some() => {}
            Replay::Graph => {
                let decode = Graph::capture(&self.gpu, &|| self.enqueue_all(table, true))?;
                let forward = Graph::capture(&self.gpu, &|| self.enqueue_all(table, false))?;
                self.decode_graph = Some(decode);
                self.forward_graph = Some(forward);
            }
            Replay::While if self.loop_graph.is_some() => {}
            Replay::While => {
                let turn = |condition| {
                    self.enqueue_all(table, true)?;
                    self.enqueue(&self.turn(condition)?, 1)
                };
                self.loop_graph = Some(Graph::capture_loop(&self.gpu, &turn)?);
            }
        }
        self.replay = replay;
        Ok(())
    }

    /// Nanoseconds that the launches of one token take when every kernel returns at once, over `times` of them.
    pub fn idle_ns(&mut self, times: u32) -> Result<u64, Error> {
        let table = self
            .decode
            .ok_or_else(|| Error::Program("it has no decode table".to_string()))?;
        let row = Row {
            token: 0,
            position: 0,
            sequence: 0,
        };
        self.set_rows(table, &[row])?;
        self.upload_step(&[row], 0)?;
        let ended = 1u32.to_ne_bytes();
        // SAFETY: the second word of the step state says that the chain has ended.
        unsafe { self.gpu.upload(self.step_state.start() + 4, &ended)? };
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        let times = times.max(1);
        begin.record()?;
        for _ in 0..times {
            match (&self.decode_graph, self.mode()) {
                (Some(graph), Replay::Graph) => graph.launch()?,
                _ => self.replay(table, usize::MAX, true, &[row])?,
            }
        }
        end.record()?;
        end.wait()?;
        Ok(end.since(&begin)? / u64::from(times))
    }

    /// How chains are replayed: as was asked for, unless something is profiled.
    fn mode(&self) -> Replay {
        if self.profile.is_some() {
            return Replay::Eager;
        }
        self.replay
    }

    /// The token of that number, if the device has made it.
    fn token(&self, serial: u32) -> Option<u32> {
        let word = self.mailbox.word((serial & (MAILBOX_SLOTS - 1)) as usize);
        ((word >> 32) as u32 == serial).then_some(word as u32)
    }

    /// Checks the rows of a step.
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
        let program = &self.model.inner.program;
        let (vocab, kv) = (program.vocab, &program.kv);
        for row in rows {
            let problem = if row.token >= vocab {
                format!("token {} is not in the vocabulary of {vocab}", row.token)
            } else if row.position >= kv.context {
                let (position, context) = (row.position, kv.context);
                format!("position {position} is beyond the context of {context}")
            } else if row.sequence >= kv.sequences {
                format!("sequence {}; there are {}", row.sequence, kv.sequences)
            } else {
                continue;
            };
            return Err(Error::Step(problem));
        }
        // Two rows of one step may not write the same place.
        self.keys.clear();
        let key = |row: &Row| u64::from(row.sequence) << 32 | u64::from(row.position);
        self.keys.extend(rows.iter().map(key));
        self.keys.sort_unstable();
        if let Some(same) = self.keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Step(format!(
                "position {} of sequence {} is there twice",
                same[0] as u32,
                same[0] >> 32
            )));
        }
        self.last_table = table;
        self.gpu.current()
    }

    /// The step state as `common.cuh` has it, enqueued.
    fn upload_step(&mut self, rows: &[Row], left: u32) -> Result<(), Error> {
        let head = [rows.len() as u32, 0, 0, self.serial, left, 0, 0, 0];
        let words = rows.iter().flat_map(|r| [r.token, r.position, r.sequence]);
        let bytes = STEP_HEAD + size_of_val(rows);
        for (target, word) in self.step_image[..bytes]
            .chunks_exact_mut(4)
            .zip(head.into_iter().chain(words))
        {
            target.copy_from_slice(&word.to_ne_bytes());
        }
        // SAFETY: the block has room for the most rows, which `set_rows` checked.
        unsafe {
            self.gpu
                .upload(self.step_state.start(), &self.step_image[..bytes])
        }
    }

    fn upload_sampler(&mut self, ends: &[u32]) -> Result<(), Error> {
        let changed = self.sampler.set_ends(ends);
        if changed || self.sampler_changed {
            // SAFETY: the region was made for the sampler's head and more.
            unsafe {
                self.gpu
                    .upload(self.sampling.start(), self.sampler.head())?
            };
            self.sampler_changed = false;
        }
        Ok(())
    }

    fn enqueue(&self, node: &Ready, live: u32) -> Result<(), Error> {
        match node {
            Ready::Gemm(gemm) => gemm.run(&self.gpu, live),
            Ready::ForRows { least, most, nodes } => {
                if (*least..=*most).contains(&live) {
                    nodes.iter().try_for_each(|node| self.enqueue(node, live))?;
                }
                Ok(())
            }
            Ready::Kernel {
                kernel,
                grid,
                by_rows,
                args,
            } => {
                let mut grid = *grid;
                if let ByRows::Axis { axis, per } = *by_rows {
                    grid[axis] = live.div_ceil(per.max(1)).min(grid[axis]);
                }
                // SAFETY: lowering made the parameters for this kernel from blocks that the session holds.
                unsafe { self.gpu.launch(kernel, grid, args) }
            }
        }
    }

    /// Enqueues the first `commands` commands of a table.
    fn replay(
        &mut self,
        table: usize,
        commands: usize,
        sample: bool,
        rows: &[Row],
    ) -> Result<(), Error> {
        let ready = &self.tables[table];
        let ops = &self.model.inner.program.tables[table].commands;
        let live = rows.len() as u32;
        for (index, nodes) in ready.commands.iter().enumerate().take(commands) {
            if ops[index].op == Op::Sample && !sample {
                continue;
            }
            if self.profile.is_some() {
                self.events[index].record()?;
            }
            let made = self.allocate(&ops[index])?;
            for node in nodes {
                self.enqueue(node, live)?;
            }
            self.release(made)?;
            if self.profile.is_some() {
                self.events[index + 1].record()?;
            }
        }
        self.read_events(table, commands, sample, rows)
    }

    /// Memory for what a command writes, where that is allocated per command. Only its time counts: kernels write to
    /// the plan's buffers all the same.
    fn allocate(&self, command: &Command) -> Result<Option<u64>, Error> {
        if self.mode() != Replay::Allocate {
            return Ok(None);
        }
        let program = &self.model.inner.program;
        let written = command
            .buffers
            .iter()
            .rev()
            .find(|b| **b != BufferRef::NONE);
        let spec = written.and_then(|b| program.buffers.get(b.buffer as usize));
        match spec.filter(|spec| spec.class != Class::Kv) {
            Some(spec) => self.gpu.allocate_in_order(spec.bytes).map(Some),
            None => Ok(None),
        }
    }

    fn release(&self, made: Option<u64>) -> Result<(), Error> {
        made.map_or(Ok(()), |start| self.gpu.release_in_order(start))
    }

    /// Adds up what the events of a profiled replay say.
    fn read_events(
        &mut self,
        table: usize,
        commands: usize,
        sample: bool,
        rows: &[Row],
    ) -> Result<(), Error> {
        let Some(profile) = &mut self.profile else {
            return Ok(());
        };
        let program = &self.model.inner.program;
        let kv = &program.kv;
        let per_position = kv.position_bytes().unwrap_or(0) / u64::from(kv.layers.max(1));
        let table = &program.tables[table].commands;
        for (index, command) in table.iter().enumerate().take(commands) {
            if command.op == Op::Sample && !sample {
                continue;
            }
            let [before, after] = &self.events[index..index + 2] else {
                continue;
            };
            after.wait()?;
            let entry = &mut profile[command.op as usize];
            entry.calls += 1;
            entry.ns += after.since(before)?;
            entry.bytes += command.bytes;
            if command.op == Op::Attention {
                let positions: u64 = rows.iter().map(|r| u64::from(r.position) + 1).sum();
                entry.bytes += positions * per_position;
            }
        }
        Ok(())
    }

    /// Enqueues a decode table as it is captured: with or without its `sample`.
    fn enqueue_all(&self, table: usize, sample: bool) -> Result<(), Error> {
        let commands = &self.model.inner.program.tables[table].commands;
        for (nodes, command) in self.tables[table].commands.iter().zip(commands) {
            if sample || command.op != Op::Sample {
                nodes.iter().try_for_each(|node| self.enqueue(node, 1))?;
            }
        }
        Ok(())
    }

    /// The kernel that ends a turn of the loop.
    fn turn(&self, handle: u64) -> Result<Ready, Error> {
        let launch = Launch {
            unit: turn_unit(),
            function: "turn",
            grid: [1; 3],
            by_rows: ByRows::Fixed,
            block: 32,
            shared: 0,
            args: args(&[self.step_state.start(), handle]),
        };
        ready_one(&self.model.inner, launch)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nothing may be freed while the GPU still works on it.
        self.cancel_word.set_flag(1);
        if self.gpu.current().is_ok() {
            let _ = self.gpu.synchronise();
        }
    }
}

/// Waiting for a token: spins, then sleeps, and looks whether the GPU still works.
struct Wait {
    began: Instant,
    looked: Instant,
    idle: bool,
}

impl Wait {
    fn new() -> Wait {
        let now = Instant::now();
        Wait {
            began: now,
            looked: now,
            idle: false,
        }
    }

    fn turn(&mut self, gpu: &Gpu) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.began < SPIN {
            std::hint::spin_loop();
            return Ok(());
        }
        if now - self.looked > PULSE {
            self.looked = now;
            // Once more after it was seen idle: the token may have come in between.
            if self.idle {
                return Err(Error::Step(
                    "the GPU ended the chain without a token; this is a bug in Welte".to_string(),
                ));
            }
            self.idle = gpu.is_idle()?;
        }
        std::thread::sleep(NAP);
        Ok(())
    }
}

fn no_table(table: usize, known: usize) -> Error {
    Error::Step(format!("table {table}; the program has {known}"))
}

/// A launch with its kernel found.
fn ready_one(inner: &Inner, launch: Launch) -> Result<Ready, Error> {
    Ok(Ready::Kernel {
        kernel: inner.kernel(&launch)?,
        grid: launch.grid,
        by_rows: launch.by_rows,
        args: launch.args,
    })
}

/// Nodes with their kernels found.
fn ready(inner: &Inner, nodes: Vec<Node>) -> Result<Vec<Ready>, Error> {
    let ready = nodes.into_iter().map(|node| match node {
        Node::Gemm(gemm) => Ok(Ready::Gemm(gemm)),
        Node::Kernel(launch) => ready_one(inner, launch),
        Node::ForRows { least, most, nodes } => Ok(Ready::ForRows {
            least,
            most,
            nodes: ready(inner, nodes)?,
        }),
    });
    ready.collect()
}

fn ready_tables(inner: &Inner, gpu: &Arc<Gpu>, places: &Places) -> Result<Vec<ReadyTable>, Error> {
    let cx = Lowering::new(&inner.program, &gpu.info, gpu, &inner.weights, places);
    let lowered: Vec<LoweredTable> = inner
        .program
        .tables
        .iter()
        .map(|table| cx.lower(table))
        .collect::<Result<_, Error>>()?;
    let mut units: BTreeSet<_> = lowered.iter().flat_map(units_of).collect();
    units.insert(turn_unit());
    inner.add_modules(&units.into_iter().collect::<Vec<_>>())?;
    let make = |table: LoweredTable| -> Result<ReadyTable, Error> {
        let commands = table.commands.into_iter().map(|c| ready(inner, c));
        Ok(ReadyTable {
            shape: table.shape,
            commands: commands.collect::<Result<_, Error>>()?,
            logits: table.logits,
            sample: ready(inner, table.sample)?,
        })
    };
    lowered.into_iter().map(make).collect()
}

/// What the end of a loop's turn is compiled from.
pub(crate) fn turn_unit() -> Unit {
    Unit {
        file: "turn.cu",
        defines: Vec::new(),
    }
}
