//! Attention over latent keys and values. The matrices that make keys and values of a latent are absorbed: queries are
//! compared with latents, and values are made of the sum of latents.

use super::{Emitter, LayerCache, SIGMOID, at};
use crate::weights::{IndexWeights, LatentWeights, Layer};
use crate::{Latent, ModelSpec};
use welte_table::{BufferRef, Op, WeightId, params as p};

/// The epsilon of the norms of latents.
const EPS: f32 = 1e-6;

/// The intermediates of one scratch set.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    /// Queries, later values, of all heads.
    pub(crate) heads: BufferRef,
    /// Rotated part and latent of every query.
    pub(crate) queries: BufferRef,
    /// The positions that an indexer chose.
    pub(crate) chosen: BufferRef,
}

impl Latent {
    /// Floats of a row of the projections of a layer's input.
    pub(crate) fn inputs(&self, spec: &ModelSpec) -> u32 {
        let index = spec.indexer.as_ref().map_or(0, |indexer| indexer.inputs());
        self.query_inputs(spec) + self.width() + index
    }

    /// Those of them that are queries, or their latent.
    fn query_inputs(&self, spec: &ModelSpec) -> u32 {
        self.query_rank.unwrap_or(spec.heads * self.query())
    }

    /// Floats of a row of the queries or values of all heads. Those of an indexer take their turn.
    pub(crate) fn heads_width(&self, spec: &ModelSpec) -> u32 {
        let own = spec.heads * self.query().max(self.value);
        let index = spec.indexer.as_ref();
        own.max(index.map_or(0, |indexer| indexer.heads * indexer.head_dim))
    }
}

impl Emitter<'_> {
    /// x += output(values(attention(queries, latents)))
    pub(super) fn latent_attention(
        &mut self,
        layer: &Layer,
        weights: &LatentWeights,
        (l, turns): (Latent, bool),
        cache: LayerCache,
        buffers: Buffers,
    ) {
        let (spec, set) = (self.spec, self.set);
        let (heads, width, stride) = (spec.heads, l.width(), l.inputs(spec));
        let before = l.query_inputs(spec);
        let input = (set.x, layer.attn_norm);
        let inputs = &weights.inputs;
        self.projections("queries and latent", inputs, &[], input, set.qkv, stride);
        self.latent_gates(layer, heads * l.value);
        self.apart();
        let (queries, query_stride) = match weights.queries {
            Some((norm, up)) => {
                let (n, k) = (heads * l.query(), before);
                let params = p::Norm {
                    dim: k,
                    groups: 1,
                    eps: EPS,
                    x_stride: stride,
                    y_stride: k,
                };
                let places = [set.qkv, set.norm];
                let what = "norm of the queries' latent";
                self.out
                    .push(what, Op::Norm, &[norm], &places, params.words());
                let params = p::Matmul {
                    n,
                    k,
                    x_stride: k,
                    y_stride: n,
                };
                let places = [set.norm, buffers.heads];
                self.out
                    .push("queries", Op::Matmul, &[up], &places, params.words());
                (buffers.heads, n)
            }
            None => (set.qkv, stride),
        };
        let key = at(set.qkv, before);
        let latent = at(key, l.rope);
        self.latent_norm("norm of the latent", weights.norm, latent, l.rank, stride);
        let params = p::HeadsMatmul {
            heads,
            n: l.rank,
            k: l.plain,
            tail: l.rope,
            x_head: l.query(),
            y_head: width,
            x_stride: query_stride,
            y_stride: heads * width,
        };
        let places = [queries, buffers.queries];
        let absorb = [weights.absorb];
        let what = "queries to latent";
        self.out
            .push(what, Op::HeadsMatmul, &absorb, &places, params.words());
        if turns {
            self.latent_rope("rope of queries", buffers.queries, heads, heads * width);
            self.latent_rope("rope of the key", key, 1, stride);
        }
        self.position_scale(buffers.queries, heads * width, heads * width);
        let params = p::KvAppend {
            layer: cache.layer,
            kv_heads: 1,
            head_dim: width,
            k_stride: stride,
            v_stride: stride,
        };
        let places = [key, key, cache.buffer];
        self.out
            .push("append", Op::KvAppend, &[], &places, params.words());
        if let Some(index) = &weights.index {
            self.choose_positions(index, l, cache, buffers);
        }
        if let Some(indexer) = &spec.indexer {
            let params = p::SparseAttention {
                layer: cache.layer,
                heads,
                kv_heads: 1,
                head_dim: width,
                scale: spec.attention_scale,
                used: indexer.used,
                q_stride: heads * width,
                chosen_stride: indexer.used,
                y_stride: heads * width,
            };
            let places = [buffers.queries, cache.buffer, buffers.chosen, set.attn];
            self.out.push(
                "attention",
                Op::SparseAttention,
                &[],
                &places,
                params.words(),
            );
        } else {
            let params = p::Attention {
                layer: cache.layer,
                heads,
                kv_heads: 1,
                head_dim: width,
                scale: spec.attention_scale,
                window: 0,
                softcap: 0.0,
                q_stride: heads * width,
                y_stride: heads * width,
                causal: 0,
                chunked: 0,
            };
            let places = [buffers.queries, cache.buffer, set.attn];
            let sinks = layer.sinks.as_slice();
            self.out
                .push("attention", Op::Attention, sinks, &places, params.words());
        }
        let params = p::HeadsMatmul {
            heads,
            n: l.value,
            k: l.rank,
            tail: 0,
            x_head: width,
            y_head: l.value,
            x_stride: heads * width,
            y_stride: heads * l.value,
        };
        let places = [at(set.attn, l.rope), buffers.heads];
        let values = [weights.values];
        self.out
            .push("values", Op::HeadsMatmul, &values, &places, params.words());
        if let Some(gates) = set.gates {
            let n = heads * l.value;
            self.state_gate("attention gate", SIGMOID, (gates, n), buffers.heads, n);
        }
        let out = (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm);
        self.add_to_stream("attention output", out, buffers.heads, heads * l.value);
    }

    /// Stores the indexer's keys, and chooses the positions that rows see. The latent of queries is still in its buffer.
    fn choose_positions(
        &mut self,
        weights: &IndexWeights,
        l: Latent,
        cache: LayerCache,
        buffers: Buffers,
    ) {
        let (spec, set) = (self.spec, self.set);
        let (Some(indexer), Some((place, layer))) = (&spec.indexer, cache.index) else {
            return;
        };
        let (heads, dim) = (indexer.heads, indexer.head_dim);
        let (stride, q_stride) = (l.inputs(spec), heads * dim);
        let k = l.query_inputs(spec);
        let key = at(set.qkv, k + l.width());
        let gates = at(key, dim);
        let queries = buffers.heads;
        let params = p::Matmul {
            n: q_stride,
            k,
            x_stride: k,
            y_stride: q_stride,
        };
        let (matrix, places) = ([weights.queries], [set.norm, queries]);
        self.out.push(
            "indexer's queries",
            Op::Matmul,
            &matrix,
            &places,
            params.words(),
        );
        let params = p::LayerNorm {
            dim,
            groups: 1,
            eps: EPS,
            x_stride: stride,
            y_stride: stride,
        };
        self.out.push(
            "norm of the indexer's key",
            Op::LayerNorm,
            &weights.norm,
            &[key, key],
            params.words(),
        );
        let constants = self.weights.rope_constants;
        for (what, place, heads, y_stride) in [
            ("rope of the indexer's queries", queries, heads, q_stride),
            ("rope of the indexer's key", key, 1, stride),
        ] {
            let params = p::Rope {
                heads,
                head_dim: dim,
                rot: spec.rope.rot,
                interleaved: indexer.interleaved.into(),
                magnitude: constants.magnitude,
                y_stride,
                sections: spec.rope.sections_word(),
            };
            self.out
                .push(what, Op::Rope, &[constants.freqs], &[place], params.words());
        }
        let half = dim / 2;
        let params = p::KvAppend {
            layer,
            kv_heads: 1,
            head_dim: half,
            k_stride: stride,
            v_stride: stride,
        };
        let places = [key, at(key, half), place];
        self.out.push(
            "append of the indexer's key",
            Op::KvAppend,
            &[],
            &places,
            params.words(),
        );
        // Factors that are the same for all positions are left out.
        let params = p::ChoosePositions {
            layer,
            heads,
            head_dim: dim,
            used: indexer.used,
            q_stride,
            gates_stride: stride,
            y_stride: indexer.used,
        };
        let places = [queries, place, gates, buffers.chosen];
        self.out.push(
            "choice of positions",
            Op::ChoosePositions,
            &[],
            &places,
            params.words(),
        );
    }

    /// The gates of the output: a product of the layer's input, whose norm is still in its buffer.
    fn latent_gates(&mut self, layer: &Layer, n: u32) {
        let (Some(matrix), Some(gates)) = (layer.gates, self.set.gates) else {
            return;
        };
        let dim = self.spec.dim;
        let params = p::Matmul {
            n,
            k: dim,
            x_stride: dim,
            y_stride: n,
        };
        let places = [self.set.norm, gates];
        self.out
            .push("gates", Op::Matmul, &[matrix], &places, params.words());
    }

    /// Norms `dim` values of each row in place.
    fn latent_norm(&mut self, what: &str, norm: WeightId, place: BufferRef, dim: u32, stride: u32) {
        let params = p::Norm {
            dim,
            groups: 1,
            eps: EPS,
            x_stride: stride,
            y_stride: stride,
        };
        self.out
            .push(what, Op::Norm, &[norm], &[place, place], params.words());
    }

    /// Rotates the first elements of heads as wide as a key.
    fn latent_rope(&mut self, what: &str, place: BufferRef, heads: u32, stride: u32) {
        let (spec, constants) = (self.spec, self.weights.rope_constants);
        let params = p::Rope {
            heads,
            head_dim: spec.head_dim,
            rot: spec.rope.rot,
            interleaved: spec.rope.interleaved.into(),
            magnitude: constants.magnitude,
            y_stride: stride,
            sections: spec.rope.sections_word(),
        };
        self.out
            .push(what, Op::Rope, &[constants.freqs], &[place], params.words());
    }
}
