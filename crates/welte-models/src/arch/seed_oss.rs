//! Seed-OSS: biases on Q, K and V.

use super::architecture::Architecture;
use super::llama;
use crate::names;

pub(super) const SEED_OSS: Architecture = Architecture {
    name: "seed_oss",
    gguf: &["seed_oss"],
    hugging_face: &["seed_oss"],
    gguf_names: names::GGUF_POST_ATTENTION,
    gguf_interleaved: false,
    experts: false,
    ..llama::LLAMA
};
