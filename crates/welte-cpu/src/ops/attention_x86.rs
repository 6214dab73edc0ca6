//! The online softmax of a group of query heads with vector instructions. Each row of keys or values is widened once
//! for up to 8 heads, and while one block of rows is worked on, the next one is fetched from memory.
//!
//! A score is summed lane by lane over the head and then across the lanes in a fixed order, and values are added
//! position by position, so the bits depend neither on the size of the group nor on how positions meet in a register.
#![allow(unsafe_code)]

use super::State;
use super::attention::{Attention, BLOCK, Span, partial_floats, weigh};
use std::arch::x86_64::*;

/// The most query heads that share one pass.
const MOST_HEADS: usize = 8;
/// The most vectors of a head that one pass over the values sums.
const MOST_VECTORS: usize = 8;

/// A vector of floats. Every function needs a processor that has the instructions.
trait Vector: Copy {
    /// Floats in it; also how many sums are made at once.
    const WIDTH: usize;
    unsafe fn zero() -> Self;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self * b + c`
    unsafe fn multiply_add(self, b: Self, c: Self) -> Self;
    unsafe fn multiply(self, b: Self) -> Self;
    /// The sum of each of `WIDTH` vectors.
    unsafe fn sums(of: &[Self]) -> Self;
    /// `WIDTH` values of f16.
    unsafe fn from_f16(from: *const u8) -> Self;
    /// `WIDTH` signed bytes.
    unsafe fn from_i8(from: *const u8) -> Self;
}

impl Vector for __m512 {
    const WIDTH: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_fmadd_ps(self, b, c) }
    }
    #[inline(always)]
    unsafe fn multiply(self, b: Self) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_mul_ps(self, b) }
    }
    #[inline(always)]
    unsafe fn sums(of: &[Self]) -> Self {
        let mut quads = [of[0]; 4];
        // SAFETY: promised by the caller.
        unsafe {
            for (i, quad) in quads.iter_mut().enumerate() {
                let pair = |a: Self, b: Self| {
                    _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b))
                };
                let ab = _mm512_castps_pd(pair(of[4 * i], of[4 * i + 1]));
                let cd = _mm512_castps_pd(pair(of[4 * i + 2], of[4 * i + 3]));
                *quad = _mm512_add_ps(
                    _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
                );
            }
            let fold = |a: Self, b: Self| {
                _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x88>(a, b),
                    _mm512_shuffle_f32x4::<0xdd>(a, b),
                )
            };
            fold(fold(quads[0], quads[1]), fold(quads[2], quads[3]))
        }
    }
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn from_i8(from: *const u8) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
}

impl Vector for __m256 {
    const WIDTH: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }
    #[inline(always)]
    unsafe fn multiply(self, b: Self) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_mul_ps(self, b) }
    }
    #[inline(always)]
    unsafe fn sums(of: &[Self]) -> Self {
        let mut quads = [of[0]; 2];
        // SAFETY: promised by the caller.
        unsafe {
            for (i, quad) in quads.iter_mut().enumerate() {
                let ab = _mm256_hadd_ps(of[4 * i], of[4 * i + 1]);
                let cd = _mm256_hadd_ps(of[4 * i + 2], of[4 * i + 3]);
                *quad = _mm256_hadd_ps(ab, cd);
            }
            _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(quads[0], quads[1]),
                _mm256_permute2f128_ps::<0x31>(quads[0], quads[1]),
            )
        }
    }
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn from_i8(from: *const u8) -> Self {
        // SAFETY: promised by the caller.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
}

/// How rows of the cache are stored.
trait Rows {
    /// The `i`th vector of a row.
    ///
    /// # Safety
    /// It lies in the row, and the processor has the instructions.
    unsafe fn widen<V: Vector>(row: *const u8, i: usize) -> V;
}

struct F16;
struct Q8_0;

impl Rows for F16 {
    #[inline(always)]
    unsafe fn widen<V: Vector>(row: *const u8, i: usize) -> V {
        // SAFETY: promised by the caller.
        unsafe { V::from_f16(row.add(2 * V::WIDTH * i)) }
    }
}

impl Rows for Q8_0 {
    #[inline(always)]
    unsafe fn widen<V: Vector>(row: *const u8, i: usize) -> V {
        let (block, at) = (i * V::WIDTH / 32, i * V::WIDTH % 32);
        // SAFETY: promised by the caller; a block is its scale and 32 bytes.
        unsafe {
            let block = row.add(34 * block);
            let scale = _mm_cvtsi32_si128(i32::from(block.cast::<u16>().read_unaligned()));
            let scale = _mm_cvtss_f32(_mm_cvtph_ps(scale));
            V::from_i8(block.add(2 + at)).multiply(V::splat(scale))
        }
    }
}

/// Rows of one block, and the ones to fetch meanwhile.
#[derive(Clone, Copy)]
struct Block {
    rows: *const u8,
    /// As many rows as these, or null.
    next: *const u8,
    count: usize,
    bytes: usize,
}

impl Block {
    #[inline(always)]
    fn row(&self, p: usize) -> *const u8 {
        self.rows.wrapping_add(p * self.bytes)
    }

    /// Asks for the row of the next block.
    #[inline(always)]
    fn fetch(&self, p: usize) {
        if !self.next.is_null() {
            for line in (0..self.bytes).step_by(64) {
                let at = self.next.wrapping_add(p * self.bytes + line);
                // SAFETY: a prefetch reads nothing, whatever the address; every x86-64 processor has it.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
            }
        }
    }
}

/// Scores of `H` heads, `P` positions at a time; `H * P` is the vector's width.
///
/// # Safety
/// The rows hold `dim` values each, `queries` `H` heads of `dim`, `scores` `H` times [`BLOCK`] floats.
#[inline(always)]
unsafe fn score<V: Vector, R: Rows, const H: usize, const P: usize>(
    keys: Block,
    dim: usize,
    queries: *const f32,
    scale: f32,
    scores: *mut f32,
) {
    // SAFETY: promised by the caller; positions beyond the last read the last row again and are not stored.
    unsafe {
        for first in (0..keys.count).step_by(P) {
            let rows: [*const u8; P] =
                std::array::from_fn(|p| keys.row((first + p).min(keys.count - 1)));
            for p in first..(first + P).min(keys.count) {
                keys.fetch(p);
            }
            let mut sums = [V::zero(); MOST_SUMS];
            for i in 0..dim / V::WIDTH {
                let q: [V; H] =
                    std::array::from_fn(|h| V::load(queries.add(h * dim + i * V::WIDTH)));
                for p in 0..P {
                    let k: V = R::widen(rows[p], i);
                    for h in 0..H {
                        sums[h * P + p] = k.multiply_add(q[h], sums[h * P + p]);
                    }
                }
            }
            let mut out = [0.0f32; MOST_SUMS];
            let all = V::sums(&sums[..H * P]).multiply(V::splat(scale));
            all.store(out.as_mut_ptr());
            for h in 0..H {
                for p in 0..P.min(keys.count - first) {
                    *scores.add(h * BLOCK + first + p) = out[h * P + p];
                }
            }
        }
    }
}

/// The widest vector's width.
const MOST_SUMS: usize = 16;

/// Adds the weighted values of `C` vectors of `H` heads.
///
/// # Safety
/// As [`score`]; `sums` holds the heads' sums, `stride` floats apart.
#[inline(always)]
unsafe fn add_values<V: Vector, R: Rows, const H: usize, const C: usize>(
    values: Block,
    first: usize,
    weights: *const f32,
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let at = |h: usize, c: usize| sums.add(h * stride + (first + c) * V::WIDTH);
        let mut all: [[V; C]; H] =
            std::array::from_fn(|h| std::array::from_fn(|c| V::load(at(h, c))));
        for p in 0..values.count {
            if first == 0 {
                values.fetch(p);
            }
            let w: [V; H] = std::array::from_fn(|h| V::splat(*weights.add(h * BLOCK + p)));
            for c in 0..C {
                let v: V = R::widen(values.row(p), first + c);
                for h in 0..H {
                    all[h][c] = v.multiply_add(w[h], all[h][c]);
                }
            }
        }
        for (h, vectors) in all.iter().enumerate() {
            for (c, v) in vectors.iter().enumerate() {
                v.store(at(h, c));
            }
        }
    }
}

/// Adds the weighted values of `H` heads, as many vectors at a time as registers hold.
///
/// # Safety
/// As [`add_values`].
#[inline(always)]
unsafe fn add_all_values<V: Vector, R: Rows, const H: usize>(
    values: Block,
    dim: usize,
    weights: *const f32,
    sums: *mut f32,
    stride: usize,
) {
    let most = (V::WIDTH / H).min(MOST_VECTORS);
    let vectors = dim / V::WIDTH;
    let mut at = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while at < vectors {
            let left = most.min(vectors - at);
            at += if left >= 8 {
                add_values::<V, R, H, 8>(values, at, weights, sums, stride);
                8
            } else if left >= 4 {
                add_values::<V, R, H, 4>(values, at, weights, sums, stride);
                4
            } else if left >= 2 {
                add_values::<V, R, H, 2>(values, at, weights, sums, stride);
                2
            } else {
                add_values::<V, R, H, 1>(values, at, weights, sums, stride);
                1
            };
        }
    }
}

/// How many of the heads left share the next pass.
#[inline(always)]
fn heads_of_pass(left: usize, width: usize) -> usize {
    let most = left.min(MOST_HEADS).min(width / 2);
    1 << most.ilog2()
}

/// The online softmax of one group's heads over a span.
///
/// # Safety
/// As [`super::attention::attend`]; the head is a whole number of vectors, and the processor has the instructions.
#[inline(always)]
unsafe fn attend<V: Vector, R: Rows>(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
) {
    let dim = a.head_dim;
    let group = a.heads / a.kv_heads;
    let sequence = state.rows[row].sequence as usize;
    let bytes = state.kv_row_bytes();
    let page = state.kv.page as usize;
    let stride = partial_floats(dim);
    // SAFETY: promised by the caller; positions up to the row's own lie in the layout, blocks lie inside one page.
    unsafe {
        let queries = a.q.start.add(row * a.q.stride + kv_head * group * dim);
        let partials = std::slice::from_raw_parts_mut(out, group * stride);
        for partial in partials.chunks_exact_mut(stride) {
            partial.fill(0.0);
            partial[dim] = f32::NEG_INFINITY;
        }
        let scores = std::slice::from_raw_parts_mut(scores, group * BLOCK);
        let mut at = span.from;
        while at < span.to {
            let count = BLOCK.min(span.to - at).min(page - at % page);
            let place = |part: usize, at: usize| {
                state
                    .kv_at(a.layer, part, kv_head, sequence, at)
                    .cast_const()
            };
            let values = place(1, at);
            let following = if at + count < span.to {
                place(0, at + count)
            } else {
                std::ptr::null()
            };
            let mut keys = Block {
                rows: place(0, at),
                next: values,
                count,
                bytes,
            };
            let mut h = 0;
            while h < group {
                let (q, s) = (queries.add(h * dim), scores.as_mut_ptr().add(h * BLOCK));
                let heads = heads_of_pass(group - h, V::WIDTH);
                match (heads, V::WIDTH) {
                    (8, _) => score::<V, R, 8, 2>(keys, dim, q, a.scale, s),
                    (4, 16) => score::<V, R, 4, 4>(keys, dim, q, a.scale, s),
                    (4, _) => score::<V, R, 4, 2>(keys, dim, q, a.scale, s),
                    (2, 16) => score::<V, R, 2, 8>(keys, dim, q, a.scale, s),
                    (2, _) => score::<V, R, 2, 4>(keys, dim, q, a.scale, s),
                    (_, 16) => score::<V, R, 1, 16>(keys, dim, q, a.scale, s),
                    (_, _) => score::<V, R, 1, 8>(keys, dim, q, a.scale, s),
                }
                keys.next = std::ptr::null();
                h += heads;
            }
            for (partial, scores) in partials
                .chunks_exact_mut(stride)
                .zip(scores.chunks_exact_mut(BLOCK))
            {
                weigh(&mut partial[..dim + 2], &mut scores[..count], a.softcap);
            }
            let mut values = Block {
                rows: values,
                next: following,
                count,
                bytes,
            };
            let mut h = 0;
            while h < group {
                let (sums, weights) = (
                    partials.as_mut_ptr().add(h * stride),
                    scores.as_ptr().add(h * BLOCK),
                );
                let heads = heads_of_pass(group - h, V::WIDTH);
                match heads {
                    8 => add_all_values::<V, R, 8>(values, dim, weights, sums, stride),
                    4 => add_all_values::<V, R, 4>(values, dim, weights, sums, stride),
                    2 => add_all_values::<V, R, 2>(values, dim, weights, sums, stride),
                    _ => add_all_values::<V, R, 1>(values, dim, weights, sums, stride),
                }
                values.next = std::ptr::null();
                h += heads;
            }
            at += count;
        }
    }
}

macro_rules! run {
    ($name:ident, $vector:ty, $rows:ty, $features:literal) => {
        /// # Safety
        /// As [`attend`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(
            a: &Attention,
            state: &State,
            row: usize,
            kv_head: usize,
            span: Span,
            scores: *mut f32,
            out: *mut f32,
        ) {
            // SAFETY: promised by the caller.
            unsafe { attend::<$vector, $rows>(a, state, row, kv_head, span, scores, out) }
        }
    };
}

run!(f16_avx2, __m256, F16, "avx2,fma,f16c");
run!(q8_0_avx2, __m256, Q8_0, "avx2,fma,f16c");
run!(
    f16_avx512,
    __m512,
    F16,
    "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
);
run!(
    q8_0_avx512,
    __m512,
    Q8_0,
    "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
);
