//! Falcon-H1: in every layer the state space model of Mamba-2 runs beside attention, and both read the same norm. Directories have a factor
//! for each matrix, which GGUF files contain in the matrices.

use super::architecture::{Architecture, StateSizes, has, no_windows};
use super::llama;
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{Mamba, Multipliers};
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const FALCON_H1: Architecture = Architecture {
    name: "falcon-h1",
    gguf: &["falcon-h1"],
    hugging_face: &["falcon_h1"],
    hugging_face_names: Names {
        ffn_norm: "model.layers.{}.pre_ff_layernorm",
        gate: "model.layers.{}.feed_forward.gate_proj",
        up: "model.layers.{}.feed_forward.up_proj",
        down: "model.layers.{}.feed_forward.down_proj",
        final_norm: "model.final_layernorm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    experts: false,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let names = [
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_d_head",
        "mamba_d_conv",
    ];
    let sizes = StateSizes::read(keys, names)?;
    let norm = if keys.is_gguf() {
        has(spec, keys, |_| "blk.0.ssm_norm.weight".into())
    } else {
        keys.bool("mamba_rms_norm")?.unwrap_or(false)
    };
    if norm && keys.bool("mamba_norm_before_gate")?.unwrap_or(false) {
        return Err(keys.error("mamba_norm_before_gate", "is not supported"));
    }
    spec.mamba = Some(Mamba {
        norm,
        beside: true,
        ..sizes.mamba(keys, ["mamba_d_state", "mamba_conv_bias"])?
    });
    if !keys.is_gguf() {
        spec.multipliers = Some(multipliers(keys)?);
        spec.embedding_scale = factor(keys, "embedding_multiplier")?;
        spec.logit_scale = factor(keys, "lm_head_multiplier")?;
    }
    Ok(())
}

fn factor(keys: &Keys<'_>, key: &str) -> Result<f32, Error> {
    Ok(keys.f64(key)?.unwrap_or(1.0) as f32)
}

/// A list of so many factors, or ones.
fn factors<const N: usize>(keys: &Keys<'_>, key: &str) -> Result<[f32; N], Error> {
    let list: Vec<f32> = match keys.value(key) {
        None => return Ok([1.0; N]),
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(_) => Vec::new(),
    };
    let fits: Option<[f32; N]> = list.try_into().ok();
    let problem = || keys.error(key, format!("is not a list of {N} finite numbers"));
    fits.filter(|list| list.iter().all(|f| f.is_finite()))
        .ok_or_else(problem)
}

fn number(value: &Value) -> f32 {
    match value {
        Value::F64(f) => *f as f32,
        Value::U64(n) => *n as f32,
        _ => f32::NAN,
    }
}

fn multipliers(keys: &Keys<'_>) -> Result<Multipliers, Error> {
    let attention = factor(keys, "attention_in_multiplier")?;
    let inputs = factor(keys, "ssm_in_multiplier")?;
    let [gate, down] = factors(keys, "mlp_multipliers")?;
    Ok(Multipliers {
        attention,
        keys: attention * factor(keys, "key_multiplier")?,
        attention_out: factor(keys, "attention_out_multiplier")?,
        state_space: factors::<5>(keys, "ssm_multipliers")?.map(|factor| inputs * factor),
        state_space_out: factor(keys, "ssm_out_multiplier")?,
        gate,
        down,
    })
}
