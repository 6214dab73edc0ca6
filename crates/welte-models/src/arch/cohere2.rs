//! Cohere (Command-R) and Cohere 2 (Command R7B, Command A): attention and feed-forward parts read the same layer norm. In Cohere 2,
//! three of four layers have a window and rope; the others see everything and have no rope.

use super::architecture::{Architecture, has, ropes_by_window, windowed_but_every};
use crate::keys::Keys;
use crate::names::weight;
use crate::spec::{LayerRope, NormKind};
use crate::{Error, ModelSpec, QkNorm, names};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    gguf: &["cohere2"],
    hugging_face: &["cohere2"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, keys| {
        common(spec, keys)?;
        rope_in_windows_only(spec);
        Ok(())
    },
};

/// Command-R, whose layers are all alike. Command-R+ norms queries and keys.
pub(super) const COHERE: Architecture = Architecture {
    name: "command-r",
    gguf: &["command-r"],
    hugging_face: &["cohere"],
    windows: |_, layers| Ok(vec![0; layers as usize]),
    finish: |spec, keys| {
        if has(spec, keys, |names| weight(names.q_norm, 0)) {
            spec.qk_norm = QkNorm::Each;
        }
        common(spec, keys)
    },
    ..COHERE2
};

fn common(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.norm = NormKind::Layer { bias: false };
    spec.parallel = true;
    spec.rope.interleaved = true;
    spec.tied = true;
    spec.logit_scale =
        keys.positive(&keys.name("logit_scale", "logit_scale"), Some(0.0625))? as f32;
    Ok(())
}

/// Layers without a window have no rope.
pub(super) fn rope_in_windows_only(spec: &mut ModelSpec) {
    ropes_by_window(spec, [LayerRope::None, LayerRope::Main]);
}
