//! `welte bench --embed`: vectors of texts of given lengths. All texts of a row are sent at once, as tokens.

use super::measure::{SECONDS, facts};
use super::requests::{self, median};
use super::table::{Column, Figures, Table};
use crate::args::BenchArgs;
use crate::{floor, source};
use anyhow::Context;
use std::process::ExitCode;
use std::time::Instant;
use welte::Engine;

const COLUMNS: &[Column] = &[
    ("tokens", "tokens", 0),
    ("texts", "texts", 0),
    ("t", "T s", 4),
    ("texts_s", "texts/s", 1),
    ("speed", "t/s", 0),
];

pub(crate) fn run(args: &BenchArgs, named: &str) -> anyhow::Result<ExitCode> {
    requests::check(args)?;
    let longest = args.embed.iter().copied().max().unwrap_or(1);
    let threads = args.threads.first().copied();
    let mut options = args.load_args(threads, longest).options()?;
    (options.embeddings, options.slots) = (true, args.texts);
    let model = source::load_with(named, &options)?;
    let origin = model.origin();
    let size = model.embedding_size();
    size.with_context(|| format!("{origin}: this model scores pairs of texts"))?;
    let speed = model.read_bandwidth(SECONDS)?;
    let facts = facts(named, &model, floor::of(&model, speed));
    let engine = Engine::new(&model, &requests::plain())?;
    let mut table = Table::new(args.output, COLUMNS, facts.json());
    for &tokens in &args.embed {
        // Warm-up.
        measure(&engine, tokens, args.texts)?;
        let times = (0..args.repetitions).map(|_| measure(&engine, tokens, args.texts));
        let time = median(times.collect::<anyhow::Result<_>>()?);
        let texts_s = f64::from(args.texts) / time;
        let figures = serde_json::json!({
            "tokens": tokens, "texts": args.texts, "t": time, "texts_s": texts_s,
            "speed": texts_s * f64::from(tokens),
        });
        table.row(figures.as_object().unwrap_or(&Figures::new()))?;
    }
    table.end();
    Ok(ExitCode::SUCCESS)
}

/// Seconds until all vectors are there.
fn measure(engine: &Engine, tokens: u32, texts: u32) -> anyhow::Result<f64> {
    let vocab = engine.model().vocab();
    let text = |number: u32| requests::request(number.into(), tokens, 0, vocab).prompt;
    let texts: Vec<Vec<u32>> = (0..texts).map(text).collect();
    let begun = Instant::now();
    let embeddings = texts.into_iter().map(|text| engine.embed(text, None));
    for embedding in embeddings.collect::<Result<Vec<_>, _>>()? {
        embedding.wait()?;
    }
    Ok(begun.elapsed().as_secs_f64())
}
