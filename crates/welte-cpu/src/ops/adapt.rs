//! Low-rank parts of products: the adapter of each row's slot.
//!
//! A sum has one order whatever the instruction set, the number of rows and of threads.

use super::{Bytes, FloatRows, Floats, State, widest};
use welte_device::SlotAdapter;
use welte_table::{Bank, Input};

/// Low-rank values of one chunk.
const RANKS: usize = 8;
/// Outputs of one chunk.
const COLUMNS: usize = 1024;

/// A bank in memory.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) start: Bytes,
    pub(crate) bank: Bank,
    pub(crate) place_bytes: usize,
    /// The rows that it is for are output rows.
    pub(crate) on_outputs: bool,
}

/// A set of a place: what one adapter adds to one tensor.
#[derive(Clone, Copy)]
struct Set {
    place: *const u8,
    rank: usize,
    scale: f32,
}

impl Places {
    fn adapter(&self, state: &State, row: usize) -> Option<SlotAdapter> {
        let row = if self.on_outputs {
            state.outputs[row] as usize
        } else {
            row
        };
        state.adapters[state.rows[row].slot as usize]
    }

    /// # Safety
    /// The bank has the adapter's place, which nobody writes now.
    unsafe fn set(&self, adapter: SlotAdapter, expert: usize, part: usize) -> Set {
        let number = expert * self.bank.parts as usize + part;
        // SAFETY: promised by the caller; a place begins with its sets' ranks and scales.
        unsafe {
            let place = self.start.0.add(adapter.place as usize * self.place_bytes);
            let [rank, scale] = *place.cast::<[u32; 2]>().add(number);
            Set {
                place,
                rank: (rank as usize).min(self.bank.rank as usize),
                scale: f32::from_bits(scale) * adapter.scale,
            }
        }
    }

    /// # Safety
    /// As for [`Places::set`]; the set, row and length are within the shape.
    unsafe fn a(&self, set: Set, number: usize, row: usize, len: usize) -> &[u16] {
        let bank = &self.bank;
        let at = bank.head_bytes() as usize + number * bank.a_bytes() as usize + 2 * row * len;
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(set.place.add(at).cast(), len) }
    }
}

/// Who the experts of a row are.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) choice: FloatRows,
    pub(crate) used: usize,
    /// Each expert has values of its own: those that are read, or those that are written.
    pub(crate) own: bool,
}

impl Chosen {
    /// # Safety
    /// See `super`.
    unsafe fn expert(&self, row: usize, which: usize, experts: u32) -> (usize, f32) {
        // SAFETY: the row lies in its buffer, and nobody writes it now.
        let choice = unsafe { self.choice.row(row, 2 * self.used) };
        let expert = (choice[which].to_bits()).min(experts - 1) as usize;
        (expert, choice[self.used + which])
    }
}

/// `h = scale * A x`.
pub(crate) struct AdaptDown {
    pub(crate) places: Places,
    pub(crate) x: FloatRows,
    pub(crate) h: FloatRows,
    pub(crate) chosen: Option<Chosen>,
}

impl AdaptDown {
    fn blocks(&self) -> usize {
        (self.places.bank.rank as usize).div_ceil(RANKS)
    }

    fn used(&self) -> usize {
        self.chosen.map_or(1, |chosen| chosen.used)
    }

    pub(crate) fn chunks(&self, rows: usize) -> usize {
        rows * self.used() * self.places.bank.parts as usize * self.blocks()
    }

    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, chunk: usize) {
        let bank = &self.places.bank;
        let (parts, rank, k) = (bank.parts as usize, bank.rank as usize, bank.k as usize);
        let (rest, block) = (chunk / self.blocks(), chunk % self.blocks());
        let (rest, part) = (rest / parts, rest % parts);
        let (row, which) = (rest / self.used(), rest % self.used());
        let (first, end) = (block * RANKS, rank.min((block + 1) * RANKS));
        // SAFETY: rows and place lie in their buffers; chunks write apart from each other.
        unsafe {
            let start = self.h.start.add(row * self.h.stride);
            let start = start.add((which * parts + part) * rank + first);
            let h = std::slice::from_raw_parts_mut(start, end - first);
            h.fill(0.0);
            let Some(adapter) = self.places.adapter(state, row) else {
                return;
            };
            let expert = match &self.chosen {
                Some(chosen) => chosen.expert(row, which, bank.experts).0,
                None => 0,
            };
            let own = self.chosen.is_some_and(|chosen| chosen.own);
            let from = if own { which * k } else { 0 };
            let x = self.x.start.add(row * self.x.stride + from);
            let x = std::slice::from_raw_parts(x, k);
            let set = self.places.set(adapter, expert, part);
            for (h, number) in h.iter_mut().zip(first..set.rank) {
                let a = self.places.a(set, expert * parts + part, number, k);
                *h = set.scale * dot(a, x);
            }
        }
    }
}

/// `h = scale * A[token]`.
pub(crate) struct AdaptLookup {
    pub(crate) places: Places,
    pub(crate) tokens: *const u32,
    pub(crate) scale: f32,
    pub(crate) h: FloatRows,
}

// SAFETY: addresses only; see `super`.
unsafe impl Send for AdaptLookup {}
// SAFETY: as above.
unsafe impl Sync for AdaptLookup {}

impl AdaptLookup {
    /// # Safety
    /// See `super`; the tokens were checked against the vocabulary.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        let rank = self.places.bank.rank as usize;
        // SAFETY: row, token and place lie in their buffers.
        unsafe {
            let h = self.h.row_mut(row, rank);
            h.fill(0.0);
            let adapter = self.places.adapter(state, row);
            let (Some(adapter), Input::Token(_)) = (adapter, state.rows[row].input) else {
                return;
            };
            let set = self.places.set(adapter, 0, 0);
            let a = self.places.a(set, 0, *self.tokens.add(row) as usize, rank);
            for (h, a) in h.iter_mut().zip(&a[..set.rank]) {
                *h = set.scale * self.scale * widen(*a);
            }
        }
    }
}

/// `y += B h`.
pub(crate) struct AdaptUp {
    pub(crate) places: Places,
    pub(crate) h: FloatRows,
    pub(crate) y: FloatRows,
    /// The part of each row of the matrix.
    pub(crate) parts: Floats,
    pub(crate) chosen: Option<Chosen>,
}

impl AdaptUp {
    fn blocks(&self) -> usize {
        (self.places.bank.n as usize).div_ceil(COLUMNS)
    }

    pub(crate) fn chunks(&self, rows: usize) -> usize {
        rows * self.blocks()
    }

    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, chunk: usize) {
        let bank = &self.places.bank;
        let (row, block) = (chunk / self.blocks(), chunk % self.blocks());
        let n = bank.n as usize;
        let (first, end) = (block * COLUMNS, n.min((block + 1) * COLUMNS));
        let Some(adapter) = self.places.adapter(state, row) else {
            return;
        };
        // SAFETY: rows and place lie in their buffers; chunks write apart from each other.
        unsafe {
            let y = |from: usize| {
                let start = self.y.start.add(row * self.y.stride + from + first);
                std::slice::from_raw_parts_mut(start, end - first)
            };
            let Some(chosen) = &self.chosen else {
                return self.add(adapter, 0, 0, row, 1.0, first, y(0));
            };
            for which in 0..chosen.used {
                let (expert, share) = chosen.expert(row, which, bank.experts);
                let (from, factor) = if chosen.own {
                    (which * n, 1.0)
                } else {
                    (0, share)
                };
                self.add(adapter, expert, which, row, factor, first, y(from));
            }
        }
    }

    /// Adds `factor * B h` of one expert, from output `first` on.
    ///
    /// # Safety
    /// See `super`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn add(
        &self,
        adapter: SlotAdapter,
        expert: usize,
        which: usize,
        row: usize,
        factor: f32,
        first: usize,
        y: &mut [f32],
    ) {
        let bank = &self.places.bank;
        let (parts, rank, n) = (bank.parts as usize, bank.rank as usize, bank.n as usize);
        // SAFETY: promised by the caller.
        unsafe {
            let part_of = self.parts.get(n);
            let h = self.h.start.add(row * self.h.stride + which * parts * rank);
            let h = std::slice::from_raw_parts(h, parts * rank);
            let b_at = bank.b_at(expert as u32) as usize;
            let mut at = 0;
            while at < y.len() {
                // A run of outputs of one part.
                let part = part_of.map_or(0, |parts| parts[first + at] as usize);
                let len = match part_of {
                    None => y.len() - at,
                    Some(parts) => {
                        let rest = parts[first + at..first + y.len()].iter();
                        rest.take_while(|p| **p as usize == part).count()
                    }
                };
                let set = self.places.set(adapter, expert, part);
                if set.rank > 0 {
                    let b = set.place.add(b_at + 2 * rank * (first + at));
                    let b = std::slice::from_raw_parts(b.cast(), rank * len);
                    let h = &h[part * rank..][..set.rank];
                    add_products(b, rank, h, factor, &mut y[at..at + len]);
                }
                at += len;
            }
        }
    }
}

/// A finite f16 as a float.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    const UP: f32 = f32::from_bits(0x7780_0000);
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * UP;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

widest! {
    /// The dot product of f16 and floats.
    fn dot(a: &[u16], x: &[f32]) -> f32 {
        sum_of_products::<16>(a, x)
    }
}

widest! {
    /// `y[i] += factor * (row i of b) h`; rows are `stride` values apart.
    fn add_products(b: &[u16], stride: usize, h: &[f32], factor: f32, y: &mut [f32]) {
        for (y, b) in y.iter_mut().zip(b.chunks_exact(stride)) {
            *y += factor * sum_of_products::<8>(&b[..h.len()], h);
        }
    }
}

/// In N sums, which the compiler makes vectors of, then as a tree: one after the other they would wait for each other.
#[inline(always)]
fn sum_of_products<const N: usize>(a: &[u16], x: &[f32]) -> f32 {
    let (blocks, rest) = a.as_chunks::<N>();
    let (x_blocks, x_rest) = x.as_chunks::<N>();
    let mut sums = [0.0f32; N];
    for (a, x) in blocks.iter().zip(x_blocks) {
        for i in 0..N {
            sums[i] += widen(a[i]) * x[i];
        }
    }
    for (i, (a, x)) in rest.iter().zip(x_rest).enumerate() {
        sums[i] += widen(*a) * x;
    }
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_finite_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(widen(bits).to_bits(), half.to_f32().to_bits(), "{bits:x}");
            }
        }
    }
}
