//! Compiles kernels from source at load: NVRTC, on several threads, with a cache on disk.

use crate::compiler::{self, Compiler, Version};
use crate::launch::Unit;
use crate::{Error, GpuInfo, ops};
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use welte_device::Phases;
use welte_formats::files;

/// Files in `kernels/`, by the names that `#include` and [`Unit`] use.
macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file in `kernels/`.
pub(crate) const SOURCES: &[(&str, &str)] = sources![
    "angle.cuh",
    "attention.cu",
    "attention.cuh",
    "attention_plain.cu",
    "attention_prefill.cu",
    "attention_wide.cu",
    "attention_wide_prefill.cu",
    "basic.cu",
    "blocks.cuh",
    "common.cuh",
    "columns.cu",
    "columns.cuh",
    "columns_wide.cu",
    "conv.cu",
    "dequant.cu",
    "dequant.cuh",
    "eighths.cu",
    "embed.cu",
    "encode.cu",
    "encode.cuh",
    "encode_tiles.cu",
    "experts.cu",
    "flash.cuh",
    "format/affine.cuh",
    "format/bf16.cuh",
    "format/codebook.cuh",
    "format/f16.cuh",
    "format/f32.cuh",
    "format/f8_e4m3.cuh",
    "format/integers.cuh",
    "format/iq1_m.cuh",
    "format/iq1_s.cuh",
    "format/iq2_s.cuh",
    "format/iq2_xs.cuh",
    "format/iq2_xxs.cuh",
    "format/iq3_s.cuh",
    "format/iq3_xxs.cuh",
    "format/iq4_nl.cuh",
    "format/iq4_xs.cuh",
    "format/k_head.cuh",
    "format/mxfp4.cuh",
    "format/nvfp4.cuh",
    "format/nvfp4_f32.cuh",
    "format/q2_k.cuh",
    "format/q3_k.cuh",
    "format/q4_0.cuh",
    "format/q4_1.cuh",
    "format/q4_k.cuh",
    "format/q5_0.cuh",
    "format/q5_1.cuh",
    "format/q5_k.cuh",
    "format/q6_k.cuh",
    "format/q8_0.cuh",
    "format/signed.cuh",
    "format/small_float.cuh",
    "format/tq1_0.cuh",
    "format/tq2_0.cuh",
    "gated_delta.cu",
    "gemm.cu",
    "gemm.cuh",
    "gemm_wide.cu",
    "heads.cu",
    "streams.cu",
    "kv.cuh",
    "logprobs.cu",
    "logprobs.cuh",
    "mamba2.cu",
    "matmul.cu",
    "persistent.cu",
    "persistent_rows.cu",
    "persistent/add_normed.cuh",
    "persistent/attend.cuh",
    "persistent/block.cuh",
    "persistent/cached.cuh",
    "persistent/choose.cuh",
    "persistent/conv.cuh",
    "persistent/embed.cuh",
    "persistent/exchange.cuh",
    "persistent/experts.cuh",
    "persistent/scores.cuh",
    "persistent/formats.cuh",
    "persistent/partition.cuh",
    "persistent/product.cuh",
    "persistent/recurrent.cuh",
    "persistent/route.cuh",
    "persistent/rows.cuh",
    "persistent/rows_attend.cuh",
    "persistent/rows_product.cuh",
    "persistent/stage.cuh",
    "persistent/start.cuh",
    "persistent/stream.cuh",
    "persistent/tile.cuh",
    "persistent/tensor.cuh",
    "persistent/rows_tensor.cuh",
    "prepare.cu",
    "prompt.cuh",
    "ptx.cuh",
    "quantise.cuh",
    "rank.cuh",
    "read.cu",
    "repack.cu",
    "rope.cu",
    "sample.cu",
    "sample.cuh",
    "softmax.cuh",
    "splits.cuh",
    "state.cuh",
    "tile.cuh",
    "turn.cu",
    "weights.cuh",
    "wide.cuh",
    "wgmma.cuh",
];

/// Files whose kernels compute the same for a row in several ways, alone and beside others, and must give it the same bits. The compiler may not choose where
/// a product and a sum become one operation: only `fmaf` does this.
pub(crate) const DECODE_UNITS: [&str; 6] = [
    "columns.cu",
    "columns_wide.cu",
    "logprobs.cu",
    "matmul.cu",
    "persistent.cu",
    "persistent_rows.cu",
];

/// A compiled unit, for tests.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The file and its macros.
    pub name: String,
    /// Whether decoding spends its time here.
    pub hot: bool,
    /// Bytes of code.
    pub bytes: usize,
    /// Bytes of registers spilled to memory, over all kernels of the file.
    pub spills: u64,
    /// The assembler's output.
    pub log: String,
}

/// How much of the kernels is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every file once per format, by the compiler's front end, which makes no code.
    Syntax,
    /// Every file once per format, and once with each combination of its other macros.
    Cover,
    /// Every listed variant.
    Variants,
}

/// Compiles every kernel file for an architecture such as `sm_90a`. Needs the run-time compiler but no GPU. The error names
/// file and line. What compiles is noted in the folder `notes`, and not compiled again while sources, options and compiler
/// are the same.
pub fn compile_all(arch: &str, depth: Depth, notes: &Path) -> Result<Vec<Compiled>, Error> {
    let compiler = Compiler::find().map_err(Error::NoCompiler)?;
    let mut listed = ops::catalogue();
    listed.retain(|l| ops::tile::is_for(&l.unit, arch));
    if arch == "sm_89" {
        // It differs from sm_80 in the conversion of 8-bit floats alone.
        let converts = |define: &(&str, String)| define.1.contains("f8_e4m3");
        listed.retain(|l| l.unit.defines.iter().any(converts));
    }
    if depth != Depth::Variants {
        let is_format = |key| ["FORMAT_FILE", "BITS", "GROUP", "BF16"].contains(&key);
        let mut seen = BTreeSet::new();
        listed.retain(|l| {
            let Unit { file, defines, .. } = &l.unit;
            let (format, rest): (Vec<_>, Vec<_>) = defines
                .iter()
                .cloned()
                .partition(|(key, _)| is_format(*key));
            let new_format = seen.insert((*file, true, format));
            new_format | (seen.insert((*file, false, rest)) && depth == Depth::Cover)
        });
    }
    let units: Vec<Unit> = listed.iter().map(|l| l.unit.clone()).collect();
    let results = in_parallel(&units, &|unit| {
        let source = source(unit.file).unwrap_or_default();
        noted(&compiler, source, unit, arch, depth, notes)
    });
    let hot = listed.iter().map(|listed| listed.hot);
    hot.zip(results)
        .map(|(hot, result)| Ok(Compiled { hot, ..result? }))
        .collect()
}

/// Compiles a unit with this source, unless that has been done.
fn noted(
    compiler: &Compiler,
    source: &str,
    unit: &Unit,
    arch: &str,
    depth: Depth,
    notes: &Path,
) -> Result<Compiled, Error> {
    let syntax = depth == Depth::Syntax;
    let path = notes.join(compiler.name_of_result(source, unit, arch, syntax));
    let known = read_cached(&path).and_then(|note| {
        let note = String::from_utf8(note).ok()?;
        let (bytes, log) = note.split_once('\n')?;
        Some((bytes.parse().ok()?, log.to_string()))
    });
    let (bytes, log) = match known {
        Some(known) => known,
        None => {
            let (image, log) = match syntax {
                true => {
                    compiler.check_text(source, unit, arch)?;
                    Default::default()
                }
                false => compiler.compile_text(source, unit, arch, true)?,
            };
            // Without a note the next run compiles again.
            let _ = write_cached(&path, format!("{}\n{log}", image.len()).as_bytes());
            (image.len(), log)
        }
    };
    Ok(Compiled {
        name: title(unit),
        hot: false,
        bytes,
        spills: spills(&log),
        log,
    })
}

/// Compiles a self-contained source, such as the text from
/// [`CudaDevice::persistent_source`](crate::CudaDevice::persistent_source). Needs the run-time compiler but no GPU. Notes are
/// as in [`compile_all`].
pub fn compile_alone(
    source: &str,
    arch: &str,
    depth: Depth,
    notes: &Path,
) -> Result<Compiled, Error> {
    let unit = Unit {
        file: "standalone.cu",
        generated: String::new(),
        defines: Vec::new(),
    };
    let compiler = Compiler::find().map_err(Error::NoCompiler)?;
    noted(&compiler, source, &unit, arch, depth, notes)
}

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

pub(crate) fn title(unit: &Unit) -> String {
    let mut name = unit.file.to_string();
    for (key, value) in &unit.defines {
        name += &format!(" {key}={value}");
    }
    name
}

/// Runs `work` over the units on as many threads as there are cores.
fn in_parallel<T: Send>(units: &[Unit], work: &(dyn Fn(&Unit) -> T + Sync)) -> Vec<T> {
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

/// The text of a file of `kernels/`.
pub(crate) fn source(file: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(name, _)| *name == file)
        .map(|(_, source)| *source)
}

/// Bytes of spilled registers, from the assembler's output.
fn spills(log: &str) -> u64 {
    log.split(" bytes spill")
        .zip(log.split(" bytes spill").skip(1))
        .filter_map(|(before, _)| before.rsplit([' ', ',']).next()?.trim().parse::<u64>().ok())
        .sum()
}

const MAGIC: &[u8; 8] = b"weltecu1";

/// The folder for compiled kernels.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("welte").join("kernels"))
}

fn cache_name(unit: &Unit, arch: &str, driver: u32, version: Version) -> String {
    // Headers are shared, so any file may change the result.
    let name = hashed(&(unit, arch, driver, version, SOURCES));
    format!("{name}.cubin")
}

/// A file name for a key.
pub(crate) fn hashed(key: &impl Hash) -> String {
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", hash(1), hash(2))
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

fn sum(image: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

/// Reads a cached file; `None` if it is missing or damaged.
pub(crate) fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let image = bytes.strip_prefix(MAGIC)?;
    let (stored, image) = image.split_at_checked(8)?;
    (stored == sum(image).to_le_bytes()).then(|| image.to_vec())
}

pub(crate) fn write_cached(path: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        files::create_folder(folder)?;
    }
    let bytes = [MAGIC, &sum(image).to_le_bytes()[..], image].concat();
    files::replace_file(path, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_cache_file_is_not_used() {
        let path = std::env::temp_dir().join(format!("welte-cubin-{}", std::process::id()));
        write_cached(&path, b"code").unwrap();
        assert_eq!(read_cached(&path).unwrap(), b"code");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[17] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read_cached(&path).is_none());
        std::fs::write(&path, &bytes[..5]).unwrap();
        assert!(read_cached(&path).is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(read_cached(&path).is_none());
    }

    #[test]
    fn spills_are_counted() {
        let log = "info: 0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\ninfo: 0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads";
        assert_eq!(spills(log), 24);
        assert_eq!(spills("nothing"), 0);
    }
}
