//! The GPU's read bandwidth, which bounds the time of a token from below.
#![allow(unsafe_code)]

use crate::gpu::{DeviceBlock, Event, Gpu, Module};
use crate::launch::{Listed, Unit, args};
use crate::mirror::{Layout, mirrored};
use crate::{Error, compile};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use welte_device::Phases;

/// Bytes per piece and pieces in flight per block, as in `read.cu`.
const CHUNK: u64 = 32 << 10;
const STAGES: u32 = 6;
const THREADS: u32 = 512;
/// The most and the fewest bytes per pass. Even the fewest are several times any cache.
const MOST: u64 = 4 << 30;
const LEAST: u64 = 256 << 20;

mirrored! {
    /// `ReadArgs` of `read.cu`.
    struct ReadArgs = "ReadArgs" {
        data: u64,
        chunks: u64,
        sink: u64,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[ReadArgs::LAYOUT];

pub(crate) fn unit() -> Unit {
    Unit {
        file: "read.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(),
        hot: true,
    }]
}

/// Measures the bytes per second that a GPU reads from its memory: the best pass of about `seconds`. Uses a quarter of the free
/// memory, at most 4 GiB.
pub(crate) fn read_bandwidth(device: u32, seconds: f64) -> Result<f64, Error> {
    let gpu = Arc::new(Gpu::open(device)?);
    gpu.current()?;
    let bytes = (gpu.free_memory()? / 4).clamp(LEAST, MOST) / CHUNK * CHUNK;
    let block = DeviceBlock::zeroed(&gpu, bytes + 8, "measuring the read bandwidth")?;
    let arch = compile::arch_name(gpu.info.arch);
    let module = OnceLock::new();
    let load = |_: &Unit, image: Vec<u8>| {
        let _ = module.set(Module::new(&gpu, &image, "loading read.cu")?);
        Ok(())
    };
    compile::images(&[unit()], &arch, &Phases::new(), &load)?;
    let module = module.get();
    let module = module.ok_or_else(|| Error::Program("read.cu was not compiled".to_string()))?;
    let shared = if gpu.info.arch >= 90 {
        STAGES * CHUNK as u32
    } else {
        0
    };
    let kernel = module.kernel("read_all", THREADS, shared)?;
    let parameters = args(&ReadArgs {
        data: block.start(),
        chunks: bytes / CHUNK,
        sink: block.start() + bytes,
    });
    let per_sm = if shared > 0 { 1 } else { 4 };
    let grid = [gpu.info.sms * per_sm, 1, 1];
    let budget =
        Duration::try_from_secs_f64(seconds.clamp(0.01, 60.0)).unwrap_or(Duration::from_secs(1));
    let (begin, end) = (Event::new(&gpu)?, Event::new(&gpu)?);
    let start = Instant::now();
    let mut best = 0.0f64;
    loop {
        begin.record()?;
        // SAFETY: the kernel reads the block's chunks and may write the word after them.
        unsafe { gpu.launch(&kernel, grid, &parameters)? };
        end.record()?;
        end.wait()?;
        let ns = end.since(&begin)?.max(1);
        best = best.max(bytes as f64 * 1e9 / ns as f64);
        if start.elapsed() >= budget {
            return Ok(best);
        }
    }
}
