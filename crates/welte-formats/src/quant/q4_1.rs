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
