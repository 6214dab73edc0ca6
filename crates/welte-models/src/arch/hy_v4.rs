//! Hunyuan 4: attention over latents with a sink for each head and gates for its output, and experts chosen by sigmoid with a bias beside a
//! shared one, whose activations have a limit. Hidden states are several streams; a part of a layer reads a sum of them and adds its
//! output to each by gates (independent hyper-connections). Contexts that are no longer than the choice of its
//! indexer see every position, so the indexer is left out.

use super::architecture::{Architecture, Usual, no_windows};
use super::{deepseek2, llama};
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{Hyper, Limits, OutputGate, Scoring};
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const HY_V4: Architecture = Architecture {
    name: "hy_v4",
    gguf: &["hy_v4"],
    hugging_face: &["hy_v4"],
    usual: Usual {
        eps: 1e-5,
        experts_scale: 2.827,
        ..Usual::PLAIN
    },
    hugging_face_names: Names {
        attn_gate: "model.layers.{}.self_attn.linear_gate",
        sinks: "model.layers.{}.self_attn.learnable_sink_param",
        ..deepseek2::HUGGING_FACE
    },
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    deepseek2::latents(spec, keys)?;
    // Transformers turns halves of a head, llama.cpp neighbours.
    let pairs = keys.bool("rope_interleave")?;
    spec.rope.interleaved = pairs.unwrap_or(keys.is_gguf());
    let count = keys.name("expert_count", "n_routed_experts");
    if spec.experts.is_none() {
        return Err(keys.error(&count, "is missing; Hunyuan 4 has experts"));
    }
    deepseek2::experts(spec, keys)?;
    if let Some(experts) = &mut spec.experts {
        experts.scoring = Scoring::Sigmoid;
    }
    spec.sinks = vec![true; spec.layers as usize];
    spec.attention_gate = Some(OutputGate::default());
    limits(spec, keys)?;
    let count = keys.name("hyper_connection.count", "hc_mult");
    let magnitude = keys.name("hyper_connection.magnitude", "hc_magnitude");
    spec.hyper = Some(Hyper {
        streams: keys.size(&count, Some(4), 16)?,
        magnitude: keys.positive(&magnitude, Some(2.0))? as f32,
    });
    // It is added to gates near 1, where 1e-5 makes no difference.
    let eps = keys.name("hyper_connection.epsilon", "hc_eps");
    let added = keys.f64(&eps)?.unwrap_or(1e-6);
    if !(0.0..=1e-5).contains(&added) {
        let problem = format!("is {added}; must be from 0 to 0.00001");
        return Err(keys.error(&eps, problem));
    }
    let indexed = |t: &welte_formats::TensorInfo| names::is_of_indexer(&t.name);
    if keys.checkpoint.tensors().iter().any(indexed) {
        let key = keys.name("attention.indexer.top_k", "index_topk");
        spec.indexed = Some(keys.size(&key, Some(2048), 1 << 30)?);
    }
    Ok(())
}

/// The limits of the chosen experts' gates. Files list one for each layer.
fn limits(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = keys.name("swiglu_clamp_exp", "swiglu_limit");
    let number = |value: &Value| match value {
        Value::F64(v) => Some(*v),
        Value::U64(v) => Some(*v as f64),
        Value::I64(v) => Some(*v as f64),
        _ => None,
    };
    let all = match keys.value(&key) {
        Some(Value::Array(list)) if list.len() == spec.layers as usize => {
            list.iter().map(number).collect()
        }
        Some(Value::Array(list)) => {
            let problem = format!("has {} entries for {} layers", list.len(), spec.layers);
            return Err(keys.error(&key, problem));
        }
        Some(one) => number(one).map(|one| vec![one; spec.layers as usize]),
        None => {
            let usual = if keys.is_gguf() { 0.0 } else { 10.0 };
            Some(vec![usual; spec.layers as usize])
        }
    };
    let all: Option<Vec<f64>> = all;
    let all = all.filter(|all| all.iter().all(|v| (-1e30..1e30).contains(v)));
    let all = all.ok_or_else(|| keys.error(&key, "is not a number for each layer"))?;
    if all.iter().any(|limit| *limit > 0.0) {
        let limit = |limit: &f64| Limits {
            experts: Some(*limit as f32).filter(|limit| *limit > 0.0),
            plain: None,
        };
        spec.limits = all.iter().map(limit).collect();
        spec.limits_gate = true;
    }
    Ok(())
}
