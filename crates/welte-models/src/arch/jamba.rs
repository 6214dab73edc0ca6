//! Jamba: most layers have the state space model of Mamba-1 with norms of its parts, the others attention without rope. Some
//! feed-forward parts are experts, whose shares do not sum to 1.

use super::architecture::{Architecture, has, no_windows};
use super::llama;
use super::mamba::{Sizes, selective};
use crate::keys::Keys;
use crate::names::{self, Names, weight};
use crate::spec::{LayerKind, LayerRope, SelectiveNorms};
use crate::{Error, ModelSpec};

pub(super) const JAMBA: Architecture = Architecture {
    name: "jamba",
    gguf: &["jamba"],
    hugging_face: &["jamba"],
    hugging_face_names: Names {
        ffn_norm: "model.layers.{}.pre_ff_layernorm",
        gate: "model.layers.{}.feed_forward.gate_proj",
        up: "model.layers.{}.feed_forward.up_proj",
        down: "model.layers.{}.feed_forward.down_proj",
        router: "model.layers.{}.feed_forward.router",
        experts: [
            "model.layers.{}.feed_forward.experts.[].gate_proj",
            "model.layers.{}.feed_forward.experts.[].up_proj",
            "model.layers.{}.feed_forward.experts.[].down_proj",
        ],
        final_norm: "model.final_layernorm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.layer_ropes.fill(LayerRope::None);
    let layers = 0..spec.layers;
    let with = |name: &dyn Fn(&Names) -> &'static str| -> Vec<bool> {
        let each = layers
            .clone()
            .map(|i| has(spec, keys, |names| weight(name(names), i)));
        each.collect()
    };
    let (attends, mixed) = (with(&|names| names.q), with(&|names| names.router));
    check_period(keys, &attends)?;
    let kind = |attends| match attends {
        true => LayerKind::Attention,
        false => LayerKind::Mamba,
    };
    spec.layer_kinds = attends.into_iter().map(kind).collect();
    // Configurations count experts even if no layer has any.
    if !mixed.contains(&true) {
        spec.experts = None;
    }
    if let Some(experts) = &mut spec.experts {
        experts.renormalise = false;
    }
    spec.expert_layers = mixed;
    let sizes = Sizes {
        inner: "",
        expand: "mamba_expand",
        state: "mamba_d_state",
        rank: "mamba_dt_rank",
        taps: "mamba_d_conv",
        conv_bias: "mamba_conv_bias",
        bias: "mamba_proj_bias",
    };
    spec.mamba = Some(selective(spec, keys, &sizes, SelectiveNorms::Weighted)?);
    Ok(())
}

/// Configurations say by a period and an offset which layers have attention.
fn check_period(keys: &Keys<'_>, attends: &[bool]) -> Result<(), Error> {
    let (period, offset) = ("attn_layer_period", "attn_layer_offset");
    if keys.is_gguf() || [period, offset].iter().all(|key| keys.value(key).is_none()) {
        return Ok(());
    }
    let every = keys.size(period, Some(8), u32::MAX)?;
    let first = keys.u32(offset)?.unwrap_or(4);
    let said = |layer: usize| layer as u64 % u64::from(every) == u64::from(first);
    let mut layers = attends.iter().enumerate();
    match layers.find(|(layer, attends)| said(*layer) != **attends) {
        None => Ok(()),
        Some((layer, attends)) => {
            let tensor = weight(JAMBA.hugging_face_names.q, layer as u32);
            let found = if *attends { "exists" } else { "is missing" };
            let problem = format!("is {every} with an offset of {first}, but {tensor} {found}");
            Err(keys.error(period, problem))
        }
    }
}
