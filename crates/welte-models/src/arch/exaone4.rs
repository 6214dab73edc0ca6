//! EXAONE 3 is Llama under other names. In EXAONE 4, parts norm their output, and queries and keys are normed per head. The large
//! model has windows in three of four layers, and no rope in the others.

use super::architecture::{Architecture, Usual, leave_out_drafts, no_windows, windowed_but_every};
use super::cohere2::rope_in_windows_only;
use super::{deepseek2, llama};
use crate::QkNorm;
use crate::names::{self, Names};

pub(super) const EXAONE4: Architecture = Architecture {
    name: "exaone4",
    gguf: &["exaone4"],
    hugging_face: &["exaone4", "exaone4_5", "exaone4_5_text"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, _| {
        spec.pre_norm = false;
        spec.post_norm = true;
        if spec.windows.iter().any(|window| *window > 0) {
            rope_in_windows_only(spec);
        }
        Ok(())
    },
};

pub(super) const EXAONE: Architecture = Architecture {
    name: "exaone",
    gguf: &["exaone"],
    hugging_face: &["exaone"],
    hugging_face_names: Names {
        embed: "transformer.wte",
        attn_norm: "transformer.h.{}.ln_1",
        q: "transformer.h.{}.attn.attention.q_proj",
        k: "transformer.h.{}.attn.attention.k_proj",
        v: "transformer.h.{}.attn.attention.v_proj",
        o: "transformer.h.{}.attn.attention.out_proj",
        ffn_norm: "transformer.h.{}.ln_2",
        gate: "transformer.h.{}.mlp.c_fc_0",
        up: "transformer.h.{}.mlp.c_fc_1",
        down: "transformer.h.{}.mlp.c_proj",
        final_norm: "transformer.ln_f",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    experts: false,
    windows: no_windows,
    finish: |_, _| Ok(()),
    ..llama::LLAMA
};

/// K-EXAONE: parts norm their input, and experts chosen by sigmoid with a bias are beside a shared one. The first layers have none.
pub(super) const EXAONE_MOE: Architecture = Architecture {
    name: "exaone-moe",
    gguf: &["exaone-moe"],
    hugging_face: &["exaone_moe"],
    hugging_face_names: Names {
        choice_bias: "model.layers.{}.mlp.e_score_correction_bias",
        ..deepseek2::HUGGING_FACE
    },
    experts: true,
    finish: |spec, keys| {
        rope_in_windows_only(spec);
        deepseek2::experts(spec, keys)?;
        leave_out_drafts(spec, keys, "num_nextn_predict_layers")
    },
    ..EXAONE4
};
