//! Compiles kernels from source at load: NVRTC, on several threads, with a cache on disk.
#![allow(unsafe_code)]

use crate::launch::Unit;
use crate::{Error, GpuInfo, libraries, ops};
use cudarc::nvrtc::sys as nvrtc;
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{CString, c_char};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use welte_device::Phases;

/// Files in `kernels/`, by the names that `#include` and [`Unit`] use.
macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file in `kernels/`.
const SOURCES: &[(&str, &str)] = sources![
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
const DECODE_UNITS: [&str; 6] = [
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

/// Compiles every kernel file for an architecture such as `sm_90a`, in every listed variant or only once per format.
/// Needs the run-time compiler but no GPU. The error names file and line.
pub fn compile_all(arch: &str, every_variant: bool) -> Result<Vec<Compiled>, Error> {
    let compiler = Compiler::find()?;
    let mut listed = ops::catalogue();
    listed.retain(|l| ops::tile::is_for(&l.unit, arch));
    if arch == "sm_89" {
        // It differs from sm_80 in the conversion of 8-bit floats alone.
        let converts = |define: &(&str, String)| define.1.contains("f8_e4m3");
        listed.retain(|l| l.unit.defines.iter().any(converts));
    }
    if !every_variant {
        let mut seen = BTreeSet::new();
        let format = |unit: &Unit| {
            let of_format = ["FORMAT_FILE", "BITS", "GROUP", "BF16"];
            let defines = unit
                .defines
                .iter()
                .filter(|(key, _)| of_format.contains(key));
            defines.cloned().collect::<Vec<_>>()
        };
        listed.retain(|l| seen.insert((l.unit.file, format(&l.unit))));
    }
    let units: Vec<Unit> = listed.iter().map(|l| l.unit.clone()).collect();
    let results = in_parallel(&units, &|unit| compiler.compile(unit, arch, true));
    listed
        .iter()
        .zip(results)
        .map(|(listed, result)| {
            let (image, log) = result?;
            Ok(Compiled {
                name: title(&listed.unit),
                hot: listed.hot,
                bytes: image.len(),
                spills: spills(&log),
                log,
            })
        })
        .collect()
}

/// Compiles a self-contained source, such as the text from
/// [`CudaDevice::persistent_source`](crate::CudaDevice::persistent_source). Needs the run-time compiler but no GPU.
pub fn compile_alone(source: &str, arch: &str) -> Result<Compiled, Error> {
    let unit = Unit {
        file: "standalone.cu",
        generated: String::new(),
        defines: Vec::new(),
    };
    let (image, log) = Compiler::find()?.compile_text(source, &unit, arch, true)?;
    Ok(Compiled {
        name: title(&unit),
        hot: false,
        bytes: image.len(),
        spills: spills(&log),
        log,
    })
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
    let compiler = Compiler::find();
    let version = compiler.as_ref().map_or((0, 0), |c| c.version);
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
            .map_err(|e| Error::NoCompiler(e.to_string()))?;
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
    let (major, minor) = Compiler::find()?.version;
    Ok(format!("{major}.{minor}"))
}

/// A number that changes with the kernels' source, the run-time compiler and the driver.
pub(crate) fn kernels_version(driver: u32) -> String {
    let mut hasher = DefaultHasher::new();
    (SOURCES, driver, version().ok()).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The compiler's name of an architecture.
pub(crate) fn arch_name(arch: u32) -> String {
    match arch {
        90 => "sm_90a".to_string(),
        other => format!("sm_{other}"),
    }
}

fn title(unit: &Unit) -> String {
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

/// The run-time compiler and CUDA's headers.
struct Compiler {
    version: (i32, i32),
    include: PathBuf,
}

impl Compiler {
    fn find() -> Result<Compiler, Error> {
        if !libraries::has_nvrtc() {
            return Err(Error::NoCompiler(
                "libnvrtc is missing: install the CUDA toolkit (or its nvrtc package) and set CUDA_HOME to its folder, or put its lib folder on the library path"
                    .to_string(),
            ));
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the compiler writes two numbers.
        unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
        let include = include_folder().ok_or_else(|| {
            Error::NoCompiler(
                "cuda_fp16.h was not found: set CUDA_HOME to the folder of the CUDA toolkit that has include/cuda_fp16.h"
                    .to_string(),
            )
        })?;
        Ok(Compiler {
            version: (major, minor),
            include,
        })
    }

    /// Compiles a unit. Returns the cubin and the assembler's output.
    fn compile(&self, unit: &Unit, arch: &str, verbose: bool) -> Result<(Vec<u8>, String), Error> {
        let missing = || Error::Compile {
            unit: title(unit),
            arch: arch.to_string(),
            log: "no such file".to_string(),
        };
        let source = source(unit.file).ok_or_else(missing)?;
        self.compile_text(source, unit, arch, verbose)
    }

    /// Compiles `source` in place of the unit's file.
    fn compile_text(
        &self,
        source: &str,
        unit: &Unit,
        arch: &str,
        verbose: bool,
    ) -> Result<(Vec<u8>, String), Error> {
        let refused = |log: String| Error::Compile {
            unit: title(unit),
            arch: arch.to_string(),
            log,
        };
        let text = |text: &str| CString::new(text).map_err(|e| refused(e.to_string()));
        let mut options = vec![
            text(&format!("--gpu-architecture={arch}"))?,
            text("--std=c++17")?,
            text(&format!("--include-path={}", self.include.display()))?,
        ];
        if DECODE_UNITS.contains(&unit.file) {
            options.push(text("--fmad=false")?);
        }
        if verbose {
            options.push(text("--ptxas-options=-v")?);
        }
        for (key, value) in &unit.defines {
            options.push(text(&format!("--define-macro={key}={value}"))?);
        }
        let headers: Vec<(CString, CString)> = SOURCES
            .iter()
            .map(|(name, source)| Ok((text(name)?, text(source)?)))
            .chain([Ok((text("generated.cuh")?, text(&unit.generated)?))])
            .collect::<Result<_, Error>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let bodies: Vec<*const c_char> = headers.iter().map(|(_, body)| body.as_ptr()).collect();
        let options: Vec<&CString> = options.iter().collect();
        let option_texts: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let (source, name) = (text(source)?, text(unit.file)?);
        let mut program = Program(std::ptr::null_mut());
        // SAFETY: every string ends in a zero and outlives the calls; the counts match the lists.
        unsafe {
            let made = nvrtc::nvrtcCreateProgram(
                &mut program.0,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                bodies.as_ptr(),
                names.as_ptr(),
            );
            if made != nvrtc::nvrtcResult::NVRTC_SUCCESS {
                return Err(refused(format!("{made:?}")));
            }
            let compiled = nvrtc::nvrtcCompileProgram(
                program.0,
                option_texts.len() as i32,
                option_texts.as_ptr(),
            );
            let log = program.log();
            if compiled != nvrtc::nvrtcResult::NVRTC_SUCCESS {
                return Err(refused(log));
            }
            let image = program
                .image()
                .ok_or_else(|| refused("no code".to_string()))?;
            Ok((image, log))
        }
    }
}

/// The run-time compiler's handle for one compilation.
struct Program(nvrtc::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program exists. The compiler writes as many bytes as it asked for.
        let bytes = unsafe {
            nvrtc::nvrtcGetProgramLogSize(self.0, &mut size);
            let mut bytes = vec![0u8; size.max(1)];
            nvrtc::nvrtcGetProgramLog(self.0, bytes.as_mut_ptr().cast());
            bytes
        };
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .trim()
            .to_string()
    }

    fn image(&self) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: as in `log`.
        unsafe {
            nvrtc::nvrtcGetCUBINSize(self.0, &mut size);
            let mut image = vec![0u8; size];
            let got = nvrtc::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast());
            (size > 0 && got == nvrtc::nvrtcResult::NVRTC_SUCCESS).then_some(image)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: `nvrtcCreateProgram` created it, or it is null.
        unsafe {
            if !self.0.is_null() {
                nvrtc::nvrtcDestroyProgram(&mut self.0);
            }
        }
    }
}

/// The text of a file of `kernels/`.
pub(crate) fn source(file: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(name, _)| *name == file)
        .map(|(_, source)| *source)
}

/// The folder with CUDA's headers.
fn include_folder() -> Option<PathBuf> {
    let folders = libraries::homes().into_iter();
    folders
        .map(|home| home.join("include"))
        .find(|folder| folder.join("cuda_fp16.h").is_file())
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

fn cache_name(unit: &Unit, arch: &str, driver: u32, version: (i32, i32)) -> String {
    // Headers are shared, so any file may change the result.
    let name = hashed(&(unit, arch, driver, version, SOURCES));
    format!("{name}.cubin")
}

/// A file name for a key.
fn hashed(key: &impl Hash) -> String {
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
    let library = ops::library::version();
    let name = hashed(&(key, &gpu.name, gpu.sms, gpu.clock_khz, library, kernels));
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
        std::fs::create_dir_all(folder)?;
    }
    // Written under a temporary name first, so that no reader sees half a file.
    let own = path.with_extension(format!("{}.part", std::process::id()));
    let bytes = [MAGIC, &sum(image).to_le_bytes()[..], image].concat();
    let written = std::fs::write(&own, bytes).and_then(|()| std::fs::rename(&own, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&own);
    }
    written
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
