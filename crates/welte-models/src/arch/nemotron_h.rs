//! Nemotron-H: each layer has the state space model of Mamba-2, attention without rope, or a feed-forward part with a squared
//! ReLU and no gate.

use super::{Architecture, llama};
use crate::keys::Keys;
use crate::spec::{Act, LayerKind, LayerRope, MOST_HEAD_DIM, MOST_HEADS, Mamba};
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    gguf: &["nemotron_h"],
    hugging_face: &["nemotron_h"],
    gguf_names: names::GGUF_NEMOTRON_H,
    hugging_face_names: names::HUGGING_FACE_NEMOTRON_H,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    // Configurations count experts even if no layer has any.
    experts: true,
    lists: false,
    windows: llama::windows,
    finish,
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.alone = true;
    spec.gated = false;
    spec.act = Act::Relu2;
    let act = "mlp_hidden_act";
    if !matches!(keys.text(act)?, None | Some("relu2")) {
        return Err(keys.error(act, "is not supported; supported is relu2"));
    }
    let head_dim = "attention_head_dim";
    if keys.value(head_dim).is_some() && keys.value("head_dim").is_none() {
        spec.head_dim = keys.size(head_dim, None, MOST_HEAD_DIM)?;
        spec.attention_scale = 1.0 / (spec.head_dim as f32).sqrt();
    }
    spec.layer_ropes.fill(LayerRope::None);
    spec.layer_kinds = match keys.is_gguf() {
        true => gguf_kinds(keys, spec.layers)?,
        false => kinds(keys, spec.layers)?,
    };
    spec.experts = None;
    spec.expert_layers.fill(false);
    spec.mamba = Some(mamba(keys)?);
    Ok(())
}

fn mamba(keys: &Keys<'_>) -> Result<Mamba, Error> {
    let size = |gguf: &str, hf: &str, most| keys.size(&keys.name(gguf, hf), None, most);
    let heads = size("ssm.time_step_rank", "mamba_num_heads", MOST_HEADS)?;
    let value_dim = match keys.is_gguf() {
        true => {
            let key = keys.name("ssm.inner_size", "");
            let values = keys.size(&key, None, MOST_HEADS * MOST_HEAD_DIM)?;
            if !values.is_multiple_of(heads) || values / heads > MOST_HEAD_DIM {
                let problem = format!("is {values}, which does not fit {heads} heads");
                return Err(keys.error(&key, problem));
            }
            values / heads
        }
        false => size("", "mamba_head_dim", MOST_HEAD_DIM)?,
    };
    let groups_key = keys.name("ssm.group_count", "n_groups");
    let groups = keys.size(&groups_key, Some(1), heads)?;
    if !heads.is_multiple_of(groups) {
        let problem = format!("is {groups}, which does not divide {heads} heads");
        return Err(keys.error(&groups_key, problem));
    }
    let taps_key = keys.name("ssm.conv_kernel", "conv_kernel");
    let taps = keys.size(&taps_key, Some(4), 64)?;
    if taps < 2 {
        return Err(keys.error(&taps_key, "is 1; must be at least 2"));
    }
    Ok(Mamba {
        groups,
        heads,
        key_dim: size("ssm.state_size", "ssm_state_size", MOST_HEAD_DIM)?,
        value_dim,
        taps,
        bias: keys.bool("use_conv_bias")?.unwrap_or(true),
    })
}

/// Layers with heads of keys have attention, layers with a width are feed-forward parts.
fn gguf_kinds(keys: &Keys<'_>, layers: u32) -> Result<Vec<LayerKind>, Error> {
    let list = |key: &str| {
        let key = keys.name(key, "");
        let list: &[Value] = match keys.value(&key) {
            Some(Value::Array(list)) => list,
            _ => &[],
        };
        if list.len() != layers as usize {
            let problem = format!("has {} entries for {layers} layers", list.len());
            return Err(keys.error(&key, problem));
        }
        let some = |value: &Value| !matches!(value, Value::U64(0) | Value::I64(0));
        Ok(list.iter().map(some).collect::<Vec<bool>>())
    };
    let (attention, feed_forward) = (
        list("attention.head_count_kv")?,
        list("feed_forward_length")?,
    );
    let kind = |(attends, feeds)| match (attends, feeds) {
        (true, _) => LayerKind::Attention,
        (_, true) => LayerKind::None,
        _ => LayerKind::Mamba,
    };
    Ok(attention.into_iter().zip(feed_forward).map(kind).collect())
}

/// Configurations list the kinds of layers by name, older ones by a letter each.
fn kinds(keys: &Keys<'_>, layers: u32) -> Result<Vec<LayerKind>, Error> {
    let key = match keys.value("layers_block_type") {
        Some(_) => "layers_block_type",
        None => "hybrid_override_pattern",
    };
    let names: Vec<&str> = match keys.value(key) {
        Some(Value::Array(list)) => list.iter().map(text).collect(),
        Some(Value::String(letters)) => letters.split("").filter(|c| !c.is_empty()).collect(),
        _ => return Err(keys.error(key, "is missing")),
    };
    if names.len() != layers as usize {
        let problem = format!("has {} entries for {layers} layers", names.len());
        return Err(keys.error(key, problem));
    }
    let kind = |name: &str| match name {
        "linear_attention" | "mamba" | "M" => Ok(LayerKind::Mamba),
        "full_attention" | "attention" | "*" => Ok(LayerKind::Attention),
        "mlp" | "-" => Ok(LayerKind::None),
        "moe" | "E" => Err(keys.error(key, "has experts, which are not supported for Nemotron-H")),
        _ => Err(keys.error(
            key,
            "has an unknown type; supported are linear_attention, full_attention and mlp",
        )),
    };
    names.into_iter().map(kind).collect()
}

/// The text of a value, or nothing.
fn text(value: &Value) -> &str {
    match value {
        Value::String(text) => text,
        _ => "",
    }
}
