//! GPT-NeoX and Pythia: layer norms with bias, biases on all matrices, a part of each head rotated, and a feed-forward part without a gate.
//! It reads the stream as attention does, with a norm of its own, unless a configuration says that it follows attention.

use super::architecture::{Architecture, no_windows};
use super::llama;
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{Act, NormKind};
use crate::{Error, ModelSpec};

pub(super) const GPTNEOX: Architecture = Architecture {
    name: "gptneox",
    gguf: &["gptneox"],
    hugging_face: &["gpt_neox"],
    hugging_face_names: Names {
        embed: "gpt_neox.embed_in",
        attn_norm: "gpt_neox.layers.{}.input_layernorm",
        qkv: "gpt_neox.layers.{}.attention.query_key_value",
        grouped_qkv: true,
        o: "gpt_neox.layers.{}.attention.dense",
        ffn_norm: "gpt_neox.layers.{}.post_attention_layernorm",
        up: "gpt_neox.layers.{}.mlp.dense_h_to_4h",
        down: "gpt_neox.layers.{}.mlp.dense_4h_to_h",
        final_norm: "gpt_neox.final_layer_norm",
        head: "embed_out",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    experts: false,
    windows: no_windows,
    finish: |spec, keys| {
        spec.norm = NormKind::Layer { bias: true };
        spec.gated = false;
        if keys.is_gguf() {
            spec.act = Act::Gelu;
        }
        let key = keys.name("use_parallel_residual", "use_parallel_residual");
        spec.parallel = keys.bool(&key)?.unwrap_or(true);
        spec.own_norms = spec.parallel;
        rotate(spec, keys)
    },
    ..llama::LLAMA
};

/// Published configurations have their own name for the rotated part of each head, which is a quarter by default.
fn rotate(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let known = "rope_parameters.partial_rotary_factor";
    if keys.is_gguf() || keys.value(known).is_some() {
        return Ok(());
    }
    let key = "rotary_pct";
    let (part, head) = (keys.positive(key, Some(0.25))?, spec.head_dim);
    let rot = (part * f64::from(head)) as u32;
    if rot == 0 || rot > head || !rot.is_multiple_of(2) {
        let problem = format!("rotates {rot} of {head} elements; the number must be even");
        return Err(keys.error(key, problem));
    }
    spec.rope.rot = rot;
    Ok(())
}
