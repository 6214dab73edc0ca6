//! A device that consists of several: the *ranks*, usually GPUs of one machine. Each has some rows of every matrix, some heads
//! with their keys and values, and a part of the vocabulary. A model can then be larger than a device's memory. Where the
//! devices' sums do not depend on the number of a matrix's rows, logits are those of a single device to the bit.
//!
//! [`welte_table::shard`] makes a program for each rank. Each device plans and loads its own, as it would any other. In a
//! context every rank has a thread, rank 0 that of the caller. All do the same: run a step, choose its tokens, go on. What
//! they exchange, they exchange among themselves, at their [`Meeting`](welte_device::Meeting).

mod banks;
mod chain;
mod context;
mod crew;
mod dealt;
mod device;
mod pages;

pub use device::{device, device_by};
