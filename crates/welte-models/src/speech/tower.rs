//! An encoder of speech as Whisper has one: an embed pass without caches.

use super::SpeechLayers;
use super::parts::{Emitter, FeedForward, Linear, OwnAttention, Taker, bytes};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, one_pass};
use crate::weights::{Collector, NormWeights};
use welte_formats::checkpoint::Checkpoint;
use welte_table::{
    BufferRef, Class, Format, ModelPart, Op, PassKind, Program, Source, Usage, WeightId,
    WeightSpec, params as p,
};

/// A gate as it is.
const NO_ACT: u32 = 5;

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
    pub(crate) last_norm: &'a str,
    pub(crate) end: End<'a>,
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
}

impl End<'_> {
    /// The states as they are.
    pub(crate) const STATES: End<'static> = End {
        group: 1,
        pool: 0,
        norm_later: false,
        matrices: &[],
    };
}

/// Values that a row reads of frames: five of them, and whether there is one before the window's first. Padded.
fn row_values(mels: u32) -> u32 {
    5 * mels + 4
}

/// The weights.
struct Weights {
    nothing: WeightId,
    convolutions: Option<[Linear; 2]>,
    positions: WeightId,
    layers: Vec<(OwnAttention, FeedForward)>,
    last_norm: NormWeights,
    matrices: Vec<Linear>,
}

impl Tower<'_> {
    /// Values that a row reads.
    fn read(&self) -> u32 {
        match self.front {
            Front::Frames { mels } => row_values(mels),
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
            Front::Frames { mels } => {
                let first = taker.convolution("first convolution", &of("conv1"), *mels)?;
                let second = taker.convolution("second convolution", &of("conv2"), self.dim)?;
                let rows = self.rows;
                let places = taker.positions(&of("embed_positions"), rows, rows)?;
                (Some([first, second]), places)
            }
            Front::States { places } => {
                let size = (1, self.rows * self.dim);
                (None, taker.constant("positions", size, places.clone()))
            }
        };
        let layer = |index: u32| {
            let (label, name) = (format!("layer {index}"), of(&format!("layers.{index}")));
            let attention = taker.own_attention(&label, &name)?;
            let feed_forward = taker.feed_forward(&label, &name, self.layers.ffn)?;
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
        Ok(Weights {
            nothing,
            convolutions,
            positions,
            layers,
            last_norm,
            matrices,
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
        if let (Some(both), Front::Frames { mels }) = (&weights.convolutions, &self.front) {
            convolve(&mut e, both, *mels, frames, qkv);
        }
        e.add_position(weights.positions, rows);
        for (index, (attention, feed_forward)) in weights.layers.iter().enumerate() {
            e.out.layer = Some(index as u32);
            e.out.part = ModelPart::Attention;
            self.attention(&mut e, attention, qkv);
            e.feed_forward(feed_forward);
        }
        e.out.layer = None;
        e.out.part = ModelPart::Head;
        let (end, joined) = (&self.end, self.joined());
        if !end.norm_later {
            e.norm("last norm", weights.last_norm, e.x, e.x);
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

    fn attention(&self, e: &mut Emitter<'_>, attention: &OwnAttention, qkv: BufferRef) {
        let (dim, heads) = (self.dim, self.layers.heads);
        e.norm("attention norm", attention.norm, e.x, e.norm);
        e.linear("qkv", &attention.qkv, (e.norm, dim), (qkv, 3 * dim));
        let params = p::EncodeAttention {
            heads,
            kv_heads: heads,
            head_dim: dim / heads,
            scale: 1.0 / ((dim / heads) as f32).sqrt(),
            window: 0,
            qkv_stride: 3 * dim,
            y_stride: dim,
            by_axis: self.windowed.into(),
            unseen: 0,
            by_reach: 0,
            places: 0,
            softcap: 0.0,
        };
        let buffers = [qkv, e.norm];
        e.out.push(
            "attention",
            Op::EncodeAttention,
            &[],
            &buffers,
            params.words(),
        );
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
    mels: u32,
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
    // The window's first row has nothing before it.
    let gate = p::Gate {
        n: dim,
        gates: 1,
        act: NO_ACT,
        x_stride: read,
        y_stride: 3 * dim,
    };
    let buffers = [at(frames, 5 * mels), wide];
    e.out.push(
        "nothing before the window",
        Op::Gate,
        &[],
        &buffers,
        gate.words(),
    );
    let x = e.x;
    e.linear("second convolution", second, (wide, 3 * dim), (x, dim));
    e.gelu("activation", x, dim);
}
