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
use welte_formats::checkpoint::Value;

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

/// What the name of a projector's tensors begins with.
pub(super) fn prefix(checkpoint: &dyn Checkpoint, one: &WindowProjector) -> String {
    let kind = match one.offset {
        None => "layerwise_projectors",
        Some(_) => "spatial_projectors",
    };
    let own = format!("{kind}.{}.", one.own);
    let end = format!("{own}norm.weight");
    let found = ending(checkpoint, &end);
    found.map_or(own, |name| name.trim_end_matches("norm.weight").to_string())
}

/// The chain of encoders, from what a configuration says of SigLIP.
pub(super) fn read(keys: &Keys<'_>, spec: VisionSpec) -> Result<VisionSpec, Error> {
    for (key, wanted) in [
        ("vision_config.model_type", "siglip_vision_model"),
        ("vision_feature_select_strategy", "full"),
    ] {
        if keys.text(key)? != Some(wanted) {
            return Err(keys.error(key, format!("is not supported; it must be {wanted}")));
        }
    }
    let rate = keys.text(RATE)?.and_then(|text| text.split_once('/'));
    let rate = rate.and_then(|(a, b)| Some([a.parse().ok()?, b.parse::<u32>().ok()?]));
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
        return Err(keys.error(RATE, problem));
    };
    let projectors = projectors(keys, spec.layers)?;
    if window != 2 * queries {
        return Err(keys.error(RATE, "is not supported; it must be a half"));
    }
    if keys
        .u32("qformer_config.num_hidden_layers")?
        .is_some_and(|n| n != 1)
        || ending(
            keys.checkpoint,
            "qformer.encoder.layer.1.output_query.dense.weight",
        )
        .is_some()
    {
        let problem = "is not supported; it must be 1";
        return Err(keys.error("qformer_config.num_hidden_layers", problem));
    }
    let (dim, count) = (spec.dim, projectors.len() as u32);
    if !dim.is_multiple_of(HEAD) {
        let problem = format!("is {dim}; must be a multiple of {HEAD}");
        return Err(keys.error("vision_config.hidden_size", problem));
    }
    let eps = keys.positive("qformer_config.layer_norm_eps", Some(1e-12))?;
    let ffn = keys.size("qformer_config.intermediate_size", Some(3072), 1 << 16)?;
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
