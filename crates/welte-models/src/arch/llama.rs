//! Llama 1 to 3.x, IQuest-Coder, InternLM3, and Mistral, which adds an attention window. GGUF files of Mixtral and InternLM3 use this
//! name too.

use super::architecture::{Architecture, Usual, leave_out_drafts, no_windows, unclipped};
use crate::keys::Keys;
use crate::{Error, QkNorm, names};

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    gguf: &["llama"],
    hugging_face: &["llama", "mistral", "internlm3"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: QkNorm::None,
    experts: true,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows,
    finish: |spec, keys| leave_out_drafts(spec, keys, "num_nextn_predict_layers"),
};

/// IQuest-Coder. Its configurations have a window that they do not use.
pub(super) const IQUEST_CODER: Architecture = Architecture {
    name: "iquestcoder",
    gguf: &[],
    hugging_face: &["iquestcoder"],
    usual: Usual {
        eps: 1e-5,
        ..Usual::PLAIN
    },
    windows: no_windows,
    finish: |_, keys| {
        if keys.bool("use_sliding_window")? == Some(true) {
            return Err(keys.error("use_sliding_window", "is not supported"));
        }
        unclipped(keys)
    },
    ..LLAMA
};

/// The same window, if any, in every layer.
pub(super) fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    Ok(vec![keys.u32(&key)?.unwrap_or(0); layers as usize])
}
