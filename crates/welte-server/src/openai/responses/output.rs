//! The output of a response: items, and the events that announce them. Whole responses are built from the same events.

use super::mcp::{Call, Rounds, tell};
use super::names::Names;
use super::store::{Item, Stored};
use crate::answer::{End, Event, More, Reason, Said};
use crate::app::App;
use crate::error::Failure;
use crate::models::Lease;
use crate::openai::{created, figures};
use crate::{answer, logprobs};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;

/// What a stored response needs beside its output.
pub(super) struct Keep {
    pub(super) before: Vec<Arc<Item>>,
    pub(super) input: Vec<Arc<Item>>,
}

/// A response while it is made.
pub(super) struct Building {
    app: Arc<App>,
    served: Lease,
    /// Everything but the output.
    head: Value,
    /// The tools that are in namespaces.
    names: Names,
    /// Complete items.
    output: Vec<Value>,
    open: Option<Open>,
    /// Entries of the tokens whose text comes next.
    logprobs: Vec<Value>,
    /// Events so far.
    events: u64,
    keep: Option<Keep>,
    /// How the model goes on after calls of MCP servers' tools; `None`: it has no such tools.
    rounds: Option<Rounds>,
    /// Lists of such tools, and calls that the user has agreed to, which come first.
    first: (Vec<Value>, Vec<(Value, String)>),
    /// The call of such a tool that grows: the name that the model knows, and the arguments.
    remote: Option<(String, String)>,
    /// Calls to be made once the answer has ended.
    calls: Vec<Call>,
    /// The end of the answer before these calls.
    held: Option<Box<End>>,
    /// What earlier answers of the response have used.
    used: Value,
    /// The client has to act before the model can go on.
    waits: bool,
    /// Replaces a response that is stored already.
    in_background: bool,
}

/// The item that grows.
struct Open {
    kind: Kind,
    id: String,
    /// Of a call.
    call_id: String,
    /// The function of a call, and the namespace that it is in.
    name: String,
    namespace: Option<String>,
    text: String,
    /// Entries of its tokens, if they were asked for.
    logprobs: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call,
}

impl Kind {
    /// The type of its part, and what the names of its events begin with.
    fn part(self) -> &'static str {
        match self {
            Kind::Message => "output_text",
            Kind::Reasoning => "reasoning_text",
            Kind::Call => "function_call_arguments",
        }
    }
}

impl Open {
    /// Its part with this text, or nothing: calls have no parts.
    fn part(&self, text: &str) -> Option<Value> {
        match self.kind {
            Kind::Message => {
                let logprobs = if text.is_empty() {
                    &[]
                } else {
                    self.logprobs.as_slice()
                };
                Some(json!({
                    "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs,
                }))
            }
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": text })),
            Kind::Call => None,
        }
    }

    fn item(&self, status: &str, text: &str) -> Value {
        let content = if text.is_empty() {
            json!([])
        } else {
            self.part(text).into_iter().collect()
        };
        match self.kind {
            Kind::Message => json!({
                "type": "message", "id": self.id, "status": status, "role": "assistant", "content": content,
            }),
            Kind::Reasoning => json!({
                "type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content,
            }),
            Kind::Call => {
                let mut item = json!({
                    "type": "function_call", "id": self.id, "call_id": self.call_id, "name": self.name,
                    "arguments": text, "status": status,
                });
                if let Some(namespace) = &self.namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                item
            }
        }
    }
}

impl Building {
    pub(super) fn new(
        app: Arc<App>,
        served: Lease,
        head: Value,
        names: Names,
        keep: Option<Keep>,
    ) -> Building {
        Building {
            app,
            served,
            head,
            names,
            output: Vec::new(),
            open: None,
            logprobs: Vec::new(),
            events: 0,
            keep,
            rounds: None,
            first: Default::default(),
            remote: None,
            calls: Vec::new(),
            held: None,
            used: Value::Null,
            waits: false,
            in_background: false,
        }
    }

    /// With tools of MCP servers.
    pub(super) fn with_tools(
        &mut self,
        rounds: Option<Rounds>,
        lists: Vec<Value>,
        approved: Vec<(Value, String)>,
    ) {
        (self.rounds, self.first) = (rounds, (lists, approved));
    }

    /// Stores the response before it is made. `cancel` ends it.
    pub(super) fn go_on_in_background(&mut self, cancel: &Arc<Notify>) {
        self.in_background = true;
        if let Some(keep) = &self.keep {
            self.app.responses.put(Stored {
                id: self.head["id"].as_str().unwrap_or_default().to_string(),
                head: self.head.clone(),
                before: keep.before.clone(),
                input: keep.input.clone(),
                output: Vec::new(),
                cancel: Some(cancel.clone()),
            });
        }
    }

    pub(super) fn app_and_id(&self) -> (Arc<App>, String) {
        let id = self.head["id"].as_str().unwrap_or_default();
        (self.app.clone(), id.to_string())
    }

    /// The response so far.
    pub(super) fn response(&self) -> Value {
        let mut response = self.head.clone();
        response["output"] = self.output.clone().into();
        response
    }

    /// An event with its number.
    fn announce(&mut self, kind: &str, fields: Value) -> Value {
        let mut event = json!({ "type": kind, "sequence_number": self.events });
        self.events += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        event
    }

    /// Begins an item. `name`: the function of a call.
    fn begin_item(&mut self, kind: Kind, name: String) -> Vec<Value> {
        let mut events = self.close("completed");
        let (prefix, call_id) = match kind {
            Kind::Message => ("msg_", String::new()),
            Kind::Reasoning => ("rs_", String::new()),
            Kind::Call => ("fc_", self.app.id("call_")),
        };
        let (namespace, name) = self.names.of_call(name);
        let open = Open {
            kind,
            id: self.app.id(prefix),
            call_id,
            name,
            namespace,
            text: String::new(),
            logprobs: Vec::new(),
        };
        let item = open.item("in_progress", "");
        let added = json!({ "output_index": self.output.len(), "item": item });
        events.push(self.announce("response.output_item.added", added));
        if let Some(part) = open.part("") {
            let place = self.place(&open, json!({ "part": part }));
            events.push(self.announce("response.content_part.added", place));
        }
        self.open = Some(open);
        events
    }

    /// Appends to the item at hand, or to a new one if it is of another kind.
    fn grow(&mut self, kind: Kind, text: String) -> Vec<Value> {
        let mut events = Vec::new();
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            events = self.begin_item(kind, String::new());
        }
        if let Some(mut open) = self.open.take() {
            open.text.push_str(&text);
            let logprobs = std::mem::take(&mut self.logprobs);
            let mut delta = self.place(&open, json!({ "delta": text }));
            if kind == Kind::Message {
                delta["logprobs"] = logprobs.clone().into();
            }
            open.logprobs.extend(logprobs);
            let name = format!("response.{}.delta", kind.part());
            events.push(self.announce(&name, delta));
            self.open = Some(open);
        }
        events
    }

    /// Fields that say where an item or its part is, with further ones.
    fn place(&self, open: &Open, fields: Value) -> Value {
        let mut place = json!({ "item_id": open.id, "output_index": self.output.len() });
        if open.kind != Kind::Call {
            place["content_index"] = 0.into();
        }
        if let (Value::Object(place), Value::Object(fields)) = (&mut place, fields) {
            place.extend(fields);
        }
        place
    }

    /// Completes the item that grows.
    fn close(&mut self, status: &str) -> Vec<Value> {
        let Some(open) = self.open.take() else {
            return Vec::new();
        };
        let done = match open.kind {
            Kind::Message => json!({ "text": open.text, "logprobs": open.logprobs }),
            Kind::Reasoning => json!({ "text": open.text }),
            Kind::Call => json!({ "name": open.name, "arguments": open.text }),
        };
        let done = self.place(&open, done);
        let name = format!("response.{}.done", open.kind.part());
        let mut events = vec![self.announce(&name, done)];
        if let Some(part) = open.part(&open.text) {
            let part = self.place(&open, json!({ "part": part }));
            events.push(self.announce("response.content_part.done", part));
        }
        let item = open.item(status, &open.text);
        events.push(self.item_done(item));
        events
    }

    fn item_done(&mut self, item: Value) -> Value {
        let place = json!({ "output_index": self.output.len(), "item": item.clone() });
        self.output.push(item);
        self.announce("response.output_item.done", place)
    }

    /// Announces an item that is complete at once.
    fn whole_item(&mut self, item: Value) -> Vec<Value> {
        let added = json!({ "output_index": self.output.len(), "item": item.clone() });
        vec![
            self.announce("response.output_item.added", added),
            self.item_done(item),
        ]
    }

    /// Begins a call of an MCP server's tool, which is made once the answer has ended.
    fn begin_call(
        &mut self,
        label: &str,
        name: &str,
        arguments: String,
        approval: Option<String>,
    ) -> Vec<Value> {
        let id = self.app.id("mcp_");
        let item = json!({
            "type": "mcp_call", "id": id, "status": "in_progress", "server_label": label, "name": name,
            "arguments": arguments, "output": null, "error": null, "approval_request_id": approval,
        });
        let index = self.output.len();
        let place = json!({ "item_id": id, "output_index": index });
        let mut done = place.clone();
        done["arguments"] = arguments.as_str().into();
        let added = json!({ "output_index": index, "item": item.clone() });
        self.output.push(item);
        let (label, name) = (label.to_string(), name.to_string());
        self.calls.push(Call {
            index,
            label,
            name,
            arguments,
        });
        vec![
            self.announce("response.output_item.added", added),
            self.announce("response.mcp_call.in_progress", place),
            self.announce("response.mcp_call_arguments.done", done),
        ]
    }

    /// A complete call of an MCP server's tool: to be made, or a question to the user.
    fn remote_call(&mut self, known_as: &str, arguments: String) -> Vec<Value> {
        let Some(remote) = self.names.remote(known_as).cloned() else {
            return Vec::new();
        };
        if !remote.ask_first {
            return self.begin_call(&remote.label, &remote.name, arguments, None);
        }
        self.waits = true;
        let item = json!({
            "type": "mcp_approval_request", "id": self.app.id("mcpr_"), "server_label": remote.label,
            "name": remote.name, "arguments": arguments,
        });
        self.whole_item(item)
    }

    fn end(&mut self, end: &End) -> Vec<Value> {
        let (status, details) = match end.reason {
            Reason::Length => ("incomplete", json!({ "reason": "max_output_tokens" })),
            _ => ("completed", Value::Null),
        };
        // Those of tokens without text.
        if let Some(open) = &mut self.open {
            open.logprobs.append(&mut self.logprobs);
        }
        let mut events = self.close(status);
        self.head["incomplete_details"] = details;
        self.head["usage"] = sum(usage(end), &self.used);
        self.head["welte"] = figures(end);
        let kind = format!("response.{status}");
        self.finish(status);
        let response = self.response();
        events.push(self.announce(&kind, json!({ "response": response })));
        events
    }

    /// Whether tools of MCP servers were called.
    pub(super) fn has_called(&self) -> bool {
        self.output.iter().any(|item| item["type"] == "mcp_call")
    }

    /// Ends a response that failed or was cancelled.
    pub(super) fn abort(&mut self, status: &str, failure: Option<&Failure>) {
        if let Some(failure) = failure {
            let code = match failure.overflow {
                Some(_) => "context_length_exceeded",
                None => "server_error",
            };
            self.head["error"] = json!({ "code": code, "message": failure.message });
        }
        // What came before the calls counts.
        if let Some(end) = self.held.take() {
            self.used = sum(usage(&end), &self.used);
        }
        if !self.used.is_null() {
            self.head["usage"] = self.used.take();
        }
        self.calls.clear();
        let is_open =
            |item: &&mut Value| item["type"] == "mcp_call" && item["status"] == "in_progress";
        for item in self.output.iter_mut().filter(is_open) {
            tell(item, &Err("the response ended before the result".into()));
        }
        self.close("incomplete");
        self.finish(status);
    }

    fn finish(&mut self, status: &str) {
        self.head["status"] = status.into();
        self.head["completed_at"] = created().into();
        let Some(keep) = self.keep.take() else {
            return;
        };
        let store = &self.app.responses;
        let output = self.output.iter().map(|item| Item::new(item.clone()));
        let stored = Stored {
            id: self.head["id"].as_str().unwrap_or_default().to_string(),
            head: self.head.clone(),
            before: keep.before,
            input: keep.input,
            output: output.collect(),
            cancel: None,
        };
        if self.in_background {
            store.replace(stored)
        } else {
            store.put(stored)
        }
    }

    /// Takes an event of the answer. Returns the events of the response.
    pub(super) fn take(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::CallBegin(name) if self.names.remote(&name).is_some() => {
                self.remote = Some((name, String::new()));
                self.close("completed")
            }
            Event::CallArguments(delta) if self.remote.is_some() => {
                if let Some((_, arguments)) = &mut self.remote {
                    arguments.push_str(&delta);
                }
                Vec::new()
            }
            Event::CallEnd if self.remote.is_some() => {
                let (name, arguments) = self.remote.take().unwrap_or_default();
                self.remote_call(&name, arguments)
            }
            Event::CallVoid if self.remote.is_some() => {
                self.remote = None;
                Vec::new()
            }
            Event::End(end) if !self.calls.is_empty() => {
                let events = self.close("completed");
                self.held = Some(end);
                events
            }
            Event::Tokens(_) | Event::Timings(_) | Event::Progress(_) => Vec::new(),
            Event::Logprobs(all) => {
                if let Value::Array(entries) = logprobs::entries(&self.served, &all) {
                    self.logprobs.extend(entries);
                }
                Vec::new()
            }
            Event::Text(text) => self.grow(Kind::Message, text),
            Event::Reasoning(text) => self.grow(Kind::Reasoning, text),
            Event::CallBegin(name) => {
                self.waits = true;
                self.begin_item(Kind::Call, name)
            }
            Event::CallArguments(delta) => self.grow(Kind::Call, delta),
            Event::CallEnd => self.close("completed"),
            Event::CallVoid => self.close("incomplete"),
            Event::End(end) => self.end(&end),
        }
    }
}

pub(super) fn usage(end: &End) -> Value {
    let (outcome, output) = (&end.outcome, end.outcome.tokens.len());
    json!({
        "input_tokens": outcome.prompt_tokens,
        "input_tokens_details": { "cached_tokens": outcome.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": end.reasoning_tokens },
        "total_tokens": outcome.prompt_tokens + output,
    })
}

/// The numbers of two objects together.
fn sum(mut value: Value, other: &Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, value) in fields {
                *value = sum(value.take(), &other[name.as_str()]);
            }
        }
        value => {
            let all = value.as_u64().zip(other.as_u64()).map(|(a, b)| a + b);
            *value = all.map_or(value.take(), Value::from);
        }
    }
    value
}

impl answer::Format for Building {
    fn begin(&mut self) -> Vec<Value> {
        let response = self.response();
        let mut events: Vec<Value> = ["response.created", "response.in_progress"]
            .map(|kind| self.announce(kind, json!({ "response": response })))
            .into();
        let (lists, approved) = std::mem::take(&mut self.first);
        for list in lists {
            let place = json!({ "item_id": list["id"], "output_index": self.output.len() });
            for kind in ["in_progress", "completed"] {
                events
                    .push(self.announce(&format!("response.mcp_list_tools.{kind}"), place.clone()));
            }
            events.extend(self.whole_item(list));
        }
        for (request, id) in approved {
            let text = |field: &str| request[field].as_str().unwrap_or_default();
            let (label, name, arguments) = (
                text("server_label"),
                text("name"),
                text("arguments").to_string(),
            );
            events.extend(self.begin_call(label, name, arguments, Some(id)));
        }
        events
    }

    fn more(&mut self) -> Option<More> {
        let calls = std::mem::take(&mut self.calls);
        let rounds = self.rounds.as_mut().filter(|_| !calls.is_empty())?;
        let made = self.held.as_ref().map_or(0, |end| end.outcome.tokens.len());
        Some(rounds.go_on(&self.app, calls, self.output.clone(), made, self.waits))
    }

    fn resume(&mut self, results: Vec<(usize, Said)>, goes_on: bool) -> Vec<Value> {
        let mut events = Vec::new();
        for (index, said) in results {
            tell(&mut self.output[index], &said);
            let item = self.output[index].clone();
            let place = json!({ "item_id": item["id"], "output_index": index });
            let kind = format!(
                "response.mcp_call.{}",
                item["status"].as_str().unwrap_or_default()
            );
            events.push(self.announce(&kind, place));
            let done = json!({ "output_index": index, "item": item });
            events.push(self.announce("response.output_item.done", done));
        }
        match self.held.take() {
            Some(end) if goes_on => self.used = sum(usage(&end), &self.used),
            Some(end) => events.extend(self.end(&end)),
            None => {}
        }
        events
    }

    fn event(&mut self, _: usize, event: Event) -> Vec<Value> {
        self.take(event)
    }

    fn finish(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failure(&mut self, failure: &Failure) -> Value {
        self.abort("failed", Some(failure));
        let response = self.response();
        self.announce("response.failed", json!({ "response": response }))
    }

    fn write(&self, value: &Value) -> String {
        answer::sse_named(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerOptions;
    use welte::{LoadOptions, Model};

    #[tokio::test]
    async fn reasoning_text_and_calls_become_items() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
        let mut options = LoadOptions::default();
        (options.context, options.device) = (64, "cpu".parse().unwrap());
        let model = Model::load(path, &options, &mut |_| ()).unwrap();
        let app = Arc::new(App::new(model.into(), ServerOptions::default()).unwrap());
        let served = app.lease(None).await.unwrap();
        let mut building = Building::new(
            app,
            served,
            json!({ "id": "resp_1" }),
            Names::default(),
            None,
        );
        let mut events = Vec::new();
        for event in [
            Event::Reasoning("let me ".into()),
            Event::Reasoning("think".into()),
            Event::Text("one moment".into()),
            Event::CallBegin("f".into()),
            Event::CallArguments("{\"a\":".into()),
            Event::CallArguments(" 1}".into()),
            Event::CallEnd,
            Event::CallBegin("g".into()),
            Event::CallArguments("{".into()),
            Event::CallVoid,
            Event::Text("done".into()),
        ] {
            events.extend(building.take(event));
        }
        events.extend(building.close("completed"));
        let output = building.response()["output"].clone();
        assert_eq!(output[0]["type"], "reasoning");
        assert_eq!(output[0]["content"][0]["text"], "let me think");
        assert_eq!(output[1]["content"][0]["text"], "one moment");
        assert_eq!(output[2]["arguments"], "{\"a\": 1}");
        assert_eq!(output[2]["status"], "completed");
        assert_eq!(output[3]["status"], "incomplete");
        assert_eq!(output[4]["content"][0]["text"], "done");
        for (index, item) in output.as_array().unwrap().iter().enumerate() {
            let own = |event: &&Value| event["output_index"] == index;
            let own: Vec<&Value> = events.iter().filter(own).collect();
            assert_eq!(own[0]["type"], "response.output_item.added");
            assert_eq!(own[0]["item"]["id"], item["id"]);
            assert_eq!(own[0]["item"]["status"], "in_progress");
            let last = own[own.len() - 1];
            assert_eq!(last["type"], "response.output_item.done");
            assert_eq!(&last["item"], item);
            let deltas = own.iter().filter_map(|event| event["delta"].as_str());
            let deltas: String = deltas.collect();
            let content = item["content"][0]["text"].as_str();
            assert_eq!(
                Some(deltas.as_str()),
                content.or(item["arguments"].as_str())
            );
        }
    }
}
