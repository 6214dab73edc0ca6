//! Forms of requests that clients send: what has no effect, what means the same, and what must reach the model.

mod common;

use axum::Router;
use common::scripted::scripted;
use common::{post, server};
use serde_json::{Value, json};
use welte_server::{ServerOptions, router};

/// Each character of a prompt is a token.
fn spelling() -> Router {
    router(scripted("Fine."), ServerOptions::default()).unwrap()
}

fn tool() -> Value {
    json!({ "type": "object", "properties": {} })
}

async fn number(server: &Router, path: &str, body: Value, pointer: &str) -> u64 {
    let reply = post(server, path, body).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    reply.json().pointer(pointer).unwrap().as_u64().unwrap()
}

#[tokio::test]
async fn without_a_choice_of_tools_there_are_none() {
    let server = spelling();
    let count = async |choice: Option<&str>, tools: bool| {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }] });
        if tools {
            body["tools"] = json!([{ "name": "look", "input_schema": tool() }]);
        }
        if let Some(choice) = choice {
            body["tool_choice"] = json!({ "type": choice });
        }
        number(&server, "/v1/messages/count_tokens", body, "/input_tokens").await
    };
    let plain = count(None, false).await;
    assert_eq!(count(Some("none"), true).await, plain);
    assert!(count(Some("auto"), true).await > plain);
}

/// Calls of earlier answers reach the template with their names and arguments.
#[tokio::test]
async fn earlier_calls_are_in_the_prompt() {
    let server = spelling();
    let ollama = |name: &str, arguments: Value| {
        let call = json!({ "function": { "name": name, "arguments": arguments } });
        json!({
            "model": "", "stream": false, "options": { "num_predict": 1 },
            "messages": [
                { "role": "user", "content": "Hi" },
                { "role": "assistant", "content": "", "tool_calls": [call] },
                { "role": "tool", "content": "3" },
            ],
        })
    };
    let openai = |name: &str, arguments: Value| {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        let call = json!({ "id": "c", "type": "function", "function": function });
        json!({
            "max_tokens": 1,
            "messages": [
                { "role": "user", "content": "Hi" },
                { "role": "assistant", "content": null, "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "c", "content": "3" },
            ],
        })
    };
    type Body<'a> = &'a dyn Fn(&str, Value) -> Value;
    let apis: [(&str, Body, &str); 2] = [
        ("/api/chat", &ollama, "/prompt_eval_count"),
        ("/v1/chat/completions", &openai, "/usage/prompt_tokens"),
    ];
    for (path, body, figure) in apis {
        let count = async |name: &str, arguments: Value| {
            number(&server, path, body(name, arguments), figure).await
        };
        let short = count("f", json!({})).await;
        assert_eq!(count("fetch", json!({})).await, short + 4, "{path}");
        let more = r#""a": 1"#.len() as u64;
        assert_eq!(count("f", json!({ "a": 1 })).await, short + more, "{path}");
    }
}

/// A failed call says so, and results have texts and images only.
#[tokio::test]
async fn anthropics_results_are_in_the_prompt() {
    let server = spelling();
    let path = "/v1/messages/count_tokens";
    let call = json!({ "type": "tool_use", "id": "c", "name": "f", "input": {} });
    let body = |content: Value, failed: bool| {
        let result = json!({
            "type": "tool_result", "tool_use_id": "c", "content": content, "is_error": failed,
        });
        json!({ "model": "m", "messages": [
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": [call] },
            { "role": "user", "content": [result] },
        ] })
    };
    let count =
        async |failed| number(&server, path, body("3".into(), failed), "/input_tokens").await;
    assert_eq!(
        count(true).await,
        count(false).await + "Error: ".len() as u64
    );
    for part in [
        call.clone(),
        json!({ "type": "thinking", "thinking": "Hm", "signature": "" }),
        json!({ "type": "tool_result", "tool_use_id": "c", "content": "3" }),
    ] {
        let reply = post(&server, path, body(json!([part]), false)).await;
        assert_eq!(reply.status, 400, "{part}");
        assert!(
            reply.text.contains("text and images only"),
            "{}",
            reply.text
        );
    }
}

/// Clients send a response's reasoning back with it.
#[tokio::test]
async fn earlier_reasoning_is_taken() {
    let server = spelling();
    let thought = json!([{ "type": "reasoning_text", "text": "Hm" }]);
    let body = json!({ "input": [
        { "role": "user", "content": "Hi" },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": thought },
        { "type": "message", "role": "assistant", "content": "Hello" },
        { "role": "user", "content": "Why?" },
    ] });
    number(&server, "/v1/responses/input_tokens", body, "/input_tokens").await;
}

/// Clients send these with every request.
#[tokio::test]
async fn forms_that_ask_for_nothing_change_nothing() {
    let server = server();
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 8, "temperature": 0 });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let ollama = |format: Value| {
        json!({
            "model": "", "messages": messages, "stream": false, "format": format,
            "options": { "num_predict": 8, "temperature": 0 },
        })
    };
    let content = "/choices/0/message/content";
    for (path, plain, same, other, pointer) in [
        (
            "/v1/chat/completions",
            chat(json!({})),
            vec![
                chat(json!({ "response_format": { "type": "text" } })),
                chat(json!({ "response_format": null, "grammar": "" })),
            ],
            chat(json!({ "response_format": { "type": "json_object" } })),
            content,
        ),
        (
            "/api/chat",
            ollama(json!(null)),
            vec![ollama(json!(""))],
            ollama(json!("json")),
            "/message/content",
        ),
    ] {
        let text = async |body: Value| {
            let reply = post(&server, path, body).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            reply.json().pointer(pointer).unwrap().clone()
        };
        let wanted = text(plain).await;
        for body in same {
            assert_eq!(text(body).await, wanted);
        }
        assert_ne!(text(other).await, wanted);
    }
    let wrong = post(&server, "/api/chat", ollama(json!("yaml"))).await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text.contains("format"), "{}", wrong.text);
}

/// A refusal is what the model said, like any other text of its answers.
#[tokio::test]
async fn refusals_are_text_of_the_answer() {
    let server = spelling();
    let count = async |part: Value| {
        let body = json!({ "input": [
            { "role": "user", "content": "Hi" },
            { "type": "message", "role": "assistant", "content": [part] },
            { "role": "user", "content": "Why?" },
        ] });
        number(&server, "/v1/responses/input_tokens", body, "/input_tokens").await
    };
    let said = count(json!({ "type": "output_text", "text": "No way" })).await;
    assert_eq!(
        count(json!({ "type": "refusal", "refusal": "No way" })).await,
        said
    );
    assert_eq!(
        count(json!({ "type": "refusal", "refusal": "No" })).await,
        said - 4
    );
}

#[tokio::test]
async fn pieces_are_texts_or_bytes() {
    let server = spelling();
    let body = json!({ "content": "aÄ", "with_pieces": true });
    let reply = post(&server, "/tokenize", body).await.json();
    let pieces = reply["tokens"].as_array().unwrap().iter();
    let pieces: Vec<&Value> = pieces.map(|token| &token["piece"]).collect();
    assert_eq!(pieces, [&json!("a"), &json!([0xc3]), &json!([0x84])]);
}

/// Lengths of stop strings hold to the byte.
#[tokio::test]
async fn stops_have_lengths() {
    let server = spelling();
    let status = async |stop: Value| {
        let body = json!({ "prompt": "a", "max_tokens": 1, "stop": stop });
        post(&server, "/v1/completions", body).await.status
    };
    let long = "a".repeat(4 << 10);
    assert_eq!(status(json!([long])).await, 200);
    assert_eq!(status(json!([format!("{long}b")])).await, 400);
    assert_eq!(status(json!(vec![&long; 16])).await, 200);
    let mut more = vec![long; 16];
    more.push("b".into());
    assert_eq!(status(json!(more)).await, 400);
}
