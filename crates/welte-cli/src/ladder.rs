//! `welte bench --ladder`: the same tokens from a launch and an allocation per op up to one chain, rung by rung.

use crate::args::{BenchArgs, Rows};
use crate::{bench, source};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;
use welte::{Device, Replay, Sampling, Session};

/// The rungs, in the order in which engines climb them.
const RUNGS: [(Replay, &str); 4] = [
    (Replay::Allocate, "allocate per op"),
    (Replay::Eager, "preallocated"),
    (Replay::Graph, "graph"),
    (Replay::Chain, "chained"),
];

/// What one rung came to, per token.
struct Rung {
    name: &'static str,
    /// Medians over the repetitions.
    ms: f64,
    best: f64,
}

/// What the rungs are set against.
struct Floor {
    /// Milliseconds in which memory gives a token's bytes.
    ms: f64,
    /// Bytes of a token.
    bytes: f64,
    /// Bytes per second.
    speed: f64,
    /// Milliseconds in which kernels are at work.
    kernel_ms: f64,
}

pub(crate) fn run(args: &BenchArgs, named: &str, context: u32) -> anyhow::Result<ExitCode> {
    let model = source::load_with(named, &args.load_args(None, context).options()?)?;
    let Device::Cuda(_) = model.device() else {
        let why = model.why_cpu().unwrap_or("it was asked for the CPU");
        anyhow::bail!("--ladder: needs a GPU, and the model runs on the CPU: {why}");
    };
    let n = args.n_gen.iter().copied().find(|n| *n > 0).unwrap_or(128);
    let depth = args.n_depth.first().copied().unwrap_or(0);
    let mut session = model.session()?;
    session.set_sampling(&Sampling::default(), &[]);
    let mut rungs = Vec::new();
    for (replay, name) in RUNGS {
        session.device().set_replay(replay)?;
        let mut times = times(&mut session, n, depth, args.repetitions)?;
        times.sort_by(f64::total_cmp);
        rungs.push(Rung {
            name,
            ms: times[times.len() / 2],
            best: times[0],
        });
    }
    let speed = welte::read_bandwidth(model.device(), 0, 0.5)?;
    let bytes = (0..n)
        .map(|i| model.bytes_per_token((depth + i + 1) as usize) as f64)
        .sum::<f64>()
        / f64::from(n);
    let floor = Floor {
        ms: 1e3 * bytes / speed,
        bytes,
        speed,
        kernel_ms: kernel_ms(&mut session, n, depth)?,
    };
    let mut out = std::io::stdout().lock();
    match args.output {
        Rows::Md => table(&mut out, named, &floor, &rungs)?,
        Rows::Csv => csv(&mut out, &floor, &rungs)?,
        Rows::Json => writeln!(out, "{:#}", json(named, &floor, &rungs))?,
        Rows::Jsonl => writeln!(out, "{}", json(named, &floor, &rungs))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Milliseconds per token, by repetition.
fn times(session: &mut Session, n: u32, depth: u32, repetitions: u32) -> anyhow::Result<Vec<f64>> {
    bench::reach(session, depth)?;
    bench::decode(session, n.min(8))?;
    (0..repetitions)
        .map(|_| {
            session.truncate(depth as usize);
            let start = Instant::now();
            bench::decode(session, n)?;
            Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(n))
        })
        .collect()
}

/// Milliseconds per token in which kernels run, by the device's profile.
fn kernel_ms(session: &mut Session, n: u32, depth: u32) -> anyhow::Result<f64> {
    bench::reach(session, depth)?;
    session.device().set_profiling(true);
    bench::decode(session, n)?;
    let ns: u64 = session.device().profile().iter().map(|p| p.ns).sum();
    session.device().set_profiling(false);
    Ok(ns as f64 / 1e6 / f64::from(n))
}

impl Rung {
    /// Milliseconds in which no kernel is at work.
    fn gap_ms(&self, floor: &Floor) -> f64 {
        (self.ms - floor.kernel_ms).max(0.0)
    }
}

fn table(out: &mut impl Write, named: &str, floor: &Floor, rungs: &[Rung]) -> std::io::Result<()> {
    writeln!(
        out,
        "{named}: {:.1} MB per token at {:.1} GB/s: {:.3} ms at the least; kernels {:.3} ms",
        floor.bytes / 1e6,
        floor.speed / 1e9,
        floor.ms,
        floor.kernel_ms,
    )?;
    writeln!(
        out,
        "| rung | ms per token | fastest | kernels ms | gaps ms | gaps | t/s | GB/s | % of floor |"
    )?;
    writeln!(
        out,
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for rung in rungs {
        let gap = rung.gap_ms(floor);
        writeln!(
            out,
            "| {} | {:.3} | {:.3} | {:.3} | {gap:.3} | {:.1} % | {:.1} | {:.0} | {:.0} % |",
            rung.name,
            rung.ms,
            rung.best,
            rung.ms - gap,
            100.0 * gap / rung.ms,
            1e3 / rung.ms,
            floor.bytes / rung.ms / 1e6,
            100.0 * floor.ms / rung.ms,
        )?;
    }
    Ok(())
}

fn csv(out: &mut impl Write, floor: &Floor, rungs: &[Rung]) -> std::io::Result<()> {
    writeln!(
        out,
        "rung,ms_per_token,fastest_ms,kernel_ms,gap_ms,floor_ms,floor_gb_s"
    )?;
    for rung in rungs {
        writeln!(
            out,
            "{},{:.5},{:.5},{:.5},{:.5},{:.5},{:.2}",
            rung.name,
            rung.ms,
            rung.best,
            floor.kernel_ms,
            rung.gap_ms(floor),
            floor.ms,
            floor.speed / 1e9,
        )?;
    }
    Ok(())
}

fn json(named: &str, floor: &Floor, rungs: &[Rung]) -> serde_json::Value {
    let rungs: Vec<serde_json::Value> = rungs
        .iter()
        .map(|rung| {
            serde_json::json!({
                "rung": rung.name, "ms_per_token": rung.ms, "fastest_ms": rung.best,
                "gap_ms": rung.gap_ms(floor), "floor_share": floor.ms / rung.ms,
            })
        })
        .collect();
    serde_json::json!({
        "model": named, "bytes_per_token": floor.bytes, "floor_gb_s": floor.speed / 1e9, "floor_ms": floor.ms,
        "kernel_ms": floor.kernel_ms, "rungs": rungs,
    })
}
