//! What agents send: Claude Code, Codex, the AI SDK, and clients that look at how a request failed.

mod common;

use axum::Router;
use common::{Reply, post, server, strict_server, with};
use serde_json::{Value, json};

/// Writes tools and calls as Hermes and Qwen do. It takes one system message, at the beginning.
const TEMPLATE: &str = r#"{%- if tools %}Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}
Call one by <tool_call>{"name": NAME, "arguments": {}}</tool_call>
{% endif %}
{%- for message in messages %}
{%- if message.role == "system" and not loop.first %}{{ raise_exception("the system message must be at the beginning") }}{% endif %}
{{- message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"#;

fn with_tools() -> Router {
    with(|options| options.chat_template = Some(TEMPLATE.to_string()))
}

fn named(reply: &Reply) -> &str {
    let header = reply.headers.get("x-welte-ignored");
    header.map_or("", |value| value.to_str().unwrap())
}

/// As Claude Code asks.
fn claude_code() -> Value {
    json!({
        "model": "demo",
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;" },
            { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } },
        ],
        "messages": [
            { "role": "user", "content": [
                { "type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>" },
                { "type": "text", "text": "Hello", "cache_control": { "type": "ephemeral" } },
            ] },
            { "role": "system", "content": "Available agents: explorer." },
        ],
        "tools": [{
            "name": "Read", "description": "Reads a file.", "eager_input_streaming": true,
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 9 } },
                "required": ["n"], "additionalProperties": false,
            },
        }],
        "metadata": { "user_id": "someone" },
        "max_tokens": 100,
        "thinking": { "type": "adaptive" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "output_config": { "effort": "high" },
    })
}

#[tokio::test]
async fn claude_code_is_answered() {
    let server = with_tools();
    let mut body = claude_code();
    body["tool_choice"] = json!({ "type": "any" });
    let reply = post(&server, "/v1/messages?beta=true", body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(named(&reply), "");
    let answer = reply.json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let call = answer["content"][0].clone();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("tool_use"), &json!("Read"))
    );
    body["stream"] = true.into();
    let streamed = post(&server, "/v1/messages", body.clone()).await;
    assert_eq!(streamed.status, 200, "{}", streamed.text);
    assert!(
        streamed.text.contains("input_json_delta"),
        "{}",
        streamed.text
    );
    // The next turn has the call and its result.
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": [call.clone()] }));
    messages.push(json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": call["id"], "content": "a fox" },
    ] }));
    body["tool_choice"] = json!({ "type": "auto" });
    let reply = post(&server, "/v1/messages", body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    // Tools that Anthropic's servers run are passed over, and others are refused.
    let mut web = claude_code();
    web["tools"] = json!([{ "type": "web_search_20250305", "name": "web_search", "max_uses": 8 }]);
    let reply = post(&server, "/v1/messages", web.clone()).await;
    assert_eq!(
        (reply.status.as_u16(), named(&reply)),
        (200, "tools[].type")
    );
    web["tools"] = json!([{ "type": "computer_20250124", "name": "computer" }]);
    let reply = post(&server, "/v1/messages", web).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(reply.text.contains("tools[0].type"), "{}", reply.text);
}

#[tokio::test]
async fn system_messages_reach_templates_that_know_only_one() {
    let server = with_tools();
    let ask = |messages: Value| json!({ "messages": messages, "chat_template_kwargs": {} });
    let prompt = async |messages: Value| {
        let reply = post(&server, "/apply-template", ask(messages)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["prompt"].as_str().unwrap().to_string()
    };
    let turn = |role: &str, text: &str| json!({ "role": role, "content": text });
    let several = prompt(json!([
        turn("system", "a"),
        turn("developer", "b"),
        turn("user", "c"),
        turn("system", "d"),
        turn("assistant", "e"),
        turn("user", "f"),
    ]))
    .await;
    assert_eq!(
        several,
        "system: a\n\nbuser: c\n\ndassistant: euser: fassistant: "
    );
    // A template that has a place for them gets them as they are.
    let plain = post(
        &common::server(),
        "/apply-template",
        ask(json!([turn("user", "c"), turn("system", "d")])),
    )
    .await;
    assert_eq!(
        plain.json()["prompt"],
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>system\nd<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// As Codex asks.
fn codex() -> Value {
    let text = |role: &str, text: &str| json!({ "type": "message", "role": role, "content": [{ "type": "input_text", "text": text }] });
    let close = json!({
        "type": "function", "name": "close", "description": "Ends an agent.", "strict": false,
        "parameters": {
            "type": "object", "properties": { "n": { "enum": [1, 2] } },
            "required": ["n"], "additionalProperties": false,
        },
    });
    json!({
        "model": "demo",
        "input": [text("developer", "You are an agent."), text("developer", "Skills: none."), text("user", "Hello")],
        "tools": [
            { "type": "namespace", "name": "agents", "description": "Agents.", "tools": [close] },
            { "type": "web_search", "external_web_access": false },
        ],
        "tool_choice": "required", "parallel_tool_calls": true, "reasoning": { "summary": "auto" },
        "store": false, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "key",
        "client_metadata": { "turn_id": "1" },
    })
}

#[tokio::test]
async fn codex_is_answered_and_calls_functions_in_namespaces() {
    let server = with_tools();
    let mut body = codex();
    let reply = post(&server, "/v1/responses", body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(named(&reply), "client_metadata, tools[].type");
    let response = reply.json();
    assert_eq!(response["tools"], body["tools"]);
    assert_eq!(response["prompt_cache_key"], "key");
    for field in ["safety_identifier", "presence_penalty", "frequency_penalty"] {
        assert!(response.get(field).is_some(), "{field}");
    }
    let call = response["output"][0].clone();
    assert_eq!(call["type"], "function_call", "{response}");
    assert_eq!(
        (&call["namespace"], &call["name"]),
        (&json!("agents"), &json!("close"))
    );
    // Streamed, the call has the same names.
    body["stream"] = true.into();
    let events = post(&server, "/v1/responses", body.clone()).await.events();
    let done = events
        .iter()
        .find(|event| event["type"] == "response.output_item.done");
    let item = &done.unwrap()["item"];
    assert_eq!(
        (&item["namespace"], &item["name"]),
        (&json!("agents"), &json!("close"))
    );
    // It comes back in the next turn.
    let input = body["input"].as_array_mut().unwrap();
    input.push(call.clone());
    input.push(
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "ended" }),
    );
    (body["stream"], body["tool_choice"]) = (false.into(), "auto".into());
    body["max_output_tokens"] = 4.into();
    let reply = post(&server, "/v1/responses", body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    // With a template that shows calls, the model sees the name that it knows.
    let mut unsupported = codex();
    unsupported["tools"] = json!([{ "type": "computer_use_preview" }]);
    let reply = post(&server, "/v1/responses", unsupported).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text.contains("tools[0].type"), "{}", reply.text);
}

#[tokio::test]
async fn a_conversation_is_compacted_and_goes_on() {
    let server = server();
    let body = json!({
        "model": "demo", "prompt_cache_key": "key",
        "input": [
            { "role": "user", "content": "We launch on Tuesday." },
            { "role": "assistant", "content": "Understood." },
        ],
    });
    let reply = post(&server, "/v1/responses/compact", body).await;
    assert_eq!(
        (reply.status.as_u16(), named(&reply)),
        (200, ""),
        "{}",
        reply.text
    );
    let compacted = reply.json();
    assert_eq!(compacted["object"], "response.compaction");
    let output = compacted["output"].as_array().unwrap();
    let kinds: Vec<&str> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["message", "compaction"]);
    assert_eq!(output[0]["content"][0]["text"], "We launch on Tuesday.");
    let summary = output[1]["encrypted_content"].as_str().unwrap();
    assert!(summary.len() > 20, "{summary}");
    assert!(compacted["usage"]["output_tokens"].as_u64().unwrap() <= 512 / 4);
    let count = async |input: &Value| {
        let body = json!({ "model": "demo", "input": input });
        let reply = post(&server, "/v1/responses/input_tokens", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    // The summary is part of the prompt.
    let with_summary = count(&compacted["output"]).await;
    let without = count(&json!([output[0]])).await;
    let words = summary.split_whitespace().count() as u64;
    assert!(
        with_summary >= without + words,
        "{with_summary}, {without}, {words}"
    );
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_named_in_every_api() {
    let server = server();
    // More than the context of 512 tokens: once a little, and once so much that the end is not looked at.
    for words in [700, 40_000] {
        let long = "fox ".repeat(words);
        let messages = json!([{ "role": "user", "content": long }]);
        for (path, body) in [
            ("/v1/chat/completions", json!({ "messages": messages })),
            ("/v1/completions", json!({ "prompt": long })),
            ("/v1/responses", json!({ "input": long })),
        ] {
            let reply = post(&server, path, body).await;
            assert_eq!(reply.status, 400, "{path}");
            let error = &reply.json()["error"];
            assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
            assert_eq!(error["type"], "invalid_request_error");
        }
        let body = json!({ "model": "demo", "max_tokens": 9, "messages": messages });
        let reply = post(&server, "/v1/messages", body).await;
        assert_eq!(reply.status, 400);
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (
                &json!("invalid_request_error"),
                &json!("context_length_exceeded")
            )
        );
        let said = error["message"].as_str().unwrap();
        assert!(said.starts_with("prompt is too long: "), "{said}");
        assert!(said.ends_with(" tokens > 512 maximum"), "{said}");
        for (path, body) in [
            (
                "/api/chat",
                json!({ "model": "demo", "messages": messages }),
            ),
            ("/api/generate", json!({ "model": "demo", "prompt": long })),
        ] {
            let reply = post(&server, path, body).await;
            assert_eq!(reply.status, 400, "{path}");
            let body = reply.json();
            assert!(body["error"].is_string(), "{body}");
            assert_eq!(body["code"], "context_length_exceeded", "{path}");
        }
        let reply = post(&server, "/completion", json!({ "prompt": long })).await;
        assert_eq!(reply.status, 400);
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], &error["n_ctx"]),
            (&json!("exceed_context_size_error"), &json!(512))
        );
        assert!(error["n_prompt_tokens"].as_u64().unwrap() > 512, "{error}");
    }
}

#[tokio::test]
async fn strict_servers_want_the_model_where_the_api_does() {
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 1 }),
        ),
        ("/v1/completions", json!({ "prompt": "a", "max_tokens": 1 })),
        (
            "/v1/responses",
            json!({ "input": "a", "max_output_tokens": 1 }),
        ),
        ("/v1/embeddings", json!({ "input": "a" })),
        ("/v1/responses/compact", json!({ "input": "a" })),
    ] {
        let reply = post(&server(), path, body.clone()).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        let reply = post(&strict_server(), path, body).await;
        assert_eq!(reply.status, 400, "{path}");
        assert_eq!(reply.json()["error"]["param"], "model");
    }
}
