//! Phi-3 and Phi-4: Q, K and V are one tensor, gate and up another. Long contexts use two lists of rope factors.

use super::architecture::{Architecture, Usual};
use super::llama;
use crate::{QkNorm, names};

pub(super) const PHI3: Architecture = Architecture {
    name: "phi3",
    gguf: &["phi3"],
    hugging_face: &["phi3"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: llama::windows,
    finish: |_, _| Ok(()),
};
