//! `welte bench --ladder`: decodes the same tokens in several ways, from one launch and one allocation per command to one
//! kernel per chain.

use crate::args::{BenchArgs, Rows};
use crate::bench::measure;
use crate::source;
use anyhow::Context;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;
use welte::{Replay, ReplayTools, Sampling, Stepper};
use welte_report::ladder::{Ladder, Rung};

/// A way to replay.
struct Step {
    name: &'static str,
    replay: Replay,
    /// Tokens per submission: the host waits for the last one before it submits more.
    chain: u32,
}

/// From the slowest to the fastest.
const STEPS: [Step; 6] = [
    Step::new("allocate per op", Replay::Allocate, 1),
    Step::new("preallocated", Replay::Launches, 1),
    Step::new("graph", Replay::Graph, 1),
    Step::new(CHAINED, Replay::Graph, u32::MAX),
    Step::new("loop on the GPU", Replay::Loop, u32::MAX),
    Step::new("persistent", Replay::Persistent, u32::MAX),
];
/// The step whose launches are also measured without work.
const CHAINED: &str = "chained";
/// Repetitions of the launches without work.
const LAUNCH_REPETITIONS: u32 = 100;

impl Step {
    const fn new(name: &'static str, replay: Replay, chain: u32) -> Step {
        Step {
            name,
            replay,
            chain,
        }
    }
}

pub(crate) fn run(args: &BenchArgs, named: &str, context: u32) -> anyhow::Result<ExitCode> {
    let mut options = args.load_args(None, context).options()?;
    // A stepper that is planned for the loop can replay in every other way too.
    options.replay = Some(Replay::Loop);
    let model = source::load_with(named, &options)?;
    let n = args.n_gen.iter().copied().find(|n| *n > 0).unwrap_or(128);
    let depth = args.n_depth.first().copied().unwrap_or(0);
    let mut stepper = model.stepper()?;
    stepper.use_adapters()?;
    stepper.set_sampling(&Sampling::default(), &[], &[])?;
    let mut rungs = Vec::new();
    for step in STEPS {
        let tools = tools(&mut stepper)?;
        let left_out = match tools.set_replay(step.replay) {
            Ok(()) => tools.replaying().note,
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = left_out {
            eprintln!("note: {} is left out: {why}", step.name);
            continue;
        }
        let mut times = times(&mut stepper, n, depth, step.chain, args.repetitions)?;
        times.sort_by(f64::total_cmp);
        rungs.push(Rung {
            name: step.name,
            median_ms: times[times.len() / 2],
            fastest_ms: times[0],
        });
    }
    let bytes = (1..=n).map(|i| model.bytes_per_token((depth + i) as usize) as f64);
    let chained = rungs.iter().find(|rung| rung.name == CHAINED);
    let chained = chained.map_or(0.0, |rung| rung.median_ms);
    let ladder = Ladder {
        model: named.to_string(),
        token_bytes: bytes.sum::<f64>() / f64::from(n),
        read_speed: model.read_bandwidth(measure::SECONDS)?,
        kernel_ms: (chained - launch_ms(&mut stepper)?).max(0.0),
        rungs,
    };
    let mut out = crate::terminal::stdout();
    match args.output {
        Rows::Md => write!(out, "{}", ladder.markdown())?,
        Rows::Csv => write!(out, "{}", ladder.csv())?,
        Rows::Json => writeln!(out, "{:#}", ladder.json())?,
        Rows::Jsonl => writeln!(out, "{}", ladder.json())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tools(stepper: &mut Stepper) -> anyhow::Result<&mut dyn ReplayTools> {
    let device = stepper.model().device().id;
    let tools = stepper.context().replays();
    tools.with_context(|| {
        format!("--ladder: {device} has one way to replay; choose a GPU with --device cuda")
    })
}

/// Milliseconds per token of each repetition.
fn times(
    stepper: &mut Stepper,
    n: u32,
    depth: u32,
    chain: u32,
    repetitions: u32,
) -> anyhow::Result<Vec<f64>> {
    measure::reach(stepper, depth)?;
    measure::decode(stepper, n.min(8), chain)?;
    (0..repetitions)
        .map(|_| {
            stepper.truncate(depth as usize);
            let start = Instant::now();
            measure::decode(stepper, n, chain)?;
            Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(n))
        })
        .collect()
}

/// Milliseconds that a token's launches take when every kernel returns at once: the gaps of a chain.
fn launch_ms(stepper: &mut Stepper) -> anyhow::Result<f64> {
    let tools = tools(stepper)?;
    tools.set_replay(Replay::Graph)?;
    Ok(tools.launch_ns(LAUNCH_REPETITIONS)? as f64 / 1e6)
}
