//! The draft pass, and the hidden states that it reads.

use super::Emitter;
use crate::weights::{DraftWeights, Layer, Weights};
use crate::{ModelSpec, NormKind};
use welte_table::{BufferRef, ModelPart, NO_WEIGHT, Op, Pass, PassKind, params as p};

/// The buffers of a draft pass beside its set.
#[derive(Clone, Copy)]
pub(crate) struct DraftPlaces {
    /// A normed embedding, then a normed hidden state.
    pub(crate) joined: BufferRef,
    /// The hidden states of output rows.
    pub(crate) chosen: BufferRef,
    /// The logits of all tokens.
    pub(crate) logits: BufferRef,
}

impl Emitter<'_> {
    /// Keeps the input of a layer for a head that reads it.
    pub(super) fn capture(&mut self, kind: PassKind, layer: u32) {
        let draft = self.weights.draft.as_deref();
        let taps = draft.and_then(|draft| draft.taps.as_ref());
        let (Some(captured), Some(taps)) = (self.places.captured, taps) else {
            return;
        };
        if kind == PassKind::Embed {
            return;
        }
        let (dim, count) = (self.spec.dim, taps.layers.len() as u32);
        for (nth, _) in (0..).zip(&taps.layers).filter(|(_, tap)| **tap == layer) {
            let place = super::at(captured, nth * dim);
            self.copy_rows("tap", dim, (self.set.x, dim), (place, count * dim));
        }
    }

    /// y = x, of n floats of each row, so far apart.
    fn copy_rows(
        &mut self,
        what: &str,
        n: u32,
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
    ) {
        let params = p::Multiply {
            n,
            x_stride,
            y_stride,
        };
        self.out
            .push(what, Op::Multiply, &[NO_WEIGHT], &[x, y], params.words());
    }

    /// Leaves hidden states of all rows for the draft pass: the normed ones, or those that a head makes of its taps. A drafter of blocks
    /// gets keys and values instead.
    pub(super) fn tap(&mut self) {
        let Some(place) = self.places.taps else {
            return;
        };
        let draft = self.weights.draft.as_deref();
        let joined = draft.and_then(|draft| Some((draft, draft.taps.as_ref()?)));
        let (Some((draft, taps)), Some(captured)) = (joined, self.places.captured) else {
            if let Some(norm) = self.weights.final_norm {
                self.norm("tap", norm, self.set.x, place);
            }
            return;
        };
        let k = taps.layers.len() as u32 * self.spec.dim;
        if let Some(norm) = taps.norm {
            self.out
                .norm("tap norm", (norm, true), (k, taps.eps), [captured; 2]);
        }
        let matmul = p::Matmul {
            n: taps.dim,
            k,
            x_stride: k,
            y_stride: taps.dim,
        };
        let buffers = [captured, place];
        let join = [draft.join];
        self.out
            .push("join", Op::Matmul, &join, &buffers, matmul.words());
        if let Some(block) = &draft.block {
            let size = (taps.dim, taps.eps);
            self.out
                .norm("tap norm", (block.hidden_norm, true), size, [place; 2]);
            self.store(&draft.model, &block.spec, place);
        }
    }

    /// Stores what the layers of a drafter of blocks make of hidden states: keys and values at the positions of the rows.
    fn store(&mut self, weights: &Weights, spec: &ModelSpec, taps: BufferRef) {
        let Some((stored, caches)) = self.places.stored else {
            return;
        };
        let (kv_heads, head_dim, dim) = (spec.kv_heads, spec.head_dim, spec.dim);
        let (q, kv) = (spec.heads * head_dim, kv_heads * head_dim);
        let stride = 2 * kv;
        for (layer, cache) in weights.layers.iter().zip(caches) {
            let pieces = layer.qkv.iter().filter(|piece| piece.at >= q);
            for piece in pieces {
                let params = p::Matmul {
                    n: piece.n,
                    k: dim,
                    x_stride: dim,
                    y_stride: stride,
                };
                let buffers = [taps, super::at(stored, piece.at - q)];
                let matrix = [piece.weight];
                self.out
                    .push("kv", Op::Matmul, &matrix, &buffers, params.words());
            }
            for piece in layer.qkv_bias.iter().filter(|piece| piece.at >= q) {
                let params = p::Bias {
                    n: piece.n,
                    y_stride: stride,
                };
                let y = [super::at(stored, piece.at - q)];
                self.out
                    .push("kv bias", Op::Bias, &[piece.weight], &y, params.words());
            }
            if let Some(norm) = layer.k_norm {
                let params = p::Norm {
                    dim: head_dim,
                    groups: kv_heads,
                    eps: spec.eps,
                    x_stride: stride,
                    y_stride: stride,
                };
                self.out
                    .push("key norm", Op::Norm, &[norm], &[stored; 2], params.words());
            }
            let constants = weights.rope_constants;
            let params = p::Rope {
                heads: kv_heads,
                head_dim,
                rot: spec.rope.rot,
                interleaved: spec.rope.interleaved.into(),
                magnitude: constants.magnitude,
                y_stride: stride,
                sections: spec.rope.sections_word(),
            };
            let freqs = [constants.freqs];
            self.out
                .push("rope", Op::Rope, &freqs, &[stored], params.words());
            let params = p::KvAppend {
                layer: cache.layer,
                kv_heads,
                head_dim,
                k_stride: stride,
                v_stride: stride,
            };
            let buffers = [stored, super::at(stored, kv), cache.buffer];
            self.out
                .push("append", Op::KvAppend, &[], &buffers, params.words());
        }
    }

    /// The logits of chosen rows of blocks, which attend to each other and to what was stored. The emitter is that of the drafter alone.
    pub(crate) fn block_pass(
        mut self,
        weights: &DraftWeights,
        model: &ModelSpec,
        places: DraftPlaces,
        (rows, outputs): (u32, u32),
    ) -> Pass {
        let (set, dim) = (self.set, self.spec.dim);
        let embed = p::Embed {
            n: weights.vocab,
            k: dim,
            scale: model.embedding_scale,
            x_stride: dim,
        };
        let table = [weights.model.embed];
        let buffers = [self.places.tokens, set.x];
        self.out
            .push("embedding", Op::Embed, &table, &buffers, embed.words());
        for (index, layer) in weights.model.layers.iter().enumerate() {
            self.out.layer = Some(index as u32);
            self.layer(index, layer);
        }
        self.out.layer = None;
        self.out.part = ModelPart::Head;
        self.out.choose_rows(dim, set.x, places.chosen);
        self.guesses(weights, places, (rows, outputs))
    }

    /// The end of a draft pass: the logits of all tokens of the model.
    fn guesses(
        mut self,
        weights: &DraftWeights,
        places: DraftPlaces,
        (rows, outputs): (u32, u32),
    ) -> Pass {
        let (mut width, mut result) = self.head(places.chosen);
        if let Some(map) = weights.map {
            let spread = p::Spread {
                n: weights.vocab,
                k: width,
                x_stride: width,
                y_stride: weights.vocab,
            };
            let buffers = [result, places.logits];
            self.out
                .push("all tokens", Op::Spread, &[map], &buffers, spread.words());
            (width, result) = (weights.vocab, places.logits);
        }
        self.out
            .pass(PassKind::Draft, (rows, outputs), (width, result))
    }

    /// `x = layer(join(norm(embedding), norm(tap)))` of all rows, then the logits of the chosen ones. Their normed hidden states
    /// take the places of the taps. The emitter is that of the draft layer alone.
    pub(crate) fn draft_pass(
        mut self,
        weights: &DraftWeights,
        model: &ModelSpec,
        places: DraftPlaces,
        (rows, outputs): (u32, u32),
    ) -> Pass {
        let (set, spec) = (self.set, self.spec);
        let (dim, taps) = (spec.dim, self.places.taps.unwrap_or(BufferRef::NONE));
        let eagle = weights.eagle.as_ref();
        // The width of an embedding and of a hidden state.
        let wide = if weights.up.is_some() { model.dim } else { dim };
        let [first, second] = [0, wide].map(|at| super::at(places.joined, at));
        let (embedded, stride) = match weights.norms {
            Some(_) => (set.norm, wide),
            None => (first, 2 * wide),
        };
        let embed = p::Embed {
            n: weights.vocab,
            k: wide,
            scale: model.embedding_scale / model.residual_scale,
            x_stride: stride,
        };
        let table = [weights.model.embed];
        let buffers = [self.places.tokens, embedded];
        self.out
            .push("embedding", Op::Embed, &table, &buffers, embed.words());
        let rms = spec.norm == NormKind::Rms;
        let (size, strides) = ((wide, spec.stream_eps()), [wide, 2 * wide]);
        if let Some([embedding, hidden]) = weights.norms {
            let halves = [
                ("embedding norm", embedding, embedded, first),
                ("hidden norm", hidden, taps, second),
            ];
            for (what, norm, x, y) in halves {
                self.out
                    .norm_strided(what, (norm, rms), size, [x, y], strides);
            }
        } else {
            self.copy_rows("hidden state", wide, (taps, wide), (second, 2 * wide));
        }
        if let Some(eagle) = eagle {
            match weights.norms {
                Some([_, norm]) if eagle.adds_to_norm => {
                    self.norm("hidden norm", norm, taps, set.x);
                }
                _ => self.copy_rows("hidden state", dim, (taps, dim), (set.x, dim)),
            }
        } else {
            let join = p::Matmul {
                n: dim,
                k: 2 * wide,
                x_stride: 2 * wide,
                y_stride: dim,
            };
            let (matrix, buffers) = ([weights.join], [places.joined, set.x]);
            self.out
                .push("join", Op::Matmul, &matrix, &buffers, join.words());
        }
        for (index, layer) in weights.model.layers.iter().enumerate() {
            match eagle {
                Some(_) => self.eagle_layer(layer, places.joined),
                None => self.layer(index, layer),
            }
            self.per_layer(index, layer);
        }
        self.out.part = ModelPart::Head;
        self.out.choose_rows(dim, set.x, places.chosen);
        // The head norms once more: a product that took this norm over would leave nothing at `taps`.
        match (eagle, weights.up, weights.model.final_norm) {
            (_, Some(up), Some(norm)) => {
                self.norm("tap norm", norm, places.chosen, set.norm);
                let matmul = p::Matmul {
                    n: wide,
                    k: dim,
                    x_stride: dim,
                    y_stride: wide,
                };
                let buffers = [set.norm, taps];
                self.out
                    .push("tap", Op::Matmul, &[up], &buffers, matmul.words());
            }
            (None, _, Some(norm)) => self.norm("tap", norm, places.chosen, taps),
            _ => self.copy_rows("tap", dim, (places.chosen, dim), (taps, dim)),
        }
        self.guesses(weights, places, (rows, outputs))
    }

    /// x += attention of the rows at `joined`, then the feed-forward part.
    fn eagle_layer(&mut self, layer: &Layer, joined: BufferRef) {
        let (spec, set) = (self.spec, self.set);
        let dim = spec.dim;
        self.out.part = ModelPart::Attention;
        for piece in &layer.qkv {
            let params = p::Matmul {
                n: piece.n,
                k: 2 * dim,
                x_stride: 2 * dim,
                y_stride: spec.attention_width(0),
            };
            let buffers = [joined, super::at(set.qkv, piece.at)];
            self.out
                .push("qkv", Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        self.cached_attention(0, layer);
        let q = spec.heads * spec.head_dim;
        self.add_to_stream("attention output", (layer.o, &[], None), set.attn, q);
        self.out.part = ModelPart::FeedForward;
        self.feed_forward(0, layer);
    }
}
