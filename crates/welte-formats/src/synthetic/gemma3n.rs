//! The tensors and keys of synthetic Gemma 3n models.

use super::Shape;
use super::layout::Layout;
use super::shape::Gemma3n;
use crate::{Metadata, Value, quantize};

/// Every fifth layer is full.
fn is_full(layer: usize) -> bool {
    layer % 5 == 4
}

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape, own: &Gemma3n) {
    let (dim, layers, ffn) = (shape.dim, shape.layers, shape.ffn);
    let all = layers * own.per_layer;
    let (q, kv) = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    );
    l.matrix("token_embd.weight", [shape.vocab, dim], true);
    l.matrix("per_layer_token_embd.weight", [shape.vocab, all], true);
    l.matrix("per_layer_model_proj.weight", [all, dim], false);
    for name in ["altup_proj.weight", "altup_unembd_proj.weight"] {
        l.stacked(name, own.streams - 1, [dim, dim], false);
    }
    l.norm("per_layer_proj_norm.weight", own.per_layer);
    l.norm("output_norm.weight", dim);
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let more = quantize::more_bits(layer, layers);
        l.matrix(name("attn_q"), [q, dim], false);
        l.norm(name("attn_q_norm"), shape.head_dim);
        // llama.cpp wants these tensors also where they are not used.
        l.matrix(name("attn_k"), [kv, dim], false);
        l.matrix(name("attn_v"), [kv, dim], more);
        l.key_norm(name("attn_k_norm"), shape.head_dim);
        l.matrix(name("attn_output"), [dim, q], false);
        l.matrix(name("ffn_gate"), [ffn, dim], false);
        l.matrix(name("ffn_up"), [ffn, dim], false);
        l.matrix(name("ffn_down"), [dim, ffn], more);
        l.matrix(name("inp_gate"), [own.per_layer, dim], false);
        l.matrix(name("proj"), [dim, own.per_layer], false);
        l.matrix(name("laurel_l"), [own.rank, dim], false);
        l.matrix(name("laurel_r"), [dim, own.rank], false);
        let streams = own.streams;
        l.precise(name("altup_router"), [streams, dim]);
        l.precise(name("altup_predict_coef"), [streams * streams, streams]);
        l.precise(name("altup_correct_coef"), [streams, streams]);
        for part in [
            "attn_norm",
            "post_attention_norm",
            "ffn_norm",
            "post_ffw_norm",
            "post_norm",
            "laurel_post_norm",
            "altup_router_norm",
            "altup_correct_scale",
        ] {
            l.norm(name(part), dim);
        }
    }
}

/// Keys beside those of all models.
pub(super) fn describe(metadata: &mut Metadata, shape: &Shape, own: &Gemma3n) {
    let mut put = |key: &str, value: Value| {
        metadata.insert(format!("gemma3n.{key}"), value);
    };
    for (key, value) in [
        ("attention.sliding_window", shape.window),
        ("attention.shared_kv_layers", own.shared),
        ("embedding_length_per_layer_input", own.per_layer),
        ("altup.active_idx", 0),
        ("altup.num_inputs", own.streams),
    ] {
        put(key, Value::U64(value as u64));
    }
    let layers = 0..shape.layers;
    let windowed = layers.clone().map(|layer| Value::Bool(!is_full(layer)));
    let pattern = "attention.sliding_window_pattern";
    put(pattern, Value::Array(windowed.collect()));
    // The first ten layers keep a twentieth of their activations.
    let cutoff = |layer| match layer < 10 {
        true => Value::F64(1.644_853_6f32.into()),
        false => Value::F64(f64::NEG_INFINITY),
    };
    let cutoffs = Value::Array(layers.map(cutoff).collect());
    put("activation_sparsity_scale", cutoffs);
    put("final_logit_softcapping", Value::F64(30.0));
}
