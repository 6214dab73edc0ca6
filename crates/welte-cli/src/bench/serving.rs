//! `welte bench --serve`: requests arrive at random times at a stated rate, and an engine answers them. How long does a
//! user wait for the first token, and between two tokens?
//!
//! Times between arrivals are exponentially distributed (a Poisson process). Lengths of prompts and answers are uniform
//! from half to one and a half times -p and -n. Both depend on the seed only, so every rate has the same requests.

use super::requests::{self, exponential, percentile, request, uniform};
use super::table::{Column, Figures, Table};
use crate::args::BenchArgs;
use anyhow::Context;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use welte::{Engine, Error, Request};
use welte_report::load::{Point, svg};

const COLUMNS: &[Column] = &[
    ("rate", "arrivals/s", 2),
    ("requests", "requests", 0),
    ("seconds", "s", 1),
    ("requests_per_second", "answers/s", 2),
    ("speed", "tokens/s", 1),
    ("speed_all", "with prompts", 1),
    ("ttft_p50", "first token p50 ms", 1),
    ("ttft_p90", "p90", 1),
    ("ttft_p99", "p99", 1),
    ("itl_p50", "next token p50 ms", 2),
    ("itl_p90", "p90", 2),
    ("itl_p99", "p99", 2),
];

/// Kinds of random numbers.
const ARRIVAL: u32 = 0;
const PROMPT: u32 = 1;
const ANSWER: u32 = 2;

/// What the consumer of one stream saw.
struct Seen {
    /// From the arrival to the first token.
    first: Duration,
    /// Milliseconds between tokens.
    gaps: Vec<f64>,
    end: Instant,
}

/// One run at one rate.
struct Run {
    seconds: f64,
    seen: Vec<Seen>,
}

pub(crate) fn run(args: &BenchArgs, named: &str) -> anyhow::Result<ExitCode> {
    let one = |lengths: &[u32], flag: &str| match lengths {
        [length] if *length > 0 => Ok(*length),
        _ => anyhow::bail!("--serve takes one value above 0 of {flag}"),
    };
    let (prompt, answer) = (one(&args.n_prompt, "-p")?, one(&args.n_gen, "-n")?);
    let longest = half_more(prompt).saturating_add(half_more(answer));
    let (model, facts) = requests::load(args, named, longest, args.parallel)?;
    let mut options = requests::plain();
    options.queue = args.requests as usize;
    let engine = Engine::new(&model, &options)?;
    let all: Vec<Request> = (0..args.requests)
        .map(|number| {
            let length = |mean: u32, kind: u32| spread(mean, uniform(args.seed, number, kind));
            let seed = (args.seed << 32) ^ u64::from(number);
            let tokens = length(answer, ANSWER) as usize;
            let mut request = request(seed, length(prompt, PROMPT), tokens, model.vocab());
            // Every prompt is computed in full.
            request.prefix_cache = false;
            request
        })
        .collect();
    let prompts: usize = all.iter().map(|request| request.prompt.len()).sum();
    let mut table = Table::new(args.output, COLUMNS, facts.json());
    let mut points = Vec::new();
    // Warm-up.
    serve(&engine, &all[..all.len().min(2)], f64::INFINITY, args.seed)?;
    for &rate in &args.serve {
        let Run { seconds, seen } = serve(&engine, &all, rate, args.seed)?;
        let mut first: Vec<f64> = seen.iter().map(|s| ms(s.first)).collect();
        let tokens: usize = seen.iter().map(|s| 1 + s.gaps.len()).sum();
        let mut gaps: Vec<f64> = seen.iter().flat_map(|s| s.gaps.iter().copied()).collect();
        let mut of = |share| [&mut first, &mut gaps].map(|values| percentile(values, share));
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(&mut of);
        let speed = tokens as f64 / seconds;
        let rate_figure = if rate.is_finite() {
            serde_json::json!(rate)
        } else {
            serde_json::json!("inf")
        };
        let figures = serde_json::json!({
            "rate": rate_figure, "requests": all.len(), "seconds": seconds, "seed": args.seed, "slots": args.parallel,
            "mean_prompt": prompts as f64 / all.len() as f64, "mean_answer": tokens as f64 / all.len() as f64,
            "requests_per_second": all.len() as f64 / seconds, "speed": speed,
            "speed_all": (tokens + prompts) as f64 / seconds,
            "ttft_p50": p50[0], "ttft_p90": p90[0], "ttft_p99": p99[0],
            "itl_p50": p50[1], "itl_p90": p90[1], "itl_p99": p99[1],
        });
        table.row(figures.as_object().unwrap_or(&Figures::new()))?;
        points.push(Point {
            rate,
            speed,
            first_token: [p50[0], p90[0], p99[0]],
            next_token: [p50[1], p90[1], p99[1]],
        });
    }
    table.end();
    if let Some(path) = &args.svg {
        let about = format!(
            "{named} on {}: {} requests, prompts of {prompt} and answers of {answer} tokens on average, {} slots",
            model.device().id,
            all.len(),
            args.parallel,
        );
        let written = std::fs::write(path, svg(&about, &points));
        written.with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One and a half times a length.
fn half_more(mean: u32) -> u32 {
    mean.saturating_add(mean.div_ceil(2))
}

/// A length from half to one and a half times the mean, by a number from 0 to 1.
fn spread(mean: u32, at: f64) -> u32 {
    ((0.5 + at) * f64::from(mean)).round().max(1.0) as u32
}

/// Sends the requests, and waits for all answers.
fn serve(engine: &Engine, requests: &[Request], rate: f64, seed: u64) -> anyhow::Result<Run> {
    let begun = Instant::now();
    let seen = std::thread::scope(|scope| {
        let mut readers = Vec::with_capacity(requests.len());
        let mut at = Duration::ZERO;
        for (number, request) in requests.iter().enumerate() {
            if rate.is_finite() && number > 0 {
                at += Duration::from_secs_f64(exponential(seed, number as u32, ARRIVAL) / rate);
            }
            let arrival = begun + at;
            let request = request.clone();
            std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
            readers.push(scope.spawn(move || read(engine, request, arrival)));
        }
        let join = |reader: std::thread::ScopedJoinHandle<'_, _>| match reader.join() {
            Ok(seen) => seen,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        readers
            .into_iter()
            .map(join)
            .collect::<Result<Vec<Seen>, Error>>()
    })?;
    let end = seen.iter().map(|s| s.end).max().unwrap_or(begun);
    Ok(Run {
        seconds: (end - begun).as_secs_f64(),
        seen,
    })
}

/// Sends a request and reads its answer.
fn read(engine: &Engine, request: Request, arrival: Instant) -> Result<Seen, Error> {
    let mut gaps = Vec::with_capacity(request.options.max_tokens);
    let mut stream = engine.submit(request)?;
    stream.next_token().transpose()?;
    let mut before = Instant::now();
    let first = before - arrival;
    while let Some(token) = stream.next_token() {
        token?;
        let now = Instant::now();
        gaps.push(ms(now - before));
        before = now;
    }
    Ok(Seen {
        first,
        gaps,
        end: before,
    })
}

fn ms(duration: Duration) -> f64 {
    1e3 * duration.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lie_around_their_mean() {
        assert_eq!([0.0, 0.5, 1.0].map(|at| spread(100, at)), [50, 100, 150]);
        assert_eq!(spread(1, 0.0), 1);
        assert!((1..200).all(|mean| spread(mean, 1.0) <= half_more(mean)));
    }
}
