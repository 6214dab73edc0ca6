//! The state space model of Mamba-2 over a recurrent state.

use super::cache::StateCache;
use super::{FloatRows, Floats, State, exp_not_positive, softplus, widest};

pub(crate) struct Mamba2 {
    /// Inputs, keys, queries.
    pub(crate) x: FloatRows,
    /// A value of every head, or of every input.
    pub(crate) dt: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) decay: Floats,
    pub(crate) dt_bias: Floats,
    pub(crate) skip: Floats,
    /// Every column of a state has a time step of its own, and every element a decay.
    pub(crate) by_channel: bool,
    pub(crate) groups: usize,
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) layer: usize,
    pub(crate) cache: StateCache,
}

impl Mamba2 {
    /// A chunk is a head: the rows of a sequence depend on each other, heads do not.
    pub(crate) fn chunks(&self) -> usize {
        self.heads
    }

    /// # Safety
    /// See `super`; rows of a slot come in the order of their positions.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, head: usize) {
        let (keys, values) = (self.groups * self.key_dim, self.heads * self.value_dim);
        let group = head / (self.heads / self.groups) * self.key_dim;
        let cells = self.key_dim * self.value_dim;
        for row in 0..rows {
            let at = state.rows[row];
            // SAFETY: rows lie in their buffers, the state in its cache; chunks use different heads.
            unsafe {
                let x = self.x.row(row, values + 2 * keys);
                let times = if self.by_channel { self.value_dim } else { 1 };
                let dt = self.dt.row(row, self.heads * times);
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
                let input = &x[head * self.value_dim..][..self.value_dim];
                let key = &x[values + group..][..self.key_dim];
                let query = &x[values + keys + group..][..self.key_dim];
                if self.by_channel {
                    let of = |weight: Floats, n: usize| {
                        let all = weight.get(self.heads * n);
                        all.map_or(&[][..], |all| &all[head * n..][..n])
                    };
                    let step = ByChannel {
                        input,
                        key,
                        query,
                        dt: &dt[head * times..][..times],
                        dt_bias: of(self.dt_bias, times),
                        decay: of(self.decay, cells),
                        skip: of(self.skip, times),
                    };
                    advance_by_channel(&step, s, y);
                    continue;
                }
                let of = |weight: Floats| weight.get(self.heads).map_or(0.0, |w| w[head]);
                let time = softplus(dt[head] + of(self.dt_bias));
                let step = Step {
                    input,
                    key,
                    query,
                    time,
                    kept: (of(self.decay) * time).exp(),
                    skip: of(self.skip),
                };
                advance(&step, s, y);
            }
        }
    }
}

/// One position of one head.
pub(crate) struct Step<'a> {
    input: &'a [f32],
    key: &'a [f32],
    query: &'a [f32],
    /// The factor of the input.
    time: f32,
    /// The part of the state that is kept.
    kept: f32,
    skip: f32,
}

widest! {
    /// Advances the state `s` (a row per element of the key) by one position and answers the query.
    fn advance(step: &Step<'_>, s: &mut [f32], y: &mut [f32]) {
        let mut from = 0;
        while from < y.len() {
            from += match y.len() - from {
                64.. => columns::<64>(step, s, y, from),
                16.. => columns::<16>(step, s, y, from),
                _ => columns::<1>(step, s, y, from),
            };
        }
    }
}

/// `N` columns of the state from `from` on. Returns `N`.
#[inline(always)]
fn columns<const N: usize>(step: &Step<'_>, s: &mut [f32], y: &mut [f32], from: usize) -> usize {
    let stride = y.len();
    let inputs = &step.input[from..][..N];
    let mut answer = [0.0f32; N];
    for (i, (key, query)) in step.key.iter().zip(step.query).enumerate() {
        let key = key * step.time;
        let row = &mut s[i * stride + from..][..N];
        for ((s, input), answer) in row.iter_mut().zip(inputs).zip(&mut answer) {
            *s = *s * step.kept + key * input;
            *answer += *s * query;
        }
    }
    for ((y, input), answer) in y[from..][..N].iter_mut().zip(inputs).zip(&answer) {
        *y = answer + step.skip * input;
    }
    N
}

/// One position of one head whose columns have time steps of their own, and whose elements have decays.
pub(crate) struct ByChannel<'a> {
    input: &'a [f32],
    key: &'a [f32],
    query: &'a [f32],
    dt: &'a [f32],
    dt_bias: &'a [f32],
    decay: &'a [f32],
    skip: &'a [f32],
}

widest! {
    /// As `advance`.
    fn advance_by_channel(step: &ByChannel<'_>, s: &mut [f32], y: &mut [f32]) {
        let mut from = 0;
        while from < y.len() {
            from += match y.len() - from {
                64.. => columns_by_channel::<64>(step, s, y, from),
                16.. => columns_by_channel::<16>(step, s, y, from),
                _ => columns_by_channel::<1>(step, s, y, from),
            };
        }
    }
}

/// `N` columns of the state from `from` on. Returns `N`.
#[inline(always)]
fn columns_by_channel<const N: usize>(
    step: &ByChannel<'_>,
    s: &mut [f32],
    y: &mut [f32],
    from: usize,
) -> usize {
    let stride = y.len();
    let inputs = &step.input[from..][..N];
    let (mut times, mut added) = ([0.0f32; N], [0.0f32; N]);
    let dts = step.dt[from..][..N].iter().zip(&step.dt_bias[from..][..N]);
    for (time, (dt, bias)) in times.iter_mut().zip(dts) {
        *time = softplus(dt + bias);
    }
    for ((added, time), input) in added.iter_mut().zip(&times).zip(inputs) {
        *added = time * input;
    }
    let mut answer = [0.0f32; N];
    for (i, (key, query)) in step.key.iter().zip(step.query).enumerate() {
        let row = &mut s[i * stride + from..][..N];
        let decay = &step.decay[i * stride + from..][..N];
        let steps = decay.iter().zip(&times).zip(&added);
        for ((s, answer), ((decay, time), added)) in row.iter_mut().zip(&mut answer).zip(steps) {
            *s = *s * exp_not_positive(decay * time) + key * added;
            *answer += *s * query;
        }
    }
    let skip = &step.skip[from..][..N];
    let outputs = y[from..][..N].iter_mut().zip(&answer);
    for ((y, answer), (skip, input)) in outputs.zip(skip.iter().zip(inputs)) {
        *y = answer + skip * input;
    }
    N
}
