//! The CUDA device: the same table, replayed on an NVIDIA GPU by one persistent kernel or as a graph.
//!
//! Nothing of CUDA is linked: the driver, the run-time compiler and cuBLASLt are opened when they are there, and
//! [`info`] says what is missing. [`Model::load`] uploads a checkpoint's weights, [`Session::new`] allocates every
//! buffer, lowers the tables and captures the decode graph, and from then on nothing allocates.

mod compile;
mod doctor;
mod error;
mod floor;
mod gpu;
mod graph;
mod info;
mod launch;
mod layout;
mod libraries;
mod load;
mod lower;
mod mirror;
mod ops;
mod persistent;
mod plan;
mod replay;
mod sizes;

pub use compile::{Compiled, compile_all, compile_alone, version as compiler_version};
pub use doctor::{Tools, tools};
pub use error::Error;
pub use floor::read_bandwidth;
pub use info::{GpuInfo, free_memory, h200, info};
pub use load::{Model, weight_bytes};
pub use lower::{missing, supports};
pub use plan::{Plan, Replaying, replays};
pub use replay::{Profile, Session};

/// How a chain is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// As `Eager`, with an allocation and a release per command besides: what engines without a plan do. For
    /// comparisons.
    Allocate,
    /// Every kernel is launched by the host, one after the other.
    Eager,
    /// The decode table is one graph, launched once per token, a few tokens ahead.
    Graph,
    /// The decode table is the body of a loop on the device: one launch per chain.
    While,
    /// One kernel reads the decode table on the GPU, for a whole chain of tokens: one launch per tenth of a second. A model
    /// that it cannot take is replayed as a graph.
    #[default]
    Persistent,
}

impl Replay {
    /// As a person reads it.
    pub fn name(self) -> &'static str {
        match self {
            Replay::Allocate => "launches and allocations",
            Replay::Eager => "launches",
            Replay::Graph => "graph",
            Replay::While => "loop on the GPU",
            Replay::Persistent => "persistent kernel",
        }
    }
}

/// How the device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which GPU, by the driver's number.
    pub device: u32,
    /// How a chain is replayed.
    pub replay: Replay,
}
