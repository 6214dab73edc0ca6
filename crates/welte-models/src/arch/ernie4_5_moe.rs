//! ERNIE 4.5 with experts: a bias of the choice, and shared experts. The first layers have none.

use super::architecture::{Architecture, has_choice_bias};
use super::{deepseek2, ernie4_5};
use crate::Error;
use crate::names::Names;
use crate::spec::{MOST_FFN, SharedExpert};

const NAMES: Names = Names {
    choice_bias: "model.layers.{}.mlp.moe_statics.e_score_correction_bias",
    ..deepseek2::HUGGING_FACE
};

pub(super) const ERNIE4_5_MOE: Architecture = Architecture {
    name: "ernie4_5-moe",
    gguf: &["ernie4_5-moe"],
    hugging_face: &["ernie4_5_moe"],
    hugging_face_names: NAMES,
    experts: true,
    finish: |spec, keys| {
        spec.rope.interleaved = true;
        let Some(e) = &mut spec.experts else {
            return Ok(());
        };
        let number = |gguf: &str, hf: &str, default: u32| -> Result<u32, Error> {
            Ok(keys.u32(&keys.name(gguf, hf))?.unwrap_or(default))
        };
        let start = number("leading_dense_block_count", "moe_layer_start_index", 1)?;
        let every = number("interleave_moe_layer_step", "moe_layer_interval", 1)?.max(1);
        let mixed = |i: u32| i >= start && (i + 1).is_multiple_of(every);
        spec.expert_layers = (0..spec.layers).map(mixed).collect();
        let ffn = if keys.is_gguf() {
            number("expert_shared_feed_forward_length", "", 0)?
        } else {
            number("", "moe_num_shared_experts", 0)?.saturating_mul(e.ffn)
        };
        if ffn > MOST_FFN {
            let key = keys.name(
                "expert_shared_feed_forward_length",
                "moe_num_shared_experts",
            );
            return Err(keys.error(&key, "makes the shared expert too wide"));
        }
        e.shared = (ffn > 0).then_some(SharedExpert { ffn, gated: false });
        let biased = has_choice_bias(spec, keys);
        if let Some(e) = &mut spec.experts {
            e.choice_bias = biased;
        }
        Ok(())
    },
    ..ernie4_5::ERNIE4_5
};
