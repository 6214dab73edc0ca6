//! Ling and Ring: experts as in DeepSeek beside a shared one, and one matrix for queries, keys and values. Version 1 chooses experts by
//! softmax. Version 2 chooses them by sigmoid with a bias, within groups, norms queries and keys, and rotates half of each head. Sarvam's
//! models are version 2 with whole heads rotated.

use super::architecture::{Architecture, leave_out_drafts, no_windows, rotate_by_default};
use super::{deepseek2, llama};
use crate::QkNorm;
use crate::names::Names;

/// Configurations of both versions say `bailing_moe`; `Architecture::of` tells them apart.
pub(super) const BAILING: Architecture = Architecture {
    name: "bailingmoe",
    gguf: &["bailingmoe"],
    hugging_face: &["bailing_moe"],
    hugging_face_names: HUGGING_FACE,
    windows: no_windows,
    finish: |spec, keys| {
        if keys.bool("norm_head")? == Some(true) {
            let problem = "is not supported in directories; use a GGUF file, whose head is normed";
            return Err(keys.error("norm_head", problem));
        }
        deepseek2::experts(spec, keys)
    },
    ..llama::LLAMA
};

pub(super) const BAILING2: Architecture = Architecture {
    name: "bailingmoe2",
    gguf: &["bailingmoe2"],
    hugging_face: &["bailing_moe_v2", "sarvam_moe"],
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    finish: |spec, keys| {
        deepseek2::experts(spec, keys)?;
        let said = keys.text("general.architecture")?;
        if said != Some("sarvam_moe") {
            rotate_by_default(spec, keys, 2)?;
        }
        leave_out_drafts(spec, keys, "num_nextn_predict_layers")
    },
    ..BAILING
};

const HUGGING_FACE: Names = Names {
    embed: "model.word_embeddings",
    qkv: "model.layers.{}.attention.query_key_value",
    q_norm: "model.layers.{}.attention.query_layernorm",
    k_norm: "model.layers.{}.attention.key_layernorm",
    o: "model.layers.{}.attention.dense",
    choice_bias: "model.layers.{}.mlp.gate.expert_bias",
    ..deepseek2::HUGGING_FACE
};
