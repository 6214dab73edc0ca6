//! Images in the requests of all APIs, with eyes that read a picture's bytes as words: a feature for each.

mod common;

use axum::Router;
use common::scripted::scripted_with;
use common::{get, post, with};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use welte::{
    Clip, Decoded, Error, Film, Images, LoadOptions, MediaEncoder, Model, WordEncoder, Words,
};
use welte_server::{ServerOptions, router};

/// "a red fox" and "blue", as base64.
const FOX: &str = "YSByZWQgZm94";
const BLUE: &str = "Ymx1ZQ==";

/// A server whose model has eyes, and how many pictures these have encoded.
fn seeing(change: impl FnOnce(&mut ServerOptions)) -> (Router, Arc<AtomicUsize>) {
    let model = scripted_with("I see it.", 64);
    let count = Arc::<AtomicUsize>::default();
    let sight = WordEncoder {
        placeholder: "<|image|>".into(),
        what: "images",
        dictation: None,
        width: model.feature_width(),
        count: count.clone(),
    };
    model.set_sense(Box::new(sight)).unwrap();
    let mut options = ServerOptions::default();
    change(&mut options);
    (router(model, options).unwrap(), count)
}

fn data(base64: &str) -> String {
    format!("data:image/png;base64,{base64}")
}

fn chat(content: Value) -> Value {
    json!({ "max_tokens": 4, "temperature": 0, "messages": [{ "role": "user", "content": content }] })
}

fn picture(base64: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": data(base64), "detail": "low" } })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

async fn refused(server: &Router, path: &str, body: Value, word: &str) {
    let reply = post(server, path, body).await;
    assert_eq!(reply.status, 400, "{path}: {}", reply.text);
    assert!(reply.text.contains(word), "{path}: {}", reply.text);
}

/// The tokens of a prompt, as the usage of a chat counts them, and those that were cached.
async fn counted(server: &Router, content: Value) -> (u64, u64) {
    let reply = post(server, "/v1/chat/completions", chat(content)).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let usage = &reply.json()["usage"];
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    (
        usage["prompt_tokens"].as_u64().unwrap(),
        cached.as_u64().unwrap(),
    )
}

/// An image takes a row for each word between two marks. The second question about it encodes nothing.
#[tokio::test]
async fn usage_counts_the_rows_of_images() {
    let (server, count) = seeing(|_| ());
    let plain = counted(&server, json!("What is it?")).await.0;
    let asked = |question: &str| json!([picture(FOX), text(question)]);
    let (own, _) = counted(&server, asked("What is it?")).await;
    assert_eq!(own, plain + 5);
    let two = json!([
        text("What "),
        picture(FOX),
        text("is it"),
        picture(BLUE),
        text("?")
    ]);
    assert_eq!(counted(&server, two).await.0, plain + 5 + 3);
    let (_, cached) = counted(&server, asked("What was it?")).await;
    // "user: ", the image and "What ".
    assert!(cached >= 6 + 5 + 5, "{cached}");
    assert_eq!(count.load(SeqCst), 2);
    // Another picture has only the text before it in common.
    let (_, cached) = counted(&server, json!([picture(BLUE), text("What is it?")])).await;
    assert!(cached <= 7, "{cached}");
    let body = chat(asked("What is it?"));
    let tokens = post(&server, "/v1/chat/completions/input_tokens", body)
        .await
        .json();
    assert_eq!(tokens["input_tokens"], own);
}

/// The document describes the images of every API, but only if a model takes some.
#[tokio::test]
async fn the_description_has_images_if_a_model_takes_them() {
    let (server, _) = seeing(|_| ());
    let blind = router(scripted_with("No pictures.", 64), ServerOptions::default()).unwrap();
    let schemas = async |server: &Router| {
        let document = get(server, "/openapi.json").await.json();
        document["components"]["schemas"].clone()
    };
    let (seen, unseen) = (schemas(&server).await, schemas(&blind).await);
    for (name, word) in [
        ("Message", "image_url"),
        ("Item", "input_image"),
        ("Turn", "media_type"),
        ("OllamaMessage", "contentEncoding"),
        ("Images", "contentEncoding"),
        ("Prompt", "contentEncoding"),
    ] {
        let has = |schemas: &Value| schemas[name].to_string().contains(word);
        assert!(has(&seen), "{name}: {}", seen[name]);
        assert!(!has(&unseen), "{name}: {}", unseen[name]);
    }
    let images = &seen["OllamaMessage"]["properties"]["images"]["anyOf"][0];
    assert_eq!(images, &seen["Images"]);
}

/// A prompt that does not fit is refused before its images are encoded.
#[tokio::test]
async fn what_exceeds_the_context_is_not_encoded() {
    let (server, count) = seeing(|_| ());
    let long = "many words ".repeat(2000);
    // "one one one ", many times.
    let large = "b25lIG9uZSBvbmUg".repeat(700);
    for content in [
        json!([picture(FOX), text(&long)]),
        json!([picture(FOX), picture(&large), text("What?")]),
    ] {
        let reply = post(&server, "/v1/chat/completions", chat(content)).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
        assert!(
            reply.text.contains("available context size"),
            "{}",
            reply.text
        );
    }
    let data = json!({ "prompt_string": "<__media__> What?", "multimodal_data": [large] });
    let body = json!({ "prompt": data, "n_predict": 2 });
    refused(&server, "/completion", body, "available context size").await;
    assert_eq!(count.load(SeqCst), 0);
    counted(&server, json!([picture(FOX), text("What?")])).await;
    assert_eq!(count.load(SeqCst), 1);
}

/// Every API puts the same image in the same place.
#[tokio::test]
async fn all_apis_take_images() {
    let (server, count) = seeing(|_| ());
    let (own, _) = counted(&server, json!([picture(FOX), text("What?")])).await;
    let input = json!([{ "role": "user", "content": [
        { "type": "input_image", "image_url": data(FOX) }, { "type": "input_text", "text": "What?" },
    ] }]);
    let reply = post(
        &server,
        "/v1/responses",
        json!({ "input": input, "max_output_tokens": 4 }),
    )
    .await;
    assert_eq!(reply.json()["usage"]["input_tokens"], own, "{}", reply.text);
    // The stored conversation still has the image.
    let id = reply.json()["id"].clone();
    let next = json!({ "previous_response_id": id, "input": "And?", "max_output_tokens": 4 });
    let reply = post(&server, "/v1/responses", next).await.json();
    assert!(
        reply["usage"]["input_tokens"].as_u64().unwrap() > own,
        "{reply}"
    );
    let source = json!({ "type": "base64", "media_type": "image/png", "data": FOX });
    let block = |source: &Value| json!([{ "type": "image", "source": source }, text("What?")]);
    let message = |content: Value| json!({ "model": "m", "max_tokens": 4, "messages": [{ "role": "user", "content": content }] });
    let counted = post(
        &server,
        "/v1/messages/count_tokens",
        message(block(&source)),
    )
    .await;
    assert_eq!(counted.json()["input_tokens"], own, "{}", counted.text);
    let reply = post(&server, "/v1/messages", message(block(&source)))
        .await
        .json();
    let usage = &reply["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(sum, own, "{reply}");
    let body = json!({
        "model": "", "stream": false, "options": { "num_predict": 4 },
        "messages": [{ "role": "user", "content": "What?", "images": [FOX] }],
    });
    let reply = post(&server, "/api/chat", body).await;
    assert_eq!(reply.json()["prompt_eval_count"], own, "{}", reply.text);
    let body = json!({
        "model": "", "stream": false, "options": { "num_predict": 4 }, "prompt": "What?", "images": [FOX],
    });
    let reply = post(&server, "/api/generate", body).await;
    assert_eq!(reply.json()["prompt_eval_count"], own, "{}", reply.text);
    let prompt = json!({ "prompt_string": "see <__media__>!", "multimodal_data": [FOX] });
    let reply = post(
        &server,
        "/completion",
        json!({ "prompt": prompt, "n_predict": 4 }),
    )
    .await;
    assert_eq!(
        reply.json()["tokens_evaluated"],
        4 + 5 + 1,
        "{}",
        reply.text
    );
    assert_eq!(count.load(SeqCst), 1, "one picture is encoded once");
}

/// Eyes that have the words of two frames in one picture, and tell the time before each.
struct Watching(WordEncoder, Option<[&'static str; 2]>);

impl MediaEncoder for Watching {
    fn placeholder(&self) -> &str {
        self.0.placeholder()
    }

    fn width(&self) -> usize {
        self.0.width()
    }

    fn look(&self, bytes: &[u8]) -> Result<Decoded<'_>, Error> {
        self.0.look(bytes)
    }

    fn film(&self) -> Film {
        Film {
            rate: Some(2.0),
            most: 64,
            together: 2,
            words: Words::Seconds,
            around: self.1,
        }
    }

    fn look_at_frames(&self, clip: &Clip) -> Result<Decoded<'_>, Error> {
        let frames: Vec<&[u8]> = clip.frames.iter().map(|frame| &frame[..]).collect();
        self.0.look(&frames.join(&b' '))
    }
}

/// A list of frames becomes pictures with times between them, whose features depend on all frames.
#[tokio::test]
async fn videos_become_pictures_and_times() {
    let model = scripted_with("I see it.", 64);
    let count = Arc::<AtomicUsize>::default();
    let sight = WordEncoder {
        placeholder: "<|image|>".into(),
        what: "images",
        dictation: None,
        width: model.feature_width(),
        count: count.clone(),
    };
    model.set_sense(Box::new(Watching(sight, None))).unwrap();
    let mut options = ServerOptions::default();
    options.images.max_images = 3;
    let server = router(model, options).unwrap();
    let plain = counted(&server, json!("What?")).await.0;
    let asked = |video: Value| json!([video, text("What?")]);
    let url = |url: &str| json!({ "type": "video_url", "video_url": { "url": url } });
    let list = format!("data:video/jpeg;base64,{FOX},{BLUE},{FOX}");
    // Four words and three, each between two marks, with the times of both.
    let own = plain + 6 + 5 + "<0.2 seconds><1.0 seconds>".len() as u64;
    assert_eq!(counted(&server, asked(url(&list))).await.0, own);
    assert_eq!(count.load(SeqCst), 2);
    let (_, cached) = counted(&server, asked(url(&list))).await;
    assert!(cached > own - 8, "{cached}");
    // Qwen's form, and a slower video of the same frames.
    let frames = json!([data(FOX), data(BLUE), data(FOX)]);
    let video = json!({ "type": "video", "video": frames, "fps": 2 });
    assert_eq!(counted(&server, asked(video)).await, (own, cached));
    let video = json!({ "type": "video", "video": frames, "fps": 0.01 });
    let slower = own + "<50.0 seconds><200.0 seconds>".len() as u64 - 26;
    assert_eq!(counted(&server, asked(video)).await.0, slower);
    // Of many frames as many are taken as make the pictures that a request may have.
    let many = format!("data:video/jpeg;base64,{}", vec![BLUE; 40].join(","));
    let times = "<1.5 seconds><8.0 seconds><14.8 seconds>";
    let most = plain + 3 * 4 + times.len() as u64;
    assert_eq!(counted(&server, asked(url(&many))).await.0, most);
    // Two videos and an image share them, so each video is one picture.
    let shared = json!([url(&many), picture(BLUE), url(&many), text("What?")]);
    let times = 2 * "<5.0 seconds>".len() as u64;
    assert_eq!(counted(&server, shared).await.0, plain + 2 * 4 + 3 + times);
    // Too many are refused before one of them is read.
    let unread = "data:video/mp4;base64,AAAA";
    let four = chat(json!([url(unread), url(unread), url(unread), url(unread)]));
    refused(&server, "/v1/chat/completions", four, "--max-images (3)").await;
    let frames = vec!["https://example.org/a.png"; 4097];
    let long = chat(json!([url(unread), { "type": "video", "video": frames }]));
    refused(&server, "/v1/chat/completions", long, "4096 frames").await;
    let (blind, _) = seeing(|options| options.images.max_images = 0);
    let one = chat(asked(url(&list)));
    refused(&blind, "/v1/chat/completions", one, "--max-images (0)").await;
    let slow = json!({ "type": "video_url", "video_url": { "url": list, "fps": 0 } });
    let field = "messages[0].content[0].video_url";
    for (part, word) in [
        (url("data:video/mp4;base64,AAAA"), "--allow-videos"),
        (url("data:video/jpeg;base64,AAAA,!"), "frames as base64"),
        (url("https://example.org/a.mp4"), "--allow-videos"),
        (slow, "fps"),
    ] {
        let body = chat(json!([part]));
        refused(&server, "/v1/chat/completions", body.clone(), word).await;
        refused(&server, "/v1/chat/completions", body, field).await;
    }
    for (video, word) in [
        (json!([]), "list"),
        (json!([1]), "list"),
        (json!(["a"]), "data:"),
    ] {
        let body = chat(json!([{ "type": "video", "video": video }]));
        refused(&server, "/v1/chat/completions", body, word).await;
    }
    let remote = chat(json!([{ "type": "video", "video": ["https://example.org/a.png"] }]));
    refused(&server, "/v1/chat/completions", remote, "--allow-").await;
}

/// GLM has control tokens around a video.
#[tokio::test]
async fn control_tokens_stand_around_videos() {
    let list = format!("data:video/jpeg;base64,{FOX},{BLUE}");
    let asked = json!([{ "type": "video_url", "video_url": { "url": list } }, text("What?")]);
    let mut found = Vec::new();
    for around in [None, Some(["<|turn|>", "<|end|>"])] {
        let model = scripted_with("I see it.", 64);
        let sight = WordEncoder {
            placeholder: "<|image|>".into(),
            what: "images",
            dictation: None,
            width: model.feature_width(),
            count: Arc::default(),
        };
        model.set_sense(Box::new(Watching(sight, around))).unwrap();
        let server = router(model, ServerOptions::default()).unwrap();
        found.push(counted(&server, asked.clone()).await.0);
    }
    // One token each: text would have one for every letter.
    assert_eq!(found[1], found[0] + 2);
}

/// The bodies that Open WebUI 0.12 sends: an image pasted into a chat, the next turn, and an image that a tool has found.
#[tokio::test]
async fn open_webui_sends_images() {
    let (server, count) = seeing(|_| ());
    let body = |messages: Value| {
        json!({
            "stream": true, "stream_options": { "include_usage": true }, "model": "", "max_tokens": 4,
            "messages": messages,
        })
    };
    let content =
        json!([text("What?"), { "type": "image_url", "image_url": { "url": data(FOX) } }]);
    let first = json!({ "role": "user", "content": content });
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "find", "arguments": "{}" } });
    let tool = json!({ "role": "tool", "tool_call_id": "c", "content": [
        { "type": "input_text", "text": "found" }, { "type": "input_image", "image_url": data(BLUE) },
    ] });
    for messages in [
        json!([first]),
        json!([first, { "role": "assistant", "content": "A fox." }, { "role": "user", "content": "And?" }]),
        json!([first, { "role": "assistant", "content": "", "tool_calls": [call] }, tool]),
    ] {
        let reply = post(&server, "/v1/chat/completions", body(messages)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.text.contains("[DONE]"), "{}", reply.text);
    }
    assert_eq!(count.load(SeqCst), 2);
}

/// A text that spells the placeholder is not an image.
#[tokio::test]
async fn texts_cannot_make_images() {
    let (server, count) = seeing(|_| ());
    let plain = counted(&server, json!("What?")).await.0;
    let spelt = counted(&server, json!("<|image|>What?")).await.0;
    // Each of its characters is a token.
    assert_eq!(spelt, plain + "<|image|>".len() as u64);
    let both = json!([text("<|image|>"), picture(FOX), text("What?")]);
    assert_eq!(counted(&server, both).await.0, spelt + 5);
    assert_eq!(count.load(SeqCst), 1);
}

#[tokio::test]
async fn images_that_cannot_be_read_are_refused_by_the_name_of_their_field() {
    let (server, _) = seeing(|options| {
        (options.images.max_images, options.images.largest) = (2, 40);
    });
    let of_url = |url: &str| chat(json!([{ "type": "image_url", "image_url": url }]));
    let field = "messages[0].content[0].image_url";
    let long = "YWFh".repeat(20);
    for (body, word) in [
        (of_url("data:image/png;base64,!"), "is not base64"),
        (of_url("data:image/png;base64,"), "is empty"),
        (of_url("data:image/png,abc"), ";base64,"),
        (of_url("ftp://example.org/a.png"), "https://"),
        (of_url("https://example.org/a.png"), "--allow-remote-images"),
        // Bytes that are not a picture.
        (of_url(&data("//79")), "not a text of words"),
        (of_url(&data(&long)), "an image may have"),
    ] {
        refused(&server, "/v1/chat/completions", body.clone(), word).await;
        refused(&server, "/v1/chat/completions", body, field).await;
    }
    let three = chat(json!([picture(FOX), picture(FOX), picture(FOX)]));
    refused(&server, "/v1/chat/completions", three, "--max-images").await;
    // Without its places a prompt has no images.
    let prompt = json!({ "prompt_string": "see", "multimodal_data": [FOX] });
    refused(
        &server,
        "/completion",
        json!({ "prompt": prompt }),
        "1 images and sounds for 0 places",
    )
    .await;
    // Nor have those that are only counted or put before the answer.
    let prompt = json!({ "prompt_string": "see <__media__>", "multimodal_data": [FOX] });
    refused(
        &server,
        "/v1/completions",
        json!({ "prompt": prompt, "echo": true, "max_tokens": 1 }),
        "cannot stand here",
    )
    .await;
    let (remote, _) = seeing(|options| {
        options.images.remote = Some(vec!["*".into()]);
    });
    for url in [
        "http://127.0.0.1:1/a.png",
        "http://[::1]:1/a.png",
        "http://localhost:1/a.png",
    ] {
        refused(
            &remote,
            "/v1/chat/completions",
            of_url(url),
            "public address",
        )
        .await;
    }
}

#[tokio::test]
async fn documents_are_refused_with_what_to_send_in_their_place() {
    let (server, _) = seeing(|_| {});
    let pages = "its pages as images";
    let file =
        |kind: &str| json!([{ "type": kind, "file_data": "data:application/pdf;base64,AA" }]);
    refused(&server, "/v1/chat/completions", chat(file("file")), pages).await;
    let input = json!({ "input": [{ "role": "user", "content": file("input_file") }] });
    refused(&server, "/v1/responses", input, pages).await;
    let mut message = chat(json!([{ "type": "document", "source": {} }]));
    message["max_tokens"] = json!(1);
    refused(&server, "/v1/messages", message, pages).await;
}

/// Nothing is encoded for a request that is given up.
#[tokio::test]
async fn late_requests_are_not_looked_at() {
    let (server, count) = seeing(|options| options.timeout = Some(Duration::ZERO));
    let reply = post(&server, "/v1/chat/completions", chat(json!([picture(FOX)]))).await;
    assert_eq!(reply.status, 503, "{}", reply.text);
    assert_eq!(count.load(SeqCst), 0);
}

#[tokio::test]
async fn answers_have_no_images() {
    let (server, _) = seeing(|_| ());
    let input = json!([{ "type": "message", "role": "assistant", "content": [
        { "type": "input_image", "image_url": data(FOX) },
    ] }]);
    refused(
        &server,
        "/v1/responses",
        json!({ "input": input }),
        "output_text",
    )
    .await;
}

#[tokio::test]
async fn a_model_without_eyes_says_so() {
    let server = with(|_| ());
    let body = chat(json!([picture(FOX)]));
    refused(&server, "/v1/chat/completions", body, "takes no images").await;
    let props = get(&server, "/props").await.json();
    assert_eq!(props["modalities"]["vision"], false);
    let (server, _) = seeing(|_| ());
    let props = get(&server, "/props").await.json();
    assert_eq!(props["modalities"]["vision"], true);
    let models = get(&server, "/v1/models").await.json();
    assert_eq!(models["data"][0]["welte"]["vision"], true);
    let name = &models["data"][0]["id"];
    let shown = post(&server, "/api/show", json!({ "model": name }))
        .await
        .json();
    let all = shown["capabilities"].as_array().unwrap();
    assert!(all.contains(&json!("vision")), "{shown}");
}

/// A conversation with images has one vector. Texts in the same list keep theirs.
#[tokio::test]
async fn images_have_vectors() {
    let mut options = LoadOptions::default();
    (options.context, options.slots, options.features) = (256, 2, 32);
    (options.device, options.embeddings) = ("cpu".parse().unwrap(), true);
    let model = Model::load(common::DEMO, &options, &mut |_| ()).unwrap();
    let blind = router(model, ServerOptions::default()).unwrap();
    let model = Model::load(common::DEMO, &options, &mut |_| ()).unwrap();
    let count = Arc::<AtomicUsize>::default();
    let sight = WordEncoder {
        placeholder: "<image>".into(),
        what: "images",
        dictation: None,
        width: model.feature_width(),
        count: count.clone(),
    };
    model.set_sense(Box::new(sight)).unwrap();
    let server = router(model, ServerOptions::default()).unwrap();
    let asked = |image: &str| {
        let content = json!([picture(image), text("What is it?")]);
        json!({ "messages": [{ "role": "user", "content": content }] })
    };
    let vector = async |path: &str, body: Value| {
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        reply.json()
    };
    let fox = vector("/v1/embeddings", asked(FOX)).await;
    let blue = vector("/v1/embeddings", asked(BLUE)).await;
    let own = |reply: &Value| reply["data"][0]["embedding"].clone();
    assert_ne!(own(&fox), own(&blue));
    // An image of three words, and one of one.
    let tokens = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens(&fox), tokens(&blue) + 2);
    assert_eq!(own(&vector("/v1/embeddings", asked(FOX)).await), own(&fox));
    assert_eq!(count.load(SeqCst), 2);
    let mut begun = asked(FOX);
    begun["add_generation_prompt"] = json!(true);
    assert_ne!(own(&vector("/v1/embeddings", begun).await), own(&fox));
    // llama.cpp's form, between texts.
    let object = json!({ "prompt_string": "<__media__> a fox", "multimodal_data": [FOX] });
    let mixed = vector("/v1/embeddings", json!({ "input": ["a fox", object] })).await;
    let plain = vector("/v1/embeddings", json!({ "input": "a fox" })).await;
    assert_eq!(own(&mixed), own(&plain));
    let other = vector("/embedding", json!({ "content": object })).await;
    assert_eq!(other[0]["embedding"][0], mixed["data"][1]["embedding"]);
    assert_eq!(count.load(SeqCst), 2);
    // Jina's form: each is a message, and its vector that of the answer's beginning.
    let items = json!([{ "image": data(FOX) }, { "text": "a fox" }, { "image": FOX, "text": "What is it?" }, "a fox"]);
    let jina = vector("/v1/embeddings", json!({ "input": items })).await;
    assert_eq!(
        jina["data"][2]["embedding"],
        own(&vector("/v1/embeddings", {
            let mut begun = asked(FOX);
            begun["add_generation_prompt"] = json!(true);
            begun
        })
        .await)
    );
    let message = json!({ "messages": [{ "role": "user", "content": "a fox" }], "add_generation_prompt": true });
    assert_eq!(
        jina["data"][1]["embedding"],
        own(&vector("/v1/embeddings", message).await)
    );
    assert_eq!(jina["data"][3]["embedding"], own(&plain));
    assert_ne!(jina["data"][0]["embedding"], jina["data"][1]["embedding"]);
    assert_eq!(count.load(SeqCst), 2);
    for (server, body, word) in [
        (&server, json!({}), "messages"),
        (&server, json!({ "input": "a", "messages": [] }), "messages"),
        (&server, json!({ "messages": [] }), "at least one message"),
        (
            &server,
            json!({ "input": [{ "image": "!" }] }),
            "input[0].image",
        ),
        (&blind, asked(FOX), "takes no images"),
    ] {
        refused(server, "/v1/embeddings", body, word).await;
    }
}

/// jina-clip: texts and images have vectors in one space, each of its own.
#[tokio::test]
async fn texts_and_images_share_a_space() {
    let list = std::fs::read_to_string(welte_goldens::folder().join("clip.json")).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let golden = welte_goldens::Golden::new(list["path"].as_str().unwrap());
    let mut options = LoadOptions::default();
    (options.slots, options.embeddings) = (2, true);
    (options.device, options.images) = ("reference".parse().unwrap(), Images::Beside);
    let source = golden.path().display().to_string();
    let model = Model::load(&source, &options, &mut |_| ()).unwrap();
    let server = router(model, ServerOptions::default()).unwrap();
    let folder = welte_goldens::folder().join("../../../welte-vision/tests/data/pictures");
    let image = |number: usize| {
        let name = list["pictures"][number]["picture"].as_str().unwrap();
        base64(&std::fs::read(folder.join(name)).unwrap())
    };
    let embed = async |body: Value| {
        let reply = post(&server, "/v1/embeddings", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let vector = |reply: &Value, number: usize| {
        let list = reply["data"][number]["embedding"].as_array().unwrap();
        list.iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let same = |found: &[f64], want: &Value, what: &str| {
        let want: Vec<f64> = want["vector"].as_array().unwrap()[..found.len()]
            .iter()
            .map(|v| v.as_f64().unwrap())
            .collect();
        let length = want.iter().map(|v| v * v).sum::<f64>().sqrt();
        let cosine: f64 = found.iter().zip(&want).map(|(a, b)| a * b / length).sum();
        assert!((1.0 - cosine).abs() < 1e-6, "{what}: {cosine}");
    };
    let (texts, pictures) = (&list["texts"], &list["pictures"]);
    let words = |number: usize| texts[number]["text"].clone();
    let items = json!([{ "image": format!("data:image/png;base64,{}", image(0)) }, words(0), { "text": words(1) }, { "image": image(1) }]);
    let reply = embed(json!({ "input": items })).await;
    same(&vector(&reply, 0), &pictures[0], "the first image");
    same(&vector(&reply, 1), &texts[0], "the first text");
    same(&vector(&reply, 2), &texts[1], "the second text");
    same(&vector(&reply, 3), &pictures[1], "the second image");
    // An image counts as one token.
    let counted = |number: usize| texts[number]["tokens"].as_array().unwrap().len();
    let tokens = reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens as usize, 2 + counted(0) + counted(1));
    // Alone, as llama.cpp's object, and shortened: the same vector.
    let object = json!({ "prompt_string": "<__media__>", "multimodal_data": [image(1)] });
    let alone = embed(json!({ "input": [object] })).await;
    assert_eq!(vector(&alone, 0), vector(&reply, 3));
    let short = embed(json!({ "input": items, "dimensions": 16 })).await;
    for (number, want) in [(0, &pictures[0]), (1, &texts[0])] {
        let found = vector(&short, number);
        assert_eq!(found.len(), 16);
        same(&found, want, "shortened");
    }
    // Instructions stand before texts only.
    let asked = embed(json!({ "input": items, "input_type": "query" })).await;
    assert_eq!(vector(&asked, 0), vector(&reply, 0));
    assert_ne!(vector(&asked, 1), vector(&reply, 1));
    let between = json!({ "prompt_string": "a <__media__>", "multimodal_data": [image(1)] });
    for (input, word) in [
        (
            json!([{ "image": image(0), "text": "a fox" }]),
            "input[0].image",
        ),
        (json!([between]), "must stand alone"),
        (json!([{ "image": "YWJj" }]), "input[0].image"),
    ] {
        refused(&server, "/v1/embeddings", json!({ "input": input }), word).await;
    }
    let asked = json!({ "messages": [{ "role": "user", "content": [picture(&image(0))] }] });
    refused(&server, "/v1/embeddings", asked, "chat template").await;
    refused(
        &server,
        "/v1/chat/completions",
        chat(json!([picture(&image(0))])),
        "chat template",
    )
    .await;
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|three| {
        let all = three
            .iter()
            .fold(0u32, |all, byte| all << 8 | u32::from(*byte));
        let all = all << (8 * (3 - three.len()));
        let digit = move |at: usize| {
            if at <= three.len() {
                char::from(DIGITS[(all >> (18 - 6 * at) & 63) as usize])
            } else {
                '='
            }
        };
        (0..4).map(digit)
    });
    digits.collect()
}
