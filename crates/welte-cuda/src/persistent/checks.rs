//! What the persistent kernels need of a GPU and of a program.

use super::MAX_CACHES;
use crate::GpuInfo;
use welte_table::{BufferRef, CacheKind, Format, Op, Pass, Program, WeightSpec};

/// The oldest architecture with asynchronous copies into shared memory and with barriers that wait for them.
const OLDEST_ARCH: u32 = 80;
/// Architectures on which the kernels have run.
const PROVEN_ARCHS: [u32; 1] = [90];

/// Why the kernels are used only if they are requested, for a person: they have not run on this kind of GPU.
pub(crate) fn unproven(gpu: &GpuInfo) -> Option<String> {
    if PROVEN_ARCHS.contains(&gpu.arch) {
        return None;
    }
    let (major, minor) = (gpu.arch / 10, gpu.arch % 10);
    Some(format!(
        "has not run on GPUs of compute capability {major}.{minor}"
    ))
}

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

/// What a decode pass and its caches are known to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// Where the logits are.
    pub(super) logits: BufferRef,
    /// Of the largest heads in a cache, and whether others are smaller.
    pub(super) head_dim: u32,
    pub(super) several_sizes: bool,
    /// Of all caches.
    pub(super) kv_format: Format,
}

/// Checks the caches and the end of a decode pass.
pub(super) fn check_program(program: &Program, pass: &Pass) -> Result<Checked, String> {
    let integers = |weight: &&WeightSpec| matches!(weight.format, Format::Integers(_));
    if let Some(weight) = program.weights.iter().find(integers) {
        return Err(format!("weights in {}", weight.format.name()));
    }
    if program.caches.len() > MAX_CACHES {
        return Err(format!("more than {MAX_CACHES} caches"));
    }
    let mut shape = None;
    let mut several_sizes = false;
    for cache in &program.caches {
        match cache.kind {
            CacheKind::Attention {
                format, head_dim, ..
            } => {
                if !matches!(format, Format::F16 | Format::Q8_0) {
                    return Err(format!("a KV cache in {}", format.name()));
                }
                let (size, known) = *shape.get_or_insert((head_dim, format));
                several_sizes |= size != head_dim;
                shape = Some((head_dim.max(size), known));
                if known != format {
                    return Err("caches in different formats".to_string());
                }
            }
            // One page has the state of a sequence.
            CacheKind::Recurrent { .. } => {}
        }
    }
    let sample = pass.commands.last().filter(|c| c.op == Op::Sample);
    let sample = sample.ok_or("its decode pass does not end in a sample")?;
    let (head_dim, format) = shape.ok_or("no cache")?;
    Ok(Checked {
        logits: sample.buffers[0],
        head_dim,
        several_sizes,
        kv_format: format,
    })
}
