//! Mixtral: Mistral with experts. Its GGUF files have the architecture `llama`.

use super::architecture::Architecture;
use super::llama;
use crate::names;

pub(super) const MIXTRAL: Architecture = Architecture {
    name: "mixtral",
    gguf: &[],
    hugging_face: &["mixtral"],
    hugging_face_names: names::HUGGING_FACE_MIXTRAL,
    experts: true,
    ..llama::LLAMA
};
