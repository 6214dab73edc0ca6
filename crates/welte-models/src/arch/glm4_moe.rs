//! GLM-4.5, the language model of GLM-4.5V and GLM-4.6V, and Solar Open: experts chosen by sigmoid with a bias, beside a shared one. A
//! part of each head is rotated. Queries and keys are normed in some models. The first layers have no experts, and layers that guess
//! ahead follow the last one.

use super::architecture::{Architecture, has, leave_out_drafts, no_windows};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::names::{self, weight};
use crate::{Error, ModelSpec, QkNorm};

pub(super) const GLM4_MOE: Architecture = Architecture {
    name: "glm4moe",
    gguf: &["glm4moe"],
    hugging_face: &["glm4_moe", "glm4v_moe", "glm4v_moe_text", "solar_open"],
    gguf_names: names::GGUF_POST_ATTENTION,
    hugging_face_names: deepseek2::HUGGING_FACE,
    gguf_interleaved: false,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    deepseek2::experts(spec, keys)?;
    leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
    if has(spec, keys, |names| weight(names.q_norm, 0)) {
        spec.qk_norm = QkNorm::Head;
    }
    Ok(())
}
