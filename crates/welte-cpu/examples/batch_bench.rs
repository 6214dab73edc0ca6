//! How long a step of a chain takes with several slots, beside a decode step of as many rows without sampling. Then how
//! long a piece of a prompt takes: what a step of both would save is the cost of a piece of 0 rows.
//!
//!     batch_bench [model, qwen3-0.6b:q4_0] [threads, 2] [slots, 1,2,4,8,16] [steps, 32]

use std::time::Instant;
use welte_device::{ChainStart, Context, Control, DeviceOptions, SlotState};
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, compile, spec};
use welte_table::{PassKind, Row, Sampling};

type AnyError = Box<dyn std::error::Error>;

/// Tokens in each slot before the measurement.
const DEPTH: u32 = 64;
/// Rows of the pieces of a prompt.
const PIECES: [u32; 7] = [1, 8, 16, 32, 48, 64, 128];
/// Each figure is the median of this many runs.
const TIMES: usize = 5;

fn main() -> Result<(), AnyError> {
    let mut args = std::env::args().skip(1);
    let mut next = |default: &str| args.next().unwrap_or_else(|| default.to_string());
    let (model, threads) = (next("qwen3-0.6b:q4_0"), next("2").parse()?);
    let slots: Vec<u32> = next("1,2,4,8,16")
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let steps: u32 = next("32").parse()?;
    let most = slots.iter().copied().max().unwrap_or(1);
    let checkpoint = Synthetic::parse(&model)?;
    let options = CompileOptions {
        context: (DEPTH + 2 * steps).max(PIECES[PIECES.len() - 1]),
        slots: most,
        decode_rows: most,
        prompt_rows: PIECES[PIECES.len() - 1].max(DEPTH),
        ..CompileOptions::default()
    };
    let program = welte_table::fuse(
        compile(&spec(&checkpoint)?, &checkpoint, &options)?,
        welte_table::PATTERNS,
    );
    let mut device = DeviceOptions::default();
    device.threads = Some(threads);
    let device = welte_cpu::device(&device)?;
    let plan = device.plan(program.into())?;
    let mut context = device.load(plan, &checkpoint, &mut |_| {})?.context()?;
    let context = context.as_mut();
    let prompt = context.program().pass(PassKind::Prompt);
    let prompt = prompt.ok_or("the model has no prompt pass")?;
    let row = |slot, position| Row::new(1 + slot, position, slot);
    for slot in 0..most {
        let rows: Vec<Row> = (0..DEPTH).map(|at| row(slot, at)).collect();
        context.step_rows(prompt, &rows, &[])?;
    }
    println!("| slots | step, ms | greedy chain, ms | sampled chain, ms | tokens/s, greedy |");
    println!("|---:|---:|---:|---:|---:|");
    let sampled = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        ..Sampling::default()
    };
    for slots in slots {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..TIMES {
            let begun = Instant::now();
            for step in 0..steps {
                let rows: Vec<Row> = (0..slots).map(|slot| row(slot, DEPTH + step)).collect();
                context.step_rows(0, &rows, &[])?;
            }
            times[0].push(begun.elapsed().as_secs_f64());
            for (kind, sampling) in [Sampling::default(), sampled].into_iter().enumerate() {
                times[1 + kind].push(chain(context, slots, steps, sampling)?);
            }
        }
        let ms = times.map(|times| 1e3 * median(times) / f64::from(steps));
        let [step, greedy, sampled] = ms;
        let speed = 1e3 * f64::from(slots) / greedy;
        println!("| {slots} | {step:.2} | {greedy:.2} | {sampled:.2} | {speed:.1} |");
    }
    println!("\n| rows of a prompt | step, ms |\n|---:|---:|");
    for piece in PIECES {
        let rows: Vec<Row> = (0..piece).map(|at| row(0, at)).collect();
        let mut times = Vec::new();
        for _ in 0..4 * TIMES {
            let begun = Instant::now();
            context.step_rows(prompt, &rows, &[])?;
            times.push(begun.elapsed().as_secs_f64());
        }
        println!("| {piece} | {:.2} |", 1e3 * median(times));
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of a chain of `steps` tokens in each slot.
fn chain(
    context: &mut dyn Context,
    slots: u32,
    steps: u32,
    sampling: Sampling,
) -> Result<f64, AnyError> {
    let state = SlotState {
        sampling,
        ..SlotState::default()
    };
    (0..slots).try_for_each(|slot| context.set_slot(slot, &state))?;
    let start = |slot| ChainStart {
        slot,
        token: 1 + slot,
        position: DEPTH,
        steps,
        shift: 0,
    };
    let starts: Vec<ChainStart> = (0..slots).map(start).collect();
    let begun = Instant::now();
    context.chain(&starts, &Control::default(), &mut |_| true)?;
    Ok(begun.elapsed().as_secs_f64())
}
