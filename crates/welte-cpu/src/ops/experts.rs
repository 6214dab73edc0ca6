//! Mixtures of experts. An entry is a row with one of the experts that it chose. Entries are grouped by expert, so that each
//! expert's matrix is read once.

use super::matmul::{CHUNK, FUSED_COLUMNS, ROW_BLOCK};
use super::{Bytes, FloatRows, Floats, activate_and_multiply};
use crate::kernels::Kernel;
use std::ops::Range;

/// The most experts that [`Route`] can choose from: it scores them in an array on the stack.
pub(crate) const MOST_EXPERTS: usize = 1024;

/// Chooses the best experts, with their shares.
pub(crate) struct Route {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) experts: usize,
    pub(crate) used: usize,
    pub(crate) renormalise: bool,
    pub(crate) scale: f32,
    /// A factor per expert, if any.
    pub(crate) scales: Floats,
    /// Scores are sigmoids; otherwise they are shares of a softmax.
    pub(crate) sigmoid: bool,
    /// A share is that of a softmax over the experts not yet chosen within this margin of the best.
    pub(crate) margin: Option<f32>,
    /// Added to the scores for the choice.
    pub(crate) bias: Floats,
    pub(crate) groups: usize,
    pub(crate) used_groups: usize,
    /// A group is rated by its best expert, or by its two best.
    pub(crate) group_top: usize,
}

impl Route {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        if let Some(margin) = self.margin {
            // SAFETY: promised by the caller.
            return unsafe { self.run_mixed(row, margin) };
        }
        if self.sigmoid || self.groups > 1 || !self.bias.0.is_null() {
            // SAFETY: promised by the caller.
            return unsafe { self.run_scored(row) };
        }
        // SAFETY: both rows lie in their buffers, and are apart.
        let (x, y) = unsafe {
            (
                self.x.row(row, self.experts),
                self.y.row_mut(row, 2 * self.used),
            )
        };
        let (ids, shares) = y.split_at_mut(self.used);
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut before = usize::MAX;
        for (id, share) in ids.iter_mut().zip(&mut *shares) {
            let next = best_after(x, before);
            *id = f32::from_bits(next as u32);
            *share = (x[next] - largest).exp();
            before = next;
        }
        let sum: f32 = if self.renormalise {
            shares.iter().sum()
        } else {
            x.iter().map(|x| (x - largest).exp()).sum()
        };
        self.scale_shares(ids, shares, sum);
    }
}

impl Route {
    /// The choice by SparseMixer.
    ///
    /// # Safety
    /// See `super`.
    unsafe fn run_mixed(&self, row: usize, margin: f32) {
        // SAFETY: both rows lie in their buffers, and are apart.
        let (x, y) = unsafe {
            (
                self.x.row(row, self.experts),
                self.y.row_mut(row, 2 * self.used),
            )
        };
        let (ids, shares) = y.split_at_mut(self.used);
        let mut before = usize::MAX;
        for (slot, share) in shares.iter_mut().enumerate() {
            let next = best_after(x, before);
            let best = x[next];
            let is_open = |expert: usize| {
                let chosen = &ids[..slot];
                !chosen.iter().any(|id| id.to_bits() as usize == expert)
            };
            let open = (0..self.experts).filter(|expert| is_open(*expert));
            let near = open
                .map(|expert| x[expert])
                .filter(|x| best - x <= margin * x.abs().max(best));
            *share = 1.0 / near.map(|x| (x - best).exp()).sum::<f32>();
            ids[slot] = f32::from_bits(next as u32);
            before = next;
        }
        self.scale_shares(ids, shares, 1.0);
    }

    /// The choice by scores.
    ///
    /// # Safety
    /// See `super`.
    unsafe fn run_scored(&self, row: usize) {
        // SAFETY: both rows lie in their buffers, and are apart; the bias has a value for each expert.
        let (x, y, bias) = unsafe {
            (
                self.x.row(row, self.experts),
                self.y.row_mut(row, 2 * self.used),
                self.bias.get(self.experts),
            )
        };
        let mut choice = [0.0; MOST_EXPERTS];
        let choice = &mut choice[..self.experts];
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: f32 = if self.sigmoid {
            1.0
        } else {
            x.iter().map(|x| (x - largest).exp()).sum()
        };
        let score = |x: f32| {
            if self.sigmoid {
                1.0 / (1.0 + (-x).exp())
            } else {
                (x - largest).exp() / all
            }
        };
        for (choice, x) in choice.iter_mut().zip(x) {
            *choice = score(*x);
        }
        for (choice, bias) in choice.iter_mut().zip(bias.unwrap_or(&[])) {
            *choice += bias;
        }
        if bias.is_none() && self.groups == 1 {
            // Scores may round different logits to the same value.
            choice.copy_from_slice(x);
        }
        self.close_groups(choice);
        let (ids, shares) = y.split_at_mut(self.used);
        let mut before = usize::MAX;
        for (id, share) in ids.iter_mut().zip(&mut *shares) {
            let next = best_after(choice, before);
            *id = f32::from_bits(next as u32);
            *share = score(x[next]);
            before = next;
        }
        let sum = if self.renormalise {
            shares.iter().sum::<f32>().max(1e-20)
        } else {
            1.0
        };
        self.scale_shares(ids, shares, sum);
    }

    /// Divides the shares by their sum, and multiplies them by the factors of all experts and of each.
    fn scale_shares(&self, ids: &[f32], shares: &mut [f32], sum: f32) {
        // SAFETY: there is a factor for every expert.
        let scales = unsafe { self.scales.get(self.experts) };
        for (id, share) in ids.iter().zip(shares) {
            let own = scales.map_or(1.0, |scales| scales[id.to_bits() as usize]);
            *share = *share / sum * (self.scale * own);
        }
    }

    /// Makes the experts of all but the best groups come last.
    fn close_groups(&self, choice: &mut [f32]) {
        if self.groups == 1 {
            return;
        }
        let size = self.experts / self.groups;
        let mut ratings = [0.0; MOST_EXPERTS];
        let ratings = &mut ratings[..self.groups];
        for (rating, group) in ratings.iter_mut().zip(choice.chunks(size)) {
            let best = best_after(group, usize::MAX);
            *rating = match self.group_top {
                1 => group[best],
                _ => group[best] + group[best_after(group, best)],
            };
        }
        let mut open = 0u64;
        let mut before = usize::MAX;
        for _ in 0..self.used_groups {
            before = best_after(ratings, before);
            open |= 1 << before;
        }
        for (index, group) in choice.chunks_mut(size).enumerate() {
            if open & 1 << index == 0 {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// The largest value that comes after `before` in descending order, the lowest index first on a tie.
fn best_after(x: &[f32], before: usize) -> usize {
    let follows = |i: usize| match x.get(before) {
        None => true,
        Some(last) => match x[i].total_cmp(last) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => i > before,
            std::cmp::Ordering::Greater => false,
        },
    };
    (0..x.len())
        .filter(|i| follows(*i))
        .reduce(|a, b| if x[b].total_cmp(&x[a]).is_gt() { b } else { a })
        .unwrap_or(0)
}

/// Entries grouped by expert, in a block of `u32`: the start of each expert's entries, then the position of each entry in
/// the grouped order, then the entry at each position. Entry number: row times `used` plus the rank of the expert.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    pub(crate) start: Bytes,
    pub(crate) experts: usize,
    pub(crate) used: usize,
    /// The most entries that there may be.
    pub(crate) entries: usize,
}

impl Groups {
    /// Bytes of the block.
    pub(crate) fn bytes(experts: usize, used: usize, rows: usize) -> usize {
        (experts + 1 + 2 * used * rows) * 4
    }

    /// The expert of a choice. It is in range even if the row's logits were NaN.
    fn expert(&self, id: f32) -> usize {
        (id.to_bits() as usize).min(self.experts - 1)
    }

    /// # Safety
    /// Nobody writes the groups while the slice lives.
    unsafe fn words<'a>(&self) -> &'a [u32] {
        let len = self.experts + 1 + 2 * self.entries;
        // SAFETY: the block was made by `bytes`.
        unsafe { std::slice::from_raw_parts(self.start.0.cast(), len) }
    }

    /// # Safety
    /// As for `words`.
    unsafe fn of_expert(&self, expert: usize) -> Range<usize> {
        // SAFETY: promised by the caller.
        let words = unsafe { self.words() };
        words[expert] as usize..words[expert + 1] as usize
    }

    /// # Safety
    /// As for `words`.
    unsafe fn place(&self, entry: usize) -> usize {
        // SAFETY: promised by the caller.
        unsafe { self.words()[self.experts + 1 + entry] as usize }
    }

    /// # Safety
    /// As for `words`.
    unsafe fn entry(&self, place: usize) -> usize {
        // SAFETY: promised by the caller.
        unsafe { self.words()[self.experts + 1 + self.entries + place] as usize }
    }

    /// Groups the entries of the first `rows` rows of `choice`. The phase has one chunk.
    ///
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn fill(&self, choice: FloatRows, rows: usize) {
        let len = self.experts + 1 + 2 * self.entries;
        // SAFETY: the block was made by `bytes`; this phase has one chunk.
        let words = unsafe { std::slice::from_raw_parts_mut(self.start.0.cast::<u32>(), len) };
        let (starts, rest) = words.split_at_mut(self.experts + 1);
        let (places, entries) = rest.split_at_mut(self.entries);
        let expert = |entry: usize| {
            // SAFETY: the row lies in its buffer, and nobody writes it now.
            let row = unsafe { choice.row(entry / self.used, self.used) };
            self.expert(row[entry % self.used])
        };
        starts.fill(0);
        let count = rows * self.used;
        for entry in 0..count {
            starts[expert(entry) + 1] += 1;
        }
        for e in 0..self.experts {
            starts[e + 1] += starts[e];
        }
        for entry in 0..count {
            let at = &mut starts[expert(entry)];
            places[entry] = *at;
            entries[*at as usize] = entry as u32;
            *at += 1;
        }
        // Each start has advanced to the next expert's.
        starts.copy_within(0..self.experts, 1);
        starts[0] = 0;
    }
}

/// Prepares the activations of every entry, in the order of the groups.
pub(crate) struct PrepareEntries {
    pub(crate) kernel: Kernel,
    pub(crate) groups: Groups,
    pub(crate) x: FloatRows,
    pub(crate) k: usize,
    /// Every entry has its own `k` values; otherwise all entries of a row share them.
    pub(crate) own: bool,
    pub(crate) acts: Bytes,
    pub(crate) acts_bytes: usize,
}

impl PrepareEntries {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        let used = self.groups.used;
        let mut first: Option<*const u8> = None;
        for slot in 0..used {
            // SAFETY: the place is below the number of entries, for which there is room; no two entries share one.
            unsafe {
                let place = self.groups.place(row * used + slot);
                let at = self.acts.0.add(place * self.acts_bytes);
                match first {
                    Some(done) if !self.own => {
                        std::ptr::copy_nonoverlapping(done, at, self.acts_bytes)
                    }
                    _ => {
                        let from = if self.own { slot * self.k } else { 0 };
                        let x = self.x.start.add(row * self.x.stride + from);
                        let x = std::slice::from_raw_parts(x, self.k);
                        let acts = std::slice::from_raw_parts_mut(at, self.acts_bytes);
                        self.kernel.prepare(x, acts);
                        first = Some(at);
                    }
                }
            }
        }
    }
}

/// What happens to the outputs of an expert.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
    /// The expert has gate and up: store `act(gate) * up` in the entry's part of its row.
    ActMul(u32),
    /// The expert has no gate: store `relu(up)^2` there.
    SquaredRelu,
    /// Store them there as they are.
    Plain,
    /// Store them in the order of the groups.
    Keep,
}

impl Epilogue {
    /// Matrices of an expert.
    fn matrices(self) -> usize {
        if let Epilogue::ActMul(_) = self { 2 } else { 1 }
    }
}

/// The experts' matrices times their entries.
pub(crate) struct ExpertsMatmul {
    pub(crate) kernel: Kernel,
    pub(crate) groups: Groups,
    pub(crate) tiles: Bytes,
    /// Outputs of one expert, or of its gate; whole tiles.
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) acts: Bytes,
    pub(crate) acts_bytes: usize,
    pub(crate) y: FloatRows,
    pub(crate) epilogue: Epilogue,
    /// Biases of gate and up, or of up, as many per expert as its matrix has rows.
    pub(crate) bias: Floats,
}

impl ExpertsMatmul {
    fn tiles_per_chunk(&self) -> usize {
        let by_bytes = CHUNK / self.kernel.tile_bytes(self.k).max(1);
        by_bytes.clamp(1, FUSED_COLUMNS / self.kernel.tile_rows)
    }

    fn chunks_per_expert(&self) -> usize {
        (self.n / self.kernel.tile_rows).div_ceil(self.tiles_per_chunk())
    }

    /// A single row uses `used` experts; several rows may use all.
    pub(crate) fn chunks(&self, rows: usize) -> usize {
        let experts = match rows {
            1 => self.groups.used,
            _ => self.groups.experts,
        };
        experts * self.chunks_per_expert()
    }

    /// # Safety
    /// See `super`; `scratch` holds `2 * ROW_BLOCK * FUSED_COLUMNS` floats of this thread's own.
    pub(crate) unsafe fn run(&self, rows: usize, chunk: usize, scratch: *mut f32) {
        let groups = &self.groups;
        let (which, part) = (
            chunk / self.chunks_per_expert(),
            chunk % self.chunks_per_expert(),
        );
        // SAFETY: the groups were filled by an earlier phase.
        let (expert, entries) = unsafe {
            match rows {
                // With one row the chunk number is a position in the grouped order.
                1 => (self.expert_at(which), which..which + 1),
                _ => (which, groups.of_expert(which)),
            }
        };
        let tile_rows = self.kernel.tile_rows;
        let first = part * self.tiles_per_chunk() * tile_rows;
        let n = (self.tiles_per_chunk() * tile_rows).min(self.n - first);
        let matrices = self.epilogue.matrices();
        let tile_bytes = self.kernel.tile_bytes(self.k);
        let tile = (expert * matrices * self.n + first) / tile_rows;
        let mut at = entries.start;
        while at < entries.end {
            let count = ROW_BLOCK.min(entries.end - at);
            // SAFETY: the expert's tiles, the entries' activations and outputs lie in their blocks; chunks of one
            // expert write different columns, experts different entries.
            unsafe {
                let tiles = self.tiles.0.add(tile * tile_bytes);
                let acts = self.acts.0.add(at * self.acts_bytes);
                let multiply = |tiles: *const u8, out: *mut f32, stride: usize| {
                    self.kernel
                        .matmul(tiles, n, self.k, acts, count, out, stride, false)
                };
                match self.epilogue {
                    Epilogue::Keep => {
                        let out = self.y.start.add(at * self.y.stride + first);
                        multiply(tiles, out, self.y.stride);
                    }
                    Epilogue::SquaredRelu | Epilogue::Plain => {
                        multiply(tiles, scratch, FUSED_COLUMNS);
                        let bias = self.bias.get(groups.experts * self.n).map(|bias| {
                            let at = expert * self.n + first;
                            &bias[at..at + n]
                        });
                        for i in 0..count {
                            let y = self.part(groups.entry(at + i), first, n);
                            let up = std::slice::from_raw_parts(scratch.add(i * FUSED_COLUMNS), n);
                            y.copy_from_slice(up);
                            if let Some(bias) = bias {
                                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                            }
                            if matches!(self.epilogue, Epilogue::SquaredRelu) {
                                y.iter_mut().for_each(|y| *y = y.max(0.0) * y.max(0.0));
                            }
                        }
                    }
                    Epilogue::ActMul(act) => {
                        let up = scratch.add(ROW_BLOCK * FUSED_COLUMNS);
                        multiply(tiles, scratch, FUSED_COLUMNS);
                        multiply(
                            tiles.add(self.n / tile_rows * tile_bytes),
                            up,
                            FUSED_COLUMNS,
                        );
                        let all = groups.experts * 2 * self.n;
                        let bias = self.bias.get(all).map(|bias| {
                            let at = expert * 2 * self.n + first;
                            (&bias[at..at + n], &bias[at + self.n..at + self.n + n])
                        });
                        for i in 0..count {
                            let y = self.part(groups.entry(at + i), first, n);
                            let from = i * FUSED_COLUMNS;
                            let gate = std::slice::from_raw_parts_mut(scratch.add(from), n);
                            let up = std::slice::from_raw_parts_mut(up.add(from), n);
                            if let Some((gate_bias, up_bias)) = bias {
                                gate.iter_mut().zip(gate_bias).for_each(|(g, b)| *g += b);
                                up.iter_mut().zip(up_bias).for_each(|(u, b)| *u += b);
                            }
                            activate_and_multiply(act, gate, up, y);
                        }
                    }
                }
            }
            at += count;
        }
    }

    /// Outputs of an entry in its row, from column `first` on.
    ///
    /// # Safety
    /// They lie in the row, and nobody else uses them while the slice lives.
    unsafe fn part<'a>(&self, entry: usize, first: usize, n: usize) -> &'a mut [f32] {
        let used = self.groups.used;
        let (row, column) = (entry / used, entry % used * self.n + first);
        // SAFETY: promised by the caller.
        unsafe {
            let y = self.y.start.add(row * self.y.stride + column);
            std::slice::from_raw_parts_mut(y, n)
        }
    }

    /// The expert whose group holds a place.
    ///
    /// # Safety
    /// The groups were filled by an earlier phase.
    unsafe fn expert_at(&self, place: usize) -> usize {
        // SAFETY: promised by the caller.
        let starts = unsafe { &self.groups.words()[..=self.groups.experts] };
        starts.partition_point(|start| *start as usize <= place) - 1
    }
}

/// Adds up the outputs of a row's experts, in the order in which they were chosen.
pub(crate) struct Combine {
    pub(crate) groups: Groups,
    pub(crate) choice: FloatRows,
    pub(crate) parts: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    /// `n` for each expert, or none.
    pub(crate) bias: Floats,
}

impl Combine {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        let used = self.groups.used;
        // SAFETY: the rows lie in their buffers; nobody else writes this one.
        unsafe {
            let y = self.y.row_mut(row, self.n);
            let (ids, shares) = self.choice.row(row, 2 * used).split_at(used);
            let bias = self.bias.get(self.groups.experts * self.n);
            for (slot, (id, share)) in ids.iter().zip(shares).enumerate() {
                let part = self.parts.row(self.groups.place(row * used + slot), self.n);
                match bias {
                    None => y.iter_mut().zip(part).for_each(|(y, v)| *y += share * v),
                    Some(bias) => {
                        let at = self.groups.expert(*id) * self.n;
                        let values = part.iter().zip(&bias[at..at + self.n]);
                        y.iter_mut()
                            .zip(values)
                            .for_each(|(y, (v, b))| *y += share * (v + b));
                    }
                }
            }
        }
    }
}
