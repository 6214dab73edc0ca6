//! Q2_K: 256 elements in 84 bytes, 16 sub-blocks of 16: `x = (d · scale) · q - (dmin · min)`, q 0..=3.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | per sub-block: scale low four bits, min high four bits |
//! | 16..80 | q: bits 2g..2g + 2 of byte 32h + j = element 128h + 32g + j |
//! | 80..82 | d, f16 |
//! | 82..84 | dmin, f16 |

use super::{halves, search};

pub(super) fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (halves::get(block, 80), halves::get(block, 82));
    for (sub, x) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[sub] & 15);
        let min = dmin * f32::from(block[sub] >> 4);
        let (at, shift) = place(sub);
        for (x, q) in x.iter_mut().zip(&block[16 + at..16 + at + 16]) {
            *x = scale * f32::from((q >> shift) & 3) - min;
        }
    }
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 84]) {
    let fit = search::affine::<16, 16>(x, importance, 3.0, 15.0);
    block.fill(0);
    for (sub, q) in fit.q.as_chunks::<16>().0.iter().enumerate() {
        block[sub] = fit.scales[sub] | (fit.mins[sub] << 4);
        let (at, shift) = place(sub);
        for (byte, q) in block[16 + at..].iter_mut().zip(q) {
            *byte |= q << shift;
        }
    }
    halves::put(block, 80, fit.d);
    halves::put(block, 82, fit.dmin);
}

/// The position of a sub-block's 2-bit values: first byte of 16, and shift. Q3_K uses it too.
pub(super) fn place(sub: usize) -> (usize, usize) {
    (32 * (sub / 8) + 16 * (sub % 2), 2 * (sub / 2 % 4))
}
