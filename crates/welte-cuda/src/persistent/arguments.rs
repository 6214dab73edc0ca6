//! The parameters of both persistent kernels.

use super::MAX_CACHES;
use super::instruction::KernelParams;
use crate::mirror::{Layout, mirrored};
use crate::ops::exchange::MOST_RANKS;
use crate::ops::kv::Kv;
use crate::ops::{logprobs, sample};

mirrored! {
    /// A launch's place among the ranks (`persistent/block.cuh`).
    #[derive(Debug, Default)]
    pub(crate) struct RanksArgs = "RanksArgs" {
        /// Bytes from this rank's memory to that of each other one, in the order of ranks: of what launches write and meet at, and of the logits.
        pub(crate) away: [u64; MOST_RANKS - 1],
        pub(crate) logits: [u64; MOST_RANKS - 1],
        /// Address of the launches that each rank has begun.
        pub(crate) begun: u64,
        pub(crate) rank: u32,
        /// Counted from 1.
        pub(crate) launch: u32,
    }
}

mirrored! {
    /// Of the kernel for chains (`persistent.cu`), which also computes steps of one row.
    pub(crate) struct ChainArgs = "ChainArgs" {
        pub(crate) sample: sample::Args,
        pub(crate) caches: [Kv; MAX_CACHES],
        pub(crate) program: u64,
        pub(crate) shares: u64,
        pub(crate) exchange: u64,
        pub(crate) logits: u64,
        pub(crate) sync: u64,
        pub(crate) fault: u64,
        pub(crate) freqs: [u64; 4],
        /// What rows may read in place of tokens.
        pub(crate) features: u64,
        /// Clock ticks for which a block waits before it gives up.
        pub(crate) patience: i64,
        /// Where a kernel with clocks writes its stamps.
        pub(crate) times: u64,
        /// Of a step: its rows in the order in which launches compute them. 0 for a chain.
        pub(crate) order: u64,
        /// Where answers about probabilities go, and the likeliest tokens of each block.
        pub(crate) answers: u64,
        pub(crate) candidates: u64,
        pub(crate) instructions: u32,
        pub(crate) params: KernelParams,
        /// For tests: a block that publishes nothing; none is `u32::MAX`.
        pub(crate) stalled_block: u32,
        /// Of a step: which row of that order the launch computes.
        pub(crate) nth: u32,
        pub(crate) pad: u32,
        pub(crate) ranks: RanksArgs,
    }
}

mirrored! {
    /// Of the kernel for a step of several rows (`persistent_rows.cu`).
    pub(crate) struct RowsArgs = "RowsArgs" {
        pub(crate) step: u64,
        pub(crate) caches: [Kv; MAX_CACHES],
        pub(crate) program: u64,
        pub(crate) shares: u64,
        pub(crate) exchange: u64,
        pub(crate) logits: u64,
        pub(crate) sync: u64,
        pub(crate) fault: u64,
        pub(crate) freqs: [u64; 4],
        pub(crate) features: u64,
        pub(crate) patience: i64,
        pub(crate) instructions: u32,
        pub(crate) params: KernelParams,
        pub(crate) stalled_block: u32,
        /// The step's rows in the order in which launches compute them.
        pub(crate) order: u64,
        /// The first row that the launch computes, in this order.
        pub(crate) first: u32,
        /// Bytes of shared memory that the staged inputs take.
        pub(crate) inputs: u32,
    }
}

impl ChainArgs {
    /// The structs that only this kernel has.
    pub(crate) const LAYOUTS: &[Layout] = &[
        sample::Args::LAYOUT,
        logprobs::Answer::LAYOUT,
        Kv::LAYOUT,
        RanksArgs::LAYOUT,
        ChainArgs::LAYOUT,
    ];
}

impl RowsArgs {
    /// The structs that only this kernel has.
    pub(crate) const LAYOUTS: &[Layout] = &[Kv::LAYOUT, RowsArgs::LAYOUT];
}
