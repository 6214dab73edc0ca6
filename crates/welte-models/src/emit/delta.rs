//! Layers with the gated delta rule.

use super::{Emitter, at};
use crate::Delta;
use crate::weights::{DeltaWeights, Layer};
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
        let cache = self.places.caches[index];
        let (kernel, sizes) = ([weights.kernel], (channels, d.taps, 1));
        self.convolution(index, &kernel, (set.qkv, stride), convolved, sizes);
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
        };
        let gates = at(set.qkv, channels + values);
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
        let gate = (at(set.qkv, channels), stride);
        self.silu_gate("delta gate", gate, set.attn, values);
        let out = (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm);
        self.add_to_stream("delta out", out, set.attn, values);
    }
}
