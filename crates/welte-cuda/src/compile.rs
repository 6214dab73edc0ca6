//! Compiles kernels from source at load: NVRTC, on several threads, with a cache on disk.

use crate::compiler::{self, Compiler, Version};
use crate::disk::{self, cache_folder, hashed, read_cached, write_cached};
use crate::launch::Unit;
use crate::sources::{SOURCES, title};
use crate::{Error, GpuInfo};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use welte_device::Phases;

/// Takes the cubin of a unit, on any thread.
type Load<'a> = dyn Fn(&Unit, Vec<u8>) -> Result<(), Error> + Sync + 'a;

/// Gives `load` the cubin of each unit for an architecture, on several threads and in any order: a ready one, else from the cache, else
/// from the compiler. Compiling is noted in `phases`.
pub(crate) fn images(
    units: &[Unit],
    arch: &str,
    phases: &Phases,
    load: &Load<'_>,
) -> Result<(), Error> {
    images_from(&Folders::usual(), units, arch, phases, load)
}

/// Where compiled kernels lie.
struct Folders {
    ready: &'static [PathBuf],
    cache: Option<PathBuf>,
    /// Of the compiler that filled the cache.
    version: Version,
}

impl Folders {
    fn usual() -> Folders {
        Folders {
            ready: disk::ready_folders(),
            cache: cache_folder(),
            version: compiler::version_of_cache(),
        }
    }

    fn ready(&self, unit: &Unit, arch: &str) -> Option<Vec<u8>> {
        let name = ready_name(unit, arch);
        let mut folders = self.ready.iter();
        folders.find_map(|folder| read_cached(&folder.join(&name)))
    }

    fn cached(&self, unit: &Unit, arch: &str) -> Option<PathBuf> {
        let name = hashed(&(unit, arch, self.version, &*SOURCES_SUM));
        Some(self.cache.as_ref()?.join(name).with_extension("cubin"))
    }
}

fn images_from(
    folders: &Folders,
    units: &[Unit],
    arch: &str,
    phases: &Phases,
    load: &Load<'_>,
) -> Result<(), Error> {
    // Sought once, and only if a unit is missing.
    let compiler = LazyLock::new(Compiler::find);
    let results = in_parallel(units, &|unit| {
        // The driver may be older than a ready kernel.
        let refused = match folders.ready(unit, arch).map(|image| load(unit, image)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(why)) => Some(why),
            None => None,
        };
        let path = folders.cached(unit, arch);
        if let Some(image) = path.as_ref().and_then(|path| read_cached(path)) {
            return load(unit, image);
        }
        let compiler = match (&*compiler, refused) {
            (Ok(compiler), _) => compiler,
            (Err(_), Some(refused)) => return Err(refused),
            (Err(why), None) => {
                let missing = format!("{why}; {} is not ready", unit.file);
                return Err(Error::NoCompiler(missing));
            }
        };
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

/// Puts units for an architecture into a folder of ready kernels, from the cache or the compiler. What the folder has stays. Returns how
/// many are new.
pub(crate) fn make_ready(
    units: &[Unit],
    arch: &str,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, Error> {
    let path = |unit: &Unit| folder.join(ready_name(unit, arch));
    let missing = units
        .iter()
        .filter(|unit| read_cached(&path(unit)).is_none());
    let missing: Vec<Unit> = missing.cloned().collect();
    let total = missing.len() as u64;
    if missing.is_empty() {
        return Ok(0);
    }
    let unwritten = |path: &Path| {
        let path = path.to_path_buf();
        move |why| Error::Ready { path, why }
    };
    std::fs::create_dir_all(folder).map_err(unwritten(folder))?;
    let compiler = Compiler::find().map_err(Error::NoCompiler)?;
    let cache = Folders::usual();
    let (sender, compiled) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            let results = in_parallel(&missing, &|unit| {
                let cached = cache.cached(unit, arch);
                let image = match cached.and_then(|path| read_cached(&path)) {
                    Some(image) => image,
                    None => compiler.compile(unit, arch, false)?.0,
                };
                let path = path(unit);
                disk::write_ready(&path, &image).map_err(unwritten(&path))?;
                // Nobody listens once the caller has panicked.
                let _ = sender.send(());
                Ok(())
            });
            drop(sender);
            results.into_iter().collect::<Result<(), Error>>()
        });
        for (done, ()) in compiled.iter().enumerate() {
            progress(done as u64 + 1, total);
        }
        made.join().unwrap_or_else(|_| Err(panicked()))
    })?;
    Ok(total)
}

/// What a thread that compiled left behind.
pub(crate) fn panicked() -> Error {
    Error::Kernel("a compiling thread panicked".to_string())
}

/// The first of the units that can be had neither ready nor from the cache.
pub(crate) fn first_missing<'a>(units: &'a [Unit], arch: &str) -> Option<&'a Unit> {
    let folders = Folders::usual();
    units.iter().find(|unit| {
        let cached = || read_cached(&folders.cached(unit, arch)?);
        folders.ready(unit, arch).or_else(cached).is_none()
    })
}

/// A number that changes with the kernels' source, the run-time compiler and the driver.
fn kernels_version(driver: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&*SOURCES_SUM, driver, compiler::version_of_cache()).hash(&mut hasher);
    hasher.finish()
}

/// The compiler's name of an architecture.
pub(crate) fn arch_name(arch: u32) -> String {
    match arch {
        90 => "sm_90a".to_string(),
        other => format!("sm_{other}"),
    }
}

/// Runs `work` over the units on as many threads as there are cores.
pub(crate) fn in_parallel<I: Sync, T: Send>(
    units: &[I],
    work: &(dyn Fn(&I) -> T + Sync),
) -> Vec<T> {
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

/// Changes with any source: headers are shared, so any file may change the result.
static SOURCES_SUM: LazyLock<String> = LazyLock::new(|| hashed(&SOURCES));

/// Of a ready kernel, whichever compiler made it.
fn ready_name(unit: &Unit, arch: &str) -> String {
    let options = compiler::options(unit, arch, false);
    format!("{}.cubin", hashed(&(unit, options, &*SOURCES_SUM)))
}

/// The file for the algorithms that were chosen on a GPU for the products of `key`, by comparison with our kernels.
pub(crate) fn algorithms(key: &impl Hash, gpu: &GpuInfo) -> Option<PathBuf> {
    let kernels = kernels_version(gpu.driver);
    let name = hashed(&(key, &gpu.name, gpu.sms, gpu.clock_khz, kernels));
    Some(cache_folder()?.join(name).with_extension("algorithms"))
}

/// The file for a kernel's tuning result on a GPU.
pub(crate) fn choice(unit: &Unit, gpu: &GpuInfo) -> Option<PathBuf> {
    let name = hashed(&(unit, &gpu.name, gpu.sms, gpu.clock_khz, &*SOURCES_SUM));
    Some(cache_folder()?.join(name).with_extension("choice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `load` got, where it takes all but `refused`.
    fn got(folders: &Folders, refused: &[u8]) -> Result<Vec<u8>, Error> {
        let got = Mutex::new(Vec::new());
        let load = |_: &Unit, image: Vec<u8>| {
            if image == refused {
                return Err(Error::Kernel("refused".to_string()));
            }
            *got.lock().unwrap() = image;
            Ok(())
        };
        images_from(folders, &[unit()], "sm_90a", &Phases::new(), &load)?;
        Ok(got.into_inner().unwrap())
    }

    /// One that no compiler knows.
    fn unit() -> Unit {
        Unit {
            file: "nowhere.cu",
            defines: Vec::new(),
            generated: String::new(),
        }
    }

    #[test]
    fn a_ready_kernel_comes_before_the_cache_unless_the_driver_refuses_it() {
        let folder = std::env::temp_dir().join(format!("welte-ready-{}", std::process::id()));
        let ready = Vec::leak(vec![folder.join("none"), folder.join("ready")]);
        std::fs::create_dir_all(&ready[1]).unwrap();
        let folders = Folders {
            ready,
            cache: Some(folder.join("cache")),
            version: (13, 0),
        };
        // Neither is there.
        assert!(matches!(
            got(&folders, b""),
            Err(Error::NoCompiler(_) | Error::Compile { .. })
        ));
        let cached = folders.cached(&unit(), "sm_90a").unwrap();
        write_cached(&cached, b"cached").unwrap();
        assert_eq!(got(&folders, b"").unwrap(), b"cached");
        let path = folders.ready[1].join(ready_name(&unit(), "sm_90a"));
        disk::write_ready(&path, b"ready").unwrap();
        assert_eq!(got(&folders, b"").unwrap(), b"ready");
        assert_eq!(got(&folders, b"ready").unwrap(), b"cached");
        // Of another architecture there is none.
        let other = folders.ready(&unit(), "sm_80");
        assert_eq!(
            (other, folders.ready(&unit(), "sm_90a").is_some()),
            (None, true)
        );
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o444, 0o444, "not every user may read {mode:o}");
        }
        // A damaged one does not count.
        std::fs::write(&path, b"weltecu1ready").unwrap();
        assert_eq!(got(&folders, b"").unwrap(), b"cached");
        // Without a compiler, the refusal is the reason.
        std::fs::remove_file(&cached).unwrap();
        disk::write_ready(&path, b"ready").unwrap();
        let why = got(&folders, b"ready").unwrap_err();
        assert!(
            matches!(why, Error::Kernel(_) | Error::Compile { .. }),
            "{why}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
