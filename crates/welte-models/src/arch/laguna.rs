//! Laguna: experts chosen by sigmoid with a bias beside a shared one. The first layers have none. A softplus gates attention's output, for
//! each head or each value. Layers with a window may have more heads than the others, and they have a rope of their own.

use super::architecture::{Architecture, ropes_by_window, window_pattern, windows_by_type};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::names::{Names, weight};
use crate::spec::{
    LayerRope, LayerShape, MOST_FFN, MOST_HEADS, OutputGate, Rope, Scaling, SharedExpert,
};
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const LAGUNA: Architecture = Architecture {
    name: "laguna",
    gguf: &["laguna"],
    hugging_face: &["laguna"],
    hugging_face_names: Names {
        attn_gate: "model.layers.{}.self_attn.g_proj",
        choice_bias: "model.layers.{}.mlp.experts.e_score_correction_bias",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    lists: true,
    windows,
    finish,
    ..llama::LLAMA
};

/// Files that do not list the layers with a window have it in all but every fourth, from the first on.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.u32(&key)?.unwrap_or(0);
    if !keys.is_gguf() {
        return windows_by_type(keys, layers, window);
    }
    let pattern = keys.name("attention.sliding_window_pattern", "");
    if let Some(Value::Array(_)) = keys.value(&pattern) {
        return window_pattern(keys, layers, window);
    }
    Ok((0..layers)
        .map(|i| if i % 4 == 0 { 0 } else { window })
        .collect())
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if keys.bool("moe_apply_router_weight_on_input")? == Some(true) {
        return Err(keys.error("moe_apply_router_weight_on_input", "is not supported"));
    }
    let cap = "moe_router_logit_softcapping";
    if keys.f64(cap)?.unwrap_or(0.0) > 0.0 {
        return Err(keys.error(cap, "is not supported"));
    }
    deepseek2::experts(spec, keys)?;
    if let Some(e) = &mut spec.experts {
        let key = keys.name(
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
        );
        e.shared = Some(SharedExpert {
            ffn: keys.size(&key, Some(e.ffn), MOST_FFN)?,
            gated: false,
        });
    }
    shapes(spec, keys)?;
    spec.attention_gate = Some(OutputGate {
        per_head: per_head(spec, keys)?,
        softplus: true,
    });
    ropes(spec, keys)
}

/// Reads the heads of each layer.
fn shapes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = keys.name("attention.head_count", "num_attention_heads_per_layer");
    let Some(list) = keys.each(&key, spec.layers, MOST_HEADS)? else {
        return Ok(());
    };
    if let Some(heads) = list
        .iter()
        .find(|heads| !heads.is_multiple_of(spec.kv_heads))
    {
        let problem = format!(
            "has {heads}, which {} heads of keys and values do not divide",
            spec.kv_heads
        );
        return Err(keys.error(&key, problem));
    }
    spec.heads = list.iter().copied().max().unwrap_or(spec.heads);
    if list.iter().any(|heads| *heads != spec.heads) {
        let shape = |heads| LayerShape {
            heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            ffn: spec.ffn,
        };
        spec.layer_shapes = list.into_iter().map(shape).collect();
    }
    Ok(())
}

/// Whether gates are those of heads. Files say it by the number of gates.
fn per_head(spec: &ModelSpec, keys: &Keys<'_>) -> Result<bool, Error> {
    if keys.is_gguf() {
        let gate = keys.checkpoint.tensor(&weight(names::GGUF.attn_gate, 0));
        return Ok(gate.is_none_or(|gate| gate.n == spec.shape(0).heads as usize));
    }
    match keys.value("gating") {
        None | Some(Value::Bool(true)) => Ok(true),
        Some(Value::String(kind)) if kind == "per-head" => Ok(true),
        Some(Value::String(kind)) if kind == "per-element" => Ok(false),
        _ => Err(keys.error("gating", "is neither per-head nor per-element")),
    }
}

/// Layers with a window have a rope of their own, which is not scaled.
fn ropes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let section = |kind: &str, key: &str| format!("rope_parameters.{kind}_attention.{key}");
    let part = |kind: &str| -> Result<u32, Error> {
        let key = section(kind, "partial_rotary_factor");
        let rot = keys.positive(&key, Some(1.0))? * f64::from(spec.head_dim);
        match rot as u32 {
            rot if rot > 0 && rot <= spec.head_dim && rot.is_multiple_of(2) => Ok(rot),
            rot => {
                let problem = format!("rotates {rot} of {} elements", spec.head_dim);
                Err(keys.error(&key, problem))
            }
        }
    };
    let (rot, theta) = if keys.is_gguf() {
        let rot = keys.name("rope.dimension_count_swa", "");
        let theta = keys.name("rope.freq_base_swa", "");
        (keys.size(&rot, Some(spec.rope.rot), spec.head_dim)?, theta)
    } else {
        spec.rope.rot = part("full")?;
        (part("sliding")?, section("sliding", "rope_theta"))
    };
    if spec.windows.iter().all(|window| *window == 0) {
        return Ok(());
    }
    spec.local_rope = Some(Rope {
        theta: keys.positive(&theta, Some(spec.rope.theta.into()))? as f32,
        rot,
        scaling: Scaling::None,
        ..spec.rope
    });
    ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    Ok(())
}
