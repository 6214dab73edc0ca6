//! Attention of whole texts, without a cache. Queries lie in the lanes of vectors, so neither sums nor softmax cross lanes.
//!
//! Work is cut into items of one head and some rows. A row walks its run in blocks that begin at the run's first row, so its
//! bits depend neither on the number of rows nor on the runs beside its own.

use super::vectors::{Lanes, Single};
use super::{FloatRows, Floats, State};
use crate::kernels::Isa;
use std::ops::Range;
use welte_table::Row;

/// Rows whose scores are kept at once.
const BLOCK: usize = 64;
/// Vectors of a strip of queries.
const WIDE: usize = 2;
/// The most queries of a strip.
const MOST_LANES: usize = 32;
/// Keys, or elements of values, that share the loads of a strip.
const DEEP: usize = 4;
/// The largest score before any is known; finite, so that masked scores weigh nothing.
const LEAST: f32 = -1e30;

/// Attention of the rows of an item that share a run: the rows, the run and the head.
type Run = unsafe fn(&EncodeAttention, Range<usize>, &Keys<'_>, usize, *mut f32);

#[derive(Clone, Copy)]
pub(crate) struct EncodeAttention {
    pub(crate) qkv: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    /// 0: none.
    pub(crate) window: usize,
    /// A run ends where the first axis changes.
    pub(crate) by_axis: bool,
    /// The last rows of a run that has more of them are not seen.
    pub(crate) unseen: usize,
    /// A row sees none that follow its reach.
    pub(crate) by_reach: bool,
    /// The limit of products; 0: none.
    pub(crate) softcap: f32,
    /// The side of the tables of what scores add by distance; 0: they add nothing.
    pub(crate) places: usize,
    /// What stands for rows that a rectangle lacks, if anything does.
    pub(crate) absent: Floats,
    /// What a score loses by head for each row of distance, if it loses anything.
    pub(crate) slopes: Floats,
    pub(crate) kernel: Kernel,
}

/// Attention on one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    run: Run,
    /// Queries of a strip.
    lanes: usize,
}

/// The kernel for an instruction set of this processor.
pub(crate) fn kernel_for(isa: Isa) -> Kernel {
    #[cfg(target_arch = "x86_64")]
    match isa {
        Isa::Scalar => {}
        Isa::Avx2 | Isa::Avx2Vnni => return x86::AVX2,
        _ => return x86::AVX512,
    }
    #[cfg(target_arch = "aarch64")]
    if isa >= Isa::Neon {
        return arm::NEON;
    }
    let _ = isa;
    Kernel {
        run: attend::<Single>,
        lanes: WIDE * Single::N,
    }
}

/// Floats of a thread's scratch.
pub(crate) fn scratch_floats(head_dim: usize, places: usize) -> usize {
    (2 * head_dim.next_multiple_of(DEEP) + BLOCK + 2 * places) * MOST_LANES
}

/// What the rows of a run see.
struct Keys<'a> {
    rows: &'a [Row],
    run: Range<usize>,
    /// With places: line and column of the first one, and lines and columns of the rectangle.
    corner: [u32; 2],
    sides: [usize; 2],
    /// The rectangle is filled up to this side.
    filled: Option<usize>,
}

impl Keys<'_> {
    fn of<'a>(a: &EncodeAttention, rows: &'a [Row], run: Range<usize>) -> Keys<'a> {
        let place = |row: usize| [1, 2].map(|axis| rows[row].axes[axis]);
        let (corner, last) = (place(run.start), place(run.end - 1));
        let side = |axis: usize| last[axis].saturating_sub(corner[axis]) as usize + 1;
        Keys {
            rows,
            corner,
            sides: [side(0), side(1)],
            filled: (!a.absent.is_none()).then_some(a.places),
            run,
        }
    }

    fn count(&self) -> usize {
        self.filled.map_or(self.run.len(), |side| side * side)
    }

    /// The row of a key; `None`: the rectangle lacks it.
    fn row(&self, key: usize) -> Option<usize> {
        let Some(side) = self.filled else {
            return Some(self.run.start + key);
        };
        let [line, column] = [key / side, key % side];
        let row = self.run.start + line * self.sides[1] + column;
        let is_there = column < self.sides[1] && row < self.run.end;
        is_there.then_some(row)
    }

    /// Line and column of a key, counted from the corner. Rows beyond the tables are at their end.
    fn place(&self, key: usize, places: usize) -> [usize; 2] {
        match self.filled {
            Some(side) => [key / side, key % side],
            None => [0, 1].map(|i| {
                let own = self.rows[self.run.start + key].axes[1 + i];
                (own.saturating_sub(self.corner[i]) as usize).min(places - 1)
            }),
        }
    }

    /// What a row's score adds for a line or a column that far from the corner. `own` has 2 `places` - 1 values.
    ///
    /// # Safety
    /// `own` is readable.
    unsafe fn near(
        &self,
        own: *const f32,
        row: usize,
        axis: usize,
        at: usize,
        places: usize,
    ) -> f32 {
        let (side, last) = (self.filled.unwrap_or(self.sides[axis]), 2 * places - 2);
        let from = self.rows[row].axes[1 + axis].saturating_sub(self.corner[axis]) as usize;
        let index = (from + side - 1).saturating_sub(at);
        // SAFETY: no index is above the last one.
        let value = |index: usize| unsafe { *own.add(index.min(last)) };
        if side == places {
            return value(index);
        }
        let scale = (2 * places - 1) as f32 / (2 * side - 1) as f32;
        let place = ((index as f32 + 0.5) * scale - 0.5).max(0.0);
        let part = place - place.floor();
        value(place as usize) * (1.0 - part) + value(place as usize + 1) * part
    }
}

impl EncodeAttention {
    /// The number of items.
    pub(crate) fn items(&self, rows: usize) -> usize {
        self.heads * rows.div_ceil(self.kernel.lanes)
    }

    /// One item.
    ///
    /// # Safety
    /// See `super`; `scratch` holds [`scratch_floats`] of this thread's own.
    pub(crate) unsafe fn item(&self, state: &State, rows: usize, item: usize, scratch: *mut f32) {
        let (head, lanes) = (item % self.heads, self.kernel.lanes);
        let from = item / self.heads * lanes;
        let rows = &state.rows[..rows];
        let mut at = from;
        let together =
            |a: &Row, b: &Row| a.slot == b.slot && (!self.by_axis || a.axes[0] == b.axes[0]);
        for part in rows[from..rows.len().min(from + lanes)].chunk_by(together) {
            let span = at..at + part.len();
            at = span.end;
            let mut run = run_of(rows, span.start, together);
            if run.len() > self.unseen {
                run.end -= self.unseen;
            }
            let keys = Keys::of(self, rows, run);
            // SAFETY: promised by the caller; the processor has what the kernel needs.
            unsafe { (self.kernel.run)(self, span, &keys, head, scratch) };
        }
    }
}

/// A row's run: its neighbours that belong together.
fn run_of(rows: &[Row], row: usize, together: impl Fn(&Row, &Row) -> bool) -> Range<usize> {
    let same = |other: &&Row| together(other, &rows[row]);
    let before = rows[..row].iter().rev().take_while(same).count();
    let from = rows[row..].iter().take_while(same).count();
    row - before..row + from
}

/// Attention of `rows` over the keys that they see.
///
/// # Safety
/// See `super`; the rows lie in the run or right after it; `scratch` holds [`scratch_floats`].
#[inline(always)]
unsafe fn attend<L: Lanes>(
    a: &EncodeAttention,
    rows: Range<usize>,
    keys: &Keys<'_>,
    head: usize,
    scratch: *mut f32,
) {
    let run = &keys.run;
    let (dim, lanes) = (a.head_dim, WIDE * L::N);
    let padded = dim.next_multiple_of(DEEP);
    let kv_head = head / (a.heads / a.kv_heads);
    let (k_at, v_at) = (
        (a.heads + kv_head) * dim,
        (a.heads + a.kv_heads + kv_head) * dim,
    );
    // Keys are counted from the run's first row.
    let (first, last) = match a.window {
        0 => (0, keys.count()),
        window => (
            rows.start.saturating_sub(window).saturating_sub(run.start),
            (run.end.min(rows.end + window)) - run.start,
        ),
    };
    // The first key that a row does not see.
    let end_of = |row: usize| {
        let own = &keys.rows[row];
        row - run.start + (own.reach - own.position) as usize + 1
    };
    let last = if a.by_reach {
        let most = rows.clone().map(end_of).max();
        last.min(most.unwrap_or(last))
    } else {
        last
    };
    // Blocks begin at fixed rows of the run, whatever the window leaves out.
    let first = first / BLOCK * BLOCK;
    // SAFETY: promised by the caller; every index is below its row's width or the scratch's size.
    unsafe {
        let queries = scratch;
        let sums = queries.add(padded * lanes);
        let scores = sums.add(padded * lanes);
        // What scores add for each line, then for each column.
        let near = scores.add(BLOCK * lanes);
        let distances = (a.heads + 2 * a.kv_heads) * dim + head * (4 * a.places).saturating_sub(2);
        for at in 0..2 * a.places {
            let (axis, place) = (at / a.places, at % a.places);
            for lane in 0..lanes {
                let row = (rows.start + lane).min(rows.end - 1);
                let own = a.qkv.start.add(row * a.qkv.stride + distances);
                let own = own.add(axis * (2 * a.places - 1)).cast_const();
                *near.add(at * lanes + lane) = keys.near(own, row, axis, place, a.places);
            }
        }
        for d in 0..dim {
            for lane in 0..lanes {
                let row = rows.start + lane;
                let q = if row < rows.end {
                    *a.qkv.start.add(row * a.qkv.stride + head * dim + d) * a.scale
                } else {
                    0.0
                };
                *queries.add(d * lanes + lane) = q;
            }
        }
        std::slice::from_raw_parts_mut(sums, padded * lanes).fill(0.0);
        let mut largest = [L::splat(LEAST); WIDE];
        let mut totals = [L::splat(0.0); WIDE];
        for block in (first..last).step_by(BLOCK) {
            let held = BLOCK.min(last - block);
            let mut starts = [std::ptr::null::<f32>(); BLOCK];
            for (start, key) in starts.iter_mut().zip(block..block + held) {
                *start = match keys.row(key) {
                    Some(row) => a.qkv.start.add(row * a.qkv.stride).cast_const(),
                    None => a.absent.0,
                };
            }
            for j in (0..held).step_by(DEEP) {
                // Rows past the end repeat the last one; their scores are not used.
                let some: [*const f32; DEEP] =
                    std::array::from_fn(|i| starts[(j + i).min(held - 1)].add(k_at));
                let mut dots = [[L::splat(0.0); WIDE]; DEEP];
                for d in 0..dim {
                    let q: [L::V; WIDE] =
                        std::array::from_fn(|w| L::load(queries.add(d * lanes + w * L::N)));
                    for (dots, key) in dots.iter_mut().zip(some) {
                        let key = L::splat(*key.add(d));
                        for (dot, q) in dots.iter_mut().zip(q) {
                            *dot = L::fma(q, key, *dot);
                        }
                    }
                }
                for (i, dots) in dots.into_iter().enumerate() {
                    for (w, dot) in dots.into_iter().enumerate() {
                        let dot = match a.softcap {
                            0.0 => dot,
                            cap => L::soften(dot, cap),
                        };
                        L::store(scores.add((j + i) * lanes + w * L::N), dot);
                    }
                }
            }
            if !a.slopes.is_none() {
                let slope = *a.slopes.0.add(head);
                for j in 0..held {
                    for lane in 0..rows.len() {
                        let away = (rows.start + lane).abs_diff(run.start + block + j);
                        *scores.add(j * lanes + lane) -= slope * away as f32;
                    }
                }
            }
            if a.window > 0 {
                for j in 0..held {
                    for lane in 0..rows.len() {
                        if (rows.start + lane).abs_diff(run.start + block + j) > a.window {
                            *scores.add(j * lanes + lane) = f32::NEG_INFINITY;
                        }
                    }
                }
            }
            if a.by_reach {
                for (lane, row) in rows.clone().enumerate() {
                    for j in end_of(row).saturating_sub(block)..held {
                        *scores.add(j * lanes + lane) = f32::NEG_INFINITY;
                    }
                }
            }
            if a.places > 0 {
                for j in 0..held {
                    let [line, column] = keys.place(block + j, a.places);
                    for w in 0..WIDE {
                        let at = scores.add(j * lanes + w * L::N);
                        let own = |at: usize| L::load(near.add(at * lanes + w * L::N));
                        let sum = L::add(own(line), own(a.places + column));
                        L::store(at, L::add(L::load(at), sum));
                    }
                }
            }
            for w in 0..WIDE {
                let at = |j: usize| scores.add(j * lanes + w * L::N);
                let before = largest[w];
                for j in 0..held {
                    largest[w] = L::max(L::load(at(j)), largest[w]);
                }
                let shrink = L::exp_not_positive(L::sub(before, largest[w]));
                totals[w] = L::mul(totals[w], shrink);
                for d in 0..dim {
                    let sum = sums.add(d * lanes + w * L::N);
                    L::store(sum, L::mul(L::load(sum), shrink));
                }
                for j in 0..held {
                    let weight = L::exp_not_positive(L::sub(L::load(at(j)), largest[w]));
                    totals[w] = L::add(totals[w], weight);
                    L::store(at(j), weight);
                }
            }
            for d in (0..dim).step_by(DEEP) {
                let place = |i: usize, w: usize| sums.add((d + i) * lanes + w * L::N);
                let mut sum: [[L::V; WIDE]; DEEP] =
                    std::array::from_fn(|i| std::array::from_fn(|w| L::load(place(i, w))));
                // The last elements of a head may be fewer.
                let elements = DEEP.min(dim - d);
                for (j, start) in starts[..held].iter().enumerate() {
                    let value = start.add(v_at + d);
                    let weights: [L::V; WIDE] =
                        std::array::from_fn(|w| L::load(scores.add(j * lanes + w * L::N)));
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let value = L::splat(*value.add(i.min(elements - 1)));
                        for (sum, weight) in sum.iter_mut().zip(weights) {
                            *sum = L::fma(value, weight, *sum);
                        }
                    }
                }
                for (i, sum) in sum.into_iter().enumerate() {
                    for (w, sum) in sum.into_iter().enumerate() {
                        L::store(place(i, w), sum);
                    }
                }
            }
        }
        let mut divisors = [0.0; MOST_LANES];
        for (w, total) in totals.into_iter().enumerate() {
            L::store(divisors.as_mut_ptr().add(w * L::N), total);
        }
        for (lane, row) in rows.enumerate() {
            let y = a.y.start.add(row * a.y.stride + head * dim);
            for d in 0..dim {
                *y.add(d) = *sums.add(d * lanes + lane) / divisors[lane];
            }
        }
    }
}

/// The kernel of an instruction set.
macro_rules! kernel {
    ($name:ident, $lanes:ty, $features:literal) => {
        pub(super) const $name: Kernel = {
            /// # Safety
            /// As [`attend`]; the processor has the features.
            #[target_feature(enable = $features)]
            unsafe fn run(
                a: &EncodeAttention,
                rows: Range<usize>,
                keys: &Keys<'_>,
                head: usize,
                scratch: *mut f32,
            ) {
                // SAFETY: promised by the caller.
                unsafe { attend::<$lanes>(a, rows, keys, head, scratch) }
            }
            Kernel {
                run,
                lanes: WIDE * <$lanes as Lanes>::N,
            }
        };
    };
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::super::vectors::Neon;
    use super::*;

    kernel!(NEON, Neon, "neon");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::vectors::{Avx2, Avx512};
    use super::*;

    kernel!(AVX2, Avx2, "avx2,fma,f16c");
    kernel!(AVX512, Avx512, "avx512f,avx512bw,avx512vl,avx2,fma,f16c");
}
