//! DeepSeek-MoE and the language models of DeepSeek-OCR: attention as in Llama, experts as in DeepSeek V2.

use super::architecture::{Architecture, no_windows};
use super::{deepseek2, llama};
use crate::QkNorm;

pub(super) const DEEPSEEK: Architecture = Architecture {
    name: "deepseek",
    gguf: &["deepseek", "deepseek2-ocr"],
    hugging_face: &["deepseek", "deepseek_ocr2", "deepseek_ocr2_text"],
    hugging_face_names: deepseek2::HUGGING_FACE,
    windows: no_windows,
    finish: |spec, keys| {
        // Only converters of DeepSeek-MoE make rotated pairs neighbours.
        spec.rope.interleaved &= keys.text("general.architecture")? != Some("deepseek2-ocr");
        deepseek2::experts(spec, keys)
    },
    ..llama::LLAMA
};

/// dots.llm1: queries and keys are normed per head, and experts are chosen as in DeepSeek V3.
pub(super) const DOTS1: Architecture = Architecture {
    name: "dots1",
    gguf: &["dots1"],
    hugging_face: &["dots1"],
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    finish: |spec, keys| deepseek2::experts(spec, keys),
    ..DEEPSEEK
};
