//! What the benchmarks of an engine share: loading with several slots, requests of random tokens, percentiles.

use super::measure::{Facts, SECONDS, facts};
use crate::args::BenchArgs;
use crate::{floor, source};
use anyhow::Context;
use welte::{EngineOptions, Model, Request, Speculation};
use welte_report::human;

/// Positions of a page, as models are compiled.
const PAGE: u32 = 64;

/// Loads the model with slots for sequences of at most `longest` tokens. Each has its pages, one for the copy of a
/// shared page and one for the next token.
pub(super) fn load(
    args: &BenchArgs,
    named: &str,
    longest: u32,
    slots: u32,
) -> anyhow::Result<(Model, Facts)> {
    check(args)?;
    let context = longest.checked_add(2 * PAGE);
    let context = context.map(|n| n.next_multiple_of(PAGE));
    let context = context.context("-p and -n together are too large")?;
    let positions = context.checked_mul(slots);
    let mut options = args
        .load_args(args.threads.first().copied(), context)
        .options()?;
    options.slots = slots;
    options.cache_positions = positions.context("the caches of all sequences are too large")?;
    let model = source::load_with(named, &options)?;
    let speed = model.read_bandwidth(SECONDS)?;
    let facts = facts(named, &model, floor::of(&model, speed));
    eprintln!(
        "{named}: {} of weights on {}, {slots} slots, floor {:.1} GB/s",
        human(facts.size),
        model.device().id,
        speed / 1e9
    );
    Ok((model, facts))
}

/// Refuses settings of the plain benchmark that those of an engine do not have.
pub(super) fn check(args: &BenchArgs) -> anyhow::Result<()> {
    for (set, flag) in [
        (args.n_depth.iter().any(|depth| *depth > 0), "-d"),
        (args.threads.len() > 1, "several values of -t"),
    ] {
        anyhow::ensure!(
            !set,
            "{flag} cannot be used with --batched, --embed, --images, --serve or --speculative"
        );
    }
    Ok(())
}

/// Options of an engine that guesses nothing: random text does not repeat itself as real text does.
pub(super) fn plain() -> EngineOptions {
    let mut options = EngineOptions::default();
    options.speculation = Speculation::Off;
    options
}

/// A request for `tokens` tokens. Each `number` has a prompt of its own.
pub(super) fn request(number: u64, prompt: u32, tokens: usize, vocab: u32) -> Request {
    let token = |at: u32| (uniform(number, at, 0) * f64::from(vocab)) as u32;
    let mut request = Request::new((0..prompt).map(token).collect());
    request.options.max_tokens = tokens;
    request.options.ignore_end = true;
    request
}

/// A random number that is exponentially distributed with mean 1: a function of the arguments.
pub(super) fn exponential(seed: u64, number: u32, kind: u32) -> f64 {
    // The noise is Gumbel distributed.
    f64::from(-welte_device::noise(seed, number, kind)).exp()
}

/// A random number from 0 to 1, below 1.
pub(super) fn uniform(seed: u64, number: u32, kind: u32) -> f64 {
    (-exponential(seed, number, kind))
        .exp()
        .min(1.0 - f64::EPSILON)
}

/// The value below which a share of the values lies; 0 of no value.
pub(super) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values
        .get((share * last).round() as usize)
        .copied()
        .unwrap_or(0.0)
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_have_their_distribution() {
        let many = |of: fn(u64, u32, u32) -> f64| -> Vec<f64> {
            (0..20_000).map(|number| of(7, number, 3)).collect()
        };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (mut gaps, mut uniform) = (many(exponential), many(uniform));
        assert!((mean(&gaps) - 1.0).abs() < 0.03);
        assert!((percentile(&mut gaps, 0.5) - 2f64.ln()).abs() < 0.03);
        assert!((mean(&uniform) - 0.5).abs() < 0.01);
        assert!(percentile(&mut uniform, 0.0) >= 0.0 && percentile(&mut uniform, 1.0) < 1.0);
    }

    #[test]
    fn percentiles_are_values() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(percentile(&mut values, 0.0), 1.0);
        assert_eq!(percentile(&mut values, 0.5), 3.0);
        assert_eq!(percentile(&mut values, 0.99), 5.0);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn prompts_differ_from_their_first_token_on() {
        let of = |number| request(number, 8, 1, 1 << 20).prompt;
        assert_eq!(of(1), of(1));
        assert_ne!(of(1)[0], of(2)[0]);
        assert!(of(3).iter().all(|token| *token < 1 << 20));
    }
}
