//! Lowering: each command of a pass becomes one or a few kernels with resolved addresses.

use crate::GpuInfo;
use crate::arithmetic::{Arithmetic, Rounding};
use crate::gpu::Gpu;
use crate::launch::{DeviceWeight, Node};
use std::sync::Arc;
use welte_table::{BufferRef, Format, NO_WEIGHT, Program, WeightId};

/// The place of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Its address.
    pub(crate) start: u64,
}

/// Device addresses of a context's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Each buffer of the program.
    pub(crate) buffers: Vec<u64>,
    /// The `Step` of input rows (`common.cuh`).
    pub(crate) step: u64,
    /// A `RowState` for each row of the decode pass, and the order in which the persistent kernel computes these.
    pub(crate) states: u64,
    pub(crate) order: u64,
    /// The `Step` of output rows, followed by the numbers of the chosen rows.
    pub(crate) outputs: u64,
    /// The `TextTiles` of an encoder's step: of whole texts, and of windows.
    pub(crate) text_tiles: [u64; 2],
    /// The `Teams` of an adapted step: of its rows, and of its output rows.
    pub(crate) teams: [u64; 2],
    /// The page table of each cache: page of `[slot][entry]`, as u32.
    pub(crate) page_tables: Vec<u64>,
    /// Scratch memory, used by one command at a time.
    pub(crate) scratch: u64,
    /// Like scratch, but zero between commands.
    pub(crate) counters: u64,
    /// The sampling state of each slot (`ops::sample`).
    pub(crate) samplers: u64,
    /// Ring of `(serial << 32) | token` in host memory.
    pub(crate) masks: u64,
    pub(crate) mailbox: u64,
    /// The `Seats` of a rank (`exchange.cu`).
    pub(crate) seats: u64,
    /// The most blocks of an exchange.
    pub(crate) exchange_blocks: u32,
    /// A word in host memory. A value other than 0 ends the chain.
    pub(crate) cancel: u64,
}

/// Slots of the mailbox, a power of two. A loop on the device makes at most half as many tokens per launch.
pub(crate) const MAILBOX_SLOTS: u32 = 4096;

/// The inputs of lowering.
#[derive(Clone, Copy)]
pub(crate) struct Lowering<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
    /// The open GPU, for libraries that need a handle. `None` while only units are sought.
    pub(crate) device: Option<&'a Arc<Gpu>>,
    pub(crate) weights: &'a [Placed],
    pub(crate) places: &'a Places,
    /// The `Step` that the command's kernels read: of input rows or of output rows.
    pub(crate) step: u64,
    /// The arithmetic of decode passes, and of the pass.
    pub(crate) decode: Arithmetic,
    pub(crate) arithmetic: Arithmetic,
    /// How the floats of an exchange travel.
    pub(crate) rounding: Rounding,
    /// If FP8 weights are multiplied with activations in FP8: the weights whose rows have one scale.
    pub(crate) float8: Option<&'a [bool]>,
}

/// The nodes of each command.
pub(crate) type Commands = Vec<Vec<Node>>;

/// A pass, lowered.
pub(crate) struct LoweredPass {
    /// For any number of rows; empty if the others suffice.
    pub(crate) commands: Commands,
    /// For at most so many rows, fewest first ([`few_rows`](crate::ops::few_rows)).
    pub(crate) few: Vec<(u32, Commands)>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        program: &'a Program,
        gpu: &'a GpuInfo,
        device: Option<&'a Arc<Gpu>>,
        weights: &'a [Placed],
        places: &'a Places,
        decode: Arithmetic,
        float8: Option<&'a [bool]>,
    ) -> Lowering<'a> {
        Lowering {
            program,
            gpu,
            device,
            weights,
            places,
            step: places.step,
            decode,
            arithmetic: decode,
            rounding: Rounding::Whole,
            float8,
        }
    }

    /// Looks up a weight. Checking the program has refused commands without one.
    pub(crate) fn weight(&self, id: WeightId) -> DeviceWeight {
        let spec = self.program.weights.get(id as usize);
        DeviceWeight {
            start: self.weights.get(id as usize).map_or(0, |w| w.start),
            format: spec.map_or(Format::F32, |s| s.format),
            n: spec.map_or(0, |s| s.n),
            k: spec.map_or(0, |s| s.k),
            one_scale: self
                .float8
                .and_then(|one_scale| one_scale.get(id as usize).copied())
                .unwrap_or(false),
        }
    }

    /// The address of a vector's floats; 0 if there is none.
    pub(crate) fn vector(&self, id: WeightId) -> u64 {
        if id == NO_WEIGHT {
            return 0;
        }
        self.weights.get(id as usize).map_or(0, |w| w.start)
    }

    /// The address of the features; 0 if the program has none.
    pub(crate) fn features(&self) -> u64 {
        let buffer = self.program.features;
        self.buffer(BufferRef { buffer, offset: 0 })
    }

    /// The address of a place in a buffer.
    pub(crate) fn buffer(&self, at: BufferRef) -> u64 {
        let start = self.places.buffers.get(at.buffer as usize);
        start.map_or(0, |start| start + u64::from(at.offset))
    }
}
