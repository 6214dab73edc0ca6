//! OLMo. In OLMo 2 and 3, parts norm their output, not their input. Queries and keys are normed over all heads together. OLMo 3
//! has windows in three of four layers, whose rope is not scaled. Its GGUF files have the name of OLMo 2.

use super::architecture::{
    Architecture, Usual, no_windows, ropes_by_window, unclipped, windowed_but_every,
};
use super::llama;
use crate::spec::{LayerRope, NormKind, Rope, Scaling};
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
    attends: true,
    usual: Usual::PLAIN,
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
        ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
        Ok(())
    },
};

/// Experts in every layer, chosen by softmax. Parts norm their input.
pub(super) const OLMOE: Architecture = Architecture {
    name: "olmoe",
    gguf: &["olmoe"],
    hugging_face: &["olmoe"],
    gguf_interleaved: false,
    qk_norm: QkNorm::Row,
    windows: no_windows,
    finish: |spec, keys| {
        unclipped(keys)?;
        let count = keys.name("expert_count", "num_experts");
        let missing = keys.error(&count, "is missing; OLMoE has experts");
        let experts = spec.experts.as_mut().ok_or(missing)?;
        experts.renormalise = keys.bool("norm_topk_prob")?.unwrap_or(false);
        Ok(())
    },
    ..llama::LLAMA
};

/// FlexOLMo: OLMo 2 with experts in every layer, chosen by softmax.
pub(super) const FLEX_OLMO: Architecture = Architecture {
    name: "flex_olmo",
    gguf: &["flex_olmo"],
    hugging_face: &["flex_olmo"],
    usual: Usual {
        theta: 5e5,
        ..Usual::PLAIN
    },
    experts: true,
    windows: no_windows,
    finish: |spec, keys| {
        spec.pre_norm = false;
        spec.post_norm = true;
        let count = keys.name("expert_count", "num_experts");
        let missing = keys.error(&count, "is missing; FlexOLMo has experts");
        let experts = spec.experts.as_mut().ok_or(missing)?;
        let shares = keys.name("expert_weights_norm", "norm_topk_prob");
        experts.renormalise = keys.bool(&shares)?.unwrap_or(false);
        Ok(())
    },
    ..OLMO2
};

/// OLMo 1: layer norms without weights.
pub(super) const OLMO: Architecture = Architecture {
    name: "olmo",
    gguf: &["olmo"],
    hugging_face: &["olmo"],
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        unclipped(keys)?;
        spec.norm = NormKind::Plain;
        if !keys.is_gguf() {
            // Configurations do not say it.
            spec.eps = 1e-5;
        }
        Ok(())
    },
    ..llama::LLAMA
};
