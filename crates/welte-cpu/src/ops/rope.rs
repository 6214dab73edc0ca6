//! Rope, KV append, and both fused with the q and k norms.

use super::basic::normalise;
use super::cache::KvCache;
use super::{FloatRows, Floats, MANY_ROWS, State, widest};
use half::f16;
use half::slice::HalfFloatSliceExt;
use welte_table::{Format, Sections};

/// Cosines and sines of every row's position, computed once per step: `[row][cos, sin][rot / 2]`.
pub(crate) struct RopeTable {
    pub(crate) freqs: Floats,
    pub(crate) half: usize,
    pub(crate) magnitude: f32,
    pub(crate) sections: Option<Sections>,
    pub(crate) y: FloatRows,
}

impl RopeTable {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        // SAFETY: the row lies in the scratch; the weight has `half` values.
        unsafe {
            let (cos, sin) = self.y.row_mut(row, 2 * self.half).split_at_mut(self.half);
            let at = &state.rows[row];
            for (i, freq) in self.freqs.get(self.half).unwrap_or(&[]).iter().enumerate() {
                let (s, c) = (at.coordinate(self.sections, i) as f32 * freq).sin_cos();
                cos[i] = c * self.magnitude;
                sin[i] = s * self.magnitude;
            }
        }
    }
}

/// Rotates one head in place.
///
/// # Safety
/// `y` holds `2 * half` values and nobody else uses them; the row lies in the table.
unsafe fn rotate(y: *mut f32, angles: FloatRows, row: usize, half: usize, interleaved: bool) {
    // SAFETY: promised by the caller.
    let (y, angles) = unsafe {
        (
            std::slice::from_raw_parts_mut(y, 2 * half),
            angles.row(row, 2 * half),
        )
    };
    let (cos, sin) = angles.split_at(half);
    if interleaved {
        for (pair, (c, s)) in y.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
            (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
        }
    } else {
        let (first, second) = y.split_at_mut(half);
        turn_halves(first, second, cos, sin);
    }
}

widest! {
    fn turn_halves(first: &mut [f32], second: &mut [f32], cos: &[f32], sin: &[f32]) {
        for ((a, b), (c, s)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    }
}

pub(crate) struct Rope {
    pub(crate) y: FloatRows,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) half: usize,
    pub(crate) interleaved: bool,
    pub(crate) angles: FloatRows,
}

impl Rope {
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn run(&self, row: usize) {
        for head in 0..self.heads {
            // SAFETY: the head lies in the row.
            unsafe {
                let y = self.y.start.add(row * self.y.stride + head * self.head_dim);
                rotate(y, self.angles, row, self.half, self.interleaved);
            }
        }
    }
}

pub(crate) struct KvAppend {
    pub(crate) k: FloatRows,
    pub(crate) v: FloatRows,
    pub(crate) layer: usize,
    pub(crate) cache: KvCache,
}

impl KvAppend {
    /// # Safety
    /// See `super`; the row's slot and position lie in the cache, and no other row has the same.
    pub(crate) unsafe fn run(&self, state: &State, row: usize) {
        let dim = self.cache.head_dim;
        for head in 0..self.cache.kv_heads {
            // SAFETY: the head lies in the rows of k and v.
            unsafe {
                let k = self.k.start.add(row * self.k.stride + head * dim);
                let v = self.v.start.add(row * self.v.stride + head * dim);
                store(state, &self.cache, self.layer, head, row, [k, v]);
            }
        }
    }
}

/// Stores the keys and values of one head of one row.
///
/// # Safety
/// Keys and values hold a head each; the row's place is in the cache and nobody else uses it.
unsafe fn store(
    state: &State,
    cache: &KvCache,
    layer: usize,
    head: usize,
    row: usize,
    kv: [*const f32; 2],
) {
    let at = state.rows[row];
    let (slot, position, dim) = (at.slot as usize, at.position as usize, cache.head_dim);
    for (part, x) in kv.into_iter().enumerate() {
        // SAFETY: promised by the caller; rows of the cache are whole, and f16 rows are aligned to 2.
        unsafe {
            let x = std::slice::from_raw_parts(x, dim);
            let y = cache.at(state, layer, part, head, slot, position);
            match cache.format {
                Format::Q8_0 => store_q8_0(x, std::slice::from_raw_parts_mut(y, cache.row_bytes)),
                _ => std::slice::from_raw_parts_mut(y.cast::<f16>(), dim).convert_from_f32_slice(x),
            }
        }
    }
}

/// Q8_0: per 32 values an f16 scale and 32 signed bytes.
pub(crate) fn store_q8_0(x: &[f32], y: &mut [u8]) {
    for (x, y) in x.chunks_exact(32).zip(y.chunks_exact_mut(34)) {
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (head, body) = y.split_at_mut(2);
        head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (y, x) in body.iter_mut().zip(x) {
            *y = (x * inverse).round() as i8 as u8;
        }
    }
}

pub(crate) struct RopeAppend {
    pub(crate) qkv: FloatRows,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) half: usize,
    pub(crate) interleaved: bool,
    pub(crate) eps: f32,
    pub(crate) angles: FloatRows,
    pub(crate) q_norm: Floats,
    pub(crate) k_norm: Floats,
    pub(crate) layer: usize,
    pub(crate) cache: KvCache,
}

impl RopeAppend {
    /// Chunks of one row: one per kv head with its group of query heads. With many rows a row is one chunk.
    pub(crate) fn chunks_per_row(&self, rows: usize) -> usize {
        if rows < MANY_ROWS { self.kv_heads } else { 1 }
    }

    /// # Safety
    /// See `super` and [`KvAppend::run`].
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, chunk: usize) {
        let chunks = self.chunks_per_row(rows);
        for kv_head in (chunk % chunks..self.kv_heads).step_by(chunks) {
            // SAFETY: promised by the caller.
            unsafe { self.head(state, chunk / chunks, kv_head) };
        }
    }

    /// # Safety
    /// As [`RopeAppend::run`].
    unsafe fn head(&self, state: &State, row: usize, kv_head: usize) {
        let group = self.heads / self.kv_heads;
        // SAFETY: every head lies in the row; heads are apart from each other.
        unsafe {
            let head = |h: usize| {
                self.qkv
                    .start
                    .add(row * self.qkv.stride + h * self.head_dim)
            };
            let turn = |y: *mut f32, norm: Floats| {
                if !norm.0.is_null() {
                    normalise(y, y, self.head_dim, self.eps, norm);
                }
                rotate(y, self.angles, row, self.half, self.interleaved);
            };
            for q in kv_head * group..(kv_head + 1) * group {
                turn(head(q), self.q_norm);
            }
            let k = head(self.heads + kv_head);
            turn(k, self.k_norm);
            let v = head(self.heads + self.kv_heads + kv_head);
            store(state, &self.cache, self.layer, kv_head, row, [k, v]);
        }
    }
}
