//! SmolLM3: every fourth layer has no rope.

use super::architecture::{Architecture, Usual};
use super::qwen2;
use crate::keys::Keys;
use crate::spec::LayerRope;
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const SMOLLM3: Architecture = Architecture {
    name: "smollm3",
    gguf: &["smollm3"],
    hugging_face: &["smollm3"],
    gguf_names: names::GGUF,
    hugging_face_names: names::HUGGING_FACE,
    gguf_interleaved: true,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: qwen2::windows,
    finish: |spec, keys| {
        let turns = turning(keys, spec.layers)?;
        turn(spec, &turns);
        Ok(())
    },
};

/// The layers with rope: those of a list, or all but every fourth.
pub(super) fn turning(keys: &Keys<'_>, layers: u32) -> Result<Vec<bool>, Error> {
    let key = "no_rope_layers";
    match keys.value(key) {
        // In spite of its name, the list is 1 for layers with rope.
        Some(Value::Array(list)) if list.len() == layers as usize => {
            Ok(list.iter().map(|v| *v != Value::U64(0)).collect())
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            let problem = format!("has {} entries for {layers} layers", list.len());
            Err(keys.error(key, problem))
        }
        _ => {
            let every = keys.size("no_rope_layer_interval", Some(4), 1 << 10)?;
            Ok((1..=layers).map(|i| i % every != 0).collect())
        }
    }
}

/// Gives the rope to these layers.
pub(super) fn turn(spec: &mut ModelSpec, turning: &[bool]) {
    let rope = |turns: &bool| match turns {
        true => LayerRope::Main,
        false => LayerRope::None,
    };
    spec.layer_ropes = turning.iter().map(rope).collect();
}
