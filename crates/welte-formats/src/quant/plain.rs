//! The plain formats, little-endian: F32 (IEEE single), F16 (IEEE half), BF16 (the upper half of an F32).

use half::{bf16, f16};

pub(super) fn decode_f32(bytes: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*bytes);
}

pub(super) fn decode_f16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f16::from_le_bytes(*bytes).to_f32();
}

pub(super) fn decode_bf16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
}

pub(super) fn encode_f32(x: &[f32; 1], bytes: &mut [u8; 4]) {
    *bytes = x[0].to_le_bytes();
}

pub(super) fn encode_f16(x: &[f32; 1], bytes: &mut [u8; 2]) {
    *bytes = f16::from_f32(x[0]).to_le_bytes();
}

pub(super) fn encode_bf16(x: &[f32; 1], bytes: &mut [u8; 2]) {
    *bytes = bf16::from_f32(x[0]).to_le_bytes();
}
