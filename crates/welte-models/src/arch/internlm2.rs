//! InternLM2: Llama whose directories keep queries, keys and values in one matrix, group by group.

use super::architecture::{Architecture, no_windows};
use super::llama;
use crate::names::{self, Names};

pub(super) const INTERNLM2: Architecture = Architecture {
    name: "internlm2",
    gguf: &["internlm2"],
    hugging_face: &["internlm2"],
    hugging_face_names: Names {
        embed: "model.tok_embeddings",
        attn_norm: "model.layers.{}.attention_norm",
        qkv: "model.layers.{}.attention.wqkv",
        grouped_qkv: true,
        o: "model.layers.{}.attention.wo",
        ffn_norm: "model.layers.{}.ffn_norm",
        gate: "model.layers.{}.feed_forward.w1",
        up: "model.layers.{}.feed_forward.w3",
        down: "model.layers.{}.feed_forward.w2",
        head: "output",
        ..names::HUGGING_FACE
    },
    experts: false,
    windows: no_windows,
    finish: |_, _| Ok(()),
    ..llama::LLAMA
};
