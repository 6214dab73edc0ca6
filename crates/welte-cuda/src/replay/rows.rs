//! Steps of several rows by one launch of the persistent kernel.
#![allow(unsafe_code)]

use super::Session;
use super::persistent::{PATIENCE, upload};
use super::tune::{Habits, Told};
use crate::gpu::{DeviceBlock, Gpu, Kernel};
use crate::launch::bytes_of;
use crate::load::Inner;
use crate::lower::{Lowering, Places};
use crate::ops::rope::Kv;
use crate::persistent::{FAULT_BYTES, Memory, Roll, Work, takes};
use crate::{Error, Replay};
use std::sync::Arc;
use welte_table::Shape;

/// `RowsArgs` of `persistent_rows.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    step: u64,
    kv: Kv,
    program: u64,
    shares: u64,
    exchange: u64,
    logits: u64,
    sync: u64,
    fault: u64,
    freqs: [u64; 4],
    patience: i64,
    instructions: u32,
    habits: Told,
    mute: u32,
    first: u32,
    inputs: u32,
}

/// The kernel, its memory and what it is told.
pub(super) struct Rows {
    block: DeviceBlock,
    memory: Memory,
    blocks: u32,
    /// The most rows that it is given.
    most: u32,
    /// Bytes of a row's exchange.
    row: u64,
    work: Work,
    /// Which tables it stands for.
    takes: Vec<bool>,
    arguments: Arguments,
    kernel: Option<Kernel>,
    /// Why it is not used.
    refused: Option<&'static str>,
}

impl Rows {
    /// What it will be told; nothing where there is no such kernel.
    pub(super) fn new(
        inner: &Inner,
        gpu: &Arc<Gpu>,
        places: &Places,
        block: DeviceBlock,
    ) -> Option<Rows> {
        let roll = inner.rows.as_ref().ok()?;
        let cx = Lowering::new(&inner.program, &gpu.info, gpu, &inner.weights, places);
        let memory = roll.memory();
        let at = |offset: u64| block.start() + offset;
        let arguments = Arguments {
            step: cx.step,
            kv: Kv::of(&cx, 0),
            program: at(memory.program),
            shares: at(memory.shares),
            exchange: at(memory.exchange),
            logits: 0,
            sync: at(0),
            fault: at(memory.fault),
            freqs: roll.freqs,
            patience: PATIENCE,
            instructions: roll.program.len() as u32,
            habits: Habits::default().told(&roll.ahead),
            mute: u32::MAX,
            first: 0,
            inputs: 0,
        };
        let tables = &inner.program.tables;
        Some(Rows {
            block,
            memory,
            blocks: roll.blocks,
            most: roll.rows,
            row: u64::from(roll.exchange) * 4,
            work: roll.work,
            takes: tables.iter().map(|t| takes(&tables[0], t)).collect(),
            arguments,
            kernel: None,
            refused: None,
        })
    }

    /// What was found for chains goes for steps of several rows as well, but for what was found for each kind of instruction, because
    /// these are others, and for a pause for attention, of which this kernel does not tell: there it is none.
    pub(super) fn set_habits(&mut self, habits: Habits, roll: &Roll) {
        self.arguments.habits = habits.for_all_kinds().told(&roll.ahead);
    }

    pub(super) fn mute(&mut self, block: u32, patience: i64) {
        self.arguments.mute = block;
        self.arguments.patience = patience;
    }

    /// Enqueues one launch for the rows of the step state.
    fn launch(&self, gpu: &Gpu, rows: u32) -> Result<(), Error> {
        let kernel = self.kernel.as_ref();
        let kernel = kernel.ok_or_else(|| Error::Program("it was not compiled".to_string()))?;
        let used = self.memory.exchange + u64::from(rows) * self.row;
        // SAFETY: the block was made for `memory`; nothing else uses it, and the stream keeps the order. The arguments are
        // those of the kernel, and everything that they point to is held by the session.
        unsafe {
            gpu.clear(self.block.start(), used)?;
            gpu.launch_together(kernel, self.blocks, bytes_of(&self.arguments))
        }
    }
}

impl Session {
    /// Makes the kernel for several rows ready, with program and shares on the device. Where it does not compile, steps go by
    /// launched kernels.
    pub(super) fn prepare_rows(&mut self) -> Result<(), Error> {
        let inner = &self.model.inner;
        let (Ok(roll), Some(rows)) = (&inner.rows, &mut self.rows) else {
            return Ok(());
        };
        if rows.kernel.is_some() {
            return Ok(());
        }
        match inner.add_modules(std::slice::from_ref(&roll.unit)) {
            Err(Error::Compile { .. }) => {
                rows.refused =
                    Some("the kernel for several rows did not compile, which is a bug in Welte");
                return Ok(());
            }
            other => other?,
        }
        upload(&self.gpu, roll, &rows.block)?;
        let kernel = inner.kernel_of(&roll.unit, roll.function, roll.threads, roll.shared)?;
        rows.kernel = Some(kernel);
        Ok(())
    }

    /// The most rows of a step that go through the persistent kernel together; the error says why they do not.
    pub fn rows_together(&self) -> Result<u32, String> {
        let recorded = self.model.inner.rows.as_ref();
        if let Some(why) = self.note.as_ref().or(recorded.err()) {
            return Err(why.clone());
        }
        match &self.rows {
            Some(Rows {
                refused: Some(why), ..
            }) => Err(why.to_string()),
            Some(rows) if rows.kernel.is_some() && rows.most < 2 => {
                Err("launched kernels take less time, or it was not tried".to_string())
            }
            Some(rows) if rows.kernel.is_some() => Ok(rows.most),
            _ => Err("the persistent kernel was not asked for".to_string()),
        }
    }

    /// For tests and timings: as many rows go together as there is room for, whether that is faster or not.
    #[doc(hidden)]
    pub fn put_rows_together(&mut self) {
        let most = self.model.inner.rows.as_ref().map_or(0, |roll| roll.rows);
        self.limit_rows(most);
    }

    /// So many rows go together at most.
    pub(super) fn limit_rows(&mut self, most: u32) {
        if let Some(rows) = &mut self.rows {
            rows.most = most;
        }
    }

    pub(super) fn refuse_rows(&mut self, why: &'static str) {
        if let Some(rows) = &mut self.rows {
            rows.refused = Some(why);
        }
    }

    /// Whether the kernel can stand for the table.
    pub(super) fn takes_rows(&self, table: usize) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.takes[table])
    }

    /// Enqueues a step by the persistent kernel, if it takes such a step. The step state is on its way.
    pub(super) fn launch_rows(&mut self, table: usize, rows: usize) -> Result<bool, Error> {
        let (replay, ready) = (self.mode(), &self.tables[table]);
        let Some(kernel) = &mut self.rows else {
            return Ok(false);
        };
        let fits = rows >= 2 && rows <= kernel.most as usize;
        let fits = fits && kernel.kernel.is_some() && kernel.refused.is_none();
        if replay != Replay::Persistent || !fits || !kernel.takes[table] {
            return Ok(false);
        }
        let every = matches!(ready.shape, Shape::Batch(_));
        kernel.arguments.logits = ready.logits;
        kernel.arguments.first = if every { 0 } else { rows as u32 - 1 };
        kernel.arguments.inputs = kernel.work.of(rows as u32);
        kernel.launch(&self.gpu, rows as u32)?;
        Ok(true)
    }

    /// Enqueues fetching what the kernel says has gone wrong, to behind so many bytes of logits.
    pub(super) fn ask_rows(&mut self, at: usize) -> Result<(), Error> {
        let Some(rows) = &self.rows else {
            return Ok(());
        };
        let out = &mut self.logits.as_mut_slice()[at..at + FAULT_BYTES as usize];
        // SAFETY: the block has these bytes; whoever reads them waits.
        unsafe { self.gpu.download(rows.arguments.fault, out) }
    }

    /// Whether the kernel gave up, once what it says is there; then steps and chains go by the graph from now on.
    pub(super) fn rows_gave_up(&mut self, at: usize) -> Result<bool, Error> {
        let mut fault = [0; FAULT_BYTES as usize];
        fault.copy_from_slice(&self.logits.as_slice()[at..at + FAULT_BYTES as usize]);
        let roll = self.model.inner.rows.as_ref().ok();
        let told = roll.and_then(|roll| self.told(roll, &fault));
        let Some((what, _)) = told else {
            return Ok(false);
        };
        self.fall_back(format!(
            "{what}, in a step of several rows; going on with the graph"
        ))?;
        Ok(true)
    }
}
