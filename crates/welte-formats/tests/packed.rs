//! AWQ, GPTQ, compressed-tensors and NVFP4 directories: the values of other tools (files by tools/quant-fixtures/packed.py), and
//! what is refused.

mod common;

use common::{Tensor, directory_of, floats, holds};
use std::path::Path;
use welte_formats::{open, quant};

const N: usize = 24;
const K: usize = 256;

/// The format and values of a fixture's module, and the values that are meant.
fn read(case: &str) -> (String, Vec<f32>, Vec<f32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/packed")
        .join(case);
    let opened = open(&folder).unwrap();
    let names: Vec<_> = opened.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["x.weight"], "{case}");
    let tensor = opened.tensor("x.weight").unwrap();
    assert_eq!((tensor.n, tensor.k, tensor.stack), (N, K, 1), "{case}");
    let all = opened.rows(tensor, 0, N).unwrap();
    let some = [(0, 1), (1, 10), (11, 13)]
        .map(|(first, count)| opened.rows(tensor, first, count).unwrap());
    assert_eq!(some.concat(), *all, "{case}");
    let mut values = vec![0.0; N * K];
    quant::decode(tensor.format, &all, &mut values);
    let wanted = std::fs::read(folder.join("values.f32")).unwrap();
    let wanted = wanted
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    (tensor.format.name().to_string(), values, wanted)
}

#[test]
fn weights_have_the_values_of_other_tools() {
    for (case, format) in [
        ("awq", "UINT4_64_F16"),
        ("gptq", "UINT4_128_F16"),
        ("gptq_v2", "UINT8_32_F16"),
        ("gptq_order", "F16"),
        ("pack", "INT4_128"),
        ("pack_zeros", "UINT4_32"),
        ("pack_rows", "INT8_128"),
        ("pack_order", "BF16"),
        ("int8", "INT8_128"),
        ("nvfp4", "NVFP4_F32"),
    ] {
        let (found, values, wanted) = read(case);
        assert_eq!(found, format, "{case}");
        for (i, (got, want)) in values.iter().zip(&wanted).enumerate() {
            assert!(got == want, "{case} {i}: {got} {want}");
        }
    }
}

/// compressed-tensors divides each scale by the matrix's factor. We multiply by its inverse, which rounds once more.
#[test]
fn inverse_factors_round_once_more() {
    let (format, values, wanted) = read("nvfp4_compressed");
    assert_eq!(format, "NVFP4_F32");
    for (got, want) in values.iter().zip(&wanted) {
        assert!((got - want).abs() <= 2e-7 * want.abs(), "{got} {want}");
    }
}

fn i32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn halves(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|_| half::f16::ONE.to_le_bytes())
        .collect()
}

#[track_caller]
fn refused(config: &str, tensors: &[Tensor<'_>], parts: &[&str]) {
    let made = directory_of("x", config, tensors);
    let error = match open(made.path()) {
        Err(error) => error,
        Ok(opened) => {
            let tensor = &opened.tensors()[0];
            opened
                .rows(tensor, 0, tensor.n)
                .expect_err("must be refused")
        }
    };
    holds(&error.to_string(), parts);
}

const GPTQ: &str = r#""quant_method": "gptq", "bits": 4"#;

/// A GPTQ module with 32 inputs and 8 outputs, as one group.
fn gptq() -> Vec<Tensor<'static>> {
    vec![
        ("x.qweight", "I32", &[4, 8], i32s(&[0x7654_3210; 32])),
        ("x.qzeros", "I32", &[1, 1], i32s(&[0x7777_7777])),
        ("x.scales", "F16", &[1, 8], halves(8)),
        ("x.g_idx", "I32", &[32], i32s(&[0; 32])),
    ]
}

#[test]
fn damaged_modules_are_refused() {
    assert!(open(directory_of("x", GPTQ, &gptq()).path()).is_ok());
    let with = |i: usize, tensor: Tensor<'static>| {
        let mut tensors = gptq();
        tensors[i] = tensor;
        tensors
    };
    let without = |i: usize| {
        let mut tensors = gptq();
        tensors.remove(i);
        tensors
    };
    refused(GPTQ, &without(1), &["x.qweight", "x.qzeros is missing"]);
    refused(GPTQ, &without(2), &["x.qweight", "x.scales is missing"]);
    let bits = r#""quant_method": "gptq", "bits": 3"#;
    refused(bits, &gptq(), &["quantization_config.bits", "is 3", "4, 8"]);
    refused(
        r#""quant_method": "gptq""#,
        &gptq(),
        &["quantization_config.bits", "4, 8"],
    );
    let marlin = r#""quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin""#;
    refused(
        marlin,
        &gptq(),
        &["checkpoint_format", "is marlin", "gptq_v2"],
    );
    refused(
        r#""bits": 4"#,
        &gptq(),
        &["quant_method", "x.qweight", "awq or gptq"],
    );
    let gemv = r#""quant_method": "awq", "bits": 4, "version": "gemv""#;
    refused(gemv, &gptq(), &["version", "is gemv", "gemm"]);
    let zeros = with(1, ("x.qzeros", "I32", &[1, 2], i32s(&[0; 2])));
    refused(GPTQ, &zeros, &["x.qzeros", "[1, 2]", "[1, 1]"]);
    let scales = with(2, ("x.scales", "F16", &[1, 4], halves(4)));
    refused(GPTQ, &scales, &["x.scales", "[1, 4]", "[groups, 8]"]);
    let uneven = with(2, ("x.scales", "F16", &[3, 8], halves(24)));
    refused(GPTQ, &uneven, &["x.scales", "3 groups", "32 inputs"]);
    let mut small = gptq();
    small[1] = ("x.qzeros", "I32", &[2, 1], i32s(&[0; 2]));
    small[2] = ("x.scales", "F16", &[2, 8], halves(16));
    small.remove(3);
    refused(GPTQ, &small, &["x.scales", "groups of 16", "128, 64, 32"]);
    let far = with(3, ("x.g_idx", "I32", &[32], i32s(&[1; 32])));
    refused(GPTQ, &far, &["x.g_idx", "input 0", "below 1"]);
    let short = with(3, ("x.g_idx", "I32", &[31], i32s(&[0; 31])));
    refused(GPTQ, &short, &["x.g_idx", "[31]", "[32]"]);
    let empty = with(0, ("x.qweight", "I32", &[0, 8], Vec::new()));
    refused(GPTQ, &empty, &["x.qweight", "empty"]);
    let mut infinite = halves(8);
    infinite[..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    let infinite = with(2, ("x.scales", "F16", &[1, 8], infinite));
    refused(GPTQ, &infinite, &["x.weight", "scale", "damaged"]);
}

const PACK: &str = r#""quant_method": "compressed-tensors", "format": "pack-quantized""#;

#[test]
fn damaged_rows_are_refused() {
    let words = || {
        (
            "x.weight_packed",
            "I32",
            &[2usize, 4] as &[usize],
            i32s(&[0; 8]),
        )
    };
    let scales = || ("x.weight_scale", "F16", &[2usize, 1] as &[usize], halves(2));
    let shape = |n: u64, k: u64| {
        let bytes: Vec<u8> = [n, k].iter().flat_map(|v| v.to_le_bytes()).collect();
        ("x.weight_shape", "I64", &[2usize] as &[usize], bytes)
    };
    assert!(open(directory_of("x", PACK, &[words(), scales(), shape(2, 32)]).path()).is_ok());
    refused(
        PACK,
        &[words(), scales(), shape(2, 33)],
        &["x.weight_shape", "4 or 8 bits as 4 I32"],
    );
    refused(
        PACK,
        &[words(), scales(), shape(3, 32)],
        &["x.weight_shape", "2 rows"],
    );
    refused(
        PACK,
        &[words(), scales()],
        &["x.weight_packed", "x.weight_shape is missing"],
    );
    refused(
        PACK,
        &[words(), shape(2, 32)],
        &["x.weight_packed", "x.weight_scale is missing"],
    );
    let bytes = ("x.weight", "I8", &[2usize, 32] as &[usize], vec![0; 64]);
    let zeros = (
        "x.weight_zero_point",
        "I8",
        &[2usize, 1] as &[usize],
        vec![0; 2],
    );
    let int = PACK.replace("pack-quantized", "int-quantized");
    refused(
        &int,
        &[bytes, scales(), zeros],
        &["x.weight_zero_point", "not supported"],
    );
}

const NVFP4: &str = r#""quant_method": "modelopt", "quant_algo": "NVFP4""#;

#[test]
fn damaged_nvfp4_is_refused() {
    let weight = |k: usize| ("x.weight", "U8", [2, k / 2], vec![0x21; k]);
    let scales = |k: usize, byte: u8| ("x.weight_scale", "F8_E4M3", [2, k / 16], vec![byte; k / 8]);
    let factor = |v: f32| ("x.weight_scale_2", "F32", floats(&[v]));
    let check = |k: usize, byte: u8, v: f32, parts: &[&str]| {
        let (w, s, f) = (weight(k), scales(k, byte), factor(v));
        let tensors = [
            (w.0, w.1, &w.2 as &[usize], w.3),
            (s.0, s.1, &s.2, s.3),
            (f.0, f.1, &[], f.2),
        ];
        refused(NVFP4, &tensors, parts);
    };
    check(48, 1, 1.0, &["x.weight", "48", "multiples of 64"]);
    check(64, 1, f32::NAN, &["x.weight_scale_2", "finite"]);
    check(64, 0x7f, 1.0, &["x.weight", "scale", "damaged"]);
    check(64, 0x81, 1.0, &["x.weight", "scale", "damaged"]);
    let (w, s) = (weight(64), scales(64, 1));
    let lone = [(w.0, w.1, &w.2 as &[usize], w.3.clone())];
    refused(NVFP4, &lone, &["x.weight", "x.weight_scale is missing"]);
    let two = [(w.0, w.1, &w.2 as &[usize], w.3), (s.0, s.1, &s.2, s.3)];
    refused(NVFP4, &two, &["x.weight", "x.weight_scale_2 is missing"]);
}
