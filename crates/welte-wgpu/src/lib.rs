//! A device for any GPU that wgpu reaches: Vulkan, Metal and DirectX 12, with kernels in WGSL.
//!
//! A lowered command is a pipeline, a bind group and a grid. Everything that changes between tokens lies in buffers: the step
//! state, page lists, the arena of activations. Recorded work does not depend on positions.

mod adapter;
mod context;
mod device;
mod gpu;
mod kernels;
mod layout;
mod load;
mod lower;
mod plan;

pub use adapter::{Api, is_hardware, reports};
pub use device::{device, device_of_bindings};
