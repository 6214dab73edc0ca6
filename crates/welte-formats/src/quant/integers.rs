//! Groups of 32, 64 or 128 elements as AWQ, GPTQ and compressed-tensors quantise them: `x = scale · (q - zero)`, q of 4 or 8
//! bits. No file contains these blocks. Safetensors store integers, scales and zero points apart; rows are joined when they
//! are read.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | scale, f32; zero is half of the range of q |
//! | or 0..2 | scale, bf16 or f16 |
//! | and 2..4 | zero, the same |
//! | 4.. | q: in 4 bits, byte j = element 2j low, element 2j + 1 high |

use super::halves::tame;
use half::{bf16, f16};
use welte_table::{Format, GroupScale, Integers};

/// Scale and zero point from a block's first four bytes.
fn head(integers: Integers, bytes: [u8; 4]) -> (f32, f32) {
    let [a, b, c, d] = bytes;
    let pair = [[a, b], [c, d]];
    match integers.scale() {
        GroupScale::F32 => (f32::from_le_bytes(bytes), integers.middle() as f32),
        GroupScale::BF16 => pair.map(|v| bf16::from_le_bytes(v).to_f32()).into(),
        GroupScale::F16 => pair.map(|v| f16::from_le_bytes(v).to_f32()).into(),
    }
}

/// A block's first four bytes. Both values are rounded to the kind of the scale.
pub fn joined_head(integers: Integers, scale: f32, zero: f32) -> [u8; 4] {
    let pair = match integers.scale() {
        GroupScale::F32 => return scale.to_le_bytes(),
        GroupScale::BF16 => [scale, zero].map(|v| bf16::from_f32(v).to_le_bytes()),
        GroupScale::F16 => [scale, zero].map(|v| f16::from_f32(v).to_le_bytes()),
    };
    let [[a, b], [c, d]] = pair;
    [a, b, c, d]
}

pub(super) fn decode(integers: Integers, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(Format::Integers(integers).block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(integers.group())) {
        let Some((first, q)) = block.split_first_chunk() else {
            return;
        };
        let (scale, zero) = head(integers, *first);
        for (i, out) in out.iter_mut().enumerate() {
            let q = match integers.bits() {
                4 => q[i / 2] >> (4 * (i % 2)) & 15,
                _ => q[i],
            };
            *out = scale * (f32::from(q) - zero);
        }
    }
}

/// With a zero point of the file's, all values of the group fit. Without one, the largest magnitude maps to the end of the
/// range of its sign.
pub(super) fn encode(integers: Integers, values: &[f32], out: &mut [u8]) {
    let top = (2 * integers.middle() - 1) as f32;
    let blocks = out.chunks_exact_mut(Format::Integers(integers).block_bytes());
    for (block, x) in blocks.zip(values.chunks_exact(integers.group())) {
        let values = || x.iter().map(|x| tame(*x));
        let least = values().fold(0.0, f32::min);
        let most = values().fold(0.0, f32::max);
        let (scale, zero) = match integers.scale() {
            GroupScale::F32 => {
                let middle = integers.middle() as f32;
                ((most / (middle - 1.0)).max(-least / middle), middle)
            }
            _ => {
                let scale = (most - least) / top;
                let zero = if scale > 0.0 { -least / scale } else { 0.0 };
                (scale, zero.round())
            }
        };
        let (first, rest) = block.split_at_mut(4);
        first.copy_from_slice(&joined_head(integers, scale, zero));
        rest.fill(0);
        // Quantise against the rounded scale.
        let (scale, zero) = head(integers, [first[0], first[1], first[2], first[3]]);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for (i, x) in values().enumerate() {
            let q = (x * inverse + zero).round().clamp(0.0, top) as u8;
            match integers.bits() {
                4 => rest[i / 2] |= q << (4 * (i % 2)),
                _ => rest[i] = q,
            }
        }
    }
}
