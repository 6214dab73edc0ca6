//! Features of pictures against transformers (`tools/goldens/vision.py`), on the reference and on the CPU; on GPUs with
//! `--include-ignored`.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use welte::{Clip, DeviceChoice, DeviceId, DeviceOptions, Piece, Replay, Vision, VisionOptions};
use welte_models::CompileOptions;
use welte_table::{Input, PassKind, Row};

/// A device, and the furthest that a feature, and a logit, may be off, as a part of their spread.
type Tolerance = (&'static str, f32, f32);

/// On the CPU rows of weights in BF16 are multiplied with rounded activations: 4.5e-2 was the worst seen. Keys and values of language
/// models are in F16.
const TOLERANCES: [Tolerance; 2] = [("reference", 5e-5, 1e-2), ("cpu", 1e-1, 1e-1)];
/// Activations are rounded for tensor cores.
const CUDA: [Tolerance; 1] = [("cuda", 1e-1, 1e-1)];
const GPU: [Tolerance; 1] = [("gpu", 1e-3, 1e-2)];

fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("the features");
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn picture(name: &str) -> Vec<u8> {
    let pictures = welte_goldens::folder().join("../../../welte-vision/tests/data/pictures");
    std::fs::read(pictures.join(name)).expect("the picture")
}

fn models() -> Vec<Value> {
    let text = std::fs::read_to_string(welte_goldens::folder().join("vision.json"));
    serde_json::from_str(&text.expect("a list")).expect("JSON")
}

fn open(path: &Path, device: &str) -> Vision {
    open_with(path, device, VisionOptions::default())
}

fn open_with(path: &Path, device: &str, mut options: VisionOptions) -> Vision {
    options.device = device.parse::<DeviceChoice>().expect("a device");
    let source = path.to_str().expect("a path");
    let mmproj = Some(path).filter(|path| path.is_file());
    let vision = Vision::open(source, mmproj, &options);
    let vision = vision.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    vision.expect("the model has eyes")
}

/// The standard deviation.
fn spread(values: &[f32]) -> f32 {
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    let squares = values.iter().map(|v| (v - mean).powi(2));
    (squares.sum::<f32>() / count).sqrt()
}

fn check(name: &str, devices: &[Tolerance]) {
    let models = models();
    let entry = models
        .iter()
        .find(|entry| entry["name"] == name)
        .expect("the golden");
    check_features(name, entry, devices);
    if let Some(mmproj) = entry.get("mmproj") {
        check_features(name, mmproj, devices);
    }
}

fn check_features(name: &str, entry: &Value, devices: &[Tolerance]) {
    let path = entry["path"].as_str().expect("a path");
    let golden = welte_goldens::Golden::new(path);
    let name = format!(
        "{name}{}",
        if path.ends_with("gguf") {
            " in GGUF"
        } else {
            ""
        }
    );
    for &(device, tolerance, _) in devices {
        let vision = open(golden.path(), device);
        for one in entry["pictures"].as_array().expect("pictures") {
            let text = |key: &str| one[key].as_str().expect("text");
            let what = format!("{name}, {}, {device}", text("picture"));
            let want = floats(&welte_goldens::folder().join(text("features")));
            let picture = vision.read(&picture(text("picture"))).expect("a picture");
            assert_eq!(one["count"], picture.features(), "{what}");
            let got = vision
                .encode(&picture)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(
                (got.width, &got.hash),
                (vision.width(), picture.hash()),
                "{what}"
            );
            near(&what, &got.rows, &want, tolerance);
            let again = vision.encode(&picture).expect("features");
            assert!(again.rows == got.rows, "{what}: other bits");
        }
        if let Some(video) = entry.get("video") {
            let features = video["features"].as_str().expect("a path");
            let want = floats(&welte_goldens::folder().join(features));
            let parts = video["parts"].as_array().expect("parts");
            let (_, got) = conversation(&vision, parts);
            let what = format!("{name}, a video, {device}");
            near(&what, &got, &want, tolerance);
        }
    }
}

/// Compares values by their spread.
fn near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
    let worst = off.fold(0.0, f32::max) / spread(want);
    println!("{what}: {worst:.1e} of the spread");
    assert!(worst <= tolerance, "{what}: off by {worst} of the spread");
}

/// Frames of a video that become one picture.
fn clip(part: &Value) -> Option<Clip> {
    let frames = part["clip"].as_array()?.iter();
    let frames = frames.map(|name| picture(name.as_str().expect("a name")).into());
    Some(Clip {
        frames: frames.collect(),
        length: Duration::from_secs_f64(part["seconds"].as_f64().expect("seconds")),
        most_features: 1280,
    })
}

/// The rows of a conversation with pictures, and the features that they read.
fn conversation(vision: &Vision, parts: &[Value]) -> (Vec<Row>, Vec<f32>) {
    let (mut rows, mut features, mut axis) = (Vec::<Row>::new(), Vec::new(), 0);
    let tokens = |rows: &mut Vec<Row>, axis: &mut u32, list: &Value| {
        for token in list.as_array().expect("tokens") {
            let token = token.as_u64().expect("a token") as u32;
            let row = Row::new(token, rows.len() as u32, 0);
            rows.push(Row {
                axes: [*axis; 3],
                ..row
            });
            *axis += 1;
        }
    };
    for part in parts {
        let picture = match (part["picture"].as_str(), clip(part)) {
            (Some(name), _) => vision.read(&picture(name)),
            (None, Some(clip)) => vision.read_frames(&clip),
            (None, None) => {
                tokens(&mut rows, &mut axis, &part["tokens"]);
                continue;
            }
        };
        let picture = picture.expect("a picture");
        let before = (features.len() / vision.width()) as u32;
        features.extend_from_slice(&vision.encode(&picture).expect("features").rows);
        let mut marks = part["marks"].as_array().into_iter().flatten();
        for piece in vision.layout(&picture) {
            match piece {
                Piece::Text(_) => tokens(&mut rows, &mut axis, marks.next().expect("a mark")),
                Piece::Features {
                    first,
                    axes,
                    advance,
                    both_ways,
                } => {
                    let start = rows.len() as u32;
                    let end = start + axes.len() as u32;
                    for (number, own) in (0u32..).zip(axes) {
                        let position = start + number;
                        rows.push(Row {
                            input: Input::Feature(before + first as u32 + number),
                            axes: own.map(|offset| axis + offset),
                            reach: if both_ways { end - 1 } else { position },
                            ..Row::new(0, position, 0)
                        });
                    }
                    axis += advance;
                }
            }
        }
        assert!(marks.next().is_none(), "{part}: a mark is left");
    }
    (rows, features)
}

/// The language model reads two pictures in a prompt.
fn check_logits(name: &str, devices: &[Tolerance]) {
    let models = models();
    let entry = models
        .iter()
        .find(|entry| entry["name"] == name)
        .expect("the golden");
    logits_of(name, entry, &entry["path"], devices);
    if let Some(video) = entry.get("video") {
        logits_of(&format!("{name}, a video"), video, &entry["path"], devices);
    }
}

fn logits_of(name: &str, entry: &Value, path: &Value, devices: &[Tolerance]) {
    let golden = welte_goldens::Golden::new(path.as_str().expect("a path"));
    let logits = entry["logits"].as_str().expect("a path");
    let want = floats(&welte_goldens::folder().join(logits));
    let vector = entry["vector"].as_str();
    let vector = vector.map(|path| floats(&welte_goldens::folder().join(path)));
    let checkpoint = welte_formats::open(golden.path()).expect("a checkpoint");
    let spec = welte_models::spec(&*checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut own = VisionOptions::default();
    (own.scale, own.both_ways) = (spec.feature_scale(), spec.reaches_within_windows());
    let vision = open_with(golden.path(), "reference", own);
    let (rows, features) = conversation(&vision, entry["parts"].as_array().expect("parts"));
    let options = CompileOptions {
        context: 512,
        prompt_rows: 256,
        prompt_outputs: 8,
        features: (features.len() / vision.width()) as u32,
        embed_rows: if vector.is_some() { 256 } else { 0 },
        ..CompileOptions::default()
    };
    for &(kind, _, tolerance) in devices {
        let id = match kind {
            "cuda" | "gpu" => DeviceId::numbered(kind, 0),
            kind => DeviceId::only(kind),
        };
        let mut of_device = DeviceOptions::default();
        // The persistent kernel need not be compiled.
        of_device.replay = (kind == "cuda").then_some(Replay::Graph);
        let device = welte::open_device(id, &of_device);
        let device = device.expect("a device");
        let program = welte_models::compile(&spec, &*checkpoint, &options).expect("a program");
        let program = Arc::new(welte_table::fuse(program, device.patterns()));
        let plan = device.plan(program.clone()).expect("a plan");
        let loaded = device
            .load(plan, &*checkpoint, &mut |_| ())
            .expect("the model");
        let mut context = loaded.context().expect("a context");
        let bytes: Vec<u8> = features.iter().flat_map(|v| v.to_ne_bytes()).collect();
        context
            .write_bytes(program.features, 0, &bytes)
            .expect("features");
        let all = rows.len() as u32;
        let outputs: Vec<u32> = (all - 8..all).collect();
        let pass = program.pass(PassKind::Prompt).expect("a prompt pass");
        let got = context.step_rows(pass, &rows, &outputs).expect("logits");
        near(&format!("{name}, {kind}, logits"), got, &want, tolerance);
        let Some(want) = &vector else { continue };
        let pass = program.pass(PassKind::Embed).expect("an embed pass");
        let got = context
            .step_rows(pass, &rows, &[all - 1])
            .expect("a vector");
        let length = got.iter().map(|v| v * v).sum::<f32>().sqrt();
        let cosine: f32 = got.iter().zip(want).map(|(a, b)| a / length * b).sum();
        println!("{name}, {kind}, vector: 1 - {:.1e}", 1.0 - cosine);
        assert!(
            1.0 - cosine <= tolerance * tolerance,
            "{name}, {kind}: {cosine}"
        );
    }
}

fn check_on(name: &str, devices: &[Tolerance]) {
    check(name, devices);
    check_logits(name, devices);
}

macro_rules! goldens {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name), &TOLERANCES); })*
        mod logits {
            $(#[test] fn $name() { super::check_logits(stringify!($name), &super::TOLERANCES); })*
        }
        mod cuda {
            $(#[test] #[ignore = "needs a GPU"] fn $name() { super::check_on(stringify!($name), &super::CUDA); })*
        }
        mod gpu {
            $(#[test] #[ignore = "needs a GPU, or its driver in software"] fn $name() { super::check_on(stringify!($name), &super::GPU); })*
        }
    };
}

goldens!(smolvlm gemma3 gemma4 qwen2_vl qwen2_5_vl pixtral mistral3 lfm2_vl internvl qwen3_vl llava_next granite_vision qwen3_vl_moe qwen3_5 paddleocr_vl glm4v glm4v_moe glm_ocr kimi kimi_k25 llava gemma3_scan gemma4_31b gemma4_26b minicpmv4 minicpmv4_5 minicpmv4_6 minicpmv4_6_4x lighton_ocr deepseek_ocr deepseek_ocr2 granite4_vision);

#[test]
fn layouts_have_the_axes_and_reach_of_their_family() {
    let golden = |name: &str| welte_goldens::Golden::new(&format!("vision/{name}/hf"));
    let qwen = golden("qwen2_5_vl");
    let vision = open(qwen.path(), "reference");
    assert_eq!(vision.placeholder(), "<|image_pad|>");
    let picture_of = |vision: &Vision| vision.read(&picture("wide.png")).expect("a picture");
    let layout = vision.layout(&picture_of(&vision));
    let [
        Piece::Features {
            first: 0,
            axes,
            advance: 6,
            both_ways: false,
        },
    ] = &layout[..]
    else {
        panic!("{layout:?}");
    };
    // Three lines of six.
    assert_eq!(axes.len(), 18);
    assert_eq!(
        (axes[0], axes[5], axes[6], axes[17]),
        ([0, 0, 0], [0, 0, 5], [0, 1, 0], [0, 2, 5])
    );
    let gemma = golden("gemma3");
    let vision = open(gemma.path(), "reference");
    let layout = vision.layout(&picture_of(&vision));
    let both = layout.iter().any(|piece| {
        matches!(
            piece,
            Piece::Features {
                both_ways: true,
                advance: 4,
                ..
            }
        )
    });
    assert!(both, "{layout:?}");
}

#[test]
fn videos_of_glm_stand_between_its_control_tokens() {
    let golden = welte_goldens::Golden::new("vision/glm_ocr/hf");
    let film = open(golden.path(), "reference").film();
    assert_eq!(
        film.around,
        Some(["<|begin_of_video|>", "<|end_of_video|>"])
    );
}

#[test]
fn models_without_eyes_have_none() {
    let golden = welte_goldens::Golden::new("qwen2/hf");
    let source = golden.path().to_str().expect("a path");
    let options = VisionOptions::default();
    assert!(
        Vision::open(source, None, &options)
            .expect("a model")
            .is_none()
    );
    assert!(
        Vision::open("synthetic:tiny:q4_0", None, &options)
            .expect("a model")
            .is_none()
    );
    let error = Vision::open(source, Some(golden.path()), &options).expect_err("no encoder");
    assert!(error.to_string().contains("known are Idefics 3"), "{error}");
}

/// A family that is not supported is named, with those that are.
#[test]
fn an_unknown_encoder_is_named() {
    let golden = welte_goldens::Golden::new("vision/internvl/hf");
    let file = golden.path().join("config.json");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let other = text.replace("\"internvl\"", "\"other_vl\"");
    assert_ne!(other, text);
    std::fs::write(&file, other).expect("the configuration");
    let source = golden.path().to_str().expect("a path");
    let options = VisionOptions::default();
    let error = Vision::open(source, Some(golden.path()), &options).expect_err("unknown");
    let error = error.to_string();
    assert!(
        error.contains("(other_vl) is not supported") && error.contains("PaddleOCR-VL"),
        "{error}"
    );
}

#[test]
fn a_processor_that_does_not_fit_is_refused() {
    let golden = welte_goldens::Golden::new("vision/gemma3/hf");
    let file: PathBuf = golden.path().join("preprocessor_config.json");
    let options = VisionOptions::default();
    for (text, said) in [
        (
            r#"{"size": {"height": 48, "width": 48}}"#,
            "size: is 48; the encoder takes 32",
        ),
        (
            r#"{"image_std": [0.5, 0, 0.5]}"#,
            "image_std: must not be 0",
        ),
        (
            r#"{"image_mean": "0.5"}"#,
            "image_mean: must be three numbers",
        ),
        (
            r#"{"do_pan_and_scan": true, "pan_and_scan_min_ratio_to_activate": 0.5}"#,
            "pan_and_scan_min_ratio_to_activate: must be a number from 1",
        ),
        (r#"{"resample": 0}"#, "resample: must be"),
        ("{", "EOF"),
    ] {
        std::fs::write(&file, text).expect("the file");
        let source = golden.path().to_str().expect("a path");
        let error = Vision::open(source, None, &options)
            .expect_err(said)
            .to_string();
        assert!(
            error.contains(said) && error.contains("preprocessor_config"),
            "{error}"
        );
    }
}

/// An encoder that has queries for some sizes of tiles takes no others.
#[test]
fn a_tile_without_queries_is_refused() {
    let golden = welte_goldens::Golden::new("vision/deepseek_ocr2/hf");
    let file = golden.path().join("preprocessor_config.json");
    for text in [
        r#"{"tile_size": 32, "size": {"height": 64}}"#,
        r#"{"tile_size": 48, "size": {"height": 32}}"#,
    ] {
        std::fs::write(&file, text).expect("the file");
        let source = golden.path().to_str().expect("a path");
        let error = Vision::open(source, None, &VisionOptions::default());
        let error = error.expect_err("no queries").to_string();
        assert!(
            error.contains("is 32, which needs 4 queries") && error.contains("[9, 16]"),
            "{error}"
        );
    }
}
