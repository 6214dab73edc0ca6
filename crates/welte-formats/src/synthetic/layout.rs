//! Adds the tensors of synthetic models. A layout is asked for a part by its name and its shape; it knows the name's prefix and
//! the format.

use super::fill::Fill;
use super::recipe::Recipe;
use super::shape::Shape;
use crate::tensors::Tensors;
use crate::{TensorInfo, quantize};
use welte_table::Format;

/// A model in the making.
pub(super) struct Layout<'a> {
    tensors: &'a mut Tensors,
    fills: &'a mut Vec<Fill>,
    recipe: Recipe,
    dim: usize,
    layers: usize,
    tied: bool,
    /// The layer whose tensors are added; `None` before and after the layers.
    layer: Option<usize>,
}

impl Layout<'_> {
    pub(super) fn new<'a>(
        tensors: &'a mut Tensors,
        fills: &'a mut Vec<Fill>,
        shape: &Shape,
        recipe: Recipe,
    ) -> Layout<'a> {
        Layout {
            tensors,
            fills,
            recipe,
            dim: shape.dim,
            layers: shape.layers,
            tied: shape.tied,
            layer: None,
        }
    }

    /// The tensors of each layer.
    pub(super) fn each_layer(&mut self, mut add: impl FnMut(&mut Self, usize)) {
        for layer in 0..self.layers {
            self.layer = Some(layer);
            add(self, layer);
        }
        self.layer = None;
    }

    /// The tensors of a layer that guesses, after the others.
    pub(super) fn draft_layer(&mut self, add: impl FnOnce(&mut Self)) {
        self.layer = Some(self.layers);
        add(self);
        self.matrix("nextn.eh_proj", [self.dim, 2 * self.dim]);
        self.norms(&["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"]);
        self.layer = None;
    }

    fn add(&mut self, name: &str, format: Format, stack: usize, size: [usize; 2], fill: Fill) {
        let prefix = self.layer.map_or(String::new(), |i| format!("blk.{i}."));
        let added = self.tensors.add(TensorInfo {
            name: format!("{prefix}{name}"),
            format,
            n: stack * size[0],
            k: size[1],
            stack,
        });
        debug_assert!(added, "tensor names are unique");
        self.fills.push(fill);
    }

    /// True if mixed recipes give a matrix more bits.
    fn is_important(&self, part: &str) -> bool {
        match part {
            "token_embd" => self.tied,
            "output" | "per_layer_token_embd" => true,
            "attn_v" | "attn_qkv" => self.has_more_bits(),
            down => down.starts_with("ffn_down") && self.has_more_bits(),
        }
    }

    fn has_more_bits(&self) -> bool {
        let layer = self.layer;
        layer.is_some_and(|layer| quantize::more_bits(layer, self.layers))
    }

    /// `stack` matrices of `n` rows of `k` as one tensor.
    pub(super) fn stacked(&mut self, part: &str, stack: usize, size: [usize; 2]) {
        let format = self
            .recipe
            .format(self.is_important(part), stack > 1, size[1]);
        self.add(&format!("{part}.weight"), format, stack, size, Fill::Matrix);
    }

    /// A matrix of `n` rows of `k`.
    pub(super) fn matrix(&mut self, part: &str, size: [usize; 2]) {
        self.stacked(part, 1, size);
    }

    /// A small matrix, which keeps its precision.
    pub(super) fn precise(&mut self, part: &str, size: [usize; 2]) {
        self.add(
            &format!("{part}.weight"),
            Format::F32,
            1,
            size,
            Fill::Matrix,
        );
    }

    /// `n` times `k` floats.
    pub(super) fn floats(&mut self, name: &str, size: [usize; 2], fill: Fill) {
        self.add(name, Format::F32, 1, size, fill);
    }

    /// Factors around one.
    pub(super) fn norm(&mut self, part: &str, k: usize) {
        self.floats(&format!("{part}.weight"), [1, k], Fill::Norm);
    }

    /// Small values around zero.
    pub(super) fn bias(&mut self, part: &str, k: usize) {
        self.floats(&format!("{part}.bias"), [1, k], Fill::Bias);
    }

    /// The embeddings, and the head if it has a matrix of its own.
    pub(super) fn ends(&mut self, vocab: usize) {
        self.matrix("token_embd", [vocab, self.dim]);
        if !self.tied {
            self.matrix("output", [vocab, self.dim]);
        }
    }

    /// The matrices of attention with queries, and keys and values, of these widths.
    pub(super) fn attention(&mut self, queries: usize, keys: usize) {
        let dim = self.dim;
        self.matrix("attn_q", [queries, dim]);
        self.matrix("attn_k", [keys, dim]);
        self.matrix("attn_v", [keys, dim]);
        self.matrix("attn_output", [dim, queries]);
    }

    /// The matrices of a feed-forward part. `kind` is the end of their names.
    pub(super) fn dense(&mut self, kind: &str, width: usize) {
        self.matrix(&format!("ffn_gate{kind}"), [width, self.dim]);
        self.dense_without_gate(kind, width);
    }

    pub(super) fn dense_without_gate(&mut self, kind: &str, width: usize) {
        self.matrix(&format!("ffn_up{kind}"), [width, self.dim]);
        self.matrix(&format!("ffn_down{kind}"), [self.dim, width]);
    }

    /// Experts and their router.
    pub(super) fn experts(&mut self, count: usize, width: usize) {
        self.stacked("ffn_gate_exps", count, [width, self.dim]);
        self.experts_without_gates(count, width);
    }

    pub(super) fn experts_without_gates(&mut self, count: usize, width: usize) {
        self.stacked("ffn_up_exps", count, [width, self.dim]);
        self.stacked("ffn_down_exps", count, [self.dim, width]);
        self.precise("ffn_gate_inp", [count, self.dim]);
    }

    /// Norms as wide as the stream.
    pub(super) fn norms(&mut self, parts: &[&str]) {
        for part in parts {
            self.norm(part, self.dim);
        }
    }
}

/// Factors by which a state fades: sequences forget within some to some hundred positions.
pub(super) fn decays(heads: usize) -> Vec<f32> {
    (0..heads)
        .map(|head| -0.02 * (1 + head % 8) as f32)
        .collect()
}
