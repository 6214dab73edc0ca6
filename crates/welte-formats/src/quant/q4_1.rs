//! Q4_1: 32 elements in 20 bytes, `x = d · q + m`, q 0..=15.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | m, f16 |
//! | 4..20 | q: byte j = element j low, element j + 16 high |

use super::{halves, nibbles};

pub(super) fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (halves::get(block, 0), halves::get(block, 2));
    let Some(q) = block[4..].first_chunk() else {
        return;
    };
    nibbles::unpack4(q, out, |q| d * f32::from(q) + m);
}

pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 20]) {
    let (d, m, q) = nibbles::from_least(x, 15);
    halves::put(block, 0, d);
    halves::put(block, 2, m);
    nibbles::pack4(&q, &mut block[4..]);
}
