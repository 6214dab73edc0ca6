//! Granite with sliding windows: Granite 3 with an attention sink per head, and a window in three of four layers. Some layers may lack
//! rope. Gate and up of the shared expert of models with experts are one matrix.

use super::architecture::{Architecture, flags, layer_types, numbers, window_pattern};
use super::{granite, llama};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{LayerRope, Rope};
use crate::{Error, ModelSpec};

pub(super) const GRANITE_SWA: Architecture = Architecture {
    name: "granite_swa",
    gguf: &["granite_swa"],
    hugging_face: &["granite_swa", "granitemoe_swa"],
    gguf_names: Names {
        gate_up: "blk.{}.ffn_up_shexp",
        ..names::GGUF
    },
    hugging_face_names: Names {
        gate_up: "model.layers.{}.shared_mlp.input_linear",
        shared_expert: names::HUGGING_FACE_GRANITE_HYBRID.shared_expert,
        router: "model.layers.{}.block_sparse_moe.router",
        fused_experts: [
            "model.layers.{}.block_sparse_moe.experts.gate_up_proj",
            "model.layers.{}.block_sparse_moe.experts.down_proj",
        ],
        ..names::HUGGING_FACE
    },
    experts: true,
    windows,
    finish: |spec, keys| {
        granite::factors(spec, keys)?;
        granite::shared_expert(spec, keys)?;
        spec.sinks = vec![true; spec.layers as usize];
        ropes(spec, keys)
    },
    ..llama::LLAMA
};

/// Layers 0, 4, 8 … see everything, unless `layer_types` says otherwise.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.size(&key, (!keys.is_gguf()).then_some(128), 1 << 30)?;
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    let each = |i| if i % 4 == 0 { 0 } else { window };
    let list = layer_types(keys, layers, window)?;
    Ok(list.unwrap_or_else(|| (0..layers).map(each).collect()))
}

/// The rope of each layer. Configurations list its base, which is 0 without rope; GGUF files and older configurations list whether there is
/// rope.
fn ropes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "layer_rope_theta";
    let bases = match keys.is_gguf() {
        true => None,
        false => numbers(spec, keys, key)?,
    };
    let Some(bases) = bases else {
        let key = keys.name("attention.rope_pattern", "no_rope_layers");
        if keys.value(&key).is_some() {
            let turned = flags(keys, spec.layers, &key)?.into_iter();
            let rope = |turned| match turned {
                true => LayerRope::Main,
                false => LayerRope::None,
            };
            spec.layer_ropes = turned.map(rope).collect();
        }
        return Ok(());
    };
    let mut known = Vec::new();
    for base in bases.iter().filter(|base| **base != 0.0) {
        if !(1.0..=1e30).contains(base) {
            let problem = format!("has {base}; must be 0, or from 1 to 1e30");
            return Err(keys.error(key, problem));
        }
        if !known.contains(base) {
            known.push(*base);
        }
    }
    if known.len() > 2 {
        let problem = format!("has {} bases; two are supported", known.len());
        return Err(keys.error(key, problem));
    }
    let rope = |base: &f64| match known.iter().position(|known| known == base) {
        None => LayerRope::None,
        Some(0) => LayerRope::Main,
        Some(_) => LayerRope::Local,
    };
    spec.layer_ropes = bases.iter().map(rope).collect();
    if let Some(base) = known.first() {
        spec.rope.theta = *base as f32;
    }
    spec.local_rope = known.get(1).map(|base| Rope {
        theta: *base as f32,
        ..spec.rope
    });
    Ok(())
}
