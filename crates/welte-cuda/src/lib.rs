//! The CUDA device: an implementation of the device contract for NVIDIA GPUs.
//!
//! CUDA is not linked. The driver, the run-time compiler and cuBLASLt are opened when they are installed, and errors name
//! the missing part. [`reports`] lists the GPUs and [`device`] opens one. Loading uploads a checkpoint's weights and compiles its kernels. A context
//! allocates every buffer, lowers the passes and builds the decode graph; afterwards nothing allocates.

mod arithmetic;
mod catalogue;
mod compile;
mod compiler;
mod context;
mod cublas;
mod device;
mod disk;
mod error;
mod floor;
mod gpu;
mod graph;
mod info;
mod launch;
mod layout;
mod libraries;
mod load;
mod loaded;
mod lower;
mod mirror;
mod ops;
mod persistent;
mod plan;
mod reports;
mod sizes;
mod sources;
mod units;
mod upload;

pub use catalogue::{Compiled, Depth, compile_all, compile_alone};
pub use context::CudaContext;
pub use device::{CudaDevice, assumed_device, device, reach_each_other, start};
pub use error::Error;
pub use info::{GPUS, GpuInfo, h200};
pub use load::CudaProgram;
pub use reports::{compiler_version, reports};
