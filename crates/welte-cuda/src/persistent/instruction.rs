//! The structs that the persistent kernels share with the host (`kernels/persistent/block.cuh`).

use super::share::Share;
use crate::mirror::{Layout, mirrored};
use welte_table::{NO_WEIGHT, WeightId};

/// Variants that have tuning parameters of their own.
pub(crate) const TUNED_VARIANTS: usize = 16;

mirrored! {
    /// One lowered command. A *turn* is one pass over all instructions: one token.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Instruction = "Instruction" {
        /// Which specialised code runs it.
        pub(crate) variant: u32,
        pub(crate) layer: u32,
        /// The floats of the exchange where input and output begin.
        pub(crate) input: u32,
        pub(crate) output: u32,
        /// The write of the input's vector that is waited for, counted from 1 within a turn, and the writes in a whole turn.
        pub(crate) reads: u8,
        pub(crate) reads_per_turn: u8,
        /// The same for the output's vector, which this instruction writes.
        pub(crate) writes: u8,
        pub(crate) writes_per_turn: u8,
        /// [`REUSES_INPUT`], [`AWAITS_CHOICE`]; of attention, its number among equal ones in the low half and their count in the high half.
        pub(crate) flags: u32,
        /// Address of the matrix, or of attention's sinks. Until [`Recording::place`](super::Recording::place) it is the weight's number, like `vectors`.
        pub(crate) weight: u64,
        /// A product's norm and bias; of attention, the norms of queries and keys; of a choice, its bias and the experts' scales; of a
        /// convolution, its bias; of a recurrent layer, whose `weight` is its decay, the bias of its time and its norm (or skipped part).
        pub(crate) vectors: [u64; 2],
    }
}

impl Instruction {
    /// An instruction that reads and writes nothing. What is not set here is 0, or no weight. `finish` sets the writes of a turn.
    pub(super) fn of(variant: u32) -> Instruction {
        Instruction {
            variant,
            layer: 0,
            input: 0,
            output: 0,
            reads: 0,
            reads_per_turn: 0,
            writes: 0,
            writes_per_turn: 0,
            flags: 0,
            weight: NO_WEIGHT.into(),
            vectors: [NO_WEIGHT.into(); 2],
        }
    }
}

impl Instruction {
    /// With its input: where it is, and the write that is waited for.
    pub(super) fn reading(self, (input, reads): (u32, u8)) -> Instruction {
        Instruction {
            input,
            reads,
            ..self
        }
    }

    /// With its output: where it is, and the number of the write.
    pub(super) fn writing(self, (output, writes): (u32, u8)) -> Instruction {
        Instruction {
            output,
            writes,
            ..self
        }
    }

    /// With vectors beside the matrix.
    pub(super) fn with(self, vectors: [WeightId; 2]) -> Instruction {
        Instruction {
            vectors: vectors.map(u64::from),
            ..self
        }
    }
}

/// A flag: the input is staged already, because the instruction before it had the same.
pub(crate) const REUSES_INPUT: u32 = 1;
/// A flag: the first product with the experts of a choice.
pub(crate) const AWAITS_CHOICE: u32 = 2;

mirrored! {
    /// What blocks meet at. Zero before each launch.
    pub(crate) struct Sync = "Sync" {
        best: [u64; 4],
        sums: [u64; 2],
        chosen_logits: [f32; 2],
        scored: [u32; 2],
        cancelled: [u32; 4],
        arrived: u32,
        chosen: u32,
        pad: [u32; 2],
    }
}

mirrored! {
    /// What went wrong. Zero before each launch.
    pub(crate) struct Fault = "Fault" {
        pub(crate) raised: u32,
        pub(crate) block: u32,
        pub(crate) instruction: u32,
        pub(crate) turn: u32,
        pub(crate) place: u32,
        pad: [u32; 3],
    }
}

mirrored! {
    /// The tuning parameters that both kernels take.
    #[derive(Debug)]
    pub(crate) struct KernelParams = "KernelParams" {
        /// Clock ticks after a product before the block polls for the next one's input.
        pub(crate) poll_delay: u32,
        /// While the block waits for one of these, its weights wait too: a set of `AWAITS_*`.
        pub(crate) pause: u32,
        /// Slots of the ring that may be in flight, by variant.
        pub(crate) in_flight: [u8; TUNED_VARIANTS],
    }
}

/// The structs that the source of both kernels checks.
pub(crate) const LAYOUTS: [Layout; 5] = [
    Instruction::LAYOUT,
    Share::LAYOUT,
    Sync::LAYOUT,
    Fault::LAYOUT,
    KernelParams::LAYOUT,
];
