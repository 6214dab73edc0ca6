//! The 4-bit and 5-bit blocks of 32 share one arrangement: byte j of 16 holds element j in its low half and element
//! j + 16 in its high half; fifth bits are a little-endian u32, bit j of element j.

/// Element values 0..=15 of 16 bytes, through `value`.
pub(super) fn unpack4(bytes: &[u8; 16], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    for (j, byte) in bytes.iter().enumerate() {
        out[j] = value(byte & 15);
        out[j + 16] = value(byte >> 4);
    }
}

/// Element values 0..=31 of 16 bytes and the fifth bits, through `value`.
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
