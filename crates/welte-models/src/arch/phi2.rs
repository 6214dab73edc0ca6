//! Phi-1, Phi-1.5 and Phi-2: attention and feed-forward parts read the same layer norm, all matrices have biases, a part of each head is
//! rotated, and the feed-forward part has no gate.

use super::architecture::{Architecture, has, no_windows, rotate_by_default};
use super::llama;
use crate::names::{self, Names, bias};
use crate::spec::{Act, NormKind};

pub(super) const PHI2: Architecture = Architecture {
    name: "phi2",
    gguf: &["phi2"],
    hugging_face: &["phi"],
    hugging_face_names: Names {
        o: "model.layers.{}.self_attn.dense",
        up: "model.layers.{}.mlp.fc1",
        down: "model.layers.{}.mlp.fc2",
        final_norm: "model.final_layernorm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        if keys.bool("qk_layernorm")? == Some(true) {
            return Err(keys.error("qk_layernorm", "is not supported"));
        }
        spec.norm = NormKind::Layer { bias: true };
        spec.parallel = true;
        spec.gated = false;
        spec.biases.head = has(spec, keys, |names| bias(names.head, 0));
        if keys.is_gguf() {
            spec.act = Act::GeluTanh;
        }
        rotate_by_default(spec, keys, 2)
    },
    ..llama::LLAMA
};
