//! sample: lowering.

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

/// Bytes of the sampling state in device memory.
pub(crate) fn region_bytes(_program: &Program) -> u64 {
    256
}

/// The host's mirror of the sampling state.
pub(crate) struct Sampler {
    head: Vec<u8>,
}

impl Sampler {
    /// With all its room.
    pub(crate) fn new(_program: &Program) -> Sampler {
        Sampler { head: vec![0; 16] }
    }

    /// New settings.
    pub(crate) fn set(
        &mut self,
        _s: &welte_table::Sampling,
        _bias: &[(u32, f32)],
        _history: &[u32],
    ) {
    }

    /// Tokens that end a chain; true if they changed.
    pub(crate) fn set_ends(&mut self, _ends: &[u32]) -> bool {
        false
    }

    /// A token that was emitted.
    pub(crate) fn remember(&mut self, _token: u32) {}

    /// What the host uploads to the start of the region.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }
}
