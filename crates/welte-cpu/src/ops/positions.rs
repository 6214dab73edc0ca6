//! Learned positions and segments, and parts of features, added to the stream.

use super::{FloatRows, Floats, State};

pub(crate) struct AddPosition {
    pub(crate) x: FloatRows,
    pub(crate) k: usize,
    pub(crate) period: usize,
    pub(crate) offset: usize,
    /// Of `period + offset` entries.
    pub(crate) positions: Floats,
    /// Of an entry per segment, or none.
    pub(crate) types: Floats,
}

impl AddPosition {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        let position = state.rows[row].position as usize;
        let place = self.offset + position % self.period;
        let segment = position / self.period;
        // SAFETY: the row lies in x; the positions of rows are below the context, for which lowering has checked the tables.
        unsafe {
            let x = self.x.row_mut(row, self.k);
            for (table, entry) in [(&self.positions, place), (&self.types, segment)] {
                let Some(table) = table.get((entry + 1) * self.k) else {
                    continue;
                };
                let values = &table[entry * self.k..];
                x.iter_mut().zip(values).for_each(|(x, v)| *x += v);
            }
        }
    }
}

pub(crate) struct AddFeature {
    pub(crate) x: FloatRows,
    /// The part of all features.
    pub(crate) features: FloatRows,
    pub(crate) n: usize,
}

impl AddFeature {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        let Some(feature) = state.rows[row].input.feature() else {
            return;
        };
        // SAFETY: the row lies in x; the features of rows are below their count, for which lowering has checked the buffer.
        unsafe {
            let x = self.x.row_mut(row, self.n);
            let values = self.features.row(feature as usize, self.n);
            x.iter_mut().zip(values).for_each(|(x, v)| *x += v);
        }
    }
}
