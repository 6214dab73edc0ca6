//! Llama 1 to 3.x, and Mistral, which differs by an attention window.

use super::Architecture;
use crate::names;

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    gguf: &["llama"],
    hugging_face: &["llama", "mistral"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: false,
    windows: |keys, layers| {
        let key = keys.name("attention.sliding_window", "sliding_window");
        Ok(vec![keys.u32(&key)?.unwrap_or(0); layers as usize])
    },
    finish: |_, _| Ok(()),
};
