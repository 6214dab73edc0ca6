//! The CPU device: a thread team replays the table.

pub mod kernels;
