//! The tensors and keys of synthetic models with attention over latents: DeepSeek V2 and GLM-4.7 Flash.

use super::Shape;
use super::layout::Layout;
use super::shape::LatentShape;
use crate::{Metadata, Value, quantize};

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape, own: &LatentShape) {
    let (dim, heads, layers) = (shape.dim, shape.heads, shape.layers);
    l.matrix("token_embd.weight", [shape.vocab, dim], shape.tied);
    if !shape.tied {
        l.matrix("output.weight", [shape.vocab, dim], true);
    }
    l.norm("output_norm.weight", dim);
    let queries = heads * (own.plain + own.rope);
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let more = quantize::more_bits(layer, layers);
        l.norm(name("attn_norm"), dim);
        if own.query_rank > 0 {
            l.matrix(name("attn_q_a"), [own.query_rank, dim], false);
            l.norm(name("attn_q_a_norm"), own.query_rank);
            l.matrix(name("attn_q_b"), [queries, own.query_rank], false);
        } else {
            l.matrix(name("attn_q"), [queries, dim], false);
        }
        l.matrix(name("attn_kv_a_mqa"), [own.rank + own.rope, dim], false);
        l.norm(name("attn_kv_a_norm"), own.rank);
        l.stacked(name("attn_k_b"), heads, [own.rank, own.plain], false);
        l.stacked(name("attn_v_b"), heads, [own.value, own.rank], false);
        l.matrix(name("attn_output"), [dim, heads * own.value], false);
        l.norm(name("ffn_norm"), dim);
        let mut part = |kind: &str, width: usize| {
            l.matrix(name(&format!("ffn_gate{kind}")), [width, dim], false);
            l.matrix(name(&format!("ffn_up{kind}")), [width, dim], false);
            l.matrix(name(&format!("ffn_down{kind}")), [dim, width], more);
        };
        if layer == 0 {
            part("", own.dense);
            continue;
        }
        part("_shexp", own.shared * shape.ffn);
        let (count, ffn) = (shape.experts, shape.ffn);
        l.stacked(name("ffn_gate_exps"), count, [ffn, dim], false);
        l.stacked(name("ffn_up_exps"), count, [ffn, dim], false);
        l.stacked(name("ffn_down_exps"), count, [dim, ffn], more);
        l.precise(name("ffn_gate_inp"), [count, dim]);
        if own.sigmoid {
            l.bias(format!("blk.{layer}.exp_probs_b.bias"), count);
        }
    }
}

/// Keys beside those of all models, some in place of theirs.
pub(super) fn describe(metadata: &mut Metadata, shape: &Shape, own: &LatentShape) {
    let mut put = |key: &str, value: Value| {
        metadata.insert(format!("deepseek2.{key}"), value);
    };
    for (key, value) in [
        ("attention.head_count_kv", 1),
        ("attention.key_length", own.rank + own.rope),
        ("attention.value_length", own.rank),
        ("attention.key_length_mla", own.plain + own.rope),
        ("attention.value_length_mla", own.value),
        ("attention.kv_lora_rank", own.rank),
        ("rope.dimension_count", own.rope),
        ("feed_forward_length", own.dense),
        ("leading_dense_block_count", 1),
        ("expert_count", shape.experts),
        ("expert_used_count", shape.used),
        ("expert_feed_forward_length", shape.ffn),
        ("expert_shared_count", own.shared),
        ("expert_gating_func", 1 + usize::from(own.sigmoid)),
    ] {
        put(key, Value::U64(value as u64));
    }
    if own.query_rank > 0 {
        put("attention.q_lora_rank", Value::U64(own.query_rank as u64));
    }
    put("expert_weights_scale", Value::F64(own.scale.into()));
    put("expert_weights_norm", Value::Bool(own.sigmoid));
    if own.yarn {
        put("rope.scaling.type", Value::String("yarn".into()));
        put("rope.scaling.factor", Value::F64(40.0));
        let original = "rope.scaling.original_context_length";
        put(original, Value::U64(4096));
        put("rope.scaling.yarn_log_multiplier", Value::F64(0.0707));
    }
}
