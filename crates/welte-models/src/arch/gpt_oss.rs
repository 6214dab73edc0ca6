//! gpt-oss: an attention sink per head, a window in every second layer, experts with a clamped activation, and biases
//! on all matrices.

use super::architecture::{Architecture, Usual, layer_types};
use crate::keys::Keys;
use crate::spec::{Act, Biases, Scaling};
use crate::{Error, ModelSpec, QkNorm, names};

pub(super) const GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    gguf: &["gpt-oss"],
    hugging_face: &["gpt_oss"],
    gguf_names: names::GGUF_POST_ATTENTION,
    hugging_face_names: names::HUGGING_FACE_GPT_OSS,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: true,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows,
    finish: |spec, keys| {
        let experts = keys.name("expert_count", "num_local_experts");
        if spec.experts.is_none() {
            return Err(keys.error(&experts, "is missing; gpt-oss has experts in every layer"));
        }
        clamped(spec, keys)?;
        spec.sinks = vec![true; spec.layers as usize];
        let attention = keys.bool("attention_bias")?.unwrap_or(true);
        spec.biases = Biases {
            q: attention,
            k: attention,
            v: attention,
            o: attention,
            router: true,
            experts: true,
            ..Biases::default()
        };
        // YaRN's ramp is not rounded to whole pairs. GGUF files do not say so.
        if let Scaling::Yarn { truncate, .. } = &mut spec.rope.scaling
            && keys.is_gguf()
        {
            *truncate = false;
        }
        Ok(())
    },
};

/// The clamped activation, which `hidden_act` does not describe. Published configurations use only these two values.
pub(super) fn clamped(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.act = Act::Clamped;
    for (key, used) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        let said = keys.f64(&keys.name("", key))?.unwrap_or(used);
        if said != used {
            return Err(keys.error(key, format!("is {said}; only {used} is supported")));
        }
    }
    Ok(())
}

/// Layers 0, 2, 4 … have the window, unless `layer_types` says otherwise.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.size(&key, None, 1 << 30)?;
    if let Some(list) = layer_types(keys, layers, window)? {
        return Ok(list);
    }
    Ok((0..layers)
        .map(|i| if i % 2 == 0 { window } else { 0 })
        .collect())
}
