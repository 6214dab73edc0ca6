//! The tensors and keys of synthetic Gemma 3n models.

use super::Shape;
use super::fill::Fill;
use super::keys::Keys;
use super::layout::Layout;
use super::shape::Gemma3n;
use crate::Value;

/// Every fifth layer is full.
fn is_full(layer: usize) -> bool {
    layer % 5 == 4
}

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape, own: &Gemma3n) {
    let (dim, head_dim, streams) = (shape.dim, shape.head_dim, own.streams);
    let all = shape.layers * own.per_layer;
    l.ends(shape.vocab);
    l.matrix("per_layer_token_embd", [shape.vocab, all]);
    l.matrix("per_layer_model_proj", [all, dim]);
    for part in ["altup_proj", "altup_unembd_proj"] {
        l.stacked(part, streams - 1, [dim, dim]);
    }
    l.norm("per_layer_proj_norm", own.per_layer);
    l.norms(&["output_norm"]);
    l.each_layer(|l, _| {
        // llama.cpp wants keys and values also where they are not used.
        l.attention(shape.heads * head_dim, shape.kv_heads * head_dim);
        l.norm("attn_q_norm", head_dim);
        l.floats("attn_k_norm.weight", [1, head_dim], Fill::KeyNorm);
        l.dense("", shape.ffn);
        l.matrix("inp_gate", [own.per_layer, dim]);
        l.matrix("proj", [dim, own.per_layer]);
        l.matrix("laurel_l", [own.rank, dim]);
        l.matrix("laurel_r", [dim, own.rank]);
        l.precise("altup_router", [streams, dim]);
        l.precise("altup_predict_coef", [streams * streams, streams]);
        l.precise("altup_correct_coef", [streams, streams]);
        l.norms(&[
            "attn_norm",
            "post_attention_norm",
            "ffn_norm",
            "post_ffw_norm",
            "post_norm",
            "laurel_post_norm",
            "altup_router_norm",
            "altup_correct_scale",
        ]);
    });
}

/// Keys beside those of all models.
pub(super) fn describe(keys: &mut Keys<'_>, own: &Gemma3n) {
    keys.numbers(&[
        ("attention.sliding_window", keys.shape.window),
        ("attention.shared_kv_layers", own.shared),
        ("embedding_length_per_layer_input", own.per_layer),
        ("altup.active_idx", 0),
        ("altup.num_inputs", own.streams),
    ]);
    let windowed = |layer| Value::Bool(!is_full(layer));
    keys.list("attention.sliding_window_pattern", windowed);
    // The first ten layers keep a twentieth of their activations.
    let cutoff = |layer| {
        if layer < 10 {
            1.644_853_6
        } else {
            f32::NEG_INFINITY
        }
    };
    let cutoff = |layer| Value::F64(cutoff(layer).into());
    keys.list("activation_sparsity_scale", cutoff);
    keys.floats(&[("final_logit_softcapping", 30.0)]);
}
