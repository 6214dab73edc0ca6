//! EXAONE 4: parts norm their output, and queries and keys are normed per head. The large model has windows in three of
//! four layers, and no rope in the others.

use super::architecture::{Architecture, windowed_but_every};
use crate::spec::LayerRope;
use crate::{QkNorm, names};

pub(super) const EXAONE4: Architecture = Architecture {
    name: "exaone4",
    gguf: &["exaone4"],
    hugging_face: &["exaone4"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    experts: false,
    lists: false,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, _| {
        spec.pre_norm = false;
        spec.post_norm = true;
        if spec.windows.iter().any(|window| *window > 0) {
            spec.layer_ropes = spec
                .windows
                .iter()
                .map(|window| match window {
                    0 => LayerRope::None,
                    _ => LayerRope::Main,
                })
                .collect();
        }
        Ok(())
    },
};
