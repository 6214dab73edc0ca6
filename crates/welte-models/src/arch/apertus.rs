//! Apertus: queries and keys are normed per head, and the feed-forward part has no gate. Its activation, xIELU, has two
//! learned constants per layer. The head of Apertus 1.5 may know the first part of the tokens only: no text has the others, which stand for
//! pictures and sounds.

use super::architecture::{Architecture, Usual};
use super::llama;
use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::Act;
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::Value;
use welte_formats::quant;

pub(super) const APERTUS: Architecture = Architecture {
    name: "apertus",
    gguf: &["apertus"],
    hugging_face: &["apertus", "apertus1p5", "apertus1p5_text"],
    usual: Usual {
        theta: 12e6,
        eps: 1e-5,
        ..Usual::PLAIN
    },
    hugging_face_names: Names {
        attn_norm: "model.layers.{}.attention_layernorm",
        ffn_norm: "model.layers.{}.feedforward_layernorm",
        ..names::HUGGING_FACE
    },
    gguf_interleaved: false,
    qk_norm: QkNorm::Head,
    experts: false,
    finish: |spec, keys| {
        if !keys.is_gguf() && spec.act != Act::Xielu {
            return Err(keys.error("hidden_act", "must be xielu"));
        }
        spec.act = Act::Xielu;
        spec.gated = false;
        known_tokens(spec, keys)?;
        spec.xielu = (0..spec.layers)
            .map(|layer| constants(keys, layer, spec.layers))
            .collect::<Result<_, _>>()?;
        Ok(())
    },
    ..llama::LLAMA
};

/// Leaves out the tokens that the head does not know.
fn known_tokens(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let names = match keys.is_gguf() {
        true => &APERTUS.gguf_names,
        false => &APERTUS.hugging_face_names,
    };
    let name = names::resolve(keys.checkpoint, &names::weight(names.head, 0));
    let head = keys.checkpoint.tensor(&name).filter(|_| !spec.tied);
    let rows = head.and_then(|head| u32::try_from(head.n).ok());
    let Some(rows) = rows.filter(|rows| (1..spec.vocab).contains(rows)) else {
        return Ok(());
    };
    let key = "output_vocab_size";
    let said = keys.u32(&keys.name("", key))?;
    if !keys.is_gguf() && said != Some(rows) {
        let said = said.map_or("is missing".into(), |said| format!("is {said}"));
        return Err(keys.error(key, format!("{said}; the head has {rows} rows")));
    }
    spec.vocab = rows;
    Ok(())
}

/// The constants of a layer, as the op `act` takes them. Checkpoints contain them before the softplus.
fn constants(keys: &Keys<'_>, layer: u32, layers: u32) -> Result<[f32; 4], Error> {
    let value = |name: &str, default: Option<f64>| {
        if keys.is_gguf() {
            listed(keys, &format!("xielu.{name}"), layer, layers, default)
        } else {
            stored(keys, name, layer, default)
        }
    };
    let (positive, negative) = (value("alpha_p", None)?, value("alpha_n", None)?);
    let (beta, eps) = (value("beta", Some(0.5))?, value("eps", Some(-1e-6))?);
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let constants = [softplus(positive), beta + softplus(negative), beta, eps];
    Ok(constants.map(|c| c as f32))
}

/// A number from a list in the metadata of a GGUF file, with one entry per layer.
fn listed(
    keys: &Keys<'_>,
    key: &str,
    layer: u32,
    layers: u32,
    default: Option<f64>,
) -> Result<f64, Error> {
    let entry = match keys.value(key) {
        Some(Value::Array(list)) if list.len() == layers as usize => list.get(layer as usize),
        Some(Value::Array(list)) => {
            let problem = format!("has {} entries for {layers} layers", list.len());
            return Err(keys.error(key, problem));
        }
        other => other,
    };
    match entry {
        Some(Value::F64(v)) if v.is_finite() => Ok(*v),
        Some(_) => Err(keys.error(key, "is not a finite number for each layer")),
        None => default.ok_or_else(|| keys.error(key, "is missing")),
    }
}

/// A number from a tensor of the layer's activation.
fn stored(keys: &Keys<'_>, name: &str, layer: u32, default: Option<f64>) -> Result<f64, Error> {
    let checkpoint = keys.checkpoint;
    let name = format!("model.layers.{layer}.mlp.act_fn.{name}");
    let name = names::resolve(checkpoint, &name);
    let fault = |problem: String| Error::Tensor {
        origin: checkpoint.origin().into(),
        name: name.clone(),
        problem,
    };
    let Some(info) = checkpoint.tensor(&name) else {
        return default.ok_or_else(|| fault("is missing".into()));
    };
    if (info.n, info.k) != (1, 1) {
        return Err(fault(format!("is {} x {}, expected 1 x 1", info.n, info.k)));
    }
    let mut value = [0.0];
    quant::decode(info.format, &checkpoint.rows(info, 0, 1)?, &mut value);
    if value[0].is_finite() {
        Ok(value[0].into())
    } else {
        Err(fault("is not finite".into()))
    }
}
