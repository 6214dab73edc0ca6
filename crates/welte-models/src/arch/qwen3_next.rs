//! Qwen3-Next and Qwen3.5: three of four layers have the gated delta rule. The others have attention whose output is gated,
//! with rope for a quarter of each head. Norms multiply by `1 + w`. Models with experts have a shared one.

use super::architecture::{Architecture, StateSizes, leave_out_drafts, rotate_by_default};
use super::qwen3_moe;
use crate::keys::Keys;
use crate::spec::{Delta, LayerKind, MOST_HEAD_DIM, OutputGate};
use crate::{Error, ModelSpec, names};
use welte_formats::checkpoint::Value;

pub(super) const QWEN3_NEXT: Architecture = Architecture {
    name: "qwen3next",
    gguf: &["qwen3next"],
    hugging_face: &["qwen3_next"],
    gguf_names: names::GGUF_POST_ATTENTION,
    finish: |spec, keys| finish(spec, keys, false),
    ..qwen3_moe::QWEN3_MOE
};

/// Its GGUF files hold the heads of values in another order: neighbours have different key heads.
pub(super) const QWEN3_5: Architecture = Architecture {
    name: "qwen35",
    gguf: &["qwen35", "qwen35moe"],
    hugging_face: &[
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "minicpmv4_6",
    ],
    finish: |spec, keys| finish(spec, keys, keys.is_gguf()),
    ..QWEN3_NEXT
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>, tiled: bool) -> Result<(), Error> {
    if spec.experts.is_some() {
        (qwen3_moe::QWEN3_MOE.finish)(spec, keys)?;
    }
    leave_out_drafts(spec, keys, "mtp_num_hidden_layers")?;
    // GGUF converters have already added 1 to the weights.
    spec.norm_add = if keys.is_gguf() { 0.0 } else { 1.0 };
    spec.attention_gate = Some(OutputGate::default());
    // GGUF files do not say that the pairs of the axes take turns.
    if let Some(sections) = &mut spec.rope.sections {
        sections.interleaved = true;
    }
    rotate_by_default(spec, keys, 4)?;
    spec.layer_kinds = kinds(keys, spec.layers)?;
    spec.delta = Some(delta(keys, tiled)?);
    if let Some(experts) = &mut spec.experts {
        experts.renormalise = keys.bool("norm_topk_prob")?.unwrap_or(true);
    }
    qwen3_moe::gated_shared_expert(spec, keys)
}

fn delta(keys: &Keys<'_>, tiled: bool) -> Result<Delta, Error> {
    let sizes = StateSizes::read(
        keys,
        [
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
        ],
    )?;
    let key_dim = keys.name("ssm.state_size", "linear_key_head_dim");
    Ok(Delta {
        key_heads: sizes.groups,
        heads: sizes.heads,
        key_dim: keys.size(&key_dim, None, MOST_HEAD_DIM)?,
        value_dim: sizes.value_dim,
        taps: sizes.taps,
        tiled,
        by_channel: false,
    })
}

/// The kind of each layer: by a list, or every fourth has attention.
fn kinds(keys: &Keys<'_>, layers: u32) -> Result<Vec<LayerKind>, Error> {
    let key = keys.name("attention.recurrent_layers", "layer_types");
    let Some(Value::Array(list)) = keys.value(&key) else {
        let key = keys.name("full_attention_interval", "full_attention_interval");
        let every = keys.size(&key, Some(4), 1 << 16)?;
        let kind = |i: u32| {
            if (i + 1).is_multiple_of(every) {
                LayerKind::Attention
            } else {
                LayerKind::Delta
            }
        };
        return Ok((0..layers).map(kind).collect());
    };
    if list.len() < layers as usize {
        let problem = format!("has {} entries for {layers} layers", list.len());
        return Err(keys.error(&key, problem));
    }
    let kind = |value: &Value| match value {
        Value::Bool(recurrent) if *recurrent => Ok(LayerKind::Delta),
        Value::Bool(_) => Ok(LayerKind::Attention),
        Value::String(s) if s == "linear_attention" => Ok(LayerKind::Delta),
        Value::String(s) if s == "full_attention" => Ok(LayerKind::Attention),
        _ => Err(keys.error(
            &key,
            "has an unknown type; supported are linear_attention and full_attention",
        )),
    };
    list.iter().take(layers as usize).map(kind).collect()
}
