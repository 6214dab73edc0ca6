//! Hunyuan dense: queries and keys are normed after rope.

use super::architecture::Architecture;
use super::llama;
use crate::QkNorm;
use crate::names::{self, Names};
use crate::spec::{MOST_FFN, SharedExpert};

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

/// Hunyuan with experts (A13B): they are chosen by softmax beside a shared one.
pub(super) const HUNYUAN_MOE: Architecture = Architecture {
    name: "hunyuan-moe",
    gguf: &["hunyuan-moe"],
    hugging_face: &["hunyuan_v1_moe"],
    hugging_face_names: Names {
        router: "model.layers.{}.mlp.gate.wg",
        shared_expert: [
            "model.layers.{}.mlp.shared_mlp.gate_proj",
            "model.layers.{}.mlp.shared_mlp.up_proj",
            "model.layers.{}.mlp.shared_mlp.down_proj",
        ],
        ..HUNYUAN.hugging_face_names
    },
    experts: true,
    finish: |spec, keys| {
        spec.qk_norm_late = true;
        if keys.bool("use_cla")? == Some(true) {
            return Err(keys.error("use_cla", "is not supported"));
        }
        let Some(experts) = &mut spec.experts else {
            return Ok(());
        };
        let key = keys.name("expert_shared_feed_forward_length", "intermediate_size");
        let one = keys.size(&key, Some(spec.ffn), MOST_FFN)?;
        let count_key = keys.name("", "num_shared_expert");
        let count = if keys.is_gguf() {
            1
        } else {
            keys.size(&count_key, Some(1), MOST_FFN)?
        };
        let ffn = one.checked_mul(count).filter(|ffn| *ffn <= MOST_FFN);
        experts.shared = Some(SharedExpert {
            ffn: ffn.ok_or_else(|| keys.error(&count_key, "makes the shared expert too wide"))?,
            gated: false,
        });
        Ok(())
    },
    ..HUNYUAN
};
