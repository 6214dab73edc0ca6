//! Block formats: one file each, with the layout, the decoder to f32 and the encoder.

use welte_table::Format;

/// Decodes whole blocks to f32: `bytes` holds `out.len() / block` blocks. Panics if the lengths disagree.
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    let _ = (format, bytes, out);
    todo!()
}

/// Encodes whole blocks. `importance` (per column of a row, optional) weighs the error.
pub fn encode(format: Format, values: &[f32], out: &mut [u8]) {
    let _ = (format, values, out);
    todo!()
}
