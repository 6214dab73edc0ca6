//! Transcripts by language models that hear: `/v1/audio/transcriptions` without times.

use crate::answer::{Answers, Reason};
use crate::app::App;
use crate::ask::{Ask, Part, Prompt};
use crate::error::{Failure, Outcome, ok};
use crate::fields::Fields;
use crate::length;
use crate::models::Lease;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;
use welte::{Image, ImageSource, StopReason};

/// What is asked besides the file.
pub(crate) struct Wanted {
    language: Option<String>,
    prompt: Option<String>,
    temperature: f32,
    /// The text alone, not JSON.
    plain: bool,
}

/// Takes the fields of a form. Those that a language model cannot honour are refused by name.
pub(crate) fn take(fields: &mut Fields) -> Result<Wanted, Failure> {
    let format: Option<String> = fields.take("response_format")?;
    let plain = match format.as_deref() {
        None | Some("json") => false,
        Some("text") => true,
        Some(other) => {
            let problem = format!(
                "{other:?} needs times, which a language model does not tell; take json or text"
            );
            return Err(fields.wrong("response_format", problem));
        }
    };
    let temperature: Option<String> = fields.take("temperature")?;
    let number = |text: String| {
        let number = text.trim().parse::<f32>().ok();
        let number = number.filter(|t| (0.0..=1.0).contains(t));
        number.ok_or_else(|| fields.wrong("temperature", "must be a number from 0 to 1"))
    };
    let temperature = temperature.map(number).transpose()?;
    let kinds: Option<Vec<String>> = fields.take("timestamp_granularities")?;
    if kinds.is_some_and(|kinds| !kinds.is_empty()) {
        let problem = "a language model does not tell times; take a Whisper model with --speech";
        return Err(fields.wrong("timestamp_granularities", problem));
    }
    match fields.take::<String>("stream")?.as_deref() {
        None | Some("false" | "False" | "0") => {}
        _ => return Err(fields.wrong("stream", "is not supported by this model; leave it out")),
    }
    // It hears the whole file at once.
    let strategy: Option<String> = fields.take("chunking_strategy")?;
    if strategy.is_some_and(|strategy| strategy != "auto") {
        return Err(fields.wrong("chunking_strategy", "must be auto"));
    }
    fields.refuse(&["include", "known_speaker_names", "known_speaker_references"])?;
    Ok(Wanted {
        language: fields.take("language")?,
        prompt: fields.take("prompt")?,
        temperature: temperature.unwrap_or(0.0),
        plain,
    })
}

/// Writes down what a file says.
pub(crate) async fn answer(
    app: &Arc<App>,
    served: &Lease,
    wanted: Wanted,
    file: Arc<[u8]>,
) -> Outcome {
    let (lease, language, prompt) = (served.clone(), wanted.language, wanted.prompt);
    let around = move || {
        let prompt = prompt.as_deref();
        let long = |failure: Failure| Failure {
            message: format!("prompt: {}", failure.message),
            field: Some("prompt".into()),
            ..failure
        };
        length::check(&lease, prompt.unwrap_or_default()).map_err(long)?;
        let around = lease.model.dictation(language.as_deref(), prompt);
        around.map_err(|error| match error {
            welte::Error::Speech { field, problem } => Failure::field(field, problem),
            other => other.into(),
        })
    };
    let [before, after] = app.bodies.aside(around).await?;
    let tokens = |tokens: Vec<u32>| tokens.into_iter().map(Part::Token);
    let sound = Part::Image(Image {
        at: 0,
        source: ImageSource::Sound(file),
        name: "file".into(),
    });
    let parts = tokens(before).chain([sound]).chain(tokens(after));
    let mut ask = Ask::new(app, served, app.id("trsc-"));
    ask.prompts = vec![Prompt::Parts(parts.collect())];
    ask.options.sampling.temperature = wanted.temperature;
    // What the server gives an answer by default would cut the transcript.
    (ask.options.max_tokens, ask.options.stop) = (usize::MAX, Default::default());
    // The form's own bound counts.
    ask.image_rules.largest = usize::MAX;
    let wholes = Answers::new(ask.start(app).await?).collect().await?;
    let whole = wholes.first();
    let end = whole.ok_or_else(|| Failure::server("the engine gave no result"))?;
    let end = end.end()?;
    match (&end.reason, &end.outcome.stop) {
        (Reason::Stop, _) => {}
        (_, StopReason::Deadline) => return Err(welte::Error::Deadline.into()),
        _ => {
            let context = served.model.context();
            let problem = format!(
                "its transcript does not fit the context of {context} positions; send shorter files, or start the server with a larger --ctx-size"
            );
            return Err(Failure::field("file", problem));
        }
    }
    let dictated = served.model.dictated(end.new_tokens())?;
    if wanted.plain {
        let mut response = Response::new(format!("{}\n", dictated.text).into());
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        return Ok(response);
    }
    Ok(ok(&json!({ "text": dictated.text })))
}
