//! Cohere 2 (Command R7B, Command A): attention and feed-forward parts read the same layer norm. Three of four layers have
//! a window and rope; the others see everything and have no rope.

use super::architecture::{Architecture, windowed_but_every};
use crate::spec::{LayerRope, NormKind};
use crate::{QkNorm, names};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    gguf: &["cohere2"],
    hugging_face: &["cohere2"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, keys| {
        spec.norm = NormKind::Layer { bias: false };
        spec.parallel = true;
        spec.rope.interleaved = true;
        spec.tied = true;
        spec.logit_scale =
            keys.positive(&keys.name("logit_scale", "logit_scale"), Some(0.0625))? as f32;
        spec.layer_ropes = spec
            .windows
            .iter()
            .map(|window| match window {
                0 => LayerRope::None,
                _ => LayerRope::Main,
            })
            .collect();
        Ok(())
    },
};
