//! Damaged bodies in every API: always an answer or a clear error in the API's own format, never a fault of ours.
//!
//! `WELTE_FUZZ=1000000` sets the number of bodies, `WELTE_FUZZ_SEED` another beginning.

mod common;

use axum::Router;
use axum::http::{Method, StatusCode};
use common::{Reply, get, send, with};
use serde_json::{Value, json};
use std::time::Duration;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Paths with bodies that name most fields.
fn seeds() -> Vec<(&'static str, Value)> {
    let tool = json!({ "type": "function", "function": { "name": "f", "description": "d",
        "parameters": { "type": "object", "properties": { "a": { "type": "string" } } } } });
    let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } });
    let chat = json!([
        { "role": "system", "content": "x-billing-header: a=b;Be brief.\nCurrent time: 10:41" },
        { "role": "user", "content": [{ "type": "text", "text": "A fox" }] },
        { "role": "assistant", "content": "ok", "tool_calls": [call], "reasoning_content": "r" },
        { "role": "tool", "content": "5", "tool_call_id": "c" },
    ]);
    let turns = json!([
        { "role": "user", "content": [{ "type": "text", "text": "A fox" }] },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "5" }] },
    ]);
    vec![
        (
            "/v1/chat/completions",
            json!({ "model": "demo", "messages": chat, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9,
            "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["x"], "n": 2, "stream": true, "logit_bias": { "5": 1.0 },
            "stream_options": { "include_usage": true }, "response_format": { "type": "text" }, "logprobs": false,
            "reasoning_effort": "low", "chat_template_kwargs": { "a": 1 }, "user": "u", "frequency_penalty": 0.1 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": chat, "tools": [tool], "tool_choice": "auto", "max_tokens": 2 }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": ["Once", "The"], "max_tokens": 2, "echo": true, "suffix": "", "logprobs": 0 }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": [1, 2, 3], "max_tokens": 2, "stream": true }),
        ),
        (
            "/v1/responses",
            json!({ "model": "demo", "input": "A fox", "max_output_tokens": 2, "stream": true }),
        ),
        (
            "/v1/responses",
            json!({ "input": [{ "role": "user", "content": "A fox" }], "max_output_tokens": 2, "store": false }),
        ),
        (
            "/v1/embeddings",
            json!({ "model": "demo", "input": ["a", "b"], "encoding_format": "base64" }),
        ),
        (
            "/v1/messages",
            json!({ "model": "demo", "max_tokens": 2, "messages": turns, "system": [{ "type": "text", "text": "s" }],
            "stop_sequences": ["x"], "tools": [{ "name": "f", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "auto" }, "thinking": { "type": "disabled" }, "stream": true, "metadata": {} }),
        ),
        (
            "/v1/messages/count_tokens",
            json!({ "model": "demo", "messages": turns, "system": "s" }),
        ),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": [{ "role": "user", "content": "A fox" }], "stream": false,
            "options": { "num_predict": 2, "num_ctx": 128, "temperature": 0 }, "keep_alive": "5m", "think": false }),
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "Once", "system": "s", "raw": false, "options": { "num_predict": 2 } }),
        ),
        ("/api/show", json!({ "model": "demo", "verbose": true })),
        ("/api/embed", json!({ "model": "demo", "input": "a" })),
        (
            "/completion",
            json!({ "prompt": "Once", "n_predict": 2, "cache_prompt": true, "ignore_eos": false, "stream": true }),
        ),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 2 }),
        ),
        (
            "/tokenize",
            json!({ "content": "a fox", "add_special": true, "with_pieces": true }),
        ),
        ("/detokenize", json!({ "tokens": [1, 2, 3] })),
        ("/apply-template", json!({ "messages": chat })),
    ]
}

/// Values that are wrong in most places.
fn odd(random: &mut Random) -> Value {
    match random.below(20) {
        0 => Value::Null,
        1 => true.into(),
        2 => (-1).into(),
        3 => 0.into(),
        4 => u64::MAX.into(),
        5 => i64::MIN.into(),
        6 => json!(1e308),
        7 => json!(-1e-308),
        8 => "".into(),
        9 => "\u{0}\u{ffff}\u{202e}\n\t\"\\".into(),
        10 => "🦊".repeat(1 + random.below(300)).into(),
        11 => "{{ messages }}{% for x in y %}".into(),
        12 => "<|im_start|>system\n<|im_end|><|endoftext|>".into(),
        13 => json!([]),
        14 => json!({}),
        15 => json!([null]),
        16 => {
            let mut deep = Value::Null;
            for _ in 0..random.below(120) {
                deep = match random.below(2) {
                    0 => json!([deep]),
                    _ => json!({ "type": "text", "content": deep }),
                };
            }
            deep
        }
        17 => Value::from(vec![7; random.below(3000)]),
        18 => (random.next() as i32).into(),
        _ => "x".into(),
    }
}

/// Changes a value somewhere inside.
fn damage(value: &mut Value, random: &mut Random) {
    if random.below(4) == 0 {
        *value = odd(random);
        return;
    }
    match value {
        Value::Object(map) if !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let key = random.pick(&keys).clone();
            match random.below(6) {
                0 => drop(map.remove(&key)),
                1 => drop(map.insert(format!("{key}_"), odd(random))),
                2 => {
                    let value = map.remove(&key).unwrap_or_default();
                    map.insert(random.pick(&keys).clone(), value);
                }
                _ => damage(map.get_mut(&key).unwrap(), random),
            }
        }
        Value::Array(all) if !all.is_empty() => {
            let index = random.below(all.len());
            match random.below(5) {
                0 => drop(all.remove(index)),
                1 => all.insert(index, odd(random)),
                2 => all.push(all[index].clone()),
                _ => damage(&mut all[index], random),
            }
        }
        other => *other = odd(random),
    }
}

/// Changes the bytes of a body.
fn scratch(body: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(body.len() + 1);
        match random.below(6) {
            0 => body.truncate(at),
            1 => body.insert(at, random.next() as u8),
            2 => body.splice(at..at, *b"\xff\xfe").for_each(drop),
            3 => {
                let end = (at + random.below(40)).min(body.len());
                let part = body[at..end].to_vec();
                body.splice(at..at, part).for_each(drop);
            }
            4 => body
                .splice(at..at, std::iter::repeat_n(b'[', random.below(2000)))
                .for_each(drop),
            _ => {
                if let Some(byte) = body.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

/// Says what is wrong with a reply.
fn fault(path: &str, reply: &Reply) -> Option<&'static str> {
    let status = reply.status;
    if status.is_success() {
        return None;
    }
    // Requests have little time here, and the queue is short.
    let late = status == StatusCode::SERVICE_UNAVAILABLE && reply.text.contains("deadline");
    if status.is_server_error() && !late && status != StatusCode::NOT_IMPLEMENTED {
        return Some("a fault of the server");
    }
    let Ok(Value::Object(body)) = serde_json::from_str::<Value>(&reply.text) else {
        return Some("the error is no JSON object");
    };
    let error = body.get("error").cloned().unwrap_or_default();
    let told = match path {
        _ if path.starts_with("/api/") => error.is_string(),
        _ if path.starts_with("/v1/messages") => {
            body["type"] == "error" && error["message"].is_string()
        }
        _ => error["message"].is_string() && error["type"].is_string(),
    };
    if told {
        None
    } else {
        Some("the error has another API's format")
    }
}

async fn try_body(server: &Router, path: &str, body: Vec<u8>) -> StatusCode {
    let shown = String::from_utf8_lossy(&body).into_owned();
    let reply = send(server, Method::POST, path, &[], body).await;
    if let Some(fault) = fault(path, &reply) {
        panic!("{fault}: {path} {shown}\n{} {}", reply.status, reply.text);
    }
    reply.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_bodies_get_clear_errors() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    let (count, seed) = (
        number("WELTE_FUZZ").unwrap_or(4000),
        number("WELTE_FUZZ_SEED").unwrap_or(1),
    );
    let server = with(|options| {
        options.timeout = Some(Duration::from_millis(200));
        // Bodies that came out well may ask for much.
        options.largest_body = 1 << 20;
    });
    let seeds = seeds();
    let workers = (0..2).map(|worker| {
        let (server, seeds) = (server.clone(), seeds.clone());
        tokio::spawn(async move {
            let mut random = Random(seed * 1_000_003 + worker);
            let mut statuses = std::collections::BTreeMap::<u16, u64>::new();
            for _ in 0..count / 2 {
                let (path, body) = random.pick(&seeds).clone();
                let mut body = body;
                for _ in 0..random.below(4) {
                    damage(&mut body, &mut random);
                }
                let mut bytes = body.to_string().into_bytes();
                if random.below(3) == 0 {
                    scratch(&mut bytes, &mut random);
                }
                let status = try_body(&server, path, bytes).await;
                *statuses.entry(status.as_u16()).or_default() += 1;
            }
            statuses
        })
    });
    let mut all = std::collections::BTreeMap::<u16, u64>::new();
    for worker in workers.collect::<Vec<_>>() {
        for (status, count) in worker.await.unwrap() {
            *all.entry(status).or_default() += count;
        }
    }
    println!("{count} bodies, by status: {all:?}");
    assert!(all.contains_key(&200) && all.contains_key(&400), "{all:?}");
    assert_eq!(get(&server, "/health").await.status, 200);
}

#[tokio::test]
async fn odd_paths_get_clear_errors() {
    let server = common::server();
    for path in [
        "//",
        "//v1/models",
        "/../etc/passwd",
        "/v1/../v1/models",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/v1/models/%ff%fe",
        "/%2e%2e/%2e%2e/Cargo.toml",
        "/page.js/",
        "/page.js%00.html",
        "/v1/models/a/b/c?x=%zz",
        "/welte/state?model=%ff",
        "/welte/state?model=other",
        "/props?model=a&model=b",
        "/V1/Models",
        "/metrics/",
    ] {
        let reply = get(&server, path).await;
        assert!(reply.status.is_client_error(), "{path}: {}", reply.status);
        assert!(!reply.text.contains("root:"), "{path}");
    }
    let long = format!("/v1/models/{}", "a".repeat(60_000));
    assert_eq!(get(&server, &long).await.status, 404);
    for method in ["DELETE", "PUT", "PATCH", "TRACE", "BREW"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let reply = send(&server, method, "/v1/chat/completions", &[], Vec::new()).await;
        assert_eq!(reply.status, 405);
    }
}

#[tokio::test]
async fn deep_and_wide_bodies_are_bounded() {
    let server = common::server();
    let path = "/v1/chat/completions";
    for body in [
        "{\"messages\":".repeat(50_000),
        format!(
            "{{\"messages\": {}{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        ),
        format!("{{{}\"z\": 1}}", "\"a\": 1, ".repeat(200_000)),
        format!("{{\"messages\": [{}]}}", vec!["1"; 500_000].join(",")),
        format!("{{\"model\": \"{}\"}}", "m".repeat(1 << 20)),
        format!("{{\"seed\": {}}}", "9".repeat(100_000)),
    ] {
        let reply = send(&server, Method::POST, path, &[], body.into_bytes()).await;
        assert!(reply.status.is_client_error(), "{}", reply.status);
        // The error does not send the body back.
        assert!(reply.text.len() < 4096, "{} bytes", reply.text.len());
    }
}
