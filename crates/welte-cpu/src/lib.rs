//! The CPU device: a thread team replays the table.
//!
//! [`Model::load`] packs a checkpoint's weights into the layout of this machine's instructions, [`Session::new`]
//! allocates every buffer and lowers the tables, and from then on nothing allocates: [`Session::step`] runs a table
//! over rows, [`Session::chain`] decodes many tokens.

mod info;
pub mod kernels;
mod load;
mod lower;
mod memory;
mod ops;
mod places;
mod reference;
mod replay;
mod sizes;
mod team;

pub use info::{CpuInfo, cpu_info, read_bandwidth};
pub use kernels::{Isa, Kernel};
pub use load::{Model, weight_bytes};
pub use lower::supports;
pub use ops::sample::{choose_plainly, noise};
pub use replay::{Profile, Session};
pub use sizes::device_bytes;

/// How the device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads of the team; the number of cores if not given.
    pub threads: Option<usize>,
    /// Instruction set; the best of this machine if not given.
    pub isa: Option<Isa>,
    /// Run the plain f32 interpreter, the oracle of the tests, instead of the kernels.
    pub reference: bool,
}

impl Options {
    /// The instruction set that is used.
    pub fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::best)
    }

    /// The number of threads that is used: at least 1, at most 1024.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores).clamp(1, 1024)
    }
}

/// What can go wrong on the CPU device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system gave no memory.
    #[error(
        "no memory for {what}: {bytes} bytes were asked for; a smaller context (-c) or model needs less"
    )]
    OutOfMemory {
        /// What it was meant for.
        what: String,
        /// How much.
        bytes: u64,
    },
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
    /// The program asks for something that this device cannot do.
    #[error("the program does not fit the CPU device: {0}")]
    Program(String),
    /// An instruction set was asked for that this machine lacks.
    #[error("this machine has no {0:?} instructions; choose one of those that `doctor` lists")]
    Isa(Isa),
    /// A step was asked for with rows it cannot have.
    #[error("{0}")]
    Step(String),
    /// A thread of the team panicked: a bug in the device.
    #[error("a thread of the CPU device panicked; this is a bug in Welte")]
    Panicked,
}
