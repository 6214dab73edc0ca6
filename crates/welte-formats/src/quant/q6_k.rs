//! Q6_K: 256 elements in 210 bytes, 16 sub-blocks of 16: `x = (d · scale) · (q - 32)`, q 0..=63, scale an i8.
//!
//! | bytes | what |
//! |---|---|
//! | 0..128 | lower four bits of q: byte 64h + j = element 128h + j low, element 128h + 64 + j high |
//! | 128..192 | upper two bits of q: bits 2g..2g + 2 of byte 32h + j = element 128h + 32g + j |
//! | 192..208 | scales |
//! | 208..210 | d, f16 |

use super::{halves, search};

pub(super) fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = halves::get(block, 208);
    for (sub, x) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + sub] as i8);
        let place = Place::of(sub);
        let low = &block[place.low..][..16];
        let high = &block[place.high..][..16];
        for ((x, low), high) in x.iter_mut().zip(low).zip(high) {
            let q = ((low >> place.low_shift) & 15) | (((high >> place.high_shift) & 3) << 4);
            *x = scale * (i32::from(q) - 32) as f32;
        }
    }
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 210]) {
    let fit = search::symmetric(x, importance, 32.0, 128.0);
    block.fill(0);
    for (sub, q) in fit.q.as_chunks::<16>().0.iter().enumerate() {
        block[192 + sub] = fit.scales[sub] as u8;
        let place = Place::of(sub);
        for (j, q) in q.iter().enumerate() {
            let q = (q + 32) as u8;
            block[place.low + j] |= (q & 15) << place.low_shift;
            block[place.high + j] |= (q >> 4) << place.high_shift;
        }
    }
    halves::put(block, 208, fit.d);
}

/// The position of a sub-block's values: first bytes of 16 in the block, and shifts.
struct Place {
    low: usize,
    low_shift: usize,
    high: usize,
    high_shift: usize,
}

impl Place {
    fn of(sub: usize) -> Place {
        let (half, part) = (sub / 8, sub % 8);
        Place {
            low: 64 * half + 16 * (part % 4),
            low_shift: 4 * (part / 4),
            high: 128 + 32 * half + 16 * (part % 2),
            high_shift: 2 * (part / 2),
        }
    }
}
