//! `POST /v1/chat/completions`

use super::messages::{messages, tools};
use super::{
    FINGERPRINT, Streaming, created, figures, finish_reason, take_common, usage, with_tokens,
};
use crate::answer::{Answers, End, Event, Whole};
use crate::app::App;
use crate::ask::{self, Ask, Ending, Prompt};
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::models::{Lease, Served};
use crate::{answer, llama, logprobs, sampling};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use welte::{Constraint, Logprobs, RequestProgress};

/// `POST /v1/chat/completions/input_tokens`: how long the prompt of a conversation is.
pub(crate) async fn chat_tokens(app: Arc<App>, fields: Fields) -> Outcome {
    let (ask, _) = request(&app, fields).await?;
    let tokens = ask::count(&app, ask).await?;
    Ok(ok(
        &json!({ "object": "response.input_tokens", "input_tokens": tokens }),
    ))
}

/// Takes all fields.
async fn request(app: &App, mut fields: Fields) -> Result<(Ask, Streaming), Failure> {
    let served = app.lease_named(&mut fields).await?;
    let mut ask = Ask::new(app, &served, app.id("chatcmpl-"));
    sampling::take(&mut fields, &mut ask.options)?;
    let streaming = take_common(&mut fields, &mut ask)?;
    let messages = messages(&mut fields)?;
    ask.ending = Ending::take(&mut fields, &messages)?;
    tools(&mut fields, &mut ask)?;
    let limit: Option<usize> = fields.take("max_completion_tokens")?;
    if let Some(limit) = limit.or(fields.take("max_tokens")?) {
        ask.options.max_tokens = limit;
    }
    let variables = variables(&mut fields)?;
    text_format(fields.object("response_format")?, &mut ask)?;
    logprobs::take(&mut fields, &mut ask.options)?;
    fields.only("store", &[json!(false)])?;
    fields.only("modalities", &[json!(["text"])])?;
    // The former names of tools and of the choice of tools.
    fields.only("functions", &[json!([])])?;
    fields.only("function_call", &[json!("none"), json!("auto")])?;
    fields.refuse(&["audio"])?;
    if !ask.answered.is_empty() && !streaming.on {
        return Err(fields.wrong(ask::ANSWERED, "needs \"stream\": true"));
    }
    fields.finish()?;
    ask.prompts.push(Prompt::Chat {
        messages,
        variables,
    });
    Ok((ask, streaming))
}

pub(crate) async fn chat(app: Arc<App>, fields: Fields) -> Outcome {
    let (ask, streaming) = request(&app, fields).await?;
    let served = ask.served.clone();
    let (id, choices) = (ask.id.clone(), ask.choices);
    let settings = streaming.extras.verbose.then(|| llama::settings(&ask));
    let continues = !ask.answered.is_empty();
    let answers = ask.start(&app).await?;
    if streaming.on {
        let format = ChatStream {
            app,
            served,
            id,
            created: created(),
            usage: streaming.usage,
            ends: vec![None; choices],
            continues,
            calls: answers.iter().map(answer::Answer::begun_calls).collect(),
            tokens: streaming.tokens.then(|| vec![Vec::new(); choices]),
            logprobs: vec![Vec::new(); choices],
            settings,
            timings: vec![None; choices],
        };
        return Ok(answer::respond(answers, format, "text/event-stream"));
    }
    let wholes = Answers::new(answers).collect().await?;
    let choices: Result<Vec<Value>, Failure> = wholes
        .iter()
        .enumerate()
        .map(|(i, whole)| {
            let tokens = whole.end()?.new_tokens();
            let choice = choice(&app, &served, i, whole)?;
            Ok(with_tokens(choice, streaming.tokens.then_some(tokens)))
        })
        .collect();
    let ends: Vec<&End> = wholes.iter().map(Whole::end).collect::<Result<_, _>>()?;
    let mut body = json!({
        "id": id, "object": "chat.completion", "created": created(), "model": served.name(),
        "system_fingerprint": FINGERPRINT, "choices": choices?, "usage": usage(&ends, ends.len()),
        "timings": llama::timings(ends[0]), "welte": figures(ends[0]),
    });
    if let Some(settings) = settings {
        let tokens = ends[0].new_tokens();
        body["__verbose"] = llama::whole(&served, &settings, &wholes[0].text, tokens, ends[0]);
    }
    Ok(ok(&body))
}

/// What goes to the chat template.
pub(crate) fn variables(fields: &mut Fields) -> Result<Map<String, Value>, Failure> {
    let mut variables: Map<String, Value> =
        fields.take("chat_template_kwargs")?.unwrap_or_default();
    let reserved = [
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
    ];
    if let Some(name) = reserved.iter().find(|name| variables.contains_key(**name)) {
        let name = format!("chat_template_kwargs.{name}");
        return Err(Failure::field(name, "cannot be set"));
    }
    reasoning_effort(fields, "reasoning_effort", &mut variables)?;
    Ok(variables)
}

/// Takes how much the model shall reason, and tells the chat template.
pub(super) fn reasoning_effort(
    fields: &mut Fields,
    name: &str,
    variables: &mut Map<String, Value>,
) -> Result<Option<String>, Failure> {
    let effort: Option<String> = fields.take(name)?;
    if let Some(effort) = effort.clone() {
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(false.into());
        }
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(effort)
}

/// Takes the format of the answer's text.
pub(crate) fn text_format(format: Option<Fields>, ask: &mut Ask) -> Result<(), Failure> {
    let Some(mut format) = format else {
        return Ok(());
    };
    let kind: String = format.need("type")?;
    match kind.as_str() {
        "text" => format.finish(),
        "json_object" => {
            // llama.cpp takes a schema here too.
            let constraint = match format.take("schema")? {
                Some(schema) => Constraint::JsonSchema(schema),
                None => Constraint::Json,
            };
            ask.constrain(format.name("type"), constraint)?;
            format.finish()
        }
        "json_schema" => {
            // Responses have a level less than chats.
            let mut inner = match format.object("json_schema")? {
                Some(inner) => {
                    format.finish()?;
                    inner
                }
                None => format,
            };
            inner.ignore(&["name", "description"]);
            // Every schema is enforced.
            inner.take::<bool>("strict")?;
            let schema = inner.need("schema")?;
            ask.constrain(inner.name("schema"), Constraint::JsonSchema(schema))?;
            inner.finish()
        }
        _ => {
            let problem = format!("{kind:?} is none of text, json_object and json_schema");
            Err(format.wrong("type", problem))
        }
    }
}

fn choice(app: &App, served: &Served, index: usize, whole: &Whole) -> Result<Value, Failure> {
    let calls: Vec<Value> = whole
        .calls
        .iter()
        .map(|call| call_json(app, call))
        .collect();
    let content = if whole.text.is_empty() && !calls.is_empty() {
        Value::Null
    } else {
        whole.text.as_str().into()
    };
    let mut message =
        json!({ "role": "assistant", "content": content, "refusal": null, "annotations": [] });
    if !whole.reasoning.is_empty() {
        message["reasoning_content"] = whole.reasoning.as_str().into();
        message["reasoning"] = whole.reasoning.as_str().into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let reason = finish_reason(whole.end()?);
    let logprobs = logprobs::of_chat(served, &whole.logprobs);
    Ok(json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": reason }))
}

fn call_json(app: &App, (name, arguments): &(String, String)) -> Value {
    let function = json!({ "name": name, "arguments": arguments });
    json!({ "id": app.id("call_"), "type": "function", "function": function })
}

struct ChatStream {
    app: Arc<App>,
    served: Lease,
    id: String,
    created: u64,
    /// Send the usage at the end.
    usage: bool,
    ends: Vec<Option<Box<End>>>,
    /// The client has the beginning.
    continues: bool,
    /// Calls so far, for each answer.
    calls: Vec<usize>,
    /// Tokens that the next chunk of each answer has, if they were asked for.
    tokens: Option<Vec<Vec<u32>>>,
    /// Probabilities that the next chunk of each answer has.
    logprobs: Vec<Vec<Logprobs>>,
    /// The settings for llama.cpp's whole response, if that was asked for.
    settings: Option<Value>,
    /// How fast each answer was so far, for its next chunk.
    timings: Vec<Option<RequestProgress>>,
}

impl ChatStream {
    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.served.name(), "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }

    fn delta(&mut self, index: usize, delta: Value, reason: Option<&str>) -> Value {
        let logprobs = std::mem::take(&mut self.logprobs[index]);
        let logprobs = logprobs::of_chat(&self.served, &logprobs);
        let tokens = self
            .tokens
            .as_mut()
            .map(|all| std::mem::take(&mut all[index]));
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason });
        let mut chunk = self.chunk(json!([with_tokens(choice, tokens.as_deref())]));
        if let Some(progress) = self.timings[index].take() {
            chunk["timings"] = llama::so_far(&progress);
        }
        chunk
    }
}

impl answer::Format for ChatStream {
    fn begin(&mut self) -> Vec<Value> {
        let role = || json!({ "role": "assistant", "content": null });
        let begun = if self.continues { 0 } else { self.ends.len() };
        (0..begun).map(|i| self.delta(i, role(), None)).collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        let delta = match event {
            Event::Logprobs(logprobs) => {
                self.logprobs[index].extend(logprobs);
                return Vec::new();
            }
            Event::Tokens(tokens) => {
                let pending = self.tokens.iter_mut().flat_map(|all| all.get_mut(index));
                pending.for_each(|own| own.extend(&tokens));
                return Vec::new();
            }
            Event::Timings(progress) => {
                self.timings[index] = Some(progress);
                return Vec::new();
            }
            Event::Progress(progress) => {
                let mut chunk = self.delta(index, json!({}), None);
                chunk["prompt_progress"] = llama::progress(&progress);
                return vec![chunk];
            }
            Event::Text(text) => json!({ "content": text }),
            Event::Reasoning(text) => json!({ "reasoning_content": text, "reasoning": text }),
            Event::CallBegin(name) => {
                let mut call = call_json(&self.app, &(name, String::new()));
                call["index"] = self.calls[index].into();
                self.calls[index] += 1;
                json!({ "tool_calls": [call] })
            }
            Event::CallArguments(delta) => {
                let number = self.calls[index].saturating_sub(1);
                json!({ "tool_calls": [{ "index": number, "function": { "arguments": delta } }] })
            }
            Event::CallEnd | Event::CallVoid => return Vec::new(),
            Event::End(end) => {
                let mut last = self.delta(index, json!({}), Some(finish_reason(&end)));
                last["timings"] = llama::timings(&end);
                if let Some(settings) = &self.settings {
                    last["__verbose"] = llama::whole(&self.served, settings, "", &[], &end);
                }
                self.ends[index] = Some(end);
                return vec![last];
            }
        };
        vec![self.delta(index, delta, None)]
    }

    fn finish(&mut self) -> Vec<Value> {
        let ends: Vec<&End> = self.ends.iter().flatten().map(|end| &**end).collect();
        let (true, Some(first)) = (self.usage, ends.first()) else {
            return Vec::new();
        };
        let mut last = self.chunk(json!([]));
        last["usage"] = usage(&ends, ends.len());
        last["timings"] = llama::timings(first);
        last["welte"] = figures(first);
        vec![last]
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::OpenAi)
    }

    fn write(&self, value: &Value) -> String {
        answer::sse(value)
    }

    fn close(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}
