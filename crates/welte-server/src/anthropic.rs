//! Anthropic's API.

use crate::answer::{Answer, Answers, End, Event, Reason, Whole};
use crate::app::App;
use crate::ask::{self, Ask, MustCall, Prompt};
use crate::error::{Api, Failure, Outcome, ok};
use crate::fields::Fields;
use crate::models::Lease;
use crate::openai::{figures, text_format};
use crate::{answer, images, sampling};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use welte::{Image, Message};
use welte_text::ToolCall;

/// `POST /v1/messages`
pub(crate) async fn messages(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = lease(&app, &mut fields).await?;
    let mut ask = Ask::new(&app, &served, app.id("msg_"));
    ask.options.max_tokens = fields.need("max_tokens")?;
    sampling::take(&mut fields, &mut ask.options)?;
    if let Some(stop) = fields.take::<Vec<String>>("stop_sequences")? {
        ask.options.stop = sampling::strings(&fields, "stop_sequences", stop.into())?.into();
    }
    let stream: bool = fields.take("stream")?.unwrap_or(false);
    fields.ignore(&["metadata", "service_tier", "cache_control"]);
    keeps_context(&mut fields)?;
    let mut effort: Option<String> = None;
    if let Some(mut config) = fields.object("output_config")? {
        text_format(config.object("format")?, &mut ask)?;
        effort = config.take("effort")?;
        config.finish()?;
    }
    conversation(&mut fields, &mut ask)?;
    if let (Some(effort), Some(Prompt::Chat { variables, .. })) = (effort, ask.prompts.last_mut()) {
        variables.insert("reasoning_effort".to_string(), effort.into());
    }
    fields.finish()?;
    let id = ask.id.clone();
    let answers = ask.start(&app).await?;
    if stream {
        let format = MessageStream {
            app,
            served,
            id,
            prompt_tokens: answers.first().map_or(0, Answer::prompt_tokens),
            blocks: 0,
            open: None,
        };
        return Ok(answer::respond(answers, format, "text/event-stream"));
    }
    let wholes = Answers::new(answers).collect().await?;
    let [whole] = wholes.as_slice() else {
        return Err(Failure::server("the engine gave no result"));
    };
    let end = whole.end()?;
    let (reason, sequence) = stop_reason(end);
    Ok(ok(&json!({
        "id": id, "type": "message", "role": "assistant", "model": served.name(), "content": blocks(&app, whole),
        "stop_reason": reason, "stop_sequence": sequence, "stop_details": null, "container": null,
        "usage": usage(end), "welte": figures(end),
    })))
}

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = lease(&app, &mut fields).await?;
    let mut ask = Ask::new(&app, &served, String::new());
    fields.ignore(&["cache_control"]);
    keeps_context(&mut fields)?;
    conversation(&mut fields, &mut ask)?;
    fields.finish()?;
    let count = ask::count(&app, ask).await?;
    Ok(ok(&json!({ "input_tokens": count })))
}

/// Accepts rules for what to drop from the conversation if they drop nothing.
fn keeps_context(fields: &mut Fields) -> Result<(), Failure> {
    if let Some(mut management) = fields.object("context_management")? {
        for mut edit in management.objects("edits")? {
            edit.take::<String>("type")?;
            if edit.need::<Value>("keep")? != "all" {
                return Err(edit.wrong("keep", "only \"all\" is supported"));
            }
            edit.finish()?;
        }
        management.finish()?;
    }
    Ok(())
}

async fn lease(app: &App, fields: &mut Fields) -> Result<Lease, Failure> {
    app.lease_named(fields).await
}

/// Takes the fields that make the prompt.
fn conversation(fields: &mut Fields, ask: &mut Ask) -> Result<(), Failure> {
    let mut all = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        let mut system = Content::of(system, fields, "system")?;
        all.push(Message::new("system", std::mem::take(&mut system.text)));
        if !system.is_plain() || !system.images.is_empty() {
            return Err(fields.wrong("system", "may have text only"));
        }
    }
    let messages = fields.objects("messages")?;
    let is_empty = messages.is_empty();
    for message in messages {
        take_message(message, &mut all)?;
    }
    if is_empty {
        return Err(fields.wrong("messages", "at least one message is required"));
    }
    tools(fields, ask)?;
    fields.only("mcp_servers", &[json!([])])?;
    fields.refuse(&["container"])?;
    let mut variables = Map::new();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind: String = thinking.need("type")?;
        // The model decides how long it thinks; max_tokens is the limit of everything.
        thinking.ignore(&["budget_tokens", "display"]);
        let on = match kind.as_str() {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            _ => return Err(thinking.wrong("type", "must be enabled, adaptive or disabled")),
        };
        thinking.finish()?;
        variables.insert("enable_thinking".to_string(), on.into());
    }
    ask.prompts.push(Prompt::Chat {
        messages: all,
        variables,
    });
    Ok(())
}

/// How the types of tools begin that Anthropic's servers run. The model cannot call them here.
const SERVER_TOOLS: [&str; 6] = [
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "advisor_",
    "mcp_toolset",
];

fn tools(fields: &mut Fields, ask: &mut Ask) -> Result<(), Failure> {
    for mut tool in fields.objects("tools")? {
        let kind: Option<String> = tool.take("type")?;
        match kind.as_deref() {
            None | Some("custom") => {}
            Some(kind) if SERVER_TOOLS.iter().any(|tool| kind.starts_with(tool)) => {
                let problem = format!("{kind:?} is a tool that Anthropic's servers run");
                tool.pass_over("type", &problem)?;
                continue;
            }
            Some(kind) => {
                let problem = format!("{kind:?} is not supported; use \"custom\"");
                return Err(tool.wrong("type", problem));
            }
        }
        // Arguments are always streamed as the model writes them.
        tool.ignore(&["cache_control", "eager_input_streaming"]);
        let name: String = tool.need("name")?;
        if tool.take::<bool>("strict")? == Some(true) {
            ask.strict.push((name.clone(), tool.name("strict")));
        }
        let description: String = tool.take("description")?.unwrap_or_default();
        let schema: Map<String, Value> = tool.need("input_schema")?;
        tool.finish()?;
        ask.tools.push(json!({"type": "function", "function": {
            "name": name, "description": description, "parameters": schema,
        }}));
    }
    if let Some(mut choice) = fields.object("tool_choice")? {
        let kind: String = choice.need("type")?;
        ask.one_call = choice.take("disable_parallel_tool_use")?.unwrap_or(false);
        match kind.as_str() {
            "auto" => {}
            "none" => ask.tools.clear(),
            "any" | "tool" => {
                let name = match kind.as_str() {
                    "tool" => Some(choice.need("name")?),
                    _ => None,
                };
                ask.must_call = Some(MustCall {
                    field: fields.name("tool_choice"),
                    name,
                });
            }
            _ => return Err(choice.wrong("type", "must be auto, any, tool or none")),
        }
        choice.finish()?;
    }
    Ok(())
}

/// The content of a message, by kind.
#[derive(Default)]
struct Content {
    text: String,
    /// Images in the text.
    images: Vec<Image>,
    reasoning: String,
    calls: Vec<ToolCall>,
    /// Results with the ids of their calls.
    results: Vec<(String, String, Vec<Image>)>,
}

impl Content {
    fn of(value: Value, fields: &Fields, name: &str) -> Result<Content, Failure> {
        let mut content = Content::default();
        match value {
            Value::String(text) => content.text = text,
            Value::Array(blocks) => {
                for (i, block) in blocks.into_iter().enumerate() {
                    content.add(fields.inner(block, &format!("{name}[{i}]"))?)?;
                }
            }
            _ => return Err(fields.wrong(name, "must be a string or a list of blocks")),
        }
        Ok(content)
    }

    /// Text and images.
    fn is_plain(&self) -> bool {
        self.reasoning.is_empty() && self.calls.is_empty() && self.results.is_empty()
    }

    fn add(&mut self, mut block: Fields) -> Result<(), Failure> {
        let kind: String = block.need("type")?;
        block.ignore(&["cache_control"]);
        match kind.as_str() {
            "text" => {
                self.text.push_str(&block.need::<String>("text")?);
                block.ignore(&["citations"]);
            }
            "image" => {
                let image = image(&mut block, self.text.len())?;
                self.images.push(image);
            }
            "thinking" => {
                self.reasoning.push_str(&block.need::<String>("thinking")?);
                block.ignore(&["signature"]);
            }
            "tool_use" => {
                block.ignore(&["caller"]);
                self.calls.push(ToolCall {
                    id: block.need("id")?,
                    name: block.need("name")?,
                    arguments: Value::from(block.need::<Map<String, Value>>("input")?).to_string(),
                });
            }
            "tool_result" => {
                let id = block.need("tool_use_id")?;
                let inner = match block.take::<Value>("content")? {
                    Some(inner) => Content::of(inner, &block, "content")?,
                    None => Content::default(),
                };
                if !inner.is_plain() {
                    return Err(block.wrong("content", "may have text and images only"));
                }
                let failed = block.take::<bool>("is_error")? == Some(true);
                let (mut text, mut images) = (inner.text, inner.images);
                if failed {
                    const MARK: &str = "Error: ";
                    text.insert_str(0, MARK);
                    images.iter_mut().for_each(|image| image.at += MARK.len());
                }
                self.results.push((id, text, images));
            }
            _ => {
                let known = "\"text\", \"image\", \"thinking\", \"tool_use\" or \"tool_result\"";
                return Err(block.wrong("type", images::unsupported(&kind, known)));
            }
        }
        block.finish()
    }
}

/// The image of a block: base64, or an address.
fn image(block: &mut Fields, at: usize) -> Result<Image, Failure> {
    let Some(mut source) = block.object("source")? else {
        return Err(block.wrong("source", "is required"));
    };
    let kind: String = source.need("type")?;
    let field = match kind.as_str() {
        "base64" => "data",
        "url" => "url",
        _ => return Err(source.wrong("type", format!("{kind:?} is neither base64 nor url"))),
    };
    // What the file is decides how it is read.
    source.ignore(&["media_type"]);
    let text: String = source.need(field)?;
    let found = match field {
        "data" => images::of_base64(&source, field, &text)?,
        _ => images::of_url(&source, field, &text)?,
    };
    let name = source.name(field);
    source.finish()?;
    Ok(Image {
        at,
        source: found,
        name,
    })
}

fn take_message(mut fields: Fields, all: &mut Vec<Message>) -> Result<(), Failure> {
    let role: String = fields.need("role")?;
    if !matches!(role.as_str(), "user" | "assistant" | "system") {
        let problem = format!("{role:?} is none of user, assistant and system");
        return Err(fields.wrong("role", problem));
    }
    let content = Content::of(fields.need("content")?, &fields, "content")?;
    if role == "system" && (!content.is_plain() || !content.images.is_empty()) {
        return Err(fields.wrong("content", "of a system message may have text only"));
    }
    fields.finish()?;
    let only_results =
        !content.results.is_empty() && content.text.is_empty() && content.images.is_empty();
    for (id, text, images) in content.results {
        all.push(Message {
            tool_call_id: Some(id),
            images,
            ..Message::new("tool", text)
        });
    }
    if !only_results {
        all.push(Message {
            reasoning: content.reasoning,
            tool_calls: content.calls,
            images: content.images,
            ..Message::new(role, content.text)
        });
    }
    Ok(())
}

fn stop_reason(end: &End) -> (&'static str, Option<&str>) {
    match &end.reason {
        Reason::Stop => ("end_turn", None),
        Reason::StopString(word) => ("stop_sequence", Some(word)),
        Reason::Length => ("max_tokens", None),
        Reason::Calls => ("tool_use", None),
    }
}

fn usage(end: &End) -> Value {
    let outcome = &end.outcome;
    json!({
        "input_tokens": outcome.prompt_tokens.saturating_sub(outcome.cached_tokens),
        "cache_read_input_tokens": outcome.cached_tokens, "cache_creation_input_tokens": 0,
        "cache_creation": { "ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0 },
        "output_tokens": outcome.tokens.len(),
        "output_tokens_details": { "thinking_tokens": end.reasoning_tokens },
        "inference_geo": null, "server_tool_use": null, "service_tier": "standard",
    })
}

fn blocks(app: &App, whole: &Whole) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !whole.reasoning.is_empty() {
        blocks.push(json!({ "type": "thinking", "thinking": whole.reasoning, "signature": "" }));
    }
    if !whole.text.is_empty() {
        blocks.push(text_block(&whole.text));
    }
    for (name, arguments) in &whole.calls {
        let input: Value = serde_json::from_str(arguments).unwrap_or_default();
        blocks.push(call_block(app, name, input));
    }
    blocks
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text, "citations": [] })
}

fn call_block(app: &App, name: &str, input: Value) -> Value {
    json!({
        "type": "tool_use", "id": app.id("toolu_"), "name": name, "input": input, "caller": { "type": "direct" },
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    Call,
}

struct MessageStream {
    app: Arc<App>,
    served: Lease,
    id: String,
    prompt_tokens: usize,
    /// Blocks so far.
    blocks: usize,
    /// The last block, while it can grow.
    open: Option<Block>,
}

impl MessageStream {
    fn start(&mut self, block: Value) -> Value {
        self.blocks += 1;
        json!({ "type": "content_block_start", "index": self.blocks - 1, "content_block": block })
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta })
    }

    fn stop(&mut self) -> Option<Value> {
        self.open.take()?;
        Some(json!({ "type": "content_block_stop", "index": self.blocks - 1 }))
    }

    fn grow(&mut self, block: Block, start: Value, delta: Value) -> Vec<Value> {
        let mut all = Vec::new();
        if self.open != Some(block) {
            all.extend(self.stop());
            all.push(self.start(start));
            self.open = Some(block);
        }
        all.push(self.delta(delta));
        all
    }
}

impl answer::Format for MessageStream {
    fn begin(&mut self) -> Vec<Value> {
        vec![json!({ "type": "message_start", "message": {
            "id": self.id, "type": "message", "role": "assistant", "model": self.served.name(), "content": [],
            "stop_reason": null, "stop_sequence": null, "stop_details": null, "container": null, "usage": { "input_tokens": self.prompt_tokens, "output_tokens": 0 },
        }})]
    }

    fn event(&mut self, _: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Logprobs(_) | Event::Tokens(_) => Vec::new(),
            Event::Timings(_) | Event::Progress(_) => Vec::new(),
            Event::Text(text) => self.grow(
                Block::Text,
                text_block(""),
                json!({ "type": "text_delta", "text": text }),
            ),
            Event::Reasoning(text) => self.grow(
                Block::Thinking,
                json!({ "type": "thinking", "thinking": "", "signature": "" }),
                json!({ "type": "thinking_delta", "thinking": text }),
            ),
            Event::CallBegin(name) => {
                let mut all: Vec<Value> = self.stop().into_iter().collect();
                let block = call_block(&self.app, &name, json!({}));
                all.push(self.start(block));
                self.open = Some(Block::Call);
                all
            }
            Event::CallArguments(delta) => {
                vec![self.delta(json!({ "type": "input_json_delta", "partial_json": delta }))]
            }
            Event::CallEnd | Event::CallVoid => self.stop().into_iter().collect(),
            Event::End(end) => {
                let mut all: Vec<Value> = self.stop().into_iter().collect();
                let (reason, sequence) = stop_reason(&end);
                all.push(json!({
                    "type": "message_delta", "delta": { "stop_reason": reason, "stop_sequence": sequence },
                    "usage": usage(&end), "welte": figures(&end),
                }));
                all.push(json!({ "type": "message_stop" }));
                all
            }
        }
    }

    fn finish(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        failure.body(Api::Anthropic)
    }

    fn write(&self, value: &Value) -> String {
        answer::sse_named(value)
    }
}
