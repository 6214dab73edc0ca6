//! Ministral 3, and Mistral Small 3 as a multimodal model: Mistral with YaRN. Queries grow with their position.

use super::architecture::Architecture;
use super::llama;
use crate::ModelSpec;
use crate::keys::Keys;
use crate::spec::{PositionScale, Scaling};

pub(super) const MINISTRAL3: Architecture = Architecture {
    name: "ministral3",
    gguf: &["mistral3"],
    hugging_face: &["ministral3", "mistral3"],
    finish: |spec, keys| position_scale(spec, keys),
    ..llama::LLAMA
};

/// Reads how queries grow. The original context is that of YaRN.
pub(super) fn position_scale(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), crate::Error> {
    let nested = ["rope_parameters", "rope_scaling"].map(|s| format!("{s}.llama_4_scaling_beta"));
    let key = if keys.is_gguf() {
        keys.name("attention.temperature_scale", "")
    } else {
        nested
            .iter()
            .find(|key| keys.value(key).is_some())
            .unwrap_or(&nested[0])
            .clone()
    };
    let beta = keys.f64(&key)?.unwrap_or(0.0);
    if beta == 0.0 {
        return Ok(());
    }
    let Scaling::Yarn { original, .. } = spec.rope.scaling else {
        return Err(keys.error(&key, "needs YaRN scaling, which gives the original context"));
    };
    spec.position_scale = Some(PositionScale {
        beta: beta as f32,
        original,
        ahead: 0,
        still: false,
    });
    Ok(())
}
