//! `welte bench --ladder`: the same tokens from a launch and an allocation per op up to one chain, rung by rung.

use crate::args::{BenchArgs, Rows};
use crate::{bench, source};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;
use welte::{Device, Replay, Sampling, Session};

/// The rungs, in the order in which engines climb them.
const RUNGS: [Step; 6] = [
    Step::new("allocate per op", Replay::Allocate, 1),
    Step::new("preallocated", Replay::Eager, 1),
    Step::new("graph", Replay::Graph, 1),
    Step::new(CHAINED, Replay::Graph, u32::MAX),
    Step::new("loop on the GPU", Replay::While, u32::MAX),
    Step::new("persistent", Replay::Persistent, u32::MAX),
];
/// The rung whose launches are measured without work.
const CHAINED: &str = "chained";

/// How a rung runs.
struct Step {
    name: &'static str,
    replay: Replay,
    /// Tokens of one submission: the host waits for the last before it submits more.
    chain: u32,
}

impl Step {
    const fn new(name: &'static str, replay: Replay, chain: u32) -> Step {
        Step {
            name,
            replay,
            chain,
        }
    }
}

/// How often the launches without work are repeated.
const IDLE_REPLAYS: u32 = 100;

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
    /// Milliseconds in which kernels are at work: a chain's time without that of its launches alone.
    kernel_ms: f64,
}

pub(crate) fn run(args: &BenchArgs, named: &str, context: u32) -> anyhow::Result<ExitCode> {
    let mut options = args.load_args(None, context).options()?;
    // With the loop on the GPU every other way is there too.
    options.replay = Replay::While;
    let model = source::load_with(named, &options)?;
    let Device::Cuda(_) = model.device() else {
        let why = model.why_cpu().unwrap_or("it was asked for the CPU");
        anyhow::bail!("--ladder: needs a GPU, and the model runs on the CPU: {why}");
    };
    let n = args.n_gen.iter().copied().find(|n| *n > 0).unwrap_or(128);
    let depth = args.n_depth.first().copied().unwrap_or(0);
    let mut session = model.session()?;
    session.set_sampling(&Sampling::default(), &[]);
    let mut rungs = Vec::new();
    for step in RUNGS {
        let device = session.device().cuda()?;
        if let Err(error) = device.set_replay(step.replay) {
            eprintln!("note: {} is left out: {error}", step.name);
            continue;
        }
        if let Some(why) = device.note() {
            eprintln!("note: {} is left out: {why}", step.name);
            continue;
        }
        let mut times = times(&mut session, n, depth, step.chain, args.repetitions)?;
        times.sort_by(f64::total_cmp);
        rungs.push(Rung {
            name: step.name,
            ms: times[times.len() / 2],
            best: times[0],
        });
    }
    let speed = welte::read_bandwidth(model.device(), 0, 0.5)?;
    let bytes = (0..n)
        .map(|i| model.bytes_per_token((depth + i + 1) as usize) as f64)
        .sum::<f64>()
        / f64::from(n);
    let chained = rungs.iter().find(|rung| rung.name == CHAINED);
    let chained = chained.map_or(0.0, |rung| rung.ms);
    let floor = Floor {
        ms: 1e3 * bytes / speed,
        bytes,
        speed,
        kernel_ms: (chained - idle_ms(&mut session)?).max(0.0),
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
fn times(
    session: &mut Session,
    n: u32,
    depth: u32,
    chain: u32,
    repetitions: u32,
) -> anyhow::Result<Vec<f64>> {
    bench::reach(session, depth)?;
    bench::decode(session, n.min(8), chain)?;
    (0..repetitions)
        .map(|_| {
            session.truncate(depth as usize);
            let start = Instant::now();
            bench::decode(session, n, chain)?;
            Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(n))
        })
        .collect()
}

/// Milliseconds that the launches of a token take where every kernel returns at once: the gaps of a chain.
fn idle_ms(session: &mut Session) -> anyhow::Result<f64> {
    let device = session.device().cuda()?;
    device.set_replay(Replay::Graph)?;
    Ok(device.idle_ns(IDLE_REPLAYS)? as f64 / 1e6)
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
