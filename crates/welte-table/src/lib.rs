//! The table at Welte's heart: ops, commands, buffers, caches, passes and formats as plain data.
//!
//! A program goes through [`fuse`] (runs of fine ops become what a device declares), [`verify`] (everything in range) and
//! [`MemoryPlan`] (what will be allocated). [`to_lines`] writes it as text and [`from_lines`] reads it back.
//! None of them needs a device.

mod access;
mod adapt;
mod affine;
mod bank;
pub mod cost;
mod deal;
mod format;
mod fuse;
mod integers;
mod lines;
mod op;
mod plan;
mod range;
mod row;
mod sampling;
mod shard;
mod split;
mod table;
mod verify;

pub use access::{Access, Extent, accesses};
pub use adapt::{AdaptOptions, adapt};
pub use affine::Affine;
pub use bank::{Adapters, Bank, BankSpec, SetRows};
pub use deal::Deal;
pub use format::Format;
pub use fuse::{
    Bound, Found, Fused, MATMUL_ADD, NORM_MATMUL, NORM_MATMUL_ACT_MUL, PATTERNS, Pattern,
    ROPE_APPEND, Run, Step, Value, Want, fuse, fuse_tracked,
};
pub use integers::{GroupScale, Integers};
pub use lines::{from_lines, to_lines};
pub use op::{Op, Params, Word, params};
pub use plan::{MemoryPlan, PlanEntry, human};
pub use range::Range;
pub use row::{Input, Row, Sections};
pub use sampling::{Sampling, SamplingOption};
pub use shard::{BankPart, Kept, Shard, Shards, shard};
pub use split::{Half, Region, Segment, Side, Split};
pub use table::*;
pub use verify::{MOST_RANKS, verify};
