//! The persistent kernel for steps, its memory and its arguments.
#![allow(unsafe_code)]

use super::persistent_kernel::PATIENCE;
use super::ready::DECODE;
use crate::Error;
use crate::gpu::{DeviceBlock, Gpu, Kernel};
use crate::launch::bytes_of;
use crate::loaded::LoadedProgram;
use crate::lower::Lowering;
use crate::ops::hidden::HiddenCopy;
use crate::ops::kv::Kv;
use crate::persistent::{DeviceMemory, Recording, RowsArgs, ScratchpadBytes, Tuning};

/// The kernel, its memory and its arguments.
pub(super) struct Rows {
    pub(super) block: DeviceBlock,
    pub(super) memory: DeviceMemory,
    pub(super) blocks: u32,
    /// The most rows of a launch.
    pub(super) most: u32,
    /// Bytes of a row's exchange.
    pub(super) exchange_bytes: u64,
    pub(super) scratchpad: ScratchpadBytes,
    pub(super) arguments: RowsArgs,
    /// For what is launched after a step.
    hidden: Option<HiddenCopy>,
    pub(super) kernel: Option<Kernel>,
}

impl Rows {
    /// `None` where there is no such kernel.
    pub(super) fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        block: DeviceBlock,
    ) -> Result<Option<Rows>, Error> {
        let Ok(recording) = &loaded.rows else {
            return Ok(None);
        };
        let memory = recording.memory();
        let at = |offset: u64| block.start() + offset;
        let arguments = RowsArgs {
            step: cx.step,
            caches: std::array::from_fn(|cache| Kv::of(cx, cache, 0)),
            program: at(memory.program),
            shares: at(memory.shares),
            exchange: at(memory.exchange),
            logits: cx.buffer(loaded.program.passes[DECODE].result),
            sync: at(memory.sync),
            fault: at(0),
            freqs: recording.freqs,
            features: cx.features(),
            patience: PATIENCE,
            instructions: recording.program.len() as u32,
            params: Tuning::default().params(&recording.in_flight),
            stalled_block: u32::MAX,
            order: cx.places.order,
            first: 0,
            inputs: 0,
        };
        let hidden = HiddenCopy::new(loaded, cx, recording, arguments.exchange)?;
        Ok(Some(Rows {
            block,
            memory,
            blocks: recording.blocks,
            most: recording.rows,
            exchange_bytes: u64::from(recording.exchange) * 4,
            scratchpad: recording.scratchpad,
            arguments,
            hidden,
            kernel: None,
        }))
    }

    /// Uses the tuning parameters that were found for chains.
    pub(super) fn set_tuning(&mut self, tuning: &Tuning, recording: &Recording) {
        self.arguments.params = tuning.params_for_rows(&recording.in_flight);
    }

    pub(super) fn stall(&mut self, block: u32, patience: i64) {
        self.arguments.stalled_block = block;
        self.arguments.patience = patience;
    }

    /// Enqueues the launches for the rows of the step state. A fault of an earlier launch stays.
    pub(super) fn launch(&mut self, gpu: &Gpu, rows: u32) -> Result<(), Error> {
        let kernel = self.kernel.as_ref();
        let kernel = kernel.ok_or_else(|| Error::Program("it was not compiled".to_string()))?;
        let sync = self.memory.sync;
        for first in (0..rows).step_by(self.most as usize) {
            let count = self.most.min(rows - first);
            let used = self.memory.exchange + u64::from(count) * self.exchange_bytes - sync;
            self.arguments.first = first;
            self.arguments.inputs = self.scratchpad.of(count);
            // SAFETY: the block was made for `memory`; nothing else uses it, and the stream keeps the order. The arguments are
            // those of the kernel, and the context owns everything that they point to.
            unsafe {
                gpu.clear(self.block.start() + sync, used)?;
                gpu.launch_together(kernel, self.blocks, bytes_of(&self.arguments))?;
            }
            if let Some(hidden) = &self.hidden {
                hidden.launch(gpu, first, count)?;
            }
        }
        Ok(())
    }
}
