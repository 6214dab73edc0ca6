//! Qwen3: queries and keys are normed per head. The head size is given, not derived.

use super::architecture::{Architecture, Usual, leave_out_drafts};
use super::qwen2;
use crate::{QkNorm, names};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    gguf: &["qwen3"],
    hugging_face: &["qwen3"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: qwen2::windows,
    finish: |spec, keys| leave_out_drafts(spec, keys, "num_nextn_predict_layers"),
};
