//! Granite 3: Llama with factors of the embeddings, of the scores, of what each part adds, and of the logits.

use super::architecture::{Architecture, has};
use super::llama;
use crate::keys::Keys;
use crate::names::{self, Names, weight};
use crate::spec::{MOST_FFN, MOST_LAYERS, SharedExpert};
use crate::vision::{layers_in_gguf, projectors};
use crate::{Error, ModelSpec};

pub(super) const GRANITE: Architecture = Architecture {
    name: "granite",
    gguf: &["granite"],
    hugging_face: &["granite", "granite4_vision"],
    experts: false,
    finish: |spec, keys| {
        factors(spec, keys)?;
        parts_of_features(spec, keys)
    },
    ..llama::LLAMA
};

/// HyperCLOVA X: parts may norm their output too, and the factor of the logits multiplies them.
pub(super) const HYPERCLOVAX: Architecture = Architecture {
    name: "hyperclovax",
    gguf: &["hyperclovax"],
    hugging_face: &["hyperclovax"],
    hugging_face_names: Names {
        post_attn_norm: "model.layers.{}.post_norm1",
        post_ffn_norm: "model.layers.{}.post_norm2",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    finish: |spec, keys| {
        factors(spec, keys)?;
        spec.logit_scale = 1.0 / spec.logit_scale;
        spec.post_norm = if keys.is_gguf() {
            has(spec, keys, |names| weight(names.post_attn_norm, 0))
        } else {
            keys.bool("use_post_norm")?.unwrap_or(true)
        };
        Ok(())
    },
    ..GRANITE
};

/// Granite 3 with experts. Some models have a shared one.
pub(super) const GRANITE_MOE: Architecture = Architecture {
    name: "granitemoe",
    gguf: &["granitemoe"],
    hugging_face: &["granitemoe", "granitemoeshared"],
    hugging_face_names: names::HUGGING_FACE_GRANITE_HYBRID,
    experts: true,
    finish: |spec, keys| {
        factors(spec, keys)?;
        shared_expert(spec, keys)
    },
    ..llama::LLAMA
};

/// Reads the shared expert, if there is one.
pub(super) fn shared_expert(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = keys.name(
        "expert_shared_feed_forward_length",
        "shared_intermediate_size",
    );
    let shared = match keys.u32(&key)? {
        None | Some(0) => None,
        Some(_) => Some(SharedExpert {
            ffn: keys.size(&key, None, MOST_FFN)?,
            gated: false,
        }),
    };
    if let Some(experts) = &mut spec.experts {
        experts.shared = shared;
    }
    Ok(())
}

/// Granite Vision 4 adds parts of features before some of the layers.
fn parts_of_features(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let before: Vec<u32> = if keys.is_gguf() {
        match layers_in_gguf(keys)? {
            Some(layers) => layers,
            None => return Ok(()),
        }
    } else if keys.text("general.architecture")? == Some("granite4_vision") {
        let layers = keys.size("vision_config.num_hidden_layers", Some(12), MOST_LAYERS)?;
        let before = projectors(keys, layers)?.into_iter().map(|one| one.before);
        before.collect()
    } else {
        return Ok(());
    };
    if let Some(last) = before.last().filter(|last| **last > spec.layers) {
        let key = keys.name("deepstack_mapping", "spatial_target_layers");
        let problem = format!("names layer {last} of {}", spec.layers);
        return Err(keys.error(&key, problem));
    }
    // The first part takes the place of an embedding.
    spec.deep_features = before[1..].iter().map(|layer| layer - 1).collect();
    Ok(())
}

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
