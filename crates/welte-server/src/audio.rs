//! Speech: `/v1/audio/transcriptions` and `/v1/audio/translations` of OpenAI.

use crate::answer::respond_bytes;
use crate::app::App;
use crate::bodies;
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::multipart::{self, Part};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use futures_core::Stream;
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc;
use welte::{Speech, Task, TranscribeOptions, Transcript, TranscriptFormat, Update};

/// The name under which OpenAI's clients know Whisper.
const COMMON_NAME: &str = "whisper-1";
/// Fields whose name has brackets, as forms write lists.
const LISTS: [&str; 3] = ["timestamp_granularities", "include", "known_speaker_names"];

/// The model of speech that a server offers.
#[derive(Clone, Debug)]
pub struct SpeechService {
    /// The model's name.
    pub name: String,
    /// The model.
    pub model: Arc<Speech>,
}

/// `POST /v1/audio/transcriptions`
pub(crate) async fn transcriptions(state: State<Arc<App>>, uri: Uri, request: Request) -> Response {
    answered(state, uri, request, Task::Transcribe).await
}

/// `POST /v1/audio/translations`
pub(crate) async fn translations(state: State<Arc<App>>, uri: Uri, request: Request) -> Response {
    answered(state, uri, request, Task::Translate).await
}

async fn answered(State(app): State<Arc<App>>, uri: Uri, request: Request, task: Task) -> Response {
    let done = answer(&app, request, task).await;
    let done = done.map_err(|failure| app.without_folders(failure));
    done.unwrap_or_else(|failure| failure.response(Api::of(uri.path())))
}

/// What is wanted of a sound.
struct Wanted {
    options: TranscribeOptions,
    format: TranscriptFormat,
    segments: bool,
    stream: bool,
}

async fn answer(app: &Arc<App>, request: Request, task: Task) -> Outcome {
    let kind = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().to_string();
    let (body, ignored, held) = bodies::bytes(&app.bodies, &app.options, request).await?;
    let parts = multipart::parts(&kind, &body)?;
    let mut fields = Fields::root(form(&parts, &body)?, &ignored)?;
    let service = service(app, &mut fields)?;
    let wanted = wanted(app, &mut fields, task)?;
    fields.finish()?;
    let mut files = parts.into_iter().filter(|part| part.name == "file");
    let file = match (files.next(), files.next()) {
        (Some(file), None) => file.content,
        (None, _) => return Err(Failure::field("file", "is required")),
        _ => return Err(Failure::field("file", "one file is taken at a time")),
    };
    let wrong = |error: welte::Error| match error {
        welte::Error::Audio(error) => Failure::field("file", error),
        welte::Error::Speech { field, problem } => Failure::field(field, problem),
        other => other.into(),
    };
    let model = service.model.clone();
    let read = move || model.read(body[file].to_vec()).map_err(wrong);
    let audio = app.bodies.looking(read).await?;
    let (model, deadline) = (
        service.model,
        app.options.timeout.map(|time| Instant::now() + time),
    );
    let late = move || deadline.is_some_and(|deadline| Instant::now() > deadline);
    let too_late = || Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the answer takes too long");
    if wanted.stream {
        let (sender, receiver) = mpsc::unbounded_channel();
        let work = move || {
            let _held = held;
            let mut told = false;
            let done = model.transcribe(&audio, &wanted.options, &mut |update| {
                if late() {
                    return ControlFlow::Break(());
                }
                let Update::Segment(segment) = update else {
                    return flow(!sender.is_closed());
                };
                let text = if told {
                    &segment.text[..]
                } else {
                    segment.text.trim_start()
                };
                told = true;
                let event = json!({"type": "transcript.text.delta", "delta": text});
                flow(sender.send(line(&event)).is_ok())
            });
            let last = match done.map_err(wrong) {
                Ok(_) if late() => {
                    json!({"type": "error", "error": {"message": too_late().message}})
                }
                Ok(transcript) => {
                    json!({"type": "transcript.text.done", "text": transcript.text()})
                }
                Err(failure) => json!({"type": "error", "error": {"message": failure.message}}),
            };
            // Nobody listens any more.
            let _ = sender.send(line(&last));
            Ok(())
        };
        let bodies = app.bodies.clone();
        tokio::spawn(async move { bodies.looking(work).await });
        return Ok(respond_bytes(Events(receiver), "text/event-stream"));
    }
    let left = Left::default();
    let gone = left.0.clone();
    let options = wanted.options.clone();
    let work = move || {
        let _held = held;
        let see = &mut |_: Update<'_>| flow(!gone.load(Ordering::Relaxed) && !late());
        let transcript = model.transcribe(&audio, &options, see).map_err(wrong)?;
        if late() {
            Err(too_late())
        } else {
            Ok(transcript)
        }
    };
    let transcript = app.bodies.looking(work).await?;
    drop(left);
    Ok(written(&transcript, &wanted))
}

/// Says that the client has left, once it is dropped with the request.
#[derive(Default)]
struct Left(Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn flow(goes_on: bool) -> ControlFlow<()> {
    if goes_on {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

fn line(event: &Value) -> Bytes {
    format!("data: {event}\n\n").into()
}

/// Events as they come.
struct Events(mpsc::UnboundedReceiver<Bytes>);

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

/// The text fields of a form.
fn form(parts: &[Part], body: &[u8]) -> Result<Map<String, Value>, Failure> {
    let mut map = Map::new();
    for part in parts.iter().filter(|part| part.name != "file") {
        let wrong = |problem: &str| Failure::field(part.name.clone(), problem);
        if part.is_file {
            return Err(wrong("is a file, expected text"));
        }
        let text = std::str::from_utf8(&body[part.content.clone()]);
        let text = Value::from(text.map_err(|_| wrong("is not UTF-8"))?);
        let name = part.name.strip_suffix("[]").unwrap_or(&part.name);
        if LISTS.contains(&name) {
            let list = map.entry(name).or_insert_with(|| json!([]));
            list.as_array_mut()
                .into_iter()
                .for_each(|list| list.push(text.clone()));
        } else if map.insert(name.to_string(), text).is_some() {
            return Err(wrong("is given twice"));
        }
    }
    Ok(map)
}

fn service(app: &App, fields: &mut Fields) -> Result<SpeechService, Failure> {
    let service = app.options.speech.clone().ok_or_else(|| {
        let message = "no model of speech is served here; start the server with --speech";
        Failure::new(StatusCode::NOT_FOUND, message)
    })?;
    let name: Option<String> = fields.take("model")?;
    match name.as_deref() {
        Some(name) if name != service.name && name != COMMON_NAME => {
            let message = format!(
                "there is no model of speech {name:?}; there is {:?}",
                service.name
            );
            Err(Failure::new(StatusCode::NOT_FOUND, message))
        }
        None if app.options.strict => Err(fields.wrong("model", "is required")),
        _ => Ok(service),
    }
}

fn wanted(app: &App, fields: &mut Fields, task: Task) -> Result<Wanted, Failure> {
    let mut options = TranscribeOptions::default();
    options.task = task;
    options.seed = app.options.seed.unwrap_or(0);
    options.prompt = fields.take("prompt")?;
    if task == Task::Transcribe {
        options.language = fields.take("language")?;
    }
    if let Some(text) = fields.take::<String>("temperature")? {
        let number = text
            .trim()
            .parse::<f32>()
            .ok()
            .filter(|t| (0.0..=1.0).contains(t));
        let wrong = || fields.wrong("temperature", "must be a number from 0 to 1");
        let number = number.ok_or_else(wrong)?;
        // At 0 temperatures rise until the text is good enough.
        if number > 0.0 {
            options.temperatures = vec![number];
        }
    }
    let format: Option<String> = fields.take("response_format")?;
    let format = match format.as_deref() {
        None => TranscriptFormat::Json,
        Some(name) => {
            let known = TranscriptFormat::ALL
                .into_iter()
                .find(|format| format.name() == name);
            let names = TranscriptFormat::ALL.map(TranscriptFormat::name).join(", ");
            known
                .ok_or_else(|| fields.wrong("response_format", format!("must be one of {names}")))?
        }
    };
    let kinds: Option<Vec<String>> = fields.take("timestamp_granularities")?;
    let mut segments = kinds.as_ref().is_none_or(Vec::is_empty);
    for kind in kinds.into_iter().flatten() {
        match kind.as_str() {
            "segment" => segments = true,
            "word" => options.word_timestamps = true,
            _ => return Err(fields.wrong("timestamp_granularities", "must be word or segment")),
        }
    }
    if options.word_timestamps && format != TranscriptFormat::VerboseJson {
        let problem = "times of words come with response_format verbose_json";
        return Err(fields.wrong("timestamp_granularities", problem));
    }
    let stream = match fields.take::<String>("stream")?.as_deref() {
        None | Some("false" | "False" | "0") => false,
        Some("true" | "True" | "1") => true,
        Some(_) => return Err(fields.wrong("stream", "must be true or false")),
    };
    if stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
        let problem = "events have the text only; take response_format json or text";
        return Err(fields.wrong("stream", problem));
    }
    fields.refuse(&[
        "include",
        "chunking_strategy",
        "known_speaker_names",
        "known_speaker_references",
    ])?;
    Ok(Wanted {
        options,
        format,
        segments,
        stream,
    })
}

fn written(transcript: &Transcript, wanted: &Wanted) -> Response {
    match wanted.format {
        TranscriptFormat::VerboseJson => {
            ok(&transcript.verbose(wanted.segments, wanted.options.word_timestamps))
        }
        TranscriptFormat::Json => ok(&json!({"text": transcript.text()})),
        format => {
            let kind = match format {
                TranscriptFormat::Vtt => "text/vtt; charset=utf-8",
                _ => "text/plain; charset=utf-8",
            };
            let mut response = Response::new(transcript.write(format).into());
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        }
    }
}
