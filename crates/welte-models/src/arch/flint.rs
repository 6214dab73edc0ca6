//! Flint: experts chosen by sigmoid beside a shared one, after dense layers. Queries and keys are normed per head, and each head has an
//! attention sink. Layers with a window have rope, the others none.

use super::architecture::{Architecture, layer_types, ropes_by_window, window_pattern};
use super::{deepseek2, llama, qwen3_moe};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{LayerRope, MOST_FFN, Scoring, SharedExpert};
use crate::{Error, ModelSpec, QkNorm};

pub(super) const FLINT: Architecture = Architecture {
    name: "flint",
    gguf: &["flint"],
    hugging_face: &["flint"],
    hugging_face_names: Names {
        sinks: "model.layers.{}.self_attn.softmax_offset",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    windows,
    finish,
    ..llama::LLAMA
};

/// Without a list, layers 0 and 1, every fourth from there on, and the last one see everything.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.size(&key, (!keys.is_gguf()).then_some(513), 1 << 30)?;
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    let each = |i| match i == 0 || i % 4 == 1 || i + 1 == layers {
        true => 0,
        false => window,
    };
    let list = layer_types(keys, layers, window)?;
    Ok(list.unwrap_or_else(|| (0..layers).map(each).collect()))
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let count = keys.name("expert_count", "num_experts");
    if spec.experts.is_none() {
        return Err(keys.error(&count, "is missing; Flint has experts"));
    }
    deepseek2::experts(spec, keys)?;
    if !keys.is_gguf() {
        qwen3_moe::some_layers(spec, keys)?;
        if keys.value("mlp_only_layers").is_none() {
            spec.expert_layers
                .iter_mut()
                .take(2)
                .for_each(|own| *own = false);
        }
    }
    let shares = keys.name("expert_weights_norm", "norm_topk_prob");
    let width = keys.name(
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
    );
    let ffn = keys.size(&width, Some(1024), MOST_FFN)?;
    if let Some(experts) = &mut spec.experts {
        experts.scoring = Scoring::Sigmoid;
        experts.renormalise = keys.bool(&shares)?.unwrap_or(true);
        experts.shared = Some(SharedExpert { ffn, gated: false });
    }
    spec.sinks = vec![true; spec.layers as usize];
    ropes_by_window(spec, [LayerRope::None, LayerRope::Main]);
    Ok(())
}
