//! Granite Speech: a conformer whose rows see their block, and queries that look at windows of its states. They are two programs.
//!
//! Rows fill up the last block. The host lets no row see them, and a value of each row closes them to convolutions. What a score adds for
//! a distance is a product of the query and a learned vector: `encode_attention` reads it as it reads places of one column.
//!
//! In the second program a window has its states and then its queries, as two lines of such places: scores add nothing, or so little that
//! no weight is left, by the distance of lines. So queries see each other in one attention, and the states in the next.

use super::parts::{EPS, Emitter, Half, NO_ACT, Rows, SIGMOID, SQUARE, depthwise, linear, tap};
use super::{HearingFamily, HearingSpec};
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
use welte_table::{
    BufferRef, Class, ModelPart, NO_WEIGHT, PassKind, Program, WeightId, params as p,
};

/// States of the longest sound, which lasts a minute.
const STATES: u32 = 3000;
const MOST_TAPS: u32 = 64;
const MOST_BLOCK: u32 = 1 << 9;
const MOST_CLASSES: u32 = 1 << 10;
const MOST_WINDOW: u32 = 64;
/// What is added to a score that must not count.
const UNSEEN: f32 = -1e9;
/// What is subtracted from half a logit, so that its sigmoid is its power of e.
const SHIFT: f32 = 34.0;
/// Far below the mean of the squares of these powers.
const LEAST: f32 = 1e-36;

/// What the encoder of Granite Speech is, besides its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraniteSpeech {
    /// Values of a head.
    pub head_dim: u32,
    /// Rows that see each other.
    pub block: u32,
    /// The largest distance that there is a vector for.
    pub distances: u32,
    /// Symbols whose probabilities are added after half of the layers.
    pub classes: u32,
    /// Rows that the convolution of a layer reads.
    pub taps: u32,
    /// Values that it reads of each.
    pub inner: u32,
    /// States of a window.
    pub window: u32,
    /// Queries of a window.
    pub queries: u32,
    /// The layers of queries.
    pub layers: SpeechLayers,
    /// A layer of queries out of so many looks at the states.
    pub every: u32,
    /// Of the norms of queries.
    pub eps: f32,
}

impl GraniteSpeech {
    /// Windows of a step of the second program.
    pub const WINDOWS: u32 = 16;

    /// Values that a row of the first program reads: two frames, and whether it is one of the sound. Padded.
    pub fn row_values(mels: u32) -> u32 {
        2 * mels + 4
    }
}

/// Reads the encoder.
pub(super) fn read(keys: &Keys<'_>) -> Result<HearingSpec, Error> {
    let size = |name: &str, default: u32, most: u32| keys.size(name, Some(default), most);
    let own = |name: &str| format!("encoder_config.{name}");
    let query = |name: &str| format!("projector_config.{name}");
    let input = size(&own("input_dim"), 160, 2 * MOST_MELS)?;
    if !input.is_multiple_of(2) {
        let problem = format!("is {input}; must be two frames");
        return Err(keys.error(&own("input_dim"), problem));
    }
    let dim = size(&own("hidden_dim"), 1024, MOST_DIM)?;
    let heads = size(&own("num_heads"), 8, MOST_HEADS)?;
    let layers = SpeechLayers {
        count: size(&own("num_layers"), 10, MOST_LAYERS)?,
        heads,
        ffn: size(&own("feedforward_mult"), 4, 64)? * dim,
    };
    let head_dim = size(&own("dim_head"), (dim / heads).max(1), MOST_HEAD_DIM)?;
    let block = size(&own("context_size"), 200, MOST_BLOCK)?;
    let distances = size(&own("max_pos_emb"), 512, 1 << 16)?;
    if block > distances {
        let problem = format!("is {block}; there are {distances} distances");
        return Err(keys.error(&own("context_size"), problem));
    }
    let window = size("window_size", 15, MOST_WINDOW)?;
    let rate = size("downsample_rate", 5, MOST_WINDOW)?;
    if window / rate * rate != window {
        let problem = format!("is {rate}; must divide a window of {window}");
        return Err(keys.error("downsample_rate", problem));
    }
    let query_dim = size(&query("hidden_size"), 768, MOST_DIM)?;
    let read = size(&query("encoder_hidden_size"), 1408, MOST_DIM)?;
    if query_dim != dim || read != dim {
        let problem = format!("{query_dim} values that read {read}; the encoder makes {dim}");
        return Err(keys.error(&query("hidden_size"), problem));
    }
    let query_layers = SpeechLayers {
        count: size(&query("num_hidden_layers"), 12, MOST_LAYERS)?,
        heads: size(&query("num_attention_heads"), 12, MOST_HEADS)?,
        ffn: size(&query("intermediate_size"), 3072, MOST_FFN)?,
    };
    if !dim.is_multiple_of(query_layers.heads) {
        let problem = format!("is {}; must divide {dim}", query_layers.heads);
        return Err(keys.error(&query("num_attention_heads"), problem));
    }
    for (key, wanted) in [("model_type", "blip_2_qformer"), ("hidden_act", "gelu")] {
        match keys.text(&query(key))? {
            None => {}
            Some(found) if found == wanted => {}
            Some(other) => {
                let problem = format!("is '{other}'; supported is {wanted}");
                return Err(keys.error(&query(key), problem));
            }
        }
    }
    let granite = GraniteSpeech {
        head_dim,
        block,
        distances,
        classes: size(&own("output_dim"), 42, MOST_CLASSES)?,
        taps: size(&own("conv_kernel_size"), 15, MOST_TAPS)?,
        inner: size(&own("conv_expansion_factor"), 2, 64)? * dim,
        window,
        queries: window / rate,
        layers: query_layers,
        every: size(&query("cross_attention_frequency"), 2, MOST_LAYERS)?,
        eps: keys.positive(&query("layer_norm_eps"), Some(1e-12))? as f32,
    };
    Ok(HearingSpec {
        family: HearingFamily::GraniteSpeech,
        mels: input / 2,
        dim,
        layers,
        positions: STATES.next_multiple_of(block),
        group: 1,
        width: keys.size("hidden_size", None, MOST_DIM)?,
        window: 0,
        places: 0,
        hidden: 0,
        rotation: None,
        pieces: None,
        conformer: None,
        granite: Some(granite),
        fast: None,
    })
}

/// The queries of a window, as rows of the second program read them; nothing of other families.
pub fn speech_queries(spec: &HearingSpec, checkpoint: &dyn Checkpoint) -> Result<Vec<f32>, Error> {
    let Some(own) = spec.granite else {
        return Ok(Vec::new());
    };
    let mut taker = taker(spec, checkpoint);
    let dim = spec.dim as usize;
    let count = u64::from(own.queries) * u64::from(spec.dim);
    let mut queries = taker.values("projector.query", count)?;
    let name = "projector.qformer.layernorm";
    let factors = taker.values(&weight(name, 0), spec.dim.into())?;
    let shifts = taker.values(&bias(name, 0), spec.dim.into())?;
    for query in queries.chunks_mut(dim) {
        let mean = query.iter().map(|v| f64::from(*v)).sum::<f64>() / dim as f64;
        let squares = query.iter().map(|v| (f64::from(*v) - mean).powi(2));
        let scale = 1.0 / (squares.sum::<f64>() / dim as f64 + f64::from(own.eps)).sqrt();
        for ((value, factor), shift) in query.iter_mut().zip(&factors).zip(&shifts) {
            *value = ((f64::from(*value) - mean) * scale) as f32 * factor + shift;
        }
    }
    Ok(queries)
}

fn taker<'a>(spec: &HearingSpec, checkpoint: &'a dyn Checkpoint) -> Taker<'a> {
    Taker {
        collector: Collector::new(checkpoint),
        dim: spec.dim,
        key_bias: true,
    }
}

struct Layer {
    feed_forward: [Half; 2],
    attention_norm: NormWeights,
    qkv: Linear,
    distances: WeightId,
    output: Linear,
    convolution_norm: NormWeights,
    begin: Linear,
    kernel: WeightId,
    shift: WeightId,
    end: Linear,
    norm: NormWeights,
}

/// What is added after half of the layers.
struct Middle {
    logits: Linear,
    back: Linear,
    ones: WeightId,
}

fn feed_forward(taker: &mut Taker<'_>, name: &str, ffn: u32) -> Result<Half, Error> {
    let (dim, of) = (taker.dim, |part: &str| format!("{name}.{part}"));
    Ok(Half {
        norm: taker.norm(&of("pre_norm"), &of("pre_norm"))?,
        up: linear(taker, &of("up_proj"), ffn, dim)?,
        down: linear(taker, &of("down_proj"), dim, ffn)?,
    })
}

fn layer(
    taker: &mut Taker<'_>,
    spec: &HearingSpec,
    own: &GraniteSpeech,
    number: u32,
) -> Result<Layer, Error> {
    let (dim, heads, head) = (spec.dim, spec.layers.heads, own.head_dim);
    let all = heads * head;
    let of = |part: &str| format!("encoder.layers.{number}.{part}");
    let feed_forward = [
        feed_forward(taker, &of("ff1"), spec.layers.ffn)?,
        feed_forward(taker, &of("ff2"), spec.layers.ffn)?,
    ];
    let parts = [
        (of("attn.to_q"), all, false),
        (of("attn.to_kv"), 2 * all, false),
    ];
    let qkv = taker.linear(&of("attn.qkv"), &parts, dim)?;
    let table = weight(&of("attn.rel_pos_emb"), 0);
    let rows = u64::from(2 * own.distances + 1);
    let table = taker.values(&table, rows * u64::from(head))?;
    // The first place of a table of distances is that of the key furthest after the row.
    let first = (own.distances + 1 - own.block) * head;
    let lines = &table[first as usize..][..((2 * own.block - 1) * head) as usize];
    let scale = 1.0 / (head as f32).sqrt();
    let mut of_head: Vec<f32> = lines.iter().map(|v| v * scale).collect();
    of_head.resize(2 * of_head.len(), 0.0);
    let places = 2 * (2 * own.block - 1);
    let size = (heads * places, head);
    let distances = of("attn.distances");
    let distances = taker.constant(&distances, size, of_head.repeat(heads as usize));
    let convolution = (&*of("conv.depth_conv.conv"), false);
    let sizes = [own.inner, own.taps];
    let [kernel, shift] = depthwise(taker, convolution, &of("conv.batch_norm"), sizes)?;
    Ok(Layer {
        feed_forward,
        attention_norm: taker.norm(&of("attn.pre_norm"), &of("attn.pre_norm"))?,
        qkv,
        distances,
        output: linear(taker, &of("attn.to_out"), dim, all)?,
        convolution_norm: taker.norm(&of("conv.norm"), &of("conv.norm"))?,
        begin: tap(taker, &of("conv.up_conv"), (2 * own.inner, dim), true)?,
        kernel,
        shift,
        end: tap(taker, &of("conv.down_conv"), (dim, own.inner), true)?,
        norm: taker.norm(&of("post_norm"), &of("post_norm"))?,
    })
}

/// A softmax does not change if all logits do, so they are counted from their mean, which is not above the largest one.
fn middle(taker: &mut Taker<'_>, spec: &HearingSpec, own: &GraniteSpeech) -> Result<Middle, Error> {
    let (dim, classes) = (spec.dim as usize, own.classes as usize);
    let count = u64::from(own.classes) * u64::from(spec.dim);
    let mut values = taker.values("encoder.out.weight", count)?;
    for column in 0..dim {
        let all = || (0..classes).map(move |row| row * dim + column);
        let mean = all().map(|at| f64::from(values[at])).sum::<f64>() / classes as f64;
        for at in all() {
            values[at] = ((f64::from(values[at]) - mean) / 2.0) as f32;
        }
    }
    let shifts = taker.values("encoder.out.bias", own.classes.into())?;
    let mean = shifts.iter().map(|v| f64::from(*v)).sum::<f64>() / classes as f64;
    let shifts = shifts
        .iter()
        .map(|v| ((f64::from(*v) - mean) / 2.0) as f32 - SHIFT);
    let shifts = shifts.collect();
    let shifts = taker.constant("shifts of logits", (1, own.classes), shifts);
    let mut back = taker.values("encoder.out_mid.weight", count)?;
    // A norm makes the mean square 1, and the squares of powers are to sum up to it.
    back.iter_mut().for_each(|v| *v /= classes as f32);
    let tensor = [("encoder.out_mid.bias".to_string(), spec.dim)];
    let back_bias = taker.collector.vector("back bias", &tensor, 0.0)?;
    Ok(Middle {
        logits: Linear {
            weight: taker.constant("logits", (own.classes, spec.dim), values),
            n: own.classes,
            k: spec.dim,
            biases: vec![(shifts, 0, own.classes)],
        },
        back: Linear {
            weight: taker.constant("back", (spec.dim, own.classes), back),
            n: spec.dim,
            k: own.classes,
            biases: vec![(back_bias, 0, spec.dim)],
        },
        ones: taker.constant("ones", (1, own.classes), vec![1.0; classes]),
    })
}

/// Both programs.
pub(super) fn compile(
    spec: &HearingSpec,
    own: &GraniteSpeech,
    checkpoint: &dyn Checkpoint,
) -> Result<Vec<Program>, Error> {
    Ok(vec![
        states(spec, own, checkpoint)?,
        queries(spec, own, checkpoint)?,
    ])
}

/// The buffers of the conformer.
struct Scratch {
    /// Whether a row is one of the sound.
    is_there: Rows,
    x: BufferRef,
    norm: BufferRef,
    wide: BufferRef,
    qkv: BufferRef,
    found: BufferRef,
    open: BufferRef,
    near: BufferRef,
}

fn states(
    spec: &HearingSpec,
    own: &GraniteSpeech,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (dim, rows, input) = (spec.dim, spec.positions, 2 * spec.mels);
    let read = GraniteSpeech::row_values(spec.mels);
    let none = nothing(&mut taker.collector, read);
    let first = linear(&mut taker, "encoder.input_linear", dim, input)?;
    let layers = (0..spec.layers.count).map(|number| layer(&mut taker, spec, own, number));
    let layers = layers.collect::<Result<Vec<Layer>, Error>>()?;
    let middle = middle(&mut taker, spec, own)?;
    let all = spec.layers.heads * own.head_dim;
    let places = spec.layers.heads * 2 * (2 * own.block - 1);
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = buffers.add("features", class, bytes(rows, read)).buffer;
    let mut add =
        |name: &str, width: u32| buffers.add(&format!("prompt.{name}"), class, bytes(rows, width));
    let frames = add("read", read);
    let s = Scratch {
        is_there: (at(frames, input), read),
        x: add("x", dim),
        norm: add("norm", dim),
        wide: add("wide", spec.layers.ffn.max(2 * own.inner).max(own.classes)),
        qkv: add("qkv", 3 * all + places),
        found: add("found", all.max(own.classes)),
        open: add("open", own.inner),
        near: add("near", own.inner),
    };
    let result = add("result", dim);
    let mut e = Emitter {
        dim,
        out: Commands::new(&taker.collector.list),
    };
    embed(&mut e.out, none, read, [tokens, frames]);
    e.linear("input", &first, (frames, read), (s.x, dim));
    for (index, layer) in layers.iter().enumerate() {
        e.out.layer = Some(index as u32);
        let [first, second] = &layer.feed_forward;
        e.half(first, [s.x, s.norm, s.wide]);
        attention(&mut e, layer, (spec, own), &s);
        convolution(&mut e, layer, own, &s);
        e.half(second, [s.x, s.norm, s.wide]);
        e.layer_norm("last norm", layer.norm, EPS, s.x, s.x);
        if index as u32 + 1 == spec.layers.count / 2 {
            let (logits, classes) = ((s.wide, own.classes), own.classes);
            e.linear("logits", &middle.logits, (s.x, dim), logits);
            let powers = (s.found, classes);
            e.fill("ones", middle.ones, classes, powers);
            e.gate("powers", (classes, classes, SIGMOID), logits, powers);
            let norm = NormWeights {
                weight: NO_WEIGHT,
                bias: None,
            };
            let how = (classes, LEAST);
            e.out.norm("shares", (norm, true), how, [s.found, s.found]);
            e.act("squares", (SQUARE, [0.0; 2]), classes, powers);
            e.linear("back", &middle.back, powers, (s.norm, dim));
            e.add("what is said", s.norm, s.x);
        }
    }
    e.out.layer = None;
    e.out.part = ModelPart::Head;
    e.pool("states", dim, s.x, result);
    let pass = e.out.pass(PassKind::Embed, (rows, rows), (dim, result));
    let list = taker.collector.list;
    Ok(one_pass(
        list,
        buffers.into_list(),
        (tokens, features),
        pass,
    ))
}

fn attention(
    e: &mut Emitter<'_>,
    layer: &Layer,
    (spec, own): (&HearingSpec, &GraniteSpeech),
    s: &Scratch,
) {
    e.out.part = ModelPart::Attention;
    let (dim, heads, head) = (e.dim, spec.layers.heads, own.head_dim);
    let (all, places) = (heads * head, 2 * (2 * own.block - 1));
    let stride = 3 * all + heads * places;
    e.layer_norm("attention norm", layer.attention_norm, EPS, s.x, s.norm);
    e.linear("qkv", &layer.qkv, (s.norm, dim), (s.qkv, stride));
    e.multiply("copy", NO_WEIGHT, all, (s.qkv, stride), (s.found, all));
    let to = (at(s.qkv, 3 * all), stride);
    let shape = (heads, [places, head]);
    e.heads("distances", layer.distances, shape, (s.found, all), to);
    let params = p::EncodeAttention {
        by_axis: 1,
        by_reach: 1,
        places: own.block,
        ..every_row((heads, head), [stride, all])
    };
    e.out.attend(params, [s.qkv, s.found]);
    e.linear(
        "attention output",
        &layer.output,
        (s.found, all),
        (s.norm, dim),
    );
    e.add("attention sum", s.norm, s.x);
}

fn convolution(e: &mut Emitter<'_>, layer: &Layer, own: &GraniteSpeech, s: &Scratch) {
    let (dim, inner) = (e.dim, own.inner);
    e.layer_norm("convolution norm", layer.convolution_norm, EPS, s.x, s.norm);
    let both = (s.wide, 2 * inner);
    e.linear("convolution input", &layer.begin, (s.norm, dim), both);
    e.open(inner, s.wide, s.open);
    let (what, open) = ("nothing beyond the sound", (s.open, inner));
    e.gate(what, (inner, 1, NO_ACT), s.is_there, open);
    let params = p::EncodeConv {
        n: inner,
        taps: own.taps,
        before: own.taps / 2,
        x_stride: inner,
        y_stride: inner,
    };
    let weights = [layer.kernel, layer.shift];
    e.out.convolve(weights, params, [s.open, s.near]);
    e.silu(inner, (s.near, inner));
    e.linear(
        "convolution output",
        &layer.end,
        (s.near, inner),
        (s.norm, dim),
    );
    e.add("convolution sum", s.norm, s.x);
}

/// Attention of queries, and what follows it.
struct Looking {
    q: Linear,
    kv: Linear,
    output: Linear,
    norm: NormWeights,
}

struct QueryLayer {
    own: Looking,
    states: Option<Looking>,
    up: Linear,
    down: Linear,
    norm: NormWeights,
}

fn looking(taker: &mut Taker<'_>, name: &str) -> Result<Looking, Error> {
    let dim = taker.dim;
    let of = |part: &str| format!("{name}.{part}");
    let kv = ["key", "value"].map(|part| (of(&format!("attention.{part}")), dim, true));
    Ok(Looking {
        q: linear(taker, &of("attention.query"), dim, dim)?,
        kv: taker.linear(&of("attention.kv"), &kv, dim)?,
        output: linear(taker, &of("output.dense"), dim, dim)?,
        norm: taker.norm(&of("output.LayerNorm"), &of("output.LayerNorm"))?,
    })
}

/// Features of windows. A row is a state or a query; queries yield features.
fn queries(
    spec: &HearingSpec,
    own: &GraniteSpeech,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut taker = taker(spec, checkpoint);
    let (dim, heads, ffn) = (spec.dim, own.layers.heads, own.layers.ffn);
    let rows = GraniteSpeech::WINDOWS * (own.window + own.queries);
    let outputs = GraniteSpeech::WINDOWS * own.queries;
    let none = nothing(&mut taker.collector, dim);
    let mut layers = Vec::new();
    for number in 0..own.layers.count {
        let of = |part: &str| format!("projector.qformer.encoder.layer.{number}.{part}");
        layers.push(QueryLayer {
            own: looking(&mut taker, &of("attention"))?,
            states: match number.is_multiple_of(own.every) {
                true => Some(looking(&mut taker, &of("crossattention"))?),
                false => None,
            },
            up: linear(&mut taker, &of("intermediate_query.dense"), ffn, dim)?,
            down: linear(&mut taker, &of("output_query.dense"), dim, ffn)?,
            norm: taker.norm(&of("output_query.LayerNorm"), &of("output_query.LayerNorm"))?,
        });
    }
    let last = linear(&mut taker, "projector.linear", spec.width, dim)?;
    // By the distance of lines, then by that of columns, of which there is one.
    let mut lines = |what: &str, [apart, same]: [f32; 2]| {
        let of_head = [apart, same, apart, 0.0, 0.0, 0.0];
        taker.constant(what, (1, 6 * heads), of_head.repeat(heads as usize))
    };
    let among = lines("queries see queries", [UNSEEN, 0.0]);
    let across = lines("queries see states", [0.0, UNSEEN]);
    let stride = 3 * dim + 6 * heads;
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = buffers.add("features", class, bytes(rows, dim)).buffer;
    let mut add = |name: &str, rows: u32, width: u32| {
        buffers.add(&format!("prompt.{name}"), class, bytes(rows, width))
    };
    let (read, x) = (add("read", rows, dim), add("x", rows, dim));
    let (norm, wide) = (add("norm", rows, dim), add("wide", rows, ffn));
    let qkv = add("qkv", rows, stride);
    let chosen = add("chosen", outputs, dim);
    let result = add("result", outputs, spec.width);
    let mut e = Emitter {
        dim,
        out: Commands::new(&taker.collector.list),
    };
    embed(&mut e.out, none, dim, [tokens, read]);
    e.multiply("queries", NO_WEIGHT, dim, (read, dim), (x, dim));
    for (index, layer) in layers.iter().enumerate() {
        e.out.layer = Some(index as u32);
        e.out.part = ModelPart::Attention;
        let steps = [
            Some((&layer.own, x, among)),
            layer.states.as_ref().map(|states| (states, read, across)),
        ];
        for (looking, seen, table) in steps.into_iter().flatten() {
            e.linear("queries", &looking.q, (x, dim), (qkv, stride));
            let kv = (at(qkv, dim), stride);
            e.linear("keys and values", &looking.kv, (seen, dim), kv);
            e.fill("lines", table, 6 * heads, (at(qkv, 3 * dim), stride));
            let params = p::EncodeAttention {
                by_axis: 1,
                places: 2,
                ..every_row((heads, dim / heads), [stride, dim])
            };
            e.out.attend(params, [qkv, norm]);
            let found = (norm, dim);
            e.linear("attention output", &looking.output, found, (qkv, dim));
            e.add("attention sum", qkv, x);
            e.layer_norm("norm after attention", looking.norm, own.eps, x, x);
        }
        e.out.part = ModelPart::FeedForward;
        e.linear("up", &layer.up, (x, dim), (wide, ffn));
        e.gelu(ffn, (wide, ffn));
        e.linear("down", &layer.down, (wide, ffn), (norm, dim));
        e.add("down sum", norm, x);
        e.layer_norm("norm after it", layer.norm, own.eps, x, x);
    }
    e.out.layer = None;
    e.out.part = ModelPart::Head;
    e.pool("queries", dim, x, chosen);
    e.linear("projection", &last, (chosen, dim), (result, spec.width));
    let pass = e
        .out
        .pass(PassKind::Embed, (rows, outputs), (spec.width, result));
    let list = taker.collector.list;
    Ok(one_pass(
        list,
        buffers.into_list(),
        (tokens, features),
        pass,
    ))
}
