//! Encoders of images and sounds that are written as `mmproj` files have the features of the directories that they come from.

use serde_json::Value;
use std::path::{Path, PathBuf};
use welte::{DeviceChoice, Hearing, Vision, VisionOptions, as_mmproj};
use welte_formats::quantize::{Quantisation, Recipe, quantize};

fn goldens(list: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(welte_goldens::folder().join(list)).expect("a list");
    let all: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let of_directory = |entry: &Value| entry["path"].is_string();
    all.into_iter().filter(of_directory).collect()
}

fn options() -> VisionOptions {
    let mut options = VisionOptions::default();
    options.device = "reference".parse::<DeviceChoice>().expect("a device");
    options
}

/// Writes the encoders of a directory. The error's words if it cannot be done.
fn written(folder: &Path, from: &Path, recipe: Recipe) -> Result<PathBuf, String> {
    let source = from.to_str().expect("a path");
    let opened = welte::open(source).expect("a directory");
    let (file, _) = as_mmproj(opened).map_err(|error| error.to_string())?;
    let path = folder.join(format!("mmproj-{}.gguf", recipe.name()));
    let to = Quantisation::new(recipe, 2);
    quantize(&*file, &path, &to, &mut |_, _| ()).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Compares features that both kinds of files have. The kernels of two frames are two products in a file.
fn difference(got: &[f32], want: &[f32]) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} values for {}", got.len(), want.len()));
    }
    let largest = want.iter().fold(0f32, |most, value| most.max(value.abs()));
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
    let worst = off.fold(0f32, f32::max) / largest;
    (worst.is_nan() || worst > 1e-5).then(|| format!("off by {worst} of the largest feature"))
}

fn picture(name: &str) -> Vec<u8> {
    let pictures = welte_goldens::folder().join("../../../welte-vision/tests/data/pictures");
    std::fs::read(pictures.join(name)).expect("the picture")
}

/// Directories whose settings files cannot say, and a word of the reason.
const UNLIKE: [(&str, &str); 3] = [
    ("qwen2_5_vl", "'4.0' would be read as '2.0'"),
    ("lighton_ocr", "projector_eps"),
    ("minicpmv4_6_4x", "vit_merger"),
];

#[test]
fn eyes() {
    let (mut problems, mut count) = (Vec::new(), 0);
    for entry in goldens("vision.json") {
        let name = entry["name"].as_str().expect("a name");
        let golden = welte_goldens::Golden::new(entry["path"].as_str().expect("a path"));
        let folder = tempfile::tempdir().expect("a folder");
        for recipe in [Recipe::F32, Recipe::BF16] {
            let path = match written(folder.path(), golden.path(), recipe) {
                Ok(path) => path,
                Err(problem) => {
                    let known = UNLIKE
                        .iter()
                        .any(|(known, why)| *known == name && problem.contains(why));
                    if !known {
                        problems.push(format!("{name}: {problem}"));
                    }
                    break;
                }
            };
            count += 1;
            let open = |file: Option<&Path>| {
                let source = golden.path().to_str().expect("a path");
                let vision = Vision::open(source, file, &options());
                vision
                    .unwrap_or_else(|e| panic!("{name}: {e}"))
                    .expect("eyes")
            };
            let (of_directory, of_file) = (open(None), open(Some(&path)));
            // The reference is slow, so most encoders see one picture.
            let pictures = entry["pictures"].as_array().expect("pictures");
            let some = if name == "smolvlm" { pictures.len() } else { 1 };
            for one in &pictures[..some] {
                let what = format!("{name}, {}, {}", one["picture"], recipe.name());
                let bytes = picture(one["picture"].as_str().expect("a name"));
                let features = |vision: &Vision| {
                    let read = vision.read(&bytes).expect("a picture");
                    vision.encode(&read).expect("features").rows
                };
                let differs = difference(&features(&of_file), &features(&of_directory));
                problems.extend(differs.map(|how| format!("{what}: {how}")));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 50, "{count} files");
}

/// A WAV file of floats.
fn wav(samples: &[f32]) -> Vec<u8> {
    const RATE: u32 = 16_000;
    let size = 4 * samples.len() as u32;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + size).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    bytes.extend([3u16, 1].map(u16::to_le_bytes).concat());
    bytes.extend([RATE, 4 * RATE].map(u32::to_le_bytes).concat());
    bytes.extend([4u16, 32].map(u16::to_le_bytes).concat());
    bytes.extend(b"data");
    bytes.extend(size.to_le_bytes());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes
}

/// Directories whose encoders of sound are not written as `mmproj` files, by the name that the refusal has.
const REFUSED: [(&str, &str); 5] = [
    ("gemma4", "Gemma 4"),
    ("gemma3n", "Gemma 3n"),
    ("glm_asr", "GLM-ASR"),
    ("lfm2_audio", "LFM2-Audio"),
    ("granite_speech", "Granite Speech"),
];

#[test]
fn ears() {
    let mut count = 0;
    for entry in goldens("hearing.json") {
        let name = entry["name"].as_str().expect("a name");
        let golden = welte_goldens::Golden::new(entry["path"].as_str().expect("a path"));
        let folder = tempfile::tempdir().expect("a folder");
        if name == "qwen3_asr" {
            // Files do not say how many pieces see each other: as many as in published models.
            let refused = written(folder.path(), golden.path(), Recipe::F32).unwrap_err();
            assert!(refused.contains("positions"), "{refused}");
            let path = golden.path().join("config.json");
            let text = std::fs::read_to_string(&path).expect("a file");
            let mut json: Value = serde_json::from_str(&text).expect("JSON");
            let config = json.pointer_mut("/thinker_config/audio_config");
            let own = if config.is_some() {
                "/thinker_config/audio_config"
            } else {
                "/audio_config"
            };
            let config = json.pointer_mut(own).expect("an encoder");
            (config["n_window"], config["n_window_infer"]) = (50.into(), 800.into());
            std::fs::write(&path, json.to_string()).expect("a file");
        }
        let path = match written(folder.path(), golden.path(), Recipe::F32) {
            Ok(path) => path,
            Err(problem) => {
                let known = REFUSED.iter().find(|(known, _)| *known == name);
                let title = known.unwrap_or_else(|| panic!("{name}: {problem}")).1;
                assert!(problem.contains(title), "{problem}");
                continue;
            }
        };
        count += 1;
        let open = |path: &Path| {
            let hearing = Hearing::open(path.to_str().expect("a path"), &options());
            hearing
                .unwrap_or_else(|e| panic!("{name}: {e}"))
                .expect("ears")
        };
        let (of_directory, of_file) = (open(golden.path()), open(&path));
        for one in entry["sounds"].as_array().expect("sounds") {
            let samples = one["samples"].as_u64().expect("a number");
            let wave = |n: u64| ((n * n % 977) as f32 / 977.0 - 0.5) * (n as f32 / 30.0).sin();
            let samples: Vec<f32> = (0..samples).map(wave).collect();
            let bytes = wav(&samples);
            let features = |hearing: &Hearing| {
                let sound = hearing.read(&bytes).expect("a sound");
                hearing.encode(&sound).expect("features").rows
            };
            assert_eq!(
                difference(&features(&of_file), &features(&of_directory)),
                None,
                "{name}"
            );
        }
    }
    assert_eq!(count, 4);
}

#[test]
fn what_has_no_encoder_is_refused() {
    for (model, why) in [
        ("qwen3/hf", "no encoder"),
        ("vision/jina_clip/hf", "jina-clip"),
    ] {
        let golden = welte_goldens::Golden::new(model);
        let folder = tempfile::tempdir().expect("a folder");
        let refused = written(folder.path(), golden.path(), Recipe::F16).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    let golden = welte_goldens::Golden::new("vision/gemma3/mmproj.gguf");
    let folder = tempfile::tempdir().expect("a folder");
    let refused = written(folder.path(), golden.path(), Recipe::F16).unwrap_err();
    assert!(refused.contains("is a file"), "{refused}");
}

/// A file that is written again keeps the dimensions of its kernels, which llama.cpp asks for.
#[test]
fn kernels_keep_their_dimensions() {
    let golden = welte_goldens::Golden::new("vision/smolvlm/hf");
    let folder = tempfile::tempdir().expect("a folder");
    let first = written(folder.path(), golden.path(), Recipe::F16).expect("a file");
    let second = folder.path().join("again.gguf");
    let opened = welte_formats::open(&first).expect("a file");
    let to = Quantisation::new(Recipe::Q8_0, 1);
    quantize(&*opened, &second, &to, &mut |_, _| ()).expect("another file");
    for path in [first, second] {
        let opened = welte_formats::open(&path).expect("a file");
        let patch = opened.tensor("v.patch_embd.weight").expect("a tensor");
        let dimensions = opened.dimensions(patch).expect("dimensions");
        assert_eq!((dimensions[0], dimensions[2]), (dimensions[1], 3));
        assert_eq!((patch.format, dimensions[3]), (welte::Format::F16, patch.n));
    }
}
