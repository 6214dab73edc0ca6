//! A program planned for a device.

use crate::DeviceId;
use std::any::Any;
use std::sync::Arc;
use welte_table::{MemoryPlan, Program};

/// A program with everything that a device will allocate for it.
pub struct Plan {
    /// The program.
    pub program: Arc<Program>,
    /// What will be allocated: weights, the program's buffers, then what the device needs besides.
    pub memory: MemoryPlan,
    /// Facts for a person: how chains will be replayed, and why.
    pub facts: Vec<(String, String)>,
    /// What the device worked out while planning and needs again when it loads.
    pub private: Box<dyn Any + Send + Sync>,
}

/// What a plan takes of one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whose memory.
    pub device: DeviceId,
    /// Bytes that the plan takes.
    pub need: u64,
    /// Bytes that can be allocated now, if the system tells.
    pub have: Option<u64>,
}

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Bytes of weights.
    Weights {
        /// Read so far.
        done: u64,
        /// In all.
        total: u64,
    },
    /// Trials of tuning parameters.
    Tuning {
        /// Made so far.
        done: u64,
        /// In all, as far as known.
        total: u64,
    },
}
