//! Mellum 2: Qwen3 with experts, with windows in most layers. Only the others have a scaled rope.

use super::architecture::{Architecture, ropes_by_window, window_pattern, windows_by_type};
use super::{deepseek2, qwen3_moe};
use crate::keys::Keys;
use crate::spec::{LayerRope, Rope, Scaling};
use crate::{Error, ModelSpec};

pub(super) const MELLUM: Architecture = Architecture {
    name: "mellum",
    gguf: &["mellum"],
    hugging_face: &["mellum"],
    windows,
    finish,
    ..qwen3_moe::QWEN3_MOE
};

fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.u32(&key)?.unwrap_or(0);
    let pattern = keys.name("attention.sliding_window_pattern", "");
    if keys.is_gguf() && (window > 0 || keys.value(&pattern).is_some()) {
        return window_pattern(keys, layers, window);
    }
    windows_by_type(keys, layers, window)
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    qwen3_moe::some_layers(spec, keys)?;
    deepseek2::listed_experts(spec, keys)?;
    if spec.windows.iter().all(|window| *window == 0) {
        return Ok(());
    }
    let theta = keys.name(
        "rope.freq_base_swa",
        "rope_parameters.sliding_attention.rope_theta",
    );
    spec.local_rope = Some(Rope {
        theta: keys.positive(&theta, Some(spec.rope.theta.into()))? as f32,
        scaling: Scaling::None,
        ..spec.rope
    });
    ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    Ok(())
}
