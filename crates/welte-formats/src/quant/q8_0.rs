//! Q8_0: 32 elements in 34 bytes, `x = d · q`, q an i8.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..34 | q |

use super::halves;

pub(super) fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = halves::get(block, 0);
    for (x, q) in out.iter_mut().zip(&block[2..]) {
        *x = d * f32::from(*q as i8);
    }
}
