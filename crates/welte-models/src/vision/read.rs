//! Reads what a checkpoint's encoder of pictures is.

use super::family::{self, Family, Image, Merge, Projector, ProjectorNorm, Rotation};
use super::{
    MOST_DIM, MOST_PATCH, MOST_QUERIES, MOST_SIDE, Places, VisionAct, VisionFamily, VisionSpec,
};
use super::{granite, sam};
use crate::Error;
use crate::keys::Keys;
use crate::names::weight;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::{Dialect, Value};

const MOST_MERGE: u32 = 16;

/// The encoder of pictures of an `mmproj` file, or of a Hugging Face directory. `None` if it has none, or one of an unknown family.
pub fn vision_spec(checkpoint: &dyn Checkpoint) -> Result<Option<VisionSpec>, Error> {
    let keys = Keys::new(checkpoint, "");
    let spec = match checkpoint.dialect() {
        _ if sam::is_there(&keys) => Some(sam::read(&keys)?),
        Dialect::Gguf => gguf(&keys)?,
        Dialect::HuggingFace => hugging_face(&keys)?,
    };
    let Some(spec) = spec else {
        return Ok(None);
    };
    let mut spec = match spec.family {
        VisionFamily::MiniCpmV46 => merged(&keys, spec)?,
        VisionFamily::Granite4 => granite::read(&keys, spec)?,
        _ => spec,
    };
    if spec.queries > 0 && spec.query_sets.is_empty() {
        spec.query_sets = vec![spec.queries];
    }
    for part in spec.chain() {
        check(&keys, part)?;
    }
    Ok(Some(spec))
}

/// Cuts MiniCPM-V 4.6 in two where four patches become one.
fn merged(keys: &Keys<'_>, mut spec: VisionSpec) -> Result<VisionSpec, Error> {
    let whole = std::mem::replace(&mut spec.merge, 2);
    (spec.hidden, spec.projector_eps) = (4 * spec.dim, 1e-6);
    match whole {
        2 => return Ok(spec),
        4 => {}
        _ => {
            let problem = format!("{whole} patches to a feature's side; must be 2 or 4");
            return Err(keys.error("vision encoder", problem));
        }
    }
    let key = match keys.checkpoint.dialect() {
        Dialect::Gguf => "clip.vision.wa_layer_indexes",
        Dialect::HuggingFace => "insert_layer_id",
    };
    let after = match keys.checkpoint.dialect() {
        Dialect::Gguf => numbers(keys, key)?.first().copied(),
        Dialect::HuggingFace => keys.u32(key)?,
    };
    let after = after.unwrap_or(6);
    if after >= spec.layers {
        let problem = format!("is {after}; there are {} layers", spec.layers);
        return Err(keys.error(key, problem));
    }
    let first = VisionSpec {
        family: VisionFamily::MiniCpmMerger,
        layers: after + 1,
        whole: (0..=after).collect(),
        window: Some(1),
        hidden: 4 * spec.ffn,
        width: spec.dim,
        projector_eps: spec.eps,
        projector_act: VisionAct::GeluTanh,
        ..spec.clone()
    };
    Ok(VisionSpec {
        first_layer: after + 1,
        positions: 0,
        first: Some(Box::new(first)),
        ..spec
    })
}

/// The name of an encoder of a family that is not supported; `None` if there is no encoder.
pub fn unknown_vision(checkpoint: &dyn Checkpoint) -> Option<String> {
    let keys = Keys::new(checkpoint, "");
    let text = |key: &str| keys.text(key).ok().flatten();
    let name = match checkpoint.dialect() {
        Dialect::Gguf => {
            let is_true = |key: &str| keys.bool(key).ok().flatten() == Some(true);
            // A file of ears alone has no eyes.
            let hears = is_true("clip.has_audio_encoder") && !is_true("clip.has_vision_encoder");
            let name = text("clip.vision.projector_type").or(text("clip.projector_type"));
            name.filter(|_| !hears)
        }
        Dialect::HuggingFace => {
            let metadata = checkpoint.metadata();
            let mut parts = metadata.keys().map(|key| key.as_str());
            let has = parts.any(|key| key.starts_with("vision_config."));
            text("general.architecture").filter(|_| has)
        }
    };
    // A hostile name must not fill the terminal.
    let name = name?.chars().filter(|c| !c.is_control()).take(64);
    Some(name.collect())
}

fn check(keys: &Keys<'_>, spec: &VisionSpec) -> Result<(), Error> {
    let fault = |problem: String| Err(keys.error("vision encoder", problem));
    let head = spec.dim / spec.heads;
    if !spec.has_layers() {
        return Ok(());
    }
    if !spec.dim.is_multiple_of(spec.heads) {
        return fault(format!("{} heads of {} values", spec.heads, spec.dim));
    }
    if spec.is_rotary() && (!head.is_multiple_of(4) || head > 1020) {
        return fault(format!("rotary positions over heads of {head} values"));
    }
    if spec.family == VisionFamily::Kimi && head > 508 {
        return fault(format!("positions in turns over heads of {head} values"));
    }
    let (side, merge) = (spec.image / spec.patch, spec.merge);
    if !(1..=MOST_MERGE).contains(&merge) {
        return fault(format!("{merge} patches to a feature's side"));
    }
    let (width, heads) = (spec.width, spec.query_heads());
    if spec.query_values() > 0 && !(width.is_multiple_of(heads) && width.is_multiple_of(4)) {
        let problem = format!("{heads} heads of queries of {width} values");
        return Err(keys.error("resampler.proj.weight", problem));
    }
    let fixed = spec.places() == Places::Fixed;
    let ascending = spec.deep.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || spec.deep.last().is_some_and(|layer| *layer >= spec.layers) {
        return fault(format!(
            "states of the layers {:?} of {}",
            spec.deep, spec.layers
        ));
    }
    let rise = spec.taps.windows(2).all(|pair| pair[0] < pair[1]);
    let taps_rise = rise || spec.first.is_some() || spec.windows.is_some();
    let least = u32::from(spec.first.is_none());
    if !taps_rise
        || spec
            .taps
            .iter()
            .any(|tap| !(least..=spec.layers).contains(tap))
    {
        return fault(format!(
            "states after the layers {:?} of {}",
            spec.taps, spec.layers
        ));
    }
    if spec.positions > 0 && side == 0 || fixed && (side == 0 || !side.is_multiple_of(merge)) {
        return fault(format!(
            "{side} patches to a side, of which {merge} make a feature's"
        ));
    }
    Ok(())
}

fn act(keys: &Keys<'_>, key: &str, default: VisionAct) -> Result<VisionAct, Error> {
    match keys.text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(VisionAct::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(VisionAct::GeluTanh),
        Some("gelu") => Ok(VisionAct::Gelu),
        Some("quick_gelu") => Ok(VisionAct::QuickGelu),
        Some(_) => Err(keys.error(
            key,
            "is not supported; supported are: silu, gelu, gelu_pytorch_tanh, quick_gelu",
        )),
    }
}

fn numbers(keys: &Keys<'_>, key: &str) -> Result<Vec<u32>, Error> {
    let number = |value: &Value| match value {
        Value::U64(v) => u32::try_from(*v).ok(),
        Value::I64(v) => u32::try_from(*v).ok(),
        _ => None,
    };
    let list = match keys.value(key) {
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        _ => None,
    };
    list.ok_or_else(|| keys.error(key, "is not a list of layers"))
}

/// The layers that a list of flags names; none if there is no list.
fn flagged(keys: &Keys<'_>, key: &str) -> Result<Vec<u32>, Error> {
    let Some(value) = keys.value(key) else {
        return Ok(Vec::new());
    };
    let list = match value {
        Value::Array(list) => list.iter().map(|flag| match flag {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }),
        _ => return Err(keys.error(key, "is no list of flags")),
    };
    let list: Option<Vec<bool>> = list.collect();
    let list = list.ok_or_else(|| keys.error(key, "is no list of flags"))?;
    let numbered = (0..).zip(list).filter(|(_, flag)| *flag);
    Ok(numbered.map(|(layer, _)| layer).collect())
}

fn hugging_face(keys: &Keys<'_>) -> Result<Option<VisionSpec>, Error> {
    let text = |key: &str| keys.text(key).ok().flatten();
    let said = text("general.architecture").unwrap_or("");
    let pixtral = text("vision_config.model_type") == Some("pixtral");
    let own = match said {
        "llava" if pixtral => Family::of(VisionFamily::Pixtral),
        "mistral3" if !pixtral => return Ok(None),
        said => match Family::in_configuration(said) {
            Some(own) => own,
            None => return Ok(None),
        },
    };
    let family = own.family;
    let clip = is_clip(keys, family)?;
    let tower = if clip { &family::CLIP } else { &own.tower };
    let has = |key: &str| keys.value(&format!("vision_config.{key}")).is_some();
    if !has("patch_size") && !has("hidden_size") && !has("depth") {
        return Ok(None);
    }
    // InternVL gives some sizes for both directions.
    let size = |(key, default): (&str, u32), most: u32| {
        let full = format!("vision_config.{key}");
        // Kimi K2.5 has a mark before its encoder's sizes.
        let other = format!("vision_config.vt_{key}");
        let known = keys.value(&full).is_some() || keys.value(&other).is_none();
        keys.size(if known { &full } else { &other }, Some(default), most)
    };
    let layers = size(tower.layers, MOST_LAYERS)?;
    let dim = size(tower.dim, MOST_DIM)?;
    let heads = match tower.heads {
        (key, default) if key.ends_with("width") => {
            let head = size((key, default), dim)?;
            if !dim.is_multiple_of(head) || dim / head > MOST_HEADS {
                let problem = format!("heads of {head} of {dim} values");
                return Err(keys.error("vision encoder", problem));
            }
            dim / head
        }
        sized => size(sized, MOST_HEADS)?,
    };
    let ffn = match tower.ffn {
        (key, default) if key.ends_with("ratio") => {
            let ratio = keys.positive(&format!("vision_config.{key}"), Some(default.into()))?;
            (f64::from(dim) * ratio.min(64.0)) as u32
        }
        sized => size(sized, MOST_FFN)?,
    };
    let patch = size(("patch_size", tower.patch), MOST_PATCH)?;
    let image = match tower.image {
        Image::Any => patch,
        Image::Pixels(default) => size(("image_size", default), MOST_SIDE)?,
        Image::Places(key, default) => size((key, default), MOST_SIDE)?.isqrt() * patch,
        Image::Line(key, default) => size((key, default), 1 << 16)? * patch,
        Image::Sides(sides, default) => {
            let side = |name: &str| {
                let known = ["", "init_"].map(|mark| format!("{mark}{name}"));
                let found = known.iter().find(|key| has(key)).unwrap_or(&known[0]);
                size((found, default), 1024)
            };
            let [height, width] = [side(sides[0])?, side(sides[1])?];
            if height != width {
                let problem = format!("{height} x {width} places, which is not supported");
                return Err(keys.error("vision encoder", problem));
            }
            height * patch
        }
    };
    let side = image / patch;
    let merge = match own.merge {
        Merge::Fixed(number) => number,
        Merge::Encoder(key, default) => size((key, default), MOST_MERGE)?,
        Merge::Model(key, default) => keys.size(key, Some(default), MOST_MERGE)?,
        Merge::Inverse(key, default) => {
            let ratio = keys.positive(key, Some(default))?;
            (1.0 / ratio).round().min(f64::from(MOST_MERGE) + 1.0) as u32
        }
        Merge::Features(key, default) => {
            let features = keys.size(key, Some(default), side.max(1).pow(2))?;
            (side / features.isqrt()).max(1)
        }
    };
    if family == VisionFamily::Gemma4 {
        plain_gemma4(keys, dim, heads)?;
    }
    let merge = match keys.text("downsample_mode")? {
        Some("4x") if family == VisionFamily::MiniCpmV46 => 2,
        _ => merge,
    };
    if family == VisionFamily::MiniCpmV46 && keys.u32("merger_times")?.is_some_and(|n| n != 1) {
        return Err(keys.error("merger_times", "is not supported; it must be 1"));
    }
    let window = match family {
        VisionFamily::Qwen2_5 => {
            let pixels = size(("window_size", 112), MOST_SIDE)?;
            Some((pixels / merge / patch).max(1))
        }
        _ => None,
    };
    let eps = match tower.eps {
        ("", fixed) => fixed,
        (key, default) => keys.positive(&format!("vision_config.{key}"), Some(default))?,
    };
    let projector_eps = match family {
        VisionFamily::Mistral3 | VisionFamily::LightOnOcr => {
            keys.positive("rms_norm_eps", Some(1e-6))?
        }
        _ => eps,
    };
    let whole = match (window, has("fullatt_block_indexes")) {
        (Some(_), true) => numbers(keys, "vision_config.fullatt_block_indexes")?,
        (Some(_), false) => vec![7, 15, 23, 31],
        (None, _) => Vec::new(),
    };
    let deep_key = "vision_config.deepstack_visual_indexes";
    let deep = match said {
        "qwen3_vl" | "qwen3_vl_moe" if !has("deepstack_visual_indexes") => {
            let problem = "is missing; it lists the layers that become parts of features";
            return Err(keys.error(deep_key, problem));
        }
        "qwen3_vl" | "qwen3_vl_moe" => numbers(keys, deep_key)?,
        _ => Vec::new(),
    };
    only_last_layer(keys, family)?;
    let dropped = "drop_vision_last_layer";
    let minicpm = matches!(family, VisionFamily::MiniCpmV | VisionFamily::MiniCpmV46);
    if minicpm && keys.bool(dropped)? == Some(true) {
        return Err(keys.error(dropped, "is not supported; it must be false"));
    }
    let taps = match family {
        VisionFamily::Llava => taps(keys, layers)?,
        _ => Vec::new(),
    };
    // Nothing reads the layers after the last one.
    let layers = taps.iter().copied().max().unwrap_or(layers);
    if family == VisionFamily::InternVl {
        plain_intern_vl(keys)?;
    }
    // LLaVA may leave out the default of LLaMA.
    let default = (family == VisionFamily::Llava).then_some(4096);
    let width = match family {
        VisionFamily::JinaClip => plain_jina_clip(keys, dim)?,
        _ => keys.size("hidden_size", default, 1 << 16)?,
    };
    let act_key = format!("vision_config.{}", tower.act_key);
    let theta = "vision_config.rope_parameters.rope_theta";
    let normed = keys.bool("projector_use_layernorm")?.unwrap_or(true);
    Ok(Some(VisionSpec {
        family,
        layers,
        dim,
        heads,
        kv_heads: heads,
        ffn,
        eps: eps as f32,
        projector_eps: own.projector_eps(projector_eps as f32),
        rms: own.rms,
        gated: own.gated,
        act: act(keys, &act_key, tower.act)?,
        projector_act: act(keys, "projector_hidden_act", VisionAct::Gelu)?,
        patch,
        frames: if own.video {
            size(("temporal_patch_size", 2), MOST_MERGE)?
        } else {
            1
        },
        ticks: match family {
            VisionFamily::Qwen2_5 => {
                let key = "vision_config.tokens_per_second";
                Some(keys.positive(key, Some(4.0))?)
            }
            _ => None,
        },
        image,
        merge,
        positions: own.positions(side),
        theta: keys.positive(theta, Some(own.theta().into()))? as f32,
        pace: match family {
            // Places of pictures of this size stand for those of the pictures that the encoder was trained with first.
            VisionFamily::JinaClip => {
                size(("pt_hw_seq_len", 16), MOST_SIDE)? as f32 / side.max(1) as f32
            }
            _ => 1.0,
        },
        interleaved: own.rotation == Rotation::Turns || family == VisionFamily::JinaClip,
        by_halves: false,
        window,
        whole,
        deep,
        // One state that is the last one needs no place of its own.
        taps: if taps.len() > 1 { taps } else { Vec::new() },
        class: clip || matches!(family, VisionFamily::InternVl | VisionFamily::JinaClip),
        line_end: said == "llava_next",
        width,
        hidden: match own.projector {
            Projector::Gated("", times) => width.saturating_mul(times),
            Projector::Gated(key, default) => size((key, default), 1 << 16)?,
            Projector::Hidden(key, default) => keys.size(key, Some(default), 1 << 16)?,
            Projector::Two => dim.saturating_mul(merge).saturating_mul(merge),
            _ => width,
        },
        joined_norm: own.projector_norm == ProjectorNorm::Joined && normed,
        by_pixel: tower.by_pixel,
        queries: match own.projector {
            Projector::Queries => keys.size("query_num", Some(64), MOST_QUERIES)?,
            _ => 0,
        },
        query_sets: Vec::new(),
        windows: None,
        separator: false,
        first: None,
        first_layer: 0,
        step: 0,
    }))
}

/// Refuses what no published Gemma 4 has.
fn plain_gemma4(keys: &Keys<'_>, dim: u32, heads: u32) -> Result<(), Error> {
    for (key, wanted) in [
        ("vision_config.num_key_value_heads", heads),
        ("vision_config.head_dim", dim / heads),
    ] {
        if keys.u32(key)?.is_some_and(|said| said != wanted) {
            return Err(keys.error(key, format!("is not supported; it must be {wanted}")));
        }
    }
    Ok(())
}

/// Refuses what no published jina-clip has. The width of its vectors.
fn plain_jina_clip(keys: &Keys<'_>, dim: u32) -> Result<u32, Error> {
    // What it must be, and what it is without the key.
    let flags = [
        ("naive_swiglu", true, false),
        ("subln", true, false),
        ("rope_embeddings", true, false),
        ("intp_freq", true, false),
        ("post_norm", false, false),
        ("qkv_bias", true, true),
    ];
    for (key, wanted, default) in flags {
        let key = format!("vision_config.{key}");
        if keys.bool(&key)?.unwrap_or(default) != wanted {
            return Err(keys.error(&key, format!("is not supported; it must be {wanted}")));
        }
    }
    for key in ["vision_config.ls_init_value", "vision_config.proj_type"] {
        if keys.value(key).is_some() {
            return Err(keys.error(key, "is not supported; it must be null"));
        }
    }
    let (image, text) = ("vision_config.embed_dim", "hidden_size");
    let width = keys.size(image, Some(768), MOST_DIM)?;
    for (what, wanted) in [
        ("the encoder's width", dim),
        ("vectors of texts", keys.size(text, None, 1 << 16)?),
    ] {
        if width != wanted {
            let problem = format!("is {width}, and {what} {wanted}, which is not supported");
            return Err(keys.error(image, problem));
        }
    }
    Ok(width)
}

/// Whether the encoder of LLaVA is CLIP and not SigLIP.
fn is_clip(keys: &Keys<'_>, family: VisionFamily) -> Result<bool, Error> {
    if family != VisionFamily::Llava {
        return Ok(false);
    }
    let key = "vision_config.model_type";
    let clip = match keys.text(key)?.unwrap_or("clip_vision_model") {
        "clip_vision_model" => true,
        "siglip_vision_model" => false,
        _ => {
            let problem = "is not supported; it must be clip_vision_model or siglip_vision_model";
            return Err(keys.error(key, problem));
        }
    };
    // The row of the class becomes no feature.
    let (part, wanted) = (
        "vision_feature_select_strategy",
        if clip { "default" } else { "full" },
    );
    if keys.text(part)?.unwrap_or("default") != wanted {
        let problem = format!("is not supported for this encoder; it must be {wanted}");
        return Err(keys.error(part, problem));
    }
    Ok(clip)
}

/// After which layers states are taken.
fn taps(keys: &Keys<'_>, layers: u32) -> Result<Vec<u32>, Error> {
    let key = "vision_feature_layer";
    let list = match keys.value(key) {
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[Value::I64(-2)],
    };
    // A negative number counts from the end; 0 would be what the layers read.
    let after = |value: &Value| {
        let number = match value {
            Value::I64(v) => *v,
            Value::U64(v) => i64::try_from(*v).ok()?,
            _ => return None,
        };
        let number = if number < 0 {
            number.checked_add(1 + i64::from(layers))?
        } else {
            number
        };
        let number = u32::try_from(number).ok()?;
        (1..=layers).contains(&number).then_some(number)
    };
    let all: Option<Vec<u32>> = list.iter().map(after).collect();
    let all = all.filter(|all| !all.is_empty());
    all.ok_or_else(|| keys.error(key, format!("does not name some of {layers} layers")))
}

/// Refuses what only the largest InternVL has.
fn plain_intern_vl(keys: &Keys<'_>) -> Result<(), Error> {
    let norm = "vision_config.norm_type";
    if !matches!(keys.text(norm)?, None | Some("layer_norm")) {
        return Err(keys.error(norm, "is not supported; it must be layer_norm"));
    }
    for (key, wanted) in [
        ("vision_config.use_qk_norm", false),
        ("vision_config.use_absolute_position_embeddings", true),
        ("vision_config.use_mean_pooling", true),
    ] {
        if keys.bool(key)?.is_some_and(|said| said != wanted) {
            return Err(keys.error(key, format!("is not supported; it must be {wanted}")));
        }
    }
    Ok(())
}

/// Refuses projectors of other hidden states than all of the last layer.
fn only_last_layer(keys: &Keys<'_>, family: VisionFamily) -> Result<(), Error> {
    let (layer, part) = ("vision_feature_layer", "vision_feature_select_strategy");
    let last = match keys.value(layer) {
        Some(Value::I64(number)) => *number == -1,
        Some(_) => false,
        None => family != VisionFamily::Pixtral,
    };
    let pixtral = matches!(family, VisionFamily::Pixtral | VisionFamily::Mistral3);
    if pixtral && !last {
        return Err(keys.error(layer, "is not supported; it must be -1"));
    }
    if family == VisionFamily::Pixtral && keys.text(part)? != Some("full") {
        return Err(keys.error(part, "is not supported; it must be full"));
    }
    Ok(())
}

fn gguf(keys: &Keys<'_>) -> Result<Option<VisionSpec>, Error> {
    if keys.text("general.architecture")? != Some("clip") {
        return Ok(None);
    }
    let said = match keys.text("clip.vision.projector_type")? {
        Some(said) => Some(said),
        None => keys.text("clip.projector_type")?,
    };
    let has = |name: &str| keys.checkpoint.tensor(name).is_some();
    let cuts = keys.value("clip.vision.image_grid_pinpoints").is_some();
    // Some names are those of two families, or of files that lack a part.
    let fits = |own: &&Family| match own.family {
        VisionFamily::Mistral3 => has("mm.patch_merger.weight") || has("mm.input_norm.weight"),
        VisionFamily::Pixtral => !has("mm.patch_merger.weight") && !has("mm.input_norm.weight"),
        VisionFamily::Glm4V => has("v.position_embd.weight"),
        VisionFamily::GlmOcr => !has("v.position_embd.weight"),
        VisionFamily::Llava => has("model.image_newline") || !cuts,
        _ => true,
    };
    let Some(own) = Family::in_gguf(said.unwrap_or("")).find(fits) else {
        return Ok(None);
    };
    let family = own.family;
    let version = "clip.minicpmv_version";
    if family == VisionFamily::MiniCpmV && keys.u32(version)?.is_some_and(|own| own < 3) {
        return Err(keys.error(
            version,
            "is not supported; it must be from 3 (MiniCPM-V 2.6) on",
        ));
    }
    let llava = family == VisionFamily::Llava;
    let size = |key: &str, default: Option<u32>, most: u32| {
        keys.size(&format!("clip.vision.{key}"), default, most)
    };
    let layers = size("block_count", None, MOST_LAYERS)?;
    let (patch, image) = (
        size("patch_size", None, MOST_PATCH)?,
        size("image_size", None, MOST_SIDE)?,
    );
    let places = || {
        let name = weight("v.position_embd", 0);
        let places = keys.checkpoint.tensor(&name);
        let places = places.ok_or_else(|| keys.error(&name, "is missing"))?;
        Ok::<_, Error>(places.n as u64)
    };
    let image = match own.places {
        // Its size is that of the largest picture.
        Places::Middles | Places::Buckets => patch * places()?.isqrt().min(MOST_SIDE.into()) as u32,
        // Its size has no meaning.
        Places::Sums => patch * (places()? / 2).min(1 << 16) as u32,
        Places::None if own.video => patch,
        _ => image,
    };
    let side = (image / patch).max(1);
    let merge = match own.gguf_merge {
        Merge::Encoder(key, default) => size(key, Some(default), MOST_MERGE)?,
        _ => 1,
    };
    let window = (family == VisionFamily::Qwen2_5).then(|| (112 / merge / patch).max(1));
    // Every n-th layer sees the whole picture.
    let whole = match window {
        Some(_) => {
            let every = size("n_wa_pattern", Some(8), MOST_LAYERS)?;
            (0..layers)
                .filter(|layer| (layer + 1) % every == 0)
                .collect()
        }
        None => Vec::new(),
    };
    let flag = |key: &str| Ok::<_, Error>(keys.bool(key)? == Some(true));
    let deep = match family {
        VisionFamily::Qwen3 => {
            let key = "clip.vision.is_deepstack_layers";
            let mut names = keys.checkpoint.tensors().iter().map(|t| &t.name);
            if keys.value(key).is_none() && names.any(|name| name.starts_with("v.deepstack.")) {
                return Err(keys.error(key, "is missing, although there are such layers"));
            }
            flagged(keys, key)?
        }
        _ => Vec::new(),
    };
    // Files that name no layers mean the last but one.
    let taps = match keys.value("clip.vision.feature_layer").filter(|_| llava) {
        Some(_) => numbers(keys, "clip.vision.feature_layer")?,
        None if llava => vec![layers.saturating_sub(1)],
        None => Vec::new(),
    };
    if taps.contains(&0) {
        let problem = "names no layer, which is not supported";
        return Err(keys.error("clip.vision.feature_layer", problem));
    }
    let layers = taps.iter().copied().max().unwrap_or(layers);
    let act = match own.tower.act {
        _ if flag("clip.use_silu")? => VisionAct::Silu,
        // SigLIP's.
        _ if llava && flag("clip.use_gelu")? => VisionAct::GeluTanh,
        fixed @ (VisionAct::Silu | VisionAct::GeluTanh) if !llava => fixed,
        _ if flag("clip.use_gelu")? => VisionAct::Gelu,
        _ => VisionAct::QuickGelu,
    };
    let eps = keys.positive("clip.vision.attention.layer_norm_epsilon", Some(1e-6))? as f32;
    // Files differ in what they call the width of a feature; the projector's last matrix has it.
    let names = own.gguf_names;
    let last = [names.linear2, names.linear1]
        .into_iter()
        .find(|name| !name.is_empty());
    let last = match last {
        Some(last) => weight(last, 0),
        None => granite::GGUF_OUT.into(),
    };
    let info = keys.checkpoint.tensor(&last);
    let info = info.ok_or_else(|| keys.error(&last, "is missing"))?;
    let width = match own.projector {
        Projector::Transposed => info.k,
        _ => info.n,
    };
    let size_of = |n: usize| {
        let n = u32::try_from(n).ok();
        n.filter(|n| (1..=1 << 16).contains(n))
    };
    let rows = |name: &str| {
        let info = keys.checkpoint.tensor(&weight(name, 0))?;
        size_of(info.n)
    };
    let gated = matches!(own.projector, Projector::Gated(..));
    let heads = size("attention.head_count", None, MOST_HEADS)?;
    let hidden = rows(if gated { names.gated[0] } else { names.linear1 });
    let width = size_of(width);
    Ok(Some(VisionSpec {
        family,
        layers,
        dim: size("embedding_length", None, MOST_DIM)?,
        heads,
        kv_heads: heads,
        ffn: match rows("v.blk.0.ffn_up").filter(|_| gated) {
            // Their configurations mean another part.
            Some(own) => own,
            None => size("feed_forward_length", None, MOST_FFN)?,
        },
        eps,
        projector_eps: own.projector_eps(eps),
        rms: own.rms,
        gated: own.gated,
        act,
        projector_act: VisionAct::Gelu,
        patch,
        // The kernels of both frames are tensors of their own.
        frames: if own.video { 2 } else { 1 },
        // All published models have this.
        ticks: (family == VisionFamily::Qwen2_5).then_some(2.0),
        image,
        merge,
        positions: own.positions(side),
        theta: own.theta(),
        pace: 1.0,
        interleaved: matches!(own.rotation, Rotation::Alternating | Rotation::Turns),
        // Its converter has moved the pairs that turn by columns to the front.
        by_halves: said == Some("kimik25"),
        window,
        whole,
        deep,
        taps: if taps.len() > 1 { taps } else { Vec::new() },
        class: has("v.class_embd") && (llava || family == VisionFamily::InternVl),
        line_end: llava && has("model.image_newline"),
        width: width.ok_or_else(|| keys.error(&last, "has a wrong shape"))?,
        hidden: match own.projector {
            Projector::Wide => width.unwrap_or(1),
            _ => hidden.unwrap_or(1),
        },
        joined_norm: match family {
            VisionFamily::Lfm2 => has("mm.input_norm.weight"),
            _ => own.projector_norm == ProjectorNorm::Joined,
        },
        by_pixel: false,
        queries: match own.projector {
            Projector::Queries => keys.size("clip.minicpmv_query_num", Some(64), MOST_QUERIES)?,
            _ => 0,
        },
        query_sets: Vec::new(),
        windows: None,
        separator: false,
        first: None,
        first_layer: 0,
        step: 0,
    }))
}
