//! What the machine has: memory available, memory used, bandwidth measured.

use std::time::Instant;

/// Bytes that may be allocated now without hurting others; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let free = field_kib("/proc/meminfo", "MemAvailable:")?;
    Some(group_headroom().map_or(free, |room| room.min(free)))
}

/// All memory of the machine.
pub fn total() -> Option<u64> {
    field_kib("/proc/meminfo", "MemTotal:")
}

/// The most memory that this process ever held.
pub fn peak() -> Option<u64> {
    field_kib("/proc/self/status", "VmHWM:")
}

fn field_kib(path: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a container's limit leaves, page cache counted as free.
fn group_headroom() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let file = stat.lines().find_map(|l| l.strip_prefix("file ")).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(file)))
}

/// Bytes as people read them.
pub fn human(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        0..=1023 => format!("{bytes} B"),
        1024..=1_048_575 => format!("{:.1} KiB", b / 1024.0),
        1_048_576..=1_073_741_823 => format!("{:.1} MiB", b / 1_048_576.0),
        _ => format!("{:.2} GiB", b / 1_073_741_824.0),
    }
}

/// Bytes per second at which `threads` threads together read memory: the best of several passes over half a gigabyte.
pub fn read_bandwidth(threads: usize) -> f64 {
    let words = (512usize << 20) / 8;
    let data: Vec<u64> = (0..words as u64).collect();
    let threads = threads.clamp(1, 1024);
    let mut best = 0.0f64;
    for _ in 0..8 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in data.chunks(words.div_ceil(threads)) {
                scope.spawn(move || std::hint::black_box(sum(part)));
            }
        });
        best = best.max((words * 8) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

/// Several independent sums, so that loads and not additions are what is waited for.
fn sum(data: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in data.chunks_exact(32) {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*value);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        assert_eq!(human(17), "17 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(9 << 30), "9.00 GiB");
    }
}
