//! Packing encoded rows into tiles (see `layout.rs` for where each bit goes).

use super::layout::{CHUNK, HALVES, Layout, ROWS, Scales, leftovers, place};
use welte_table::Format;

/// Turns 8 rows of 8 words into 8 columns, in plain code.
pub(super) fn transpose(rows: &[[u32; 8]; 8]) -> [[u32; 8]; 8] {
    std::array::from_fn(|c| std::array::from_fn(|r| rows[r][c]))
}

/// Packs up to 16 encoded rows of `k` elements; missing rows become zero.
#[inline(always)]
pub(super) fn pack<const F: usize>(
    k: usize,
    rows: &[&[u8]],
    tile: &mut [u8],
    transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8],
) {
    match const { Format::ALL[F] } {
        Format::F32 | Format::BF16 => words(rows, tile, transpose),
        Format::F16 => halves(k, rows, tile),
        _ => blocks::<F>(k, rows, tile, transpose),
    }
}

/// F32 and BF16: 16 words per column, a word being one k or two; an odd last k is paired with zero.
#[inline(always)]
fn words(rows: &[&[u8]], tile: &mut [u8], transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8]) {
    for (b, out) in tile.chunks_mut(8 * ROWS * 4).enumerate() {
        for half in 0..2 {
            let columns = transpose(&std::array::from_fn(|r| {
                let row = rows.get(half * 8 + r).copied().unwrap_or(&[]);
                words_of(row.get(b * 32..).unwrap_or(&[]))
            }));
            for (column, out) in columns.iter().zip(out.chunks_exact_mut(ROWS * 4)) {
                put(column, &mut out[half * 32..half * 32 + 32]);
            }
        }
    }
}

/// Up to 8 words; zero beyond the end.
#[inline(always)]
fn words_of(bytes: &[u8]) -> [u32; 8] {
    let mut padded = [0u8; 32];
    match bytes.first_chunk::<32>() {
        Some(whole) => padded = *whole,
        None => padded[..bytes.len()].copy_from_slice(bytes),
    }
    std::array::from_fn(|i| {
        u32::from_le_bytes([
            padded[4 * i],
            padded[4 * i + 1],
            padded[4 * i + 2],
            padded[4 * i + 3],
        ])
    })
}

#[inline(always)]
fn put(words: &[u32], out: &mut [u8]) {
    for (out, word) in out.chunks_exact_mut(4).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
    }
}

/// F16: 16 rows per k, in pieces that stay in the first cache.
#[inline(always)]
fn halves(k: usize, rows: &[&[u8]], tile: &mut [u8]) {
    let (body, rest) = tile.split_at_mut(k * ROWS * 2);
    rest.fill(0);
    for (b, out) in body.chunks_mut(64 * ROWS * 2).enumerate() {
        for r in 0..ROWS {
            let row = rows.get(r).map_or(&[][..], |row| &row[b * 128..]);
            for (i, out) in out.chunks_exact_mut(ROWS * 2).enumerate() {
                let value = row.get(2 * i..2 * i + 2).unwrap_or(&[0, 0]);
                out[2 * r..2 * r + 2].copy_from_slice(value);
            }
        }
    }
}

/// Block formats: quants to bit planes, scales side by side.
#[inline(always)]
fn blocks<const F: usize>(
    k: usize,
    rows: &[&[u8]],
    tile: &mut [u8],
    transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8],
) {
    let format = const { Format::ALL[F] };
    let layout = const { Layout::of(Format::ALL[F]) };
    let (block, size) = (format.block(), format.block_bytes());
    let missing = [0u8; 256];
    for b in 0..k / block {
        let of_row = |r: usize| {
            rows.get(r)
                .map_or(&missing[..size], |row| &row[b * size..(b + 1) * size])
        };
        let (head, body) =
            tile[layout.head_at(b)..].split_at_mut(layout.block_at(b) - layout.head_at(b));
        for c in 0..layout.block_chunks() {
            let mut words = [[0u32; ROWS]; 8];
            for half in 0..2 {
                let columns = transpose(&std::array::from_fn(|r| {
                    words_of(&quants::<F>(of_row(half * 8 + r), c))
                }));
                for (word, column) in words.iter_mut().zip(columns) {
                    word[half * 8..half * 8 + 8].copy_from_slice(&column);
                }
            }
            write_planes(
                layout.bits,
                &words,
                &mut body[layout.quants_at(c)..][..layout.chunk_bytes()],
            );
        }
        for r in 0..ROWS {
            write_scales::<F>(of_row(r), r, head, body);
        }
    }
    if layout.record_blocks() == 2 && k / block % 2 == 1 {
        let unused = layout.head_at(k / block);
        tile[unused..unused + HALVES].fill(0);
    }
}

/// Spreads the words (by group and row) of one chunk over its vectors.
#[inline(always)]
fn write_planes(bits: usize, words: &[[u32; ROWS]; 8], out: &mut [u8]) {
    let mut vectors = [[0u32; ROWS]; 8];
    let whole = 8 - leftovers(bits)
        .iter()
        .fold(0, |n, p| n + usize::from(p.from == 0));
    let mut add = |vector: usize, at: u32, group: usize, from: u32, mask: u32| {
        for (v, w) in vectors[vector].iter_mut().zip(&words[group]) {
            *v |= (w >> from & mask) << at;
        }
    };
    for group in 0..whole {
        let (vector, at) = place(bits, group);
        add(vector, at as u32, group, 0, u32::MAX);
    }
    for p in leftovers(bits) {
        add(
            p.vector,
            p.at,
            p.group,
            p.from,
            (0xff >> (8 - p.bits)) * 0x0101_0101,
        );
    }
    for (vector, out) in vectors.iter().zip(out.chunks_exact_mut(64)) {
        put(vector, out);
    }
}

/// The unsigned quants of the `sub`-th 32 elements of a block.
#[inline(always)]
fn quants<const F: usize>(block: &[u8], sub: usize) -> [u8; CHUNK] {
    let format = const { Format::ALL[F] };
    let mut q = [0u8; CHUNK];
    let (half, shift) = (sub / 4, 2 * (sub % 4));
    match format {
        Format::Q8_0 => {
            for (q, b) in q.iter_mut().zip(&block[2..34]) {
                *q = b ^ 0x80;
            }
        }
        Format::Q4_0 => nibbles(&block[2..18], &mut q),
        Format::Q4_1 => nibbles(&block[4..20], &mut q),
        Format::Q5_0 => {
            nibbles(&block[6..22], &mut q);
            fifth_bits(&block[2..6], &mut q);
        }
        Format::Q5_1 => {
            nibbles(&block[8..24], &mut q);
            fifth_bits(&block[4..8], &mut q);
        }
        Format::Q4_K => {
            let from = &block[16 + sub / 2 * 32..][..32];
            for (q, b) in q.iter_mut().zip(from) {
                *q = b >> (4 * (sub % 2)) & 15;
            }
        }
        Format::Q5_K => {
            let (from, high) = (&block[48 + sub / 2 * 32..][..32], &block[16..48]);
            for ((q, b), h) in q.iter_mut().zip(from).zip(high) {
                *q = b >> (4 * (sub % 2)) & 15 | (h >> sub & 1) << 4;
            }
        }
        Format::Q6_K => {
            let low = &block[64 * half + 32 * (sub % 2)..][..32];
            let (high, low_shift) = (
                &block[128 + 32 * half..][..32],
                if sub % 4 < 2 { 0 } else { 4 },
            );
            for ((q, b), h) in q.iter_mut().zip(low).zip(high) {
                *q = b >> low_shift & 15 | (h >> shift & 3) << 4;
            }
        }
        Format::Q2_K => {
            for (q, b) in q.iter_mut().zip(&block[16 + 32 * half..][..32]) {
                *q = b >> shift & 3;
            }
        }
        Format::Q3_K => {
            for ((q, b), h) in q
                .iter_mut()
                .zip(&block[32 + 32 * half..][..32])
                .zip(&block[..32])
            {
                *q = b >> shift & 3 | (h >> sub & 1) << 2;
            }
        }
        Format::F32 | Format::F16 | Format::BF16 => {}
    }
    q
}

/// 16 bytes of two nibbles: element i low, element i + 16 high.
#[inline(always)]
fn nibbles(from: &[u8], q: &mut [u8; CHUNK]) {
    let (low, high) = q.split_at_mut(16);
    for ((low, high), b) in low.iter_mut().zip(high).zip(from) {
        *low = b & 15;
        *high = b >> 4;
    }
}

/// Adds the fifth bits, one per element, from a 32-bit word.
#[inline(always)]
fn fifth_bits(from: &[u8], q: &mut [u8; CHUNK]) {
    for (q, &byte) in q.chunks_exact_mut(8).zip(from) {
        for (i, q) in q.iter_mut().enumerate() {
            *q |= (byte >> i & 1) << 4;
        }
    }
}

/// Writes one row's scales of a block into the head of its record and its sub-scales into the block.
#[inline(always)]
fn write_scales<const F: usize>(block: &[u8], r: usize, head: &mut [u8], body: &mut [u8]) {
    let format = const { Format::ALL[F] };
    let (d, dmin) = match format {
        Format::Q6_K => (208, None),
        Format::Q3_K => (108, None),
        Format::Q2_K => (80, Some(82)),
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => (0, Some(2)),
        _ => (0, None),
    };
    head[2 * r..2 * r + 2].copy_from_slice(&block[d..d + 2]);
    if let Some(dmin) = dmin {
        head[HALVES + 2 * r..HALVES + 2 * r + 2].copy_from_slice(&block[dmin..dmin + 2]);
    }
    let from: [u8; 16] = match format {
        Format::Q6_K => std::array::from_fn(|i| block[192 + i]),
        Format::Q2_K => std::array::from_fn(|i| block[i]),
        Format::Q3_K => q3_scales(&block[96..108]),
        Format::Q4_K | Format::Q5_K => q45_scales(&block[4..16]),
        _ => return,
    };
    let layout = const { Layout::of(Format::ALL[F]) };
    for (i, sub) in from.iter().enumerate() {
        let at = match layout.scales {
            // Eight scales, then eight minima.
            Scales::SuperMin => layout.sub_at(i % 8) + i / 8 * ROWS + r,
            Scales::Pairs | Scales::PairsMin => layout.sub_at(i / 2) + 2 * r + i % 2,
            _ => layout.sub_at(i / 2) + i % 2 * ROWS + r,
        };
        body[at] = *sub;
    }
}

/// The 16 signed scales of a Q3_K block, as bytes.
#[inline(always)]
fn q3_scales(s: &[u8]) -> [u8; 16] {
    std::array::from_fn(|i| {
        let low = s[i % 8] >> (4 * (i / 8)) & 15;
        let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4).wrapping_sub(32)
    })
}

/// The 8 scales and 8 minima of a Q4_K or Q5_K block.
#[inline(always)]
fn q45_scales(s: &[u8]) -> [u8; 16] {
    std::array::from_fn(|i| match i {
        0..4 => s[i] & 63,
        4..8 => s[i + 4] & 15 | s[i - 4] >> 6 << 4,
        8..12 => s[i - 4] & 63,
        _ => s[i - 4] >> 4 | s[i - 8] >> 6 << 4,
    })
}
