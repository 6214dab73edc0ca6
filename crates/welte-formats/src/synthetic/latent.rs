//! The tensors and keys of synthetic models with attention over latents: DeepSeek V2 and GLM-4.7 Flash.

use super::Shape;
use super::keys::Keys;
use super::layout::Layout;
use super::shape::LatentShape;
use crate::Value;

pub(super) fn lay_out(l: &mut Layout<'_>, shape: &Shape, own: &LatentShape) {
    let (dim, heads, count) = (shape.dim, shape.heads, shape.experts);
    let queries = heads * (own.plain + own.rope);
    l.ends(shape.vocab);
    l.norms(&["output_norm"]);
    l.each_layer(|l, layer| {
        l.norms(&["attn_norm", "ffn_norm"]);
        if own.query_rank > 0 {
            l.matrix("attn_q_a", [own.query_rank, dim]);
            l.norm("attn_q_a_norm", own.query_rank);
            l.matrix("attn_q_b", [queries, own.query_rank]);
        } else {
            l.matrix("attn_q", [queries, dim]);
        }
        l.matrix("attn_kv_a_mqa", [own.rank + own.rope, dim]);
        l.norm("attn_kv_a_norm", own.rank);
        l.stacked("attn_k_b", heads, [own.rank, own.plain]);
        l.stacked("attn_v_b", heads, [own.value, own.rank]);
        l.matrix("attn_output", [dim, heads * own.value]);
        if layer == 0 {
            return l.dense("", own.dense);
        }
        l.dense("_shexp", own.shared * shape.ffn);
        l.experts(count, shape.ffn);
        if own.sigmoid {
            l.bias("exp_probs_b", count);
        }
    });
}

/// Keys beside those of all models, some in place of theirs.
pub(super) fn describe(keys: &mut Keys<'_>, own: &LatentShape) {
    keys.experts();
    keys.numbers(&[
        ("attention.head_count_kv", 1),
        ("attention.key_length", own.rank + own.rope),
        ("attention.value_length", own.rank),
        ("attention.key_length_mla", own.plain + own.rope),
        ("attention.value_length_mla", own.value),
        ("attention.kv_lora_rank", own.rank),
        ("rope.dimension_count", own.rope),
        ("feed_forward_length", own.dense),
        ("leading_dense_block_count", 1),
        ("expert_shared_count", own.shared),
        ("expert_gating_func", 1 + usize::from(own.sigmoid)),
    ]);
    if own.query_rank > 0 {
        keys.numbers(&[("attention.q_lora_rank", own.query_rank)]);
    }
    keys.floats(&[("expert_weights_scale", own.scale)]);
    keys.put("expert_weights_norm", Value::Bool(own.sigmoid));
    if own.yarn {
        keys.put("rope.scaling.type", Value::String("yarn".into()));
        keys.floats(&[("rope.scaling.factor", 40.0)]);
        keys.numbers(&[("rope.scaling.original_context_length", 4096)]);
        keys.put("rope.scaling.yarn_log_multiplier", Value::F64(0.0707));
    }
}
