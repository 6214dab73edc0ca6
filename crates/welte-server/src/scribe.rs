//! What writes down speech: a model of speech, or a language model that hears.

use crate::answer::{Answers, Event};
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::error::Failure;
use crate::length;
use crate::models::Lease;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use welte::{
    Audio, GenerateOptions, Segment, Speech, TranscribeOptions, Transcript, Update, WrittenWindow,
};

/// The name under which OpenAI's clients know Whisper.
pub(crate) const COMMON_NAME: &str = "whisper-1";
/// The most seconds of a file.
const LONGEST: u32 = 4 * 3600;
/// How often to look whether somebody still waits, and whether the queue has a place.
const LOOKS: Duration = Duration::from_millis(50);

/// The model of speech that a server offers.
#[derive(Clone, Debug)]
pub struct SpeechService {
    /// The model's name.
    pub name: String,
    /// The model.
    pub model: Arc<Speech>,
}

/// A model that writes down speech.
#[derive(Clone)]
pub(crate) enum Scribe {
    Speech(SpeechService),
    /// A language model that hears.
    Language(Lease),
}

/// What tells how far a transcript is, and may end it.
pub(crate) type See<'a> = dyn FnMut(Update<'_>) -> ControlFlow<()> + 'a;

impl Scribe {
    /// The model of this name, or the default one. Those that take no sounds are refused.
    pub(crate) async fn find(app: &App, name: Option<&str>) -> Result<Scribe, Failure> {
        let own = name.filter(|name| *name != COMMON_NAME);
        if let Some(speech) = Scribe::speech(app, own) {
            return Ok(speech);
        }
        let absent = |problem: String| Failure::new(StatusCode::NOT_FOUND, problem);
        let served = match app.lease(own).await {
            Err(failure) if failure.status == StatusCode::NOT_FOUND => {
                return Err(absent(missing(app, own)));
            }
            served => served?,
        };
        if served.model.ears().is_none() {
            let why = served.model.no_sounds().unwrap_or("it has no ears");
            let (id, missing) = (&served.id, missing(app, own));
            return Err(absent(format!("{missing}. {id:?} takes no sounds: {why}")));
        }
        Ok(Scribe::Language(served))
    }

    /// The same for translations, which language models are not loaded for.
    pub(crate) fn find_translator(app: &App, name: Option<&str>) -> Result<Scribe, Failure> {
        let own = name.filter(|name| *name != COMMON_NAME);
        if let Some(speech) = Scribe::speech(app, own) {
            return Ok(speech);
        }
        if app.models.find_any(own, &app.options).is_err() {
            return Err(Failure::new(StatusCode::NOT_FOUND, missing(app, own)));
        }
        let problem = "a language model does not translate speech here; ask it in a chat, or start the server with --speech";
        Err(Failure::field("model", problem))
    }

    fn speech(app: &App, name: Option<&str>) -> Option<Scribe> {
        let speech = app.options.speech.clone()?;
        let is_named = name.is_none_or(|name| name == speech.name);
        is_named.then_some(Scribe::Speech(speech))
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Scribe::Speech(service) => &service.name,
            Scribe::Language(served) => &served.id,
        }
    }

    /// What clients see of a transcript of this model.
    pub(crate) fn deltas(&self) -> Deltas {
        Deltas {
            by_words: self.is_language_model(),
            told: false,
        }
    }

    pub(crate) fn is_language_model(&self) -> bool {
        matches!(self, Scribe::Language(_))
    }

    /// When a request that came now is given up.
    pub(crate) fn deadline(&self, app: &App) -> Option<Instant> {
        match self {
            Scribe::Speech(_) => app.options.timeout.map(|time| Instant::now() + time),
            Scribe::Language(served) => served.deadline(&app.options),
        }
    }

    /// Memory that a second of sound takes while it is written down.
    pub(crate) fn bytes_per_second(&self) -> usize {
        match self {
            Scribe::Speech(service) => service.model.bytes_per_second(),
            Scribe::Language(_) => 4 * welte_audio::RATE as usize,
        }
    }

    /// Decodes a file of sound that is not longer than memory of `bytes` allows.
    pub(crate) fn read(
        &self,
        file: Vec<u8>,
        bytes: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Audio, Failure> {
        let most = bytes / self.bytes_per_second();
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(LONGEST);
        let audio = match self {
            Scribe::Speech(service) => service.model.read(file, most),
            Scribe::Language(served) => served.model.read_sound(file, most, wanted),
        };
        audio.map_err(of_file)
    }

    /// Does something on a thread that may wait, when there is a place.
    pub(crate) async fn listening<T: Send + 'static>(
        self,
        app: &App,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        match self {
            Scribe::Speech(_) => app.bodies.listening(work).await,
            Scribe::Language(_) => app.bodies.dictating(work).await,
        }
    }

    /// Writes down what is said. Must be called where one may wait.
    pub(crate) fn transcribe(
        &self,
        app: &Arc<App>,
        audio: &Audio,
        options: &TranscribeOptions,
        see: &mut See<'_>,
    ) -> Result<Transcript, Failure> {
        match self {
            Scribe::Speech(service) => {
                let transcript = service.model.transcribe(audio, options, see);
                transcript.map_err(of_file)
            }
            Scribe::Language(served) => {
                self.check(options)?;
                let mut begun = false;
                let answer = &mut |prompt: welte::Prompt,
                                   options: &GenerateOptions,
                                   take: &mut dyn FnMut(&[u32]) -> ControlFlow<()>| {
                    let asked = submit(app, served, &prompt, options, begun, take)?;
                    begun = true;
                    asked.map_or(Ok(None), |answers| written(answers, take))
                };
                served.model.transcribe(audio, options, answer, see)
            }
        }
    }

    /// Refuses options before any sound is read.
    pub(crate) fn check(&self, options: &TranscribeOptions) -> Result<(), Failure> {
        let language = options.language.as_deref();
        let served = match self {
            Scribe::Speech(service) => {
                let language = language.filter(|name| !name.trim().is_empty());
                language.map_or(Ok(""), |name| service.model.language(name))?;
                return Ok(());
            }
            Scribe::Language(served) => served,
        };
        let prompt = options.prompt.as_deref();
        let long = |failure: Failure| Failure {
            message: format!("prompt: {}", failure.message),
            field: Some("prompt".into()),
            ..failure
        };
        length::check(served, prompt.unwrap_or_default()).map_err(long)?;
        served.model.dictation(language, prompt)?;
        Ok(())
    }

    /// The spelling of a segment's tokens, each with the logarithm of its probability.
    pub(crate) fn spelled(&self, segment: &Segment) -> Vec<(Vec<u8>, f32)> {
        let own = |(bytes, logprob): (&[u8], f32)| (bytes.to_vec(), logprob);
        match self {
            Scribe::Speech(service) => service.model.spelled(segment).map(own).collect(),
            Scribe::Language(served) => {
                let Ok(tokenizer) = served.model.tokenizer() else {
                    return Vec::new();
                };
                let all = segment.tokens.iter().zip(&segment.logprobs);
                let texts = all.filter(|(token, _)| !tokenizer.is_control(**token));
                let spelled =
                    texts.map(|(token, logprob)| (tokenizer.token_bytes(*token), *logprob));
                spelled.map(own).collect()
            }
        }
    }
}

/// Why there is no model of a name.
fn missing(app: &App, name: Option<&str>) -> String {
    match (&app.options.speech, name) {
        (Some(speech), Some(name)) => {
            format!("there is no model of speech {name:?}; there is {:?}", speech.name)
        }
        _ => "no model of speech is served here; start the server with --speech, or serve a language model that writes transcripts (docs/speech.md lists them)".to_string(),
    }
}

/// An error in a file of sound.
fn of_file(error: welte::Error) -> Failure {
    match error {
        welte::Error::Audio(error) => Failure::field("file", error),
        other => other.into(),
    }
}

/// Hands a prompt to the engine. A transcript that has `begun` waits for a place in the queue. `None`: nobody waits for it any more.
fn submit(
    app: &Arc<App>,
    served: &Lease,
    prompt: &welte::Prompt,
    options: &GenerateOptions,
    begun: bool,
    take: &mut dyn FnMut(&[u32]) -> ControlFlow<()>,
) -> Result<Option<Answers>, Failure> {
    loop {
        let mut ask = Ask::new(app, served, app.id("trsc-"));
        // The defaults of answers, such as stop strings, would change a transcript.
        ask.options = options.clone();
        ask.options.adapter = served.adapter();
        ask.report.tokens = true;
        ask.prompts = vec![Prompt::Tokens(Vec::new())];
        match ask.submit_prompt(prompt.clone()) {
            Err(failure) if begun && failure.status == StatusCode::TOO_MANY_REQUESTS => {
                if take(&[]).is_break() {
                    return Ok(None);
                }
                std::thread::sleep(LOOKS);
            }
            asked => return asked.map(|answers| Some(Answers::new(answers))),
        }
    }
}

/// Reads an answer to its end; `None` if nobody waits for it any more.
fn written(
    mut answers: Answers,
    take: &mut dyn FnMut(&[u32]) -> ControlFlow<()>,
) -> Result<Option<WrittenWindow>, Failure> {
    let runtime = Handle::current();
    let mut logprobs = Vec::new();
    loop {
        let next = async { tokio::time::timeout(LOOKS, answers.next()).await };
        let tokens = match runtime.block_on(next) {
            Err(_) => Vec::new(),
            Ok(None) => return Err(Failure::server("the engine gave no result")),
            Ok(Some(event)) => match event?.1 {
                Event::Tokens(tokens) => tokens,
                Event::Logprobs(new) => {
                    logprobs.extend(new.iter().map(|one| one.logprob()));
                    continue;
                }
                Event::End(end) => {
                    let outcome = end.outcome;
                    return Ok(Some(WrittenWindow {
                        tokens: outcome.tokens,
                        logprobs,
                        stop: outcome.stop,
                    }));
                }
                _ => continue,
            },
        };
        if take(&tokens).is_break() {
            return Ok(None);
        }
    }
}

/// What takes too long fails. The work that it waits for ends once the request is dropped.
pub(crate) async fn in_time<T>(
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

/// Says that the client has left, once it is dropped with the request.
#[derive(Default)]
pub(crate) struct Left(pub(crate) Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn flow(goes_on: bool) -> ControlFlow<()> {
    if goes_on {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// The tokens of segments with the logarithms of their probabilities, as OpenAI has them.
pub(crate) fn probabilities<'a>(
    scribe: &Scribe,
    segments: impl IntoIterator<Item = &'a Segment>,
) -> Value {
    let mut all = Vec::new();
    for segment in segments {
        all.extend(scribe.spelled(segment).into_iter().map(|(bytes, logprob)| {
            json!({"token": String::from_utf8_lossy(&bytes), "bytes": bytes, "logprob": logprob})
        }));
    }
    all.into()
}

/// What clients see of a transcript while it is written.
pub(crate) struct Deltas {
    /// It comes by words, not by segments.
    by_words: bool,
    /// There was some text.
    told: bool,
}

impl Deltas {
    /// The text that an update adds.
    pub(crate) fn text<'a>(&mut self, update: &Update<'a>) -> Option<&'a str> {
        let text = match update {
            Update::Text(text) => text,
            Update::Segment(segment) if !self.by_words => &segment.text[..],
            _ => return None,
        };
        let begins = !std::mem::replace(&mut self.told, true);
        Some(if begins { text.trim_start() } else { text })
    }
}
