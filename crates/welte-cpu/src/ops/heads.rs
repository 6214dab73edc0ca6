//! A matrix for each head.

use super::{FloatRows, Floats, widest};

/// Rows that a chunk takes of one head: its matrix then stays in the cache.
const ROWS: usize = 16;

pub(crate) struct HeadsMatmul {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    /// `[head][n][k]`, or `[head][k][n]` if transposed.
    pub(crate) matrices: Floats,
    pub(crate) heads: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) tail: usize,
    pub(crate) transposed: bool,
    /// Floats from one head to the next.
    pub(crate) x_head: usize,
    pub(crate) y_head: usize,
}

impl HeadsMatmul {
    pub(crate) fn chunks(&self, rows: usize) -> usize {
        self.heads * rows.div_ceil(ROWS)
    }

    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, rows: usize, chunk: usize) {
        let (head, first) = (chunk % self.heads, chunk / self.heads * ROWS);
        let (n, k) = (self.n, self.k);
        // SAFETY: there are `heads` matrices.
        let Some(all) = (unsafe { self.matrices.get(self.heads * n * k) }) else {
            return;
        };
        let matrix = &all[head * n * k..][..n * k];
        for row in first..rows.min(first + ROWS) {
            // SAFETY: the head lies in its row of both buffers, which are apart, and only this chunk writes it.
            let (x, y) = unsafe {
                let x = self.x.start.add(row * self.x.stride + head * self.x_head);
                let y = self.y.start.add(row * self.y.stride + head * self.y_head);
                (
                    std::slice::from_raw_parts(x, k + self.tail),
                    std::slice::from_raw_parts_mut(y, self.tail + n),
                )
            };
            let (x, kept) = x.split_at(k);
            let (tail, y) = y.split_at_mut(self.tail);
            tail.copy_from_slice(kept);
            match self.transposed {
                true => multiply_transposed(matrix, x, y),
                false => multiply(matrix, x, y),
            }
        }
    }
}

widest! {
    /// `y = W x`, each sum in 16 lanes.
    fn multiply(matrix: &[f32], x: &[f32], y: &mut [f32]) {
        for (y, row) in y.iter_mut().zip(matrix.chunks_exact(x.len())) {
            let mut lanes = [0.0f32; 16];
            let (rows, row_rest) = row.as_chunks::<16>();
            let (values, rest) = x.as_chunks::<16>();
            for (row, x) in rows.iter().zip(values) {
                for ((lane, w), x) in lanes.iter_mut().zip(row).zip(x) {
                    *lane += w * x;
                }
            }
            for ((lane, w), x) in lanes.iter_mut().zip(row_rest).zip(rest) {
                *lane += w * x;
            }
            *y = lanes.iter().sum();
        }
    }
}

widest! {
    /// `y = W x`, where the matrix holds the columns of W one after another.
    fn multiply_transposed(matrix: &[f32], x: &[f32], y: &mut [f32]) {
        y.fill(0.0);
        for (x, column) in x.iter().zip(matrix.chunks_exact(y.len())) {
            for (y, w) in y.iter_mut().zip(column) {
                *y += x * w;
            }
        }
    }
}
