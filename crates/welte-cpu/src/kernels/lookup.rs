//! Reads single rows back from packed tiles, so that a table that is also a matrix is stored once.

use super::layout::{CHUNK, ROWS, Scales, layout_of, word};
use super::scalar::{d_at, dmin_at, half_at, half_scale, quant};
use welte_table::Format;

/// Row `r` of a tile: the same floats that its encoded row decodes to.
pub(super) fn row<const F: usize>(member: Format, tile: &[u8], r: usize, out: &mut [f32]) {
    match const { Format::ALL[F] } {
        Format::F32 => each(out, |i| f32::from_le_bytes(word(tile, (i * ROWS + r) * 4))),
        Format::F16 => each(out, |i| half_at(tile, (i * ROWS + r) * 2)),
        Format::BF16 => each(out, |i| {
            let at = (i / 2 * ROWS + r) * 4 + i % 2 * 2;
            f32::from_le_bytes([0, 0, tile[at], tile[at + 1]])
        }),
        Format::F8_E4M3 => super::float8::row(tile, r, out),
        _ => blocks::<F>(member, tile, r, out),
    }
}

fn each(out: &mut [f32], value: impl Fn(usize) -> f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = value(i);
    }
}

fn blocks<const F: usize>(member: Format, tile: &[u8], r: usize, out: &mut [f32]) {
    let layout = layout_of::<F>(member);
    let per = layout.chunks;
    for (c, out) in out.chunks_exact_mut(CHUNK).enumerate() {
        let head = &tile[layout.head_at(c / per)..];
        let block = &tile[layout.block_at(c / per)..][..layout.block_bytes()];
        let (subs, quants) = (
            &block[layout.sub_at(c % per)..],
            &block[layout.quants_at(c % per)..],
        );
        let d = d_at(layout, head, r);
        let dmin = if layout.has_minima() {
            dmin_at(layout, head, r)
        } else {
            0.0
        };
        for (h, out) in out.chunks_exact_mut(CHUNK / 2).enumerate() {
            // The order of these operations is that of the formats' own decoders.
            let (scale, min) = match layout.scales {
                Scales::Plain | Scales::Powers => (d, 0.0),
                Scales::Super => (d * f32::from(subs[r] as i8), 0.0),
                Scales::PlainMin => (d, -dmin),
                Scales::SuperMin => (d * f32::from(subs[r]), dmin * f32::from(subs[ROWS + r])),
                Scales::Halves | Scales::Floats => (d * half_scale(layout, subs, h, r), 0.0),
                Scales::Pairs => (d * f32::from(subs[2 * r + h] as i8), 0.0),
                Scales::PairsMin => {
                    let both = subs[2 * r + h];
                    (d * f32::from(both & 15), dmin * f32::from(both >> 4))
                }
            };
            for (i, out) in out.iter_mut().enumerate() {
                let q = quant(layout, quants, 4 * h + i / 4, 4 * r + i % 4);
                *out = scale * (i32::from(q) - layout.offset) as f32 - min;
            }
        }
    }
}
