//! SmolLM3: every fourth layer has no rope.

use super::architecture::Architecture;
use super::qwen2;
use crate::spec::LayerRope;
use crate::{QkNorm, names};
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
    windows: qwen2::windows,
    finish: |spec, keys| {
        let key = "no_rope_layers";
        let turns: Vec<bool> = match keys.value(key) {
            // In spite of its name, the list is 1 for layers with rope.
            Some(Value::Array(list)) if list.len() == spec.layers as usize => {
                list.iter().map(|v| *v != Value::U64(0)).collect()
            }
            Some(Value::Array(list)) => {
                let problem = format!("has {} entries for {} layers", list.len(), spec.layers);
                return Err(keys.error(key, problem));
            }
            _ => {
                let every = keys.size("no_rope_layer_interval", Some(4), 1 << 10)?;
                (1..=spec.layers).map(|i| i % every != 0).collect()
            }
        };
        let rope = |turns| {
            if turns {
                LayerRope::Main
            } else {
                LayerRope::None
            }
        };
        spec.layer_ropes = turns.into_iter().map(rope).collect();
        Ok(())
    },
};
