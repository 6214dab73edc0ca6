//! What conformers share: their commands, and weights that several of them store alike.

use crate::Error;
use crate::commands::{Commands, at};
use crate::names::{bias, weight};
use crate::speech::parts::{Linear, Taker};
use crate::weights::NormWeights;
use welte_formats::checkpoint::Dialect;
use welte_table::{BufferRef, ModelPart, NO_WEIGHT, Op, WeightId, params as p};

/// Of norms by mean and variance, and of batch norms.
pub(super) const EPS: f32 = 1e-5;
pub(super) const SILU: u32 = 0;
/// GELU by erf.
pub(super) const GELU: u32 = 2;
pub(super) const SQUARE: u32 = 4;
pub(super) const LIMIT: u32 = 7;
/// Of gates.
pub(super) const SIGMOID: u32 = 4;
/// A gate as it is.
pub(super) const NO_ACT: u32 = 5;

/// The lowest and the highest value.
pub(super) type Limits = [f32; 2];

/// A vector of every row: where it is, and how far apart rows are.
pub(super) type Rows = (BufferRef, u32);

/// A feed-forward part of which half is added.
pub(super) struct Half {
    pub(super) norm: NormWeights,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// A matrix with its bias.
pub(super) fn linear(taker: &mut Taker<'_>, name: &str, n: u32, k: u32) -> Result<Linear, Error> {
    taker.linear(name, &[(name.into(), n, true)], k)
}

/// A matrix that is stored as a convolution of one tap.
pub(super) fn tap(
    taker: &mut Taker<'_>,
    name: &str,
    (n, k): (u32, u32),
    has_bias: bool,
) -> Result<Linear, Error> {
    let values = taker.values(&weight(name, 0), u64::from(n) * u64::from(k))?;
    let mut biases = Vec::new();
    if has_bias {
        let shift = [(bias(name, 0), n)];
        let label = format!("{name} bias");
        biases.push((taker.collector.vector(&label, &shift, 0.0)?, 0, n));
    }
    Ok(Linear {
        weight: taker.constant(name, (n, k), values),
        n,
        k,
        biases,
    })
}

/// The kernel and the shift of a convolution of each of `channels` channels. A batch norm follows it, and becomes one with it. GGUF files have
/// it as a factor and a shift.
pub(super) fn depthwise(
    taker: &mut Taker<'_>,
    (convolution, has_bias): (&str, bool),
    norm: &str,
    [channels, taps]: [u32; 2],
) -> Result<[WeightId; 2], Error> {
    let count = u64::from(channels);
    let mut kernel = taker.values(&weight(convolution, 0), count * u64::from(taps))?;
    let inner = match has_bias {
        true => taker.values(&bias(convolution, 0), count)?,
        false => vec![0.0; channels as usize],
    };
    let of = |part: &str| format!("{norm}.{part}");
    let factors = taker.values(&of("weight"), count)?;
    let mut shifts = taker.values(&of("bias"), count)?;
    let is_folded = taker.collector.checkpoint.dialect() == Dialect::Gguf
        && !taker.collector.has(&of("running_var"));
    let (means, variances) = match is_folded {
        true => (vec![0.0; shifts.len()], vec![1.0 - EPS; shifts.len()]),
        false => (
            taker.values(&of("running_mean"), count)?,
            taker.values(&of("running_var"), count)?,
        ),
    };
    let each = kernel.chunks_mut(taps as usize).zip(&mut shifts);
    let statistics = factors.iter().zip(&inner).zip(means.iter().zip(&variances));
    for ((kernel, shift), ((factor, inner), (mean, variance))) in each.zip(statistics) {
        let factor = factor / (variance + EPS).sqrt();
        kernel.iter_mut().for_each(|value| *value *= factor);
        *shift += (inner - mean) * factor;
    }
    Ok([
        taker.constant(
            &format!("{convolution} kernel"),
            (1, channels * taps),
            kernel,
        ),
        taker.constant(&format!("{convolution} shift"), (1, channels), shifts),
    ])
}

/// Emits commands.
pub(super) struct Emitter<'a> {
    /// Width of the vectors that norms and sums take.
    pub(super) dim: u32,
    pub(super) out: Commands<'a>,
}

impl Emitter<'_> {
    pub(super) fn linear(
        &mut self,
        what: &str,
        linear: &Linear,
        (x, x_stride): Rows,
        (y, y_stride): Rows,
    ) {
        let params = p::Matmul {
            n: linear.n,
            k: linear.k,
            x_stride,
            y_stride,
        };
        let weights = [linear.weight];
        self.out
            .push(what, Op::Matmul, &weights, &[x, y], params.words());
        for (weight, first, n) in &linear.biases {
            self.bias(what, *weight, *n, (at(y, *first), y_stride));
        }
    }

    /// A matrix for each head: `n` rows of `k` values.
    pub(super) fn heads(
        &mut self,
        what: &str,
        matrices: WeightId,
        (heads, [n, k]): (u32, [u32; 2]),
        x: Rows,
        y: Rows,
    ) {
        let params = p::HeadsMatmul {
            heads,
            n,
            k,
            tail: 0,
            x_head: k,
            y_head: n,
            x_stride: x.1,
            y_stride: y.1,
        };
        let buffers = [x.0, y.0];
        self.out
            .push(what, Op::HeadsMatmul, &[matrices], &buffers, params.words());
    }

    pub(super) fn bias(&mut self, what: &str, bias: WeightId, n: u32, (y, y_stride): Rows) {
        let params = p::Bias { n, y_stride };
        let what = format!("{what} bias");
        self.out
            .push(&what, Op::Bias, &[bias], &[y], params.words());
    }

    pub(super) fn act(
        &mut self,
        what: &str,
        (act, limits): (u32, Limits),
        n: u32,
        (y, y_stride): Rows,
    ) {
        let params = p::Act {
            n,
            act,
            a: limits[0],
            b: limits[1],
            c: 0.0,
            d: 0.0,
            y_stride,
        };
        self.out.push(what, Op::Act, &[], &[y], params.words());
    }

    pub(super) fn relu(&mut self, n: u32, y: Rows) {
        self.act("activation", (LIMIT, [0.0, f32::MAX]), n, y);
    }

    pub(super) fn silu(&mut self, n: u32, y: Rows) {
        self.act("activation", (SILU, [0.0; 2]), n, y);
    }

    pub(super) fn gelu(&mut self, n: u32, y: Rows) {
        self.act("activation", (GELU, [0.0; 2]), n, y);
    }

    pub(super) fn layer_norm(
        &mut self,
        what: &str,
        norm: NormWeights,
        eps: f32,
        x: BufferRef,
        y: BufferRef,
    ) {
        self.out.norm(what, (norm, false), (self.dim, eps), [x, y]);
    }

    pub(super) fn scale(&mut self, what: &str, scale: f32, n: u32, (y, y_stride): Rows) {
        let params = p::Scale {
            n,
            scale,
            cap: 0.0,
            y_stride,
        };
        self.out.push(what, Op::Scale, &[], &[y], params.words());
    }

    /// y = the vector
    pub(super) fn fill(&mut self, what: &str, vector: WeightId, n: u32, y: Rows) {
        self.scale(what, 0.0, n, y);
        self.bias(what, vector, n, y);
    }

    pub(super) fn multiply(&mut self, what: &str, weight: WeightId, n: u32, x: Rows, y: Rows) {
        let params = p::Multiply {
            n,
            x_stride: x.1,
            y_stride: y.1,
        };
        self.out
            .push(what, Op::Multiply, &[weight], &[x.0, y.0], params.words());
    }

    pub(super) fn gate(&mut self, what: &str, (n, gates, act): (u32, u32, u32), x: Rows, y: Rows) {
        let params = p::Gate {
            n,
            gates,
            act,
            x_stride: x.1,
            y_stride: y.1,
        };
        self.out
            .push(what, Op::Gate, &[], &[x.0, y.0], params.words());
    }

    /// y = the first `n` values of x, opened by the sigmoids of the next ones.
    pub(super) fn open(&mut self, n: u32, x: BufferRef, y: BufferRef) {
        self.multiply("open values", NO_WEIGHT, n, (x, 2 * n), (y, n));
        let gates = (at(x, n), 2 * n);
        self.gate("gates", (n, n, SIGMOID), gates, (y, n));
    }

    /// y += x
    pub(super) fn add(&mut self, what: &str, x: BufferRef, y: BufferRef) {
        self.add_rows(what, self.dim, (x, self.dim), (y, self.dim));
    }

    /// The same for rows that lie further apart.
    pub(super) fn add_rows(&mut self, what: &str, n: u32, x: Rows, y: Rows) {
        let params = p::Add {
            n,
            x_stride: x.1,
            y_stride: y.1,
        };
        let buffers = [x.0, y.0];
        self.out.push(what, Op::Add, &[], &buffers, params.words());
    }

    pub(super) fn pool(&mut self, what: &str, n: u32, x: BufferRef, y: BufferRef) {
        let params = p::Pool {
            n,
            kind: 0,
            normalise: 0,
            x_stride: n,
            y_stride: n,
            group: 1,
        };
        self.out.push(what, Op::Pool, &[], &[x, y], params.words());
    }

    /// y = the values at these places of x, whose rows have `k`.
    pub(super) fn spread(
        &mut self,
        what: &str,
        map: WeightId,
        [n, k]: [u32; 2],
        x: BufferRef,
        y: BufferRef,
    ) {
        let params = p::Spread {
            n,
            k,
            x_stride: k,
            y_stride: n,
        };
        self.out
            .push(what, Op::Spread, &[map], &[x, y], params.words());
    }

    /// x += half of what the part makes of its norm
    pub(super) fn half(&mut self, layer: &Half, [x, norm, wide]: [BufferRef; 3]) {
        self.out.part = ModelPart::FeedForward;
        let (dim, ffn) = (self.dim, layer.up.n);
        self.layer_norm("feed-forward norm", layer.norm, EPS, x, norm);
        self.linear("up", &layer.up, (norm, dim), (wide, ffn));
        self.silu(ffn, (wide, ffn));
        self.linear("down", &layer.down, (wide, ffn), (norm, dim));
        self.scale("half of it", 0.5, dim, (norm, dim));
        self.add("sum", norm, x);
    }
}
