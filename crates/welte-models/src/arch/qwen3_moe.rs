//! Qwen3 with experts in all layers or in some.

use super::architecture::Architecture;
use super::qwen3;
use welte_formats::checkpoint::Value;

pub(super) const QWEN3_MOE: Architecture = Architecture {
    name: "qwen3moe",
    gguf: &["qwen3moe"],
    hugging_face: &["qwen3_moe"],
    experts: true,
    finish: |spec, keys| {
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
    },
    ..qwen3::QWEN3
};
