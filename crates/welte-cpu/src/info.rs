//! This machine: its processor, and how fast it reads memory.
#![allow(unsafe_code)]

use crate::kernels::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::fetch_ahead;
use crate::machine::{Machine, Place};
use crate::memory::Block;
use crate::nodes::{self, Segment};
use crate::team::Team;
use crate::{ID, available, panicked, total};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use welte_device::{DeviceReport, Error};

/// The processor's name, if the system reports it.
pub(crate) fn name() -> Option<String> {
    #[cfg(target_os = "macos")]
    return crate::macos::name();
    #[cfg(not(target_os = "macos"))]
    name_in_proc()
}

#[cfg(not(target_os = "macos"))]
fn name_in_proc() -> Option<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpu.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Bytes of the last-level cache that the first core uses; 0 if the system does not report it.
pub(crate) fn cache_bytes() -> u64 {
    #[cfg(target_os = "macos")]
    return crate::macos::cache_bytes().unwrap_or(0);
    #[cfg(not(target_os = "macos"))]
    cache_bytes_in_sys()
}

#[cfg(not(target_os = "macos"))]
fn cache_bytes_in_sys() -> u64 {
    let read = |index: u32, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
        std::fs::read_to_string(path).ok()
    };
    let sizes = (0..8).filter_map(|index| {
        let level: u32 = read(index, "level")?.trim().parse().ok()?;
        Some((level, kib(&read(index, "size")?)?))
    });
    sizes.max().map_or(0, |(_, bytes)| bytes)
}

/// The bytes of a size such as `32768K`.
#[cfg(any(test, not(target_os = "macos")))]
fn kib(size: &str) -> Option<u64> {
    let kib: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether the system gives huge pages: `always`, `madvise` or `never`.
fn huge_pages() -> Option<String> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let choices = std::fs::read_to_string(path).ok()?;
    let (_, chosen) = choices.split_once('[')?;
    Some(chosen.split_once(']')?.0.to_string())
}

/// Names of the instruction sets of this machine that have kernels, the best last.
pub fn instruction_sets() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// This machine's processor.
pub fn reports() -> Vec<DeviceReport> {
    let mut facts = Machine::here().map_or(Vec::new(), |machine| machine.facts());
    let sets = instruction_sets().join(", ");
    facts.push(("instruction sets".to_string(), sets));
    facts.extend(huge_pages().map(|pages| ("huge pages".to_string(), pages)));
    vec![DeviceReport {
        id: ID,
        name: name().unwrap_or_default(),
        memory_total: total(),
        memory_available: available(),
        facts,
        replays: Vec::new(),
        missing: None,
    }]
}

/// Bytes per second that threads at these places read from memory together, the best round of about `seconds`. The buffer is
/// 1 GiB if a quarter of the available memory allows it, and never below 64 MiB.
pub(crate) fn read_bandwidth(places: &[Place], seconds: f64) -> Result<f64, Error> {
    const CHUNK: usize = 1 << 20;
    let available = available().unwrap_or(4 << 30);
    let bytes = (available / 4).clamp(64 << 20, 1 << 30) as usize / CHUNK * CHUNK;
    let block = Block::new(bytes as u64, "measuring the read bandwidth")?;
    let team = Team::new(places, 1);
    let segments = [Segment::whole(0, CHUNK, bytes / CHUNK)];
    nodes::bind(&block, &segments, places);
    let chunks = [(bytes / CHUNK) as u32];
    let start = block.ptr() as usize;
    team.run(&chunks, &|_, chunk, _| {
        // SAFETY: each chunk fills its own part of the block, which nobody reads yet.
        unsafe { (start as *mut u8).add(chunk * CHUNK).write_bytes(1, CHUNK) };
    })
    .map_err(|_| panicked())?;
    let read = reader();
    let sink = AtomicU64::new(0);
    let slice = block.as_slice();
    let budget =
        Duration::try_from_secs_f64(seconds.clamp(0.01, 60.0)).unwrap_or(Duration::from_secs(1));
    let begin = Instant::now();
    let mut best = 0.0f64;
    loop {
        let start = Instant::now();
        team.run(&chunks, &|_, chunk, _| {
            // SAFETY: `reader` chose a function that the processor has.
            let sum = unsafe { read(&slice[chunk * CHUNK..(chunk + 1) * CHUNK]) };
            sink.fetch_add(sum, Ordering::Relaxed);
        })
        .map_err(|_| panicked())?;
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
            let at = unsafe { line.as_ptr().add(64 * i) };
            fetch_ahead(at);
            // SAFETY: as above.
            let vector = unsafe { _mm512_loadu_si512(at.cast()) };
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
        assert!(instruction_sets().contains(&"scalar"));
        assert_eq!(reports().len(), 1);
    }

    #[test]
    fn cache_sizes_are_in_kib() {
        assert_eq!(kib("32768K\n"), Some(32 << 20));
        assert_eq!(kib("1M"), None);
    }
}
