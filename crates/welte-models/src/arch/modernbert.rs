//! ModernBERT: an encoder with rope, gated feed-forward parts and norms before each part. Most layers see a window.

use super::architecture::{Architecture, Usual, ropes_by_window};
use crate::encoder;
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::Encoder;
use crate::spec::{Act, LayerRope, NormKind, Rope, Scaling};
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::Value;

pub(super) const MODERNBERT: Architecture = Architecture {
    name: "modern-bert",
    gguf: &["modern-bert"],
    hugging_face: &["modernbert"],
    gguf_names: names::GGUF,
    hugging_face_names: Names {
        embed: "embeddings.tok_embeddings",
        attn_norm: "layers.{}.attn_norm",
        qkv: "layers.{}.attn.Wqkv",
        o: "layers.{}.attn.Wo",
        ffn_norm: "layers.{}.mlp_norm",
        gate_up: "layers.{}.mlp.Wi",
        down: "layers.{}.mlp.Wo",
        final_norm: "final_norm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows,
    finish,
};

/// Every few layers one sees the whole text. The others see as far to each side as half the window.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let window = keys.u32(&keys.name("attention.sliding_window", "local_attention"))?;
    let window = window.unwrap_or(128) / 2;
    if let Some(Value::Array(types)) = keys.value("layer_types") {
        if types.len() != layers as usize {
            let problem = format!("has {} entries for {layers} layers", types.len());
            return Err(keys.error("layer_types", problem));
        }
        let each = types.iter().map(|kind| match kind {
            Value::String(kind) if kind == "full_attention" => 0,
            _ => window,
        });
        return Ok(each.collect());
    }
    let every = keys.name(
        "attention.sliding_window_pattern",
        "global_attn_every_n_layers",
    );
    let every = keys.size(&every, Some(3), layers.max(3))?;
    let each = |layer: u32| {
        if layer.is_multiple_of(every) {
            0
        } else {
            window
        }
    };
    Ok((0..layers).map(each).collect())
}

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let bias = keys.bool("norm_bias")?.unwrap_or(false);
    spec.norm = NormKind::Layer { bias };
    spec.tied = true;
    let eps = keys.name("attention.layer_norm_epsilon", "norm_eps");
    spec.eps = keys.positive(&eps, Some(1e-5))? as f32;
    spec.act = match keys.text("hidden_activation")? {
        None | Some("gelu") => Act::Gelu,
        Some(_) => return Err(keys.error("hidden_activation", "is not supported; it must be gelu")),
    };
    let theta = |nested: &str, plain: &str, gguf: &str, default: f64| {
        let nested = format!("rope_parameters.{nested}.rope_theta");
        let key = match keys.value(&nested) {
            Some(_) => nested,
            None => keys.name(gguf, plain),
        };
        Ok::<f32, Error>(keys.positive(&key, Some(default))? as f32)
    };
    spec.rope.theta = theta(
        "full_attention",
        "global_rope_theta",
        "rope.freq_base",
        160_000.0,
    )?;
    spec.rope.scaling = Scaling::None;
    spec.local_rope = Some(Rope {
        theta: theta(
            "sliding_attention",
            "local_rope_theta",
            "rope.freq_base_swa",
            10_000.0,
        )?,
        ..spec.rope
    });
    ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    spec.encoder = Some(Encoder {
        embedding_norm: true,
        final_norm: true,
        first_is_normed: true,
        dense: encoder::dense(keys)?,
        classifier: encoder::classifier(keys, Act::Gelu),
        weighs_tokens: encoder::weighs_tokens(keys),
        ..Encoder::default()
    });
    Ok(())
}
