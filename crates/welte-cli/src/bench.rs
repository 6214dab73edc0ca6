//! `welte bench`: the rows of llama-bench, with bandwidth and the memory floor of the same run.

mod batched;
mod embeddings;
mod images;
pub(crate) mod measure;
mod requests;
mod serving;
mod speculative;
mod table;

use crate::args::{BenchArgs, Rows};
use crate::{floor, source};
use anyhow::Context;
use measure::{Facts, SECONDS, decode, facts, reach, tokens};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use welte::{Sampling, Stepper};
use welte_report::human;

/// How long a prompt is computed before it is measured, at least.
const WARM_UP: Duration = Duration::from_millis(500);

/// One row of the result.
struct Row {
    test: String,
    threads: usize,
    n_prompt: u32,
    n_gen: u32,
    depth: u32,
    /// The depth was filled with random numbers.
    random: bool,
    /// Tokens per second, by repetition.
    speeds: Vec<f64>,
    /// Mean bytes that a generated token reads.
    bytes_per_token: Option<f64>,
}

impl Row {
    fn mean(&self) -> f64 {
        self.speeds.iter().sum::<f64>() / self.speeds.len().max(1) as f64
    }

    fn deviation(&self) -> f64 {
        let (n, mean) = (self.speeds.len() as f64, self.mean());
        if n < 2.0 {
            0.0
        } else {
            (self.speeds.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
        }
    }

    fn gb_s(&self) -> Option<f64> {
        self.bytes_per_token.map(|bytes| bytes * self.mean() / 1e9)
    }
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let synthetic = args.synthetic.as_ref().map(|s| format!("synthetic:{s}"));
    let named = source::pick_optional([
        synthetic.as_deref(),
        args.model.as_deref(),
        args.source.as_deref(),
    ])?;
    if !args.embed.is_empty() {
        return embeddings::run(args, &named);
    }
    if !args.images.is_empty() {
        return images::run(args, &named);
    }
    if !args.batched.is_empty() {
        return batched::run(args, &named);
    }
    if !args.speculative.is_empty() {
        return speculative::run(args, &named);
    }
    if !args.serve.is_empty() {
        return serving::run(args, &named);
    }
    let most = |all: &[u32]| all.iter().copied().max().unwrap_or(0);
    let context = most(&args.n_depth).checked_add(
        most(&args.n_prompt)
            .max(most(&args.n_gen))
            .saturating_add(1),
    );
    let context = context
        .context("-d, -p and -n together are too large")?
        .next_multiple_of(64);
    if args.ladder {
        return crate::ladder::run(args, &named, context);
    }
    let threads: Vec<Option<u16>> = if args.threads.is_empty() {
        vec![None]
    } else {
        args.threads.iter().copied().map(Some).collect()
    };
    let mut printer = Printer {
        rows: args.output,
        first: true,
    };
    for threads in threads {
        let options = args.load_args(threads, context).options()?;
        let model = source::load_with(&named, &options)?;
        let planned = model
            .device_facts()
            .iter()
            .find(|(name, _)| name == "threads");
        let planned = planned.and_then(|(_, count)| count.parse().ok());
        // A GPU plans no threads.
        let count = planned.or(threads.map(usize::from)).unwrap_or(1);
        let speed = model.read_bandwidth(SECONDS)?;
        // The speed of two devices together depends on the model.
        if threads.is_none() && args.on.cpu_experts == 0 {
            floor::raise(model.device().id, &model.device().name, speed);
        }
        let facts = facts(&named, &model, floor::of(&model, speed));
        let mut stepper = model.stepper()?;
        stepper.use_adapters()?;
        for &depth in &args.n_depth {
            let random = args.random_depth && depth > 0;
            if random {
                stepper.fill_at_random(&tokens(&stepper, depth))?;
            }
            for &n in args.n_prompt.iter().filter(|n| **n > 0) {
                let speeds = prompt(&mut stepper, n, depth, args.repetitions)?;
                let test = name("pp", n, depth, random);
                let row = Row {
                    test,
                    threads: count,
                    n_prompt: n,
                    n_gen: 0,
                    depth,
                    random,
                    speeds,
                    bytes_per_token: None,
                };
                printer.row(&facts, &row)?;
            }
            for &n in args.n_gen.iter().filter(|n| **n > 0) {
                let speeds = generation(&mut stepper, n, depth, args.repetitions)?;
                let bytes = (0..n)
                    .map(|i| model.bytes_per_token((depth + i + 1) as usize) as f64)
                    .sum::<f64>();
                let bytes_per_token = Some(bytes / f64::from(n));
                let test = name("tg", n, depth, random);
                let row = Row {
                    test,
                    threads: count,
                    n_prompt: 0,
                    n_gen: n,
                    depth,
                    random,
                    speeds,
                    bytes_per_token,
                };
                printer.row(&facts, &row)?;
            }
        }
    }
    printer.end()?;
    Ok(ExitCode::SUCCESS)
}

fn name(kind: &str, n: u32, depth: u32, random: bool) -> String {
    match (depth, random) {
        (0, _) => format!("{kind}{n}"),
        (_, false) => format!("{kind}{n} @ d{depth}"),
        (_, true) => format!("{kind}{n} @ random d{depth}"),
    }
}

fn prompt(stepper: &mut Stepper, n: u32, depth: u32, repetitions: u32) -> anyhow::Result<Vec<f64>> {
    let tokens = tokens(stepper, n);
    reach(stepper, depth)?;
    // Warm-up. The library of a GPU's products is opened while the first prompts run.
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        stepper.truncate(depth as usize);
        stepper.feed(&tokens)?;
    }
    (0..repetitions)
        .map(|_| {
            stepper.truncate(depth as usize);
            let start = Instant::now();
            stepper.feed(&tokens)?;
            Ok(f64::from(n) / start.elapsed().as_secs_f64())
        })
        .collect()
}

fn generation(
    stepper: &mut Stepper,
    n: u32,
    depth: u32,
    repetitions: u32,
) -> anyhow::Result<Vec<f64>> {
    reach(stepper, depth)?;
    stepper.set_sampling(&Sampling::default(), &[], &[])?;
    decode(stepper, n.min(8), u32::MAX)?;
    (0..repetitions)
        .map(|_| {
            stepper.truncate(depth as usize);
            let start = Instant::now();
            decode(stepper, n, u32::MAX)?;
            Ok(f64::from(n) / start.elapsed().as_secs_f64())
        })
        .collect()
}

struct Printer {
    rows: Rows,
    first: bool,
}

impl Printer {
    fn row(&mut self, facts: &Facts, row: &Row) -> anyhow::Result<()> {
        let mut out = crate::terminal::stdout();
        let first = std::mem::replace(&mut self.first, false);
        match self.rows {
            Rows::Md => {
                if first {
                    writeln!(
                        out,
                        "| model | size | params | backend | threads | test | t/s | GB/s | % of floor |"
                    )?;
                    writeln!(
                        out,
                        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |"
                    )?;
                }
                let (gb_s, share) = match row.gb_s() {
                    Some(v) => (
                        format!("{v:.1}"),
                        facts
                            .floor
                            .describe(1e9 * v, &format!("{:.1}", facts.floor.speed / 1e9)),
                    ),
                    None => (String::new(), String::new()),
                };
                writeln!(
                    out,
                    "| {} | {} | {:.2} M | {} | {} | {} | {:.2} ± {:.2} | {gb_s} | {share} |",
                    facts.model,
                    human(facts.size),
                    facts.parameters as f64 / 1e6,
                    facts.backend,
                    row.threads,
                    row.test,
                    row.mean(),
                    row.deviation(),
                )?;
            }
            Rows::Csv => {
                if first {
                    writeln!(
                        out,
                        "model,model_size,model_n_params,backends,n_threads,test,n_prompt,n_gen,n_depth,avg_ts,stddev_ts,gb_s,floor_gb_s"
                    )?;
                }
                writeln!(
                    out,
                    "\"{}\",{},{},{},{},{},{},{},{},{:.4},{:.4},{},{:.2}",
                    facts.model.replace('"', "\"\""),
                    facts.size,
                    facts.parameters,
                    facts.backend,
                    row.threads,
                    row.test,
                    row.n_prompt,
                    row.n_gen,
                    row.depth,
                    row.mean(),
                    row.deviation(),
                    row.gb_s().map_or(String::new(), |v| format!("{v:.2}")),
                    facts.floor.speed / 1e9,
                )?;
            }
            Rows::Json => write!(
                out,
                "{}{}",
                if first { "[\n  " } else { ",\n  " },
                json(facts, row)
            )?,
            Rows::Jsonl => writeln!(out, "{}", json(facts, row))?,
        }
        out.flush()?;
        Ok(())
    }

    fn end(&self) -> anyhow::Result<()> {
        if self.rows == Rows::Json {
            println!("{}", if self.first { "[]" } else { "\n]" });
        }
        Ok(())
    }
}

fn json(facts: &Facts, row: &Row) -> serde_json::Value {
    serde_json::json!({
        "model_filename": facts.model, "model_size": facts.size, "model_n_params": facts.parameters,
        "backends": facts.backend, "n_threads": row.threads, "test": row.test, "n_prompt": row.n_prompt,
        "n_gen": row.n_gen, "n_depth": row.depth, "random_depth": row.random, "avg_ts": row.mean(), "stddev_ts": row.deviation(),
        "samples_ts": row.speeds, "gb_s": row.gb_s(), "floor_gb_s": facts.floor.speed / 1e9,
        "floor_share": row.gb_s().and_then(|v| facts.floor.share(1e9 * v)), "in_cache": facts.floor.in_cache,
    })
}
