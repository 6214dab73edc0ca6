//! Granite 3: Llama with factors of the embeddings, of the scores, of what each part adds, and of the logits.

use super::architecture::Architecture;
use super::llama;
use crate::keys::Keys;
use crate::{Error, ModelSpec};

pub(super) const GRANITE: Architecture = Architecture {
    name: "granite",
    gguf: &["granite"],
    hugging_face: &["granite"],
    experts: false,
    finish: factors,
    ..llama::LLAMA
};

/// Reads the four factors. Logits are divided by theirs.
pub(super) fn factors(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let factor = |gguf: &str, hf: &str, default: f32| -> Result<f32, Error> {
        Ok(keys.positive(&keys.name(gguf, hf), Some(default.into()))? as f32)
    };
    spec.embedding_scale = factor("embedding_scale", "embedding_multiplier", 1.0)?;
    spec.attention_scale = factor(
        "attention.scale",
        "attention_multiplier",
        spec.attention_scale,
    )?;
    spec.residual_scale = factor("residual_scale", "residual_multiplier", 1.0)?;
    spec.logit_scale = 1.0 / factor("logit_scale", "logits_scaling", 1.0)?;
    Ok(())
}
