//! The CPU device: a team of threads replays the passes of a program.
//!
//! Loading packs a checkpoint's weights into the layout of this machine's instructions. A context allocates every
//! buffer and lowers the passes to phases. After that nothing allocates.

mod available;
mod context;
mod cores;
mod device;
mod dispatch;
mod info;
pub mod kernels;
mod load;
mod lower;
mod machine;
#[cfg(target_os = "macos")]
mod macos;
mod memory;
mod nodes;
mod ops;

mod scratch;
mod team;

pub use available::{available, free_addresses, peak, spare_addresses, total};
pub use device::{device, devices};
pub use info::{instruction_sets, reports};
pub use kernels::{Isa, Kernel};

use welte_device::{DeviceId, Error};

const ID: DeviceId = DeviceId::only("cpu");

/// The error of a program that this device cannot run.
fn unsupported(why: impl Into<String>) -> Error {
    Error::Program {
        device: ID,
        why: why.into(),
    }
}

/// The error of a step in which a thread of the team panicked.
fn panicked() -> Error {
    Error::Failed {
        device: ID,
        source: "a thread panicked; this is a bug in Welte".into(),
    }
}
