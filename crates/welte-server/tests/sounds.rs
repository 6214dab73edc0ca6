//! Sounds in the requests of all APIs, with ears that read a sound's bytes as words: a feature for each.

mod common;

use axum::Router;
use common::scripted::{scripted_after, scripted_with};
use common::sound::{form, wav};
use common::{get, post, with};
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use welte::{Dictation, WordEncoder};
use welte_server::{ServerOptions, router};

/// "ID3 red fox", as base64: the beginning of a file of sound.
const FOX: &str = "SUQzIHJlZCBmb3g=";
/// Another one: "ID3 blue".
const BLUE: &str = "SUQzIGJsdWU=";
/// "a red fox": an image, where both are taken.
const PICTURE: &str = "YSByZWQgZm94";

/// What stands for a picture, and for a sound.
fn placeholder(what: &str) -> String {
    if what == "sounds" { "~" } else { "<|image|>" }.to_string()
}

/// A server whose model has these senses, and how many pictures and sounds they have encoded.
fn sensing(senses: &[&'static str]) -> (Router, Arc<AtomicUsize>) {
    let model = scripted_with("I hear it.", 64);
    let count = Arc::<AtomicUsize>::default();
    for what in senses {
        let encoder = WordEncoder {
            placeholder: placeholder(what),
            what,
            dictation: None,
            width: model.feature_width(),
            count: count.clone(),
        };
        model.set_sense(Box::new(encoder)).unwrap();
    }
    (router(model, ServerOptions::default()).unwrap(), count)
}

fn chat(content: Value) -> Value {
    json!({ "max_tokens": 4, "temperature": 0, "messages": [{ "role": "user", "content": content }] })
}

fn sound(data: &str) -> Value {
    json!({ "type": "input_audio", "input_audio": { "data": data, "format": "mp3" } })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

async fn counted(server: &Router, content: Value) -> u64 {
    let reply = post(server, "/v1/chat/completions", chat(content)).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["usage"]["prompt_tokens"].as_u64().unwrap()
}

/// A sound takes a row for each word between two marks, wherever it comes from. It is encoded once.
#[tokio::test]
async fn all_apis_take_sounds() {
    let (server, count) = sensing(&["sounds"]);
    let plain = counted(&server, json!("What?")).await;
    let own = counted(&server, json!([sound(FOX), text("What?")])).await;
    assert_eq!(own, plain + 5);
    let url = |url: Value| json!([{ "type": "audio_url", "audio_url": url }, text("What?")]);
    let address = format!("data:audio/mpeg;base64,{FOX}");
    assert_eq!(counted(&server, url(json!(address))).await, own);
    assert_eq!(counted(&server, url(json!({ "url": address }))).await, own);
    let whole = json!([sound(&address), text("What?")]);
    assert_eq!(counted(&server, whole).await, own);
    assert_eq!(count.load(SeqCst), 1);
    let two = json!([text("Wh"), sound(FOX), text("at"), sound(BLUE), text("?")]);
    assert_eq!(counted(&server, two).await, plain + 5 + 4);
    assert_eq!(count.load(SeqCst), 2);
    let input = json!([{ "role": "user", "content": [
        sound(FOX), { "type": "input_text", "text": "What?" },
    ] }]);
    let body = json!({ "input": input, "max_output_tokens": 4 });
    let reply = post(&server, "/v1/responses", body).await;
    assert_eq!(reply.json()["usage"]["input_tokens"], own, "{}", reply.text);
    // The stored conversation still has the sound.
    let id = reply.json()["id"].clone();
    let next = json!({ "previous_response_id": id, "input": "And?", "max_output_tokens": 4 });
    let reply = post(&server, "/v1/responses", next).await.json();
    assert!(
        reply["usage"]["input_tokens"].as_u64().unwrap() > own,
        "{reply}"
    );
    let completion = async |data: Value| {
        let prompt = json!({ "prompt_string": "<__media__>", "multimodal_data": data });
        let body = json!({ "prompt": prompt, "n_predict": 2 });
        post(&server, "/completion", body).await
    };
    for data in [FOX, &address] {
        let reply = completion(json!([data])).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.json()["tokens_evaluated"], 5, "{}", reply.text);
    }
    // Ollama's clients have one list for both.
    let message = json!({ "role": "user", "content": "What?", "images": [FOX] });
    let model = get(&server, "/v1/models").await.json()["data"][0]["id"].clone();
    let mut body = json!({ "model": model, "messages": [message], "stream": false });
    body["options"] = json!({ "num_predict": 4 });
    let reply = post(&server, "/api/chat", body).await;
    assert_eq!(reply.json()["prompt_eval_count"], own, "{}", reply.text);
    // What does not begin as a sound is an image.
    let reply = completion(json!([PICTURE])).await;
    assert!(reply.text.contains("takes no images"), "{}", reply.text);
    assert_eq!(count.load(SeqCst), 2);
}

/// Images and sounds of a message keep their order.
#[tokio::test]
async fn a_model_may_see_and_hear() {
    let (server, count) = sensing(&["images", "sounds"]);
    let plain = counted(&server, json!("What?")).await;
    let picture =
        json!({ "type": "image_url", "image_url": format!("data:image/png;base64,{PICTURE}") });
    // Each stands at a placeholder of its own kind, or the prompt is refused.
    let both = json!([picture, sound(BLUE), text("What?")]);
    assert_eq!(counted(&server, both).await, plain + 5 + 4);
    let swapped = json!([sound(BLUE), text("What?"), picture]);
    assert_eq!(counted(&server, swapped).await, plain + 5 + 4);
    assert_eq!(count.load(SeqCst), 2);
    let data = json!([BLUE, PICTURE]);
    let prompt = json!({ "prompt_string": "<__media__> and <__media__>", "multimodal_data": data });
    let body = json!({ "prompt": prompt, "n_predict": 2 });
    let reply = post(&server, "/completion", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(count.load(SeqCst), 2);
}

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";

/// A server whose language model answers "I hear it." to a sound, if it is asked for a transcript, and how many windows it has heard.
/// `ends`: bytes that end a prompt which it answers so.
fn dictating(dictation: Option<Dictation>, ends: &str) -> (Router, Arc<AtomicUsize>) {
    let model = scripted_after("I hear it.", 64, ends);
    let count = Arc::<AtomicUsize>::default();
    let encoder = WordEncoder {
        placeholder: placeholder("sounds"),
        what: "sounds",
        dictation,
        width: model.feature_width(),
        count: count.clone(),
    };
    model.set_sense(Box::new(encoder)).unwrap();
    let mut options = ServerOptions::default();
    // Transcripts are not cut by what other answers are.
    options.defaults.max_tokens = 1;
    options.defaults.stop = ["hear".to_string()].into();
    (router(model, options).unwrap(), count)
}

/// A recording with a tone in each of these spans of seconds, and silence between them.
fn tones(spans: &[Range<usize>], seconds: usize) -> Vec<u8> {
    let rate = 8_000;
    let mut bytes = wav(rate as u32, 1, seconds as f32);
    for second in (0..seconds).filter(|at| !spans.iter().any(|span| span.contains(at))) {
        bytes[44 + 2 * second * rate..44 + 2 * (second + 1) * rate].fill(0);
    }
    bytes
}

/// A language model that hears gives a transcript.
#[tokio::test]
async fn a_language_model_writes_down_speech() {
    let (server, count) = dictating(Some(Dictation::Qwen3Asr), "\n>");
    let sound = wav(8_000, 1, 2.0);
    let ask =
        async |fields: &[(&str, &str)]| form(&server, TRANSCRIPTIONS, Some(&sound), fields).await;
    let model = get(&server, "/v1/models").await.json()["data"][0]["id"].clone();
    for name in [model.as_str().unwrap(), "whisper-1"] {
        let fields = [
            ("model", name),
            ("language", "en"),
            ("prompt", "Fox"),
            ("temperature", "0"),
        ];
        let reply = ask(&fields).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.json(), json!({ "text": "I hear it." }));
    }
    let reply = ask(&[("response_format", "text")]).await;
    assert_eq!((reply.status.as_u16(), &*reply.text), (200, "I hear it.\n"));
    assert_eq!(count.load(SeqCst), 1);
    for (name, value, said) in [
        ("timestamp_granularities[]", "word", "times of words"),
        ("chunking_strategy", "manual", "must be auto"),
        ("prompt", &"long ".repeat(10_000), "available context size"),
        ("temperature", "2", "from 0 to 1"),
        ("language", "klingon", "it knows Arabic"),
        ("file", "twice", "one file"),
    ] {
        let reply = ask(&[(name, value)]).await;
        assert_eq!(reply.status, 400, "{name}: {}", reply.text);
        let field = name.trim_end_matches("[]");
        assert!(
            reply.text.contains(field) && reply.text.contains(said),
            "{name}: {}",
            reply.text
        );
        assert_eq!(reply.json()["error"]["param"], field, "{}", reply.text);
    }
    let reply = form(&server, TRANSCRIPTIONS, Some(b"no sound"), &[]).await;
    assert!(reply.text.contains("no supported kind"), "{}", reply.text);
    let reply = form(&server, TRANSLATIONS, Some(&sound), &[]).await;
    assert!(reply.text.contains("does not translate"), "{}", reply.text);
    // This one never ends.
    let (endless, _) = dictating(Some(Dictation::Qwen3Asr), "");
    let names = [("prompt", &*"a".repeat(1900))];
    let reply = form(&endless, TRANSCRIPTIONS, Some(&sound), &names).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    let said = "file: its transcript does not fit the context of 2048";
    assert!(reply.text.contains(said), "{}", reply.text);
    let (chatting, _) = dictating(None, "");
    let reply = form(&chatting, TRANSCRIPTIONS, Some(&sound), &[]).await;
    assert!(reply.text.contains("ask it in a chat"), "{}", reply.text);
    let reply = form(&with(|_| ()), TRANSCRIPTIONS, Some(&sound), &[]).await;
    assert_eq!(reply.status, 404, "{}", reply.text);
    let said = |said: &str| assert!(reply.text.contains(said), "{}", reply.text);
    said("--speech");
    said("takes no sounds: ");
}

/// Long recordings are written window by window. Silence has no text, and all formats have the times of windows.
#[tokio::test]
async fn windows_of_a_language_model_have_times() {
    let (server, count) = dictating(Some(Dictation::Qwen3Asr), "\n>");
    let sound = tones(&[2..8, 20..25, 40..48], 70);
    let ask = async |format: &str| {
        let fields = [("response_format", format), ("language", "en")];
        let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply
    };
    let text = "I hear it. I hear it.";
    assert_eq!(ask("json").await.json(), json!({ "text": text }));
    assert_eq!(count.load(SeqCst), 2);
    let verbose = ask("verbose_json").await.json();
    let head = ["task", "language", "duration", "text"].map(|key| verbose[key].clone());
    assert_eq!(json!(head), json!(["transcribe", "english", 70.0, text]));
    let segments = verbose["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 2);
    for (segment, [start, end]) in segments.iter().zip([[2.0, 25.0], [40.0, 48.0]]) {
        let near = |key: &str, at: f64| (segment[key].as_f64().unwrap() - at).abs() < 0.25;
        assert!(near("start", start) && near("end", end), "{segment}");
        assert_eq!(segment["text"].as_str().unwrap().trim(), "I hear it.");
        assert!(segment["avg_logprob"].as_f64().unwrap() <= 0.0, "{segment}");
        assert!(segment["tokens"].as_array().unwrap().len() > 1, "{segment}");
    }
    let srt = ask("srt").await.text;
    assert!(srt.starts_with("1\n00:00:01,7"), "{srt}");
    assert!(srt.contains("\n2\n00:00:39,7"), "{srt}");
    assert_eq!(srt.matches("\nI hear it.\n").count(), 2, "{srt}");
    assert!(ask("vtt").await.text.starts_with("WEBVTT\n\n00:00:01.7"));
    let silence = tones(&[], 3);
    let reply = form(&server, TRANSCRIPTIONS, Some(&silence), &[]).await;
    assert_eq!(reply.json(), json!({ "text": "" }));
    assert_eq!(count.load(SeqCst), 2);
}

/// Text comes token by token, and adds up to the whole.
#[tokio::test]
async fn a_language_model_streams_its_transcript() {
    let (server, _) = dictating(Some(Dictation::Qwen3Asr), "\n>");
    let sound = tones(&[1..5, 40..44], 45);
    let fields = [("stream", "true"), ("include[]", "logprobs")];
    let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
    let kind = reply.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{}", reply.text);
    let events = reply.events();
    let (last, deltas) = events.split_last().unwrap();
    // "I hear it." are two tokens.
    assert_eq!(deltas.len(), 4, "{}", reply.text);
    let delta = |event: &Value| {
        assert_eq!(event["type"], "transcript.text.delta");
        event["delta"].as_str().unwrap().to_string()
    };
    let text: String = deltas.iter().map(delta).collect();
    assert_eq!(text, "I hear it. I hear it.");
    assert_eq!(last["type"], "transcript.text.done");
    assert_eq!(last["text"], text);
    let logprobs = last["logprobs"].as_array().unwrap();
    let spelled = logprobs.iter().map(|one| one["token"].as_str().unwrap());
    assert_eq!(spelled.collect::<String>(), "I hear it.".repeat(2));
    // What is wrong with the request is an event, once the stream has begun.
    let fields = [("stream", "true"), ("language", "klingon")];
    let reply = form(&server, TRANSCRIPTIONS, Some(&sound), &fields).await;
    assert!(reply.text.contains("it knows Arabic"), "{}", reply.text);
}

#[tokio::test]
async fn a_missing_sense_is_named() {
    let blind = sensing(&["sounds"]).0;
    let deaf = with(|_| ());
    let picture =
        json!({ "type": "image_url", "image_url": format!("data:image/png;base64,{PICTURE}") });
    for (server, part, said) in [
        (&blind, picture, "takes no images"),
        (&deaf, sound(FOX), "takes no sounds"),
    ] {
        let reply = post(server, "/v1/chat/completions", chat(json!([part]))).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
        assert!(reply.text.contains(said), "{}", reply.text);
    }
    for (server, hears) in [(&blind, true), (&deaf, false)] {
        let props = get(server, "/props").await.json();
        assert_eq!(
            props["modalities"],
            json!({ "vision": false, "audio": hears })
        );
        let models = get(server, "/v1/models").await.json();
        let model = &models["data"][0];
        assert_eq!(model["welte"]["audio"], hears, "{model}");
        let shown = post(server, "/api/show", json!({ "model": model["id"] })).await;
        let can = shown.json()["capabilities"].clone();
        let can = can.as_array().unwrap().contains(&json!("audio"));
        assert_eq!(can, hears, "{}", shown.text);
        let document = get(server, "/openapi.json").await.json();
        let schemas = &document["components"]["schemas"];
        for (name, word, described) in [
            ("Message", "input_audio", hears),
            ("Message", "audio_url", hears),
            ("Item", "input_audio", hears),
            ("Prompt", "contentEncoding", hears),
            ("Message", "image_url", false),
            ("OllamaMessage", "contentEncoding", hears),
            ("Turn", "media_type", false),
        ] {
            let has = schemas[name].to_string().contains(word);
            assert_eq!(has, described, "{name}, {word}");
        }
    }
}

#[tokio::test]
async fn sounds_that_cannot_be_read_are_refused_by_the_name_of_their_field() {
    let (server, count) = sensing(&["sounds"]);
    let audio = |value: Value| json!({ "type": "input_audio", "input_audio": value });
    let url = |value: Value| json!({ "type": "audio_url", "audio_url": value });
    let field = "messages[0].content[0]";
    for (part, name, said) in [
        (
            json!({ "type": "input_audio" }),
            "input_audio",
            "is required",
        ),
        (audio(json!({})), "input_audio.data", "is required"),
        (audio(json!({ "data": "" })), "input_audio.data", "is empty"),
        (
            audio(json!({ "data": "!" })),
            "input_audio.data",
            "is not base64",
        ),
        (
            audio(json!({ "data": FOX, "format": 3 })),
            "input_audio.format",
            "a string",
        ),
        (audio(json!("data")), "input_audio", ""),
        (url(json!("file:///a.wav")), "audio_url", "must begin with"),
        (
            url(json!("https://example.org/a.wav")),
            "audio_url",
            "not fetched from other servers",
        ),
        (
            url(json!("data:audio/wav;base64,")),
            "audio_url",
            "is empty",
        ),
        (url(json!("data:audio/wav,abc")), "audio_url", ";base64,"),
    ] {
        let body = chat(json!([part]));
        let reply = post(&server, "/v1/chat/completions", body).await;
        assert_eq!(reply.status, 400, "{part}: {}", reply.text);
        let text = reply.text.replace(r#"\""#, "\"");
        assert!(text.contains(&format!("{field}.{name}")), "{part}: {text}");
        assert!(text.contains(said), "{part}: {text}");
    }
    let input = json!([{ "role": "user", "content": [audio(json!({ "data": "" }))] }]);
    let reply = post(&server, "/v1/responses", json!({ "input": input })).await;
    let param = reply.json()["error"]["param"].clone();
    assert_eq!(param, "input[0].content[0].input_audio.data");
    // "a a a", too long twice: what comes after that is not looked at.
    let words = sound(&"YSBhIGEg".repeat(500));
    let body = chat(json!([words, words, sound("//79")]));
    let reply = post(&server, "/v1/chat/completions", body).await;
    let code = reply.json()["error"]["code"].clone();
    assert_eq!(code, "context_length_exceeded", "{}", reply.text);
    let many = vec![sound(FOX); 17];
    let reply = post(&server, "/v1/chat/completions", chat(json!(many))).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(reply.text.contains("--max-images"), "{}", reply.text);
    assert_eq!(count.load(SeqCst), 0);
}
