//! Qwen2 and Qwen3 with experts in all layers or in some. Those of Qwen2 are beside a shared one with a gate.

use super::architecture::Architecture;
use super::{qwen2, qwen3};
use crate::keys::Keys;
use crate::spec::{MOST_FFN, SharedExpert};
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const QWEN3_MOE: Architecture = Architecture {
    name: "qwen3moe",
    gguf: &["qwen3moe"],
    hugging_face: &["qwen3_moe"],
    experts: true,
    finish: |spec, keys| some_layers(spec, keys),
    ..qwen3::QWEN3
};

pub(super) const QWEN2_MOE: Architecture = Architecture {
    name: "qwen2moe",
    gguf: &["qwen2moe"],
    hugging_face: &["qwen2_moe"],
    experts: true,
    finish: |spec, keys| {
        if let Some(experts) = &mut spec.experts {
            experts.renormalise = false;
        }
        some_layers(spec, keys)?;
        gated_shared_expert(spec, keys)
    },
    ..qwen2::QWEN2
};

/// Configurations say which layers have experts.
pub(super) fn some_layers(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if keys.is_gguf() {
        return Ok(());
    }
    if let Some(experts) = &mut spec.experts {
        experts.renormalise = keys.bool("norm_topk_prob")?.unwrap_or(false);
    }
    let step = keys.size("decoder_sparse_step", Some(1), 1 << 16)?;
    let plain: &[Value] = match keys.value("mlp_only_layers") {
        Some(Value::Array(list)) => list,
        _ => &[],
    };
    let mixed = |i: u32| (i + 1).is_multiple_of(step) && !plain.contains(&Value::U64(i.into()));
    spec.expert_layers = (0..spec.layers).map(mixed).collect();
    Ok(())
}

/// Every token uses this expert. Its output is scaled by a gate.
pub(super) fn gated_shared_expert(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if let Some(experts) = &mut spec.experts {
        let key = keys.name(
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
        );
        experts.shared = Some(SharedExpert {
            ffn: keys.size(&key, Some(experts.ffn), MOST_FFN)?,
            gated: true,
        });
    }
    Ok(())
}
