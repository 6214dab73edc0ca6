//! The tensors of synthetic models whose layers are alike, and of those with the gated delta rule.

use super::fill::Fill;
use super::layout::{Layout, decays};
use super::shape::{DeltaShape, Family};
use super::shape::{Shape, TAPS};

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape) {
    let family = &shape.family;
    l.ends(shape.vocab);
    l.norms(&["output_norm"]);
    l.each_layer(|l, layer| {
        l.norms(&["attn_norm"]);
        if shape.is_delta(layer) {
            delta_rule(l, shape);
        } else {
            attention(l, shape);
        }
        feed_forward(l, shape);
    });
    if shape.draft {
        l.draft_layer(|l| {
            l.norms(&["attn_norm"]);
            attention(l, shape);
            feed_forward(l, shape);
        });
    }
    if *family == Family::PhiMoe {
        l.bias("output_norm", shape.dim);
        l.bias("output", shape.vocab);
    }
    if let Some(factors) = shape.rope_factors() {
        let size = [1, factors.len()];
        l.floats("rope_freqs.weight", size, Fill::Given(factors));
    }
}

fn attention(l: &mut Layout<'_>, shape: &Shape) {
    let (dim, family) = (shape.dim, &shape.family);
    let (q, kv) = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    );
    if shape.is_gated() {
        // Each head's gate lies beside it.
        l.matrix("attn_q", [2 * q, dim]);
        l.matrix("attn_k", [kv, dim]);
        l.matrix("attn_v", [kv, dim]);
        l.matrix("attn_output", [dim, q]);
    } else {
        l.attention(q, kv);
    }
    if let Family::Qwen2 | Family::GptOss | Family::PhiMoe = family {
        for (part, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            l.bias(part, width);
        }
    }
    if let Family::GptOss | Family::PhiMoe = family {
        l.bias("attn_output", dim);
    }
    match family {
        Family::GptOss => l.floats("attn_sinks.weight", [1, shape.heads], Fill::Bias),
        Family::PhiMoe => l.bias("attn_norm", dim),
        Family::Llama | Family::Qwen2 => {}
        _ => {
            for part in ["attn_q_norm", "attn_k_norm"] {
                l.norm(part, shape.head_dim);
            }
        }
    }
}

fn delta_rule(l: &mut Layout<'_>, shape: &Shape) {
    let DeltaShape {
        key_heads,
        heads,
        dim: size,
    } = shape.delta;
    let (dim, values) = (shape.dim, heads * size);
    let channels = 2 * key_heads * size + values;
    l.matrix("attn_qkv", [channels, dim]);
    l.matrix("attn_gate", [values, dim]);
    l.matrix("ssm_beta", [heads, dim]);
    l.matrix("ssm_alpha", [heads, dim]);
    l.matrix("ssm_out", [dim, values]);
    l.floats("ssm_a", [1, heads], Fill::Given(decays(heads)));
    l.bias("ssm_dt", heads);
    l.norm("ssm_norm", size);
    l.precise("ssm_conv1d", [channels, TAPS]);
}

fn feed_forward(l: &mut Layout<'_>, shape: &Shape) {
    let (dim, ffn, count) = (shape.dim, shape.ffn, shape.experts);
    let gpt_oss = shape.family == Family::GptOss;
    let norms: &[&str] = if shape.family == Family::Gemma3 {
        &["ffn_norm", "post_attention_norm", "post_ffw_norm"]
    } else if gpt_oss || shape.is_gated() {
        &["post_attention_norm"]
    } else {
        &["ffn_norm"]
    };
    l.norms(norms);
    if !shape.has_experts() {
        return l.dense("", ffn);
    }
    l.experts(count, ffn);
    match shape.family {
        Family::Qwen35Moe => {
            // The shared expert is as wide as the others.
            l.dense("_shexp", ffn);
            l.precise("ffn_gate_inp_shexp", [1, dim]);
        }
        Family::PhiMoe => l.bias("ffn_norm", dim),
        Family::GptOss => {
            l.bias("ffn_gate_inp", count);
            for (part, width) in [("gate", ffn), ("up", ffn), ("down", dim)] {
                let name = format!("ffn_{part}_exps.bias");
                l.floats(&name, [count, width], Fill::Bias);
            }
        }
        _ => {}
    }
}
