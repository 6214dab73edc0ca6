//! llama.cpp's API.

use crate::answer::{Answers, End, Event, Reason};
use crate::app::App;
use crate::ask::{self, Ask, Prompt};
use crate::engine::Asked;
use crate::error::{Api, Failure, json_text, ok};
use crate::fields::Fields;
use crate::lines::LineLimits;
use crate::metrics;
use crate::models::{Lease, Served};
use crate::openai::{figures, take_messages};
use crate::router::Outcome;
use crate::{logprobs, sse};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use welte::Logprobs;

/// `POST /completion`
pub(crate) async fn completion(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("cmpl-"));
    let prompt: Value = fields.need("prompt")?;
    ask.prompts = vec![self::prompt(&fields, prompt)?];
    answer(app, fields, ask).await
}

/// `POST /infill`
pub(crate) async fn infill(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("cmpl-"));
    let mut prefix = String::new();
    for mut file in fields.objects("input_extra")? {
        let name: String = file.take("filename")?.unwrap_or_default();
        let text: String = file.need("text")?;
        file.finish()?;
        prefix.push_str(&format!("{name}\n{text}\n\n"));
    }
    prefix.push_str(&fields.need::<String>("input_prefix")?);
    ask.prompts = vec![Prompt::Infill {
        prefix,
        suffix: fields.need("input_suffix")?,
        middle: fields.take("prompt")?.unwrap_or_default(),
        field: "input_suffix",
    }];
    answer(app, fields, ask).await
}

/// Takes the fields that completions share, and answers.
async fn answer(app: Arc<App>, mut fields: Fields, mut ask: Ask) -> Outcome {
    crate::sampling::take(&mut fields, &mut ask.options)?;
    crate::sampling::take_samplers(&mut fields, &mut ask.options.sampling)?;
    crate::sampling::take_grammar(&mut fields, &mut ask)?;
    let served = ask.served.clone();
    let time: Option<i64> = fields.take("t_max_predict_ms")?;
    ask.lines = Some(LineLimits {
        indent: fields.take("n_indent")?.unwrap_or(0),
        time: time.and_then(|ms| Some(Duration::from_millis(u64::try_from(ms).ok()?))),
    });
    if let Some(limit) = fields.take::<i64>("n_predict")? {
        ask.options.max_tokens = usize::try_from(limit).unwrap_or(usize::MAX);
    }
    ask.cache = fields.take("cache_prompt")?.unwrap_or(true);
    let stream: bool = fields.take("stream")?.unwrap_or(false);
    // All slots share the prompt cache, and a prompt is never cut, so these change nothing.
    fields.take::<i64>("id_slot")?;
    fields.take::<i64>("n_keep")?;
    fields.take::<i64>("t_max_prompt_ms")?;
    for field in ["n_cmpl", "n"] {
        fields.only(field, &[json!(1)])?;
    }
    let response_fields: Vec<String> = fields.take("response_fields")?.unwrap_or_default();
    if let Some(top) = fields.take::<u32>("n_probs")?.filter(|top| *top > 0) {
        ask.options.logprobs = Some(logprobs::checked(&fields, "n_probs", top)?);
    }
    fields.only("return_tokens", &[json!(false)])?;
    fields.finish()?;
    let answers = ask.start(&app).await?;
    if stream {
        return Ok(sse::response(
            answers,
            CompletionStream {
                served,
                logprobs: Vec::new(),
                response_fields,
            },
            "text/event-stream",
        ));
    }
    let wholes = Answers::new(answers).collect().await?;
    let [whole] = wholes.as_slice() else {
        return Err(Failure::server("the engine gave no result"));
    };
    let value = last(&served, &whole.text, whole.end()?);
    let value = with_probabilities(value, &served, &whole.logprobs);
    Ok(ok(&only_fields(value, &response_fields)))
}

/// The parts of a response at these paths, such as `timings/prompt_n`, under their paths. Without paths everything.
fn only_fields(value: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return value;
    }
    let at = |path: &String| Some((path.clone(), value.pointer(&format!("/{path}"))?.clone()));
    Value::Object(paths.iter().filter_map(at).collect())
}

/// A string, or a list of tokens.
fn prompt(fields: &Fields, value: Value) -> Result<Prompt, Failure> {
    let wrong = || fields.wrong("prompt", "must be a string or a list of tokens");
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(_) => {
            let tokens = serde_json::from_value(value).map_err(|_| wrong())?;
            Ok(Prompt::Tokens(tokens))
        }
        _ => Err(wrong()),
    }
}

/// Adds the probabilities of tokens, if there are any.
fn with_probabilities(mut value: Value, served: &Served, all: &[Logprobs]) -> Value {
    if !all.is_empty() {
        value["completion_probabilities"] = logprobs::of_llama(served, all);
    }
    value
}

fn last(served: &Served, text: &str, end: &End) -> Value {
    let (outcome, timings) = (&end.outcome, &end.outcome.timings);
    let (kind, word) = match &end.reason {
        Reason::StopString(word) => ("word", word.as_str()),
        Reason::Length => ("limit", ""),
        Reason::Stop | Reason::Calls => ("eos", ""),
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let rate = |tokens: usize, ms: f64| (ms > 0.0).then(|| tokens as f64 * 1e3 / ms);
    let each = |tokens: usize, ms: f64| (tokens > 0).then(|| ms / tokens as f64);
    let (prompt_ms, predicted_ms) = (ms(timings.prompt), ms(timings.generation));
    let computed = outcome.prompt_tokens.saturating_sub(outcome.cached_tokens);
    json!({
        "index": 0, "content": text, "stop": true, "model": served.id,
        "tokens_predicted": outcome.tokens.len(), "tokens_evaluated": outcome.prompt_tokens,
        "tokens_cached": outcome.cached_tokens, "stop_type": kind, "stopping_word": word, "truncated": false,
        "timings": {
            "prompt_n": computed, "prompt_ms": prompt_ms, "prompt_per_second": rate(computed, prompt_ms),
            "prompt_per_token_ms": each(computed, prompt_ms),
            "predicted_n": timings.decoded, "predicted_ms": predicted_ms,
            "predicted_per_second": rate(timings.decoded, predicted_ms),
            "predicted_per_token_ms": each(timings.decoded, predicted_ms),
        },
        "welte": figures(end),
    })
}

struct CompletionStream {
    served: Lease,
    /// Probabilities that the next event has.
    logprobs: Vec<Logprobs>,
    /// Of the last event.
    response_fields: Vec<String>,
}

impl sse::Format for CompletionStream {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        let value = match event {
            Event::Logprobs(logprobs) => {
                self.logprobs.extend(logprobs);
                return Vec::new();
            }
            Event::Text(text) | Event::Reasoning(text) => {
                json!({ "index": index, "content": text, "stop": false })
            }
            Event::CallBegin(_) | Event::CallArguments(_) => return Vec::new(),
            Event::CallEnd | Event::CallVoid => return Vec::new(),
            Event::End(end) => {
                let value = last(&self.served, "", &end);
                only_fields(value, &self.response_fields)
            }
        };
        let logprobs = std::mem::take(&mut self.logprobs);
        vec![with_probabilities(value, &self.served, &logprobs)]
    }

    fn finish(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::LlamaCpp)
    }

    fn write(&self, value: &Value) -> String {
        sse::data(value)
    }
}

/// The longest text that is turned into tokens on its own, in bytes.
const MOST_TO_TOKENIZE: usize = 4 << 20;

/// `POST /tokenize`
pub(crate) async fn tokenize(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let content: String = fields.need("content")?;
    let special = fields.take("add_special")?.unwrap_or(false);
    let parse = fields.take("parse_special")?.unwrap_or(true);
    let pieces: bool = fields.take("with_pieces")?.unwrap_or(false);
    if content.len() > MOST_TO_TOKENIZE {
        let problem = format!(
            "has {} bytes, and {MOST_TO_TOKENIZE} is the limit",
            content.len()
        );
        return Err(fields.wrong("content", problem));
    }
    fields.finish()?;
    let work = move || {
        let tokenizer = served.model.tokenizer()?;
        let tokens = tokenizer.encode(&content, special, parse)?;
        // Written without a tree, which would take a hundred times as much.
        let mut body = String::from("{\"tokens\":[");
        for (index, id) in tokens.into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = match pieces {
                false => write!(body, "{comma}{id}"),
                true => {
                    let piece = piece(tokenizer.token_bytes(id));
                    write!(body, "{comma}{{\"id\":{id},\"piece\":{piece}}}")
                }
            };
        }
        body.push_str("]}");
        Ok(json_text(StatusCode::OK, body))
    };
    app.bodies.aside(work).await
}

/// Text, or bytes that are no text on their own.
fn piece(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.into(),
    }
}

/// The longest text that tokens are turned into, in bytes.
const MOST_DETOKENIZED: usize = 32 << 20;

/// `POST /detokenize`
pub(crate) async fn detokenize(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let tokens: Vec<u32> = fields.need("tokens")?;
    let too_long = fields.wrong(
        "tokens",
        format!("their text has more than {MOST_DETOKENIZED} bytes"),
    );
    fields.finish()?;
    let work = move || {
        let tokenizer = served.model.tokenizer()?;
        let bytes = tokens
            .iter()
            .map(|token| tokenizer.token_bytes(*token).len());
        if bytes.sum::<usize>() > MOST_DETOKENIZED {
            return Err(too_long);
        }
        let content = tokenizer.decode(&tokens);
        Ok(ok(&json!({ "content": content })))
    };
    app.bodies.aside(work).await
}

/// `POST /apply-template`
pub(crate) async fn apply_template(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?;
    let messages = take_messages(&mut fields)?;
    let variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    fields.finish()?;
    let work = move || {
        let prompt = ask::render(&served, &messages, &variables, &[])?;
        Ok(ok(&json!({ "prompt": prompt.text() })))
    };
    app.bodies.aside(work).await
}

/// `GET /props`
pub(crate) async fn props(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    let served = match app.peek(asked.get("model").map(String::as_str)) {
        Ok(served) => served,
        Err(failure) => return failure.response(Api::LlamaCpp),
    };
    let options = &app.options.defaults;
    let s = &options.sampling;
    let tokens = match served.model.tokenizer() {
        Ok(tokenizer) => {
            let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id).to_string());
            (text(tokenizer.bos()), text(tokenizer.eos()))
        }
        Err(_) => (None, None),
    };
    ok(&json!({
        "default_generation_settings": {
            "n_ctx": served.model.context(),
            "params": {
                "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p,
                "repeat_penalty": s.repeat_penalty, "repeat_last_n": s.penalty_last_n,
                "presence_penalty": s.presence_penalty, "frequency_penalty": s.frequency_penalty,
            },
        },
        "total_slots": served.model.program().slots,
        "model_alias": served.id, "model_path": served.model.origin(),
        "chat_template": served.template_source,
        "bos_token": tokens.0, "eos_token": tokens.1,
        "build_info": concat!("welte ", env!("CARGO_PKG_VERSION")),
    }))
}

/// `GET /slots`: as many as the engine has. Requests that wait have none.
pub(crate) async fn slots(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    let served = match app.peek(asked.get("model").map(String::as_str)) {
        Ok(served) => served,
        Err(failure) => return failure.response(Api::LlamaCpp),
    };
    let busy = served.engine.status().running;
    let slot = |id: u32| json!({ "id": id, "n_ctx": served.model.context(), "is_processing": (id as usize) < busy });
    let slots: Vec<Value> = (0..served.model.program().slots).map(slot).collect();
    ok(&Value::from(slots))
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = Response::new(Body::from(metrics::text(&app.models)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
