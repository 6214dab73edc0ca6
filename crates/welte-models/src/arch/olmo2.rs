//! OLMo 2: parts norm their output, not their input. Queries and keys are normed over all heads together.

use super::Architecture;
use crate::{QkNorm, names};

pub(super) const OLMO2: Architecture = Architecture {
    name: "olmo2",
    gguf: &["olmo2"],
    hugging_face: &["olmo2"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::Row,
    experts: false,
    lists: false,
    windows: |_, layers| Ok(vec![0; layers as usize]),
    finish: |spec, _| {
        spec.pre_norm = false;
        spec.post_norm = true;
        Ok(())
    },
};
