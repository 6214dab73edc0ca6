//! AVX-512: one vector is 16 output rows. Block formats need VNNI.

use super::call::{Call, fetch_ahead};
use super::layout::{
    ACT, ACT_FIRST, ACT_SCALE, ACT_SECOND, CHUNK, Correction, HALVES, Head, Layout, ROWS, Scales,
    acts_bytes, layout_of, tile_bytes,
};
use std::arch::x86_64::*;
use welte_table::Format;

/// Walks tiles and groups of activation rows; `$step::<F, M>` computes M rows of one tile.
macro_rules! walk {
    ($call:ident, $tile_bytes:expr, $stride:expr, $step:ident, $format:expr) => {{
        let (bytes, stride) = ($tile_bytes, $stride);
        for t in 0..$call.n.div_ceil(ROWS) {
            let tile = $call.tiles.add(t * bytes);
            let valid = ($call.n - t * ROWS).min(ROWS);
            let mut r = 0;
            while r < $call.rows {
                let acts = $call.acts.add(r * stride);
                let out = Out {
                    first: $call.out.add(r * $call.out_stride + t * ROWS),
                    stride: $call.out_stride,
                    mask: (0xffff_u32 >> (ROWS - valid)) as u16,
                    accumulate: $call.accumulate,
                };
                r += match $call.rows - r {
                    8.. => store(out, $step::<{ $format }, 8>(tile, $call, acts, stride)),
                    4..8 => store(out, $step::<{ $format }, 4>(tile, $call, acts, stride)),
                    2..4 => store(out, $step::<{ $format }, 2>(tile, $call, acts, stride)),
                    _ => store(out, $step::<{ $format }, 1>(tile, $call, acts, stride)),
                };
            }
        }
    }};
}

pub(super) use walk;

/// Where the sums of a tile go.
pub(super) struct Out {
    pub(super) first: *mut f32,
    pub(super) stride: usize,
    pub(super) mask: u16,
    pub(super) accumulate: bool,
}

/// Writes M rows of 16 outputs under the mask and returns M.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store<const M: usize>(out: Out, sums: [__m512; M]) -> usize {
    for (r, sum) in sums.into_iter().enumerate() {
        // SAFETY: the mask covers only outputs that the caller of the kernel gave.
        unsafe {
            let at = out.first.add(r * out.stride);
            let before = _mm512_maskz_loadu_ps(out.mask, at);
            let sum = if out.accumulate {
                _mm512_add_ps(before, sum)
            } else {
                sum
            };
            _mm512_mask_storeu_ps(at, out.mask, sum);
        }
    }
    M
}

/// Block formats.
///
/// # Safety
/// As [`super::Kernel::matmul`], on a processor with AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
pub(super) unsafe fn blocks<const F: usize>(call: &Call) {
    let format = call.format;
    // SAFETY: tiles, rows and outputs are walked as the caller promised them.
    unsafe {
        walk!(
            call,
            tile_bytes(format, call.k),
            acts_bytes(format, call.k, false),
            block_tile,
            F
        );
    }
}

/// Plain floats: weights widened to f32.
///
/// # Safety
/// As [`super::Kernel::matmul`], on a processor with AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
pub(super) unsafe fn floats<const F: usize>(call: &Call) {
    let format = const { Format::ALL[F] };
    // SAFETY: as above.
    unsafe {
        walk!(
            call,
            tile_bytes(format, call.k),
            acts_bytes(format, call.k, false),
            float_tile,
            F
        );
    }
}

/// BF16 weights and activations.
///
/// # Safety
/// As [`super::Kernel::matmul`], on a processor with AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn rounded(call: &Call) {
    let bytes = tile_bytes(Format::BF16, call.k);
    // SAFETY: as above.
    unsafe {
        walk!(
            call,
            bytes,
            acts_bytes(Format::BF16, call.k, true),
            rounded_tile,
            0
        );
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load(at: *const u8) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_loadu_si512(at.cast()) }
}

/// 16 f16 as f32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn halves(at: *const u8) -> __m512 {
    // SAFETY: the caller's.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

/// 16 scales as f32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn sixteen(layout: Layout, at: *const u8) -> __m512 {
    if !layout.head.bf16() {
        // SAFETY: the caller's.
        return unsafe { halves(at) };
    }
    // SAFETY: the caller's.
    let words = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())) };
    _mm512_castsi512_ps(_mm512_slli_epi32(words, 16))
}

/// The `d` of 16 rows, from a block's part of a head.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn heads<const F: usize>(layout: Layout, at: *const u8) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        if let Scales::Powers = const { Layout::of(Format::ALL[F]).scales } {
            let e = bytes(at);
            let normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
            let small = _mm512_min_epi32(e, _mm512_set1_epi32(2));
            let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x20_0000), small);
            return _mm512_castsi512_ps(_mm512_max_epi32(normal, small));
        }
        let d = match const { Layout::of(Format::ALL[F]).head } {
            Head::Float => _mm512_loadu_ps(at.cast()),
            _ => sixteen(layout, at),
        };
        times_factor::<F>(d)
    }
}

/// The `dmin` of 16 rows with these `d`, from a block's part of a head.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn minima<const F: usize>(layout: Layout, head: *const u8, d: __m512) -> __m512 {
    // SAFETY: the caller's.
    let stored = unsafe { sixteen(layout, head.add(HALVES)) };
    if layout.head.has_zero() {
        return _mm512_mul_ps(d, _mm512_mul_ps(stored, _mm512_set1_ps(-1.0)));
    }
    times_factor::<F>(stored)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn times_factor<const F: usize>(scales: __m512) -> __m512 {
    match const { Layout::of(Format::ALL[F]).factor } {
        1.0 => scales,
        factor => _mm512_mul_ps(scales, _mm512_set1_ps(factor)),
    }
}

/// 16 positive E4M3 floats as f32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn small_floats(at: *const u8) -> __m512 {
    // SAFETY: the caller's.
    let bytes = unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast())) };
    // The same bits in an f16 mean 1/256 of it.
    let halves = _mm512_cvtph_ps(_mm256_slli_epi16(bytes, 7));
    _mm512_mul_ps(halves, _mm512_set1_ps(256.0))
}

/// 16 bytes, unsigned, as i32.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes(at: *const u8) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())) }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn float(at: *const u8) -> __m512 {
    // SAFETY: the caller's.
    unsafe { _mm512_set1_ps(at.cast::<f32>().read_unaligned()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn word(at: *const u8) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// `BITS` bits of each byte, moved from bit `AT` to bit `TO`.
#[inline]
#[target_feature(enable = "avx512f")]
fn field<const AT: u32, const BITS: u32, const TO: u32>(v: __m512i) -> __m512i {
    // Shifting first needs a single `and`, which fuses with a following `or` into one instruction.
    let mask = _mm512_set1_epi8(((0xff >> (8 - BITS)) << TO) as u8 as i8);
    _mm512_and_si512(
        _mm512_srlv_epi32(v, _mm512_set1_epi32((AT - TO) as i32)),
        mask,
    )
}

/// The eight groups (16 rows x 4 k) of a chunk as unsigned bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn unpack<const F: usize>(q: *const u8) -> [__m512i; 8] {
    let bits = const { Layout::of(Format::ALL[F]).bits };
    for line in 0..bits {
        fetch_ahead(q.wrapping_add(64 * line));
    }
    let or = |a, b| _mm512_or_si512(a, b);
    // SAFETY: a chunk has `bits` vectors.
    unsafe {
        // The lookup stays within 16 bytes: four tables side by side.
        let value = |q| match const { Layout::of(Format::ALL[F]).codes } {
            Some(codes) => {
                let codes = _mm_loadu_si128(codes.as_ptr().cast());
                _mm512_shuffle_epi8(_mm512_broadcast_i32x4(codes), q)
            }
            None => q,
        };
        let v: [__m512i; 8] = std::array::from_fn(|i| load(q.add(64 * i.min(bits - 1))));
        match bits {
            2 => [
                field::<0, 2, 0>(v[0]),
                field::<2, 2, 0>(v[0]),
                field::<4, 2, 0>(v[0]),
                field::<6, 2, 0>(v[0]),
                field::<0, 2, 0>(v[1]),
                field::<2, 2, 0>(v[1]),
                field::<4, 2, 0>(v[1]),
                field::<6, 2, 0>(v[1]),
            ],
            3 => {
                let low = |v| value(field::<0, 3, 0>(v));
                let high = |v| value(field::<3, 3, 0>(v));
                let six = or(field::<6, 2, 0>(v[0]), field::<6, 1, 2>(v[2]));
                let seven = or(field::<6, 2, 0>(v[1]), field::<7, 1, 2>(v[2]));
                [
                    low(v[0]),
                    low(v[1]),
                    low(v[2]),
                    high(v[0]),
                    high(v[1]),
                    high(v[2]),
                    value(six),
                    value(seven),
                ]
            }
            4 => {
                let low = |v| value(field::<0, 4, 0>(v));
                let high = |v| value(field::<4, 4, 0>(v));
                [
                    low(v[0]),
                    low(v[1]),
                    low(v[2]),
                    low(v[3]),
                    high(v[0]),
                    high(v[1]),
                    high(v[2]),
                    high(v[3]),
                ]
            }
            5 => {
                let low = |v| field::<0, 5, 0>(v);
                let five = or(field::<5, 3, 0>(v[0]), field::<5, 2, 3>(v[3]));
                let six = or(field::<5, 3, 0>(v[1]), field::<5, 2, 3>(v[4]));
                let seven = or(field::<7, 1, 3>(v[3]), field::<7, 1, 4>(v[4]));
                let seven = or(field::<5, 3, 0>(v[2]), seven);
                [
                    low(v[0]),
                    low(v[1]),
                    low(v[2]),
                    low(v[3]),
                    low(v[4]),
                    five,
                    six,
                    seven,
                ]
            }
            6 => {
                let low = |v| field::<0, 6, 0>(v);
                let three = |a, b, c| {
                    or(
                        field::<6, 2, 0>(a),
                        or(field::<6, 2, 2>(b), field::<6, 2, 4>(c)),
                    )
                };
                let (six, seven) = (three(v[0], v[1], v[2]), three(v[3], v[4], v[5]));
                [
                    low(v[0]),
                    low(v[1]),
                    low(v[2]),
                    low(v[3]),
                    low(v[4]),
                    low(v[5]),
                    six,
                    seven,
                ]
            }
            _ => v,
        }
    }
}

/// Adds the dot products of four groups with 16 activations.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot(sum: __m512i, w: &[__m512i], act: *const u8) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let sum = _mm512_dpbusd_epi32(sum, w[0], word(act));
        let sum = _mm512_dpbusd_epi32(sum, w[1], word(act.add(4)));
        let sum = _mm512_dpbusd_epi32(sum, w[2], word(act.add(8)));
        _mm512_dpbusd_epi32(sum, w[3], word(act.add(12)))
    }
}

/// The scales of one chunk in vectors.
pub(super) type ChunkScales = super::unpacked::ChunkScales<__m512, __m512i>;

/// The scales of the chunk whose sub-scales lie at `subs`, in a block with this `d` and `dmin`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) unsafe fn scales<const F: usize>(
    subs: *const u8,
    d: __m512,
    dmin: __m512,
) -> ChunkScales {
    let none = _mm512_setzero_si512();
    let plain = ChunkScales {
        d: [d, d],
        m: dmin,
        pairs: none,
        pair_minima: none,
    };
    let float = |v| _mm512_cvtepi32_ps(v);
    // SAFETY: a chunk has two vectors of 16 sub-scales.
    unsafe {
        match const { Layout::of(Format::ALL[F]).scales } {
            Scales::Plain | Scales::PlainMin | Scales::Powers => plain,
            Scales::Super => {
                let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(subs.cast()));
                let scale = _mm512_mul_ps(d, float(scale));
                ChunkScales {
                    d: [scale, scale],
                    ..plain
                }
            }
            Scales::SuperMin => {
                let scale = _mm512_mul_ps(d, float(bytes(subs)));
                let min = _mm512_mul_ps(dmin, float(bytes(subs.add(ROWS))));
                ChunkScales {
                    d: [scale, scale],
                    m: min,
                    ..plain
                }
            }
            Scales::Halves => {
                let scale = |h: usize| {
                    let s = _mm_loadu_si128(subs.add(h * ROWS).cast());
                    _mm512_mul_ps(d, float(_mm512_cvtepi8_epi32(s)))
                };
                ChunkScales {
                    d: [scale(0), scale(1)],
                    ..plain
                }
            }
            Scales::Floats => ChunkScales {
                d: [
                    _mm512_mul_ps(d, small_floats(subs)),
                    _mm512_mul_ps(d, small_floats(subs.add(ROWS))),
                ],
                ..plain
            },
            Scales::Pairs => {
                let pairs = _mm256_loadu_si256(subs.cast());
                ChunkScales {
                    pairs: _mm512_cvtepi8_epi16(pairs),
                    ..plain
                }
            }
            Scales::PairsMin => {
                let both = _mm512_cvtepu8_epi16(_mm256_loadu_si256(subs.cast()));
                let pairs = _mm512_and_si512(both, _mm512_set1_epi16(15));
                ChunkScales {
                    pairs,
                    pair_minima: _mm512_srli_epi16(both, 4),
                    ..plain
                }
            }
        }
    }
}

/// M activation rows with one tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
unsafe fn block_tile<const F: usize, const M: usize>(
    tile: *const u8,
    call: &Call,
    acts: *const u8,
    stride: usize,
) -> [__m512; M] {
    let layout = layout_of::<F>(call.format);
    let blocks = call.k / CHUNK / layout.chunks;
    let mut sums = [_mm512_setzero_ps(); M];
    // SAFETY: the tile has this many blocks, and each activation row their chunks, as the caller promised.
    unsafe {
        if const { Layout::of(Format::ALL[F]).sub_bytes() > 0 } {
            for b in 0..blocks {
                let (head, at) = (tile.add(layout.head_at(b)), tile.add(layout.block_at(b)));
                let acts = acts.add(b * layout.chunks * ACT);
                block::<F, M>(layout, head, at, acts, stride, &mut sums);
            }
            return sums;
        }
        // Small blocks are processed a record at a time, which keeps address computations out of the loop. The one call is
        // compiled into the loop; of two, each became a function that read the layout from memory for every block.
        let (mut record, mut acts) = (tile, acts);
        for first in (0..blocks).step_by(layout.record_blocks()) {
            for b in 0..layout.record_blocks() {
                if first + b >= blocks {
                    break;
                }
                let (head, at) = (layout.head_at(b), layout.block_at(b));
                block::<F, M>(
                    layout,
                    record.add(head),
                    record.add(at),
                    acts,
                    stride,
                    &mut sums,
                );
                acts = acts.add(layout.chunks * ACT);
            }
            // The last record may be shorter than a whole one.
            record = record.wrapping_add(layout.record_bytes());
        }
    }
    sums
}

/// Adds one block with M activation rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
unsafe fn block<const F: usize, const M: usize>(
    layout: Layout,
    head: *const u8,
    at: *const u8,
    acts: *const u8,
    stride: usize,
    sums: &mut [__m512; M],
) {
    fetch_ahead(head);
    // SAFETY: the caller's.
    unsafe {
        let d = heads::<F>(layout, head);
        let dmin = if layout.has_minima() {
            minima::<F>(layout, head, d)
        } else {
            d
        };
        // A family's members are alike in this.
        if const { Layout::of(Format::ALL[F]).sub_bytes() == 0 } {
            let scales = scales::<F>(at, d, dmin);
            for c in 0..layout.chunks {
                let w = unpack::<F>(at.add(layout.quants_at(c)));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = chunk::<F>(&w, &scales, acts.add(r * stride + c * ACT), *sum);
                }
            }
            return;
        }
        // Grouped as their sub-scales are stored.
        for first in (0..layout.chunks).step_by(layout.together()) {
            let (at, acts) = (at.add(layout.sub_at(first)), acts.add(first * ACT));
            for c in 0..layout.together() {
                let w = unpack::<F>(at.add(layout.quants_at(c)));
                let scales = scales::<F>(at.add(layout.sub_at(c)), d, dmin);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = chunk::<F>(&w, &scales, acts.add(r * stride + c * ACT), *sum);
                }
            }
        }
    }
}

/// Sums by half, both within i16, as i16 pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn paired(low: __m512i, high: __m512i) -> __m512i {
    _mm512_mask_blend_epi16(0xaaaa_aaaa, low, _mm512_slli_epi32(high, 16))
}

/// One chunk of a tile with one activation row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
pub(super) unsafe fn chunk<const F: usize>(
    w: &[__m512i; 8],
    scales: &ChunkScales,
    act: *const u8,
    sum: __m512,
) -> __m512 {
    // SAFETY: an activation chunk has ACT bytes.
    unsafe {
        let high = act.add(16);
        let [first, second] = starts::<F>(act);
        let dots = if const { Layout::of(Format::ALL[F]).by_halves() } {
            [dot(first, &w[..4], act), dot(second, &w[4..], high)]
        } else {
            [dot(dot(first, &w[..4], act), &w[4..], high), second]
        };
        add_chunk::<F>(dots, scales, act, sum)
    }
}

/// What the dot products of a chunk, or of its halves, start from: the corrections of formats with an offset.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn starts<const F: usize>(act: *const u8) -> [__m512i; 2] {
    match const { Layout::of(Format::ALL[F]).correction() } {
        // SAFETY: an activation chunk has ACT bytes.
        Correction::Offset | Correction::OffsetHalves => unsafe {
            [word(act.add(ACT_FIRST)), word(act.add(ACT_SECOND))]
        },
        _ => [_mm512_setzero_si512(); 2],
    }
}

/// Adds a chunk to a sum. `dots` are the dot products of the chunk (the first only) or of its halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
pub(super) unsafe fn add_chunk<const F: usize>(
    dots: [__m512i; 2],
    scales: &ChunkScales,
    act: *const u8,
    sum: __m512,
) -> __m512 {
    let ChunkScales {
        d,
        m,
        pairs,
        pair_minima,
    } = *scales;
    let to_float = |v| _mm512_cvtepi32_ps(v);
    // SAFETY: an activation chunk has ACT bytes.
    unsafe {
        let (s, first) = (float(act.add(ACT_SCALE)), act.add(ACT_FIRST));
        match const { Layout::of(Format::ALL[F]).scales } {
            Scales::Plain | Scales::Powers | Scales::Super => {
                _mm512_fmadd_ps(to_float(dots[0]), _mm512_mul_ps(d[0], s), sum)
            }
            Scales::PlainMin => {
                let sum = _mm512_fmadd_ps(to_float(dots[0]), _mm512_mul_ps(d[0], s), sum);
                _mm512_fmadd_ps(m, float(first), sum)
            }
            Scales::SuperMin => {
                let sum = _mm512_fmadd_ps(to_float(dots[0]), _mm512_mul_ps(d[0], s), sum);
                _mm512_fnmadd_ps(m, float(first), sum)
            }
            Scales::Halves | Scales::Floats => {
                let [low, high] = [to_float(dots[0]), to_float(dots[1])];
                let both = _mm512_fmadd_ps(low, d[0], _mm512_mul_ps(high, d[1]));
                _mm512_fmadd_ps(both, s, sum)
            }
            Scales::Pairs => {
                let dots = paired(dots[0], dots[1]);
                let scaled = to_float(_mm512_madd_epi16(dots, pairs));
                _mm512_fmadd_ps(scaled, _mm512_mul_ps(d[0], s), sum)
            }
            Scales::PairsMin => {
                let dots = paired(dots[0], dots[1]);
                let scaled = to_float(_mm512_madd_epi16(dots, pairs));
                let min = to_float(_mm512_madd_epi16(word(first), pair_minima));
                let sum = _mm512_fmadd_ps(scaled, _mm512_mul_ps(d[0], s), sum);
                _mm512_fnmadd_ps(min, _mm512_mul_ps(m, s), sum)
            }
        }
    }
}

/// M activation rows with one tile of floats. Even and odd k have separate sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
unsafe fn float_tile<const F: usize, const M: usize>(
    tile: *const u8,
    call: &Call,
    acts: *const u8,
    stride: usize,
) -> [__m512; M] {
    let k = call.k;
    let mut even = [_mm512_setzero_ps(); M];
    let mut odd = [_mm512_setzero_ps(); M];
    let pairs = k / 2;
    // SAFETY: pair p of the tile and of each activation row exists, as the caller promised.
    unsafe {
        for p in 0..pairs {
            let [a, b] = widen::<F>(tile, p);
            for r in 0..M {
                let act = acts.add(r * stride + p * 8);
                even[r] = _mm512_fmadd_ps(a, float(act), even[r]);
                odd[r] = _mm512_fmadd_ps(b, float(act.add(4)), odd[r]);
            }
        }
        if !k.is_multiple_of(2) {
            let last = match const { Format::ALL[F] } {
                Format::F32 => _mm512_loadu_ps(tile.add(pairs * 128).cast()),
                Format::F16 => halves(tile.add(pairs * 64)),
                _ => widen::<F>(tile, pairs)[0],
            };
            for (r, even) in even.iter_mut().enumerate() {
                *even = _mm512_fmadd_ps(last, float(acts.add(r * stride + pairs * 8)), *even);
            }
        }
    }
    std::array::from_fn(|r| _mm512_add_ps(even[r], odd[r]))
}

/// The weights of k = 2p and 2p + 1.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn widen<const F: usize>(tile: *const u8, p: usize) -> [__m512; 2] {
    // SAFETY: the caller's.
    unsafe {
        match const { Format::ALL[F] } {
            Format::F32 => {
                let at = tile.add(p * 128);
                fetch_ahead(at);
                fetch_ahead(at.add(64));
                let at = at.cast::<f32>();
                [_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16))]
            }
            Format::F16 => {
                let at = tile.add(p * 64);
                fetch_ahead(at);
                [halves(at), halves(at.add(32))]
            }
            _ => {
                let at = tile.add(p * 64);
                fetch_ahead(at);
                let pair = load(at);
                let high = _mm512_and_si512(pair, _mm512_set1_epi32(-65536));
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)),
                    _mm512_castsi512_ps(high),
                ]
            }
        }
    }
}

/// M activation rows in bf16 with one tile. Pairs go to two accumulators in turn.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn rounded_tile<const F: usize, const M: usize>(
    tile: *const u8,
    call: &Call,
    acts: *const u8,
    stride: usize,
) -> [__m512; M] {
    let mut even = [_mm512_setzero_ps(); M];
    let mut odd = [_mm512_setzero_ps(); M];
    let pairs = call.k.div_ceil(2);
    // SAFETY: pair p of the tile and of each activation row exists, as the caller promised; the vectors of i32 and of
    // bf16 pairs have the same size and no invalid values.
    unsafe {
        let mut p = 0;
        // Unrolled by two: an accumulator selected by a variable index would live in memory.
        while p + 2 <= pairs {
            pair(tile, acts, stride, p, &mut even);
            pair(tile, acts, stride, p + 1, &mut odd);
            p += 2;
        }
        if p < pairs {
            pair(tile, acts, stride, p, &mut even);
        }
    }
    std::array::from_fn(|r| _mm512_add_ps(even[r], odd[r]))
}

/// Adds pair p of a tile times pair p of M activation rows.
///
/// # Safety
/// As for [`rounded_tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pair<const M: usize>(
    tile: *const u8,
    acts: *const u8,
    stride: usize,
    p: usize,
    sums: &mut [__m512; M],
) {
    // SAFETY: promised by the caller.
    unsafe {
        let at = tile.add(p * 64);
        fetch_ahead(at);
        let w: __m512bh = std::mem::transmute(load(at));
        for (r, sum) in sums.iter_mut().enumerate() {
            let x: __m512bh = std::mem::transmute(word(acts.add(r * stride + p * 4)));
            *sum = _mm512_dpbf16_ps(*sum, w, x);
        }
    }
}
