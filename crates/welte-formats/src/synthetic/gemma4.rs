//! The tensors and keys of synthetic Gemma 4 models.

use super::fill::Fill;
use super::shape::Gemma4;
use super::{Recipe, Shape, Synthetic};
use crate::{Metadata, Value, quantize};
use welte_table::Format;

/// Every sixth layer is full, and so is the last one.
fn is_full(shape: &Shape, layer: usize) -> bool {
    layer % 6 == 5 || layer + 1 == shape.layers
}

/// Key and value heads of a layer, and their size. Full layers have heads of twice the size.
fn heads(shape: &Shape, own: &Gemma4, layer: usize) -> (usize, usize) {
    match is_full(shape, layer) {
        true => (own.full_kv_heads, 2 * shape.head_dim),
        false => (shape.kv_heads, shape.head_dim),
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

pub(super) fn lay_out(made: &mut Synthetic, shape: &Shape, own: &Gemma4, recipe: Recipe) {
    let (dim, layers, wide) = (shape.dim, shape.layers, dense(shape, own));
    let all = layers * own.per_layer;
    let mut matrix = |name: String, stack: usize, n: usize, k: usize, important: bool| {
        let format = recipe.format(important, stack > 1, k);
        made.add(name, format, stack, stack * n, k, Fill::Matrix);
    };
    matrix("token_embd.weight".into(), 1, shape.vocab, dim, true);
    if own.per_layer > 0 {
        let table = "per_layer_token_embd.weight".into();
        matrix(table, 1, shape.vocab, all, true);
        matrix("per_layer_model_proj.weight".into(), 1, all, dim, false);
    }
    for layer in 0..layers {
        let (kv_heads, head_dim) = heads(shape, own, layer);
        let (q, kv) = (shape.heads * head_dim, kv_heads * head_dim);
        let more = quantize::more_bits(layer, layers);
        let mut part = |part: &str, stack: usize, n: usize, k: usize, important: bool| {
            matrix(format!("blk.{layer}.{part}.weight"), stack, n, k, important);
        };
        part("attn_q", 1, q, dim, false);
        if layer + own.shared < layers {
            part("attn_k", 1, kv, dim, false);
            if !(own.values_are_keys && is_full(shape, layer)) {
                part("attn_v", 1, kv, dim, more);
            }
        }
        part("attn_output", 1, dim, q, false);
        part("ffn_gate", 1, wide, dim, false);
        part("ffn_up", 1, wide, dim, false);
        part("ffn_down", 1, dim, wide, more);
        if shape.has_experts() {
            part("ffn_gate_up_exps", shape.experts, 2 * shape.ffn, dim, false);
            part("ffn_down_exps", shape.experts, dim, shape.ffn, more);
        }
        if own.per_layer > 0 {
            part("inp_gate", 1, own.per_layer, dim, false);
            part("proj", 1, dim, own.per_layer, false);
        }
    }
    let mut vector = |name: String, k: usize, fill: Fill| {
        made.add(name, Format::F32, 1, 1, k, fill);
    };
    vector("output_norm.weight".into(), dim, Fill::Norm);
    if own.per_layer > 0 {
        let norm = "per_layer_proj_norm.weight".into();
        vector(norm, own.per_layer, Fill::Norm);
    }
    for layer in 0..layers {
        let head_dim = heads(shape, own, layer).1;
        let mut norm = |part: &str, k: usize| {
            vector(format!("blk.{layer}.{part}"), k, Fill::Norm);
        };
        for part in [
            "attn_norm",
            "post_attention_norm",
            "ffn_norm",
            "post_ffw_norm",
        ] {
            norm(&format!("{part}.weight"), dim);
        }
        norm("attn_q_norm.weight", head_dim);
        norm("layer_output_scale.weight", 1);
        if own.per_layer > 0 {
            norm("post_norm.weight", dim);
        }
        if shape.has_experts() {
            for part in ["post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2"] {
                norm(&format!("{part}.weight"), dim);
            }
            norm("ffn_gate_inp.scale", dim);
            norm("ffn_down_exps.scale", shape.experts);
        }
        if layer + own.shared < layers {
            let name = format!("blk.{layer}.attn_k_norm.weight");
            vector(name, head_dim, Fill::KeyNorm);
        }
    }
    // A quarter of the pairs of a full layer's head is rotated.
    let pairs = shape.head_dim;
    let factor = |i| if i < pairs / 4 { 1.0 } else { 1e30 };
    let factors = (0..pairs).map(factor).collect();
    vector("rope_freqs.weight".into(), pairs, Fill::Given(factors));
    for layer in (0..layers).filter(|_| shape.has_experts()) {
        let name = format!("blk.{layer}.ffn_gate_inp.weight");
        made.add(name, Format::F32, 1, shape.experts, dim, Fill::Matrix);
    }
}

/// Keys beside those of all models, some in place of theirs.
pub(super) fn describe(metadata: &mut Metadata, shape: &Shape, own: &Gemma4) {
    let mut put = |key: &str, value: Value| {
        metadata.insert(format!("gemma4.{key}"), value);
    };
    let number = |n: usize| Value::U64(n as u64);
    let (small, large) = (shape.head_dim, 2 * shape.head_dim);
    for (key, value) in [
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
    ] {
        put(key, number(value));
    }
    let layers = 0..shape.layers;
    let kv_heads = layers.clone().map(|i| number(heads(shape, own, i).0));
    put("attention.head_count_kv", Value::Array(kv_heads.collect()));
    let windowed = layers.map(|i| Value::Bool(!is_full(shape, i)));
    let pattern = "attention.sliding_window_pattern";
    put(pattern, Value::Array(windowed.collect()));
    put("rope.freq_base_swa", Value::F64(1e4));
    put("final_logit_softcapping", Value::F64(30.0));
    if shape.has_experts() {
        put("expert_count", number(shape.experts));
        put("expert_used_count", number(shape.used));
        put("expert_feed_forward_length", number(shape.ffn));
    }
}
