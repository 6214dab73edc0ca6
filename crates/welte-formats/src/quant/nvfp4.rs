//! NVFP4: 64 elements in 36 bytes, 4 sub-blocks of 16: `x = scale · value[q]`; the scale is a positive float with four
//! exponent and three mantissa bits, q a float with one sign, two exponent and one mantissa bits.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | scales |
//! | 4..36 | q: byte 8s + j = element 16s + j low, element 16s + j + 8 high |
//!
//! NVFP4_F32 has an f32 before these bytes, by which all elements are multiplied.

use super::codes::{Coded, values};
use super::f8_e4m3;
use welte_table::Format;

/// The scale that has no value. Files use it for zero.
const NONE: u8 = 0x7f;

pub(super) fn unpack(factor: f32, block: &[u8; 36]) -> Coded {
    let mut coded = Coded {
        d: factor.to_bits(),
        ..Coded::EMPTY
    };
    let subs = coded.codes.chunks_exact_mut(16).zip(&mut coded.scales);
    for (sub, (codes, scale)) in subs.enumerate().take(4) {
        *scale = match block[sub] & 0x7f {
            NONE => 0,
            scale => scale,
        };
        for (j, byte) in block[4 + 8 * sub..][..8].iter().enumerate() {
            codes[j] = byte & 15;
            codes[j + 8] = byte >> 4;
        }
    }
    coded
}

pub(super) fn encode(x: &[f32; 64], block: &mut [u8; 36]) {
    let Some((values, factor)) = values(Format::NVFP4) else {
        return;
    };
    for (sub, x) in x.as_chunks::<16>().0.iter().enumerate() {
        let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        // The largest value is 6.
        block[sub] = f8_e4m3::byte(most / 6.0);
        let scale = f8_e4m3::value(block[sub]) * factor;
        let nearest = |x: f32| {
            let error = |q: u8| (scale * f32::from(values[usize::from(q)]) - x).abs();
            (1..16).fold(0, |best, q| if error(q) < error(best) { q } else { best })
        };
        for j in 0..8 {
            block[4 + 8 * sub + j] = nearest(x[j]) | nearest(x[j + 8]) << 4;
        }
    }
}

/// With a factor for which the largest scale is the largest of its format.
pub(super) fn encode_f32(x: &[f32; 64], block: &mut [u8; 40]) {
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let factor = most / (6.0 * f8_e4m3::LARGEST);
    let (head, rest) = block.split_at_mut(4);
    head.copy_from_slice(&factor.to_le_bytes());
    let inverse = if factor > 0.0 { 1.0 / factor } else { 0.0 };
    if let Some(rest) = rest.first_chunk_mut() {
        encode(&x.map(|x| x * inverse), rest);
    }
}
