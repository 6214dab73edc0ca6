//! What ranks give each other, through the host's memory.
#![allow(unsafe_code)]

use super::FloatRows;
use std::sync::atomic::Ordering::Relaxed;
use welte_device::Seat;
use welte_table::params;

/// An exchange of a rank's parts. A single chunk: it waits for the other ranks.
pub(crate) struct Exchange {
    pub(crate) seat: Seat,
    pub(crate) part: FloatRows,
    pub(crate) whole: FloatRows,
    pub(crate) params: params::Exchange,
}

impl Exchange {
    /// If a rank has failed, the values are not whole; the seat knows of it, and the step ends with that error.
    ///
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, rows: usize) {
        let q = &self.params;
        let (width, vectors) = (q.deal().width() as usize, q.vectors as usize);
        let own = q.part(q.rank);
        let (first, len) = (own.start as usize, own.len());
        let _ = self.seat.exchange(
            |outbox| {
                for (row, outbox) in outbox.chunks(vectors * len).take(rows).enumerate() {
                    // SAFETY: the rows lie in their buffers, and this is the only chunk.
                    let part = unsafe { self.part.row(row, vectors * len) };
                    for (word, value) in outbox.iter().zip(part) {
                        word.store(value.to_bits(), Relaxed);
                    }
                    for vector in 0..vectors {
                        let from = vector * len;
                        // SAFETY: as above. A part may lie at its own place, so no slices of both.
                        unsafe {
                            let from = self.part.start.add(row * self.part.stride + from);
                            let to = row * self.whole.stride + vector * width + first;
                            std::ptr::copy(from, self.whole.start.add(to), len);
                        }
                    }
                }
            },
            |rank, inbox| {
                let part = q.part(rank);
                let len = part.len();
                for (row, inbox) in inbox.chunks(vectors * len).take(rows).enumerate() {
                    // SAFETY: as above.
                    let whole = unsafe { self.whole.row_mut(row, vectors * width) };
                    for (vector, inbox) in whole.chunks_mut(width).zip(inbox.chunks(len)) {
                        let place = &mut vector[part.start as usize..part.end as usize];
                        for (value, word) in place.iter_mut().zip(inbox) {
                            *value = f32::from_bits(word.load(Relaxed));
                        }
                    }
                }
            },
        );
    }
}
