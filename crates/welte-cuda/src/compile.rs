//! Compiles kernels from source at load: NVRTC, on several threads, with a cache on disk.

use crate::compiler::{self, Compiler, Version};
use crate::disk::{cache_folder, hashed, read_cached, write_cached};
use crate::launch::Unit;
use crate::sources::{SOURCES, title};
use crate::{Error, GpuInfo};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use welte_device::Phases;

/// Takes the cubin of a unit, on any thread.
type Load<'a> = dyn Fn(&Unit, Vec<u8>) -> Result<(), Error> + Sync + 'a;

/// Gives `load` the cubin of each unit for an architecture, from the cache or from the compiler, on several threads and in any order.
/// Compiling is noted in `phases`.
pub(crate) fn images(
    units: &[Unit],
    arch: &str,
    driver: u32,
    phases: &Phases,
    load: &Load<'_>,
) -> Result<(), Error> {
    let version = compiler::version_of_cache();
    // Sought once, and only if a unit is missing.
    let compiler = LazyLock::new(Compiler::find);
    let folder = cache_folder();
    let results = in_parallel(units, &|unit| {
        let path = folder
            .as_ref()
            .map(|folder| folder.join(cache_name(unit, arch, driver, version)));
        if let Some(image) = path.as_ref().and_then(|path| read_cached(path)) {
            return load(unit, image);
        }
        let compiler = compiler
            .as_ref()
            .map_err(|why| Error::NoCompiler(why.clone()))?;
        let compiled = phases.time(format!("compiling {}", title(unit)), || {
            compiler.compile(unit, arch, false)
        });
        let (image, _) = compiled?;
        if let Some(path) = path {
            // Without a writable cache the next load compiles again.
            let _ = write_cached(&path, &image);
        }
        load(unit, image)
    });
    results.into_iter().collect()
}

/// The run-time compiler's version. The error names the missing part.
pub(crate) fn version() -> Result<String, Error> {
    let (major, minor) = compiler::version()?;
    Ok(format!("{major}.{minor}"))
}

/// A number that changes with the kernels' source, the run-time compiler and the driver.
pub(crate) fn kernels_version(driver: u32) -> String {
    let mut hasher = DefaultHasher::new();
    (SOURCES, driver, compiler::version_of_cache()).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The compiler's name of an architecture.
pub(crate) fn arch_name(arch: u32) -> String {
    match arch {
        90 => "sm_90a".to_string(),
        other => format!("sm_{other}"),
    }
}

/// Runs `work` over the units on as many threads as there are cores.
pub(crate) fn in_parallel<T: Send>(units: &[Unit], work: &(dyn Fn(&Unit) -> T + Sync)) -> Vec<T> {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(units.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(units.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(unit) = units.get(index) else { break };
                    let result = work(unit);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn cache_name(unit: &Unit, arch: &str, driver: u32, version: Version) -> String {
    // Headers are shared, so any file may change the result.
    let name = hashed(&(unit, arch, driver, version, SOURCES));
    format!("{name}.cubin")
}

/// The file for the algorithms that were chosen on a GPU for the products of `key`, by comparison with our kernels.
pub(crate) fn algorithms(key: &impl Hash, gpu: &GpuInfo) -> Option<PathBuf> {
    let kernels = kernels_version(gpu.driver);
    let name = hashed(&(key, &gpu.name, gpu.sms, gpu.clock_khz, kernels));
    Some(cache_folder()?.join(name).with_extension("algorithms"))
}

/// The file for a kernel's tuning result on a GPU.
pub(crate) fn choice(unit: &Unit, gpu: &GpuInfo) -> Option<PathBuf> {
    let name = hashed(&(unit, &gpu.name, gpu.sms, gpu.clock_khz, SOURCES));
    Some(cache_folder()?.join(name).with_extension("choice"))
}
