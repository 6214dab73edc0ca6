//! What decides the memory that a command needs.

use crate::GpuInfo;
use crate::arithmetic::Arithmetic;
use welte_table::{Command, Program, WeightSpec};

/// What decides a command's memory.
#[derive(Clone, Copy)]
pub(crate) struct MemoryNeed<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
    pub(crate) arithmetic: Arithmetic,
    /// The most rows.
    pub(crate) rows: u32,
    /// Whether FP8 weights are multiplied with activations in FP8.
    pub(crate) float8: bool,
}

impl MemoryNeed<'_> {
    /// The first weight of a command.
    pub(super) fn weight(&self, command: &Command) -> Option<&WeightSpec> {
        self.program.weights.get(command.weights[0] as usize)
    }
}
