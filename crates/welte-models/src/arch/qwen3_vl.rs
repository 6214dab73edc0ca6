//! Qwen3-VL: Qwen3 whose rope follows three axes in turns, and whose first layers add parts of features.

use super::architecture::Architecture;
use super::qwen3;
use crate::keys::Keys;
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const QWEN3_VL: Architecture = Architecture {
    name: "qwen3vl",
    gguf: &["qwen3vl"],
    hugging_face: &["qwen3_vl", "qwen3_vl_text"],
    finish,
    ..qwen3::QWEN3
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    // GGUF files do not say that the pairs of the axes take turns.
    if let Some(sections) = &mut spec.rope.sections {
        sections.interleaved = true;
    }
    let (key, count) = if keys.is_gguf() {
        let key = keys.name("n_deepstack_layers", "");
        let count = keys.u32(&key)?.unwrap_or(0);
        (key, count)
    } else {
        let key = "vision_config.deepstack_visual_indexes".to_string();
        let count = match keys.value(&key) {
            Some(Value::Array(list)) => list.len() as u32,
            _ => 0,
        };
        (key, count)
    };
    if count > spec.layers.min(MOST_PARTS) {
        let problem = format!("asks for features in {count} layers");
        return Err(keys.error(&key, problem));
    }
    spec.deep_features = count;
    Ok(())
}

/// The most layers that add a part of a feature.
const MOST_PARTS: u32 = 64;
