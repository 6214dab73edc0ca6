//! Hunyuan dense: queries and keys are normed after rope.

use super::architecture::Architecture;
use super::llama;
use crate::QkNorm;
use crate::names::{self, Names};

pub(super) const HUNYUAN: Architecture = Architecture {
    name: "hunyuan-dense",
    gguf: &["hunyuan-dense"],
    hugging_face: &["hunyuan_v1_dense"],
    hugging_face_names: Names {
        q_norm: "model.layers.{}.self_attn.query_layernorm",
        k_norm: "model.layers.{}.self_attn.key_layernorm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    experts: false,
    finish: |spec, _| {
        spec.qk_norm_late = true;
        Ok(())
    },
    ..llama::LLAMA
};
