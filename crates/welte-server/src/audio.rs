//! Speech: `/v1/audio/transcriptions` and `/v1/audio/translations` of OpenAI.

use crate::answer::respond_bytes;
use crate::app::App;
use crate::bodies::{self, Held};
use crate::dictation;
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::models::Lease;
use crate::multipart::{self, Part};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use futures_core::Stream;
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc;
use welte::{Segment, Speech, Task, TranscribeOptions, Transcript, TranscriptFormat, Update};

/// The name under which OpenAI's clients know Whisper.
const COMMON_NAME: &str = "whisper-1";
/// The most seconds of a file.
const LONGEST: u32 = 4 * 3600;
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
    answer: Answer,
    stream: bool,
}

/// What the answer has.
struct Answer {
    format: TranscriptFormat,
    segments: bool,
    words: bool,
    logprobs: bool,
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
    let mut files = parts.into_iter().filter(|part| part.name == "file");
    let file = match (files.next(), files.next()) {
        (Some(file), None) => file.content,
        (None, _) => return Err(Failure::field("file", "is required")),
        _ => return Err(Failure::field("file", "one file is taken at a time")),
    };
    let service = match service(app, &mut fields, task).await? {
        Service::Speech(service) => service,
        Service::Language(served) => {
            let wanted = dictation::take(&mut fields)?;
            fields.finish()?;
            let sound = Arc::from(&body[file]);
            return dictation::answer(app, &served, wanted, sound).await;
        }
    };
    let wanted = wanted(app, &mut fields, task)?;
    fields.finish()?;
    let work = Work {
        most: app.bodies.most() / service.model.bytes_per_second(),
        model: service.model,
        file,
        body,
        held,
    };
    let deadline = app.options.timeout.map(|time| Instant::now() + time);
    let left = Left::default();
    let gone = left.0.clone();
    if !wanted.stream {
        let options = wanted.options;
        let work = app.bodies.listening(move || {
            let see = &mut |_: Update<'_>| flow(!gone.load(Ordering::Relaxed));
            let (model, transcript) = work.transcript(&options, see)?;
            Ok(wanted.answer.write(&model, &transcript))
        });
        return in_time(deadline, work).await;
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let (bodies, logprobs) = (app.bodies.clone(), wanted.answer.logprobs);
    let (events, ended) = (sender.clone(), gone.clone());
    let app = app.clone();
    let work = async move {
        let work = bodies.listening(move || {
            let model = work.model.clone();
            let mut told = false;
            let see = &mut |update: Update<'_>| {
                let Update::Segment(segment) = update else {
                    return flow(!gone.load(Ordering::Relaxed));
                };
                let text = if told {
                    &segment.text[..]
                } else {
                    segment.text.trim_start()
                };
                told = true;
                let mut event = json!({"type": "transcript.text.delta", "delta": text});
                if logprobs {
                    event["logprobs"] = probabilities(&model, [segment]);
                }
                flow(events.send(line(&event)).is_ok())
            };
            let (model, transcript) = work.transcript(&wanted.options, see)?;
            let mut event = json!({"type": "transcript.text.done", "text": transcript.text()});
            if logprobs {
                event["logprobs"] = probabilities(&model, &transcript.segments);
            }
            Ok(event)
        });
        let last = in_time(deadline, work).await;
        ended.store(true, Ordering::Relaxed);
        let last = last.unwrap_or_else(|failure| {
            let failure = app.without_folders(failure);
            json!({"type": "error", "error": {"message": failure.message}})
        });
        // Nobody may listen any more.
        let _ = sender.send(line(&last));
    };
    tokio::spawn(work);
    Ok(respond_bytes(
        Events {
            receiver,
            _left: left,
        },
        "text/event-stream",
    ))
}

/// What takes too long fails. The work that it waits for ends once the request is dropped.
async fn in_time<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(deadline) = deadline else {
        return work.await;
    };
    let done = tokio::time::timeout_at(deadline.into(), work).await;
    done.unwrap_or_else(|_| {
        let message = "the answer takes too long; send shorter files, or see --timeout";
        Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message))
    })
}

/// A file that is to be written down.
struct Work {
    model: Arc<Speech>,
    /// Where the file lies in the body.
    file: Range<usize>,
    body: Vec<u8>,
    held: Held,
    /// The most seconds whose memory is there.
    most: usize,
}

impl Work {
    fn transcript(
        mut self,
        options: &TranscribeOptions,
        see: &mut dyn FnMut(Update<'_>) -> ControlFlow<()>,
    ) -> Result<(Arc<Speech>, Transcript), Failure> {
        let wrong = |error: welte::Error| match error {
            welte::Error::Audio(error) => Failure::field("file", error),
            welte::Error::Speech { field, problem } => Failure::field(field, problem),
            other => other.into(),
        };
        if see(Update::Working).is_break() {
            return Err(Failure::request("nobody waits for the answer any more"));
        }
        self.body.truncate(self.file.end);
        self.body.drain(..self.file.start);
        let most = u32::try_from(self.most).unwrap_or(u32::MAX).min(LONGEST);
        let audio = self.model.read(self.body, most).map_err(wrong)?;
        let seconds = audio.seconds().ceil() as usize;
        self.held.add(seconds * self.model.bytes_per_second())?;
        let transcript = self.model.transcribe(&audio, options, see).map_err(wrong)?;
        Ok((self.model, transcript))
    }
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
struct Events {
    receiver: mpsc::UnboundedReceiver<Bytes>,
    _left: Left,
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context).map(|event| event.map(Ok))
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

/// What writes speech down.
enum Service {
    Speech(SpeechService),
    /// A language model that hears.
    Language(Lease),
}

/// The model that a request names. One that cannot do the task is not loaded.
async fn service(app: &App, fields: &mut Fields, task: Task) -> Result<Service, Failure> {
    let name: Option<String> = fields.take("model")?;
    if name.is_none() && app.options.strict {
        return Err(fields.wrong("model", "is required"));
    }
    let own = name.as_deref().filter(|name| *name != COMMON_NAME);
    let speech = app.options.speech.clone();
    let of_speech = |speech: &SpeechService| own.is_none_or(|name| name == speech.name);
    if let Some(speech) = speech.filter(of_speech) {
        return Ok(Service::Speech(speech));
    }
    let missing = || {
        match (&app.options.speech, own) {
        (Some(speech), Some(name)) => {
            format!("there is no model of speech {name:?}; there is {:?}", speech.name)
        }
        _ => "no model of speech is served here; start the server with --speech, or serve a language model that writes transcripts (docs/speech.md lists them)".to_string(),
    }
    };
    let absent = |problem: String| Failure::new(StatusCode::NOT_FOUND, problem);
    if task == Task::Translate {
        if app.models.find_any(own, &app.options).is_err() {
            return Err(absent(missing()));
        }
        let problem = "a language model does not translate speech here; ask it in a chat, or start the server with --speech";
        return Err(fields.wrong("model", problem));
    }
    let served = match app.lease(own).await {
        Ok(served) => served,
        Err(failure) if failure.status == StatusCode::NOT_FOUND => return Err(absent(missing())),
        Err(failure) => return Err(failure),
    };
    if served.model.ears().is_none() {
        let why = served.model.no_sounds().unwrap_or("it has no ears");
        let (id, missing) = (&served.id, missing());
        return Err(absent(format!("{missing}. {id:?} takes no sounds: {why}")));
    }
    Ok(Service::Language(served))
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
    let is_plain = matches!(format, TranscriptFormat::Json | TranscriptFormat::Text);
    if stream && !is_plain {
        let problem = "events have the text only; take response_format json or text";
        return Err(fields.wrong("stream", problem));
    }
    let include: Vec<String> = fields.take("include")?.unwrap_or_default();
    let logprobs = !include.is_empty();
    if include.iter().any(|what| what != "logprobs") {
        return Err(fields.wrong("include", "must be logprobs"));
    }
    if logprobs && format != TranscriptFormat::Json {
        return Err(fields.wrong("include", "comes with response_format json"));
    }
    options.batch = match fields.take::<String>("chunking_strategy")?.as_deref() {
        None => false,
        Some("auto") => true,
        Some(_) => return Err(fields.wrong("chunking_strategy", "must be auto")),
    };
    fields.refuse(&["known_speaker_names", "known_speaker_references"])?;
    Ok(Wanted {
        answer: Answer {
            format,
            segments,
            words: options.word_timestamps,
            logprobs,
        },
        options,
        stream,
    })
}

/// The tokens of segments with the logarithms of their probabilities, as OpenAI has them.
fn probabilities<'a>(model: &Speech, segments: impl IntoIterator<Item = &'a Segment>) -> Value {
    let mut all = Vec::new();
    for segment in segments {
        all.extend(model.spelled(segment).map(|(bytes, logprob)| {
            json!({"token": String::from_utf8_lossy(bytes), "bytes": bytes, "logprob": logprob})
        }));
    }
    all.into()
}

impl Answer {
    fn write(&self, model: &Speech, transcript: &Transcript) -> Response {
        let format = self.format;
        let kind = match format {
            TranscriptFormat::VerboseJson => {
                return ok(&transcript.verbose(self.segments, self.words));
            }
            TranscriptFormat::Json => {
                let mut answer = json!({"text": transcript.text()});
                if self.logprobs {
                    answer["logprobs"] = probabilities(model, &transcript.segments);
                }
                return ok(&answer);
            }
            TranscriptFormat::Vtt => "text/vtt; charset=utf-8",
            TranscriptFormat::Text | TranscriptFormat::Srt => "text/plain; charset=utf-8",
        };
        let mut response = Response::new(transcript.write(format).into());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }
}
