//! The memory speed of this machine's devices. `doctor` and `bench` measure and store it, so that `run` need not measure.

use crate::source;
use std::path::{Path, PathBuf};
use welte::{DeviceId, Model};
use welte_formats::files;
use welte_report::Floor;

/// Stores the speed of a device, in bytes per second. A figure that cannot be stored is ignored.
pub(crate) fn store(device: DeviceId, name: &str, speed: f64) {
    if let Some(path) = path() {
        let _ = write(&path, &key(device, name), speed);
    }
}

/// Stores the speed unless a higher one is known: a busy machine measures less.
pub(crate) fn raise(device: DeviceId, name: &str, speed: f64) {
    if known(device, name).is_none_or(|known| known < speed) {
        store(device, name, speed);
    }
}

/// The speed of a device, if it is known.
pub(crate) fn known(device: DeviceId, name: &str) -> Option<f64> {
    read(&path()?, &key(device, name))
}

/// The memory floor under a loaded model with the speed given.
pub(crate) fn of(model: &Model, speed: f64) -> Floor {
    Floor::new(speed, model.bytes_per_token(1), model.device().cache_bytes)
}

/// The remark beside a model's bandwidth in the closing line.
pub(crate) fn remark(model: &Model, speed: f64) -> String {
    let device = model.device();
    let known = known(device.id, &device.name);
    remark_on(known, model.bytes_per_token(1), device.cache_bytes, speed)
}

/// ` (62 % of 179.0)` or ` (in cache)`; empty if the floor is not known.
fn remark_on(known: Option<f64>, token_bytes: u64, cache_bytes: u64, speed: f64) -> String {
    let floor = Floor::new(known.unwrap_or(0.0), token_bytes, cache_bytes);
    if known.is_none() && !floor.in_cache {
        return String::new();
    }
    let whole = format!("{:.1}", floor.speed / 1e9);
    format!(" ({})", floor.describe(speed, &whole))
}

/// The machine and the device: several machines may share a home folder.
fn key(device: DeviceId, name: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{device}, {name}, {cores} cores")
}

fn path() -> Option<PathBuf> {
    Some(source::cache_folder()?.join("bandwidth.json"))
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
    files::create_folder(path.parent().unwrap_or(path))?;
    files::replace_file(path, &serde_json::to_vec(&table)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remark_needs_a_known_floor_or_a_cache() {
        assert_eq!(remark_on(Some(20e9), 100, 10, 15e9), " (75 % of 20.0)");
        assert_eq!(remark_on(None, 100, 10, 15e9), "");
        assert_eq!(remark_on(Some(20e9), 100, 100, 40e9), " (in cache)");
        assert_eq!(remark_on(None, 100, 100, 40e9), " (in cache)");
    }

    #[test]
    fn speeds_are_stored_by_device_and_machine() {
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
