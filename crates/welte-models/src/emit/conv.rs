//! Layers with a short convolution between two gates.

use super::{Emitter, NO_ACT, at};
use crate::weights::Layer;
use welte_table::{Op, WeightId, params as p};

impl Emitter<'_> {
    /// x += output(c * conv(b * v)), where b, c and v are projections of norm(x).
    pub(super) fn conv(&mut self, index: usize, layer: &Layer, kernel: WeightId) {
        let (set, dim) = (self.set, self.spec.dim);
        let Some(convolved) = set.convolved else {
            return;
        };
        let stride = 3 * dim;
        let [b, c, v] = [0, dim, 2 * dim].map(|column| at(set.qkv, column));
        let input = (set.x, layer.attn_norm);
        self.projections("convolution in", &layer.qkv, &[], input, set.qkv, stride);
        let gate = |y_stride: u32| p::Gate {
            n: dim,
            gates: dim,
            act: NO_ACT,
            x_stride: stride,
            y_stride,
        };
        self.push("gate before", Op::Gate, &[], &[b, v], gate(stride).words());
        let cache = self.places.caches[index];
        let conv = p::ShortConv {
            layer: cache.layer,
            n: dim,
            taps: self.spec.conv_taps,
            act: 0,
            x_stride: stride,
            y_stride: dim,
        };
        let buffers = [v, convolved, cache.buffer];
        self.push(
            "convolution",
            Op::ShortConv,
            &[kernel],
            &buffers,
            conv.words(),
        );
        let buffers = [c, convolved];
        self.push("gate after", Op::Gate, &[], &buffers, gate(dim).words());
        let out = (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm);
        self.add_to_stream("convolution out", out, convolved, dim);
    }
}
