//! The gated delta rule over a recurrent state.

use super::cache::StateCache;
use super::{FloatRows, Floats, State, exp_not_positive, sigmoid, widest};

pub(crate) struct GatedDelta {
    /// Queries, keys, values.
    pub(crate) x: FloatRows,
    /// b, then a, of every head.
    pub(crate) gates: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) decay: Floats,
    pub(crate) dt_bias: Floats,
    pub(crate) key_heads: usize,
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) tiled: bool,
    pub(crate) eps: f32,
    pub(crate) layer: usize,
    pub(crate) cache: StateCache,
}

impl GatedDelta {
    /// A chunk is a value head: the rows of a sequence depend on each other, heads do not.
    pub(crate) fn chunks(&self) -> usize {
        self.heads
    }

    /// # Safety
    /// See `super`; rows of a slot come in the order of their positions.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, head: usize) {
        let (keys, values) = (self.key_heads * self.key_dim, self.heads * self.value_dim);
        let key_head = match self.tiled {
            true => head % self.key_heads,
            false => head / (self.heads / self.key_heads),
        };
        let cells = self.key_dim * self.value_dim;
        for row in 0..rows {
            let at = state.rows[row];
            // SAFETY: rows lie in their buffers, the state in its cache; chunks use different heads.
            unsafe {
                let x = self.x.row(row, 2 * keys + values);
                let gates = self.gates.row(row, 2 * self.heads);
                let y = self
                    .y
                    .start
                    .add(row * self.y.stride + head * self.value_dim);
                let y = std::slice::from_raw_parts_mut(y, self.value_dim);
                let s = self.cache.at(state, self.layer, at.slot as usize);
                let s = std::slice::from_raw_parts_mut(s.add(head * cells), cells);
                // The state before position 0 is zero, whatever the page held before.
                if at.position == 0 {
                    s.fill(0.0);
                }
                let decay = self.decay.get(self.heads).map_or(0.0, |d| d[head]);
                let dt = self.dt_bias.get(self.heads).map_or(0.0, |d| d[head]);
                let step = Step {
                    query: &x[key_head * self.key_dim..][..self.key_dim],
                    key: &x[keys + key_head * self.key_dim..][..self.key_dim],
                    value: &x[2 * keys + head * self.value_dim..][..self.value_dim],
                    kept: (decay * softplus(gates[self.heads + head] + dt)).exp(),
                    rate: sigmoid(gates[head]),
                    eps: self.eps,
                };
                advance(&step, s, y);
            }
        }
    }
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + exp_not_positive(-x.abs()).ln_1p()
}

/// One position of one head.
pub(crate) struct Step<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    /// The part of the state that is kept.
    kept: f32,
    /// The part of the error that is corrected.
    rate: f32,
    eps: f32,
}

widest! {
    /// Advances the state `s` (a row per element of the key) by one position and answers the query.
    fn advance(step: &Step<'_>, s: &mut [f32], y: &mut [f32]) {
        let inverse = |x: &[f32]| 1.0 / (x.iter().map(|x| x * x).sum::<f32>() + step.eps).sqrt();
        let key = inverse(step.key);
        let query = inverse(step.query) / (step.key.len() as f32).sqrt();
        let mut from = 0;
        while from < y.len() {
            from += match y.len() - from {
                64.. => columns::<64>(step, key, query, s, y, from),
                16.. => columns::<16>(step, key, query, s, y, from),
                _ => columns::<1>(step, key, query, s, y, from),
            };
        }
    }
}

/// `N` columns of the state from `from` on. Returns `N`.
#[inline(always)]
fn columns<const N: usize>(
    step: &Step<'_>,
    key_scale: f32,
    query_scale: f32,
    s: &mut [f32],
    y: &mut [f32],
    from: usize,
) -> usize {
    let stride = y.len();
    let mut recalled = [0.0f32; N];
    for (i, key) in step.key.iter().enumerate() {
        let key = key * key_scale;
        let row = &mut s[i * stride + from..][..N];
        for (s, recalled) in row.iter_mut().zip(&mut recalled) {
            *s *= step.kept;
            *recalled += *s * key;
        }
    }
    let mut change = [0.0f32; N];
    let values = &step.value[from..][..N];
    for ((change, value), recalled) in change.iter_mut().zip(values).zip(&recalled) {
        *change = step.rate * (value - recalled);
    }
    let mut answer = [0.0f32; N];
    for (i, (key, query)) in step.key.iter().zip(step.query).enumerate() {
        let (key, query) = (key * key_scale, query * query_scale);
        let row = &mut s[i * stride + from..][..N];
        for ((s, change), answer) in row.iter_mut().zip(&change).zip(&mut answer) {
            *s += key * change;
            *answer += *s * query;
        }
    }
    y[from..][..N].copy_from_slice(&answer);
    N
}
