//! Qwen2 and Qwen2.5: biases on Q, K and V. Small models tie their embeddings. The text part of Qwen2-VL and
//! Qwen2.5-VL has the same layers, and its pairs turn by three axes.

use super::architecture::{Architecture, Usual, layer_types};
use crate::keys::Keys;
use crate::{Error, QkNorm, names};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    gguf: &["qwen2", "qwen2vl"],
    hugging_face: &[
        "qwen2",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
    ],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows,
    finish: |_, _| Ok(()),
};

/// The window in a configuration applies only with `use_sliding_window`. It then applies to the layers in `layer_types`
/// or, in older files, to those from `max_window_layers` on.
pub(super) fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let window = keys
        .u32(&keys.name("attention.sliding_window", "sliding_window"))?
        .unwrap_or(0);
    let on = keys.is_gguf() || keys.bool("use_sliding_window")?.unwrap_or(false);
    if window == 0 || !on {
        return Ok(vec![0; layers as usize]);
    }
    if let Some(list) = layer_types(keys, layers, window)? {
        return Ok(list);
    }
    let from = keys.u32("max_window_layers")?.unwrap_or(0);
    Ok((0..layers)
        .map(|i| if i >= from { window } else { 0 })
        .collect())
}
