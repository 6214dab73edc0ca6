//! Q4_0: 32 elements in 18 bytes, `x = d · (q - 8)`, q 0..=15.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..18 | q: byte j = element j low, element j + 16 high |

use super::{halves, nibbles};

pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = halves::get(block, 0);
    let Some(q) = block[2..].first_chunk() else {
        return;
    };
    nibbles::unpack4(q, out, |q| d * (i32::from(q) - 8) as f32);
}

pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 18]) {
    let (d, q) = nibbles::centred(x, 8);
    halves::put(block, 0, d);
    nibbles::pack4(&q, &mut block[2..]);
}
