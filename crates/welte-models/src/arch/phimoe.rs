//! Phi-3.5-MoE: layer norms with bias, biases around attention and of the head, rope with two lists of factors, and two experts
//! chosen by SparseMixer.

use super::architecture::{Architecture, Usual, has};
use super::llama;
use crate::spec::{NormKind, Scoring};
use crate::{QkNorm, names};

pub(super) const PHIMOE: Architecture = Architecture {
    name: "phimoe",
    gguf: &["phimoe"],
    hugging_face: &["phimoe"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE_MIXTRAL,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: true,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: llama::windows,
    finish: |spec, keys| {
        spec.norm = NormKind::Layer { bias: true };
        spec.biases.head = has(spec, keys, |names| names::bias(names.head, 0));
        let count = keys.name("expert_count", "num_local_experts");
        let Some(experts) = &mut spec.experts else {
            return Err(keys.error(&count, "is missing; Phi-3.5-MoE has experts"));
        };
        experts.scoring = Scoring::Mixer;
        experts.renormalise = false;
        // Files do not contain it. Published configurations have this value.
        let noise = keys.positive("router_jitter_noise", Some(0.01))?;
        experts.margin = 2.0 * noise as f32;
        Ok(())
    },
};
