//! MiniMax-M2: experts chosen by sigmoid with a bias in every layer. Queries and keys are normed over all heads together, and a part of
//! each head is rotated.

use super::architecture::{Architecture, has_choice_bias, no_windows};
use super::llama;
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::Scoring;
use crate::{Error, ModelSpec, QkNorm};

pub(super) const MINIMAX_M2: Architecture = Architecture {
    name: "minimax-m2",
    gguf: &["minimax-m2"],
    hugging_face: &["minimax_m2"],
    hugging_face_names: Names {
        choice_bias: "model.layers.{}.block_sparse_moe.e_score_correction_bias",
        ..names::HUGGING_FACE_MIXTRAL
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Row,
    windows: no_windows,
    finish: |spec, keys| {
        rotated(spec, keys)?;
        let biased = has_choice_bias(spec, keys);
        let count = keys.name("expert_count", "num_local_experts");
        let missing: Error = keys.error(&count, "is missing; MiniMax-M2 has experts");
        let experts = spec.experts.as_mut().ok_or(missing)?;
        experts.scoring = Scoring::Sigmoid;
        experts.renormalise = true;
        experts.choice_bias = biased;
        Ok(())
    },
    ..llama::LLAMA
};

/// Reads how much of each head is rotated.
pub(super) fn rotated(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if let Some(rot) = keys.u32("rotary_dim")? {
        if rot == 0 || rot > spec.head_dim || !rot.is_multiple_of(2) {
            let problem = format!("is {rot}; must be even and at most {}", spec.head_dim);
            return Err(keys.error("rotary_dim", problem));
        }
        spec.rope.rot = rot;
    }
    Ok(())
}
