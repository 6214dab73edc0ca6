//! Q5_0: 32 elements in 22 bytes, `x = d · (q - 16)`, q 0..=31.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..6 | fifth bits: u32, bit j = element j |
//! | 6..22 | lower four bits: byte j = element j low, element j + 16 high |

use super::{halves, nibbles};

pub(super) fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = halves::get(block, 0);
    let (Some(high), Some(q)) = (block[2..].first_chunk(), block[6..].first_chunk()) else {
        return;
    };
    nibbles::unpack5(high, q, out, |q| d * (i32::from(q) - 16) as f32);
}

pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 22]) {
    let (d, q) = nibbles::centred(x, 16);
    halves::put(block, 0, d);
    let (high, low) = block[2..].split_at_mut(4);
    nibbles::pack5(&q, high, low);
}
