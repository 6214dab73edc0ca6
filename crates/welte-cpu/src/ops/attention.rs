//! Attention. A row's context is cut into splits at fixed positions. Each split gives a partial result with a softmax of
//! its own, and the partials are merged in order. The bits do not depend on the number of threads.

use super::attention_prompt::Prompt;
use super::cache::KvCache;
use super::{FloatRows, Floats, State, exp_not_positive};
use crate::kernels::Isa;
use half::f16;
use welte_table::{Format, Row};

/// Positions of one split.
pub(crate) const SPLIT: usize = 256;
/// The largest head that the device supports.
pub(crate) const MAX_HEAD_DIM: usize = 1024;

#[derive(Clone, Copy)]
pub(crate) struct Attention {
    pub(crate) q: FloatRows,
    pub(crate) y: FloatRows,
    pub(crate) layer: usize,
    pub(crate) cache: KvCache,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: usize,
    pub(crate) softcap: f32,
    /// One more score per head, which has no value; or none.
    pub(crate) sinks: Floats,
    /// Partials of one row: `[split][head][head_dim, maximum, sum]`.
    pub(crate) partials: FloatRows,
    pub(crate) run: Run,
    /// Threads of the team.
    pub(crate) threads: usize,
    /// For prompts, if the instruction set has such functions.
    pub(crate) prompt: Option<Prompt>,
}

/// One split of one group of heads: see [`Attention::split`].
pub(crate) type Run = unsafe fn(&Attention, &State, usize, usize, Span, *mut f32, *mut f32);

/// Positions of a split.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The kv head and the first position of the split that this thread probably takes next: worth prefetching.
    pub(super) after: Option<(usize, usize)>,
}

/// Floats of one head's partial result.
pub(crate) fn partial_floats(head_dim: usize) -> usize {
    (head_dim + 2).next_multiple_of(16)
}

/// Floats of a thread's scratch: scores of a split for the group's heads, then partials of all splits.
pub(crate) fn scratch_floats(group: usize, head_dim: usize, splits: usize) -> usize {
    group * SPLIT + group * splits * partial_floats(head_dim)
}

/// The most splits that a context may have.
pub(crate) fn splits_of(context: usize) -> usize {
    context.div_ceil(SPLIT)
}

impl Attention {
    /// The first position that the row at `position` sees.
    pub(super) fn first(&self, position: usize) -> usize {
        if self.window == 0 {
            0
        } else {
            (position + 1).saturating_sub(self.window)
        }
    }

    /// The sink of a head.
    pub(super) fn sink(&self, head: usize) -> Option<f32> {
        // SAFETY: there is one for each head, as was checked when the command was lowered.
        unsafe { self.sinks.get(self.heads) }.map(|sinks| sinks[head])
    }

    /// How many splits a row has.
    pub(crate) fn splits(&self, row: &Row) -> usize {
        row.reach as usize / SPLIT + 1 - self.first(row.position as usize) / SPLIT
    }

    /// The number of splits if threads share them: a step of one row with several splits, not of a prompt that has
    /// functions of its own.
    pub(crate) fn shared_splits(&self, state: &State, rows: usize) -> Option<usize> {
        let splits = self.splits(&state.rows[0]);
        (self.prompt.is_none() && rows == 1 && splits > 1).then_some(splits)
    }

    fn span(&self, row: &Row, split: usize) -> Span {
        let first = self.first(row.position as usize);
        let at = (first / SPLIT + split) * SPLIT;
        Span {
            from: at.max(first),
            to: (at + SPLIT).min(row.reach as usize + 1),
            after: None,
        }
    }

    /// One split of one kv head's group, into the shared partials. The step has a single row.
    ///
    /// # Safety
    /// See `super`; `scratch` holds [`scratch_floats`] of this thread's own.
    pub(crate) unsafe fn split(
        &self,
        state: &State,
        kv_head: usize,
        split: usize,
        scratch: *mut f32,
    ) {
        let group = self.heads / self.kv_heads;
        let row = &state.rows[0];
        let mut span = self.span(row, split);
        // Chunks are numbered by split, then by head (`dispatch.rs`), and each thread takes the next one.
        let next = split * self.kv_heads + kv_head + self.threads;
        if next / self.kv_heads < self.splits(row) {
            let from = self.span(row, next / self.kv_heads).from;
            span.after = Some((next % self.kv_heads, from));
        }
        // SAFETY: the partials have a place for each split and head.
        unsafe {
            let out = self
                .partials
                .start
                .add((split * self.heads + kv_head * group) * partial_floats(self.head_dim));
            (self.run)(self, state, 0, kv_head, span, scratch, out);
        }
    }

    /// Merges the shared partials of one kv head's group.
    ///
    /// # Safety
    /// See `super`.
    pub(crate) unsafe fn merge(&self, state: &State, kv_head: usize) {
        let group = self.heads / self.kv_heads;
        let splits = self.splits(&state.rows[0]);
        let floats = partial_floats(self.head_dim);
        // SAFETY: as `split`; the phase before has written them.
        unsafe {
            let partials = self.partials.start.add(kv_head * group * floats);
            self.merge_group(0, kv_head, partials, splits, self.heads * floats);
        }
    }

    /// All of one kv head's group of one row.
    ///
    /// # Safety
    /// See `super`; `scratch` holds [`scratch_floats`] of this thread's own.
    pub(crate) unsafe fn whole(
        &self,
        state: &State,
        row: usize,
        kv_head: usize,
        scratch: *mut f32,
    ) {
        let group = self.heads / self.kv_heads;
        let at = &state.rows[row];
        let floats = group * partial_floats(self.head_dim);
        // SAFETY: the scratch has room for the scores and for every split's partials.
        unsafe {
            let partials = scratch.add(group * SPLIT);
            let splits = self.splits(at);
            for split in 0..splits {
                let out = partials.add(split * floats);
                let mut span = self.span(at, split);
                if split + 1 < splits {
                    span.after = Some((kv_head, span.to));
                }
                (self.run)(self, state, row, kv_head, span, scratch, out);
            }
            self.merge_group(row, kv_head, partials, splits, floats);
        }
    }

    /// # Safety
    /// `partials` holds the group's partials of `splits` splits, `stride` floats apart.
    unsafe fn merge_group(
        &self,
        row: usize,
        kv_head: usize,
        partials: *const f32,
        splits: usize,
        stride: usize,
    ) {
        let group = self.heads / self.kv_heads;
        let dim = self.head_dim;
        for h in 0..group {
            // SAFETY: promised by the caller; the head lies in the row of y.
            unsafe {
                let partial = |split: usize| partials.add(split * stride + h * partial_floats(dim));
                let y = self
                    .y
                    .start
                    .add(row * self.y.stride + (kv_head * group + h) * dim);
                let y = std::slice::from_raw_parts_mut(y, dim);
                let sink = self.sink(kv_head * group + h);
                let largest = (0..splits)
                    .map(|s| *partial(s).add(dim))
                    .fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
                y.fill(0.0);
                let mut sum = sink.map_or(0.0, |sink| (sink - largest).exp());
                for split in 0..splits {
                    let acc = std::slice::from_raw_parts(partial(split), dim + 2);
                    let weight = (acc[dim] - largest).exp();
                    sum += acc[dim + 1] * weight;
                    y.iter_mut().zip(acc).for_each(|(y, a)| *y += a * weight);
                }
                let scale = 1.0 / sum;
                y.iter_mut().for_each(|y| *y *= scale);
            }
        }
    }
}

/// Reads a row of the cache as floats.
type Widen = fn(&[u8], &mut [f32]);

fn widen_f16(row: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(row.chunks_exact(2)) {
        *out = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    }
}

fn widen_q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (out, q) in out.iter_mut().zip(&block[2..]) {
            *out = *q as i8 as f32 * scale;
        }
    }
}

/// The function for a cache format and head size on an instruction set of this processor.
pub(crate) fn run_for(format: Format, head_dim: usize, isa: Isa) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        use super::attention_vectors as x86;
        let wide = isa >= Isa::Avx512 && head_dim.is_multiple_of(16);
        let vectors = isa >= Isa::Avx2 && head_dim.is_multiple_of(8);
        match format {
            Format::Q8_0 if wide => return x86::q8_0_avx512,
            Format::Q8_0 if vectors => return x86::q8_0_avx2,
            Format::F16 if wide => return x86::f16_avx512,
            Format::F16 if vectors => return x86::f16_avx2,
            _ => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use super::attention_vectors as arm;
        let vectors = isa >= Isa::Neon && head_dim.is_multiple_of(8);
        match format {
            Format::Q8_0 if vectors => return arm::q8_0_neon,
            Format::F16 if vectors => return arm::f16_neon,
            _ => {}
        }
    }
    let _ = (isa, head_dim);
    match format {
        Format::Q8_0 => plain_q8_0,
        _ => plain_f16,
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}

/// # Safety
/// See [`attend`].
unsafe fn plain_f16(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
) {
    // SAFETY: promised by the caller.
    unsafe { attend(a, state, row, kv_head, span, scores, out, widen_f16) }
}

/// # Safety
/// See [`attend`].
unsafe fn plain_q8_0(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
) {
    // SAFETY: promised by the caller.
    unsafe { attend(a, state, row, kv_head, span, scores, out, widen_q8_0) }
}

/// Softmax attention of one group's heads over a span: per head `head_dim` sums, the largest score, the sum of weights.
///
/// # Safety
/// See `super`; `scores` holds `group * SPLIT` floats and `out` the group's partials, of this thread's own.
#[allow(clippy::too_many_arguments)]
unsafe fn attend(
    a: &Attention,
    state: &State,
    row: usize,
    kv_head: usize,
    span: Span,
    scores: *mut f32,
    out: *mut f32,
    widen: Widen,
) {
    let dim = a.head_dim;
    let group = a.heads / a.kv_heads;
    let slot = state.rows[row].slot as usize;
    let floats = partial_floats(dim);
    let mut wide = [0.0f32; MAX_HEAD_DIM];
    let wide = &mut wide[..dim];
    // SAFETY: the partials and scores are ours; q holds the group's heads.
    let (partials, scores, queries) = unsafe {
        let q = a.q.start.add(row * a.q.stride + kv_head * group * dim);
        (
            std::slice::from_raw_parts_mut(out, group * floats),
            std::slice::from_raw_parts_mut(scores, group * SPLIT),
            std::slice::from_raw_parts(q, group * dim),
        )
    };
    let read = |part: usize, position: usize, wide: &mut [f32]| {
        // SAFETY: positions up to the row's own lie in the layout.
        let row = unsafe {
            let at = a.cache.at(state, a.layer, part, kv_head, slot, position);
            std::slice::from_raw_parts(at, a.cache.row_bytes)
        };
        widen(row, wide);
    };
    let count = span.to - span.from;
    for p in 0..count {
        read(0, span.from + p, wide);
        for (h, q) in queries.chunks_exact(dim).enumerate() {
            scores[h * SPLIT + p] = dot(q, wide) * a.scale;
        }
    }
    for (partial, scores) in partials
        .chunks_exact_mut(floats)
        .zip(scores.chunks_exact_mut(SPLIT))
    {
        partial.fill(0.0);
        weigh(&mut partial[dim..], &mut scores[..count], a.softcap);
    }
    for p in 0..count {
        read(1, span.from + p, wide);
        for (partial, scores) in partials
            .chunks_exact_mut(floats)
            .zip(scores.chunks_exact(SPLIT))
        {
            let weight = scores[p];
            for (sum, v) in partial[..dim].iter_mut().zip(wide.iter()) {
                *sum += weight * *v;
            }
        }
    }
}

/// Turns scores into weights. The largest score and the sum of the weights become the first two of `facts`.
fn weigh(facts: &mut [f32], scores: &mut [f32], softcap: f32) {
    if softcap != 0.0 {
        scores
            .iter_mut()
            .for_each(|s| *s = softcap * (*s / softcap).tanh());
    }
    let largest = scores
        .iter()
        .fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
    scores
        .iter_mut()
        .for_each(|s| *s = exp_not_positive(*s - largest));
    (facts[0], facts[1]) = (largest, scores.iter().sum());
}
