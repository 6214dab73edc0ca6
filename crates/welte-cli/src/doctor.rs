//! `welte doctor`: what this machine offers.

use crate::args::{DoctorArgs, Plain};
use crate::source;
use std::io::Write;
use std::process::ExitCode;
use welte::memory::{available, human, total};
use welte::{Device, Isa};

/// How long bandwidth is measured.
const SECONDS: f64 = 0.5;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isas: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    let (one, all) = (
        welte::read_bandwidth(Device::Cpu, 1, SECONDS)?,
        welte::read_bandwidth(Device::Cpu, cores, SECONDS)?,
    );
    let info = welte::cpu_info();
    let (model, pages) = (
        info.model.as_deref().unwrap_or("unknown"),
        info.huge_pages.as_deref().unwrap_or("unknown"),
    );
    let bundled = source::bundled();
    let mut out = std::io::stdout().lock();
    if args.output == Plain::Json {
        let report = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "cpu": model, "huge_pages": pages, "cores": cores, "isa": Isa::best().name(), "isas": isas,
            "memory_total": total(), "memory_available": available(),
            "read_gb_s_one_thread": one / 1e9, "read_gb_s_all_threads": all / 1e9,
            "devices": ["cpu"], "bundled_model": bundled,
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
    writeln!(out, "devices        cpu")?;
    writeln!(
        out,
        "bundled model  {}",
        bundled.as_deref().unwrap_or("not found (models/demo.gguf)")
    )?;
    Ok(ExitCode::SUCCESS)
}
