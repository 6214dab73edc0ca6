//! The tensors and keys of synthetic models with recurrent layers: LFM2, Granite 4 and Nemotron-H.

use super::fill::Fill;
use super::keys::Keys;
use super::layout::{Layout, decays};
use super::shape::{Hybrid, Mixer, SsmShape};
use super::shape::{Shape, TAPS};
use crate::Value;

/// Taps of LFM2's convolutions.
const LFM2_TAPS: usize = 3;

/// What mixes positions in a layer; `None` in layers of Nemotron-H that have a feed-forward part only.
fn mixer(own: &Hybrid, layer: usize) -> Option<Mixer> {
    let pattern = own.pattern.as_bytes();
    match pattern[layer % pattern.len()] {
        b'*' => Some(Mixer::Attention),
        b'M' => Some(Mixer::Ssm),
        b'C' => Some(Mixer::Conv),
        _ => None,
    }
}

/// True if the layer has a feed-forward part.
fn has_ffn(own: &Hybrid, layer: usize) -> bool {
    !own.alone || mixer(own, layer).is_none()
}

fn is_sparse(shape: &Shape, own: &Hybrid, layer: usize) -> bool {
    shape.experts > 0 && layer >= own.dense_layers
}

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape, own: &Hybrid) {
    let (dim, head_dim) = (shape.dim, shape.head_dim);
    let conv = own.pattern.contains('C');
    l.ends(shape.vocab);
    l.norms(&[if conv {
        "token_embd_norm"
    } else {
        "output_norm"
    }]);
    l.each_layer(|l, layer| {
        l.norms(&["attn_norm"]);
        match mixer(own, layer) {
            Some(Mixer::Attention) => {
                l.attention(shape.heads * head_dim, shape.kv_heads * head_dim);
                if conv {
                    l.norm("attn_q_norm", head_dim);
                    l.norm("attn_k_norm", head_dim);
                }
            }
            Some(Mixer::Conv) => {
                l.matrix("shortconv.in_proj", [3 * dim, dim]);
                l.matrix("shortconv.out_proj", [dim, dim]);
                l.precise("shortconv.conv", [dim, LFM2_TAPS]);
            }
            Some(Mixer::Ssm) => state_space(l, dim, &own.ssm),
            None => {}
        }
        if has_ffn(own, layer) {
            feed_forward(l, shape, own, layer);
        }
    });
}

fn state_space(l: &mut Layout<'_>, dim: usize, ssm: &SsmShape) {
    let values = ssm.heads * ssm.head_dim;
    let channels = values + 2 * ssm.groups * ssm.state;
    l.matrix("ssm_in", [values + channels + ssm.heads, dim]);
    l.matrix("ssm_out", [dim, values]);
    l.precise("ssm_conv1d", [channels, TAPS]);
    l.bias("ssm_conv1d", channels);
    l.bias("ssm_dt", ssm.heads);
    let column = [ssm.heads, 1];
    l.floats("ssm_a", column, Fill::Column(decays(ssm.heads)));
    l.floats("ssm_d", column, Fill::Column(vec![1.0; ssm.heads]));
    let norms = [ssm.groups, values / ssm.groups];
    l.floats("ssm_norm.weight", norms, Fill::Norm);
}

fn feed_forward(l: &mut Layout<'_>, shape: &Shape, own: &Hybrid, layer: usize) {
    let (count, ffn) = (shape.experts, shape.ffn);
    // Nemotron-H norms a layer's input once, and has no gates.
    let gated = !own.alone;
    if gated {
        l.norms(&["ffn_norm"]);
    }
    let dense = if gated {
        Layout::dense
    } else {
        Layout::dense_without_gate
    };
    if !is_sparse(shape, own, layer) {
        return dense(l, "", own.dense);
    }
    if own.shared > 0 {
        dense(l, "_shexp", own.shared);
    }
    if gated {
        l.experts(count, ffn);
    } else {
        l.experts_without_gates(count, ffn);
    }
    if own.sigmoid {
        l.bias("exp_probs_b", count);
    }
}

/// Keys beside those of all models, some in place of theirs.
pub(super) fn describe(keys: &mut Keys<'_>, own: &Hybrid) {
    let (shape, ssm) = (keys.shape, own.ssm);
    keys.each("attention.head_count_kv", |layer| match mixer(own, layer) {
        Some(Mixer::Attention) => shape.kv_heads,
        _ => 0,
    });
    if own.alone {
        let width = |layer| if has_ffn(own, layer) { own.dense } else { 0 };
        keys.each("feed_forward_length", width);
    } else {
        keys.numbers(&[("feed_forward_length", own.dense)]);
    }
    if own.pattern.contains('C') {
        keys.numbers(&[("shortconv.l_cache", LFM2_TAPS)]);
    }
    if own.pattern.contains('M') {
        keys.numbers(&[
            ("ssm.conv_kernel", TAPS),
            ("ssm.state_size", ssm.state),
            ("ssm.group_count", ssm.groups),
            ("ssm.inner_size", ssm.heads * ssm.head_dim),
            ("ssm.time_step_rank", ssm.heads),
        ]);
    }
    if own.shared > 0 {
        keys.numbers(&[("expert_shared_feed_forward_length", own.shared)]);
    }
    if shape.experts > 0 {
        keys.experts();
        keys.numbers(&[
            ("leading_dense_block_count", own.dense_layers),
            ("expert_gating_func", 1 + usize::from(own.sigmoid)),
        ]);
        if own.alone {
            keys.put("expert_weights_norm", Value::Bool(true));
            keys.floats(&[("expert_weights_scale", 2.5)]);
        }
    }
    if own.alone {
        // llama.cpp wants this key too.
        keys.floats(&[("attention.layer_norm_epsilon", shape.norm_epsilon)]);
    }
    if own.architecture == "granitehybrid" {
        for (key, value) in [
            ("embedding_scale", 12.0),
            ("residual_scale", 0.22),
            ("attention.scale", 1.0 / 128.0),
            ("logit_scale", 6.0),
        ] {
            keys.put(key, Value::F64(value));
        }
        keys.put("rope.scaling.finetuned", Value::Bool(false));
    }
}
