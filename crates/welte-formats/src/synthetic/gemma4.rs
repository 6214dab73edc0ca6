//! The tensors and keys of synthetic Gemma 4 models.

use super::Shape;
use super::fill::Fill;
use super::keys::Keys;
use super::layout::Layout;
use super::shape::Gemma4;
use crate::Value;

/// Every sixth layer is full, and so is the last one.
fn is_full(shape: &Shape, layer: usize) -> bool {
    layer % 6 == 5 || layer + 1 == shape.layers
}

/// Key and value heads of a layer, and their size. Full layers have heads of twice the size.
fn heads(shape: &Shape, own: &Gemma4, layer: usize) -> (usize, usize) {
    if is_full(shape, layer) {
        (own.full_kv_heads, 2 * shape.head_dim)
    } else {
        (shape.kv_heads, shape.head_dim)
    }
}

/// Width of the dense part of a layer.
fn dense(shape: &Shape, own: &Gemma4) -> usize {
    if shape.has_experts() {
        own.dense
    } else {
        shape.ffn
    }
}

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape, own: &Gemma4) {
    let dim = shape.dim;
    l.ends(shape.vocab);
    l.norms(&["output_norm"]);
    if own.per_layer > 0 {
        let all = shape.layers * own.per_layer;
        l.matrix("per_layer_token_embd", [shape.vocab, all]);
        l.matrix("per_layer_model_proj", [all, dim]);
        l.norm("per_layer_proj_norm", own.per_layer);
    }
    l.each_layer(|l, layer| {
        let (kv_heads, head_dim) = heads(shape, own, layer);
        let (q, kv) = (shape.heads * head_dim, kv_heads * head_dim);
        l.matrix("attn_q", [q, dim]);
        l.norm("attn_q_norm", head_dim);
        if layer + own.shared < shape.layers {
            l.matrix("attn_k", [kv, dim]);
            l.floats("attn_k_norm.weight", [1, head_dim], Fill::KeyNorm);
            if !(own.values_are_keys && is_full(shape, layer)) {
                l.matrix("attn_v", [kv, dim]);
            }
        }
        l.matrix("attn_output", [dim, q]);
        l.dense("", dense(shape, own));
        l.norms(&[
            "attn_norm",
            "post_attention_norm",
            "ffn_norm",
            "post_ffw_norm",
        ]);
        l.norm("layer_output_scale", 1);
        if own.per_layer > 0 {
            l.matrix("inp_gate", [own.per_layer, dim]);
            l.matrix("proj", [dim, own.per_layer]);
            l.norms(&["post_norm"]);
        }
        if shape.has_experts() {
            let count = shape.experts;
            l.stacked("ffn_gate_up_exps", count, [2 * shape.ffn, dim]);
            l.stacked("ffn_down_exps", count, [dim, shape.ffn]);
            l.precise("ffn_gate_inp", [count, dim]);
            l.norms(&["post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2"]);
            l.floats("ffn_gate_inp.scale", [1, dim], Fill::Norm);
            l.floats("ffn_down_exps.scale", [1, count], Fill::Norm);
        }
    });
    // A quarter of the pairs of a full layer's head is rotated.
    let pairs = shape.head_dim;
    let factor = |i| if i < pairs / 4 { 1.0 } else { 1e30 };
    let factors = Fill::Given((0..pairs).map(factor).collect());
    l.floats("rope_freqs.weight", [1, pairs], factors);
}

/// Keys beside those of all models, some in place of theirs.
pub(super) fn describe(keys: &mut Keys<'_>, own: &Gemma4) {
    let shape = keys.shape;
    let (small, large) = (shape.head_dim, 2 * shape.head_dim);
    if shape.has_experts() {
        keys.experts();
    }
    keys.numbers(&[
        ("feed_forward_length", dense(shape, own)),
        ("attention.key_length", large),
        ("attention.value_length", large),
        ("attention.key_length_swa", small),
        ("attention.value_length_swa", small),
        ("rope.dimension_count", large),
        ("rope.dimension_count_swa", small),
        ("attention.sliding_window", shape.window),
        ("attention.shared_kv_layers", own.shared),
        ("embedding_length_per_layer_input", own.per_layer),
    ]);
    keys.each("attention.head_count_kv", |i| heads(shape, own, i).0);
    let windowed = |layer| Value::Bool(!is_full(shape, layer));
    keys.list("attention.sliding_window_pattern", windowed);
    keys.floats(&[
        ("rope.freq_base_swa", 1e4),
        ("final_logit_softcapping", 30.0),
    ]);
}
