//! Qwen3-VL: Qwen3 whose rope follows three axes in turns, and whose first layers add parts of features.

use super::architecture::Architecture;
use super::{qwen3, qwen3_moe};
use crate::keys::Keys;
use crate::{Error, ModelSpec, names};
use welte_formats::checkpoint::Value;

pub(super) const QWEN3_VL: Architecture = Architecture {
    name: "qwen3vl",
    gguf: &["qwen3vl"],
    hugging_face: &["qwen3_vl", "qwen3_vl_text"],
    finish,
    ..qwen3::QWEN3
};

/// The same with experts. Directories hold their matrices transposed.
pub(super) const QWEN3_VL_MOE: Architecture = Architecture {
    name: "qwen3vlmoe",
    gguf: &["qwen3vlmoe"],
    hugging_face: &["qwen3_vl_moe", "qwen3_vl_moe_text"],
    hugging_face_names: names::HUGGING_FACE_QWEN3_VL_MOE,
    finish: |spec, keys| {
        (qwen3_moe::QWEN3_MOE.finish)(spec, keys)?;
        if let Some(experts) = &mut spec.experts {
            experts.renormalise = true;
        }
        finish(spec, keys)
    },
    ..qwen3_moe::QWEN3_MOE
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    interleave(spec, keys)?;
    let key = keys.name(
        "n_deepstack_layers",
        "vision_config.deepstack_visual_indexes",
    );
    let missing = |what: &str| keys.error(&key, format!("is missing; {what}"));
    let count = match keys.value(&key) {
        Some(Value::Array(list)) => list.len() as u32,
        None if keys.is_gguf() => {
            return Err(missing("it says how many layers read parts of features"));
        }
        // The language model alone reads no features.
        None if !keys.is_part() => 0,
        None => return Err(missing("it lists the layers that become parts of features")),
        Some(_) if keys.is_gguf() => keys.u32(&key)?.unwrap_or(0),
        Some(_) => return Err(keys.error(&key, "is not a list of layers")),
    };
    if count > spec.layers.min(MOST_PARTS) {
        let problem = format!("asks for features in {count} layers");
        return Err(keys.error(&key, problem));
    }
    spec.deep_features = (0..count).collect();
    Ok(())
}

/// The pairs of the three axes take turns, which GGUF files do not say.
fn interleave(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let Some(sections) = &mut spec.rope.sections else {
        let key = keys.name("rope.dimension_sections", "rope_scaling.mrope_section");
        let problem = "is missing; it says how many pairs of a head follow each axis";
        return Err(keys.error(&key, problem));
    };
    sections.interleaved = true;
    Ok(())
}

/// The most layers that add a part of a feature.
const MOST_PARTS: u32 = 64;
