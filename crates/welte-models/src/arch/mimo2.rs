//! MiMo V2: values narrower than keys, and experts chosen by sigmoid with a bias, of which the first layer has none. Layers with a window
//! have more heads of keys and values, a rope of their own and attention sinks.

use super::architecture::{
    Architecture, has, layer_types, leave_out_drafts, of_layers, ropes_by_window, sized,
    window_pattern,
};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{LayerRope, LayerShape, MOST_HEADS, Rope, Scaling};
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::Value;

pub(super) const MIMO2: Architecture = Architecture {
    name: "mimo2",
    gguf: &["mimo2"],
    hugging_face: &["mimo_v2_flash"],
    hugging_face_names: Names {
        sinks: "model.layers.{}.self_attn.attention_sink_bias",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    lists: true,
    windows,
    finish,
    ..llama::LLAMA
};

/// Configurations list the layers with a window as numbers, or by name. Their window leaves out the row itself if it is called the size.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let mut window = keys.u32(&key)?.unwrap_or(0);
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    if let Some(size) = keys.u32("sliding_window_size")? {
        window = size.saturating_add(1);
    }
    if let Some(list) = layer_types(keys, layers, window)? {
        return Ok(list);
    }
    let key = "hybrid_layer_pattern";
    let Some(Value::Array(list)) = keys.value(key) else {
        return Err(keys.error(key, "is missing or not a list"));
    };
    let each = |value: &Value| match value {
        Value::U64(1) => Ok(true),
        Value::U64(0) => Ok(false),
        _ => Err(keys.error(key, "has an entry that is neither 0 nor 1")),
    };
    let list = of_layers(keys, key, list, layers)?;
    let windowed: Vec<bool> = list.iter().map(each).collect::<Result<_, _>>()?;
    sized(keys, &windowed, window)
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    leave_out_drafts(spec, keys, "num_nextn_predict_layers")?;
    if keys.bool("attention_bias")? == Some(true) {
        return Err(keys.error("attention_bias", "is true, which is not supported"));
    }
    for (windowed, other) in [
        ("swa_head_dim", spec.head_dim),
        ("swa_v_head_dim", spec.value_dim.unwrap_or(spec.head_dim)),
        ("swa_num_attention_heads", spec.heads),
    ] {
        if keys.u32(windowed)?.unwrap_or(other) != other {
            let problem = format!("differs from {other} of other layers, which is not supported");
            return Err(keys.error(windowed, problem));
        }
    }
    let scale = keys.name("attention.value_scale", "attention_value_scale");
    spec.value_scale = keys.positive(&scale, Some(1.0))? as f32;
    if spec.value_scale != 1.0 && spec.value_dim.is_none() {
        let factor = spec.value_scale;
        let problem = format!("is {factor}; without narrower values it must be 1");
        return Err(keys.error(&scale, problem));
    }
    shapes(spec, keys)?;
    ropes(spec, keys)?;
    // Either all layers of one kind have sinks, or none.
    let sinks = |windowed: bool| {
        let first = spec.windows.iter().position(|w| (*w > 0) == windowed);
        let full = |names: &Names, layer: usize| names.sinks.replace("{}", &layer.to_string());
        first.is_some_and(|layer| has(spec, keys, |names| full(names, layer)))
    };
    let sinks = [sinks(false), sinks(true)];
    if sinks.contains(&true) {
        let windows = spec.windows.iter();
        spec.sinks = windows.map(|w| sinks[usize::from(*w > 0)]).collect();
    }
    deepseek2::experts_where_routed(spec, keys)
}

/// Reads the heads of keys and values of each layer.
fn shapes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let listed = spec.layers + if keys.is_gguf() { spec.draft_layers } else { 0 };
    let key = keys.name("attention.head_count_kv", "");
    let kv_heads: Vec<u32> = match keys.each(&key, listed, MOST_HEADS)? {
        Some(list) => list,
        None => {
            // transformers has no key for it.
            let key = "swa_num_key_value_heads";
            let twice = (!keys.is_gguf()).then_some(2 * spec.kv_heads);
            let windowed = keys.size(key, twice.or(Some(spec.kv_heads)), MOST_HEADS)?;
            let own = |window: &u32| if *window > 0 { windowed } else { spec.kv_heads };
            spec.windows.iter().map(own).collect()
        }
    };
    if let Some(kv) = kv_heads.iter().find(|kv| !spec.heads.is_multiple_of(**kv)) {
        let key = keys.name("attention.head_count_kv", "swa_num_key_value_heads");
        let problem = format!("has {kv}, which does not divide {} heads", spec.heads);
        return Err(keys.error(&key, problem));
    }
    let shape = |kv_heads: &u32| LayerShape {
        heads: spec.heads,
        kv_heads: *kv_heads,
        head_dim: spec.head_dim,
        ffn: spec.ffn,
    };
    let shapes: Vec<LayerShape> = kv_heads
        .iter()
        .take(spec.layers as usize)
        .map(shape)
        .collect();
    spec.kv_heads = kv_heads.iter().copied().max().unwrap_or(spec.kv_heads);
    if shapes.iter().any(|shape| *shape != shapes[0]) {
        spec.layer_shapes = shapes;
    }
    Ok(())
}

/// Layers with a window have a rope of their own, which is not scaled.
fn ropes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let nested = |kind: &str, key: &str| format!("rope_parameters.{kind}_attention.{key}");
    let mut local = Rope {
        scaling: Scaling::None,
        ..spec.rope
    };
    if !keys.is_gguf() {
        for (kind, rope) in [("full", &mut spec.rope), ("sliding", &mut local)] {
            let key = nested(kind, "partial_rotary_factor");
            if keys.value(&key).is_none() {
                continue;
            }
            let rot = keys.positive(&key, None)? * f64::from(spec.head_dim);
            let rot = rot as u32;
            if rot == 0 || rot > spec.head_dim || !rot.is_multiple_of(2) {
                let head = spec.head_dim;
                let problem = format!("rotates {rot} of {head} elements; must be an even number");
                return Err(keys.error(&key, problem));
            }
            rope.rot = rot;
        }
    }
    let other = nested("sliding", "rope_theta");
    let theta = keys.first_name("rope.freq_base_swa", &["swa_rope_theta", &other]);
    local.theta = keys.positive(&theta, Some(spec.rope.theta.into()))? as f32;
    if spec.windows.iter().any(|window| *window > 0) {
        spec.local_rope = Some(local);
        ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    }
    Ok(())
}
