//! Layers with the gated delta rule.

use super::{Emitter, SIGMOID, SILU, at};
use crate::Delta;
use crate::weights::{DeltaWeights, Layer, LowRanks};
use welte_table::{Op, params as p};

/// Added to the sum of squares of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

impl Emitter<'_> {
    /// x += output(norm(delta rule(conv(q, k, v), b, a)) * silu(gate)), all of norm(x).
    pub(super) fn delta(&mut self, index: usize, layer: &Layer, weights: &DeltaWeights, d: Delta) {
        let set = self.set;
        let Some(convolved) = set.convolved else {
            return;
        };
        let (channels, values, stride) = (d.channels(), d.values(), d.width());
        let (pieces, bias) = (layer.qkv.as_slice(), layer.qkv_bias.as_slice());
        let input = (set.x, layer.attn_norm);
        self.projections("delta in", pieces, bias, input, set.qkv, stride);
        let places = match weights.low_ranks {
            Some(weights) => self.low_ranks(weights, d),
            None => [channels, channels + values],
        };
        let [gate, gates] = places.map(|column| at(set.qkv, column));
        let cache = self.places.caches[index];
        let (kernel, sizes) = ([weights.kernel], (channels, d.taps, 1));
        self.convolution(
            index,
            &kernel,
            (set.qkv, stride),
            (convolved, channels),
            sizes,
        );
        let rule = p::GatedDelta {
            layer: cache.layer,
            key_heads: d.key_heads,
            heads: d.heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            tiled: d.tiled.into(),
            eps: LENGTH_EPS,
            x_stride: channels,
            gates_stride: stride,
            y_stride: values,
            by_channel: d.by_channel.into(),
        };
        let buffers = [convolved, gates, set.attn, cache.state];
        let factors = [weights.decay, weights.dt_bias];
        self.out.push(
            "delta rule",
            Op::GatedDelta,
            &factors,
            &buffers,
            rule.words(),
        );
        let norm = p::Norm {
            dim: d.value_dim,
            groups: d.heads,
            eps: self.spec.eps,
            x_stride: values,
            y_stride: values,
        };
        let buffers = [set.attn, set.attn];
        self.out.push(
            "delta norm",
            Op::Norm,
            &[weights.norm],
            &buffers,
            norm.words(),
        );
        let act = if d.by_channel { SIGMOID } else { SILU };
        self.state_gate("delta gate", act, (gate, stride), set.attn, values);
        let out = (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm);
        self.add_to_stream("delta out", out, set.attn, values);
    }

    /// Makes a and the gate of their low ranks. Returns the columns of the gate and of b, which a follows.
    fn low_ranks(&mut self, weights: LowRanks, d: Delta) -> [u32; 2] {
        let (qkv, stride) = (self.set.qkv, d.width());
        let low_gate = d.channels();
        let low_decay = low_gate + d.value_dim;
        let rates = low_decay + d.key_dim;
        let decay = rates + d.heads;
        let gate = decay + d.heads * d.key_dim;
        let products = [
            ("delta decays", weights.decay, low_decay, decay, d.key_dim),
            ("delta gates", weights.gate, low_gate, gate, d.value_dim),
        ];
        for (what, weight, from, to, rank) in products {
            let params = p::Matmul {
                n: d.heads * rank,
                k: rank,
                x_stride: stride,
                y_stride: stride,
            };
            let buffers = [at(qkv, from), at(qkv, to)];
            self.out
                .push(what, Op::Matmul, &[weight], &buffers, params.words());
        }
        [gate, rates]
    }
}
