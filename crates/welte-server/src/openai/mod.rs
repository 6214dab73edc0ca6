//! OpenAI's API.

mod chat;
mod completions;
mod messages;
mod responses;

pub(crate) use chat::{chat, chat_tokens, text_format, variables};
pub(crate) use completions::completions;
pub(crate) use messages::{messages as take_messages, text as text_of, tools};
pub(crate) use responses::{
    INCLUDES, Store, cancel, compact, create as responses, delete, input_items, input_tokens,
    retrieve,
};

use crate::SpeechService;
use crate::adapters;
use crate::answer::{End, Reason};
use crate::app::App;
use crate::ask::Ask;
use crate::error::{Api, Failure, ok};
use crate::fields::Fields;
use crate::llama::Extras;
use crate::models::Entry;
use crate::times;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use welte::Speculated;

/// `GET /v1/models`
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    let all: Vec<Value> = app
        .models
        .all()
        .iter()
        .flat_map(|entry| {
            std::iter::once(describe(&app, entry)).chain(describe_adapters(&app, entry))
        })
        .chain(app.options.speech.iter().map(describe_speech))
        .collect();
    ok(&json!({ "object": "list", "data": all }))
}

/// `GET /v1/models/ID`
pub(crate) async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    match app.models.find(Some(&id)) {
        Ok(entry) => ok(&describe(&app, &entry)),
        Err(_) if let Some((entry, adapter)) = app.models.find_adapter(&id) => {
            let mut all = describe_adapters(&app, &entry).into_iter();
            let own = all.find(|described| described["welte"]["adapter"] == adapter);
            ok(&own.unwrap_or(Value::Null))
        }
        Err(_)
            if app
                .options
                .speech
                .as_ref()
                .is_some_and(|speech| speech.name == id) =>
        {
            ok(&app
                .options
                .speech
                .as_ref()
                .map_or(Value::Null, describe_speech))
        }
        Err(failure) => failure.response(Api::OpenAi),
    }
}

/// The adapters of a model, as models whose parent it is. They also answer to `MODEL:ADAPTER`.
fn describe_adapters(app: &App, entry: &Entry) -> Vec<Value> {
    let describe = |name: &str,
                    path: &std::path::Path,
                    rank: Option<u32>,
                    context: Option<usize>| {
        json!({
            "id": name, "object": "model", "created": entry.created, "owned_by": "welte",
            "root": adapters::shown_path(app, path), "parent": entry.id, "aliases": [format!("{}:{name}", entry.id)],
            "welte": { "loaded": context.is_some(), "adapter": name, "rank": rank, "context": context },
        })
    };
    let Some(served) = entry.loaded() else {
        let sources = app.models.adapter_sources().iter();
        let each = sources.map(|source| describe(&source.name, &source.path, None, None));
        return each.collect();
    };
    let context = Some(served.model.context());
    let adapters = served.engine.adapters();
    let each = adapters.iter();
    let each = each.map(|a| describe(a.name(), a.path(), Some(a.rank()), context));
    each.collect()
}

fn describe(app: &App, entry: &Entry) -> Value {
    let loaded = entry.loaded();
    let names: Vec<&String> = [&entry.id].into_iter().chain(&entry.aliases).collect();
    let context = loaded.as_ref().map(|served| served.model.context());
    let model = loaded.as_ref().map(|served| &served.model);
    let vision = model.map(|model| model.eyes().is_some());
    let audio = model.map(|model| model.ears().is_some());
    json!({
        "id": entry.id, "object": "model", "created": entry.created, "owned_by": "welte",
        "root": entry.id, "parent": null, "aliases": names, "tags": app.options.tags,
        "welte": { "loaded": loaded.is_some(), "context": context, "vision": vision, "audio": audio },
    })
}

fn describe_speech(speech: &SpeechService) -> Value {
    json!({
        "id": speech.name, "object": "model", "created": 0, "owned_by": "welte",
        "welte": { "loaded": true, "speech": true },
    })
}

/// Texts that only label a request for accounting or for caches of other servers.
const LABELS: [&str; 5] = [
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
];

/// Takes the fields that label a request. They change nothing.
pub(crate) fn take_labels(fields: &mut Fields) -> Result<(), Failure> {
    for name in LABELS {
        fields.take::<String>(name)?;
    }
    fields.take::<Map<String, Value>>("metadata")?;
    Ok(())
}

/// Tells clients which program answers.
const FINGERPRINT: &str = concat!("build-welte-", env!("CARGO_PKG_VERSION"));

/// Whether to stream, and whether to send the usage at the end.
struct Streaming {
    on: bool,
    usage: bool,
    /// Send the tokens.
    tokens: bool,
    extras: Extras,
}

/// Takes the fields that chats and completions share, besides those of sampling.
fn take_common(fields: &mut Fields, ask: &mut Ask) -> Result<Streaming, Failure> {
    crate::sampling::take_grammar(fields, ask)?;
    ask.choices = crate::sampling::take_choices(fields, "n")?.unwrap_or(1);
    ask.cache = fields.take("cache_prompt")?.unwrap_or(true);
    let extras = Extras::take(fields, ask)?;
    take_labels(fields)?;
    ask.take_answered(fields)?;
    let tokens = fields.take("return_token_ids")?.unwrap_or(false);
    ask.report.tokens = tokens;
    let on = fields.take("stream")?.unwrap_or(false);
    let mut usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        usage = options.take("include_usage")?.unwrap_or(false);
        options.only("include_obfuscation", &[json!(false)])?;
        options.finish()?;
    }
    Ok(Streaming {
        on,
        usage,
        tokens,
        extras,
    })
}

/// A choice with its tokens, if they were asked for.
fn with_tokens(mut choice: Value, tokens: Option<&[u32]>) -> Value {
    if let Some(tokens) = tokens {
        choice["token_ids"] = tokens.into();
    }
    choice
}

fn finish_reason(end: &End) -> &'static str {
    match end.reason {
        Reason::Stop | Reason::StopString(_) => "stop",
        Reason::Length => "length",
        Reason::Calls => "tool_calls",
    }
}

/// The sum over all answers. Answers to one prompt share it, and `choices` of them follow each other.
fn usage(ends: &[&End], choices: usize) -> Value {
    let prompts = || ends.iter().step_by(choices.max(1));
    let prompt: usize = prompts().map(|end| end.outcome.prompt_tokens).sum();
    let cached: usize = prompts().map(|end| end.outcome.cached_tokens).sum();
    let completion: usize = ends.iter().map(|end| end.outcome.tokens.len()).sum();
    let reasoning: usize = ends.iter().map(|end| end.reasoning_tokens).sum();
    let sum = |of: fn(&Speculated) -> usize| -> usize {
        ends.iter().map(|end| of(&end.outcome.speculated)).sum()
    };
    let (guessed, accepted) = (sum(|s| s.drafted), sum(|s| s.accepted));
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning, "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": guessed - accepted,
        },
    })
}

/// Our figures of the first answer.
pub(crate) fn figures(end: &End) -> Value {
    let (outcome, timings) = (&end.outcome, &end.outcome.timings);
    let seconds = timings.generation.as_secs_f64();
    let speed = (timings.decoded > 0 && seconds > 0.0).then(|| timings.decoded as f64 / seconds);
    let mut figures = json!({
        "tokens_per_second": speed,
        "floor_share": end.floor_share,
        "cached_tokens": outcome.cached_tokens,
        "differs_at": outcome.differs_at,
        "prompt_ms": timings.prompt.as_secs_f64() * 1e3,
        "queued_ms": timings.queued.as_secs_f64() * 1e3,
    });
    if !end.changing.is_empty() {
        let names = end.changing.iter().map(|kind| kind.name());
        figures["changing_lines"] = names.collect();
    }
    if !end.problems.is_empty() {
        figures["problems"] = json!(end.problems);
    }
    figures
}

/// Seconds since 1970.
fn created() -> u64 {
    times::since_1970().as_secs()
}
