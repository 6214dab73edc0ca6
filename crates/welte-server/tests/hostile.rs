//! Requests that are made to harm: each gets an error in its API's format, and the server goes on.

mod common;

use axum::http::Method;
use common::{endless_model, get, post, send, server, with};
use serde_json::{Map, Value, json};
use std::time::Duration;
use welte_server::{ServerOptions, router};

/// A schema of 31 KB whose references lead to each other.
fn chain() -> Value {
    let one = |index: usize| {
        (
            format!("d{index}"),
            json!({"$ref": format!("#/$defs/d{}", index + 1)}),
        )
    };
    let mut all: Map<String, Value> = (0..1000).map(one).collect();
    all.insert("d1000".into(), json!({"type": "boolean"}));
    json!({"$defs": all, "$ref": "#/$defs/d0"})
}

/// A schema that the compiler refuses with a panic.
fn cut() -> Value {
    json!({"type": "object", "required": "é".repeat(200)})
}

/// A schema that no answer satisfies.
fn impossible() -> Value {
    json!({"type": "object", "properties": {"a": false}, "required": ["a"]})
}

fn bodies(schema: &Value) -> Vec<(&'static str, Value, &'static str)> {
    let user = json!([{"role": "user", "content": "A fox"}]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let function = json!({"type": "function", "function": {"name": "f", "parameters": schema, "strict": true}});
    vec![
        (
            "/completion",
            json!({"prompt": "A", "json_schema": schema, "n_predict": 4}),
            "json_schema",
        ),
        (
            "/v1/completions",
            json!({"prompt": "A", "json_schema": schema, "max_tokens": 4}),
            "json_schema",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "response_format": format, "max_tokens": 4}),
            "response_format",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "response_format": format, "max_tokens": 4, "stream": true}),
            "response_format",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "tools": [function], "max_tokens": 4}),
            "tools",
        ),
        (
            "/v1/messages",
            json!({"messages": user, "max_tokens": 4, "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            "output_config",
        ),
        (
            "/api/chat",
            json!({"messages": user, "format": schema, "stream": false}),
            "format",
        ),
        (
            "/v1/responses",
            json!({"input": "A", "max_output_tokens": 4, "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}),
            "text",
        ),
    ]
}

#[tokio::test]
async fn hostile_schemas_are_refused_in_every_api() {
    let server = server();
    for schema in [chain(), cut(), impossible()] {
        for (path, body, field) in bodies(&schema) {
            let reply = post(&server, path, body).await;
            let shown: String = reply.text.chars().take(300).collect();
            assert_eq!(reply.status, 400, "{path} {field}: {shown}");
            assert!(!reply.text.contains("panic"), "{path} {field}: {shown}");
            println!("{path}: {shown}");
        }
    }
    let mut grammar = String::from("start: r0\n");
    (0..11_000).for_each(|rule| grammar.push_str(&format!("r{rule}: r{}\n", rule + 1)));
    let reply = post(
        &server,
        "/completion",
        json!({"prompt": "A", "grammar": grammar}),
    )
    .await;
    assert_eq!(reply.status, 400, "{}", reply.text);
}

#[tokio::test]
async fn bodies_of_many_values_are_refused() {
    let server = server();
    let objects = format!("{{\"content\": [{}{{}}]}}", "{\"a\":{}},".repeat(60_000));
    let numbers = format!("{{\"tokens\": [{}1]}}", "1,".repeat(1_000_000));
    for (path, body) in [("/tokenize", objects), ("/detokenize", numbers)] {
        let reply = send(&server, Method::POST, path, &[], body.into_bytes()).await;
        assert_eq!(reply.status, 413, "{path}: {}", reply.text);
        assert!(reply.text.contains("more than"), "{path}: {}", reply.text);
    }
    let longest = (1..1000).map(|_| 300u32).collect::<Vec<u32>>();
    let reply = post(&server, "/detokenize", json!({"tokens": longest})).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}

#[tokio::test]
async fn memory_for_bodies_is_bounded() {
    let mut options = ServerOptions::default();
    options.bodies_memory = 300_000;
    let server = router(endless_model(), options).unwrap();
    let filler = "x".repeat(200_000);
    let long = json!({"prompt": "A", "max_tokens": 8000, "ignore_eos": true, "user": filler});
    let text = json!({"content": filler});
    let too_large = json!({"content": "x".repeat(400_000)});
    let reply = post(&server, "/tokenize", too_large).await;
    assert_eq!(reply.status, 413, "{}", reply.text);
    assert_eq!(post(&server, "/tokenize", text.clone()).await.status, 200);
    let other = server.clone();
    let running = tokio::spawn(async move { post(&other, "/v1/completions", long).await });
    // It reads its body before another request takes the memory.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let mut refused = None;
    while refused.is_none() && !running.is_finished() {
        let reply = post(&server, "/tokenize", text.clone()).await;
        refused = (reply.status != 200).then_some(reply);
    }
    let refused = refused.expect("the memory is not counted");
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    running.abort();
    while post(&server, "/tokenize", text.clone()).await.status != 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn stop_strings_are_bounded() {
    let server = server();
    for stop in [
        json!(["x".repeat(5000)]),
        json!(vec!["x".repeat(4000); 20]),
        json!(vec!["x"; 65]),
    ] {
        let body = json!({"prompt": "A", "max_tokens": 2, "n": 2, "stop": stop});
        let reply = post(&server, "/v1/completions", body).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
        assert_eq!(reply.json()["error"]["param"], "stop");
    }
    let server = with(|_| ());
    let body = json!({"prompt": "A", "max_tokens": 2, "n": 2, "stop": vec!["x".repeat(1000); 64]});
    assert_eq!(post(&server, "/v1/completions", body).await.status, 200);
}

/// Parsing large bodies, rendering, tokenizing and detokenizing go on beside the threads that serve, in places of their own.
/// Here there is one thread and one place, which is taken: others wait for it, and hold nobody up.
#[tokio::test]
async fn long_work_holds_no_other_request_up() {
    let server = with(|options| options.encoders = 1);
    let begin = |path: &'static str, body: Value| {
        let (server, body) = (server.clone(), body.to_string().into_bytes());
        tokio::spawn(async move { send(&server, Method::POST, path, &[], body).await })
    };
    // Small enough to be parsed at once.
    let text = "a fox ran ".repeat(6000);
    let before: Vec<_> = (0..40)
        .map(|_| begin("/tokenize", json!({"content": text})))
        .collect();
    let turn = json!([{"role": "user", "content": "A fox"}]);
    let behind = [
        ("/detokenize", json!({"tokens": [300]})),
        ("/apply-template", json!({"messages": turn})),
        (
            "/v1/messages/count_tokens",
            json!({"model": "demo", "messages": turn}),
        ),
        // Large.
        (
            "/api/show",
            json!({"model": "demo", "more": vec![1; 100_000]}),
        ),
    ]
    .map(|(path, body)| (path, begin(path, body)));
    // All of them have begun.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    for (path, request) in &behind {
        assert!(!request.is_finished(), "{path} takes no place");
    }
    assert_eq!(get(&server, "/v1/models").await.status, 200);
    assert!(!before[39].is_finished());
    for request in before {
        assert_eq!(request.await.unwrap().status, 200);
    }
    for (path, request) in behind {
        let reply = request.await.unwrap();
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    }
}
