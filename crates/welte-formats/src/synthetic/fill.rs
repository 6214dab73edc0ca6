//! Random but valid blocks whose decoded values have a given spread.
//!
//! Every eight bytes are a hash of (seed, tensor, row) and a counter, so that any row can be made alone and is always
//! the same.

use crate::quant::integers::joined_head;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use welte_table::{Format, GroupScale, Integers};

/// Step of the counter (the golden ratio, odd).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The contents of a tensor.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    /// Zero mean and standard deviation 1/sqrt(k), so that products keep the magnitude of their input.
    Matrix,
    /// Values around one.
    Norm,
    /// Values around 1/sqrt(k): the norm of keys where attention has no such factor. Trained models have small values there, too; with
    /// values around one, a query sees a single key, and rounding decides which.
    KeyNorm,
    /// Small values around zero.
    Bias,
    /// The given values.
    Given(Vec<f32>),
    /// Rows of one given value each.
    Column(Vec<f32>),
}

/// The finaliser of splitmix64.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of a tensor.
pub(super) fn key(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(mix(seed.wrapping_add(STEP)), |key, byte| {
            mix(key ^ u64::from(byte))
        })
}

/// Fills one row of `k` elements.
pub(super) fn row(fill: &Fill, format: Format, k: usize, key: u64, row: u64, out: &mut [u8]) {
    let state = mix(key ^ mix(row.wrapping_add(1)));
    let deviation = 1.0 / (k as f32).sqrt();
    match fill {
        Fill::Given(values) => plain(format, values, out),
        Fill::Column(values) => plain(format, &values[row as usize..][..1], out),
        Fill::Norm => plain(format, &uniform(state, k, 1.0, 0.1), out),
        Fill::KeyNorm => plain(format, &uniform(state, k, deviation, 0.1 * deviation), out),
        Fill::Bias => plain(format, &uniform(state, k, 0.0, 0.1), out),
        Fill::Matrix if format.is_quantised() => blocks(format, state, deviation, out),
        Fill::Matrix => plain(
            format,
            &uniform(state, k, 0.0, deviation * 3f32.sqrt()),
            out,
        ),
    }
}

/// `k` values between `centre - reach` and `centre + reach`.
fn uniform(state: u64, k: usize, centre: f32, reach: f32) -> Vec<f32> {
    let scale = reach / 32768.0;
    let mut values = vec![0.0; k];
    for (i, four) in values.chunks_mut(4).enumerate() {
        let word = word(state, i);
        for (j, v) in four.iter_mut().enumerate() {
            *v = centre + scale * f32::from((word >> (16 * j)) as i16);
        }
    }
    values
}

fn word(state: u64, i: usize) -> u64 {
    mix(state.wrapping_add((i as u64).wrapping_mul(STEP)))
}

/// Stores floats as F32, F16 or BF16.
fn plain(format: Format, values: &[f32], out: &mut [u8]) {
    match format {
        Format::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            out.chunks_exact_mut(2)
                .zip(&halves)
                .for_each(|(out, v)| out.copy_from_slice(&v.to_le_bytes()));
        }
        Format::BF16 => out
            .chunks_exact_mut(2)
            .zip(values)
            .for_each(|(out, v)| out.copy_from_slice(&bf16::from_f32(*v).to_le_bytes())),
        _ => out
            .chunks_exact_mut(4)
            .zip(values)
            .for_each(|(out, v)| out.copy_from_slice(&v.to_le_bytes())),
    }
}

/// The scales of a block format.
struct Scales {
    /// The position of `d`.
    d: usize,
    /// The standard deviation of values for d = 1.
    deviation: f32,
    /// The position of the minimum's scale, and its ratio to `d` that makes the mean zero.
    min: Option<(usize, f32)>,
    /// True if `d` may be negative. Formats whose values are half a step off centre get a random sign; otherwise all
    /// rows share that offset and activations drift.
    signed: bool,
}

/// The deviations assume independent uniform quants, scales and minimums.
fn scales(format: Format) -> Scales {
    let (d, deviation, min, signed) = match format {
        Format::Q4_0 => (0, 4.637, None, true),
        Format::Q4_1 => (0, 4.610, Some((2, -7.5)), false),
        Format::Q5_0 => (0, 9.247, None, true),
        Format::Q5_1 => (0, 9.233, Some((2, -15.5)), false),
        Format::Q8_0 => (0, 73.9, None, false),
        Format::Q2_K => (80, 13.87, Some((82, 1.5)), false),
        Format::Q3_K => (108, 43.34, None, true),
        Format::Q4_K => (0, 258.3, Some((2, 7.5)), false),
        Format::Q5_K => (0, 526.9, Some((2, 15.5)), false),
        Format::IQ4_NL => (0, 67.44, None, true),
        Format::IQ4_XS => (0, 1246.3, None, true),
        Format::Q6_K => (208, 1365.7, None, true),
        Format::IQ1_S => (0, 7.2, None, true),
        Format::IQ2_XXS => (0, 53.14, None, true),
        Format::IQ2_XS => (0, 55.87, None, true),
        Format::IQ2_S => (0, 56.34, None, true),
        Format::IQ3_XXS => (0, 142.3, None, true),
        Format::IQ3_S => (0, 140.2, None, true),
        Format::TQ1_0 => (52, 0.8172, None, true),
        Format::TQ2_0 => (64, std::f32::consts::FRAC_1_SQRT_2, None, true),
        Format::Q1_0 => (0, 1.0, None, true),
        Format::Affine(affine) => {
            let count = (1 << affine.bits()) as f32;
            let deviation = ((count * count - 1.0) / 12.0).sqrt();
            (0, deviation, Some((2, (1.0 - count) / 2.0)), true)
        }
        // Plain floats have no scales, and the others none in one F16. `blocks` handles them.
        Format::F32
        | Format::F16
        | Format::BF16
        | Format::MXFP4
        | Format::F8_E4M3
        | Format::IQ1_M
        | Format::NVFP4
        | Format::NVFP4_F32
        | Format::Integers(_) => (0, 1.0, None, true),
    };
    Scales {
        d,
        deviation,
        min,
        signed,
    }
}

/// Fills whole blocks of a block format with random values of this standard deviation; the same for the same `state`.
pub fn blocks(format: Format, state: u64, deviation: f32, out: &mut [u8]) {
    let mut words = out.chunks_exact_mut(8);
    let mut count = 0;
    for (i, eight) in words.by_ref().enumerate() {
        eight.copy_from_slice(&word(state, i).to_le_bytes());
        count = i + 1;
    }
    let rest = words.into_remainder();
    let length = rest.len();
    rest.copy_from_slice(&word(state, count).to_le_bytes()[..length]);

    match format {
        Format::MXFP4 => return powers(deviation / 5.852, out),
        Format::F8_E4M3 => return small_floats(deviation / 100.06, out),
        Format::IQ1_M => return scattered_scales(deviation / 7.19, out),
        Format::NVFP4 => return small_scales(deviation / 2.926, out),
        Format::Integers(member) => return groups(member, deviation, out),
        Format::NVFP4_F32 => return factors(deviation / 4.289, out),
        Format::TQ2_0 => {
            // Encoders never produce 3.
            out.iter_mut()
                .for_each(|q| *q &= !((*q & *q >> 1 & 0x55) << 1));
        }
        _ => {}
    }
    let scales = scales(format);
    let sixteen = |v: f32| match format {
        Format::Affine(affine) if affine.bf16() => bf16::from_f32(v).to_le_bytes(),
        _ => f16::from_f32(v).to_le_bytes(),
    };
    let d = f16::from_f32(deviation / scales.deviation).to_f32();
    for block in out.chunks_exact_mut(format.block_bytes()) {
        if format == Format::Q8_0 {
            // Encoders never produce -128.
            block[2..]
                .iter_mut()
                .for_each(|q| *q = if *q == 0x80 { 0x81 } else { *q });
        }
        // The random bit at this position becomes the sign.
        let negative = scales.signed && block[scales.d + 1] & 0x80 != 0;
        let d = if negative { -d } else { d };
        block[scales.d..scales.d + 2].copy_from_slice(&sixteen(d));
        if let Some((at, ratio)) = scales.min {
            block[at..at + 2].copy_from_slice(&sixteen(d * ratio));
        }
    }
}

/// MXFP4 scales are powers of two. The two nearest ones are mixed to reach the deviation.
fn powers(wanted: f32, out: &mut [u8]) {
    let below = wanted.log2().floor();
    let share = ((wanted / below.exp2()).powi(2) - 1.0) / 3.0;
    for block in out.chunks_exact_mut(Format::MXFP4.block_bytes()) {
        let above = f32::from(block[0]) < share * 256.0;
        block[0] = (below as i32 + 128 + i32::from(above)).clamp(0, 255) as u8;
    }
}

/// F8_E4M3: any bytes except NaN.
fn small_floats(scale: f32, out: &mut [u8]) {
    for block in out.chunks_exact_mut(Format::F8_E4M3.block_bytes()) {
        block[..4].copy_from_slice(&scale.to_le_bytes());
        for v in block[4..].iter_mut().filter(|v| **v & 0x7f == 0x7f) {
            *v &= 0x80;
        }
    }
}

/// IQ1_M: a scale's four parts are the top bits of four words.
fn scattered_scales(scale: f32, out: &mut [u8]) {
    let d = f16::from_f32(scale).to_bits();
    for block in out.chunks_exact_mut(Format::IQ1_M.block_bytes()) {
        for (i, word) in block[48..].chunks_exact_mut(2).enumerate() {
            word[1] = word[1] & 15 | ((d >> (4 * i) & 15) << 4) as u8;
        }
    }
}

/// NVFP4: the two nearest scales are mixed to reach the deviation.
fn small_scales(wanted: f32, out: &mut [u8]) {
    let value = |byte: u8| {
        let mut one = [0.0; 64];
        let mut block = [0x22; 36];
        block[..4].fill(byte);
        crate::quant::decode(Format::NVFP4, &block, &mut one);
        one[0]
    };
    let above = (1..0x7e).find(|byte| value(*byte) > wanted).unwrap_or(0x7e);
    let (low, high) = (value(above - 1).powi(2), value(above).powi(2));
    let share = (wanted * wanted - low) / (high - low);
    for block in out.chunks_exact_mut(Format::NVFP4.block_bytes()) {
        for scale in &mut block[..4] {
            *scale = above - u8::from(f32::from(*scale) >= share * 256.0);
        }
    }
}

/// NVFP4_F32: scales from 1 to 1.875.
fn factors(factor: f32, out: &mut [u8]) {
    for block in out.chunks_exact_mut(Format::NVFP4_F32.block_bytes()) {
        block[..4].copy_from_slice(&factor.to_le_bytes());
        block[4..8]
            .iter_mut()
            .for_each(|scale| *scale = 0x38 | *scale & 7);
    }
}

/// Integers: zero points lie above or below the middle of the range. Without them, scales get a random sign; otherwise all rows
/// share the half step between zero point and middle.
fn groups(integers: Integers, deviation: f32, out: &mut [u8]) {
    let count = (2 * integers.middle()) as f32;
    let scale = deviation / ((count * count + 2.0) / 12.0).sqrt();
    for block in out.chunks_exact_mut(Format::Integers(integers).block_bytes()) {
        let odd = block[0] & 1 != 0;
        let zero = integers.middle() - usize::from(odd);
        let head = match integers.scale() {
            GroupScale::F32 if odd => joined_head(integers, -scale, 0.0),
            _ => joined_head(integers, scale, zero as f32),
        };
        block[..4].copy_from_slice(&head);
    }
}
