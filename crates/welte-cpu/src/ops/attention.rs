//! Attention. A row's context is cut into splits at fixed positions. Each split gives a partial result with a softmax of
//! its own, and the partials are merged in order. The bits do not depend on the number of threads.

use super::cache::KvCache;
use super::{FloatRows, Floats, State};
use std::ops::Range;
use welte_table::{Command, Op, Row, params};

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
    /// A window begins at a multiple of its size.
    pub(crate) chunked: bool,
    /// Positions that every row sees, whatever its own; 0: those up to its reach.
    pub(crate) positions: usize,
    /// Rows that see more than `used` positions see those that were chosen for them; 0: they see all.
    pub(crate) used: usize,
    pub(crate) chosen: FloatRows,
    /// Rows see nothing after themselves, whatever their reach.
    pub(crate) causal: bool,
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

/// Attention of prompts on one instruction set: see `attention_prompt.rs`.
#[derive(Clone, Copy)]
pub(crate) struct Prompt {
    pub(super) run: PromptRun,
    /// The same in strips of one vector, for few queries. The bits are the same.
    pub(super) narrow: PromptRun,
    /// Queries of a vector.
    pub(super) lanes: usize,
}

/// Attention of consecutive rows of one sequence for one kv head.
pub(super) type PromptRun = unsafe fn(&Attention, &State, Range<usize>, usize, *mut f32);

/// Positions of a split. Of chosen positions: their places in the list.
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

/// The parameters of attention, and the positions that every row sees; 0: those up to its reach.
pub(crate) fn params_of(command: &Command) -> (params::Attention, usize) {
    if command.op == Op::Attention {
        return (params::Attention::of(&command.params), 0);
    }
    if command.op == Op::SparseAttention {
        return (params::SparseAttention::of(&command.params).dense(), 0);
    }
    let p = params::CrossAttention::of(&command.params);
    let like = params::Attention {
        layer: p.layer,
        heads: p.heads,
        kv_heads: p.kv_heads,
        head_dim: p.head_dim,
        scale: p.scale,
        window: 0,
        softcap: 0.0,
        q_stride: p.q_stride,
        y_stride: p.y_stride,
        causal: 0,
        chunked: 0,
    };
    (like, p.positions as usize)
}

impl Attention {
    /// The first position that the row at `position` sees.
    pub(super) fn first(&self, position: usize) -> usize {
        match self.window {
            0 => 0,
            window if self.chunked => position - position % window,
            window => (position + 1).saturating_sub(window),
        }
    }

    /// The last position that a row sees. Of chosen positions: the last one's place in the list.
    pub(super) fn last(&self, row: &Row) -> usize {
        match self.positions {
            _ if self.used > 0 => (row.reach as usize).min(self.used - 1),
            0 if self.causal => row.position as usize,
            0 => row.reach as usize,
            positions => positions - 1,
        }
    }

    /// The positions that were chosen for a row, if it does not see all.
    ///
    /// # Safety
    /// See `super`.
    pub(super) unsafe fn chosen(&self, state: &State, row: usize) -> Option<&[f32]> {
        let few = self.used == 0 || (state.rows[row].reach as usize) < self.used;
        // SAFETY: the place has a list for each row; an earlier phase wrote it.
        (!few).then(|| unsafe { self.chosen.row(row, self.used) })
    }

    /// The sink of a head.
    pub(super) fn sink(&self, head: usize) -> Option<f32> {
        // SAFETY: there is one for each head, as was checked when the command was lowered.
        unsafe { self.sinks.get(self.heads) }.map(|sinks| sinks[head])
    }

    /// How many splits a row has.
    pub(crate) fn splits(&self, row: &Row) -> usize {
        self.last(row) / SPLIT + 1 - self.first(row.position as usize) / SPLIT
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
            to: (at + SPLIT).min(self.last(row) + 1),
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
