//! The FastConformer of LFM2-Audio: three strided convolutions over time and pitch, the last two of which are depthwise, then a conformer
//! whose rows all see each other, and a projector.
//!
//! It is three programs. The first one makes the places after two convolutions, the second one those after the third and a state of all
//! pitches of a time, the third one is the conformer. The host lays neighbours side by side.
//!
//! What a score adds for a distance is a product of the query and a projected vector of waves, whose frequencies all distances share. So the
//! query times the projection is an amplitude for each wave. A wave of a distance is the product of two vectors, which turn with the
//! positions of the two rows. A head's queries get these amplitudes before their own values, its keys get constants, and `rope` turns both.

use super::convolutions::{Parts, square};
use super::parts::{EPS, Emitter, Half, NO_ACT, Rows, depthwise, linear, tap};
use super::{HearingFamily, HearingSpec, MOST_CHANNELS, Pieces};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, every_row, one_pass};
use crate::keys::Keys;
use crate::names::{bias, weight};
use crate::spec::{MOST_FFN, MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS};
use crate::speech::parts::{Linear, Taker, bytes};
use crate::speech::tower::{embed, nothing};
use crate::speech::{MOST_DIM, MOST_MELS, SpeechLayers};
use crate::weights::{Collector, NormWeights};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Value;
use welte_table::{
    BufferRef, Class, ModelPart, NO_WEIGHT, Op, PassKind, Program, WeightId, params as p,
};

/// States of the longest sound, which lasts two minutes.
const STATES: u32 = 1504;
const MOST_TAPS: u32 = 64;
const TAPS: u32 = Pieces::TAPS;

/// What a FastConformer is, besides its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FastConformer {
    /// Values of a place after each of the convolutions over time and pitch.
    pub channels: u32,
    /// Rows that the convolution of a layer reads.
    pub taps: u32,
    /// What states are multiplied with before the layers.
    pub scale: f32,
}

impl FastConformer {
    /// States that the second program makes in a step.
    pub const TIMES: u32 = 16;
    /// Frames of a state.
    pub const FRAMES: u32 = 8;

    /// Values of a row of the second program: nine neighbours.
    pub fn row_values(&self) -> u32 {
        TAPS * self.channels
    }
}

/// Values of a head of states of `dim` values, with those that turn before them.
fn wide_head(dim: u32, heads: u32) -> u32 {
    dim + dim / heads
}

/// Reads the encoder of a directory, as Liquid AI's configurations describe it.
pub(super) fn read(keys: &Keys<'_>) -> Result<HearingSpec, Error> {
    let own = |name: &str| format!("encoder.{name}");
    let size = |name: &str, default: u32, most: u32| keys.size(&own(name), Some(default), most);
    let dim = size("d_model", 512, MOST_DIM)?;
    let layers = SpeechLayers {
        count: size("n_layers", 17, MOST_LAYERS)?,
        heads: size("n_heads", 8, MOST_HEADS)?,
        ffn: size("ff_expansion_factor", 4, 64)? * dim,
    };
    for (name, wanted) in [
        ("subsampling", "dw_striding"),
        ("self_attention_model", "rel_pos"),
        ("conv_norm_type", "batch_norm"),
    ] {
        let key = own(name);
        match keys.text(&key)? {
            None => {}
            Some(said) if said == wanted => {}
            Some(other) => {
                let problem = format!("is '{other}'; supported is {wanted}");
                return Err(keys.error(&key, problem));
            }
        }
    }
    for (name, wanted) in [
        ("subsampling_factor", FastConformer::FRAMES),
        ("reduction_factor", 1),
    ] {
        let found = size(name, wanted, 1 << 10)?;
        if found != wanted {
            let problem = format!("is {found}; supported is {wanted}");
            return Err(keys.error(&own(name), problem));
        }
    }
    for (name, wanted) in [("causal_downsampling", false), ("untie_biases", true)] {
        if keys.bool(&own(name))?.unwrap_or(wanted) != wanted {
            return Err(keys.error(&own(name), format!("must be {wanted}")));
        }
    }
    // There may be several limits, of which the first one counts.
    let is_none = |value: &Value| matches!(value, Value::I64(-1));
    let limits = [own("att_context_size"), own("att_context_size.0")];
    for key in &limits {
        match keys.value(key) {
            Some(Value::Array(limits)) if !limits.iter().all(is_none) => {
                let problem = "limits what rows see, which is not supported; must be [-1, -1]";
                return Err(keys.error(key, problem));
            }
            _ => {}
        }
    }
    if keys.value(&own("conv_context_size")).is_some() {
        return Err(keys.error(&own("conv_context_size"), "is not supported"));
    }
    let mels = size("feat_in", 128, MOST_MELS)?;
    processor(keys, mels)?;
    let is_scaled = keys.bool(&own("xscaling"))?.unwrap_or(false);
    let fast = FastConformer {
        channels: size("subsampling_conv_channels", 256, MOST_CHANNELS)?,
        taps: size("conv_kernel_size", 9, MOST_TAPS)?,
        scale: if is_scaled { (dim as f32).sqrt() } else { 1.0 },
    };
    let width = keys.size("lfm.hidden_size", None, MOST_DIM)?;
    spec(keys, [mels, dim, width], layers, fast)
}

/// Refuses settings under which the spectrogram is another one.
fn processor(keys: &Keys<'_>, mels: u32) -> Result<(), Error> {
    for (name, wanted) in [
        ("sample_rate", 16_000.0),
        ("window_size", 0.025),
        ("window_stride", 0.01),
        ("features", f64::from(mels)),
        ("n_fft", 512.0),
        ("frame_splicing", 1.0),
        ("pad_to", 0.0),
        ("pad_value", 0.0),
        ("preemph", 0.97),
    ] {
        let key = format!("preprocessor.{name}");
        let found = keys.f64(&key)?.unwrap_or(wanted);
        if found != wanted {
            let problem = format!("is {found}; the encoder takes {wanted}");
            return Err(keys.error(&key, problem));
        }
    }
    for (name, wanted) in [("normalize", "per_feature"), ("window", "hann")] {
        let key = format!("preprocessor.{name}");
        if let Some(other) = keys.text(&key)?.filter(|said| *said != wanted) {
            let problem = format!("is '{other}'; the encoder takes {wanted}");
            return Err(keys.error(&key, problem));
        }
    }
    if keys.bool("preprocessor.log")? == Some(false) {
        return Err(keys.error("preprocessor.log", "must be true"));
    }
    Ok(())
}

/// Reads the encoder of an `mmproj` file. Its sizes that are no keys are those of tensors.
pub(super) fn read_gguf(
    keys: &Keys<'_>,
    [mels, dim, width]: [u32; 3],
    layers: SpeechLayers,
) -> Result<HearingSpec, Error> {
    let shape = |name: &str| {
        let info = keys.checkpoint.tensor(name);
        let info = info.ok_or_else(|| keys.error(name, "is missing"))?;
        let sizes = [info.n, info.k].map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        Ok::<[u32; 2], Error>(sizes)
    };
    let within = |name: &str, found: u32, most: u32| match found {
        found if (1..=most).contains(&found) => Ok(found),
        found => Err(keys.error(name, format!("has a size of {found}; at most {most}"))),
    };
    let up = "a.blk.0.ffn_up.weight";
    let convolution = "a.blk.0.conv_dw.weight";
    let channels = "a.conv1d.0.bias";
    let layers = SpeechLayers {
        ffn: within(up, shape(up)?[0], MOST_FFN)?,
        ..layers
    };
    // A column, or a row.
    let [rows, columns] = shape(channels)?;
    let fast = FastConformer {
        channels: within(channels, rows.saturating_mul(columns), MOST_CHANNELS)?,
        taps: within(convolution, shape(convolution)?[1], MOST_TAPS)?,
        scale: 1.0,
    };
    spec(keys, [mels, dim, width], layers, fast)
}

fn spec(
    keys: &Keys<'_>,
    [mels, dim, width]: [u32; 3],
    layers: SpeechLayers,
    fast: FastConformer,
) -> Result<HearingSpec, Error> {
    let heads = layers.heads;
    let key = match keys.is_gguf() {
        true => "clip.audio.embedding_length",
        false => "encoder.d_model",
    };
    if !dim.is_multiple_of(heads) || !dim.is_multiple_of(2) || dim < 4 {
        return Err(keys.error(key, format!("{heads} heads of {dim} values")));
    }
    if wide_head(dim, heads) > 2 * MOST_HEAD_DIM {
        return Err(keys.error(key, format!("is {dim}; too large")));
    }
    if fast.taps.is_multiple_of(2) {
        let key = match keys.is_gguf() {
            true => "a.blk.0.conv_dw.weight",
            false => "encoder.conv_kernel_size",
        };
        let problem = format!(
            "the convolution reads {} rows, which have no middle",
            fast.taps
        );
        return Err(keys.error(key, problem));
    }
    Ok(HearingSpec {
        family: HearingFamily::Lfm2Audio,
        mels,
        dim,
        layers,
        positions: STATES,
        group: 1,
        width,
        window: 0,
        places: 0,
        hidden: 0,
        rotation: None,
        pieces: None,
        conformer: None,
        granite: None,
        fast: Some(fast),
    })
}

fn taker<'a>(spec: &HearingSpec, checkpoint: &'a dyn Checkpoint) -> Taker<'a> {
    Taker {
        collector: Collector::new(checkpoint),
        dim: spec.dim,
        key_bias: true,
    }
}

/// All programs.
pub(super) fn compile(
    spec: &HearingSpec,
    own: &FastConformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Vec<Program>, Error> {
    Ok(vec![
        places(spec, own, checkpoint)?,
        times(spec, own, checkpoint)?,
        states(spec, own, checkpoint)?,
    ])
}

/// A depthwise convolution over nine neighbours, and the matrix that mixes its channels.
struct Mixed {
    kernel: WeightId,
    mix: Linear,
}

/// The convolution of tensor `number`, and the matrix of the next tensor.
fn mixed(taker: &mut Taker<'_>, number: u32, channels: u32) -> Result<Mixed, Error> {
    let name = |number: u32| format!("conformer.pre_encode.conv.{number}");
    let (depth, point) = (name(number), name(number + 1));
    let count = u64::from(channels);
    let stored = taker.values(&weight(&depth, 0), count * u64::from(TAPS))?;
    let tap = |tap: usize| stored.iter().skip(tap).step_by(TAPS as usize).copied();
    let kernel: Vec<f32> = (0..TAPS as usize).flat_map(tap).collect();
    let inner = taker.values(&bias(&depth, 0), count)?;
    let matrix = taker.values(&weight(&point, 0), count * count)?;
    let mut shift = taker.values(&bias(&point, 0), count)?;
    // The matrix mixes the biases before it, too.
    for (shift, row) in shift.iter_mut().zip(matrix.chunks_exact(channels as usize)) {
        *shift += row.iter().zip(&inner).map(|(w, b)| w * b).sum::<f32>();
    }
    let shift = taker.constant(&format!("{point} bias"), (1, channels), shift);
    Ok(Mixed {
        kernel: taker.constant(&depth, (1, TAPS * channels), kernel),
        mix: Linear {
            weight: taker.constant(&point, (channels, channels), matrix),
            n: channels,
            k: channels,
            biases: vec![(shift, 0, channels)],
        },
    })
}

impl Emitter<'_> {
    /// The first values of `x` = relu(mix(sum over neighbours of kernel * x)). `x` has the neighbours, `sum` has room for it.
    fn mixed(&mut self, own: &Mixed, x: BufferRef, sum: BufferRef) {
        let n = own.mix.n;
        let (wide, sum) = (TAPS * n, (sum, n));
        self.multiply("kernel", own.kernel, wide, (x, wide), (x, wide));
        self.multiply("first neighbour", NO_WEIGHT, n, (x, wide), sum);
        for tap in 1..TAPS {
            self.add_rows("next neighbour", n, (at(x, tap * n), wide), sum);
        }
        self.linear("mix", &own.mix, sum, (x, wide));
        self.relu(n, (x, wide));
    }

    /// The outputs of rows, whose `n` values are the first ones of so many.
    fn outputs(&mut self, what: &str, (n, kind, group): (u32, u32, u32), x: Rows, y: BufferRef) {
        let params = p::Pool {
            n,
            kind,
            normalise: 0,
            x_stride: x.1,
            y_stride: n * group,
            group,
        };
        let buffers = [x.0, y];
        self.out.push(what, Op::Pool, &[], &buffers, params.words());
    }
}

/// The places after two convolutions. A row is one of them; it computes the nine neighbours that it reads.
fn places(
    spec: &HearingSpec,
    own: &FastConformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (read, channels, wide) = (Pieces::ROW_VALUES, own.channels, own.row_values());
    let rows = (2 * FastConformer::TIMES + 1) * Pieces::after(spec.mels, 2);
    let none = nothing(&mut taker.collector, read);
    let name = "conformer.pre_encode.conv.0";
    let first = square(&mut taker, name, channels, |tap| tap as usize)?;
    let second = mixed(&mut taker, 2, channels)?;
    let parts = Parts::new(rows, [read, wide, channels], [rows, channels]);
    let mut e = Emitter {
        dim: channels,
        out: Commands::new(&taker.collector.list),
    };
    embed(&mut e.out, none, read, [parts.tokens, parts.read]);
    let neighbours = (parts.wide, wide);
    e.linear("first convolution", &first, (parts.read, read), neighbours);
    e.relu(wide, neighbours);
    let inside = (at(parts.read, Pieces::INSIDE), read);
    let what = "nothing beyond the sound";
    e.gate(what, (wide, TAPS, NO_ACT), inside, neighbours);
    e.mixed(&second, parts.wide, parts.made);
    e.outputs("places", (channels, 0, 1), neighbours, parts.result);
    let result = (channels, parts.result);
    let pass = e.out.pass(PassKind::Embed, (rows, rows), result);
    Ok(parts.program(taker.collector.list, pass))
}

/// The third convolution, and the matrix that makes a state of all pitches of a time. A row is a place after it, whose neighbours it reads.
fn times(
    spec: &HearingSpec,
    own: &FastConformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (channels, pitches) = (own.channels, Pieces::after(spec.mels, 3));
    let (outputs, read) = (FastConformer::TIMES, own.row_values());
    let rows = outputs * pitches;
    let none = nothing(&mut taker.collector, read);
    let third = mixed(&mut taker, 5, channels)?;
    let joined = channels * pitches;
    let last = linear(&mut taker, "conformer.pre_encode.out", spec.dim, joined)?;
    let parts = Parts::new(rows, [read, joined, channels], [outputs, spec.dim]);
    let mut e = Emitter {
        dim: channels,
        out: Commands::new(&taker.collector.list),
    };
    embed(&mut e.out, none, read, [parts.tokens, parts.read]);
    e.mixed(&third, parts.read, parts.made);
    // The matrix has all pitches of a channel side by side.
    let kind = (channels, 4, pitches);
    e.outputs("pitches", kind, (parts.read, read), parts.wide);
    let result = (parts.result, spec.dim);
    e.linear("states", &last, (parts.wide, joined), result);
    if own.scale != 1.0 {
        e.scale("scale", own.scale, spec.dim, result);
    }
    let result = (spec.dim, parts.result);
    let pass = e.out.pass(PassKind::Embed, (rows, outputs), result);
    Ok(parts.program(taker.collector.list, pass))
}

struct Layer {
    feed_forward: [Half; 2],
    attention: Attention,
    convolution_norm: NormWeights,
    begin: Linear,
    /// The kernel and the shift.
    kernel: [WeightId; 2],
    end: Linear,
    norm: NormWeights,
}

struct Attention {
    norm: NormWeights,
    /// Queries, keys and values.
    qkv: [Linear; 3],
    /// What puts a head's amplitudes before its scaled query, and what is added to both.
    queries: WeightId,
    shifts: WeightId,
    output: Linear,
}

/// What all layers have.
struct Shared {
    /// What puts zeros before a head.
    wide: WeightId,
    /// Ones in keys.
    ones: WeightId,
    frequencies: WeightId,
    /// Where the values of heads are.
    own_values: WeightId,
}

fn shared(taker: &mut Taker<'_>, spec: &HearingSpec) -> Shared {
    let (dim, heads) = (spec.dim, spec.layers.heads);
    let (head, width) = (dim / heads, wide_head(dim, heads));
    let one = |row: u32, column: u32| f32::from(u8::from(row == dim + column));
    let matrix = (0..width).flat_map(|row| (0..head).map(move |column| one(row, column)));
    let matrix: Vec<f32> = matrix.collect();
    let ones = (0..width).map(|at| f32::from(u8::from(at < dim / 2)));
    let ones: Vec<f32> = ones.collect();
    let frequency = |pair: u32| frequency(pair, dim) as f32;
    let place = |at: u32| (at / head * width + dim + at % head) as f32;
    let all = heads as usize;
    Shared {
        wide: taker.constant("wide heads", (heads * width, head), matrix.repeat(all)),
        ones: taker.constant("ones in keys", (1, heads * width), ones.repeat(all)),
        frequencies: taker.constant("waves", (1, dim / 2), (0..dim / 2).map(frequency).collect()),
        own_values: taker.constant("own values", (1, dim), (0..dim).map(place).collect()),
    }
}

/// How far a wave turns with a row.
fn frequency(pair: u32, dim: u32) -> f64 {
    const SLOWEST: f64 = 10_000.0;
    SLOWEST.powf(-2.0 * f64::from(pair) / f64::from(dim))
}

fn half(taker: &mut Taker<'_>, layer: &str, number: u32, ffn: u32) -> Result<Half, Error> {
    let dim = taker.dim;
    let of = |part: &str| format!("{layer}.feed_forward{number}.{part}");
    let norm = format!("{layer}.norm_feed_forward{number}");
    Ok(Half {
        norm: taker.norm(&norm, &norm)?,
        up: linear(taker, &of("linear1"), ffn, dim)?,
        down: linear(taker, &of("linear2"), dim, ffn)?,
    })
}

fn attention(taker: &mut Taker<'_>, layer: &str, heads: u32) -> Result<Attention, Error> {
    let dim = taker.dim;
    let head = (dim / heads) as usize;
    let of = |part: &str| format!("{layer}.self_attn.{part}");
    let scale = 1.0 / (head as f64).sqrt();
    let count = u64::from(dim);
    let distances = taker.values(&weight(&of("linear_pos"), 0), count * count)?;
    // What is added to queries that meet keys, and to those that meet distances.
    let near = taker.values(&of("pos_bias_u"), count)?;
    let far = taker.values(&of("pos_bias_v"), count)?;
    let (mut queries, mut shifts) = (Vec::new(), Vec::new());
    for own in 0..heads as usize {
        // The vector of a distance has the sine and the cosine of a wave side by side. Cosines come first here.
        for at in 0..dim as usize {
            let (pair, is_sine) = (at % (dim as usize / 2), at >= dim as usize / 2);
            let column = 2 * pair + usize::from(!is_sine);
            let sign = if is_sine { -scale } else { scale };
            let row = (0..head).map(|value| {
                let stored = distances[(own * head + value) * dim as usize + column];
                sign * f64::from(stored)
            });
            let row: Vec<f64> = row.collect();
            let bias = row.iter().zip(&far[own * head..]);
            shifts.push(bias.map(|(w, b)| w * f64::from(*b)).sum::<f64>() as f32);
            queries.extend(row.iter().map(|v| *v as f32));
        }
        for row in 0..head {
            shifts.push(near[own * head + row] * scale as f32);
            let one = |value: usize| if value == row { scale as f32 } else { 0.0 };
            queries.extend((0..head).map(one));
        }
    }
    let rows = heads * wide_head(dim, heads);
    let norm = format!("{layer}.norm_self_att");
    Ok(Attention {
        norm: taker.norm(&norm, &norm)?,
        qkv: [
            linear(taker, &of("linear_q"), dim, dim)?,
            linear(taker, &of("linear_k"), dim, dim)?,
            linear(taker, &of("linear_v"), dim, dim)?,
        ],
        queries: taker.constant(&of("wide queries"), (rows, head as u32), queries),
        shifts: taker.constant(&of("wide shifts"), (1, rows), shifts),
        output: linear(taker, &of("linear_out"), dim, dim)?,
    })
}

fn layer(
    taker: &mut Taker<'_>,
    spec: &HearingSpec,
    own: &FastConformer,
    number: u32,
) -> Result<Layer, Error> {
    let dim = spec.dim;
    let name = format!("conformer.layers.{number}");
    let of = |part: &str| format!("{name}.{part}");
    let convolution = (&*of("conv.depthwise_conv"), true);
    let (inner, outer) = (of("conv.pointwise_conv1"), of("conv.pointwise_conv2"));
    Ok(Layer {
        feed_forward: [
            half(taker, &name, 1, spec.layers.ffn)?,
            half(taker, &name, 2, spec.layers.ffn)?,
        ],
        attention: attention(taker, &name, spec.layers.heads)?,
        convolution_norm: taker.norm(&of("norm_conv"), &of("norm_conv"))?,
        begin: tap(taker, &inner, (2 * dim, dim), true)?,
        kernel: depthwise(taker, convolution, &of("conv.batch_norm"), [dim, own.taps])?,
        end: tap(taker, &outer, (dim, dim), true)?,
        norm: taker.norm(&of("norm_out"), &of("norm_out"))?,
    })
}

/// The buffers of the conformer.
struct Scratch {
    x: BufferRef,
    norm: BufferRef,
    made: BufferRef,
    wide: BufferRef,
    qkv: BufferRef,
    found: BufferRef,
}

/// The conformer and the projector. A row is a state, and becomes a feature.
fn states(
    spec: &HearingSpec,
    own: &FastConformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (dim, rows, width) = (spec.dim, spec.positions, spec.width);
    let none = nothing(&mut taker.collector, dim);
    let shared = shared(&mut taker, spec);
    let layers = (0..spec.layers.count).map(|number| layer(&mut taker, spec, own, number));
    let layers = layers.collect::<Result<Vec<Layer>, Error>>()?;
    let adapter = |number: u32| format!("audio_adapter.model.{number}");
    let norm = taker.norm("projector norm", &adapter(0))?;
    let first = linear(&mut taker, &adapter(1), width, dim)?;
    let second = linear(&mut taker, &adapter(3), width, width)?;
    let all = spec.layers.heads * wide_head(dim, spec.layers.heads);
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = buffers.add("features", class, bytes(rows, dim)).buffer;
    let mut add =
        |name: &str, width: u32| buffers.add(&format!("prompt.{name}"), class, bytes(rows, width));
    let s = Scratch {
        x: add("x", dim),
        norm: add("norm", dim),
        made: add("made", dim),
        wide: add("wide", spec.layers.ffn.max(2 * dim)),
        qkv: add("qkv", 3 * all),
        found: add("found", all),
    };
    let (projected, result) = (add("projected", width), add("result", width));
    let mut e = Emitter {
        dim,
        out: Commands::new(&taker.collector.list),
    };
    embed(&mut e.out, none, dim, [tokens, s.x]);
    for (index, layer) in layers.iter().enumerate() {
        e.out.layer = Some(index as u32);
        let [first, second] = &layer.feed_forward;
        e.half(first, [s.x, s.norm, s.wide]);
        attend(&mut e, &layer.attention, &shared, spec.layers.heads, &s);
        convolve(&mut e, layer, own, &s);
        e.half(second, [s.x, s.norm, s.wide]);
        e.layer_norm("last norm", layer.norm, EPS, s.x, s.x);
    }
    e.out.layer = None;
    e.out.part = ModelPart::Head;
    e.pool("states", dim, s.x, s.norm);
    e.layer_norm("projector norm", norm, EPS, s.norm, s.made);
    let (between, end) = ((projected, width), (result, width));
    e.linear("projection", &first, (s.made, dim), between);
    e.gelu(width, between);
    e.linear("projection", &second, between, end);
    let pass = e.out.pass(PassKind::Embed, (rows, rows), (width, result));
    let list = taker.collector.list;
    let input = (tokens, features);
    Ok(one_pass(list, buffers.into_list(), input, pass))
}

fn attend(e: &mut Emitter<'_>, layer: &Attention, shared: &Shared, heads: u32, s: &Scratch) {
    e.out.part = ModelPart::Attention;
    let (dim, head, width) = (e.dim, e.dim / heads, wide_head(e.dim, heads));
    let (own, all) = (heads * width, 3 * heads * width);
    let matrices = [layer.queries, shared.wide, shared.wide];
    e.layer_norm("attention norm", layer.norm, EPS, s.x, s.norm);
    for (number, (linear, matrix)) in (0..).zip(layer.qkv.iter().zip(matrices)) {
        let what = ["queries", "keys", "values"][number as usize];
        let made: Rows = (s.made, dim);
        e.linear(what, linear, (s.norm, dim), made);
        let to = (at(s.qkv, number * own), all);
        e.heads(
            &format!("wide {what}"),
            matrix,
            (heads, [width, head]),
            made,
            to,
        );
    }
    e.bias("wide queries", layer.shifts, own, (s.qkv, all));
    e.bias("keys", shared.ones, own, (at(s.qkv, own), all));
    let rope = p::Rope {
        heads: 2 * heads,
        head_dim: width,
        rot: dim,
        interleaved: 0,
        magnitude: 1.0,
        y_stride: all,
        sections: 0,
    };
    let waves = [shared.frequencies];
    e.out
        .push("waves", Op::Rope, &waves, &[s.qkv], rope.words());
    let params = p::EncodeAttention {
        scale: 1.0,
        ..every_row((heads, width), [all, own])
    };
    e.out.attend(params, [s.qkv, s.found]);
    e.spread("own values", shared.own_values, [dim, own], s.found, s.norm);
    e.linear(
        "attention output",
        &layer.output,
        (s.norm, dim),
        (s.made, dim),
    );
    e.add("attention sum", s.made, s.x);
}

fn convolve(e: &mut Emitter<'_>, layer: &Layer, own: &FastConformer, s: &Scratch) {
    let dim = e.dim;
    e.layer_norm("convolution norm", layer.convolution_norm, EPS, s.x, s.norm);
    let both = (s.wide, 2 * dim);
    e.linear("convolution input", &layer.begin, (s.norm, dim), both);
    e.open(dim, s.wide, s.made);
    let params = p::EncodeConv {
        n: dim,
        taps: own.taps,
        before: own.taps / 2,
        x_stride: dim,
        y_stride: dim,
    };
    e.out.convolve(layer.kernel, params, [s.made, s.norm]);
    e.silu(dim, (s.norm, dim));
    e.linear(
        "convolution output",
        &layer.end,
        (s.norm, dim),
        (s.made, dim),
    );
    e.add("convolution sum", s.made, s.x);
}
