//! What a command costs: bytes moved and floating-point operations per row, caches left out.

use crate::{
    Bank, CacheKind, Command, Extent, Format, NO_WEIGHT, Op, Program, Row, WeightSpec, accesses,
    params as p,
};

/// Bytes and flops of one row's execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cost {
    /// Memory that must move at least.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// Bytes of a weight as the checkpoint's format stores it (vectors as F32); 0 if its shape does not fit the format.
pub fn stored_bytes(weight: &WeightSpec) -> u64 {
    row_bytes(weight.format, weight.k).saturating_mul(weight.n.into())
}

fn row_bytes(format: Format, k: u32) -> u64 {
    format.bytes(k as usize).map_or(0, |b| b as u64)
}

/// The cost of one command over these weights.
pub fn of(c: &Command, weights: &[WeightSpec]) -> Cost {
    let weight_bytes: u64 = c
        .weights
        .iter()
        .filter(|id| **id != NO_WEIGHT)
        .filter_map(|id| weights.get(*id as usize))
        .map(|w| match c.op {
            Op::Embed => row_bytes(w.format, w.k),
            Op::AddPosition => 4 * u64::from(p::AddPosition::of(&c.params).k),
            _ => chosen_share(c, stored_bytes(w)),
        })
        .fold(0, u64::saturating_add);
    let activations = accesses(c).iter().fold(0u64, |sum, a| {
        sum.saturating_add(match a.extent {
            Extent::Rows { width, .. } | Extent::Outputs { width, .. } => width.saturating_mul(4),
            Extent::Tokens => 4,
            Extent::Cache => 0,
            Extent::Bank => low_rank_bytes(c),
        })
    });
    Cost {
        bytes: weight_bytes.saturating_add(activations),
        flops: flops(c),
    }
}

/// What one row reads of a bank.
fn low_rank_bytes(c: &Command) -> u64 {
    let used = u64::from(c.word("used").unwrap_or(1));
    let Some(bank) = Bank::of(c) else { return 0 };
    let rank = u64::from(bank.rank);
    let values = match c.op {
        Op::AdaptDown | Op::AdaptExpertsDown => u64::from(bank.parts) * u64::from(bank.k),
        Op::AdaptLookup => 1,
        _ => bank.n.into(),
    };
    values.saturating_mul(2 * used).saturating_mul(rank)
}

/// What one row reads of a weight: of experts only those that it chose.
fn chosen_share(c: &Command, bytes: u64) -> u64 {
    let (experts, used) = match c.op {
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(&c.params);
            (q.experts, q.used)
        }
        Op::ExpertsAdd => {
            let q = p::ExpertsAdd::of(&c.params);
            (q.experts, q.used)
        }
        _ => (1, 1),
    };
    bytes / u64::from(experts.max(1)) * u64::from(used)
}

fn flops(c: &Command) -> u64 {
    let mul = |a: u32, b: u32| u64::from(a).saturating_mul(b.into());
    let words = &c.params;
    match c.op {
        Op::Embed => p::Embed::of(words).k.into(),
        Op::Norm => {
            let q = p::Norm::of(words);
            mul(q.groups, q.dim).saturating_mul(4)
        }
        Op::LayerNorm => {
            let q = p::LayerNorm::of(words);
            mul(q.groups, q.dim).saturating_mul(7)
        }
        Op::HeadsMatmul => {
            let q = p::HeadsMatmul::of(words);
            mul(q.n, q.k)
                .saturating_mul(2)
                .saturating_mul(q.heads.into())
        }
        Op::PositionScale => p::PositionScale::of(words).n.into(),
        Op::Act => 8 * u64::from(p::Act::of(words).n),
        Op::Matmul => {
            let q = p::Matmul::of(words);
            mul(q.n, q.k).saturating_mul(2)
        }
        Op::MatmulAdd => {
            let q = p::MatmulAdd::of(words);
            mul(q.n, q.k).saturating_mul(2).saturating_add(q.n.into())
        }
        Op::NormMatmul => {
            let q = p::NormMatmul::of(words);
            mul(q.n, q.k)
                .saturating_mul(2)
                .saturating_add(4 * u64::from(q.k))
        }
        Op::NormMatmulActMul => {
            let q = p::NormMatmulActMul::of(words);
            mul(q.n, q.k)
                .saturating_mul(4)
                .saturating_add(4 * u64::from(q.k))
                .saturating_add(8 * u64::from(q.n))
        }
        Op::Route => 4 * u64::from(p::Route::of(words).experts),
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(words);
            mul(q.n, q.k)
                .saturating_mul(2 * u64::from(q.matrices()))
                .saturating_add(8 * u64::from(q.n))
                .saturating_mul(q.used.into())
        }
        Op::ExpertsAdd => {
            let q = p::ExpertsAdd::of(words);
            mul(q.n, q.k)
                .saturating_add(q.n.into())
                .saturating_mul(2 * u64::from(q.used))
        }
        Op::Bias => p::Bias::of(words).n.into(),
        Op::Multiply => p::Multiply::of(words).n.into(),
        Op::Cutoff => 6 * u64::from(p::Cutoff::of(words).n),
        Op::MatchSquares => {
            let q = p::MatchSquares::of(words);
            mul(q.groups, q.dim).saturating_mul(5)
        }
        Op::AltUpPredict => {
            let q = p::AltUpPredict::of(words);
            mul(q.streams, q.streams)
                .saturating_mul(q.dim.into())
                .saturating_mul(2)
        }
        Op::AltUpCorrect => {
            let q = p::AltUpCorrect::of(words);
            mul(q.streams, q.dim).saturating_mul(3)
        }
        Op::Add => p::Add::of(words).n.into(),
        Op::Scale => 2 * u64::from(p::Scale::of(words).n),
        Op::ActMul => 8 * u64::from(p::ActMul::of(words).n),
        Op::Rope => {
            let q = p::Rope::of(words);
            mul(q.heads, q.rot).saturating_mul(3)
        }
        Op::RopeAppend => {
            let q = p::RopeAppend::of(words);
            mul(q.heads, q.rot)
                .saturating_add(mul(q.kv_heads, q.rot))
                .saturating_mul(3)
        }
        Op::Sample => p::Sample::of(words).n.into(),
        Op::ShortConv => {
            let q = p::ShortConv::of(words);
            mul(q.n, q.taps).saturating_mul(2)
        }
        Op::EncodeConv => {
            let q = p::EncodeConv::of(words);
            mul(q.n, q.taps).saturating_mul(2)
        }
        Op::Gate => 5 * u64::from(p::Gate::of(words).n),
        Op::GatedDelta => {
            // Decay, what the key recalls, the update, and the answer to the query: 7 operations per float of the state.
            let q = p::GatedDelta::of(words);
            mul(q.heads, q.key_dim)
                .saturating_mul(q.value_dim.into())
                .saturating_mul(7)
        }
        Op::Mamba2 => {
            // Decay, the update, and the answer to the query: 5 operations per float of the state.
            let q = p::Mamba2::of(words);
            mul(q.heads, q.key_dim)
                .saturating_mul(q.value_dim.into())
                .saturating_mul(5)
        }
        Op::Pool => p::Pool::of(words).n.into(),
        Op::AddFeature => p::AddFeature::of(words).n.into(),
        Op::AddPosition => 2 * u64::from(p::AddPosition::of(words).k),
        Op::AdaptDown
        | Op::AdaptLookup
        | Op::AdaptUp
        | Op::AdaptExpertsDown
        | Op::AdaptExpertsUp => low_rank_bytes(c),
        Op::KvAppend
        | Op::Attention
        | Op::CrossAttention
        | Op::ChoosePositions
        | Op::SparseAttention
        | Op::EncodeAttention
        | Op::Exchange
        | Op::SelectRows
        | Op::Spread => 0,
    }
}

/// Writes every command's cost into it.
pub fn fill(program: &mut Program) {
    for pass in &mut program.passes {
        for c in &mut pass.commands {
            let cost = of(c, &program.weights);
            (c.bytes, c.flops) = (cost.bytes, cost.flops);
        }
    }
}

/// What a command costs on top for the positions that these rows attend to, cached ones and those of their own text.
pub fn of_context(c: &Command, program: &Program, rows: &[Row]) -> Cost {
    if c.op == Op::EncodeAttention {
        let absent = c.weights[0] != NO_WEIGHT;
        return of_texts(&p::EncodeAttention::of(&c.params), absent, rows);
    }
    let Some(cache) = program.cache_of(c) else {
        return Cost::default();
    };
    // Positions that are read, and for each of them some flops per element of each head.
    let over = |positions: u64, flops: u64, heads: u32, head_dim: u32| Cost {
        bytes: positions.saturating_mul(cache.position_bytes().unwrap_or(0)),
        flops: positions
            .saturating_mul(flops * u64::from(heads))
            .saturating_mul(head_dim.into()),
    };
    match (c.op, cache.kind) {
        (Op::Attention, CacheKind::Attention { .. }) => {
            let q = p::Attention::of(&c.params);
            let seen = |row: &Row| {
                let all = u64::from(row.reach) + 1;
                match q.window {
                    0 => all,
                    window => all.min(u64::from(window) + u64::from(row.reach - row.position)),
                }
            };
            let positions: u64 = rows.iter().map(seen).sum();
            over(positions, 4, q.heads, q.head_dim)
        }
        (Op::CrossAttention, CacheKind::Attention { .. }) => {
            let q = p::CrossAttention::of(&c.params);
            let positions = u64::from(q.positions) * rows.len() as u64;
            over(positions, 4, q.heads, q.head_dim)
        }
        (Op::ChoosePositions, CacheKind::Attention { .. }) => {
            let q = p::ChoosePositions::of(&c.params);
            // Rows that see no more than are chosen read nothing.
            let seen = rows.iter().map(|row| u64::from(row.reach) + 1);
            let positions: u64 = seen.filter(|seen| *seen > q.used.into()).sum();
            over(positions, 2, q.heads, q.head_dim)
        }
        (Op::SparseAttention, CacheKind::Attention { .. }) => {
            let q = p::SparseAttention::of(&c.params);
            let seen = |row: &Row| (u64::from(row.reach) + 1).min(q.used.into());
            let positions: u64 = rows.iter().map(seen).sum();
            over(positions, 4, q.heads, q.head_dim)
        }
        (Op::ShortConv | Op::GatedDelta | Op::Mamba2, CacheKind::Recurrent { floats, .. }) => {
            Cost {
                // The state is read and written once for each row.
                bytes: (rows.len() as u64).saturating_mul(8 * u64::from(floats)),
                flops: 0,
            }
        }
        _ => Cost::default(),
    }
}

/// What attention within texts costs. Neighbours of one slot are a text, or those of one window.
fn of_texts(q: &p::EncodeAttention, absent: bool, rows: &[Row]) -> Cost {
    let together =
        |a: &Row, b: &Row| a.slot == b.slot && (q.by_axis == 0 || a.axes[0] == b.axes[0]);
    let seen = |text: &[Row]| {
        let all = text.len() as u64;
        let most = match q.window {
            _ if absent => u64::from(q.places).pow(2),
            0 => all,
            window => all.min(2 * u64::from(window) + 1),
        };
        all.saturating_mul(most)
    };
    let positions: u64 = rows.chunk_by(together).map(seen).sum();
    Cost {
        bytes: 0,
        flops: positions
            .saturating_mul(4 * u64::from(q.heads))
            .saturating_mul(q.head_dim.into()),
    }
}
