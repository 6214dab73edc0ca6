//! The persistent kernel for chains, its memory and its arguments.
#![allow(unsafe_code)]

use super::ranks::Seated;
use super::states::{MOST_TURNS, SavedStates};
use crate::Error;
use crate::gpu::{DeviceBlock, Gpu, Kernel};
use crate::launch::{bytes_of, bytes_of_all};
use crate::loaded::LoadedProgram;
use crate::lower::{Lowering, MAILBOX_SLOTS};
use crate::ops::hidden::HiddenCopy;
use crate::ops::kv::Kv;
use crate::ops::sample;
use crate::persistent::{ChainArgs, DeviceMemory, RanksArgs, Recording, Tuning};
use std::time::Duration;

/// How long a launch may take. A display that shares the GPU waits as long.
const LAUNCH: Duration = Duration::from_millis(100);
/// Turns of the first launch, before the time of one is known.
const FIRST_TURNS: usize = 16;
/// Turns of a launch of several ranks, which must all have the same number.
const TURNS_TOGETHER: usize = 64;
/// Clock ticks that a block waits for the others before it gives up: about a second.
pub(super) const PATIENCE: i64 = 2_000_000_000;

/// The kernel, its memory and its arguments.
pub(super) struct Persistent {
    pub(super) block: DeviceBlock,
    pub(super) memory: DeviceMemory,
    pub(super) blocks: u32,
    ranks: u32,
    pub(super) arguments: ChainArgs,
    /// For what is launched after a step.
    hidden: Option<HiddenCopy>,
    /// Address of the order in which a step's rows are computed.
    pub(super) order: u64,
    /// Recurrent states before the last launch.
    pub(super) states: SavedStates,
    pub(super) kernel: Option<Kernel>,
    /// The time of one turn, if it is known.
    pub(super) turn: Option<Duration>,
}

impl Persistent {
    /// `None` where the kernel cannot replay the decode pass. `answers`: where answers about probabilities go.
    pub(super) fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        block: DeviceBlock,
        answers: u64,
        seated: Option<&Seated>,
    ) -> Result<Option<Persistent>, Error> {
        let Ok(recording) = &loaded.recording else {
            return Ok(None);
        };
        let memory = recording.memory();
        let at = |offset: u64| block.start() + offset;
        let vocab = loaded.program.vocab;
        let logits = cx.buffer(recording.logits);
        let ranks = seated.and_then(|seated| seated.persistent.as_ref().ok());
        let arguments = ChainArgs {
            sample: sample::arguments(cx, logits, vocab, sample::slice(vocab, recording.blocks)),
            caches: std::array::from_fn(|cache| Kv::of(cx, cache, 0)),
            program: at(memory.program),
            shares: at(memory.shares),
            exchange: at(memory.exchange),
            logits,
            sync: at(memory.sync),
            fault: at(0),
            freqs: recording.freqs,
            features: cx.features(),
            patience: PATIENCE,
            times: 0,
            order: 0,
            answers,
            candidates: at(memory.candidates),
            instructions: recording.program.len() as u32,
            params: Tuning::default().params(&recording.in_flight),
            stalled_block: u32::MAX,
            nth: 0,
            pad: 0,
            ranks: RanksArgs {
                begun: at(memory.begun),
                ..ranks.copied().unwrap_or_default()
            },
        };
        let states = SavedStates::new(&loaded.program, &cx.places.buffers, at(memory.states));
        let hidden = HiddenCopy::new(loaded, cx, recording, arguments.exchange)?;
        Ok(Some(Persistent {
            block,
            memory,
            blocks: recording.blocks,
            ranks: recording.ranks,
            arguments,
            order: cx.places.order,
            states,
            hidden,
            kernel: None,
            turn: None,
        }))
    }

    /// Turns of the next launch.
    pub(super) fn turns(&self) -> usize {
        let most = if self.states.is_empty() {
            MAILBOX_SLOTS as usize / 2
        } else {
            MOST_TURNS
        };
        if self.ranks > 1 {
            return TURNS_TOGETHER.min(most);
        }
        self.turn.map_or(FIRST_TURNS, |turn| {
            (LAUNCH.as_nanos() / turn.as_nanos().max(1)).clamp(1, most as u128) as usize
        })
    }

    /// Notes how long a launch took.
    pub(super) fn took(&mut self, turns: usize, time: Duration) {
        if turns > 0 {
            self.turn = Some(time / turns as u32);
        }
    }

    /// Enqueues one launch, of as many turns as the step state says.
    pub(super) fn launch(&mut self, gpu: &Gpu) -> Result<(), Error> {
        self.arguments.ranks.launch += 1;
        let kernel = self.kernel.as_ref();
        let kernel = kernel.ok_or_else(|| Error::Program("it was not compiled".to_string()))?;
        self.states.save(gpu)?;
        // SAFETY: the block was made for `memory`; nothing else uses it, and the stream keeps the order. The arguments are
        // those of the kernel, and the context owns everything that they point to.
        unsafe {
            gpu.clear(self.block.start(), self.memory.program)?;
            gpu.launch_together(kernel, self.blocks, bytes_of(&self.arguments))
        }
    }
}

impl Persistent {
    /// The copy of recurrent states.
    pub(super) fn states(&self) -> &SavedStates {
        &self.states
    }

    /// Notes the page of the sequence in a cache.
    pub(super) fn set_state_page(&mut self, cache: usize, page: u32) {
        self.states.set_page(cache, page);
    }
}

/// Steps row by row, where there is no kernel for several rows.
impl Persistent {
    /// Whether the kernel is loaded.
    pub(super) fn is_ready(&self) -> bool {
        self.kernel.is_some()
    }

    /// Where a fault is reported.
    pub(super) fn fault(&self) -> u64 {
        self.arguments.fault
    }

    /// Enqueues a launch for each of the rows of the step state. A fault of an earlier launch stays.
    pub(super) fn launch_rows(&mut self, gpu: &Gpu, rows: u32) -> Result<(), Error> {
        let kernel = self.kernel.as_ref();
        let kernel = kernel.ok_or_else(|| Error::Program("it was not compiled".to_string()))?;
        let DeviceMemory { sync, program, .. } = self.memory;
        self.states.save(gpu)?;
        for nth in 0..rows {
            self.arguments.ranks.launch += 1;
            let arguments = ChainArgs {
                order: self.order,
                nth,
                ..self.arguments
            };
            // SAFETY: as for a chain; the step state has the order of its rows.
            unsafe {
                gpu.clear(self.block.start() + sync, program - sync)?;
                gpu.launch_together(kernel, self.blocks, bytes_of(&arguments))?;
            }
            if let Some(hidden) = &self.hidden {
                hidden.launch(gpu, nth, 1)?;
            }
        }
        Ok(())
    }
}

/// Uploads program and shares to the block that was made for them, and waits.
pub(super) fn upload(gpu: &Gpu, recording: &Recording, block: &DeviceBlock) -> Result<(), Error> {
    let memory = recording.memory();
    // SAFETY: both are plain numbers without padding, and the block was made for them; we wait before they can go.
    unsafe {
        gpu.upload(
            block.start() + memory.program,
            bytes_of_all(&recording.program),
        )?;
        gpu.upload(
            block.start() + memory.shares,
            bytes_of_all(&recording.shares),
        )?;
    }
    gpu.synchronise()
}
