//! Reads what a checkpoint's encoder of pictures is.

use super::names::VisionNames;
use super::{VisionAct, VisionFamily, VisionSpec};
use crate::Error;
use crate::keys::Keys;
use crate::names::weight;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::{Dialect, Value};

const MOST_DIM: u32 = 1 << 14;
const MOST_SIDE: u32 = 1 << 14;
const MOST_PATCH: u32 = 256;
const MOST_MERGE: u32 = 16;

/// The encoder of pictures of an `mmproj` file, or of a Hugging Face directory. `None` if it has none, or one of an unknown family.
pub fn vision_spec(checkpoint: &dyn Checkpoint) -> Result<Option<VisionSpec>, Error> {
    let keys = Keys::new(checkpoint, "");
    let spec = match checkpoint.dialect() {
        Dialect::Gguf => gguf(&keys)?,
        Dialect::HuggingFace => hugging_face(&keys)?,
    };
    let Some(spec) = spec else {
        return Ok(None);
    };
    check(&keys, &spec)?;
    Ok(Some(spec))
}

/// The name of an encoder of a family that is not supported; `None` if there is no encoder.
pub fn unknown_vision(checkpoint: &dyn Checkpoint) -> Option<String> {
    let keys = Keys::new(checkpoint, "");
    let text = |key: &str| keys.text(key).ok().flatten();
    let name = match checkpoint.dialect() {
        Dialect::Gguf => text("clip.vision.projector_type").or(text("clip.projector_type")),
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
    let fixed = learned(spec.family) && !spec.resizes_positions() && !spec.sums_positions();
    let ascending = spec.deep.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || spec.deep.last().is_some_and(|layer| *layer >= spec.layers) {
        return fault(format!(
            "states of the layers {:?} of {}",
            spec.deep, spec.layers
        ));
    }
    let taps_rise = spec.taps.windows(2).all(|pair| pair[0] < pair[1]);
    if !taps_rise || spec.taps.iter().any(|tap| !(1..=spec.layers).contains(tap)) {
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

/// Whether every place has a learned vector.
fn learned(family: VisionFamily) -> bool {
    use VisionFamily::*;
    matches!(
        family,
        Idefics3 | Gemma3 | Gemma4 | Qwen3 | Lfm2 | InternVl | LlavaNext | PaddleOcr | Glm4V | Kimi
    )
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
    let tower = text("vision_config.model_type").unwrap_or("");
    let family = match text("general.architecture").unwrap_or("") {
        "idefics3" | "smolvlm" => VisionFamily::Idefics3,
        "gemma3" => VisionFamily::Gemma3,
        "gemma4" => VisionFamily::Gemma4,
        "qwen2_vl" => VisionFamily::Qwen2,
        "qwen2_5_vl" => VisionFamily::Qwen2_5,
        "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => VisionFamily::Qwen3,
        "llava" if tower == "pixtral" => VisionFamily::Pixtral,
        "mistral3" if tower == "pixtral" => VisionFamily::Mistral3,
        "lfm2_vl" | "lfm2-vl" => VisionFamily::Lfm2,
        "internvl" => VisionFamily::InternVl,
        "llava_next" => VisionFamily::LlavaNext,
        "paddleocr_vl" => VisionFamily::PaddleOcr,
        "glm4v" | "glm4v_moe" | "glm46v" => VisionFamily::Glm4V,
        "glm_ocr" => VisionFamily::GlmOcr,
        "kimi_vl" | "kimi_k25" => VisionFamily::Kimi,
        _ => return Ok(None),
    };
    let clip = is_clip(keys, family)?;
    let has = |key: &str| keys.value(&format!("vision_config.{key}")).is_some();
    if !has("patch_size") && !has("hidden_size") && !has("depth") {
        return Ok(None);
    }
    let qwen = is_qwen(family);
    let pixtral = matches!(family, VisionFamily::Pixtral | VisionFamily::Mistral3);
    let kimi = family == VisionFamily::Kimi;
    // InternVL gives some sizes for both directions.
    let size = |key: &str, default: Option<u32>, most: u32| {
        let full = format!("vision_config.{key}");
        // Kimi K2.5 has a mark before its encoder's sizes.
        let other = format!("vision_config.vt_{key}");
        let known = keys.value(&full).is_some() || keys.value(&other).is_none();
        keys.size(if known { &full } else { &other }, default, most)
    };
    let (depth, heads) = match family {
        VisionFamily::Qwen3 => (27, 16),
        VisionFamily::Glm4V => (24, 12),
        VisionFamily::GlmOcr => (24, 16),
        _ => (32, 16),
    };
    let (layers, heads) = if qwen {
        (
            size("depth", Some(depth), MOST_LAYERS)?,
            size("num_heads", Some(heads), MOST_HEADS)?,
        )
    } else {
        (
            size(
                "num_hidden_layers",
                Some(match family {
                    _ if pixtral => 24,
                    VisionFamily::Gemma4 => 16,
                    VisionFamily::Kimi => 27,
                    _ => 12,
                }),
                MOST_LAYERS,
            )?,
            size(
                "num_attention_heads",
                Some(if pixtral || kimi { 16 } else { 12 }),
                MOST_HEADS,
            )?,
        )
    };
    // Qwen2-VL's `hidden_size` is that of the language model.
    let dim = match family {
        VisionFamily::Qwen2 => size("embed_dim", Some(1280), MOST_DIM)?,
        VisionFamily::Qwen2_5 => size("hidden_size", Some(1280), MOST_DIM)?,
        VisionFamily::Qwen3 | VisionFamily::Kimi => size("hidden_size", Some(1152), MOST_DIM)?,
        VisionFamily::Glm4V => size("hidden_size", Some(1536), MOST_DIM)?,
        VisionFamily::GlmOcr => size("hidden_size", Some(1024), MOST_DIM)?,
        _ => size(
            "hidden_size",
            Some(if pixtral { 1024 } else { 768 }),
            MOST_DIM,
        )?,
    };
    let ffn = match family {
        VisionFamily::Qwen2 => {
            let ratio = keys.positive("vision_config.mlp_ratio", Some(4.0))?;
            (f64::from(dim) * ratio.min(64.0)) as u32
        }
        VisionFamily::Qwen2_5 => size("intermediate_size", Some(3420), MOST_FFN)?,
        VisionFamily::Qwen3 | VisionFamily::Kimi => {
            size("intermediate_size", Some(4304), MOST_FFN)?
        }
        // Its `intermediate_size` is that of the projector.
        VisionFamily::Glm4V => size("out_hidden_size", Some(4096), MOST_FFN)?,
        VisionFamily::GlmOcr => size("intermediate_size", Some(4096), MOST_FFN)?,
        _ => size(
            "intermediate_size",
            Some(if pixtral { 4096 } else { 3072 }),
            MOST_FFN,
        )?,
    };
    let patch = match family {
        VisionFamily::Idefics3 => size("patch_size", Some(32), MOST_PATCH)?,
        VisionFamily::Gemma3
        | VisionFamily::Gemma4
        | VisionFamily::Qwen3
        | VisionFamily::Pixtral
        | VisionFamily::Mistral3 => size("patch_size", Some(16), MOST_PATCH)?,
        VisionFamily::LlavaNext => {
            let default = if clip { 32 } else { 16 };
            size("patch_size", Some(default), MOST_PATCH)?
        }
        _ => size("patch_size", Some(14), MOST_PATCH)?,
    };
    let image = if qwen {
        patch
    } else {
        size(
            "image_size",
            Some(if pixtral { 1024 } else { 224 }),
            MOST_SIDE,
        )?
    };
    // SigLIP 2 and Qwen3-VL have places in place of a size.
    let image = match family {
        VisionFamily::Gemma4 => patch * size("position_embedding_size", Some(10240), 1 << 16)?,
        VisionFamily::Lfm2 => size("num_patches", Some(256), MOST_SIDE)?.isqrt() * patch,
        VisionFamily::Qwen3 => {
            let places = size("num_position_embeddings", Some(2304), MOST_SIDE)?;
            places.isqrt() * patch
        }
        VisionFamily::Glm4V => size("image_size", Some(336), MOST_SIDE)?,
        VisionFamily::Kimi => {
            let side = |name: &str| {
                let known = ["", "init_"].map(|mark| format!("{mark}pos_emb_{name}"));
                let found = known.iter().find(|key| has(key)).unwrap_or(&known[0]);
                size(found, Some(64), 1024)
            };
            let (height, width) = (side("height")?, side("width")?);
            if height != width {
                let problem = format!("{height} x {width} places, which is not supported");
                return Err(keys.error("vision encoder", problem));
            }
            patch * height
        }
        _ => image,
    };
    let side = image / patch;
    let merge = match family {
        VisionFamily::Lfm2 => keys.size("downsample_factor", Some(2), MOST_MERGE)?,
        VisionFamily::InternVl => {
            let ratio = keys.positive("downsample_ratio", Some(0.5))?;
            (1.0 / ratio).round().min(f64::from(MOST_MERGE) + 1.0) as u32
        }
        VisionFamily::Idefics3 => keys.size("scale_factor", Some(2), MOST_MERGE)?,
        VisionFamily::Gemma3 => {
            let tokens = keys.size("mm_tokens_per_image", Some(256), side.max(1).pow(2))?;
            (side / tokens.isqrt()).max(1)
        }
        VisionFamily::Gemma4 => size("pooling_kernel_size", Some(3), MOST_MERGE)?,
        VisionFamily::Kimi => size("merge_kernel_size", Some(2), MOST_MERGE)?,
        VisionFamily::Qwen2
        | VisionFamily::Qwen2_5
        | VisionFamily::Qwen3
        | VisionFamily::Glm4V
        | VisionFamily::GlmOcr
        | VisionFamily::PaddleOcr => size("spatial_merge_size", Some(2), MOST_MERGE)?,
        VisionFamily::Pixtral | VisionFamily::LlavaNext => 1,
        VisionFamily::Mistral3 => keys.size("spatial_merge_size", Some(2), MOST_MERGE)?,
    };
    if family == VisionFamily::Gemma4 {
        plain_gemma4(keys, dim, heads)?;
    }
    let window = match family {
        VisionFamily::Qwen2_5 => {
            let pixels = size("window_size", Some(112), MOST_SIDE)?;
            Some((pixels / merge / patch).max(1))
        }
        _ => None,
    };
    let default = match family {
        VisionFamily::Qwen2_5 | VisionFamily::Glm4V | VisionFamily::GlmOcr => VisionAct::Silu,
        VisionFamily::Qwen2 => VisionAct::QuickGelu,
        VisionFamily::LlavaNext if clip => VisionAct::QuickGelu,
        VisionFamily::Pixtral | VisionFamily::Mistral3 | VisionFamily::InternVl => VisionAct::Gelu,
        _ => VisionAct::GeluTanh,
    };
    let eps = match family {
        VisionFamily::Pixtral | VisionFamily::Mistral3 | VisionFamily::Kimi => 1e-5,
        VisionFamily::Glm4V | VisionFamily::GlmOcr => {
            keys.positive("vision_config.rms_norm_eps", Some(1e-5))?
        }
        _ if qwen => 1e-6,
        VisionFamily::Gemma4 => keys.positive("vision_config.rms_norm_eps", Some(1e-6))?,
        _ if clip => keys.positive("vision_config.layer_norm_eps", Some(1e-5))?,
        _ => keys.positive("vision_config.layer_norm_eps", Some(1e-6))?,
    };
    let projector_eps = match family {
        VisionFamily::Mistral3 => keys.positive("rms_norm_eps", Some(1e-6))?,
        _ => eps,
    };
    let whole = match (window, has("fullatt_block_indexes")) {
        (Some(_), true) => numbers(keys, "vision_config.fullatt_block_indexes")?,
        (Some(_), false) => vec![7, 15, 23, 31],
        (None, _) => Vec::new(),
    };
    let deep_key = "vision_config.deepstack_visual_indexes";
    let deep = match text("general.architecture") {
        Some("qwen3_vl" | "qwen3_vl_moe") if !has("deepstack_visual_indexes") => {
            let problem = "is missing; it lists the layers that become parts of features";
            return Err(keys.error(deep_key, problem));
        }
        Some("qwen3_vl" | "qwen3_vl_moe") => numbers(keys, deep_key)?,
        _ => Vec::new(),
    };
    only_last_layer(keys, family)?;
    let taps = match family {
        VisionFamily::LlavaNext => taps(keys, layers)?,
        _ => Vec::new(),
    };
    // Nothing reads the layers after the last one.
    let layers = taps.iter().copied().max().unwrap_or(layers);
    if family == VisionFamily::InternVl {
        plain_intern_vl(keys)?;
    }
    let width = keys.size("hidden_size", None, 1 << 16)?;
    let projector_eps = match family {
        _ if joined_eps(family) => 1e-5,
        _ => projector_eps,
    };
    Ok(Some(VisionSpec {
        family,
        layers,
        dim,
        heads,
        ffn,
        eps: eps as f32,
        projector_eps: projector_eps as f32,
        rms: has_rms_norms(family),
        gated: has_rms_norms(family),
        act: match family {
            VisionFamily::Gemma4 => act(keys, "vision_config.hidden_activation", default)?,
            _ => act(keys, "vision_config.hidden_act", default)?,
        },
        projector_act: act(keys, "projector_hidden_act", VisionAct::Gelu)?,
        patch,
        frames: if qwen {
            size("temporal_patch_size", Some(2), MOST_MERGE)?
        } else {
            1
        },
        image,
        merge,
        positions: positions(family, side),
        theta: keys.positive(
            "vision_config.rope_parameters.rope_theta",
            Some(theta(family).into()),
        )? as f32,
        interleaved: kimi,
        window,
        whole,
        deep,
        // One state that is the last one needs no place of its own.
        taps: if taps.len() > 1 { taps } else { Vec::new() },
        class: clip || family == VisionFamily::InternVl,
        line_end: family == VisionFamily::LlavaNext,
        width,
        hidden: match family {
            VisionFamily::Glm4V => size("intermediate_size", Some(13696), 1 << 16)?,
            VisionFamily::GlmOcr => width.saturating_mul(3),
            VisionFamily::Lfm2 => keys.size("projector_hidden_size", Some(2560), 1 << 16)?,
            _ => width,
        },
        joined_norm: match family {
            VisionFamily::Lfm2 => keys.bool("projector_use_layernorm")?.unwrap_or(true),
            VisionFamily::InternVl => true,
            _ => false,
        },
        by_pixel: matches!(family, VisionFamily::Lfm2 | VisionFamily::Gemma4),
    }))
}

/// The families whose norm between encoder and projector is torch's own.
fn joined_eps(family: VisionFamily) -> bool {
    use VisionFamily::*;
    matches!(family, Lfm2 | InternVl | PaddleOcr | Glm4V | GlmOcr | Kimi)
}

/// Learned vectors of places.
fn positions(family: VisionFamily, side: u32) -> u32 {
    match family {
        VisionFamily::Gemma4 => side.saturating_mul(2),
        _ if learned(family) => side.saturating_mul(side),
        _ => 0,
    }
}

/// The default base of rotary positions.
fn theta(family: VisionFamily) -> f32 {
    match family {
        VisionFamily::Gemma4 => 100.0,
        _ => 10000.0,
    }
}

/// The families with RMS norms and gated feed-forward parts.
fn has_rms_norms(family: VisionFamily) -> bool {
    use VisionFamily::*;
    matches!(
        family,
        Gemma4 | Pixtral | Mistral3 | Qwen2_5 | Glm4V | GlmOcr
    )
}

/// Refuses what no published Gemma 4 has, and features that attend to each other in some layers only, as those of the larger ones do.
fn plain_gemma4(keys: &Keys<'_>, dim: u32, heads: u32) -> Result<(), Error> {
    let both_ways = "use_bidirectional_attention";
    if keys.text(both_ways)?.is_some() {
        return Err(keys.error(both_ways, "is not supported for images"));
    }
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

/// The families whose encoders have Qwen's names.
fn is_qwen(family: VisionFamily) -> bool {
    use VisionFamily::*;
    matches!(family, Qwen2 | Qwen2_5 | Qwen3 | Glm4V | GlmOcr)
}

/// Whether the encoder of LLaVA-NeXT is CLIP and not SigLIP.
fn is_clip(keys: &Keys<'_>, family: VisionFamily) -> Result<bool, Error> {
    if family != VisionFamily::LlavaNext {
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
    let family = match said.unwrap_or("") {
        "idefics3" => VisionFamily::Idefics3,
        "gemma3" => VisionFamily::Gemma3,
        "gemma4v" => VisionFamily::Gemma4,
        "qwen2vl_merger" => VisionFamily::Qwen2,
        "qwen2.5vl_merger" => VisionFamily::Qwen2_5,
        "qwen3vl_merger" => VisionFamily::Qwen3,
        "pixtral" if has("mm.patch_merger.weight") || has("mm.input_norm.weight") => {
            VisionFamily::Mistral3
        }
        "pixtral" => VisionFamily::Pixtral,
        "lfm2" => VisionFamily::Lfm2,
        "internvl" => VisionFamily::InternVl,
        "paddleocr" => VisionFamily::PaddleOcr,
        "glm4v" if has("v.position_embd.weight") => VisionFamily::Glm4V,
        "glm4v" => VisionFamily::GlmOcr,
        "mlp" if has("model.image_newline") || !cuts => VisionFamily::LlavaNext,
        _ => return Ok(None),
    };
    let llava = family == VisionFamily::LlavaNext;
    let size = |key: &str, default: Option<u32>, most: u32| {
        keys.size(&format!("clip.vision.{key}"), default, most)
    };
    let qwen = is_qwen(family) && !learned(family);
    let pixtral = matches!(family, VisionFamily::Pixtral | VisionFamily::Mistral3);
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
    let image = match family {
        // Its size is that of the largest picture.
        VisionFamily::PaddleOcr => patch * places()?.isqrt().min(MOST_SIDE.into()) as u32,
        // Its size has no meaning.
        VisionFamily::Gemma4 => patch * (places()? / 2).min(1 << 16) as u32,
        _ => image,
    };
    let side = (image / patch).max(1);
    let merge = match family {
        VisionFamily::Idefics3 => size("projector.scale_factor", Some(2), MOST_MERGE)?,
        VisionFamily::Gemma3 => size("projector.scale_factor", Some(4), MOST_MERGE)?,
        VisionFamily::Gemma4 => size("projector.scale_factor", Some(3), MOST_MERGE)?,
        VisionFamily::Pixtral | VisionFamily::LlavaNext => 1,
        VisionFamily::Lfm2 | VisionFamily::InternVl | VisionFamily::PaddleOcr => {
            size("projector.scale_factor", Some(2), MOST_MERGE)?
        }
        _ => size("spatial_merge_size", Some(2), MOST_MERGE)?,
    };
    let learned = learned(family);
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
    let glm = matches!(family, VisionFamily::Glm4V | VisionFamily::GlmOcr);
    let act = if glm || flag("clip.use_silu")? {
        VisionAct::Silu
    } else if learned && family != VisionFamily::InternVl && !llava
        || llava && flag("clip.use_gelu")?
    {
        VisionAct::GeluTanh
    } else if flag("clip.use_gelu")? {
        VisionAct::Gelu
    } else {
        VisionAct::QuickGelu
    };
    let eps = keys.positive("clip.vision.attention.layer_norm_epsilon", Some(1e-6))? as f32;
    // Files differ in what they call the width of a feature; the projector's last matrix has it.
    let names = VisionNames::of(family, true);
    let last = [names.linear2, names.linear1]
        .into_iter()
        .find(|name| !name.is_empty());
    let last = weight(last.unwrap_or_default(), 0);
    let info = keys.checkpoint.tensor(&last);
    let info = info.ok_or_else(|| keys.error(&last, "is missing"))?;
    let width = match family {
        VisionFamily::Gemma3 => info.k,
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
    let hidden = rows(if glm { names.gated[0] } else { names.linear1 });
    let width = size_of(width);
    Ok(Some(VisionSpec {
        family,
        layers,
        dim: size("embedding_length", None, MOST_DIM)?,
        heads: size("attention.head_count", None, MOST_HEADS)?,
        ffn: match rows("v.blk.0.ffn_up").filter(|_| glm) {
            // Their configurations mean another part.
            Some(own) => own,
            None => size("feed_forward_length", None, MOST_FFN)?,
        },
        eps,
        projector_eps: match family {
            _ if joined_eps(family) => 1e-5,
            _ => eps,
        },
        rms: has_rms_norms(family),
        gated: has_rms_norms(family),
        act,
        projector_act: VisionAct::Gelu,
        patch,
        // The kernels of both frames are tensors of their own.
        frames: 1,
        image: if qwen { patch } else { image },
        merge,
        positions: positions(family, side),
        theta: theta(family),
        interleaved: pixtral,
        window,
        whole,
        deep,
        taps: if taps.len() > 1 { taps } else { Vec::new() },
        class: has("v.class_embd") && (llava || family == VisionFamily::InternVl),
        line_end: llava && has("model.image_newline"),
        width: width.ok_or_else(|| keys.error(&last, "has a wrong shape"))?,
        hidden: hidden.unwrap_or(1),
        joined_norm: match family {
            VisionFamily::Lfm2 => has("mm.input_norm.weight"),
            VisionFamily::InternVl => true,
            _ => false,
        },
        by_pixel: false,
    }))
}
