//! `welte profile`: where a token's time goes, by kind of command.

use crate::args::{Plain, ProfileArgs};
use crate::source;
use std::io::Write;
use std::process::ExitCode;
use welte::{Sampling, Session};

/// Totals of one kind of command.
struct Line {
    name: String,
    calls: u64,
    nanoseconds: u64,
    bytes: u64,
}

impl Line {
    fn gb_s(&self) -> f64 {
        self.bytes as f64 / (self.nanoseconds as f64).max(1.0)
    }
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
    let model = source::load_with(&source, &options)?;
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
    let parts = [
        ("prompt", u64::from(args.n_prompt), prefill),
        ("generation", u64::from(args.n_gen), decode),
    ];
    let mut out = std::io::stdout().lock();
    match args.output {
        Plain::Text => parts
            .iter()
            .try_for_each(|(name, tokens, lines)| text(&mut out, name, *tokens, lines))?,
        Plain::Json => writeln!(out, "{:#}", json(&source, &parts))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(out: &mut impl Write, name: &str, tokens: u64, lines: &[Line]) -> std::io::Result<()> {
    let total: u64 = lines.iter().map(|l| l.nanoseconds).sum();
    writeln!(
        out,
        "{name}: {tokens} tokens, {:.3} ms per token",
        total as f64 / 1e6 / tokens.max(1) as f64
    )?;
    writeln!(
        out,
        "{:<22} {:>8} {:>11} {:>10} {:>8} {:>7}",
        "command", "calls", "time ms", "MB", "GB/s", "share"
    )?;
    for l in lines {
        let share = 100.0 * l.nanoseconds as f64 / total.max(1) as f64;
        writeln!(
            out,
            "{:<22} {:>8} {:>11.3} {:>10.1} {:>8.1} {share:>5.1} % {}",
            l.name,
            l.calls,
            l.nanoseconds as f64 / 1e6,
            l.bytes as f64 / 1e6,
            l.gb_s(),
            "█".repeat((share / 4.0).round() as usize),
        )?;
    }
    writeln!(out)
}

fn json(source: &str, parts: &[(&str, u64, Vec<Line>)]) -> serde_json::Value {
    let lines = |lines: &[Line]| -> Vec<serde_json::Value> {
        lines
            .iter()
            .map(|l| {
                serde_json::json!({
                    "command": l.name, "calls": l.calls, "ns": l.nanoseconds, "bytes": l.bytes, "gb_s": l.gb_s(),
                })
            })
            .collect()
    };
    let parts: Vec<serde_json::Value> = parts
        .iter()
        .map(|(name, tokens, all)| serde_json::json!({ "part": name, "tokens": tokens, "commands": lines(all) }))
        .collect();
    serde_json::json!({ "model": source, "parts": parts })
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
        })
        .collect();
    lines.sort_by_key(|l| std::cmp::Reverse(l.nanoseconds));
    lines
}
