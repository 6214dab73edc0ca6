//! Values that are narrower than keys (`weights/values.rs`).

use super::{Emitter, at};
use crate::weights::{Layer, SWAPPED};
use welte_table::{BufferRef, Op, params as p};

impl Emitter<'_> {
    /// Projects values, whose norm is still in its buffer, and spreads them to the width of keys.
    pub(super) fn narrow_values(&mut self, index: usize, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let all = layer.values.as_ref().zip(spec.value_dim).zip(set.values);
        let Some(((weights, value), [values, _])) = all else {
            return;
        };
        let shape = spec.shape(index);
        let (kv, head_dim) = (shape.kv_heads, shape.head_dim);
        let width = kv * value;
        let input = (set.norm, None);
        self.projections("values", &weights.project, &[], input, values, width);
        let params = p::HeadsMatmul {
            heads: kv,
            n: head_dim,
            k: value,
            tail: 0,
            x_head: value,
            y_head: head_dim,
            x_stride: width,
            y_stride: spec.attention_width(index),
        };
        let buffers = [values, at(set.qkv, (shape.heads + kv) * head_dim)];
        let matrices = [weights.spread];
        let what = "spread of values";
        self.out
            .push(what, Op::HeadsMatmul, &matrices, &buffers, params.words());
    }

    /// What attention made of narrow values, in their width and order, and how wide a row of it is.
    pub(super) fn narrow_result(
        &mut self,
        index: usize,
        layer: &Layer,
    ) -> Option<(BufferRef, u32)> {
        let (spec, set) = (self.spec, self.set);
        let (weights, value) = layer.values.as_ref().zip(spec.value_dim)?;
        let [_, result] = set.values?;
        let shape = spec.shape(index);
        let (heads, swapped) = (shape.heads, value.min(SWAPPED));
        let params = p::HeadsMatmul {
            heads,
            n: swapped,
            k: swapped,
            tail: value - swapped,
            x_head: shape.head_dim,
            y_head: value,
            x_stride: heads * shape.head_dim,
            y_stride: heads * value,
        };
        let (buffers, matrices) = ([set.attn, result], [weights.gather]);
        let what = "order of results";
        self.out
            .push(what, Op::HeadsMatmul, &matrices, &buffers, params.words());
        Some((result, heads * value))
    }
}
