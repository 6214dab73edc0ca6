//! Nemotron-H: each layer has the state space model of Mamba-2, attention without rope, or a feed-forward part with a squared
//! ReLU and no gate. In Nemotron 3 the feed-forward parts are experts beside a shared one. They may compute in a narrower width.

use super::architecture::{Architecture, StateSizes, Usual, has_choice_bias, leave_out_drafts};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::spec::{Act, LayerKind, LayerRope, MOST_FFN, MOST_HEAD_DIM, Mamba, SharedExpert};
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    gguf: &["nemotron_h", "nemotron_h_moe"],
    hugging_face: &["nemotron_h"],
    gguf_names: names::GGUF_NEMOTRON_H,
    hugging_face_names: names::HUGGING_FACE_NEMOTRON_H,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: true,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: llama::windows,
    finish,
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let listed = spec.layers;
    leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
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
    let (mut kinds, mut expert_layers) = if keys.is_gguf() {
        gguf_kinds(keys, listed, spec.experts.is_some())?
    } else {
        kinds(keys, spec.layers)?
    };
    kinds.truncate(spec.layers as usize);
    expert_layers.truncate(spec.layers as usize);
    spec.layer_kinds = kinds;
    // Configurations count experts even if no layer has any.
    if expert_layers.contains(&true) {
        mixture(spec, keys, expert_layers)?
    } else {
        spec.experts = None;
        spec.expert_layers.fill(false);
    }
    spec.mamba = Some(mamba(keys)?);
    Ok(())
}

fn mamba(keys: &Keys<'_>) -> Result<Mamba, Error> {
    let names = [
        "n_groups",
        "mamba_num_heads",
        "mamba_head_dim",
        "conv_kernel",
    ];
    let sizes = StateSizes::read(keys, names)?;
    sizes.mamba(keys, ["ssm_state_size", "use_conv_bias"])
}

/// How experts are chosen, the shared expert, and the width in which experts compute.
fn mixture(spec: &mut ModelSpec, keys: &Keys<'_>, expert_layers: Vec<bool>) -> Result<(), Error> {
    if spec.experts.is_none() {
        return Err(keys.error(
            "n_routed_experts",
            "is missing, although layers have experts",
        ));
    }
    deepseek2::experts(spec, keys)?;
    spec.expert_layers = expert_layers;
    let biased = has_choice_bias(spec, keys);
    let Some(experts) = &mut spec.experts else {
        return Ok(());
    };
    experts.choice_bias = biased;
    let shared = keys.name(
        "expert_shared_feed_forward_length",
        "moe_shared_expert_intermediate_size",
    );
    experts.shared = Some(SharedExpert {
        ffn: keys.size(&shared, None, MOST_FFN)?,
        gated: false,
    });
    let latent = keys.name("moe_latent_size", "moe_latent_size");
    experts.latent = match keys.u32(&latent) {
        Ok(None | Some(0)) => None,
        _ => Some(keys.size(&latent, None, spec.dim)?),
    };
    Ok(())
}

/// The kinds of layers, and which of them have experts.
type Kinds = (Vec<LayerKind>, Vec<bool>);

/// Layers with heads of keys have attention, layers with a width are feed-forward parts: of experts, or all dense.
fn gguf_kinds(keys: &Keys<'_>, layers: u32, experts: bool) -> Result<Kinds, Error> {
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
    let kinds: Vec<_> = attention.into_iter().zip(feed_forward).map(kind).collect();
    let mixed = |kind: &LayerKind| experts && *kind == LayerKind::None;
    let expert_layers = kinds.iter().map(mixed).collect();
    Ok((kinds, expert_layers))
}

/// Configurations list the kinds of layers by name, older ones by a letter each.
fn kinds(keys: &Keys<'_>, layers: u32) -> Result<Kinds, Error> {
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
        "mlp" | "-" | "moe" | "E" => Ok(LayerKind::None),
        _ => Err(keys.error(
            key,
            "has an unknown type; supported are linear_attention, full_attention, mlp and moe",
        )),
    };
    let mixed = |name: &&str| matches!(*name, "moe" | "E");
    let expert_layers = names.iter().map(mixed).collect();
    let kinds: Result<_, _> = names.into_iter().map(kind).collect();
    Ok((kinds?, expert_layers))
}

/// The text of a value, or nothing.
fn text(value: &Value) -> &str {
    match value {
        Value::String(text) => text,
        _ => "",
    }
}
