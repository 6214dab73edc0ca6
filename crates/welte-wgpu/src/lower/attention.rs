//! Attention of decode rows and prompts: splits of a context, and rope and append in the same launch.

use super::{Joined, Lowering, Run, Task};
use crate::kernels::cooperative::Together;
use crate::kernels::{self, Kernel, WORKGROUP};
use crate::launch::{Divided, Part, Place};
use crate::needs::{LEAST_SPLIT, LONG_SPLIT, attention_cache, splits};
use welte_table::{Command, Format, NO_WEIGHT, Op, Pass, PassKind, accesses, params, step};

/// The commands of a decode pass that one launch may be.
const APPEND_AND_ATTEND: welte_table::Run = welte_table::Run {
    steps: &[
        step!(RopeAppend [_, _, _] [qkv, kv] { layer, heads, kv_heads, head_dim, qkv_stride: stride }),
        step!(Attention [_] [qkv, kv, _] { layer, heads, kv_heads, head_dim, q_stride: stride }),
    ],
    relate: |_| Some(()),
};

impl Lowering<'_> {
    pub(super) fn attention(&self, task: Task<'_>, runs: &mut Vec<Run>) {
        let p = params::Attention::of(&task.command.params);
        let mut place = self.place(task, 0);
        let (format, head_dim) = attention_cache(task.cache);
        let wide = format == Format::F16 && head_dim.is_multiple_of(8) && head_dim <= 8 * WORKGROUP;
        let params = task.command.params;
        if !wide {
            let kernel = kernels::attention(format, head_dim);
            runs.push(Run::new(kernel, [p.heads, 1], place, params));
            return;
        }
        let geometry = self.gpu().geometry;
        if let Some(kernel) = kernels::attention_lanes(geometry, head_dim, false)
            && task.decodes
        {
            (place.splits, place.split) = splits(self.program(), LONG_SPLIT);
            let parts = Run {
                partner: task.partner.map(|(number, _)| number),
                joined: task
                    .partner
                    .and_then(|(_, rope)| self.joined(task, place, rope)),
                ..Run::new(kernel, [p.heads, place.splits], place, params)
            };
            self.divide(parts, runs);
            return;
        }
        if task.decodes {
            (place.splits, place.split) = splits(self.program(), LEAST_SPLIT);
        } else if let Some((kernel, rows)) = self.attention_together(head_dim) {
            runs.push(Run {
                rows,
                ..Run::new(kernel, [p.heads, 1], place, params)
            });
            return;
        }
        // Long contexts take a whole split in a step.
        let positions = if place.splits > 4 {
            LEAST_SPLIT
        } else {
            WORKGROUP
        };
        let kernel = kernels::attention_wide(head_dim, positions);
        let parts = Run::new(kernel, [p.heads, place.splits], place, params);
        self.divide(parts, runs);
    }

    /// Scores of all positions, then the choice.
    pub(super) fn choose_positions(&self, task: Task<'_>) -> [Run; 2] {
        let p = params::ChoosePositions::of(&task.command.params);
        let (format, _) = attention_cache(task.cache);
        let (place, context) = (self.place(task, 0), self.program().context);
        let mut params = task.command.params;
        params[7] = context;
        let blocks = context.div_ceil(WORKGROUP);
        let scores = kernels::choose_scores(format, p.head_dim);
        [
            Run::new(scores, [blocks, 1], place, params),
            Run::new(kernels::choose_positions(), [1, 1], place, params),
        ]
    }

    /// The kernel of prompts whose workgroups take several rows, and how many. None for software and for very large heads.
    fn attention_together(&self, head_dim: u32) -> Option<(Kernel, u32)> {
        let gpu = self.gpu();
        let memory = gpu.device.limits().max_compute_workgroup_storage_size;
        let page = self.program().page;
        let on_matrices = |on| Some((on, Together::of(on, head_dim, page, memory)?));
        if let Some((on, together)) = gpu.cooperative.and_then(on_matrices) {
            return Some((together.kernel(on), together.rows(on)));
        }
        let rows = kernels::attention_together(head_dim, memory)?;
        let kernel = kernels::attention_rows(head_dim, rows);
        gpu.geometry.together.then_some((kernel, rows))
    }

    /// Attention whose context is divided, and what joins its splits.
    fn divide(&self, parts: Run, runs: &mut Vec<Run>) {
        let (place, params) = (parts.place, parts.params);
        if place.splits == 1 {
            runs.push(parts);
            return;
        }
        let heads = parts.grid[0];
        let merge = Run::new(kernels::attention_merge(), [heads, 1], place, params);
        runs.extend(
            [(parts, Part::Splits), (merge, Part::Merge)].map(|(run, part)| Run {
                divided: Some(Divided {
                    part,
                    split: place.split,
                }),
                ..run
            }),
        );
    }

    /// The other command of `rope_append` and attention, which one launch can be in steps of one row: they follow each other, have the same
    /// heads and the same layer of an F16 cache, and nothing else reads the queries and keys that are rotated.
    pub(super) fn partner<'b>(&self, pass: &'b Pass, index: usize) -> Option<(u32, &'b Command)> {
        let (first, other) = match pass.commands[index].op {
            Op::RopeAppend => (index, index + 1),
            Op::Attention => (index.checked_sub(1)?, index.wrapping_sub(1)),
            _ => return None,
        };
        if pass.kind != PassKind::Decode {
            return None;
        }
        let found = APPEND_AND_ATTEND.at(&pass.commands, first)?;
        let qkv = found.bound.place("qkv")?;
        let attention = &pass.commands[first + 1];
        let a = params::Attention::of(&attention.params);
        let (format, head_dim) = attention_cache(self.program().cache_of(attention));
        let fits = head_dim == a.head_dim
            && format == Format::F16
            && head_dim.is_multiple_of(8)
            && kernels::attention_lanes(self.gpu().geometry, head_dim, true).is_some();
        // What comes next to the buffer must be a product into it.
        let later = pass.commands[first + 2..].iter().find_map(|command| {
            let mut all = accesses(command).into_iter();
            let access = all.find(|access| access.at.buffer == qkv.buffer)?;
            Some(access.writes && matches!(command.op, Op::Matmul | Op::NormMatmul))
        });
        (fits && later.unwrap_or(true)).then(|| (other as u32, &pass.commands[other]))
    }

    /// Attention that is its partner `rope` too.
    fn joined(&self, task: Task<'_>, mut place: Place, rope: &Command) -> Option<Joined> {
        let r = params::RopeAppend::of(&rope.params);
        let kernel = kernels::attention_lanes(self.gpu().geometry, r.head_dim, true)?;
        let [freqs, query_norm, key_norm] = rope.weights[..3] else {
            return None;
        };
        let weights = [freqs, query_norm, key_norm];
        let all = weights.into_iter().chain([task.command.weights[0]]);
        place.flags = 0;
        for (bit, id) in all.enumerate() {
            place.flags |= u32::from(id != NO_WEIGHT) << bit;
        }
        let mut params = task.command.params;
        params[11..16].copy_from_slice(&[
            r.rot,
            r.interleaved,
            r.magnitude.to_bits(),
            r.eps.to_bits(),
            r.sections,
        ]);
        Some(Joined {
            kernel,
            place,
            params,
            weights,
        })
    }
}
