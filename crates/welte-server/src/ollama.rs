//! Ollama's API. Responses are streamed as JSON line by line unless the request says otherwise.

use crate::answer::{Answers, End, Event, Reason, Whole};
use crate::app::{App, sha256};
use crate::ask::{Ask, Prompt};
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::models::{Entry, Lease, Served, name_of};
use crate::openai::figures;
use crate::recipe::Recipe;
use crate::times::nanoseconds;
use crate::{answer, images, keep_alive, logprobs, sampling, times};
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use welte::{Card, Constraint, Logprobs, Message};
use welte_text::ToolCall;

/// How long a model without an end stays loaded.
const CENTURIES: Duration = Duration::from_secs(300 * 365 * 86_400);

/// `POST /api/chat`
pub(crate) async fn chat(app: Arc<App>, mut fields: Fields) -> Outcome {
    let (mut ask, stream) = take_common(&app, &mut fields).await?;
    let messages = fields.objects("messages")?;
    let messages: Vec<Message> = messages
        .into_iter()
        .map(message)
        .collect::<Result<_, _>>()?;
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    ask.tools = tools.into_iter().map(Value::from).collect();
    let variables = thinking(&mut fields)?;
    fields.finish()?;
    if messages.is_empty() {
        return Ok(loaded(&ask.served, true));
    }
    ask.prompts.push(Prompt::Chat {
        messages,
        variables,
    });
    answer(app, ask, stream, true).await
}

/// `POST /api/generate`
pub(crate) async fn generate(app: Arc<App>, mut fields: Fields) -> Outcome {
    let (mut ask, stream) = take_common(&app, &mut fields).await?;
    let prompt: String = fields.take("prompt")?.unwrap_or_default();
    let system: Option<String> = fields.take("system")?;
    let raw: bool = fields.take("raw")?.unwrap_or(false);
    let variables = thinking(&mut fields)?;
    let thinks = !variables.is_empty();
    let suffix: String = fields.take("suffix")?.unwrap_or_default();
    fields.only("template", &[json!("")])?;
    let images = images::list(&mut fields, "images")?;
    fields.only("context", &[json!([])])?;
    let system = system.filter(|text| !text.is_empty());
    let plain = raw || ask.served.template.is_none();
    let of_template = [
        images.first().map(|image| image.name.as_str()),
        system.is_some().then_some("system"),
        thinks.then_some("think"),
    ];
    if let Some(name) = of_template.into_iter().flatten().next()
        && (plain || !suffix.is_empty())
    {
        let problem = "needs the chat template, which raw, suffix and models without one leave out";
        return Err(Failure::field(name, problem));
    }
    fields.finish()?;
    if prompt.is_empty() && images.is_empty() {
        return Ok(loaded(&ask.served, false));
    }
    if !suffix.is_empty() {
        ask.prompts.push(Prompt::Infill {
            prefix: prompt,
            suffix,
            middle: String::new(),
            field: "suffix",
        });
        return answer(app, ask, stream, false).await;
    }
    ask.prompts.push(if plain {
        Prompt::Text(prompt)
    } else {
        let system = system.map(|text| Message::new("system", text));
        let user = Message {
            images,
            ..Message::new("user", prompt)
        };
        Prompt::Chat {
            messages: system.into_iter().chain([user]).collect(),
            variables,
        }
    });
    answer(app, ask, stream, false).await
}

async fn take_common(app: &App, fields: &mut Fields) -> Result<(Ask, bool), Failure> {
    let served = lease(app, fields).await?;
    let mut ask = Ask::new(app, &served, app.id("ollama-"));
    match fields.take::<Value>("format")? {
        None => {}
        Some(Value::String(kind)) if kind.is_empty() => {}
        Some(Value::String(kind)) if kind == "json" => {
            ask.constrain(fields.name("format"), Constraint::Json)?;
        }
        Some(schema @ Value::Object(_)) => {
            ask.constrain(fields.name("format"), Constraint::JsonSchema(schema))?;
        }
        Some(_) => return Err(fields.wrong("format", "must be \"json\" or a JSON schema")),
    }
    logprobs::take(fields, &mut ask.options)?;
    if let Some(mut options) = fields.object("options")? {
        sampling::take(&mut options, &mut ask.options)?;
        sampling::take_limit(&mut options, "num_predict", &mut ask.options)?;
        // Ollama knows no limit of 0.
        if ask.options.max_tokens == 0 {
            ask.options.max_tokens = usize::MAX;
        }
        options.only("mirostat", &[json!(0)])?;
        take_context(&mut options, &served)?;
        options.finish()?;
    }
    Ok((ask, fields.take("stream")?.unwrap_or(true)))
}

/// The model that a request names, and how long it stays loaded.
pub(crate) async fn lease(app: &App, fields: &mut Fields) -> Result<Lease, Failure> {
    let name: String = fields.need("model")?;
    let served = app.lease(Some(&name)).await?;
    if let Some(time) = fields.take::<Value>("keep_alive")? {
        let time = match &time {
            // Negative, or beyond all clocks: forever.
            Value::Number(seconds) => Ok(seconds
                .as_f64()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())),
            Value::String(text) => keep_alive(text),
            _ => Err("must be seconds or a time such as \"5m\"".to_string()),
        };
        served.keep_alive(time.map_err(|problem| fields.wrong("keep_alive", problem))?);
    }
    Ok(served)
}

/// The model's name, under the current or the former name of the field.
pub(crate) fn take_name(fields: &mut Fields) -> Result<String, Failure> {
    let former: Option<String> = fields.take("name")?;
    let name: Option<String> = fields.take("model")?;
    let name = name.filter(|name| !name.is_empty()).or(former);
    name.ok_or_else(|| fields.wrong("model", "is required"))
}

/// Options of Ollama's way to load a model. They change no answer.
pub(crate) const LOADING: [&str; 9] = [
    "num_gpu",
    "num_thread",
    "num_batch",
    "num_keep",
    "main_gpu",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "numa",
];

/// Takes the context that a request needs. The server's own cannot be changed.
pub(crate) fn take_context(options: &mut Fields, served: &Served) -> Result<(), Failure> {
    options.ignore(&LOADING);
    let context = served.model.context();
    if let Some(asked) = options.take::<usize>("num_ctx")?
        && asked > context
    {
        let problem =
            format!("{asked} is more than the server's context of {context}; see --ctx-size");
        return Err(options.wrong("num_ctx", problem));
    }
    Ok(())
}

fn thinking(fields: &mut Fields) -> Result<Map<String, Value>, Failure> {
    let mut variables = Map::new();
    match fields.take::<Value>("think")? {
        None => {}
        Some(Value::Bool(think)) => {
            variables.insert("enable_thinking".to_string(), think.into());
        }
        Some(Value::String(effort)) => {
            variables.insert("enable_thinking".to_string(), true.into());
            variables.insert("reasoning_effort".to_string(), effort.into());
        }
        Some(_) => return Err(fields.wrong("think", "must be true, false or a level")),
    }
    Ok(variables)
}

fn message(mut fields: Fields) -> Result<Message, Failure> {
    let role: String = fields.need("role")?;
    if !matches!(role.as_str(), "system" | "user" | "assistant" | "tool") {
        let problem = format!("{role:?} is none of system, user, assistant and tool");
        return Err(fields.wrong("role", problem));
    }
    let content = fields.take("content")?.unwrap_or_default();
    let reasoning = fields.take("thinking")?.unwrap_or_default();
    let tool_calls = fields.objects("tool_calls")?;
    let tool_calls = tool_calls.into_iter().map(call).collect::<Result<_, _>>()?;
    let name = fields.take("tool_name")?;
    let tool_call_id = fields.take("tool_call_id")?;
    let images = images::list(&mut fields, "images")?;
    fields.finish()?;
    Ok(Message {
        images,
        marks: Vec::new(),
        role,
        content,
        reasoning,
        tool_calls,
        tool_call_id,
        name,
    })
}

fn call(mut fields: Fields) -> Result<ToolCall, Failure> {
    let id = fields.take("id")?.unwrap_or_default();
    fields.ignore(&["type"]);
    let Some(mut function) = fields.object("function")? else {
        return Err(fields.wrong("function", "is required"));
    };
    let arguments: Map<String, Value> = function.take("arguments")?.unwrap_or_default();
    let name = function.need("name")?;
    function.ignore(&["index"]);
    function.finish()?;
    fields.finish()?;
    Ok(ToolCall {
        id,
        name,
        arguments: Value::from(arguments).to_string(),
    })
}

async fn answer(app: Arc<App>, ask: Ask, stream: bool, chat: bool) -> Outcome {
    let served = ask.served.clone();
    let answers = ask.start(&app).await?;
    let format = Lines {
        served,
        chat,
        logprobs: Vec::new(),
        call: Default::default(),
    };
    if stream {
        return Ok(answer::respond(answers, format, "application/x-ndjson"));
    }
    let wholes = Answers::new(answers).collect().await?;
    let [whole] = wholes.as_slice() else {
        return Err(Failure::server("the engine gave no result"));
    };
    Ok(ok(&format.last(whole, whole.end()?)))
}

/// The answer to a request without a prompt, which only loads the model.
fn loaded(served: &Lease, chat: bool) -> Response {
    let mut value = head(served);
    if chat {
        value["message"] = json!({ "role": "assistant", "content": "" })
    } else {
        value["response"] = "".into()
    }
    value["done"] = true.into();
    value["done_reason"] = "load".into();
    ok(&value)
}

fn head(served: &Lease) -> Value {
    json!({ "model": served.name(), "created_at": now() })
}

struct Lines {
    served: Lease,
    /// `/api/chat`, not `/api/generate`.
    chat: bool,
    /// Probabilities that the next line has.
    logprobs: Vec<Logprobs>,
    /// Name and arguments of the call at hand.
    call: (String, String),
}

impl Lines {
    fn line(&self, text: &str, thinking: &str, calls: &[(String, String)]) -> Value {
        let mut value = head(&self.served);
        if !self.chat {
            value["response"] = text.into();
            if !thinking.is_empty() {
                value["thinking"] = thinking.into();
            }
            return value;
        }
        let mut message = json!({ "role": "assistant", "content": text });
        if !thinking.is_empty() {
            message["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            let call = |(name, arguments): &(String, String)| {
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
                json!({ "function": { "name": name, "arguments": arguments } })
            };
            message["tool_calls"] = calls.iter().map(call).collect();
        }
        value["message"] = message;
        value
    }

    fn part(&self, text: &str, thinking: &str, calls: &[(String, String)]) -> Value {
        let mut value = self.line(text, thinking, calls);
        value["done"] = false.into();
        value
    }

    fn last(&self, whole: &Whole, end: &End) -> Value {
        let mut value = self.line(&whole.text, &whole.reasoning, &whole.calls);
        let timings = &end.outcome.timings;
        value["done"] = true.into();
        value["done_reason"] = match end.reason {
            Reason::Length => "length",
            _ => "stop",
        }
        .into();
        value["total_duration"] = nanoseconds(self.served.since().elapsed()).into();
        value["load_duration"] = nanoseconds(self.served.waited()).into();
        value["prompt_eval_count"] = end.outcome.prompt_tokens.into();
        value["prompt_eval_duration"] = nanoseconds(timings.prompt).into();
        value["eval_count"] = end.outcome.tokens.len().into();
        value["eval_duration"] = nanoseconds(timings.generation).into();
        value["welte"] = figures(end);
        self.with_probabilities(value, &whole.logprobs)
    }

    /// Adds the probabilities of tokens, if there are any.
    fn with_probabilities(&self, mut value: Value, all: &[Logprobs]) -> Value {
        if !all.is_empty() {
            value["logprobs"] = logprobs::entries(&self.served, all);
        }
        value
    }
}

impl answer::Format for Lines {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn event(&mut self, _: usize, event: Event) -> Vec<Value> {
        let value = match event {
            Event::Tokens(_) | Event::Timings(_) | Event::Progress(_) => return Vec::new(),
            Event::Logprobs(logprobs) => {
                self.logprobs.extend(logprobs);
                return Vec::new();
            }
            Event::Text(text) => self.part(&text, "", &[]),
            Event::Reasoning(text) => self.part("", &text, &[]),
            Event::CallBegin(name) => {
                self.call = (name, String::new());
                return Vec::new();
            }
            Event::CallArguments(delta) => {
                self.call.1.push_str(&delta);
                return Vec::new();
            }
            // Arguments are an object here, which cannot be sent in parts.
            Event::CallEnd => {
                let call = std::mem::take(&mut self.call);
                self.part("", "", &[call])
            }
            Event::CallVoid => return Vec::new(),
            Event::End(end) => self.last(&Whole::default(), &end),
        };
        let logprobs = std::mem::take(&mut self.logprobs);
        vec![self.with_probabilities(value, &logprobs)]
    }

    fn finish(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::Ollama)
    }

    fn write(&self, value: &Value) -> String {
        format!("{value}\n")
    }
}

/// `GET /api/version`
pub(crate) async fn version() -> Response {
    ok(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /api/tags`
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let all: Vec<Value> = app.models.all().iter().map(|entry| listed(entry)).collect();
    ok(&json!({ "models": all }))
}

/// `GET /api/ps`
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Response {
    let running = |entry: &Arc<Entry>| {
        let served = entry.loaded()?;
        let mut model = listed(entry);
        model["size_vram"] = match served.model.device().id.kind {
            "cpu" | "reference" => 0,
            _ => served.model.plan().total(),
        }
        .into();
        model["context_length"] = served.model.context().into();
        // Ollama's own word for "never" is a time in centuries.
        let stays = entry.stays().unwrap_or(CENTURIES);
        model["expires_at"] = time((times::since_1970() + stays).as_secs()).into();
        Some(model)
    };
    let all: Vec<Value> = app.models.all().iter().filter_map(running).collect();
    ok(&json!({ "models": all }))
}

/// A model in a list. Some facts are known once it is loaded.
fn listed(entry: &Entry) -> Value {
    let served = entry.loaded();
    let size = served.as_ref().map(|served| {
        let plan = served.model.plan();
        plan.bytes(welte_table::Class::Weights)
    });
    json!({
        "name": entry.id, "model": entry.id, "modified_at": time(entry.created), "size": size.unwrap_or(0),
        "digest": digest(entry), "details": served.map_or(json!({ "format": "gguf" }), |served| details(&served.card())),
    })
}

/// A name of the model's file that programs can show a part of. It is not the file's checksum, which would take a while.
fn digest(entry: &Entry) -> String {
    let path = entry.path.as_deref().unwrap_or_default();
    let bytes = sha256(&format!("{}\n{path}", entry.id));
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(card: &Card) -> Value {
    let architecture = &card.architecture;
    json!({
        "format": "gguf", "family": architecture, "families": [architecture],
        "parameter_size": parameter_size(card.parameters), "quantization_level": card.format,
    })
}

/// `4.0B`, `596M`
fn parameter_size(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.1}B", count as f64 / 1e9),
        _ => format!("{:.0}M", count as f64 / 1e6),
    }
}

/// `POST /api/show`
pub(crate) async fn show(app: Arc<App>, mut fields: Fields) -> Outcome {
    let name = take_name(&mut fields)?;
    fields.take::<bool>("verbose")?;
    fields.finish()?;
    let served = app.lease(Some(&name)).await?;
    let card = served.card();
    let mut info = card.info_as_json();
    // Clients ask for no more than this. A file says what the model was trained for.
    let context = format!("{}.context_length", card.info_prefix());
    info.insert(context, served.model.context().into());
    let mut shown = json!({
        "details": details(&card), "model_info": info, "capabilities": card.capabilities,
        "template": served.template_source, "modified_at": time(served.created),
    });
    if let Some(license) = card.license {
        shown["license"] = license.into();
    }
    if let Some(recipe) = &served.recipe {
        // Clients see the base's file without its folders.
        let from = name_of(&recipe.from);
        let recipe = Recipe {
            from,
            ..recipe.clone()
        };
        shown["modelfile"] = recipe.to_string().into();
        shown["parameters"] = recipe
            .parameters_as_text()
            .collect::<Vec<_>>()
            .join("\n")
            .into();
        shown["system"] = recipe.system.clone().unwrap_or_default().into();
        shown["messages"] = json!(recipe.messages);
        if !recipe.license.is_empty() {
            shown["license"] = recipe.license.join("\n").into();
        }
    }
    Ok(ok(&shown))
}

fn now() -> String {
    time(times::since_1970().as_secs())
}

/// Seconds since 1970 as RFC 3339 in UTC.
fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that leap days come last (Howard Hinnant's algorithm).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(time(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
