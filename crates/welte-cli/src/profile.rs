//! `welte profile`: where a token's time goes, by kind of command, beside the floor measured in the same run.

use crate::args::{Page, ProfileArgs};
use crate::{profile_page, source};
use std::io::Write;
use std::process::ExitCode;
use welte::{Sampling, Session};

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
    pub(crate) lines: Vec<Line>,
}

impl Part {
    pub(crate) fn nanoseconds(&self) -> u64 {
        self.lines.iter().map(|l| l.nanoseconds).sum()
    }

    pub(crate) fn ms_per_token(&self) -> f64 {
        self.nanoseconds() as f64 / 1e6 / self.tokens.max(1) as f64
    }

    /// Of all commands together.
    pub(crate) fn gb_s(&self) -> f64 {
        let bytes: u64 = self.lines.iter().map(|l| l.bytes).sum();
        bytes as f64 / (self.nanoseconds() as f64).max(1.0)
    }
}

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
    let vocab = model.vocab().max(1);
    let prompt: Vec<u32> = (0..args.n_prompt.max(1))
        .map(|i| i.wrapping_mul(7919) % vocab)
        .collect();
    session.feed(&prompt)?;
    session.truncate(0);
    session.device().set_profiling(true)?;
    session.feed(&prompt)?;
    let prefill = lines(&mut session);
    session.device().set_profiling(true)?;
    session.set_sampling(&Sampling::default(), &[]);
    let (mut last, mut left) = (1 % vocab, args.n_gen as usize);
    while left > 0 {
        let count = session.chain(last, left, &[], &mut |token| {
            last = token;
            true
        })?;
        anyhow::ensure!(
            count > 0,
            "the context is too small for -n {}; use a larger -c",
            args.n_gen
        );
        left -= count;
    }
    let decode = lines(&mut session);
    let part = |name, tokens: u32, lines| Part {
        name,
        tokens: tokens.into(),
        lines,
    };
    let measured = Measured {
        source,
        threads,
        floor,
        parts: [
            part("prompt", prompt.len() as u32, prefill),
            part("generation", args.n_gen, decode),
        ],
    };
    let mut out = std::io::stdout().lock();
    match args.output {
        Page::Text => text(&mut out, &measured)?,
        Page::Json => writeln!(out, "{:#}", json(&measured))?,
        Page::Html => write!(out, "{}", profile_page::html(&measured))?,
    }
    Ok(ExitCode::SUCCESS)
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

fn json(measured: &Measured) -> serde_json::Value {
    let line = |l: &Line| {
        serde_json::json!({
            "command": l.name, "calls": l.calls, "ns": l.nanoseconds, "bytes": l.bytes, "flops": l.flops,
            "gb_s": l.gb_s(), "gflop_s": l.gflop_s(),
        })
    };
    let part = |p: &Part| {
        serde_json::json!({
            "part": p.name, "tokens": p.tokens, "gb_s": p.gb_s(),
            "commands": p.lines.iter().map(line).collect::<Vec<_>>(),
        })
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
