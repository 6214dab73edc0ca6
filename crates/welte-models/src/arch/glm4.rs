//! GLM-4 of 2024, which GGUF calls ChatGLM: a part of each head is rotated. GLM-4 (0414) and the language models of GLM-4V and GLM-OCR
//! have norms before and after both parts besides.

use super::architecture::{Architecture, leave_out_drafts, no_windows, rotate_by_default};
use super::llama;
use crate::names;

pub(super) const GLM: Architecture = Architecture {
    name: "chatglm",
    gguf: &["chatglm"],
    hugging_face: &["glm"],
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        spec.rope.interleaved = true;
        rotate_by_default(spec, keys, 2)
    },
    ..llama::LLAMA
};

pub(super) const GLM4: Architecture = Architecture {
    name: "glm4",
    gguf: &["glm4"],
    hugging_face: &["glm4", "glm4v", "glm4v_text", "glm_ocr", "glm_ocr_text"],
    hugging_face_names: names::HUGGING_FACE_GLM4,
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        spec.post_norm = true;
        // GGUF files for images have the rows of Q and K in the other order.
        spec.rope.interleaved = !keys.is_gguf() || spec.rope.sections.is_none();
        leave_out_drafts(spec, keys, "num_nextn_predict_layers")
    },
    ..llama::LLAMA
};
