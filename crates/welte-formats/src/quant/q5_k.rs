//! Q5_K: 256 elements in 176 bytes, 8 sub-blocks of 32: `x = (d · scale) · q - (dmin · min)`, q 0..=31, scale and
//! min 0..=63.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | dmin, f16 |
//! | 4..16 | scales and mins, as in Q4_K |
//! | 16..48 | fifth bits of q: bit g of byte j = element 32g + j |
//! | 48..176 | lower four bits of q: byte 32g + j = element 64g + j low, element 64g + 32 + j high |

use super::q4_k::{put_scale_mins, scale_min};
use super::{halves, search};

pub(super) fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (halves::get(block, 0), halves::get(block, 2));
    for (sub, x) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(&block[4..16], sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let shift = 4 * (sub % 2);
        let low = &block[48 + 32 * (sub / 2)..][..32];
        for ((x, low), bit) in x.iter_mut().zip(low).zip(&block[16..48]) {
            let q = ((low >> shift) & 15) | (((bit >> sub) & 1) << 4);
            *x = scale * f32::from(q) - min;
        }
    }
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 176]) {
    let fit = search::affine::<8, 32>(x, importance, 31.0, 63.0);
    block.fill(0);
    halves::put(block, 0, fit.d);
    halves::put(block, 2, fit.dmin);
    put_scale_mins(&fit.scales, &fit.mins, &mut block[4..16]);
    for (sub, q) in fit.q.as_chunks::<32>().0.iter().enumerate() {
        for (j, q) in q.iter().enumerate() {
            block[16 + j] |= (q >> 4) << sub;
            block[48 + 32 * (sub / 2) + j] |= (q & 15) << (4 * (sub % 2));
        }
    }
}
