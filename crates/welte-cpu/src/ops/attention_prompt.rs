//! Attention of prompts. Queries (rows x heads of one kv head's group) lie in the lanes of vectors. So keys and values are
//! widened once for all queries, and neither sums nor softmax cross lanes.
//!
//! Work is cut into items of one kv head and some rows. An item walks the positions in blocks that start at fixed
//! positions; masked positions add exact zeros. So the bits of a row depend neither on the number of rows nor on the rows
//! beside it.
//!
//! Queries, keys, weights and values are words of 32 bits: a float each, or a pair of bf16 ([`Products`]).

// Other processors have no such functions yet.
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]

use super::attention::{Attention, Prompt};
use super::vectors::Lanes;
use super::{FloatRows, State};
use crate::kernels::Isa;
use half::f16;
use std::ops::Range;
use welte_table::{Format, Row};

/// Positions whose keys and values are widened at once.
const BLOCK: usize = 64;
/// The most strips of queries that share the widened keys and values.
const STRIPS: usize = 4;
/// Heads in the scratch are padded to a multiple of this, which is a multiple of every `DEEP` and of a vector's width.
const PAD: usize = 32;
/// Items for each thread, if there are enough rows. Several items let threads finish at the same time.
const ITEMS: usize = 4;
/// Vectors of a strip's queries, if there are enough of them.
const WIDE: usize = 3;
/// The most queries of a strip.
const MOST_LANES: usize = 48;

/// The functions for a cache format on an instruction set of this processor, for groups of `group` heads. With `rounds`,
/// products are in bf16 if the processor multiplies bf16.
pub(crate) fn prompt_for(format: Format, isa: Isa, group: usize, rounds: bool) -> Option<Prompt> {
    #[cfg(target_arch = "x86_64")]
    {
        let pairs = rounds && isa >= Isa::Avx512Vnni && Isa::Avx512Bf16.is_available();
        let prompt = match (format, isa) {
            (_, Isa::Scalar) => return None,
            (Format::Q8_0, Isa::Avx2 | Isa::Avx2Vnni) => x86::Q8_0_AVX2,
            (_, Isa::Avx2 | Isa::Avx2Vnni) => x86::F16_AVX2,
            (Format::Q8_0, _) if pairs => x86::Q8_0_PAIRS,
            (_, _) if pairs => x86::F16_PAIRS,
            (Format::Q8_0, _) => x86::Q8_0_AVX512,
            (_, _) => x86::F16_AVX512,
        };
        (group <= WIDE * prompt.lanes).then_some(prompt)
    }
    #[cfg(target_arch = "aarch64")]
    {
        let _ = rounds;
        let prompt = match (format, isa) {
            (_, Isa::Scalar) => return None,
            (Format::Q8_0, _) => arm::Q8_0_NEON,
            (_, _) => arm::F16_NEON,
        };
        (group <= WIDE * prompt.lanes).then_some(prompt)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = (format, isa, group, rounds);
        None
    }
}

/// Floats of a thread's scratch.
pub(crate) fn scratch_floats(head_dim: usize) -> usize {
    let dim = head_dim.next_multiple_of(PAD);
    STRIPS * Strip::floats(dim, MOST_LANES) + BLOCK * MOST_LANES + 2 * BLOCK * dim
}

impl Attention {
    /// Rows of one item.
    fn item_rows(&self, prompt: &Prompt, rows: usize) -> usize {
        let each = WIDE * prompt.lanes / (self.heads / self.kv_heads);
        let blocks = (ITEMS * self.threads).div_ceil(self.kv_heads);
        (rows / (each * blocks)).clamp(1, STRIPS) * each
    }

    /// The number of items of a step's prompt rows; `None` if this is not a prompt, or no function supports it.
    pub(crate) fn items(&self, state: &State, rows: usize) -> Option<usize> {
        let prompt = self.prompt.as_ref()?;
        let rows = rows - state.generated;
        Some(rows.div_ceil(self.item_rows(prompt, rows)) * self.kv_heads)
    }

    /// One item. The last rows come first, since they have the most positions to read.
    ///
    /// # Safety
    /// See `super`; `scratch` holds [`scratch_floats`] of this thread's own.
    pub(crate) unsafe fn item(&self, state: &State, rows: usize, item: usize, scratch: *mut f32) {
        let Some(prompt) = &self.prompt else { return };
        let all = rows - state.generated;
        let count = self.item_rows(prompt, all);
        let (block, kv_head) = (
            all.div_ceil(count) - 1 - item / self.kv_heads,
            item % self.kv_heads,
        );
        let group = self.heads / self.kv_heads;
        let mut from = state.generated + block * count;
        let follows = |a: &Row, b: &Row| a.slot == b.slot && a.position + 1 == b.position;
        for run in state.rows[from..rows.min(from + count)].chunk_by(follows) {
            // As long as narrow strips have fewer lanes in all.
            let narrow = run.len() <= (WIDE - 1) * (prompt.lanes / group);
            let attend = if narrow { prompt.narrow } else { prompt.run };
            let span = from..from + run.len();
            from = span.end;
            // SAFETY: promised by the caller.
            unsafe { attend(self, state, span, kv_head, scratch) };
        }
    }
}

/// How attention multiplies: one float per word, or a pair of bf16 per word.
trait Products<L: Lanes> {
    /// Numbers in a word.
    const EACH: usize;
    /// A word of ones.
    const ONES: f32;
    /// The sum and the products of words.
    unsafe fn dot(a: L::V, b: L::V, sum: L::V) -> L::V;
    /// Words made of the first and the second numbers. If a word holds one number, the second ones are ignored.
    unsafe fn join(parts: [L::V; 2]) -> L::V;
}

/// Floats as they are.
struct Exact;

impl<L: Lanes> Products<L> for Exact {
    const EACH: usize = 1;
    const ONES: f32 = 1.0;

    #[inline(always)]
    unsafe fn dot(a: L::V, b: L::V, sum: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe { L::fma(a, b, sum) }
    }

    #[inline(always)]
    unsafe fn join(parts: [L::V; 2]) -> L::V {
        parts[0]
    }
}

/// A strip of queries in a thread's scratch. `dim` and `lanes` are padded.
#[derive(Clone, Copy)]
struct Strip {
    /// `[dim][lanes]`, scaled; or pairs of bf16, `[dim / 2][lanes]`.
    queries: *mut f32,
    /// `[dim][lanes]`: the sums of weighted values.
    sums: *mut f32,
    /// The largest score so far.
    largest: *mut f32,
    /// The sum of weights so far.
    weights: *mut f32,
    /// First and last position that a lane sees.
    first: *mut f32,
    last: *mut f32,
    /// The factor by which the latest block scaled down earlier sums.
    shrink: *mut f32,
    /// The positions that some lane sees; up to `full_to` all lanes see them.
    from: usize,
    to: usize,
    full_to: usize,
}

impl Strip {
    const fn floats(dim: usize, lanes: usize) -> usize {
        2 * dim * lanes + 5 * lanes
    }

    /// # Safety
    /// `at` has room for [`Strip::floats`].
    unsafe fn at(at: *mut f32, dim: usize, lanes: usize) -> Strip {
        // SAFETY: promised by the caller.
        unsafe {
            let rest = at.add(2 * dim * lanes);
            Strip {
                queries: at,
                sums: at.add(dim * lanes),
                largest: rest,
                weights: rest.add(lanes),
                first: rest.add(2 * lanes),
                last: rest.add(3 * lanes),
                shrink: rest.add(4 * lanes),
                from: 0,
                to: 0,
                full_to: 0,
            }
        }
    }

    /// Loads the queries of some rows.
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    unsafe fn fill<L: Lanes, P: Products<L>>(
        &mut self,
        a: &Attention,
        state: &State,
        rows: Range<usize>,
        kv_head: usize,
        lanes: usize,
    ) {
        let group = a.heads / a.kv_heads;
        let dim = a.head_dim.next_multiple_of(PAD);
        let positions =
            state.rows[rows.start].position as usize..a.end_of(&state.rows[rows.clone()]);
        self.from = a.first(positions.start);
        self.to = positions.end;
        self.full_to = match (a.window, a.positions) {
            (0, 0) => positions.start + 1,
            (0, all) => all,
            _ => 0,
        };
        // SAFETY: the strip is ours; the rows of q hold every head.
        unsafe {
            std::ptr::write_bytes(self.sums, 0, dim * lanes);
            for lane in 0..lanes {
                *self.largest.add(lane) = f32::MIN;
                *self.weights.add(lane) = 0.0;
                *self.first.add(lane) = 0.0;
                *self.last.add(lane) = -1.0;
            }
            let heads = heads_of(a.q, a, rows.clone(), kv_head);
            for (r, row) in rows.enumerate() {
                let position = state.rows[row].position as usize;
                for h in 0..group {
                    let lane = r * group + h;
                    *self.first.add(lane) = a.first(position) as f32;
                    *self.last.add(lane) = a.last(&state.rows[row]) as f32;
                    if let Some(sink) = a.sink(kv_head * group + h) {
                        // It counts as a position seen before, with a weight of 1 and no value.
                        *self.largest.add(lane) = sink.max(f32::MIN);
                        *self.weights.add(lane) = 1.0;
                    }
                }
            }
            let scale = L::splat(a.scale);
            for lane in (0..lanes).step_by(L::N) {
                for d in (0..dim).step_by(P::EACH * L::N) {
                    let mut parts = [[L::splat(0.0); 16]; 2];
                    for (part, square) in parts.iter_mut().enumerate().take(P::EACH) {
                        for (q, head) in square.iter_mut().zip(&heads[lane..lane + L::N]) {
                            if let Some(head) = head {
                                *q = L::mul(some::<L>(*head, d + part * L::N, a.head_dim), scale);
                            }
                        }
                        L::transpose(square);
                    }
                    let [first, second] = parts;
                    for (i, parts) in first.into_iter().zip(second).enumerate().take(L::N) {
                        let at = self.queries.add((d / P::EACH + i) * lanes + lane);
                        L::store(at, P::join([parts.0, parts.1]));
                    }
                }
            }
        }
    }

    /// Writes the outputs of some rows.
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    unsafe fn finish<L: Lanes>(
        &self,
        a: &Attention,
        rows: Range<usize>,
        kv_head: usize,
        lanes: usize,
    ) {
        // SAFETY: the strip is ours; the rows of y hold every head.
        unsafe {
            let heads = heads_of(a.y, a, rows, kv_head);
            for lane in (0..lanes).step_by(L::N) {
                for d in (0..a.head_dim).step_by(L::N) {
                    let mut square = [L::splat(0.0); 16];
                    for (i, sum) in square.iter_mut().enumerate().take(L::N) {
                        *sum = L::load(self.sums.add((d + i) * lanes + lane));
                    }
                    L::transpose(&mut square);
                    for (i, head) in heads[lane..lane + L::N].iter().enumerate() {
                        let Some(head) = head else { continue };
                        let scale = L::splat(1.0 / *self.weights.add(lane + i));
                        let out = L::mul(square[i], scale);
                        if d + L::N <= a.head_dim {
                            L::store(head.add(d), out);
                        } else {
                            let mut floats = [0.0; 16];
                            L::store(floats.as_mut_ptr(), out);
                            head.add(d).copy_from(floats.as_ptr(), a.head_dim - d);
                        }
                    }
                }
            }
        }
    }

    /// Scores of `count` positions (a multiple of `DEEP`): `[position][lane]`.
    ///
    /// # Safety
    /// As [`attend`]; `keys` holds `count` rows of `words` words, `scores` as many of the strip's lanes.
    #[inline(always)]
    unsafe fn score<L: Lanes, P: Products<L>, const WIDE: usize, const DEEP: usize>(
        &self,
        keys: *const f32,
        count: usize,
        words: usize,
        scores: *mut f32,
    ) {
        for p in (0..count).step_by(DEEP) {
            // SAFETY: promised by the caller.
            unsafe {
                let keys = keys.add(p * words);
                let mut sums = [[L::splat(0.0); WIDE]; DEEP];
                for d in 0..words {
                    let q = self.queries.add(d * WIDE * L::N);
                    let q: [L::V; WIDE] = std::array::from_fn(|v| L::load(q.add(v * L::N)));
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let key = L::splat(*keys.add(i * words + d));
                        for v in 0..WIDE {
                            sums[v] = P::dot(key, q[v], sums[v]);
                        }
                    }
                }
                let mut at = scores.add(p * WIDE * L::N);
                for sum in sums.as_flattened() {
                    L::store(at, *sum);
                    at = at.add(L::N);
                }
            }
        }
    }

    /// Turns the scores of positions from `from` into weights, joined to words.
    ///
    /// # Safety
    /// As [`Strip::score`].
    #[inline(always)]
    unsafe fn weigh<L: Lanes, P: Products<L>, const WIDE: usize>(
        &self,
        scores: *mut f32,
        from: usize,
        count: usize,
        softcap: f32,
    ) {
        let masked = from + count > self.full_to;
        for v in 0..WIDE {
            // SAFETY: promised by the caller.
            unsafe {
                let (first, last) = (
                    L::load(self.first.add(v * L::N)),
                    L::load(self.last.add(v * L::N)),
                );
                let scores = scores.add(v * L::N);
                let before = L::load(self.largest.add(v * L::N));
                let mut largest = before;
                for p in 0..count {
                    let at = scores.add(p * WIDE * L::N);
                    let mut score = L::load(at);
                    if softcap != 0.0 {
                        score = L::soften(score, softcap);
                    }
                    if masked {
                        let position = L::splat((from + p) as f32);
                        let nothing = L::splat(f32::NEG_INFINITY);
                        score = L::within(position, first, last, score, nothing);
                    }
                    if masked || softcap != 0.0 {
                        L::store(at, score);
                    }
                    largest = L::max(score, largest);
                }
                let shrink = L::exp_not_positive(L::sub(before, largest));
                let mut sum = L::mul(L::load(self.weights.add(v * L::N)), shrink);
                for p in (0..count).step_by(P::EACH) {
                    let mut weights = [L::splat(0.0); 2];
                    for (part, weight) in weights.iter_mut().enumerate().take(P::EACH) {
                        let score = L::load(scores.add((p + part) * WIDE * L::N));
                        *weight = L::exp_not_positive(L::sub(score, largest));
                    }
                    // Sums the rounded weights, so that shares still add up to 1.
                    let weights = P::join(weights);
                    sum = P::dot(weights, L::splat(P::ONES), sum);
                    L::store(scores.add(p / P::EACH * WIDE * L::N), weights);
                }
                L::store(self.largest.add(v * L::N), largest);
                L::store(self.weights.add(v * L::N), sum);
                L::store(self.shrink.add(v * L::N), shrink);
            }
        }
    }

    /// Adds the weighted values.
    ///
    /// # Safety
    /// As [`Strip::score`].
    #[inline(always)]
    unsafe fn gather<L: Lanes, P: Products<L>, const WIDE: usize, const DEEP: usize>(
        &self,
        values: *const f32,
        count: usize,
        dim: usize,
        weights: *const f32,
    ) {
        // SAFETY: promised by the caller.
        unsafe {
            for d in (0..dim).step_by(DEEP) {
                let at = self.sums.add(d * WIDE * L::N);
                let mut sums: [[L::V; WIDE]; DEEP] = std::array::from_fn(|i| {
                    std::array::from_fn(|v| {
                        let shrink = L::load(self.shrink.add(v * L::N));
                        L::mul(L::load(at.add((i * WIDE + v) * L::N)), shrink)
                    })
                });
                for p in 0..count / P::EACH {
                    let w = weights.add(p * WIDE * L::N);
                    let w: [L::V; WIDE] = std::array::from_fn(|v| L::load(w.add(v * L::N)));
                    let values = values.add(p * dim + d);
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let value = L::splat(*values.add(i));
                        for v in 0..WIDE {
                            sums[v] = P::dot(value, w[v], sums[v]);
                        }
                    }
                }
                for (i, sum) in sums.as_flattened().iter().enumerate() {
                    L::store(at.add(i * L::N), *sum);
                }
            }
        }
    }
}

impl Attention {
    /// The position after the last one that some of the rows sees.
    fn end_of(&self, rows: &[Row]) -> usize {
        let ends = rows.iter().map(|row| self.last(row) + 1);
        ends.max().unwrap_or(0)
    }
}

/// Attention of consecutive rows of one sequence, for one kv head's group.
///
/// # Safety
/// See `super`; `scratch` holds [`scratch_floats`] of this thread's own, and the processor has the instructions.
#[inline(always)]
unsafe fn attend<
    L: Lanes,
    P: Products<L>,
    const WIDE: usize,
    const DEEP: usize,
    const Q8_0: bool,
>(
    a: &Attention,
    state: &State,
    rows: Range<usize>,
    kv_head: usize,
    scratch: *mut f32,
) {
    let lanes = WIDE * L::N;
    let dim = a.head_dim.next_multiple_of(PAD);
    let per_strip = lanes / (a.heads / a.kv_heads);
    let rows_of = |s: usize| {
        let from = rows.start + s * per_strip;
        from..(from + per_strip).min(rows.end)
    };
    let count = rows.len().div_ceil(per_strip).min(STRIPS);
    let slot = state.rows[rows.start].slot as usize;
    // SAFETY: the scratch has room for the strips, scores, keys and values; positions up to the rows' own lie in the
    // layout.
    unsafe {
        let mut strips = [Strip::at(scratch, dim, lanes); STRIPS];
        for (s, strip) in strips.iter_mut().enumerate().take(count) {
            *strip = Strip::at(scratch.add(s * Strip::floats(dim, lanes)), dim, lanes);
            strip.fill::<L, P>(a, state, rows_of(s), kv_head, lanes);
        }
        let strips = &strips[..count];
        let scores = scratch.add(STRIPS * Strip::floats(dim, lanes));
        let keys = scores.add(BLOCK * lanes);
        let values = keys.add(BLOCK * dim);
        let end = a.end_of(&state.rows[rows.clone()]);
        let first = strips[0].from;
        let start = first / BLOCK * BLOCK;
        for block in (start..end).step_by(BLOCK) {
            let held = BLOCK.min(end - block);
            let row_of = |part, p| {
                let row = |p| a.cache.at(state, a.layer, part, kv_head, slot, block + p);
                // Pages before the window may belong to other sequences, whose values need not be finite.
                (p < held && block + p >= first).then(|| row(p).cast_const())
            };
            let padded = held.next_multiple_of(DEEP);
            for p in 0..padded {
                let row = row_of(0, p);
                for d in (0..dim).step_by(P::EACH * L::N) {
                    let first = widened::<L, Q8_0>(row, d, a.head_dim);
                    let second = widened::<L, Q8_0>(row, d + (P::EACH - 1) * L::N, a.head_dim);
                    L::store(keys.add((p * dim + d) / P::EACH), P::join([first, second]));
                }
            }
            for p in (0..padded).step_by(P::EACH) {
                let rows = [row_of(1, p), row_of(1, p + P::EACH - 1)];
                for d in (0..dim).step_by(L::N) {
                    let first = widened::<L, Q8_0>(rows[0], d, a.head_dim);
                    let second = widened::<L, Q8_0>(rows[1], d, a.head_dim);
                    L::store(values.add(p / P::EACH * dim + d), P::join([first, second]));
                }
            }
            for strip in strips {
                if block >= strip.to || block + held <= strip.from {
                    continue;
                }
                let seen = held.min(strip.to - block).next_multiple_of(DEEP);
                strip.score::<L, P, WIDE, DEEP>(keys, seen, dim / P::EACH, scores);
                strip.weigh::<L, P, WIDE>(scores, block, seen, a.softcap);
                strip.gather::<L, P, WIDE, DEEP>(values, seen, dim, scores);
            }
        }
        for (s, strip) in strips.iter().enumerate() {
            strip.finish::<L>(a, rows_of(s), kv_head, lanes);
        }
    }
}

/// Numbers from `d` on of a row of the cache, or zeros.
///
/// # Safety
/// A row holds `dim` encoded values; with Q8_0 these are whole blocks of 32.
#[inline(always)]
unsafe fn widened<L: Lanes, const Q8_0: bool>(
    row: Option<*const u8>,
    d: usize,
    dim: usize,
) -> L::V {
    // SAFETY: promised by the caller.
    unsafe {
        match row {
            Some(row) if Q8_0 => {
                let from = row.add(d / 32 * 34);
                L::mul(L::widen_i8(from.add(2 + d % 32)), L::splat_f16(from))
            }
            Some(row) if d + L::N <= dim => L::widen_f16(row.add(2 * d)),
            Some(row) => {
                let mut rest = [f16::ZERO; 16];
                let from = row.cast::<f16>().wrapping_add(d);
                from.copy_to(rest.as_mut_ptr(), dim.saturating_sub(d).min(L::N));
                L::widen_f16(rest.as_ptr().cast())
            }
            None => L::splat(0.0),
        }
    }
}

/// Floats from `d` on of a head of `dim`, then zeros.
///
/// # Safety
/// The head holds `dim` floats.
#[inline(always)]
unsafe fn some<L: Lanes>(head: *const f32, d: usize, dim: usize) -> L::V {
    // SAFETY: promised by the caller.
    unsafe {
        if d + L::N <= dim {
            return L::load(head.add(d));
        }
        let mut rest = [0.0; 16];
        let count = dim.saturating_sub(d).min(L::N);
        head.wrapping_add(d).copy_to(rest.as_mut_ptr(), count);
        L::load(rest.as_ptr())
    }
}

/// Where the heads of some rows lie, by lane.
///
/// # Safety
/// The rows hold every head.
unsafe fn heads_of(
    place: FloatRows,
    a: &Attention,
    rows: Range<usize>,
    kv_head: usize,
) -> [Option<*mut f32>; MOST_LANES] {
    let group = a.heads / a.kv_heads;
    let mut heads = [None; MOST_LANES];
    for (row, heads) in rows.zip(heads.chunks_exact_mut(group)) {
        for (h, at) in heads.iter_mut().enumerate() {
            let head = (kv_head * group + h) * a.head_dim;
            // SAFETY: promised by the caller.
            *at = Some(unsafe { place.start.add(row * place.stride + head) });
        }
    }
    heads
}

/// The functions of an instruction set.
macro_rules! prompt {
    ($name:ident, $lanes:ty, $products:ty, $deep:literal, $q8_0:literal, $features:literal) => {
        pub(super) const $name: Prompt = {
            /// # Safety
            /// As [`attend`]; the processor has the features.
            #[target_feature(enable = $features)]
            unsafe fn run<const WIDE: usize>(
                a: &Attention,
                state: &State,
                rows: Range<usize>,
                kv_head: usize,
                scratch: *mut f32,
            ) {
                // SAFETY: promised by the caller.
                unsafe {
                    attend::<$lanes, $products, WIDE, $deep, $q8_0>(
                        a, state, rows, kv_head, scratch,
                    )
                }
            }
            Prompt {
                run: run::<WIDE>,
                narrow: run::<1>,
                lanes: <$lanes as Lanes>::N,
            }
        };
    };
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::super::vectors::Neon;
    use super::*;

    prompt!(F16_NEON, Neon, Exact, 4, false, "neon");
    prompt!(Q8_0_NEON, Neon, Exact, 4, true, "neon");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::vectors::{Avx2, Avx512};
    use super::*;
    use std::arch::x86_64::*;

    /// Numbers rounded to bf16.
    struct Rounded;

    impl Products<Avx512> for Rounded {
        const EACH: usize = 2;
        const ONES: f32 = f32::from_bits(0x3f80_3f80);

        #[inline(always)]
        unsafe fn dot(a: __m512, b: __m512, sum: __m512) -> __m512 {
            // SAFETY: the caller's; vectors of floats and of bf16 have the same size and no invalid values.
            unsafe {
                let pairs = |v: __m512| std::mem::transmute::<__m512, __m512bh>(v);
                _mm512_dpbf16_ps(sum, pairs(a), pairs(b))
            }
        }

        #[inline(always)]
        unsafe fn join([first, second]: [__m512; 2]) -> __m512 {
            const TURNS: [u16; 32] = {
                let mut turns = [0; 32];
                let mut i = 0;
                while i < 32 {
                    turns[i] = (i / 2 + i % 2 * 16) as u16;
                    i += 1;
                }
                turns
            };
            // SAFETY: as above; there are 32 turns.
            unsafe {
                let turns = _mm512_loadu_si512(TURNS.as_ptr().cast());
                let halves = _mm512_cvtne2ps_pbh(second, first);
                let halves = std::mem::transmute::<__m512bh, __m512i>(halves);
                _mm512_castsi512_ps(_mm512_permutexvar_epi16(turns, halves))
            }
        }
    }

    prompt!(F16_AVX2, Avx2, Exact, 4, false, "avx2,fma,f16c");
    prompt!(Q8_0_AVX2, Avx2, Exact, 4, true, "avx2,fma,f16c");
    prompt!(
        F16_AVX512,
        Avx512,
        Exact,
        8,
        false,
        "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
    );
    prompt!(
        Q8_0_AVX512,
        Avx512,
        Exact,
        8,
        true,
        "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
    );
    prompt!(
        F16_PAIRS,
        Avx512,
        Rounded,
        8,
        false,
        "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c"
    );
    prompt!(
        Q8_0_PAIRS,
        Avx512,
        Rounded,
        8,
        true,
        "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c"
    );
}
