//! What the machine has: memory available, memory used.

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
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// What a container's limit leaves, page cache counted as free.
fn group_headroom() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let file = stat
        .lines()
        .find_map(|l| l.strip_prefix("file "))
        .and_then(|v| v.parse::<u64>().ok())
        .unwrap_or(0);
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
