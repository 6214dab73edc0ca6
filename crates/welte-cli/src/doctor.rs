//! `welte doctor`: what this machine offers.

use crate::args::{DoctorArgs, Plain};
use crate::{floor, source};
use std::io::Write;
use std::process::ExitCode;
use welte::memory::{available, human, total};
use welte::{CudaTools, Device, GpuInfo, Isa};

/// How long bandwidth is measured.
const SECONDS: f64 = 0.5;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isas: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    let (one, all) = (
        welte::read_bandwidth(Device::Cpu, 1, SECONDS)?,
        welte::read_bandwidth(Device::Cpu, cores, SECONDS)?,
    );
    floor::remember(Device::Cpu, all);
    let info = welte::cpu_info();
    let (model, pages) = (
        info.model.as_deref().unwrap_or("unknown"),
        info.huge_pages.as_deref().unwrap_or("unknown"),
    );
    let bundled = source::bundled();
    let gpus = gpus();
    for gpu in gpus.iter().flatten() {
        if let Ok(speed) = &gpu.reads {
            floor::remember(Device::Cuda(gpu.info.device), *speed);
        }
    }
    let tools = welte::cuda_tools();
    let mut out = std::io::stdout().lock();
    if args.output == Plain::Json {
        let report = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "cpu": model, "huge_pages": pages, "cores": cores, "isa": Isa::best().name(), "isas": isas,
            "memory_total": total(), "memory_available": available(),
            "read_gb_s_one_thread": one / 1e9, "read_gb_s_all_threads": all / 1e9,
            "devices": devices(&gpus), "cuda": cuda_json(&gpus, &tools), "bundled_model": bundled,
        });
        writeln!(out, "{report:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let memory = |bytes: Option<u64>| bytes.map_or("unknown".to_string(), human);
    writeln!(out, "welte          {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "processor      {model}")?;
    writeln!(out, "cores          {cores}")?;
    writeln!(
        out,
        "instructions   {} (available: {})",
        Isa::best().name(),
        isas.join(", ")
    )?;
    writeln!(
        out,
        "memory         {} available of {}",
        memory(available()),
        memory(total())
    )?;
    writeln!(out, "huge pages     {pages}")?;
    writeln!(
        out,
        "reads          {:.1} GB/s with one thread, {:.1} GB/s with {cores}",
        one / 1e9,
        all / 1e9
    )?;
    cuda_text(&mut out, &gpus, &tools)?;
    writeln!(out, "devices        {}", devices(&gpus).join(", "))?;
    writeln!(
        out,
        "bundled model  {}",
        bundled.as_deref().unwrap_or("not found (models/demo.gguf)")
    )?;
    Ok(ExitCode::SUCCESS)
}

/// A GPU with what was measured on it: bytes free, bytes per second.
struct Gpu {
    info: GpuInfo,
    free: Result<u64, welte::Error>,
    reads: Result<f64, welte::Error>,
}

/// Every GPU, or why there is none.
fn gpus() -> Result<Vec<Gpu>, welte::Error> {
    let first = welte::gpu_info(0)?;
    let look = |number| -> Result<Gpu, welte::Error> {
        Ok(Gpu {
            info: welte::gpu_info(number)?,
            free: welte::gpu_free_memory(number),
            reads: welte::read_bandwidth(Device::Cuda(number), 0, SECONDS),
        })
    };
    (0..first.devices).map(look).collect()
}

/// What `--device` takes here.
fn devices(gpus: &Result<Vec<Gpu>, welte::Error>) -> Vec<String> {
    let gpus = gpus.iter().flatten();
    let numbers = gpus.map(|gpu| Device::Cuda(gpu.info.device).to_string());
    std::iter::once("cpu".to_string()).chain(numbers).collect()
}

fn cuda_text(
    out: &mut impl Write,
    gpus: &Result<Vec<Gpu>, welte::Error>,
    tools: &CudaTools,
) -> std::io::Result<()> {
    match gpus {
        Err(why) => writeln!(out, "GPU            none: {why}")?,
        Ok(gpus) => {
            for gpu in gpus {
                let info = &gpu.info;
                writeln!(
                    out,
                    "{:<14} {}, compute {}.{}, {} multiprocessors, {:.0} MiB of cache, driver for CUDA {}.{}",
                    Device::Cuda(info.device).to_string(),
                    info.name,
                    info.arch / 10,
                    info.arch % 10,
                    info.sms,
                    info.l2_bytes as f64 / 1_048_576.0,
                    info.driver / 1000,
                    info.driver % 1000 / 10,
                )?;
                match &gpu.free {
                    Ok(free) => writeln!(
                        out,
                        "  memory       {} free of {}",
                        human(*free),
                        human(info.memory)
                    )?,
                    Err(why) => writeln!(out, "  memory       unknown: {why}")?,
                }
                match &gpu.reads {
                    Ok(speed) => writeln!(
                        out,
                        "  reads        {:.1} GB/s (its clock says {:.1})",
                        speed / 1e9,
                        info.bandwidth as f64 / 1e9
                    )?,
                    Err(why) => writeln!(out, "  reads        not measured: {why}")?,
                }
                writeln!(out, "  replay       {}", replay_text(info))?;
            }
        }
    }
    match &tools.compiler {
        Ok(version) => writeln!(out, "NVRTC          {version}")?,
        Err(why) => writeln!(out, "NVRTC          none: {why}")?,
    }
    writeln!(
        out,
        "cuBLASLt       {}",
        tools
            .cublaslt
            .as_deref()
            .unwrap_or("none (libcublasLt is not on the library path)")
    )?;
    match &tools.cache {
        Some(folder) => writeln!(
            out,
            "kernel cache   {} kernels in {}",
            tools.cached,
            folder.display()
        ),
        None => writeln!(
            out,
            "kernel cache   none: neither XDG_CACHE_HOME nor HOME is set"
        ),
    }
}

/// How this GPU can replay chains, and why not by the persistent kernel.
fn replay_text(gpu: &GpuInfo) -> String {
    let (ways, why) = welte::replays(gpu);
    let names: Vec<&str> = ways.iter().map(|way| way.name()).collect();
    match why {
        Some(why) => format!("{} ({why})", names.join(", ")),
        None => names.join(", "),
    }
}

fn cuda_json(gpus: &Result<Vec<Gpu>, welte::Error>, tools: &CudaTools) -> serde_json::Value {
    let all: Vec<serde_json::Value> = gpus
        .iter()
        .flatten()
        .map(|gpu| {
            let info = &gpu.info;
            let (ways, why) = welte::replays(info);
            let names: Vec<&str> = ways.iter().map(|way| way.name()).collect();
            serde_json::json!({
                "device": info.device, "name": info.name, "arch": info.arch, "sms": info.sms, "l2_bytes": info.l2_bytes,
                "driver": info.driver, "memory_total": info.memory, "memory_free": gpu.free.as_ref().ok(),
                "read_gb_s": gpu.reads.as_ref().ok().map(|speed| speed / 1e9),
                "clock_gb_s": info.bandwidth as f64 / 1e9, "replays": names, "why_not_persistent": why,
            })
        })
        .collect();
    serde_json::json!({
        "gpus": all, "why_none": gpus.as_ref().err().map(ToString::to_string),
        "nvrtc": tools.compiler.as_ref().ok(), "why_no_nvrtc": tools.compiler.as_ref().err().map(ToString::to_string),
        "cublaslt": tools.cublaslt, "kernel_cache": tools.cache, "cached_kernels": tools.cached,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_says_how_it_can_replay() {
        let new = welte::assumed_gpu();
        assert_eq!(
            replay_text(&new),
            "persistent kernel, graph, loop on the GPU, launches"
        );
        let old = GpuInfo { arch: 86, ..new };
        assert_eq!(
            replay_text(&old),
            "graph, loop on the GPU, launches (not the persistent kernel: it needs compute capability 9.0, this GPU has 8.6)"
        );
        let gpus = Ok(vec![Gpu {
            info: old,
            free: Ok(1),
            reads: Ok(1e9),
        }]);
        let json = cuda_json(&gpus, &welte::cuda_tools());
        assert_eq!(json["gpus"][0]["replays"][0], "graph");
        assert!(json["gpus"][0]["why_not_persistent"].is_string());
    }
}
