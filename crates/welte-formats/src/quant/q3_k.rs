//! Q3_K: 256 elements in 110 bytes, 16 sub-blocks of 16: `x = (d · (scale - 32)) · (q - 4)`, q 0..=7, scale 0..=63.
//!
//! | bytes | what |
//! |---|---|
//! | 0..32 | third bits of q: bit g of byte j = element 32g + j |
//! | 32..96 | lower two bits of q: bits 2g..2g + 2 of byte 32h + j = element 128h + 32g + j |
//! | 96..104 | lower four bits of the scales: byte i = scale i low, scale i + 8 high |
//! | 104..108 | upper two bits of the scales: bits 2g..2g + 2 of byte i = scale 4g + i |
//! | 108..110 | d, f16 |

use super::q2_k::place;
use super::{halves, search};

pub(super) fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = halves::get(block, 108);
    let scales = &block[96..108];
    for (sub, x) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = (scales[sub % 8] >> (4 * (sub / 8))) & 15;
        let high = (scales[8 + sub % 4] >> (2 * (sub / 4))) & 3;
        let scale = d * (i32::from(low | (high << 4)) - 32) as f32;
        let (at, shift) = place(sub);
        let bits = &block[16 * (sub % 2)..][..16];
        let low = &block[32 + at..][..16];
        for ((x, low), bit) in x.iter_mut().zip(low).zip(bits) {
            let q = ((low >> shift) & 3) | (((bit >> (sub / 2)) & 1) << 2);
            *x = scale * (i32::from(q) - 4) as f32;
        }
    }
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 110]) {
    let fit = search::symmetric(x, importance, 4.0, 32.0);
    block.fill(0);
    for (sub, q) in fit.q.as_chunks::<16>().0.iter().enumerate() {
        let scale = (i16::from(fit.scales[sub]) + 32) as u8;
        block[96 + sub % 8] |= (scale & 15) << (4 * (sub / 8));
        block[104 + sub % 4] |= (scale >> 4) << (2 * (sub / 4));
        let (at, shift) = place(sub);
        for (j, q) in q.iter().enumerate() {
            let q = (q + 4) as u8;
            block[16 * (sub % 2) + j] |= (q >> 2) << (sub / 2);
            block[32 + at + j] |= (q & 3) << shift;
        }
    }
    halves::put(block, 108, fit.d);
}
