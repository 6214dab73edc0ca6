//! Parts of the forward pass that only Gemma 4 and Gemma 3n have.

use super::{Emitter, at};
use crate::weights::{Beside, ExpertWeights, Layer};
use crate::{Experts, LayerRope, LayerShape};
use welte_table::{ModelPart, NO_WEIGHT, Op, params as p};

impl Emitter<'_> {
    /// inputs = (embeddings of all layers + norm(projection(x) / sqrt(dim))) / sqrt(2), or norm(projection(x) / sqrt(dim))
    pub(super) fn per_layer_inputs(&mut self) {
        let (spec, set) = (self.spec, self.set);
        let (Some(weights), Some(buffers)) = (&self.weights.per_layer, set.per_layer) else {
            return;
        };
        let (dim, width) = (spec.dim, spec.per_layer_width);
        let all = spec.layers * width;
        // Without a table they are the projection alone.
        let mut context = buffers.inputs;
        if let Some(table) = weights.embed {
            let embed = p::Embed {
                n: spec.vocab,
                k: all,
                scale: (width as f32).sqrt(),
                x_stride: all,
            };
            self.out.push(
                "embeddings per layer",
                Op::Embed,
                &[table],
                &[self.places.tokens, buffers.inputs],
                embed.words(),
            );
            context = buffers.context;
        }
        let projection = p::Matmul {
            n: all,
            k: dim,
            x_stride: dim,
            y_stride: all,
        };
        self.out.push(
            "projection to all layers",
            Op::Matmul,
            &[weights.projection],
            &[set.x, context],
            projection.words(),
        );
        // The norm of v / sqrt(dim) is the norm of v with dim times the epsilon.
        let norm = p::Norm {
            dim: width,
            groups: spec.layers,
            eps: spec.eps * dim as f32,
            x_stride: all,
            y_stride: all,
        };
        self.out.push(
            "norm of the projection",
            Op::Norm,
            &[weights.norm],
            &[context, context],
            norm.words(),
        );
        if weights.embed.is_none() {
            return;
        }
        let sum = p::Add {
            n: all,
            x_stride: all,
            y_stride: all,
        };
        let operands = [buffers.context, buffers.inputs];
        self.out
            .push("inputs per layer", Op::Add, &[], &operands, sum.words());
        let half = p::Scale {
            n: all,
            scale: std::f32::consts::FRAC_1_SQRT_2,
            cap: 0.0,
            y_stride: all,
        };
        let operands = [buffers.inputs];
        self.out
            .push("inputs' scale", Op::Scale, &[], &operands, half.words());
    }

    /// x += norm(projection(act(gate(x)) * input)), then x *= the layer's factor.
    pub(super) fn per_layer(&mut self, index: usize, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (dim, width) = (spec.dim, spec.per_layer_width);
        if let (Some(weights), Some(buffers)) = (&layer.per_layer, set.per_layer) {
            let place = set.norm;
            let all = spec.layers * width;
            let input = at(buffers.inputs, index as u32 * width);
            let gate = p::Matmul {
                n: width,
                k: dim,
                x_stride: dim,
                y_stride: width,
            };
            self.out.push(
                "gate of its embedding",
                Op::Matmul,
                &[weights.gate],
                &[set.x, buffers.gate],
                gate.words(),
            );
            let gated = p::Gate {
                n: width,
                gates: width,
                act: spec.act.word(),
                x_stride: width,
                y_stride: all,
            };
            let operands = [buffers.gate, input];
            self.out
                .push("gated embedding", Op::Gate, &[], &operands, gated.words());
            let projection = p::Matmul {
                n: dim,
                k: width,
                x_stride: all,
                y_stride: dim,
            };
            self.out.push(
                "projection of its embedding",
                Op::Matmul,
                &[weights.projection],
                &[input, place],
                projection.words(),
            );
            self.norm("norm of its embedding", weights.norm, place, place);
            match set.streams {
                Some(streams) => self.add_to_other_streams(place, streams),
                None => self.add("sum with its embedding", place, set.x),
            }
        }
        if layer.scalar != 1.0 {
            let scale = p::Scale {
                n: dim,
                scale: layer.scalar,
                cap: 0.0,
                y_stride: dim,
            };
            self.out
                .push("output scale", Op::Scale, &[], &[set.x], scale.words());
        }
    }

    /// Norms the values of each head without a weight, or makes them from the keys.
    pub(super) fn values(&mut self, index: usize) {
        let (spec, qkv) = (self.spec, self.set.qkv);
        let from_keys = spec.values_are_keys.get(index) == Some(&true);
        if !spec.value_norm {
            return;
        }
        let LayerShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = spec.shape(index);
        let stride = (heads + 2 * kv_heads) * head_dim;
        let [keys, values] = [heads, heads + kv_heads].map(|h| at(qkv, h * head_dim));
        let norm = p::Norm {
            dim: head_dim,
            groups: kv_heads,
            eps: spec.eps,
            x_stride: stride,
            y_stride: stride,
        };
        let source = if from_keys { keys } else { values };
        let operands = [source, values];
        self.out.push(
            "value norm",
            Op::Norm,
            &[NO_WEIGHT],
            &operands,
            norm.words(),
        );
    }

    /// Norms and rotates the queries of a layer without keys and values of its own.
    pub(super) fn rope_queries(&mut self, index: usize, layer: &Layer) {
        let (spec, qkv) = (self.spec, self.set.qkv);
        let LayerShape {
            heads, head_dim, ..
        } = spec.shape(index);
        let stride = heads * head_dim;
        if let Some(weight) = layer.q_norm {
            let norm = p::Norm {
                dim: head_dim,
                groups: heads,
                eps: spec.eps,
                x_stride: stride,
                y_stride: stride,
            };
            self.out
                .push("query norm", Op::Norm, &[weight], &[qkv, qkv], norm.words());
        }
        let kind = spec.layer_ropes.get(index).copied();
        let (rope, constants) = self.rope_of(kind.unwrap_or(LayerRope::Main));
        let params = p::Rope {
            heads,
            head_dim,
            rot: rope.rot,
            interleaved: rope.interleaved.into(),
            magnitude: constants.magnitude,
            y_stride: stride,
            sections: rope.sections_word(),
        };
        let weights = [constants.freqs];
        self.out
            .push("rope", Op::Rope, &weights, &[qkv], params.words());
    }

    /// x += norm(norm(dense part) + norm(experts)). The router and the experts read x, each with a norm of its own.
    pub(super) fn experts_beside(
        &mut self,
        index: usize,
        layer: &Layer,
        weights: &ExpertWeights,
        beside: &Beside,
        e: Experts,
    ) {
        let (spec, set) = (self.spec, self.set);
        let (Some(dense), Some(mixed)) = (set.dense, set.mixed) else {
            return;
        };
        let normed = set.norm;
        let (dim, ffn) = (spec.dim, spec.shape(index).ffn);
        self.gate_up(index, layer);
        if let Some(down) = layer.down {
            let params = p::Matmul {
                n: dim,
                k: ffn,
                x_stride: ffn,
                y_stride: dim,
            };
            self.out
                .push("down", Op::Matmul, &[down], &[set.h, dense], params.words());
        }
        self.norm("norm after dense", beside.dense_norm, dense, dense);
        self.out.part = ModelPart::Router;
        self.norm("router norm", beside.router_norm, set.x, normed);
        let scale = 1.0 / (dim as f32).sqrt();
        self.router(weights, e, normed, scale, beside.scales);
        self.out.part = ModelPart::Experts;
        self.norm("experts' norm", beside.norm, set.x, normed);
        self.clear("no experts yet", mixed, dim);
        self.chosen_experts(weights, e, None, (normed, mixed));
        self.norm("norm after experts", beside.mixed_norm, mixed, mixed);
        self.add("dense and experts", mixed, dense);
        if let Some(norm) = layer.post_ffn_norm {
            self.norm("feed-forward norm after", norm, dense, dense);
        }
        self.add("feed-forward sum", dense, set.x);
    }
}
