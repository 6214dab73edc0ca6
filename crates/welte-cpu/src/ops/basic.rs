//! Embedding, norm and elementwise ops.

use super::{
    Bytes, FloatRows, Floats, State, activate, exp_not_positive, gate_value, gated, widest,
};
use crate::kernels::Kernel;
use welte_formats::quant;
use welte_table::{Format, Input};

/// Rows that one chunk of a small op takes.
pub(crate) fn rows_of_chunk(rows: usize) -> usize {
    if rows < 128 { 4 } else { 16 }
}

pub(crate) struct Embed {
    pub(crate) table: Bytes,
    pub(crate) bytes: usize,
    /// The kernel that reads the table, if the table is stored in tiles.
    pub(crate) tiles: Option<Kernel>,
    pub(crate) format: Format,
    pub(crate) row_bytes: usize,
    pub(crate) k: usize,
    pub(crate) scale: f32,
    pub(crate) tokens: *const u32,
    /// What rows may read in place of tokens, if this is where they get it.
    pub(crate) features: Option<FloatRows>,
    pub(crate) y: FloatRows,
}

// SAFETY: addresses only; see `super`.
unsafe impl Send for Embed {}
// SAFETY: as above.
unsafe impl Sync for Embed {}

impl Embed {
    /// # Safety
    /// See `super`; the tokens were checked against the vocabulary, and features against their number.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        // SAFETY: the row's token lies in the tokens buffer and in the table, its row of y in the buffer.
        unsafe {
            if let (Some(features), Input::Feature(number)) =
                (&self.features, state.rows[row].input)
            {
                let feature = features.row(number as usize, self.k);
                self.y.row_mut(row, self.k).copy_from_slice(feature);
                return;
            }
            let token = *self.tokens.add(row) as usize;
            let table = std::slice::from_raw_parts(self.table.0, self.bytes);
            let y = self.y.row_mut(row, self.k);
            match &self.tiles {
                Some(kernel) => kernel.unpack_row(table, token, y),
                None => {
                    let encoded = &table[token * self.row_bytes..][..self.row_bytes];
                    quant::decode(self.format, encoded, y);
                }
            }
            if self.scale != 1.0 {
                y.iter_mut().for_each(|v| *v *= self.scale);
            }
        }
    }
}

pub(crate) struct Norm {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) dim: usize,
    pub(crate) groups: usize,
    pub(crate) eps: f32,
    pub(crate) weight: Floats,
}

impl Norm {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        for group in 0..self.groups {
            // SAFETY: the group lies in the row; x and y may be the same place.
            unsafe {
                let x = self.x.start.add(row * self.x.stride + group * self.dim);
                let y = self.y.start.add(row * self.y.stride + group * self.dim);
                normalise(x, y, self.dim, self.eps, self.weight);
            }
        }
    }
}

/// One RMS norm; `x` and `y` may be the same.
///
/// # Safety
/// `x`, `y` and the weight (if any) hold `n` values, and nobody else uses y; x and y are the same or apart.
pub(crate) unsafe fn normalise(x: *const f32, y: *mut f32, n: usize, eps: f32, weight: Floats) {
    // SAFETY: promised by the caller; no slice of y lives while another of x does, unless they are apart.
    unsafe {
        let sum = squares(std::slice::from_raw_parts(x, n));
        let scale = 1.0 / (sum / n as f32 + eps).sqrt();
        if x != y.cast_const() {
            let x = std::slice::from_raw_parts(x, n);
            let y = std::slice::from_raw_parts_mut(y, n);
            return match weight.get(n) {
                Some(weight) => weighted(x, scale, weight, y),
                None => scaled(x, scale, y),
            };
        }
        let y = std::slice::from_raw_parts_mut(y, n);
        match weight.get(n) {
            Some(weight) => weighted_in_place(y, scale, weight),
            None => y.iter_mut().for_each(|y| *y *= scale),
        }
    }
}

pub(crate) struct LayerNorm {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) dim: usize,
    pub(crate) groups: usize,
    pub(crate) eps: f32,
    pub(crate) weight: Floats,
    pub(crate) bias: Floats,
}

impl LayerNorm {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        for group in 0..self.groups {
            // SAFETY: the group lies in the row. x and y may be the same place: y is written only after x was copied to
            // it, and no slice of x lives then.
            unsafe {
                let x = self.x.start.add(row * self.x.stride + group * self.dim);
                let y = self.y.start.add(row * self.y.stride + group * self.dim);
                std::ptr::copy(x, y, self.dim);
                let y = std::slice::from_raw_parts_mut(y, self.dim);
                let mean = sum(y) / self.dim as f32;
                y.iter_mut().for_each(|v| *v -= mean);
                let scale = 1.0 / (squares(y) / self.dim as f32 + self.eps).sqrt();
                if let Some(weight) = self.weight.get(self.dim) {
                    weighted_in_place(y, scale, weight);
                }
                if let Some(bias) = self.bias.get(self.dim) {
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            }
        }
    }
}

widest! {
    /// The sum, in 16 lanes.
    fn sum(x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = x.as_chunks::<16>();
        for x in whole {
            for (lane, v) in lanes.iter_mut().zip(x) {
                *lane += v;
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane += v;
        }
        lanes.iter().sum()
    }
}

widest! {
    /// The sum of squares, in 16 lanes.
    fn squares(x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = x.as_chunks::<16>();
        for x in whole {
            for (lane, v) in lanes.iter_mut().zip(x) {
                *lane += v * v;
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane += v * v;
        }
        lanes.iter().sum()
    }
}

widest! {
    fn weighted(x: &[f32], scale: f32, weight: &[f32], y: &mut [f32]) {
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * w;
        }
    }
}

widest! {
    fn weighted_in_place(y: &mut [f32], scale: f32, weight: &[f32]) {
        for (y, w) in y.iter_mut().zip(weight) {
            *y = *y * scale * w;
        }
    }
}

fn scaled(x: &[f32], scale: f32, y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x * scale;
    }
}

pub(crate) struct Bias {
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) bias: Floats,
}

impl Bias {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: the row lies in y; the bias has n values.
        unsafe {
            let y = self.y.row_mut(row, self.n);
            if let Some(bias) = self.bias.get(self.n) {
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
    }
}

/// Puts values to their places; the others become the lowest float.
pub(crate) struct Spread {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    /// Values of a row of x, and of y.
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// Where in x each value of y is; negative: nowhere.
    pub(crate) map: Floats,
}

impl Spread {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: both rows lie in their buffers, which differ; the map has n values.
        let (x, y, map) = unsafe {
            let (x, y) = (self.x.row(row, self.k), self.y.row_mut(row, self.n));
            (x, y, self.map.get(self.n))
        };
        for (y, from) in y.iter_mut().zip(map.unwrap_or(&[])) {
            let value = x.get(*from as usize).filter(|_| *from >= 0.0);
            *y = value.copied().unwrap_or(f32::MIN);
        }
    }
}

pub(crate) struct ActMul {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) act: u32,
}

impl ActMul {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: both rows lie in their buffers; y may be the gate's place.
        unsafe {
            let x = self.x.start.add(row * self.x.stride);
            let y = self.y.start.add(row * self.y.stride);
            for i in 0..self.n {
                *y.add(i) = gated(self.act, *x.add(i), *x.add(self.n + i));
            }
        }
    }
}

pub(crate) struct Act {
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) act: u32,
    /// Of xIELU and of limits.
    pub(crate) constants: [f32; 4],
}

impl Act {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: the row lies in y.
        let y = unsafe { self.y.row_mut(row, self.n) };
        let [a, b, c, d] = self.constants;
        match self.act {
            4 => y.iter_mut().for_each(|y| *y = y.max(0.0) * y.max(0.0)),
            5 => y.iter_mut().for_each(|y| {
                *y = if *y > 0.0 {
                    a * *y * *y + c * *y
                } else {
                    b * (exp_not_positive(y.min(d)) - 1.0 - *y) + c * *y
                }
            }),
            6 => y.iter_mut().for_each(|y| *y = y.tanh()),
            7 => y.iter_mut().for_each(|y| *y = y.max(a).min(b)),
            act => activate_all(act, y),
        }
    }
}

widest! {
    fn activate_all(act: u32, y: &mut [f32]) {
        // The branch is outside the loops, so that the compiler vectorises them.
        match act {
            0 => y.iter_mut().for_each(|y| *y = activate(0, *y)),
            1 => y.iter_mut().for_each(|y| *y = activate(1, *y)),
            _ => y.iter_mut().for_each(|y| *y = activate(2, *y)),
        }
    }
}

pub(crate) struct Gate {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) gates: usize,
    pub(crate) act: u32,
}

impl Gate {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: the rows lie in their buffers, which differ.
        let (x, y) = unsafe { (self.x.row(row, self.gates), self.y.row_mut(row, self.n)) };
        if self.gates == self.n {
            return multiply_gates(self.act, x, y);
        }
        for (y, x) in y.chunks_mut(self.n / self.gates).zip(x) {
            let gate = gate_value(self.act, *x);
            y.iter_mut().for_each(|y| *y *= gate);
        }
    }
}

widest! {
    /// `y *= act(x)`.
    fn multiply_gates(act: u32, x: &[f32], y: &mut [f32]) {
        // The branch is outside the loops, so that the compiler vectorises them.
        let all = y.iter_mut().zip(x);
        match act {
            0 => all.for_each(|(y, x)| *y *= gate_value(0, *x)),
            1 => all.for_each(|(y, x)| *y *= gate_value(1, *x)),
            4 => all.for_each(|(y, x)| *y *= gate_value(4, *x)),
            5 => all.for_each(|(y, x)| *y *= x),
            6 => all.for_each(|(y, x)| *y *= gate_value(6, *x)),
            _ => all.for_each(|(y, x)| *y *= gate_value(2, *x)),
        }
    }
}

pub(crate) struct PositionScale {
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) beta: f32,
    pub(crate) original: u32,
    pub(crate) ahead: u32,
}

impl PositionScale {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        let whole = state.rows[row].position.saturating_add(self.ahead) / self.original;
        let factor = 1.0 + self.beta * (1.0 + whole as f32).ln();
        // SAFETY: the row lies in y.
        let y = unsafe { self.y.row_mut(row, self.n) };
        y.iter_mut().for_each(|v| *v *= factor);
    }
}

pub(crate) struct Add {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
}

impl Add {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: both rows lie in their buffers; they may be the same.
        unsafe {
            let x = self.x.start.add(row * self.x.stride);
            let y = self.y.start.add(row * self.y.stride);
            for i in 0..self.n {
                *y.add(i) += *x.add(i);
            }
        }
    }
}

pub(crate) struct Scale {
    pub(crate) y: FloatRows,
    pub(crate) n: usize,
    pub(crate) scale: f32,
    pub(crate) cap: f32,
}

impl Scale {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        // SAFETY: the row lies in y.
        let y = unsafe { self.y.row_mut(row, self.n) };
        for y in y {
            // Unwritten memory may hold anything, NaN included.
            *y = if self.scale == 0.0 {
                0.0
            } else {
                *y * self.scale
            };
            if self.cap != 0.0 {
                *y = self.cap * (*y / self.cap).tanh();
            }
        }
    }
}
