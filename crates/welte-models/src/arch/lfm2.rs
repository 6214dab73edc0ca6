//! LFM2: most layers have a short convolution between two gates, the others attention with norms of queries and keys. All but
//! the first feed-forward parts may be experts.

use super::architecture::{Architecture, Usual, has_choice_bias, no_windows, read_taps};
use crate::keys::Keys;
use crate::spec::{LayerKind, MOST_FFN, Scoring};
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const LFM2: Architecture = Architecture {
    name: "lfm2",
    gguf: &["lfm2"],
    hugging_face: &["lfm2"],
    gguf_names: names::GGUF_LFM2,
    hugging_face_names: names::HUGGING_FACE_LFM2,
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: no_windows,
    finish,
};

pub(super) const LFM2_MOE: Architecture = Architecture {
    name: "lfm2moe",
    gguf: &["lfm2moe"],
    hugging_face: &["lfm2_moe"],
    hugging_face_names: names::HUGGING_FACE_LFM2_MOE,
    experts: true,
    finish: |spec, keys| {
        finish(spec, keys)?;
        mixture(spec, keys)
    },
    ..LFM2
};

/// How experts are chosen, and which layers have them.
fn mixture(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let count = keys.name("expert_count", "num_experts");
    let Some(experts) = &mut spec.experts else {
        return Err(keys.error(&count, "is missing; LFM2-MoE has experts"));
    };
    let gating = keys.name("expert_gating_func", "");
    let function = keys.u32(&gating)?.unwrap_or(2);
    if function != 2 {
        let problem = format!("is {function}; supported is 2 (sigmoid)");
        return Err(keys.error(&gating, problem));
    }
    experts.scoring = Scoring::Sigmoid;
    let scale = keys.name("expert_weights_scale", "routed_scaling_factor");
    experts.scale = keys.positive(&scale, Some(1.0))? as f32;
    let dense = keys.name("leading_dense_block_count", "num_dense_layers");
    let dense = keys.u32(&dense)?.unwrap_or(0);
    spec.expert_layers = (0..spec.layers).map(|layer| layer >= dense).collect();
    let biased = has_choice_bias(spec, keys);
    if let Some(experts) = &mut spec.experts {
        experts.choice_bias = biased;
    }
    Ok(())
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if !keys.is_gguf() {
        spec.eps = keys.positive("norm_eps", Some(1e-5))? as f32;
    }
    spec.layer_kinds = kinds(keys, spec.layers)?;
    let taps = keys.name("shortconv.l_cache", "conv_L_cache");
    spec.conv_taps = read_taps(keys, &taps, 3)?;
    // The width in configurations is rounded by rules of its own.
    let names = if keys.is_gguf() {
        names::GGUF_LFM2
    } else {
        names::HUGGING_FACE_LFM2
    };
    let gate = names::resolve(keys.checkpoint, &names::weight(names.gate, 0));
    if let Some(info) = keys.checkpoint.tensor(&gate)
        && let Ok(ffn @ 1..=MOST_FFN) = u32::try_from(info.n)
    {
        spec.ffn = ffn;
    }
    Ok(())
}

/// Layers without heads of keys have convolutions in GGUF files. Configurations list the kinds, or the attention layers.
fn kinds(keys: &Keys<'_>, layers: u32) -> Result<Vec<LayerKind>, Error> {
    let kind = |attends: bool| {
        if attends {
            LayerKind::Attention
        } else {
            LayerKind::Conv
        }
    };
    let all = keys.name("attention.head_count_kv", "layer_types");
    if let Some(Value::Array(list)) = keys.value(&all) {
        if list.len() != layers as usize {
            let problem = format!("has {} entries for {layers} layers", list.len());
            return Err(keys.error(&all, problem));
        }
        let problem = "has an unknown type; supported are conv and full_attention";
        let each = list.iter().map(|value| match value {
            Value::U64(heads) => Ok(kind(*heads > 0)),
            Value::I64(heads) => Ok(kind(*heads > 0)),
            Value::String(s) if s == "full_attention" => Ok(LayerKind::Attention),
            Value::String(s) if s == "conv" => Ok(LayerKind::Conv),
            _ => Err(keys.error(&all, problem)),
        });
        return each.collect();
    }
    let Some(Value::Array(attention)) = keys.value("full_attn_idxs") else {
        return Ok(vec![LayerKind::Attention; layers as usize]);
    };
    let attends = |layer: u32| attention.contains(&Value::U64(layer.into()));
    Ok((0..layers).map(|layer| kind(attends(layer))).collect())
}
