//! Families whose feed-forward parts have a squared ReLU and no gate: Arcee (AFM) is Llama otherwise, Jais 2 has layer norms and biases.
//! Nemotron (Minitron, Nemotron 3 and 4 of 2024) has layer norms that multiply by `1 + w`, and rotates half of each head.

use super::architecture::{Architecture, Usual, no_windows, rotate_by_default};
use super::llama;
use crate::keys::Keys;
use crate::spec::{Act, NormKind};
use crate::{Error, ModelSpec};

pub(super) const ARCEE: Architecture = Architecture {
    name: "arcee",
    gguf: &["arcee"],
    hugging_face: &["arcee"],
    experts: false,
    windows: no_windows,
    finish: squared_relu,
    ..llama::LLAMA
};

pub(super) const NEMOTRON: Architecture = Architecture {
    name: "nemotron",
    gguf: &["nemotron"],
    hugging_face: &["nemotron"],
    gguf_interleaved: false,
    finish: |spec, keys| {
        squared_relu(spec, keys)?;
        spec.norm = NormKind::Layer { bias: true };
        if keys.is_gguf() {
            return Ok(());
        }
        // GGUF converters have already added it.
        spec.norm_add = 1.0;
        rotate_by_default(spec, keys, 2)
    },
    ..ARCEE
};

pub(super) const JAIS2: Architecture = Architecture {
    name: "jais2",
    gguf: &["jais2"],
    hugging_face: &["jais2"],
    usual: Usual {
        eps: 1e-5,
        ..Usual::PLAIN
    },
    gguf_interleaved: false,
    finish: |spec, keys| {
        squared_relu(spec, keys)?;
        spec.norm = NormKind::Layer { bias: true };
        Ok(())
    },
    ..ARCEE
};

fn squared_relu(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if !keys.is_gguf() && spec.act != Act::Relu2 {
        return Err(keys.error("hidden_act", "must be relu2"));
    }
    spec.act = Act::Relu2;
    spec.gated = false;
    Ok(())
}
