//! The block formats against the gguf package's reference (fixtures by tools/quant-fixtures/make.py).

use std::path::Path;
use welte_formats::quant::{decode, encode};
use welte_table::Format;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/quant")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

#[test]
fn decodes_bit_for_bit_as_the_reference() {
    for format in Format::ALL.into_iter().filter(|f| *f != Format::F32) {
        let bytes = fixture(&format!("{}.bytes", format.name()));
        let expected = floats(&fixture(&format!("{}.decoded", format.name())));
        let mut got = vec![0.0; expected.len()];
        decode(format, &bytes, &mut got);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(
                got.to_bits(),
                expected.to_bits(),
                "{} {i}: {got} {expected}",
                format.name()
            );
        }
    }
}

fn there_and_back(format: Format, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0xA5; format.bytes(values.len()).unwrap()];
    encode(format, values, &mut bytes);
    let mut back = vec![f32::NAN; values.len()];
    decode(format, &bytes, &mut back);
    back
}

#[test]
fn legacy_formats_encode_byte_for_byte_as_the_reference() {
    let values = floats(&fixture("gauss.f32"));
    use Format::{BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    for format in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0] {
        let expected = fixture(&format!("{}.encoded", format.name()));
        let mut got = vec![0xA5; expected.len()];
        encode(format, &values, &mut got);
        assert!(got == expected, "{}", format.name());
    }
}

/// Standard deviation 1, by the central limit, the same in every run.
fn gaussian(count: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count)
        .map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0)
        .collect()
}

fn rms(values: impl Iterator<Item = f32>, count: usize) -> f32 {
    (values.map(|v| v * v).sum::<f32>() / count as f32).sqrt()
}

#[test]
fn error_on_gaussian_values_is_within_bounds() {
    let values = gaussian(64 * 256);
    for (format, bound) in [
        (Format::Q2_K, 0.35),
        (Format::Q3_K, 0.18),
        (Format::Q4_K, 0.08),
        (Format::Q5_K, 0.04),
        (Format::Q6_K, 0.02),
        (Format::Q8_0, 0.007),
        (Format::Q4_0, 0.1),
        (Format::Q4_1, 0.09),
        (Format::Q5_0, 0.05),
        (Format::Q5_1, 0.05),
    ] {
        for size in [1.0, 0.01, 300.0] {
            let scaled: Vec<f32> = values.iter().map(|v| v * size).collect();
            let back = there_and_back(format, &scaled);
            let error = rms(
                scaled.iter().zip(&back).map(|(a, b)| (a - b) / size),
                values.len(),
            );
            println!("{} {size} {error}", format.name());
            assert!(error < bound, "{} at {size}: {error}", format.name());
        }
    }
}
