//! Which floats a command touches in each of its buffers: the one place that knows, for cost, verify and pictures.

use crate::{BufferRef, Command, Op, params as p};

/// How much of a buffer an operand covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// `width` floats in each live row, rows `stride` floats apart.
    Rows {
        /// Floats touched in a row.
        width: u64,
        /// Floats from one row to the next.
        stride: u64,
    },
    /// `width` floats in each output row, rows `stride` floats apart.
    Outputs {
        /// Floats touched in a row.
        width: u64,
        /// Floats from one row to the next.
        stride: u64,
    },
    /// One token id per row.
    Tokens,
    /// A cache.
    Cache,
    /// The bank of a matrix's adapters.
    Bank,
}

/// One buffer operand of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its role, as the op names it.
    pub role: &'static str,
    /// Where.
    pub at: BufferRef,
    /// How much.
    pub extent: Extent,
    /// Whether the command writes it (ops without a separate input also read it).
    pub writes: bool,
}

/// The buffer operands of a command, in order.
pub fn accesses(c: &Command) -> Vec<Access> {
    let rows = |width: u64, stride: u32| Extent::Rows {
        width,
        stride: stride.into(),
    };
    let outputs = |width: u64, stride: u32| Extent::Outputs {
        width,
        stride: stride.into(),
    };
    let w = |n: u32| u64::from(n);
    let heads = |n: u32, dim: u32| u64::from(n) * u64::from(dim);
    let words = &c.params;
    let extents = match c.op {
        Op::Embed => {
            let q = p::Embed::of(words);
            vec![Extent::Tokens, rows(w(q.k), q.x_stride)]
        }
        Op::Norm => {
            let q = p::Norm::of(words);
            let width = heads(q.groups, q.dim);
            vec![rows(width, q.x_stride), rows(width, q.y_stride)]
        }
        Op::LayerNorm => {
            let q = p::LayerNorm::of(words);
            let width = heads(q.groups, q.dim);
            vec![rows(width, q.x_stride), rows(width, q.y_stride)]
        }
        Op::HeadsMatmul => {
            let q = p::HeadsMatmul::of(words);
            let width = |values: u32, distance: u32| {
                heads(q.heads.saturating_sub(1), distance)
                    .saturating_add(w(values))
                    .saturating_add(w(q.tail))
            };
            vec![
                rows(width(q.k, q.x_head), q.x_stride),
                rows(width(q.n, q.y_head), q.y_stride),
            ]
        }
        Op::PositionScale => {
            let q = p::PositionScale::of(words);
            vec![rows(w(q.n), q.y_stride)]
        }
        Op::Act => {
            let q = p::Act::of(words);
            vec![rows(w(q.n), q.y_stride)]
        }
        Op::Matmul => {
            let q = p::Matmul::of(words);
            vec![rows(w(q.k), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::Bias => {
            let q = p::Bias::of(words);
            vec![rows(w(q.n), q.y_stride)]
        }
        Op::Rope => {
            let q = p::Rope::of(words);
            vec![rows(heads(q.heads, q.head_dim), q.y_stride)]
        }
        Op::KvAppend => {
            let q = p::KvAppend::of(words);
            let width = heads(q.kv_heads, q.head_dim);
            vec![
                rows(width, q.k_stride),
                rows(width, q.v_stride),
                Extent::Cache,
            ]
        }
        Op::Attention => {
            let q = p::Attention::of(words);
            let width = heads(q.heads, q.head_dim);
            vec![
                rows(width, q.q_stride),
                Extent::Cache,
                rows(width, q.y_stride),
            ]
        }
        Op::CrossAttention => {
            let q = p::CrossAttention::of(words);
            let width = heads(q.heads, q.head_dim);
            vec![
                rows(width, q.q_stride),
                Extent::Cache,
                rows(width, q.y_stride),
            ]
        }
        Op::ChoosePositions => {
            let q = p::ChoosePositions::of(words);
            vec![
                rows(heads(q.heads, q.head_dim), q.q_stride),
                Extent::Cache,
                rows(w(q.heads), q.gates_stride),
                rows(w(q.used), q.y_stride),
            ]
        }
        Op::SparseAttention => {
            let q = p::SparseAttention::of(words);
            let width = heads(q.heads, q.head_dim);
            vec![
                rows(width, q.q_stride),
                Extent::Cache,
                rows(w(q.used), q.chosen_stride),
                rows(width, q.y_stride),
            ]
        }
        Op::EncodeAttention => {
            let q = p::EncodeAttention::of(words);
            let y = heads(q.heads, q.head_dim);
            let qkv = y.saturating_add(heads(q.kv_heads, q.head_dim).saturating_mul(2));
            let places = heads(q.heads, q.of_places());
            let qkv = qkv.saturating_add(places);
            vec![rows(qkv, q.qkv_stride), rows(y, q.y_stride)]
        }
        Op::EncodeConv => {
            let q = p::EncodeConv::of(words);
            vec![rows(w(q.n), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::AddPosition => {
            let q = p::AddPosition::of(words);
            vec![rows(w(q.k), q.x_stride)]
        }
        Op::AddFeature => {
            let q = p::AddFeature::of(words);
            vec![rows(w(q.n), q.x_stride)]
        }
        Op::ActMul => {
            let q = p::ActMul::of(words);
            vec![rows(2 * w(q.n), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::Multiply => {
            let q = p::Multiply::of(words);
            vec![rows(w(q.n), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::Spread => {
            let q = p::Spread::of(words);
            vec![rows(w(q.k), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::Cutoff => {
            let q = p::Cutoff::of(words);
            vec![rows(w(q.n), q.y_stride)]
        }
        Op::MatchSquares => {
            let q = p::MatchSquares::of(words);
            let all = heads(q.groups, q.dim);
            vec![rows(w(q.dim), q.x_stride), rows(all, q.y_stride)]
        }
        Op::AltUpPredict => {
            let q = p::AltUpPredict::of(words);
            let all = heads(q.streams, q.dim);
            vec![rows(w(q.streams), q.x_stride), rows(all, q.y_stride)]
        }
        Op::AltUpCorrect => {
            let q = p::AltUpCorrect::of(words);
            vec![
                rows(w(q.dim), q.now_stride),
                rows(w(q.streams), q.x_stride),
                rows(heads(q.streams, q.dim), q.y_stride),
            ]
        }
        Op::Add => {
            let q = p::Add::of(words);
            vec![rows(w(q.n), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::Scale => {
            let q = p::Scale::of(words);
            vec![rows(w(q.n), q.y_stride)]
        }
        Op::SelectRows => {
            let q = p::SelectRows::of(words);
            vec![rows(w(q.n), q.x_stride), outputs(w(q.n), q.y_stride)]
        }
        Op::Pool => {
            let q = p::Pool::of(words);
            vec![rows(w(q.n), q.x_stride), outputs(q.width(), q.y_stride)]
        }
        Op::ShortConv => {
            let q = p::ShortConv::of(words);
            let n = w(q.n);
            vec![rows(n, q.x_stride), rows(n, q.y_stride), Extent::Cache]
        }
        Op::Gate => {
            let q = p::Gate::of(words);
            vec![rows(w(q.gates), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::GatedDelta => {
            let q = p::GatedDelta::of(words);
            let values = heads(q.heads, q.value_dim);
            let keys = heads(q.key_heads, q.key_dim).saturating_mul(2);
            let decays = heads(q.heads, q.decays());
            vec![
                rows(keys.saturating_add(values), q.x_stride),
                rows(decays.saturating_add(w(q.heads)), q.gates_stride),
                rows(values, q.y_stride),
                Extent::Cache,
            ]
        }
        Op::Mamba2 => {
            let q = p::Mamba2::of(words);
            let values = heads(q.heads, q.value_dim);
            let keys = heads(q.groups, q.key_dim).saturating_mul(2);
            vec![
                rows(values.saturating_add(keys), q.x_stride),
                rows(heads(q.heads, q.times()), q.dt_stride),
                rows(values, q.y_stride),
                Extent::Cache,
            ]
        }
        Op::Sample => {
            let q = p::Sample::of(words);
            vec![rows(w(q.n), q.logits_stride), Extent::Tokens]
        }
        Op::Route => {
            let q = p::Route::of(words);
            let choice = 2 * w(q.used);
            vec![rows(w(q.experts), q.x_stride), rows(choice, q.y_stride)]
        }
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(words);
            vec![
                rows(w(q.k), q.x_stride),
                rows(2 * w(q.used), q.choice_stride),
                rows(heads(q.used, q.width()), q.y_stride),
            ]
        }
        Op::ExpertsAdd => {
            let q = p::ExpertsAdd::of(words);
            vec![
                rows(heads(q.used, q.k), q.x_stride),
                rows(2 * w(q.used), q.choice_stride),
                rows(w(q.n), q.y_stride),
            ]
        }
        Op::AdaptDown => {
            let q = p::AdaptDown::of(words);
            let h = rows(heads(q.parts, q.rank), q.h_stride);
            vec![rows(w(q.k), q.x_stride), Extent::Bank, h]
        }
        Op::AdaptLookup => {
            let q = p::AdaptLookup::of(words);
            vec![Extent::Tokens, Extent::Bank, rows(w(q.rank), q.h_stride)]
        }
        Op::AdaptUp => {
            let q = p::AdaptUp::of(words);
            let h = rows(heads(q.parts, q.rank), q.h_stride);
            vec![h, Extent::Bank, rows(w(q.n), q.y_stride)]
        }
        Op::AdaptExpertsDown => {
            let q = p::AdaptExpertsDown::of(words);
            let x = if q.own == 1 {
                heads(q.used, q.k)
            } else {
                w(q.k)
            };
            vec![
                rows(x, q.x_stride),
                rows(2 * w(q.used), q.choice_stride),
                Extent::Bank,
                rows(heads(q.used, q.parts).saturating_mul(w(q.rank)), q.h_stride),
            ]
        }
        Op::AdaptExpertsUp => {
            let q = p::AdaptExpertsUp::of(words);
            let y = if q.sum == 1 {
                w(q.n)
            } else {
                heads(q.used, q.n)
            };
            vec![
                rows(heads(q.used, q.parts).saturating_mul(w(q.rank)), q.h_stride),
                rows(2 * w(q.used), q.choice_stride),
                Extent::Bank,
                rows(y, q.y_stride),
            ]
        }
        Op::Exchange => {
            let q = p::Exchange::of(words);
            let part = q.part(q.rank);
            vec![
                rows(heads(q.vectors, part.end - part.start), q.part_stride),
                rows(heads(q.vectors, q.deal().width()), q.y_stride),
            ]
        }
        Op::NormMatmul => {
            let q = p::NormMatmul::of(words);
            vec![rows(w(q.k), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::MatmulAdd => {
            let q = p::MatmulAdd::of(words);
            vec![rows(w(q.k), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::NormMatmulActMul => {
            let q = p::NormMatmulActMul::of(words);
            vec![rows(w(q.k), q.x_stride), rows(w(q.n), q.y_stride)]
        }
        Op::RopeAppend => {
            let q = p::RopeAppend::of(words);
            let width = heads(q.heads, q.head_dim)
                .saturating_add(heads(q.kv_heads, q.head_dim).saturating_mul(2));
            vec![rows(width, q.qkv_stride), Extent::Cache]
        }
    };
    let reads = c.op.reads().len();
    let roles = c.op.reads().iter().chain(c.op.writes());
    roles
        .zip(c.buffers)
        .zip(extents)
        .enumerate()
        .map(|(i, ((role, at), extent))| Access {
            role,
            at,
            extent,
            writes: i >= reads,
        })
        .collect()
}

/// Whether two operands cover different columns of the same rows. Each lies within its row, which `verify` checks.
pub(crate) fn apart(a: &Access, b: &Access) -> bool {
    let columns = |access: &Access| match access.extent {
        Extent::Rows { width, stride } if stride > 0 => {
            let first = u64::from(access.at.offset) / 4;
            Some((first / stride, first % stride, width, stride))
        }
        _ => None,
    };
    let (Some(a), Some(b)) = (columns(a), columns(b)) else {
        return false;
    };
    let disjoint = a.1.saturating_add(a.2) <= b.1 || b.1.saturating_add(b.2) <= a.1;
    a.3 == b.3 && a.0 == b.0 && disjoint
}
