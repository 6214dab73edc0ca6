//! Llama 1 to 3.x, InternLM3, IQuest-Coder, and Mistral, which adds an attention window. GGUF files of Mixtral and InternLM3 use this
//! name too.

use super::architecture::{Architecture, leave_out_drafts};
use crate::keys::Keys;
use crate::{Error, QkNorm, names};

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    gguf: &["llama"],
    hugging_face: &["llama", "mistral", "internlm3", "iquestcoder"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: QkNorm::None,
    experts: true,
    lists: false,
    attends: true,
    windows,
    finish: |spec, keys| leave_out_drafts(spec, keys, "num_nextn_predict_layers"),
};

/// The same window, if any, in every layer.
pub(super) fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    Ok(vec![keys.u32(&key)?.unwrap_or(0); layers as usize])
}
