//! Granite Vision 4: SigLIP, states of which go through projectors. A projector cuts a state into windows; learned queries, to which
//! means or single patches of the window are added, attend to each other and then to the window. What each projector makes is a part
//! of a feature, which the language model adds before a layer of its own.
//!
//! They are three programs: the norms of states, the queries among each other, and the queries with their windows.

use super::names::ending;
use super::{VisionFamily, VisionSpec, WindowProjector, Windows};
use crate::Error;
use crate::keys::Keys;
use welte_formats::Checkpoint;
use welte_formats::checkpoint::{Dialect, Value};

const MAP: &str = "deepstack_layer_map";
const TARGETS: &str = "spatial_target_layers";
const RATE: &str = "downsample_rate";
/// Values of a head of queries.
const HEAD: u32 = 64;
const MOST_WINDOW: u32 = 64;
/// The most projectors of either kind.
const MOST: usize = 16;

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::I64(v) => Some(*v),
        Value::U64(v) => i64::try_from(*v).ok(),
        _ => None,
    }
}

/// The layers of a language model in GGUF that parts of features are added before: the first one is 0.
pub(crate) fn layers_in_gguf(keys: &Keys<'_>) -> Result<Option<Vec<u32>>, Error> {
    let key = keys.name("deepstack_mapping", "");
    // Of each layer the number of its part; -1: it has none.
    let parts: Option<Vec<i64>> = match keys.value(&key) {
        None => return Ok(None),
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(_) => None,
    };
    let parts = parts.ok_or_else(|| keys.error(&key, "is not a list of numbers"))?;
    let count = parts.iter().filter(|part| **part > 0).count() as i64;
    if count >= MOST as i64 {
        let problem = format!("has {count} parts; at most {} are supported", MOST - 1);
        return Err(keys.error(&key, problem));
    }
    let layer = |part: i64| parts.iter().position(|own| *own == part);
    let layers: Option<Vec<u32>> = (1..=count).map(|p| layer(p).map(|l| l as u32)).collect();
    let layers = layers.map(|layers| [vec![0], layers].concat());
    let ascend = |layers: &Vec<u32>| layers.windows(2).all(|pair| pair[0] < pair[1]);
    let layers = layers.filter(|layers| ascend(layers) && layers.len() <= MOST);
    let wrong = || keys.error(&key, "does not number parts of features layer by layer");
    layers.map(Some).ok_or_else(wrong)
}

/// The projectors of an `mmproj` file, in its order.
fn projectors_in_gguf(keys: &Keys<'_>, layers: u32) -> Result<Vec<WindowProjector>, Error> {
    let list = |key: &str| {
        let list: Option<Vec<i64>> = match keys.value(key) {
            Some(Value::Array(list)) => list.iter().map(number).collect(),
            _ => None,
        };
        list.ok_or_else(|| keys.error(key, "is not a list of numbers"))
    };
    let (layer_key, offset_key) = (
        "clip.vision.feature_layer",
        "clip.vision.projector.spatial_offsets",
    );
    let (after, offsets) = (list(layer_key)?, list(offset_key)?);
    if after.len() != offsets.len() || after.is_empty() || after.len() > 2 * MOST {
        let problem = format!("has {} entries for {}", offsets.len(), after.len());
        return Err(keys.error(offset_key, problem));
    }
    let one = |(own, (after, offset)): (u32, (i64, i64))| {
        let number = u32::try_from(after).ok().filter(|after| *after < layers);
        let number = number
            .ok_or_else(|| keys.error(layer_key, format!("names layer {after} of {layers}")))?;
        let offset = match offset {
            -1 => None,
            0..4 => Some([offset as u32 / 2, offset as u32 % 2]),
            _ => return Err(keys.error(offset_key, format!("is {offset}; must be -1 to 3"))),
        };
        Ok(WindowProjector {
            own,
            after: number + 1,
            offset,
            // The language model's file has the layers.
            before: own,
        })
    };
    (0..).zip(after.into_iter().zip(offsets)).map(one).collect()
}

/// The projectors, in the order of the layers that their parts are added before; the first one is 0.
pub(crate) fn projectors(keys: &Keys<'_>, layers: u32) -> Result<Vec<WindowProjector>, Error> {
    let list = |key: &str| match keys.value(key) {
        Some(Value::Array(list)) => Some(list.as_slice()),
        _ => None,
    };
    // A negative number counts from the end; 0 would be what the layers read.
    let after = |key: &str, value: i64| {
        let number = if value < 0 {
            value + 1 + i64::from(layers)
        } else {
            value
        };
        let number = u32::try_from(number).ok();
        let number = number.filter(|number| (1..=layers).contains(number));
        number.ok_or_else(|| keys.error(key, format!("names layer {value} of {layers}")))
    };
    let pair = |value: &Value| match value {
        Value::Array(pair) => match pair[..] {
            [ref from, ref to] => Some((number(from)?, u32::try_from(number(to)?).ok()?)),
            _ => None,
        },
        _ => None,
    };
    let wrong = || {
        keys.error(
            MAP,
            "must be pairs of a layer of the encoder and one of the model",
        )
    };
    let mut map = Vec::new();
    while let Some(value) = keys.value(&format!("{MAP}.{}", map.len())) {
        map.push(pair(value).ok_or_else(wrong)?);
    }
    if map.is_empty() {
        return Err(wrong());
    }
    let target = |value: &Value| number(value).and_then(|n| u32::try_from(n).ok());
    let targets = match keys.value(TARGETS) {
        None => Some(vec![12, 15, 18, 21]),
        Some(_) => list(TARGETS).and_then(|all| all.iter().map(target).collect()),
    };
    let targets: Vec<u32> = targets.unwrap_or_default();
    if targets.len() != 4 || map.len() > MOST {
        return Err(keys.error(TARGETS, "must be four layers of the model"));
    }
    let spatial = keys.value("spatial_vision_layer").map_or(Some(-1), number);
    let spatial = after("spatial_vision_layer", spatial.unwrap_or(0))?;
    let mut all = Vec::new();
    for (own, (from, before)) in (0..).zip(map) {
        all.push(WindowProjector {
            own,
            after: after(MAP, from)?,
            offset: None,
            before,
        });
    }
    all.extend((0..).zip(targets).map(|(own, before)| WindowProjector {
        own,
        after: spatial,
        offset: Some([own / 2, own % 2]),
        before,
    }));
    all.sort_by_key(|one| one.before);
    let distinct = all.windows(2).all(|pair| pair[0].before < pair[1].before);
    if all[0].before != 0 || !distinct {
        let problem = "and spatial_target_layers must name layers once, the first one among them";
        return Err(keys.error(MAP, problem));
    }
    Ok(all)
}

/// Names of a projector's tensors without `.weight` and `.bias`, after its prefix.
pub(super) struct ProjectorNames {
    /// The norm of the state.
    pub(super) norm: &'static str,
    /// What is added to queries and patches; full names.
    pub(super) queries: &'static str,
    pub(super) positions: &'static str,
    /// The norm of queries.
    pub(super) first_norm: &'static str,
    /// Queries among each other, and with patches: queries, keys, values, the output, and the norm after it.
    pub(super) among: [&'static str; 5],
    pub(super) across: [&'static str; 5],
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) last_norm: &'static str,
    pub(super) out: &'static str,
}

const HUGGING_FACE: ProjectorNames = ProjectorNames {
    norm: "norm",
    queries: "query",
    positions: "image_positions",
    first_norm: "qformer.layernorm",
    among: [
        "qformer.encoder.layer.0.attention.attention.query",
        "qformer.encoder.layer.0.attention.attention.key",
        "qformer.encoder.layer.0.attention.attention.value",
        "qformer.encoder.layer.0.attention.output.dense",
        "qformer.encoder.layer.0.attention.output.LayerNorm",
    ],
    across: [
        "qformer.encoder.layer.0.crossattention.attention.query",
        "qformer.encoder.layer.0.crossattention.attention.key",
        "qformer.encoder.layer.0.crossattention.attention.value",
        "qformer.encoder.layer.0.crossattention.output.dense",
        "qformer.encoder.layer.0.crossattention.output.LayerNorm",
    ],
    up: "qformer.encoder.layer.0.intermediate_query.dense",
    down: "qformer.encoder.layer.0.output_query.dense",
    last_norm: "qformer.encoder.layer.0.output_query.LayerNorm",
    out: "out_linear",
};

const GGUF: ProjectorNames = ProjectorNames {
    norm: "norm",
    queries: "query",
    positions: "img_pos",
    first_norm: "post_norm",
    among: [
        "self_attn_q",
        "self_attn_k",
        "self_attn_v",
        "self_attn_out",
        "self_attn_norm",
    ],
    across: [
        "cross_attn_q",
        "cross_attn_k",
        "cross_attn_v",
        "cross_attn_out",
        "cross_attn_norm",
    ],
    up: "ffn_up",
    down: "ffn_down",
    last_norm: "ffn_norm",
    out: "linear",
};

impl ProjectorNames {
    /// Those of directories, and those of files.
    pub(super) fn both() -> [&'static ProjectorNames; 2] {
        [&HUGGING_FACE, &GGUF]
    }

    pub(super) fn of(checkpoint: &dyn Checkpoint) -> &'static ProjectorNames {
        match checkpoint.dialect() {
            Dialect::Gguf => &GGUF,
            Dialect::HuggingFace => &HUGGING_FACE,
        }
    }
}

/// The name of the matrix that makes features, in GGUF files.
pub(super) const GGUF_OUT: &str = "v.proj_blk.0.linear.weight";

/// What the name of a projector's tensors begins with.
pub(super) fn prefix(checkpoint: &dyn Checkpoint, one: &WindowProjector) -> String {
    if checkpoint.dialect() == Dialect::Gguf {
        return format!("v.proj_blk.{}.", one.own);
    }
    let kind = match one.offset {
        None => "layerwise_projectors",
        Some(_) => "spatial_projectors",
    };
    let own = format!("{kind}.{}.", one.own);
    let end = format!("{own}norm.weight");
    let found = ending(checkpoint, &end);
    found.map_or(own, |name| name.trim_end_matches("norm.weight").to_string())
}

/// Refuses what no published configuration says.
fn plain(keys: &Keys<'_>) -> Result<(), Error> {
    for (key, wanted) in [
        ("vision_config.model_type", "siglip_vision_model"),
        ("vision_feature_select_strategy", "full"),
    ] {
        if keys.text(key)? != Some(wanted) {
            return Err(keys.error(key, format!("is not supported; it must be {wanted}")));
        }
    }
    let layers = "qformer_config.num_hidden_layers";
    let second = "qformer.encoder.layer.1.output_query.dense.weight";
    let more = keys.u32(layers)?.is_some_and(|n| n != 1);
    if more || ending(keys.checkpoint, second).is_some() {
        return Err(keys.error(layers, "is not supported; it must be 1"));
    }
    Ok(())
}

/// The chain of encoders, from what a configuration or an `mmproj` file says of SigLIP.
pub(super) fn read(keys: &Keys<'_>, spec: VisionSpec) -> Result<VisionSpec, Error> {
    let gguf = keys.checkpoint.dialect() == Dialect::Gguf;
    let (rate_key, projectors, eps, ffn) = if gguf {
        let wide = format!("v.proj_blk.0.{}.weight", GGUF.up);
        let info = keys.checkpoint.tensor(&wide);
        let info = info.ok_or_else(|| keys.error(&wide, "is missing"))?;
        let ffn = u32::try_from(info.n).unwrap_or(u32::MAX).min(1 << 16);
        let projectors = projectors_in_gguf(keys, spec.layers)?;
        ("clip.vision.projector.query_side", projectors, 1e-12, ffn)
    } else {
        plain(keys)?;
        let eps = keys.positive("qformer_config.layer_norm_eps", Some(1e-12))?;
        let ffn = keys.size("qformer_config.intermediate_size", Some(3072), 1 << 16)?;
        (RATE, projectors(keys, spec.layers)?, eps, ffn)
    };
    let rate = if gguf {
        let side = |key: &str| keys.u32(&format!("clip.vision.projector.{key}_side"));
        side("query")?.zip(side("window")?).map(|(a, b)| [a, b])
    } else {
        let rate = keys.text(RATE)?.and_then(|text| text.split_once('/'));
        rate.and_then(|(a, b)| Some([a.parse().ok()?, b.parse::<u32>().ok()?]))
    };
    let side = spec.image / spec.patch;
    let fits = |[queries, window]: &[u32; 2]| {
        (1..=MOST_WINDOW).contains(window)
            && *queries > 0
            && window.is_multiple_of(*queries)
            && side.is_multiple_of(*window)
    };
    let Some([queries, window]) = rate.filter(fits) else {
        let problem = format!(
            "must be queries and patches of a window's side, which divide each other and {side}"
        );
        return Err(keys.error(rate_key, problem));
    };
    if window != 2 * queries {
        return Err(keys.error(rate_key, "is not supported; it must be a half"));
    }
    let (dim, count) = (spec.dim, projectors.len() as u32);
    if !dim.is_multiple_of(HEAD) {
        let problem = format!("is {dim}; must be a multiple of {HEAD}");
        return Err(keys.error("vision_config.hidden_size", problem));
    }
    let taps: Vec<u32> = projectors.iter().map(|one| one.after).collect();
    let windows = Windows {
        patches: window,
        queries,
        projectors,
    };
    let tower = VisionSpec {
        family: VisionFamily::Granite4Tower,
        layers: taps.iter().copied().max().unwrap_or(spec.layers),
        taps,
        width: count * dim,
        windows: Some(windows),
        line_end: false,
        ..spec.clone()
    };
    let among = VisionSpec {
        family: VisionFamily::Granite4Queries,
        layers: 0,
        heads: dim / HEAD,
        kv_heads: dim / HEAD,
        positions: 0,
        taps: Vec::new(),
        projector_eps: eps as f32,
        first: Some(Box::new(tower.clone())),
        ..tower
    };
    Ok(VisionSpec {
        family: VisionFamily::Granite4,
        merge: window / queries,
        ffn,
        width: spec.width,
        deep: (1..count).collect(),
        line_end: true,
        first: Some(Box::new(among.clone())),
        ..among
    })
}
