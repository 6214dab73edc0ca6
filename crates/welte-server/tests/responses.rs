//! `/v1/responses`: streaming equals whole, stored responses, background responses, bad input.

mod common;

use axum::Router;
use axum::http::Method;
use common::{Reply, endless_model, get, post, send, server, strict_server, with};
use serde_json::{Value, json};
use welte_server::{ServerOptions, router};

const PATH: &str = "/v1/responses";

fn ask(input: Value) -> Value {
    json!({ "model": "demo", "input": input, "max_output_tokens": 16, "temperature": 0 })
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{response}"))
}

/// A response without what differs from one request to the next.
fn comparable(response: &Value) -> Value {
    let mut response = response.clone();
    for field in ["id", "created_at", "completed_at", "welte"] {
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

async fn delete(server: &Router, id: &str) -> Reply {
    let path = format!("{PATH}/{id}");
    send(server, Method::DELETE, &path, &[], Vec::new()).await
}

#[tokio::test]
async fn the_stream_ends_with_the_whole_response() {
    let server = server();
    let body = ask("Tell me a story about a fox.".into());
    let whole = post(&server, PATH, body.clone()).await.json();
    assert_eq!(whole["status"], "incomplete", "{whole}");
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 16);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let reply = post(&server, PATH, streamed).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert!(
        reply
            .text
            .starts_with("event: response.created\ndata: {\"type\":\"response.created\"")
    );
    let events = reply.events();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let (first, last) = (&kinds[..4], &kinds[kinds.len() - 4..]);
    assert_eq!(
        first,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
    );
    assert_eq!(
        last,
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let deltas = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.collect::<String>(), text(&whole));
    let last = &events[events.len() - 1]["response"];
    assert_eq!(comparable(last), comparable(&whole));
    let item = &events[events.len() - 2]["item"];
    assert_eq!(item, &last["output"][0]);
}

#[tokio::test]
async fn a_response_continues_an_earlier_one() {
    let server = server();
    let first = post(&server, PATH, ask("Tell me about a fox.".into())).await;
    let first = first.json();
    let id = first["id"].as_str().unwrap();
    let mut body = ask(
        json!([{ "role": "user", "content": [{ "type": "input_text", "text": "And a bear?" }] }]),
    );
    body["previous_response_id"] = id.into();
    let second = post(&server, PATH, body).await.json();
    assert_eq!(second["previous_response_id"], id);
    // The same conversation, written out.
    let output = first["output"].as_array().unwrap();
    let mut items = vec![json!({ "role": "user", "content": "Tell me about a fox." })];
    items.extend(output.iter().cloned());
    items.push(json!({ "type": "message", "role": "user", "content": "And a bear?" }));
    let whole = post(&server, PATH, ask(items.into())).await.json();
    assert_eq!(text(&second), text(&whole));
    assert_eq!(
        second["usage"]["input_tokens"],
        whole["usage"]["input_tokens"]
    );
    let chat = json!({ "messages": [
        { "role": "user", "content": "Tell me about a fox." },
        { "role": "assistant", "content": text(&first) },
        { "role": "user", "content": "And a bear?" },
    ], "max_tokens": 16, "temperature": 0 });
    let chat = post(&server, "/v1/chat/completions", chat).await.json();
    assert_eq!(chat["choices"][0]["message"]["content"], text(&second));
    let items = |query: &str| {
        format!(
            "{PATH}/{}/input_items{query}",
            second["id"].as_str().unwrap()
        )
    };
    let list = get(&server, &items("?order=asc")).await.json();
    let texts: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["Tell me about a fox.", text(&first), "And a bear?"]);
    // What the client said of the model's part is kept as the model's.
    let given = format!(
        "{PATH}/{}/input_items?order=asc",
        whole["id"].as_str().unwrap()
    );
    let given = get(&server, &given).await.json()["data"].clone();
    for (i, kind) in ["input_text", "output_text", "input_text"]
        .iter()
        .enumerate()
    {
        let part = &given[i]["content"][0];
        assert_eq!(part["type"], *kind, "{given}");
        assert_eq!(part["annotations"].is_array(), *kind == "output_text");
    }
    let page = get(&server, &items("?limit=2")).await.json();
    assert_eq!(
        (&page["has_more"], &page["first_id"]),
        (&json!(true), &list["last_id"])
    );
    let after = page["last_id"].as_str().unwrap();
    let rest = get(&server, &items(&format!("?after={after}")))
        .await
        .json();
    assert_eq!(
        (&rest["has_more"], &rest["last_id"]),
        (&json!(false), &list["first_id"])
    );
    // What was deleted does not change what continues it.
    assert_eq!(delete(&server, id).await.json()["deleted"], true);
    assert_eq!(get(&server, &format!("{PATH}/{id}")).await.status, 404);
    assert_eq!(delete(&server, id).await.status, 404);
    assert_eq!(
        get(&server, &items("")).await.json()["data"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn stored_responses_can_be_read() {
    let server = server();
    let stored = post(&server, PATH, ask("Hello".into())).await.json();
    let path = format!("{PATH}/{}", stored["id"].as_str().unwrap());
    assert_eq!(get(&server, &path).await.json(), stored);
    let mut body = ask("Hello".into());
    body["store"] = false.into();
    let gone = post(&server, PATH, body).await.json();
    let path = format!("{PATH}/{}", gone["id"].as_str().unwrap());
    assert_eq!(get(&server, &path).await.status, 404);
    let small = with(|options| options.stored_responses = 1000);
    let gone = post(&small, PATH, ask("Hello".into())).await.json();
    let path = format!("{PATH}/{}", gone["id"].as_str().unwrap());
    assert_eq!(get(&small, &path).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn background_responses_complete_or_are_cancelled() {
    let server = router(endless_model(), ServerOptions::default()).unwrap();
    let begin = async |tokens: usize| {
        let mut body = ask("Tell me about a fox.".into());
        body["background"] = true.into();
        body["max_output_tokens"] = tokens.into();
        if tokens > 16 {
            // It cannot end by itself before the next request. At random few guesses are right.
            (body["ignore_eos"], body["temperature"]) = (true.into(), 1.into());
        }
        let begun = post(&server, PATH, body).await.json();
        assert_eq!(
            (&begun["status"], &begun["output"]),
            (&json!("in_progress"), &json!([]))
        );
        format!("{PATH}/{}", begun["id"].as_str().unwrap())
    };
    let until_done = async |path: &str| loop {
        let now = get(&server, path).await.json();
        if now["status"] != "in_progress" {
            return now;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    };
    let done = until_done(&begin(16).await).await;
    let whole = post(&server, PATH, ask("Tell me about a fox.".into()))
        .await
        .json();
    assert_eq!(text(&done), text(&whole));
    let long = begin(8000).await;
    let cancelled = post(&server, &format!("{long}/cancel"), json!({}))
        .await
        .json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(until_done(&long).await["status"], "cancelled");
    let again = post(&server, &format!("{long}/cancel"), json!({}))
        .await
        .json();
    assert_eq!(again["status"], "cancelled");
    let foreground = format!("{PATH}/{}/cancel", whole["id"].as_str().unwrap());
    assert_eq!(post(&server, &foreground, json!({})).await.status, 400);
    // A deleted response ends and does not come back.
    let long = begin(8000).await;
    delete(&server, long.strip_prefix("/v1/responses/").unwrap()).await;
    for _ in 0..20 {
        assert_eq!(get(&server, &long).await.status, 404);
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn tokens_are_counted() {
    let server = server();
    let body = json!({ "model": "demo", "instructions": "Be kind.", "input": "Hello" });
    let count = post(&server, "/v1/responses/input_tokens", body.clone()).await;
    let count = count.json();
    assert_eq!(count["object"], "response.input_tokens");
    let answer = post(&server, PATH, body).await.json();
    assert_eq!(answer["usage"]["input_tokens"], count["input_tokens"]);
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = strict_server();
    for (field, value, named) in [
        ("colour", json!(1), "colour"),
        ("input", json!(3), "input"),
        ("input", json!([]), "input"),
        (
            "input",
            json!([{ "role": "king", "content": "a" }]),
            "input[0].role",
        ),
        (
            "input",
            json!([{ "role": "user", "content": "a", "mood": 1 }]),
            "input[0].mood",
        ),
        (
            "input",
            json!([{ "type": "item_reference", "id": "x" }]),
            "input[0].type",
        ),
        (
            "input",
            json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
            "input[0].content[0].image_url",
        ),
        (
            "input",
            json!([{ "type": "function_call", "name": "f" }]),
            "input[0].call_id",
        ),
        ("tools", json!([{ "type": "web_search" }]), "tools[0].type"),
        ("tools", json!([{ "type": "function" }]), "tools[0].name"),
        ("tools", json!(1), "tools"),
        ("tool_choice", json!("required"), "tool_choice"),
        (
            "text",
            json!({ "format": { "type": "yaml" } }),
            "text.format.type",
        ),
        ("reasoning", json!({ "depth": 1 }), "reasoning.depth"),
        ("include", json!(["everything"]), "include"),
        ("conversation", json!("conv_1"), "conversation"),
        ("truncation", json!("auto"), "truncation"),
    ] {
        let mut body = ask("Hello".into());
        body[field] = value;
        let reply = post(&server, PATH, body).await;
        assert_eq!(reply.status, 400, "{field}: {}", reply.text);
        assert_eq!(reply.json()["error"]["param"], named, "{}", reply.text);
    }
    let mut body = ask("Hello".into());
    body["previous_response_id"] = "resp_x".into();
    let reply = post(&server, PATH, body).await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["param"], "previous_response_id");
    for (field, other) in [("stream", true), ("store", false)] {
        let mut body = ask("Hello".into());
        body["background"] = true.into();
        body[field] = other.into();
        assert_eq!(post(&server, PATH, body).await.status, 400);
    }
    let known = post(&server, PATH, ask("Hello".into())).await.json();
    let known = format!("{PATH}/{}", known["id"].as_str().unwrap());
    for query in [
        "/input_items?limit=0",
        "/input_items?order=up",
        "/input_items?after=x",
        "?stream=true",
        "?x=1",
    ] {
        let reply = get(&server, &format!("{known}{query}")).await;
        assert_eq!(reply.status, 400, "{query}: {}", reply.text);
    }
}
