//! Times decoding of made-up models by every kind of replay, and each op of a step:
//! `replay_bench qwen3-4b:q4_0 [DEPTH] [persistent] [graph] [launches] [loop] [chains] [tokens=N] ...`
//!
//! Prints per model: loading, microseconds per token of a chain of 128 or N (by each kind of replay, or those named), the same as bytes
//! per second, steps of 2, 4 and 8 rows by the persistent kernel beside launched ones (with what the host does for a step, and with
//! fetching the logits: of all rows for a decode step, of the last for a prompt), where the blocks of the persistent kernel spend their
//! time, a prompt of 512, and microseconds per token and op when each command is timed alone. With `chains` only chains.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use welte_cuda::{CudaContext, CudaDevice};
use welte_device::timeline::Timeline;
use welte_device::{ChainStart, Context, Control, DeviceOptions, Loaded, Replay, ReplayTools};
use welte_formats::synthetic::Synthetic;
use welte_table::{PassKind, Row};

/// The ways of replaying that are measured.
const WAYS: [Replay; 4] = [
    Replay::Persistent,
    Replay::Graph,
    Replay::Launches,
    Replay::Loop,
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut depths = Vec::new();
    let (mut shapes, mut kinds) = (Vec::new(), Vec::new());
    let mut only_chains = false;
    let mut tokens = 128;
    for argument in std::env::args().skip(1) {
        let way = WAYS.into_iter().find(|way| way.name() == argument);
        match (argument.parse::<u32>(), way) {
            (Ok(depth), _) => depths.push(depth),
            (_, Some(way)) => kinds.push(way),
            _ if argument == "chains" => only_chains = true,
            _ if argument.starts_with("tokens=") => tokens = argument["tokens=".len()..].parse()?,
            _ => shapes.push(argument),
        }
    }
    if kinds.is_empty() {
        kinds.extend(WAYS);
    }
    if depths.is_empty() {
        depths.push(64);
    }
    for shape in shapes {
        bench(&shape, &depths, &kinds, only_chains, tokens)?;
    }
    Ok(())
}

fn bench(
    shape: &str,
    depths: &[u32],
    kinds: &[Replay],
    only_chains: bool,
    tokens: u32,
) -> Result<(), Box<dyn Error>> {
    let checkpoint = Synthetic::parse(shape)?;
    let spec = welte_models::spec(&checkpoint)?;
    let deepest = depths.iter().max().copied().unwrap_or(0);
    let compile = welte_models::CompileOptions {
        context: deepest + 1024,
        ..Default::default()
    };
    let program = Arc::new(welte_table::fuse(
        welte_models::compile(&spec, &checkpoint, &compile)?,
        welte_table::PATTERNS,
    ));
    let weights = program.passes[0].row_bytes();
    let prompt_pass = program.pass(PassKind::Prompt).ok_or("no prompt pass")?;
    for &replay in kinds {
        let begun = Instant::now();
        let mut options = DeviceOptions::default();
        options.replay = Some(replay);
        let device = CudaDevice::open(0, &options)?;
        let program = device.load_program(program.clone(), &checkpoint)?;
        let loaded = begun.elapsed();
        let mut context = program.cuda_context()?;
        let ready = begun.elapsed();
        let replaying = ReplayTools::replaying(&mut context);
        println!("{shape} {replaying}: loaded {loaded:.2?}, ready {ready:.2?}");
        if let Some(tuning) = context.tuning() {
            println!("  {tuning}");
        }
        for &depth in depths {
            let start = ChainStart {
                slot: 0,
                token: 1,
                position: depth,
                steps: tokens,
                shift: 0,
            };
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let begun = Instant::now();
                context.chain(&[start], &Control::default(), &mut |_| true)?;
                best = best.min(begun.elapsed().as_secs_f64() / f64::from(tokens));
            }
            if let Some(note) = ReplayTools::replaying(&mut context).note {
                println!("  {note}");
            }
            let cached = program.program().position_bytes().unwrap_or(0) * u64::from(depth);
            println!(
                "  at {depth}: {:.1} us per token, {:.1} tok/s, {:.0} GB/s",
                best * 1e6,
                1.0 / best,
                (weights + cached) as f64 / best / 1e9
            );
        }
        if only_chains {
            continue;
        }
        if ReplayTools::replaying(&mut context).replay == Replay::Persistent {
            for &depth in depths {
                several(&mut context, depth)?;
            }
            times(&context.timeline(ChainStart {
                slot: 0,
                token: 1,
                position: depths[0],
                steps: 16,
                shift: 0,
            })?);
        }
        if replay != Replay::Graph {
            continue;
        }
        let prompt: Vec<Row> = (0..512).map(|position| Row::new(1, position, 0)).collect();
        context.step_rows(prompt_pass, &prompt, &[511])?;
        let begun = Instant::now();
        for _ in 0..4 {
            context.step_rows(prompt_pass, &prompt, &[511])?;
        }
        let each = begun.elapsed().as_secs_f64() / 4.0;
        println!("  prompt of 512: {:.0} tok/s", 512.0 / each);
        for (what, pass, rows, outputs) in [
            ("decode", 0, &prompt[511..], &[][..]),
            ("prompt", prompt_pass, &prompt[..], &[511]),
        ] {
            context.set_profiling(true)?;
            for _ in 0..8 {
                context.step_rows(pass, rows, outputs)?;
            }
            println!("  ops of a {what} step, each timed alone:");
            for op in context.profile().iter().filter(|op| op.calls > 0) {
                let (us, calls) = (op.ns as f64 / 8e3, op.calls / 8);
                println!(
                    "    {:20} {calls:4} x {:8.2} us = {us:9.1} us, {:6.0} GB/s",
                    op.op.name(),
                    us / calls as f64,
                    op.bytes as f64 / op.ns as f64
                );
            }
            context.set_profiling(false)?;
        }
    }
    Ok(())
}

/// Times steps of a few rows of one slot, by the persistent kernel and by launched kernels in turn.
fn several(context: &mut CudaContext, depth: u32) -> Result<(), Box<dyn Error>> {
    println!("  at {depth}: rows together: {:?}", context.rows_together());
    for count in [2, 4, 8] {
        let rows: Vec<Row> = (depth..depth + count)
            .map(|position| Row::new(1, position, 0))
            .collect();
        let last = [count - 1];
        let mut line = format!("  rows {count}:");
        for (kind, outputs) in [(PassKind::Decode, &[][..]), (PassKind::Prompt, &last)] {
            let Some(pass) = context.program().pass(kind) else {
                continue;
            };
            let mut best = [f64::INFINITY; 2];
            for round in 0..6 {
                let way = round % 2;
                // With the graph, steps of several rows are launched kernels.
                context.set_replay([Replay::Persistent, Replay::Graph][way])?;
                context.step_rows(pass, &rows, outputs)?;
                let begun = Instant::now();
                for _ in 0..16 {
                    context.step_rows(pass, &rows, outputs)?;
                }
                best[way] = best[way].min(begun.elapsed().as_secs_f64() * 1e6 / 16.0);
            }
            context.set_replay(Replay::Persistent)?;
            let [us, launched] = best;
            let name = kind.name();
            line += &format!(" {name} {us:.1} us (launched kernels {launched:.1} us)");
        }
        println!("{line}");
    }
    Ok(())
}

/// Per kind of instruction: how long the median block took and waited for its input, and how far apart the first and the last
/// block were done.
fn times(timeline: &Timeline) {
    println!(
        "  a turn of {:.1} us; of each instruction, ns of the median block: all, waiting and staging; spread",
        timeline.length() as f64 / 1e3
    );
    for kind in timeline.kinds() {
        let each = |ns: u64| ns as f64 / kind.calls.max(1) as f64;
        println!(
            "  {:40} {:3} x {:7.0} {:7.0} {:7.0}",
            kind.name,
            kind.calls,
            each(kind.ns),
            each(kind.waiting_ns),
            each(kind.spread_ns)
        );
    }
}
