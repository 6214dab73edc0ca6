//! Times decoding of made-up models by every kind of replay, and each op of a step:
//! `replay_bench qwen3-4b:q4_0 [DEPTH] [persistent] [graph] [eager] [loop] [chains] [tokens=N] ...`
//!
//! Prints per model: loading, microseconds per token of a chain of 128 or N (by each kind of replay, or those named), the same as bytes
//! per second, steps of 2, 4 and 8 rows by the persistent kernel beside launched ones (with what the host does for a step, and with
//! fetching the logits: of all rows for a batch, of the last for a prompt), where the blocks of the persistent kernel spend their
//! time, a prompt of 512, and microseconds per token and op when each command is timed alone. With `chains` only chains.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use welte_cuda::{Model, Options, Replay, Session};
use welte_formats::synthetic::Synthetic;
use welte_table::timeline::Timeline;
use welte_table::{Row, Sampling, Shape};

/// Kinds of replay by the names that arguments have.
const KINDS: [(&str, Replay); 4] = [
    ("persistent", Replay::Persistent),
    ("graph", Replay::Graph),
    ("eager", Replay::Eager),
    ("loop", Replay::While),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut depths = Vec::new();
    let (mut shapes, mut kinds) = (Vec::new(), Vec::new());
    let mut only_chains = false;
    let mut tokens = 128;
    for argument in std::env::args().skip(1) {
        let kind = KINDS.iter().find(|(name, _)| *name == argument);
        match (argument.parse::<u32>(), kind) {
            (Ok(depth), _) => depths.push(depth),
            (_, Some((_, kind))) => kinds.push(*kind),
            _ if argument == "chains" => only_chains = true,
            _ if argument.starts_with("tokens=") => tokens = argument["tokens=".len()..].parse()?,
            _ => shapes.push(argument),
        }
    }
    if kinds.is_empty() {
        kinds.extend(KINDS.map(|(_, kind)| kind));
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
    tokens: usize,
) -> Result<(), Box<dyn Error>> {
    let checkpoint = Synthetic::parse(shape)?;
    let spec = welte_models::spec(&checkpoint)?;
    let deepest = depths.iter().max().copied().unwrap_or(0);
    let compile = welte_models::CompileOptions {
        context: deepest + 1024,
        ..Default::default()
    };
    let program = Arc::new(welte_models::compile(&spec, &checkpoint, &compile)?);
    let weights: u64 = program.tables[0].commands.iter().map(|c| c.bytes).sum();
    for &replay in kinds {
        let begun = Instant::now();
        let options = Options { device: 0, replay };
        let model = Model::load(program.clone(), &checkpoint, &options, &mut |_, _| {})?;
        let loaded = begun.elapsed();
        let mut session = Session::new(&model)?;
        let ready = begun.elapsed();
        let note = session.note().unwrap_or("");
        println!("{shape} {replay:?}: loaded {loaded:.2?}, ready {ready:.2?} {note}");
        if let Some(tuning) = session.tuning() {
            println!("  {tuning}");
        }
        session.set_sampling(&Sampling::default(), &[], &[]);
        for &depth in depths {
            let start = Row {
                token: 1,
                position: depth,
                sequence: 0,
            };
            let never = AtomicBool::new(false);
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let begun = Instant::now();
                let made = session.chain(start, tokens, &[], &never, &mut |_| true)?;
                best = best.min(begun.elapsed().as_secs_f64() / made as f64);
            }
            if let Some(note) = session.note() {
                println!("  {note}");
            }
            let cached = program.kv.position_bytes().unwrap_or(0) * u64::from(depth);
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
        if replay == Replay::Persistent && session.note().is_none() {
            for &depth in depths {
                several(&mut session, depth)?;
            }
            let start = Row {
                token: 1,
                position: depths[0],
                sequence: 0,
            };
            times(&session.timeline(start, 16)?);
        }
        if replay != Replay::Graph {
            continue;
        }
        let prompt: Vec<Row> = (0..512)
            .map(|position| Row {
                token: 1,
                position,
                sequence: 0,
            })
            .collect();
        session.step(1, &prompt)?;
        let begun = Instant::now();
        for _ in 0..4 {
            session.step(1, &prompt)?;
        }
        let each = begun.elapsed().as_secs_f64() / 4.0;
        println!("  prompt of 512: {:.0} tok/s", 512.0 / each);
        for (what, table, rows) in [("decode", 0, &prompt[511..]), ("prompt", 1, &prompt[..])] {
            session.set_profiling(true)?;
            for _ in 0..8 {
                session.step(table, rows)?;
            }
            println!("  ops of a {what} step, each timed alone:");
            for op in session.profile().iter().filter(|op| op.calls > 0) {
                let (us, calls) = (op.ns as f64 / 8e3, op.calls / 8);
                println!(
                    "    {:20} {calls:4} x {:8.2} us = {us:9.1} us, {:6.0} GB/s",
                    op.op.name(),
                    us / calls as f64,
                    op.bytes as f64 / op.ns as f64
                );
            }
            session.set_profiling(false)?;
        }
    }
    Ok(())
}

/// Times steps of a few rows of one sequence, by the persistent kernel and by launched kernels in turn.
fn several(session: &mut Session, depth: u32) -> Result<(), Box<dyn Error>> {
    let most = session.rows_together();
    println!("  at {depth}: rows together: {most:?}");
    let tables = session.model().program().tables.iter().map(|t| t.shape);
    let tables: Vec<Shape> = tables.collect();
    for count in [2, 4, 8] {
        let rows: Vec<Row> = (depth..depth + count)
            .map(|position| Row {
                token: 1,
                position,
                sequence: 0,
            })
            .collect();
        let mut line = format!("  rows {count}:");
        for (table, shape) in tables.iter().enumerate() {
            let name = match shape {
                Shape::Decode => continue,
                Shape::Batch(_) => "batch",
                Shape::Prefill(_) => "prompt",
            };
            let mut best = [f64::INFINITY; 2];
            for round in 0..6 {
                let way = round % 2;
                session.set_replay([Replay::Persistent, Replay::Graph][way])?; // as a graph: launched kernels
                session.step(table, &rows)?;
                let begun = Instant::now();
                for _ in 0..16 {
                    session.step(table, &rows)?;
                }
                best[way] = best[way].min(begun.elapsed().as_secs_f64() * 1e6 / 16.0);
            }
            session.set_replay(Replay::Persistent)?;
            let [us, launched] = best;
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
