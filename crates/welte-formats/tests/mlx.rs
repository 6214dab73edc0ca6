//! Directories that MLX quantised: its own values (files by tools/goldens/mlx_goldens.py), and what is refused.

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use welte_formats::quantize::{Quantisation, Recipe, quantize};
use welte_formats::{open, quant};
use welte_table::{Affine, Format};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mlx")
}

#[test]
fn every_format_decodes_as_mlx_does() {
    let read = open(&fixtures()).unwrap();
    let values = std::fs::read(fixtures().join("values.f32")).unwrap();
    let mut values = values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    for affine in Affine::ALL {
        let (bits, group) = (affine.bits(), affine.group());
        let kind = if affine.bf16() { "bf16" } else { "f16" };
        let tensor = read
            .tensor(&format!("b{bits}_g{group}_{kind}.weight"))
            .unwrap();
        assert_eq!(tensor.format, Format::Affine(affine));
        assert_eq!((tensor.n, tensor.k), (2, 256));
        for row in 0..2 {
            let mut got = [0.0; 256];
            quant::decode(tensor.format, &read.rows(tensor, row, 1).unwrap(), &mut got);
            for (i, (got, want)) in got.into_iter().zip(&mut values).enumerate() {
                let name = &tensor.name;
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{name} {row} {i}: {got} {want}"
                );
            }
        }
    }
    assert!(values.next().is_none());
}

const CONFIG: &str = r#"{"model_type": "llama", "quantization": {"bits": 4, "group_size": 32, "lm_head": false,
    "a.b": {"bits": 3, "group_size": 64}}}"#;

/// A header entry for each tensor, and data for all of them.
fn safetensors(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let mut at = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape)| {
            let each = match *dtype {
                "U32" | "F32" => 4,
                "U8" => 1,
                _ => 2,
            };
            let end = at + each * shape.iter().product::<usize>();
            let entry = format!(
                r#""{name}": {{"dtype": "{dtype}", "shape": {shape:?}, "data_offsets": [{at}, {end}]}}"#
            );
            at = end;
            entry
        })
        .collect();
    let header = format!("{{{}}}", entries.join(", "));
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend((0..at).map(|i| (i * 7) as u8));
    out
}

/// `x` in 4 bits by 32, `a.b` in 3 bits by 64, a stack of two matrices, and a vector.
const GOOD: [(&str, &str, &[usize]); 10] = [
    ("x.weight", "U32", &[3, 8]),
    ("x.scales", "BF16", &[3, 2]),
    ("x.biases", "BF16", &[3, 2]),
    ("a.b.weight", "U32", &[2, 6]),
    ("a.b.scales", "F16", &[2, 1]),
    ("a.b.biases", "F16", &[2, 1]),
    ("s.weight", "U32", &[2, 5, 4]),
    ("s.scales", "BF16", &[2, 5, 1]),
    ("s.biases", "BF16", &[2, 5, 1]),
    ("lm_head.weight", "BF16", &[4]),
];

fn directory(config: &str, weights: &[u8]) -> TempDir {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("config.json"), config).unwrap();
    std::fs::write(directory.path().join("model.safetensors"), weights).unwrap();
    directory
}

#[test]
fn three_parts_become_one_tensor() {
    let made = directory(CONFIG, &safetensors(&GOOD));
    let read = open(made.path()).unwrap();
    let found: Vec<_> = read
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t.format.name(), t.n, t.k))
        .collect();
    assert_eq!(
        found,
        [
            ("x.weight", "MLX4_32", 3, 64),
            ("a.b.weight", "MLX3_64_F16", 2, 64),
            ("s.weight", "MLX4_32", 10, 32),
            ("lm_head.weight", "BF16", 1, 4),
        ]
    );
    // Blocks of scale, bias, integers: bytes of the file are 7 times their place in it.
    let x = read.tensor("x.weight").unwrap();
    let rows = read.rows(x, 1, 2).unwrap();
    let at = |start: usize, count: usize| (start..start + count).map(|i| (i * 7) as u8);
    let block = |b: usize| {
        let quants = at(b * 16, 16);
        at(96 + b * 2, 2).chain(at(108 + b * 2, 2)).chain(quants)
    };
    let want: Vec<u8> = (2..6).flat_map(block).collect();
    assert_eq!(*rows, *want);
    assert!(read.rows(x, 2, 2).is_err());
    assert!(read.rows(x, usize::MAX, 2).is_err());
}

/// The refusal of a directory, which must hold all of `parts`.
#[track_caller]
fn refused(config: &str, tensors: &[(&str, &str, &[usize])], parts: &[&str]) {
    let made = directory(config, &safetensors(tensors));
    let error = open(made.path())
        .err()
        .expect("must be refused")
        .to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn wrong_configurations_are_named() {
    let config = |quantization: &str| format!(r#"{{"model_type": "llama", {quantization}}}"#);
    let cases: [(&str, &[&str]); 10] = [
        (r#""x": 1"#, &["quantization", "is missing", "x.weight"]),
        (
            r#""quantization": {"bits": 7, "group_size": 32}"#,
            &["config.json", "quantization.bits", "is 7", "2, 3, 4"],
        ),
        (
            r#""quantization": {"bits": 4, "group_size": 48}"#,
            &["quantization.group_size", "is 48", "32, 64, 128"],
        ),
        (
            r#""quantization": {"bits": "four", "group_size": 32}"#,
            &["quantization.bits", "not an integer"],
        ),
        (
            r#""quantization": {"bits": 4}"#,
            &["quantization.group_size", "is missing"],
        ),
        (
            r#""quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}"#,
            &["config.json", "quantization.mode", "mxfp4", "affine"],
        ),
        (
            r#""quantization": {"bits": 4, "group_size": 32, "x": {"mode": "nvfp4"}}"#,
            &["quantization.x.mode", "nvfp4"],
        ),
        (
            r#""quantization": {"bits": 4, "group_size": 32, "x": false}"#,
            &["quantization.x", "is false", "packed"],
        ),
        (
            r#""quantization": {"bits": 4, "group_size": 32, "x": {"bits": 1}}"#,
            &["quantization.x.bits", "is 1"],
        ),
        (
            r#""quantization_config": {"quant_method": "hqq", "bits": 4, "group_size": 32}"#,
            &["quantization_config.quant_method", "is hqq"],
        ),
    ];
    for (quantization, parts) in cases {
        refused(&config(quantization), &GOOD[..3], parts);
    }
    // The other name of the same key, as long as no other tool claims it.
    let other = config(r#""quantization_config": {"bits": 4, "group_size": 32}"#);
    let made = directory(&other, &safetensors(&GOOD[..3]));
    assert_eq!(open(made.path()).unwrap().tensors().len(), 1);
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let with = |at: usize, part: (&'static str, &'static str, &'static [usize])| {
        let mut tensors = GOOD[..3].to_vec();
        tensors[at] = part;
        tensors
    };
    let mut scalars = with(1, ("x.scales", "BF16", &[]));
    scalars[2] = ("x.biases", "BF16", &[]);
    let cases: [(_, &[&str]); 10] = [
        (scalars, &["tensor x.weight", "[3, 8]", "[]"]),
        (
            with(1, ("y.scales", "BF16", &[3, 2])),
            &["tensor x.weight", "x.scales is missing"],
        ),
        (
            with(2, ("y.z", "BF16", &[3, 2])),
            &["tensor x.weight", "x.biases is missing"],
        ),
        (
            with(1, ("x.scales", "F32", &[3, 2])),
            &["tensor x.scales", "F32", "F16 or BF16"],
        ),
        (
            with(2, ("x.biases", "F16", &[3, 2])),
            &["tensor x.biases", "F16"],
        ),
        (
            with(2, ("x.biases", "BF16", &[3, 1])),
            &["tensor x.biases", "[3, 1]"],
        ),
        (
            with(0, ("x.weight", "U32", &[3, 6])),
            &["tensor x.weight", "[3, 6]", "4 bits in groups of 32"],
        ),
        (
            with(0, ("x.weight", "U32", &[2, 8])),
            &["tensor x.weight", "[2, 8]", "[3, 2]"],
        ),
        (
            with(0, ("x.weight", "BF16", &[3, 64])),
            &["tensor x.scales", "which is missing"],
        ),
        (
            with(0, ("x.packed", "U32", &[3, 8])),
            &["tensor x.packed", "U32"],
        ),
    ];
    for (tensors, parts) in cases {
        refused(CONFIG, &tensors, parts);
    }
    refused(
        CONFIG,
        &[("x.weight", "U32", &[0, 8])],
        &["tensor x.weight"],
    );
}

#[test]
fn they_are_not_quantised_again() {
    let output = TempDir::new().unwrap();
    let path = output.path().join("a.gguf");
    let input = open(&fixtures()).unwrap();
    let done = quantize(
        input.as_ref(),
        &path,
        &Quantisation::new(Recipe::Q4_0, 1),
        &mut |_, _| (),
    );
    let error = done.expect_err("must be refused").to_string();
    assert!(
        error.contains("MLX") && error.contains("start from"),
        "{error}"
    );
    assert!(!path.exists());
}

#[test]
fn cut_anywhere_it_is_refused() {
    let whole = safetensors(&GOOD);
    for length in 0..whole.len() {
        let made = directory(CONFIG, &whole[..length]);
        assert!(open(made.path()).is_err(), "{length} of {}", whole.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn changed_bytes_do_no_harm(
        config_changes in prop::collection::vec((0..1000usize, any::<u8>()), 0..4),
        changes in prop::collection::vec((0..700usize, any::<u8>()), 0..6),
    ) {
        let (mut config, mut weights) = (CONFIG.as_bytes().to_vec(), safetensors(&GOOD));
        for (bytes, changes) in [(&mut config, config_changes), (&mut weights, changes)] {
            let length = bytes.len();
            changes.into_iter().for_each(|(at, byte)| bytes[at % length] = byte);
        }
        let made = TempDir::new().unwrap();
        std::fs::write(made.path().join("config.json"), &config).unwrap();
        std::fs::write(made.path().join("model.safetensors"), &weights).unwrap();
        if let Ok(read) = open(made.path()) {
            for tensor in read.tensors() {
                prop_assert!(read.rows(tensor, 0, tensor.n).is_ok_and(|rows| rows.len() <= weights.len()));
            }
        }
    }
}
