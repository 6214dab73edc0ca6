//! What the persistent kernels need of a GPU and of a program.

use crate::GpuInfo;
use welte_table::{BufferRef, Format, Op, Program, Table};

/// The oldest architecture with bulk copies into shared memory.
const OLDEST_ARCH: u32 = 90;

/// Whether a GPU can run the kernels; the error says what it lacks.
pub(crate) fn possible(gpu: &GpuInfo) -> Result<(), String> {
    if gpu.arch >= OLDEST_ARCH {
        return Ok(());
    }
    Err(format!(
        "it needs compute capability {}.{}, this GPU has {}.{}",
        OLDEST_ARCH / 10,
        OLDEST_ARCH % 10,
        gpu.arch / 10,
        gpu.arch % 10
    ))
}

/// Checks the KV cache and the end of a decode table. Returns where the logits are.
pub(super) fn check_program(program: &Program, table: &Table) -> Result<BufferRef, String> {
    if program.kv.format != Format::F16 {
        return Err(format!("a KV cache in {}", program.kv.format.name()));
    }
    let sample = table.commands.last().filter(|c| c.op == Op::Sample);
    let sample = sample.ok_or("its table does not end in a sample")?;
    Ok(sample.buffers[0])
}
