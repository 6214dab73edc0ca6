//! Transcription sessions over a websocket, with a model of speech of random weights, and with a language model that hears.

mod common;

use common::live::{Running, start_with};
use common::model;
use common::scripted::scripted_after;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use welte::{Dictation, Speech, SpeechOptions, WordEncoder};
use welte_server::{ServerOptions, SpeechService};

const PATH: &str = "/v1/realtime?intent=transcription";

/// A server with the tiny model of speech.
async fn speaking(change: impl FnOnce(&mut ServerOptions)) -> Running {
    let golden = welte_goldens::Golden::new("speech/f32");
    let mut place = SpeechOptions::default();
    (place.device, place.threads, place.texts) = ("cpu".parse().unwrap(), Some(1), 2);
    let speech = Speech::open(golden.path().to_str().unwrap(), &place).unwrap();
    start_with(model(), |options| {
        options.speech = Some(SpeechService {
            name: "tiny".to_string(),
            model: Arc::new(speech),
        });
        change(options);
    })
    .await
}

/// A server whose language model hears, and answers "I hear it.".
async fn hearing(dictation: Option<Dictation>) -> Running {
    let model = scripted_after("I hear it.", 64, "\n>");
    let encoder = WordEncoder {
        placeholder: "~".to_string(),
        what: "sounds",
        dictation,
        width: model.feature_width(),
        count: Arc::default(),
    };
    model.set_sense(Box::new(encoder)).unwrap();
    start_with(model, |_| ()).await
}

struct Client(WebSocketStream<TcpStream>);

/// Opens a session, or returns the status and the text of the refusal.
async fn open(
    server: &Running,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<Client, (u16, String)> {
    let stream = server.connect().await;
    let mut request = format!("ws://localhost{path}")
        .into_client_request()
        .unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((socket, _)) => Ok(Client(socket)),
        Err(Error::Http(response)) => {
            let text = response.body().clone().unwrap_or_default();
            Err((response.status().as_u16(), String::from_utf8(text).unwrap()))
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opens a session once the server has a place for it.
async fn open_soon(server: &Running) -> Client {
    for _ in 0..12_000 {
        match open(server, PATH, &[]).await {
            Ok(client) => return client,
            Err((status, _)) => assert_eq!(status, 503),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no place becomes free");
}

impl Client {
    async fn send(&mut self, event: Value) {
        self.write(Message::Text(event.to_string().into())).await;
    }

    async fn write(&mut self, message: Message) {
        self.0.send(message).await.unwrap();
    }

    /// The next message of the server.
    async fn message(&mut self) -> Option<Result<Message, Error>> {
        let next = tokio::time::timeout(Duration::from_secs(60), self.0.next());
        next.await.expect("an event")
    }

    /// The next event.
    async fn event(&mut self) -> Value {
        loop {
            match self.message().await {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next event, which is of this kind.
    async fn next(&mut self, kind: &str) -> Value {
        let event = self.event().await;
        assert_eq!(event["type"], kind, "{event}");
        assert!(event["event_id"].as_str().unwrap().starts_with("event_"));
        event
    }

    /// Appends sound in pieces.
    async fn append(&mut self, bytes: &[u8], piece: usize) {
        for piece in bytes.chunks(piece) {
            let event = json!({ "type": "input_audio_buffer.append", "audio": base64(piece) });
            self.send(event).await;
        }
    }

    /// Reads deltas up to the transcript of an item, which they make.
    async fn transcript(&mut self, item: &Value) -> Value {
        let mut text = String::new();
        loop {
            let event = self.event().await;
            assert_eq!(event["item_id"], *item, "{event}");
            match event["type"].as_str().unwrap() {
                "conversation.item.input_audio_transcription.delta" => {
                    text += event["delta"].as_str().unwrap();
                }
                "conversation.item.input_audio_transcription.completed" => {
                    assert_eq!(event["transcript"], text.trim_end(), "{event}");
                    assert_eq!(event["content_index"], 0);
                    return event;
                }
                other => panic!("{other}: {event}"),
            }
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            text.push(LETTERS[(word >> (18 - 6 * place)) as usize & 63].into());
        }
    }
    text + ["", "==", "="][bytes.len() % 3]
}

/// Tenths of a second at 24 kHz: `x` is a tone, everything else is silence.
fn pcm(tenths: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, tenth) in tenths.chars().enumerate() {
        for i in 0..2400 {
            let value = ((at * 2400 + i) as f32 * 0.1).sin() * 8000.0;
            let value = if tenth == 'x' { value as i16 } else { 0 };
            bytes.extend(value.to_le_bytes());
        }
    }
    bytes
}

fn update(input: Value) -> Value {
    json!({ "type": "session.update", "session": { "type": "transcription", "audio": { "input": input } } })
}

/// The client commits.
#[tokio::test]
async fn what_is_committed_is_written_down() {
    let server = speaking(|_| ()).await;
    let mut client = open(&server, PATH, &[]).await.ok().unwrap();
    let session = client.next("session.created").await["session"].clone();
    assert_eq!(session["type"], "transcription");
    let input = &session["audio"]["input"];
    assert_eq!(
        input["format"],
        json!({ "type": "audio/pcm", "rate": 24000 })
    );
    assert_eq!(input["transcription"]["model"], "tiny");
    let turns = json!({ "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500 });
    assert_eq!(input["turn_detection"], turns);

    let mut change = update(json!({
        "turn_detection": null, "transcription": { "model": "whisper-1", "language": "en" },
    }));
    change["session"]["include"] = json!(["item.input_audio_transcription.logprobs"]);
    client.send(change).await;
    let session = client.next("session.updated").await["session"].clone();
    assert_eq!(session["audio"]["input"]["turn_detection"], json!(null));
    assert_eq!(session["audio"]["input"]["transcription"]["language"], "en");
    let mut last = json!(null);
    for _ in 0..2 {
        client.append(&pcm("..xxxxxxxx.."), 4801).await;
        client
            .send(json!({ "type": "input_audio_buffer.commit" }))
            .await;
        let committed = client.next("input_audio_buffer.committed").await;
        let item = committed["item_id"].clone();
        assert_eq!(committed["previous_item_id"], last);
        let added = client.next("conversation.item.added").await;
        assert_eq!(added["item"]["id"], item);
        assert_eq!(added["item"]["content"][0]["type"], "input_audio");
        client.next("conversation.item.done").await;
        let done = client.transcript(&item).await;
        assert!(!done["transcript"].as_str().unwrap().is_empty());
        assert_eq!(done["usage"], json!({ "type": "duration", "seconds": 1.2 }));
        assert!(done["logprobs"].as_array().unwrap().len() > 1, "{done}");
        last = item;
    }
    // The buffer is empty now, and what is cleared is not written down.
    client.append(&pcm("xxx"), 9600).await;
    client
        .send(json!({ "type": "input_audio_buffer.clear" }))
        .await;
    client.next("input_audio_buffer.cleared").await;
    client
        .send(json!({ "type": "input_audio_buffer.commit", "event_id": "mine" }))
        .await;
    let error = client.next("error").await["error"].clone();
    assert_eq!(error["code"], "input_audio_buffer_commit_empty", "{error}");
    assert_eq!(error["event_id"], "mine");
}

/// The server finds turns, and text comes token by token.
#[tokio::test]
async fn turns_are_written_down_as_they_end() {
    let server = hearing(Some(Dictation::Qwen3Asr)).await;
    let mut client = open(&server, PATH, &[]).await.ok().unwrap();
    client.next("session.created").await;
    client
        .append(&pcm("......xxxxxxxxxx........xxxxx........"), 4800)
        .await;
    let mut items = Vec::new();
    let mut events: Vec<Value> = Vec::new();
    while items.len() < 2 {
        let event = client.event().await;
        if event["type"] == "conversation.item.input_audio_transcription.completed" {
            assert_eq!(event["transcript"], "I hear it.");
            items.push(event["item_id"].clone());
        }
        events.push(event);
    }
    for (item, start, end) in [(&items[0], 300, 2100), (&items[1], 2100, 3400)] {
        let own = events
            .iter()
            .filter(|event| [&event["item_id"], &event["item"]["id"]].contains(&item));
        let own: Vec<&Value> = own.collect();
        let kinds: Vec<&str> = own
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        let wanted = [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.input_audio_transcription.delta",
            "conversation.item.input_audio_transcription.delta",
            "conversation.item.input_audio_transcription.completed",
        ];
        assert_eq!(kinds, wanted);
        let near = |at: &Value, wanted: u64| at.as_u64().unwrap().abs_diff(wanted) <= 60;
        assert!(near(&own[0]["audio_start_ms"], start), "{}", own[0]);
        assert!(near(&own[1]["audio_end_ms"], end), "{}", own[1]);
    }
}

/// The events of the beta, and sound as telephones have it. A large message is taken, too.
#[tokio::test]
async fn older_clients_have_their_events() {
    let server = hearing(Some(Dictation::Qwen3Asr)).await;
    let headers = [("openai-beta", "realtime=v1")];
    let mut client = open(&server, PATH, &headers).await.ok().unwrap();
    client.next("transcription_session.created").await;
    for (format, quiet, loud) in [("g711_ulaw", 0xff, 0x90), ("g711_alaw", 0xd5, 0xb0)] {
        client
            .send(json!({ "type": "transcription_session.update", "session": {
                "input_audio_format": format, "turn_detection": { "type": "server_vad", "silence_duration_ms": 200 },
                "input_audio_transcription": { "prompt": "Fox" },
            } }))
            .await;
        let session = client.next("transcription_session.updated").await["session"].clone();
        assert_eq!(session["input_audio_format"], format);
        assert_eq!(session["turn_detection"]["silence_duration_ms"], 200);
        assert_eq!(session["input_audio_transcription"]["prompt"], "Fox");
        let mut bytes = vec![quiet; 120_000];
        for (at, byte) in bytes[8_000..16_000].iter_mut().enumerate() {
            *byte = if at % 20 < 10 { loud } else { loud ^ 0x80 };
        }
        client.append(&bytes, bytes.len()).await;
        client.next("input_audio_buffer.speech_started").await;
        client.next("input_audio_buffer.speech_stopped").await;
        let item = client.next("input_audio_buffer.committed").await["item_id"].clone();
        assert_eq!(
            client.next("conversation.item.created").await["item"]["id"],
            item
        );
        client.transcript(&item).await;
    }
}

#[tokio::test]
async fn wrong_events_are_named_and_the_session_goes_on() {
    let server = speaking(|_| ()).await;
    let mut client = open(&server, PATH, &[]).await.ok().unwrap();
    client.next("session.created").await;
    let session = |session: Value| json!({ "type": "session.update", "session": session });
    let turns = |value: Value| update(json!({ "turn_detection": value }));
    let append = |audio: Value| json!({ "type": "input_audio_buffer.append", "audio": audio });
    for (event, field) in [
        (json!({ "type": "response.create" }), "type"),
        (json!({ "event_id": "x" }), "type"),
        (json!({ "type": "session.update" }), "session"),
        (session(json!({ "type": "realtime" })), "session.type"),
        (
            session(json!({ "type": "transcription", "include": ["x"] })),
            "session.include",
        ),
        (
            update(json!({ "format": { "type": "audio/mp3" } })),
            "session.audio.input.format.type",
        ),
        (
            update(json!({ "format": { "type": "audio/pcm", "rate": 16000 } })),
            "session.audio.input.format.rate",
        ),
        (
            update(json!({ "noise_reduction": { "type": "near_field" } })),
            "session.audio.input.noise_reduction",
        ),
        (
            turns(json!({ "type": "semantic_vad" })),
            "session.audio.input.turn_detection.type",
        ),
        (
            turns(json!({ "type": "server_vad", "threshold": 1.5 })),
            "session.audio.input.turn_detection.threshold",
        ),
        (
            turns(json!({ "silence_duration_ms": 0 })),
            "session.audio.input.turn_detection.silence_duration_ms",
        ),
        (
            update(json!({ "transcription": { "model": "other" } })),
            "session.audio.input.transcription.model",
        ),
        (
            update(json!({ "transcription": { "language": "klingon" } })),
            "session.audio.input.transcription.language",
        ),
        (append(json!("!")), "audio"),
        (append(json!(3)), "audio"),
        (append(json!(null)), "audio"),
    ] {
        let mut event = event;
        event["event_id"] = "mine".into();
        client.send(event.clone()).await;
        let error = client.next("error").await["error"].clone();
        assert_eq!(error["param"], field, "{event}: {error}");
        assert_eq!(error["event_id"], "mine", "{error}");
        assert!(
            error["message"].as_str().unwrap().starts_with(field),
            "{error}"
        );
    }
    for text in ["{", "[]", "3"] {
        client.write(Message::Text(text.into())).await;
        assert_eq!(
            client.next("error").await["error"]["type"],
            "invalid_request_error"
        );
    }
    client.write(Message::Binary(vec![1, 2].into())).await;
    let error = client.next("error").await;
    assert!(error.to_string().contains("binary"), "{error}");
    // Nothing of a wrong update holds.
    client.send(update(json!({ "turn_detection": null }))).await;
    let session = client.next("session.updated").await["session"].clone();
    assert_eq!(session["audio"]["input"]["transcription"]["model"], "tiny");
    // More sound than the buffer holds: eleven minutes of G.711.
    client
        .send(update(json!({ "format": { "type": "audio/pcmu" } })))
        .await;
    client.next("session.updated").await;
    client.append(&vec![0xff; 11 * 60 * 8000], 60 * 8000).await;
    let error = client.next("error").await["error"].clone();
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("more than 600 s"),
        "{error}"
    );
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_the_upgrade() {
    let server = speaking(|options| options.api_keys = vec!["Secret".into()]).await;
    let key = ("authorization", "Bearer Secret");
    let refused = async |path: &str, headers: &[(&'static str, &str)]| {
        let refused = open(&server, path, headers).await.err();
        refused.unwrap_or_else(|| panic!("{path} was opened"))
    };
    for (path, status, said) in [
        ("/v1/realtime", 400, "intent: is required"),
        ("/v1/realtime?intent=conversation", 400, "intent: "),
        (
            "/v1/realtime?model=gpt-realtime",
            400,
            "intent: is required",
        ),
        ("/v1/realtime?intent=transcription&model=other", 404, "tiny"),
        ("/v1/realtime?intent=transcription&model=demo", 404, "demo"),
    ] {
        let (found, text) = refused(path, &[key]).await;
        assert_eq!(found, status, "{path}: {text}");
        assert!(text.contains(said), "{path}: {text}");
    }
    assert_eq!(refused(PATH, &[]).await.0, 401);
    let foreign = [key, ("origin", "https://evil.example")];
    assert_eq!(refused(PATH, &foreign).await.0, 403);
    let plain = server.get("/v1/realtime?intent=transcription").await;
    assert!(plain.starts_with("HTTP/1.1 401"), "{plain}");
    let protocols = "realtime, openai-insecure-api-key.Secret";
    let browser = open(&server, PATH, &[("sec-websocket-protocol", protocols)]).await;
    browser.ok().unwrap().next("session.created").await;

    let chatting = hearing(None).await;
    let (status, text) = open(&chatting, PATH, &[]).await.err().unwrap();
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("ask it in a chat"), "{text}");
    let plain = chatting.get(PATH).await;
    assert!(
        plain.starts_with("HTTP/1.1 400") && plain.contains("upgrade"),
        "{plain}"
    );
}

/// A session ends with its client, and holds neither its place nor its work.
#[tokio::test]
async fn clients_that_leave_give_their_places_back() {
    let server =
        speaking(|options| (options.connections, options.connections_per_address) = (2, 2)).await;
    for _ in 0..4 {
        let mut client = open_soon(&server).await;
        client.next("session.created").await;
        client.append(&pcm(&"x".repeat(50)), 1 << 20).await;
        client
            .send(json!({ "type": "input_audio_buffer.commit" }))
            .await;
        client.next("input_audio_buffer.speech_started").await;
        client.next("input_audio_buffer.committed").await;
        // It says nothing, and is gone.
        drop(client);
    }
    // Open sessions are in use: they do not give way to others.
    let mut first = open_soon(&server).await;
    first.next("session.created").await;
    let mut second = open_soon(&server).await;
    second.next("session.created").await;
    let (status, text) = open(&server, PATH, &[]).await.err().unwrap();
    assert_eq!(status, 503, "{text}");
    first
        .send(json!({ "type": "input_audio_buffer.clear" }))
        .await;
    first.next("input_audio_buffer.cleared").await;
}

/// What was committed is still written down; then the socket is closed with a reason.
#[tokio::test]
async fn a_server_that_ends_says_so() {
    let server = speaking(|_| ()).await;
    let mut idle = open(&server, PATH, &[]).await.ok().unwrap();
    idle.next("session.created").await;
    let mut busy = open(&server, PATH, &[]).await.ok().unwrap();
    busy.next("session.created").await;
    busy.append(&pcm("xxxxxxxxxx"), 1 << 20).await;
    busy.send(json!({ "type": "input_audio_buffer.commit" }))
        .await;
    busy.next("input_audio_buffer.speech_started").await;
    let item = busy.next("input_audio_buffer.committed").await["item_id"].clone();
    busy.next("conversation.item.added").await;
    busy.next("conversation.item.done").await;
    server.shutdown.shutdown();
    busy.transcript(&item).await;
    for mut client in [idle, busy] {
        match client.message().await {
            Some(Ok(Message::Close(Some(frame)))) => {
                assert_eq!(frame.code, CloseCode::Away);
                assert_eq!(frame.reason.as_str(), "the server is about to end");
            }
            other => panic!("{other:?}"),
        }
        while let Some(Ok(_)) = client.message().await {}
    }
    server.done.await.unwrap().unwrap();
}

/// A message that is too large ends the session, and no other one.
#[tokio::test]
async fn messages_have_a_limit() {
    let server = speaking(|_| ()).await;
    let mut client = open(&server, PATH, &[]).await.ok().unwrap();
    client.next("session.created").await;
    // The server may close the connection before it has read everything.
    let _ = client
        .0
        .send(Message::Text(" ".repeat(22 << 20).into()))
        .await;
    while let Some(Ok(message)) = client.message().await {
        assert!(message.is_close(), "{message:?}");
    }
    let mut client = open(&server, PATH, &[]).await.ok().unwrap();
    client.next("session.created").await;
}
