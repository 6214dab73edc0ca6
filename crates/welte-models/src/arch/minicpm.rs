//! MiniCPM 1, 2 and 4: Llama with factors of the embeddings, of what each part adds, and of the logits. MiniCPM3 has these factors and
//! attention over latents.

use super::architecture::{Architecture, no_windows};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::spec::MOST_DIM;
use crate::{Error, ModelSpec};

pub(super) const MINICPM: Architecture = Architecture {
    name: "minicpm",
    gguf: &["minicpm"],
    hugging_face: &["minicpm"],
    experts: false,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

pub(super) const MINICPM3: Architecture = Architecture {
    name: "minicpm3",
    gguf: &["minicpm3"],
    hugging_face: &["minicpm3"],
    finish: |spec, keys| {
        deepseek2::latents(spec, keys)?;
        spec.rope.interleaved = false;
        finish(spec, keys)
    },
    ..MINICPM
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let depth = f64::from(spec.layers).sqrt();
    let float = |key: &str, default: f64| keys.positive(key, Some(default));
    let width = f64::from(spec.dim);
    let [embeddings, residual, logits] = if keys.is_gguf() {
        // Old files lack the factors. Theirs are those of the first models.
        let key = |name: &str| keys.name(name, "");
        [
            float(&key("embedding_scale"), 12.0)?,
            float(&key("residual_scale"), 1.4 / depth)?,
            float(&key("logit_scale"), width / 256.0)?,
        ]
    } else {
        let base = keys.size("dim_model_base", Some(spec.dim), MOST_DIM)?;
        [
            float("scale_emb", 1.0)?,
            float("scale_depth", 1.0)? / depth,
            width / f64::from(base),
        ]
    };
    spec.embedding_scale = embeddings as f32;
    spec.residual_scale = residual as f32;
    spec.logit_scale = (1.0 / logits) as f32;
    Ok(())
}
