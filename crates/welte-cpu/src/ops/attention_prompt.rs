//! Attention for many rows of one sequence. Queries (rows x heads of one kv head's group) lie in the vectors' lanes, so
//! keys and values are widened once for all of them, nothing is summed across lanes, and the softmax goes lane by lane.
//!
//! Work is cut into items of one kv head and some rows. An item walks the positions in blocks that start at fixed
//! places; what is masked adds exact zeros. So the bits of a row do not depend on the rows beside it.

use super::attention::Attention;
use super::vectors::Lanes;
use super::{MANY_ROWS, State};
use crate::kernels::Isa;
use half::f16;
use std::ops::Range;
use welte_table::Format;

/// Positions whose keys and values are widened at once.
const BLOCK: usize = 64;
/// Strips of queries that share the widened keys and values.
const STRIPS: usize = 2;
/// Rows of floats in the scratch are padded to this, which is a multiple of every `DEEP`.
const PAD: usize = 8;
/// The most queries of a strip.
const MOST_LANES: usize = 48;

/// Attention for many rows on one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Prompt {
    run: unsafe fn(&Attention, &State, Range<usize>, usize, *mut f32),
    /// Queries of a strip.
    lanes: usize,
}

/// The function for a cache format on an instruction set (which the processor has), for groups of `group` heads.
pub(crate) fn prompt_for(format: Format, isa: Isa, group: usize) -> Option<Prompt> {
    #[cfg(target_arch = "x86_64")]
    {
        let prompt = match (format, isa) {
            (_, Isa::Scalar) => return None,
            (Format::Q8_0, Isa::Avx2 | Isa::Avx2Vnni) => Prompt {
                run: x86::q8_0_avx2,
                lanes: 24,
            },
            (_, Isa::Avx2 | Isa::Avx2Vnni) => Prompt {
                run: x86::f16_avx2,
                lanes: 24,
            },
            (Format::Q8_0, _) => Prompt {
                run: x86::q8_0_avx512,
                lanes: 48,
            },
            (_, _) => Prompt {
                run: x86::f16_avx512,
                lanes: 48,
            },
        };
        (group <= prompt.lanes).then_some(prompt)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (format, isa, group);
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
    fn item_rows(&self, prompt: &Prompt) -> usize {
        STRIPS * (prompt.lanes / (self.heads / self.kv_heads))
    }

    /// Into how many items this many rows are cut, if they come here.
    pub(crate) fn items(&self, rows: usize) -> Option<usize> {
        let prompt = self.prompt.as_ref().filter(|_| rows >= MANY_ROWS)?;
        Some(rows.div_ceil(self.item_rows(prompt)) * self.kv_heads)
    }

    /// One item. The last rows, which have the most to read, come first.
    ///
    /// # Safety
    /// See `super`; `scratch` holds [`scratch_floats`] and the rows' own (`attention.rs`) of this thread's own.
    pub(crate) unsafe fn item(&self, state: &State, rows: usize, item: usize, scratch: *mut f32) {
        let Some(prompt) = &self.prompt else { return };
        let count = self.item_rows(prompt);
        let (block, kv_head) = (
            rows.div_ceil(count) - 1 - item / self.kv_heads,
            item % self.kv_heads,
        );
        let span = block * count..rows.min((block + 1) * count);
        let follow = state.rows[span.clone()].windows(2).all(|pair| {
            pair[0].sequence == pair[1].sequence && pair[0].position + 1 == pair[1].position
        });
        // SAFETY: promised by the caller.
        unsafe {
            if follow {
                (prompt.run)(self, state, span, kv_head, scratch);
            } else {
                span.for_each(|row| self.whole(state, row, kv_head, scratch));
            }
        }
    }
}

/// A strip of queries in a thread's scratch. `dim` and `lanes` are padded.
#[derive(Clone, Copy)]
struct Strip {
    /// `[dim][lanes]`, scaled.
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
    /// What the latest block shrank earlier sums by.
    shrink: *mut f32,
    /// Positions that any lane sees, and up to where all do.
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

    /// Takes the queries of some rows in.
    ///
    /// # Safety
    /// As [`attend`].
    unsafe fn fill(
        &mut self,
        a: &Attention,
        state: &State,
        rows: Range<usize>,
        kv_head: usize,
        lanes: usize,
    ) {
        let (group, dim) = (a.heads / a.kv_heads, a.head_dim);
        let positions = state.rows[rows.start].position as usize
            ..state.rows[rows.end - 1].position as usize + 1;
        self.from = a.first(positions.start);
        self.to = positions.end;
        self.full_to = if a.window == 0 {
            positions.start + 1
        } else {
            0
        };
        // SAFETY: the strip is ours; the rows of q hold every head.
        unsafe {
            std::ptr::write_bytes(self.queries, 0, dim.next_multiple_of(PAD) * lanes);
            std::ptr::write_bytes(self.sums, 0, dim.next_multiple_of(PAD) * lanes);
            for lane in 0..lanes {
                *self.largest.add(lane) = f32::MIN;
                *self.weights.add(lane) = 0.0;
                *self.first.add(lane) = 0.0;
                *self.last.add(lane) = -1.0;
            }
            for (r, row) in rows.enumerate() {
                let position = state.rows[row].position as usize;
                for h in 0..group {
                    let lane = r * group + h;
                    *self.first.add(lane) = a.first(position) as f32;
                    *self.last.add(lane) = position as f32;
                    if let Some(sink) = a.sink(kv_head * group + h) {
                        // As if it had been seen already, with a weight of 1 and no value.
                        *self.largest.add(lane) = sink.max(f32::MIN);
                        *self.weights.add(lane) = 1.0;
                    }
                    let q =
                        a.q.start
                            .add(row * a.q.stride + (kv_head * group + h) * dim);
                    for d in 0..dim {
                        *self.queries.add(d * lanes + lane) = *q.add(d) * a.scale;
                    }
                }
            }
        }
    }

    /// Writes the outputs of some rows.
    ///
    /// # Safety
    /// As [`attend`].
    unsafe fn finish(&self, a: &Attention, rows: Range<usize>, kv_head: usize, lanes: usize) {
        let (group, dim) = (a.heads / a.kv_heads, a.head_dim);
        for (r, row) in rows.enumerate() {
            for h in 0..group {
                let lane = r * group + h;
                // SAFETY: the strip is ours; the rows of y hold every head.
                unsafe {
                    let y =
                        a.y.start
                            .add(row * a.y.stride + (kv_head * group + h) * dim);
                    let scale = 1.0 / *self.weights.add(lane);
                    for d in 0..dim {
                        *y.add(d) = *self.sums.add(d * lanes + lane) * scale;
                    }
                }
            }
        }
    }

    /// Scores of `count` positions (a multiple of `DEEP`): `[position][lane]`.
    ///
    /// # Safety
    /// As [`attend`]; `keys` holds `count` rows of `dim`, `scores` as many of the strip's lanes.
    #[inline(always)]
    unsafe fn score<L: Lanes, const WIDE: usize, const DEEP: usize>(
        &self,
        keys: *const f32,
        count: usize,
        dim: usize,
        scores: *mut f32,
    ) {
        for p in (0..count).step_by(DEEP) {
            // SAFETY: promised by the caller.
            unsafe {
                let keys = keys.add(p * dim);
                let mut sums = [[L::splat(0.0); WIDE]; DEEP];
                for d in 0..dim {
                    let q = self.queries.add(d * WIDE * L::N);
                    let q: [L::V; WIDE] = std::array::from_fn(|v| L::load(q.add(v * L::N)));
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let key = L::splat(*keys.add(i * dim + d));
                        for v in 0..WIDE {
                            sums[v] = L::fma(key, q[v], sums[v]);
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

    /// Turns the scores of positions from `from` into weights.
    ///
    /// # Safety
    /// As [`Strip::score`].
    #[inline(always)]
    unsafe fn weigh<L: Lanes, const WIDE: usize>(
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
                for p in 0..count {
                    let at = scores.add(p * WIDE * L::N);
                    let weight = L::exp_not_positive(L::sub(L::load(at), largest));
                    sum = L::add(sum, weight);
                    L::store(at, weight);
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
    unsafe fn gather<L: Lanes, const WIDE: usize, const DEEP: usize>(
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
                for p in 0..count {
                    let w = weights.add(p * WIDE * L::N);
                    let w: [L::V; WIDE] = std::array::from_fn(|v| L::load(w.add(v * L::N)));
                    let values = values.add(p * dim + d);
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let value = L::splat(*values.add(i));
                        for v in 0..WIDE {
                            sums[v] = L::fma(value, w[v], sums[v]);
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

/// Attention of some rows, which follow each other in one sequence, for one kv head's group.
///
/// # Safety
/// See `super`; `scratch` holds [`scratch_floats`] of this thread's own, and the processor has the instructions.
#[inline(always)]
unsafe fn attend<L: Lanes, const WIDE: usize, const DEEP: usize, const Q8_0: bool>(
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
    let sequence = state.rows[rows.start].sequence as usize;
    // SAFETY: the scratch has room for the strips, scores, keys and values; positions up to the rows' own lie in the
    // layout.
    unsafe {
        let mut strips = [Strip::at(scratch, dim, lanes); STRIPS];
        for (s, strip) in strips.iter_mut().enumerate().take(count) {
            *strip = Strip::at(scratch.add(s * Strip::floats(dim, lanes)), dim, lanes);
            strip.fill(a, state, rows_of(s), kv_head, lanes);
        }
        let strips = &strips[..count];
        let scores = scratch.add(STRIPS * Strip::floats(dim, lanes));
        let keys = scores.add(BLOCK * lanes);
        let values = keys.add(BLOCK * dim);
        let end = state.rows[rows.end - 1].position as usize + 1;
        let start = strips[0].from / BLOCK * BLOCK;
        for block in (start..end).step_by(BLOCK) {
            let held = BLOCK.min(end - block);
            for (part, tile) in [keys, values].into_iter().enumerate() {
                for p in 0..held {
                    let row = state.kv_at(a.layer, part, kv_head, sequence, block + p);
                    widen::<L, Q8_0>(row, a.head_dim, tile.add(p * dim));
                }
                let padded = held.next_multiple_of(DEEP);
                std::ptr::write_bytes(tile.add(held * dim), 0, (padded - held) * dim);
            }
            for strip in strips {
                if block >= strip.to || block + held <= strip.from {
                    continue;
                }
                let seen = held.min(strip.to - block).next_multiple_of(DEEP);
                strip.score::<L, WIDE, DEEP>(keys, seen, dim, scores);
                strip.weigh::<L, WIDE>(scores, block, seen, a.softcap);
                strip.gather::<L, WIDE, DEEP>(values, seen, dim, scores);
            }
        }
        for (s, strip) in strips.iter().enumerate() {
            strip.finish(a, rows_of(s), kv_head, lanes);
        }
    }
}

/// One row of the cache as floats, padded with zeros.
///
/// # Safety
/// `row` holds `dim` encoded values, `out` has room for them and the padding.
#[inline(always)]
unsafe fn widen<L: Lanes, const Q8_0: bool>(row: *const u8, dim: usize, out: *mut f32) {
    // SAFETY: promised by the caller; a Q8_0 row is whole blocks of 32.
    unsafe {
        if Q8_0 {
            for block in 0..dim / 32 {
                let (from, to) = (row.add(block * 34), out.add(block * 32));
                let scale = L::splat(from.cast::<f16>().read_unaligned().to_f32());
                for i in (0..32).step_by(L::N) {
                    L::store(to.add(i), L::mul(L::widen_i8(from.add(2 + i)), scale));
                }
            }
            return;
        }
        let whole = dim / L::N * L::N;
        for i in (0..whole).step_by(L::N) {
            L::store(out.add(i), L::widen_f16(row.add(2 * i)));
        }
        for i in whole..dim {
            *out.add(i) = row.cast::<f16>().add(i).read_unaligned().to_f32();
        }
        for i in dim..dim.next_multiple_of(PAD) {
            *out.add(i) = 0.0;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::vectors::{Avx2, Avx512};
    use super::*;

    macro_rules! run {
        ($name:ident, $lanes:ty, $deep:literal, $q8_0:literal, $features:literal) => {
            /// # Safety
            /// As [`attend`]; the processor has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(
                a: &Attention,
                state: &State,
                rows: Range<usize>,
                kv_head: usize,
                scratch: *mut f32,
            ) {
                // SAFETY: promised by the caller.
                unsafe { attend::<$lanes, 3, $deep, $q8_0>(a, state, rows, kv_head, scratch) }
            }
        };
    }

    run!(f16_avx2, Avx2, 4, false, "avx2,fma,f16c");
    run!(q8_0_avx2, Avx2, 4, true, "avx2,fma,f16c");
    run!(
        f16_avx512,
        Avx512,
        8,
        false,
        "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
    );
    run!(
        q8_0_avx512,
        Avx512,
        8,
        true,
        "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
    );
}
