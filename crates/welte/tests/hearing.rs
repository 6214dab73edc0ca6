//! Features of sounds against transformers (`tools/goldens/hearing.py`), on the reference and on the CPU; on GPUs with
//! `--include-ignored`. Then the whole way of a sound into a prompt.

#[path = "hearing/mmproj.rs"]
mod mmproj;
#[path = "hearing/newer.rs"]
mod newer;

use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use welte::{
    DeviceChoice, DeviceId, DeviceOptions, Engine, EngineOptions, Hearing, Image, ImageSource,
    Images, LoadOptions, Message, Model, Piece, Prompt, Replay, Request, Stream, VisionOptions,
};
use welte_models::CompileOptions;
use welte_table::{Input, PassKind, Row};

const RATE: u32 = 16_000;

/// A device, and the furthest that a feature, and a logit, may be off, as a part of their spread.
type Tolerance = (&'static str, f32, f32);

/// On the CPU rows of weights in BF16 are multiplied with rounded activations. Keys and values of language models are in F16.
const TOLERANCES: [Tolerance; 2] = [("reference", 1e-4, 1e-2), ("cpu", 1e-1, 1e-1)];
/// Activations are rounded for tensor cores, and for cooperative matrices.
const CUDA: [Tolerance; 1] = [("cuda", 1e-1, 1e-1)];
const GPU: [Tolerance; 1] = [("gpu", 3e-2, 2e-2)];

/// The sound of the goldens.
fn sound(count: u64) -> Vec<f32> {
    let sample = |n: u64| {
        let hash = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let noise = hash as f64 / f64::from(1 << 24) - 0.5;
        let t = n as f64 / f64::from(RATE);
        let wave = |phase: f64| (2.0 * std::f64::consts::PI * phase).sin();
        let tones = wave(200.0 * t + 300.0 * t * t) * 0.4 + wave(1700.0 * t) * 0.2 * wave(3.0 * t);
        (tones + 0.02 * noise) as f32
    };
    (0..count).map(sample).collect()
}

/// A WAV file of floats.
fn wav(samples: &[f32]) -> Vec<u8> {
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

fn floats(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(welte_goldens::folder().join(path)).expect("the features");
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn entry(name: &str) -> Value {
    let text = std::fs::read_to_string(welte_goldens::folder().join("hearing.json"));
    let all: Vec<Value> = serde_json::from_str(&text.expect("a list")).expect("JSON");
    let mut all = all.into_iter().filter(|entry| entry["name"] == name);
    all.next().expect("the golden")
}

fn open(path: &Path, device: &str, most_features: u32) -> Hearing {
    let mut options = VisionOptions::default();
    options.device = device.parse::<DeviceChoice>().expect("a device");
    options.most_features = most_features;
    let hearing = Hearing::open(path.to_str().expect("a path"), &options);
    let hearing = hearing.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    hearing.expect("the model has ears")
}

/// The standard deviation.
fn spread(values: &[f32]) -> f32 {
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    let squares = values.iter().map(|v| (v - mean).powi(2));
    (squares.sum::<f32>() / count).sqrt()
}

/// Compares values by their spread.
fn near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
    let worst = off.fold(0.0, f32::max) / spread(want);
    println!("{what}: {worst:.1e} of the spread");
    assert!(worst <= tolerance, "{what}: off by {worst} of the spread");
}

/// The golden's directory, and its `mmproj` file with other weights, as far as there are.
fn check(name: &str, devices: &[Tolerance]) {
    let entry = entry(name);
    for own in [&entry, &entry["mmproj"]] {
        if own["path"].is_string() {
            check_features(name, own, devices);
        }
    }
}

fn check_features(name: &str, entry: &Value, devices: &[Tolerance]) {
    let path = entry["path"].as_str().expect("a path");
    let golden = welte_goldens::Golden::new(path);
    for &(device, tolerance, _) in devices {
        let hearing = open(golden.path(), device, 1280);
        for one in entry["sounds"].as_array().expect("sounds") {
            let samples = one["samples"].as_u64().expect("a number");
            let what = format!("{path}, {samples} samples, {device}");
            assert!(path.contains(name), "{what}");
            let sound = hearing.read(&wav(&sound(samples))).expect("a sound");
            assert_eq!(one["count"], sound.features(), "{what}");
            let got = hearing
                .encode(&sound)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(
                (got.width, &got.hash),
                (hearing.width(), sound.hash()),
                "{what}"
            );
            let want = floats(one["features"].as_str().expect("a path"));
            near(&what, &got.rows, &want, tolerance);
            let again = hearing.encode(&sound).expect("features");
            assert!(again.rows == got.rows, "{what}: other bits");
        }
    }
}

/// The language model reads two sounds in a prompt.
fn check_logits(name: &str, devices: &[Tolerance]) {
    let entry = entry(name);
    let golden = welte_goldens::Golden::new(entry["path"].as_str().expect("a path"));
    check_logits_with(name, golden.path(), (golden.path(), &entry), devices);
    let Some(path) = entry["mmproj"]["path"].as_str() else {
        return;
    };
    let file = welte_goldens::Golden::new(path);
    check_logits_with(
        name,
        golden.path(),
        (file.path(), &entry["mmproj"]),
        devices,
    );
}

fn check_logits_with(name: &str, model: &Path, ears: (&Path, &Value), devices: &[Tolerance]) {
    let (ears, entry) = ears;
    let want = floats(entry["logits"].as_str().expect("a path"));
    let checkpoint = welte_formats::open(model).expect("a checkpoint");
    let spec = welte_models::spec(&*checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
    let hearing = open(ears, "reference", 1280);
    let (mut rows, mut features) = (Vec::<Row>::new(), Vec::<f32>::new());
    for part in entry["parts"].as_array().expect("parts") {
        let Some(samples) = part["sound"].as_u64() else {
            for token in part["tokens"].as_array().expect("tokens") {
                let token = token.as_u64().expect("a token") as u32;
                rows.push(Row::new(token, rows.len() as u32, 0));
            }
            continue;
        };
        let sound = hearing.hear(&sound(samples)).expect("a sound");
        let before = (features.len() / hearing.width()) as u32;
        features.extend_from_slice(&hearing.encode(&sound).expect("features").rows);
        for number in 0..sound.features() as u32 {
            rows.push(Row {
                input: Input::Feature(before + number),
                ..Row::new(0, rows.len() as u32, 0)
            });
        }
    }
    let options = CompileOptions {
        context: 512,
        prompt_rows: 256,
        prompt_outputs: 8,
        features: (features.len() / hearing.width()) as u32,
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
        let device = welte::open_device(id, &of_device).expect("a device");
        let program = welte_models::compile(&spec, &*checkpoint, &options).expect("a program");
        let program = Arc::new(welte_table::fuse(program, device.patterns()));
        let plan = device.plan(program.clone()).expect("a plan");
        let loaded = device
            .load(plan, &*checkpoint, &mut |_| ())
            .expect("the model");
        let mut context = loaded.context().expect("a context");
        let scaled = features.iter().map(|v| v * spec.feature_scale());
        let bytes: Vec<u8> = scaled.flat_map(f32::to_ne_bytes).collect();
        context
            .write_bytes(program.features, 0, &bytes)
            .expect("features");
        let all = rows.len() as u32;
        let outputs: Vec<u32> = (all - 8..all).collect();
        let pass = program.pass(PassKind::Prompt).expect("a prompt pass");
        let got = context.step_rows(pass, &rows, &outputs).expect("logits");
        near(&format!("{name}, {kind}, logits"), got, &want, tolerance);
    }
}

fn check_on(name: &str, devices: &[Tolerance]) {
    check(name, devices);
    if entry(name)["path"].is_string() {
        check_logits(name, devices);
    }
}

macro_rules! goldens {
    ($($name:ident)* | $($alone:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name), &TOLERANCES); })*
        $(#[test] fn $alone() { check(stringify!($alone), &TOLERANCES); })*
        mod logits {
            $(#[test] fn $name() { super::check_logits(stringify!($name), &super::TOLERANCES); })*
        }
        mod cuda {
            $(#[test] #[ignore = "needs a GPU"] fn $name() { super::check_on(stringify!($name), &super::CUDA); })*
            $(#[test] #[ignore = "needs a GPU"] fn $alone() { super::check_on(stringify!($alone), &super::CUDA); })*
        }
        mod gpu {
            $(#[test] #[ignore = "needs a GPU, or its driver in software"] fn $name() { super::check_on(stringify!($name), &super::GPU); })*
            $(#[test] #[ignore = "needs a GPU, or its driver in software"] fn $alone() { super::check_on(stringify!($alone), &super::GPU); })*
        }
    };
}

goldens!(qwen2_audio voxtral qwen3_asr audioflamingo3 gemma3n gemma4 granite_speech lfm2_audio glm_asr | qwen2_5_omni ultravox);

/// Qwen3-ASR's authors have other names in both files, and a section more.
#[test]
fn the_authors_names_of_qwen3_asr_are_known() {
    let golden = welte_goldens::Golden::new("hearing/qwen3_asr/hf");
    let sound = sound(20_000);
    let features = || {
        let hearing = open(golden.path(), "cpu", 1280);
        let sound = hearing.hear(&sound).expect("a sound");
        hearing.encode(&sound).expect("features").rows
    };
    let spec = || {
        let checkpoint = welte_formats::open(golden.path()).expect("a checkpoint");
        let spec = welte_models::spec(&*checkpoint).expect("a language model");
        let program = welte_models::compile(&spec, &*checkpoint, &CompileOptions::default());
        (spec, program.expect("a program").weights.len())
    };
    let wanted = (features(), spec());
    let file = golden.path().join("config.json");
    let text = std::fs::read_to_string(&file).expect("a file");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    let mut thinker = serde_json::json!({});
    for section in ["audio_config", "text_config"] {
        thinker[section] = config[section].take();
        config.as_object_mut().expect("an object").remove(section);
    }
    let text = thinker["text_config"].as_object_mut().expect("an object");
    text.remove("model_type");
    text["tie_word_embeddings"] = true.into();
    config["thinker_config"] = thinker;
    std::fs::write(&file, config.to_string()).expect("a file");
    let file = golden.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("a file");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (head, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let head = std::str::from_utf8(head).expect("text");
    let head = [
        (
            "model.multi_modal_projector.linear_",
            "thinker.audio_tower.proj",
        ),
        ("model.language_model.", "thinker.model."),
        ("model.audio_tower.", "thinker.audio_tower."),
    ]
    .iter()
    .fold(head.to_string(), |head, (old, new)| {
        head.replace(&format!("\"{old}"), &format!("\"{new}"))
    });
    let head = format!("{head:width$}", width = head.len().next_multiple_of(8));
    let length = (head.len() as u64).to_le_bytes();
    let bytes = [&length, head.as_bytes(), data].concat();
    std::fs::write(&file, bytes).expect("a file");
    let found = (features(), spec());
    assert!(found.0 == wanted.0, "other features");
    assert_eq!(found.1, wanted.1);
}

/// What the configuration of Qwen2-Audio leaves out is Qwen2's.
#[test]
fn sizes_of_qwen2_audio_have_defaults() {
    let golden = welte_goldens::Golden::new("hearing/qwen2_audio/hf");
    let file = golden.path().join("config.json");
    let text = std::fs::read_to_string(&file).expect("a file");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    let text = config["text_config"].as_object_mut().expect("an object");
    for key in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ] {
        text.remove(key);
    }
    std::fs::write(&file, config.to_string()).expect("a file");
    let checkpoint = welte_formats::open(golden.path()).expect("a checkpoint");
    let spec = welte_models::spec(&*checkpoint).expect("a language model");
    assert_eq!(
        (spec.layers, spec.dim, spec.heads, spec.kv_heads),
        (32, 4096, 32, 32)
    );
    let hearing = welte_models::hearing_spec(&*checkpoint).expect("an encoder");
    assert_eq!(hearing.map(|spec| spec.width), Some(4096));
}

/// A sound stands in pieces, which change no feature.
#[test]
fn features_of_a_sound_come_in_pieces() {
    let golden = welte_goldens::Golden::new("hearing/voxtral/hf");
    let hearing = open(golden.path(), "cpu", 5);
    let sound = hearing.hear(&sound(20_000)).expect("a sound");
    let mut layout = hearing.layout(&sound).into_iter();
    assert_eq!(layout.next(), Some(Piece::Text("[BEGIN_AUDIO]".into())));
    let pieces = layout.map(|piece| match piece {
        Piece::Features {
            first,
            axes,
            advance,
            both_ways: false,
        } => {
            assert_eq!(axes.len(), advance as usize);
            (first, axes.len())
        }
        other => panic!("{other:?}"),
    });
    let wanted = [(0, 5), (5, 5), (10, 5), (15, 5), (20, 5), (25, 1)];
    assert_eq!(pieces.collect::<Vec<_>>(), wanted);
}

#[test]
fn sounds_that_cannot_be_heard_are_refused() {
    let golden = welte_goldens::Golden::new("hearing/qwen2_audio/hf");
    let hearing = open(golden.path(), "reference", 1280);
    let error = |bytes: &[u8]| hearing.read(bytes).expect_err("a fault").to_string();
    for (bytes, said) in [
        (Vec::new(), "is empty"),
        (
            b"no sound at all, only text".to_vec(),
            "of no supported kind",
        ),
        (wav(&[]), "no samples"),
        (wav(&sound(100)), "too short"),
        (wav(&sound(16_001)), "hears 1 s at once; cut it"),
        (
            wav(&sound(48_000)),
            "more than 1 s, and the model hears 1 s",
        ),
        (wav(&sound(9000))[..40].to_vec(), "audio"),
    ] {
        let error = error(&bytes);
        assert!(error.contains(said), "{error}");
    }
    // A file that was cut off counts up to there.
    let cut = hearing.read(&wav(&sound(9000))[..20_044]).expect("a sound");
    assert_eq!(cut.features(), 8);
}

/// What exceeds the context is not decoded to its end.
#[test]
fn sounds_that_exceed_the_context_are_refused() {
    for name in ["voxtral", "qwen3_asr"] {
        let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
        let hearing = open(golden.path(), "reference", 1280);
        let long = wav(&sound(80_000));
        let rows = hearing.read(&long).expect("a sound").features();
        let fitting = hearing.within(rows);
        assert_eq!(fitting.read(&long).expect("a sound").features(), rows);
        let error = fitting.within(rows / 5).read(&long).expect_err("too long");
        let error = error.to_string();
        assert!(
            error.contains("context") && error.contains("more than"),
            "{error}"
        );
    }
}

/// A sound of samples has a hash of its own, as one of bytes has.
#[test]
fn sounds_of_samples_are_told_apart() {
    let golden = welte_goldens::Golden::new("hearing/qwen2_audio/hf");
    let hearing = open(golden.path(), "reference", 1280);
    let hash = |count: u64| *hearing.hear(&sound(count)).expect("a sound").hash();
    assert_eq!(hash(9000), hash(9000));
    assert_ne!(hash(9000), hash(9001));
}

/// A fault in the configuration of an encoder is told to those who ask whether there is one.
#[test]
fn a_wrong_configuration_is_no_missing_one() {
    let golden = welte_goldens::Golden::new("hearing/qwen2_audio/hf");
    let source = golden.path().to_str().expect("a path");
    assert!(welte::hears(source, &Images::Beside).expect("an encoder"));
    assert!(!welte::hears("no such folder", &Images::Beside).expect("no encoder"));
    let file = golden.path().join("config.json");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["audio_config"]["d_model"] = "wide".into();
    std::fs::write(&file, config.to_string()).expect("the configuration");
    let error = welte::hears(source, &Images::Beside)
        .expect_err("a fault")
        .to_string();
    assert!(error.contains("d_model"), "{error}");
}

#[test]
fn a_processor_that_does_not_fit_is_refused() {
    let golden = welte_goldens::Golden::new("hearing/qwen2_audio/hf");
    let source = golden.path().to_str().expect("a path");
    for (text, said) in [
        (
            r#"{"feature_size": 128}"#,
            "feature_size: is 128; the encoder takes 80",
        ),
        (r#"{"sampling_rate": 8000}"#, "sampling_rate: is 8000"),
        (r#"{"hop_length": "160"}"#, "hop_length: is"),
        (r#"{"n_fft": 512}"#, "n_fft: is 512; the encoder takes 400"),
        ("{", "EOF"),
    ] {
        std::fs::write(golden.path().join("preprocessor_config.json"), text).expect("the file");
        let error = Hearing::open(source, &VisionOptions::default()).expect_err(said);
        let error = error.to_string();
        assert!(
            error.contains(said) && error.contains("preprocessor_config"),
            "{error}"
        );
    }
}

/// A family that is not supported is named, with those that are. The language model is there.
#[test]
fn an_unknown_encoder_is_named() {
    let golden = with_vocabulary("qwen2_audio", TEXT);
    let file = golden.path().join("config.json");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let other = text.replace("\"qwen2_audio\"", "\"other_audio\"");
    assert_ne!(other, text);
    std::fs::write(&file, other).expect("the configuration");
    let model = load(&golden, &listening(Images::Beside));
    let why = model.no_sounds().expect("no ears");
    assert!(
        why.contains("(other_audio) is not supported; known are Qwen2-Audio, Voxtral"),
        "{why}"
    );
}

#[test]
fn models_without_ears_have_none() {
    let options = VisionOptions::default();
    for source in ["qwen2/hf", "vision/qwen2_vl/hf"] {
        let golden = welte_goldens::Golden::new(source);
        let source = golden.path().to_str().expect("a path");
        assert!(Hearing::open(source, &options).expect("a model").is_none());
    }
    assert!(
        Hearing::open("synthetic:tiny:q4_0", &options)
            .expect("a model")
            .is_none()
    );
}

/// Letters, and the marks of all families.
const TOKENIZER: &str = r#"{"model": {"type": "BPE", "vocab": {"a": 10, "b": 11, "c": 12, " ": 13}, "merges": []},
    "added_tokens": [TOKENS]}"#;
const MARKS: [(&str, u32); 4] = [
    ("<|AUDIO|>", 7),
    ("[AUDIO]", 7),
    ("<|audio_pad|>", 7),
    ("[BEGIN_AUDIO]", 8),
];

/// A golden with a vocabulary and a template.
fn with_vocabulary(name: &str, template: &str) -> welte_goldens::Golden {
    let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
    let own = match name {
        "qwen2_audio" => &MARKS[..1],
        "voxtral" => &[MARKS[1], MARKS[3]],
        _ => &MARKS[2..3],
    };
    let tokens = own.iter().map(|(content, id)| {
        let token = serde_json::json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        });
        token.to_string()
    });
    let tokens = tokens.collect::<Vec<_>>().join(",");
    let write = |file: &str, text: &str| {
        std::fs::write(golden.path().join(file), text).expect("a file");
    };
    write("tokenizer.json", &TOKENIZER.replace("TOKENS", &tokens));
    write("chat_template.jinja", template);
    golden
}

fn load(golden: &welte_goldens::Golden, options: &LoadOptions) -> Model {
    let source = golden.path().to_str().expect("a path");
    Model::load(source, options, &mut |_| ()).expect("a model")
}

fn listening(images: Images) -> LoadOptions {
    let mut options = LoadOptions::default();
    (options.device, options.context) = (DeviceChoice::CPU, 256);
    options.images = images;
    options
}

fn asked(at: &[usize], sounds: &[Vec<f32>]) -> Message {
    let image = |(at, samples): (&usize, &Vec<f32>)| Image {
        at: *at,
        source: ImageSource::Sound(wav(samples).into()),
        name: "a sound".into(),
    };
    Message {
        images: at.iter().zip(sounds).map(image).collect(),
        ..Message::new("user", "ab c")
    }
}

/// What a prompt has: tokens, and rows of media as 0.
fn shape(prompt: &Prompt) -> Vec<u32> {
    let mut tokens = prompt.tokens.clone();
    for medium in &prompt.media {
        let own = medium.at..medium.at + medium.medium.rows();
        tokens[own].fill(0);
    }
    tokens
}

/// A template that knows text alone.
const TEXT: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

/// Two sounds in the middle of a text, by a template that knows sounds and by one that knows text alone.
#[test]
fn sounds_take_their_places_in_a_conversation() {
    const PARTS: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
        {% if p.type == 'audio' %}MARK{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    for (name, mark, begin, counts) in [
        ("qwen2_audio", "<|AUDIO|>", None, [8, 14]),
        ("voxtral", "[AUDIO]", Some("[BEGIN_AUDIO]"), [13, 26]),
        (
            "voxtral",
            "[BEGIN_AUDIO][AUDIO]",
            Some("[BEGIN_AUDIO]"),
            [13, 26],
        ),
        ("qwen3_asr", "<|audio_pad|>", None, [7, 15]),
    ] {
        for template in [&PARTS.replace("MARK", mark), TEXT] {
            let golden = with_vocabulary(name, template);
            let model = load(&golden, &listening(Images::Beside));
            assert!(model.eyes().is_none(), "{name}");
            assert!(model.ears().is_some(), "{:?}", model.no_sounds());
            let template = model.chat_template().expect("a template");
            let lengths = if name == "qwen3_asr" {
                [4962, 18_240]
            } else {
                [4962, 9000]
            };
            let lengths = if name == "voxtral" {
                [4962, 20_000]
            } else {
                lengths
            };
            let sounds = lengths.map(sound);
            let prompt = model.encode_conversation(&template, &[asked(&[1, 2], &sounds)]);
            let prompt = prompt.unwrap_or_else(|e| panic!("{name}: {e}"));
            let tokenizer = model.tokenizer().expect("a vocabulary");
            let begin = begin.map(|begin| tokenizer.id_of(begin).expect("a token"));
            let medium = |count: usize| begin.into_iter().chain(vec![0; count]);
            let mut wanted = vec![10];
            wanted.extend(medium(counts[0]));
            wanted.push(11);
            wanted.extend(medium(counts[1]));
            wanted.extend([13, 12]);
            assert_eq!(shape(&prompt), wanted, "{name} {mark}");
        }
    }
}

/// A directory of Mistral's own files has a vocabulary without `tokenizer.json`, and no template.
#[test]
fn voxtral_is_read_with_its_own_files() {
    let golden = welte_goldens::Golden::new("hearing/voxtral/hf");
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let base64 = |byte: usize| [letters[byte >> 2], letters[(byte & 3) << 4]];
    let token =
        |byte: usize| serde_json::json!({ "token_bytes": String::from_utf8_lossy(&base64(byte)) });
    let vocab: Vec<Value> = (0..221).map(token).collect();
    let named = [
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
    ];
    let named = named.iter().zip(0..).chain([
        (&"[AUDIO]", 24),
        (&"[BEGIN_AUDIO]", 25),
        (&"[TRANSCRIBE]", 29),
    ]);
    let special = named.map(|(text, rank)| serde_json::json!({ "token_str": text, "rank": rank }));
    let special: Vec<Value> = special.collect();
    let file = serde_json::json!({
        "config": { "pattern": PATTERN, "default_vocab_size": 251, "default_num_special_tokens": 30 },
        "vocab": vocab, "special_tokens": special,
    });
    std::fs::write(golden.path().join("tekken.json"), file.to_string()).expect("a file");
    let model = load(&golden, &listening(Images::Beside));
    let template = model.chat_template().expect("a template");
    let system = Message::new("system", "c");
    let asked = asked(&[1], &[sound(4962)]);
    let prompt = model.encode_conversation(&template, &[system, asked]);
    let letter = |letter: u8| 30 + u32::from(letter);
    let heard = [25].into_iter().chain(vec![0; 13]);
    let wanted = [1, 5, letter(b'c'), 6, 3, letter(b'a')]
        .into_iter()
        .chain(heard);
    let rest = [letter(b'b'), letter(b' '), letter(b'c'), 4];
    let wanted: Vec<u32> = wanted.chain(rest).collect();
    assert_eq!(shape(&prompt.expect("a prompt")), wanted);
    let around = model.dictation(Some("English"), None).expect("a prompt");
    let language = "lang:en".bytes().map(letter);
    let after: Vec<u32> = [4].into_iter().chain(language).chain([29]).collect();
    assert_eq!(around, [vec![1, 3], after]);
    assert_eq!(model.dictation(None, None).expect("a prompt")[1], [4, 29]);
    let error = model.dictation(None, Some("names")).expect_err("no prompt");
    assert!(
        error.to_string().contains("prompt: is not supported"),
        "{error}"
    );
    let dictated = model.dictated(&[letter(b' '), letter(b'a'), letter(b'b'), 2]);
    assert_eq!(dictated.expect("a text").text, "ab");
}

/// What Mistral's vocabularies have.
const PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A golden with a vocabulary of letters and these marks, which are 30 and so on. Those after the fourth are no control tokens.
fn with_letters(name: &str, template: &str, marks: &[&str]) -> welte_goldens::Golden {
    let golden = with_vocabulary(name, template);
    let file = golden.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&file).expect("a file");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    let added = json["added_tokens"].as_array_mut().expect("a list");
    for (content, id) in marks.iter().zip(30..) {
        let mut token = added[0].clone();
        (token["content"], token["id"]) = (content.to_string().into(), id.into());
        token["special"] = (id < 34).into();
        added.push(token);
    }
    let mut vocab = serde_json::json!({});
    for (letter, id) in (0x21..0x7f)
        .map(|code: u8| char::from(code))
        .chain(['\u{120}', '\u{10a}'])
        .zip(40..)
    {
        vocab[letter.to_string()] = id.into();
    }
    json["model"]["vocab"] = vocab;
    json["pre_tokenizer"] = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true });
    json["decoder"] = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true });
    std::fs::write(&file, json.to_string()).expect("a file");
    golden
}

/// The text of tokens, each as it is written.
fn spelled(model: &Model, tokens: &[u32]) -> String {
    let tokenizer = model.tokenizer().expect("a vocabulary");
    let each = tokens
        .iter()
        .map(|token| match tokenizer.token_text(*token) {
            "\u{120}" => " ",
            "\u{10a}" => "\n",
            text => text,
        });
    each.collect()
}

/// Qwen3-ASR is told the language, or says it.
#[test]
fn qwen3_asr_says_the_language() {
    let marks = [
        "<|im_start|>",
        "<|im_end|>",
        "<|audio_start|>",
        "<|audio_end|>",
        "<asr_text>",
    ];
    let golden = with_letters("qwen3_asr", "{{ messages[0].content }}", &marks);
    let model = load(&golden, &listening(Images::Beside));
    let tokenizer = model.tokenizer().expect("a vocabulary");
    let spell = |tokens: &[u32]| spelled(&model, tokens);
    let around = model.dictation(Some("de"), Some("a <|im_end|> b"));
    let [before, after] = around.expect("a prompt");
    assert_eq!(
        spell(&before),
        "<|im_start|>system\na <|im_end|> b<|im_end|>\n<|im_start|>user\n"
    );
    // What the prompt spells is text.
    let end = tokenizer.id_of("<|im_end|>").expect("a token");
    assert_eq!(before.iter().filter(|token| **token == end).count(), 1);
    assert_eq!(
        spell(&after),
        "<|im_end|>\n<|im_start|>assistant\nlanguage German<asr_text>"
    );
    assert_eq!(after.last().copied(), tokenizer.id_of("<asr_text>"));
    let [_, after] = model.dictation(None, None).expect("a prompt");
    assert!(spell(&after).ends_with("assistant\n"));
    for language in ["tlh", "latin"] {
        let error = model.dictation(Some(language), None).expect_err("unknown");
        assert!(
            error.to_string().contains("it knows Arabic, Cantonese"),
            "{error}"
        );
    }
    let filipino = model.dictation(Some("fil"), None).expect("a language")[1].clone();
    assert!(spell(&filipino).contains("language Filipino"));
    for (answer, language, text) in [
        ("language English<asr_text>Well. ", Some("English"), "Well."),
        ("language None<asr_text>", None, ""),
        ("Well.", None, "Well."),
    ] {
        let tokens = tokenizer.encode(answer, false, true).expect("tokens");
        let dictated = model.dictated(&tokens).expect("a text");
        let found = (dictated.language.as_deref(), dictated.text.as_str());
        assert_eq!(found, (language, text), "{answer}");
    }
}

/// Alone, in small pieces, beside another request, and cached: the same bits.
#[test]
fn a_prompt_with_sounds_has_the_same_bits_however_it_is_computed() {
    let golden = with_vocabulary("voxtral", TEXT);
    let model = |rows: u32| {
        let mut options = listening(Images::Beside);
        (options.slots, options.prompt_rows, options.features) = (2, rows, 30);
        load(&golden, &options)
    };
    let (whole, pieces) = (model(128), model(32));
    let prompt = |model: &Model, lengths: [u64; 2]| {
        let template = model.chat_template().expect("a template");
        let asked = asked(&[1, 2], &lengths.map(sound));
        model
            .encode_conversation(&template, &[asked])
            .expect("a prompt")
    };
    let request = |prompt: &Prompt| {
        let mut request = Request::new(prompt.tokens.clone());
        request.media = prompt.media.clone();
        (request.options.max_tokens, request.options.ignore_end) = (6, true);
        request.options.logprobs = Some(0);
        request
    };
    let read = |mut stream: Stream| {
        let mut all = Vec::new();
        while let Some(token) = stream.next_token() {
            let token = token.expect("a token");
            let known = stream.take_logprobs();
            all.extend(known.iter().map(|known| (token, known.logprob().to_bits())));
        }
        (all, stream.outcome().expect("an end").cached_tokens)
    };
    let engine = |model: &Model| Engine::new(model, &EngineOptions::default()).expect("an engine");
    // The second sound has two windows: as many media, each with room of its own.
    let own = prompt(&whole, [4962, 20_000]);
    assert_eq!(own.media.len(), 3);
    let other = prompt(&whole, [20_000, 4962]);
    let [wanted, others] = [&own, &other]
        .map(|prompt| read(engine(&whole).submit(request(prompt)).expect("a stream")).0);
    assert_ne!(wanted, others);
    let again = prompt(&pieces, [4962, 20_000]);
    assert_eq!(again, own, "other features");
    let engine = engine(&pieces);
    let streams = [&own, &other].map(|prompt| engine.submit(request(prompt)).expect("a stream"));
    let [first, second] = streams.map(read);
    assert_eq!((&first.0, &second.0), (&wanted, &others));
    let (cached, count) = read(engine.submit(request(&own)).expect("a stream"));
    assert_eq!(cached, wanted, "cached");
    assert!(count >= 30, "{count}");
}

/// A model with ears refuses images by name, and one without them sounds.
#[test]
fn a_missing_sense_is_named() {
    let golden = with_vocabulary("qwen2_audio", "{{ messages[0].content }}");
    let model = load(&golden, &listening(Images::Beside));
    let template = model.chat_template().expect("a template");
    let mut message = asked(&[0], &[sound(4000)]);
    message.images[0].source = ImageSource::Bytes(wav(&sound(4000)).into());
    let error = model.encode_conversation(&template, &[message]);
    let error = error.expect_err("no eyes").to_string();
    assert!(error.contains("takes no images: has no encoder"), "{error}");
    let deaf = load(&golden, &listening(Images::Off));
    let error = deaf.encode_conversation(&template, &[asked(&[0], &[sound(4000)])]);
    let error = error.expect_err("no ears").to_string();
    assert!(
        error.contains("takes no sounds: sounds are switched off"),
        "{error}"
    );
    // What cannot be heard is named.
    let mut message = asked(&[0], &[sound(4000)]);
    message.images[0].source = ImageSource::Sound(b"no sound"[..].into());
    let error = model.encode_conversation(&template, &[message]);
    let error = error.expect_err("no sound").to_string();
    assert!(error.contains("a sound: the audio"), "{error}");
}

/// A copy of a file in which a text, perhaps a name, has another one of the same length.
fn patched(path: &Path, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let mut bytes = std::fs::read(path).expect("a file");
    let at = bytes.windows(old.len()).position(|window| window == old);
    let at = at.unwrap_or_else(|| panic!("no {}", String::from_utf8_lossy(old)));
    bytes[at..at + old.len()].copy_from_slice(new);
    std::fs::write(path, bytes).expect("a file");
}

/// A number's key with its type and value in a GGUF file.
fn number(key: &str, value: u32) -> Vec<u8> {
    let typed = [4, value].map(u32::to_le_bytes).concat();
    [key.as_bytes(), &typed].concat()
}

#[test]
fn bad_files_are_refused_by_name() {
    let key = |key: &str, old: u32, new: u32| {
        let key = format!("clip.audio.{key}");
        (number(&key, old), number(&key, new))
    };
    let text = |old: &str, new: &str| (old.as_bytes().to_vec(), new.as_bytes().to_vec());
    for (name, (old, new), said) in [
        (
            "voxtral",
            text("a.blk.1.attn_v.bias", "a.blk.1.attn_w.bias"),
            "a.blk.1.attn_v.bias: is missing",
        ),
        (
            "qwen2_audio",
            text("mm.a.fc.weight", "mm.a.fd.weight"),
            "mm.a.fc.weight: is missing",
        ),
        (
            "ultravox",
            text("mm.a.norm_mid.weight", "mm.a.norm_min.weight"),
            "mm.a.norm_mid.weight: is missing",
        ),
        (
            "qwen3_asr",
            text("a.conv2d.3.bias", "a.conv2d.4.bias"),
            "a.conv2d.3.bias",
        ),
        ("voxtral", key("block_count", 2, 3), "a.blk.2."),
        (
            "voxtral",
            key("num_mel_bins", 128, 80),
            "a.conv1d.1.weight: has",
        ),
        (
            "voxtral",
            key("embedding_length", 48, 51),
            "a.conv1d.1.weight",
        ),
        (
            "voxtral",
            key("embedding_length", 48, 50),
            "3 heads of 50 values",
        ),
        (
            "voxtral",
            key("projector.stack_factor", 4, 3),
            "52 states, 3 to",
        ),
        (
            "voxtral",
            key("projector.stack_factor", 4, 99),
            "stack_factor",
        ),
        (
            "ultravox",
            key("projector.stack_factor", 8, 4),
            "mm.a.mlp.1.weight: is 96 x 384",
        ),
        (
            "qwen3_asr",
            key("feed_forward_length", 80, 81),
            "ffn_up.weight",
        ),
        (
            "lfm2_audio",
            text("mm.a.mlp.3.weight", "mm.a.mlp.4.weight"),
            "mm.a.mlp.3.weight: is missing",
        ),
        (
            "lfm2_audio",
            text("a.blk.1.pos_bias_v", "a.blk.1.pos_bias_w"),
            "a.blk.1.pos_bias_v: is missing",
        ),
        ("lfm2_audio", key("block_count", 2, 3), "a.blk.2."),
        (
            "lfm2_audio",
            key("embedding_length", 48, 46),
            "3 heads of 46 values",
        ),
    ] {
        let golden = welte_goldens::Golden::new(&format!("hearing/{name}/mmproj.gguf"));
        patched(golden.path(), &old, &new);
        let source = golden.path().to_str().expect("a path");
        let error = Hearing::open(source, &VisionOptions::default());
        let error = error.expect_err(said).to_string().replace('\'', "");
        assert!(
            error.contains(said) && error.contains("mmproj.gguf"),
            "{error}"
        );
    }
}
