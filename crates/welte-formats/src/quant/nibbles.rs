//! Blocks of 32 with 4 or 5 bits share one layout. Byte j of 16 contains element j in its low half and element j + 16
//! in its high half. The fifth bits are a little-endian u32 with element j at bit j.

/// Unpacks 16 bytes to elements 0..=15, mapped by `value`.
pub(super) fn unpack4(bytes: &[u8; 16], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    for (j, byte) in bytes.iter().enumerate() {
        out[j] = value(byte & 15);
        out[j + 16] = value(byte >> 4);
    }
}

/// Unpacks 16 bytes and the fifth bits to elements 0..=31, mapped by `value`.
pub(super) fn unpack5(
    high: &[u8; 4],
    bytes: &[u8; 16],
    out: &mut [f32; 32],
    value: impl Fn(u8) -> f32,
) {
    let high = u32::from_le_bytes(*high);
    for (j, byte) in bytes.iter().enumerate() {
        let bit = |element: usize| (((high >> element) & 1) << 4) as u8;
        out[j] = value((byte & 15) | bit(j));
        out[j + 16] = value((byte >> 4) | bit(j + 16));
    }
}

/// The reverse of `unpack4`.
pub(super) fn pack4(q: &[u8; 32], bytes: &mut [u8]) {
    for (j, byte) in bytes.iter_mut().take(16).enumerate() {
        *byte = (q[j] & 15) | (q[j + 16] << 4);
    }
}

/// The reverse of `unpack5`.
pub(super) fn pack5(q: &[u8; 32], high: &mut [u8], bytes: &mut [u8]) {
    pack4(q, bytes);
    let bits = q
        .iter()
        .enumerate()
        .fold(0u32, |bits, (j, q)| bits | (u32::from(q >> 4) << j));
    high.copy_from_slice(&bits.to_le_bytes());
}

/// Step and integers `0..2 * half` of `x = d · (q - half)`. The value of the largest magnitude maps to -half exactly.
pub(super) fn centred(x: &[f32; 32], half: u8) -> (f32, [u8; 32]) {
    let extreme = x
        .iter()
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { *b } else { a });
    let d = extreme / -f32::from(half);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (
        d,
        x.map(|x| ((x * inverse + f32::from(half) + 0.5) as u8).min(2 * half - 1)),
    )
}

/// Step, minimum and integers `0..=top` of `x = d · q + m`.
pub(super) fn from_least(x: &[f32; 32], top: u8) -> (f32, f32, [u8; 32]) {
    let least = x.iter().copied().fold(f32::INFINITY, f32::min);
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (most - least) / f32::from(top);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (
        d,
        least,
        x.map(|x| (((x - least) * inverse + 0.5) as u8).min(top)),
    )
}
