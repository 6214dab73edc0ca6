//! GLM-4 (0414), and the language models of GLM-4V and GLM-OCR: norms before and after both parts, and a part of each head is rotated.

use super::architecture::{Architecture, leave_out_drafts};
use super::llama;
use crate::names;

pub(super) const GLM4: Architecture = Architecture {
    name: "glm4",
    gguf: &["glm4"],
    hugging_face: &["glm4", "glm4v", "glm4v_text", "glm_ocr", "glm_ocr_text"],
    hugging_face_names: names::HUGGING_FACE_GLM4,
    experts: false,
    windows: |_, layers| Ok(vec![0; layers as usize]),
    finish: |spec, keys| {
        spec.post_norm = true;
        // GGUF files for images have the rows of Q and K in the other order.
        spec.rope.interleaved = !keys.is_gguf() || spec.rope.sections.is_none();
        leave_out_drafts(spec, keys, "num_nextn_predict_layers")
    },
    ..llama::LLAMA
};
