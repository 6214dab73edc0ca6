//! Ops of models with several streams of hidden states, and of sparse activations.

use super::basic::{squares, sum};
use super::{FloatRows, Floats};

/// The most streams of AltUp.
pub(crate) const MOST_STREAMS: usize = 8;

/// `y = x * weight`, or a copy.
pub(crate) struct Multiply {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) weight: Floats,
}

impl Multiply {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: both rows lie in their buffers; they may be the same. The weight has n values.
        unsafe {
            let x = self.x.start.add(row * self.x.stride);
            let y = self.y.start.add(row * self.y.stride);
            match self.weight.get(self.n) {
                Some(weight) => (0..self.n).for_each(|i| *y.add(i) = *x.add(i) * weight[i]),
                None => (0..self.n).for_each(|i| *y.add(i) = *x.add(i)),
            }
        }
    }
}

/// Keeps what exceeds the mean by some standard deviations.
pub(crate) struct Cutoff {
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) deviations: f32,
}

impl Cutoff {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: the row lies in y.
        let y = unsafe { self.y.row_mut(row, self.n) };
        let mean = sum(y) / self.n as f32;
        y.iter_mut().for_each(|v| *v -= mean);
        let limit = self.deviations * (squares(y) / self.n as f32).sqrt();
        y.iter_mut().for_each(|v| *v = (*v - limit).max(0.0));
    }
}

/// Gives vectors of y the mean square of x.
pub(crate) struct MatchSquares {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) dim: usize,
    pub(crate) groups: usize,
}

impl MatchSquares {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: the rows lie in their buffers, apart from each other.
        let (x, y) = unsafe {
            (
                self.x.row(row, self.dim),
                self.y.row_mut(row, self.dim * self.groups),
            )
        };
        let target = (squares(x) / self.dim as f32).sqrt();
        for y in y.chunks_mut(self.dim) {
            let factor = target / (squares(y) / self.dim as f32).max(1e-5).sqrt();
            y.iter_mut().for_each(|v| *v *= factor);
        }
    }
}

/// The coefficients of a row, and AltUp's streams.
pub(crate) struct AltUp {
    /// For a correction: what the layer yields.
    pub(crate) now: Option<FloatRows>,
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) dim: usize,
    pub(crate) streams: usize,
    pub(crate) scale: f32,
    pub(crate) coefficients: Floats,
}

impl AltUp {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        let streams = self.streams;
        let count = match self.now {
            Some(_) => streams,
            None => streams * streams,
        };
        // SAFETY: the rows lie in their buffers, apart from each other; there are `streams` coefficients for each of `count`.
        let (x, y, table) = unsafe {
            (
                self.x.row(row, streams),
                self.y.row_mut(row, streams * self.dim),
                self.coefficients.get(count * streams),
            )
        };
        let mut squashed = [0.0; MOST_STREAMS];
        for (to, x) in squashed.iter_mut().zip(x) {
            *to = (self.scale * x).tanh();
        }
        let mut c = [0.0; MOST_STREAMS * MOST_STREAMS];
        for (c, table) in c.iter_mut().zip(table.unwrap_or(&[]).chunks(streams)) {
            *c = table.iter().zip(&squashed).map(|(a, b)| a * b).sum();
        }
        match self.now {
            // SAFETY: as above.
            Some(now) => self.correct(unsafe { now.row(row, self.dim) }, &c, y),
            None => self.predict(&c, y),
        }
    }

    fn predict(&self, c: &[f32], y: &mut [f32]) {
        let mut old = [0.0; MOST_STREAMS];
        for d in 0..self.dim {
            for (j, old) in old[..self.streams].iter_mut().enumerate() {
                *old = y[j * self.dim + d];
            }
            for i in 0..self.streams {
                let row = &c[i * self.streams..][..self.streams];
                let sum: f32 = row.iter().zip(&old).map(|(c, y)| c * y).sum();
                y[i * self.dim + d] += sum;
            }
        }
    }

    fn correct(&self, now: &[f32], c: &[f32], y: &mut [f32]) {
        for (d, now) in now.iter().enumerate() {
            let news = now - y[d];
            for (i, c) in c[..self.streams].iter().enumerate() {
                y[i * self.dim + d] += (1.0 + c) * news;
            }
        }
    }
}
