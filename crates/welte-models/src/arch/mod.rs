//! The architectures, one file each, and their list.

mod apertus;
mod bert;
mod cohere2;
mod deepseek2;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod hunyuan;
mod lfm2;
mod llama;
mod ministral3;
mod mixtral;
mod modernbert;
mod nemotron_h;
mod olmo2;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod starcoder2;

use crate::names::{self, Names};
use crate::spec::{MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS};
use crate::{Error, ModelSpec, QkNorm, keys::Keys};
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};

/// The properties that distinguish an architecture. Everything else is common.
pub(crate) struct Architecture {
    /// Its name in a [`ModelSpec`].
    pub(crate) name: &'static str,
    /// `general.architecture` of its GGUF files.
    pub(crate) gguf: &'static [&'static str],
    /// `model_type` of its Hugging Face configurations.
    pub(crate) hugging_face: &'static [&'static str],
    /// Its tensors in GGUF.
    pub(crate) gguf_names: Names,
    /// Its tensors in Hugging Face checkpoints.
    pub(crate) hugging_face_names: Names,
    /// GGUF stores the rows of Q and K so that the pairs of rope are neighbours.
    pub(crate) gguf_interleaved: bool,
    /// The norm of queries and keys.
    pub(crate) qk_norm: QkNorm,
    /// Feed-forward parts may be mixtures of experts.
    pub(crate) experts: bool,
    /// Numbers of key and value heads and widths of feed-forward parts may be lists, which `finish` reads.
    pub(crate) lists: bool,
    /// The attention window of each layer; 0 is none.
    pub(crate) windows: fn(&Keys<'_>, u32) -> Result<Vec<u32>, Error>,
    /// Corrects the spec where the common reading is wrong.
    pub(crate) finish: fn(&mut ModelSpec, &Keys<'_>) -> Result<(), Error>,
}

const ALL: [&Architecture; 39] = [
    &llama::LLAMA,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3_moe::QWEN3_MOE,
    &qwen3_next::QWEN3_NEXT,
    &qwen3_next::QWEN3_5,
    &lfm2::LFM2,
    &lfm2::LFM2_MOE,
    &granite_hybrid::GRANITE_HYBRID,
    &nemotron_h::NEMOTRON_H,
    &mixtral::MIXTRAL,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma3n::GEMMA3N,
    &gemma4::GEMMA4,
    &phi3::PHI3,
    &phimoe::PHIMOE,
    &olmo2::OLMO2,
    &smollm3::SMOLLM3,
    &gpt_oss::GPT_OSS,
    &bert::BERT,
    &bert::ROBERTA,
    &bert::NOMIC_BERT,
    &bert::JINA_V3,
    &modernbert::MODERNBERT,
    &gemma::EMBEDDING_GEMMA,
    &ministral3::MINISTRAL3,
    &cohere2::COHERE2,
    &starcoder2::STARCODER2,
    &exaone4::EXAONE4,
    &seed_oss::SEED_OSS,
    &ernie4_5::ERNIE4_5,
    &hunyuan::HUNYUAN,
    &apertus::APERTUS,
    &granite::GRANITE,
    &glm4_moe::GLM4_MOE,
    &ernie4_5_moe::ERNIE4_5_MOE,
    &deepseek2::DEEPSEEK2,
];

/// The names of supported architectures in checkpoints.
pub fn supported() -> Vec<&'static str> {
    let mut names: Vec<_> = ALL
        .iter()
        .flat_map(|a| a.gguf.iter().chain(a.hugging_face))
        .copied()
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Architecture {
    pub(crate) fn names(&self, dialect: Dialect) -> &Names {
        match dialect {
            Dialect::Gguf => &self.gguf_names,
            Dialect::HuggingFace => &self.hugging_face_names,
        }
    }

    pub(crate) fn all() -> impl Iterator<Item = &'static Architecture> {
        ALL.into_iter()
    }

    /// The architecture with this name in a [`ModelSpec`].
    pub(crate) fn by_name(name: &str) -> Option<&'static Architecture> {
        ALL.into_iter().find(|a| a.name == name)
    }

    /// The checkpoint's architecture, and its name in the checkpoint.
    pub(crate) fn of(
        checkpoint: &dyn Checkpoint,
    ) -> Result<(&'static Architecture, String), Error> {
        let keys = Keys::new(checkpoint, "");
        let Some(said) = keys.text("general.architecture")? else {
            let key = match checkpoint.dialect() {
                Dialect::Gguf => "general.architecture",
                Dialect::HuggingFace => "model_type in config.json",
            };
            return Err(keys.error(key, "is missing; it must name the architecture"));
        };
        let found = ALL.into_iter().find(|a| match checkpoint.dialect() {
            Dialect::Gguf => a.gguf.contains(&said),
            Dialect::HuggingFace => a.hugging_face.contains(&said),
        });
        match found {
            Some(a) => Ok((a, said.to_string())),
            None => Err(unsupported(checkpoint, said)),
        }
    }
}

/// True if the choice of experts has a bias. All layers with experts have one, or none.
fn has_choice_bias(spec: &ModelSpec, keys: &Keys<'_>, names: &Names) -> bool {
    let Some(first) = spec.expert_layers.iter().position(|mixed| *mixed) else {
        return false;
    };
    let name = names.choice_bias.replace("{}", &first.to_string());
    let name = names::resolve(keys.checkpoint, &name);
    keys.checkpoint.tensor(&name).is_some()
}

/// Leaves out the layers that guess ahead. GGUF files count them among the layers.
fn leave_out_drafts(
    spec: &mut ModelSpec,
    keys: &Keys<'_>,
    hugging_face: &str,
) -> Result<(), Error> {
    let key = keys.name("nextn_predict_layers", hugging_face);
    let drafts = keys.u32(&key)?.unwrap_or(0);
    if keys.is_gguf() {
        if drafts >= spec.layers {
            let problem = format!("is {drafts} of {} layers", spec.layers);
            return Err(keys.error(&key, problem));
        }
        spec.layers -= drafts;
        let layers = spec.layers as usize;
        spec.windows.truncate(layers);
        spec.layer_ropes.truncate(layers);
        spec.expert_layers.truncate(layers);
    }
    spec.draft_layers = drafts.min(MOST_LAYERS);
    Ok(())
}

/// What layers with a state of heads have in common: groups of heads that share keys, heads, elements of a head's value, taps
/// of the convolution.
struct StateSizes {
    groups: u32,
    heads: u32,
    value_dim: u32,
    taps: u32,
}

impl StateSizes {
    /// Reads them. The names are those of Hugging Face configurations, in the order of the fields.
    fn read(
        keys: &Keys<'_>,
        [groups, heads, value_dim, taps]: [&str; 4],
    ) -> Result<StateSizes, Error> {
        let heads = keys.size(&keys.name("ssm.time_step_rank", heads), None, MOST_HEADS)?;
        let key = keys.name("ssm.group_count", groups);
        let groups = keys.size(&key, None, MOST_HEADS)?;
        if !heads.is_multiple_of(groups) {
            let problem = format!("is {groups}, which does not divide {heads} heads");
            return Err(keys.error(&key, problem));
        }
        let value_dim = match keys.is_gguf() {
            // The key holds the values of all heads.
            true => {
                let key = keys.name("ssm.inner_size", "");
                let values = keys.size(&key, None, MOST_HEADS * MOST_HEAD_DIM)?;
                if !values.is_multiple_of(heads) || values / heads > MOST_HEAD_DIM {
                    let problem = format!("is {values}, which does not fit {heads} heads");
                    return Err(keys.error(&key, problem));
                }
                values / heads
            }
            false => keys.size(value_dim, None, MOST_HEAD_DIM)?,
        };
        let key = keys.name("ssm.conv_kernel", taps);
        let taps = keys.size(&key, Some(4), 64)?;
        if taps < 2 {
            return Err(keys.error(&key, "is 1; must be at least 2"));
        }
        Ok(StateSizes {
            groups,
            heads,
            value_dim,
            taps,
        })
    }
}

/// The window of each layer, if the configuration lists the attention type of each layer.
fn layer_types(keys: &Keys<'_>, layers: u32, window: u32) -> Result<Option<Vec<u32>>, Error> {
    let key = "layer_types";
    let Some(Value::Array(types)) = keys.value(key) else {
        return Ok(None);
    };
    if types.len() != layers as usize {
        let problem = format!("has {} entries for {layers} layers", types.len());
        return Err(keys.error(key, problem));
    }
    let each = types.iter().map(|t| match t {
        Value::String(s) if s == "full_attention" => Ok(0),
        Value::String(s) if s == "sliding_attention" => Ok(window),
        _ => Err(keys.error(
            key,
            "has an unknown type; supported are full_attention and sliding_attention",
        )),
    });
    each.collect::<Result<_, _>>().map(Some)
}

/// Windows as `layer_types` lists them, otherwise in all layers except every `every`th. Without a window's size: none.
fn windowed_but_every(keys: &Keys<'_>, layers: u32, every: u32) -> Result<Vec<u32>, Error> {
    let window = keys
        .u32(&keys.name("attention.sliding_window", "sliding_window"))?
        .unwrap_or(0);
    if let Some(list) = layer_types(keys, layers, window)? {
        return Ok(list);
    }
    if window == 0 {
        return Ok(vec![0; layers as usize]);
    }
    let every = match keys.is_gguf() {
        true => every,
        false => keys.size("sliding_window_pattern", Some(every), layers.max(every))?,
    };
    let each = |i| if (i + 1) % every == 0 { 0 } else { window };
    Ok((0..layers).map(each).collect())
}

pub(crate) fn unsupported(checkpoint: &dyn Checkpoint, name: &str) -> Error {
    // A hostile name must not fill the terminal.
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    Error::Architecture {
        origin: checkpoint.origin().into(),
        name,
        supported: supported().join(", "),
    }
}
