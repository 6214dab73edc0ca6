//! Helpers of all tests: devices, a small random model, and the bundled model.
#![allow(dead_code, unreachable_pub, unused_macros, unused_imports)]

use std::ops::ControlFlow;
use std::path::Path;
use welte::{
    DeviceChoice, GenerateOptions, LoadOptions, Medium, Message, Model, Outcome, Sampling, Session,
    Stepper,
};

pub const TINY: &str = "synthetic:tiny:q8_0";

/// Makes two tests of each function that takes a device: one on the CPU, and one on a GPU, which runs only with
/// `--ignored` or `--include-ignored`.
macro_rules! on_devices {
    ($($name:ident),* $(,)?) => {
        mod cpu {
            $(#[test] fn $name() { super::$name(welte::DeviceChoice::CPU) })*
        }
        mod cuda {
            $(
                #[test]
                #[ignore = "needs a GPU"]
                fn $name() { super::$name(super::common::gpu()) }
            )*
        }
    };
}
pub(crate) use on_devices;

/// The first GPU. Only tests that need one ask for it, so its absence is an error.
pub fn gpu() -> DeviceChoice {
    "cuda".parse().unwrap()
}

/// A value with some fields changed: options cannot be written as literals outside their crate.
pub fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

pub fn options(device: DeviceChoice) -> LoadOptions {
    with(LoadOptions::default(), |o| {
        o.device = device;
        o.context = 256;
        o.threads = Some(2);
        o.prompt_rows = 32;
    })
}

pub fn tiny(device: DeviceChoice) -> Model {
    load(TINY, &options(device))
}

pub fn load(source: &str, options: &LoadOptions) -> Model {
    Model::load(source, options, &mut |_| ()).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// A model from a directory with the weights of a golden, a vocabulary of 251 letters from U+0100 on, this in place of
/// the configuration's end token, and these files.
pub fn directory(folder: &Path, end_of_config: &str, files: &[(&str, &str)]) -> Model {
    let path = write_directory(folder, end_of_config, files);
    load(&path, &options(DeviceChoice::CPU))
}

/// Writes that directory.
pub fn write_directory(folder: &Path, end_of_config: &str, files: &[(&str, &str)]) -> String {
    welte_goldens::write("llama/hf", folder);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let own = "\"eos_token_id\": 1,";
    assert!(config.contains(own));
    let config = config.replace(own, end_of_config);
    let letter = |id| char::from_u32(0x100 + id).unwrap().to_string();
    let vocab = serde_json::Map::from_iter((0..251u32).map(|id| (letter(id), id.into())));
    let tokenizer = serde_json::json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": [],
    });
    let own = [
        ("config.json", config.as_str()),
        ("tokenizer.json", &tokenizer.to_string()),
    ];
    for (name, text) in own.iter().chain(files) {
        std::fs::write(folder.join(name), text).unwrap();
    }
    folder.to_str().unwrap().to_string()
}

/// The folder of the crate.
pub fn folder() -> String {
    // The variable at run time comes first: a bundle for a machine with a GPU has the files elsewhere.
    let folder = std::env::var("CARGO_MANIFEST_DIR");
    folder.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string())
}

/// The bundled model, which is part of the repository.
pub fn demo(device: DeviceChoice) -> Model {
    load(
        &format!("{}/../../models/demo.gguf", folder()),
        &with(LoadOptions::default(), |o| {
            o.device = device;
            o.context = 512;
            o.threads = Some(2);
        }),
    )
}

/// The tokens of a chat that asks the bundled model for a story.
pub fn story(model: &Model) -> Vec<u32> {
    let template = model.chat_template().unwrap();
    let message = Message::new("user", "Tell me a story about a fox.");
    model.encode_chat(&template, &[message]).unwrap()
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

pub fn logits(stepper: &mut Stepper, tokens: &[u32]) -> Vec<f32> {
    stepper
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

/// Random numbers for tests (splitmix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A medium of random features, as an encoder would make it of `columns` columns and `lines` lines of patches.
pub fn random_medium(width: usize, [columns, lines]: [u32; 2], random: &mut Random) -> Medium {
    let count = (columns * lines) as usize * width;
    let value = |n: u64| (n % 2001) as f32 / 1000.0 - 1.0;
    let features = (0..count).map(|_| value(random.next())).collect();
    let axes = (0..columns * lines).map(|row| [0, row / columns, row % columns]);
    let medium = Medium::new(width, features).unwrap();
    let advance = columns.max(lines);
    medium.with_axes(axes.collect(), advance).unwrap()
}
