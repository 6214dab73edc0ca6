//! The memory of the persistent kernels: how a block's shared memory is divided, and the layout of their device memory.

use super::instruction::{Fault, Instruction, Sync};
use super::share::Share;
use super::{Recording, SLOTS, WARPS};
use crate::ops::exchange::MOST_RANKS;
use welte_device::Logprobs;
use welte_table::{CacheKind, CacheSpec, Program};

/// Rows of the matrix whose results may wait to be published, twice (`OUTPUTS`): in chains, and for each row of a step.
pub(super) const MAX_OUTPUTS: u32 = 256;
pub(super) const STEP_OUTPUTS: u32 = 32;

/// What a recording may use of a block's shared memory for rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedMemoryBudget {
    /// Whether the kernel computes steps, and not chains.
    pub(super) is_step: bool,
    /// Rows of a step.
    pub(super) rows: u32,
    /// Rows of the matrix whose results may wait to be published, for each row of the step.
    pub(super) outputs: u32,
    /// Bytes of the ring that are multiplied together at most, in a step.
    pub(super) bytes_at_once: u32,
}

/// For chains.
pub(crate) const ONE_ROW: SharedMemoryBudget = SharedMemoryBudget {
    is_step: false,
    rows: 1,
    outputs: MAX_OUTPUTS,
    bytes_at_once: 0,
};

/// Bytes of the largest scratchpad: the inputs of a product, or what attention or sampling works in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScratchpadBytes {
    /// Of any step.
    pub(super) any: u32,
    /// Of the inputs of two rows that are stored together, and of one row.
    pub(super) pair: u32,
    pub(super) row: u32,
}

impl ScratchpadBytes {
    /// For a step of `rows` rows.
    pub(crate) fn of(&self, rows: u32) -> u32 {
        let inputs = (rows.div_ceil(2) * self.pair).max(rows * self.row);
        inputs.max(self.any).next_multiple_of(128)
    }
}

/// What instructions need of a block's shared memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedMemoryNeeds {
    pub(super) instructions: u32,
    /// Page numbers of a slot, over all caches.
    pub(super) pages: u32,
    /// Pairs of cosine and sine, over all ropes.
    pub(super) angles: u32,
    /// Floats of the hidden vector, if blocks have copies of it.
    pub(super) hidden: u32,
    /// Experts of a choice at most.
    pub(super) chosen: u32,
    /// Rows of a block whose sums wait for the next columns.
    pub(super) held: u32,
    /// Rows whose results wait together.
    pub(super) outputs: u32,
    /// The largest slot of the ring, in bytes, and the most slots that are multiplied together.
    pub(super) slot: u32,
    pub(super) span: u32,
    pub(super) scratchpad: ScratchpadBytes,
}

/// The two large parts of `Shared` (`persistent/block.cuh`), in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedMemory {
    /// The ring of weights: all of it for chains; what the most rows leave of it for steps.
    pub(super) ring: u32,
    /// The scratchpad: for steps together with the ring.
    pub(super) scratchpad: u32,
}

impl SharedMemoryNeeds {
    /// Divides a block's shared memory. The error says how much is missing.
    pub(super) fn divide(
        &self,
        budget: &SharedMemoryBudget,
        shared_per_block: u32,
    ) -> Result<SharedMemory, String> {
        let rows = budget.rows;
        // Everything of `Shared` but scratchpad and ring; 16 bytes are two barriers per slot, 512 cover alignment and ranks.
        let fixed = SLOTS * 16
            + self.instructions * (size_of::<Instruction>() + size_of::<Share>()) as u32
            + (256 + 64) * 4
            + self.pages * 4
            + self.hidden * 4
            + self.chosen * 16
            + self.held * 4
            + 8
            + rows * (self.angles * 8 + (self.outputs + 1) * 2 * WARPS * 4 + 24)
            + 512;
        let free = shared_per_block.saturating_sub(fixed) / 128 * 128;
        let scratchpad = self.scratchpad.of(rows);
        let ring = free.saturating_sub(scratchpad);
        let slot = self.slot.next_multiple_of(128);
        // Slots wrap to the ring's start where its end is too short for them, so one slot more than are needed at a time.
        if ring < slot * 3.max(self.span + 1) {
            return Err(format!(
                "its rows need {slot} bytes of shared memory each and {} more, of {shared_per_block}",
                fixed + scratchpad,
            ));
        }
        Ok(SharedMemory {
            ring,
            scratchpad: if budget.is_step { free } else { scratchpad },
        })
    }
}

/// Where things lie in the device memory that a kernel takes besides the plan's buffers. The fault is at 0. Everything before
/// `program` is cleared before a launch, except that steps of one chain keep a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceMemory {
    pub(crate) sync: u64,
    pub(crate) exchange: u64,
    pub(crate) program: u64,
    pub(crate) shares: u64,
    /// For probabilities: the likeliest tokens of each block, of two turns. Chains only.
    pub(crate) candidates: u64,
    /// A copy of recurrent states.
    pub(crate) states: u64,
    /// By rank: its last launch that has begun.
    pub(crate) begun: u64,
    pub(crate) bytes: u64,
}

impl DeviceMemory {
    pub(super) fn of(recording: &Recording) -> DeviceMemory {
        let sync = size_of::<Fault>() as u64;
        let exchange = (sync + size_of::<Sync>() as u64).next_multiple_of(256);
        let program = exchange + u64::from(recording.exchange) * 4 * u64::from(recording.rows);
        let shares = program + size_of_val(&recording.program[..]) as u64;
        let candidates = shares + size_of_val(&recording.shares[..]) as u64;
        let lists = if recording.is_step {
            0
        } else {
            2 * recording.blocks
        };
        let states = candidates + 8 * u64::from(lists) * Logprobs::MOST as u64;
        let states = states.next_multiple_of(256);
        DeviceMemory {
            sync,
            exchange,
            program,
            shares,
            candidates,
            states,
            begun: states + recording.states,
            bytes: states + recording.states + 4 * MOST_RANKS as u64,
        }
    }
}

/// Whether a cache holds states.
pub(crate) fn is_recurrent(cache: &CacheSpec) -> bool {
    matches!(cache.kind, CacheKind::Recurrent { .. })
}

/// Bytes of the copy.
pub(crate) fn saved_bytes(program: &Program) -> u64 {
    let caches = program.caches.iter().filter(|cache| is_recurrent(cache));
    caches
        .filter_map(|cache| cache.page_bytes(program.page))
        .sum()
}
