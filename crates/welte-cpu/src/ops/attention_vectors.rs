//! Softmax attention of a group of query heads over one split with vector instructions: all scores, their softmax, then
//! the weighted values. Each row of keys or values is widened once for up to 8 heads. Meanwhile rows 8 kB ahead are
//! prefetched at an even rate, one line for every few vectors. They go to the L2 cache: the L1 cache has too few
//! outstanding misses to hide the latency of memory.
//!
//! A score is summed by lane over the head, then across lanes in a fixed order. Values are added position by position. So
//! the bits depend neither on the size of the group nor on how positions share a register.
#![allow(unsafe_code)]

use super::State;
use super::attention::{Attention, SPLIT, Span, partial_floats};
use super::vectors::Lanes;
#[cfg(target_arch = "aarch64")]
use super::vectors::Neon;
#[cfg(target_arch = "x86_64")]
use super::vectors::{Avx2, Avx512};

/// The most query heads that share one pass.
const MOST_HEADS: usize = 8;
/// The most vectors of a head that one pass over the values sums.
const MOST_VECTORS: usize = 8;
/// The widest vector's width.
const MOST_LANES: usize = 16;
/// How far ahead rows are prefetched, in bytes and in rows at most.
const AHEAD_BYTES: usize = 8192;
const MOST_AHEAD: usize = 64;

/// How rows of the cache are stored.
trait Rows {
    /// Vectors that share a scale, and the bytes that they are stored in.
    fn shared<L: Lanes>() -> (usize, usize);
    /// The scale of the `i`th vector of a row.
    ///
    /// # Safety
    /// It lies in the row, and the processor has the instructions.
    unsafe fn scale<L: Lanes>(row: *const u8, i: usize) -> L::V;
    /// The `i`th vector of a row.
    ///
    /// # Safety
    /// As `scale`.
    unsafe fn widen<L: Lanes>(row: *const u8, i: usize, scale: L::V) -> L::V;
}

struct F16;
struct Q8_0;

impl Rows for F16 {
    #[inline(always)]
    fn shared<L: Lanes>() -> (usize, usize) {
        (1, 2 * L::N)
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(_: *const u8, _: usize) -> L::V {
        // SAFETY: promised by the caller.
        unsafe { L::splat(1.0) }
    }
    #[inline(always)]
    unsafe fn widen<L: Lanes>(row: *const u8, i: usize, _: L::V) -> L::V {
        // SAFETY: promised by the caller.
        unsafe { L::widen_f16(row.add(2 * L::N * i)) }
    }
}

impl Rows for Q8_0 {
    #[inline(always)]
    fn shared<L: Lanes>() -> (usize, usize) {
        (32 / L::N, 34)
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(row: *const u8, i: usize) -> L::V {
        // SAFETY: promised by the caller; a block is its scale and 32 bytes.
        unsafe { L::splat_f16(row.add(34 * (i * L::N / 32))) }
    }
    #[inline(always)]
    unsafe fn widen<L: Lanes>(row: *const u8, i: usize, scale: L::V) -> L::V {
        let (block, at) = (i * L::N / 32, i * L::N % 32);
        // SAFETY: as `scale`.
        unsafe { L::mul(L::widen_i8(row.add(34 * block + 2 + at)), scale) }
    }
}

/// Prefetches `bytes` of memory.
///
/// # Safety
/// None: a prefetch of any address is harmless.
#[inline(always)]
unsafe fn fetch<L: Lanes>(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: as above.
        unsafe { L::fetch(from.wrapping_add(line)) };
    }
}

/// Addresses of the rows of a split: keys, values, then rows to prefetch.
struct RowAddresses {
    rows: [*const u8; 2 * SPLIT + MOST_AHEAD],
    count: usize,
    /// The prefetch distance in rows.
    ahead: usize,
}

impl RowAddresses {
    /// # Safety
    /// The span is not empty, not longer than a split, and like what comes after it in the sequence's context.
    #[inline(always)]
    unsafe fn of(
        a: &Attention,
        state: &State,
        row: usize,
        kv_head: usize,
        span: Span,
    ) -> RowAddresses {
        let slot = state.rows[row].slot as usize;
        // SAFETY: promised by the caller.
        let chosen = unsafe { a.chosen(state, row) };
        let (bytes, page) = (a.cache.row_bytes, a.cache.page_len);
        let count = span.to - span.from;
        let mut addresses = RowAddresses {
            rows: [std::ptr::null(); 2 * SPLIT + MOST_AHEAD],
            count,
            ahead: (AHEAD_BYTES / bytes / 8 * 8).clamp(8, MOST_AHEAD),
        };
        for part in 0..2 {
            let rows = &mut addresses.rows[part * count..(part + 1) * count];
            if let Some(chosen) = chosen {
                for (row, at) in rows.iter_mut().zip(&chosen[span.from..span.to]) {
                    let at = at.to_bits() as usize;
                    // SAFETY: promised by the caller.
                    *row = unsafe { a.cache.at(state, a.layer, part, kv_head, slot, at) };
                }
                continue;
            }
            let mut at = span.from;
            while at < span.to {
                let run = (span.to - at).min(page - at % page);
                // SAFETY: promised by the caller; the run lies in one page.
                let first = unsafe { a.cache.at(state, a.layer, part, kv_head, slot, at) };
                for (i, row) in rows[at - span.from..][..run].iter_mut().enumerate() {
                    *row = first.wrapping_add(i * bytes);
                }
                at += run;
            }
        }
        // Scores are computed for whole vectors of positions, whose rows are all read.
        let (mut next, mut step) = (addresses.rows[2 * count - 1].cast_mut(), 0);
        let after = span.after.filter(|_| chosen.is_none());
        if let (Some((kv_head, at)), true) = (after, count >= MOST_LANES) {
            // SAFETY: promised by the caller.
            next = unsafe { a.cache.at(state, a.layer, 0, kv_head, slot, at) };
            step = bytes;
        }
        for (i, row) in addresses.rows[2 * count..][..MOST_AHEAD]
            .iter_mut()
            .enumerate()
        {
            *row = next.wrapping_add(i * step);
        }
        addresses
    }
}

/// Scores of `H` heads, `P` positions at a time; `H * P` is the vector's width.
///
/// # Safety
/// The addresses hold rows of `dim` values, `queries` `H` heads of `dim`, `scores` `H` times [`SPLIT`] floats.
#[inline(always)]
unsafe fn score<L: Lanes, R: Rows, const H: usize, const P: usize>(
    addresses: &RowAddresses,
    dim: usize,
    queries: *const f32,
    scale: f32,
    scores: *mut f32,
) {
    let (shared, bytes) = R::shared::<L>();
    // SAFETY: promised by the caller. After the last key come values, which are readable as well; their scores are
    // overwritten, and a split has room for a multiple of `P`.
    unsafe {
        for first in (0..addresses.count).step_by(P) {
            let rows: [*const u8; P] =
                std::array::from_fn(|p| *addresses.rows.get_unchecked(first + p));
            let ahead = *addresses.rows.get_unchecked(first + addresses.ahead);
            let mut sums = [L::splat(0.0); MOST_LANES];
            for unit in 0..dim / (shared * L::N) {
                fetch::<L>(ahead.wrapping_add(unit * P * bytes), P * bytes);
                let scales: [L::V; P] =
                    std::array::from_fn(|p| R::scale::<L>(rows[p], unit * shared));
                for i in unit * shared..(unit + 1) * shared {
                    let q: [L::V; H] =
                        std::array::from_fn(|h| L::load(queries.add(h * dim + i * L::N)));
                    for p in 0..P {
                        let k = R::widen::<L>(rows[p], i, scales[p]);
                        for h in 0..H {
                            sums[h * P + p] = L::fma(k, q[h], sums[h * P + p]);
                        }
                    }
                }
            }
            let mut out = [0.0f32; MOST_LANES];
            let all = L::mul(L::sums(&sums[..H * P]), L::splat(scale));
            L::store(out.as_mut_ptr(), all);
            for h in 0..H {
                let (from, to) = (out.as_ptr().add(h * P), scores.add(h * SPLIT + first));
                std::ptr::copy_nonoverlapping(from, to, P);
            }
        }
    }
}

/// Turns one head's scores into weights; returns the largest score and the sum of the weights.
///
/// # Safety
/// `scores` holds [`SPLIT`] floats, of which `count` are scores.
#[inline(always)]
unsafe fn weigh<L: Lanes>(scores: *mut f32, count: usize, softcap: f32) -> (f32, f32) {
    let all = count.next_multiple_of(L::N);
    // SAFETY: promised by the caller; a split is a whole number of vectors.
    unsafe {
        if softcap != 0.0 {
            for i in (0..all).step_by(L::N) {
                let score = L::soften(L::load(scores.add(i)), softcap);
                L::store(scores.add(i), score);
            }
        }
        for i in count..all {
            *scores.add(i) = f32::NEG_INFINITY;
        }
        let mut largest = L::splat(f32::MIN);
        for i in (0..all).step_by(L::N) {
            largest = L::max(L::load(scores.add(i)), largest);
        }
        let largest = across::<L>(largest, |a, b| if a > b { a } else { b });
        let mut sum = L::splat(0.0);
        for i in (0..all).step_by(L::N) {
            let score = L::sub(L::load(scores.add(i)), L::splat(largest));
            let weight = L::exp_not_positive(score);
            sum = L::add(sum, weight);
            L::store(scores.add(i), weight);
        }
        (largest, across::<L>(sum, |a, b| a + b))
    }
}

/// Reduces the lanes of a vector, halves first.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn across<L: Lanes>(v: L::V, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; MOST_LANES];
    // SAFETY: promised by the caller; no vector is wider.
    unsafe { L::store(lanes.as_mut_ptr(), v) };
    let mut half = L::N / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Sums the weighted values of `C` vectors of `H` heads.
///
/// # Safety
/// As [`score`]; `sums` holds the heads' sums, `stride` floats apart.
#[inline(always)]
// The indices select registers.
#[allow(clippy::needless_range_loop)]
unsafe fn sum_values<L: Lanes, R: Rows, const H: usize, const C: usize>(
    addresses: &RowAddresses,
    first: usize,
    weights: *const f32,
    sums: *mut f32,
    stride: usize,
) {
    let (shared, bytes) = R::shared::<L>();
    // SAFETY: promised by the caller.
    unsafe {
        let mut all = [[L::splat(0.0); C]; H];
        for p in 0..addresses.count {
            let row = *addresses.rows.get_unchecked(addresses.count + p);
            let ahead = *addresses
                .rows
                .get_unchecked(addresses.count + p + addresses.ahead);
            fetch::<L>(
                ahead.wrapping_add(first / shared * bytes),
                C.div_ceil(shared) * bytes,
            );
            let w: [L::V; H] = std::array::from_fn(|h| L::splat(*weights.add(h * SPLIT + p)));
            let mut scale = w[0];
            for c in 0..C {
                if c % shared == 0 {
                    scale = R::scale::<L>(row, first + c);
                }
                let v = R::widen::<L>(row, first + c, scale);
                for h in 0..H {
                    all[h][c] = L::fma(v, w[h], all[h][c]);
                }
            }
        }
        for (h, vectors) in all.iter().enumerate() {
            for (c, v) in vectors.iter().enumerate() {
                L::store(sums.add(h * stride + (first + c) * L::N), *v);
            }
        }
    }
}

/// Sums the weighted values of `H` heads, as many vectors at a time as registers hold.
///
/// # Safety
/// As [`sum_values`].
#[inline(always)]
unsafe fn sum_all_values<L: Lanes, R: Rows, const H: usize>(
    addresses: &RowAddresses,
    dim: usize,
    weights: *const f32,
    sums: *mut f32,
    stride: usize,
) {
    let most = (L::N / H).min(MOST_VECTORS);
    let vectors = dim / L::N;
    let mut at = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while at < vectors {
            let left = most.min(vectors - at);
            at += if left >= 8 {
                sum_values::<L, R, H, 8>(addresses, at, weights, sums, stride);
                8
            } else if left >= 4 {
                sum_values::<L, R, H, 4>(addresses, at, weights, sums, stride);
                4
            } else if left >= 2 {
                sum_values::<L, R, H, 2>(addresses, at, weights, sums, stride);
                2
            } else {
                sum_values::<L, R, H, 1>(addresses, at, weights, sums, stride);
                1
            };
        }
    }
}

/// How many of the remaining heads share the next pass.
#[inline(always)]
fn heads_of_pass(left: usize, width: usize) -> usize {
    let most = left.min(MOST_HEADS).min(width / 2);
    1 << most.ilog2()
}

/// Softmax attention of one group's heads over a span: per head `head_dim` sums, the largest score, the sum of weights.
///
/// # Safety
/// As [`super::attention::attend`]; the head is a whole number of vectors, and the processor has the instructions.
#[inline(always)]
unsafe fn attend<L: Lanes, R: Rows>(
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
    let stride = partial_floats(dim);
    // SAFETY: promised by the caller; positions up to the row's own lie in the layout.
    unsafe {
        let queries = a.q.start.add(row * a.q.stride + kv_head * group * dim);
        let addresses = &RowAddresses::of(a, state, row, kv_head, span);
        let mut h = 0;
        while h < group {
            let (q, s) = (queries.add(h * dim), scores.add(h * SPLIT));
            let heads = heads_of_pass(group - h, L::N);
            match (heads, L::N) {
                (8, _) => score::<L, R, 8, 2>(addresses, dim, q, a.scale, s),
                (4, 16) => score::<L, R, 4, 4>(addresses, dim, q, a.scale, s),
                (4, _) => score::<L, R, 4, 2>(addresses, dim, q, a.scale, s),
                (2, 16) => score::<L, R, 2, 8>(addresses, dim, q, a.scale, s),
                (2, _) => score::<L, R, 2, 4>(addresses, dim, q, a.scale, s),
                (_, 16) => score::<L, R, 1, 16>(addresses, dim, q, a.scale, s),
                (_, _) => score::<L, R, 1, 8>(addresses, dim, q, a.scale, s),
            }
            h += heads;
        }
        for h in 0..group {
            let (largest, sum) = weigh::<L>(scores.add(h * SPLIT), addresses.count, a.softcap);
            *out.add(h * stride + dim) = largest;
            *out.add(h * stride + dim + 1) = sum;
        }
        let mut h = 0;
        while h < group {
            let (sums, weights) = (out.add(h * stride), scores.add(h * SPLIT));
            let heads = heads_of_pass(group - h, L::N);
            match heads {
                8 => sum_all_values::<L, R, 8>(addresses, dim, weights, sums, stride),
                4 => sum_all_values::<L, R, 4>(addresses, dim, weights, sums, stride),
                2 => sum_all_values::<L, R, 2>(addresses, dim, weights, sums, stride),
                _ => sum_all_values::<L, R, 1>(addresses, dim, weights, sums, stride),
            }
            h += heads;
        }
    }
}

macro_rules! run {
    ($name:ident, $lanes:ty, $rows:ty, $features:literal) => {
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
            unsafe { attend::<$lanes, $rows>(a, state, row, kv_head, span, scores, out) }
        }
    };
}

#[cfg(target_arch = "aarch64")]
run!(f16_neon, Neon, F16, "neon");
#[cfg(target_arch = "aarch64")]
run!(q8_0_neon, Neon, Q8_0, "neon");
#[cfg(target_arch = "x86_64")]
run!(f16_avx2, Avx2, F16, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
run!(q8_0_avx2, Avx2, Q8_0, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
run!(
    f16_avx512,
    Avx512,
    F16,
    "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
run!(
    q8_0_avx512,
    Avx512,
    Q8_0,
    "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
);
