//! A device for any GPU that wgpu reaches: Vulkan, Metal, DirectX 12 and a browser's WebGPU, with kernels in WGSL.
//!
//! A lowered command is a pipeline, a bind group and a grid. Everything that changes between tokens lies in buffers: the step
//! state, page lists, the arena of activations. Recorded work does not depend on positions.

mod adapter;
mod context;
mod device;
mod gpu;
mod kernels;
mod launch;
mod layout;
mod load;
mod lower;
mod needs;
mod plan;
#[cfg(test)]
mod translations;
mod wait;

pub use adapter::{Api, reports};
pub use device::{device, device_with, hardware};
pub use gpu::Abilities;
pub use wait::block_on;
