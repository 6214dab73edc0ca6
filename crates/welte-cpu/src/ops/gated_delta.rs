//! The gated delta rule over a recurrent state.

use super::cache::StateCache;
use super::{FloatRows, Floats, State, exp_not_positive, sigmoid, softplus, widest};

pub(crate) struct GatedDelta {
    /// Queries, keys, values.
    pub(crate) x: FloatRows,
    /// b of every head, then a: of every head, or of every element of its key.
    pub(crate) gates: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) decay: Floats,
    pub(crate) dt_bias: Floats,
    /// The rows of a state decay apart from each other.
    pub(crate) by_channel: bool,
    pub(crate) key_heads: usize,
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) tiled: bool,
    pub(crate) eps: f32,
    pub(crate) layer: usize,
    pub(crate) cache: StateCache,
}

/// Rows of a sequence that a thread computes before it goes to other columns of the state.
const TOGETHER: usize = 32;
/// Columns of the state that are copied to the thread's scratch for several rows: 16 KiB of 128 key elements, which stay in
/// the L1 cache. In the state itself, the rows of so few columns would share few of the cache's sets.
const PANEL: usize = 32;

/// Vectors of a row in a thread's scratch: its key and its query. If the rows of the state decay apart from each other: and how much of
/// them is kept, and the key times that.
fn vectors(by_channel: bool) -> usize {
    if by_channel { 4 } else { 2 }
}

/// Floats of a thread's scratch: vectors of the rows, then columns of the state.
pub(crate) fn scratch_floats(key_dim: usize, by_channel: bool) -> usize {
    (vectors(by_channel) * TOGETHER + PANEL) * key_dim
}

impl GatedDelta {
    /// A chunk is a value head: the rows of a sequence depend on each other, heads do not.
    pub(crate) fn chunks(&self) -> usize {
        self.heads
    }

    /// # Safety
    /// See `super`; rows of a slot come in the order of their positions. `scratch` holds [`scratch_floats`] of this thread's
    /// own.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, head: usize, scratch: *mut f32) {
        let mut row = 0;
        while row < rows {
            let slot = state.rows[row].slot;
            let follow = state.rows[row + 1..rows].iter();
            let follow = follow.take_while(|next| next.slot == slot && next.position > 0);
            let count = 1 + follow.take(TOGETHER - 1).count();
            // SAFETY: promised by the caller; the rows are of one slot.
            unsafe { self.advance(state, row, count, head, scratch) };
            row += count;
        }
    }

    /// Advances one head of a slot's state by `count` rows.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn advance(
        &self,
        state: &State,
        first: usize,
        count: usize,
        head: usize,
        scratch: *mut f32,
    ) {
        let (key_dim, value_dim) = (self.key_dim, self.value_dim);
        let keys = self.key_heads * key_dim;
        let values = 2 * keys + head * value_dim;
        let key_head = if self.tiled {
            head % self.key_heads
        } else {
            head / (self.heads / self.key_heads)
        };
        let at = state.rows[first];
        // SAFETY: rows lie in their buffers, the state in its cache; chunks use different heads. The scratch has room.
        unsafe {
            let s = self.cache.at(state, self.layer, at.slot as usize);
            let s = s.add(head * key_dim * value_dim);
            let s = std::slice::from_raw_parts_mut(s, key_dim * value_dim);
            // The state before position 0 is zero, whatever the page held before.
            if at.position == 0 {
                s.fill(0.0);
            }
            let decay = self.decay.get(self.heads).map_or(0.0, |d| d[head]);
            let decays = if self.by_channel { key_dim } else { 1 };
            let dt = self.dt_bias.get(self.heads * decays);
            let dt = dt.map_or(&[][..], |all| &all[head * decays..][..decays]);
            let each = vectors(self.by_channel) * key_dim;
            let vectors = std::slice::from_raw_parts_mut(scratch, count * each);
            let mut gates = [(0.0, 0.0); TOGETHER];
            for (i, vectors) in vectors.chunks_exact_mut(each).enumerate() {
                let x = self.x.row(first + i, 2 * keys + self.heads * value_dim);
                let (key, rest) = vectors.split_at_mut(key_dim);
                let (query, rest) = rest.split_at_mut(key_dim);
                let own = key_head * key_dim;
                normalise(&x[keys + own..][..key_dim], 1.0, self.eps, key);
                let scale = 1.0 / (key_dim as f32).sqrt();
                normalise(&x[own..][..key_dim], scale, self.eps, query);
                let of_row = self.gates.row(first + i, self.heads * (1 + decays));
                let a = &of_row[self.heads + head * decays..][..decays];
                let kept = if self.by_channel {
                    let (kept, recalling) = rest.split_at_mut(key_dim);
                    keep(decay, a, dt, kept);
                    for ((to, key), kept) in recalling.iter_mut().zip(&*key).zip(&*kept) {
                        *to = key * kept;
                    }
                    1.0
                } else {
                    (decay * softplus(a[0] + dt.first().unwrap_or(&0.0))).exp()
                };
                gates[i] = (kept, sigmoid(of_row[head]));
            }
            let at = |rows: FloatRows, column: usize| FloatRows {
                start: rows.start.add(first * rows.stride + column),
                stride: rows.stride,
            };
            let rows = Rows {
                vectors,
                by_channel: self.by_channel,
                key_dim,
                gates: &gates[..count],
                values: at(self.x, values),
                y: at(self.y, head * value_dim),
            };
            if count == 1 {
                return walk(&rows, s, value_dim, 0, value_dim);
            }
            let panel =
                std::slice::from_raw_parts_mut(scratch.add(TOGETHER * each), PANEL * key_dim);
            for from in (0..value_dim).step_by(PANEL) {
                let width = PANEL.min(value_dim - from);
                for (to, s) in panel.chunks_exact_mut(width).zip(s.chunks_exact(value_dim)) {
                    to.copy_from_slice(&s[from..from + width]);
                }
                walk(&rows, panel, width, from, width);
                for (s, panel) in s.chunks_exact_mut(value_dim).zip(panel.chunks_exact(width)) {
                    s[from..from + width].copy_from_slice(panel);
                }
            }
        }
    }
}

/// Consecutive rows of one head.
pub(crate) struct Rows<'a> {
    /// Key and query of each row, normed, and what [`vectors`] says.
    vectors: &'a [f32],
    by_channel: bool,
    key_dim: usize,
    /// Of each row: the part of the state that is kept (1 if its rows decay apart), and the part of the error that is corrected.
    gates: &'a [(f32, f32)],
    /// This head's part of each row.
    values: FloatRows,
    y: FloatRows,
}

impl Rows<'_> {
    /// Vector `at` of a row: key, query, what is kept, and what recalls.
    #[inline(always)]
    fn vector<const BY_CHANNEL: bool>(&self, row: usize, at: usize) -> &[f32] {
        let each = if BY_CHANNEL { 4 } else { 2 };
        &self.vectors[(each * row + at) * self.key_dim..][..self.key_dim]
    }

    /// What recalls from the state before it decays: the key, or the key times what is kept.
    #[inline(always)]
    fn recalling<const BY_CHANNEL: bool>(&self, row: usize) -> &[f32] {
        self.vector::<BY_CHANNEL>(row, if BY_CHANNEL { 3 } else { 0 })
    }
}

widest! {
    /// `kept = exp(decay * softplus(a + bias))`
    fn keep(decay: f32, a: &[f32], bias: &[f32], kept: &mut [f32]) {
        for ((kept, a), bias) in kept.iter_mut().zip(a).zip(bias) {
            *kept = exp_not_positive(decay * softplus(a + bias));
        }
    }
}

widest! {
    /// `to = x / |x| * scale`.
    fn normalise(x: &[f32], scale: f32, eps: f32, to: &mut [f32]) {
        let mut lanes = [0.0f32; 16];
        for x in x.chunks(lanes.len()) {
            for (lane, x) in lanes.iter_mut().zip(x) {
                *lane = x.mul_add(*x, *lane);
            }
        }
        let scale = scale / (lanes.iter().sum::<f32>() + eps).sqrt();
        for (to, x) in to.iter_mut().zip(x) {
            *to = x * scale;
        }
    }
}

widest! {
    /// Advances columns of the state by rows and answers the rows' queries. `s` has `stride` columns (a row per element of the
    /// key), of which the first `width` are columns `from..` of the head.
    fn walk(rows: &Rows<'_>, s: &mut [f32], stride: usize, from: usize, width: usize) {
        let mut at = 0;
        while at < width {
            let s = &mut s[at..];
            at += match (width - at, rows.by_channel) {
                (32.., false) => columns::<32, false>(rows, s, stride, from + at),
                (8.., false) => columns::<8, false>(rows, s, stride, from + at),
                (_, false) => columns::<1, false>(rows, s, stride, from + at),
                (32.., true) => columns::<32, true>(rows, s, stride, from + at),
                (8.., true) => columns::<8, true>(rows, s, stride, from + at),
                (_, true) => columns::<1, true>(rows, s, stride, from + at),
            };
        }
    }
}

/// `N` columns. Returns `N`. The sums of a column do not depend on the number of columns or rows.
#[inline(always)]
fn columns<const N: usize, const BY_CHANNEL: bool>(
    rows: &Rows<'_>,
    s: &mut [f32],
    stride: usize,
    from: usize,
) -> usize {
    let mut recalled = [0.0f32; N];
    for (s, key) in s.chunks(stride).zip(rows.recalling::<BY_CHANNEL>(0)) {
        for (s, recalled) in s[..N].iter().zip(&mut recalled) {
            *recalled = s.mul_add(*key, *recalled);
        }
    }
    for (row, (kept, rate)) in rows.gates.iter().enumerate() {
        // SAFETY: the head's values lie in the row, and nobody writes them.
        let values = unsafe { rows.values.row(row, from + N) };
        let mut change = [0.0f32; N];
        for ((change, value), recalled) in change.iter_mut().zip(&values[from..]).zip(&recalled) {
            *change = rate * (value - kept * recalled);
        }
        let mut answer = [0.0f32; N];
        recalled = [0.0; N];
        let [key, query] = [0, 1].map(|at| rows.vector::<BY_CHANNEL>(row, at));
        let keeps = if BY_CHANNEL {
            rows.vector::<true>(row, 2)
        } else {
            key
        };
        // While an element of the state is at hand, it is recalled for the next row too.
        let next = (row + 1 < rows.gates.len()).then(|| rows.recalling::<BY_CHANNEL>(row + 1));
        let vectors = key.iter().zip(query).zip(next.unwrap_or(key)).zip(keeps);
        for (s, (((key, query), next), own)) in s.chunks_mut(stride).zip(vectors) {
            let kept = if BY_CHANNEL { own } else { kept };
            let sums = answer.iter_mut().zip(&mut recalled);
            for ((s, change), (answer, recalled)) in s[..N].iter_mut().zip(&change).zip(sums) {
                *s = key.mul_add(*change, kept * *s);
                *answer = s.mul_add(*query, *answer);
                *recalled = s.mul_add(*next, *recalled);
            }
        }
        // SAFETY: the head's outputs lie in the row, and only this chunk writes them.
        unsafe { rows.y.row_mut(row, from + N)[from..].copy_from_slice(&answer) };
    }
    N
}
