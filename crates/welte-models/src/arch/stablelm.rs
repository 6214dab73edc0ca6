//! StableLM and StableLM 2: layer norms with bias, and rope for a part of each head. In the largest model attention and feed-forward
//! parts read the same norm, and queries and keys are normed per head.

use super::architecture::{Architecture, has, no_windows, rotate_by_default};
use super::llama;
use crate::QkNorm;
use crate::names::{self, Names, weight};
use crate::spec::NormKind;

pub(super) const STABLELM: Architecture = Architecture {
    name: "stablelm",
    gguf: &["stablelm"],
    hugging_face: &["stablelm"],
    hugging_face_names: Names {
        q_norm: "model.layers.{}.self_attn.q_layernorm",
        k_norm: "model.layers.{}.self_attn.k_layernorm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        spec.norm = NormKind::Layer { bias: true };
        // GGUF files say it of sequential models, too.
        spec.parallel = !has(spec, keys, |names| weight(names.ffn_norm, 0));
        rotate_by_default(spec, keys, 4)?;
        let first = |names: &Names| match keys.is_gguf() {
            true => weight(names.q_norm, 0),
            false => weight(names.q_norm, 0).replace(".weight", ".norms.0.weight"),
        };
        if has(spec, keys, first) {
            spec.qk_norm = QkNorm::Each;
        }
        Ok(())
    },
    ..llama::LLAMA
};
