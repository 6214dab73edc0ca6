//! Packing encoded rows into tiles (see `layout.rs` for where each bit goes).

use super::layout::{
    F8_BLOCK, F8_BYTES, HALVES, Head, Layout, ROWS, Scales, layout_of, leftovers, place,
};
use welte_formats::quant::coded;
use welte_table::Format;

/// Transposes 8 rows of 8 words, in plain code.
pub(super) fn transpose(rows: &[[u32; 8]; 8]) -> [[u32; 8]; 8] {
    std::array::from_fn(|c| std::array::from_fn(|r| rows[r][c]))
}

/// Packs up to 16 encoded rows of `k` elements; missing rows become zero.
#[inline(always)]
pub(super) fn pack<const F: usize>(
    format: Format,
    k: usize,
    rows: &[&[u8]],
    tile: &mut [u8],
    transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8],
) {
    match const { Format::ALL[F] } {
        Format::F32 | Format::BF16 => words(rows, tile, transpose),
        Format::F16 => halves(rows, tile, transpose),
        Format::F8_E4M3 => float8s(rows, tile, transpose),
        _ => blocks::<F>(format, k, rows, tile, transpose),
    }
}

/// F32 and BF16: 16 words per column. A word is one k, or two in BF16; an odd last k is paired with zero.
#[inline(always)]
fn words(rows: &[&[u8]], tile: &mut [u8], transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8]) {
    for (b, out) in tile.chunks_mut(8 * ROWS * 4).enumerate() {
        let mut columns = [[0; ROWS]; 8];
        turn(rows, b * 32, &mut columns, &transpose);
        for (column, out) in columns.iter().zip(out.chunks_exact_mut(ROWS * 4)) {
            put(column, out);
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

/// F16: 16 rows per k. Words hold two k of a row. They are transposed to columns, then split.
#[inline(always)]
fn halves(rows: &[&[u8]], tile: &mut [u8], transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8]) {
    for (b, out) in tile.chunks_mut(16 * HALVES).enumerate() {
        let mut columns = [[0; ROWS]; 8];
        turn(rows, b * 32, &mut columns, &transpose);
        for (column, out) in columns.iter().zip(out.chunks_mut(2 * HALVES)) {
            for (out, shift) in out.chunks_exact_mut(HALVES).zip([0, 16]) {
                put_halves(&std::array::from_fn(|r| (column[r] >> shift) as u16), out);
            }
        }
    }
}

#[inline(always)]
fn put_halves(halves: &[u16; ROWS], out: &mut [u8]) {
    for (out, half) in out.chunks_exact_mut(2).zip(halves) {
        out.copy_from_slice(&half.to_le_bytes());
    }
}

/// F8_E4M3: 16 scales and 16 rows per k. Words hold four k of a row. They are transposed to columns, then split.
#[inline(always)]
fn float8s(rows: &[&[u8]], tile: &mut [u8], transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8]) {
    for (b, out) in tile.chunks_exact_mut(F8_BYTES).enumerate() {
        // The scale, and 32 words.
        let mut columns = [[0; ROWS]; 40];
        turn(rows, b * (4 + F8_BLOCK), &mut columns, &transpose);
        let (scales, elements) = out.split_at_mut(ROWS * 4);
        put(&columns[0], scales);
        for (column, out) in columns[1..].iter().zip(elements.chunks_exact_mut(4 * ROWS)) {
            for (out, shift) in out.chunks_exact_mut(ROWS).zip([0, 8, 16, 24]) {
                for (out, word) in out.iter_mut().zip(column) {
                    *out = (word >> shift) as u8;
                }
            }
        }
    }
}

/// Words of 16 rows side by side.
type Lanes = [u32; ROWS];

/// The words of each row from byte `at` on, as columns, a multiple of 8. Beyond the end of a row they are zero.
#[inline(always)]
fn turn(
    rows: &[&[u8]],
    at: usize,
    columns: &mut [Lanes],
    transpose: &impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8],
) {
    for (i, columns) in columns.chunks_exact_mut(8).enumerate() {
        for half in 0..2 {
            let turned = transpose(&std::array::from_fn(|r| {
                let row = rows
                    .get(half * 8 + r)
                    .and_then(|row| row.get(at + i * 32..));
                words_of(row.unwrap_or(&[]))
            }));
            for (column, turned) in columns.iter_mut().zip(turned) {
                column[half * 8..half * 8 + 8].copy_from_slice(&turned);
            }
        }
    }
}

/// The first byte of a block that is transposed, and how many columns of words are needed.
const fn needed(format: Format) -> (usize, usize) {
    match format {
        Format::Q4_0 => (2, 4),
        Format::Q4_1 => (4, 4),
        Format::Q5_0 => (2, 5),
        Format::Q5_1 => (4, 5),
        Format::Q8_0 => (2, 8),
        Format::Q2_K => (0, 21),
        Format::Q3_K => (0, 27),
        Format::Q4_K => (0, 36),
        Format::Q5_K => (0, 44),
        Format::Q6_K => (0, 52),
        Format::IQ4_NL => (2, 4),
        Format::IQ4_XS => (0, 34),
        Format::MXFP4 => (1, 4),
        Format::Affine(affine) => (4, affine.group() * affine.bits() / 32),
        Format::Integers(integers) => (4, integers.group() * integers.bits() / 32),
        Format::F32 | Format::F16 | Format::BF16 | Format::F8_E4M3 => (0, 0),
        // Their blocks are unpacked first: see `coded_words`.
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
        | Format::NVFP4_F32 => (0, CODED_WORDS),
    }
}

/// Words of an unpacked block: codes, scales, `d`.
const CODED_WORDS: usize = 64 + 4 + 1;

/// Words of one block of up to 16 rows, for formats that [`coded::unpack`] knows: four codes in a word, then four scales in
/// a word, then `d`. Missing rows are zero.
#[inline(always)]
fn coded_words<const F: usize>(rows: &[&[u8]], at: usize, words: &mut [Lanes]) {
    let format = const { Format::ALL[F] };
    for r in 0..ROWS {
        let Some(row) = rows.get(r) else {
            words.iter_mut().for_each(|lanes| lanes[r] = 0);
            continue;
        };
        let block = coded::unpack(format, &row[at..at + format.block_bytes()]);
        let (codes, scales) = (block.codes.as_chunks().0, block.scales.as_chunks().0);
        for (lanes, four) in words.iter_mut().zip(codes.iter().chain(scales)) {
            lanes[r] = u32::from_le_bytes(*four);
        }
        words[CODED_WORDS - 1][r] = block.d;
    }
}

/// Block formats: quants to their places, scales side by side.
#[inline(always)]
fn blocks<const F: usize>(
    member: Format,
    k: usize,
    rows: &[&[u8]],
    tile: &mut [u8],
    transpose: impl Fn(&[[u32; 8]; 8]) -> [[u32; 8]; 8],
) {
    let format = match const { Format::ALL[F] } {
        Format::Affine(_) | Format::Integers(_) => member,
        known => known,
    };
    let layout = layout_of::<F>(member);
    let (start, count) = needed(format);
    let (block, size) = (format.block(), format.block_bytes());
    let mut words = [[0; ROWS]; 72];
    let coded = const { coded::values(Format::ALL[F]).is_some() };
    for b in 0..k / block {
        let (head_at, at) = (layout.head_at(b), layout.block_at(b));
        let (head, body) = tile[head_at..].split_at_mut(at - head_at);
        let body = &mut body[..layout.block_bytes()];
        let words = &mut words[..count.next_multiple_of(8)];
        if coded {
            coded_words::<F>(rows, b * size, words);
        } else {
            turn(rows, b * size + start, words, &transpose);
        }
        for c in 0..layout.chunks {
            let groups = quants::<F>(words, c);
            let at = layout.quants_at(c);
            write_planes(
                layout.bits,
                &groups,
                &mut body[at..at + layout.chunk_bytes()],
            );
        }
        if layout.sub_bytes() > 0 {
            write_subs(layout, &sub_scales::<F>(words), body);
        }
        if layout.scales == Scales::Powers {
            for (r, out) in head[..layout.head_size()].iter_mut().enumerate() {
                *out = rows.get(r).map_or(0, |row| row[b * size]);
            }
            continue;
        }
        if coded {
            let d = &words[CODED_WORDS - 1];
            if layout.head == Head::Float {
                put(d, &mut head[..layout.head_size()]);
                continue;
            }
            // `d` is the factor of the minima as well.
            for part in head[..layout.head_size()].chunks_exact_mut(HALVES) {
                put_halves(&d.map(|d| d as u16), part);
            }
            continue;
        }
        if layout.head == Head::Float {
            for (r, out) in head.chunks_exact_mut(4).enumerate().take(ROWS) {
                let row = rows.get(r).and_then(|row| row[b * size..].first_chunk());
                out.copy_from_slice(row.unwrap_or(&[0; 4]));
            }
            continue;
        }
        let (d, dmin) = match format {
            Format::Q6_K => (208, None),
            Format::Q3_K => (108, None),
            Format::Q2_K => (80, Some(82)),
            _ if layout.has_minima() => (0, Some(2)),
            _ => (0, None),
        };
        for (part, from) in head
            .chunks_mut(HALVES)
            .zip([Some(d), dmin].into_iter().flatten())
        {
            put_halves(
                &std::array::from_fn(|r| half_of(rows.get(r), b * size + from)),
                part,
            );
        }
    }
    let blocks = k / block;
    for unused in blocks..blocks.next_multiple_of(layout.record_blocks()) {
        tile[layout.head_at(unused)..][..layout.head_size()].fill(0);
    }
}

#[inline(always)]
fn half_of(row: Option<&&[u8]>, at: usize) -> u16 {
    match row.and_then(|row| row.get(at..at + 2)) {
        Some(bytes) => u16::from_le_bytes([bytes[0], bytes[1]]),
        None => 0,
    }
}

/// Spreads the words (by group and row) of one chunk over its vectors.
#[inline(always)]
fn write_planes(bits: usize, words: &[Lanes; 8], out: &mut [u8]) {
    let mut vectors = [[0; ROWS]; 8];
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

/// The unsigned quants of chunk c of a block, by group, from the block's words.
#[inline(always)]
fn quants<const F: usize>(words: &[Lanes], c: usize) -> [Lanes; 8] {
    let field = |word: usize, shift: usize, mask: u32, to: u32| -> Lanes {
        std::array::from_fn(|r| (words[word][r] >> shift & mask) << to)
    };
    let or = |a: Lanes, b: Lanes| -> Lanes { std::array::from_fn(|r| a[r] | b[r]) };
    let nibble = |word, high: usize| field(word, 4 * high, 0x0f0f_0f0f, 0);
    let twos = |word, to| field(word, 2 * (c % 4), 0x0303_0303, to);
    let bit = |word, to| field(word, c, 0x0101_0101, to);
    // A loop: a closure would not be compiled for the caller's instruction set.
    let mut groups = [[0; ROWS]; 8];
    for (g, group) in groups.iter_mut().enumerate() {
        *group = match const { Format::ALL[F] } {
            Format::Q4_0 | Format::Q4_1 | Format::IQ4_NL | Format::MXFP4 => nibble(g % 4, g / 4),
            Format::IQ4_XS => nibble(2 + c * 4 + g % 4, g / 4),
            Format::Q5_0 | Format::Q5_1 => or(nibble(1 + g % 4, g / 4), fifth_bits(&words[0], g)),
            Format::Q2_K => twos(4 + c / 4 * 8 + g, 0),
            Format::Q3_K => or(twos(8 + c / 4 * 8 + g, 0), bit(g, 2)),
            Format::Q4_K => nibble(4 + c / 2 * 8 + g, c % 2),
            Format::Q5_K => or(nibble(12 + c / 2 * 8 + g, c % 2), bit(4 + g, 4)),
            Format::Q6_K => or(
                nibble(c / 4 * 16 + c % 2 * 8 + g, c % 4 / 2),
                twos(32 + c / 4 * 8 + g, 4),
            ),
            Format::Affine(affine) => stream(affine.bits(), &words[c * affine.bits()..], g),
            Format::Integers(integers) => stream(integers.bits(), &words[c * integers.bits()..], g),
            // The number, without the bit of its difference.
            Format::IQ1_S => words[8 * c + g].map(|codes| codes & 0x0303_0303),
            known if coded::values(known).is_some() => words[8 * c + g],
            _ => std::array::from_fn(|r| words[g][r] ^ 0x8080_8080),
        };
    }
    groups
}

/// Group g of a chunk whose quants are a stream of bits.
#[inline(always)]
fn stream(bits: usize, words: &[Lanes], g: usize) -> Lanes {
    let (word, shift) = (g * 4 * bits / 32, g * 4 * bits % 32);
    // The second word matters only if the group extends into it.
    let next = if shift + 4 * bits > 32 {
        word + 1
    } else {
        word
    };
    std::array::from_fn(|r| {
        let pair = u64::from(words[word][r]) | u64::from(words[next][r]) << 32;
        let fields = (pair >> shift) as u32;
        let byte = |i: usize| (fields >> (i * bits) & (0xff >> (8 - bits))) << (8 * i);
        byte(0) | byte(1) | byte(2) | byte(3)
    })
}

/// The fifth bits of group g, from words that hold one bit for each element.
#[inline(always)]
fn fifth_bits(words: &Lanes, g: usize) -> Lanes {
    // The product has bit i of the four at bit 8i, and no other bit there.
    std::array::from_fn(|r| (((words[r] >> (4 * g) & 15) * 0x0020_4081) & 0x0101_0101) << 4)
}

/// The sub-scales of a block, four in a word: scales, then minima if they are separate.
#[inline(always)]
fn sub_scales<const F: usize>(words: &[Lanes]) -> [Lanes; 4] {
    let six = |low: u32, high: u32| low & 0x0f0f_0f0f | (high & 0x0303_0303) << 4;
    let mut subs = [[0; ROWS]; 4];
    for (i, sub) in subs.iter_mut().enumerate() {
        *sub = match const { Format::ALL[F] } {
            Format::Q2_K => words[i],
            Format::Q6_K => words[48 + i],
            Format::IQ4_XS => std::array::from_fn(|r| uneven_scales(words[0][r], words[1][r], i)),
            Format::IQ1_S => std::array::from_fn(|r| ternary_scales(words, i, r)),
            // Both halves of a chunk have the same scale.
            Format::IQ2_XXS | Format::IQ3_XXS | Format::IQ3_S => match i {
                0 | 1 => std::array::from_fn(|r| {
                    even_bytes(words[64 + 2 * i][r]) | even_bytes(words[65 + 2 * i][r]) << 16
                }),
                _ => [0; ROWS],
            },
            known if coded::values(known).is_some() => words[64 + i],
            Format::Q3_K => std::array::from_fn(|r| {
                let sub = six(words[24 + i % 2][r] >> (i / 2 * 4), words[26][r] >> (2 * i));
                // Minus 32 in each byte.
                ((sub | 0x8080_8080) - 0x2020_2020) ^ 0x8080_8080
            }),
            _ => std::array::from_fn(|r| {
                let [scales, minima, rest] = [words[1][r], words[2][r], words[3][r]];
                match i {
                    0 => scales & 0x3f3f_3f3f,
                    1 => six(rest, scales >> 6),
                    2 => minima & 0x3f3f_3f3f,
                    _ => six(rest >> 4, minima >> 6),
                }
            }),
        };
    }
    subs
}

/// Bytes 0 and 2 of a word, side by side.
fn even_bytes(word: u32) -> u32 {
    word & 0xff | word >> 8 & 0xff00
}

/// Four of the sub-scales of IQ1_S, in eighths: the scales of eight chunks, then their minima. An element is scale · (q - 1 ±
/// 1/8), so the minimum is 7/8 or 9/8 of the scale.
fn ternary_scales(words: &[Lanes], four: usize, r: usize) -> u32 {
    (0..4).fold(0, |word, i| {
        let chunk = four % 2 * 4 + i;
        let scale = words[64 + chunk / 2][r] >> (16 * (chunk % 2)) & 0xff;
        let below = words[8 * chunk][r] >> 2 & 1;
        let eighths = if four < 2 { 8 } else { 7 + 2 * below };
        word | (scale * eighths) << (8 * i)
    })
}

/// Four of the sub-scales of IQ4_XS, from the words that hold their upper and their lower bits.
#[inline(always)]
fn uneven_scales(upper: u32, lower: u32, four: usize) -> u32 {
    (4 * four..4 * four + 4).fold(0, |word, sub| {
        if sub >= 8 {
            return word;
        }
        let scale = (lower >> (4 * sub) & 15) | (upper >> (16 + 2 * sub) & 3) << 4;
        word | (scale.wrapping_sub(32) & 0xff) << (8 * (sub % 4))
    })
}

/// Writes the sub-scales of a block to their places.
#[inline(always)]
fn write_subs(layout: Layout, subs: &[Lanes; 4], body: &mut [u8]) {
    for c in 0..layout.chunks {
        let out = &mut body[layout.sub_at(c)..][..layout.sub_size()];
        let byte = |i: usize, r: usize| (subs[i / 4][r] >> (8 * (i % 4))) as u8;
        match layout.scales {
            Scales::Pairs | Scales::PairsMin => {
                let pair = |r: usize| (subs[c / 2][r] >> (16 * (c % 2))) as u16;
                put_halves(&std::array::from_fn(pair), out);
            }
            Scales::Super => {
                for (r, out) in out.iter_mut().enumerate() {
                    *out = byte(c, r);
                }
            }
            _ => {
                let [first, second] = match layout.scales {
                    Scales::SuperMin => [c, 8 + c],
                    _ => [2 * c, 2 * c + 1],
                };
                for r in 0..ROWS {
                    out[r] = byte(first, r);
                    out[ROWS + r] = byte(second, r);
                }
            }
        }
    }
}
