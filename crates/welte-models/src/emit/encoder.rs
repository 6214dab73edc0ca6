//! The parts of the forward pass that only encoders have.

use super::{Emitter, at};
use crate::encoder::TOKEN_WEIGHT_FLOATS;
use crate::spec::Encoder;
use crate::weights::{Layer, Step};
use crate::{LayerRope, LayerShape, Pooling};
use welte_table::{BufferRef, NO_WEIGHT, Op, params as p};

impl Emitter<'_> {
    pub(super) fn encoder(&self) -> Option<&Encoder> {
        self.spec.encoder.as_ref()
    }

    /// Adds positions and segments to the embeddings, and norms them.
    pub(super) fn embeddings(&mut self) {
        let (dim, x) = (self.spec.dim, self.set.x);
        let own = &self.weights.encoder;
        if let Some(positions) = own.positions {
            let table = self.encoder().and_then(|e| e.positions);
            let params = p::AddPosition {
                k: dim,
                period: self.places.context,
                offset: table.map_or(0, |table| table.first),
                x_stride: dim,
            };
            let weights = [positions, own.types.unwrap_or(NO_WEIGHT)];
            self.out
                .push("positions", Op::AddPosition, &weights, &[x], params.words());
        } else if let Some(types) = own.types {
            // All rows are of the first segment.
            let params = p::Bias {
                n: dim,
                y_stride: dim,
            };
            self.out
                .push("segment", Op::Bias, &[types], &[x], params.words());
        }
        if let Some(norm) = own.embedding_norm {
            self.norm("embedding norm", norm, x, x);
        }
    }

    /// Norms and rotates queries and keys, and lets each row see the whole text, or its window.
    pub(super) fn encode_attention(&mut self, index: usize, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let LayerShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = spec.shape(index);
        let stride = (heads + 2 * kv_heads) * head_dim;
        self.head_norms(index, layer, heads * head_dim, stride);
        self.values(index);
        let kind = spec.layer_ropes.get(index).copied();
        let rope = match (kind, &spec.local_rope) {
            (Some(LayerRope::None), _) => None,
            (Some(LayerRope::Local), Some(rope)) => Some((rope, self.weights.local_rope_constants)),
            _ => Some((&spec.rope, self.weights.rope_constants)),
        };
        if let Some((rope, constants)) = rope {
            let params = p::Rope {
                heads: heads + kv_heads,
                head_dim,
                rot: rope.rot,
                interleaved: rope.interleaved.into(),
                magnitude: constants.magnitude,
                y_stride: stride,
                sections: 0,
            };
            let freqs = [constants.freqs];
            self.out
                .push("rope", Op::Rope, &freqs, &[set.qkv], params.words());
        }
        let params = p::EncodeAttention {
            heads,
            kv_heads,
            head_dim,
            scale: spec.attention_scale,
            window: spec.windows.get(index).copied().unwrap_or(0),
            qkv_stride: stride,
            y_stride: heads * head_dim,
            by_axis: 0,
            unseen: 0,
            by_reach: 0,
            places: 0,
            softcap: 0.0,
        };
        self.out.push(
            "attention",
            Op::EncodeAttention,
            &[NO_WEIGHT, self.weights.encoder.slopes.unwrap_or(NO_WEIGHT)],
            &[set.qkv, set.attn],
            params.words(),
        );
    }

    /// The chosen rows, each behind the weight of its token: `weight . x + bias`. What is not above 0 weighs nothing.
    pub(super) fn weighed(&mut self, weight: &Step) -> (u32, BufferRef) {
        let (dim, x, chosen) = (self.spec.dim, self.set.x, self.places.chosen);
        let width = TOKEN_WEIGHT_FLOATS + dim;
        let states = at(chosen, TOKEN_WEIGHT_FLOATS);
        let pool = p::Pool {
            n: dim,
            kind: Pooling::Last.word(),
            normalise: 0,
            x_stride: dim,
            y_stride: width,
            group: 0,
        };
        self.out
            .push("chosen", Op::Pool, &[], &[x, states], pool.words());
        let params = p::Matmul {
            n: 1,
            k: dim,
            x_stride: width,
            y_stride: width,
        };
        let buffers = [states, chosen];
        let matrix = [weight.matrix];
        self.out
            .push(&weight.label, Op::Matmul, &matrix, &buffers, params.words());
        if let Some(bias) = weight.bias {
            let params = p::Bias {
                n: 1,
                y_stride: width,
            };
            let y = [chosen];
            self.out
                .push("token weight bias", Op::Bias, &[bias], &y, params.words());
        }
        (width, chosen)
    }

    /// The largest logit of each token over the rows of a text, as the head of a masked language model has them.
    pub(super) fn vocabulary(&mut self, inner: &Step, outer: &Step) -> (u32, BufferRef) {
        let (set, places) = (self.set, self.places);
        // Nothing is added to the stream any more.
        self.step(inner, set.x, set.sum);
        self.step(outer, set.sum, places.logits);
        let pool = p::Pool {
            n: outer.n,
            kind: Pooling::Vocabulary.word(),
            normalise: 0,
            x_stride: outer.n,
            y_stride: outer.n,
            group: 0,
        };
        let buffers = [places.logits, places.chosen];
        self.out
            .push("largest logits", Op::Pool, &[], &buffers, pool.words());
        (outer.n, places.chosen)
    }

    /// y = norm(act(W x + bias))
    fn step(&mut self, step: &Step, x: BufferRef, y: BufferRef) {
        let params = p::Matmul {
            n: step.n,
            k: step.k,
            x_stride: step.k,
            y_stride: step.n,
        };
        let matrix = [step.matrix];
        self.out
            .push(&step.label, Op::Matmul, &matrix, &[x, y], params.words());
        if let Some(bias) = step.bias {
            let params = p::Bias {
                n: step.n,
                y_stride: step.n,
            };
            let label = format!("{} bias", step.label);
            self.out
                .push(&label, Op::Bias, &[bias], &[y], params.words());
        }
        if let Some(act) = step.act {
            let params = p::Act {
                n: step.n,
                act: act.word(),
                a: 0.0,
                b: 0.0,
                c: 0.0,
                d: 0.0,
                y_stride: step.n,
            };
            let label = format!("{} activation", step.label);
            self.out.push(&label, Op::Act, &[], &[y], params.words());
        }
        if let Some(norm) = step.norm {
            self.norm(&format!("{} norm", step.label), norm, y, y);
        }
    }

    /// The matrices between the pooled state and the result.
    pub(super) fn dense_steps(&mut self, from: BufferRef) -> (u32, BufferRef) {
        let (mut width, mut x) = (self.spec.dim, from);
        let weights = self.weights;
        for (step, y) in weights.encoder.steps.iter().zip(self.places.results) {
            self.step(step, at(x, 0), *y);
            (width, x) = (step.n, *y);
        }
        (width, x)
    }
}
