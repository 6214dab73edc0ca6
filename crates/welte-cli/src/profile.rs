//! `welte profile`: where a token's time goes, and the memory floor measured in the same run.

use crate::args::{Page, ProfileArgs};
use crate::bench::measure;
use crate::{floor, source};
use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use welte::{ChainStart, Replay, ReplayTools, Sampling, Stepper};
use welte_report::profile::{Part, Report, Timed, html, json, text};
use welte_report::trace::{self, Step};

pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let mut options = args.load.options()?;
    if options.context == 0 {
        let tokens = args.n_prompt.saturating_add(args.n_gen).saturating_add(1);
        options.context = tokens.next_multiple_of(64);
    }
    if let Some(sequences) = args.batched {
        let positions = options.context.checked_mul(sequences);
        options.slots = sequences;
        options.cache_positions = positions.context("the caches of all sequences are too large")?;
    }
    let model = source::load_with(&source, &options)?;
    let speed = model.read_bandwidth(measure::SECONDS)?;
    let mut stepper = model.stepper()?;
    stepper.use_adapters()?;
    let mut parts = vec![
        prompt(&mut stepper, args.n_prompt.max(1))?,
        generation(&mut stepper, args.n_gen)?,
    ];
    if let Some(sequences) = args.batched {
        parts.push(batch(&mut stepper, sequences, args)?);
    }
    let report = Report {
        model: source,
        device: model.device().name.clone(),
        floor: floor::of(&model, speed),
        parts,
    };
    let mut out = crate::terminal::stdout();
    match args.output {
        Page::Text => write!(out, "{}", text(&report))?,
        Page::Json => writeln!(out, "{:#}", json(&report))?,
        Page::Html => write!(out, "{}", html(&report))?,
    }
    if let Some(path) = &args.trace {
        write_trace(path, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the last steps of prompt and generation as trace events.
fn write_trace(path: &Path, report: &Report) -> anyhow::Result<()> {
    let timed = report.parts.iter().filter(|part| !part.step.is_empty());
    let steps: Vec<Step<'_>> = timed
        .map(|part| Step {
            name: format!("{}: {} ({})", part.name, part.step_title(), part.how),
            lane: part.lane,
            timeline: &part.step,
        })
        .collect();
    if steps.is_empty() {
        anyhow::bail!(
            "--trace {}: this device does not time commands; leave it out",
            path.display()
        );
    }
    let written = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        trace::write(&mut file, &steps)?;
        file.flush()
    };
    written().with_context(|| format!("--trace {}: cannot be written", path.display()))
}

fn prompt(stepper: &mut Stepper, tokens: u32) -> anyhow::Result<Part> {
    let prompt = measure::tokens(stepper, tokens);
    // Warm-up.
    stepper.feed(&prompt)?;
    stepper.truncate(0);
    stepper.context().set_profiling(true)?;
    stepper.feed(&prompt)?;
    Ok(timed_by_command(stepper, "prompt", tokens))
}

/// What the device has timed since profiling was switched on.
fn timed_by_command(stepper: &mut Stepper, name: &'static str, tokens: u32) -> Part {
    let context = stepper.context();
    let (profile, step) = (context.profile(), context.last_step());
    let how = match context.replays() {
        Some(tools) => format!(
            "commands launched and timed one by one; chains replay by {}",
            tools.replaying()
        ),
        None => "commands timed one by one".to_string(),
    };
    Part {
        name,
        tokens: tokens.into(),
        how,
        timed: Timed::ops(profile),
        step,
        lane: "commands",
    }
}

fn generation(stepper: &mut Stepper, tokens: u32) -> anyhow::Result<Part> {
    stepper.set_sampling(&Sampling::default(), &[], &[])?;
    let tools = stepper.context().replays();
    let by_kernel = |tools: &mut dyn ReplayTools| {
        tools.has_timeline() && tools.replaying().replay == Replay::Persistent
    };
    if tools.is_some_and(by_kernel) {
        return persistent_generation(stepper, tokens);
    }
    stepper.context().set_profiling(true)?;
    measure::decode(stepper, tokens, u32::MAX)?;
    Ok(timed_by_command(stepper, "generation", tokens))
}

/// Decodes tokens of several sequences together, after random keys and values in place of prompts.
fn batch(stepper: &mut Stepper, sequences: u32, args: &ProfileArgs) -> anyhow::Result<Part> {
    let prompt = measure::tokens(stepper, args.n_prompt.max(1));
    stepper.context().set_profiling(false)?;
    stepper.fill_at_random(&prompt)?;
    // Warm-up.
    stepper.chain_together(sequences, 1)?;
    stepper.context().set_profiling(true)?;
    let made = stepper.chain_together(sequences, args.n_gen.max(1) as usize)?;
    Ok(timed_by_command(stepper, "batch", made))
}

/// Tokens that the kernel with clocks decodes. The last one is shown.
const CLOCKED: u32 = 16;

/// Decodes a chain with the normal kernel, then a few tokens with the same kernel and clocks.
fn persistent_generation(stepper: &mut Stepper, tokens: u32) -> anyhow::Result<Part> {
    anyhow::ensure!(
        tokens >= 2,
        "-n {tokens}: the persistent kernel is timed over at least 2 tokens"
    );
    let clocked = CLOCKED.min(tokens / 2);
    let plain = tokens - clocked;
    stepper.context().set_profiling(false)?;
    let depth = stepper.tokens().len();
    let start = Instant::now();
    let last = measure::decode(stepper, plain, u32::MAX)?;
    let ns = start.elapsed().as_nanos() as u64;
    let model = stepper.model().clone();
    let bytes = (1..=plain as usize).map(|i| model.bytes_per_token(depth + i));
    let bytes = bytes.fold(0, u64::saturating_add);
    let start = ChainStart {
        slot: 0,
        token: last,
        position: stepper.tokens().len() as u32,
        steps: clocked,
        shift: 0,
    };
    let tools = stepper.context().replays();
    let tools = tools.context("the device has one way to replay")?;
    let step = tools.timeline(start)?;
    Ok(Part {
        name: "generation",
        tokens: plain.into(),
        how: tools.replaying().to_string(),
        timed: Timed::Whole { ns, bytes },
        step,
        lane: "block",
    })
}
