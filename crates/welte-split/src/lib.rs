//! A device that consists of two. The experts of the first layers run on the *far* one, usually the CPU, and all else on
//! the *near* one, usually a GPU. So a mixture of experts can be larger than the GPU's memory.
//!
//! [`welte_table::Split`] makes two programs of one. Each device plans and loads its own, as it would any other. A context
//! runs their commands in turn and copies the few rows between them: the experts' input and choice, and their sum.

mod chain;
mod context;
mod device;

pub use device::{device, device_by};
