//! Steps of several rows by one launch of the persistent kernel.
#![allow(unsafe_code)]

use super::CudaContext;
use super::persistent::{PATIENCE, upload};
use crate::Error;
use crate::gpu::{DeviceBlock, Gpu, Kernel};
use crate::launch::bytes_of;
use crate::load::LoadedProgram;
use crate::lower::Lowering;
use crate::ops::kv::Kv;
use crate::persistent::{
    DeviceMemory, FAULT_BYTES, Recording, RowsArgs, ScratchpadBytes, Tuning, can_stand_for,
};
use welte_device::Replay;
use welte_table::{PassKind, Row};

/// Why the kernel is not used where its logits were found to be wrong.
const DISAGREES: &str = "its logits are not those of the launched kernels, which is a bug in Welte";

/// The kernel, its memory and its arguments.
pub(super) struct Rows {
    block: DeviceBlock,
    memory: DeviceMemory,
    blocks: u32,
    /// The most rows of a step.
    most: u32,
    /// Bytes of a row's exchange.
    exchange_bytes: u64,
    scratchpad: ScratchpadBytes,
    /// The passes that it can stand for.
    takes: Vec<bool>,
    arguments: RowsArgs,
    kernel: Option<Kernel>,
    /// Why it is not used.
    refused: Option<&'static str>,
}

impl Rows {
    /// `None` where there is no such kernel.
    pub(super) fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        block: DeviceBlock,
    ) -> Option<Rows> {
        let recording = loaded.rows.as_ref().ok()?;
        let memory = recording.memory();
        let at = |offset: u64| block.start() + offset;
        let arguments = RowsArgs {
            step: cx.step,
            caches: std::array::from_fn(|cache| Kv::of(cx, cache, 0)),
            program: at(memory.program),
            shares: at(memory.shares),
            exchange: at(memory.exchange),
            logits: 0,
            sync: at(0),
            fault: at(memory.fault),
            freqs: recording.freqs,
            patience: PATIENCE,
            instructions: recording.program.len() as u32,
            params: Tuning::default().params(&recording.in_flight),
            stalled_block: u32::MAX,
            first: 0,
            inputs: 0,
        };
        let passes = &loaded.program.passes;
        Some(Rows {
            block,
            memory,
            blocks: recording.blocks,
            most: recording.rows,
            exchange_bytes: u64::from(recording.exchange) * 4,
            scratchpad: recording.scratchpad,
            // Prompt rows have an arithmetic of their own, which does not depend on their number.
            takes: passes
                .iter()
                .map(|pass| pass.kind == PassKind::Decode && can_stand_for(&passes[0], pass))
                .collect(),
            arguments,
            kernel: None,
            refused: (!loaded.rows_agree()).then_some(DISAGREES),
        })
    }

    /// Uses the tuning parameters that were found for chains.
    pub(super) fn set_tuning(&mut self, tuning: &Tuning, recording: &Recording) {
        self.arguments.params = tuning.params_for_rows(&recording.in_flight);
    }

    pub(super) fn stall(&mut self, block: u32, patience: i64) {
        self.arguments.stalled_block = block;
        self.arguments.patience = patience;
    }

    /// Enqueues one launch for the rows of the step state.
    fn launch(&self, gpu: &Gpu, rows: u32) -> Result<(), Error> {
        let kernel = self.kernel.as_ref();
        let kernel = kernel.ok_or_else(|| Error::Program("it was not compiled".to_string()))?;
        let used = self.memory.exchange + u64::from(rows) * self.exchange_bytes;
        // SAFETY: the block was made for `memory`; nothing else uses it, and the stream keeps the order. The arguments are
        // those of the kernel, and the context owns everything that they point to.
        unsafe {
            gpu.clear(self.block.start(), used)?;
            gpu.launch_together(kernel, self.blocks, bytes_of(&self.arguments))
        }
    }
}

impl CudaContext {
    /// Loads the kernel for several rows and uploads its program and shares. Where it does not compile, steps are computed by
    /// launched kernels.
    pub(super) fn prepare_rows(&mut self) -> Result<(), Error> {
        let loaded = &self.loaded;
        let (Ok(recording), Some(rows)) = (&loaded.rows, &mut self.rows) else {
            return Ok(());
        };
        if rows.kernel.is_some() {
            return Ok(());
        }
        let unit = recording.unit();
        match loaded.add_modules(std::slice::from_ref(&unit)) {
            Err(Error::Compile { .. }) => {
                rows.refused =
                    Some("the kernel for several rows did not compile, which is a bug in Welte");
                return Ok(());
            }
            other => other?,
        }
        upload(&self.gpu, recording, &rows.block)?;
        rows.kernel = Some(loaded.persistent_kernel(&unit, recording)?);
        Ok(())
    }

    /// The most rows of a step that the persistent kernel computes; the error says why it computes none.
    pub fn rows_together(&self) -> Result<u32, String> {
        let recorded = self.loaded.rows.as_ref();
        if let Some(why) = self.note.as_ref().or(recorded.err()) {
            return Err(why.clone());
        }
        match &self.rows {
            Some(Rows {
                refused: Some(why), ..
            }) => Err(why.to_string()),
            Some(rows) if rows.kernel.is_some() => Ok(rows.most),
            _ => Err("the persistent kernel was not asked for".to_string()),
        }
    }

    /// Whether the kernel can stand for the pass.
    pub(super) fn takes_rows(&self, pass: usize) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.takes[pass])
    }

    /// Enqueues a step by the persistent kernel, if it can compute it. The step state is enqueued already.
    pub(super) fn launch_rows(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
    ) -> Result<bool, Error> {
        let (replay, ready) = (self.mode(), &self.passes[pass]);
        let Some(kernel) = &mut self.rows else {
            return Ok(false);
        };
        let count = rows.len() as u32;
        let fits = count >= 2 && count <= kernel.most;
        let fits = fits && kernel.kernel.is_some() && kernel.refused.is_none();
        if replay != Replay::Persistent || !fits || !kernel.takes[pass] {
            return Ok(false);
        }
        // The kernel yields the logits of all rows from one on.
        let first = match (ready.kind, outputs) {
            (PassKind::Decode, _) => 0,
            // No logits are wanted. Those of the last row have a place all the same.
            (_, []) => count - 1,
            (_, [first, ..]) => *first,
        };
        if !outputs.is_empty() && outputs.len() as u32 != count - first {
            return Ok(false);
        }
        kernel.arguments.logits = ready.result;
        kernel.arguments.first = first;
        kernel.arguments.inputs = kernel.scratchpad.of(count);
        kernel.launch(&self.gpu, count)?;
        Ok(true)
    }

    /// Enqueues a copy of the kernel's fault to the host, behind so many bytes of outputs.
    pub(super) fn fetch_rows_fault(&mut self, at: usize) -> Result<(), Error> {
        let Some(rows) = &self.rows else {
            return Ok(());
        };
        let out = &mut self.outputs.as_mut_slice()[at..at + FAULT_BYTES];
        // SAFETY: the block has these bytes; the reader waits for the copy.
        unsafe { self.gpu.download(rows.arguments.fault, out) }
    }

    /// Whether the kernel gave up, once its fault is on the host. Steps and chains are then replayed by the graph.
    pub(super) fn rows_gave_up(&mut self, at: usize) -> Result<bool, Error> {
        let mut fault = [0; FAULT_BYTES];
        fault.copy_from_slice(&self.outputs.as_slice()[at..at + FAULT_BYTES]);
        let recording = self.loaded.rows.as_ref().ok();
        let fault = recording.and_then(|recording| self.describe_fault(recording, &fault));
        let Some((what, _)) = fault else {
            return Ok(false);
        };
        self.fall_back(format!(
            "{what}, in a step of several rows; going on with the graph"
        ))?;
        Ok(true)
    }
}
