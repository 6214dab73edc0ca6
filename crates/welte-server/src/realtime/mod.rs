//! `/v1/realtime`: transcription sessions of OpenAI's realtime API, over a websocket.
//!
//! A session has one task, which reads the client's events and sends the server's. Another one writes down what was committed
//! (`work.rs`), so that sound comes in meanwhile.

mod ear;
mod settings;
mod work;

use crate::app::App;
use crate::bodies::{self, Held};
use crate::client::Client;
use crate::connections::Place;
use crate::engine::Asked;
use crate::error::{Api, Failure, Outcome};
use crate::fields::Fields;
use crate::ignored::Ignored;
use crate::scribe::{Left, Scribe};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use ear::{Ear, Heard};
use serde_json::{Value, json};
use settings::{Dialect, Settings};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, UnboundedSender};
use welte::TranscribeOptions;
use welte_audio::RATE;
use work::{Job, Report, Told, work};

/// The most bytes of a message: 15 MiB of sound as base64, and some.
const LARGEST_MESSAGE: usize = 21 << 20;
/// Messages that are larger are taken apart beside the threads that serve.
const TAKEN_AT_ONCE: usize = 64 << 10;
/// The most seconds of sound that are in the buffer or wait to be written down.
const MOST_SECONDS: usize = 600;
/// The shortest sound that the client may commit, in milliseconds.
const SHORTEST: usize = 100;
/// How often a silent client is asked for a sign of life, and when it counts as gone.
const PING: Duration = Duration::from_secs(20);
const GONE: Duration = Duration::from_secs(60);
/// How long a message may take to be sent, and a client to close its side.
const SENDING: Duration = Duration::from_secs(30);
const CLOSING: Duration = Duration::from_secs(2);
/// The subprotocol that browsers ask for beside their key.
const PROTOCOL: &str = "realtime";
/// The header with which clients ask for the older events.
const BETA: &str = "openai-beta";

/// `GET /v1/realtime`
pub(crate) async fn realtime(
    State(app): State<Arc<App>>,
    Query(asked): Asked,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
) -> Response {
    let place = request.extensions().get::<Arc<Place>>().cloned();
    let beta = request.headers().get(BETA);
    let dialect = match beta {
        Some(value) if value.as_bytes().starts_with(b"realtime") => Dialect::Beta,
        _ => Dialect::Today,
    };
    let done = open(&app, &asked, upgrade, place, dialect).await;
    let done = done.map_err(|failure| app.without_folders(failure));
    done.unwrap_or_else(|failure| failure.response(Api::of(uri.path())))
}

/// Everything that can be wrong before the connection is a websocket.
async fn open(
    app: &Arc<App>,
    asked: &HashMap<String, String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    place: Option<Arc<Place>>,
    dialect: Dialect,
) -> Outcome {
    match asked.get("intent").map(String::as_str) {
        Some("transcription") => {}
        Some(other) => {
            let problem = format!("{other:?} is not supported; use transcription");
            return Err(Failure::field("intent", problem));
        }
        None => {
            let problem = "is required: transcription; conversations are not supported";
            return Err(Failure::field("intent", problem));
        }
    }
    let upgrade = upgrade.map_err(|rejection| Failure::request(rejection.body_text()))?;
    let place = place.ok_or_else(|| Failure::server("the connection has no place"))?;
    let name = asked.get("model").filter(|name| !name.is_empty()).cloned();
    let scribe = Scribe::find(app, name.as_deref()).await?;
    scribe.check(&TranscribeOptions::default())?;
    let permit = app.bodies.session()?;
    let settings = Settings::new(name, scribe.name());
    let opened = Opened {
        app: app.clone(),
        place,
        settings,
        dialect,
        _permit: permit,
    };
    let client = Client::current();
    let upgrade = upgrade
        .max_message_size(LARGEST_MESSAGE)
        .max_frame_size(LARGEST_MESSAGE)
        .protocols([PROTOCOL]);
    Ok(upgrade.on_upgrade(move |socket| client.scope(opened.run(socket))))
}

/// A session that waits for its websocket.
struct Opened {
    app: Arc<App>,
    place: Arc<Place>,
    settings: Settings,
    dialect: Dialect,
    _permit: OwnedSemaphorePermit,
}

/// Why a session ends.
enum End {
    /// The client has left.
    Left,
    /// The server closes the connection, with a code and a reason.
    Closed(u16, String),
}

impl Opened {
    async fn run(self, mut socket: WebSocket) {
        // The connection is busy as long as the session lasts.
        let _in_flight = self.place.begin(false);
        let held = match self.app.bodies.hold(0) {
            Ok(held) => held,
            Err(_) => return,
        };
        let (jobs, waiting) = mpsc::unbounded_channel();
        let (reports, mut reported) = mpsc::unbounded_channel();
        let left = Left::default();
        let work = work(self.app.clone(), waiting, reports, left.0.clone());
        tokio::spawn(Client::current().scope(work));
        let mut session = Session {
            id: self.app.id("sess_"),
            ear: Some(Ear::new(self.settings.format, self.settings.turns)),
            settings: self.settings,
            dialect: self.dialect,
            held,
            jobs,
            waiting: 0,
            samples: 0,
            turn: None,
            last: None,
            ending: false,
            events: Vec::new(),
            app: self.app,
        };
        session.tell_settings("created");
        let orders = &self.place.orders;
        let mut ping = tokio::time::interval_at((Instant::now() + PING).into(), PING);
        let mut heard = Instant::now();
        let end = loop {
            if let Err(end) = session.send(&mut socket).await {
                break end;
            }
            if session.ending && session.waiting == 0 {
                break End::Closed(close_code::AWAY, "the server is about to end".into());
            }
            tokio::select! {
                message = socket.recv() => {
                    heard = Instant::now();
                    if let Err(end) = session.take(message).await {
                        break end;
                    }
                }
                Some(report) = reported.recv() => session.report(report),
                () = orders.close.notified() => {
                    let reason = "the connection is needed for another client".to_string();
                    break End::Closed(close_code::AGAIN, reason);
                }
                () = orders.finish.notified() => session.ending = true,
                _ = ping.tick() => {
                    if heard.elapsed() > GONE {
                        break End::Left;
                    }
                    session.ending |= session.app.is_draining();
                    if sent(&mut socket, Message::Ping(Default::default())).await.is_err() {
                        break End::Left;
                    }
                }
            }
        };
        drop(left);
        if let End::Closed(code, reason) = end {
            close(socket, code, reason).await;
        }
    }
}

/// Sends a message, unless the client does not read.
async fn sent(socket: &mut WebSocket, message: Message) -> Result<(), End> {
    let sent = tokio::time::timeout(SENDING, socket.send(message)).await;
    match sent {
        Ok(Ok(())) => Ok(()),
        _ => Err(End::Left),
    }
}

/// Closes a connection. What the client still sends is read, so that the reason reaches it.
async fn close(mut socket: WebSocket, code: u16, reason: String) {
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    if sent(&mut socket, Message::Close(Some(frame))).await.is_ok() {
        let rest = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = tokio::time::timeout(CLOSING, rest).await;
    }
}

struct Session {
    app: Arc<App>,
    id: String,
    settings: Settings,
    dialect: Dialect,
    /// `None` only while a large message is taken.
    ear: Option<Ear>,
    /// Memory of the buffer.
    held: Held,
    jobs: UnboundedSender<Job>,
    /// Items, and their samples, that are not written down.
    waiting: usize,
    samples: usize,
    /// The item that the turn becomes which has begun.
    turn: Option<String>,
    /// The last item.
    last: Option<String>,
    /// The server is about to end: what was committed is written down, and nothing is taken.
    ending: bool,
    /// Events to be sent.
    events: Vec<Value>,
}

impl Session {
    /// Sends what there is.
    async fn send(&mut self, socket: &mut WebSocket) -> Result<(), End> {
        for event in std::mem::take(&mut self.events) {
            sent(socket, Message::Text(event.to_string().into())).await?;
        }
        Ok(())
    }

    fn tell(&mut self, kind: &str, mut event: Value) {
        event["type"] = kind.into();
        event["event_id"] = self.app.id("event_").into();
        self.events.push(event);
    }

    fn tell_settings(&mut self, what: &str) {
        let kind = match self.dialect {
            Dialect::Today => format!("session.{what}"),
            Dialect::Beta => format!("transcription_session.{what}"),
        };
        let session = self.settings.json(&self.id, self.dialect);
        self.tell(&kind, json!({ "session": session }));
    }

    /// Tells what is wrong. `event`: the id of the client's event.
    fn fail(&mut self, failure: Failure, event: Option<String>) {
        let failure = self.app.without_folders(failure);
        let mut error = failure.body(Api::OpenAi)["error"].take();
        error["event_id"] = event.into();
        self.tell("error", json!({ "error": error }));
    }

    /// Takes what the client has sent.
    async fn take(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), End> {
        let text = match message {
            None | Some(Ok(Message::Close(_))) => return Err(End::Left),
            Some(Err(error)) => {
                // A message that is too large is the client's fault; others mean that it has left.
                let reason = error.to_string();
                let too_large = reason.contains("too long") || reason.contains("too large");
                return Err(if too_large {
                    let reason = format!("a message has at most {} MiB", LARGEST_MESSAGE >> 20);
                    End::Closed(close_code::SIZE, reason)
                } else {
                    End::Left
                });
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => return Ok(()),
            Some(Ok(Message::Binary(_))) => {
                let problem = "binary messages are not supported; send events as JSON";
                self.fail(Failure::request(problem), None);
                return Ok(());
            }
            Some(Ok(Message::Text(text))) => text,
        };
        let mut id = None;
        if let Err(failure) = self.event(text.as_str(), &mut id).await {
            self.fail(failure, id);
        }
        Ok(())
    }

    /// Takes an event. `id` becomes its own.
    async fn event(&mut self, text: &str, id: &mut Option<String>) -> Result<(), Failure> {
        let (event, _held) = bodies::parse(&self.app.bodies, text)?;
        let is_null = |path: &str| event.pointer(path).is_some_and(Value::is_null);
        let no_turns = [
            "/session/audio/input/turn_detection",
            "/session/turn_detection",
        ];
        let no_turns = no_turns.map(is_null);
        let ignored = Ignored::new(self.app.options.strict);
        let mut fields = Fields::of(event, String::new(), &ignored)?;
        *id = fields.take("event_id")?;
        let kind: String = fields.need("type")?;
        if self.ending {
            let problem = "the server is about to end";
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, problem));
        }
        match kind.as_str() {
            "session.update" => self.update(fields, Dialect::Today, no_turns[0]).await,
            "transcription_session.update" => self.update(fields, Dialect::Beta, no_turns[1]).await,
            "input_audio_buffer.append" => self.append(fields).await,
            "input_audio_buffer.commit" => {
                fields.finish()?;
                self.commit()
            }
            "input_audio_buffer.clear" => {
                fields.finish()?;
                self.ear().take();
                self.turn = None;
                self.tell("input_audio_buffer.cleared", json!({}));
                self.hold_buffer()
            }
            other => {
                let problem = format!(
                    "{other:?} is not supported; use session.update, or append, commit or clear of input_audio_buffer"
                );
                Err(fields.wrong("type", problem))
            }
        }
    }

    fn ear(&mut self) -> &mut Ear {
        let (format, turns) = (self.settings.format, self.settings.turns);
        self.ear.get_or_insert_with(|| Ear::new(format, turns))
    }

    async fn update(
        &mut self,
        mut fields: Fields,
        dialect: Dialect,
        no_turns: bool,
    ) -> Result<(), Failure> {
        let Some(mut session) = fields.object("session")? else {
            return Err(fields.wrong("session", "is required"));
        };
        fields.finish()?;
        let mut settings = self.settings.clone();
        settings.update(&mut session, dialect, no_turns)?;
        session.finish()?;
        // Both are fields of the transcription.
        let place = match dialect {
            Dialect::Today => "session.audio.input.transcription",
            Dialect::Beta => "session.input_audio_transcription",
        };
        let named = |failure: Failure| {
            let field = failure.field.clone().unwrap_or_else(|| "model".to_string());
            let own = format!("{field}: ");
            let problem = failure
                .message
                .strip_prefix(&own)
                .unwrap_or(&failure.message);
            Failure {
                status: failure.status,
                ..Failure::field(format!("{place}.{field}"), problem)
            }
        };
        let scribe = Scribe::find(&self.app, settings.asked.as_deref()).await;
        let scribe = scribe.map_err(named)?;
        scribe.check(&settings.options(0)).map_err(named)?;
        settings.model = scribe.name().to_string();
        let (format, turns) = (settings.format, settings.turns);
        (self.settings, self.dialect) = (settings, dialect);
        self.tell_settings("updated");
        let heard = self.ear().set(format, turns);
        if turns.is_none() {
            self.turn = None;
        }
        self.follow(heard)
    }

    async fn append(&mut self, mut fields: Fields) -> Result<(), Failure> {
        let audio: String = fields.need("audio")?;
        fields.finish()?;
        let wrong = |problem: &str| Failure::field("audio", problem);
        let own = self.ear().samples_of(audio.len() / 4 * 3);
        let all = self.ear().len() + self.samples + own;
        if all > MOST_SECONDS * RATE as usize {
            return Err(wrong(&format!(
                "more than {MOST_SECONDS} s of sound are in the buffer or wait to be written down; commit or clear it, or wait for the transcripts"
            )));
        }
        self.held.add(4 * own)?;
        let push = |mut ear: Ear, audio: &str| {
            let heard = welte_text::from_base64(audio).map(|bytes| ear.push(&bytes));
            (ear, heard)
        };
        self.ear();
        let Some(ear) = self.ear.take() else {
            return Ok(());
        };
        let (ear, heard) = if audio.len() <= TAKEN_AT_ONCE {
            push(ear, &audio)
        } else {
            let done = self.app.bodies.aside(move || Ok(push(ear, &audio)));
            done.await?
        };
        self.ear = Some(ear);
        match heard {
            Some(heard) => self.follow(heard),
            None => {
                self.hold_buffer()?;
                Err(wrong("is not base64"))
            }
        }
    }

    /// Memory of the buffer as it is.
    fn hold_buffer(&mut self) -> Result<(), Failure> {
        let bytes = 4 * self.ear().len();
        self.held.set(bytes)
    }

    fn commit(&mut self) -> Result<(), Failure> {
        let ms = self.ear().len() * 1000 / RATE as usize;
        if ms < SHORTEST {
            let problem =
                format!("the buffer has {ms} ms of sound; at least {SHORTEST} ms can be committed");
            return Err(Failure {
                code: Some("input_audio_buffer_commit_empty"),
                ..Failure::request(problem)
            });
        }
        let samples = self.ear().take();
        let item = self.turn.take().unwrap_or_else(|| self.app.id("item_"));
        self.write_down(item, samples)
    }

    /// Tells of turns, and commits those that have ended.
    fn follow(&mut self, heard: Vec<Heard>) -> Result<(), Failure> {
        for event in heard {
            let item = self.turn.take().unwrap_or_else(|| self.app.id("item_"));
            match event {
                Heard::Started(ms) => {
                    let event = json!({ "audio_start_ms": ms, "item_id": item });
                    self.tell("input_audio_buffer.speech_started", event);
                    self.turn = Some(item);
                }
                Heard::Stopped(ms, samples) => {
                    let event = json!({ "audio_end_ms": ms, "item_id": item });
                    self.tell("input_audio_buffer.speech_stopped", event);
                    self.write_down(item, samples)?;
                }
            }
        }
        self.hold_buffer()
    }

    /// Makes an item of sound from the buffer.
    fn write_down(&mut self, item: String, samples: Vec<f32>) -> Result<(), Failure> {
        let held = self.held.part(4 * samples.len());
        let before = self.last.replace(item.clone());
        let event = json!({ "previous_item_id": before, "item_id": item });
        self.tell("input_audio_buffer.committed", event);
        let content = json!([{ "type": "input_audio", "transcript": null }]);
        let event = json!({ "previous_item_id": before, "item": {
            "id": item, "object": "realtime.item", "type": "message", "role": "user", "status": "completed", "content": content,
        } });
        match self.dialect {
            Dialect::Today => {
                self.tell("conversation.item.added", event.clone());
                self.tell("conversation.item.done", event);
            }
            Dialect::Beta => self.tell("conversation.item.created", event),
        }
        self.waiting += 1;
        self.samples += samples.len();
        let job = Job {
            item,
            samples,
            held,
            settings: self.settings.clone(),
        };
        let sent = self.jobs.send(job);
        sent.map_err(|_| Failure::server("nobody writes down what is said"))
    }

    /// Tells what became of an item.
    fn report(&mut self, (item, samples, told): Report) {
        let mut event = json!({ "item_id": item, "content_index": 0 });
        let kind = match told {
            Told::Delta(text) => {
                event["delta"] = text.into();
                "delta"
            }
            Told::Completed(written) => {
                event["transcript"] = written.text.into();
                event["logprobs"] = written.logprobs;
                event["usage"] = json!({ "type": "duration", "seconds": written.seconds });
                "completed"
            }
            Told::Failed(failure) => {
                event["error"] = failure.body(Api::OpenAi)["error"].take();
                "failed"
            }
        };
        if kind != "delta" {
            (self.waiting, self.samples) = (self.waiting - 1, self.samples - samples);
        }
        let kind = format!("conversation.item.input_audio_transcription.{kind}");
        self.tell(&kind, event);
    }
}
