//! Llama 4 (text): three of four layers see the part of the context that begins at a multiple of a size, and norm queries and keys after
//! rope; the others see everything, have no rope, and let queries grow with their position. In some layers an expert beside a shared one
//! reads an input that is multiplied by its sigmoid.

use super::architecture::Architecture;
use super::{llama, smollm3};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{MOST_FFN, PositionScale, Scoring, SharedExpert};
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::Value;

pub(super) const LLAMA4: Architecture = Architecture {
    name: "llama4",
    gguf: &["llama4"],
    hugging_face: &["llama4", "llama4_text"],
    hugging_face_names: Names {
        gate: "model.layers.{}.feed_forward.gate_proj",
        up: "model.layers.{}.feed_forward.up_proj",
        down: "model.layers.{}.feed_forward.down_proj",
        router: "model.layers.{}.feed_forward.router",
        fused_experts: [
            "model.layers.{}.feed_forward.experts.gate_up_proj",
            "model.layers.{}.feed_forward.experts.down_proj",
        ],
        transposed_experts: names::TransposedExperts::Published,
        shared_expert: [
            "model.layers.{}.feed_forward.shared_expert.gate_proj",
            "model.layers.{}.feed_forward.shared_expert.up_proj",
            "model.layers.{}.feed_forward.shared_expert.down_proj",
        ],
        ..names::HUGGING_FACE
    },
    windows,
    finish,
    ..llama::LLAMA
};

/// Published GGUF files have neither the size of a part of the context nor the length after which queries grow.
const LENGTH: u32 = 8192;

fn part(keys: &Keys<'_>) -> Result<u32, Error> {
    let key = keys.name("attention.sliding_window", "attention_chunk_size");
    Ok(keys.u32(&key)?.unwrap_or(LENGTH))
}

/// The layers with rope. Files that say that no layer has a window have it in all.
fn turning(keys: &Keys<'_>, layers: u32) -> Result<Vec<bool>, Error> {
    match keys.is_gguf() && part(keys)? == 0 {
        true => Ok(vec![true; layers as usize]),
        false => smollm3::turning(keys, layers),
    }
}

fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let (key, part) = ("layer_types", part(keys)?);
    let within = match keys.value(key) {
        Some(Value::Array(list)) => {
            let kind = |kind: &Value| match kind {
                Value::String(s) if s == "chunked_attention" => Some(true),
                Value::String(s) if s == "full_attention" => Some(false),
                _ => None,
            };
            let kinds: Option<Vec<bool>> = list.iter().map(kind).collect();
            let kinds = kinds.filter(|kinds| kinds.len() == layers as usize);
            let problem = format!(
                "is not a list of {layers} types; supported are chunked_attention and full_attention"
            );
            kinds.ok_or_else(|| keys.error(key, problem))?
        }
        _ => turning(keys, layers)?,
    };
    Ok(within
        .iter()
        .map(|within| u32::from(*within) * part)
        .collect())
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let turning = turning(keys, spec.layers)?;
    smollm3::turn(spec, &turning);
    spec.chunks = true;
    spec.rope.interleaved = true;
    let count = keys.name("expert_count", "num_local_experts");
    let Some(e) = &mut spec.experts else {
        return Err(keys.error(&count, "is missing; Llama 4 has experts"));
    };
    if e.used != 1 {
        let key = keys.name("expert_used_count", "num_experts_per_tok");
        return Err(keys.error(&key, format!("is {}; only 1 is supported", e.used)));
    }
    // Files do not say that the models with 128 experts norm nothing.
    let normed = keys.bool("use_qk_norm")?;
    let normed = normed.unwrap_or(!keys.is_gguf() || e.count != 128);
    if normed {
        (spec.qk_norm, spec.qk_norm_late) = (QkNorm::Plain, true);
    }
    (e.scoring, e.renormalise, e.on_input) = (Scoring::Sigmoid, false, true);
    e.shared = Some(SharedExpert {
        ffn: e.ffn,
        gated: false,
    });
    if !keys.is_gguf() {
        spec.ffn = keys.size("intermediate_size_mlp", Some(spec.ffn), MOST_FFN)?;
    }
    spec.expert_layers = expert_layers(spec.layers, keys)?;
    spec.position_scale = position_scale(keys)?;
    Ok(())
}

/// Those of a list, or the last of every few.
fn expert_layers(layers: u32, keys: &Keys<'_>) -> Result<Vec<bool>, Error> {
    let step = keys.name("interleave_moe_layer_step", "interleave_moe_layer_step");
    let step = keys.size(&step, Some(1), 1 << 16)?;
    Ok(match keys.value("moe_layers") {
        Some(Value::Array(list)) => {
            let mixed = |i: u32| list.contains(&Value::U64(i.into()));
            (0..layers).map(mixed).collect()
        }
        _ => (1..=layers).map(|i| i.is_multiple_of(step)).collect(),
    })
}

/// How queries grow in layers without rope.
fn position_scale(keys: &Keys<'_>) -> Result<Option<PositionScale>, Error> {
    // Published configurations have a number, or a boolean.
    let off = [Value::Bool(false), Value::U64(0)];
    let grow = keys.value("attn_temperature_tuning");
    if grow.is_some_and(|grow| off.contains(grow)) {
        return Ok(None);
    }
    let beta = keys.name("attention.temperature_scale", "attn_scale");
    let length = keys.name("attention.temperature_length", "floor_scale");
    Ok(Some(PositionScale {
        beta: keys.f64(&beta)?.unwrap_or(0.1) as f32,
        original: keys.size(&length, Some(LENGTH), 1 << 30)?,
        ahead: 1,
        still: true,
    }))
}
