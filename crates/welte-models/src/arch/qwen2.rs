//! Qwen2 and Qwen2.5: biases on Q, K and V; small ones tie their embeddings.

use super::Architecture;
use crate::keys::Keys;
use crate::{Error, names};
use welte_formats::checkpoint::Value;

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    gguf: &["qwen2"],
    hugging_face: &["qwen2"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: false,
    windows,
    finish: |_, _| Ok(()),
};

/// Configurations name a window that is off unless `use_sliding_window`; if on, it is for the layers that
/// `layer_types` names or, in older files, for those from `max_window_layers` on.
pub(super) fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let window = keys
        .u32(&keys.name("attention.sliding_window", "sliding_window"))?
        .unwrap_or(0);
    let on = keys.is_gguf() || keys.bool("use_sliding_window")?.unwrap_or(false);
    if window == 0 || !on {
        return Ok(vec![0; layers as usize]);
    }
    if let Some(Value::Array(types)) = keys.value("layer_types") {
        if types.len() != layers as usize {
            return Err(keys.error(
                "layer_types",
                format!("has {} entries for {layers} layers", types.len()),
            ));
        }
        let each = types.iter().map(|t| match t {
            Value::String(s) if s == "full_attention" => Ok(0),
            Value::String(s) if s == "sliding_attention" => Ok(window),
            _ => Err(keys.error(
                "layer_types",
                "knows only full_attention and sliding_attention here",
            )),
        });
        return each.collect();
    }
    let from = keys.u32("max_window_layers")?.unwrap_or(0);
    Ok((0..layers)
        .map(|i| if i >= from { window } else { 0 })
        .collect())
}
