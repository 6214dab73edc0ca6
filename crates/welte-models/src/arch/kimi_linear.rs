//! Kimi Linear: three of four layers have the gated delta rule with decays by channel (KDA). The others have attention over latents
//! without rope. Experts are those of DeepSeek V3.

use super::architecture::{Architecture, kinds_by_heads, no_windows, read_taps};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{Delta, LayerKind, LayerRope, MOST_HEAD_DIM, MOST_HEADS};
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const KIMI_LINEAR: Architecture = Architecture {
    name: "kimi_linear",
    gguf: &["kimi-linear"],
    hugging_face: &["kimi_linear"],
    hugging_face_names: Names {
        router: "model.layers.{}.block_sparse_moe.gate",
        choice_bias: "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias",
        experts: [
            "model.layers.{}.block_sparse_moe.experts.[].w1",
            "model.layers.{}.block_sparse_moe.experts.[].w3",
            "model.layers.{}.block_sparse_moe.experts.[].w2",
        ],
        shared_expert: [
            "model.layers.{}.block_sparse_moe.shared_experts.gate_proj",
            "model.layers.{}.block_sparse_moe.shared_experts.up_proj",
            "model.layers.{}.block_sparse_moe.shared_experts.down_proj",
        ],
        ..names::HUGGING_FACE
    },
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    deepseek2::latents(spec, keys)?;
    let unrotated = "mla_use_nope";
    if keys.bool(unrotated)? == Some(false) {
        return Err(keys.error(
            unrotated,
            "is false; only attention without rope is supported",
        ));
    }
    spec.layer_ropes.fill(LayerRope::None);
    let scoring = "moe_router_activation_func";
    if !matches!(keys.text(scoring)?, None | Some("sigmoid")) {
        return Err(keys.error(scoring, "is not supported; supported is sigmoid"));
    }
    deepseek2::experts(spec, keys)?;
    spec.layer_kinds = kinds(keys, spec.layers)?;
    spec.delta = Some(delta(spec, keys)?);
    Ok(())
}

fn delta(spec: &ModelSpec, keys: &Keys<'_>) -> Result<Delta, Error> {
    let heads = if keys.is_gguf() {
        spec.heads
    } else {
        let key = keys.first_name("", &["linear_attn_config.num_heads", "linear_num_heads"]);
        keys.size(&key, None, MOST_HEADS)?
    };
    let dim = ["linear_attn_config.head_dim", "linear_head_dim"];
    let dim = keys.size(&keys.first_name("kda.head_dim", &dim), None, MOST_HEAD_DIM)?;
    let taps = [
        "linear_attn_config.short_conv_kernel_size",
        "linear_conv_kernel_dim",
    ];
    let taps_key = keys.first_name("ssm.conv_kernel", &taps);
    let taps = read_taps(keys, &taps_key, 4)?;
    Ok(Delta {
        key_heads: heads,
        heads,
        key_dim: dim,
        value_dim: dim,
        taps,
        tiled: false,
        by_channel: true,
    })
}

/// GGUF files say by the heads of keys which layers have attention. Configurations list these layers, counted from 1, or the type of
/// each layer.
fn kinds(keys: &Keys<'_>, layers: u32) -> Result<Vec<LayerKind>, Error> {
    let kind = |attends| {
        if attends {
            LayerKind::Attention
        } else {
            LayerKind::Delta
        }
    };
    let listed = "linear_attn_config.full_attn_layers";
    if let Some(Value::Array(list)) = keys.value(listed) {
        let number = |value: &Value| match value {
            Value::U64(n) => u32::try_from(*n).ok(),
            _ => None,
        };
        let known = |n: &u32| (1..=layers).contains(n);
        let numbers = list.iter().map(|value| number(value).filter(known));
        let numbers = numbers.collect::<Option<Vec<u32>>>().ok_or_else(|| {
            let problem = format!("has an entry that is not a layer from 1 to {layers}");
            keys.error(listed, problem)
        })?;
        return Ok((1..=layers).map(|n| kind(numbers.contains(&n))).collect());
    }
    let names: [&[&str]; 2] = [&["linear_attention"], &["full_attention"]];
    kinds_by_heads(keys, layers, LayerKind::Delta, names)
}
