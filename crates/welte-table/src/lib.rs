//! The table at Welte's heart: ops, commands, buffers and formats as plain data, and the passes over them.
//!
//! A program goes through [`legalize`] (fused ops that a backend lacks become fine ones), [`verify`] (everything
//! in range), [`MemoryPlan`] (what will be allocated) and [`dump`] (what a person sees). None of them needs a device.

mod access;
mod affine;
pub mod cost;
pub mod dump;
mod format;
mod legalize;
mod op;
mod plan;
mod table;
pub mod timeline;
mod verify;

pub use access::{Access, Extent, accesses};
pub use affine::Affine;
pub use format::Format;
pub use legalize::legalize;
pub use op::{Op, Params, Word, params};
pub use plan::{MemoryPlan, PlanEntry};
pub use table::*;
pub use verify::verify;
