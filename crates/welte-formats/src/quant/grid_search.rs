//! The search for entries, signs and scales of IQ1, IQ2 and IQ3. As in the K formats, each sub-block tries scales around the obvious one.
//! Under a scale, a group of elements is rounded to the levels of the format; the table's entries near that are compared by their
//! weighted error.

use super::grid;
use super::search::{as_half, weights};
use std::sync::LazyLock;
use welte_table::Format;

/// Entries that are compared for a group.
const NEAR: usize = 12;

/// Scales that a sub-block tries: the largest level at these shares of the largest element.
const CANDIDATES: [f32; 15] = [
    0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2,
];

/// Where the signs of elements are.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Signs {
    /// One of each element.
    Free,
    /// An even number of each eight elements is negative.
    Even,
    /// In the table's values.
    InTable,
}

/// A format's table, its values and its entries near each point.
pub(super) struct Table {
    entries: &'static [u16],
    /// Elements of an entry.
    group: usize,
    /// The value of each number of an entry.
    levels: &'static [f32],
    signs: Signs,
    /// The nearest entries for each combination of numbers; an entry may occur twice.
    near: Vec<[u16; NEAR]>,
}

/// A block of 256 elements: `x = d · scale · ±(value + shift)`.
pub(super) struct Fit {
    pub(super) d: f32,
    /// The scale of each sub-block of 16 is `2 · scale + 1`.
    pub(super) scales: [u8; 16],
    /// The entry of each group: 32 or 64.
    pub(super) entries: [u16; 64],
    /// For each eight elements, the bits of those that are negative.
    pub(super) signs: [u8; 32],
    /// For each eight elements: whether the shift is negative (IQ1).
    pub(super) below: [bool; 32],
}

const MAGNITUDES: [f32; 3] = [1.0, 3.125, 5.375];
const TRITS: [f32; 3] = [-1.0, 0.0, 1.0];
const EVEN_STEPS: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const STRETCHED: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.5];
/// What IQ1 adds to its values or takes away.
const SHIFT: f32 = 0.125;

pub(super) static IQ1: LazyLock<Table> =
    LazyLock::new(|| Table::new(Format::IQ1_S, 8, &TRITS, Signs::InTable));
pub(super) static IQ2_XXS: LazyLock<Table> =
    LazyLock::new(|| Table::new(Format::IQ2_XXS, 8, &MAGNITUDES, Signs::Even));
pub(super) static IQ2_XS: LazyLock<Table> =
    LazyLock::new(|| Table::new(Format::IQ2_XS, 8, &MAGNITUDES, Signs::Even));
pub(super) static IQ2_S: LazyLock<Table> =
    LazyLock::new(|| Table::new(Format::IQ2_S, 8, &MAGNITUDES, Signs::Free));
pub(super) static IQ3_XXS: LazyLock<Table> =
    LazyLock::new(|| Table::new(Format::IQ3_XXS, 4, &STRETCHED, Signs::Even));
pub(super) static IQ3_S: LazyLock<Table> =
    LazyLock::new(|| Table::new(Format::IQ3_S, 4, &EVEN_STEPS, Signs::Free));

impl Table {
    fn new(format: Format, group: usize, levels: &'static [f32], signs: Signs) -> Table {
        let entries = grid::table(format).unwrap_or(&[]);
        let mut table = Table {
            entries,
            group,
            levels,
            signs,
            near: Vec::new(),
        };
        let points = levels.len().pow(group as u32);
        table.near = (0..points).map(|point| table.nearest(point)).collect();
        table
    }

    /// The number of an entry's element.
    fn number(&self, entry: u16, element: usize) -> usize {
        let (bits, mask) = if self.group == 4 { (3, 7) } else { (2, 3) };
        usize::from(entry >> (bits * element)) & mask
    }

    fn value(&self, entry: u16, element: usize) -> f32 {
        self.levels[self.number(self.entries[usize::from(entry)], element)]
    }

    /// The entries nearest to a combination of numbers, the first in the lowest place.
    fn nearest(&self, point: usize) -> [u16; NEAR] {
        let count = self.levels.len();
        let mut target = [0.0; 8];
        let mut rest = point;
        for value in target.iter_mut().take(self.group) {
            *value = self.levels[rest % count];
            rest /= count;
        }
        let distance = |entry: u16| {
            (0..self.group).fold(0.0, |sum, i| {
                let off = self.value(entry, i) - target[i];
                sum + off * off
            })
        };
        let mut best = [(f32::INFINITY, 0); NEAR];
        for entry in 0..self.entries.len() as u16 {
            let mut next = (distance(entry), entry);
            for place in &mut best {
                if next.0 < place.0 {
                    std::mem::swap(place, &mut next);
                }
            }
        }
        best.map(|(_, entry)| entry)
    }

    /// The entry for a group in units of the scale, and nothing of its signs.
    fn choose(&self, x: &[f32], weights: &[f32]) -> u16 {
        let count = self.levels.len();
        let mut point = 0;
        for x in x.iter().rev() {
            let steps = self.levels.windows(2);
            let number = steps.filter(|pair| *x > (pair[0] + pair[1]) * 0.5).count();
            point = point * count + number;
        }
        let error = |entry: u16| {
            let each = x.iter().zip(weights).enumerate();
            each.fold(0.0, |sum, (i, (x, w))| {
                let off = self.value(entry, i) - x;
                sum + w * off * off
            })
        };
        let near = &self.near[point];
        let mut best = (f32::INFINITY, near[0]);
        for entry in near {
            let error = error(*entry);
            if error < best.0 {
                best = (error, *entry);
            }
        }
        best.1
    }

    /// The elements as multiples of a scale above 0 that the table can have, and the bits of the negative ones.
    fn unsigned(&self, x: &[f32; 256], weights: &[f32; 256]) -> ([f32; 256], [u8; 32]) {
        let (mut out, mut signs) = (*x, [0; 32]);
        if self.signs == Signs::InTable {
            return (out, signs);
        }
        let eights = out.as_chunks_mut::<8>().0.iter_mut();
        for ((eight, weights), signs) in eights.zip(weights.as_chunks::<8>().0).zip(&mut signs) {
            for (i, x) in eight.iter_mut().enumerate() {
                if *x < 0.0 {
                    *x = -*x;
                    *signs |= 1 << i;
                }
            }
            if self.signs == Signs::Even && signs.count_ones() % 2 == 1 {
                // The element whose wrong sign costs least.
                let cost = |i: &usize| weights[*i] * eight[*i] * eight[*i];
                let least = (0..8).min_by(|a, b| cost(a).total_cmp(&cost(b)));
                let least = least.unwrap_or(0);
                eight[least] = -eight[least];
                *signs ^= 1 << least;
            }
        }
        (out, signs)
    }

    /// Entries for some groups under a scale. `shift` is added to every value.
    fn entries(&self, x: &[f32], weights: &[f32], inverse: f32, shift: f32, out: &mut [u16]) {
        let mut scaled = [0.0; 8];
        let groups = x
            .chunks_exact(self.group)
            .zip(weights.chunks_exact(self.group));
        for ((x, weights), entry) in groups.zip(out) {
            let scaled = &mut scaled[..self.group];
            for (scaled, x) in scaled.iter_mut().zip(x) {
                *scaled = x * inverse - shift;
            }
            *entry = self.choose(scaled, weights);
        }
    }

    /// Σwxv and Σwvv of values against elements. For given entries the best scale is their quotient.
    fn sums(&self, x: &[f32], weights: &[f32], entries: &[u16], shift: f32) -> (f32, f32) {
        let mut sums = (0.0, 0.0);
        for (i, (x, w)) in x.iter().zip(weights).enumerate() {
            let value = self.value(entries[i / self.group], i % self.group) + shift;
            sums.0 += w * x * value;
            sums.1 += w * value * value;
        }
        sums
    }

    /// The best scale of a sub-block, and how much it reduces the error.
    fn best_scale(&self, x: &[f32], weights: &[f32], shift: f32) -> (f32, f32) {
        let most = x.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        let mut best = (0.0, 0.0);
        if most == 0.0 {
            return best;
        }
        let top = self.levels[self.levels.len() - 1] + shift.abs();
        let mut entries = [0; 8];
        for candidate in CANDIDATES {
            self.entries(x, weights, candidate * top / most, shift, &mut entries);
            let (wxv, wvv) = self.sums(x, weights, &entries, shift);
            if wxv > 0.0 && wvv > 0.0 && wxv * wxv / wvv > best.1 {
                best = (wxv / wvv, wxv * wxv / wvv);
            }
        }
        best
    }

    /// Fits a block whose sub-blocks of `sub` elements share a scale from 0 to `top`. IQ1 has a shift for each `shifted` elements.
    pub(super) fn fit(
        &self,
        x: &[f32; 256],
        importance: &[f32; 256],
        sub: usize,
        top: u8,
        shifted: usize,
    ) -> Fit {
        let mut matter = [0.0; 256];
        let parts = x.as_chunks::<32>().0.iter();
        let parts = parts.zip(importance.as_chunks::<32>().0);
        for ((x, importance), out) in parts.zip(matter.as_chunks_mut::<32>().0) {
            *out = weights(x, importance);
        }
        let (x, signs) = self.unsigned(x, &matter);
        let mut fit = Fit {
            d: 0.0,
            scales: [0; 16],
            entries: [0; 64],
            signs,
            below: [false; 32],
        };
        let mut ideal = [0.0f32; 16];
        for (at, ideal) in ideal.iter_mut().enumerate().take(256 / sub) {
            let range = at * sub..(at + 1) * sub;
            let (x, w) = (&x[range.clone()], &matter[range.clone()]);
            if self.signs != Signs::InTable {
                *ideal = self.best_scale(x, w, 0.0).0;
                continue;
            }
            let below = self.better_shifts(x, w, shifted);
            let eights = &mut fit.below[range.start / 8..range.end / 8];
            for (i, eight) in eights.iter_mut().enumerate() {
                *eight = below[i * 8 / shifted];
            }
            *ideal = self
                .best_scale(x, w, self.shift(fit.below[range.start / 8]))
                .0;
        }
        let largest = ideal.iter().copied().fold(0.0, f32::max);
        let d = as_half(largest / (2.0 * f32::from(top) + 1.0));
        fit.d = d;
        if d == 0.0 {
            // Entry 0 times a scale of 0.
            return fit;
        }
        for (at, ideal) in ideal.iter().enumerate().take(256 / sub) {
            let range = at * sub..(at + 1) * sub;
            let near = ((ideal / d - 1.0) * 0.5).round().clamp(0.0, f32::from(top)) as u8;
            let mut best = (f32::INFINITY, 0, [0u16; 8]);
            for scale in [near, near.saturating_sub(1), (near + 1).min(top)] {
                let unit = d * (2.0 * f32::from(scale) + 1.0);
                let (error, entries) = self.under(&x, &matter, &fit, range.clone(), unit);
                if error < best.0 {
                    best = (error, scale, entries);
                }
            }
            let groups = range.start / self.group..range.end / self.group;
            let count = groups.len();
            fit.entries[groups].copy_from_slice(&best.2[..count]);
            fit.scales[range.start / 16..range.end / 16].fill(best.1);
        }
        fit
    }

    /// The entries of a sub-block under a scale, and their error.
    fn under(
        &self,
        x: &[f32; 256],
        weights: &[f32; 256],
        fit: &Fit,
        range: std::ops::Range<usize>,
        unit: f32,
    ) -> (f32, [u16; 8]) {
        let mut entries = [0; 8];
        let mut error = 0.0;
        for (group, at) in range.step_by(self.group).enumerate() {
            let shift = self.shift(fit.below[at / 8]);
            let (x, w) = (&x[at..at + self.group], &weights[at..at + self.group]);
            let entry = &mut entries[group..group + 1];
            self.entries(x, w, 1.0 / unit, shift, entry);
            for (i, (x, w)) in x.iter().zip(w).enumerate() {
                let off = unit * (self.value(entry[0], i) + shift) - x;
                error += w * off * off;
            }
        }
        (error, entries)
    }

    fn shift(&self, below: bool) -> f32 {
        match self.signs {
            Signs::InTable if below => -SHIFT,
            Signs::InTable => SHIFT,
            Signs::Free | Signs::Even => 0.0,
        }
    }

    /// Whether each part of a sub-block is better off with a negative shift.
    fn better_shifts(&self, x: &[f32], weights: &[f32], shifted: usize) -> [bool; 4] {
        let mut below = [false; 4];
        let parts = x.chunks(shifted).zip(weights.chunks(shifted));
        for ((x, weights), below) in parts.zip(&mut below) {
            let gain = |below| self.best_scale(x, weights, self.shift(below)).1;
            *below = gain(true) > gain(false);
        }
        below
    }
}
