//! Encoders with Llama's layers: EuroBERT, and Llamas that were trained further as encoders.

use super::architecture::{Architecture, no_windows};
use super::{gemma, llama};

pub(super) const EUROBERT: Architecture = Architecture {
    name: "eurobert",
    gguf: &["eurobert"],
    hugging_face: &["eurobert"],
    gguf_interleaved: false,
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        spec.tied = true;
        gemma::bidirectional(spec, keys)
    },
    ..llama::LLAMA
};

pub(super) const LLAMA_EMBED: Architecture = Architecture {
    name: "llama-embed",
    gguf: &["llama-embed"],
    hugging_face: &["llama_bidirec"],
    gguf_interleaved: true,
    ..EUROBERT
};
