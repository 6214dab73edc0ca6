//! The decode pass for the persistent kernels (`kernels/persistent.cu`, `persistent_rows.cu`): the same commands, lowered to
//! instructions that the kernel reads from device memory, and to the constants that it is compiled with.
//!
//! [`record`] makes a [`Recording`] of it (`recorder.rs`); `arrangement.rs` divides the work of an instruction and
//! `share.rs` the rows of a matrix; `memory.rs` divides shared memory; `variants.rs` writes the generated source.

mod arguments;
mod arrangement;
mod checks;
mod examples;
mod instruction;
mod memory;
mod print;
mod recorder;
mod rows;
mod share;
mod tap;
#[cfg(test)]
mod tests;
mod tuning;
mod variants;

pub(crate) use arguments::{ChainArgs, RanksArgs, RowsArgs};
pub(crate) use checks::{possible, unproven};
pub(crate) use examples::catalogue;
pub(crate) use instruction::{Fault, TUNED_VARIANTS};
pub(crate) use memory::{DeviceMemory, ONE_ROW, ScratchpadBytes, is_recurrent};
pub(crate) use print::standalone;
pub(crate) use recorder::record;
pub(crate) use rows::{record_few_rows, record_rows};
pub(crate) use tuning::Tuning;

use crate::GpuInfo;
use crate::launch::Unit;
use crate::lower::Placed;
use instruction::Instruction;
use share::Share;
use std::hash::{DefaultHasher, Hash, Hasher};
pub(crate) use tap::Tap;
use variants::Variants;
use welte_table::{BufferRef, Format, Program, WeightId};

/// Warps of a block that multiply (`WARPS`).
const WARPS: u32 = 8;
/// The most slots of the ring.
const SLOTS: u32 = 32;
/// Slots by which tuning may exceed the usual number in flight.
pub(crate) const TUNABLE_EXTRA_SLOTS: u32 = 2;
/// The smallest page table of a sequence in shared memory.
const MIN_PAGES: u32 = 512;
/// Ropes of a model at most.
const MAX_ROPES: usize = 4;
/// Caches of a model at most (`persistent/block.cuh`).
pub(crate) const MAX_CACHES: usize = 4;
/// Bytes of [`Fault`].
pub(crate) const FAULT_BYTES: usize = size_of::<Fault>();

/// What recording reads.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
}

impl Inputs<'_> {
    fn format(&self, id: WeightId) -> Format {
        let spec = self.program.weights.get(id as usize);
        spec.map_or(Format::F32, |w| w.format)
    }
}

/// A decode pass for a persistent kernel: for chains of one row, or for steps.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    /// Rows of a launch at most.
    pub(crate) rows: u32,
    /// Of a model on several GPUs; else 1.
    pub(crate) ranks: u32,
    /// Whether it is for steps.
    is_step: bool,
    /// Blocks of the launch: one per multiprocessor, or fewer where a product has fewer rows.
    pub(crate) blocks: u32,
    /// Bytes of shared memory.
    pub(crate) shared: u32,
    pub(crate) program: Vec<Instruction>,
    /// Which command of the pass each instruction is.
    pub(crate) commands: Vec<usize>,
    /// `[block][instruction]`.
    pub(crate) shares: Vec<Share>,
    pub(crate) scratchpad: ScratchpadBytes,
    /// Slots in flight before tuning, by variant; 0 for a variant that streams nothing.
    pub(crate) in_flight: [u8; TUNED_VARIANTS],
    /// Floats of the exchange, for each row.
    pub(crate) exchange: u32,
    /// Bytes of a sequence's recurrent states.
    pub(crate) states: u64,
    /// Where the logits are.
    pub(crate) logits: BufferRef,
    /// What is launched after steps.
    pub(crate) tap: Option<Tap>,
    /// Addresses of the ropes' frequencies; until [`Recording::place`] the weights' numbers.
    pub(crate) freqs: [u64; MAX_ROPES],
    variants: Variants,
    defines: Vec<(&'static str, u32)>,
}

impl Recording {
    /// Threads of a block: consumers, the streaming warp and the bookkeeper's (`LAUNCHED`).
    pub(crate) const THREADS: u32 = (WARPS + 2) * 32;

    /// Replaces the weights' numbers by their addresses, which are known at load; 0 for none.
    pub(crate) fn place(&mut self, weights: &[Placed]) {
        let put = |id: &mut u64| {
            let known = usize::try_from(*id).ok().and_then(|id| weights.get(id));
            *id = known.map_or(0, |weight| weight.start);
        };
        for instruction in &mut self.program {
            put(&mut instruction.weight);
            instruction.vectors.iter_mut().for_each(put);
        }
        self.freqs.iter_mut().for_each(put);
    }

    /// The kernel's name.
    pub(crate) fn function(&self) -> &'static str {
        if self.is_step {
            "persistent_rows"
        } else {
            "persistent"
        }
    }

    /// What the kernel is compiled from.
    pub(crate) fn unit(&self) -> Unit {
        let (file, arguments) = if self.is_step {
            ("persistent_rows.cu", RowsArgs::LAYOUTS)
        } else {
            ("persistent.cu", ChainArgs::LAYOUTS)
        };
        let defines = self.defines.iter().map(|(name, n)| (*name, n.to_string()));
        Unit {
            file,
            defines: defines.chain(self.variants.affine_defines()).collect(),
            generated: self.variants.header(arguments),
        }
    }

    /// The same kernel with clocks.
    pub(crate) fn timed_unit(&self) -> Unit {
        let mut unit = self.unit();
        unit.defines.push(("TIMELINE", "1".to_string()));
        unit
    }

    /// Recordings of ranks that go together have the same number: vectors lie alike, and the writes of each are counted alike.
    pub(crate) fn signature(&self) -> u64 {
        let counts = |i: &Instruction| {
            let counts = [i.reads, i.reads_per_turn, i.writes, i.writes_per_turn];
            (i.input, counts)
        };
        let mut hasher = DefaultHasher::new();
        [self.blocks, self.exchange, self.ranks].hash(&mut hasher);
        for instruction in &self.program {
            counts(instruction).hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(crate) fn memory(&self) -> DeviceMemory {
        DeviceMemory::of(self)
    }
}
