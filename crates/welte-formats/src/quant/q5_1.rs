//! Q5_1: 32 elements in 24 bytes, `x = d · q + m`, q 0..=31.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | m, f16 |
//! | 4..8 | fifth bits: u32, bit j = element j |
//! | 8..24 | lower four bits: byte j = element j low, element j + 16 high |

use super::{halves, nibbles};

pub(super) fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (halves::get(block, 0), halves::get(block, 2));
    let (Some(high), Some(q)) = (block[4..].first_chunk(), block[8..].first_chunk()) else {
        return;
    };
    nibbles::unpack5(high, q, out, |q| d * f32::from(q) + m);
}

pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 24]) {
    let (d, m, q) = nibbles::from_least(x, 31);
    halves::put(block, 0, d);
    halves::put(block, 2, m);
    let (high, low) = block[4..].split_at_mut(4);
    nibbles::pack5(&q, high, low);
}
