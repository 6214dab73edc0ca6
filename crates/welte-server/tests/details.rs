//! Details of answers and headers that clients and operators rely on.

mod common;

use axum::http::Method;
use common::live::{read, start};
use common::scripted::scripted;
use common::{get, post, send, server, with};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use welte_server::{BrowserPage, ServerOptions, router};

/// Ollama's programs show the first letters of a digest, and when a model is unloaded.
#[tokio::test]
async fn ollamas_lists_have_what_its_programs_show() {
    let server = with(|options| options.keep_alive = None);
    for path in ["/api/tags", "/api/ps"] {
        let listed = get(&server, path).await.json()["models"][0].clone();
        let digest = listed["digest"].as_str().unwrap();
        assert!(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!(listed["expires_at"].is_string(), path == "/api/ps");
    }
    let forever = get(&server, "/api/ps").await.json()["models"][0]["expires_at"].clone();
    assert!(forever.as_str().unwrap() > "2300", "{forever}");
    let shown = post(&server, "/api/show", json!({ "model": "demo" })).await;
    let all = shown.json()["capabilities"].clone();
    assert_eq!(all, json!(["completion", "chat", "embedding"]));
    // They are those of the card that a person reads, and the keys are those of the file.
    let card = welte::Card::read(common::DEMO, &welte::Images::Beside, None).unwrap();
    assert_eq!(all, json!(card.capabilities));
    let info = shown.json()["model_info"].clone();
    let mut expected = card.info_as_json();
    let context = format!("{}.context_length", card.info_prefix());
    expected[&context] = info[&context].clone();
    assert_eq!(info, json!(expected));
    let body = json!({ "model": "demo", "prompt": "A fox", "stream": false, "options": { "num_predict": 3 } });
    let last = post(&server, "/api/generate", body).await.json();
    let nanoseconds = |name: &str| last[name].as_u64().unwrap();
    let parts = nanoseconds("load_duration") + nanoseconds("eval_duration");
    assert!(nanoseconds("eval_duration") > 0 && parts <= nanoseconds("total_duration"));
}

#[tokio::test]
async fn ollamas_fields_are_not_dropped_silently() {
    let server = server();
    let body = json!({ "model": "demo", "prompt": "a", "raw": true, "think": true });
    let reply = post(&server, "/api/generate", body).await;
    assert!(
        reply.status == 400 && reply.text.contains("think: needs"),
        "{}",
        reply.text
    );
    let body = json!({ "model": "demo", "messages": [{ "role": "assistent", "content": "a" }] });
    let reply = post(&server, "/api/chat", body).await;
    assert!(
        reply.status == 400 && reply.text.contains("messages[0].role"),
        "{}",
        reply.text
    );
}

#[tokio::test]
async fn a_negative_seed_is_random_whatever_the_server_has() {
    let server = with(|options| options.seed = Some(7));
    let text = async |seed: Value| {
        let body = json!({ "prompt": "A", "max_tokens": 40, "temperature": 1.5, "ignore_eos": true, "seed": seed });
        let reply = post(&server, "/v1/completions", body).await.json();
        reply["choices"][0]["text"].clone()
    };
    assert_eq!(text(Value::Null).await, text(json!(7)).await);
    assert_ne!(text(json!(-1)).await, text(json!(-1)).await);
}

/// Each answer of several has the next seed.
#[tokio::test]
async fn the_answers_of_a_request_can_be_repeated_alone() {
    let server = server();
    let ask = async |seed: u64, n: usize| {
        let body = json!({ "prompt": "A", "max_tokens": 20, "temperature": 1.5, "ignore_eos": true, "seed": seed, "n": n });
        let reply = post(&server, "/v1/completions", body).await.json();
        reply["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].clone())
            .collect::<Vec<_>>()
    };
    let two = ask(7, 2).await;
    assert_eq!(two, [ask(7, 1).await, ask(8, 1).await].concat());
    assert_ne!(two[0], two[1]);
}

/// In characters, also where a character is spread over tokens.
#[tokio::test]
async fn offsets_of_tokens_lead_to_their_places() {
    let server = server();
    let body = json!({ "prompt": "Łódź 🦊🦊 runs", "max_tokens": 8, "temperature": 0, "echo": true, "logprobs": 1 });
    let choice = post(&server, "/v1/completions", body).await.json()["choices"][0].clone();
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let columns = &choice["logprobs"];
    let (mut whole, mut parts) = (0, 0);
    for (token, offset) in columns["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .zip(columns["text_offset"].as_array().unwrap())
    {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        let there: String = text
            .iter()
            .skip(offset)
            .take(token.chars().count())
            .collect();
        if token.contains('\u{fffd}') {
            parts += 1;
        } else if whole > 0 {
            assert_eq!(there, token, "{choice}");
        }
        // The first ones may be a control token, and a token with the space that encoding adds.
        whole += usize::from(token.chars().any(char::is_alphanumeric));
    }
    assert!(whole > 3 && parts > 3, "{choice}");
}

/// What the queue never has room for is not refused for now, but for good.
#[tokio::test]
async fn more_answers_than_the_server_takes_are_an_error() {
    let server = with(|options| options.engine.queue = 1);
    let ask = async |n: usize| {
        post(
            &server,
            "/v1/completions",
            json!({ "prompt": "A", "max_tokens": 1, "n": n }),
        )
        .await
    };
    assert_eq!(ask(3).await.status, 200);
    let reply = ask(4).await;
    assert_eq!(reply.status, 400);
    assert!(
        reply.text.contains("4 answers") && reply.text.contains("--queue"),
        "{}",
        reply.text
    );
}

/// The memory of vectors counts, and is given back.
#[tokio::test]
async fn vectors_take_memory() {
    let server = with(|options| options.bodies_memory = 100_000);
    let ask = async |texts: usize| {
        post(
            &server,
            "/v1/embeddings",
            json!({ "input": vec!["A fox"; texts] }),
        )
        .await
    };
    for (texts, status) in [(2, 200), (200, 413), (2, 200)] {
        let reply = ask(texts).await;
        assert_eq!(reply.status, status, "{texts}: {}", reply.text);
    }
    assert!(ask(200).await.text.contains("--bodies-memory"));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_vectors_are_counted() {
    let server = start(|options| options.engine.queue = 1).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(
            server
                .send("/completion", &common::live::endless(true))
                .await,
        );
        server
            .until("welte_requests_total", &clients.len().to_string())
            .await;
    }
    let mut refused = server
        .send("/v1/embeddings", &json!({ "input": "A fox" }))
        .await;
    assert!(read(&mut refused).await.starts_with("HTTP/1.1 429"));
    server.until("welte_requests_refused_total", "1").await;
}

const CALL: &str = "<tool_call>\n{\"name\": \"den\", \"arguments\": {}}\n</tool_call>";

/// One call where the client wants no more; the server ends the answer, which is no abortion.
#[tokio::test]
async fn an_answer_ends_after_the_only_call() {
    let answer = format!("{CALL}\n{}", CALL.replace("{}", "{\"of\": \"a fox\"}"));
    let server = router(scripted(&answer), ServerOptions::default()).unwrap();
    let schema = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let openai = json!({ "type": "function", "function": { "name": "den", "parameters": schema } });
    let body = |one: bool| json!({ "messages": [{ "role": "user", "content": "Den?" }], "temperature": 0, "tools": [openai], "parallel_tool_calls": !one });
    for (one, calls) in [(true, 1), (false, 2)] {
        let reply = post(&server, "/v1/chat/completions", body(one))
            .await
            .json();
        let message = &reply["choices"][0]["message"];
        assert_eq!(
            message["tool_calls"].as_array().unwrap().len(),
            calls,
            "{reply}"
        );
        let anthropic = json!({
            "messages": [{ "role": "user", "content": "Den?" }], "temperature": 0, "max_tokens": 200,
            "tools": [{ "name": "den", "input_schema": schema }],
            "tool_choice": { "type": "auto", "disable_parallel_tool_use": one },
        });
        let reply = post(&server, "/v1/messages", anthropic).await.json();
        let blocks = reply["content"].as_array().unwrap();
        let used = blocks
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .count();
        assert_eq!(used, calls, "{reply}");
    }
    let metrics = get(&server, "/metrics").await.text;
    let ended = |reason: &str| {
        let label = format!("finished_reason=\"{reason}\"");
        let line = metrics
            .lines()
            .find(|line| line.contains(&label))
            .unwrap_or(" 0");
        line.rsplit_once(' ').unwrap().1.to_string()
    };
    assert_eq!(
        (ended("stop").as_str(), ended("abort").as_str()),
        ("4", "0")
    );
}

/// Tokens of the reasoning are counted, and all APIs say the same.
#[tokio::test]
async fn tokens_of_reasoning_are_counted() {
    let server = {
        let mut options = ServerOptions::default();
        options.chat_template = Some("{% for message in messages %}{{ message.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>{% endif %}{# <think></think> #}".into());
        router(
            scripted("<think>A fox digs a den in spring.</think>It is a den."),
            options,
        )
        .unwrap()
    };
    let question = json!([{ "role": "user", "content": "Den?" }]);
    let chat = json!({ "messages": question, "temperature": 0 });
    let chat = post(&server, "/v1/chat/completions", chat).await.json();
    let counted = chat["usage"]["completion_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .unwrap();
    let all = chat["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(counted > 3 && counted < all, "{chat}");
    let responses = json!({ "input": "Den?", "temperature": 0 });
    let responses = post(&server, "/v1/responses", responses).await.json();
    assert_eq!(
        responses["usage"]["output_tokens_details"]["reasoning_tokens"], counted,
        "{responses}"
    );
}

/// Why an answer ended, in each API's words.
#[tokio::test]
async fn stop_strings_are_named() {
    let server = router(
        scripted("The fox runs to the den. It sleeps."),
        ServerOptions::default(),
    )
    .unwrap();
    let question = json!([{ "role": "user", "content": "Den?" }]);
    let body = json!({ "messages": question, "temperature": 0, "max_tokens": 100, "stop_sequences": ["den"] });
    let reply = post(&server, "/v1/messages", body).await.json();
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("stop_sequence"), &json!("den"))
    );
    let body = json!({ "prompt": "Den?<|turn|>", "temperature": 0, "stop": ["den"] });
    let reply = post(&server, "/completion", body).await.json();
    assert_eq!(
        (&reply["stop_type"], &reply["stopping_word"]),
        (&json!("word"), &json!("den"))
    );
    assert!(
        reply["content"].as_str().unwrap().ends_with("runs to the "),
        "{reply}"
    );
}

/// A line that changes with every request is left out where the operator wants it, and named.
#[tokio::test]
async fn changing_lines_are_left_out() {
    let ask = async |server: &axum::Router, time: &str| {
        let system = format!("You know foxes.\nCurrent time: {time}\nBe brief.");
        let body = json!({
            "messages": [{ "role": "system", "content": system }, { "role": "user", "content": "Den?" }],
            "temperature": 0, "max_tokens": 4,
        });
        post(server, "/v1/chat/completions", body).await.json()
    };
    let (kept, left_out) = (
        server(),
        with(|options| options.drop_changing = vec!["times".parse().unwrap()]),
    );
    let long = ask(&kept, "2026-11-28 10:41:28").await;
    let short = ask(&left_out, "2026-11-28 10:41:28").await;
    assert!(long["welte"]["changing_lines"].is_array(), "{long}");
    let tokens = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&short) < tokens(&long), "{short}");
    let other = ask(&left_out, "2027-01-01 11:00:00").await;
    assert_eq!(tokens(&other), tokens(&short));
}

#[tokio::test]
async fn headers_of_streams_pages_and_foreign_pages() {
    let folder = tempfile::tempdir().unwrap();
    let page = browser_page(folder.path(), 10);
    let server = with(|options| options.browser = Some(page));
    let body = json!({ "messages": [{ "role": "user", "content": "A" }], "max_tokens": 2, "stream": true });
    for (path, body) in [
        ("/v1/chat/completions", body.clone()),
        ("/v1/messages", body.clone()),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": body["messages"], "options": { "num_predict": 2 } }),
        ),
        (
            "/completion",
            json!({ "prompt": "A", "n_predict": 2, "stream": true }),
        ),
    ] {
        let reply = post(&server, path, body).await;
        let header = |name: &str| reply.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert_eq!(header("x-accel-buffering"), Some("no"), "{path}");
        assert_eq!(header("cache-control"), Some("no-store"), "{path}");
        // Anthropic's clients read the first, OpenAI's the second.
        assert!(header("request-id").is_some() && header("request-id") == header("x-request-id"));
    }
    for path in ["/", "/page.js", "/browser/", "/browser/demo.gguf"] {
        let reply = get(&server, path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(reply.headers["x-frame-options"], "DENY", "{path}");
        assert_eq!(reply.headers["x-content-type-options"], "nosniff", "{path}");
    }
    let origin = ("origin", "http://localhost:3000");
    let asks = [
        origin,
        ("access-control-request-method", "DELETE"),
        ("access-control-request-headers", "x-own, authorization"),
    ];
    let reply = send(&server, Method::OPTIONS, "/v1/models", &asks, Vec::new()).await;
    assert_eq!(reply.status, 200);
    let header = |name: &str| reply.headers[name].to_str().unwrap().to_ascii_lowercase();
    for method in ["get", "post", "delete"] {
        assert!(header("access-control-allow-methods").contains(method));
    }
    assert!(header("access-control-allow-headers").contains("x-own"));
    let reply = send(&server, Method::GET, "/v1/models", &[origin], Vec::new()).await;
    let exposed = reply.headers["access-control-expose-headers"]
        .to_str()
        .unwrap();
    for name in ["x-request-id", "retry-after", "x-welte-ignored"] {
        assert!(exposed.contains(name), "{exposed}");
    }
}

/// The files of a page that runs the engine, of which the model has this many bytes.
fn browser_page(folder: &std::path::Path, bytes: usize) -> BrowserPage {
    for name in [
        "index.html",
        "page.css",
        "page.js",
        "worker.js",
        "models.js",
        "suspend.js",
        "welte_browser.js",
        "welte_browser_bg.wasm",
        "demo.gguf",
    ] {
        let content = if name == "demo.gguf" {
            vec![7; bytes]
        } else {
            b"-".to_vec()
        };
        std::fs::write(folder.join(name), content).unwrap();
    }
    BrowserPage::read(folder).unwrap()
}

/// An answer that is still being sent is in flight: neither an ending server nor a lack of places cuts it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_the_whole_answer() {
    const BYTES: usize = 32 << 20;
    let folder = tempfile::tempdir().unwrap();
    let page = browser_page(folder.path(), BYTES);
    let server = start(|options| {
        options.browser = Some(page);
        (options.connections, options.connections_per_address) = (2, 2);
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(server.address).await.unwrap();
        let head = "GET /browser/demo.gguf HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        client.read_exact(&mut [0; 64]).await.unwrap();
        clients.push(client);
    }
    // All places are taken, and none is idle.
    let mut other = server.send("/tokenize", &json!({ "content": "a" })).await;
    assert!(read(&mut other).await.starts_with("HTTP/1.1 503"));
    server.shutdown.shutdown();
    for mut client in clients {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() > BYTES, "{} bytes of {BYTES}", rest.len());
    }
    server.done.await.unwrap().unwrap();
}

/// A call that the server told of as incomplete stays one when the client sends it back: its source follows as text.
#[tokio::test]
async fn an_incomplete_call_that_comes_back_is_no_call() {
    let server = router(scripted("A den."), ServerOptions::default()).unwrap();
    let tokens = async |status: &str| {
        let call = json!({ "type": "function_call", "call_id": "c", "name": "den", "arguments": "{\"of", "status": status });
        let said =
            |role: &str, text: &str| json!({ "type": "message", "role": role, "content": text });
        let input = json!([
            said("user", "Den?"),
            call,
            said("assistant", "{\"of"),
            said("user", "Well?")
        ]);
        let reply = post(
            &server,
            "/v1/responses/input_tokens",
            json!({ "input": input }),
        )
        .await;
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    assert!(tokens("incomplete").await < tokens("completed").await);
}
