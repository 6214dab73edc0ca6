//! From input rows to output rows: selection and pooling.

use super::{FloatRows, State};

/// Copies the chosen rows.
pub(crate) struct SelectRows {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
}

impl SelectRows {
    /// # Safety
    /// See `super`; `output` is below the number of chosen rows.
    pub(crate) unsafe fn run(&self, state: &State, output: usize) {
        let row = state.outputs[output] as usize;
        // SAFETY: both rows lie in their buffers, which differ.
        unsafe {
            let x = self.x.row(row, self.n);
            self.y.row_mut(output, self.n).copy_from_slice(x);
        }
    }
}

/// How rows of a slot become one.
#[derive(Clone, Copy)]
pub(crate) enum Pooling {
    Last,
    Mean,
    First,
}

/// Pools the rows of each chosen row's slot, up to the chosen row.
pub(crate) struct Pool {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) pooling: Pooling,
    pub(crate) normalise: bool,
}

impl Pool {
    /// # Safety
    /// See `super`; `output` is below the number of chosen rows.
    pub(crate) unsafe fn run(&self, state: &State, output: usize) {
        let chosen = state.outputs[output] as usize;
        let slot = state.rows[chosen].slot;
        let mut of_slot = (0..=chosen).filter(|row| state.rows[*row].slot == slot);
        let first = of_slot.next().unwrap_or(chosen);
        // SAFETY: the rows lie in their buffers, which differ; nobody else writes this row of y.
        unsafe {
            let y = self.y.row_mut(output, self.n);
            match self.pooling {
                Pooling::Last => y.copy_from_slice(self.x.row(chosen, self.n)),
                Pooling::First => y.copy_from_slice(self.x.row(first, self.n)),
                Pooling::Mean => {
                    y.copy_from_slice(self.x.row(first, self.n));
                    let mut count = 1;
                    for row in of_slot {
                        let x = self.x.row(row, self.n);
                        y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
                        count += 1;
                    }
                    y.iter_mut().for_each(|y| *y /= count as f32);
                }
            }
            if self.normalise {
                let squares: f32 = y.iter().map(|y| y * y).sum();
                let length = squares.sqrt().max(1e-12);
                y.iter_mut().for_each(|y| *y /= length);
            }
        }
    }
}
