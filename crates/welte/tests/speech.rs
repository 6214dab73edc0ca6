//! Models of speech against transformers (`tools/goldens/speech.py`), on the reference and on the CPU; on GPUs with
//! `--include-ignored`.

use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use welte::{DeviceChoice, Speech, SpeechOptions, Task, TranscribeOptions};
use welte_audio::{Audio, Mel, RATE};

/// A device, and the furthest that a state, and a logit, may be off, as a part of their spread.
type Tolerance = (&'static str, f32, f32);

/// Keys and values are in F16, and the CPU rounds activations that are multiplied with F16.
const TOLERANCES: [Tolerance; 2] = [("reference", 3e-4, 4e-3), ("cpu", 1e-2, 3e-2)];
const GPUS: [Tolerance; 2] = [("cuda", 5e-2, 1e-1), ("gpu", 1e-2, 3e-2)];

fn floats(name: &str) -> Vec<f32> {
    let path = welte_goldens::folder().join("speech").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// Tones that rise and fall over noise, as the script makes them.
fn sound(count: usize) -> Vec<f32> {
    let sample = |n: usize| {
        let hash = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let noise = hash as f64 / f64::from(1 << 24) - 0.5;
        let t = n as f64 / f64::from(RATE);
        let turn = 2.0 * std::f64::consts::PI;
        let tones = (turn * (200.0 * t + 300.0 * t * t)).sin() * 0.4
            + (turn * 1700.0 * t).sin() * 0.2 * (turn * 3.0 * t).sin();
        (tones + 0.02 * noise) as f32
    };
    (0..count).map(sample).collect()
}

fn models() -> Vec<Value> {
    let text = std::fs::read_to_string(welte_goldens::folder().join("speech.json"));
    serde_json::from_str(&text.expect("a list")).expect("JSON")
}

fn open(path: &Path, device: &str) -> Speech {
    let mut options = SpeechOptions::default();
    options.device = device.parse::<DeviceChoice>().expect("a device");
    options.texts = 3;
    Speech::open(path.to_str().expect("a path"), &options).expect("a model of speech")
}

fn tokens(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list").iter();
    list.map(|token| token.as_u64().expect("a token") as u32)
        .collect()
}

/// The furthest that a value is off, as a part of the spread of those that are wanted.
fn off(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let count = want.len() as f32;
    let mean = want.iter().sum::<f32>() / count;
    let spread = (want.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count).sqrt();
    let each = got.iter().zip(want).map(|(a, b)| (a - b).abs() / spread);
    each.fold(0.0, |most, off| {
        if off.is_nan() {
            f32::INFINITY
        } else {
            most.max(off)
        }
    })
}

fn check(devices: &[Tolerance]) {
    for entry in models() {
        let name = entry["name"].as_str().expect("a name");
        let golden = welte_goldens::Golden::new(entry["path"].as_str().expect("a path"));
        let mel = Mel::new(entry["mels"].as_u64().expect("a number") as usize);
        let frames = mel.spectrogram(&sound(RATE as usize)).values;
        let (states, logits) = (
            floats(&format!("{name}.states.f32")),
            floats(&format!("{name}.logits.f32")),
        );
        let forced = tokens(&entry["forced"]);
        for (device, most_state, most_logit) in devices {
            let speech = open(golden.path(), device);
            let states_off = off(&speech.states(&frames).expect("states"), &states);
            let found = speech.logits(&frames, &forced).expect("logits");
            let logits_off = off(&found, &logits);
            let vocab = speech.spec().vocab as usize;
            let last = speech.prompt_logits(&frames, &forced).expect("logits");
            let prompt_off = off(&last, &logits[logits.len() - vocab..]);
            eprintln!(
                "{name} on {device}: states {states_off:.1e}, logits {logits_off:.1e}, after a prompt {prompt_off:.1e}"
            );
            assert!(
                states_off <= *most_state,
                "{name} on {device}: {states_off}"
            );
            assert!(
                logits_off.max(prompt_off) <= *most_logit,
                "{name} on {device}: {logits_off} {prompt_off}"
            );
            texts(name, device, &speech, &entry);
        }
    }
}

/// The tokens that transformers generates greedily, with timestamps and without.
fn texts(name: &str, device: &str, speech: &Speech, entry: &Value) {
    let audio = Audio {
        samples: sound(RATE as usize),
        rate: RATE,
        channels: 1,
    };
    for (key, timestamps) in [("timestamps", true), ("plain", false)] {
        let mut options = TranscribeOptions::default();
        options.language = Some("de".to_string());
        options.timestamps = timestamps;
        options.temperatures = vec![0.0];
        (options.no_speech_threshold, options.logprob_threshold) = (None, None);
        options.compression_ratio_threshold = None;
        let draft = speech.first_window(&audio, &options).expect("a text");
        let want = tokens(&entry[key]);
        assert!(want.len() > 5);
        assert_eq!(draft[..want.len()], want, "{name} on {device}, {key}");
    }
    let mut options = TranscribeOptions::default();
    options.temperatures = vec![0.0];
    let mut detected = None;
    let done = speech.transcribe(&audio, &options, &mut |update| {
        if let welte::Update::Language(code, probability) = update {
            detected = Some((code.to_string(), probability));
        }
        ControlFlow::Break(())
    });
    done.expect("a transcript");
    let german = entry["german"].as_f64().expect("a number") as f32;
    let (code, probability) = detected.expect("a language");
    assert_eq!(code, if german > 0.5 { "de" } else { "en" });
    assert!(
        (probability - german.max(1.0 - german)).abs() < 0.02,
        "{probability} {german}"
    );
}

#[test]
fn states_logits_and_texts_agree_with_transformers() {
    check(&TOLERANCES);
}

#[test]
#[ignore = "needs a GPU"]
fn states_logits_and_texts_agree_on_gpus() {
    let known: Vec<String> = welte::devices()
        .iter()
        .map(|device| device.id.kind.to_string())
        .collect();
    let there = GPUS
        .into_iter()
        .filter(|(device, ..)| known.iter().any(|known| known == device));
    check(&there.collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_done_is_refused() {
    let entry = &models()[0];
    let golden = welte_goldens::Golden::new(entry["path"].as_str().expect("a path"));
    let speech = open(golden.path(), "reference");
    let audio = Audio {
        samples: sound(RATE as usize / 10),
        rate: RATE,
        channels: 1,
    };
    let fails = |change: fn(&mut TranscribeOptions)| {
        let mut options = TranscribeOptions::default();
        change(&mut options);
        let done = speech.transcribe(&audio, &options, &mut |_| ControlFlow::Continue(()));
        done.expect_err("an error").to_string()
    };
    let message = fails(|options| options.language = Some("klingon".to_string()));
    assert!(
        message.contains("klingon") && message.contains("en, de"),
        "{message}"
    );
    assert!(fails(|options| options.temperatures = Vec::new()).contains("temperature"));
    assert!(fails(|options| options.temperatures = vec![f32::NAN]).contains("temperature"));
    // Silence has no text, however long it is.
    let silence = Audio {
        samples: vec![0.0; 3600 * RATE as usize],
        ..audio
    };
    let mut options = TranscribeOptions::default();
    options.task = Task::Translate;
    let done = speech.transcribe(&silence, &options, &mut |_| ControlFlow::Continue(()));
    let transcript = done.expect("an empty transcript");
    assert!(transcript.segments.is_empty() && transcript.seconds == 3600.0);
    let nothing = speech.read(Vec::new()).expect_err("an error").to_string();
    assert_eq!(nothing, "the audio is empty");
}
