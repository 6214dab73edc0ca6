//! Block formats, one file each: layout, decoder to f32 and encoder.
//!
//! Encoders of block formats turn NaN into 0 and clamp values to ±65504, the largest f16. The plain formats keep NaN
//! and infinities; F16 rounds values that are too large to infinity.

mod affine;
mod codebook;
pub mod coded;
mod codes;
pub(crate) mod f8_e4m3;
pub mod grid;
mod grid_search;
mod halves;
pub mod integers;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nibbles;
mod nvfp4;
mod plain;
mod q1_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod search;
mod tq1_0;
mod tq2_0;

use welte_table::Format;

/// Decodes whole blocks to f32. Panics if `bytes` is not as long as `out.len()` elements of the format.
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        format.bytes(out.len()),
        Some(bytes.len()),
        "{}: lengths disagree",
        format.name()
    );
    match format {
        Format::F32 => decode_blocks(bytes, out, plain::decode_f32),
        Format::F16 => decode_blocks(bytes, out, plain::decode_f16),
        Format::BF16 => decode_blocks(bytes, out, plain::decode_bf16),
        Format::Q4_0 => decode_blocks(bytes, out, q4_0::decode),
        Format::Q4_1 => decode_blocks(bytes, out, q4_1::decode),
        Format::Q5_0 => decode_blocks(bytes, out, q5_0::decode),
        Format::Q5_1 => decode_blocks(bytes, out, q5_1::decode),
        Format::Q8_0 => decode_blocks(bytes, out, q8_0::decode),
        Format::Q2_K => decode_blocks(bytes, out, q2_k::decode),
        Format::Q3_K => decode_blocks(bytes, out, q3_k::decode),
        Format::Q4_K => decode_blocks(bytes, out, q4_k::decode),
        Format::Q5_K => decode_blocks(bytes, out, q5_k::decode),
        Format::Q6_K => decode_blocks(bytes, out, q6_k::decode),
        Format::IQ4_NL => decode_blocks(bytes, out, iq4_nl::decode),
        Format::IQ4_XS => decode_blocks(bytes, out, iq4_xs::decode),
        Format::MXFP4 => decode_blocks(bytes, out, mxfp4::decode),
        Format::F8_E4M3 => decode_blocks(bytes, out, f8_e4m3::decode),
        Format::IQ1_S
        | Format::IQ1_M
        | Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S
        | Format::TQ1_0
        | Format::TQ2_0
        | Format::Q1_0
        | Format::NVFP4
        | Format::NVFP4_F32 => coded::decode(format, bytes, out),
        Format::Affine(affine) => affine::decode(affine, bytes, out),
        Format::Integers(member) => integers::decode(member, bytes, out),
    }
}

/// True if [`encode`] does well without knowing how much each element matters. The formats with tables do not.
pub fn has_encoder(format: Format) -> bool {
    grid::table(format).is_none()
}

/// Encodes whole blocks, rounding to the nearest values of the format. Panics if the lengths disagree.
pub fn encode(format: Format, values: &[f32], out: &mut [u8]) {
    encode_weighted(format, values, None, out);
}

/// The same, by formats that search for their scales, with a weight for the error of each value.
pub fn encode_weighted(format: Format, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    assert_eq!(
        format.bytes(values.len()),
        Some(out.len()),
        "{}: lengths disagree",
        format.name()
    );
    match format {
        Format::F32 => encode_blocks(values, out, plain::encode_f32),
        Format::F16 => encode_blocks(values, out, plain::encode_f16),
        Format::BF16 => encode_blocks(values, out, plain::encode_bf16),
        Format::Q4_0 => encode_blocks(values, out, tamed(q4_0::encode)),
        Format::Q4_1 => encode_blocks(values, out, tamed(q4_1::encode)),
        Format::Q5_0 => encode_blocks(values, out, tamed(q5_0::encode)),
        Format::Q5_1 => encode_blocks(values, out, tamed(q5_1::encode)),
        Format::Q8_0 => encode_blocks(values, out, tamed(q8_0::encode)),
        Format::Q2_K => encode_searched(values, importance, out, q2_k::encode),
        Format::Q3_K => encode_searched(values, importance, out, q3_k::encode),
        Format::Q4_K => encode_searched(values, importance, out, q4_k::encode),
        Format::Q5_K => encode_searched(values, importance, out, q5_k::encode),
        Format::Q6_K => encode_searched(values, importance, out, q6_k::encode),
        Format::IQ4_NL => encode_searched(values, importance, out, iq4_nl::encode),
        Format::IQ4_XS => encode_searched(values, importance, out, iq4_xs::encode),
        Format::MXFP4 => encode_blocks(values, out, tamed(mxfp4::encode)),
        Format::F8_E4M3 => encode_blocks(values, out, tamed(f8_e4m3::encode)),
        Format::TQ1_0 => encode_blocks(values, out, tamed(tq1_0::encode)),
        Format::TQ2_0 => encode_blocks(values, out, tamed(tq2_0::encode)),
        Format::Q1_0 => encode_blocks(values, out, tamed(q1_0::encode)),
        Format::NVFP4 => encode_blocks(values, out, tamed(nvfp4::encode)),
        Format::NVFP4_F32 => encode_blocks(values, out, tamed(nvfp4::encode_f32)),
        Format::IQ1_S => encode_searched(values, importance, out, iq1_s::encode),
        Format::IQ1_M => encode_searched(values, importance, out, iq1_m::encode),
        Format::IQ2_XXS => encode_searched(values, importance, out, iq2_xxs::encode),
        Format::IQ2_XS => encode_searched(values, importance, out, iq2_xs::encode),
        Format::IQ2_S => encode_searched(values, importance, out, iq2_s::encode),
        Format::IQ3_XXS => encode_searched(values, importance, out, iq3_xxs::encode),
        Format::IQ3_S => encode_searched(values, importance, out, iq3_s::encode),
        Format::Affine(affine) => affine::encode(affine, values, out),
        Format::Integers(member) => integers::encode(member, values, out),
    }
}

/// Applies a decoder of one block (`B` bytes, `N` elements) to all blocks.
fn decode_blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (bytes, _) = bytes.as_chunks::<B>();
    let (out, _) = out.as_chunks_mut::<N>();
    for (block, values) in bytes.iter().zip(out) {
        decode(block, values);
    }
}

/// Applies an encoder of one block to all blocks.
fn encode_blocks<const B: usize, const N: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; N], &mut [u8; B]),
) {
    let (values, _) = values.as_chunks::<N>();
    let (out, _) = out.as_chunks_mut::<B>();
    for (values, block) in values.iter().zip(out) {
        encode(values, block);
    }
}

/// The same for an encoder that weighs errors. Without weights all count the same.
fn encode_searched<const B: usize, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: impl Fn(&[f32; N], &[f32; N], &mut [u8; B]),
) {
    let even = [[1.0; N]];
    let weights = importance.map_or(&even[..], |importance| importance.as_chunks::<N>().0);
    let (values, _) = values.as_chunks::<N>();
    let (out, _) = out.as_chunks_mut::<B>();
    for ((values, block), weights) in values.iter().zip(out).zip(weights.iter().cycle()) {
        encode(&values.map(halves::tame), weights, block);
    }
}

/// An encoder whose input is finite and within the range of its f16 scale.
fn tamed<const B: usize, const N: usize>(
    encode: impl Fn(&[f32; N], &mut [u8; B]),
) -> impl Fn(&[f32; N], &mut [u8; B]) {
    move |x, block| encode(&x.map(halves::tame), block)
}
