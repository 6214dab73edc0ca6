//! Q4_K: 256 elements in 144 bytes, 8 sub-blocks of 32: `x = (d · scale) · q - (dmin · min)`, q 0..=15, scale and
//! min 0..=63.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | dmin, f16 |
//! | 4..16 | scales and mins, see below |
//! | 16..144 | q: byte 32g + j = element 64g + j low, element 64g + 32 + j high |
//!
//! In the twelve bytes 4..16, for i < 4: bits 0..6 of byte i are scale i, and bits 0..6 of byte 4 + i are min i. Byte
//! 8 + i contains the low four bits of scale 4 + i (low half) and of min 4 + i (high half). Their upper two bits are the
//! upper two bits of bytes i and 4 + i. Q5_K uses the same layout.

use super::{halves, search};

pub(super) fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (halves::get(block, 0), halves::get(block, 2));
    for (sub, x) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(&block[4..16], sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let shift = 4 * (sub % 2);
        for (x, q) in x.iter_mut().zip(&block[16 + 32 * (sub / 2)..][..32]) {
            *x = scale * f32::from((q >> shift) & 15) - min;
        }
    }
}

pub(super) fn encode(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 144]) {
    let fit = search::affine::<8, 32>(x, importance, 15.0, 63.0);
    block.fill(0);
    halves::put(block, 0, fit.d);
    halves::put(block, 2, fit.dmin);
    put_scale_mins(&fit.scales, &fit.mins, &mut block[4..16]);
    for (sub, q) in fit.q.as_chunks::<32>().0.iter().enumerate() {
        for (byte, q) in block[16 + 32 * (sub / 2)..].iter_mut().zip(q) {
            *byte |= q << (4 * (sub % 2));
        }
    }
}

/// The inverse of `scale_min` for all sub-blocks. `bytes` must be zero.
pub(super) fn put_scale_mins(scales: &[u8; 8], mins: &[u8; 8], bytes: &mut [u8]) {
    for sub in 0..4 {
        bytes[sub] = scales[sub] | ((scales[4 + sub] >> 4) << 6);
        bytes[4 + sub] = mins[sub] | ((mins[4 + sub] >> 4) << 6);
        bytes[8 + sub] = (scales[4 + sub] & 15) | (mins[4 + sub] << 4);
    }
}

/// Scale and min of a sub-block from the twelve bytes.
pub(super) fn scale_min(bytes: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (bytes[sub] & 63, bytes[4 + sub] & 63);
    }
    let low = bytes[4 + sub];
    let (scale_top, min_top) = (bytes[sub - 4] >> 6, bytes[sub] >> 6);
    ((low & 15) | (scale_top << 4), (low >> 4) | (min_top << 4))
}
