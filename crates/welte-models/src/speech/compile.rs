//! The programs of a model of speech.

use super::parts::{CrossAttention, Emitter, FeedForward, OwnAttention, Taker, WHISPER, bytes};
use super::tower::{End, Front, Tower};
use super::{PAGE, SpeechLayers, SpeechSpec};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at};
use crate::weights::{Collector, NormWeights};
use welte_formats::checkpoint::Checkpoint;
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Class, Format, ModelPart, NO_BUFFER, NO_WEIGHT, Op, Pass,
    PassKind, Program, Usage, WeightId, cost, params as p,
};

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

/// The encoder: a row is two frames, which yields a state.
fn encoder(spec: &SpeechSpec, checkpoint: &dyn Checkpoint) -> Result<Program, Error> {
    let tower = Tower {
        prefix: "model.encoder",
        dim: spec.dim,
        layers: spec.encoder,
        rows: spec.positions,
        front: Front::Frames {
            mels: spec.mels,
            places: Some(spec.positions),
            ends: false,
        },
        key_bias: false,
        windowed: false,
        names: &WHISPER,
        rotation: None,
        last_norm: "layer_norm",
        end: End::STATES,
    };
    tower.compile(checkpoint)
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
        key_bias: false,
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
            own: taker.own_attention(&label, &name, &WHISPER)?,
            cross: taker.cross_attention(&label, &name)?,
            feed_forward: taker.feed_forward(&label, &name, ffn, &WHISPER)?,
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
        block: None,
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
            self.e.out.choose_rows(dim, x, places.chosen);
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
            chunked: 0,
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
