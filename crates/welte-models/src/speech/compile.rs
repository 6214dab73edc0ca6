//! The programs of a model of speech.

use super::{PAGE, SpeechLayers, SpeechSpec};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at};
use crate::names::{bias, weight};
use crate::weights::{Collector, NormWeights};
use welte_formats::checkpoint::Checkpoint;
use welte_formats::quant;
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Class, Format, ModelPart, NO_BUFFER, NO_WEIGHT, Op, Pass,
    PassKind, Program, Source, Usage, WeightId, WeightSpec, cost, params as p,
};

/// Of all norms.
const EPS: f32 = 1e-5;
/// GELU by erf.
const GELU: u32 = 2;
/// A gate as it is.
const NO_ACT: u32 = 5;

/// The two programs of a model.
pub struct SpeechPrograms {
    /// One embed pass: a row is two frames of a window, which yields a state.
    pub encoder: Program,
    /// An embed pass whose rows are the states of a window and fill the slot's cache for cross attention, and the decode and
    /// prompt passes over tokens.
    pub decoder: Program,
}

/// Compiles a model for `slots` texts of `windows` windows at a time. Texts may share a window.
pub fn compile_speech(
    spec: &SpeechSpec,
    checkpoint: &dyn Checkpoint,
    slots: u32,
    windows: u32,
) -> Result<SpeechPrograms, Error> {
    Ok(SpeechPrograms {
        encoder: encoder(spec, checkpoint)?,
        decoder: decoder(spec, checkpoint, slots.max(1), windows.max(1))?,
    })
}

/// A matrix with its bias, which may cover the rows from one on.
struct Linear {
    weight: WeightId,
    n: u32,
    k: u32,
    /// A bias, its first value, and how many it has.
    biases: Vec<(WeightId, u32, u32)>,
}

/// Attention over the texts' own rows.
struct OwnAttention {
    norm: NormWeights,
    qkv: Linear,
    o: Linear,
}

struct FeedForward {
    norm: NormWeights,
    up: Linear,
    down: Linear,
}

struct CrossAttention {
    norm: NormWeights,
    q: Linear,
    kv: Linear,
    o: Linear,
}

struct Taker<'a> {
    collector: Collector<'a>,
    dim: u32,
}

impl Taker<'_> {
    fn norm(&mut self, label: &str, name: &str) -> Result<NormWeights, Error> {
        let dim = self.dim;
        Ok(NormWeights {
            weight: self
                .collector
                .vector(label, &[(weight(name, 0), dim)], 0.0)?,
            bias: Some(self.collector.vector(
                &format!("{label} bias"),
                &[(bias(name, 0), dim)],
                0.0,
            )?),
        })
    }

    /// Matrices below each other, each of the width. Those that have a bias say so.
    fn linear(
        &mut self,
        label: &str,
        parts: &[(String, u32, bool)],
        k: u32,
    ) -> Result<Linear, Error> {
        let named = parts.iter().map(|(name, n, _)| (weight(name, 0), *n));
        let named: Vec<_> = named.collect();
        let pieces = self.collector.joined(label, &named, k)?;
        let [piece] = pieces[..] else {
            let problem = "has another format than its neighbours, with which it is multiplied";
            return Err(self.collector.fault(&parts[0].0, problem.to_string()));
        };
        let mut biases = Vec::new();
        let mut first = 0;
        for (name, n, has_bias) in parts {
            if *has_bias {
                let label = format!("{label} bias from row {first}");
                let id = self.collector.vector(&label, &[(bias(name, 0), *n)], 0.0)?;
                biases.push((id, first, *n));
            }
            first += n;
        }
        Ok(Linear {
            weight: piece.weight,
            n: piece.n,
            k,
            biases,
        })
    }

    fn own_attention(&mut self, label: &str, layer: &str) -> Result<OwnAttention, Error> {
        let dim = self.dim;
        let of = |name: &str| format!("{layer}.self_attn.{name}");
        let parts = [
            (of("q_proj"), dim, true),
            (of("k_proj"), dim, false),
            (of("v_proj"), dim, true),
        ];
        let norm = format!("{layer}.self_attn_layer_norm");
        Ok(OwnAttention {
            norm: self.norm(&format!("{label} attention norm"), &norm)?,
            qkv: self.linear(&format!("{label} qkv"), &parts, dim)?,
            o: self.linear(
                &format!("{label} attention output"),
                &[(of("out_proj"), dim, true)],
                dim,
            )?,
        })
    }

    fn cross_attention(&mut self, label: &str, layer: &str) -> Result<CrossAttention, Error> {
        let dim = self.dim;
        let of = |name: &str| format!("{layer}.encoder_attn.{name}");
        let kv = [(of("k_proj"), dim, false), (of("v_proj"), dim, true)];
        let norm = format!("{layer}.encoder_attn_layer_norm");
        Ok(CrossAttention {
            norm: self.norm(&format!("{label} cross norm"), &norm)?,
            q: self.linear(
                &format!("{label} cross query"),
                &[(of("q_proj"), dim, true)],
                dim,
            )?,
            kv: self.linear(&format!("{label} cross kv"), &kv, dim)?,
            o: self.linear(
                &format!("{label} cross output"),
                &[(of("out_proj"), dim, true)],
                dim,
            )?,
        })
    }

    fn feed_forward(&mut self, label: &str, layer: &str, ffn: u32) -> Result<FeedForward, Error> {
        let (dim, of) = (self.dim, |name: &str| format!("{layer}.{name}"));
        Ok(FeedForward {
            norm: self.norm(
                &format!("{label} feed-forward norm"),
                &of("final_layer_norm"),
            )?,
            up: self.linear(&format!("{label} up"), &[(of("fc1"), ffn, true)], dim)?,
            down: self.linear(&format!("{label} down"), &[(of("fc2"), dim, true)], ffn)?,
        })
    }

    /// The values of a tensor, which must have as many.
    fn values(&mut self, name: &str, count: u64) -> Result<Vec<f32>, Error> {
        let found = self.collector.checkpoint.tensor(name).cloned();
        let info = found.ok_or_else(|| self.collector.fault(name, "is missing".into()))?;
        if info.n as u64 * info.k as u64 != count {
            let problem = format!(
                "has {} values, expected {count} from the metadata",
                info.n as u64 * info.k as u64
            );
            return Err(self.collector.fault(name, problem));
        }
        let row = info.format.bytes(info.k).ok_or_else(|| {
            let problem = format!("rows of {} are not whole blocks", info.k);
            self.collector.fault(name, problem)
        })?;
        let bytes = self.collector.checkpoint.rows(&info, 0, info.n)?;
        let mut values = vec![0.0; count as usize];
        let rows = values.chunks_exact_mut(info.k);
        for (bytes, values) in bytes.chunks_exact(row).zip(rows) {
            quant::decode(info.format, bytes, values);
        }
        Ok(values)
    }

    fn constant(&mut self, name: &str, (n, k): (u32, u32), values: Vec<f32>) -> WeightId {
        self.collector.push(WeightSpec {
            name: name.into(),
            format: Format::F32,
            n,
            k,
            usage: if n == 1 { Usage::Vector } else { Usage::Matrix },
            add: 0.0,
            source: Source::Constant(values),
        })
    }

    /// A convolution of three taps as a matrix over three neighbours: all channels of the first, then of the second, then of
    /// the third. The checkpoint has the taps of a channel side by side.
    fn convolution(&mut self, label: &str, name: &str, channels: u32) -> Result<Linear, Error> {
        let (dim, k) = (self.dim, 3 * channels);
        let count = u64::from(dim) * u64::from(k);
        let stored = self.values(&weight(name, 0), count)?;
        let mut values = Vec::with_capacity(stored.len());
        for row in stored.chunks_exact(k as usize) {
            for tap in 0..3 {
                values.extend(row.iter().skip(tap).step_by(3));
            }
        }
        let bias = [(bias(name, 0), dim)];
        Ok(Linear {
            weight: self.constant(label, (dim, k), values),
            n: dim,
            k,
            biases: vec![(
                self.collector
                    .vector(&format!("{label} bias"), &bias, 0.0)?,
                0,
                dim,
            )],
        })
    }

    /// Learned positions, as a vector of `rows` entries of which the first `known` are those of the checkpoint.
    fn positions(&mut self, name: &str, known: u32, rows: u32) -> Result<WeightId, Error> {
        let dim = self.dim;
        let mut values = self.values(&weight(name, 0), u64::from(known) * u64::from(dim))?;
        values.resize(rows as usize * dim as usize, 0.0);
        Ok(self.constant("positions", (1, rows * dim), values))
    }
}

/// Commands of both parts.
struct Emitter<'a> {
    dim: u32,
    out: Commands<'a>,
    x: BufferRef,
    norm: BufferRef,
    wide: BufferRef,
}

impl Emitter<'_> {
    fn norm(&mut self, what: &str, norm: NormWeights, x: BufferRef, y: BufferRef) {
        self.out.norm(what, (norm, false), (self.dim, EPS), [x, y]);
    }

    fn linear(
        &mut self,
        what: &str,
        linear: &Linear,
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
    ) {
        let params = p::Matmul {
            n: linear.n,
            k: linear.k,
            x_stride,
            y_stride,
        };
        self.out
            .push(what, Op::Matmul, &[linear.weight], &[x, y], params.words());
        let what = format!("{what} bias");
        for (weight, first, n) in &linear.biases {
            let params = p::Bias { n: *n, y_stride };
            self.out.push(
                &what,
                Op::Bias,
                &[*weight],
                &[at(y, *first)],
                params.words(),
            );
        }
    }

    fn gelu(&mut self, what: &str, y: BufferRef, n: u32) {
        let params = p::Act {
            n,
            act: GELU,
            a: 0.0,
            b: 0.0,
            c: 0.0,
            d: 0.0,
            y_stride: n,
        };
        self.out.push(what, Op::Act, &[], &[y], params.words());
    }

    /// x += y
    fn add(&mut self, what: &str, y: BufferRef) {
        let params = p::Add {
            n: self.dim,
            x_stride: self.dim,
            y_stride: self.dim,
        };
        self.out
            .push(what, Op::Add, &[], &[y, self.x], params.words());
    }

    /// x += down(gelu(up(norm(x))))
    fn feed_forward(&mut self, layer: &FeedForward) {
        self.out.part = ModelPart::FeedForward;
        let (dim, ffn) = (self.dim, layer.up.n);
        self.norm("feed-forward norm", layer.norm, self.x, self.norm);
        self.linear("up", &layer.up, (self.norm, dim), (self.wide, ffn));
        self.gelu("activation", self.wide, ffn);
        self.linear("down", &layer.down, (self.wide, ffn), (self.norm, dim));
        self.add("down sum", self.norm);
    }

    fn add_position(&mut self, positions: WeightId, count: u32) {
        let params = p::AddPosition {
            k: self.dim,
            period: count,
            offset: 0,
            x_stride: self.dim,
        };
        let weights = [positions, NO_WEIGHT];
        self.out.push(
            "positions",
            Op::AddPosition,
            &weights,
            &[self.x],
            params.words(),
        );
    }

    fn pool(&mut self, what: &str, x: BufferRef, y: BufferRef, group: u32) {
        let params = p::Pool {
            n: self.dim,
            kind: 0,
            normalise: 0,
            x_stride: self.dim,
            y_stride: self.dim,
            group,
        };
        self.out.push(what, Op::Pool, &[], &[x, y], params.words());
    }
}

fn bytes(rows: u32, width: u32) -> u64 {
    4 * u64::from(rows) * u64::from(width)
}

/// The encoder. A row computes three neighbours of the first convolution from its five frames, and from these one of the second,
/// which takes every other place. So a third of the first convolution is computed twice, and no op needs to know neighbours.
fn encoder(spec: &SpeechSpec, checkpoint: &dyn Checkpoint) -> Result<Program, Error> {
    let (dim, rows, read) = (spec.dim, spec.positions, spec.row_values());
    let SpeechLayers { heads, ffn, .. } = spec.encoder;
    let mut taker = Taker {
        collector: Collector::new(checkpoint),
        dim,
    };
    let nothing = taker.collector.push(WeightSpec {
        name: "nothing".into(),
        format: Format::F32,
        n: 1,
        k: read,
        usage: Usage::Lookup,
        add: 0.0,
        source: Source::Constant(vec![0.0; read as usize]),
    });
    let first = taker.convolution("first convolution", "model.encoder.conv1", spec.mels)?;
    let second = taker.convolution("second convolution", "model.encoder.conv2", dim)?;
    let positions = taker.positions("model.encoder.embed_positions", rows, rows)?;
    let mut layers = Vec::new();
    for index in 0..spec.encoder.count {
        let (label, name) = (
            format!("layer {index}"),
            format!("model.encoder.layers.{index}"),
        );
        layers.push((
            taker.own_attention(&label, &name)?,
            taker.feed_forward(&label, &name, ffn)?,
        ));
    }
    let last_norm = taker.norm("last norm", "model.encoder.layer_norm")?;
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = buffers.add("features", class, bytes(rows, read));
    let mut add = |name: &str, width: u32| buffers.add(name, class, bytes(rows, width));
    let frames = add("prompt.read", read);
    let qkv = add("prompt.qkv", 3 * dim);
    let result = add("prompt.result", dim);
    let mut e = Emitter {
        dim,
        x: add("prompt.x", dim),
        norm: add("prompt.norm", dim),
        wide: add("prompt.up", ffn),
        out: Commands::new(&taker.collector.list),
    };
    let embed = p::Embed {
        n: 1,
        k: read,
        scale: 1.0,
        x_stride: read,
    };
    e.out.push(
        "frames",
        Op::Embed,
        &[nothing],
        &[tokens, frames],
        embed.words(),
    );
    for tap in 0..3 {
        let x = (at(frames, tap * spec.mels), read);
        e.linear(
            "first convolution",
            &first,
            x,
            (at(qkv, tap * dim), 3 * dim),
        );
    }
    e.gelu("activation", qkv, 3 * dim);
    // The window's first row has nothing before it.
    let gate = p::Gate {
        n: dim,
        gates: 1,
        act: NO_ACT,
        x_stride: read,
        y_stride: 3 * dim,
    };
    let inside = at(frames, spec.inside());
    e.out.push(
        "nothing before the window",
        Op::Gate,
        &[],
        &[inside, qkv],
        gate.words(),
    );
    e.linear("second convolution", &second, (qkv, 3 * dim), (e.x, dim));
    e.gelu("activation", e.x, dim);
    e.add_position(positions, rows);
    for (index, (attention, feed_forward)) in layers.iter().enumerate() {
        e.out.layer = Some(index as u32);
        e.out.part = ModelPart::Attention;
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
            by_axis: 0,
            unseen: 0,
            by_reach: 0,
            places: 0,
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
        e.feed_forward(feed_forward);
    }
    e.out.layer = None;
    e.out.part = ModelPart::Head;
    e.norm("last norm", last_norm, e.x, e.x);
    e.pool("states", e.x, result, 1);
    let pass = e.out.pass(PassKind::Embed, (rows, rows), (dim, result));
    let mut program = Program {
        weights: taker.collector.list,
        buffers: buffers.into_list(),
        caches: Vec::new(),
        vocab: 1,
        context: rows,
        page: PAGE,
        slots: 1,
        tokens: tokens.buffer,
        features: features.buffer,
        adapters: None,
        passes: vec![pass],
    };
    cost::fill(&mut program);
    Ok(program)
}

struct DecoderLayer {
    own: OwnAttention,
    cross: CrossAttention,
    feed_forward: FeedForward,
}

struct DecoderWeights {
    embed: WeightId,
    positions: WeightId,
    layers: Vec<DecoderLayer>,
    last_norm: NormWeights,
}

/// What the decoder's passes share.
struct Places {
    tokens: BufferRef,
    own: BufferRef,
    cross: BufferRef,
    logits: BufferRef,
    chosen: BufferRef,
    /// The most positions of any kind.
    context: u32,
}

/// The buffers of decode rows, or of the other passes' rows.
struct Set {
    x: BufferRef,
    norm: BufferRef,
    qkv: BufferRef,
    wide: BufferRef,
}

fn decoder(
    spec: &SpeechSpec,
    checkpoint: &dyn Checkpoint,
    slots: u32,
    windows: u32,
) -> Result<Program, Error> {
    let dim = spec.dim;
    let SpeechLayers { count, heads, ffn } = spec.decoder;
    let context = spec.tokens.max(spec.positions);
    let mut taker = Taker {
        collector: Collector::new(checkpoint),
        dim,
    };
    let embed = taker.collector.matrix(
        "embedding",
        Usage::Both,
        "model.decoder.embed_tokens.weight",
        spec.vocab,
        dim,
    )?;
    let positions = taker.positions("model.decoder.embed_positions", spec.tokens, context)?;
    let mut layers = Vec::new();
    for index in 0..count {
        let (label, name) = (
            format!("layer {index}"),
            format!("model.decoder.layers.{index}"),
        );
        layers.push(DecoderLayer {
            own: taker.own_attention(&label, &name)?,
            cross: taker.cross_attention(&label, &name)?,
            feed_forward: taker.feed_forward(&label, &name, ffn)?,
        });
    }
    let weights = DecoderWeights {
        embed,
        positions,
        layers,
        last_norm: taker.norm("last norm", "model.decoder.layer_norm")?,
    };
    let mut buffers = Buffers::default();
    // A prompt yields the logits after its mark of the beginning, too.
    let outputs = slots.max(2);
    let (prompt_rows, state_rows) = (spec.tokens, spec.positions);
    let other_rows = prompt_rows.max(state_rows);
    let tokens = buffers.add(
        "tokens",
        Class::Tables,
        4 * u64::from(other_rows.max(slots)),
    );
    let features = buffers.add("features", Class::ScratchPrompt, bytes(state_rows, dim));
    let kind = |layers| CacheKind::Attention {
        format: Format::F16,
        layers,
        kv_heads: heads,
        head_dim: dim / heads,
        window: 0,
    };
    let mut caches = Vec::new();
    let mut cache = |name: &str, pages: u32| {
        let mut spec = CacheSpec {
            name: name.into(),
            buffer: NO_BUFFER,
            pages,
            kind: kind(count),
        };
        let size = spec.bytes(PAGE).unwrap_or(u64::MAX);
        let place = buffers.add(name, Class::Cache, size);
        spec.buffer = place.buffer;
        caches.push(spec);
        place
    };
    let own = cache("kv", slots * spec.tokens.div_ceil(PAGE));
    let cross = cache("cross kv", windows * spec.window_pages());
    let mut set = |name: &str, class, rows| {
        let mut add =
            |what: &str, width| buffers.add(&format!("{name}.{what}"), class, bytes(rows, width));
        Set {
            x: add("x", dim),
            norm: add("norm", dim),
            qkv: add("qkv", 3 * dim),
            wide: add("up", ffn),
        }
    };
    let of_decode = set("decode", Class::ScratchDecode, slots);
    let of_others = set("prompt", Class::ScratchPrompt, other_rows);
    let places = Places {
        tokens,
        own,
        cross,
        logits: buffers.add("logits", Class::ScratchDecode, bytes(outputs, spec.vocab)),
        chosen: buffers.add("prompt.chosen", Class::ScratchPrompt, bytes(outputs, dim)),
        context,
    };
    let list = &taker.collector.list;
    let pass = |kind, set: &Set, rows, outputs| {
        let decoder = Decoder {
            spec,
            weights: &weights,
            places: &places,
            qkv: set.qkv,
            e: Emitter {
                dim,
                out: Commands::new(list),
                x: set.x,
                norm: set.norm,
                wide: set.wide,
            },
        };
        decoder.pass(kind, rows, outputs)
    };
    let passes = vec![
        pass(PassKind::Decode, &of_decode, slots, slots),
        pass(PassKind::Prompt, &of_others, prompt_rows, outputs),
        pass(PassKind::Embed, &of_others, state_rows, 1),
    ];
    let mut program = Program {
        weights: taker.collector.list,
        buffers: buffers.into_list(),
        caches,
        vocab: spec.vocab,
        context,
        page: PAGE,
        slots,
        tokens: tokens.buffer,
        features: features.buffer,
        adapters: None,
        passes,
    };
    cost::fill(&mut program);
    Ok(program)
}

struct Decoder<'a> {
    spec: &'a SpeechSpec,
    weights: &'a DecoderWeights,
    places: &'a Places,
    qkv: BufferRef,
    e: Emitter<'a>,
}

impl Decoder<'_> {
    fn pass(mut self, kind: PassKind, rows: u32, outputs: u32) -> Pass {
        let (spec, places, dim) = (self.spec, self.places, self.spec.dim);
        let scale = match (spec.scaled, kind) {
            (true, PassKind::Decode | PassKind::Prompt) => (dim as f32).sqrt(),
            _ => 1.0,
        };
        let embed = p::Embed {
            n: spec.vocab,
            k: dim,
            scale,
            x_stride: dim,
        };
        let buffers = [places.tokens, self.e.x];
        let table = [self.weights.embed];
        self.e
            .out
            .push("embedding", Op::Embed, &table, &buffers, embed.words());
        if kind == PassKind::Embed {
            return self.store_states(rows);
        }
        self.e.add_position(self.weights.positions, places.context);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.e.out.layer = Some(index as u32);
            self.e.out.part = ModelPart::Attention;
            self.own_attention(index as u32, &layer.own);
            self.cross_attention(index as u32, &layer.cross);
            self.e.feed_forward(&layer.feed_forward);
        }
        self.e.out.layer = None;
        self.e.out.part = ModelPart::Head;
        let mut x = self.e.x;
        if kind == PassKind::Prompt {
            let select = p::SelectRows {
                n: dim,
                x_stride: dim,
                y_stride: dim,
            };
            let buffers = [x, places.chosen];
            self.e
                .out
                .push("chosen rows", Op::SelectRows, &[], &buffers, select.words());
            x = places.chosen;
        }
        self.e.norm("last norm", self.weights.last_norm, x, x);
        let head = p::Matmul {
            n: spec.vocab,
            k: dim,
            x_stride: dim,
            y_stride: spec.vocab,
        };
        let buffers = [x, places.logits];
        self.e
            .out
            .push("head", Op::Matmul, &table, &buffers, head.words());
        if kind == PassKind::Decode {
            let sample = p::Sample {
                n: spec.vocab,
                logits_stride: spec.vocab,
            };
            let buffers = [places.logits, places.tokens];
            self.e
                .out
                .push("sample", Op::Sample, &[], &buffers, sample.words());
        }
        self.e
            .out
            .pass(kind, (rows, outputs), (spec.vocab, places.logits))
    }

    /// Keys and values of a window's states, for the cross attention of every layer.
    fn store_states(mut self, rows: u32) -> Pass {
        let (dim, heads, chosen) = (self.spec.dim, self.spec.decoder.heads, self.places.chosen);
        self.e.out.part = ModelPart::Attention;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.e.out.layer = Some(index as u32);
            let (x, kv) = ((self.e.x, dim), (self.qkv, 2 * dim));
            self.e.linear("cross kv", &layer.cross.kv, x, kv);
            let params = p::KvAppend {
                layer: index as u32,
                kv_heads: heads,
                head_dim: dim / heads,
                k_stride: 2 * dim,
                v_stride: 2 * dim,
            };
            let buffers = [self.qkv, at(self.qkv, dim), self.places.cross];
            self.e
                .out
                .push("cross append", Op::KvAppend, &[], &buffers, params.words());
        }
        self.e.out.layer = None;
        self.e.out.part = ModelPart::Head;
        // An embed pass yields something.
        self.e.pool("last state", self.e.x, chosen, 0);
        self.e.out.pass(PassKind::Embed, (rows, 1), (dim, chosen))
    }

    fn own_attention(&mut self, index: u32, layer: &OwnAttention) {
        let (dim, heads) = (self.spec.dim, self.spec.decoder.heads);
        let (e, qkv) = (&mut self.e, self.qkv);
        e.norm("attention norm", layer.norm, e.x, e.norm);
        e.linear("qkv", &layer.qkv, (e.norm, dim), (qkv, 3 * dim));
        let append = p::KvAppend {
            layer: index,
            kv_heads: heads,
            head_dim: dim / heads,
            k_stride: 3 * dim,
            v_stride: 3 * dim,
        };
        let buffers = [at(qkv, dim), at(qkv, 2 * dim), self.places.own];
        e.out
            .push("append", Op::KvAppend, &[], &buffers, append.words());
        let params = p::Attention {
            layer: index,
            heads,
            kv_heads: heads,
            head_dim: dim / heads,
            scale: 1.0 / ((dim / heads) as f32).sqrt(),
            window: 0,
            softcap: 0.0,
            q_stride: 3 * dim,
            y_stride: dim,
            causal: 0,
        };
        let buffers = [qkv, self.places.own, e.norm];
        e.out.push(
            "attention",
            Op::Attention,
            &[NO_WEIGHT],
            &buffers,
            params.words(),
        );
        e.linear("attention output", &layer.o, (e.norm, dim), (qkv, dim));
        e.add("attention sum", qkv);
    }

    fn cross_attention(&mut self, index: u32, layer: &CrossAttention) {
        let (dim, heads) = (self.spec.dim, self.spec.decoder.heads);
        let (e, q) = (&mut self.e, self.qkv);
        e.norm("cross norm", layer.norm, e.x, e.norm);
        e.linear("cross query", &layer.q, (e.norm, dim), (q, dim));
        let params = p::CrossAttention {
            layer: index,
            heads,
            kv_heads: heads,
            head_dim: dim / heads,
            scale: 1.0 / ((dim / heads) as f32).sqrt(),
            positions: self.spec.positions,
            q_stride: dim,
            y_stride: dim,
        };
        let buffers = [q, self.places.cross, e.norm];
        e.out.push(
            "cross attention",
            Op::CrossAttention,
            &[],
            &buffers,
            params.words(),
        );
        e.linear("cross output", &layer.o, (e.norm, dim), (q, dim));
        e.add("cross sum", q);
    }
}
