//! What a rank has of a program.

use crate::{BufferId, CacheKind, Op, Program};
use std::ops::Range;

/// The program of a rank, of fine ops.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The program. Its buffers have the numbers of the whole program's; further ones follow them.
    pub program: Program,
    /// By pass and command: the command of the whole program that it is a part of, or that it stands before.
    pub origins: Vec<Vec<usize>>,
    /// By buffer: what the rank keeps of it.
    pub kept: Vec<Kept>,
    /// The banks of adapters of which it has rows. It may have several parts of a bank.
    pub banks: Vec<BankPart>,
}

/// A rank's part of a bank: a bank of the same shape with some of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankPart {
    /// The buffer of the whole program's bank.
    pub of: BufferId,
    /// The rank's buffer.
    pub buffer: BufferId,
    /// Rows of the bank's matrix, of each expert.
    pub rows: Vec<Range<u32>>,
}

/// What a rank keeps of a buffer of the whole program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All of it, whenever a step has ended.
    Whole,
    /// Its rows lie as in the whole program, and some values are those of a rank alone.
    Partly,
    /// A part, whose rows lie in another way.
    Part,
}

impl Shard {
    /// Exchanges of a pass.
    pub fn exchanges(&self, pass: usize) -> usize {
        let commands = self
            .program
            .passes
            .get(pass)
            .map_or(&[][..], |pass| &pass.commands);
        commands.iter().filter(|c| c.op == Op::Exchange).count()
    }
}

/// Heads of keys and values of a cache.
pub(super) fn kv_heads(kind: CacheKind) -> Option<u32> {
    match kind {
        CacheKind::Attention { kv_heads, .. } => Some(kv_heads),
        CacheKind::Recurrent { .. } => None,
    }
}
