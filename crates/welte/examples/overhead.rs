//! What the engine costs a single stream: chains of a stepper and a stream of an engine, alternating. Both choose among
//! the same tokens: end tokens are excluded by a bias, because a device may have a faster way without biases. Prints JSON.
//!
//! ```console
//! $ cargo run --release -p welte --example overhead -- MODEL [DEVICE] [TOKENS] [ROUNDS]
//! ```

use std::time::Instant;
use welte::{Engine, Error, LoadOptions, Model, Request, Sampling, Stepper};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let source = words.next().unwrap_or("synthetic:tiny:q8_0".into());
    let device = words.next().unwrap_or("auto".into()).parse()?;
    let mut number = |default: usize| words.next().map_or(Ok(default), |word| word.parse());
    let (tokens, rounds) = (number(256)?, number(9)?);
    let mut options = LoadOptions::default();
    options.device = device;
    options.context = (tokens + 64) as u32;
    let model = Model::load(&source, &options, &mut |_| ())?;
    let (mut stepper, engine) = (model.stepper()?, model.engine()?);
    let (mut steps, mut streams) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (step, stream) = (chains(&mut stepper, tokens)?, stream(&engine, tokens)?);
        // The first round is the warm-up.
        if round > 0 {
            steps.push(step);
            streams.push(stream);
        }
    }
    let (stepper, engine) = (median(steps), median(streams));
    println!(
        "{:#}",
        serde_json::json!({
            "model": source, "device": model.device().name, "tokens": tokens, "rounds": rounds,
            "stepper_tokens_per_second": stepper, "engine_tokens_per_second": engine, "ratio": engine / stepper,
        })
    );
    Ok(())
}

/// Tokens per second of chains by hand, after a prompt of one token.
fn chains(stepper: &mut Stepper, tokens: usize) -> Result<f64, Error> {
    stepper.clear();
    stepper.feed(&[1])?;
    let ends = stepper.model().end_tokens().iter();
    let bias: Vec<(u32, f32)> = ends.map(|token| (*token, f32::NEG_INFINITY)).collect();
    stepper.set_sampling(&Sampling::default(), &bias, &[])?;
    let mut last = stepper.sample()?;
    let (start, mut left) = (Instant::now(), tokens - 1);
    while left > 0 {
        left -= stepper.chain(last, left, &mut |token| {
            last = token;
            true
        })?;
    }
    Ok((tokens - 1) as f64 / start.elapsed().as_secs_f64())
}

/// Tokens per second of the same through the engine.
fn stream(engine: &Engine, tokens: usize) -> Result<f64, Error> {
    let mut request = Request::new(vec![1]);
    request.options.max_tokens = tokens;
    request.options.ignore_end = true;
    // Random weights repeat themselves.
    request.speculate = false;
    let mut stream = engine.submit(request)?;
    while let Some(token) = stream.next_token() {
        token?;
    }
    // The scheduler's own clock: this thread may wake late.
    let timings = stream.outcome().map(|outcome| outcome.timings);
    let generation = timings.unwrap_or_default().generation;
    Ok((tokens - 1) as f64 / generation.as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
