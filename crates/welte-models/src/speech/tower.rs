//! An encoder of speech as Whisper has one: an embed pass without caches.

use super::SpeechLayers;
use super::parts::{Emitter, FeedForward, LayerNames, Linear, OwnAttention, Taker, bytes};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, every_row, one_pass};
use crate::names::weight;
use crate::weights::{Collector, NormWeights, Rows};
use welte_formats::checkpoint::Checkpoint;
use welte_table::{
    BufferRef, Class, Format, ModelPart, Op, PassKind, Program, Source, Usage, WeightId,
    WeightSpec, params as p,
};

/// A gate as it is.
const NO_ACT: u32 = 5;
/// `x * sigmoid(x)`
const SILU: u32 = 0;
/// Of norms without means.
const RMS_EPS: f32 = 1e-6;

/// What an encoder is.
pub(crate) struct Tower<'a> {
    /// What the names of its tensors begin with.
    pub(crate) prefix: &'a str,
    pub(crate) dim: u32,
    pub(crate) layers: SpeechLayers,
    /// The most rows of a step.
    pub(crate) rows: u32,
    pub(crate) front: Front,
    /// Keys have a bias.
    pub(crate) key_bias: bool,
    /// Rows see those of the same first axis only.
    pub(crate) windowed: bool,
    pub(crate) names: &'a LayerNames,
    /// Queries and keys turn with their places.
    pub(crate) rotation: Option<Rotation>,
    pub(crate) last_norm: &'a str,
    pub(crate) end: End<'a>,
}

/// How queries and keys turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Values of a head that do.
    pub values: u32,
    /// The base of their frequencies.
    pub base: f32,
}

/// What a row reads.
pub(crate) enum Front {
    /// Five frames of the spectrogram around its place, then whether there is a frame before the window's first.
    ///
    /// It computes three neighbours of the first convolution, and from these one of the second, which takes every other place. So a third
    /// of the first convolution is computed twice, and no op needs to know neighbours.
    Frames {
        /// Bins of a frame.
        mels: u32,
        /// Learned places in the checkpoint, if it has some. Rows beyond them have none.
        places: Option<u32>,
        /// Rows say of each neighbour whether there is one, and whether they are states of the sound: others become zeros.
        ends: bool,
    },
    /// What other encoders made of the spectrogram, to which a vector of its place is added.
    States {
        /// The vectors.
        places: Vec<f32>,
    },
}

/// What follows the layers.
pub(crate) struct End<'a> {
    /// States that become a row of the result.
    pub(crate) group: u32,
    /// How: the kind of [`Op::Pool`].
    pub(crate) pool: u32,
    /// The last norm comes after that.
    pub(crate) norm_later: bool,
    /// Matrices, with GELU between them: the name, the rows, and whether there is a bias.
    pub(crate) matrices: &'a [(&'a str, u32, bool)],
    /// What follows them.
    pub(crate) gated: Option<Gated<'a>>,
}

/// A norm, a matrix whose second half gates the first, a norm, and a matrix.
pub(crate) struct Gated<'a> {
    pub(crate) norms: [&'a str; 2],
    pub(crate) matrices: [&'a str; 2],
    /// Rows of the matrices.
    pub(crate) rows: [u32; 2],
}

impl End<'_> {
    /// The states as they are.
    pub(crate) const STATES: End<'static> = End {
        group: 1,
        pool: 0,
        norm_later: false,
        matrices: &[],
        gated: None,
    };
}

/// Values that a row reads of frames: five of them, which of the three in the middle there are, and whether the row is one of the
/// sound.
fn row_values(mels: u32) -> u32 {
    5 * mels + 4
}

/// The weights.
struct Weights {
    nothing: WeightId,
    convolutions: Option<[Linear; 2]>,
    positions: Option<WeightId>,
    frequencies: Option<WeightId>,
    layers: Vec<(OwnAttention, FeedForward)>,
    last_norm: NormWeights,
    matrices: Vec<Linear>,
    gated: Option<([NormWeights; 2], [Linear; 2])>,
}

impl Taker<'_> {
    fn gated(
        &mut self,
        gated: &Gated<'_>,
        k: u32,
    ) -> Result<([NormWeights; 2], [Linear; 2]), Error> {
        let ([rows, width], half) = (gated.rows, gated.rows[0] / 2);
        let norms = [(gated.norms[0], k), (gated.norms[1], half)];
        let norm = |(name, n): (&str, u32)| {
            let vector = [(weight(name, 0), n)];
            let weight = self.collector.vector("projector norm", &vector, 0.0)?;
            Ok::<_, Error>(NormWeights { weight, bias: None })
        };
        let [first, second] = norms.map(norm);
        // The half that gates comes first.
        let part = |first: u32| Rows {
            tensor: weight(gated.matrices[0], 0),
            of: rows,
            first,
            rows: half,
        };
        let parts = [part(half), part(0)];
        let pieces = self.collector.joined_rows("projection", &parts, k)?;
        let both = pieces.first().map(|piece| piece.weight);
        let fault = || {
            let problem = format!("{rows} rows cannot be two halves");
            self.collector.fault(&parts[0].tensor, problem)
        };
        let up = Linear {
            weight: both.filter(|_| rows.is_multiple_of(2)).ok_or_else(fault)?,
            n: rows,
            k,
            biases: Vec::new(),
        };
        let last = [(gated.matrices[1].to_string(), width, false)];
        let down = self.linear("projection", &last, half)?;
        Ok(([first?, second?], [up, down]))
    }
}

impl Tower<'_> {
    /// Values that a row reads.
    fn read(&self) -> u32 {
        match self.front {
            Front::Frames { mels, .. } => row_values(mels),
            Front::States { .. } => self.dim,
        }
    }

    /// Values of the states that become a row of the result.
    fn joined(&self) -> u32 {
        match self.end.pool {
            3 => self.end.group * self.dim,
            _ => self.dim,
        }
    }

    fn weights(&self, taker: &mut Taker<'_>) -> Result<Weights, Error> {
        let of = |name: &str| format!("{}.{name}", self.prefix);
        let nothing = nothing(&mut taker.collector, self.read());
        let (convolutions, positions) = match &self.front {
            Front::Frames { mels, places, .. } => {
                let first = taker.convolution("first convolution", &of("conv1"), *mels)?;
                let second = taker.convolution("second convolution", &of("conv2"), self.dim)?;
                let places =
                    places.map(|places| taker.positions(&of("embed_positions"), places, self.rows));
                (Some([first, second]), places.transpose()?)
            }
            Front::States { places } => {
                let size = (1, self.rows * self.dim);
                (
                    None,
                    Some(taker.constant("positions", size, places.clone())),
                )
            }
        };
        let frequencies = self.rotation.map(|turns| {
            let pairs = turns.values / 2;
            let frequency = |pair: u32| turns.base.powf(-(pair as f32) / pairs as f32);
            taker.constant(
                "frequencies",
                (1, pairs),
                (0..pairs).map(frequency).collect(),
            )
        });
        let layer = |index: u32| {
            let (label, name) = (format!("layer {index}"), of(&format!("layers.{index}")));
            let attention = taker.own_attention(&label, &name, self.names)?;
            let feed_forward = taker.feed_forward(&label, &name, self.layers.ffn, self.names)?;
            Ok((attention, feed_forward))
        };
        let layers = (0..self.layers.count)
            .map(layer)
            .collect::<Result<_, Error>>()?;
        let last_norm = taker.norm("last norm", &of(self.last_norm))?;
        let mut k = self.joined();
        let mut matrices = Vec::new();
        for (name, n, has_bias) in self.end.matrices {
            let parts = [(name.to_string(), *n, *has_bias)];
            matrices.push(taker.linear("projection", &parts, k)?);
            k = *n;
        }
        let gated = self.end.gated.as_ref();
        let gated = gated.map(|gated| taker.gated(gated, k)).transpose()?;
        Ok(Weights {
            nothing,
            convolutions,
            positions,
            frequencies,
            layers,
            last_norm,
            matrices,
            gated,
        })
    }

    /// The program. Its rows yield states, or what their groups become.
    pub(crate) fn compile(&self, checkpoint: &dyn Checkpoint) -> Result<Program, Error> {
        let mut taker = Taker {
            collector: Collector::new(checkpoint),
            dim: self.dim,
            key_bias: self.key_bias,
        };
        let weights = self.weights(&mut taker)?;
        let (dim, rows, read) = (self.dim, self.rows, self.read());
        let outputs = rows / self.end.group;
        let mut buffers = Buffers::default();
        let class = Class::ScratchPrompt;
        let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
        let features = buffers.add("features", class, bytes(rows, read));
        let mut add = |name: &str, rows: u32, width: u32| {
            buffers.add(&format!("prompt.{name}"), class, bytes(rows, width))
        };
        let x = add("x", rows, dim);
        let frames = match self.front {
            Front::Frames { .. } => add("read", rows, read),
            Front::States { .. } => x,
        };
        let qkv = add("qkv", rows, 3 * dim);
        let mut out = Commands::new(&taker.collector.list);
        embed(&mut out, weights.nothing, read, [tokens, frames]);
        let mut e = Emitter {
            dim,
            x,
            norm: add("norm", rows, dim),
            wide: add("up", rows, self.layers.ffn),
            out,
        };
        if let (Some(both), Front::Frames { mels, ends, .. }) = (&weights.convolutions, &self.front)
        {
            convolve(&mut e, both, (*mels, *ends), frames, qkv);
        }
        if let Some(positions) = weights.positions {
            e.add_position(positions, rows);
        }
        for (index, (attention, feed_forward)) in weights.layers.iter().enumerate() {
            e.out.layer = Some(index as u32);
            e.out.part = ModelPart::Attention;
            self.attention(&mut e, attention, weights.frequencies, qkv);
            e.feed_forward(feed_forward);
        }
        e.out.layer = None;
        e.out.part = ModelPart::Head;
        let (end, joined) = (&self.end, self.joined());
        if !end.norm_later {
            e.norm("last norm", weights.last_norm, e.x, e.x);
        }
        if let Front::Frames {
            mels, ends: true, ..
        } = self.front
        {
            let gate = p::Gate {
                n: dim,
                gates: 1,
                act: NO_ACT,
                x_stride: read,
                y_stride: dim,
            };
            let buffers = [at(frames, 5 * mels + 3), e.x];
            let what = "nothing after the sound";
            e.out.push(what, Op::Gate, &[], &buffers, gate.words());
        }
        let mut from = (add("joined", outputs, joined), joined);
        let pool = p::Pool {
            n: dim,
            kind: end.pool,
            normalise: 0,
            x_stride: dim,
            y_stride: joined,
            group: end.group,
        };
        let buffers_of_pool = [e.x, from.0];
        e.out
            .push("states", Op::Pool, &[], &buffers_of_pool, pool.words());
        if end.norm_later {
            e.norm("last norm", weights.last_norm, from.0, from.0);
        }
        for (number, matrix) in weights.matrices.iter().enumerate() {
            if number > 0 {
                e.gelu("projector activation", from.0, from.1);
            }
            let to = (
                add(&format!("projected{number}"), outputs, matrix.n),
                matrix.n,
            );
            e.linear("projection", matrix, from, to);
            from = to;
        }
        if let Some(([first, second], [up, down])) = &weights.gated {
            let half = up.n / 2;
            let both = (add("gated.both", outputs, up.n), up.n);
            let one = (add("gated.one", outputs, half), half);
            let to = (add("gated.result", outputs, down.n), down.n);
            e.out.norm(
                "projector norm",
                (*first, true),
                (from.1, RMS_EPS),
                [from.0; 2],
            );
            e.linear("projection", up, from, both);
            let act = p::ActMul {
                n: half,
                act: SILU,
                x_stride: up.n,
                y_stride: half,
            };
            let buffers = [both.0, one.0];
            let what = "projector activation";
            e.out.push(what, Op::ActMul, &[], &buffers, act.words());
            e.out.norm(
                "projector norm",
                (*second, true),
                (half, RMS_EPS),
                [one.0; 2],
            );
            e.linear("projection", down, one, to);
            from = to;
        }
        let (result, width) = from;
        let pass = e
            .out
            .pass(PassKind::Embed, (rows, outputs), (width, result));
        Ok(one_pass(
            taker.collector.list,
            buffers.into_list(),
            (tokens, features.buffer),
            pass,
        ))
    }

    fn attention(
        &self,
        e: &mut Emitter<'_>,
        attention: &OwnAttention,
        frequencies: Option<WeightId>,
        qkv: BufferRef,
    ) {
        let (dim, heads) = (self.dim, self.layers.heads);
        e.norm("attention norm", attention.norm, e.x, e.norm);
        e.linear("qkv", &attention.qkv, (e.norm, dim), (qkv, 3 * dim));
        if let (Some(turns), Some(frequencies)) = (self.rotation, frequencies) {
            let rope = p::Rope {
                heads: 2 * heads,
                head_dim: dim / heads,
                rot: turns.values,
                interleaved: 0,
                magnitude: 1.0,
                y_stride: 3 * dim,
                sections: 0,
            };
            e.out
                .push("rope", Op::Rope, &[frequencies], &[qkv], rope.words());
        }
        let params = p::EncodeAttention {
            by_axis: self.windowed.into(),
            ..every_row((heads, dim / heads), [3 * dim, dim])
        };
        e.out.attend(params, [qkv, e.norm]);
        // The queries are not read again.
        e.linear("attention output", &attention.o, (e.norm, dim), (qkv, dim));
        e.add("attention sum", qkv);
    }
}

/// A table of one entry for rows that read features only.
pub(crate) fn nothing(collector: &mut Collector<'_>, read: u32) -> WeightId {
    collector.push(WeightSpec {
        name: "nothing".into(),
        format: Format::F32,
        n: 1,
        k: read,
        usage: Usage::Lookup,
        add: 0.0,
        source: Source::Constant(vec![0.0; read as usize]),
    })
}

/// Rows read their features.
pub(crate) fn embed(out: &mut Commands<'_>, nothing: WeightId, read: u32, buffers: [BufferRef; 2]) {
    let params = p::Embed {
        n: 1,
        k: read,
        scale: 1.0,
        x_stride: read,
    };
    out.push("frames", Op::Embed, &[nothing], &buffers, params.words());
}

/// Two convolutions over frames, the second of which takes every other place.
fn convolve(
    e: &mut Emitter<'_>,
    [first, second]: &[Linear; 2],
    (mels, ends): (u32, bool),
    frames: BufferRef,
    wide: BufferRef,
) {
    let (dim, read) = (e.dim, row_values(mels));
    for tap in 0..3 {
        let x = (at(frames, tap * mels), read);
        e.linear(
            "first convolution",
            first,
            x,
            (at(wide, tap * dim), 3 * dim),
        );
    }
    e.gelu("activation", wide, 3 * dim);
    // The window's first row has nothing before it, and the sound's last one may have nothing after it.
    let gates = if ends { 3 } else { 1 };
    let gate = p::Gate {
        n: gates * dim,
        gates,
        act: NO_ACT,
        x_stride: read,
        y_stride: 3 * dim,
    };
    let buffers = [at(frames, 5 * mels), wide];
    e.out.push(
        "nothing outside the window",
        Op::Gate,
        &[],
        &buffers,
        gate.words(),
    );
    let x = e.x;
    e.linear("second convolution", second, (wide, 3 * dim), (x, dim));
    e.gelu("activation", x, dim);
}
