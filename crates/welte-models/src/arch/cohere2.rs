//! Cohere (Command-R) and Cohere 2 (Command R7B, Command A): attention and feed-forward parts read the same layer norm. In Cohere 2,
//! three of four layers have a window and rope; the others see everything and have no rope. Cohere 2 with experts takes the mean of those
//! and a shared one. The first layers have rope but no experts.

use super::architecture::{
    Architecture, Usual, has, leave_out_drafts, no_windows, ropes_by_window, window_pattern,
    windowed_but_every,
};
use super::deepseek2;
use crate::keys::Keys;
use crate::names::weight;
use crate::spec::{LayerRope, MOST_FFN, NormKind, Scoring};
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    gguf: &["cohere2"],
    hugging_face: &["cohere2"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: |keys, layers| windowed_but_every(keys, layers, 4),
    finish: |spec, keys| {
        common(spec, keys)?;
        rope_in_windows_only(spec);
        Ok(())
    },
};

/// Command-R, whose layers are all alike. Command-R+ norms queries and keys.
pub(super) const COHERE: Architecture = Architecture {
    name: "command-r",
    gguf: &["command-r"],
    hugging_face: &["cohere"],
    windows: no_windows,
    finish: |spec, keys| {
        if has(spec, keys, |names| weight(names.q_norm, 0)) {
            spec.qk_norm = QkNorm::Each;
        }
        common(spec, keys)
    },
    ..COHERE2
};

pub(super) const COHERE2_MOE: Architecture = Architecture {
    name: "cohere2moe",
    gguf: &["cohere2moe"],
    hugging_face: &["cohere2_moe"],
    hugging_face_names: deepseek2::HUGGING_FACE,
    experts: true,
    windows: |keys, layers| {
        let pattern = keys.name("attention.sliding_window_pattern", "");
        let window = keys.name("attention.sliding_window", "sliding_window");
        match keys.value(&pattern) {
            Some(Value::Array(_)) if keys.is_gguf() => {
                window_pattern(keys, layers, keys.u32(&window)?.unwrap_or(0))
            }
            _ => windowed_but_every(keys, layers, 4),
        }
    },
    finish: mixed,
    ..COHERE2
};

fn mixed(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
    common(spec, keys)?;
    let rms = keys.name("attention.layer_norm_rms_epsilon", "rms_norm_eps");
    if keys.f64(&rms)?.is_some_and(|eps| eps > 0.0) {
        spec.norm = NormKind::Rms;
    }
    deepseek2::experts(spec, keys)?;
    let Some(e) = &mut spec.experts else {
        let key = keys.name("expert_count", "num_experts");
        return Err(keys.error(&key, "is missing"));
    };
    if !keys.is_gguf() {
        e.ffn = keys.size("intermediate_size", None, MOST_FFN)?;
        e.scoring = match keys.text("expert_selection_fn")? {
            Some("sigmoid") => Scoring::Sigmoid,
            None | Some("softmax") => Scoring::Softmax,
            Some(_) => {
                let problem = "is not supported; supported are softmax and sigmoid";
                return Err(keys.error("expert_selection_fn", problem));
            }
        };
    }
    // A softmax of the chosen logits is that of all, scaled to sum to 1.
    e.renormalise |= e.scoring == Scoring::Softmax;
    if let Some(shared) = &mut e.shared {
        let strategy = "shared_expert_combination_strategy";
        match keys.text(strategy)? {
            None | Some("average") => (e.scale, e.shared_scale) = (0.5 * e.scale, 0.5),
            Some("sum") => (),
            Some(_) => {
                let problem = "is not supported; supported are average and sum";
                return Err(keys.error(strategy, problem));
            }
        }
        let width = keys.name("expert_shared_feed_forward_length", "");
        if keys.is_gguf() {
            shared.ffn = keys.size(&width, Some(shared.ffn), MOST_FFN)?;
        } else {
            let count = keys.size("num_shared_experts", None, 1 << 16)?;
            let ffn = e.ffn.checked_mul(count).filter(|ffn| *ffn <= MOST_FFN);
            let problem = "makes the shared expert too wide";
            shared.ffn = ffn.ok_or_else(|| keys.error("num_shared_experts", problem))?;
        }
    }
    let plain = "prefix_dense_intermediate_size";
    if !keys.is_gguf() && keys.value(plain).is_some() {
        spec.ffn = keys.size(plain, None, MOST_FFN)?;
    }
    rope_in_windows_only(spec);
    let pattern = "prefix_dense_sliding_window_pattern";
    if keys.size(pattern, Some(1), 1 << 16)? == 1 {
        let layers = spec.layer_ropes.iter_mut().zip(&spec.expert_layers);
        let plain = layers.filter(|(_, mixed)| !**mixed);
        plain.for_each(|(rope, _)| *rope = LayerRope::Main);
    }
    Ok(())
}

fn common(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.norm = NormKind::Layer { bias: false };
    spec.parallel = true;
    spec.rope.interleaved = true;
    spec.tied = true;
    spec.logit_scale =
        keys.positive(&keys.name("logit_scale", "logit_scale"), Some(0.0625))? as f32;
    Ok(())
}

/// Layers without a window have no rope.
pub(super) fn rope_in_windows_only(spec: &mut ModelSpec) {
    ropes_by_window(spec, [LayerRope::None, LayerRope::Main]);
}
