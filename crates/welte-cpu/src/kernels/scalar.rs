//! The kernels in plain code. They define what the vector kernels compute, and run on other processors.
//!
//! For block formats every instruction set gives the same bits: integer sums are exact, and the order of float operations
//! is the same.

use super::call::Call;
use super::layout::{
    ACT, ACT_FIRST, ACT_SCALE, ACT_SECOND, CHUNK, HALVES, Head, Layout, ROWS, Scales, acts_bytes,
    leftovers, place, tile_bytes, word,
};
use welte_table::Format;

/// `out (+)= tiles x acts` for one format.
///
/// # Safety
/// As [`super::Kernel::matmul`].
pub(super) unsafe fn matmul<const F: usize>(call: &Call) {
    let format = call.format;
    let (bytes, stride) = (
        tile_bytes(format, call.k),
        acts_bytes(format, call.k, false),
    );
    for t in 0..call.n.div_ceil(ROWS) {
        // SAFETY: the caller gives ceil(n / 16) tiles of `tile_bytes`.
        let tile = unsafe { std::slice::from_raw_parts(call.tiles.add(t * bytes), bytes) };
        for r in 0..call.rows {
            // SAFETY: the caller gives `rows` activation rows of `acts_bytes`.
            let acts = unsafe { std::slice::from_raw_parts(call.acts.add(r * stride), stride) };
            let sums = match format {
                Format::F32 | Format::F16 | Format::BF16 => float_tile(format, tile, call.k, acts),
                Format::F8_E4M3 => super::float8::plain(tile, call.k, acts),
                _ => block_tile(Layout::of(format), tile, call.k, acts),
            };
            for (i, sum) in sums.iter().enumerate().take(call.n - t * ROWS) {
                // SAFETY: i < n - 16 t, so the target lies within the caller's row r of n outputs.
                unsafe {
                    let out = call.out.add(r * call.out_stride + t * ROWS + i);
                    *out = if call.accumulate { *out + sum } else { *sum };
                }
            }
        }
    }
}

pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// A scale of a block.
pub(super) fn scale_at(layout: Layout, bytes: &[u8], at: usize) -> f32 {
    if layout.head.bf16() {
        f32::from_le_bytes([0, 0, bytes[at], bytes[at + 1]])
    } else {
        half_at(bytes, at)
    }
}

/// A positive E4M3 float.
pub(super) fn small_float(byte: u8) -> f32 {
    // The same bits in an f16 mean 1/256 of it.
    half::f16::from_bits(u16::from(byte) << 7).to_f32() * 256.0
}

/// The scale of the first 16 or last 16 elements of a chunk, without the block's.
pub(super) fn half_scale(layout: Layout, subs: &[u8], half: usize, r: usize) -> f32 {
    let scale = subs[half * ROWS + r];
    match layout.scales {
        Scales::Floats => small_float(scale),
        _ => f32::from(scale as i8),
    }
}

/// The `d` of a row's block.
pub(super) fn d_at(layout: Layout, head: &[u8], r: usize) -> f32 {
    let d = match layout.scales {
        Scales::Powers => power(head[r]),
        _ if layout.head == Head::Float => f32::from_le_bytes(word(head, 4 * r)),
        _ => scale_at(layout, head, 2 * r),
    };
    d * layout.factor
}

/// The `dmin` of a row's block.
pub(super) fn dmin_at(layout: Layout, head: &[u8], r: usize) -> f32 {
    let dmin = scale_at(layout, head, HALVES + 2 * r);
    if layout.head.has_zero() {
        d_at(layout, head, r) * -dmin
    } else {
        dmin * layout.factor
    }
}

/// 2^(e - 128), exact for every e.
pub(super) fn power(e: u8) -> f32 {
    let normal = (i32::from(e) - 1) << 23;
    f32::from_bits(normal.max(0x20_0000 << e.min(2)) as u32)
}

/// Even and odd k have separate sums, as in the vector kernels.
fn float_tile(format: Format, tile: &[u8], k: usize, acts: &[u8]) -> [f32; ROWS] {
    let mut sums = [[0f32; ROWS]; 2];
    for i in 0..k {
        let x = f32::from_le_bytes(word(acts, 4 * i));
        for (r, sum) in sums[i % 2].iter_mut().enumerate() {
            let w = match format {
                Format::F32 => f32::from_le_bytes(word(tile, (i * ROWS + r) * 4)),
                Format::F16 => half_at(tile, (i * ROWS + r) * 2),
                _ => {
                    let at = (i / 2 * ROWS + r) * 4 + i % 2 * 2;
                    f32::from_bits(u32::from(u16::from_le_bytes([tile[at], tile[at + 1]])) << 16)
                }
            };
            *sum += w * x;
        }
    }
    std::array::from_fn(|r| sums[0][r] + sums[1][r])
}

fn block_tile(layout: Layout, tile: &[u8], k: usize, acts: &[u8]) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    let per = layout.chunks;
    for c in 0..k / CHUNK {
        let head = &tile[layout.head_at(c / per)..];
        let block = &tile[layout.block_at(c / per)..][..layout.block_bytes()];
        let (subs, quants) = (
            &block[layout.sub_at(c % per)..],
            &block[layout.quants_at(c % per)..],
        );
        let act = &acts[c * ACT..(c + 1) * ACT];
        let dots = dots(layout, quants, act);
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = scaled(layout, head, subs, r, [dots[0][r], dots[1][r]], act, *sum);
        }
    }
    sums
}

/// The integer dot products of one chunk by half and row.
fn dots(layout: Layout, quants: &[u8], act: &[u8]) -> [[i32; ROWS]; 2] {
    let mut dots = [[0i32; ROWS]; 2];
    for g in 0..8 {
        for (r, dot) in dots[g / 4].iter_mut().enumerate() {
            for i in 0..4 {
                let q = quant(layout, quants, g, 4 * r + i);
                *dot += i32::from(q) * i32::from(act[4 * g + i] as i8);
            }
        }
    }
    dots
}

/// The value of byte i (k and row) of group g of a chunk, offset included.
#[inline(always)]
pub(super) fn quant(layout: Layout, quants: &[u8], g: usize, i: usize) -> u8 {
    let q = stored(layout.bits, quants, g, i);
    layout.codes.map_or(q, |codes| codes[usize::from(q)])
}

#[inline(always)]
fn stored(bits: usize, quants: &[u8], g: usize, i: usize) -> u8 {
    let field = |vector: usize, at: usize, bits: usize| {
        quants[64 * vector + i] >> at & (0xff_u8 >> (8 - bits))
    };
    let mut pieces = leftovers(bits).iter().filter(|p| p.group == g).peekable();
    if pieces.peek().is_none() {
        let (vector, at) = place(bits, g);
        return field(vector, at, bits);
    }
    pieces.fold(0, |q, p| {
        q | field(p.vector, p.at as usize, p.bits as usize) << p.from
    })
}

/// Adds one row's chunk to its sum; `subs` are the chunk's sub-scales.
fn scaled(
    layout: Layout,
    head: &[u8],
    subs: &[u8],
    r: usize,
    dots: [i32; 2],
    act: &[u8],
    sum: f32,
) -> f32 {
    let d = match layout.scales {
        Scales::Super => d_at(layout, head, r) * f32::from(subs[r] as i8),
        _ => d_at(layout, head, r),
    };
    let dmin = || dmin_at(layout, head, r);
    let s = f32::from_le_bytes(word(act, ACT_SCALE));
    let (first, second) = (word(act, ACT_FIRST), word(act, ACT_SECOND));
    let first_sum = f32::from_le_bytes(first);
    match layout.scales {
        Scales::Plain | Scales::Powers | Scales::Super => {
            ((dots[0] + dots[1] + i32::from_le_bytes(first)) as f32).mul_add(d * s, sum)
        }
        Scales::PlainMin => {
            let sum = ((dots[0] + dots[1]) as f32).mul_add(d * s, sum);
            dmin().mul_add(first_sum, sum)
        }
        Scales::SuperMin => {
            let scale = d * f32::from(subs[r]);
            let min = dmin() * f32::from(subs[ROWS + r]);
            let sum = ((dots[0] + dots[1]) as f32).mul_add(scale * s, sum);
            (-min).mul_add(first_sum, sum)
        }
        Scales::Halves | Scales::Floats => {
            let scale = |h: usize| d * half_scale(layout, subs, h, r);
            let low = (dots[0] + i32::from_le_bytes(first)) as f32;
            let high = (dots[1] + i32::from_le_bytes(second)) as f32;
            low.mul_add(scale(0), high * scale(1)).mul_add(s, sum)
        }
        Scales::Pairs => {
            let scale = |h: usize| i32::from(subs[2 * r + h] as i8);
            let low = (dots[0] + i32::from_le_bytes(first)) * scale(0);
            let high = (dots[1] + i32::from_le_bytes(second)) * scale(1);
            ((low + high) as f32).mul_add(d * s, sum)
        }
        Scales::PairsMin => {
            let both = |h: usize| i32::from(subs[2 * r + h]);
            let part = |h: usize| i32::from(i16::from_le_bytes([first[2 * h], first[2 * h + 1]]));
            let scaled = dots[0] * (both(0) & 15) + dots[1] * (both(1) & 15);
            let min = part(0) * (both(0) >> 4) + part(1) * (both(1) >> 4);
            let sum = (scaled as f32).mul_add(d * s, sum);
            (min as f32).mul_add(-(dmin() * s), sum)
        }
    }
}
