//! F8_E4M3: 128 elements in 132 bytes, `x = scale · v`; v is a float with one sign, four exponent and three mantissa
//! bits. No file contains these blocks. Safetensors store one scale per tensor, row or 128 x 128 square; all three
//! become this format when rows are read.

/// The largest value.
pub(super) const LARGEST: f32 = 448.0;

/// A byte's value; 0x7f and 0xff are NaN.
pub(super) fn value(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3) & 15, u32::from(byte & 7));
    let size = match (exponent, mantissa) {
        (0, m) => m as f32 / 512.0,
        (15, 7) => f32::NAN,
        (e, m) => f32::from_bits(((e + 120) << 23) | (m << 20)),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// The nearest byte, ties to even. Larger values become the largest.
pub(super) fn byte(x: f32) -> u8 {
    let size = x.abs().min(LARGEST);
    let bits = size.to_bits();
    let near = if size < 1.0 / 64.0 {
        (size * 512.0).round_ties_even() as u8
    } else {
        let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
        ((rounded >> 20) - (120 << 3)) as u8
    };
    near | if x.is_sign_negative() { 0x80 } else { 0 }
}

pub(super) fn decode(block: &[u8; 132], out: &mut [f32; 128]) {
    let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (x, v) in out.iter_mut().zip(&block[4..]) {
        *x = scale * value(*v);
    }
}

/// Encodes a row of finite values with one scale, which all its blocks get.
pub(crate) fn encode_row(x: &[f32], row: &mut [u8]) {
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = most / LARGEST;
    for (x, block) in x.chunks_exact(128).zip(row.chunks_exact_mut(132)) {
        block[..4].copy_from_slice(&scale.to_le_bytes());
        for (v, x) in block[4..].iter_mut().zip(x) {
            *v = if scale > 0.0 { byte(x / scale) } else { 0 };
        }
    }
}

pub(super) fn encode(x: &[f32; 128], block: &mut [u8; 132]) {
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = most / LARGEST;
    block[..4].copy_from_slice(&scale.to_le_bytes());
    for (v, x) in block[4..].iter_mut().zip(x) {
        *v = if scale > 0.0 { byte(x / scale) } else { 0 };
    }
}
