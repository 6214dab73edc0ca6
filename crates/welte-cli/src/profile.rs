//! `welte profile`: where a token's time goes, by kind of command, beside the floor measured in the same run.

use crate::args::{Page, ProfileArgs};
use crate::trace::{self, Step};
use crate::{profile_page, source};
use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use welte::{CudaSession, Replay, Sampling, Session};
use welte_table::Row;
use welte_table::timeline::{Kind, Timeline};

/// Totals of one kind of command.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) calls: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
}

impl Line {
    pub(crate) fn gb_s(&self) -> f64 {
        self.bytes as f64 / (self.nanoseconds as f64).max(1.0)
    }

    pub(crate) fn gflop_s(&self) -> f64 {
        self.flops as f64 / (self.nanoseconds as f64).max(1.0)
    }
}

/// Prompt or generation.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) tokens: u64,
    /// In which way the device ran it.
    pub(crate) how: String,
    /// What each op came to where commands were timed one by one, the longest first.
    pub(crate) lines: Vec<Line>,
    /// Nanoseconds and bytes of all tokens where they were timed as a whole.
    pub(crate) whole: Option<(u64, u64)>,
    /// The last step of it, and what a lane of that is.
    pub(crate) step: Timeline,
    pub(crate) lane: &'static str,
}

impl Part {
    pub(crate) fn nanoseconds(&self) -> u64 {
        let lines = || self.lines.iter().map(|l| l.nanoseconds).sum();
        self.whole
            .map_or_else(lines, |(nanoseconds, _)| nanoseconds)
    }

    pub(crate) fn ms_per_token(&self) -> f64 {
        self.nanoseconds() as f64 / 1e6 / self.tokens.max(1) as f64
    }

    /// Of all commands together.
    pub(crate) fn gb_s(&self) -> f64 {
        let lines = || self.lines.iter().map(|l| l.bytes).sum();
        let bytes: u64 = self.whole.map_or_else(lines, |(_, bytes)| bytes);
        bytes as f64 / (self.nanoseconds() as f64).max(1.0)
    }

    /// The kinds of instructions, where a kernel that runs all of them took the times.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        if self.whole.is_some() {
            self.step.kinds()
        } else {
            Vec::new()
        }
    }

    /// The kinds, each with its share of all their time in percent.
    pub(crate) fn shares(&self) -> Vec<(Kind, f64)> {
        let kinds = self.kinds();
        let total: u64 = kinds.iter().map(|kind| kind.ns).sum();
        let total = (total as f64).max(1.0);
        let share = |kind: Kind| {
            let share = 100.0 * kind.ns as f64 / total;
            (kind, share)
        };
        kinds.into_iter().map(share).collect()
    }

    /// The step that the timeline is of.
    pub(crate) fn title(&self) -> String {
        let last = self.step.position;
        let what = match self.step.rows {
            1 => format!("the token at position {last}"),
            rows => format!("{rows} tokens up to position {last}"),
        };
        let lanes = match self.step.lanes.len() {
            1 => String::new(),
            n => format!(" by the clocks of {n} {}s", self.lane),
        };
        let us = self.step.length() as f64 / 1e3;
        format!("{what}{lanes}, {us:.1} us")
    }
}

/// What the columns of a table of instructions are.
pub(crate) const COLUMNS: &str = "time and waiting (for input, with fetching it) are those of the median block among those \
with a part in an instruction; spread is from the end of the first block to that of the last, per call; weights are fetched \
ahead, so GB/s of one kind may exceed what memory gives";

/// All that was measured.
pub(crate) struct Measured {
    pub(crate) source: String,
    pub(crate) threads: usize,
    /// GB/s that as many threads read from memory, at most.
    pub(crate) floor: f64,
    pub(crate) parts: [Part; 2],
}

pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let mut options = args.load.options()?;
    if options.context == 0 {
        options.context = args
            .n_prompt
            .saturating_add(args.n_gen)
            .saturating_add(1)
            .next_multiple_of(64);
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or_else(cores);
    let model = source::load_with(&source, &options)?;
    let floor = welte::read_bandwidth(model.device(), threads, 0.5)? / 1e9;
    let mut session = model.session()?;
    let measured = Measured {
        source,
        threads,
        floor,
        parts: [
            prompt(&mut session, args.n_prompt.max(1))?,
            generation(&mut session, args.n_gen)?,
        ],
    };
    let mut out = std::io::stdout().lock();
    match args.output {
        Page::Text => text(&mut out, &measured)?,
        Page::Json => writeln!(out, "{:#}", json(&measured))?,
        Page::Html => write!(out, "{}", profile_page::html(&measured))?,
    }
    if let Some(path) = &args.trace {
        write_trace(path, &measured)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The last steps of prompt and generation as trace events.
fn write_trace(path: &Path, measured: &Measured) -> anyhow::Result<()> {
    if measured.parts.iter().all(|part| part.step.is_empty()) {
        anyhow::bail!(
            "--trace {}: no command was timed; --reference takes no times, leave it out",
            path.display()
        );
    }
    let steps = measured.parts.iter().filter(|part| !part.step.is_empty());
    let steps: Vec<Step<'_>> = steps
        .map(|part| Step {
            name: format!("{}: {} ({})", part.name, part.title(), part.how),
            lane: part.lane,
            timeline: &part.step,
        })
        .collect();
    let written = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        trace::write(&mut file, &steps)?;
        file.flush()
    };
    written().with_context(|| format!("--trace {}: it cannot be written", path.display()))
}

/// What a lane is where commands run one after the other.
const ALL: &str = "commands";

/// How a device runs commands that are timed one by one.
fn one_by_one(session: &mut Session) -> String {
    match session.device().cuda() {
        Ok(gpu) => format!(
            "commands launched and timed one by one; a chain goes by {}",
            gpu.replaying()
        ),
        Err(_) => "commands timed one by one".to_string(),
    }
}

fn prompt(session: &mut Session, tokens: u32) -> anyhow::Result<Part> {
    let vocab = session.model().vocab().max(1);
    let prompt: Vec<u32> = (0..tokens).map(|i| i.wrapping_mul(7919) % vocab).collect();
    session.feed(&prompt)?;
    session.truncate(0);
    session.device().set_profiling(true)?;
    session.feed(&prompt)?;
    Ok(by_commands(session, "prompt", tokens))
}

/// What was timed command by command.
fn by_commands(session: &mut Session, name: &'static str, tokens: u32) -> Part {
    Part {
        name,
        tokens: tokens.into(),
        how: one_by_one(session),
        lines: lines(session),
        whole: None,
        step: session.device().last_step(),
        lane: ALL,
    }
}

fn generation(session: &mut Session, tokens: u32) -> anyhow::Result<Part> {
    session.set_sampling(&Sampling::default(), &[]);
    let by_kernel = |gpu: &mut CudaSession| gpu.replay_in_use() == Replay::Persistent;
    if session.device().cuda().is_ok_and(by_kernel) {
        return by_persistent_kernel(session, tokens);
    }
    session.device().set_profiling(true)?;
    decode(session, tokens)?;
    Ok(by_commands(session, "generation", tokens))
}

/// Tokens that the kernel with clocks decodes: the last of them is looked at.
const CLOCKED: u32 = 16;

/// A chain by the kernel as it is, then a few tokens by the same kernel with clocks.
fn by_persistent_kernel(session: &mut Session, tokens: u32) -> anyhow::Result<Part> {
    anyhow::ensure!(
        tokens >= 2,
        "-n {tokens}: the persistent kernel is timed over 2 tokens or more"
    );
    let clocked = CLOCKED.min(tokens / 2);
    let plain = tokens - clocked;
    session.device().set_profiling(false)?;
    let depth = session.tokens().len();
    let begun = Instant::now();
    let last = decode(session, plain)?;
    let nanoseconds = begun.elapsed().as_nanos() as u64;
    let model = session.model().clone();
    let bytes = (1..=plain as usize).map(|i| model.bytes_per_token(depth + i));
    let bytes = bytes.fold(0, u64::saturating_add);
    let start = Row {
        token: last,
        position: session.tokens().len() as u32,
        sequence: 0,
    };
    let gpu = session.device().cuda()?;
    let how = gpu.replaying().to_string();
    anyhow::ensure!(gpu.replay_in_use() == Replay::Persistent, "{how}");
    let step = gpu.timeline(start, clocked as usize)?;
    Ok(Part {
        name: "generation",
        tokens: plain.into(),
        how,
        lines: Vec::new(),
        whole: Some((nanoseconds, bytes)),
        step,
        lane: "block",
    })
}

/// Decodes so many tokens; gives back the last.
fn decode(session: &mut Session, tokens: u32) -> anyhow::Result<u32> {
    let vocab = session.model().vocab().max(1);
    let (mut last, mut left) = (1 % vocab, tokens as usize);
    while left > 0 {
        let count = session.chain(last, left, &[], &mut |token| {
            last = token;
            true
        })?;
        anyhow::ensure!(
            count > 0,
            "the context is too small for -n {tokens}; use a larger -c"
        );
        left -= count;
    }
    Ok(last)
}

fn text(out: &mut impl Write, measured: &Measured) -> std::io::Result<()> {
    let Measured { floor, threads, .. } = measured;
    writeln!(
        out,
        "memory floor: {floor:.1} GB/s with {threads} threads\n"
    )?;
    for part in &measured.parts {
        let (gb_s, total) = (part.gb_s(), part.nanoseconds().max(1) as f64);
        writeln!(
            out,
            "{}: {} tokens, {:.3} ms per token, {gb_s:.1} GB/s, {:.0} % of the floor",
            part.name,
            part.tokens,
            part.ms_per_token(),
            100.0 * gb_s / floor,
        )?;
        if part.whole.is_some() {
            instructions(out, part)?;
            continue;
        }
        writeln!(
            out,
            "{:<22} {:>8} {:>11} {:>10} {:>8} {:>9} {:>7}",
            "command", "calls", "time ms", "MB", "GB/s", "Gflop/s", "share"
        )?;
        for l in &part.lines {
            let share = 100.0 * l.nanoseconds as f64 / total;
            writeln!(
                out,
                "{:<22} {:>8} {:>11.3} {:>10.1} {:>8.1} {:>9.1} {share:>5.1} % {}",
                l.name,
                l.calls,
                l.nanoseconds as f64 / 1e6,
                l.bytes as f64 / 1e6,
                l.gb_s(),
                l.gflop_s(),
                "█".repeat((share / 4.0).round() as usize),
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The table of a kernel that runs all instructions.
fn instructions(out: &mut impl Write, part: &Part) -> std::io::Result<()> {
    writeln!(out, "{}: {}", part.how, part.title())?;
    writeln!(
        out,
        "{:<34} {:>5} {:>7} {:>9} {:>11} {:>10} {:>9} {:>8} {:>7}",
        "instruction",
        "calls",
        "blocks",
        "time us",
        "waiting us",
        "spread us",
        "MB",
        "GB/s",
        "share"
    )?;
    for (kind, share) in part.shares() {
        writeln!(
            out,
            "{:<34} {:>5} {:>7} {:>9.1} {:>11.1} {:>10.2} {:>9.1} {:>8.1} {share:>5.1} % {}",
            kind.name,
            kind.calls,
            kind.lanes,
            kind.ns as f64 / 1e3,
            kind.waiting_ns as f64 / 1e3,
            kind.spread_us(),
            kind.bytes as f64 / 1e6,
            kind.gb_s(),
            "█".repeat((share / 4.0).round() as usize),
        )?;
    }
    writeln!(out, "({COLUMNS})\n")
}

fn json(measured: &Measured) -> serde_json::Value {
    let line = |l: &Line| {
        serde_json::json!({
            "command": l.name, "calls": l.calls, "ns": l.nanoseconds, "bytes": l.bytes, "flops": l.flops,
            "gb_s": l.gb_s(), "gflop_s": l.gflop_s(),
        })
    };
    let kind = |k: &Kind| {
        serde_json::json!({
            "instruction": k.name, "calls": k.calls, "blocks": k.lanes, "ns": k.ns, "waiting_ns": k.waiting_ns,
            "spread_ns": k.spread_ns, "bytes": k.bytes, "gb_s": k.gb_s(),
        })
    };
    let part = |p: &Part| {
        let mut part = serde_json::json!({
            "part": p.name, "tokens": p.tokens, "gb_s": p.gb_s(), "ms_per_token": p.ms_per_token(), "how": p.how,
            "commands": p.lines.iter().map(line).collect::<Vec<_>>(),
        });
        if p.whole.is_some() {
            part["token"] = serde_json::json!({
                "position": p.step.position, "ns": p.step.length(), "blocks": p.step.lanes.len(),
                "instructions": p.kinds().iter().map(kind).collect::<Vec<_>>(),
            });
        }
        part
    };
    serde_json::json!({
        "model": measured.source, "n_threads": measured.threads, "floor_gb_s": measured.floor,
        "parts": measured.parts.iter().map(part).collect::<Vec<_>>(),
    })
}

/// What was measured so far, the longest first.
fn lines(session: &mut Session) -> Vec<Line> {
    let ran = session.device().profile().into_iter();
    let mut lines: Vec<Line> = ran
        .filter(|p| p.calls > 0)
        .map(|p| Line {
            name: p.op.name().to_string(),
            calls: p.calls,
            nanoseconds: p.ns,
            bytes: p.bytes,
            flops: p.flops,
        })
        .collect();
    lines.sort_by_key(|l| std::cmp::Reverse(l.nanoseconds));
    lines
}
