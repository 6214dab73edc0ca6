//! The forward pass of every architecture and every pass.

mod altup;
mod conv;
mod delta;
mod draft;
mod encoder;
mod experts;
mod gemma4;
mod hyper;
mod latent;
mod mamba;
mod values;

use crate::commands::{Commands, at};
use crate::weights::{Layer, NormWeights, OutputPart, RopeConstants, Weights};
use crate::{LayerKind, LayerRope, LayerShape, ModelSpec, NormKind, Pooling, QkNorm, Rope};
pub(crate) use draft::DraftPlaces;
pub(crate) use latent::Buffers as LatentBuffers;
use welte_table::{
    BufferRef, ModelPart, NO_WEIGHT, Op, Pass, PassKind, WeightId, WeightSpec, params as p,
};

/// Activations of `gate`: that of SiLU, and three beyond those of [`Act`](crate::Act).
const SILU: u32 = 0;
const SIGMOID: u32 = 4;
const NO_ACT: u32 = 5;
/// The activation of `experts_act_mul` that yields up as it is.
const UP_ALONE: u32 = 6;
const SOFTPLUS: u32 = 6;
/// The activation of `act` that limits its values.
const LIMITS: u32 = 7;

/// The input for which SiLU yields `y`, which is above 0.
fn silu_input(y: f32) -> f32 {
    let y = f64::from(y);
    let mut x = y + 1.0;
    for _ in 0..50 {
        let sigmoid = 1.0 / (1.0 + (-x).exp());
        x -= (x * sigmoid - y) / (sigmoid * (1.0 + x * (1.0 - sigmoid)));
    }
    x as f32
}

/// The buffers of one scratch set.
pub(crate) struct Set {
    pub(crate) x: BufferRef,
    pub(crate) qkv: BufferRef,
    pub(crate) attn: BufferRef,
    pub(crate) h: BufferRef,
    pub(crate) router: Option<BufferRef>,
    pub(crate) choice: Option<BufferRef>,
    /// A normed row.
    pub(crate) norm: BufferRef,
    /// What is added to the stream.
    pub(crate) sum: BufferRef,
    /// Gate and up before the activation.
    pub(crate) gate_up: Option<BufferRef>,
    /// Those of the chosen experts, if activations have limits.
    pub(crate) expert_gate_up: Option<BufferRef>,
    pub(crate) per_layer: Option<PerLayerSet>,
    pub(crate) streams: Option<StreamSet>,
    pub(crate) hyper: Option<HyperSet>,
    /// The gates of what attention over latents yields.
    pub(crate) gates: Option<BufferRef>,
    /// The output of a dense part beside experts.
    pub(crate) dense: Option<BufferRef>,
    /// The output of experts that is normed before it is added.
    pub(crate) mixed: Option<BufferRef>,
    /// The input of experts that it is scaled for.
    pub(crate) scaled: Option<BufferRef>,
    /// Input and output of experts that compute in a width of their own.
    pub(crate) latent_expert: Option<[BufferRef; 2]>,
    /// The score of the shared expert's gate.
    pub(crate) shared_gate: Option<BufferRef>,
    /// For attention over latents.
    pub(crate) latent: Option<LatentBuffers>,
    /// Values narrower than keys: as they are projected, and what attention makes of them.
    pub(crate) values: Option<[BufferRef; 2]>,
    /// What the convolution of a recurrent layer yields. In Mamba-1 keys, queries and time steps follow it in each row.
    pub(crate) convolved: Option<BufferRef>,
}

/// The buffers of several streams of hidden states.
#[derive(Clone, Copy)]
pub(crate) struct StreamSet {
    /// A row holds the streams one after the other.
    pub(crate) all: BufferRef,
    /// A value per stream.
    pub(crate) router: BufferRef,
    /// The path around attention, at its low rank.
    pub(crate) low: BufferRef,
    /// Its output.
    pub(crate) around: BufferRef,
    /// What all streams but the first add to the result.
    pub(crate) joined: BufferRef,
}

/// The buffers of streams beside each other.
#[derive(Clone, Copy)]
pub(crate) struct HyperSet {
    /// A row holds the streams one after the other.
    pub(crate) all: BufferRef,
    /// The same, on their way to a part and from it.
    pub(crate) mixed: BufferRef,
    /// Gates of what a part reads, then those of its output.
    pub(crate) gates: BufferRef,
}

/// The buffers of embeddings per layer.
#[derive(Clone, Copy)]
pub(crate) struct PerLayerSet {
    /// The inputs of all layers, one after the other.
    pub(crate) inputs: BufferRef,
    /// The part of them that depends on the stream.
    pub(crate) context: BufferRef,
    /// A layer's gate.
    pub(crate) gate: BufferRef,
}

/// Where a layer's keys and values are stored.
#[derive(Clone, Copy)]
pub(crate) struct LayerCache {
    /// The cache.
    pub(crate) buffer: BufferRef,
    /// The layer's number within the cache.
    pub(crate) layer: u32,
    /// The cache of a convolution's inputs, and that of a state.
    pub(crate) inputs: BufferRef,
    pub(crate) state: BufferRef,
    /// The cache of an indexer's keys, and the layer's number in it, if the layer chooses positions.
    pub(crate) index: Option<(BufferRef, u32)>,
}

/// The buffers that all passes share.
pub(crate) struct Places<'a> {
    pub(crate) tokens: BufferRef,
    /// One entry per layer.
    pub(crate) caches: &'a [LayerCache],
    pub(crate) logits: BufferRef,
    /// Hidden states of the output rows of a prompt or embed pass.
    pub(crate) chosen: BufferRef,
    /// Rows may read features.
    pub(crate) features: bool,
    /// The rows that an embed pass pools.
    pub(crate) pooling: Pooling,
    /// What an embed pass yields in place of hidden states.
    pub(crate) scores: Option<BufferRef>,
    /// The results of an encoder's matrices after pooling.
    pub(crate) results: &'a [BufferRef],
    /// The most positions per sequence.
    pub(crate) context: u32,
    /// Hidden states that the draft pass reads, in programs that have one.
    pub(crate) taps: Option<BufferRef>,
    /// What a head joins to make them.
    pub(crate) captured: Option<BufferRef>,
    /// Keys and values that a drafter of blocks makes of them, and where it stores those of its layers.
    pub(crate) stored: Option<(BufferRef, &'a [LayerCache])>,
}

/// Emits one pass.
pub(crate) struct Emitter<'a> {
    spec: &'a ModelSpec,
    weights: &'a Weights,
    set: &'a Set,
    places: &'a Places<'a>,
    out: Commands<'a>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        spec: &'a ModelSpec,
        weights: &'a Weights,
        list: &'a [WeightSpec],
        set: &'a Set,
        places: &'a Places<'a>,
    ) -> Self {
        Emitter {
            spec,
            weights,
            set,
            places,
            out: Commands::new(list),
        }
    }

    /// Embedding, layers and the output of the pass.
    pub(crate) fn pass(mut self, kind: PassKind, rows: u32, outputs: u32) -> Pass {
        self.layers(kind);
        if kind != PassKind::Embed {
            self.out.part = ModelPart::Draft;
            self.tap();
        }
        self.out.part = ModelPart::Head;
        let (width, result) = match kind {
            PassKind::Decode | PassKind::Draft => self.head(self.set.x),
            PassKind::Prompt => {
                let chosen = self.places.chosen;
                self.out.choose_rows(self.spec.dim, self.set.x, chosen);
                self.head(chosen)
            }
            PassKind::Embed => self.pooled(),
        };
        if kind == PassKind::Decode {
            let sample = p::Sample {
                n: width,
                logits_stride: width,
            };
            let buffers = [result, self.places.tokens];
            self.out
                .push("sample", Op::Sample, &[], &buffers, sample.words());
        }
        self.out.pass(kind, (rows, outputs), (width, result))
    }

    fn layers(&mut self, kind: PassKind) {
        let (spec, weights) = (self.spec, self.weights);
        let (dim, vocab) = (spec.dim, spec.vocab);
        // Generated rows are tokens.
        let deep = match self.places.features && kind != PassKind::Decode {
            true => spec.deep_features.as_slice(),
            false => &[],
        };
        let embed = p::Embed {
            n: vocab,
            k: dim,
            scale: spec.embedding_scale / spec.residual_scale,
            x_stride: dim,
        };
        self.out.push(
            "embedding",
            Op::Embed,
            &[weights.embed],
            &[self.places.tokens, self.set.x],
            embed.words(),
        );
        if spec.embedding_norm {
            let none = NormWeights {
                weight: NO_WEIGHT,
                bias: None,
            };
            self.norm("embedding norm", none, self.set.x, self.set.x);
        }
        if spec.encoder.is_some() {
            self.embeddings();
        }
        self.out.part = ModelPart::LayerInputs;
        self.per_layer_inputs();
        self.out.part = ModelPart::Streams;
        self.begin_streams();
        self.begin_hyper();
        for (i, layer) in weights.layers.iter().enumerate() {
            self.out.layer = Some(i as u32);
            self.out.part = ModelPart::Streams;
            self.predict_streams(layer);
            self.capture(kind, i as u32);
            self.layer(i, layer);
            self.out.part = ModelPart::Streams;
            self.correct_streams(layer);
            self.out.part = ModelPart::LayerInputs;
            self.per_layer(i, layer);
            let part = deep.iter().position(|layer| *layer == i as u32);
            if let Some(part) = part {
                let params = p::AddFeature {
                    n: dim,
                    part: 1 + part as u32,
                    x_stride: dim,
                };
                let x = [self.set.x];
                self.out
                    .push("deep feature", Op::AddFeature, &[], &x, params.words());
            }
        }
        self.out.layer = None;
        self.capture(kind, spec.layers);
        self.out.part = ModelPart::Streams;
        self.join_streams();
        self.gather(weights.hyper.as_ref());
    }

    /// What mixes positions, then the feed-forward part.
    fn layer(&mut self, i: usize, layer: &Layer) {
        let spec = self.spec;
        self.out.part = ModelPart::Streams;
        self.gather(layer.hyper.as_ref().map(|[part, _]| part));
        self.out.part = match spec.kind(i as u32) {
            LayerKind::Attention => ModelPart::Attention,
            _ => ModelPart::Recurrent,
        };
        let latent = layer.latent.as_ref().zip(spec.latent).zip(self.set.latent);
        if let (Some(weights), Some(delta)) = (&layer.delta, spec.delta) {
            self.delta(i, layer, weights, delta);
        } else if let (Some(weights), Some(mamba)) = (&layer.mamba, spec.mamba) {
            if mamba.beside {
                self.attention(i, layer);
                self.out.part = ModelPart::Recurrent;
            }
            self.mamba(i, layer, weights, mamba);
        } else if let Some(kernel) = layer.conv {
            self.conv(i, layer, kernel);
        } else if let Some(((weights, l), buffers)) = latent {
            let cache = self.places.caches[i];
            let turns = spec.layer_ropes.get(i) != Some(&LayerRope::None);
            self.latent_attention(layer, weights, (l, turns), cache, buffers);
        } else if spec.kind(i as u32) == LayerKind::Attention {
            self.attention(i, layer);
        }
        self.out.part = ModelPart::Streams;
        self.scatter();
        self.gather(layer.hyper.as_ref().map(|[_, part]| part));
        self.out.part = ModelPart::FeedForward;
        match (&layer.experts, spec.experts) {
            _ if !spec.has_feed_forward(i as u32) => {}
            (Some(weights), Some(experts)) => self.experts(i, layer, weights, experts),
            _ => self.feed_forward(i, layer),
        }
        self.out.part = ModelPart::Streams;
        self.scatter();
    }

    /// logits = head(norm(x)). Returns the width of a row and the buffer.
    fn head(&mut self, x: BufferRef) -> (u32, BufferRef) {
        let (spec, weights, logits) = (self.spec, self.weights, self.places.logits);
        let (dim, vocab) = (spec.dim, spec.vocab);
        let input = match (spec.norm, weights.final_norm) {
            (NormKind::Rms, norm) => {
                let none = NormWeights {
                    weight: NO_WEIGHT,
                    bias: None,
                };
                self.norm("head norm", norm.unwrap_or(none), x, self.set.norm);
                self.set.norm
            }
            (NormKind::Layer { .. } | NormKind::Plain, norm) => {
                if let Some(norm) = norm {
                    self.norm("final norm", norm, x, x);
                }
                x
            }
        };
        let head = p::Matmul {
            n: vocab,
            k: dim,
            x_stride: dim,
            y_stride: vocab,
        };
        let matrix = [weights.head];
        self.out
            .push("head", Op::Matmul, &matrix, &[input, logits], head.words());
        self.biases("head bias", &weights.head_bias, logits, vocab);
        if spec.logit_scale != 1.0 || spec.logit_softcap != 0.0 {
            let scale = p::Scale {
                n: vocab,
                scale: spec.logit_scale,
                cap: spec.logit_softcap,
                y_stride: vocab,
            };
            self.out
                .push("logit scale", Op::Scale, &[], &[logits], scale.words());
        }
        (vocab, logits)
    }

    /// The pooled hidden states of each chosen row's sequence, or its two scores.
    fn pooled(&mut self) -> (u32, BufferRef) {
        let (dim, x, chosen) = (self.spec.dim, self.set.x, self.places.chosen);
        if let Some(norm) = self.weights.final_norm {
            self.norm("final norm", norm, x, x);
        }
        if let Some(weight) = &self.weights.encoder.token_weight {
            return self.weighed(weight);
        }
        if let [inner, outer] = &self.weights.encoder.masked_head[..] {
            return self.vocabulary(inner, outer);
        }
        let pool = p::Pool {
            n: dim,
            kind: self.places.pooling.word(),
            normalise: 0,
            x_stride: dim,
            y_stride: dim,
            group: 0,
        };
        self.out
            .push("pooled", Op::Pool, &[], &[x, chosen], pool.words());
        let (Some(matrix), Some(scores)) = (self.weights.scores, self.places.scores) else {
            return self.dense_steps(chosen);
        };
        let matmul = p::Matmul {
            n: 2,
            k: dim,
            x_stride: dim,
            y_stride: 2,
        };
        let buffers = [chosen, scores];
        self.out
            .push("scores", Op::Matmul, &[matrix], &buffers, matmul.words());
        (2, scores)
    }

    /// x += output(attention(rope(qkv(norm(x)))))
    fn attention(&mut self, index: usize, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let LayerShape {
            heads, head_dim, ..
        } = spec.shape(index);
        let q = heads * head_dim;
        let stride = spec.attention_width(index);
        if layer.second_norm.is_some() {
            // Nothing else needs the buffer where sums are normed.
            let copy = p::Multiply {
                n: spec.dim,
                x_stride: spec.dim,
                y_stride: spec.dim,
            };
            let buffers = [set.x, set.norm];
            self.out.push(
                "layer input",
                Op::Multiply,
                &[NO_WEIGHT],
                &buffers,
                copy.words(),
            );
        }
        self.projections(
            "qkv",
            &layer.qkv,
            &layer.qkv_bias,
            (set.x, layer.attn_norm),
            set.qkv,
            stride,
        );
        self.narrow_values(index, layer);
        if let Some(m) = spec.multipliers {
            let kv = spec.shape(index).kv_heads * head_dim;
            let parts = [
                (0, q, m.attention),
                (q, kv, m.keys),
                (q + kv, kv, m.attention),
            ];
            self.multiply("attention in", set.qkv, stride, &parts);
        }
        self.around_attention(layer);
        match spec.encoder {
            Some(_) => self.encode_attention(index, layer),
            None => self.cached_attention(index, layer),
        }
        if let Some(m) = spec.multipliers {
            self.multiply("attention out", set.attn, q, &[(0, q, m.attention_out)]);
        }
        if let Some(norm) = layer.ffn_norm.filter(|_| spec.parallel) {
            self.norm("feed-forward norm", norm, set.x, set.norm);
        }
        let out = (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm);
        let (result, width) = self.narrow_result(index, layer).unwrap_or((set.attn, q));
        self.add_to_stream("attention output", out, result, width);
        if let Some(norm) = layer.second_norm {
            self.add("layer input sum", set.norm, set.x);
            self.norm("second attention output norm", norm, set.x, set.x);
        }
        self.add_around(layer);
    }

    /// Stores keys and values, and attends to those of the sequence.
    fn cached_attention(&mut self, index: usize, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let LayerShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = spec.shape(index);
        let q = heads * head_dim;
        let own = spec.kv_source(index) == index;
        let stride = spec.attention_width(index);
        let cache = self.places.caches[index];
        if own {
            self.values(index);
            self.rope_append(index, layer, cache);
        } else {
            self.rope_queries(index, layer)
        }
        let still = spec.layer_ropes.get(index) == Some(&LayerRope::None);
        if still || spec.position_scale.is_none_or(|s| !s.still) {
            self.position_scale(set.qkv, q, stride);
        }
        let window = spec.windows.get(index).copied().unwrap_or(0);
        let attention = p::Attention {
            layer: cache.layer,
            heads,
            kv_heads,
            head_dim,
            scale: spec.attention_scale,
            window,
            softcap: spec.attention_softcap,
            q_stride: stride,
            y_stride: q,
            causal: spec
                .causal_layers
                .get(index)
                .copied()
                .unwrap_or(false)
                .into(),
            chunked: u32::from(spec.chunks && window > 0),
        };
        self.out.push(
            "attention",
            Op::Attention,
            layer.sinks.as_slice(),
            &[set.qkv, cache.buffer, set.attn],
            attention.words(),
        );
        if let Some(gate) = spec.attention_gate {
            let gate = p::Gate {
                n: q,
                gates: spec.gates(index),
                act: if gate.softplus { SOFTPLUS } else { SIGMOID },
                x_stride: stride,
                y_stride: q,
            };
            let buffers = [at(set.qkv, q + 2 * kv_heads * head_dim), set.attn];
            self.out
                .push("attention gate", Op::Gate, &[], &buffers, gate.words());
        }
    }

    /// Queries grow with their position. Up to the original context the factor is 1.
    fn position_scale(&mut self, queries: BufferRef, n: u32, stride: u32) {
        let context = self.places.context;
        let scale = self.spec.position_scale;
        let Some(scale) = scale.filter(|s| context.saturating_add(s.ahead) > s.original) else {
            return;
        };
        let params = p::PositionScale {
            n,
            beta: scale.beta,
            original: scale.original,
            y_stride: stride,
            ahead: scale.ahead,
        };
        self.out.push(
            "query scale",
            Op::PositionScale,
            &[],
            &[queries],
            params.words(),
        );
    }

    /// Norms and rotates queries and keys, and stores keys and values.
    fn rope_append(&mut self, index: usize, layer: &Layer, cache: LayerCache) {
        let (spec, qkv) = (self.spec, self.set.qkv);
        let LayerShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = spec.shape(index);
        let stride = spec.attention_width(index);
        let (k, v) = (heads * head_dim, (heads + kv_heads) * head_dim);
        let kind = spec.layer_ropes.get(index);
        let kind = kind.copied().unwrap_or(LayerRope::Main);
        let turns = kind != LayerRope::None;
        let late = spec.qk_norm_late && turns;
        if !spec.qk_norm_late {
            self.head_norms(index, layer, k, stride);
        }
        if turns {
            let (rope, constants) = self.rope_of(kind);
            let params = p::Rope {
                heads: heads + kv_heads,
                head_dim,
                rot: rope.rot,
                interleaved: rope.interleaved.into(),
                magnitude: constants.magnitude,
                y_stride: stride,
                sections: rope.sections_word(),
            };
            let freqs = [constants.freqs];
            self.out
                .push("rope", Op::Rope, &freqs, &[qkv], params.words());
        }
        if late {
            self.head_norms(index, layer, k, stride);
        }
        let params = p::KvAppend {
            layer: cache.layer,
            kv_heads,
            head_dim,
            k_stride: stride,
            v_stride: stride,
        };
        let buffers = [at(qkv, k), at(qkv, v), cache.buffer];
        self.out
            .push("append", Op::KvAppend, &[], &buffers, params.words());
    }

    /// A layer's rope and its constants.
    fn rope_of(&self, kind: LayerRope) -> (&'a Rope, RopeConstants) {
        match (kind, &self.spec.local_rope) {
            (LayerRope::Local, Some(rope)) => (rope, self.weights.local_rope_constants),
            _ => (&self.spec.rope, self.weights.rope_constants),
        }
    }

    /// Norms queries and keys in place; keys begin at element `k` of a row.
    fn head_norms(&mut self, index: usize, layer: &Layer, k: u32, stride: u32) {
        let spec = self.spec;
        let LayerShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = spec.shape(index);
        let parts = [("query norm", 0, heads), ("key norm", k, kv_heads)];
        let norms = [
            (layer.q_norm, layer.q_norm_bias),
            (layer.k_norm, layer.k_norm_bias),
        ];
        for ((what, from, count), (norm, bias)) in parts.into_iter().zip(norms) {
            let norm = match norm {
                None if spec.qk_norm == QkNorm::Plain => NO_WEIGHT,
                None => continue,
                Some(norm) => norm,
            };
            let (dim, groups) = match spec.qk_norm {
                QkNorm::Row | QkNorm::LayerRow => (count * head_dim, 1),
                _ => (head_dim, count),
            };
            let params = p::Norm {
                dim,
                groups,
                eps: spec.eps,
                x_stride: stride,
                y_stride: stride,
            };
            let place = [at(self.set.qkv, from); 2];
            if let Some(bias) = bias {
                let params = p::LayerNorm {
                    dim,
                    groups,
                    eps: spec.eps,
                    x_stride: stride,
                    y_stride: stride,
                };
                self.out
                    .push(what, Op::LayerNorm, &[norm, bias], &place, params.words());
                continue;
            }
            let Some(ones) = layer.head_ones else {
                self.out
                    .push(what, Op::Norm, &[norm], &place, params.words());
                continue;
            };
            let params = p::LayerNorm {
                dim,
                groups,
                eps: spec.eps,
                x_stride: stride,
                y_stride: stride,
            };
            self.out.push(
                what,
                Op::LayerNorm,
                &[ones, NO_WEIGHT],
                &place,
                params.words(),
            );
            let factors = p::Multiply {
                n: count * head_dim,
                x_stride: stride,
                y_stride: stride,
            };
            let what = format!("{what}'s weight");
            self.out
                .push(&what, Op::Multiply, &[norm], &place, factors.words());
        }
    }

    /// y = norm(x), a norm of the stream's width; y may be x.
    fn norm(&mut self, what: &str, norm: NormWeights, x: BufferRef, y: BufferRef) {
        let size = (self.spec.dim, self.spec.stream_eps());
        let norm = (norm, self.spec.norm == NormKind::Rms);
        self.out.norm(what, norm, size, [x, y]);
    }

    /// y = norm(y), the norm after a part.
    fn post_norm(&mut self, what: &str, norm: NormWeights, y: BufferRef) {
        let spec = self.spec;
        let eps = spec.post_eps.unwrap_or(spec.stream_eps());
        let norm = (norm, spec.norm == NormKind::Rms);
        self.out.norm(what, norm, (spec.dim, eps), [y, y]);
    }

    /// y += x, both as wide as the stream.
    fn add(&mut self, what: &str, x: BufferRef, y: BufferRef) {
        let dim = self.spec.dim;
        let params = p::Add {
            n: dim,
            x_stride: dim,
            y_stride: dim,
        };
        self.out.push(what, Op::Add, &[], &[x, y], params.words());
    }

    /// x += W y, or x += norm(W y).
    fn add_to_stream(
        &mut self,
        what: &str,
        (weight, bias, norm): (WeightId, &[OutputPart], Option<NormWeights>),
        y: BufferRef,
        k: u32,
    ) {
        let (dim, x) = (self.spec.dim, self.set.x);
        let sums = self.encoder().is_some_and(|e| e.norms_sums);
        let normed = norm.filter(|_| !sums);
        let place = match normed {
            Some(_) => self.set.norm,
            None => self.set.sum,
        };
        let params = p::Matmul {
            n: dim,
            k,
            x_stride: k,
            y_stride: dim,
        };
        self.out
            .push(what, Op::Matmul, &[weight], &[y, place], params.words());
        let (bias_label, norm_label) = (format!("{what} bias"), format!("{what} norm"));
        if let Some(norm) = normed {
            self.biases(&bias_label, bias, place, dim);
            self.post_norm(&norm_label, norm, place);
        }
        self.add(&format!("{what} sum"), place, x);
        if normed.is_none() {
            self.biases(&bias_label, bias, x, dim);
        }
        if let Some(norm) = norm.filter(|_| sums) {
            self.norm(&norm_label, norm, x, x);
        }
    }

    /// x += down(act(gate(norm(x))) * up(norm(x))), or x += down(act(up(norm(x)))) without a gate.
    fn feed_forward(&mut self, index: usize, layer: &Layer) {
        self.gate_up(index, layer);
        self.apart();
        let ffn = self.spec.shape(index).ffn;
        if let Some(m) = self.spec.multipliers {
            self.multiply("down", self.set.h, ffn, &[(0, ffn, m.down)]);
        }
        if let Some(down) = layer.down {
            let down = (down, layer.down_bias.as_slice(), layer.post_ffn_norm);
            self.add_to_stream("down", down, self.set.h, ffn);
        }
    }

    /// h = act(gate(norm(x))) * up(norm(x)), or h = act(up(norm(x))) without a gate.
    fn gate_up(&mut self, index: usize, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (ffn, act) = (spec.shape(index).ffn, spec.act.word());
        // In a parallel block the norm is still in its buffer.
        let input = if spec.parallel {
            (set.norm, None)
        } else {
            (set.x, layer.ffn_norm)
        };
        let (pieces, bias) = (layer.gate_up.as_slice(), layer.gate_up_bias.as_slice());
        match set.gate_up {
            _ if !spec.gated => {
                self.projections("up", pieces, bias, input, set.h, ffn);
                let constants = spec.xielu.get(index).copied().unwrap_or_default();
                self.activation("activation", ffn, constants);
            }
            Some(gate_up) => {
                self.projections("gate and up", pieces, bias, input, gate_up, 2 * ffn);
                if let Some(m) = spec.multipliers {
                    self.multiply("gate", gate_up, 2 * ffn, &[(0, ffn, m.gate)]);
                }
                if let Some(deviations) = layer.cutoff {
                    let cutoff = p::Cutoff {
                        n: ffn,
                        deviations,
                        y_stride: 2 * ffn,
                    };
                    self.out
                        .push("cutoff", Op::Cutoff, &[], &[gate_up], cutoff.words());
                }
                self.limit(spec.limits(index).plain, gate_up, ffn, 2 * ffn);
                let act = p::ActMul {
                    n: ffn,
                    act,
                    x_stride: 2 * ffn,
                    y_stride: ffn,
                };
                self.out.push(
                    "activation",
                    Op::ActMul,
                    &[],
                    &[gate_up, set.h],
                    act.words(),
                );
            }
            None => {}
        }
    }

    /// Limits the gate in the first `n` values of a row, and up in the next.
    fn limit(&mut self, limit: Option<f32>, gate_up: BufferRef, n: u32, stride: u32) {
        let Some(limit) = limit else {
            return;
        };
        // SiLU grows where it is above 0, so its result is limited by its input.
        let most = match self.spec.limits_gate {
            true => limit,
            false => silu_input(limit),
        };
        let parts = [(0, f32::MIN, most), (n, -limit, limit)];
        for (first, a, b) in parts {
            let act = p::Act {
                n,
                act: LIMITS,
                a,
                b,
                c: 0.0,
                d: 0.0,
                y_stride: stride,
            };
            let place = [at(gate_up, first)];
            self.out.push("limits", Op::Act, &[], &place, act.words());
        }
    }

    /// Multiplies parts of rows: the first element, the number of elements, and the factor.
    fn multiply(&mut self, what: &str, y: BufferRef, stride: u32, parts: &[(u32, u32, f32)]) {
        for (first, n, scale) in parts.iter().filter(|(.., scale)| *scale != 1.0) {
            let scale = p::Scale {
                n: *n,
                scale: *scale,
                cap: 0.0,
                y_stride: stride,
            };
            let (what, place) = (format!("{what} multiplier"), [at(y, *first)]);
            self.out.push(&what, Op::Scale, &[], &place, scale.words());
        }
    }

    /// h = act(h)
    fn activation(&mut self, what: &str, n: u32, [a, b, c, d]: [f32; 4]) {
        let act = p::Act {
            n,
            act: self.spec.act.word(),
            a,
            b,
            c,
            d,
            y_stride: n,
        };
        self.out
            .push(what, Op::Act, &[], &[self.set.h], act.words());
    }

    /// y = W norm(x) + bias, for one matrix, or for several that fill one row of `y`. Without a norm: y = W x + bias.
    fn projections(
        &mut self,
        what: &str,
        pieces: &[OutputPart],
        bias: &[OutputPart],
        (x, norm): (BufferRef, Option<NormWeights>),
        y: BufferRef,
        stride: u32,
    ) {
        let dim = self.spec.dim;
        let input = match norm {
            Some(norm) => {
                self.norm(&format!("{what} norm"), norm, x, self.set.norm);
                self.set.norm
            }
            None => x,
        };
        for piece in pieces {
            let params = p::Matmul {
                n: piece.n,
                k: dim,
                x_stride: dim,
                y_stride: stride,
            };
            let buffers = [input, at(y, piece.at)];
            self.out
                .push(what, Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        self.biases(&format!("{what} bias"), bias, y, stride);
    }

    fn biases(&mut self, what: &str, pieces: &[OutputPart], y: BufferRef, stride: u32) {
        for piece in pieces {
            let params = p::Bias {
                n: piece.n,
                y_stride: stride,
            };
            self.out.push(
                what,
                Op::Bias,
                &[piece.weight],
                &[at(y, piece.at)],
                params.words(),
            );
        }
    }
}
