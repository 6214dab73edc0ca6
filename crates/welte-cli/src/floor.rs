//! How fast this machine reads memory, as `doctor` last measured it, or `bench` when that was more, so that `run` need not measure.

use std::path::{Path, PathBuf};
use welte::Device;

/// Keeps what was measured on a device with all of its threads; a figure that cannot be kept is no loss.
pub(crate) fn remember(device: Device, bytes_per_second: f64) {
    if let Some(path) = path() {
        let _ = write(&path, &key(device), bytes_per_second);
    }
}

/// The same unless more is known: beside other work less is measured.
pub(crate) fn raise(device: Device, bytes_per_second: f64) {
    if recall(device).is_none_or(|known| known < bytes_per_second) {
        remember(device, bytes_per_second);
    }
}

/// Bytes per second of a device, if they were ever measured on this machine.
pub(crate) fn recall(device: Device) -> Option<f64> {
    read(&path()?, &key(device))
}

/// The machine and the device: a home folder may be seen by several machines.
fn key(device: Device) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = welte::cpu_info().model.unwrap_or_default();
    format!("{device}, {processor}, {cores} cores")
}

fn path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty());
    let folder = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(folder.join("welte/bandwidth.json"))
}

fn table(path: &Path) -> serde_json::Map<String, serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn read(path: &Path, key: &str) -> Option<f64> {
    table(path).get(key)?.as_f64().filter(|speed| *speed > 0.0)
}

fn write(path: &Path, key: &str, speed: f64) -> std::io::Result<()> {
    let mut table = table(path);
    table.insert(key.to_string(), speed.into());
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    // Another process never reads half of it.
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&beside, serde_json::to_vec(&table)?)?;
    std::fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_remembered_by_device_and_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.json");
        assert_eq!(read(&path, "cpu"), None);
        write(&path, "cpu", 1.5e10).unwrap();
        write(&path, "cuda:0", 4e12).unwrap();
        write(&path, "cpu", 2e10).unwrap();
        assert_eq!(
            (read(&path, "cpu"), read(&path, "cuda:0")),
            (Some(2e10), Some(4e12))
        );
        std::fs::write(&path, "[not a table").unwrap();
        assert_eq!(read(&path, "cpu"), None);
        write(&path, "cpu", 1e10).unwrap();
        assert_eq!(read(&path, "cpu"), Some(1e10));
    }
}
