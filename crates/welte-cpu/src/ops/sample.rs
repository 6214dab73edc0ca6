//! The sample op: the next token of each row.
#![allow(unsafe_code)]

use super::{FloatRows, State};
use std::sync::PoisonError;
use welte_device::argmax;

/// Logits in one chunk of the parallel argmax.
pub(crate) const CHUNK: usize = 8192;

/// The sample op in two phases: the argmax of each chunk of logits, then the choices, in as many chunks as there are lanes.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) logits: FloatRows,
    pub(crate) n: usize,
    /// Value and index of the largest logit of each chunk: `[row][chunk]`.
    pub(crate) partials: FloatRows,
    pub(crate) tokens: *mut u32,
}

// SAFETY: addresses only; see `super`.
unsafe impl Send for Sample {}
// SAFETY: as above.
unsafe impl Sync for Sample {}

impl Sample {
    /// Chunks of one row.
    fn chunks_per_row(&self) -> usize {
        self.n.div_ceil(CHUNK)
    }

    /// Chunks of the first phase: none if no row's token is a plain argmax.
    pub(crate) fn chunks(&self, state: &State, rows: usize) -> usize {
        if state.plain_argmax[..rows].contains(&true) {
            rows * self.chunks_per_row()
        } else {
            0
        }
    }

    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn scan(&self, state: &State, chunk: usize) {
        let (row, from) = (
            chunk / self.chunks_per_row(),
            chunk % self.chunks_per_row() * CHUNK,
        );
        if !state.plain_argmax[row] {
            return;
        }
        // SAFETY: the chunk lies in its row of logits; the partials have a place per row and chunk.
        unsafe {
            let logits = &self.logits.row(row, self.n)[from..self.n.min(from + CHUNK)];
            let (value, index) = argmax(logits);
            let partial = self.partials.row_mut(chunk, 2);
            partial[0] = value;
            partial[1] = f32::from_bits(index + from as u32);
        }
    }

    /// Chooses the tokens of every row that belongs to a lane.
    ///
    /// # Safety
    /// See `super`; the rows that are a plain argmax were scanned.
    pub(crate) unsafe fn choose(&self, state: &State, rows: usize, lane: usize) {
        let rows = state.rows[..rows].iter().enumerate();
        for (row, at) in rows.skip(lane).step_by(state.lanes.len()) {
            // SAFETY: the row lies in its buffers, and belongs to this lane alone.
            unsafe {
                let token = if state.plain_argmax[row] {
                    self.argmax_of_partials(row)
                } else {
                    let logits = self.logits.row(row, self.n);
                    state.choose(lane, at.slot, logits, at.position + 1)
                };
                *self.tokens.add(row) = token;
            }
        }
    }

    /// # Safety
    /// The row was scanned.
    unsafe fn argmax_of_partials(&self, row: usize) -> u32 {
        let chunks = self.chunks_per_row();
        let mut best = (f32::NEG_INFINITY, 0);
        for chunk in row * chunks..(row + 1) * chunks {
            // SAFETY: promised by the caller.
            let partial = unsafe { self.partials.row(chunk, 2) };
            if partial[0] > best.0 {
                best = (partial[0], partial[1].to_bits());
            }
        }
        best.1
    }
}

impl State {
    /// Chooses a slot's token for `position` with a lane's scratch, or says why there is none. Allocates nothing.
    pub(crate) fn choose(&self, lane: usize, slot: u32, logits: &[f32], position: u32) -> u32 {
        let scratch = self.lanes[lane].lock();
        let mut scratch = scratch.unwrap_or_else(PoisonError::into_inner);
        let own = &self.slots[slot as usize];
        scratch.choose(own, &self.masks, slot, logits, position)
    }

    /// The token that a slot would choose for `position` if it had no mask. Allocates nothing.
    pub(crate) fn guess(&self, slot: u32, logits: &[f32], position: u32) -> u32 {
        let scratch = self.lanes[0].lock();
        let mut scratch = scratch.unwrap_or_else(PoisonError::into_inner);
        scratch.guess(&self.slots[slot as usize], logits, position)
    }
}

#[cfg(test)]
mod tests;
