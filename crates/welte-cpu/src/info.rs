//! What `doctor` asks: this machine's instructions and memory, and how fast it reads.
#![allow(unsafe_code)]

use crate::kernels::Isa;
use crate::memory::Block;
use crate::team::Team;
use crate::{Error, Options};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// This machine, as far as the CPU device cares.
#[derive(Clone, Debug)]
pub struct CpuInfo {
    /// The processor's name, if the system tells.
    pub model: Option<String>,
    /// Instruction sets with kernels, the simplest first.
    pub isas: Vec<Isa>,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory, if the system tells.
    pub memory_total: Option<u64>,
    /// Bytes of memory that are free or can be freed.
    pub memory_available: Option<u64>,
    /// Whether huge pages are given: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
}

/// Looks at this machine.
pub fn cpu_info() -> CpuInfo {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = memory.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|line| line.starts_with("model name"));
    let pages =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    CpuInfo {
        model: model.and_then(|line| Some(line.split_once(':')?.1.trim().to_string())),
        isas: Isa::available(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_total: field("MemTotal:"),
        memory_available: field("MemAvailable:"),
        huge_pages: pages
            .split_once('[')
            .and_then(|(_, rest)| Some(rest.split_once(']')?.0.to_string())),
    }
}

/// Bytes per second that `threads` threads (0: all cores) read from memory together, the best round of about
/// `seconds`. The buffer is 1 GiB if a quarter of the available memory allows it, and never below 64 MiB.
pub fn read_bandwidth(threads: usize, seconds: f64) -> Result<f64, Error> {
    const CHUNK: usize = 1 << 20;
    let threads = Options {
        threads: (threads > 0).then_some(threads),
        ..Options::default()
    }
    .threads();
    let available = cpu_info().memory_available.unwrap_or(4 << 30);
    let bytes = (available / 4).clamp(64 << 20, 1 << 30) as usize / CHUNK * CHUNK;
    let mut block = Block::new(bytes as u64, "measuring the read bandwidth")?;
    block.as_mut_slice().fill(1);
    let team = Team::new(threads, 1);
    let read = reader();
    let sink = AtomicU64::new(0);
    let slice = block.as_slice();
    let budget =
        Duration::try_from_secs_f64(seconds.clamp(0.01, 60.0)).unwrap_or(Duration::from_secs(1));
    let begin = Instant::now();
    let mut best = 0.0f64;
    loop {
        let start = Instant::now();
        team.run(&[(bytes / CHUNK) as u32], &|_, chunk, _| {
            // SAFETY: `reader` chose a function that the processor has.
            let sum = unsafe { read(&slice[chunk * CHUNK..(chunk + 1) * CHUNK]) };
            sink.fetch_add(sum, Ordering::Relaxed);
        })
        .map_err(|_| Error::Panicked)?;
        best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
        if begin.elapsed() >= budget {
            std::hint::black_box(sink.into_inner());
            return Ok(best);
        }
    }
}

/// The widest reader that the processor has.
fn reader() -> unsafe fn(&[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return read_avx512;
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return read_avx2;
        }
    }
    read_plain
}

#[inline(always)]
fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 64];
    for line in bytes.chunks_exact(512) {
        for (lane, word) in lanes.iter_mut().zip(line.chunks_exact(8)) {
            *lane ^= u64::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]);
        }
    }
    lanes.iter().fold(0, |a, b| a ^ b)
}

unsafe fn read_plain(bytes: &[u8]) -> u64 {
    sum(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn read_avx2(bytes: &[u8]) -> u64 {
    sum(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn read_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut lanes = [_mm512_setzero_si512(); 8];
    for line in bytes.chunks_exact(512) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: the line has 8 vectors of 64 bytes.
            let vector = unsafe { _mm512_loadu_si512(line.as_ptr().add(64 * i).cast()) };
            *lane = _mm512_xor_si512(*lane, vector);
        }
    }
    let all = lanes
        .into_iter()
        .fold(_mm512_setzero_si512(), |a, b| _mm512_xor_si512(a, b));
    _mm512_reduce_add_epi64(all) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_cores_and_plain_instructions() {
        let info = cpu_info();
        assert!(info.cores > 0 && info.isas.contains(&Isa::Scalar));
    }
}
