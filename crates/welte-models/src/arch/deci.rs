//! Llama-Nemotron: Llamas of which a search left out the attention or the feed-forward part of some layers, and made others narrower.

use super::architecture::{Architecture, no_windows, numbers};
use super::llama;
use crate::keys::Keys;
use crate::spec::{LayerKind, LayerShape, MOST_FFN, MOST_HEADS};
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;

pub(super) const DECI: Architecture = Architecture {
    name: "deci",
    gguf: &["deci"],
    hugging_face: &["nemotron-nas"],
    experts: false,
    lists: true,
    windows: no_windows,
    finish,
    ..llama::LLAMA
};

/// A layer: its heads of keys and values, and the width of its feed-forward part; 0 if it has none.
type Part = (u32, u32);

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let parts = if keys.is_gguf() {
        of_file(spec, keys)?
    } else {
        let each = (0..spec.layers).map(|layer| of_block(spec, keys, layer));
        each.collect::<Result<_, _>>()?
    };
    let most = |of: fn(&Part) -> u32| parts.iter().map(of).max().unwrap_or(0);
    (spec.kv_heads, spec.ffn) = (most(|part| part.0).max(1), most(|part| part.1).max(1));
    let shape = |part: &Part| LayerShape {
        heads: spec.heads,
        kv_heads: if part.0 > 0 { part.0 } else { spec.kv_heads },
        head_dim: spec.head_dim,
        ffn: part.1,
    };
    let kind = |part: &Part| match part.0 {
        0 => LayerKind::None,
        _ => LayerKind::Attention,
    };
    spec.layer_shapes = parts.iter().map(shape).collect();
    spec.layer_kinds = parts.iter().map(kind).collect();
    Ok(())
}

/// Files have lists of heads and widths.
fn of_file(spec: &ModelSpec, keys: &Keys<'_>) -> Result<Vec<Part>, Error> {
    let list = |key: &str, max: u32| -> Result<(String, Vec<u32>), Error> {
        let key = keys.name(key, "");
        let list = numbers(spec, keys, &key)?;
        let list = list.ok_or_else(|| keys.error(&key, "is missing"))?;
        if list
            .iter()
            .any(|number| *number < 0.0 || *number > f64::from(max))
        {
            return Err(keys.error(&key, format!("has an entry that is not from 0 to {max}")));
        }
        Ok((key, list.into_iter().map(|number| number as u32).collect()))
    };
    let (heads_key, heads) = list("attention.head_count", MOST_HEADS)?;
    let (key, kv_heads) = list("attention.head_count_kv", MOST_HEADS)?;
    let (_, widths) = list("feed_forward_length", MOST_FFN)?;
    let mut parts = Vec::new();
    for ((heads, kv_heads), width) in heads.into_iter().zip(kv_heads).zip(widths) {
        if heads != 0 && heads != spec.heads {
            let problem = format!("has {heads} beside {}, which is not supported", spec.heads);
            return Err(keys.error(&heads_key, problem));
        }
        let own = if heads == 0 {
            0
        } else {
            check(spec, keys, &key, kv_heads)?
        };
        parts.push((own, width));
    }
    Ok(parts)
}

/// Configurations describe each layer.
fn of_block(spec: &ModelSpec, keys: &Keys<'_>, layer: u32) -> Result<Part, Error> {
    let name = |key: &str| format!("block_configs.{layer}.{key}");
    let said = [
        "attention.n_heads_in_group",
        "attention.no_op",
        "attention.replace_with_linear",
        "ffn.ffn_mult",
        "ffn.no_op",
        "ffn.replace_with_linear",
    ];
    if said.iter().all(|key| keys.value(&name(key)).is_none()) {
        let problem = format!("says nothing of layer {layer} of {}", spec.layers);
        return Err(keys.error("block_configs", problem));
    }
    for part in ["attention", "ffn"] {
        let key = name(&format!("{part}.replace_with_linear"));
        if keys.bool(&key)? == Some(true) {
            return Err(keys.error(&key, "is true, which is not supported"));
        }
    }
    let absent = |part: &str, key: &str| {
        let absent = keys.bool(&name(&format!("{part}.no_op")))?.unwrap_or(false);
        Ok::<_, Error>(absent || keys.value(key).is_none())
    };
    let group = name("attention.n_heads_in_group");
    let kv_heads = if absent("attention", &group)? {
        0
    } else {
        let size = keys.size(&group, None, spec.heads)?;
        if !spec.heads.is_multiple_of(size) {
            let problem = format!("is {size}, which does not divide {} heads", spec.heads);
            return Err(keys.error(&group, problem));
        }
        spec.heads / size
    };
    let factor = name("ffn.ffn_mult");
    let width = if absent("ffn", &factor)? {
        0
    } else {
        let width = 2.0 * keys.positive(&factor, None)? * f64::from(spec.dim) / 3.0;
        let width = (width as u32).checked_next_multiple_of(256).unwrap_or(0);
        if width == 0 || width > MOST_FFN {
            let problem = format!("makes the feed-forward part {width} wide");
            return Err(keys.error(&factor, problem));
        }
        width
    };
    if let Some(Value::U64(sinks @ 1..)) = keys.value(&name("attention.num_sink_tokens")) {
        let problem = format!("is {sinks}, which is not supported");
        return Err(keys.error(&name("attention.num_sink_tokens"), problem));
    }
    Ok((kv_heads, width))
}

/// The heads of keys and values of a layer with attention.
fn check(spec: &ModelSpec, keys: &Keys<'_>, key: &str, kv_heads: u32) -> Result<u32, Error> {
    if kv_heads == 0 || !spec.heads.is_multiple_of(kv_heads) {
        let problem = format!(
            "has {kv_heads} in a layer with {} heads, which is not supported",
            spec.heads
        );
        return Err(keys.error(key, problem));
    }
    Ok(kv_heads)
}
