//! Which ops can run on a part of their columns, and how their operands are cut for it.

use crate::{Command, NO_WEIGHT, Op, params as p};
use std::ops::Range;

/// An op whose output consists of units that it computes apart from each other.
pub(super) struct Form {
    /// How many units.
    pub(super) units: u32,
    /// Where each operand's units lie. Operands without a strip are needed whole.
    pub(super) strips: Vec<Strip>,
    /// More than 1: the units of each of so many vectors, which follow each other.
    pub(super) vectors: u32,
}

/// The units of an operand.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// Its number among the command's buffers.
    pub(super) operand: usize,
    /// Floats between the operand's place and the first unit.
    pub(super) skip: u32,
    /// Floats from one unit to the next.
    pub(super) distance: u32,
    /// Floats of a unit that the op touches.
    pub(super) used: u32,
    /// The parameter that is the distance of rows.
    pub(super) stride: &'static str,
    /// Whether the op writes it.
    pub(super) writes: bool,
}

impl Strip {
    /// The columns that it covers, as floats after the operand's place.
    pub(super) fn width(&self, units: u32) -> u32 {
        self.skip + units.saturating_sub(1) * self.distance + self.used
    }
}

/// How the units of a command can be dealt; `None`: it has no units, or only one.
pub(super) fn form(c: &Command) -> Option<Form> {
    let words = &c.params;
    let reads = c.op.reads().len();
    let strip = |operand: usize, distance: u32, stride: &'static str| Strip {
        operand,
        skip: 0,
        distance,
        used: distance,
        stride,
        writes: operand >= reads,
    };
    let (units, strips) = match c.op {
        Op::Matmul => (p::Matmul::of(words).n, vec![strip(1, 1, "y_stride")]),
        Op::HeadsMatmul => {
            let q = p::HeadsMatmul::of(words);
            let x = Strip {
                used: q.k + q.tail,
                ..strip(0, q.x_head, "x_stride")
            };
            let y = Strip {
                used: q.n + q.tail,
                ..strip(1, q.y_head, "y_stride")
            };
            (q.heads, vec![x, y])
        }
        Op::Bias => (p::Bias::of(words).n, vec![strip(0, 1, "y_stride")]),
        Op::Rope => {
            let q = p::Rope::of(words);
            (q.heads, vec![strip(0, q.head_dim, "y_stride")])
        }
        Op::PositionScale => (p::PositionScale::of(words).n, vec![strip(0, 1, "y_stride")]),
        Op::Act => (p::Act::of(words).n, vec![strip(0, 1, "y_stride")]),
        Op::Scale => (p::Scale::of(words).n, vec![strip(0, 1, "y_stride")]),
        Op::Norm | Op::LayerNorm => {
            let (dim, groups) = (c.word("dim")?, c.word("groups")?);
            let both = [(0, "x_stride"), (1, "y_stride")];
            let strips = both.map(|(operand, stride)| strip(operand, dim, stride));
            (groups, strips.to_vec())
        }
        Op::Multiply | Op::Add | Op::SelectRows => {
            let both = [(0, "x_stride"), (1, "y_stride")];
            let strips = both.map(|(operand, stride)| strip(operand, 1, stride));
            (c.word("n")?, strips.to_vec())
        }
        Op::ActMul => {
            let n = p::ActMul::of(words).n;
            let gate = strip(0, 1, "x_stride");
            let up = Strip { skip: n, ..gate };
            (n, vec![gate, up, strip(1, 1, "y_stride")])
        }
        Op::Gate => {
            let q = p::Gate::of(words);
            let each = q.n / q.gates.max(1);
            let strips = vec![strip(0, 1, "x_stride"), strip(1, each, "y_stride")];
            (q.gates, strips)
        }
        Op::Attention | Op::CrossAttention => {
            let (heads, dim) = (c.word("heads")?, c.word("head_dim")?);
            let strips = vec![strip(0, dim, "q_stride"), strip(2, dim, "y_stride")];
            (heads, strips)
        }
        Op::SparseAttention => {
            let (heads, dim) = (c.word("heads")?, c.word("head_dim")?);
            let strips = vec![strip(0, dim, "q_stride"), strip(3, dim, "y_stride")];
            (heads, strips)
        }
        Op::KvAppend => {
            let q = p::KvAppend::of(words);
            let both = [(0, "k_stride"), (1, "v_stride")];
            let strips = both.map(|(operand, stride)| strip(operand, q.head_dim, stride));
            (q.kv_heads, strips.to_vec())
        }
        Op::ExpertsActMul => (p::ExpertsActMul::of(words).n, vec![strip(2, 1, "y_stride")]),
        Op::ExpertsAdd => (p::ExpertsAdd::of(words).n, vec![strip(2, 1, "y_stride")]),
        Op::AdaptUp => (p::AdaptUp::of(words).n, vec![strip(2, 1, "y_stride")]),
        // Parts of single experts, before their activation, are added where the experts' outputs are whole.
        Op::AdaptExpertsUp if p::AdaptExpertsUp::of(words).sum == 1 => (
            p::AdaptExpertsUp::of(words).n,
            vec![strip(3, 1, "y_stride")],
        ),
        _ => return None,
    };
    let vectors = match c.op {
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(words);
            q.used * (q.width() / q.n.max(1))
        }
        _ => 1,
    };
    let sound = strips
        .iter()
        .all(|s| s.distance > 0 && s.used <= s.distance);
    (sound && units > 1).then_some(Form {
        units,
        strips,
        vectors,
    })
}

/// Writes the number of units of a command's part into its parameters.
pub(super) fn set_units(c: &mut Command, units: u32) {
    match c.op {
        Op::HeadsMatmul | Op::Rope | Op::Attention | Op::CrossAttention | Op::SparseAttention => {
            set(c, "heads", units)
        }
        Op::Norm | Op::LayerNorm => set(c, "groups", units),
        Op::KvAppend => set(c, "kv_heads", units),
        Op::Gate => {
            let q = p::Gate::of(&c.params);
            set(c, "n", units * (q.n / q.gates.max(1)));
            set(c, "gates", units);
        }
        _ => set(c, "n", units),
    }
}

/// Writes a parameter.
pub(super) fn set(c: &mut Command, name: &str, value: u32) {
    if let Some(at) = c.op.params().iter().position(|param| *param == name) {
        c.params[at] = value;
    }
}

/// The rows (of a vector: the values) of each weight that a part of a command needs; `None`: all.
pub(super) fn rows(c: &Command, units: &[Range<u32>]) -> [Option<Vec<Range<u32>>>; 3] {
    let times = |n: u32| -> Option<Vec<Range<u32>>> {
        let scaled = units.iter().map(|units| units.start * n..units.end * n);
        Some(scaled.collect())
    };
    let of_experts = |experts: u32, each: u32, n: u32| {
        let starts = (0..experts * each).map(|matrix| matrix * n);
        let all = starts.flat_map(|first| {
            let part = |units: &Range<u32>| first + units.start..first + units.end;
            units.iter().map(part).collect::<Vec<_>>()
        });
        Some(joined(all))
    };
    let mut all = match c.op {
        Op::Matmul | Op::Bias | Op::Multiply | Op::Attention => [times(1), None, None],
        Op::AdaptUp | Op::AdaptExpertsUp => [times(1), None, None],
        Op::HeadsMatmul => [times(p::HeadsMatmul::of(&c.params).n), None, None],
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(&c.params);
            let part = of_experts(q.experts, q.matrices(), q.n);
            [part.clone(), part, None]
        }
        Op::ExpertsAdd => {
            let q = p::ExpertsAdd::of(&c.params);
            let part = of_experts(q.experts, 1, q.n);
            [part.clone(), part, None]
        }
        _ => [None, None, None],
    };
    for (rows, weight) in all.iter_mut().zip(c.weights) {
        if weight == NO_WEIGHT {
            *rows = None;
        }
    }
    all
}

/// Ranges, those that follow each other made one.
fn joined(ranges: impl Iterator<Item = Range<u32>>) -> Vec<Range<u32>> {
    let mut all: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

/// True if a command replaces all values of its written operand. More ops do than [`Op::replaces`] promises.
pub(super) fn replaces(c: &Command) -> bool {
    let words = &c.params;
    c.op.replaces()
        || match c.op {
            Op::SelectRows | Op::Pool | Op::ShortConv | Op::GatedDelta | Op::Mamba2 => true,
            Op::HeadsMatmul => {
                let q = p::HeadsMatmul::of(words);
                q.n + q.tail == q.y_head
            }
            Op::Scale => p::Scale::of(words).scale == 0.0,
            _ => false,
        }
}
