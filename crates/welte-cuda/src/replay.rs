//! A session: buffers, lowered tables and step state, all made once; then replay, which allocates nothing.
#![allow(unsafe_code)]

mod chain;
mod persistent;
mod profile;
mod ready;
mod rows;
mod tune;

pub use profile::Profile;
pub(crate) use ready::turn_unit;

use crate::gpu::{DeviceBlock, Event, Gpu, HostBlock};
use crate::graph::Graph;
use crate::load::{Inner, Model};
use crate::lower::{MAILBOX_SLOTS, Places};
use crate::ops::sample::Sampler;
use crate::persistent::FAULT_BYTES;
use crate::sizes::STEP_HEAD;
use crate::{Error, Replay};
use persistent::Persistent;
use ready::{Ready, ReadyTable, ready_tables};
use rows::Rows;
use std::collections::BTreeMap;
use std::sync::Arc;
use welte_table::timeline::Timeline;
use welte_table::{BufferId, BufferRef, Class, Command, Op, Row, Shape};

/// One user of a model: its buffers, KV cache and step state.
pub struct Session {
    /// The decode table with and without its `sample`, and as a loop. Dropped before the kernels and memory that they use.
    decode_graph: Option<Graph>,
    forward_graph: Option<Graph>,
    loop_graph: Option<Graph>,
    model: Model,
    tables: Vec<ReadyTable>,
    persistent: Option<Persistent>,
    /// The same for steps of several rows.
    rows: Option<Rows>,
    /// Why chains are not replayed as was asked for.
    note: Option<String>,
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
    last_step: Timeline,
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
        let sizes = inner.sizes;
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
        let [
            scratch,
            counters,
            step_state,
            page_table,
            sampling,
            recording,
            rows,
        ] = <[DeviceBlock; 7]>::try_from(extra)
            .map_err(|_| Error::Program("its blocks were not counted".to_string()))?;
        let mailbox = HostBlock::new(&gpu, MAILBOX_SLOTS as usize * 8, "the mailbox")?;
        let cancel_word = HostBlock::new(&gpu, 8, "the cancel word")?;
        let logits_bytes = sizes.logits_rows as usize * program.vocab as usize * 4;
        // Behind them comes what a kernel says has gone wrong.
        let logits_bytes = logits_bytes + FAULT_BYTES;
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
        let persistent = Persistent::new(inner, &gpu, &places, recording);
        let rows = Rows::new(inner, &gpu, &places, rows);
        let mut session = Session {
            model: model.clone(),
            tables,
            decode_graph: None,
            forward_graph: None,
            loop_graph: None,
            persistent,
            rows,
            note: None,
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
            last_step: Timeline::default(),
            events: Vec::new(),
            allocated,
            gpu,
        };
        session.upload_pages()?;
        session.set_replay(inner.options.replay)?;
        session.warm_up()?;
        session.set_tuning(&inner.tuning());
        Ok(session)
    }

    /// Enqueues everything once, with kernels that return at once because the chain has ended: code is loaded and the
    /// driver's functions are found now, not when the first token is asked for.
    fn warm_up(&mut self) -> Result<(), Error> {
        for table in 0..self.tables.len() {
            let rows = vec![Row::default(); self.tables[table].shape.rows() as usize];
            self.upload_ended(&rows)?;
            self.replay(table, usize::MAX, true, &rows)?;
        }
        let several = [Row::default(); 2];
        for table in 0..self.tables.len() {
            if self.tables[table].shape.rows() > 1 {
                self.upload_ended(&several)?;
                self.launch_rows(table, several.len())?;
            }
        }
        self.upload_ended(&[Row::default()])?;
        for graph in [&self.decode_graph, &self.forward_graph, &self.loop_graph] {
            graph.as_ref().map_or(Ok(()), Graph::launch)?;
        }
        self.gpu.is_idle()?;
        let source = self.step_state.start();
        // SAFETY: the step state has more bytes; we wait for the copy.
        unsafe {
            self.gpu
                .download(source, &mut self.logits.as_mut_slice()[..4])?
        };
        self.gpu.synchronise()
    }

    /// A step state of a chain that has ended.
    fn upload_ended(&mut self, rows: &[Row]) -> Result<(), Error> {
        self.upload_step(rows, 0)?;
        // SAFETY: the second word of the step state says that the chain has ended.
        unsafe {
            let ended = 1u32.to_ne_bytes();
            self.gpu.upload(self.step_state.start() + 4, &ended)
        }
    }

    /// The model it belongs to.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes by class that the model and this session take on the GPU: what the memory plan says, with
    /// [`Plan::device_bytes`](crate::Plan::device_bytes) added to it.
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
        let ready = &self.tables[table];
        let count = if let Shape::Batch(_) = ready.shape {
            rows.len()
        } else {
            1
        };
        let values = count * self.model.inner.program.vocab as usize;
        let source = ready.logits;
        loop {
            let together = self.launch_rows(table, rows.len())?;
            match &self.forward_graph {
                _ if together => self.fetch_rows_fault(values * 4)?,
                Some(graph) if Some(table) == self.decode && self.by_graph() => {
                    graph.launch()?;
                }
                _ => self.replay(table, usize::MAX, false, rows)?,
            }
            // SAFETY: lowering checked that the logits' rows lie in their buffer; we wait for the copy.
            unsafe {
                let out = &mut self.logits.as_mut_slice()[..values * 4];
                self.gpu.download(source, out)?;
            }
            self.gpu.synchronise()?;
            // Once more by other kernels, which write the same places.
            if !together || !self.rows_gave_up(values * 4)? {
                break;
            }
        }
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
                let grid = by_rows.grid(*grid, live);
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

fn no_table(table: usize, known: usize) -> Error {
    Error::Step(format!("table {table}; the program has {known}"))
}
