//! Every endpoint: streaming equals whole, and errors name the field in the API's own format.

mod common;

use axum::http::Method;
use common::{get, post, send, server, strict_server, with};
use serde_json::{Value, json};

fn question() -> Value {
    json!([{ "role": "user", "content": "Tell me a story about a fox." }])
}

/// The text of a field in all events.
fn joined(events: &[Value], pointer: &str) -> String {
    events
        .iter()
        .filter_map(|event| event.pointer(pointer)?.as_str())
        .collect()
}

#[tokio::test]
async fn chat_streams_what_it_returns_whole() {
    let server = server();
    let body =
        json!({ "model": "demo", "messages": question(), "max_tokens": 24, "temperature": 0 });
    let whole = post(&server, "/v1/chat/completions", body.clone())
        .await
        .json();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.len() > 20, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    assert!(whole["created"].as_u64() > Some(1_700_000_000));
    let mut one = body.clone();
    one["max_tokens"] = 1.into();
    // The first token costs no step, so there is no rate.
    let one = post(&server, "/v1/chat/completions", one).await.json();
    assert_eq!(one["welte"]["tokens_per_second"], Value::Null);
    let mut streamed = body;
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({ "include_usage": true });
    let reply = post(&server, "/v1/chat/completions", streamed).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert!(reply.text.ends_with("data: [DONE]\n\n"));
    let events = reply.events();
    assert_eq!(joined(&events, "/choices/0/delta/content"), text);
    assert_eq!(joined(&events, "/choices/0/finish_reason"), "length");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(last["usage"][field], whole["usage"][field]);
    }
    assert!(last["welte"]["prompt_ms"].is_number());
}

#[tokio::test]
async fn choices_differ_and_the_first_is_the_lone_one() {
    let server = server();
    let ask = |n: usize| json!({ "messages": question(), "max_tokens": 16, "temperature": 1.5, "seed": 7, "n": n });
    let text = |reply: &Value, i: usize| reply["choices"][i]["message"]["content"].clone();
    let one = post(&server, "/v1/chat/completions", ask(1)).await.json();
    let three = post(&server, "/v1/chat/completions", ask(3)).await.json();
    assert_eq!(text(&one, 0), text(&three, 0));
    assert_ne!(text(&three, 0), text(&three, 1));
    assert_ne!(text(&three, 1), text(&three, 2));
    assert_eq!(three["usage"]["completion_tokens"], 48);
    assert_eq!(
        three["usage"]["prompt_tokens"],
        one["usage"]["prompt_tokens"]
    );
}

#[tokio::test]
async fn a_stop_string_ends_an_answer() {
    let server = server();
    let body = |stop: Value| json!({ "messages": question(), "max_tokens": 40, "temperature": 0, "stop": stop });
    let free = post(&server, "/v1/chat/completions", body(json!([])))
        .await
        .json();
    let text = free["choices"][0]["message"]["content"].as_str().unwrap();
    let word = text.split(' ').nth(3).unwrap();
    let stopped = post(&server, "/v1/chat/completions", body(word.into()))
        .await
        .json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let before = &text[..text.find(word).unwrap()];
    assert_eq!(stopped["choices"][0]["message"]["content"], before);
}

#[tokio::test]
async fn completions_take_several_prompts() {
    let server = server();
    let body = json!({ "prompt": ["Once upon", "The fox"], "max_tokens": 8, "temperature": 0, "echo": true });
    let reply = post(&server, "/v1/completions", body.clone()).await.json();
    let texts: Vec<&str> = (0..2)
        .map(|i| reply["choices"][i]["text"].as_str().unwrap())
        .collect();
    assert!(
        texts[0].starts_with("Once upon") && texts[1].starts_with("The fox"),
        "{reply}"
    );
    let mut streamed = body;
    streamed["stream"] = true.into();
    let reply = post(&server, "/v1/completions", streamed).await;
    assert!(reply.text.ends_with("data: [DONE]\n\n"));
    let events = reply.events();
    for (i, text) in texts.iter().enumerate() {
        let own: Vec<Value> = events
            .iter()
            .filter(|event| event["choices"][0]["index"] == i)
            .cloned()
            .collect();
        assert_eq!(joined(&own, "/choices/0/text"), *text);
    }
    let tokens = post(
        &server,
        "/tokenize",
        json!({ "content": "Once upon", "add_special": true }),
    )
    .await
    .json();
    let body = json!({ "prompt": tokens["tokens"], "max_tokens": 8, "temperature": 0 });
    let reply = post(&server, "/v1/completions", body).await.json();
    assert_eq!(
        format!("Once upon{}", reply["choices"][0]["text"].as_str().unwrap()),
        texts[0]
    );
}

#[tokio::test]
async fn anthropic_streams_what_it_returns_whole() {
    let server = server();
    let body =
        json!({ "model": "demo", "messages": question(), "max_tokens": 12, "temperature": 0 });
    let whole = post(&server, "/v1/messages", body.clone()).await.json();
    assert_eq!(
        (&whole["type"], &whole["stop_reason"]),
        (&json!("message"), &json!("max_tokens"))
    );
    let text = whole["content"][0]["text"].as_str().unwrap();
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let reply = post(&server, "/v1/messages", streamed).await;
    let events = reply.events();
    assert_eq!(joined(&events, "/delta/text"), text);
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    assert!(reply.text.starts_with("event: message_start\ndata: "));
    let mut counted = body;
    for field in ["max_tokens", "temperature"] {
        counted.as_object_mut().unwrap().remove(field);
    }
    let count = post(&server, "/v1/messages/count_tokens", counted)
        .await
        .json();
    assert_eq!(
        count["input_tokens"],
        events[0]["message"]["usage"]["input_tokens"]
    );
}

#[tokio::test]
async fn stop_sequences_are_a_list_as_the_description_says() {
    let server = server();
    let document = get(&server, "/openapi.json").await.json();
    let path = "/paths/~1v1~1messages/post/requestBody/content/application~1json/schema";
    let mut schema = document.pointer(path).unwrap();
    if let Some(name) = schema["$ref"].as_str() {
        schema = document.pointer(&name[1..]).unwrap();
    }
    let kinds = schema["properties"]["stop_sequences"]["anyOf"].as_array();
    let kinds: Vec<&Value> = kinds.unwrap().iter().map(|kind| &kind["type"]).collect();
    assert_eq!(kinds, ["array", "null"]);
    for (stop, status) in [
        (json!([" "]), 200),
        (json!([]), 200),
        (json!(null), 200),
        (json!(" "), 400),
        (json!([1]), 400),
        (json!([""]), 400),
    ] {
        let body = json!({ "model": "demo", "messages": question(), "max_tokens": 8, "stop_sequences": stop });
        let reply = post(&server, "/v1/messages", body).await;
        assert_eq!(reply.status, status, "{stop}: {}", reply.text);
        assert_eq!(reply.text.contains("stop_sequences: "), status == 400);
    }
}

#[tokio::test]
async fn ollama_streams_lines() {
    let server = server();
    for (path, field, ask) in [
        (
            "/api/chat",
            "/message/content",
            json!({ "messages": question() }),
        ),
        (
            "/api/generate",
            "/response",
            json!({ "prompt": "Tell me a story about a fox." }),
        ),
    ] {
        let mut body = ask;
        body["model"] = "demo:latest".into();
        body["options"] = json!({ "num_predict": 12, "temperature": 0 });
        let reply = post(&server, path, body.clone()).await;
        assert_eq!(reply.headers["content-type"], "application/x-ndjson");
        let lines: Vec<Value> = reply
            .text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        body["stream"] = false.into();
        let whole = post(&server, path, body).await.json();
        assert_eq!(
            joined(&lines, field),
            whole.pointer(field).unwrap().as_str().unwrap()
        );
        // Nothing was thought.
        assert!(whole["thinking"].is_null() && whole["message"]["thinking"].is_null());
        let last = lines.last().unwrap();
        assert_eq!(
            (&last["done"], &last["done_reason"]),
            (&json!(true), &json!("length"))
        );
        assert_eq!(last["eval_count"], 12);
    }
    assert_eq!(
        get(&server, "/api/tags").await.json()["models"][0]["name"],
        "demo"
    );
    assert!(get(&server, "/api/version").await.json()["version"].is_string());
    let shown = post(&server, "/api/show", json!({ "model": "demo" }))
        .await
        .json();
    assert!(shown["details"]["family"].is_string() && shown["capabilities"].is_array());
}

#[tokio::test]
async fn llama_cpp_endpoints() {
    let server = server();
    let body = json!({ "prompt": "Once upon", "n_predict": 8, "temperature": 0 });
    let whole = post(&server, "/completion", body.clone()).await.json();
    assert_eq!(
        (&whole["stop_type"], &whole["tokens_predicted"]),
        (&json!("limit"), &json!(8))
    );
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = post(&server, "/completion", streamed).await.events();
    assert_eq!(
        joined(&events, "/content"),
        whole["content"].as_str().unwrap()
    );
    let info = get(&server, "/tokenizer_info").await.json();
    let end = info["eos_token"].as_str().expect("a token").to_string();
    let alone = json!({ "prompt": end, "add_special_tokens": false });
    let alone = post(&server, "/tokenize", alone).await.json()["tokens"].clone();
    assert_eq!(alone.as_array().map(Vec::len), Some(1), "{info}");
    let again = post(&server, "/detokenize", json!({ "tokens": alone })).await;
    assert_eq!(again.json()["prompt"], again.json()["content"]);
    let tokens = post(&server, "/tokenize", json!({ "content": "a small fox" }))
        .await
        .json();
    let text = post(
        &server,
        "/detokenize",
        json!({ "tokens": tokens["tokens"] }),
    )
    .await
    .json();
    assert_eq!(text["content"], "a small fox");
    let prompt = post(
        &server,
        "/apply-template",
        json!({ "messages": question() }),
    )
    .await
    .json();
    assert!(
        prompt["prompt"]
            .as_str()
            .unwrap()
            .contains("a story about a fox")
    );
    assert_eq!(get(&server, "/props").await.json()["total_slots"], 2);
    assert_eq!(
        get(&server, "/slots")
            .await
            .json()
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let metrics = get(&server, "/metrics").await.text;
    assert!(
        metrics.contains("vllm:num_requests_running{model_name=\"demo\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_pages_and_what_they_ask_for() {
    let server = server();
    for path in ["/", "/engine"] {
        let page = get(&server, path).await;
        assert!(page.text.contains("<title>Welte</title>"));
    }
    assert_eq!(
        get(&server, "/page.js").await.headers["content-type"],
        "text/javascript; charset=utf-8"
    );
    let models = get(&server, "/v1/models").await.json();
    assert_eq!(
        (
            &models["data"][0]["id"],
            &models["data"][0]["welte"]["context"]
        ),
        (&json!("demo"), &json!(512))
    );
    let state = get(&server, "/welte/state").await.json();
    assert_eq!(state["slots"].as_array().unwrap().len(), 2);
    assert_eq!(state["engine"]["slots"], 2);
    let pages = state["pools"][0]["pages"].as_str().unwrap();
    assert!(!pages.is_empty() && pages.chars().all(|page| ".osc".contains(page)));
    assert_eq!(get(&server, "/health").await.status, 200);
}

/// The commands of every pass in their order: what each reads was written by one before it.
#[tokio::test]
async fn the_table_shows_what_commands_do() {
    let server = server();
    let table = get(&server, "/welte/table").await.json();
    let passes = table["passes"].as_array().unwrap();
    assert!(passes.len() > 1);
    for pass in passes {
        let commands = pass["commands"].as_array().unwrap();
        let sum = |of: &str| -> f64 { commands.iter().map(|c| c[of].as_f64().unwrap()).sum() };
        assert!((sum("share") - 1.0).abs() < 1e-9, "{}", sum("share"));
        assert_eq!(sum("bytes"), pass["bytes"].as_f64().unwrap());
        assert_eq!(sum("flops"), pass["flops"].as_f64().unwrap());
        assert!(sum("flops") > 0.0 && pass["rows"].as_u64() > Some(0));
        // Where a pass begins, the tokens are there.
        let mut written = std::collections::HashSet::from(["tokens".to_string()]);
        for (index, command) in commands.iter().enumerate() {
            assert_eq!(command["index"], index);
            let names = |of: &str| -> Vec<&str> {
                let names = command[of].as_array().unwrap();
                names.iter().map(|name| name.as_str().unwrap()).collect()
            };
            for read in names("reads") {
                assert!(written.contains(read), "{command} of {}", pass["pass"]);
            }
            assert!(!names("writes").is_empty(), "{command}");
            written.extend(names("writes").into_iter().map(String::from));
        }
        let first = &commands[0];
        assert_eq!(
            (&first["op"], &first["format"]),
            (&json!("embed"), &json!("Q8_0"))
        );
        assert_eq!(first["reads"], json!(["tokens"]));
        let attention = commands.iter().find(|c| c["op"] == "attention").unwrap();
        assert_eq!(attention["format"], Value::Null);
        assert_eq!(attention["reads"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn unknown_and_wrong_fields_are_named() {
    let server = strict_server();
    let chat = |field: &str, value: Value| {
        let mut body = json!({ "model": "demo", "messages": question(), "max_tokens": 1 });
        body[field] = value;
        body
    };
    for (field, value, named) in [
        ("colour", json!("red"), "colour"),
        ("temperature", json!("hot"), "temperature"),
        ("temperature", json!(-1), "temperature"),
        (
            "messages",
            json!([{ "role": "user", "content": "a", "mood": 1 }]),
            "messages[0].mood",
        ),
        (
            "messages",
            json!([{ "role": "king", "content": "a" }]),
            "messages[0].role",
        ),
        ("messages", json!([]), "messages"),
        ("messages", json!(3), "messages"),
        (
            "response_format",
            json!({ "type": "yaml" }),
            "response_format.type",
        ),
        ("tool_choice", json!("required"), "tool_choice"),
        ("logit_bias", json!({ "x": 1 }), "logit_bias"),
        ("seed", json!(1.5), "seed"),
        ("xtc_probability", json!(2), "xtc_probability"),
        ("dry_base", json!(0.5), "dry_base"),
        ("dry_sequence_breakers", json!(3), "dry_sequence_breakers"),
        ("min_tokens", json!(-1), "min_tokens"),
        ("n", json!(-1), "n"),
        (
            "stream_options",
            json!({ "extra": 1 }),
            "stream_options.extra",
        ),
    ] {
        let reply = post(&server, "/v1/chat/completions", chat(field, value)).await;
        assert_eq!(reply.status, 400, "{field}: {}", reply.text);
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], named, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    for n in [0, 1_000_000_000_000u64] {
        assert_eq!(
            post(&server, "/v1/chat/completions", chat("n", n.into()))
                .await
                .status,
            400
        );
    }
    let reply = post(
        &server,
        "/v1/chat/completions",
        chat("model", "other".into()),
    )
    .await;
    assert_eq!(
        (
            reply.status.as_u16(),
            reply.json()["error"]["param"].clone()
        ),
        (404, json!("model"))
    );
    let reply = post(
        &server,
        "/v1/messages",
        json!({ "model": "demo", "messages": question() }),
    )
    .await;
    assert_eq!(reply.json()["type"], "error");
    assert_eq!(reply.json()["error"]["message"], "max_tokens: is required");
    let reply = post(&server, "/api/chat", json!({ "messages": [] })).await;
    assert_eq!(reply.json(), json!({ "error": "model: is required" }));
    let long = "fox ".repeat(2000);
    let reply = post(&server, "/completion", json!({ "prompt": long })).await;
    assert_eq!(reply.status, 400);
    assert!(
        reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("512")
    );
}

#[tokio::test]
async fn samplers_have_the_names_of_llama_cpp() {
    let server = server();
    let mut body =
        json!({ "prompt": "Once upon a time", "n_predict": 30, "temperature": 1.2, "seed": 3 });
    let plain = post(&server, "/completion", body.clone()).await.json();
    let fields = json!({
        "typical_p": 0.9, "top_n_sigma": 2.0, "xtc_probability": 0.9, "xtc_threshold": 0.05, "dynatemp_range": 0.5,
        "dynatemp_exponent": 1.5, "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 1,
        "dry_penalty_last_n": -1, "dry_sequence_breakers": ["."], "min_tokens": 5,
    });
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    let changed = post(&server, "/completion", body.clone()).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    assert_ne!(changed.json()["content"], plain["content"]);
    let again = post(&server, "/completion", body).await;
    assert_eq!(again.json()["content"], changed.json()["content"]);
    // The first token of the plain answer ends one that may be empty.
    let text = json!({ "content": plain["content"] });
    let tokens = post(&server, "/tokenize", text).await.json()["tokens"].clone();
    let ended = json!({ "prompt": "Once upon a time", "n_predict": 30, "temperature": 1.2, "seed": 3, "stop_token_ids": tokens });
    let ended = post(&server, "/completion", ended).await.json();
    assert!(ended["content"].as_str().unwrap().len() < plain["content"].as_str().unwrap().len());
}

#[tokio::test]
async fn malformed_bodies_are_refused() {
    let server = with(|options| options.largest_body = 20_000);
    let deep = "[".repeat(10_000);
    for (body, status) in [
        (b"{\"messages\": \"\xff\"}".to_vec(), 400),
        (b"{".to_vec(), 400),
        (Vec::new(), 400),
        (deep.into_bytes(), 400),
        (vec![b' '; 20_001], 413),
    ] {
        for path in [
            "/v1/chat/completions",
            "/v1/messages",
            "/api/chat",
            "/completion",
        ] {
            let reply = send(&server, Method::POST, path, &[], body.clone()).await;
            assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.text);
            assert!(reply.json().get("error").is_some());
        }
    }
    assert_eq!(get(&server, "/v1/nothing").await.status, 404);
    assert_eq!(get(&server, "/v1/chat/completions").await.status, 405);
    assert_eq!(get(&server, "/../Cargo.toml").await.status, 404);
}

/// A text whose tokens would take gigabytes is refused early.
#[tokio::test]
async fn texts_far_beyond_the_context_are_refused_early() {
    let server = server();
    let long = "a ".repeat(3 << 20);
    for (path, body) in [
        ("/completion", json!({ "prompt": long })),
        ("/v1/embeddings", json!({ "input": long })),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": long }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": long }] }),
        ),
    ] {
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(
            reply.text.contains("available context size of 512"),
            "{}",
            reply.text
        );
    }
    let reply = post(&server, "/tokenize", json!({ "content": long })).await;
    assert!(
        reply.text.contains("content: has 6291456"),
        "{}",
        reply.text
    );
    // A text that is cut has the vector of its beginning, however long the rest is.
    let cut = async |text: &str| {
        let body = json!({ "model": "demo", "input": text });
        post(&server, "/api/embed", body).await.json()["embeddings"].clone()
    };
    assert_eq!(cut(&long).await, cut(&long[..20_000]).await);
}

/// Also errors that are found before an endpoint sees the request.
#[tokio::test]
async fn errors_in_paths_have_the_format_of_their_api() {
    let reply = get(&server(), "/v1/models/%ff%fe").await;
    assert_eq!(reply.status, 400);
    let message = reply.json()["error"]["message"].to_string();
    assert!(message.contains("UTF-8"), "{message}");
}

#[tokio::test]
async fn keys_and_origins_are_checked() {
    let server = with(|options| options.api_keys = vec!["first".into(), "second".into()]);
    let status = async |headers: &[(&str, &str)]| {
        let reply = send(&server, Method::GET, "/v1/models", headers, Vec::new()).await;
        reply.status.as_u16()
    };
    assert_eq!(status(&[]).await, 401);
    assert_eq!(status(&[("authorization", "Bearer third")]).await, 401);
    assert_eq!(status(&[("authorization", "Bearer ")]).await, 401);
    assert_eq!(status(&[("authorization", "Bearer second")]).await, 200);
    assert_eq!(status(&[("x-api-key", "first")]).await, 200);
    let key = ("x-api-key", "first");
    assert_eq!(status(&[key, ("origin", "http://example.org")]).await, 403);
    assert_eq!(
        status(&[key, ("origin", "http://localhost:3000")]).await,
        200
    );
    assert_eq!(status(&[key, ("host", "example.org")]).await, 403);
    assert_eq!(
        status(&[
            key,
            ("host", "example.org"),
            ("origin", "https://example.org")
        ])
        .await,
        403
    );
    assert_eq!(get(&server, "/").await.status, 200);
    assert_eq!(get(&server, "/health").await.status, 200);
}

/// Tokens of a completion begin where those before them end.
fn offsets_are_those_of(columns: &Value, text: &str) {
    let (mut whole, mut offset) = (String::new(), 0);
    let tokens = columns["tokens"].as_array().unwrap();
    for (token, at) in tokens
        .iter()
        .zip(columns["text_offset"].as_array().unwrap())
    {
        assert_eq!(at, offset, "{columns}");
        let token = token.as_str().unwrap();
        whole += token;
        offset += token.chars().count();
    }
    assert_eq!(whole, text);
}

#[tokio::test]
async fn logprobs_of_all_apis_agree() {
    let server = server();
    let chat = json!({
        "model": "demo", "messages": question(), "max_tokens": 6, "temperature": 0, "logprobs": true,
        "top_logprobs": 3,
    });
    let whole = post(&server, "/v1/chat/completions", chat.clone())
        .await
        .json();
    let entries = whole["choices"][0]["logprobs"]["content"].clone();
    assert_eq!(entries.as_array().unwrap().len(), 6, "{whole}");
    let text: String = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    for entry in entries.as_array().unwrap() {
        // The likeliest token is chosen.
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    let mut streamed = chat;
    streamed["stream"] = true.into();
    let events = post(&server, "/v1/chat/completions", streamed)
        .await
        .events();
    let all: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(Value::from(all), entries);
    let body = json!({
        "model": "demo", "input": question(), "max_output_tokens": 6, "temperature": 0, "top_logprobs": 3,
    });
    let response = post(&server, "/v1/responses", body).await.json();
    assert_eq!(response["output"][0]["content"][0]["logprobs"], entries);
    let body = json!({
        "model": "demo", "messages": question(), "options": { "num_predict": 6, "temperature": 0 },
        "logprobs": true, "top_logprobs": 3, "stream": false,
    });
    let ollama = post(&server, "/api/chat", body).await.json();
    assert_eq!(ollama["logprobs"], entries);
    let prompt = post(
        &server,
        "/apply-template",
        json!({ "messages": question() }),
    )
    .await
    .json();
    let tokens = post(
        &server,
        "/tokenize",
        json!({ "content": prompt["prompt"], "add_special": true }),
    )
    .await
    .json();
    let tokens = tokens["tokens"].clone();
    let body = json!({ "prompt": tokens, "n_predict": 6, "temperature": 0, "n_probs": 3 });
    let llama = post(&server, "/completion", body.clone()).await.json();
    let own = &llama["completion_probabilities"];
    for i in 0..6 {
        assert_eq!(own[i]["logprob"], entries[i]["logprob"], "{llama}");
        assert!(own[i]["top_logprobs"][2]["id"].is_u64());
    }
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = post(&server, "/completion", streamed).await.events();
    let all: Vec<Value> = events
        .iter()
        .filter_map(|event| event["completion_probabilities"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&Value::from(all), own);
    // A prompt is scored without an answer.
    let body = json!({ "prompt": tokens, "max_tokens": 6, "temperature": 0, "logprobs": 3 });
    let completion = post(&server, "/v1/completions", body).await.json();
    let columns = &completion["choices"][0]["logprobs"];
    assert_eq!(columns["token_logprobs"][5], entries[5]["logprob"]);
    offsets_are_those_of(columns, completion["choices"][0]["text"].as_str().unwrap());
    let body = json!({ "prompt": tokens, "max_tokens": 6, "temperature": 0, "logprobs": 3, "stream": true });
    let events = post(&server, "/v1/completions", body).await.events();
    let column = |name: &str| -> Value {
        let columns = events
            .iter()
            .map(|event| &event["choices"][0]["logprobs"][name]);
        columns
            .filter_map(Value::as_array)
            .flatten()
            .cloned()
            .collect()
    };
    let columns = json!({ "tokens": column("tokens"), "text_offset": column("text_offset") });
    offsets_are_those_of(&columns, &joined(&events, "/choices/0/text"));
    let mut all = tokens.as_array().unwrap().clone();
    let new = own.as_array().unwrap().iter().map(|one| one["id"].clone());
    all.extend(new);
    let body = json!({ "prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1 });
    let scored = post(&server, "/v1/completions", body).await.json();
    let columns = &scored["choices"][0]["logprobs"];
    let count = columns["tokens"].as_array().unwrap().len();
    assert_eq!(
        (count, &columns["token_logprobs"][0]),
        (all.len(), &Value::Null)
    );
    for i in 0..6 {
        let scored = columns["token_logprobs"][count - 6 + i].as_f64().unwrap();
        let generated = entries[i]["logprob"].as_f64().unwrap();
        assert!((scored - generated).abs() < 0.05, "{scored} {generated}");
    }
    for (path, field, value) in [
        ("/v1/chat/completions", "top_logprobs", json!(1)),
        ("/v1/completions", "logprobs", json!(21)),
        ("/v1/responses", "top_logprobs", json!(21)),
        ("/completion", "n_probs", json!(21)),
    ] {
        let mut body = match path {
            "/v1/chat/completions" => json!({ "messages": question() }),
            "/v1/responses" => json!({ "input": "a" }),
            _ => json!({ "prompt": "a" }),
        };
        body[field] = value;
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.text.contains(field), "{}", reply.text);
    }
}

#[tokio::test]
async fn embeddings_of_all_apis_agree() {
    let server = server();
    let texts = json!(["A small fox.", "A bear in the snow, far away.", "A"]);
    let body = json!({ "model": "demo", "input": texts });
    let reply = post(&server, "/v1/embeddings", body).await.json();
    let vectors: Vec<Vec<f64>> = (0..3)
        .map(|i| serde_json::from_value(reply["data"][i]["embedding"].clone()).unwrap())
        .collect();
    for vector in &vectors {
        let length: f64 = vector.iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    assert!(vectors[0] != vectors[1] && vectors[1] != vectors[2]);
    assert_eq!(
        reply["usage"]["prompt_tokens"],
        reply["usage"]["total_tokens"]
    );
    let body = json!({ "model": "demo", "input": texts });
    let ollama = post(&server, "/api/embed", body).await.json();
    assert_eq!(ollama["embeddings"][1], reply["data"][1]["embedding"]);
    assert_eq!(ollama["prompt_eval_count"], reply["usage"]["prompt_tokens"]);
    let body = json!({ "model": "demo", "prompt": "A small fox." });
    let one = post(&server, "/api/embeddings", body).await.json();
    assert_eq!(one["embedding"], reply["data"][0]["embedding"]);
    // Tokens, fewer dimensions, base64.
    let tokens = post(
        &server,
        "/tokenize",
        json!({ "content": "A", "add_special": true }),
    )
    .await
    .json();
    let body = json!({ "input": tokens["tokens"], "dimensions": 2, "encoding_format": "base64" });
    let short = post(&server, "/v1/embeddings", body).await.json();
    assert_eq!(short["data"][0]["embedding"].as_str().unwrap().len(), 12);
    let body = json!({ "input": "A", "dimensions": 2 });
    let short = post(&server, "/v1/embeddings", body).await.json();
    let (x, y) = (vectors[2][0], vectors[2][1]);
    let first = short["data"][0]["embedding"][0].as_f64().unwrap();
    assert!((first - x / x.hypot(y)).abs() < 1e-5);
    let long = "fox ".repeat(2000);
    let body = json!({ "model": "demo", "input": long });
    assert_eq!(
        post(&server, "/v1/embeddings", body.clone()).await.status,
        400
    );
    assert_eq!(post(&server, "/api/embed", body.clone()).await.status, 200);
    let server = strict_server();
    for (field, value) in [
        ("input", json!([])),
        ("input", json!(1)),
        ("dimensions", json!(0)),
        ("encoding_format", json!("hex")),
        ("colour", json!(1)),
    ] {
        let mut body = json!({ "model": "demo", "input": "a" });
        body[field] = value;
        let reply = post(&server, "/v1/embeddings", body).await;
        assert_eq!(reply.status, 400, "{field}");
        assert_eq!(reply.json()["error"]["param"], field);
    }
}

#[tokio::test]
async fn models_without_the_tokens_do_not_fill_in() {
    let server = server();
    for (path, body) in [
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b", "input_extra": [{ "text": "c" }] }),
        ),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" })),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "a", "suffix": "b" }),
        ),
    ] {
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text);
        let suffix = match path {
            "/infill" => "input_suffix: ",
            _ => "suffix: ",
        };
        let error = &reply.json()["error"];
        let message = error["message"].as_str().or(error.as_str()).unwrap();
        assert!(message.starts_with(suffix), "{message}");
        assert!(message.contains("filling in the middle"), "{message}");
    }
    let body = json!({ "model": "demo", "prompt": "a", "suffix": "b", "system": "c" });
    let reply = post(&server, "/api/generate", body).await;
    assert!(reply.text.contains("system: needs"), "{}", reply.text);
    let body = json!({ "input_prefix": "a", "input_suffix": "b", "input_extra": [{ "words": 1 }] });
    let reply = post(&server, "/infill", body).await;
    assert!(reply.text.contains("input_extra[0].text"), "{}", reply.text);
}

/// What llama.vim and llama.vscode send, apart from the fields of `/infill` itself.
#[tokio::test]
async fn editors_limit_completions_by_their_lines() {
    let server = server();
    let body = json!({
        "prompt": "The fox", "id_slot": 0, "n_predict": 40, "ignore_eos": true, "stop": [], "n_indent": 0, "top_k": 40,
        "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 60_000, "seed": 2,
        "response_fields": ["content", "timings/predicted_per_token_ms", "tokens_cached", "no/such"],
    });
    let whole = post(&server, "/completion", body.clone()).await.json();
    let keys: Vec<&String> = whole.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["content", "timings/predicted_per_token_ms", "tokens_cached"]
    );
    // A line break has no indentation after it.
    let tokens = post(&server, "/tokenize", json!({ "content": "\n" })).await;
    let line_break = tokens.json()["tokens"][0].to_string();
    let mut indented = body.clone();
    indented["n_indent"] = 4.into();
    indented["logit_bias"] = json!({ &line_break: 20 });
    indented["response_fields"] = json!([]);
    for stream in [false, true] {
        indented["stream"] = stream.into();
        let reply = post(&server, "/completion", indented.clone()).await;
        let last = if stream {
            reply.events().pop().unwrap()
        } else {
            reply.json()
        };
        let text = if stream {
            joined(&reply.events(), "/content")
        } else {
            last["content"].as_str().unwrap().to_string()
        };
        assert_eq!(last["stop_type"], "limit", "{last}");
        assert!(last["tokens_predicted"].as_u64().unwrap() < 40, "{last}");
        assert!(text.ends_with('\n'), "{text:?}");
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
    }
    // The time of a completion counts once a line is complete.
    let mut late = body.clone();
    late["logit_bias"] = json!({ &line_break: 20 });
    late["t_max_predict_ms"] = 0.into();
    late["response_fields"] = json!([]);
    let late = post(&server, "/completion", late).await.json();
    assert_eq!(late["stop_type"], "limit", "{late}");
    assert!(late["tokens_predicted"].as_u64().unwrap() < 40, "{late}");
    // Without samplers the most likely token is nothing special, and the temperature does not count.
    let mut none = body.clone();
    none["samplers"] = json!([]);
    none["temperature"] = 0.into();
    let mut texts = Vec::new();
    for seed in [5, 6] {
        none["seed"] = seed.into();
        let reply = post(&server, "/completion", none.clone()).await.json();
        texts.push(reply["content"].to_string());
    }
    assert_ne!(texts[0], texts[1]);
    for samplers in [json!(["top_p", "top_k"]), json!(["colour"]), json!("k")] {
        let mut body = body.clone();
        body["samplers"] = samplers;
        let reply = post(&server, "/completion", body).await;
        assert_eq!(reply.status, 400);
        assert!(reply.text.contains("samplers: "), "{}", reply.text);
    }
}

/// Fields that agents and front ends of other servers send.
#[tokio::test]
async fn fields_of_common_clients_are_known() {
    let server = server();
    let body = json!({
        "model": "demo", "messages": question(), "max_tokens": 2, "metadata": { "user_id": "x" },
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
        "thinking": { "type": "adaptive" }, "cache_control": { "type": "ephemeral" },
        "output_config": { "effort": "low" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
    });
    let reply = post(&server, "/v1/messages?beta=true", body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let mut drops = body;
    drops["context_management"]["edits"][0]["keep"] =
        json!({ "type": "thinking_turns", "value": 1 });
    let reply = post(&server, "/v1/messages", drops).await;
    assert!(
        reply.text.contains("context_management.edits[0].keep"),
        "{}",
        reply.text
    );
    let options = json!({ "num_predict": 2, "num_gpu": 99, "num_thread": 4, "use_mmap": true, "num_ctx": 256 });
    let body =
        json!({ "model": "demo", "messages": question(), "stream": false, "options": options });
    let reply = post(&server, "/api/chat", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let body = json!({ "model": "demo", "input": "a", "options": { "num_thread": 4 } });
    assert_eq!(post(&server, "/api/embed", body).await.status, 200);
}
