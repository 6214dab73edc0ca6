//! Layers with a short convolution between two gates.

use super::{Emitter, NO_ACT, SILU, at};
use crate::weights::Layer;
use welte_table::{BufferRef, Op, WeightId, params as p};

impl Emitter<'_> {
    /// y = act(convolution of each channel of x with its last inputs), for the cache of a layer.
    pub(super) fn convolution(
        &mut self,
        index: usize,
        kernel: &[WeightId],
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
        (n, taps, act): (u32, u32, u32),
    ) {
        let cache = self.places.caches[index];
        let params = p::ShortConv {
            layer: cache.layer,
            n,
            taps,
            act,
            x_stride,
            y_stride,
        };
        let buffers = [x, y, cache.inputs];
        let what = "convolution";
        self.out
            .push(what, Op::ShortConv, kernel, &buffers, params.words());
    }

    /// y *= silu(x)
    pub(super) fn silu_gate(&mut self, what: &str, x: (BufferRef, u32), y: BufferRef, n: u32) {
        self.state_gate(what, SILU, x, y, n);
    }

    /// y *= act(x)
    pub(super) fn state_gate(
        &mut self,
        what: &str,
        act: u32,
        (x, x_stride): (BufferRef, u32),
        y: BufferRef,
        n: u32,
    ) {
        let params = p::Gate {
            n,
            gates: n,
            act,
            x_stride,
            y_stride: n,
        };
        self.out.push(what, Op::Gate, &[], &[x, y], params.words());
    }

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
        self.out
            .push("gate before", Op::Gate, &[], &[b, v], gate(stride).words());
        let sizes = (dim, self.spec.conv_taps, 0);
        self.convolution(index, &[kernel], (v, stride), (convolved, dim), sizes);
        let buffers = [c, convolved];
        self.out
            .push("gate after", Op::Gate, &[], &buffers, gate(dim).words());
        let out = (layer.o, layer.o_bias.as_slice(), layer.post_attn_norm);
        self.add_to_stream("convolution out", out, convolved, dim);
    }
}
