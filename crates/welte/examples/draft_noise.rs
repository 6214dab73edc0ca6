//! How often a draft model chooses the token of its target: with the target's noise, with noise of its own, and by
//! rejection sampling as other engines do. The target generates texts, and both models score them. Prints JSON.
//!
//! ```console
//! $ cargo run --release -p welte --example draft_noise -- TARGET DRAFT [DEVICE] [TEXTS] [TOKENS]
//! ```

use welte::{LoadOptions, Model, Request, Sampling, Stepper};
use welte_device::noise;

type Failure = Box<dyn std::error::Error>;

/// Beginnings of the texts, in turn.
const PROMPTS: [&str; 4] = [
    "Once upon a time",
    "One day, a girl named Lily",
    "The dog and the cat",
    "Tom was sad because",
];
/// The draft's own noise has another seed.
const OTHER: u64 = 1 << 40;

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let (Some(target), Some(draft)) = (words.next(), words.next()) else {
        return Err("two models are needed".into());
    };
    let device = words.next().unwrap_or("auto".into()).parse()?;
    let mut number = |default: usize| words.next().map_or(Ok(default), |word| word.parse());
    let (texts, tokens) = (number(40)?, number(200)?);
    let mut options = LoadOptions::default();
    options.device = device;
    options.context = (tokens + 64) as u32;
    let load = |source: &str| Model::load(source, &options, &mut |_| ());
    let (target, draft) = (load(&target)?, load(&draft)?);
    let mut results = Vec::new();
    for temperature in [0.6, 1.0] {
        let (mut keyed, mut independent, mut rejection, mut count) = (0, 0, 0.0, 0);
        let engine = target.engine()?;
        for seed in 0..texts as u64 {
            let prompt = target.encode(PROMPTS[seed as usize % PROMPTS.len()])?;
            let mut request = Request::new(prompt.clone());
            request.options.max_tokens = tokens;
            request.options.sampling = Sampling {
                temperature,
                seed,
                ..Sampling::default()
            };
            let answer = engine.submit(request)?.complete()?.1.tokens;
            let rows = |model: &Model| logits(&mut model.stepper()?, &prompt, &answer);
            let positions = prompt.len() as u32..;
            for ((own, other), position) in rows(&target)?.iter().zip(&rows(&draft)?).zip(positions)
            {
                let choose = |logits: &[f32], seed| choice(logits, temperature, seed, position);
                let token = choose(own, seed);
                keyed += usize::from(choose(other, seed) == token);
                independent += usize::from(choose(other, seed ^ OTHER) == token);
                rejection += overlap(own, other, temperature);
                count += 1;
            }
        }
        let share = |right: f64| right / count as f64;
        results.push(serde_json::json!({
            "temperature": temperature, "tokens": count, "keyed": share(keyed as f64),
            "independent": share(independent as f64), "rejection": share(rejection),
        }));
    }
    println!("{:#}", serde_json::Value::from(results));
    Ok(())
}

/// The logits that each token of an answer was chosen from.
fn logits(stepper: &mut Stepper, prompt: &[u32], answer: &[u32]) -> Result<Vec<Vec<f32>>, Failure> {
    let mut rows = vec![stepper.feed(prompt)?.to_vec()];
    stepper.score(answer, &mut |_, logits| rows.push(logits.to_vec()))?;
    rows.truncate(answer.len());
    Ok(rows)
}

/// The choice as the engine makes it.
fn choice(logits: &[f32], temperature: f32, seed: u64, position: u32) -> u32 {
    let key = |token: u32, logit: f32| logit / temperature + noise(seed, position, token);
    let keys = (0..)
        .zip(logits)
        .map(|(token, logit)| (token, key(token, *logit)));
    let best = keys.max_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(0, |(token, _)| token)
}

/// The probability that rejection sampling keeps a token of the draft.
fn overlap(own: &[f32], other: &[f32], temperature: f32) -> f64 {
    let pairs = shares(own, temperature).zip(shares(other, temperature));
    pairs.map(|(a, b)| a.min(b)).sum()
}

fn shares(logits: &[f32], temperature: f32) -> impl Iterator<Item = f64> + '_ {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let share = move |logit: &f32| f64::from((logit - largest) / temperature).exp();
    let sum: f64 = logits.iter().map(share).sum();
    logits.iter().map(move |logit| share(logit) / sum)
}
