//! The reference device: every op in its plainest form, in f32, on one thread.
//!
//! Tests compare the other devices with it. It is slow and allocates on every step. It shares the sampling noise with
//! the other devices and nothing else, so that a fault in a shared helper cannot hide.

mod adapt;
mod attention;
mod context;
mod device;
mod math;
mod ops;
mod sample;

pub use device::device;
pub use sample::choose;
