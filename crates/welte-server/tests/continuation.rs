//! Streams whose server is lost in between: another server gives the rest.

mod common;

use axum::Router;
use common::scripted::{TEMPLATE, scripted};
use common::{Reply, post, server};
use serde_json::{Value, json};
use welte_server::{ServerOptions, router};

/// What a client has put together of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    tokens: Vec<u64>,
    end: Value,
    usage: Value,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Answer {
    fn add(&mut self, event: &Value) {
        let choice = event.pointer("/choices/0").unwrap_or(event);
        let delta = choice.get("delta").unwrap_or(choice);
        for field in ["text", "content"] {
            self.text += text(&delta[field]);
        }
        self.reasoning += text(&delta["reasoning_content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let (index, function) = (call["index"].as_u64().unwrap(), &call["function"]);
            if function["name"].is_string() {
                assert_eq!(index as usize, self.calls.len());
                self.calls
                    .push((text(&function["name"]).into(), String::new()));
            }
            self.calls[index as usize].1 += text(&function["arguments"]);
        }
        for field in ["token_ids", "tokens"] {
            let tokens = choice[field].as_array().into_iter().flatten();
            self.tokens.extend(tokens.filter_map(Value::as_u64));
        }
        for field in ["finish_reason", "stop_type"] {
            if !choice[field].is_null() {
                self.end = choice[field].clone();
            }
        }
        for field in ["usage", "tokens_predicted"] {
            if let Some(value) = event.get(field) {
                self.usage = value.clone();
            }
        }
        if let Value::Object(usage) = &mut self.usage {
            usage.remove("prompt_tokens_details");
        }
    }

    /// What events add up to.
    fn of(events: &[Value]) -> Answer {
        let mut answer = Answer::default();
        events.iter().for_each(|event| answer.add(event));
        answer
    }
}

/// Loses the stream after each of its events, and continues it with the tokens so far.
async fn lose(server: &Router, path: &str, body: Value) -> Answer {
    let events = post(server, path, body.clone()).await.events();
    let whole = Answer::of(&events);
    assert!(events.len() > 5, "{events:?}");
    for lost in 1..events.len() {
        let mut answer = Answer::of(&events[..lost]);
        if answer.tokens.is_empty() || !answer.usage.is_null() {
            continue;
        }
        let mut body = body.clone();
        body["answered_tokens"] = json!(answer.tokens);
        let reply = post(server, path, body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.events().iter().for_each(|event| answer.add(event));
        assert_eq!(answer, whole, "after event {lost}");
    }
    whole
}

#[tokio::test]
async fn texts_continue() {
    let server = server();
    let body = json!({
        "prompt": "Once upon a time", "max_tokens": 24, "temperature": 1.3, "seed": 5, "stream": true,
        "frequency_penalty": 0.4, "min_tokens": 24, "return_token_ids": true,
        "stream_options": { "include_usage": true },
    });
    let whole = lose(&server, "/v1/completions", body.clone()).await;
    assert_eq!(whole.tokens.len(), 24);
    assert_eq!(whole.usage["completion_tokens"], 24);
    // llama.cpp's streams have the tokens anyway.
    let mut llama = body.clone();
    llama["n_predict"] = 24.into();
    assert_eq!(lose(&server, "/completion", llama).await.text, whole.text);
    // With a stop string that several tokens make.
    let at = whole.text.len() / 2;
    let stop = whole.text.get(at..at + 8).unwrap();
    let mut stopped = body.clone();
    stopped["stop"] = stop.into();
    let stopped = lose(&server, "/v1/completions", stopped).await;
    assert_eq!(stopped.text, whole.text.split_once(stop).unwrap().0);
    // And not as a stream.
    let mut rest = body;
    rest["stream"] = false.into();
    rest["answered_tokens"] = json!(whole.tokens[..10]);
    let rest = post(&server, "/v1/completions", rest).await.json();
    let choice = &rest["choices"][0];
    assert!(whole.text.ends_with(text(&choice["text"])), "{rest}");
    assert_eq!(choice["token_ids"], json!(whole.tokens[10..]));
}

const CHAT: &str = "<think>Wühlt ein Fuchs — 狐 — im März?</think>Ich sehe nach: äöü.\
    <tool_call>\n{\"name\": \"den\", \"arguments\": {\"of\": \"狐狸\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"den\", \"arguments\": {}}\n</tool_call>";

fn chat() -> (Router, Value) {
    let mut options = ServerOptions::default();
    options.chat_template = Some(format!("{TEMPLATE}{{# <think></think> #}}"));
    let schema = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let body = json!({
        "messages": [{ "role": "user", "content": "Den?" }], "temperature": 0, "stream": true,
        "tools": [{ "type": "function", "function": { "name": "den", "parameters": schema } }],
        "return_token_ids": true, "stream_options": { "include_usage": true },
    });
    (router(scripted(CHAT), options).unwrap(), body)
}

/// Reasoning, text of several bytes a character, and calls.
#[tokio::test]
async fn chats_continue() {
    let (server, body) = chat();
    let whole = lose(&server, "/v1/chat/completions", body).await;
    assert_eq!(whole.reasoning, "Wühlt ein Fuchs — 狐 — im März?");
    assert_eq!(whole.text, "Ich sehe nach: äöü.");
    assert_eq!(whole.calls.len(), 2, "{whole:?}");
    assert_eq!(whole.end, "tool_calls");
    let counted = &whole.usage["completion_tokens_details"]["reasoning_tokens"];
    assert!(counted.as_u64() > Some(3), "{whole:?}");
}

#[tokio::test]
async fn what_does_not_continue_is_refused() {
    let (chat, question) = chat();
    let server = server();
    let text = json!({ "prompt": "Once", "max_tokens": 4, "answered_tokens": [5, 6] });
    let with = |body: &Value, field: &str, value: Value| {
        let mut body = body.clone();
        body["answered_tokens"] = json!([5, 6]);
        body[field] = value;
        body
    };
    let refused = |reply: Reply, what: &str| {
        assert_eq!(reply.status, 400, "{what}: {}", reply.text);
        assert!(reply.text.contains(what), "{what}: {}", reply.text);
    };
    let completions = "/v1/completions";
    for (field, value, what) in [
        ("n", json!(2), "continues one answer"),
        ("prompt", json!(["a", "b"]), "continues one answer"),
        ("echo", json!(true), "answered_tokens"),
        ("max_tokens", json!(1), "answered_tokens"),
        ("answered_tokens", json!([1 << 30]), "vocabulary"),
        ("answered_tokens", json!("x"), "answered_tokens"),
    ] {
        refused(
            post(&server, completions, with(&text, field, value)).await,
            what,
        );
    }
    let path = "/v1/chat/completions";
    refused(
        post(&chat, path, with(&question, "stream", json!(false))).await,
        "stream",
    );
}
