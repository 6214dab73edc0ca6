//! Speech over HTTP, with a model of random weights: forms, formats, events, and what is refused.

mod common;

use axum::Router;
use common::sound::{form, wav};
use common::{get, model};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use welte::{Speech, SpeechOptions};
use welte_server::{ServerOptions, SpeechService, router};

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";

fn server(change: impl FnOnce(&mut ServerOptions)) -> Router {
    let golden = welte_goldens::Golden::new("speech/f32");
    let mut place = SpeechOptions::default();
    place.device = "cpu".parse().unwrap();
    place.threads = Some(1);
    place.texts = 2;
    let speech = Speech::open(golden.path().to_str().unwrap(), &place).unwrap();
    let mut options = ServerOptions::default();
    options.speech = Some(SpeechService {
        name: "tiny".to_string(),
        model: Arc::new(speech),
    });
    change(&mut options);
    router(model(), options).unwrap()
}

#[tokio::test]
async fn every_format_has_the_same_text() {
    let server = server(|_| ());
    let sound = wav(8_000, 2, 1.0);
    let ask = async |format| {
        let fields = [
            ("model", "tiny"),
            ("response_format", format),
            ("language", "en"),
        ];
        let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply
    };
    let json = ask("json").await.json();
    let text = json["text"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!(ask("text").await.text.trim_end(), text);
    let verbose = ask("verbose_json").await.json();
    assert_eq!(verbose["text"], text);
    assert_eq!(verbose["language"], "english");
    assert_eq!(verbose["duration"], 1.0);
    assert_eq!(verbose["task"], "transcribe");
    let first = &verbose["segments"][0];
    assert!(first["tokens"].as_array().unwrap().len() > 2);
    assert!(verbose.get("words").is_none());
    let srt = ask("srt").await;
    assert!(srt.text.starts_with("1\n00:00:0"), "{}", srt.text);
    assert!(srt.text.contains(first["text"].as_str().unwrap().trim()));
    let vtt = ask("vtt").await;
    assert!(vtt.text.starts_with("WEBVTT\n\n00:00:0"), "{}", vtt.text);
    assert!(
        vtt.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/vtt")
    );
}

#[tokio::test]
async fn words_have_times_and_events_add_up() {
    let server = server(|_| ());
    let sound = wav(16_000, 1, 1.5);
    let fields = [
        ("model", "whisper-1"),
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
        ("language", "English"),
        ("temperature", "0"),
    ];
    let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields)
        .await
        .json();
    assert!(reply.get("segments").is_none());
    let words = reply["words"].as_array().unwrap();
    let time = |word: &Value, key: &str| word[key].as_f64().unwrap();
    assert!(!words.is_empty());
    for word in words {
        assert!(
            time(word, "start") <= time(word, "end") && time(word, "end") <= 2.0,
            "{word}"
        );
    }
    let fields = [("model", "tiny"), ("language", "en"), ("stream", "true")];
    let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
    assert!(
        reply.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/event-stream")
    );
    let events = reply
        .text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    let events: Vec<Value> = events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let (last, deltas) = events.split_last().unwrap();
    assert_eq!(last["type"], "transcript.text.done");
    let text: String = deltas
        .iter()
        .map(|event| {
            assert_eq!(event["type"], "transcript.text.delta");
            event["delta"].as_str().unwrap()
        })
        .collect();
    assert_eq!(last["text"], text.trim_end());
    let reply = form(
        &server,
        TRANSLATIONS,
        Some(&sound),
        &[("response_format", "verbose_json")],
    )
    .await;
    assert_eq!(reply.json()["task"], "translate");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused() {
    let server = server(|_| ());
    let sound = wav(16_000, 1, 0.5);
    let good: &[u8] = &sound;
    let many = wav(16_000, 40, 0.01);
    let mut hostile = wav(16_000, 1, 0.01);
    // A promise of 4 GB, and a rate of 0.
    hostile[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    hostile[24..28].copy_from_slice(&0u32.to_le_bytes());
    for (file, fields, word) in [
        (None, &[][..], "file"),
        (Some(&b""[..]), &[], "empty"),
        (
            Some(&b"no sound at all, but some text"[..]),
            &[],
            "no supported kind",
        ),
        (Some(&good[..30]), &[], "audio"),
        (Some(&many), &[], "channel"),
        (Some(&hostile), &[], "audio"),
        (Some(good), &[("temperature", "warm")], "temperature"),
        (Some(good), &[("temperature", "1.5")], "temperature"),
        (Some(good), &[("language", "klingon")], "klingon"),
        (Some(good), &[("response_format", "docx")], "verbose_json"),
        (
            Some(good),
            &[
                ("timestamp_granularities[]", "letter"),
                ("response_format", "verbose_json"),
            ],
            "word",
        ),
        (
            Some(good),
            &[("timestamp_granularities[]", "word")],
            "verbose_json",
        ),
        (Some(good), &[("stream", "maybe")], "stream"),
        (
            Some(good),
            &[("stream", "true"), ("response_format", "srt")],
            "stream",
        ),
        (Some(good), &[("include[]", "usage")], "include"),
        (
            Some(good),
            &[("include[]", "logprobs"), ("response_format", "text")],
            "include",
        ),
        (Some(good), &[("chunking_strategy", "server_vad")], "auto"),
        (Some(good), &[("known_speaker_names[]", "Ann")], "speaker"),
        (Some(good), &[("prompt", "a"), ("prompt", "b")], "twice"),
    ] {
        let reply = form(&server, TRANSCRIPTIONS, file, fields).await;
        assert_eq!(reply.status, 400, "{fields:?}: {}", reply.text);
        let message = reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_string();
        assert!(message.contains(word), "{fields:?}: {message}");
    }
    let reply = form(&server, TRANSCRIPTIONS, Some(good), &[("model", "other")]).await;
    assert_eq!(reply.status, 404);
    assert!(reply.text.contains("tiny"), "{}", reply.text);
    let reply = common::post(&server, TRANSCRIPTIONS, serde_json::json!({"file": "x"})).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text.contains("multipart/form-data"), "{}", reply.text);
    let none = router(model(), ServerOptions::default()).unwrap();
    let reply = form(&none, TRANSCRIPTIONS, Some(good), &[]).await;
    assert_eq!(reply.status, 404);
    assert!(reply.text.contains("--speech"), "{}", reply.text);
}

#[tokio::test]
async fn the_model_is_listed_and_unknown_fields_are_named() {
    let server = server(|_| ());
    let models = get(&server, "/v1/models").await.json();
    let ids = models["data"].as_array().unwrap().iter();
    assert!(ids.map(|model| &model["id"]).any(|id| id == "tiny"));
    assert_eq!(get(&server, "/v1/models/tiny").await.json()["id"], "tiny");
    let sound = wav(16_000, 1, 0.5);
    let fields = [("language", "de"), ("colour", "red")];
    let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.headers["x-welte-ignored"], "colour");
    // Silence has no text.
    let mut silence = wav(16_000, 1, 2.0);
    silence[44..].fill(0);
    let reply = form(&server, TRANSCRIPTIONS, Some(&silence), &[]).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.json()["text"], "");
}

#[tokio::test]
async fn probabilities_belong_to_the_text() {
    let server = server(|_| ());
    let sound = wav(192_000, 8, 0.5);
    let ask = async |more: &[(&str, &str)]| {
        let mut fields = vec![("language", "en"), ("include[]", "logprobs")];
        fields.extend_from_slice(more);
        let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply
    };
    let reply = ask(&[]).await.json();
    let logprobs = reply["logprobs"].as_array().unwrap();
    let bytes = |one: &Value| -> Vec<u8> { serde_json::from_value(one["bytes"].clone()).unwrap() };
    let spelled: Vec<u8> = logprobs.iter().flat_map(bytes).collect();
    let text = String::from_utf8_lossy(&spelled);
    assert_eq!(reply["text"].as_str().unwrap(), text.trim());
    assert!(
        logprobs
            .iter()
            .all(|one| one["logprob"].as_f64().unwrap() <= 0.0)
    );
    let events = ask(&[("stream", "true")]).await.text;
    let last = events.trim_end().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["logprobs"], reply["logprobs"]);
}

#[tokio::test]
async fn long_files_end_in_time_and_hold_up_nobody() {
    let long = wav(8_000, 1, 60.0);
    let short = wav(8_000, 1, 1.0);
    let hasty = server(|options| options.timeout = Some(Duration::from_millis(1)));
    let reply = form(&hasty, TRANSCRIPTIONS, Some(&long), &[]).await;
    assert_eq!(reply.status, 503, "{}", reply.text);
    let reply = form(&hasty, TRANSCRIPTIONS, Some(&long), &[("stream", "true")]).await;
    assert!(reply.text.contains("takes too long"), "{}", reply.text);

    // A client who leaves ends the work: more of them come than there are places.
    let server = server(|options| options.timeout = None);
    for _ in 0..6 {
        let asked = form(&server, TRANSCRIPTIONS, Some(&long), &[]);
        let gone = tokio::time::timeout(Duration::from_millis(20), asked).await;
        assert!(gone.is_err());
    }
    let alone = form(&server, TRANSCRIPTIONS, Some(&short), &[]).await;
    assert_eq!(alone.status, 200, "{}", alone.text);
    // Windows of one request do not change the text of another.
    let fields = [("chunking_strategy", "auto")];
    let (many, first, second) = tokio::join!(
        form(&server, TRANSCRIPTIONS, Some(&long[..160_044]), &fields),
        form(&server, TRANSCRIPTIONS, Some(&short), &[]),
        form(&server, TRANSCRIPTIONS, Some(&short), &[]),
    );
    assert_eq!(many.status, 200, "{}", many.text);
    assert_eq!([&first.text, &second.text], [&alone.text; 2]);

    // Memory for bodies bounds sound, too, which takes more than its file.
    let small = self::server(|options| options.bodies_memory = 1 << 20);
    let reply = form(&small, TRANSCRIPTIONS, Some(&long), &[]).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(reply.text.contains("seconds"), "{}", reply.text);
}
