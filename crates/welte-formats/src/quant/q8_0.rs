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

pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 34]) {
    let d = x.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    halves::put(block, 0, d);
    for (q, x) in block[2..].iter_mut().zip(x) {
        *q = (x * inverse).round() as i8 as u8;
    }
}
