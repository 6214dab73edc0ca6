//! Speech: `/v1/audio/transcriptions` and `/v1/audio/translations` of OpenAI.

use crate::answer::respond_bytes;
use crate::app::App;
use crate::bodies::{self, Held};
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::multipart::{self, Part};
use crate::scribe::{Deltas, Left, Scribe, See, flow, in_time, probabilities};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use futures_core::Stream;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use welte::{Task, TranscribeOptions, Transcript, TranscriptFormat, Update};

/// Fields whose name has brackets, as forms write lists.
const LISTS: [&str; 3] = ["timestamp_granularities", "include", "known_speaker_names"];

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
    let scribe = scribe(app, &mut fields, task).await?;
    let wanted = wanted(app, &mut fields, &scribe, task)?;
    fields.finish()?;
    let deadline = scribe.deadline(app);
    let work = Work {
        app: app.clone(),
        scribe: scribe.clone(),
        file,
        body,
        held,
    };
    let left = Left::default();
    let gone = left.0.clone();
    if !wanted.stream {
        let options = wanted.options;
        let work = scribe.clone().listening(app, move || {
            let see = &mut |_: Update<'_>| flow(!gone.load(Ordering::Relaxed));
            let transcript = work.transcript(&options, see)?;
            Ok(wanted.answer.write(&scribe, &transcript))
        });
        return in_time(deadline, work).await;
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let (logprobs, ended) = (wanted.answer.logprobs, gone.clone());
    let app = app.clone();
    let teller = Teller {
        scribe: scribe.clone(),
        deltas: scribe.deltas(),
        sender: sender.clone(),
        logprobs,
    };
    let work = async move {
        let work = scribe.clone().listening(&app, move || {
            let mut teller = teller;
            let see = &mut |update: Update<'_>| {
                flow(!gone.load(Ordering::Relaxed) && teller.tell(update))
            };
            let transcript = work.transcript(&wanted.options, see)?;
            let mut event = json!({"type": "transcript.text.done", "text": transcript.text()});
            if logprobs {
                event["logprobs"] = probabilities(&scribe, &transcript.segments);
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

/// Makes events of the text as it comes.
struct Teller {
    scribe: Scribe,
    deltas: Deltas,
    sender: mpsc::UnboundedSender<Bytes>,
    logprobs: bool,
}

impl Teller {
    /// False if nobody listens any more.
    fn tell(&mut self, update: Update<'_>) -> bool {
        let Some(text) = self.deltas.text(&update) else {
            return true;
        };
        let mut event = json!({"type": "transcript.text.delta", "delta": text});
        if let Update::Segment(segment) = update
            && self.logprobs
        {
            event["logprobs"] = probabilities(&self.scribe, [segment]);
        }
        self.sender.send(line(&event)).is_ok()
    }
}

/// A file that is to be written down.
struct Work {
    app: Arc<App>,
    scribe: Scribe,
    /// Where the file lies in the body.
    file: Range<usize>,
    body: Vec<u8>,
    held: Held,
}

impl Work {
    fn transcript(
        mut self,
        options: &TranscribeOptions,
        see: &mut See<'_>,
    ) -> Result<Transcript, Failure> {
        if see(Update::Working).is_break() {
            return Err(Failure::request("nobody waits for the answer any more"));
        }
        self.scribe.check(options)?;
        self.body.truncate(self.file.end);
        self.body.drain(..self.file.start);
        let (scribe, most) = (&self.scribe, self.app.bodies.most());
        let see = RefCell::new(see);
        let wanted = || {
            let mut see = see.borrow_mut();
            (*see)(Update::Working).is_continue()
        };
        let audio = scribe.read(self.body, most, &wanted)?;
        let seconds = audio.seconds().ceil() as usize;
        self.held.add(seconds * scribe.bytes_per_second())?;
        scribe.transcribe(&self.app, &audio, options, see.into_inner())
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

/// The model that a request names.
async fn scribe(app: &App, fields: &mut Fields, task: Task) -> Result<Scribe, Failure> {
    let name: Option<String> = fields.take("model")?;
    if name.is_none() && app.options.strict {
        return Err(fields.wrong("model", "is required"));
    }
    match task {
        Task::Transcribe => Scribe::find(app, name.as_deref()).await,
        Task::Translate => Scribe::find_translator(app, name.as_deref()),
    }
}

fn wanted(app: &App, fields: &mut Fields, scribe: &Scribe, task: Task) -> Result<Wanted, Failure> {
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
    if options.word_timestamps && scribe.is_language_model() {
        let problem = "a language model does not tell the times of words; take segment, or a Whisper model with --speech";
        return Err(fields.wrong("timestamp_granularities", problem));
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
    options.logprobs = logprobs || format == TranscriptFormat::VerboseJson;
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

impl Answer {
    fn write(&self, scribe: &Scribe, transcript: &Transcript) -> Response {
        let format = self.format;
        let kind = match format {
            TranscriptFormat::VerboseJson => {
                return ok(&transcript.verbose(self.segments, self.words));
            }
            TranscriptFormat::Json => {
                let mut answer = json!({"text": transcript.text()});
                if self.logprobs {
                    answer["logprobs"] = probabilities(scribe, &transcript.segments);
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
