//! The program and the checkpoint of a model.

mod look_up;
mod streams;

pub use look_up::look_up;

use super::made::{Made, Numbers};
use super::model::{
    Attention, Conv, Delta, Dense, EncodeConv, Experts, Heads, Layer, Model, Ungated,
};
use welte_table::*;

/// An intermediate buffer and the distance of its rows, which is more than their width.
#[derive(Clone, Copy)]
struct Place {
    at: BufferRef,
    stride: u32,
}

/// The intermediates; those that the model does not need are missing.
struct Places {
    tokens: BufferRef,
    x: Place,
    qkv: Option<Place>,
    attended: Option<Place>,
    gated: Option<Place>,
    normed: Option<Place>,
    /// The input of a product, what is added to the stream, and gate and up.
    input: Place,
    sum: Place,
    pair: Option<Place>,
    router: Option<Place>,
    choice: Option<Place>,
    mixed: Option<Place>,
    convolved: Option<Place>,
    /// b, a and the gate of a delta layer.
    rates: Option<Place>,
    opened: Option<Place>,
    chosen: Place,
    pooled: Option<Place>,
    logits: Place,
}

#[derive(Default)]
struct Builder {
    numbers: Numbers,
    checkpoint: Made,
    weights: Vec<WeightSpec>,
    buffers: Vec<BufferSpec>,
}

const EPS: f32 = 1e-5;

impl Builder {
    /// A matrix, table or vector of random values around `mean`. Vectors of mean 1 get a further 0.25 at load.
    fn weight(&mut self, name: &str, format: Format, n: u32, k: u32, usage: Usage) -> WeightId {
        let vector = usage == Usage::Vector;
        let norm = vector && name.ends_with("norm");
        let (mean, spread) = if vector {
            (f32::from(u8::from(norm)), 0.2)
        } else {
            (0.0, 1.5 / (k as f32).sqrt())
        };
        let numbers = &mut self.numbers;
        let values: Vec<f32> = (0..n * k)
            .map(|_| mean + spread * numbers.float())
            .collect();
        let add = if norm { 0.25 } else { 0.0 };
        self.weight_of(name, format, (n, k), usage, add, &values)
    }

    /// A weight of these values: `n` rows of `k`.
    fn weight_of(
        &mut self,
        name: &str,
        format: Format,
        (n, k): (u32, u32),
        usage: Usage,
        add: f32,
        values: &[f32],
    ) -> WeightId {
        let whole = usage != Usage::Vector && k.is_multiple_of(format.block() as u32);
        let format = if whole { format } else { Format::F32 };
        self.checkpoint.add(name, format, n, k, values);
        // In two parts, as matrices that were joined have them.
        let part = |first_row, rows| Part {
            tensor: name.into(),
            first_row,
            rows,
        };
        let mut parts = vec![part(0, n / 2), part(n / 2, n - n / 2)];
        parts.retain(|p| p.rows > 0);
        self.weights.push(WeightSpec {
            name: name.into(),
            format,
            n,
            k,
            usage,
            add,
            source: Source::Parts(parts),
        });
        self.weights.len() as u32 - 1
    }

    fn frequencies(&mut self, rot: u32) -> WeightId {
        let values = (0..rot / 2).map(|i| 0.7f32.powi(i as i32));
        self.constant("freqs", values.collect())
    }

    fn constant(&mut self, name: &str, values: Vec<f32>) -> WeightId {
        self.weights.push(WeightSpec {
            name: format!("{name} {}", self.weights.len()),
            format: Format::F32,
            n: 1,
            k: values.len() as u32,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Constant(values),
        });
        self.weights.len() as u32 - 1
    }

    fn buffer(&mut self, name: &str, class: Class, bytes: u64) -> BufferRef {
        self.buffers.push(BufferSpec {
            name: name.into(),
            class,
            bytes,
        });
        BufferRef {
            buffer: self.buffers.len() as u32 - 1,
            offset: 0,
        }
    }

    /// A buffer of rows that are `gap` floats further apart than they are wide.
    fn place(&mut self, name: &str, rows: u32, width: u32, gap: u32) -> Place {
        let stride = width + gap;
        let bytes = 4 * u64::from(rows) * u64::from(stride);
        Place {
            at: self.buffer(name, Class::ScratchPrompt, bytes),
            stride,
        }
    }

    fn command(
        &self,
        op: Op,
        weights: &[WeightId],
        buffers: &[BufferRef],
        params: Params,
    ) -> Command {
        let first = weights.first().and_then(|w| self.weights.get(*w as usize));
        let format = first.map_or(Format::F32, |w| w.format);
        Command::new(op, format, weights, buffers, params)
    }
}

/// A pass whose commands are labelled by their ops.
fn pass(
    kind: PassKind,
    rows: u32,
    outputs: u32,
    width: u32,
    result: BufferRef,
    commands: Vec<Command>,
) -> Pass {
    let labels = commands.iter().map(|c| c.op.name().to_string()).collect();
    Pass {
        kind,
        adapted: false,
        rows,
        outputs,
        width,
        result,
        commands,
        labels,
    }
}

/// The model's program, with every fused op, and its checkpoint.
pub fn make(m: &Model) -> (Program, Made) {
    let (program, checkpoint) = make_fine(m);
    (fuse(program, PATTERNS), checkpoint)
}

/// The model's program, in fine ops, and its checkpoint.
pub fn make_fine(m: &Model) -> (Program, Made) {
    let mut b = Builder {
        numbers: Numbers(m.seed ^ 99),
        ..Builder::default()
    };
    let outputs = m.prompt_outputs.min(m.prompt_rows);
    let rows = m.decode_rows.max(m.prompt_rows).max(m.embed_rows);
    let places = places(m, &mut b, rows, outputs);
    let (caches, cache_of) = caches(m, &mut b);
    let usage = if m.tied { Usage::Both } else { Usage::Lookup };
    let embed = b.weight("embed", m.format, m.vocab, m.dim, usage);
    let head = if m.tied {
        embed
    } else {
        b.weight("head", m.format, m.vocab, m.dim, Usage::Matrix)
    };
    let look_up = params::Embed {
        n: m.vocab,
        k: m.dim,
        scale: 1.5,
        x_stride: places.x.stride,
    };
    let buffers = [places.tokens, places.x.at];
    let mut body = vec![b.command(Op::Embed, &[embed], &buffers, look_up.words())];
    for (i, layer) in m.layers.iter().enumerate() {
        let mut emit = Emit {
            m,
            b: &mut b,
            places: &places,
            name: format!("layer {i} "),
            body: &mut body,
        };
        match (layer, cache_of[i]) {
            (Layer::Attention(a), Some((cache, layer))) => emit.attention(a, cache, layer),
            (Layer::Conv(c), Some((cache, layer))) => emit.conv(c, cache, layer),
            (Layer::Delta(d), Some((cache, layer))) => emit.delta(d, cache, layer),
            (Layer::Encode(a), _) => emit.encode(a),
            (Layer::EncodeConv(c), _) => emit.encode_conv(c),
            (Layer::Experts(e), _) => emit.experts(e),
            (Layer::Dense(d), _) => emit.dense(d),
            (Layer::Ungated(d), _) => emit.ungated(d),
            (Layer::Heads(h), _) => emit.heads(h),
            (Layer::Streams(s), _) => emit.streams(s),
            _ => unreachable!("these layers have caches"),
        }
    }
    let norm = b.weight("final norm", Format::F32, 1, m.dim, Usage::Vector);
    let logits = places.logits.at;
    let end = |from: Place| {
        let input = places.input;
        let over = params::Norm {
            dim: m.dim,
            groups: 1,
            eps: EPS,
            x_stride: from.stride,
            y_stride: input.stride,
        };
        let multiply = params::Matmul {
            n: m.vocab,
            k: m.dim,
            x_stride: input.stride,
            y_stride: m.vocab,
        };
        let scale = params::Scale {
            n: m.vocab,
            scale: 0.9,
            cap: 30.0,
            y_stride: m.vocab,
        };
        let (normed, buffers) = ([from.at, input.at], [input.at, logits]);
        [
            b.command(Op::Norm, &[norm], &normed, over.words()),
            b.command(Op::Matmul, &[head], &buffers, multiply.words()),
            b.command(Op::Scale, &[], &[logits], scale.words()),
        ]
    };
    let sample = params::Sample {
        n: m.vocab,
        logits_stride: m.vocab,
    };
    let select = params::SelectRows {
        n: m.dim,
        x_stride: places.x.stride,
        y_stride: places.chosen.stride,
    };
    let mut decode = body.clone();
    decode.extend(end(places.x));
    decode.push(b.command(Op::Sample, &[], &[logits, places.tokens], sample.words()));
    let mut prompt = body.clone();
    let buffers = [places.x.at, places.chosen.at];
    prompt.push(b.command(Op::SelectRows, &[], &buffers, select.words()));
    prompt.extend(end(places.chosen));
    let rows = m.decode_rows;
    let mut passes = vec![
        pass(PassKind::Decode, rows, rows, m.vocab, logits, decode),
        pass(
            PassKind::Prompt,
            m.prompt_rows,
            outputs,
            m.vocab,
            logits,
            prompt,
        ),
    ];
    if let Some(pooled) = places.pooled {
        let over = params::Norm {
            dim: m.dim,
            groups: 1,
            eps: EPS,
            x_stride: places.x.stride,
            y_stride: places.x.stride,
        };
        let pool = params::Pool {
            n: m.dim,
            kind: m.pool.0,
            normalise: m.pool.1,
            x_stride: places.x.stride,
            y_stride: pooled.stride,
            group: 0,
        };
        let x = places.x.at;
        body.push(b.command(Op::Norm, &[norm], &[x, x], over.words()));
        body.push(b.command(Op::Pool, &[], &[x, pooled.at], pool.words()));
        let rows = m.embed_rows;
        passes.push(pass(PassKind::Embed, rows, rows, m.dim, pooled.at, body));
    }
    let mut program = Program {
        weights: b.weights,
        buffers: b.buffers,
        caches,
        vocab: m.vocab,
        context: m.context,
        page: m.page,
        slots: m.slots,
        tokens: places.tokens.buffer,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes,
    };
    cost::fill(&mut program);
    (program, b.checkpoint)
}

fn places(m: &Model, b: &mut Builder, rows: u32, outputs: u32) -> Places {
    let widest = |width: &dyn Fn(&Layer) -> u32| m.layers.iter().map(width).max().unwrap_or(0);
    let tokens = b.buffer("tokens", Class::Tables, 4 * u64::from(rows));
    let mut sized = |name: &str, width: u32, gap: u32| match width {
        0 => None,
        width => Some(b.place(name, rows, width, gap)),
    };
    let qkv = widest(&|l| match l {
        Layer::Attention(a) | Layer::Encode(a) => a.width(),
        _ => 0,
    });
    let attended = widest(&|l| match l {
        Layer::Attention(a) | Layer::Encode(a) => a.heads * a.head_dim,
        _ => 0,
    });
    let gated = widest(&|l| match l {
        Layer::Dense(d) => d.hidden,
        Layer::Ungated(d) => d.hidden,
        Layer::Experts(e) => e.used * e.hidden,
        _ => 0,
    });
    let experts = widest(&|l| match l {
        Layer::Experts(e) => e.experts,
        _ => 0,
    });
    let normed = widest(&|l| match l {
        Layer::Experts(_) | Layer::Ungated(_) | Layer::Streams(_) => m.dim,
        _ => 0,
    });
    let choice = widest(&|l| match l {
        Layer::Experts(e) => 2 * e.used,
        _ => 0,
    });
    let channels = widest(&|l| match l {
        Layer::Conv(c) => c.channels,
        Layer::EncodeConv(c) => c.channels,
        Layer::Delta(d) => d.width(),
        Layer::Heads(h) => h.heads * h.distances().0,
        Layer::Streams(s) => s.streams * m.dim,
        _ => 0,
    });
    let convolved = widest(&|l| match l {
        Layer::Conv(c) => c.channels,
        Layer::EncodeConv(c) => c.channels,
        Layer::Delta(d) => d.width(),
        Layer::Heads(h) => h.heads * h.distances().1,
        _ => 0,
    });
    let rates = widest(&|l| match l {
        Layer::Delta(d) => d.rates(),
        Layer::Streams(s) => s.streams,
        _ => 0,
    });
    let opened = widest(&|l| match l {
        Layer::Delta(d) => d.values() / d.shared,
        _ => 0,
    });
    let pair = widest(&|l| match l {
        Layer::Dense(d) => 2 * d.hidden,
        _ => 0,
    });
    Places {
        tokens,
        qkv: sized("qkv", qkv, 1),
        attended: sized("attended", attended, 2),
        gated: sized("gated", gated, 5),
        normed: sized("normed", normed, 1),
        router: sized("router", experts, 2),
        choice: sized("choice", choice, 1),
        mixed: sized("mixed", channels, 3),
        convolved: sized("convolved", convolved, 1),
        rates: sized("rates", rates, 2),
        opened: sized("opened", opened, 1),
        x: b.place("x", rows, m.dim, 3),
        chosen: b.place("chosen", outputs, m.dim, 1),
        pooled: (m.embed_rows > 0).then(|| b.place("pooled", m.embed_rows, m.dim, 0)),
        logits: b.place("logits", outputs.max(m.decode_rows), m.vocab, 0),
        // Rows of decode and prompt passes share them.
        input: b.place("input", rows, m.dim, 2),
        sum: b.place("sum", rows, m.dim, 1),
        pair: (pair > 0).then(|| b.place("pair", rows, pair, 3)),
    }
}

/// Buffer of a layer's cache and the layer's number in it.
type CachePlace = (BufferRef, u32);

/// One cache for all layers of the same shape. Each layer's place in its cache, if it has one.
fn caches(m: &Model, b: &mut Builder) -> (Vec<CacheSpec>, Vec<Option<CachePlace>>) {
    let shape = |layer: &Layer| match layer {
        Layer::Attention(a) => Some(CacheKind::Attention {
            format: m.kv_format,
            layers: 0,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            window: if a.window_cache { a.window } else { 0 },
        }),
        Layer::Conv(c) => Some(CacheKind::Recurrent {
            layers: 0,
            floats: (c.taps - 1) * c.channels,
        }),
        Layer::Delta(d) => Some(CacheKind::Recurrent {
            layers: 0,
            floats: d.heads * d.key_dim * d.value_dim,
        }),
        _ => None,
    };
    let mut shapes: Vec<CacheKind> = Vec::new();
    let mut counts: Vec<u32> = Vec::new();
    let mut of_layers = Vec::new();
    for layer in &m.layers {
        of_layers.push(shape(layer).map(|kind| {
            let known = shapes.iter().position(|s| *s == kind);
            let cache = known.unwrap_or_else(|| {
                shapes.push(kind);
                counts.push(0);
                shapes.len() - 1
            });
            counts[cache] += 1;
            (cache, counts[cache] - 1)
        }));
    }
    let mut caches = Vec::new();
    for (i, (mut kind, count)) in shapes.into_iter().zip(counts).enumerate() {
        let (CacheKind::Attention { layers, .. } | CacheKind::Recurrent { layers, .. }) = &mut kind;
        *layers = count;
        let pages = match kind {
            CacheKind::Attention { .. } => {
                m.pages.unwrap_or(m.context.div_ceil(m.page) * m.slots + 2)
            }
            CacheKind::Recurrent { .. } => m.slots + 2,
        };
        let mut cache = CacheSpec {
            name: format!("cache {i}"),
            buffer: 0,
            pages,
            kind,
        };
        let bytes = cache.bytes(m.page).expect("a small cache");
        cache.buffer = b.buffer(&cache.name, Class::Cache, bytes).buffer;
        caches.push(cache);
    }
    let place = |(cache, layer): (usize, u32)| {
        let buffer = caches[cache].buffer;
        (BufferRef { buffer, offset: 0 }, layer)
    };
    let of_layers = of_layers.into_iter().map(|l| l.map(place)).collect();
    (caches, of_layers)
}

/// Emits the commands of one layer.
struct Emit<'a> {
    m: &'a Model,
    b: &'a mut Builder,
    places: &'a Places,
    name: String,
    body: &'a mut Vec<Command>,
}

impl Emit<'_> {
    fn weight(&mut self, what: &str, n: u32, k: u32) -> WeightId {
        let (name, format) = (format!("{}{what}", self.name), self.m.format);
        self.b.weight(&name, format, n, k, Usage::Matrix)
    }

    fn vector(&mut self, what: &str, k: u32) -> WeightId {
        let name = format!("{}{what}", self.name);
        self.b.weight(&name, Format::F32, 1, k, Usage::Vector)
    }

    fn optional(&mut self, there: bool, what: &str, k: u32) -> WeightId {
        if there {
            self.vector(what, k)
        } else {
            NO_WEIGHT
        }
    }

    fn push(&mut self, op: Op, weights: &[WeightId], buffers: &[BufferRef], params: Params) {
        let command = self.b.command(op, weights, buffers, params);
        self.body.push(command);
    }

    /// `to = matrix norm(x)`
    fn project(&mut self, what: &str, n: u32, to: Place) {
        let (k, input) = (self.m.dim, self.places.input);
        let norm = self.vector(&format!("{what} norm"), k);
        let matrix = self.weight(what, n, k);
        self.norm(norm);
        let p = params::Matmul {
            n,
            k,
            x_stride: input.stride,
            y_stride: to.stride,
        };
        self.push(Op::Matmul, &[matrix], &[input.at, to.at], p.words());
    }

    /// `input = norm(x)`
    fn norm(&mut self, weight: WeightId) {
        let (x, input) = (self.places.x, self.places.input);
        let p = params::Norm {
            dim: self.m.dim,
            groups: 1,
            eps: EPS,
            x_stride: x.stride,
            y_stride: input.stride,
        };
        self.push(Op::Norm, &[weight], &[x.at, input.at], p.words());
    }

    /// `x += matrix from`
    fn add(&mut self, what: &str, k: u32, from: Place) {
        let (n, x, sum) = (self.m.dim, self.places.x, self.places.sum);
        let matrix = self.weight(what, n, k);
        let p = params::Matmul {
            n,
            k,
            x_stride: from.stride,
            y_stride: sum.stride,
        };
        self.push(Op::Matmul, &[matrix], &[from.at, sum.at], p.words());
        let p = params::Add {
            n,
            x_stride: sum.stride,
            y_stride: x.stride,
        };
        self.push(Op::Add, &[], &[sum.at, x.at], p.words());
    }

    fn attention(&mut self, a: &Attention, cache: BufferRef, layer: u32) {
        let (Some(qkv), Some(attended)) = (self.places.qkv, self.places.attended) else {
            unreachable!("sized by this layer");
        };
        self.project("qkv", a.width(), qkv);
        if a.bias {
            let bias = self.vector("qkv bias", a.width());
            let p = params::Bias {
                n: a.width(),
                y_stride: qkv.stride,
            };
            self.push(Op::Bias, &[bias], &[qkv.at], p.words());
        }
        let freqs = self.b.frequencies(a.rot);
        let at = |heads: u32| BufferRef {
            offset: 4 * heads * a.head_dim,
            ..qkv.at
        };
        let (k, v) = (at(a.heads), at(a.heads + a.kv_heads));
        let norms = [("q norm", at(0), a.heads), ("k norm", k, a.kv_heads)];
        for (what, place, groups) in norms.into_iter().filter(|_| a.qk_norm) {
            let weight = self.vector(what, a.head_dim);
            let p = params::Norm {
                dim: a.head_dim,
                groups,
                eps: EPS,
                x_stride: qkv.stride,
                y_stride: qkv.stride,
            };
            self.push(Op::Norm, &[weight], &[place, place], p.words());
        }
        let p = params::Rope {
            heads: a.heads + a.kv_heads,
            head_dim: a.head_dim,
            rot: a.rot,
            interleaved: a.interleaved,
            magnitude: 1.1,
            y_stride: qkv.stride,
            sections: 0,
        };
        self.push(Op::Rope, &[freqs], &[qkv.at], p.words());
        let p = params::KvAppend {
            layer,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            k_stride: qkv.stride,
            v_stride: qkv.stride,
        };
        self.push(Op::KvAppend, &[], &[k, v, cache], p.words());
        if a.position_scale {
            let p = params::PositionScale {
                n: a.heads * a.head_dim,
                beta: 0.3,
                original: 5,
                y_stride: qkv.stride,
                ahead: a.window % 2,
            };
            self.push(Op::PositionScale, &[], &[qkv.at], p.words());
        }
        let sinks = self.optional(a.sinks, "sinks", a.heads);
        let p = params::Attention {
            layer,
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            scale: 1.0 / (a.head_dim as f32).sqrt(),
            window: a.window,
            softcap: a.softcap,
            q_stride: qkv.stride,
            y_stride: attended.stride,
            causal: 0,
            chunked: u32::from(a.chunked && a.window > 0),
        };
        let buffers = [qkv.at, cache, attended.at];
        self.push(Op::Attention, &[sinks], &buffers, p.words());
        self.add("attention output", a.heads * a.head_dim, attended);
    }

    fn encode(&mut self, a: &Attention) {
        let (Some(qkv), Some(attended)) = (self.places.qkv, self.places.attended) else {
            unreachable!("sized by this layer");
        };
        let (x, dim, offset) = (self.places.x, self.m.dim, 3);
        // The last position of a context with an odd number of positions is alone in its segment.
        let period = self.m.context.div_ceil(2);
        let positions = self.vector("positions", (offset + period) * dim);
        let types = self.vector("segments", 2 * dim);
        let p = params::AddPosition {
            k: dim,
            period,
            offset,
            x_stride: x.stride,
        };
        self.push(Op::AddPosition, &[positions, types], &[x.at], p.words());
        self.project("qkv", a.width(), qkv);
        let p = params::EncodeAttention {
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            scale: 1.0 / (a.head_dim as f32).sqrt(),
            window: a.window,
            qkv_stride: qkv.stride,
            y_stride: attended.stride,
            by_axis: 0,
            unseen: 0,
            by_reach: 0,
            places: a.places,
            softcap: a.softcap,
        };
        let buffers = [qkv.at, attended.at];
        let absent = self.optional(a.absent, "absent", a.width() - a.of_places());
        let slopes = self.optional(a.slopes, "slopes", a.heads);
        let weights = [absent, slopes];
        self.push(Op::EncodeAttention, &weights, &buffers, p.words());
        self.add("attention output", a.heads * a.head_dim, attended);
    }

    fn dense(&mut self, d: &Dense) {
        let (Some(gated), Some(pair)) = (self.places.gated, self.places.pair) else {
            unreachable!("sized by this layer");
        };
        let (input, k) = (self.places.input, self.m.dim);
        let norm = self.vector("gate and up norm", k);
        let matrix = self.weight("gate and up", 2 * d.hidden, k);
        self.norm(norm);
        let p = params::Matmul {
            n: 2 * d.hidden,
            k,
            x_stride: input.stride,
            y_stride: pair.stride,
        };
        self.push(Op::Matmul, &[matrix], &[input.at, pair.at], p.words());
        let p = params::ActMul {
            n: d.hidden,
            act: d.act,
            x_stride: pair.stride,
            y_stride: gated.stride,
        };
        self.push(Op::ActMul, &[], &[pair.at, gated.at], p.words());
        self.add("down", d.hidden, gated);
    }

    fn ungated(&mut self, d: &Ungated) {
        let (Some(hidden), Some(normed)) = (self.places.gated, self.places.normed) else {
            unreachable!("sized by this layer");
        };
        let (x, k) = (self.places.x, self.m.dim);
        let norm = self.vector("up norm", k);
        let bias = self.optional(d.bias, "up bias", k);
        let p = params::LayerNorm {
            dim: k,
            groups: 1,
            eps: EPS,
            x_stride: x.stride,
            y_stride: normed.stride,
        };
        let buffers = [x.at, normed.at];
        self.push(Op::LayerNorm, &[norm, bias], &buffers, p.words());
        let matrix = self.weight("up", d.hidden, k);
        let p = params::Matmul {
            n: d.hidden,
            k,
            x_stride: normed.stride,
            y_stride: hidden.stride,
        };
        let buffers = [normed.at, hidden.at];
        self.push(Op::Matmul, &[matrix], &buffers, p.words());
        let [a, b, c, e] = match d.act {
            5 => [0.8, 0.6, 0.5, -1e-6],
            7 => [-0.4, 0.7, 0.0, 0.0],
            _ => [0.0; 4],
        };
        let p = params::Act {
            n: d.hidden,
            act: d.act,
            a,
            b,
            c,
            d: e,
            y_stride: hidden.stride,
        };
        self.push(Op::Act, &[], &[hidden.at], p.words());
        self.add("down", d.hidden, hidden);
    }

    fn heads(&mut self, h: &Heads) {
        let (Some(from), Some(to)) = (self.places.mixed, self.places.convolved) else {
            unreachable!("sized by this layer");
        };
        let (x_head, y_head) = h.distances();
        self.project("heads in", h.heads * x_head, from);
        let matrices = self.weight("heads", h.heads * h.n, h.k);
        let p = params::HeadsMatmul {
            heads: h.heads,
            n: h.n,
            k: h.k,
            tail: h.tail,
            x_head,
            y_head,
            x_stride: from.stride,
            y_stride: to.stride,
        };
        let buffers = [from.at, to.at];
        self.push(Op::HeadsMatmul, &[matrices], &buffers, p.words());
        self.add("heads out", h.heads * y_head, to);
    }

    fn conv(&mut self, c: &Conv, cache: BufferRef, layer: u32) {
        let (Some(mixed), Some(convolved)) = (self.places.mixed, self.places.convolved) else {
            unreachable!("sized by this layer");
        };
        self.project("conv in", c.channels, mixed);
        let kernel = self.vector("conv kernel", c.channels * c.taps);
        let bias = self.optional(c.bias, "conv bias", c.channels);
        let p = params::ShortConv {
            layer,
            n: c.channels,
            taps: c.taps,
            act: c.act,
            x_stride: mixed.stride,
            y_stride: convolved.stride,
        };
        let buffers = [mixed.at, convolved.at, cache];
        self.push(Op::ShortConv, &[kernel, bias], &buffers, p.words());
        self.add("conv out", c.channels, convolved);
    }

    fn encode_conv(&mut self, c: &EncodeConv) {
        let (Some(mixed), Some(convolved)) = (self.places.mixed, self.places.convolved) else {
            unreachable!("sized by this layer");
        };
        self.project("conv in", c.channels, mixed);
        let kernel = self.vector("conv kernel", c.channels * c.taps);
        let bias = self.optional(c.bias, "conv bias", c.channels);
        let p = params::EncodeConv {
            n: c.channels,
            taps: c.taps,
            before: c.before,
            x_stride: mixed.stride,
            y_stride: convolved.stride,
        };
        let buffers = [mixed.at, convolved.at];
        self.push(Op::EncodeConv, &[kernel, bias], &buffers, p.words());
        self.add("conv out", c.channels, convolved);
    }

    /// The delta rule, a norm of each head, and a gate.
    fn delta(&mut self, d: &Delta, cache: BufferRef, layer: u32) {
        let places = self.places;
        let (Some(mixed), Some(ruled), Some(rates), Some(opened)) =
            (places.mixed, places.convolved, places.rates, places.opened)
        else {
            unreachable!("sized by this layer");
        };
        self.project("delta in", d.width(), mixed);
        self.project("delta rates", d.rates(), rates);
        let gates = d.values() / d.shared;
        self.project("delta gate", gates, opened);
        // Decays are negative.
        let decays = match d.by_channel && d.mamba {
            true => d.times() * d.key_dim,
            false => d.heads,
        };
        let values: Vec<f32> = (0..decays).map(|i| -0.1 - 0.2 * (i % 5) as f32).collect();
        let name = format!("{}delta decay", self.name);
        let shape = (1, decays);
        let decay = self
            .b
            .weight_of(&name, Format::F32, shape, Usage::Vector, 0.0, &values);
        let dt_bias = self.vector("delta dt bias", d.times());
        let p = params::GatedDelta {
            layer,
            key_heads: d.key_heads,
            heads: d.heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            tiled: d.tiled,
            eps: 1e-6,
            x_stride: mixed.stride,
            gates_stride: rates.stride,
            y_stride: ruled.stride,
            by_channel: d.by_channel.into(),
        };
        let buffers = [mixed.at, rates.at, ruled.at, cache];
        if d.mamba {
            let skip = self.vector("mamba skip", d.times());
            let p = params::Mamba2 {
                layer,
                groups: d.key_heads,
                heads: d.heads,
                key_dim: d.key_dim,
                value_dim: d.value_dim,
                x_stride: mixed.stride,
                dt_stride: rates.stride,
                y_stride: ruled.stride,
                by_channel: d.by_channel.into(),
            };
            let weights = [decay, dt_bias, skip];
            self.push(Op::Mamba2, &weights, &buffers, p.words());
        } else {
            self.push(Op::GatedDelta, &[decay, dt_bias], &buffers, p.words());
        }
        let norm = self.vector("delta norm", d.value_dim);
        let p = params::Norm {
            dim: d.value_dim,
            groups: d.heads,
            eps: EPS,
            x_stride: ruled.stride,
            y_stride: ruled.stride,
        };
        self.push(Op::Norm, &[norm], &[ruled.at, ruled.at], p.words());
        let p = params::Gate {
            n: d.values(),
            gates,
            act: d.act,
            x_stride: opened.stride,
            y_stride: ruled.stride,
        };
        self.push(Op::Gate, &[], &[opened.at, ruled.at], p.words());
        self.add("delta out", d.values(), ruled);
    }

    fn experts(&mut self, e: &Experts) {
        let places = self.places;
        let (Some(normed), Some(router), Some(choice), Some(gated)) =
            (places.normed, places.router, places.choice, places.gated)
        else {
            unreachable!("sized by this layer");
        };
        let (x, dim, vocab) = (places.x, self.m.dim, self.m.vocab);
        let norm = if e.scales {
            NO_WEIGHT
        } else {
            self.vector("experts norm", dim)
        };
        let p = params::Norm {
            dim,
            groups: 1,
            eps: EPS,
            x_stride: x.stride,
            y_stride: normed.stride,
        };
        self.push(Op::Norm, &[norm], &[x.at, normed.at], p.words());
        let mut numbers = Numbers(self.m.seed ^ 3);
        let logits: Vec<f32> = (0..vocab).flat_map(|_| e.logits(&mut numbers)).collect();
        let (name, usage) = (format!("{}router", self.name), Usage::Lookup);
        let experts = e.experts;
        let table = self
            .b
            .weight_of(&name, Format::F32, (vocab, experts), usage, 0.0, &logits);
        let p = params::Embed {
            n: vocab,
            k: experts,
            scale: 1.0,
            x_stride: router.stride,
        };
        self.push(Op::Embed, &[table], &[places.tokens, router.at], p.words());
        let p = params::Route {
            experts,
            used: e.used,
            renormalise: e.renormalise,
            scale: 1.25,
            x_stride: router.stride,
            y_stride: choice.stride,
            scoring: e.scoring,
            groups: e.groups.0,
            used_groups: e.groups.1,
            group_top: e.groups.2,
            margin: 0.3,
        };
        let bias = self.optional(e.choice_bias, "choice bias", experts);
        let scales = self.optional(e.scales, "experts scales", experts);
        let buffers = [router.at, choice.at];
        self.push(Op::Route, &[bias, scales], &buffers, p.words());
        let p = params::ExpertsActMul {
            n: e.hidden,
            k: dim,
            experts,
            used: e.used,
            act: e.act,
            x_stride: normed.stride,
            choice_stride: choice.stride,
            y_stride: gated.stride,
        };
        let all = p.matrices() * e.hidden * experts;
        let matrix = self.weight("experts gate and up", all, dim);
        let bias = self.expert_bias(e, "gate and up", all, if e.act == 3 { 40.0 } else { 1.0 });
        let buffers = [normed.at, choice.at, gated.at];
        self.push(Op::ExpertsActMul, &[matrix, bias], &buffers, p.words());
        let matrix = self.weight("experts down", dim * experts, e.hidden);
        let bias = self.expert_bias(e, "down", dim * experts, 1.0);
        let p = params::ExpertsAdd {
            n: dim,
            k: e.hidden,
            experts,
            used: e.used,
            x_stride: gated.stride,
            choice_stride: choice.stride,
            y_stride: x.stride,
        };
        let buffers = [gated.at, choice.at, x.at];
        self.push(Op::ExpertsAdd, &[matrix, bias], &buffers, p.words());
    }

    /// A bias for all experts. With `reach` 40 some values go beyond the bounds of the clamped activation.
    fn expert_bias(&mut self, e: &Experts, what: &str, k: u32, reach: f32) -> WeightId {
        if !e.bias {
            return NO_WEIGHT;
        }
        let mut numbers = Numbers(u64::from(k));
        let values: Vec<f32> = (0..k).map(|_| 0.2 * reach * numbers.float()).collect();
        let name = format!("{}experts {what} bias", self.name);
        self.b
            .weight_of(&name, Format::F32, (1, k), Usage::Vector, 0.0, &values)
    }
}
