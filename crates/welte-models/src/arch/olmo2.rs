//! OLMo 2 and 3: parts norm their output, not their input. Queries and keys are normed over all heads together. OLMo 3 has
//! windows in three of four layers, whose rope is not scaled. Its GGUF files have the name of OLMo 2.

use super::architecture::{Architecture, windowed_but_every};
use crate::spec::{LayerRope, Rope, Scaling};
use crate::{QkNorm, names};

pub(super) const OLMO2: Architecture = Architecture {
    name: "olmo2",
    gguf: &["olmo2"],
    hugging_face: &["olmo2", "olmo3"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::Row,
    experts: false,
    lists: false,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, keys| {
        spec.pre_norm = false;
        spec.post_norm = true;
        if spec.windows.iter().all(|window| *window == 0) {
            return Ok(());
        }
        let key = "rope_parameters.sliding_attention.rope_theta";
        spec.local_rope = Some(Rope {
            theta: keys.positive(key, Some(spec.rope.theta.into()))? as f32,
            scaling: Scaling::None,
            ..spec.rope
        });
        spec.layer_ropes = spec
            .windows
            .iter()
            .map(|window| match window {
                0 => LayerRope::Main,
                _ => LayerRope::Local,
            })
            .collect();
        Ok(())
    },
};
