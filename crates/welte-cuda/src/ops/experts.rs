//! Mixtures of experts: no kernels yet; a model that has them is told to run on the CPU.

use crate::launch::{Listed, Node};
use crate::lower::Lowering;
use crate::{Error, GpuInfo};
use welte_table::{Command, Op, Program};

/// The commands that are missing.
pub(crate) fn is_one(op: Op) -> bool {
    matches!(op, Op::Route | Op::ExpertsActMul | Op::ExpertsAdd)
}

pub(crate) fn lower(_: &Lowering<'_>, command: &Command, _: u32) -> Result<Vec<Node>, Error> {
    let op = command.op.name();
    Err(Error::Program(format!(
        "{op}: mixtures of experts run on the CPU only; use --device cpu"
    )))
}

pub(crate) fn scratch(_: &Program, _: &Command, _: u32, _: &GpuInfo) -> u64 {
    0
}

pub(crate) fn counters(_: &Program, _: &Command, _: u32, _: &GpuInfo) -> u64 {
    0
}

pub(crate) fn catalogue() -> Vec<Listed> {
    Vec::new()
}
