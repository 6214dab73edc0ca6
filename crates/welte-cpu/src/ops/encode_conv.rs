//! A convolution over neighbouring rows of a text, without a cache.

use super::{FloatRows, Floats, State};

pub(crate) struct EncodeConv {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    /// `[channel][tap]`
    pub(crate) kernel: Floats,
    pub(crate) bias: Floats,
    pub(crate) n: usize,
    pub(crate) taps: usize,
    /// Taps for rows before a row's own.
    pub(crate) before: usize,
}

impl EncodeConv {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, row: usize) {
        let slot = state.rows[row].slot;
        let same = |other: &&welte_table::Row| other.slot == slot;
        let (past, rest) = state.rows[..rows].split_at(row);
        let first = row - past.iter().rev().take(self.before).take_while(same).count();
        let last = row
            + rest
                .iter()
                .take(self.taps - self.before)
                .take_while(same)
                .count();
        // SAFETY: rows lie in their buffers, of which y is not x.
        unsafe {
            let y = self.y.row_mut(row, self.n);
            match self.bias.get(self.n) {
                Some(bias) => y.copy_from_slice(&bias[..self.n]),
                None => y.fill(0.0),
            }
            let kernel = self.kernel.get(self.n * self.taps).unwrap_or(&[]);
            for other in first..last {
                let tap = other + self.before - row;
                let of_tap = kernel.iter().skip(tap).step_by(self.taps);
                let x = self.x.row(other, self.n);
                for ((y, x), weight) in y.iter_mut().zip(x).zip(of_tap) {
                    *y += weight * x;
                }
            }
        }
    }
}
