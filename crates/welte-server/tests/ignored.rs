//! Fields that the server does not know are ignored and named; with `strict` they are refused. Every endpoint, every API.

mod common;

use common::{Reply, get, post, server, strict_server};
use serde_json::{Map, Value, json};

fn question() -> Value {
    json!([{ "role": "user", "content": "Tell me a story about a fox." }])
}

/// The endpoints that take a body here, with the fields that the description names and the smallest body that is accepted.
/// Left out are those that this server refuses: its model does not fill in the middle, is not a reranker, has no room for adapters, and the
/// hub is not offered.
fn endpoints(document: &Value) -> Vec<(String, Map<String, Value>, Value)> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let Some(properties) = schema["properties"].as_object() else {
            continue;
        };
        if ["/api/pull", "/api/create", "/infill"].contains(&path.as_str())
            || path.ends_with("/rerank")
            || path.contains("lora")
        {
            continue;
        }
        let mut least = json!({});
        for (field, value) in [
            ("model", json!("demo")),
            ("messages", question()),
            ("prompt", json!("a")),
            ("input", json!("a")),
            ("content", json!("a")),
            ("tokens", json!([1])),
            ("max_tokens", json!(1)),
            ("max_output_tokens", json!(1)),
            ("n_predict", json!(1)),
            ("options", json!({ "num_predict": 1 })),
        ] {
            // Embeddings take other options than these, and a conversation only in place of the input.
            let takes = match field {
                "options" => !path.starts_with("/api/embed"),
                "messages" => path != "/v1/embeddings",
                _ => true,
            };
            if properties.contains_key(field) && takes {
                least[field] = value;
            }
        }
        all.push((path.clone(), properties.clone(), least));
    }
    assert!(all.len() > 10);
    all
}

fn named(reply: &Reply) -> &str {
    let header = reply.headers.get("x-welte-ignored");
    header.map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn the_description_names_fields_that_the_server_knows() {
    let server = strict_server();
    let document = get(&server, "/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, properties, least) in endpoints(&document) {
        let accepted = post(&server, &path, least.clone()).await;
        assert_eq!(accepted.status, 200, "{path}: {}", accepted.text);
        for field in properties.keys() {
            let mut body = least.clone();
            body[field] = json!({ "$": [[[]]] });
            let reply = post(&server, &path, body).await;
            let unknown = format!("{field}: is not a supported field");
            assert!(!reply.text.contains(&unknown), "{path}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn every_endpoint_ignores_and_names_what_it_does_not_know() {
    let (server, strict) = (server(), strict_server());
    let document = get(&server, "/openapi.json").await.json();
    for (path, properties, least) in endpoints(&document) {
        let mut body = least.clone();
        body["colour"] = json!({ "red": [1] });
        // Null counts as no value.
        body["shade"] = Value::Null;
        let reply = post(&server, &path, body.clone()).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert_eq!(named(&reply), "colour", "{path}");
        let plain = post(&server, &path, least.clone()).await;
        assert_eq!(named(&plain), "", "{path}");
        let refused = post(&strict, &path, body.clone()).await;
        assert_eq!(refused.status, 400, "{path}");
        let said = "colour: is not a supported field";
        assert!(refused.text.contains(said), "{path}: {}", refused.text);
        if properties.contains_key("stream") {
            body["stream"] = true.into();
            let reply = post(&server, &path, body).await;
            assert_eq!(
                (reply.status, named(&reply)),
                (200.try_into().unwrap(), "colour"),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn fields_inside_objects_are_named_with_their_place() {
    let (server, strict) = (server(), strict_server());
    let tool = |extra: &str| json!([{ "type": "function", "function": { "name": "f", extra: 1 } }]);
    let text = json!([{ "type": "text", "text": "Hello", "mood": 1 }]);
    for (path, body, name) in [
        (
            "/v1/chat/completions",
            json!({ "messages": [
                { "role": "system", "content": "x", "mood": 1 },
                { "role": "user", "content": "x", "mood": 1 },
            ] }),
            "messages[].mood",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": text }] }),
            "messages[].content[].mood",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": question(), "tools": tool("x"), "tool_choice": "none" }),
            "tools[].function.x",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": question(), "stream_options": { "continuous": true } }),
            "stream_options.continuous",
        ),
        (
            "/v1/messages",
            json!({ "model": "demo", "system": text, "messages": question() }),
            "system[].mood",
        ),
        (
            "/v1/messages",
            json!({ "model": "demo", "messages": [{ "role": "user", "content": text }] }),
            "messages[].content[].mood",
        ),
        (
            "/v1/responses",
            json!({ "input": [{ "role": "user", "content": "x", "mood": 1 }] }),
            "input[].mood",
        ),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": question(), "options": { "penalize_newline": true } }),
            "options.penalize_newline",
        ),
    ] {
        let limit = match path {
            "/v1/responses" => "max_output_tokens",
            "/api/chat" => "keep_alive",
            _ => "max_tokens",
        };
        let mut body = body;
        body[limit] = 1.into();
        let reply = post(&server, path, body.clone()).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert_eq!(named(&reply), name, "{path}");
        let refused = post(&strict, path, body).await;
        assert_eq!(refused.status, 400, "{path}");
    }
    // The parameters of a URL.
    let id = post(
        &server,
        "/v1/responses",
        json!({ "input": "x", "max_output_tokens": 1 }),
    )
    .await;
    let id = id.json()["id"].as_str().unwrap().to_string();
    for path in [
        format!("/v1/responses/{id}"),
        format!("/v1/responses/{id}/input_items"),
    ] {
        let reply = get(&server, &format!("{path}?colour=1&limit=5")).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert!(
            named(&reply).starts_with("colour"),
            "{path}: {}",
            named(&reply)
        );
    }
}

#[tokio::test]
async fn known_fields_with_values_that_cannot_be_honoured_are_refused() {
    let server = server();
    for (path, field, value) in [
        ("/v1/chat/completions", "modalities", json!(["audio"])),
        ("/v1/chat/completions", "temperature", json!(-1)),
        ("/v1/completions", "best_of", json!(3)),
        ("/v1/messages", "thinking", json!({ "type": "sometimes" })),
        ("/v1/responses", "truncation", json!("auto")),
        ("/api/generate", "template", json!("{{ .Prompt }}")),
        ("/completion", "samplers", json!(["mirostat"])),
    ] {
        let mut body = json!({ "model": "demo", "colour": 1 });
        for (field, value) in [
            ("messages", question()),
            ("prompt", json!("a")),
            ("input", json!("a")),
        ] {
            body[field] = value;
        }
        body["max_tokens"] = 1.into();
        body[field] = value;
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text);
        assert!(reply.text.contains(field), "{path}: {}", reply.text);
    }
}
