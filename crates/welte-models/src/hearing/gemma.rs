//! The two programs of the conformers of Gemma 3n and Gemma 4.
//!
//! The first one makes the places after two convolutions over time and pitch; the host lays those of a time side by side. The second one
//! is the conformer.
//!
//! Scores know distances without an op of their own. A function of a distance below `seen` is a sum of waves with period `seen`. Each wave
//! is the product of two vectors that turn with the positions of the two rows. So a head's queries get more values, which are linear in
//! the query, and its keys as many constant ones. `rope` turns both by the second axis: the position modulo `seen`.

use super::conformer::Conformer;
use super::parts::{Emitter, LIMIT, Limits, NO_ACT, Rows};
use super::{HearingFamily, HearingSpec, Pieces};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, every_row, one_pass};
use crate::names::{bias, weight};
use crate::speech::parts::{Linear, Taker, bytes};
use crate::speech::tower::{embed, nothing};
use crate::weights::{Collector, NormWeights};
use std::f64::consts::{LN_2, PI};
use welte_formats::Checkpoint;
use welte_table::{
    BufferRef, Class, ModelPart, NO_WEIGHT, Op, PassKind, Program, Sections, WeightId, params as p,
};

/// Of norms for which the configuration says nothing.
const EPS: f32 = 1e-6;
const TAPS: u32 = Pieces::TAPS;

/// What a family calls its tensors.
struct Names {
    /// The two convolutions.
    convolutions: [&'static str; 2],
    layers: &'static str,
    feed_forward: [&'static str; 2],
    attention_norms: [&'static str; 2],
    attention: &'static str,
    output: &'static str,
    distances: &'static str,
    last_norm: &'static str,
    /// Between the name of a matrix with limits and the tensor.
    inner: &'static str,
}

const GEMMA3N: Names = Names {
    convolutions: ["conv_0", "conv_1"],
    layers: "conformer",
    feed_forward: ["ffw_layer_start", "ffw_layer_end"],
    attention_norms: ["attention.pre_attn_norm", "attention.post_norm"],
    attention: "attention.attn",
    output: "attention.post",
    distances: "relative_position_embedding.pos_proj",
    last_norm: "norm",
    inner: "",
};

const GEMMA4: Names = Names {
    convolutions: ["layer0", "layer1"],
    layers: "layers",
    feed_forward: ["feed_forward1", "feed_forward2"],
    attention_norms: ["norm_pre_attn", "norm_post_attn"],
    attention: "self_attn",
    output: "self_attn.post",
    distances: "relative_k_proj",
    last_norm: "norm_out",
    inner: ".linear",
};

/// A matrix, the limits of what it reads, and of what it makes.
struct Limited {
    linear: Linear,
    reads: Option<Limits>,
    makes: Option<Limits>,
}

struct FeedForward {
    norms: [WeightId; 2],
    up: Limited,
    down: Limited,
}

struct Attention {
    norms: [WeightId; 2],
    /// Queries, keys and values.
    qkv: [Limited; 3],
    /// What makes of each a head with the values for distances before its own ones.
    wide: [WeightId; 3],
    /// Ones in the keys.
    ones: WeightId,
    output: Limited,
}

struct Convolution {
    norms: [WeightId; 2],
    begin: Limited,
    kernel: WeightId,
    end: Limited,
}

struct Layer {
    feed_forward: [FeedForward; 2],
    attention: Attention,
    convolution: Convolution,
    norm: WeightId,
}

/// Takes the weights.
struct Parts<'a> {
    taker: Taker<'a>,
    names: &'static Names,
    spec: &'a HearingSpec,
    own: &'a Conformer,
}

/// Values that a head has for distances, half of them for pairs that turn: a multiple of 8, so that GPUs take tiles.
fn turning(own: &Conformer) -> u32 {
    (2 * (own.seen / 2 + 1)).next_multiple_of(8)
}

fn parts<'a>(
    spec: &'a HearingSpec,
    own: &'a Conformer,
    checkpoint: &'a dyn Checkpoint,
) -> Parts<'a> {
    Parts {
        taker: Taker {
            collector: Collector::new(checkpoint),
            dim: spec.dim,
            key_bias: false,
        },
        names: match spec.family {
            HearingFamily::Gemma4 => &GEMMA4,
            _ => &GEMMA3N,
        },
        spec,
        own,
    }
}

impl Parts<'_> {
    fn plain(&mut self, label: &str, name: &str, n: u32, k: u32) -> Result<Linear, Error> {
        self.taker.linear(label, &[(name.into(), n, false)], k)
    }

    fn vector(&mut self, label: &str, name: &str, n: u32) -> Result<WeightId, Error> {
        let tensor = [(weight(name, 0), n)];
        self.taker.collector.vector(label, &tensor, 0.0)
    }

    /// A norm of the width.
    fn norm(&mut self, name: &str) -> Result<WeightId, Error> {
        self.vector(name, name, self.spec.dim)
    }

    fn limits(&mut self, name: &str, which: &str) -> Result<Option<Limits>, Error> {
        let [low, high] = ["min", "max"].map(|end| format!("{name}.{which}_{end}"));
        if !self.taker.collector.has(&low) && !self.taker.collector.has(&high) {
            return Ok(None);
        }
        let low = self.taker.values(&low, 1)?[0];
        let high = self.taker.values(&high, 1)?[0];
        if low.is_nan() || high.is_nan() || low > high {
            let problem = format!("limits of {low} to {high}");
            return Err(self.taker.collector.fault(name, problem));
        }
        let limits = [low.max(f32::MIN), high.min(f32::MAX)];
        Ok((limits != [f32::MIN, f32::MAX]).then_some(limits))
    }

    fn limited(&mut self, name: &str, n: u32, k: u32) -> Result<Limited, Error> {
        let inner = format!("{name}{}", self.names.inner);
        Ok(Limited {
            linear: self.plain(name, &inner, n, k)?,
            reads: self.limits(name, "input")?,
            makes: self.limits(name, "output")?,
        })
    }

    fn feed_forward(&mut self, name: &str) -> Result<FeedForward, Error> {
        let (dim, ffn) = (self.spec.dim, self.spec.layers.ffn);
        let of = |part: &str| format!("{name}.{part}");
        Ok(FeedForward {
            norms: [
                self.norm(&of("pre_layer_norm"))?,
                self.norm(&of("post_layer_norm"))?,
            ],
            up: self.limited(&of("ffw_layer_1"), ffn, dim)?,
            down: self.limited(&of("ffw_layer_2"), dim, ffn)?,
        })
    }

    fn attention(&mut self, layer: &str) -> Result<Attention, Error> {
        let (dim, names) = (self.spec.dim, self.names);
        let of = |part: &str| format!("{layer}.{part}");
        let inner = |part: &str| format!("{layer}.{}.{part}", names.attention);
        let [before, after] = names.attention_norms.map(of);
        let qkv = [
            self.limited(&inner("q_proj"), dim, dim)?,
            self.limited(&inner("k_proj"), dim, dim)?,
            self.limited(&inner("v_proj"), dim, dim)?,
        ];
        let scales = inner("per_dim_scale");
        let heads = self.spec.layers.heads;
        let head = dim / heads;
        let scales = self.taker.values(&scales, head.into())?;
        let softplus = |v: f32| f64::from(v).exp().ln_1p();
        let own_scale = 1.0 / (f64::from(head).sqrt() * LN_2);
        let scales: Vec<f64> = scales.iter().map(|v| own_scale * softplus(*v)).collect();
        let distances = weight(&inner(names.distances), 0);
        let distances = self
            .taker
            .values(&distances, u64::from(dim) * u64::from(dim))?;
        let queries = queries(self.own, &distances, &scales, heads as usize);
        // Gemma 4 scales keys, too.
        let key_scale = match self.spec.family {
            HearingFamily::Gemma4 => 1f64.exp().ln_1p() / LN_2,
            _ => 1.0,
        };
        let extra = turning(self.own);
        let width = extra + head;
        let plain = |scale: f64| {
            let one = |row: u32, column: u32| {
                let is_own = row.checked_sub(extra) == Some(column);
                if is_own { scale as f32 } else { 0.0 }
            };
            let of_head = (0..width).flat_map(|row| (0..head).map(move |column| one(row, column)));
            of_head.collect::<Vec<f32>>().repeat(heads as usize)
        };
        let mut wide = |what: &str, values: Vec<f32>| {
            let label = format!("{layer} {what}");
            self.taker.constant(&label, (heads * width, head), values)
        };
        let wide = [
            wide("wide queries", queries),
            wide("wide keys", plain(key_scale)),
            wide("wide values", plain(1.0)),
        ];
        let of_head = (0..width).map(|at| f32::from(u8::from(at <= self.own.seen / 2)));
        let ones = of_head.collect::<Vec<f32>>().repeat(heads as usize);
        let label = format!("{layer} ones in keys");
        Ok(Attention {
            norms: [self.norm(&before)?, self.norm(&after)?],
            qkv,
            wide,
            ones: self.taker.constant(&label, (1, heads * width), ones),
            output: self.limited(&of(names.output), dim, dim)?,
        })
    }

    fn convolution(&mut self, layer: &str) -> Result<Convolution, Error> {
        let (dim, taps) = (self.spec.dim, self.own.taps);
        let of = |part: &str| format!("{layer}.lconv1d.{part}");
        let kernel = of("depthwise_conv1d");
        let values = u64::from(dim) * u64::from(taps);
        let values = self.taker.values(&weight(&kernel, 0), values)?;
        Ok(Convolution {
            norms: [
                self.norm(&of("pre_layer_norm"))?,
                self.norm(&of("conv_norm"))?,
            ],
            begin: self.limited(&of("linear_start"), 2 * dim, dim)?,
            kernel: self.taker.constant(&kernel, (1, dim * taps), values),
            end: self.limited(&of("linear_end"), dim, dim)?,
        })
    }

    fn layer(&mut self, number: u32) -> Result<Layer, Error> {
        let name = format!("audio_tower.{}.{number}", self.names.layers);
        let [first, second] = self.names.feed_forward.map(|part| format!("{name}.{part}"));
        Ok(Layer {
            feed_forward: [self.feed_forward(&first)?, self.feed_forward(&second)?],
            attention: self.attention(&name)?,
            convolution: self.convolution(&name)?,
            norm: self.norm(&format!("{name}.{}", self.names.last_norm))?,
        })
    }
}

/// What makes queries of all heads: the amplitudes of waves whose sum is what a score adds for each distance, and then the scaled query.
fn queries(own: &Conformer, distances: &[f32], scales: &[f64], heads: usize) -> Vec<f32> {
    let head = scales.len();
    let (dim, period, extra) = (heads * head, own.seen as usize, turning(own) as usize);
    // What each value of a query counts for a distance.
    let places: Vec<Vec<f64>> = (0..period)
        .map(|distance| {
            let wave = position(distance, dim);
            let row = |row: &[f32]| row.iter().zip(&wave).map(|(w, v)| f64::from(*w) * v).sum();
            distances.chunks_exact(dim).map(row).collect()
        })
        .collect();
    let mut values = Vec::with_capacity(heads * (extra + head) * head);
    for own_head in 0..heads {
        for at in 0..extra {
            let (pair, is_sine) = (at % (extra / 2), at >= extra / 2);
            let amplitude = |value: usize| {
                if pair > period / 2 {
                    return 0.0;
                }
                let once = pair == 0 || 2 * pair == period;
                let share = if once { 1.0 } else { 2.0 } / period as f64;
                let each = places.iter().enumerate().map(|(distance, place)| {
                    let angle = 2.0 * PI * (pair * distance) as f64 / period as f64;
                    let wave = if is_sine { -angle.sin() } else { angle.cos() };
                    place[own_head * head + value] * wave
                });
                share * each.sum::<f64>() * scales[value]
            };
            values.extend((0..head).map(|value| amplitude(value) as f32));
        }
        for row in 0..head {
            let one = |value: usize| {
                if value == row {
                    scales[value] as f32
                } else {
                    0.0
                }
            };
            values.extend((0..head).map(one));
        }
    }
    values
}

/// The vector of a distance: sines of slower and slower waves, then their cosines.
fn position(distance: usize, dim: usize) -> Vec<f64> {
    const SLOWEST: f64 = 10_000.0;
    let half = dim / 2;
    let step = SLOWEST.ln() / (half - 1).max(1) as f64;
    let angle = |i: usize| distance as f64 * (-step * i as f64).exp();
    let sines = (0..half).map(|i| angle(i).sin());
    sines.chain((0..half).map(|i| angle(i).cos())).collect()
}

impl Emitter<'_> {
    /// A product with limits, which change what it reads.
    fn limited(&mut self, what: &str, own: &Limited, x: Rows, y: Rows) {
        if let Some(limits) = own.reads {
            self.act("limits", (LIMIT, limits), own.linear.k, x);
        }
        self.linear(what, &own.linear, x, y);
        if let Some(limits) = own.makes {
            self.act("limits", (LIMIT, limits), own.linear.n, y);
        }
    }

    /// y = norm(x) * weight, by root mean square
    fn norm(&mut self, what: &str, (weight, eps): (WeightId, f32), x: BufferRef, y: BufferRef) {
        let norm = NormWeights { weight, bias: None };
        self.out.norm(what, (norm, true), (self.dim, eps), [x, y]);
    }
}

/// Both programs.
pub(super) fn compile(
    spec: &HearingSpec,
    own: &Conformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Vec<Program>, Error> {
    Ok(vec![
        places(spec, own, checkpoint)?,
        states(spec, own, checkpoint)?,
    ])
}

/// The places after both convolutions. A row is one of them; it computes the nine neighbours that it reads.
fn places(
    spec: &HearingSpec,
    own: &Conformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut parts = parts(spec, own, checkpoint);
    let ([first, second], read) = (own.channels, Conformer::ROW_VALUES);
    let rows = Conformer::TIMES * Pieces::after(spec.mels, 2);
    let wide = TAPS * first;
    let none = nothing(&mut parts.taker.collector, read);
    let [one, two] = parts
        .names
        .convolutions
        .map(|name| format!("audio_tower.subsample_conv_projection.{name}"));
    let kernels = weight(&format!("{one}.conv"), 0);
    let kernels = parts.taker.values(&kernels, 9 * u64::from(first))?;
    let mut square = vec![0.0; (wide * read) as usize];
    for neighbour in 0..TAPS {
        let (time, pitch) = (neighbour / 3, neighbour % 3);
        for (channel, kernel) in (0..).zip(kernels.chunks_exact(TAPS as usize)) {
            let row = ((neighbour * first + channel) * read) as usize;
            for (tap, value) in (0..).zip(kernel) {
                let (frame, mel) = (2 * time + tap / 3, 2 * pitch + tap % 3);
                square[row + (frame * Pieces::SIDE + mel) as usize] = *value;
            }
            square[row + (Conformer::MEANS + time) as usize] = 1.0;
        }
    }
    let square = Linear {
        weight: parts
            .taker
            .constant("first convolution", (wide, read), square),
        n: wide,
        k: read,
        biases: Vec::new(),
    };
    let kernels = weight(&format!("{two}.conv"), 0);
    let count = 9 * u64::from(first) * u64::from(second);
    let kernels = parts.taker.values(&kernels, count)?;
    let mut turned = Vec::with_capacity(kernels.len());
    for kernel in kernels.chunks_exact(wide as usize) {
        for tap in 0..TAPS as usize {
            turned.extend(kernel.iter().skip(tap).step_by(TAPS as usize));
        }
    }
    let turned = Linear {
        weight: parts
            .taker
            .constant("second convolution", (second, wide), turned),
        n: second,
        k: wide,
        biases: Vec::new(),
    };
    let over_times = own.fixed.is_some();
    let first_norm = weight(&format!("{one}.norm"), 0);
    let repeated = if over_times { TAPS as usize } else { 1 };
    let first_norm = vec![(first_norm, first); repeated];
    let first_norm = parts
        .taker
        .collector
        .vector("first norm", &first_norm, 0.0)?;
    let second_norm = match over_times {
        true => NO_WEIGHT,
        false => parts.vector("second norm", &format!("{two}.norm"), second)?,
    };
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = buffers.add("features", class, bytes(rows, read)).buffer;
    let mut add =
        |name: &str, width: u32| buffers.add(&format!("prompt.{name}"), class, bytes(rows, width));
    let (x, nine, made) = (add("read", read), add("nine", wide), add("made", second));
    let result = add("result", second);
    let mut e = Emitter {
        dim: spec.dim,
        out: Commands::new(&parts.taker.collector.list),
    };
    embed(&mut e.out, none, read, [tokens, x]);
    e.linear("first convolution", &square, (x, read), (nine, wide));
    let factors = (at(x, Conformer::FACTORS), read);
    let factor = |e: &mut Emitter<'_>| {
        let what = "nothing beyond the sound";
        e.gate(what, (wide, TAPS, NO_ACT), factors, (nine, wide));
    };
    let layer_norm = |e: &mut Emitter<'_>, weight, dim, groups, y| {
        let params = p::LayerNorm {
            dim,
            groups,
            eps: own.eps[0],
            x_stride: dim * groups,
            y_stride: dim * groups,
        };
        let weights = [weight, NO_WEIGHT];
        e.out
            .push("norm", Op::LayerNorm, &weights, &[y, y], params.words());
    };
    if over_times {
        factor(&mut e);
        e.multiply("first norm", first_norm, wide, (nine, wide), (nine, wide));
        e.relu(wide, (nine, wide));
    } else {
        layer_norm(&mut e, first_norm, first, TAPS, nine);
        e.relu(wide, (nine, wide));
        factor(&mut e);
    }
    e.linear("second convolution", &turned, (nine, wide), (made, second));
    if !over_times {
        layer_norm(&mut e, second_norm, second, 1, made);
        e.relu(second, (made, second));
    }
    e.pool("places", second, made, result);
    let pass = e.out.pass(PassKind::Embed, (rows, rows), (second, result));
    let list = parts.taker.collector.list;
    Ok(one_pass(
        list,
        buffers.into_list(),
        (tokens, features),
        pass,
    ))
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

/// The conformer. A row is a time; the chosen ones become features.
fn states(
    spec: &HearingSpec,
    own: &Conformer,
    checkpoint: &dyn Checkpoint,
) -> Result<Program, Error> {
    let mut parts = parts(spec, own, checkpoint);
    let (dim, rows, line) = (spec.dim, spec.positions, own.line(spec.mels));
    let outputs = rows / spec.group;
    let none = nothing(&mut parts.taker.collector, line);
    let input = "audio_tower.subsample_conv_projection.input_proj_linear";
    let input = parts.plain("input", input, dim, line)?;
    let layers = (0..spec.layers.count).map(|number| parts.layer(number));
    let layers = layers.collect::<Result<Vec<Layer>, Error>>()?;
    let last = match spec.family {
        HearingFamily::Gemma4 => {
            let name = "audio_tower.output_proj";
            let mut last = parts.plain("output", name, own.last, dim)?;
            let tensor = [(bias(name, 0), own.last)];
            let bias = parts.taker.collector.vector("output bias", &tensor, 0.0)?;
            last.biases.push((bias, 0, own.last));
            Ok(last)
        }
        _ => Err(parts.norm("embed_audio.soft_embedding_norm")?),
    };
    let name = "embed_audio.embedding_projection";
    let projection = parts.plain("projection", name, spec.width, own.last)?;
    let heads = spec.layers.heads;
    let (head, extra) = (dim / heads, turning(own));
    let width = head + extra;
    let frequency = |pair: u32| match pair {
        pair if pair <= own.seen / 2 => 2.0 * PI * f64::from(pair) / f64::from(own.seen),
        _ => 0.0,
    };
    let frequencies = (0..extra / 2).map(|pair| frequency(pair) as f32);
    let frequencies = parts
        .taker
        .constant("waves", (1, extra / 2), frequencies.collect());
    let own_values = (0..dim).map(|at| (at / head * width + extra + at % head) as f32);
    let map = parts
        .taker
        .constant("own values", (1, dim), own_values.collect());
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = buffers.add("features", class, bytes(rows, line)).buffer;
    let mut add = |name: &str, rows: u32, width: u32| {
        buffers.add(&format!("prompt.{name}"), class, bytes(rows, width))
    };
    let read = add("read", rows, line);
    let s = Scratch {
        x: add("x", rows, dim),
        norm: add("norm", rows, dim),
        made: add("made", rows, dim),
        wide: add("wide", rows, spec.layers.ffn),
        qkv: add("qkv", rows, 3 * heads * width),
        found: add("found", rows, heads * width),
    };
    let chosen = add("chosen", outputs, dim);
    let projected = add("projected", outputs, own.last);
    let result = add("result", outputs, spec.width);
    let mut e = Emitter {
        dim,
        out: Commands::new(&parts.taker.collector.list),
    };
    embed(&mut e.out, none, line, [tokens, read]);
    e.linear("input", &input, (read, line), (s.x, dim));
    for (index, layer) in layers.iter().enumerate() {
        e.out.layer = Some(index as u32);
        let [first, second] = &layer.feed_forward;
        feed_forward(&mut e, first, own, &s);
        attention(
            &mut e,
            &layer.attention,
            (spec, own),
            [frequencies, map],
            &s,
        );
        convolution(&mut e, &layer.convolution, own, &s);
        feed_forward(&mut e, second, own, &s);
        e.norm("last norm", (layer.norm, EPS), s.x, s.x);
    }
    e.out.layer = None;
    e.out.part = ModelPart::Head;
    e.pool("states", dim, s.x, chosen);
    let eps = own.eps[0];
    e.dim = own.last;
    match last {
        Ok(last) => {
            let to = (projected, own.last);
            e.linear("output", &last, (chosen, dim), to);
            e.norm("norm", (NO_WEIGHT, eps), projected, projected);
            e.linear("projection", &projection, to, (result, spec.width));
        }
        Err(norm) => {
            e.norm("norm", (norm, eps), chosen, projected);
            let from = (projected, own.last);
            e.linear("projection", &projection, from, (result, spec.width));
            e.dim = spec.width;
            e.norm("norm", (NO_WEIGHT, eps), result, result);
        }
    }
    let pass = e
        .out
        .pass(PassKind::Embed, (rows, outputs), (spec.width, result));
    let list = parts.taker.collector.list;
    Ok(one_pass(
        list,
        buffers.into_list(),
        (tokens, features),
        pass,
    ))
}

fn feed_forward(e: &mut Emitter<'_>, layer: &FeedForward, own: &Conformer, s: &Scratch) {
    e.out.part = ModelPart::FeedForward;
    let (dim, ffn) = (e.dim, layer.up.linear.n);
    let [before, after] = layer.norms;
    e.norm("feed-forward norm", (before, EPS), s.x, s.norm);
    e.limited("up", &layer.up, (s.norm, dim), (s.wide, ffn));
    e.silu(ffn, (s.wide, ffn));
    e.limited("down", &layer.down, (s.wide, ffn), (s.made, dim));
    e.norm("norm after it", (after, EPS), s.made, s.made);
    e.scale("a part of it", own.residual, dim, (s.made, dim));
    e.add("sum", s.made, s.x);
}

fn attention(
    e: &mut Emitter<'_>,
    layer: &Attention,
    (spec, own): (&HearingSpec, &Conformer),
    [frequencies, map]: [WeightId; 2],
    s: &Scratch,
) {
    e.out.part = ModelPart::Attention;
    let (dim, heads, extra) = (spec.dim, spec.layers.heads, turning(own));
    let (head, width) = (dim / heads, dim / heads + extra);
    let all = 3 * heads * width;
    let [before, after] = layer.norms;
    e.norm("attention norm", (before, EPS), s.x, s.norm);
    for (number, (limited, wide)) in (0..).zip(layer.qkv.iter().zip(layer.wide)) {
        let what = ["queries", "keys", "values"][number as usize];
        // Limits differ, and the norm is read by all three.
        let from = match limited.reads {
            None => s.norm,
            Some(_) => {
                let (x, y) = ((s.norm, dim), (s.wide, dim));
                e.multiply("copy", NO_WEIGHT, dim, x, y);
                s.wide
            }
        };
        e.limited(what, limited, (from, dim), (s.made, dim));
        let to = (at(s.qkv, number * heads * width), all);
        let shape = (heads, [width, head]);
        e.heads(&format!("wide {what}"), wide, shape, (s.made, dim), to);
    }
    let keys = at(s.qkv, heads * width);
    e.bias("keys", layer.ones, heads * width, (keys, all));
    let sections = Sections {
        pairs: [0, (extra / 2) as u8, 0],
        interleaved: false,
    };
    let rope = p::Rope {
        heads: 2 * heads,
        head_dim: width,
        rot: extra,
        interleaved: 0,
        magnitude: 1.0,
        y_stride: all,
        sections: sections.word(),
    };
    e.out
        .push("waves", Op::Rope, &[frequencies], &[s.qkv], rope.words());
    let params = p::EncodeAttention {
        scale: 1.0,
        window: own.seen - 1,
        by_reach: 1,
        softcap: own.softcap,
        ..every_row((heads, width), [all, heads * width])
    };
    e.out.attend(params, [s.qkv, s.found]);
    let sizes = [dim, heads * width];
    e.spread("own values", map, sizes, s.found, s.norm);
    e.limited(
        "attention output",
        &layer.output,
        (s.norm, dim),
        (s.made, dim),
    );
    e.norm("norm after it", (after, EPS), s.made, s.made);
    e.add("attention sum", s.made, s.x);
}

fn convolution(e: &mut Emitter<'_>, layer: &Convolution, own: &Conformer, s: &Scratch) {
    e.out.part = ModelPart::Attention;
    let dim = e.dim;
    let [before, after] = layer.norms;
    let eps = own.eps[0];
    e.norm("convolution norm", (before, eps), s.x, s.norm);
    let both = (s.wide, 2 * dim);
    e.limited("convolution input", &layer.begin, (s.norm, dim), both);
    e.open(dim, s.wide, s.made);
    let params = p::EncodeConv {
        n: dim,
        taps: own.taps,
        before: own.taps - 1,
        x_stride: dim,
        y_stride: dim,
    };
    let weights = [layer.kernel, NO_WEIGHT];
    e.out.convolve(weights, params, [s.made, s.norm]);
    e.norm("norm after it", (after, eps), s.norm, s.norm);
    e.silu(dim, (s.norm, dim));
    e.limited(
        "convolution output",
        &layer.end,
        (s.norm, dim),
        (s.made, dim),
    );
    e.add("convolution sum", s.made, s.x);
}
