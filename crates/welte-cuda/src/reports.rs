//! Reports on the GPUs of this machine and on the libraries that the device uses.

use crate::cublas;
use crate::{GpuInfo, compile, disk, gpu, info, plan};
use std::path::Path;
use welte_device::{DeviceId, DeviceReport, Error as DeviceError};

/// A report for every GPU, or one that says why no GPU can be used.
pub fn reports() -> Vec<DeviceReport> {
    let first = match info::info(0) {
        Ok(first) => first,
        Err(error) => return vec![missing(0, error.to_string())],
    };
    let others = (1..first.devices).map(|ordinal| match info::info(ordinal) {
        Ok(gpu) => report(&gpu),
        Err(error) => missing(ordinal, error.to_string()),
    });
    std::iter::once(report(&first)).chain(others).collect()
}

/// The run-time compiler's version. The error names the missing part.
pub fn compiler_version() -> Result<String, DeviceError> {
    compile::version().map_err(|error| error.on(DeviceId::numbered("cuda", 0)))
}

fn missing(ordinal: u32, why: String) -> DeviceReport {
    DeviceReport {
        id: DeviceId::numbered("cuda", ordinal),
        name: String::new(),
        memory_total: None,
        memory_available: None,
        facts: libraries_and_cache(),
        replays: Vec::new(),
        missing: Some(why),
    }
}

fn report(gpu: &GpuInfo) -> DeviceReport {
    let (replays, no_persistent) = plan::replays(gpu);
    let mut facts = vec![
        (
            "compute capability",
            format!("{}.{}", gpu.arch / 10, gpu.arch % 10),
        ),
        ("multiprocessors", gpu.sms.to_string()),
        (
            "driver",
            format!("CUDA {}.{}", gpu.driver / 1000, gpu.driver % 1000 / 10),
        ),
    ];
    if gpu.bandwidth > 0 {
        let rate = format!("{} GB/s", gpu.bandwidth / 1_000_000_000);
        facts.push(("memory bandwidth", rate));
    }
    if let Some(why) = no_persistent {
        facts.push(("replay", why));
    }
    let mut facts: Vec<(String, String)> = facts
        .into_iter()
        .map(|(name, fact)| (name.to_string(), fact))
        .collect();
    facts.extend(libraries_and_cache());
    DeviceReport {
        id: DeviceId::numbered("cuda", gpu.device),
        name: gpu.name.clone(),
        memory_total: Some(gpu.memory),
        memory_available: gpu::free_memory(gpu.device).ok(),
        facts,
        replays,
        missing: None,
    }
}

/// The libraries that are opened at load, and the kernel cache.
fn libraries_and_cache() -> Vec<(String, String)> {
    let compiler = match compile::version() {
        Ok(version) => version,
        Err(error) => error.to_string(),
    };
    let cublaslt = cublaslt_version().unwrap_or_else(|| "missing; prompts are slower".to_string());
    let mut facts = vec![("NVRTC", compiler), ("cuBLASLt", cublaslt)];
    if let Some(folder) = disk::cache_folder() {
        facts.push(("kernel cache", kernels_in(&folder)));
    }
    let ready = disk::ready_folders().iter();
    facts.extend(ready.map(|folder| ("ready kernels", kernels_in(folder))));
    let facts = facts.into_iter();
    facts.map(|(name, fact)| (name.to_string(), fact)).collect()
}

fn kernels_in(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_kernel =
        |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|e| e == "cubin");
    let kernels = entries.filter(is_kernel).count();
    format!("{kernels} kernels in {}", folder.display())
}

fn cublaslt_version() -> Option<String> {
    let version = cublas::version();
    let text = || {
        format!(
            "{}.{}.{}",
            version / 10000,
            version / 100 % 100,
            version % 100
        )
    };
    (version > 0).then(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::h200;

    #[test]
    fn there_is_always_a_report() {
        for report in reports() {
            assert_eq!(report.id.kind, "cuda");
            assert_eq!(report.name.is_empty(), report.missing.is_some());
        }
        assert!(!reports().is_empty());
    }

    #[test]
    fn a_gpu_is_described_by_facts() {
        let report = report(&h200());
        assert_eq!((report.name.as_str(), report.missing), ("H200", None));
        let fact = |name: &str| {
            let found = report.facts.iter().find(|(known, _)| known == name);
            found.map(|(_, fact)| fact.as_str())
        };
        assert_eq!(fact("compute capability"), Some("9.0"));
        assert_eq!(fact("driver"), Some("CUDA 13.0"));
        assert!(fact("NVRTC").is_some() && fact("cuBLASLt").is_some());
        assert_eq!(fact("replay"), None);
    }
}
