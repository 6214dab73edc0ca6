//! How a model wants its pictures: its encoder's sizes, and the settings of its processor.

use crate::Error;
use serde_json::Value as Json;
use std::path::Path;
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, Value};
use welte_models::{VisionFamily, VisionSpec};
use welte_vision::{Film, Filter, Growth, Marks, Method, Processor, Values, Words};

/// The key of an `mmproj` file that has a directory's settings as they are: files have keys of their own for a few of them only.
const SETTINGS: &str = "welte.image_processor";
const FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];
/// The largest of these files that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// The largest side and the most pixels of a setting.
const MOST_SIDE: u64 = 1 << 14;
const MOST_PIXELS: u64 = 1 << 32;
/// The most tiles of a picture.
const MOST_TILES: u32 = 64;

/// The settings of a processor, from a file beside the weights or from the metadata of an `mmproj` file.
struct Settings<'a> {
    /// The file, for errors.
    path: String,
    json: Json,
    checkpoint: &'a dyn Checkpoint,
}

impl Settings<'_> {
    fn wrong(&self, key: &str, problem: &str) -> Error {
        Error::File {
            path: self.path.clone(),
            problem: format!("{key}: {problem}"),
        }
    }

    /// The first of these numbers that is given: paths in the file, or keys of the metadata.
    fn number(&self, keys: &[&str], max: u64) -> Result<Option<u64>, Error> {
        for key in keys {
            let found = match self.metadata(key) {
                Some(Value::U64(v)) => Some(*v),
                Some(Value::I64(v)) => u64::try_from(*v).ok(),
                Some(_) => None,
                None => match self.json.pointer(&format!("/{}", key.replace('.', "/"))) {
                    None | Some(Json::Null) => continue,
                    Some(value) => value.as_u64(),
                },
            };
            let within = found.filter(|v| (1..=max).contains(v));
            let problem = format!("must be a number from 1 to {max}");
            return within.map(Some).ok_or_else(|| self.wrong(key, &problem));
        }
        Ok(None)
    }

    fn metadata(&self, key: &str) -> Option<&Value> {
        let metadata = self.checkpoint.metadata();
        metadata.get(&format!("clip.vision.{key}"))
    }

    /// A value for each colour, under the first of these keys that the file has.
    fn colours(&self, keys: [&str; 3], default: [f32; 3]) -> Result<[f32; 3], Error> {
        let found = keys.into_iter().find(|key| self.json.get(key).is_some());
        let key = found.unwrap_or(keys[0]);
        let list: Option<Vec<f64>> = match (self.metadata(key), self.json.get(key)) {
            (None, None | Some(Json::Null)) => return Ok(default),
            (Some(Value::Array(list)), _) => list
                .iter()
                .map(|value| match value {
                    Value::F64(v) => Some(*v),
                    _ => None,
                })
                .collect(),
            (_, Some(Json::Array(list))) => list.iter().map(Json::as_f64).collect(),
            _ => None,
        };
        let fits = |v: &f64| v.is_finite() && v.abs() < 1e6;
        match list.as_deref() {
            Some(&[r, g, b]) if [r, g, b].iter().all(fits) => Ok([r as f32, g as f32, b as f32]),
            _ => Err(self.wrong(key, "must be three numbers")),
        }
    }
}

fn settings<'a>(checkpoint: &'a dyn Checkpoint, path: &Path) -> Result<Settings<'a>, Error> {
    let mut settings = Settings {
        path: checkpoint.origin().to_string(),
        json: Json::Null,
        checkpoint,
    };
    if checkpoint.dialect() == Dialect::Gguf {
        if let Some(Value::String(text)) = checkpoint.metadata().get(SETTINGS) {
            let json = serde_json::from_str(text);
            settings.json = json.map_err(|e| settings.wrong(SETTINGS, &e.to_string()))?;
        }
        return Ok(settings);
    }
    let file = FILES
        .iter()
        .map(|name| path.join(name))
        .find(|file| file.is_file());
    let Some(file) = file else {
        return Ok(settings);
    };
    settings.path = file.display().to_string();
    let fault = |problem: String| Error::File {
        path: file.display().to_string(),
        problem,
    };
    let length = std::fs::metadata(&file).map_or(0, |m| m.len());
    if length > MOST_BYTES {
        return Err(fault(format!(
            "has {length} bytes; at most {MOST_BYTES} are read"
        )));
    }
    let bytes = std::fs::read(&file).map_err(|e| fault(e.to_string()))?;
    let json: Json = serde_json::from_slice(&bytes).map_err(|e| fault(e.to_string()))?;
    // A processor's file may have those of its parts inside.
    settings.json = json.get("image_processor").cloned().unwrap_or(json);
    Ok(settings)
}

/// How pictures become rows of this encoder.
pub(super) fn read(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    path: &Path,
    (most_features, both_ways): (u32, bool),
) -> Result<Processor, Error> {
    let settings = settings(checkpoint, path)?;
    let longest = |default: u64| {
        let keys = ["size.longest_edge", "preproc_image_size"];
        Ok::<_, Error>(settings.number(&keys, MOST_SIDE)?.unwrap_or(default) as u32)
    };
    let side = u64::from(spec.image);
    let (method, filter, marks) = match spec.family {
        VisionFamily::Idefics3 => {
            let tile = settings.number(&["max_image_size.longest_edge"], MOST_SIDE)?;
            same_side(&settings, "max_image_size", tile, side)?;
            let split = settings
                .json
                .get("do_image_splitting")
                .and_then(Json::as_bool);
            let method = Method::Tiles {
                longest: longest(4 * side)?,
                tile: spec.image,
                split: split.unwrap_or(true),
            };
            (method, Filter::Lanczos, Marks::Tiles)
        }
        VisionFamily::Gemma3 => {
            same_side(
                &settings,
                "size",
                settings.number(&["size.height"], MOST_SIDE)?,
                side,
            )?;
            let flag = |key: &str| settings.json.get(key).and_then(Json::as_bool);
            let method = if flag("do_pan_and_scan") == Some(true) {
                scan(&settings, spec.image)?
            } else {
                Method::Square { side: spec.image }
            };
            (method, Filter::Bilinear, Marks::GEMMA3)
        }
        VisionFamily::Gemma4 => {
            let (key, of_gguf) = ("max_soft_tokens", "image_max_pixels");
            let pixels = u64::from(spec.patch * spec.merge).pow(2);
            let most = match settings.number(&[of_gguf], MOST_PIXELS)? {
                Some(all) => (all / pixels).clamp(1, 1 << 12),
                None => settings.number(&[key], 1 << 12)?.unwrap_or(280),
            } as u32;
            // A picture of one line needs a place for each of its patches.
            if u64::from(most) * u64::from(spec.merge) > side / u64::from(spec.patch) {
                let places = spec.image / spec.patch;
                let problem = format!("is {most}, too many for {places} places");
                return Err(settings.wrong(key, &problem));
            }
            let marks = Marks::Between {
                placeholder: "<|image|>",
                around: ["<|image>", "<image|>"],
                both_ways,
            };
            (Method::Fill { most }, Filter::Bicubic, marks)
        }
        VisionFamily::Qwen2
        | VisionFamily::Qwen2_5
        | VisionFamily::Qwen3
        | VisionFamily::Glm4V
        | VisionFamily::GlmOcr
        | VisionFamily::PaddleOcr => {
            let glm = matches!(spec.family, VisionFamily::Glm4V | VisionFamily::GlmOcr);
            // The settings of directories count the pixels of two frames.
            let frames = 1 + u64::from(glm && !settings.json.is_null());
            let (fewest, largest) = match spec.family {
                VisionFamily::Qwen3 => (256 * 256, 1 << 24),
                VisionFamily::PaddleOcr => (384 * 384, 1536 * 1536),
                _ if glm => (112 * 112 / 2, 28 * 28 * 7500),
                _ => (56 * 56, 28 * 28 * 1280),
            };
            let least = ["size.shortest_edge", "min_pixels", "image_min_pixels"];
            let most = ["size.longest_edge", "max_pixels", "image_max_pixels"];
            let number = |keys: &[&str], default: u64| {
                let own = settings.number(keys, MOST_PIXELS)?;
                Ok::<_, Error>(own.map_or(default, |own| own / frames))
            };
            let (grows, placeholder) = match spec.family {
                VisionFamily::PaddleOcr => (Growth::Sides, "<|IMAGE_PLACEHOLDER|>"),
                _ if glm => (Growth::Whole, "<|image|>"),
                _ => (Growth::None, "<|image_pad|>"),
            };
            let method = Method::Pixels {
                least: number(&least, fewest)?,
                most: number(&most, largest)?,
                grows,
            };
            (method, Filter::Bicubic, Marks::Axes(placeholder))
        }
        VisionFamily::Kimi => {
            let own = [
                "in_token_limit",
                "max_patches",
                "media_proc_cfg.in_patch_limit",
            ];
            let pixels = settings.number(&["image_max_pixels"], MOST_PIXELS)?;
            let most = match (settings.number(&own, 1 << 20)?, pixels) {
                (Some(own), _) => own as u32,
                (None, pixels) => pixels.map_or(4096, |all| {
                    (all / u64::from(spec.patch).pow(2)).clamp(1, 1 << 20) as u32
                }),
            };
            let side = ["size.max_height", "media_proc_cfg.patch_limit_on_one_side"];
            let side = settings.number(&side, 512)?.unwrap_or(512) as u32;
            let marks = Marks::Between {
                placeholder: "<|media_pad|>",
                around: ["", ""],
                both_ways: false,
            };
            (Method::Bordered { most, side }, Filter::Bicubic, marks)
        }
        VisionFamily::Lfm2 => {
            let number = |key: &str, default: u64| {
                Ok::<_, Error>(settings.number(&[key], 1 << 12)?.unwrap_or(default) as u32)
            };
            let flag = |key: &str| settings.json.get(key).and_then(Json::as_bool) != Some(false);
            let count = if flag("do_image_splitting") {
                [number("min_tiles", 2)?, number("max_tiles", 10)?]
            } else {
                [1, 1]
            };
            let tolerance = settings
                .json
                .get("max_pixels_tolerance")
                .and_then(Json::as_f64);
            if tolerance.is_some_and(|t| t != 2.0) {
                return Err(settings.wrong("max_pixels_tolerance", "must be 2.0"));
            }
            let tile = number("tile_size", 512)?;
            if !tile.is_multiple_of(spec.patch * spec.merge) {
                let side = spec.patch * spec.merge;
                let problem = format!("is {tile}; must be a multiple of {side}");
                return Err(settings.wrong("tile_size", &problem));
            }
            let method = Method::Grid {
                tile,
                count: tile_count(&settings, count)?,
                features: [
                    number("min_image_tokens", 64)?,
                    number("max_image_tokens", 256)?,
                ],
                whole: flag("use_thumbnail"),
            };
            (method, Filter::Bilinear, Marks::Grid)
        }
        VisionFamily::InternVl => {
            let height = settings.number(&["size.height"], MOST_SIDE)?;
            same_side(&settings, "size", height, side)?;
            let number = |key: &str, default: u64| {
                settings
                    .number(&[key], 1 << 12)
                    .map(|n| n.unwrap_or(default) as u32)
            };
            let count = [number("min_patches", 1)?, number("max_patches", 12)?];
            let method = Method::Canvas {
                tile: spec.image,
                count: tile_count(&settings, count)?,
            };
            (method, Filter::Bicubic, Marks::Canvas)
        }
        VisionFamily::Llava
        | VisionFamily::Granite4
        | VisionFamily::Granite4Queries
        | VisionFamily::Granite4Tower => {
            let keys = ["crop_size.height", "size.height", "size.shortest_edge"];
            same_side(&settings, "size", settings.number(&keys, MOST_SIDE)?, side)?;
            let (side, cuts) = (spec.image, spec.line_end);
            // SigLIP's processor makes whole pictures square.
            let method = match (cuts, spec.class) {
                (true, _) => Method::Padded { tile: side },
                (false, true) => Method::Middle { side, even: false },
                (false, false) => Method::Square { side },
            };
            (method, Filter::Bicubic, Marks::Lined)
        }
        VisionFamily::JinaClip => {
            same_side(
                &settings,
                "size",
                settings.number(&["size"], MOST_SIDE)?,
                side,
            )?;
            let side = spec.image;
            let method = match settings.json.get("resize_mode").and_then(Json::as_str) {
                None | Some("shortest") => Method::Middle { side, even: true },
                Some("squash") => Method::Square { side },
                Some(_) => {
                    let problem = "is not supported; supported are shortest and squash";
                    return Err(settings.wrong("resize_mode", problem));
                }
            };
            let filter = match settings.json.get("interpolation").and_then(Json::as_str) {
                Some("bilinear") => Filter::Bilinear,
                _ => Filter::Bicubic,
            };
            (method, filter, Marks::Lined)
        }
        VisionFamily::DeepSeekOcr
        | VisionFamily::DeepSeekOcr2
        | VisionFamily::Sam
        | VisionFamily::SamNeck
        | VisionFamily::SamHalf => (views(&settings, spec)?, Filter::Bicubic, Marks::Lined),
        VisionFamily::MiniCpmV | VisionFamily::MiniCpmV46 | VisionFamily::MiniCpmMerger => {
            // An `mmproj` file calls it otherwise.
            let side = settings.number(&["scale_resolution", "image_size"], 1 << 12)?;
            let most = settings.number(&["max_slice_nums"], MOST_TILES.into())?;
            let flag = |key: &str| settings.json.get(key).and_then(Json::as_bool) != Some(false);
            let method = Method::Slices {
                side: side.unwrap_or(448) as u32,
                most: if flag("slice_mode") {
                    most.unwrap_or(9) as u32
                } else {
                    1
                },
            };
            let marks = Marks::Slices {
                numbered: flag("use_image_id"),
                placeholder: match spec.family {
                    VisionFamily::MiniCpmV => "(<image>./</image>)",
                    _ => "<|image_pad|>",
                },
            };
            (method, Filter::Bicubic, marks)
        }
        VisionFamily::Pixtral | VisionFamily::Mistral3 | VisionFamily::LightOnOcr => {
            let marks = match spec.family {
                VisionFamily::LightOnOcr => Marks::Between {
                    placeholder: "<|image_pad|>",
                    around: ["", ""],
                    both_ways: false,
                },
                _ => Marks::Lines,
            };
            let longest = longest(side)?;
            (Method::Longest { longest }, Filter::Bicubic, marks)
        }
    };
    let filter = match settings.number(&["resample"], 5)? {
        None => filter,
        Some(number) => Filter::of_number(number).ok_or_else(|| {
            settings.wrong(
                "resample",
                "must be 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
            )
        })?,
    };
    // SigLIP's, and those of CLIP.
    let (mean, deviation) = match spec.family {
        VisionFamily::Idefics3
        | VisionFamily::Gemma3
        | VisionFamily::Gemma4
        | VisionFamily::Qwen3
        | VisionFamily::Kimi
        | VisionFamily::MiniCpmV
        | VisionFamily::MiniCpmV46
        | VisionFamily::DeepSeekOcr
        | VisionFamily::DeepSeekOcr2
        | VisionFamily::Lfm2 => ([0.5; 3], [0.5; 3]),
        VisionFamily::InternVl => ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        _ => (
            [0.48145466, 0.4578275, 0.40821073],
            [0.26862954, 0.2613026, 0.2757771],
        ),
    };
    // Those of Gemma 4 are part of its encoder.
    let (mean, deviation) = match spec.family {
        VisionFamily::Gemma4 => (mean, deviation),
        _ => (
            settings.colours(["image_mean", "norm_mean", "mean"], mean)?,
            settings.colours(["image_std", "norm_std", "std"], deviation)?,
        ),
    };
    if deviation.contains(&0.0) {
        return Err(settings.wrong("image_std", "must not be 0"));
    }
    Ok(Processor {
        method,
        filter,
        patch: spec.patch,
        merge: spec.whole_merge(),
        neighbours: if spec.merges_later() {
            spec.of_patches().merge
        } else {
            spec.whole_merge()
        },
        part: match &spec.first {
            Some(first) if !spec.merges_later() => Some(first.merge),
            _ => None,
        },
        window: spec
            .of_patches()
            .window
            .filter(|_| spec.step > 0)
            .or(spec.window),
        values: match (spec.by_pixel, spec.frames) {
            (true, _) => Values::Pixels,
            // The kernels of frames are tensors of their own there.
            (false, frames @ 2..) if checkpoint.dialect() == Dialect::Gguf => {
                Values::Frames { frames }
            }
            (false, frames) => Values::Planes { frames },
        },
        sizes: match spec.family {
            VisionFamily::Llava | VisionFamily::Granite4 if spec.line_end => {
                let gguf = checkpoint.dialect() == Dialect::Gguf;
                let swapped = gguf && spec.family == VisionFamily::Granite4;
                sizes(&settings, spec.image, swapped)?
            }
            _ => Vec::new(),
        },
        mean,
        deviation,
        queries: match spec.has_causal_queries() {
            _ if spec.is_of_class() => 1,
            true => 0,
            false => spec.queries,
        },
        most_features: most_features.max(1),
        ticks: spec.ticks,
        marks,
    })
}

/// The keys of an `mmproj` file that say how pictures of a directory become rows.
pub(super) fn gguf_keys(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    path: &Path,
) -> Result<Metadata, Error> {
    let processor = read(spec, checkpoint, path, (u32::MAX, false))?;
    let mut keys = Metadata::new();
    let settings = settings(checkpoint, path)?.json;
    if !settings.is_null() {
        keys.insert(SETTINGS.into(), Value::String(settings.to_string()));
    }
    let mut set = |key: &str, value: Value| keys.insert(format!("clip.vision.{key}"), value);
    let number = Value::U64;
    let colours = |values: [f32; 3]| {
        let values = values.map(|value| Value::F64(value.into()));
        Value::Array(values.to_vec())
    };
    set("image_mean", colours(processor.mean));
    set("image_std", colours(processor.deviation));
    let side = u64::from(spec.patch);
    match processor.method {
        Method::Tiles { longest, .. } | Method::Longest { longest } => {
            set("preproc_image_size", number(longest.into()));
        }
        Method::Fill { most } => {
            let pixels = (side * u64::from(spec.merge)).pow(2);
            set("image_max_pixels", number(u64::from(most) * pixels));
        }
        Method::Pixels { least, most, .. } => {
            set("image_min_pixels", number(least));
            set("image_max_pixels", number(most));
        }
        Method::Bordered { most, .. } => {
            set("image_max_pixels", number(u64::from(most) * side.pow(2)));
        }
        Method::Slices { side, .. } => {
            set("image_size", number(side.into()));
        }
        _ => {}
    }
    if spec.family == VisionFamily::Granite4 {
        set("preproc_image_size", number(spec.image.into()));
    }
    if !processor.sizes.is_empty() {
        // Files of Granite Vision 4 have widths first.
        let swapped = spec.family == VisionFamily::Granite4;
        let sides = processor.sizes.iter().flat_map(|[height, width]| {
            let pair = if swapped {
                [width, height]
            } else {
                [height, width]
            };
            pair.map(|side| number((*side).into()))
        });
        set("image_grid_pinpoints", Value::Array(sides.collect()));
    }
    Ok(keys)
}

/// How a family shows videos.
pub(super) fn film(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    path: &Path,
) -> Result<Film, Error> {
    let film = |rate: Option<f64>, most: u32, together: u32, words: Words| Film {
        rate,
        most,
        together,
        words,
        around: None,
    };
    Ok(match spec.family {
        VisionFamily::Idefics3 => film(Some(1.0), 64, 1, Words::Series),
        VisionFamily::Gemma4 => film(None, 32, 1, Words::Clock),
        VisionFamily::Qwen2 | VisionFamily::Qwen2_5 => film(Some(2.0), 64, 0, Words::None),
        VisionFamily::Qwen3 => film(Some(2.0), 64, 2, Words::Seconds),
        VisionFamily::InternVl => film(None, 8, 1, Words::Numbers),
        VisionFamily::MiniCpmV | VisionFamily::MiniCpmV46 => film(Some(1.0), 64, 1, Words::None),
        VisionFamily::Glm4V | VisionFamily::GlmOcr => {
            let settings = settings(checkpoint, path)?;
            let own = settings.json.get("processor_class").and_then(Json::as_str);
            let words = if own.is_some_and(|own| own.starts_with("Glm46V")) {
                Words::AfterInTenths
            } else {
                Words::After
            };
            Film {
                around: Some(["<|begin_of_video|>", "<|end_of_video|>"]),
                ..film(Some(2.0), 64, 2, words)
            }
        }
        _ => Film::PLAIN,
    })
}

/// How DeepSeek-OCR cuts large pictures.
fn views(settings: &Settings<'_>, spec: &VisionSpec) -> Result<Method, Error> {
    let lined = spec.family == VisionFamily::DeepSeekOcr;
    let (most, unit) = (spec.of_patches().image, spec.patch * spec.whole_merge());
    let side = |keys: &[&str], default: u32| {
        let side = settings
            .number(keys, MOST_SIDE)?
            .map_or(default, |n| n as u32);
        if !side.is_multiple_of(unit) || side > most {
            let problem = format!("is {side}; must be a multiple of {unit}, at most {most}");
            return Err(settings.wrong(keys[0], &problem));
        }
        let (lines, sets) = (side / unit, &spec.query_sets);
        if spec.has_causal_queries() && !sets.contains(&(lines * lines)) {
            let problem = format!(
                "is {side}, which needs {} queries; the encoder has sets of {sets:?}",
                lines * lines
            );
            return Err(settings.wrong(keys[0], &problem));
        }
        Ok(side)
    };
    let tile = side(&["tile_size"], if lined { 640 } else { 768 }.min(most))?;
    let whole = side(&["size.height"], most)?;
    let number = |key: &str, default: u32| {
        let own = settings.number(&[key], MOST_TILES.into())?;
        Ok::<_, Error>(own.map_or(default, |own| own as u32))
    };
    let count = [
        number("min_patches", 2)?,
        number("max_patches", if lined { 9 } else { 6 })?,
    ];
    let crops = settings.json.get("crop_to_patches").and_then(Json::as_bool);
    let border = match settings.json.get("background_color") {
        None | Some(Json::Null) => [127; 3],
        Some(colour) => serde_json::from_value(colour.clone())
            .map_err(|_| settings.wrong("background_color", "must be three numbers to 255"))?,
    };
    // Without tiles the whole picture has the size of one.
    Ok(match crops {
        Some(false) => Method::Views {
            tile,
            count: [0, 0],
            side: tile,
            border,
            lined,
        },
        _ => Method::Views {
            tile,
            count: tile_count(settings, count)?,
            side: whole,
            border,
            lined,
        },
    })
}

/// How Gemma 3 cuts long pictures, if it does.
fn scan(settings: &Settings<'_>, side: u32) -> Result<Method, Error> {
    const RATIO: &str = "pan_and_scan_min_ratio_to_activate";
    let ratio = match settings.json.get(RATIO) {
        None | Some(Json::Null) => 1.2,
        Some(value) => value.as_f64().unwrap_or(f64::NAN),
    };
    if !(1.0..=1e6).contains(&ratio) {
        return Err(settings.wrong(RATIO, "must be a number from 1"));
    }
    let least = settings.number(&["pan_and_scan_min_crop_size"], MOST_SIDE)?;
    let most = settings.number(&["pan_and_scan_max_num_crops"], MOST_TILES.into())?;
    Ok(Method::Scan {
        side,
        least: least.unwrap_or(256) as u32,
        most: most.unwrap_or(4) as u32,
        ratio,
    })
}

/// Heights and widths that pictures may be resized to: whole tiles. `swapped`: widths come first.
fn sizes(settings: &Settings<'_>, tile: u32, swapped: bool) -> Result<Vec<[u32; 2]>, Error> {
    const KEY: &str = "image_grid_pinpoints";
    let numbers: Option<Vec<u64>> = match (settings.metadata(KEY), settings.json.get(KEY)) {
        (Some(Value::Array(list)), _) => list
            .iter()
            .map(|value| match value {
                Value::U64(v) => Some(*v),
                Value::I64(v) => u64::try_from(*v).ok(),
                _ => None,
            })
            .collect(),
        (_, Some(Json::Array(list))) => list
            .iter()
            .flat_map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([height, width]) => [height.as_u64(), width.as_u64()],
                _ => [None; 2],
            })
            .collect(),
        (None, None | Some(Json::Null)) => {
            let sides = [[1, 2], [2, 1], [2, 2], [3, 1], [1, 3]];
            return Ok(sides.map(|pair| pair.map(|n| n * tile)).to_vec());
        }
        _ => None,
    };
    let mut numbers = numbers.unwrap_or_default();
    if swapped {
        numbers
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .for_each(|pair| pair.reverse());
    }
    let (pairs, rest) = numbers.as_chunks::<2>();
    let fits = |n: &u64| (1..=MOST_SIDE).contains(n) && n.is_multiple_of(tile.into());
    if pairs.is_empty() || !rest.is_empty() || !pairs.as_flattened().iter().all(fits) {
        let problem = format!("must be pairs of multiples of {tile}");
        return Err(settings.wrong(KEY, &problem));
    }
    let sizes: Vec<[u32; 2]> = pairs.iter().map(|pair| pair.map(|n| n as u32)).collect();
    for [height, width] in &sizes {
        tile_count(settings, [1, height / tile * (width / tile)])?;
    }
    Ok(sizes)
}

/// Refuses more tiles than a picture may have.
fn tile_count(settings: &Settings<'_>, [least, most]: [u32; 2]) -> Result<[u32; 2], Error> {
    const MOST: u32 = MOST_TILES;
    if least <= most && most <= MOST {
        Ok([least, most])
    } else {
        let problem = format!("{least} to {most}; must be at most {MOST} in ascending order");
        Err(settings.wrong("tiles", &problem))
    }
}

/// Refuses tiles of another size than the encoder's.
fn same_side(
    settings: &Settings<'_>,
    key: &str,
    found: Option<u64>,
    side: u64,
) -> Result<(), Error> {
    match found.filter(|found| *found != side) {
        None => Ok(()),
        Some(found) => {
            let problem = format!("is {found}; the encoder takes {side}");
            Err(settings.wrong(key, &problem))
        }
    }
}
