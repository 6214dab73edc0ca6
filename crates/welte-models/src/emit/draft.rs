//! The draft pass, and the hidden states that it reads.

use super::Emitter;
use crate::weights::{DraftWeights, Layer};
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
    /// Keeps the input of a layer for an EAGLE-3 head.
    pub(super) fn capture(&mut self, kind: PassKind, layer: u32) {
        let draft = self.weights.draft.as_deref();
        let eagle = draft.and_then(|draft| draft.eagle.as_ref());
        let (Some(captured), Some(eagle)) = (self.places.captured, eagle) else {
            return;
        };
        if kind == PassKind::Embed {
            return;
        }
        let (dim, count) = (self.spec.dim, eagle.taps.len() as u32);
        for (nth, _) in (0..).zip(&eagle.taps).filter(|(_, tap)| **tap == layer) {
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

    /// Leaves hidden states of all rows for the draft pass: the normed ones, or those that an EAGLE-3 head makes of its taps.
    pub(super) fn tap(&mut self) {
        let Some(taps) = self.places.taps else {
            return;
        };
        let draft = self.weights.draft.as_deref();
        let eagle = draft.and_then(|draft| Some((draft.join, draft.eagle.as_ref()?)));
        let (Some((join, eagle)), Some(captured)) = (eagle, self.places.captured) else {
            if let Some(norm) = self.weights.final_norm {
                self.norm("tap", norm, self.set.x, taps);
            }
            return;
        };
        let k = eagle.taps.len() as u32 * self.spec.dim;
        if let Some(norm) = eagle.tap_norm {
            self.out
                .norm("tap norm", (norm, true), (k, eagle.eps), [captured; 2]);
        }
        let matmul = p::Matmul {
            n: eagle.dim,
            k,
            x_stride: k,
            y_stride: eagle.dim,
        };
        let buffers = [captured, taps];
        self.out
            .push("join", Op::Matmul, &[join], &buffers, matmul.words());
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
            n: eagle.map_or(spec.vocab, |eagle| eagle.vocab),
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
        let select = p::SelectRows {
            n: dim,
            x_stride: dim,
            y_stride: dim,
        };
        let buffers = [set.x, places.chosen];
        self.out
            .push("chosen rows", Op::SelectRows, &[], &buffers, select.words());
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
        let (mut width, mut result) = self.head(places.chosen);
        if let Some((map, vocab)) = eagle.and_then(|eagle| Some((eagle.map?, eagle.vocab))) {
            let spread = p::Spread {
                n: vocab,
                k: width,
                x_stride: width,
                y_stride: vocab,
            };
            let buffers = [result, places.logits];
            self.out
                .push("all tokens", Op::Spread, &[map], &buffers, spread.words());
            (width, result) = (vocab, places.logits);
        }
        self.out
            .pass(PassKind::Draft, (rows, outputs), (width, result))
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
