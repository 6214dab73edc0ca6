//! Mamba-2: every layer has the state space model and nothing else.

use super::architecture::{Architecture, StateSizes, Usual};
use super::llama;
use crate::keys::Keys;
use crate::spec::{LayerKind, LayerRope};
use crate::{Error, ModelSpec, QkNorm, names};
use welte_formats::checkpoint::Value;

pub(super) const MAMBA2: Architecture = Architecture {
    name: "mamba2",
    gguf: &["mamba2"],
    hugging_face: &["mamba2"],
    gguf_names: names::GGUF_NEMOTRON_H,
    hugging_face_names: names::HUGGING_FACE_NEMOTRON_H,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: false,
    usual: Usual::PLAIN,
    windows: llama::windows,
    finish,
};

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if keys.bool("use_bias")? == Some(true) {
        return Err(keys.error("use_bias", "is true, which is not supported"));
    }
    no_limits(keys)?;
    let names = ["n_groups", "num_heads", "head_dim", "conv_kernel"];
    let sizes = StateSizes::read(keys, names)?;
    spec.mamba = Some(sizes.mamba(keys, ["state_size", "use_conv_bias"])?);
    spec.alone = true;
    spec.layer_kinds.fill(LayerKind::Mamba);
    spec.layer_ropes.fill(LayerRope::None);
    Ok(())
}

/// Time steps have limits in configurations: 0 and infinity, which JSON has no number for.
fn no_limits(keys: &Keys<'_>) -> Result<(), Error> {
    let key = "time_step_limit";
    let limited = match keys.value(key) {
        None => keys.f64(&format!("{key}.0"))?.unwrap_or(0.0) > 0.0,
        Some(Value::Array(_)) => true,
        Some(_) => return Err(keys.error(key, "is not a list of two numbers")),
    };
    if limited || keys.value(&format!("{key}.1")).is_some() {
        return Err(keys.error(key, "is other than 0 and infinity, which is not supported"));
    }
    Ok(())
}
