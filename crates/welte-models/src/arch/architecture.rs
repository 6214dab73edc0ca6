//! What a file of an architecture says, and what several of them read in the same way.

use crate::keys::Keys;
use crate::names::{self, Names};
use crate::spec::{LayerKind, LayerRope, MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, Mamba};
use crate::{Error, ModelSpec, QkNorm};
use welte_formats::checkpoint::{Dialect, Value};

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
    /// Numbers of heads and widths of feed-forward parts may be lists, which `finish` reads.
    pub(crate) lists: bool,
    /// False: no layer has attention or a feed-forward part, so their sizes are not read.
    pub(crate) attends: bool,
    /// What configurations mean that lack a key.
    pub(crate) usual: Usual,
    /// The attention window of each layer; 0 is none.
    pub(crate) windows: fn(&Keys<'_>, u32) -> Result<Vec<u32>, Error>,
    /// Corrects the spec where the common reading is wrong.
    pub(crate) finish: fn(&mut ModelSpec, &Keys<'_>) -> Result<(), Error>,
}

/// Values of keys that configurations may lack, where families differ.
#[derive(Clone, Copy)]
pub(crate) struct Usual {
    /// The base of rope.
    pub(crate) theta: f64,
    /// The epsilon of norms.
    pub(crate) eps: f64,
    /// What the shares of experts are multiplied by.
    pub(crate) experts_scale: f64,
}

impl Usual {
    pub(crate) const PLAIN: Usual = Usual {
        theta: 1e4,
        eps: 1e-6,
        experts_scale: 1.0,
    };
}

impl Architecture {
    pub(crate) fn names(&self, dialect: Dialect) -> &Names {
        match dialect {
            Dialect::Gguf => &self.gguf_names,
            Dialect::HuggingFace => &self.hugging_face_names,
        }
    }
}

/// True if the checkpoint has a tensor of this full name among those of the spec's architecture.
pub(super) fn has(spec: &ModelSpec, keys: &Keys<'_>, name: impl Fn(&Names) -> String) -> bool {
    let Some(arch) = Architecture::by_name(&spec.architecture) else {
        return false;
    };
    let name = name(arch.names(keys.checkpoint.dialect()));
    let name = names::resolve(keys.checkpoint, &name);
    keys.checkpoint.tensor(&name).is_some()
}

/// True if the choice of experts has a bias. All layers with experts have one, or none.
pub(super) fn has_choice_bias(spec: &ModelSpec, keys: &Keys<'_>) -> bool {
    let Some(first) = spec.expert_layers.iter().position(|mixed| *mixed) else {
        return false;
    };
    let first = first.to_string();
    has(spec, keys, |names| names.choice_bias.replace("{}", &first))
}

/// Layers without a window have the first rope, the others the second.
pub(super) fn ropes_by_window(spec: &mut ModelSpec, [whole, windowed]: [LayerRope; 2]) {
    let rope = |window: &u32| if *window == 0 { whole } else { windowed };
    spec.layer_ropes = spec.windows.iter().map(rope).collect();
}

/// Rotates one of `parts` equal parts of each head, if a configuration does not say how much is rotated.
pub(super) fn rotate_by_default(
    spec: &mut ModelSpec,
    keys: &Keys<'_>,
    parts: u32,
) -> Result<(), Error> {
    let share = [
        "partial_rotary_factor",
        "rope_parameters.partial_rotary_factor",
    ];
    if keys.is_gguf() || share.iter().any(|key| keys.value(key).is_some()) {
        return Ok(());
    }
    let rot = spec.head_dim / parts;
    if rot == 0 || !rot.is_multiple_of(2) {
        let head = spec.head_dim;
        let problem = format!("is missing; one of {parts} parts of {head} elements is no pairs");
        return Err(keys.error(share[0], problem));
    }
    spec.rope.rot = rot;
    Ok(())
}

/// Leaves out the layers that guess ahead. GGUF files count them among the layers.
pub(super) fn leave_out_drafts(
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
        spec.layer_kinds.truncate(layers);
        spec.layer_ropes.truncate(layers);
        spec.expert_layers.truncate(layers);
    }
    spec.draft_layers = drafts.min(MOST_LAYERS);
    Ok(())
}

/// What layers with a state of heads have in common: groups of heads that share keys, heads, elements of a head's value, taps
/// of the convolution.
pub(super) struct StateSizes {
    pub(super) groups: u32,
    pub(super) heads: u32,
    pub(super) value_dim: u32,
    pub(super) taps: u32,
}

impl StateSizes {
    /// Reads them. The names are those of Hugging Face configurations, in the order of the fields.
    pub(super) fn read(
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
        let value_dim = if keys.is_gguf() {
            // The key holds the values of all heads.
            let key = keys.name("ssm.inner_size", "");
            let values = keys.size(&key, None, MOST_HEADS * MOST_HEAD_DIM)?;
            if !values.is_multiple_of(heads) || values / heads > MOST_HEAD_DIM {
                let problem = format!("is {values}, which does not fit {heads} heads");
                return Err(keys.error(&key, problem));
            }
            values / heads
        } else {
            keys.size(value_dim, None, MOST_HEAD_DIM)?
        };
        let key = keys.name("ssm.conv_kernel", taps);
        let taps = read_taps(keys, &key, 4)?;
        Ok(StateSizes {
            groups,
            heads,
            value_dim,
            taps,
        })
    }

    /// Mamba-2 of these sizes, by itself and with a norm. The names are those of the keys' size and of the convolution's bias.
    pub(super) fn mamba(self, keys: &Keys<'_>, [state, bias]: [&str; 2]) -> Result<Mamba, Error> {
        let state = keys.name("ssm.state_size", state);
        Ok(Mamba {
            groups: self.groups,
            heads: self.heads,
            key_dim: keys.size(&state, None, MOST_HEAD_DIM)?,
            value_dim: self.value_dim,
            taps: self.taps,
            bias: keys.bool(bias)?.unwrap_or(true),
            norm: true,
            beside: false,
            selective: None,
        })
    }
}

/// The kind of each layer: attention or `other`. GGUF files say by the heads of keys which layers have attention, configurations by
/// `layer_types`, whose names are those of `other` and of attention.
pub(super) fn kinds_by_heads(
    keys: &Keys<'_>,
    layers: u32,
    other: LayerKind,
    [others, attention]: [&[&str]; 2],
) -> Result<Vec<LayerKind>, Error> {
    let key = keys.name("attention.head_count_kv", "layer_types");
    let list: &[Value] = match keys.value(&key) {
        Some(Value::Array(list)) => list,
        _ => &[],
    };
    if list.len() != layers as usize {
        let problem = format!("has {} entries for {layers} layers", list.len());
        return Err(keys.error(&key, problem));
    }
    let each = list.iter().map(|value| match value {
        Value::U64(0) | Value::I64(0) => Ok(other),
        Value::U64(_) | Value::I64(_) => Ok(LayerKind::Attention),
        Value::String(s) if others.contains(&s.as_str()) => Ok(other),
        Value::String(s) if attention.contains(&s.as_str()) => Ok(LayerKind::Attention),
        _ => {
            let [other, attention] = [others[0], attention[0]];
            let problem = format!("has an unknown type; supported are {other} and {attention}");
            Err(keys.error(&key, problem))
        }
    });
    each.collect()
}

/// The taps of a convolution.
pub(super) fn read_taps(keys: &Keys<'_>, key: &str, default: u32) -> Result<u32, Error> {
    let taps = keys.size(key, Some(default), 64)?;
    if taps < 2 {
        return Err(keys.error(key, "is 1; must be at least 2"));
    }
    Ok(taps)
}

/// The layers that guess ahead.
fn draft_layers(keys: &Keys<'_>) -> Result<u32, Error> {
    let key = keys.name("nextn_predict_layers", "num_nextn_predict_layers");
    Ok(keys.u32(&key)?.unwrap_or(0))
}

/// The entries of a configuration's list for all layers. It may go on with those that guess ahead.
pub(super) fn of_layers<'a>(
    keys: &Keys<'_>,
    key: &str,
    list: &'a [Value],
    layers: u32,
) -> Result<&'a [Value], Error> {
    let all = layers.saturating_add(draft_layers(keys)?);
    if list.len() != layers as usize && list.len() != all as usize {
        let problem = format!("has {} entries for {layers} layers", list.len());
        return Err(keys.error(key, problem));
    }
    Ok(&list[..layers as usize])
}

/// A number of each layer; one number stands for all. A list may have an entry for each layer that guesses ahead. `None` if the key is
/// missing. Entries that are null are 0. Those are left out of metadata, so a list with one shows its length by its last entry only.
pub(super) fn numbers(
    spec: &ModelSpec,
    keys: &Keys<'_>,
    key: &str,
) -> Result<Option<Vec<f64>>, Error> {
    let layers = spec.layers as usize;
    match keys.value(key) {
        None => {
            let entry = |i| keys.f64(&format!("{key}.{i}"));
            let all = layers + draft_layers(keys)?.min(MOST_LAYERS) as usize;
            let mut list = (0..all).map(entry).collect::<Result<Vec<_>, _>>()?;
            match list.iter().rposition(Option::is_some) {
                None => return Ok(None),
                Some(last) if last + 1 < layers => {
                    let problem = format!(
                        "has {} entries or ends with null; must have {layers}",
                        last + 1
                    );
                    return Err(keys.error(key, problem));
                }
                Some(_) => list.truncate(layers),
            }
            Ok(Some(
                list.into_iter().map(Option::unwrap_or_default).collect(),
            ))
        }
        Some(Value::Array(list)) => {
            let number = |value: &Value| match value {
                Value::F64(v) if v.is_finite() => Ok(*v),
                Value::U64(v) => Ok(*v as f64),
                Value::I64(v) => Ok(*v as f64),
                _ => Err(keys.error(key, "has an entry that is not a finite number")),
            };
            let list = of_layers(keys, key, list, spec.layers)?;
            list.iter().map(number).collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Ok(keys.f64(key)?.map(|one| vec![one; layers])),
    }
}

/// No layer has a window.
pub(super) fn no_windows(_: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    Ok(vec![0; layers as usize])
}

/// Windows as a list says which layers have one. These need its size.
pub(super) fn sized(keys: &Keys<'_>, windowed: &[bool], window: u32) -> Result<Vec<u32>, Error> {
    if window == 0 && windowed.contains(&true) {
        let key = keys.name("attention.sliding_window", "sliding_window");
        return Err(keys.error(&key, "is missing or 0; layers with a window need it"));
    }
    let each = windowed.iter().map(|own| u32::from(*own) * window);
    Ok(each.collect())
}

/// The window of each layer, if the configuration lists the attention type of each layer.
pub(crate) fn layer_types(
    keys: &Keys<'_>,
    layers: u32,
    window: u32,
) -> Result<Option<Vec<u32>>, Error> {
    let key = "layer_types";
    let Some(Value::Array(types)) = keys.value(key) else {
        return Ok(None);
    };
    let types = of_layers(keys, key, types, layers)?;
    let each = types.iter().map(|t| match t {
        Value::String(s) if s == "full_attention" => Ok(false),
        Value::String(s) if s == "sliding_attention" => Ok(true),
        _ => Err(keys.error(
            key,
            "has an unknown type; supported are full_attention and sliding_attention",
        )),
    });
    let windowed: Vec<bool> = each.collect::<Result<_, _>>()?;
    sized(keys, &windowed, window).map(Some)
}

/// Windows as configurations list them. Without a list: none.
pub(super) fn windows_by_type(
    keys: &Keys<'_>,
    layers: u32,
    window: u32,
) -> Result<Vec<u32>, Error> {
    let listed = layer_types(keys, layers, window)?;
    Ok(listed.unwrap_or_else(|| vec![0; layers as usize]))
}

/// Windows as GGUF files list them: a boolean for each layer.
pub(crate) fn window_pattern(keys: &Keys<'_>, layers: u32, window: u32) -> Result<Vec<u32>, Error> {
    let pattern = keys.name("attention.sliding_window_pattern", "");
    sized(keys, &flags(keys, layers, &pattern)?, window)
}

/// A boolean for each layer.
pub(super) fn flags(keys: &Keys<'_>, layers: u32, key: &str) -> Result<Vec<bool>, Error> {
    let Some(Value::Array(list)) = keys.value(key) else {
        return Err(keys.error(key, "is missing or not a list"));
    };
    if list.len() != layers as usize {
        let problem = format!("has {} entries for {layers} layers", list.len());
        return Err(keys.error(key, problem));
    }
    let each = |value: &Value| match value {
        Value::Bool(true) | Value::U64(1) | Value::I64(1) => Ok(true),
        Value::Bool(false) | Value::U64(0) | Value::I64(0) => Ok(false),
        _ => Err(keys.error(key, "has an entry that is not a boolean")),
    };
    list.iter().map(each).collect()
}

/// Windows as `layer_types` lists them, otherwise in all layers except every `every`th. Without a window's size: none.
pub(super) fn windowed_but_every(
    keys: &Keys<'_>,
    layers: u32,
    every: u32,
) -> Result<Vec<u32>, Error> {
    let window = keys
        .u32(&keys.name("attention.sliding_window", "sliding_window"))?
        .unwrap_or(0);
    if let Some(list) = layer_types(keys, layers, window)? {
        return Ok(list);
    }
    if window == 0 {
        return Ok(vec![0; layers as usize]);
    }
    let every = if keys.is_gguf() {
        every
    } else {
        keys.size("sliding_window_pattern", Some(every), layers.max(every))?
    };
    let each = |i| if (i + 1) % every == 0 { 0 } else { window };
    Ok((0..layers).map(each).collect())
}

/// Refuses models that cut queries, keys and values off.
pub(super) fn unclipped(keys: &Keys<'_>) -> Result<(), Error> {
    let key = keys.name("attention.clamp_kqv", "clip_qkv");
    match keys.f64(&key)? {
        None | Some(0.0) => Ok(()),
        Some(_) => Err(keys.error(&key, "is not supported")),
    }
}
