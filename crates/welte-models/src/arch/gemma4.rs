//! Gemma 4: head sizes and numbers of key and value heads that differ by layer, layers that share keys and values, an
//! embedding per layer, or experts beside a dense part.

use super::architecture::{Architecture, layer_types, ropes_by_window, window_pattern};
use super::gemma::{self, GEMMA3};
use crate::encoder;
use crate::keys::Keys;
use crate::spec::{Act, Encoder, LayerRope, LayerShape, Rope, Scaling};
use crate::weights::scalar_name;
use crate::{Error, ModelSpec, names};
use welte_table::Sections;

pub(super) const GEMMA4: Architecture = Architecture {
    name: "gemma4",
    gguf: &["gemma4"],
    hugging_face: &["gemma4", "gemma4_text"],
    hugging_face_names: names::HUGGING_FACE_GEMMA4,
    experts: true,
    lists: true,
    windows,
    finish,
    ..GEMMA3
};

/// A drafter, none of whose layers has keys and values of its own.
pub(crate) const GEMMA4_ASSISTANT: Architecture = Architecture {
    name: "gemma4-assistant",
    gguf: &["gemma4-assistant"],
    hugging_face: &["gemma4_assistant", "gemma4_unified_assistant"],
    finish: |spec, keys| {
        spec.kv_sources = vec![u32::MAX; spec.layers as usize];
        begin(spec, keys)?;
        spec.logit_softcap = 0.0;
        shapes(spec, keys)?;
        ropes(spec, keys)?;
        // The angle is that of the token which a row reads: one position after that of the row.
        for rope in [Some(&mut spec.rope), spec.local_rope.as_mut()]
            .into_iter()
            .flatten()
        {
            rope.sections = Some(Sections::along(rope.rot));
        }
        mixture(spec, keys)
    },
    ..GEMMA4
};

/// EmbeddingGemma 2: an encoder with Gemma 4's layers, whose inputs per layer are projections of the embedding alone. Windows reach
/// equally far to both sides.
pub(super) const EMBEDDING_GEMMA2: Architecture = Architecture {
    name: "embedding-gemma2",
    gguf: &[],
    hugging_face: &["embedding_gemma2", "embedding_gemma2_text"],
    experts: false,
    finish: |spec, keys| {
        begin(spec, keys)?;
        spec.kv_sources = (0..spec.layers).collect();
        spec.causal_layers.clear();
        (spec.tied, spec.logit_softcap) = (true, 0.0);
        shapes(spec, keys)?;
        ropes(spec, keys)?;
        let mut dense = vec![encoder::projection(keys)?];
        dense.extend(encoder::dense(keys)?);
        spec.encoder = Some(Encoder {
            final_norm: true,
            projects: true,
            dense,
            ..Encoder::default()
        });
        Ok(())
    },
    ..GEMMA4
};

/// The default head size of full layers.
const GLOBAL_HEAD_DIM: u32 = 512;
const MOST_HEADS: u32 = 1024;
const MOST_FFN: u32 = 1 << 20;

fn finish(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    begin(spec, keys)?;
    share(spec, keys)?;
    shapes(spec, keys)?;
    ropes(spec, keys)?;
    mixture(spec, keys)
}

/// What a model and its drafter have in common.
fn begin(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    gemma::scaled_embedding(spec);
    spec.act = Act::GeluTanh;
    spec.post_norm = true;
    spec.value_norm = true;
    spec.attention_scale = 1.0;
    let cap = keys.name("final_logit_softcapping", "final_logit_softcapping");
    spec.logit_softcap = keys.f64(&cap)?.unwrap_or(0.0) as f32;
    let both_ways = "use_bidirectional_attention";
    let said = keys.text(both_ways)?;
    if !matches!(said, None | Some("vision")) {
        return Err(keys.error(both_ways, "is not supported; supported is 'vision'"));
    }
    spec.per_layer_width = per_layer_width(keys)?;
    // GGUF files do not say it. The larger models, which have no embeddings per layer, are so.
    let within_windows = if keys.is_gguf() {
        spec.per_layer_width == 0
    } else {
        said.is_some()
    };
    if within_windows {
        spec.causal_layers = spec.windows.iter().map(|window| *window == 0).collect();
    }
    let scalar = scalar_name(keys.checkpoint.dialect(), 0);
    let scalar = names::resolve(keys.checkpoint, &scalar);
    spec.layer_scalars = keys.checkpoint.tensor(&scalar).is_some();
    Ok(())
}

/// Width of the embeddings per layer; 0 is none.
pub(super) fn per_layer_width(keys: &Keys<'_>) -> Result<u32, Error> {
    let key = keys.name(
        "embedding_length_per_layer_input",
        "hidden_size_per_layer_input",
    );
    let width = keys.u32(&key)?.unwrap_or(0);
    if width > 1 << 16 {
        return Err(keys.error(&key, format!("is {width}; must be at most 65536")));
    }
    Ok(width)
}

/// Layers from some number on attend to the keys and values of the last layer before them of the same kind.
pub(super) fn share(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let key = keys.name("attention.shared_kv_layers", "num_kv_shared_layers");
    let shared = keys.u32(&key)?.unwrap_or(0);
    let Some(own) = spec.layers.checked_sub(shared).filter(|own| *own > 0) else {
        let problem = format!("is {shared} of {} layers", spec.layers);
        return Err(keys.error(&key, problem));
    };
    let source = |i: u32| -> Result<u32, Error> {
        if i < own {
            return Ok(i);
        }
        let window = spec.windows[i as usize];
        let like = |j: &u32| spec.windows[*j as usize] == window;
        (0..own).rev().find(like).ok_or_else(|| {
            let problem =
                format!("layer {i} has no layer of its kind to share keys and values with");
            keys.error(&key, problem)
        })
    };
    spec.kv_sources = (0..spec.layers).map(source).collect::<Result<_, _>>()?;
    Ok(())
}

/// The sizes of each layer, and the layers whose values are their keys.
fn shapes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let layers = spec.layers;
    let ffn_key = keys.name("feed_forward_length", "intermediate_size");
    let ffn = keys.each(&ffn_key, layers, MOST_FFN)?;
    let wide = keys.bool("use_double_wide_mlp")?.unwrap_or(false);
    let of_ffn = |i: usize| match &ffn {
        Some(list) => list[i],
        None if wide && spec.kv_sources[i] != i as u32 => spec.ffn * 2,
        None => spec.ffn,
    };
    let shaped = |i: usize| -> Result<LayerShape, Error> {
        let full = spec.windows[i] == 0;
        let (kv_heads, head_dim) = if keys.is_gguf() {
            gguf_heads(spec, keys, i, full)?
        } else {
            hugging_face_heads(spec, keys, i, full)?
        };
        if !spec.heads.is_multiple_of(kv_heads) {
            let key = keys.name("attention.head_count_kv", "num_key_value_heads");
            let problem = format!(
                "is {kv_heads} in layer {i}, which does not divide {} heads",
                spec.heads
            );
            return Err(keys.error(&key, problem));
        }
        Ok(LayerShape {
            heads: spec.heads,
            kv_heads,
            head_dim,
            ffn: of_ffn(i),
        })
    };
    let all = 0..layers as usize;
    let list: Vec<LayerShape> = all.clone().map(shaped).collect::<Result<_, _>>()?;
    // A layer reads the cache of the layer that it shares.
    for i in all.clone() {
        let Some(source) = list.get(spec.kv_sources[i] as usize) else {
            continue;
        };
        if (source.kv_heads, source.head_dim) != (list[i].kv_heads, list[i].head_dim) {
            let key = keys.name("attention.head_count_kv", "num_key_value_heads");
            let problem =
                format!("layer {i} differs from the layer whose keys and values it shares");
            return Err(keys.error(&key, problem));
        }
    }
    let same = keys.bool("attention_k_eq_v")?.unwrap_or(false);
    let values_are_keys = |i: usize| {
        if keys.is_gguf() {
            let tensor = names::weight(names::GGUF.v, i as u32);
            spec.kv_sources[i] == i as u32 && keys.checkpoint.tensor(&tensor).is_none()
        } else {
            same && spec.windows[i] == 0
        }
    };
    spec.values_are_keys = all.map(values_are_keys).collect();
    spec.layer_shapes = list;
    Ok(())
}

/// Key and value heads of a layer, and their size.
fn gguf_heads(
    spec: &ModelSpec,
    keys: &Keys<'_>,
    layer: usize,
    full: bool,
) -> Result<(u32, u32), Error> {
    let key = keys.name("attention.head_count_kv", "");
    let list = keys.each(&key, spec.layers, MOST_HEADS)?;
    let kv_heads = list.map_or(spec.kv_heads, |list| list[layer]);
    let size = |key: &str| keys.size(&keys.name(key, ""), Some(spec.head_dim), 1024);
    let head_dim = if full {
        spec.head_dim
    } else {
        size("attention.key_length_swa")?
    };
    Ok((kv_heads, head_dim))
}

/// The same from a configuration: `per_layer_config` if there is one, else the sizes of full layers.
fn hugging_face_heads(
    spec: &ModelSpec,
    keys: &Keys<'_>,
    layer: usize,
    full: bool,
) -> Result<(u32, u32), Error> {
    let metadata = keys.checkpoint.metadata();
    let listed = metadata.keys().any(|key| {
        key.trim_start_matches("text_config.")
            .starts_with("per_layer_config.")
    });
    let [kv_heads, head_dim] = [
        ("num_key_value_heads", spec.kv_heads),
        ("head_dim", spec.head_dim),
    ];
    let own = |(name, common): (&str, u32), global: &str, default: u32| match (listed, full) {
        (true, _) => {
            let key = format!("per_layer_config.{layer}.{name}");
            keys.size(&key, Some(common), 1024)
        }
        (false, true) => keys.size(global, Some(default), 1024),
        (false, false) => Ok(common),
    };
    let same = keys.bool("attention_k_eq_v")?.unwrap_or(false);
    let global = "num_global_key_value_heads";
    let kv_heads = if same || listed {
        own(kv_heads, global, spec.kv_heads)?
    } else {
        spec.kv_heads
    };
    Ok((kv_heads, own(head_dim, "global_head_dim", GLOBAL_HEAD_DIM)?))
}

/// Full layers rotate a part of a large head. Windowed layers rotate all of a smaller one.
fn ropes(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    let size = |window: bool| {
        let of = |i: &usize| (spec.windows[*i] > 0) == window;
        let layer = (0..spec.layers as usize).find(of);
        layer.map_or(spec.head_dim, |i| spec.shape(i).head_dim)
    };
    let (full, local) = (size(false), size(true));
    let windowed = "rope_parameters.sliding_attention";
    let kind = format!("{windowed}.rope_type");
    if !matches!(keys.text(&kind)?, None | Some("default")) {
        return Err(keys.error(&kind, "is not supported; supported is default"));
    }
    let theta = keys.name("rope.freq_base_swa", &format!("{windowed}.rope_theta"));
    spec.rope.rot = full;
    spec.local_rope = Some(Rope {
        theta: keys.positive(&theta, Some(10000.0))? as f32,
        rot: local,
        scaling: Scaling::None,
        ..spec.rope
    });
    ropes_by_window(spec, [LayerRope::Main, LayerRope::Local]);
    Ok(())
}

/// The experts, if the model uses them.
fn mixture(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if !keys.is_gguf() && !keys.bool("enable_moe_block")?.unwrap_or(false) {
        spec.experts = None;
        spec.expert_layers.fill(false);
    }
    if let Some(experts) = &mut spec.experts {
        experts.beside = true;
    }
    Ok(())
}

/// The window of each layer.
pub(super) fn windows(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = keys.name("attention.sliding_window", "sliding_window");
    let window = keys.size(&key, None, 1 << 30)?;
    if let Some(list) = layer_types(keys, layers, window)? {
        return Ok(list);
    }
    if keys.is_gguf() {
        return window_pattern(keys, layers, window);
    }
    // Every sixth layer is full.
    let each = |i| if (i + 1) % 6 == 0 { 0 } else { window };
    Ok((0..layers).map(each).collect())
}
