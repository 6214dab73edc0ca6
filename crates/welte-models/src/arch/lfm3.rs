//! LFM3: LFM2's convolutions beside attention, which has a window in some layers. Parts norm their output too, and a sigmoid gates each
//! head's output. Layers without a window rotate a part of each head, the others all of it, by a base of their own.

use super::architecture::{
    Architecture, has, kinds_by_heads, of_layers, read_taps, ropes_by_window, sized, window_pattern,
};
use super::lfm2;
use crate::keys::Keys;
use crate::names::{self, Names, weight};
use crate::spec::{LayerKind, LayerRope, OutputGate, Rope, Scaling};
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

const KINDS: [&[&str]; 2] = [&["conv"], &["full_attention", "sliding_attention"]];

pub(super) const LFM3: Architecture = Architecture {
    name: "lfm3",
    gguf: &["lfm3"],
    hugging_face: &["lfm3"],
    hugging_face_names: Names {
        q_norm: names::HUGGING_FACE.q_norm,
        k_norm: names::HUGGING_FACE.k_norm,
        o: names::HUGGING_FACE.o,
        post_attn_norm: "model.layers.{}.post_operator_norm",
        post_ffn_norm: "model.layers.{}.post_ffn_norm",
        ..names::HUGGING_FACE_LFM2
    },
    windows,
    finish,
    ..lfm2::LFM2
};

/// Configurations list the layers; without a list, every fourth one has a window, from the fifth on.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let usual = if keys.is_gguf() { 0 } else { 256 };
    let window = keys.u32(&key)?.unwrap_or(usual);
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    let windowed: Vec<bool> = match keys.value("layer_types") {
        Some(Value::Array(list)) => {
            let list = of_layers(keys, "layer_types", list, layers)?.iter();
            list.map(|kind| matches!(kind, Value::String(s) if s == "sliding_attention"))
                .collect()
        }
        _ => (0..layers)
            .map(|i: u32| i > 0 && i.is_multiple_of(4))
            .collect(),
    };
    sized(keys, &windowed, window)
}

/// The kind of each layer; without a list, every second one has attention, from the third on.
fn kinds(keys: &Keys<'_>, layers: u32) -> Result<Vec<LayerKind>, Error> {
    if !keys.is_gguf() && keys.value("layer_types").is_none() {
        let kind = |i: u32| match i > 0 && i.is_multiple_of(2) {
            true => LayerKind::Attention,
            false => LayerKind::Conv,
        };
        return Ok((0..layers).map(kind).collect());
    }
    kinds_by_heads(keys, layers, LayerKind::Conv, KINDS)
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if !keys.is_gguf() {
        spec.eps = keys.positive("norm_eps", Some(1e-5))? as f32;
    }
    spec.layer_kinds = kinds(keys, spec.layers)?;
    let taps = keys.name("shortconv.l_cache", "conv_L_cache");
    spec.conv_taps = read_taps(keys, &taps, 7)?;
    let attends = |kind: &LayerKind| *kind == LayerKind::Attention;
    let first = spec.layer_kinds.iter().position(attends).unwrap_or(0);
    let tensor = |name: fn(&Names) -> &'static str, layer: usize| {
        has(spec, keys, |names| weight(name(names), layer as u32))
    };
    // Files say it by their tensors.
    let (gated, sandwich) = if keys.is_gguf() {
        let gate = tensor(|names| names.attn_gate, first);
        (gate, tensor(|names| names.post_attn_norm, 0))
    } else {
        let said = |key: &str| -> Result<bool, Error> { Ok(keys.bool(key)?.unwrap_or(true)) };
        (said("use_attention_gate")?, said("use_sandwich_norm")?)
    };
    spec.post_norm = sandwich;
    spec.attention_gate = gated.then_some(OutputGate {
        per_head: true,
        softplus: false,
    });
    ropes(spec, keys)
}

fn ropes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let of = |kind: &str, key: &str| format!("rope_parameters.{kind}_attention.{key}");
    let theta = if keys.is_gguf() {
        keys.name("rope.freq_base_swa", "")
    } else {
        let kind = of("sliding", "rope_type");
        if !matches!(keys.text(&kind)?, None | Some("default")) {
            return Err(keys.error(&kind, "is not supported; supported is default"));
        }
        if keys.value(&of("full", "rope_type")).is_none() {
            let base = of("full", "rope_theta");
            spec.rope.theta = keys.positive(&base, Some(1e6))? as f32;
            let part = keys.positive(&of("full", "partial_rotary_factor"), Some(0.5))? as f32;
            spec.rope.scaling = Scaling::Proportional { part, factor: 1.0 };
        }
        of("sliding", "rope_theta")
    };
    if spec.windows.iter().all(|window| *window == 0) {
        return Ok(());
    }
    spec.local_rope = Some(Rope {
        theta: keys.positive(&theta, Some(1e4))? as f32,
        scaling: Scaling::None,
        ..spec.rope
    });
    ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    Ok(())
}
