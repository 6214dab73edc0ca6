//! Models of speech against transformers (`tools/goldens/speech.py`), on the reference and on the CPU; on GPUs with
//! `--include-ignored`.

use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use welte::{DeviceChoice, Segment, Speech, SpeechOptions, Task, TranscribeOptions, Update};
use welte_audio::{Audio, Mel, RATE};

/// A device, and the furthest that a state, and a logit, may be off, as a part of their spread.
type Tolerance = (&'static str, f32, f32);

/// Keys and values are in F16, and the CPU rounds activations that are multiplied with F16.
const TOLERANCES: [Tolerance; 2] = [("reference", 3e-4, 4e-3), ("cpu", 1e-2, 3e-2)];
const CUDA: Tolerance = ("cuda", 5e-2, 1e-1);
const GPU: Tolerance = ("gpu", 1e-2, 3e-2);

/// Tokens of the models.
const NO_SPEECH: u32 = 264;
const FIRST_TIME: u32 = 266;

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
        let frames = mel.spectrogram(&sound(RATE as usize), 0).values;
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
            let looks = floats(&format!("{name}.looks.f32"));
            let looks_off = off(&speech.looks(&frames, &forced).expect("weights"), &looks);
            assert!(
                looks_off <= 2.0 * most_logit,
                "{name} on {device}: {looks_off}"
            );
            texts(name, device, &speech, &entry);
            // How likely silence is follows from the logits after the first token.
            let audio = Audio {
                samples: sound(RATE as usize),
                rate: RATE,
                channels: 1,
            };
            let exps: Vec<f32> = logits[..vocab].iter().map(|v| v.exp()).collect();
            let silent = exps[NO_SPEECH as usize] / exps.iter().sum::<f32>();
            let found = transcribe(&speech, &audio, &greedy())[0].no_speech_prob;
            assert!((found / silent - 1.0).abs() < 0.1, "{found} {silent}");
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
        if let Update::Language(code, probability) = update {
            detected = Some((code.to_string(), probability));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
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
fn cuda_agrees_with_transformers() {
    check(&[CUDA]);
}

#[test]
#[ignore = "needs a GPU, or its driver in software"]
fn a_portable_gpu_agrees_with_transformers() {
    check(&[GPU]);
}

/// The first model, and some seconds of sound for it. Its windows have one second.
fn first_model(texts: u32, seconds: usize) -> (Speech, Audio) {
    let golden = welte_goldens::Golden::new(models()[0]["path"].as_str().expect("a path"));
    let mut options = SpeechOptions::default();
    options.device = "cpu".parse::<DeviceChoice>().expect("a device");
    options.threads = Some(1);
    (options.texts, options.windows) = (texts, texts);
    let speech = Speech::open(golden.path().to_str().expect("a path"), &options);
    let samples = sound(seconds * RATE as usize);
    let audio = Audio {
        samples,
        rate: RATE,
        channels: 1,
    };
    (speech.expect("a model of speech"), audio)
}

/// Texts of a model with random weights are never good.
fn greedy() -> TranscribeOptions {
    let mut options = TranscribeOptions::default();
    options.language = Some("de".to_string());
    options.temperatures = vec![0.0];
    (options.no_speech_threshold, options.logprob_threshold) = (None, None);
    options.compression_ratio_threshold = None;
    options
}

fn transcribe(speech: &Speech, audio: &Audio, options: &TranscribeOptions) -> Vec<Segment> {
    let done = speech.transcribe(audio, options, &mut |_| ControlFlow::Continue(()));
    done.expect("a transcript").segments
}

#[test]
fn windows_take_turns_and_do_not_change_each_other() {
    let (speech, long) = first_model(2, 12);
    let short = Audio {
        samples: long.samples[3000..3000 + 2 * RATE as usize].to_vec(),
        ..long
    };
    let options = greedy();
    let alone = [&long, &short].map(|audio| transcribe(&speech, audio, &options));
    assert!(alone[0].len() > 4 && alone.iter().all(|segments| !segments.is_empty()));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut other = None;
        let see = &mut |_: Update<'_>| {
            other.get_or_insert_with(|| {
                scope.spawn(|| {
                    let segments = transcribe(&speech, &short, &options);
                    assert!(
                        !done.load(Ordering::Relaxed),
                        "it waited for the whole file"
                    );
                    assert_eq!(segments, alone[1]);
                })
            });
            ControlFlow::Continue(())
        };
        let segments = speech.transcribe(&long, &options, see).expect("a text");
        done.store(true, Ordering::Relaxed);
        assert_eq!(segments.segments, alone[0]);
        let other = other.expect("a thread").join();
        other.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn windows_that_are_written_together_have_the_texts_that_they_have_alone() {
    let (one, audio) = first_model(1, 7);
    let (three, _) = first_model(3, 0);
    let mut options = greedy();
    options.batch = true;
    options.word_timestamps = true;
    for temperatures in [vec![0.0], vec![0.0, 0.3]] {
        // With a second temperature no first text is good enough, and every window has one text in the end.
        if temperatures.len() > 1 {
            options.logprob_threshold = Some(0.0);
        }
        (options.temperatures, options.best_of) = (temperatures, 1);
        let alone = transcribe(&one, &audio, &options);
        let together = transcribe(&three, &audio, &options);
        let last = alone.last().expect("segments");
        assert!(last.seek > 500, "all windows are written");
        assert!(alone.iter().any(|segment| !segment.words.is_empty()));
        for segment in &alone {
            let window = segment.seek as f64 / 100.0;
            let within = |time: f64| (window - 1e-6..=window + 1.0 + 1e-6).contains(&time);
            let mut words = segment.words.iter();
            assert!(
                words.all(|word| within(word.start) && within(word.end)),
                "{segment:?}"
            );
        }
        let ids = |all: &[Segment]| all.iter().map(|s| (s.id, s.seek)).collect::<Vec<_>>();
        assert_eq!(ids(&together), ids(&alone));
        assert!(alone.is_sorted_by(|a, b| a.seek <= b.seek));
        if options.temperatures.len() == 1 {
            assert_eq!(together, alone);
        }
    }
}

#[test]
fn windows_begin_where_the_text_before_them_ends_and_know_it() {
    let (speech, audio) = first_model(1, 8);
    let options = greedy();
    let segments = transcribe(&speech, &audio, &options);
    let seconds = |token: u32| f64::from(token - FIRST_TIME) * 0.02;
    // Times count from the beginning of the sound, and a window has a second.
    for segment in &segments {
        let own = segment.start - segment.seek as f64 / 100.0;
        assert!((-1e-6..1.0).contains(&own), "{segment:?}");
    }
    assert!(segments.iter().any(|segment| segment.seek > 100));
    let mut cut_early = 0;
    for pair in segments.windows(2) {
        let [before, after] = pair else { continue };
        if after.seek == before.seek || after.seek == before.seek + 100 {
            continue;
        }
        cut_early += 1;
        let first = before.tokens[0];
        assert!((before.start - before.seek as f64 / 100.0 - seconds(first)).abs() < 1e-6);
        let last = *before.tokens.last().expect("tokens");
        let frames = (100.0 * seconds(last)).round() as usize;
        assert_eq!(after.seek, before.seek + frames);
        assert!((after.seek as f64 / 100.0 - before.end).abs() < 1e-6);
    }
    assert!(cut_early > 0);
    // What was written, a prompt and hot words are read before a text.
    let texts = |change: &dyn Fn(&mut TranscribeOptions)| {
        let mut options = greedy();
        change(&mut options);
        let all = transcribe(&speech, &audio, &options).into_iter();
        all.map(|segment| segment.text).collect::<Vec<_>>()
    };
    let plain = texts(&|_| ());
    let unaware = texts(&|o| o.condition_on_previous = false);
    assert!(plain[0] == unaware[0] && plain != unaware);
    assert_ne!(
        texts(&|o| o.prompt = Some("Hello".to_string()))[0],
        plain[0]
    );
    assert_ne!(
        texts(&|o| o.hotwords = Some("Hello".to_string()))[0],
        plain[0]
    );
}

#[test]
fn work_ends_when_it_is_not_wanted_any_more() {
    let (speech, audio) = first_model(1, 3);
    let options = greedy();
    let whole = transcribe(&speech, &audio, &options);
    let mut updates = 0;
    let mut count = |until: usize| {
        updates = 0;
        let done = speech.transcribe(&audio, &options, &mut |_| {
            updates += 1;
            if updates < until {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        (updates, done.expect("what there is").segments)
    };
    let (all, _) = count(usize::MAX);
    // In the first window's encoder, among its tokens, and later.
    for until in [1, 5, all / 2, all - 1] {
        let (seen, segments) = count(until);
        assert_eq!(seen, until);
        assert!(whole.starts_with(&segments) && segments.len() < whole.len() || until == all - 1);
    }
    assert_eq!(transcribe(&speech, &audio, &options), whole);
}

#[test]
fn texts_that_are_not_good_enough_are_written_again() {
    let (speech, audio) = first_model(2, 1);
    let written = |change: &dyn Fn(&mut TranscribeOptions)| {
        let mut options = greedy();
        options.temperatures = vec![0.0, 0.5, 1.0];
        change(&mut options);
        let segments = transcribe(&speech, &audio, &options);
        segments.first().map(|segment| segment.temperature)
    };
    let first = transcribe(&speech, &audio, &greedy()).remove(0);
    let (ratio, logprob, silent) = (
        first.compression_ratio,
        first.avg_logprob,
        first.no_speech_prob,
    );
    assert!(ratio > 0.0 && logprob < 0.0 && (1e-4..0.9).contains(&silent));
    assert_eq!(written(&|_| ()), Some(0.0));
    let near = 1e-3;
    assert_eq!(
        written(&|o| o.logprob_threshold = Some(logprob - near)),
        Some(0.0)
    );
    assert_ne!(
        written(&|o| o.logprob_threshold = Some(logprob + near)),
        Some(0.0)
    );
    // None of them is good enough, so the last temperature counts.
    assert_eq!(written(&|o| o.logprob_threshold = Some(0.0)), Some(1.0));
    assert_eq!(
        written(&|o| o.compression_ratio_threshold = Some(ratio + near)),
        Some(0.0)
    );
    assert_ne!(
        written(&|o| o.compression_ratio_threshold = Some(ratio - near)),
        Some(0.0)
    );
    // A silent window is not written again, and has no text; one with a likely text has.
    let quiet = |o: &mut TranscribeOptions, threshold: f32, least: f32| {
        (o.no_speech_threshold, o.logprob_threshold) = (Some(threshold), Some(least));
    };
    assert_eq!(written(&|o| quiet(o, silent - 1e-4, 0.0)), None);
    let steps = |temperatures: &[f32]| {
        let mut options = greedy();
        options.temperatures = temperatures.to_vec();
        quiet(&mut options, silent - 1e-4, 0.0);
        let mut steps = 0;
        let done = speech.transcribe(&audio, &options, &mut |_| {
            steps += 1;
            ControlFlow::Continue(())
        });
        assert!(done.expect("a transcript").segments.is_empty());
        steps
    };
    assert_eq!(steps(&[0.0, 0.5]), steps(&[0.0]));
    assert_eq!(written(&|o| quiet(o, silent + 1e-4, 0.0)), Some(1.0));
    assert_eq!(
        written(&|o| quiet(o, silent - 1e-4, logprob - near)),
        Some(0.0)
    );
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
    let nothing = speech
        .read(Vec::new(), 60)
        .expect_err("an error")
        .to_string();
    assert_eq!(nothing, "the audio is empty");
}
