//! basic: lowering.

use crate::launch::{Listed, Node};
use crate::lower::Lowering;
use crate::{Error, GpuInfo};
use welte_table::{Command, Program};

/// The kernels of a command.
pub(crate) fn lower(_cx: &Lowering<'_>, command: &Command, _rows: u32) -> Result<Vec<Node>, Error> {
    Err(Error::Program(format!(
        "no kernel for {}",
        command.op.name()
    )))
}

/// Private scratch of a command.
pub(crate) fn scratch(_program: &Program, _command: &Command, _rows: u32, _gpu: &GpuInfo) -> u64 {
    0
}

/// Bytes that are zero between commands.
pub(crate) fn counters(_program: &Program, _command: &Command, _rows: u32, _gpu: &GpuInfo) -> u64 {
    0
}

/// What is compiled for every architecture in tests.
pub(crate) fn catalogue() -> Vec<Listed> {
    Vec::new()
}

/// Placeholder until the family's own.
pub(crate) fn act_mul(_step: u64, _x: u64, _y: u64, _n: u32, _x_stride: u32, _y_stride: u32, _act: u32, _rows: u32) -> crate::launch::Launch { crate::launch::Launch { unit: crate::launch::Unit { file: "prepare.cu", defines: vec![] }, function: "x", grid: [1,1,1], by_rows: crate::launch::ByRows::Fixed, block: 1, shared: 0, args: vec![] } }
