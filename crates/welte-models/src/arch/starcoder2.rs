//! StarCoder 2: layer norms with bias, biases on all matrices, and a feed-forward part without a gate.

use super::architecture::{Architecture, Usual};
use super::llama;
use crate::QkNorm;
use crate::names::{self, Names};
use crate::spec::{Act, NormKind};

pub(super) const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    gguf: &["starcoder2"],
    hugging_face: &["starcoder2"],
    gguf_names: names::GGUF,
    hugging_face_names: Names {
        up: "model.layers.{}.mlp.c_fc",
        down: "model.layers.{}.mlp.c_proj",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: llama::windows,
    finish: |spec, keys| {
        spec.norm = NormKind::Layer { bias: true };
        spec.gated = false;
        if keys.is_gguf() {
            spec.act = Act::GeluTanh;
        }
        Ok(())
    },
};
