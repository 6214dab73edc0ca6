//! AVX2 with FMA and F16C: one vector is 8 output rows, half a tile.

use super::call::{Call, fetch_ahead};
use super::layout::{
    ACT, ACT_FIRST, ACT_SCALE, ACT_SECOND, CHUNK, GroupPart, HALVES, Head, Layout, ROWS, Scales,
    acts_bytes, layout_of, pieces, place, tile_bytes,
};
use std::arch::x86_64::*;
use welte_table::Format;

/// [`super::pack::pack`] compiled for AVX2.
///
/// # Safety
/// On a processor with AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pack<const F: usize>(
    format: Format,
    k: usize,
    rows: &[&[u8]],
    tile: &mut [u8],
) {
    super::pack::pack::<F>(format, k, rows, tile, |words| transpose(words));
}

/// Turns 8 rows of 8 words into 8 columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(rows: &[[u32; 8]; 8]) -> [[u32; 8]; 8] {
    // SAFETY: each row is the 32 bytes of a vector.
    let v: [__m256i; 8] = unsafe { std::mem::transmute(*rows) };
    let pairs = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let ((a0, a1), (a2, a3)) = (pairs(v[0], v[1]), pairs(v[2], v[3]));
    let ((b0, b1), (b2, b3)) = (pairs(v[4], v[5]), pairs(v[6], v[7]));
    let fours = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let ((a0, a1), (a2, a3)) = (fours(a0, a2), fours(a1, a3));
    let ((b0, b1), (b2, b3)) = (fours(b0, b2), fours(b1, b3));
    let low = |a, b| _mm256_permute2x128_si256(a, b, 0x20);
    let high = |a, b| _mm256_permute2x128_si256(a, b, 0x31);
    let columns = [
        low(a0, b0),
        low(a1, b1),
        low(a2, b2),
        low(a3, b3),
        high(a0, b0),
        high(a1, b1),
        high(a2, b2),
        high(a3, b3),
    ];
    // SAFETY: each vector is 8 words.
    unsafe { std::mem::transmute(columns) }
}

/// [`super::acts::prepare`] compiled for AVX2.
///
/// # Safety
/// On a processor with AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn prepare(format: Format, bf16: bool, x: &[f32], acts: &mut [u8]) {
    super::acts::prepare(format, bf16, x, acts);
}

/// Rows of one vector.
const LANES: usize = 8;

/// Walks tiles and groups of activation rows. `$step::<F, M, H>` computes M rows of H halves of one tile. A single row
/// takes both halves at once, so that the tile is read once, in order.
macro_rules! walk {
    ($call:ident, $step:ident, $format:expr) => {{
        let format = $call.format;
        let bytes = tile_bytes(format, $call.k);
        let stride = acts_bytes(format, $call.k, false);
        for t in 0..$call.n.div_ceil(ROWS) {
            let tile = $call.tiles.add(t * bytes);
            if $call.rows == 1 {
                let [low, high] = $step::<{ $format }, 1, 2>(tile, 0, $call, $call.acts, stride);
                store(Out::new($call, t, 0, 0), low);
                store(Out::new($call, t, 1, 0), high);
                continue;
            }
            for half in 0..2 {
                let mut r = 0;
                while r < $call.rows {
                    let acts = $call.acts.add(r * stride);
                    let out = Out::new($call, t, half, r);
                    r += match $call.rows - r {
                        4.. => {
                            let [sums] =
                                $step::<{ $format }, 4, 1>(tile, half, $call, acts, stride);
                            store(out, sums)
                        }
                        2..4 => {
                            let [sums] =
                                $step::<{ $format }, 2, 1>(tile, half, $call, acts, stride);
                            store(out, sums)
                        }
                        _ => {
                            let [sums] =
                                $step::<{ $format }, 1, 1>(tile, half, $call, acts, stride);
                            store(out, sums)
                        }
                    };
                }
            }
        }
    }};
}

pub(super) use walk;

/// Where the sums of a half tile go.
pub(super) struct Out {
    first: *mut f32,
    stride: usize,
    valid: usize,
    accumulate: bool,
}

impl Out {
    /// The part for half tile `t`, from activation row `r` on.
    pub(super) fn new(call: &Call, t: usize, half: usize, r: usize) -> Out {
        let from = t * ROWS + half * LANES;
        Out {
            first: call.out.wrapping_add(r * call.out_stride + from),
            stride: call.out_stride,
            valid: call.n.saturating_sub(from).min(LANES),
            accumulate: call.accumulate,
        }
    }
}

/// Writes the valid outputs of M rows and returns M.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store<const M: usize>(out: Out, sums: [__m256; M]) -> usize {
    let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(out.valid as i32), lane);
    for (r, sum) in sums.into_iter().enumerate() {
        // SAFETY: the mask covers only outputs that the caller of the kernel gave.
        unsafe {
            let at = out.first.wrapping_add(r * out.stride);
            let before = _mm256_maskload_ps(at, mask);
            let sum = if out.accumulate {
                _mm256_add_ps(before, sum)
            } else {
                sum
            };
            _mm256_maskstore_ps(at, mask, sum);
        }
    }
    M
}

/// Block formats.
///
/// # Safety
/// As [`super::Kernel::matmul`], on a processor with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn blocks<const F: usize>(call: &Call) {
    // SAFETY: tiles, rows and outputs are walked as the caller promised them.
    unsafe {
        walk!(call, block_halves, F);
    }
}

/// Plain floats: weights widened to f32.
///
/// # Safety
/// As [`super::Kernel::matmul`], on a processor with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn floats<const F: usize>(call: &Call) {
    // SAFETY: as above.
    unsafe {
        walk!(call, float_halves, F);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// 8 f16 as f32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves(at: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

/// The scales of 8 rows as f32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn eight(layout: Layout, at: *const u8) -> __m256 {
    if !layout.head.bf16() {
        // SAFETY: the caller's.
        return unsafe { halves(at) };
    }
    // SAFETY: the caller's.
    let words = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())) };
    _mm256_castsi256_ps(_mm256_slli_epi32(words, 16))
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn float(at: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_set1_ps(at.cast::<f32>().read_unaligned()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn word(at: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// `bits` bits of each byte, moved from bit `at` down to bit `to`.
#[inline]
#[target_feature(enable = "avx2")]
fn field(v: __m256i, at: usize, bits: usize, to: usize) -> __m256i {
    let moved = _mm256_srlv_epi32(v, _mm256_set1_epi32((at - to) as i32));
    _mm256_and_si256(
        moved,
        _mm256_set1_epi8(((0xff >> (8 - bits)) << to) as u8 as i8),
    )
}

/// The `d` of 8 rows, from a block's part of a head. `half` selects the rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn heads<const F: usize>(layout: Layout, head: *const u8, half: usize) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        if let Scales::Powers = const { Layout::of(Format::ALL[F]).scales } {
            let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(head.add(half * LANES).cast()));
            let normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
            let small = _mm256_min_epi32(e, _mm256_set1_epi32(2));
            let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x20_0000), small);
            return _mm256_castsi256_ps(_mm256_max_epi32(normal, small));
        }
        let d = match const { Layout::of(Format::ALL[F]).head } {
            Head::Float => _mm256_loadu_ps(head.add(half * 32).cast()),
            _ => eight(layout, head.add(half * 16)),
        };
        times_factor::<F>(d)
    }
}

/// The `dmin` of 8 rows with these `d`, from a block's part of a head. `half` selects the rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn minima<const F: usize>(
    layout: Layout,
    head: *const u8,
    half: usize,
    d: __m256,
) -> __m256 {
    // SAFETY: the caller's.
    let stored = unsafe { eight(layout, head.add(HALVES + half * 16)) };
    if layout.head.has_zero() {
        return _mm256_mul_ps(d, _mm256_mul_ps(stored, _mm256_set1_ps(-1.0)));
    }
    times_factor::<F>(stored)
}

#[inline]
#[target_feature(enable = "avx2")]
fn times_factor<const F: usize>(scales: __m256) -> __m256 {
    match const { Layout::of(Format::ALL[F]).factor } {
        1.0 => scales,
        factor => _mm256_mul_ps(scales, _mm256_set1_ps(factor)),
    }
}

/// The values that a group's quants encode.
#[inline]
#[target_feature(enable = "avx2")]
fn values<const F: usize>(q: __m256i) -> __m256i {
    let layout = const { Layout::of(Format::ALL[F]) };
    let Some(codes) = layout.codes else {
        return q;
    };
    // SAFETY: the table has 16 bytes. The lookup stays within them: two tables side by side.
    let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), q)
}

/// Group G (8 rows x 4 k) of a chunk as unsigned bytes; `q` points at this half's first vector. Where its bits lie is known
/// to the compiler.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unpack<const F: usize, const G: usize>(q: *const u8) -> __m256i {
    let bits = const { Layout::of(Format::ALL[F]).bits };
    // SAFETY: a chunk has `bits` vectors of two halves.
    unsafe {
        let v = |i: usize| load(q.add(i * 64));
        if bits == 8 {
            return v(G);
        }
        let piece =
            |p: GroupPart| field(v(p.vector), p.at as usize, p.bits as usize, p.from as usize);
        let sum = match const { pieces(Layout::of(Format::ALL[F]).bits, G) } {
            [Some(a), Some(b), Some(c)] => {
                _mm256_or_si256(_mm256_or_si256(piece(a), piece(b)), piece(c))
            }
            [Some(a), Some(b), None] => _mm256_or_si256(piece(a), piece(b)),
            _ => {
                let (vector, at) = const { place(Layout::of(Format::ALL[F]).bits, G) };
                field(v(vector), at, bits, 0)
            }
        };
        values::<F>(sum)
    }
}

/// The first or the second four groups of a chunk.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn unpack_four<const F: usize, const SECOND: bool>(q: *const u8) -> [__m256i; 4] {
    // SAFETY: the caller's.
    unsafe {
        if SECOND {
            [
                unpack::<F, 4>(q),
                unpack::<F, 5>(q),
                unpack::<F, 6>(q),
                unpack::<F, 7>(q),
            ]
        } else {
            [
                unpack::<F, 0>(q),
                unpack::<F, 1>(q),
                unpack::<F, 2>(q),
                unpack::<F, 3>(q),
            ]
        }
    }
}

/// The scales of one chunk in vectors.
pub(super) type ChunkScales = super::unpacked::ChunkScales<__m256, __m256i>;

/// The scales of the chunk whose sub-scales lie at `subs`, in a block with this `d` and `dmin`. `half` selects the 8
/// rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn scales<const F: usize>(
    subs: *const u8,
    half: usize,
    d: __m256,
    dmin: __m256,
) -> ChunkScales {
    let none = _mm256_setzero_si256();
    let plain = ChunkScales {
        d: [d, d],
        m: dmin,
        pairs: none,
        pair_minima: none,
    };
    // SAFETY: a chunk has two vectors of 16 sub-scales.
    unsafe {
        let byte = |i: usize| _mm_loadl_epi64(subs.add(i * ROWS + half * LANES).cast());
        let pairs = || _mm_loadu_si128(subs.add(half * 2 * LANES).cast());
        let float = |v| _mm256_cvtepi32_ps(v);
        match const { Layout::of(Format::ALL[F]).scales } {
            Scales::Plain | Scales::PlainMin | Scales::Powers => plain,
            Scales::Super => {
                let scale = _mm256_mul_ps(d, float(_mm256_cvtepi8_epi32(byte(0))));
                ChunkScales {
                    d: [scale, scale],
                    ..plain
                }
            }
            Scales::SuperMin => {
                let scale = _mm256_mul_ps(d, float(_mm256_cvtepu8_epi32(byte(0))));
                let min = _mm256_mul_ps(dmin, float(_mm256_cvtepu8_epi32(byte(1))));
                ChunkScales {
                    d: [scale, scale],
                    m: min,
                    ..plain
                }
            }
            Scales::Halves => {
                let scale = |h| _mm256_mul_ps(d, float(_mm256_cvtepi8_epi32(byte(h))));
                ChunkScales {
                    d: [scale(0), scale(1)],
                    ..plain
                }
            }
            Scales::Floats => {
                // The bits of an E4M3 float in an f16 mean 1/256 of it.
                let scale = |h| {
                    let halves = _mm_slli_epi16(_mm_cvtepu8_epi16(byte(h)), 7);
                    let scale = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0));
                    _mm256_mul_ps(d, scale)
                };
                ChunkScales {
                    d: [scale(0), scale(1)],
                    ..plain
                }
            }
            Scales::Pairs => ChunkScales {
                pairs: _mm256_cvtepi8_epi16(pairs()),
                ..plain
            },
            Scales::PairsMin => {
                let both = _mm256_cvtepu8_epi16(pairs());
                let low = _mm256_and_si256(both, _mm256_set1_epi16(15));
                ChunkScales {
                    pairs: low,
                    pair_minima: _mm256_srli_epi16(both, 4),
                    ..plain
                }
            }
        }
    }
}

/// Products of one group with 4 activations, summed in pairs to i16. 8-bit quants would overflow there, so for them
/// the sign moves from the weight to the activation: |w| x (sign(w) a), and no offset remains.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn products<const F: usize>(w: __m256i, a: __m256i) -> __m256i {
    if const { Layout::of(Format::ALL[F]).value_bits() == 8 } {
        let w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(a, w))
    } else {
        _mm256_maddubs_epi16(w, a)
    }
}

/// The dot products of half a chunk (the first or the second 4 groups) with M activation rows, whose half chunks begin at
/// `act`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots<const F: usize, const M: usize, const SECOND: bool>(
    q: *const u8,
    act: *const u8,
    stride: usize,
) -> [__m256i; M] {
    let bits = const { Layout::of(Format::ALL[F]).value_bits() };
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_si256(); M];
    // SAFETY: the caller's.
    unsafe {
        if bits <= 5 {
            // Four groups of at most 31 x 127 x 2 fit into i16.
            for (i, w) in unpack_four::<F, SECOND>(q).into_iter().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    let a = word(act.add(r * stride + 4 * i));
                    *sum = _mm256_add_epi16(*sum, products::<F>(w, a));
                }
            }
            return sums.map(|sum| _mm256_madd_epi16(sum, ones));
        }
        let four = unpack_four::<F, SECOND>(q);
        for i in [0, 2] {
            let (w0, w1) = (four[i], four[i + 1]);
            for (r, sum) in sums.iter_mut().enumerate() {
                let at = act.add(r * stride + 4 * i);
                let (p0, p1) = (
                    products::<F>(w0, word(at)),
                    products::<F>(w1, word(at.add(4))),
                );
                let both = if bits <= 6 {
                    // Two groups of at most 63 x 127 x 2 fit as well.
                    _mm256_madd_epi16(_mm256_add_epi16(p0, p1), ones)
                } else {
                    _mm256_add_epi32(_mm256_madd_epi16(p0, ones), _mm256_madd_epi16(p1, ones))
                };
                *sum = _mm256_add_epi32(*sum, both);
            }
        }
    }
    sums
}

/// M activation rows with H halves of a tile, from `half` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_halves<const F: usize, const M: usize, const H: usize>(
    tile: *const u8,
    half: usize,
    call: &Call,
    acts: *const u8,
    stride: usize,
) -> [[__m256; M]; H] {
    let layout = layout_of::<F>(call.format);
    let mut sums = [[_mm256_setzero_ps(); M]; H];
    // SAFETY: chunk c of the tile and of each activation row exists, as the caller promised.
    unsafe {
        for b in 0..call.k / CHUNK / layout.chunks {
            let (head, at) = (tile.add(layout.head_at(b)), tile.add(layout.block_at(b)));
            let acts = acts.add(b * layout.chunks * ACT);
            if layout.sub_bytes() == 0 {
                for c in 0..layout.chunks {
                    let (q, act) = (at.add(layout.quants_at(c)), acts.add(c * ACT));
                    fetch_chunk::<F>(head, q);
                    for (h, sums) in sums.iter_mut().enumerate() {
                        half_chunk::<F, M>(layout, head, at, q, half + h, act, stride, sums);
                    }
                }
                continue;
            }
            // Grouped as their sub-scales are stored.
            for first in (0..layout.chunks).step_by(layout.together()) {
                let (at, acts) = (at.add(layout.sub_at(first)), acts.add(first * ACT));
                for c in 0..layout.together() {
                    let (q, subs) = (at.add(layout.quants_at(c)), at.add(layout.sub_at(c)));
                    let act = acts.add(c * ACT);
                    fetch_chunk::<F>(head, q);
                    for (h, sums) in sums.iter_mut().enumerate() {
                        half_chunk::<F, M>(layout, head, subs, q, half + h, act, stride, sums);
                    }
                }
            }
        }
    }
    sums
}

/// Fetches what comes later of a tile's chunk and head.
#[inline]
fn fetch_chunk<const F: usize>(head: *const u8, quants: *const u8) {
    fetch_ahead(head);
    for line in 0..const { Layout::of(Format::ALL[F]).bits } {
        fetch_ahead(quants.wrapping_add(64 * line));
    }
}

/// Adds half a tile's part of one chunk with M activation rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::too_many_arguments)]
unsafe fn half_chunk<const F: usize, const M: usize>(
    layout: Layout,
    head: *const u8,
    subs: *const u8,
    quants: *const u8,
    half: usize,
    act: *const u8,
    stride: usize,
    sums: &mut [__m256; M],
) {
    // SAFETY: the caller's.
    unsafe {
        let d = heads::<F>(layout, head, half);
        let dmin = if layout.has_minima() {
            minima::<F>(layout, head, half, d)
        } else {
            d
        };
        let q = quants.add(half * 32);
        let low = dots::<F, M, false>(q, act, stride);
        let high = dots::<F, M, true>(q, act.add(CHUNK / 2), stride);
        let scales = scales::<F>(subs, half, d, dmin);
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = chunk::<F>([low[r], high[r]], &scales, act.add(r * stride), *sum);
        }
    }
}

/// Sums by half, both within i16, as i16 pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn paired(low: __m256i, high: __m256i) -> __m256i {
    _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa)
}

/// Adds one chunk's dot products, by half, to the sums of one activation row.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn chunk<const F: usize>(
    dots: [__m256i; 2],
    scales: &ChunkScales,
    act: *const u8,
    sum: __m256,
) -> __m256 {
    let ChunkScales {
        d,
        m,
        pairs,
        pair_minima,
    } = *scales;
    let layout = const { Layout::of(Format::ALL[F]) };
    let to_float = |v| _mm256_cvtepi32_ps(v);
    // SAFETY: an activation chunk has ACT bytes.
    unsafe {
        let s = float(act.add(ACT_SCALE));
        let (first, second) = (act.add(ACT_FIRST), act.add(ACT_SECOND));
        let whole = _mm256_add_epi32(dots[0], dots[1]);
        match layout.scales {
            Scales::Plain | Scales::Powers | Scales::Super => {
                // Signed 8-bit products need no correction: see `products`.
                let whole = if layout.value_bits() == 8 {
                    whole
                } else {
                    _mm256_add_epi32(whole, word(first))
                };
                _mm256_fmadd_ps(to_float(whole), _mm256_mul_ps(d[0], s), sum)
            }
            Scales::PlainMin => {
                // Unsigned 8-bit quants are 128 above the signed ones that were multiplied.
                let whole = if layout.bits == 8 {
                    _mm256_add_epi32(whole, word(second))
                } else {
                    whole
                };
                let sum = _mm256_fmadd_ps(to_float(whole), _mm256_mul_ps(d[0], s), sum);
                _mm256_fmadd_ps(m, float(first), sum)
            }
            Scales::SuperMin => {
                let sum = _mm256_fmadd_ps(to_float(whole), _mm256_mul_ps(d[0], s), sum);
                _mm256_fnmadd_ps(m, float(first), sum)
            }
            Scales::Halves | Scales::Floats => {
                let low = to_float(_mm256_add_epi32(dots[0], word(first)));
                let high = to_float(_mm256_add_epi32(dots[1], word(second)));
                let both = _mm256_fmadd_ps(low, d[0], _mm256_mul_ps(high, d[1]));
                _mm256_fmadd_ps(both, s, sum)
            }
            Scales::Pairs => {
                let low = _mm256_add_epi32(dots[0], word(first));
                let high = _mm256_add_epi32(dots[1], word(second));
                let scaled = to_float(_mm256_madd_epi16(paired(low, high), pairs));
                _mm256_fmadd_ps(scaled, _mm256_mul_ps(d[0], s), sum)
            }
            Scales::PairsMin => {
                let scaled = to_float(_mm256_madd_epi16(paired(dots[0], dots[1]), pairs));
                let min = to_float(_mm256_madd_epi16(word(first), pair_minima));
                let sum = _mm256_fmadd_ps(scaled, _mm256_mul_ps(d[0], s), sum);
                _mm256_fnmadd_ps(min, _mm256_mul_ps(m, s), sum)
            }
        }
    }
}

/// M activation rows with H halves of a tile of floats, from `half` on. Even and odd k have separate sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_halves<const F: usize, const M: usize, const H: usize>(
    tile: *const u8,
    half: usize,
    call: &Call,
    acts: *const u8,
    stride: usize,
) -> [[__m256; M]; H] {
    let k = call.k;
    let bytes = if let Format::F32 = const { Format::ALL[F] } {
        4
    } else {
        2
    };
    let mut even = [[_mm256_setzero_ps(); M]; H];
    let mut odd = even;
    // SAFETY: column i of the tile and of each activation row exists, as the caller promised.
    unsafe {
        for i in (0..k & !1).step_by(2) {
            fetch_ahead(tile.wrapping_add(i * ROWS * bytes));
            if bytes == 4 {
                fetch_ahead(tile.wrapping_add((i + 1) * ROWS * bytes));
            }
            for h in 0..H {
                let a = widen::<F>(tile, half + h, i);
                let b = widen::<F>(tile, half + h, i + 1);
                for r in 0..M {
                    let act = acts.add(r * stride + i * 4);
                    even[h][r] = _mm256_fmadd_ps(a, float(act), even[h][r]);
                    odd[h][r] = _mm256_fmadd_ps(b, float(act.add(4)), odd[h][r]);
                }
            }
        }
        if !k.is_multiple_of(2) {
            for (h, even) in even.iter_mut().enumerate() {
                let last = widen::<F>(tile, half + h, k - 1);
                for (r, sum) in even.iter_mut().enumerate() {
                    *sum = _mm256_fmadd_ps(last, float(acts.add(r * stride + (k - 1) * 4)), *sum);
                }
            }
        }
    }
    std::array::from_fn(|h| std::array::from_fn(|r| _mm256_add_ps(even[h][r], odd[h][r])))
}

/// The weights of column i.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen<const F: usize>(tile: *const u8, half: usize, i: usize) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        match const { Format::ALL[F] } {
            Format::F32 => _mm256_loadu_ps(tile.add(i * 64 + half * 32).cast()),
            Format::F16 => halves(tile.add(i * 32 + half * 16)),
            _ => {
                let pair = load(tile.add(i / 2 * 64 + half * 32));
                let high = _mm256_and_si256(pair, _mm256_set1_epi32(-65536));
                _mm256_castsi256_ps(if i.is_multiple_of(2) {
                    _mm256_slli_epi32(pair, 16)
                } else {
                    high
                })
            }
        }
    }
}
