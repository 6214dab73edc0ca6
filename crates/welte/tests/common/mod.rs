//! What the tests share: a small random model, and the bundled one.
#![allow(dead_code, unreachable_pub)]

use std::ops::ControlFlow;
use welte::{GenerateOptions, LoadOptions, Model, Outcome, Sampling, Session};

pub const TINY: &str = "synthetic:tiny:q8_0";

pub fn options() -> LoadOptions {
    LoadOptions {
        context: 256,
        threads: Some(2),
        prefill_rows: 32,
        ..LoadOptions::default()
    }
}

pub fn tiny() -> Model {
    load(TINY, &options())
}

pub fn load(source: &str, options: &LoadOptions) -> Model {
    Model::load(source, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// The bundled model; it comes with the source.
pub fn demo() -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    load(
        path,
        &LoadOptions {
            context: 512,
            threads: Some(2),
            ..LoadOptions::default()
        },
    )
}

pub fn prompt(n: usize, model: &Model) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7) % model.vocab())
        .collect()
}

pub fn sampled(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.0,
        top_k: 40,
        top_p: 0.95,
        seed,
        repeat_penalty: 1.1,
        ..Sampling::default()
    }
}

pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
) -> (Outcome, String) {
    let mut text = String::new();
    let outcome = session
        .generate(prompt, options, &mut |piece| {
            text.push_str(piece);
            ControlFlow::Continue(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    (outcome, text)
}

pub fn logits(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    session
        .feed(tokens)
        .unwrap_or_else(|error| panic!("{error}"))
        .to_vec()
}

/// Largest difference, set against the spread of the values.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let spread = a.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, f32::max)
        / spread
}
