//! The choice of the positions that a row sees. A position's score does not depend on how positions are dealt to threads.
#![allow(unsafe_code)]

use super::attention::MAX_HEAD_DIM;
use super::attention_plain::{dot, widen_for};
use super::cache::KvCache;
use super::{FloatRows, State};
use crate::kernels::Isa;
use std::ops::Range;

/// Positions that a thread takes at once, if threads share a row.
const BLOCK: usize = 256;

#[derive(Clone, Copy)]
pub(crate) struct ChoosePositions {
    pub(crate) q: FloatRows,
    pub(crate) gates: FloatRows,
    /// The numbers of the chosen positions, as bits.
    pub(crate) y: FloatRows,
    pub(crate) layer: usize,
    /// Its only head is half a key, and its value the other half.
    pub(crate) cache: KvCache,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) used: usize,
    /// Scores of a single row.
    pub(crate) scores: FloatRows,
    pub(crate) score: Score,
}

/// Scores of some positions of a row: see [`score_plain`].
pub(crate) type Score = unsafe fn(&ChoosePositions, &State, usize, Range<usize>, *mut f32);

/// The function for a key size on an instruction set of this processor.
pub(crate) fn score_for(head_dim: usize, isa: Isa) -> Score {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 && head_dim.is_multiple_of(16) {
        return score_avx512;
    } else if isa >= Isa::Avx2 && head_dim.is_multiple_of(8) {
        return score_avx2;
    }
    #[cfg(target_arch = "aarch64")]
    if isa >= Isa::Neon && head_dim.is_multiple_of(8) {
        return score_neon;
    }
    let _ = (head_dim, isa);
    score_plain
}

impl ChoosePositions {
    /// How many positions a row sees, if it does not see all.
    fn seen(&self, state: &State, row: usize) -> Option<usize> {
        let seen = state.rows[row].reach as usize + 1;
        (seen > self.used).then_some(seen)
    }

    /// The blocks of positions that threads share: those of a single row.
    pub(crate) fn shared_blocks(&self, state: &State, rows: usize) -> usize {
        let seen = self.seen(state, 0).filter(|_| rows == 1);
        seen.map_or(0, |seen| seen.div_ceil(BLOCK))
    }

    /// Scores of one block of the single row.
    ///
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn score_block(&self, state: &State, block: usize) {
        let seen = self.seen(state, 0).unwrap_or(0);
        let span = block * BLOCK..seen.min((block + 1) * BLOCK);
        // SAFETY: there is a score for each position of the context.
        unsafe {
            (self.score)(
                self,
                state,
                0,
                span.clone(),
                self.scores.start.add(span.start),
            )
        }
    }

    /// The choice of one row.
    ///
    /// # Safety
    /// See `super`; `scratch` holds a float for each position of the context, of this thread's own.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, row: usize, scratch: *mut f32) {
        // SAFETY: rows lie in their buffers; scores of a single row were written by the phase before.
        unsafe {
            let y = self.y.row_mut(row, self.used);
            let Some(seen) = self.seen(state, row) else {
                let all = state.rows[row].reach as usize + 1;
                let places = (0u32..).zip(y.iter_mut());
                places.for_each(|(i, y)| *y = f32::from_bits(i));
                y[all..].fill(0.0);
                return;
            };
            let scores = if self.shared_blocks(state, rows) > 0 {
                self.scores.start
            } else {
                (self.score)(self, state, row, 0..seen, scratch);
                scratch
            };
            choose(std::slice::from_raw_parts(scores, seen), y);
        }
    }

    /// The key of a position, as floats.
    ///
    /// # Safety
    /// See `super`; the row sees the position.
    #[inline(always)]
    unsafe fn key(&self, state: &State, row: usize, position: usize, key: &mut [f32]) {
        let slot = state.rows[row].slot as usize;
        let widen = widen_for(self.cache.format);
        for (part, half) in key.chunks_exact_mut(self.head_dim / 2).enumerate() {
            // SAFETY: promised by the caller.
            let bytes = unsafe {
                let at = self.cache.at(state, self.layer, part, 0, slot, position);
                std::slice::from_raw_parts(at, self.cache.row_bytes)
            };
            widen(bytes, half);
        }
    }
}

/// Scores of the positions `span` of a row, one after the other.
///
/// # Safety
/// See `super`; the row sees the positions, and `scores` has room for them.
unsafe fn score_plain(
    c: &ChoosePositions,
    state: &State,
    row: usize,
    span: Range<usize>,
    scores: *mut f32,
) {
    let mut key = [0.0; 2 * MAX_HEAD_DIM];
    let key = &mut key[..c.head_dim];
    // SAFETY: promised by the caller.
    unsafe {
        let queries = c.q.row(row, c.heads * c.head_dim);
        let gates = c.gates.row(row, c.heads);
        for (i, position) in span.enumerate() {
            c.key(state, row, position, key);
            let heads = queries.chunks_exact(c.head_dim).zip(gates);
            let sum = heads.fold(0.0, |sum, (q, gate)| sum + gate * dot(q, key).max(0.0));
            *scores.add(i) = sum;
        }
    }
}

/// The same with vectors, as many heads at a time as a vector has lanes.
///
/// # Safety
/// As [`score_plain`]; a key is a whole number of vectors, and the processor has the instructions.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
unsafe fn score<L: super::vectors::Lanes>(
    c: &ChoosePositions,
    state: &State,
    row: usize,
    span: Range<usize>,
    scores: *mut f32,
) {
    let mut key = [0.0; 2 * MAX_HEAD_DIM];
    let key = &mut key[..c.head_dim];
    // SAFETY: promised by the caller.
    unsafe {
        let queries = c.q.row(row, c.heads * c.head_dim);
        let gates = c.gates.row(row, c.heads);
        for (i, position) in span.enumerate() {
            c.key(state, row, position, key);
            let mut total = 0.0;
            let all = queries.chunks(L::N * c.head_dim).zip(gates.chunks(L::N));
            for (queries, gates) in all {
                let mut sums = [L::splat(0.0); 16];
                for (sum, q) in sums.iter_mut().zip(queries.chunks_exact(c.head_dim)) {
                    for d in (0..c.head_dim).step_by(L::N) {
                        let (q, k) = (q.as_ptr().add(d), key.as_ptr().add(d));
                        *sum = L::fma(L::load(q), L::load(k), *sum);
                    }
                }
                let mut each = [0.0f32; 16];
                L::store(each.as_mut_ptr(), L::sums(&sums[..L::N]));
                let pairs = each.iter().zip(gates);
                total = pairs.fold(total, |sum, (each, gate)| sum + gate * each.max(0.0));
            }
            *scores.add(i) = total;
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! score {
    ($name:ident, $lanes:ty, $features:literal) => {
        /// # Safety
        /// As [`score`].
        #[target_feature(enable = $features)]
        unsafe fn $name(
            c: &ChoosePositions,
            state: &State,
            row: usize,
            span: Range<usize>,
            scores: *mut f32,
        ) {
            // SAFETY: promised by the caller.
            unsafe { score::<$lanes>(c, state, row, span, scores) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
score!(score_avx2, super::vectors::Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
score!(
    score_avx512,
    super::vectors::Avx512,
    "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
);
#[cfg(target_arch = "aarch64")]
score!(score_neon, super::vectors::Neon, "neon");

/// A number whose order is that of the scores.
fn rank(score: f32) -> u32 {
    // The sum makes one zero of both.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

/// Writes the places of the largest scores, as many as `y` has room for, in ascending order. There are more scores than that.
fn choose(scores: &[f32], y: &mut [f32]) {
    // The rank of the last one that is chosen, eight bits at a time, and how many of that rank are.
    let (mut last, mut left) = (0u32, y.len());
    for shift in [24, 16, 8, 0] {
        let mut counts = [0usize; 256];
        for score in scores {
            let rank = rank(*score);
            if shift == 24 || rank >> (shift + 8) == last >> (shift + 8) {
                counts[(rank >> shift & 0xff) as usize] += 1;
            }
        }
        for (byte, count) in counts.iter().enumerate().rev() {
            if *count >= left {
                last |= (byte as u32) << shift;
                break;
            }
            left -= count;
        }
    }
    let mut places = y.iter_mut();
    for (at, score) in (0u32..).zip(scores) {
        let rank = rank(*score);
        if rank < last || rank == last && left == 0 {
            continue;
        }
        left -= usize::from(rank == last);
        match places.next() {
            Some(place) => *place = f32::from_bits(at),
            None => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::choose;

    fn chosen(scores: &[f32], count: usize) -> Vec<u32> {
        let mut y = vec![f32::NAN; count];
        choose(scores, &mut y);
        y.iter().map(|at| at.to_bits()).collect()
    }

    #[test]
    fn the_best_are_chosen_and_the_first_on_a_tie() {
        let scores = [0.0, 3.0, -0.0, -1.0, 2.0, 2.0, 0.0, 1e-30];
        assert_eq!(chosen(&scores, 1), [1]);
        assert_eq!(chosen(&scores, 2), [1, 4]);
        assert_eq!(chosen(&scores, 4), [1, 4, 5, 7]);
        assert_eq!(chosen(&scores, 5), [0, 1, 4, 5, 7]);
        assert_eq!(chosen(&scores, 6), [0, 1, 2, 4, 5, 7]);
        assert_eq!(chosen(&[-2.0, -1.0, -3.0, f32::NEG_INFINITY], 2), [0, 1]);
        assert_eq!(chosen(&[f32::NAN; 5], 3), [0, 1, 2]);
    }
}
