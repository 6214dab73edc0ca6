//! Hunyuan 3: queries and keys are normed per head, and experts chosen by sigmoid with a bias are beside a shared one. The first layer has
//! none.

use super::architecture::{Architecture, leave_out_drafts, no_windows};
use super::{deepseek2, llama};
use crate::QkNorm;
use crate::names::{self, Names};

pub(super) const HY_V3: Architecture = Architecture {
    name: "hy_v3",
    gguf: &["hy_v3"],
    hugging_face: &["hy_v3"],
    gguf_names: Names {
        choice_bias: "blk.{}.exp_probs_b",
        ..names::GGUF
    },
    hugging_face_names: Names {
        router: "model.layers.{}.mlp.router.gate",
        choice_bias: "model.layers.{}.mlp.expert_bias",
        shared_expert: [
            "model.layers.{}.mlp.shared_mlp.gate_proj",
            "model.layers.{}.mlp.shared_mlp.up_proj",
            "model.layers.{}.mlp.shared_mlp.down_proj",
        ],
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    windows: no_windows,
    finish: |spec, keys| {
        leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
        deepseek2::experts_where_routed(spec, keys)?;
        deepseek2::shared_width(spec, keys)
    },
    ..llama::LLAMA
};
