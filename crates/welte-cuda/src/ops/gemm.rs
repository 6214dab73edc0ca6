//! gemm: lowering.

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

/// A product by cuBLASLt.
pub(crate) struct Gemm {}

impl Gemm {
    /// Enqueues it for `live` rows.
    pub(crate) fn run(&self, _gpu: &crate::gpu::Gpu, _live: u32) -> Result<(), Error> {
        Ok(())
    }
}
