//! Mamba and Falcon Mamba: every layer has the state space model of Mamba-1 and nothing else.

use super::architecture::{Architecture, no_windows, read_taps};
use super::llama;
use crate::keys::Keys;
use crate::spec::{
    LayerKind, LayerRope, MOST_DIM, MOST_HEAD_DIM, Mamba, Selective, SelectiveNorms,
};
use crate::{Error, ModelSpec, names};
use welte_formats::checkpoint::Value;

pub(super) const MAMBA: Architecture = Architecture {
    name: "mamba",
    gguf: &["mamba"],
    hugging_face: &["mamba", "falcon_mamba"],
    // Layers have one norm, as those of Nemotron-H.
    hugging_face_names: names::HUGGING_FACE_NEMOTRON_H,
    gguf_interleaved: false,
    experts: false,
    attends: false,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    spec.alone = true;
    spec.layer_kinds.fill(LayerKind::Mamba);
    spec.layer_ropes.fill(LayerRope::None);
    let normed = match keys.is_gguf() {
        true => keys
            .bool(&keys.name("ssm.dt_b_c_rms", ""))?
            .unwrap_or(false),
        false => keys.text("general.architecture")? == Some("falcon_mamba"),
    };
    let norms = match normed {
        true => SelectiveNorms::Plain,
        false => SelectiveNorms::None,
    };
    let sizes = Sizes {
        inner: "intermediate_size",
        expand: "expand",
        state: "state_size",
        rank: "time_step_rank",
        taps: "conv_kernel",
        conv_bias: "use_conv_bias",
        bias: "use_bias",
    };
    let mut mamba = selective(spec, keys, &sizes, norms)?;
    // Files have one epsilon for all norms.
    if let Some(s) = &mut mamba.selective
        && normed
        && !keys.is_gguf()
    {
        s.eps = keys.positive("mixer_rms_eps", Some(1e-6))? as f32;
    }
    spec.mamba = Some(mamba);
    Ok(())
}

/// The names of the sizes in configurations.
pub(super) struct Sizes {
    /// Inputs. Some configurations have only their number for each value of the stream.
    pub(super) inner: &'static str,
    pub(super) expand: &'static str,
    pub(super) state: &'static str,
    pub(super) rank: &'static str,
    pub(super) taps: &'static str,
    /// The convolution has a bias; the projections have.
    pub(super) conv_bias: &'static str,
    pub(super) bias: &'static str,
}

/// Reads the state space model of Mamba-1.
pub(super) fn selective(
    spec: &ModelSpec,
    keys: &Keys<'_>,
    names: &Sizes,
    norms: SelectiveNorms,
) -> Result<Mamba, Error> {
    if keys.bool(names.bias)?.unwrap_or(false) {
        return Err(keys.error(names.bias, "is not supported"));
    }
    let expanded = match keys.is_gguf() {
        true => None,
        false => Some(spec.dim * keys.size(names.expand, Some(2), 16)?),
    };
    let inner = keys.name("ssm.inner_size", names.inner);
    let inner = keys.size(&inner, expanded, 16 * MOST_DIM)?;
    let rank_key = keys.name("ssm.time_step_rank", names.rank);
    let rank = match keys.value(&rank_key) {
        Some(Value::String(s)) if s == "auto" => spec.dim.div_ceil(16),
        _ => keys.size(&rank_key, Some(spec.dim.div_ceil(16)), MOST_DIM)?,
    };
    let taps_key = keys.name("ssm.conv_kernel", names.taps);
    let taps = read_taps(keys, &taps_key, 4)?;
    let state = keys.name("ssm.state_size", names.state);
    // Inputs are dealt to heads, which devices compute apart from each other.
    let value_dim = 1 << inner.trailing_zeros().min(6);
    Ok(Mamba {
        groups: 1,
        heads: inner / value_dim,
        key_dim: keys.size(&state, Some(16), MOST_HEAD_DIM)?,
        value_dim,
        taps,
        bias: keys.bool(names.conv_bias)?.unwrap_or(true),
        norm: false,
        beside: false,
        selective: Some(Selective {
            rank,
            norms,
            eps: spec.eps,
        }),
    })
}
