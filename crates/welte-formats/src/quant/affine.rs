//! MLX's affine formats: groups of 32, 64 or 128 elements, `x = scale · q + bias`, q of 2 to 8 bits.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | scale, bf16 or f16 |
//! | 2..4 | bias, the same |
//! | 4.. | q: a stream of bits, element 0 in the lowest ones |

use super::halves::tame;
use half::{bf16, f16};
use welte_table::{Affine, Format};

fn half(affine: Affine, bytes: [u8; 2]) -> f32 {
    if affine.bf16() {
        bf16::from_le_bytes(bytes).to_f32()
    } else {
        f16::from_le_bytes(bytes).to_f32()
    }
}

fn rounded(affine: Affine, value: f32) -> [u8; 2] {
    if affine.bf16() {
        bf16::from_f32(value).to_le_bytes()
    } else {
        f16::from_f32(value).to_le_bytes()
    }
}

pub(super) fn decode(affine: Affine, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(Format::Affine(affine).block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(affine.group())) {
        let [s0, s1, b0, b1, q @ ..] = block else {
            return;
        };
        let (scale, bias) = (half(affine, [*s0, *s1]), half(affine, [*b0, *b1]));
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(integer(affine.bits(), q, i)) + bias;
        }
    }
}

/// Integer i of the stream. It may span two bytes.
fn integer(bits: usize, stream: &[u8], i: usize) -> u8 {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let next = stream.get(byte + 1).copied().unwrap_or(0);
    let pair = u16::from_le_bytes([stream[byte], next]);
    (pair >> shift) as u8 & (0xff >> (8 - bits))
}

/// The bias encodes the minimum, and the top integer the maximum, both rounded to 16 bits.
pub(super) fn encode(affine: Affine, values: &[f32], out: &mut [u8]) {
    let (bits, top) = (affine.bits(), f32::from(0xff_u8 >> (8 - affine.bits())));
    let blocks = out.chunks_exact_mut(Format::Affine(affine).block_bytes());
    for (block, x) in blocks.zip(values.chunks_exact(affine.group())) {
        let values = || x.iter().map(|x| tame(*x));
        let least = values().fold(f32::INFINITY, f32::min);
        let most = values().fold(f32::NEG_INFINITY, f32::max);
        let scale = rounded(affine, (most - least) / top);
        let bias = rounded(affine, least);
        block.fill(0);
        block[..2].copy_from_slice(&scale);
        block[2..4].copy_from_slice(&bias);
        // Quantise against the rounded scale and bias.
        let (scale, bias) = (half(affine, scale), half(affine, bias));
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        for (i, x) in values().enumerate() {
            let q = ((x - bias) * inverse + 0.5).clamp(0.0, top) as u16;
            let (byte, shift) = (4 + i * bits / 8, i * bits % 8);
            let [low, high] = (q << shift).to_le_bytes();
            block[byte] |= low;
            if high != 0 {
                block[byte + 1] |= high;
            }
        }
    }
}
