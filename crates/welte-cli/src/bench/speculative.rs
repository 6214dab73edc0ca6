//! `welte bench --speculative`: generation with a made-up draft of a stated quality and cost. It shows what the machine
//! part of speculation costs, without a model that could guess. If the model has a draft layer, that runs, and the made-up guesses take
//! the place of its own.

use super::requests::{self, median, request};
use super::table::{Column, Figures, Table};
use crate::args::BenchArgs;
use std::process::ExitCode;
use std::time::Duration;
use welte::{Engine, Outcome, Request, Speculation, StopReason, SyntheticDraft};

const COLUMNS: &[Column] = &[
    ("agreement", "agreement", 2),
    ("draft_cost", "cost", 3),
    ("pp", "PP", 0),
    ("tg", "TG", 0),
    ("plain", "plain t/s", 2),
    ("speed", "t/s", 2),
    ("speedup", "speedup", 2),
    ("draft", "guesses a round", 2),
    ("accepted", "right %", 1),
    ("verifying", "verifying %", 1),
    ("drafting", "drafting %", 1),
    ("rest", "rest %", 1),
];

pub(crate) fn run(args: &BenchArgs, named: &str) -> anyhow::Result<ExitCode> {
    let most = |all: &[u32]| all.iter().copied().max().unwrap_or(0);
    let longest = most(&args.n_prompt).saturating_add(most(&args.n_gen));
    let (model, facts) = requests::load(args, named, longest, 1)?;
    let mut options = requests::plain();
    options.draft_max = args.draft_max.into();
    if model.has_draft_layer() {
        options.speculation = Speculation::Own;
    }
    let engine = Engine::new(&model, &options)?;
    let mut table = Table::new(args.output, COLUMNS, facts.json());
    for &prompt in args.n_prompt.iter().filter(|n| **n > 0) {
        for &tokens in args.n_gen.iter().filter(|n| **n > 1) {
            let request = request(0, prompt, tokens as usize, model.vocab());
            // The first run computes the prompt.
            let mut alone = request.clone();
            alone.speculate = false;
            let (_, answer) = measure(&engine, &alone, args.repetitions + 1)?;
            let (plain, _) = measure(&engine, &alone, args.repetitions)?;
            let cost = (!model.has_draft_layer()).then_some(args.draft_cost);
            for &agreement in &args.speculative {
                let mut request = request.clone();
                request.synthetic_draft = Some(SyntheticDraft {
                    answer: answer.tokens.clone(),
                    agreement,
                    each: Duration::from_secs_f64(cost.unwrap_or(0.0) / plain),
                });
                // What rounds cost is measured in the first run.
                let (speed, outcome) = measure(&engine, &request, args.repetitions + 1)?;
                anyhow::ensure!(
                    outcome.tokens == answer.tokens,
                    "the text differs from that of plain decoding; please report this as a bug"
                );
                let s = outcome.speculated;
                let seconds = outcome.timings.generation.as_secs_f64();
                let share = |time: Duration| 100.0 * time.as_secs_f64() / seconds.max(1e-9);
                let each = |n: usize, of: usize| n as f64 / of.max(1) as f64;
                let figures = serde_json::json!({
                    "agreement": agreement, "draft_cost": cost, "pp": prompt, "tg": tokens,
                    "plain": plain, "speed": speed, "speedup": speed / plain,
                    "draft": each(s.drafted, s.rounds), "accepted": 100.0 * each(s.accepted, s.drafted),
                    "verifying": share(s.verifying), "drafting": share(s.drafting),
                    "rest": 100.0 - share(s.verifying) - share(s.drafting),
                });
                table.row(figures.as_object().unwrap_or(&Figures::new()))?;
            }
        }
    }
    table.end();
    Ok(ExitCode::SUCCESS)
}

/// The median of the tokens per second after the first one, and the last outcome.
fn measure(engine: &Engine, request: &Request, times: u32) -> anyhow::Result<(f64, Outcome)> {
    let mut speeds = Vec::new();
    let mut last = None;
    for _ in 0..times {
        let (_, outcome) = engine.submit(request.clone())?.complete()?;
        anyhow::ensure!(
            outcome.stop == StopReason::Length,
            "the context is too short"
        );
        let seconds = outcome.timings.generation.as_secs_f64();
        speeds.push(outcome.timings.decoded as f64 / seconds.max(1e-9));
        last = Some(outcome);
    }
    let last = last.ok_or_else(|| anyhow::anyhow!("no repetition"))?;
    Ok((median(speeds), last))
}
