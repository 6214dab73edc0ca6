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
    /// The largest of each value.
    Largest,
    /// One after the other.
    Rows,
    /// The first values of all rows, then the second ones, and so on.
    Columns,
}

/// Pools the rows of each chosen row's slot, up to the chosen row, or the neighbours that end with it.
pub(crate) struct Pool {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    /// Neighbours; 0: all rows of the slot.
    pub(crate) group: usize,
    pub(crate) pooling: Pooling,
    pub(crate) normalise: bool,
}

impl Pool {
    /// # Safety
    /// See `super`; `output` is below the number of chosen rows.
    pub(crate) unsafe fn run(&self, state: &State, output: usize) {
        let chosen = state.outputs[output] as usize;
        let slot = state.rows[chosen].slot;
        let group = self.group;
        // Without a group, rows of other slots are left out.
        let rows = if group == 0 {
            0..chosen + 1
        } else {
            chosen + 1..chosen + 1 + group
        };
        let mut rows = rows
            .map(|row| row.saturating_sub(group))
            .filter(|row| group > 0 || state.rows[*row].slot == slot);
        let width = match self.pooling {
            Pooling::Rows | Pooling::Columns => group * self.n,
            _ => self.n,
        };
        // SAFETY: the rows lie in their buffers, which differ; nobody else writes this row of y.
        unsafe {
            let y = self.y.row_mut(output, width);
            match self.pooling {
                Pooling::Last => y.copy_from_slice(self.x.row(chosen, self.n)),
                Pooling::First => {
                    let first = rows.next().unwrap_or(chosen);
                    y.copy_from_slice(self.x.row(first, self.n));
                }
                Pooling::Mean => {
                    let first = rows.next().unwrap_or(chosen);
                    y.copy_from_slice(self.x.row(first, self.n));
                    let mut count = 1;
                    for row in rows {
                        let x = self.x.row(row, self.n);
                        y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
                        count += 1;
                    }
                    y.iter_mut().for_each(|y| *y /= count as f32);
                }
                Pooling::Largest => {
                    let first = rows.next().unwrap_or(chosen);
                    y.copy_from_slice(self.x.row(first, self.n));
                    for row in rows {
                        let x = self.x.row(row, self.n);
                        y.iter_mut().zip(x).for_each(|(y, x)| *y = y.max(*x));
                    }
                }
                Pooling::Rows => {
                    for (y, row) in y.chunks_exact_mut(self.n).zip(rows) {
                        y.copy_from_slice(self.x.row(row, self.n));
                    }
                }
                Pooling::Columns => {
                    for (at, row) in rows.enumerate() {
                        let y = y[at..].iter_mut().step_by(group);
                        y.zip(self.x.row(row, self.n)).for_each(|(y, x)| *y = *x);
                    }
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
