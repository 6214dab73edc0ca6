//! Arcee's Trinity: norms before and after each part, a gate for each value of attention's output, and experts chosen by sigmoid with a
//! bias beside a shared one. Three of four layers have a window and rope; the others see everything and have no rope. The first layers
//! have no experts.

use super::architecture::{Architecture, windowed_but_every};
use super::{cohere2, deepseek2, llama};
use crate::QkNorm;
use crate::names::Names;
use crate::spec::OutputGate;

pub(super) const AFMOE: Architecture = Architecture {
    name: "afmoe",
    gguf: &["afmoe"],
    hugging_face: &["afmoe"],
    hugging_face_names: Names {
        ffn_norm: "model.layers.{}.pre_mlp_layernorm",
        post_ffn_norm: "model.layers.{}.post_mlp_layernorm",
        router: "model.layers.{}.mlp.router.gate",
        choice_bias: "model.layers.{}.mlp.expert_bias",
        ..deepseek2::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, keys| {
        deepseek2::experts(spec, keys)?;
        spec.post_norm = true;
        spec.attention_gate = Some(OutputGate::default());
        cohere2::rope_in_windows_only(spec);
        if keys.is_gguf() || keys.bool("mup_enabled")?.unwrap_or(false) {
            spec.embedding_scale = (spec.dim as f32).sqrt();
        }
        Ok(())
    },
    ..llama::LLAMA
};
