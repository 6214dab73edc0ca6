//! The tensors and keys of synthetic models with recurrent layers: LFM2, Granite 4 and Nemotron-H.

use super::layout::Layout;
use super::shape::{Hybrid, Mixer, SsmShape};
use super::{Shape, TAPS};
use crate::{Metadata, Value, quantize};

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
    let (dim, layers) = (shape.dim, shape.layers);
    l.matrix("token_embd.weight", [shape.vocab, dim], shape.tied);
    if !shape.tied {
        l.matrix("output.weight", [shape.vocab, dim], true);
    }
    let conv = own.pattern.contains('C');
    l.norm(
        if conv {
            "token_embd_norm.weight"
        } else {
            "output_norm.weight"
        },
        dim,
    );
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let more = quantize::more_bits(layer, layers);
        l.norm(name("attn_norm.weight"), dim);
        match mixer(own, layer) {
            Some(Mixer::Attention) => {
                let (q, kv) = (
                    shape.heads * shape.head_dim,
                    shape.kv_heads * shape.head_dim,
                );
                l.matrix(name("attn_q.weight"), [q, dim], false);
                l.matrix(name("attn_k.weight"), [kv, dim], false);
                l.matrix(name("attn_v.weight"), [kv, dim], more);
                l.matrix(name("attn_output.weight"), [dim, q], false);
                if conv {
                    l.norm(name("attn_q_norm.weight"), shape.head_dim);
                    l.norm(name("attn_k_norm.weight"), shape.head_dim);
                }
            }
            Some(Mixer::Conv) => {
                l.matrix(name("shortconv.in_proj.weight"), [3 * dim, dim], false);
                l.matrix(name("shortconv.out_proj.weight"), [dim, dim], false);
                l.precise(name("shortconv.conv.weight"), [dim, LFM2_TAPS]);
            }
            Some(Mixer::Ssm) => state_space(l, &name, dim, &own.ssm),
            None => {}
        }
        if has_ffn(own, layer) {
            feed_forward(l, shape, own, layer, more);
        }
    }
}

fn state_space(l: &mut Layout<'_>, name: &dyn Fn(&str) -> String, dim: usize, ssm: &SsmShape) {
    let values = ssm.heads * ssm.head_dim;
    let channels = values + 2 * ssm.groups * ssm.state;
    l.matrix(
        name("ssm_in.weight"),
        [values + channels + ssm.heads, dim],
        false,
    );
    l.matrix(name("ssm_out.weight"), [dim, values], false);
    l.precise(name("ssm_conv1d.weight"), [channels, TAPS]);
    l.bias(name("ssm_conv1d.bias"), channels);
    l.bias(name("ssm_dt.bias"), ssm.heads);
    // Sequences forget within some to some hundred positions.
    let decay = |head: usize| -0.02 * (1 + head % 8) as f32;
    l.column(name("ssm_a"), (0..ssm.heads).map(decay).collect());
    l.column(name("ssm_d"), vec![1.0; ssm.heads]);
    let norms = [ssm.groups, values / ssm.groups];
    l.norms(name("ssm_norm.weight"), norms);
}

fn feed_forward(l: &mut Layout<'_>, shape: &Shape, own: &Hybrid, layer: usize, more: bool) {
    let dim = shape.dim;
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    // Nemotron-H norms a layer's input once, and has no gates.
    let gated = !own.alone;
    if gated {
        l.norm(name("ffn_norm"), dim);
    }
    let mut dense = |kind: &str, width: usize| {
        if gated {
            l.matrix(name(&format!("ffn_gate{kind}")), [width, dim], false);
        }
        l.matrix(name(&format!("ffn_up{kind}")), [width, dim], false);
        l.matrix(name(&format!("ffn_down{kind}")), [dim, width], more);
    };
    if !is_sparse(shape, own, layer) {
        return dense("", own.dense);
    }
    if own.shared > 0 {
        dense("_shexp", own.shared);
    }
    let (count, ffn) = (shape.experts, shape.ffn);
    if gated {
        l.stacked(name("ffn_gate_exps"), count, [ffn, dim], false);
    }
    l.stacked(name("ffn_up_exps"), count, [ffn, dim], false);
    l.stacked(name("ffn_down_exps"), count, [dim, ffn], more);
    l.precise(name("ffn_gate_inp"), [count, dim]);
    if own.sigmoid {
        l.bias(format!("blk.{layer}.exp_probs_b.bias"), count);
    }
}

/// Keys beside those of all models, some in place of theirs.
pub(super) fn describe(metadata: &mut Metadata, shape: &Shape, own: &Hybrid) {
    let mut put = |key: &str, value: Value| {
        metadata.insert(format!("{}.{key}", own.architecture), value);
    };
    let number = |n: usize| Value::U64(n as u64);
    let each = |of: &dyn Fn(usize) -> usize| {
        Value::Array((0..shape.layers).map(|layer| number(of(layer))).collect())
    };
    let kv_heads = |layer| match mixer(own, layer) {
        Some(Mixer::Attention) => shape.kv_heads,
        _ => 0,
    };
    put("attention.head_count_kv", each(&kv_heads));
    let width = |layer| match has_ffn(own, layer) {
        true => own.dense,
        false => 0,
    };
    match own.alone {
        true => put("feed_forward_length", each(&width)),
        false => put("feed_forward_length", number(own.dense)),
    }
    if own.pattern.contains('C') {
        put("shortconv.l_cache", number(LFM2_TAPS));
    }
    let ssm = own.ssm;
    if own.pattern.contains('M') {
        for (key, value) in [
            ("ssm.conv_kernel", TAPS),
            ("ssm.state_size", ssm.state),
            ("ssm.group_count", ssm.groups),
            ("ssm.inner_size", ssm.heads * ssm.head_dim),
            ("ssm.time_step_rank", ssm.heads),
        ] {
            put(key, number(value));
        }
    }
    if own.shared > 0 {
        put("expert_shared_feed_forward_length", number(own.shared));
    }
    if shape.experts > 0 {
        put("expert_count", number(shape.experts));
        put("expert_used_count", number(shape.used));
        put("expert_feed_forward_length", number(shape.ffn));
        put("leading_dense_block_count", number(own.dense_layers));
        put("expert_gating_func", number(1 + usize::from(own.sigmoid)));
        if own.alone {
            put("expert_weights_norm", Value::Bool(true));
            put("expert_weights_scale", Value::F64(2.5));
        }
    }
    if own.alone {
        // llama.cpp wants this key too.
        let epsilon = Value::F64(shape.norm_epsilon.into());
        put("attention.layer_norm_epsilon", epsilon);
    }
    if own.architecture == "granitehybrid" {
        put("embedding_scale", Value::F64(12.0));
        put("residual_scale", Value::F64(0.22));
        put("attention.scale", Value::F64(1.0 / 128.0));
        put("logit_scale", Value::F64(6.0));
        put("rope.scaling.finetuned", Value::Bool(false));
    }
}
