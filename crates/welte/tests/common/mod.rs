//! What the tests share: the devices, a small random model, and the bundled one.
#![allow(dead_code, unreachable_pub, unused_macros, unused_imports)]

use std::ops::ControlFlow;
use welte::{DeviceChoice, GenerateOptions, LoadOptions, Model, Outcome, Sampling, Session};

pub const TINY: &str = "synthetic:tiny:q8_0";

/// Runs tests that take a device on the CPU, and on a GPU where there is one.
macro_rules! on_devices {
    ($($name:ident),* $(,)?) => {
        mod cpu {
            $(#[test] fn $name() { super::$name(welte::DeviceChoice::Cpu) })*
        }
        mod cuda {
            $(#[test] fn $name() {
                if let Some(device) = super::common::gpu() {
                    super::$name(device)
                }
            })*
        }
    };
}
pub(crate) use on_devices;

/// The first GPU; says why a test is skipped where there is none.
pub fn gpu() -> Option<DeviceChoice> {
    match welte::gpu_info(0) {
        Ok(gpu) => Some(DeviceChoice::Cuda(gpu.device)),
        Err(error) => {
            eprintln!("skipped on CUDA: {error}");
            None
        }
    }
}

pub fn options(device: DeviceChoice) -> LoadOptions {
    LoadOptions {
        device,
        context: 256,
        threads: Some(2),
        prefill_rows: 32,
        ..LoadOptions::default()
    }
}

pub fn tiny(device: DeviceChoice) -> Model {
    load(TINY, &options(device))
}

pub fn load(source: &str, options: &LoadOptions) -> Model {
    Model::load(source, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// The bundled model; it comes with the source.
pub fn demo(device: DeviceChoice) -> Model {
    // At run time first: a bundle for a machine with a GPU carries the files elsewhere.
    let folder = std::env::var("CARGO_MANIFEST_DIR");
    let folder = folder.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    load(
        &format!("{folder}/../../models/demo.gguf"),
        &LoadOptions {
            device,
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
