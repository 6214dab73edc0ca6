//! `welte bench --images`: what a picture takes until its first token, and what its encoder's work costs a stream that runs.
//!
//! Each row encodes pictures of one size. Alone: decoding and cutting it up, encoding, and the prompt that consists of its
//! rows. Then a stream generates tokens without anything beside it, and while pictures are encoded.

use super::measure::{SECONDS, facts};
use super::requests::{self, median, percentile, request};
use super::table::{Column, Figures, Table};
use crate::args::BenchArgs;
use crate::{floor, source};
use anyhow::Context;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use welte::{Engine, Images, Prompt, Sense};

const COLUMNS: &[Column] = &[
    ("width", "width", 0),
    ("height", "height", 0),
    ("tokens", "tokens", 0),
    ("read_ms", "read ms", 1),
    ("encode_ms", "encode ms", 1),
    ("prompt_ms", "prompt ms", 1),
    ("encode_beside_ms", "encode beside ms", 1),
    ("token_ms", "token ms", 2),
    ("token_p99_ms", "p99 ms", 2),
    ("beside_ms", "beside ms", 2),
    ("beside_p99_ms", "p99 beside ms", 2),
];

/// Tokens that the stream has before others are measured.
const WARM_UP: usize = 4;
/// Tokens of the stream alone.
const ALONE: usize = 100;

pub(crate) fn run(args: &BenchArgs, named: &str) -> anyhow::Result<ExitCode> {
    requests::check(args)?;
    let threads = args.threads.first().copied();
    let context = args.n_gen.iter().copied().max().unwrap_or(0).max(1024) + 4096;
    let mut options = args.load_args(threads, context).options()?;
    (options.slots, options.cache_positions) = (2, 2 * context);
    options.images = match &args.mmproj {
        Some(path) => Images::File(path.clone()),
        None => Images::Beside,
    };
    let model = source::load_with(named, &options)?;
    let eyes = model.eyes().with_context(|| {
        let why = model.no_images().unwrap_or("it has no eyes");
        format!("{named}: the model takes no images: {why}")
    })?;
    let speed = model.read_bandwidth(SECONDS)?;
    let facts = facts(named, &model, floor::of(&model, speed));
    let engine = Engine::new(&model, &requests::plain())?;
    let mut table = Table::new(args.output, COLUMNS, facts.json());
    for &size in &args.images {
        let figures = measure(&engine, eyes, size, args.repetitions)?;
        table.row(&figures)?;
    }
    table.end();
    Ok(ExitCode::SUCCESS)
}

/// A row of the table: medians of all repetitions.
fn measure(
    engine: &Engine,
    eyes: &Sense,
    size: [u32; 2],
    repetitions: u32,
) -> anyhow::Result<Figures> {
    let mut number = 0;
    let mut next = || {
        number += 1;
        picture(size, number)
    };
    // Warm-up.
    let tokens = eyes.see(&next())?.tokens();
    let [mut read, mut encode, mut prompt, mut beside] = [const { Vec::new() }; 4];
    for _ in 0..repetitions {
        let file = next();
        let begun = Instant::now();
        let glimpse = eyes.look(&file)?;
        read.push(millis(begun));
        let begun = Instant::now();
        let seen = glimpse.see()?;
        encode.push(millis(begun));
        let mut own = Prompt::default();
        eyes.push(&mut own, &seen);
        let mut asked = request(0, 0, 1, engine.model().vocab());
        (asked.prompt, asked.media) = (own.tokens, own.media);
        engine.forget_prefixes();
        let begun = Instant::now();
        engine.submit(asked)?.complete()?;
        prompt.push(millis(begun));
    }
    let mut alone = stream(engine, |taken| taken < ALONE)?;
    let done = AtomicBool::new(false);
    let files: Vec<Vec<u8>> = (0..repetitions).map(|_| next()).collect();
    let (times, encoded) = std::thread::scope(|scope| {
        let encoder = scope.spawn(|| -> anyhow::Result<()> {
            let mut encode = || {
                for file in &files {
                    let glimpse = eyes.look(file)?;
                    let begun = Instant::now();
                    glimpse.see()?;
                    beside.push(millis(begun));
                }
                Ok(())
            };
            let encoded = encode();
            done.store(true, Ordering::Relaxed);
            encoded
        });
        let times = stream(engine, |_| !done.load(Ordering::Relaxed));
        (times, encoder.join())
    });
    encoded.map_err(|_| anyhow::anyhow!("the encoder's thread has panicked"))??;
    let mut times = times?;
    let figures = serde_json::json!({
        "width": size[0], "height": size[1], "tokens": tokens, "read_ms": median(read),
        "encode_ms": median(encode), "prompt_ms": median(prompt), "encode_beside_ms": median(beside),
        "token_ms": percentile(&mut alone, 0.5), "token_p99_ms": percentile(&mut alone, 0.99),
        "beside_ms": percentile(&mut times, 0.5), "beside_p99_ms": percentile(&mut times, 0.99),
        "beside_tokens": times.len(),
    });
    Ok(figures.as_object().cloned().unwrap_or_default())
}

/// Milliseconds of each token of a stream after its first ones, as long as more are wanted. Where a request has generated all that
/// its context holds, the next one goes on.
fn stream(engine: &Engine, mut wanted: impl FnMut(usize) -> bool) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 1.. {
        let model = engine.model();
        let request = request(number, 16, model.context() - 17, model.vocab());
        let mut stream = engine.submit(request)?;
        let mut last = None;
        let mut taken = 0;
        while let Some(token) = stream.next_token() {
            token?;
            taken += 1;
            if let Some(before) = last.replace(Instant::now())
                && taken > WARM_UP
            {
                times.push(millis(before));
            }
            if !wanted(times.len()) {
                return Ok(times);
            }
        }
    }
    Ok(times)
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// A picture as a BMP file. Each number has one of its own.
fn picture([width, height]: [u32; 2], number: u32) -> Vec<u8> {
    let line = (3 * width).next_multiple_of(4) as usize;
    let pixels = line * height as usize;
    let mut file = Vec::with_capacity(54 + pixels);
    file.extend(b"BM");
    for word in [54 + pixels as u32, 0, 54, 40, width, height, 24 << 16 | 1] {
        file.extend(word.to_le_bytes());
    }
    file.resize(54, 0);
    let value = |x: usize, y: usize| (x * (3 + number as usize) + y * 5 + (x * y) / 64) as u8;
    file.extend((0..height as usize).flat_map(|y| (0..line).map(move |x| value(x, y))));
    file
}
