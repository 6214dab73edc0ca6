//! GLM-4.5: experts chosen by sigmoid with a bias, beside a shared one. A part of each head is rotated. Queries and keys are
//! normed in some models. The first layers have no experts, and layers that guess ahead follow the last one.

use super::{Architecture, deepseek2, llama};
use crate::keys::Keys;
use crate::names::{self, resolve, weight};
use crate::{Error, ModelSpec, QkNorm};

pub(super) const GLM4_MOE: Architecture = Architecture {
    name: "glm4moe",
    gguf: &["glm4moe"],
    hugging_face: &["glm4_moe"],
    gguf_names: names::GGUF_POST_ATTENTION,
    hugging_face_names: deepseek2::HUGGING_FACE,
    gguf_interleaved: false,
    windows: |_, layers| Ok(vec![0; layers as usize]),
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    deepseek2::experts(spec, keys)?;
    if keys.is_gguf() {
        // The file counts layers that guess ahead.
        let key = keys.name("nextn_predict_layers", "");
        let left = spec.layers.checked_sub(spec.draft_layers);
        let left = left.filter(|layers| *layers > 0);
        let problem = || format!("is {} of {} layers", spec.draft_layers, spec.layers);
        spec.layers = left.ok_or_else(|| keys.error(&key, problem()))?;
        let layers = spec.layers as usize;
        spec.windows.truncate(layers);
        spec.layer_ropes.truncate(layers);
        spec.expert_layers.truncate(layers);
    }
    let names = match keys.is_gguf() {
        true => names::GGUF,
        false => names::HUGGING_FACE,
    };
    let norm = resolve(keys.checkpoint, &weight(names.q_norm, 0));
    if keys.checkpoint.tensor(&norm).is_some() {
        spec.qk_norm = QkNorm::Head;
    }
    Ok(())
}
