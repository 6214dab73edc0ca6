//! MXFP4: 32 elements in 17 bytes, `x = 2^(e - 127) · value[q]`; q is a float with one sign, two exponent and one
//! mantissa bits. The table contains doubled values, so the scale is halved.

use super::nibbles;

/// The doubled values.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 2^(e - 128), half the scale; exact for every e.
fn half_scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

pub(super) fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_scale(block[0]);
    let Some(q) = block[1..].first_chunk() else {
        return;
    };
    nibbles::unpack4(q, out, |q| d * f32::from(VALUES[usize::from(q)]));
}

pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 17]) {
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    // The largest value of the table has the exponent 2.
    let exponent = (most.to_bits() >> 23) as u8;
    block[0] = exponent.saturating_sub(2);
    let d = half_scale(block[0]);
    let nearest = |x: f32| {
        let error = |q: u8| (d * f32::from(VALUES[usize::from(q)]) - x).abs();
        (1..16).fold(0, |best, q| if error(q) < error(best) { q } else { best })
    };
    nibbles::pack4(&x.map(nearest), &mut block[1..]);
}
