//! `welte bench --batched`: many sequences decoded together, in the columns of llama-batched-bench.
//!
//! Each row of the table runs through an engine with one slot per sequence. First all prompts are computed and stay in
//! the prefix tree. Then the same prompts are sent again: of each only the last token is computed anew, so all sequences
//! decode together from the start.

use super::requests::{self, median, request};
use super::table::{Column, Figures, Table};
use crate::args::BenchArgs;
use std::process::ExitCode;
use std::time::Instant;
use welte::{Engine, Model};

/// The columns have the names that llama-batched-bench gives them.
const COLUMNS: &[Column] = &[
    ("pp", "PP", 0),
    ("tg", "TG", 0),
    ("pl", "B", 0),
    ("n_kv", "N_KV", 0),
    ("t_pp", "T_PP s", 3),
    ("speed_pp", "S_PP t/s", 2),
    ("t_tg", "T_TG s", 3),
    ("speed_tg", "S_TG t/s", 2),
    ("t", "T s", 3),
    ("speed", "S t/s", 2),
    ("gb_s", "GB/s", 1),
    ("floor_percent", "% of floor", 0),
];

/// Sizes of one row of the table.
#[derive(Clone, Copy)]
struct Sizes {
    prompt: u32,
    answer: u32,
    sequences: u32,
}

/// When a batch had all its first tokens, and when it had all tokens.
struct Ends {
    first: Instant,
    last: Instant,
}

pub(crate) fn run(args: &BenchArgs, named: &str) -> anyhow::Result<ExitCode> {
    let mut all = Vec::new();
    for &prompt in args.n_prompt.iter().filter(|n| **n > 0) {
        for &answer in args.n_gen.iter().filter(|n| **n > 0) {
            all.extend(args.batched.iter().map(|&sequences| Sizes {
                prompt,
                answer,
                sequences,
            }));
        }
    }
    anyhow::ensure!(
        !all.is_empty(),
        "--batched needs prompts and answers; use -p and -n above 0"
    );
    let most = |of: fn(&Sizes) -> u32| all.iter().map(of).max().unwrap_or(1);
    let longest = most(|s| s.prompt).saturating_add(most(|s| s.answer));
    let slots = most(|s| s.sequences);
    let (model, facts) = requests::load(args, named, longest, slots)?;
    let engine = Engine::new(&model, &requests::plain())?;
    let mut table = Table::new(args.output, COLUMNS, facts.json());
    // Warm-up.
    measure(&engine, all[0])?;
    for sizes in all {
        let (mut prompts, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..args.repetitions {
            let (prompt, answer) = measure(&engine, sizes)?;
            prompts.push(prompt);
            answers.push(answer);
        }
        let (t_pp, t_tg) = (median(prompts), median(answers));
        let tokens = |each: u32| f64::from(sizes.sequences) * f64::from(each);
        let (pp, tg) = (tokens(sizes.prompt), tokens(sizes.answer));
        let read = bytes(&model, sizes) / t_tg;
        let share = facts.floor.share(read).map(|share| 100.0 * share);
        let figures = serde_json::json!({
            "pp": sizes.prompt, "tg": sizes.answer, "pl": sizes.sequences, "n_kv": pp + tg,
            "t_pp": t_pp, "speed_pp": pp / t_pp, "t_tg": t_tg, "speed_tg": tg / t_tg,
            "t": t_pp + t_tg, "speed": (pp + tg) / (t_pp + t_tg),
            "gb_s": read / 1e9, "floor_percent": share,
        });
        table.row(figures.as_object().unwrap_or(&Figures::new()))?;
    }
    table.end();
    Ok(ExitCode::SUCCESS)
}

/// Bytes that decoding must read: in each step the weights once, and keys and values of all sequences. Of experts only
/// those of one row count.
fn bytes(model: &Model, sizes: Sizes) -> f64 {
    let row = model.bytes_per_token(0) as f64;
    let step = |generated: u32| {
        let depth = (sizes.prompt + generated + 1) as usize;
        let cached = model.bytes_per_token(depth) as f64 - row;
        row + f64::from(sizes.sequences) * cached
    };
    (0..sizes.answer).map(step).sum()
}

/// Seconds of the prompts and of the answers.
fn measure(engine: &Engine, sizes: Sizes) -> anyhow::Result<(f64, f64)> {
    engine.forget_prefixes();
    let begun = Instant::now();
    let prompts = answers(engine, sizes, 1)?;
    // The first token belongs to the prompt.
    let all = answers(engine, sizes, sizes.answer as usize + 1)?;
    Ok((
        (prompts.first - begun).as_secs_f64(),
        (all.last - all.first).as_secs_f64(),
    ))
}

/// Sends one request per sequence, and reads `tokens` of each.
fn answers(engine: &Engine, sizes: Sizes, tokens: usize) -> anyhow::Result<Ends> {
    let vocab = engine.model().vocab();
    let sequences = 0..u64::from(sizes.sequences);
    // The adapters of --lora in turn.
    let adapters = engine.adapters();
    let requests = sequences.map(|number| {
        let mut request = request(number, sizes.prompt, tokens, vocab);
        let turn = number as usize % adapters.len().max(1);
        request.options.adapter = adapters.get(turn).cloned();
        request
    });
    let requests: Vec<_> = requests.collect();
    let mut streams = Vec::with_capacity(requests.len());
    let begun = Instant::now();
    for request in requests {
        streams.push((Instant::now(), engine.submit(request)?));
    }
    let (mut first, mut last) = (begun, begun);
    for (submitted, mut stream) in streams {
        while let Some(token) = stream.next_token() {
            token?;
        }
        // The scheduler's own clock: this thread reads one stream after the other.
        let timings = stream.outcome().map(|outcome| outcome.timings);
        let timings = timings.unwrap_or_default();
        first = first.max(submitted + timings.first_token);
        last = last.max(submitted + timings.first_token + timings.generation);
    }
    Ok(Ends { first, last })
}
