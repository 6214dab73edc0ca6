//! Times decode steps of several rows of made-up models: `rows_bench qwen3-4b:q4_0 [DEPTH] [slots=N] [rows=N,...] [persistent] [graph] ...`
//!
//! Prints microseconds per step of 1 to 32 rows, fetching the logits of all rows; and per step of a chain of as many slots, up to
//! 256, if there are that many rows. Rows are spread over the slots (1 unless given), from position DEPTH (512) on.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use welte_cuda::{CudaContext, CudaDevice};
use welte_device::{ChainStart, Context, Control, DeviceOptions, Replay, ReplayTools};
use welte_formats::synthetic::Synthetic;
use welte_table::Row;

const COUNTS: [u32; 12] = [1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256];
/// The most rows of a step whose logits are fetched.
const FETCHED: u32 = 32;
/// Steps of a trial, and trials.
const STEPS: u32 = 24;
const TRIALS: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut depth, mut slots, mut only) = (512, 1, Vec::new());
    let (mut shapes, mut ways) = (Vec::new(), Vec::new());
    for argument in std::env::args().skip(1) {
        if let Ok(number) = argument.parse() {
            depth = number;
        } else if let Some(number) = argument.strip_prefix("slots=") {
            slots = number.parse()?;
        } else if let Some(number) = argument.strip_prefix("rows=") {
            only = number
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()?;
        } else if let Some(way) = Replay::from_name(&argument) {
            ways.push(way);
        } else {
            shapes.push(argument);
        }
    }
    if ways.is_empty() {
        ways = vec![Replay::Persistent, Replay::Graph];
    }
    for shape in &shapes {
        for way in &ways {
            bench(shape, depth, slots, &only, *way)?;
        }
    }
    Ok(())
}

fn bench(
    shape: &str,
    depth: u32,
    slots: u32,
    only: &[u32],
    replay: Replay,
) -> Result<(), Box<dyn Error>> {
    let checkpoint = Synthetic::parse(shape)?;
    let spec = welte_models::spec(&checkpoint)?;
    let compile = welte_models::CompileOptions {
        context: depth + 256,
        decode_rows: slots.max(FETCHED),
        slots,
        ..Default::default()
    };
    let program = Arc::new(welte_table::fuse(
        welte_models::compile(&spec, &checkpoint, &compile)?,
        welte_table::PATTERNS,
    ));
    let mut options = DeviceOptions::default();
    options.replay = Some(replay);
    let program = CudaDevice::open(0, &options)?.load_program(program, &checkpoint)?;
    let mut context = program.cuda_context()?;
    let replaying = ReplayTools::replaying(&mut context);
    println!(
        "{shape} {replaying}, {slots} slots, at {depth}; rows per launch: {:?}",
        context.rows_together()
    );
    let (mut steps, mut chains) = ("  us per step: ".to_string(), String::new());
    let counts = COUNTS.into_iter();
    for count in counts.filter(|count| only.is_empty() || only.contains(count)) {
        let rows: Vec<Row> = (0..count)
            .map(|i| Row::new(1 + i, depth + i / slots, i % slots))
            .collect();
        if count <= FETCHED {
            let step = best(|| {
                for _ in 0..STEPS {
                    context.step_rows(0, &rows, &[])?;
                }
                Ok(())
            })?;
            steps += &format!("  {count}: {step:.1}");
        }
        if slots >= count {
            let chain = best(|| chain(&mut context, &rows))?;
            chains += &format!("  {count}: {chain:.1}");
        }
    }
    println!("{steps}");
    if !chains.is_empty() {
        println!("  us per step of a chain: {chains}");
    }
    if let Some(note) = ReplayTools::replaying(&mut context).note {
        println!("  {note}");
    }
    Ok(())
}

fn chain(context: &mut CudaContext, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let starts: Vec<ChainStart> = rows
        .iter()
        .map(|row| ChainStart {
            slot: row.slot,
            token: row.token(),
            position: row.position,
            steps: STEPS,
            shift: 0,
        })
        .collect();
    context.chain(&starts, &Control::default(), &mut |_| true)?;
    Ok(())
}

/// Microseconds per step of the fastest of a few trials of [`STEPS`] steps.
fn best(mut trial: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..TRIALS {
        let begun = Instant::now();
        trial()?;
        best = best.min(begun.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS));
    }
    Ok(best)
}
