//! The language model of Muse Glimmer: embeddings are normed, and parts before and after, with an epsilon of their own after. A gate for
//! each value of attention's output. Three of four layers have a window and rope; the others see everything and have no rope.

use super::architecture::{Architecture, layer_types, numbers, window_pattern};
use super::{cohere2, llama};
use crate::keys::Keys;
use crate::names;
use crate::spec::{LayerRope, OutputGate};
use crate::{Error, ModelSpec, QkNorm};

pub(super) const MUSE_GLIMMER: Architecture = Architecture {
    name: "muse-glimmer",
    gguf: &["muse-glimmer"],
    hugging_face: &["muse_glimmer", "muse_glimmer_text"],
    hugging_face_names: names::HUGGING_FACE_POST,
    qk_norm: QkNorm::Head,
    experts: false,
    windows,
    finish,
    ..llama::LLAMA
};

/// Layers without a window are counted from the last one.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.size(&key, (!keys.is_gguf()).then_some(2048), 1 << 30)?;
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    let each = |i| match (layers - 1 - i) % 4 {
        0 => 0,
        _ => window,
    };
    let list = layer_types(keys, layers, window)?;
    Ok(list.unwrap_or_else(|| (0..layers).map(each).collect()))
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.embedding_norm = true;
    spec.post_norm = true;
    spec.plain_final_norm = true;
    spec.attention_gate = Some(OutputGate::default());
    cohere2::rope_in_windows_only(spec);
    let scale = keys.name("logit_scale", "output_multiplier");
    let usual = (spec.dim as f64 / 256.0).sqrt().recip();
    spec.logit_scale = keys.positive(&scale, (!keys.is_gguf()).then_some(usual))? as f32;
    let cap = keys.name("final_logit_softcapping", "final_logit_softcapping");
    let usual = if keys.is_gguf() { 0.0 } else { 20.0 };
    spec.logit_softcap = keys.f64(&cap)?.unwrap_or(usual) as f32;
    let eps = keys.name("", "post_norm_eps");
    spec.post_eps = Some(keys.positive(&eps, Some(1e-8))? as f32);
    if keys.is_gguf() {
        let base = keys.name("rope.freq_base_swa", "");
        spec.rope.theta = keys.positive(&base, Some(spec.rope.theta.into()))? as f32;
        return Ok(());
    }
    // GGUF files have the sums in the norms, and the factor of queries as weights of their norm.
    spec.norm_add = 1.0;
    spec.qk_norm = QkNorm::Plain;
    spec.attention_scale *= keys.positive("qk_scale_factor", Some(3.87))? as f32;
    if let Some(bases) = numbers(spec, keys, "layer_rope_theta")? {
        let rope = |base: &f64| match base {
            0.0 => LayerRope::None,
            _ => LayerRope::Main,
        };
        spec.layer_ropes = bases.iter().map(rope).collect();
    }
    Ok(())
}
