//! Every limit of the server, by table: it is reached, it holds, and it ends with its cause.

mod common;

use axum::http::Method;
use common::live::{RUNNING, Running, endless, read, start};
use common::{get, post, send, with};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use welte_server::ServerOptions;

const LARGEST_BODY: usize = 400_000;

/// Tokens of the model's context.
const CONTEXT: usize = 512;

/// A body of exactly this many bytes, which is tokenized.
fn body_of(bytes: usize) -> Value {
    let least = json!({ "content": "" }).to_string().len();
    json!({ "content": "x".repeat(bytes - least) })
}

fn completion(field: &str, value: impl Into<Value>) -> Value {
    json!({ "prompt": "A", "max_tokens": 1, "n_predict": 1, field: value.into() })
}

/// A grammar of exactly this many bytes.
fn grammar(bytes: usize) -> Value {
    let least = "root ::= \"a\"\n";
    completion(
        "grammar",
        format!("{least}{}", "\n".repeat(bytes - least.len())),
    )
}

/// Limits of one request: its path, how large it may be, a request of this size, and what a larger one is told.
type Size = (&'static str, usize, fn(usize) -> Value, u16, &'static str);

const SIZES: [Size; 6] = [
    (
        "/tokenize",
        LARGEST_BODY,
        body_of,
        413,
        "larger than 400000 bytes",
    ),
    (
        "/tokenize",
        100_000,
        |count| json!({ "content": "a", "more": vec![json!([]); count - 2] }),
        413,
        "more than 100000 objects and lists",
    ),
    (
        "/completion",
        128 << 10,
        grammar,
        400,
        "the most are 131072",
    ),
    (
        "/v1/completions",
        64,
        |count| completion("stop", vec!["x"; count]),
        400,
        "stop",
    ),
    (
        "/v1/completions",
        CONTEXT,
        |tokens| completion("prompt", vec![300; tokens - 1]),
        400,
        "512",
    ),
    (
        "/v1/embeddings",
        CONTEXT,
        |tokens| json!({ "input": vec![300; tokens] }),
        400,
        "512",
    ),
];

#[tokio::test]
async fn a_request_may_be_as_large_as_its_limit() {
    let server = with(|options| options.largest_body = LARGEST_BODY);
    for (path, most, request, status, says) in SIZES {
        for (size, expected) in [(most, 200), (most + 1, status), (most, 200)] {
            let reply = post(&server, path, request(size)).await;
            let shown: String = reply.text.chars().take(300).collect();
            assert_eq!(reply.status, expected, "{path} {size}: {shown}");
            let told = expected == 200 || reply.text.contains(says);
            assert!(told, "{path} {size}: {shown}");
        }
    }
}

/// A limit of what may be inside at a time.
struct Places {
    what: &'static str,
    options: fn(&mut ServerOptions),
    /// Requests that take all places.
    held: Vec<Value>,
    /// The figure that tells that they have them; `None`: their answers have begun.
    reached: Option<(&'static str, &'static str)>,
    probe: Value,
    status: &'static str,
    says: &'static str,
}

fn places() -> Vec<Places> {
    let probe = || json!({ "content": "a" });
    let filler = "x".repeat(200_000);
    let mut large = endless(false);
    large["user"] = filler.clone().into();
    vec![
        Places {
            what: "connections",
            options: |options| (options.connections, options.connections_per_address) = (2, 8),
            held: vec![endless(true); 2],
            reached: None,
            probe: probe(),
            status: "503",
            says: "2 in all and 8 of one address are allowed",
        },
        Places {
            what: "connections of one address",
            options: |options| (options.connections, options.connections_per_address) = (8, 2),
            held: vec![endless(true); 2],
            reached: None,
            probe: probe(),
            status: "503",
            says: "8 in all and 2 of one address are allowed",
        },
        Places {
            what: "queue",
            options: |options| options.engine.queue = 1,
            held: vec![endless(true); 3],
            reached: Some(("vllm:num_requests_waiting", "1")),
            probe: json!({ "prompt": "A", "n_predict": 1 }),
            status: "429",
            says: "retry-after",
        },
        Places {
            what: "bytes of all bodies",
            options: |options| options.bodies_memory = 300_000,
            held: vec![large],
            reached: Some((RUNNING, "1")),
            probe: json!({ "content": filler }),
            status: "429",
            says: "the bodies of other requests take all memory",
        },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_held_and_given_back() {
    for limit in places() {
        let server = start(limit.options).await;
        let mut held = Vec::new();
        for body in &limit.held {
            held.push(server.send("/completion", body).await);
        }
        match limit.reached {
            Some((figure, value)) => server.until(figure, value).await,
            None => {
                for client in &mut held {
                    client.read_exact(&mut [0; 16]).await.unwrap();
                }
            }
        }
        let path = match limit.probe.get("prompt") {
            Some(_) => "/completion",
            None => "/tokenize",
        };
        for _ in 0..3 {
            let text = read(&mut server.send(path, &limit.probe).await).await;
            let expected = format!("HTTP/1.1 {}", limit.status);
            let shown: String = text.chars().take(600).collect();
            assert!(text.starts_with(&expected), "{}: {shown}", limit.what);
            assert!(text.contains(limit.says), "{}: {shown}", limit.what);
        }
        // Some leave, and their places can be had.
        held.truncate(held.len() / 2);
        until_answered(&server, path, &limit.probe, limit.what).await;
        drop(held);
        server.shutdown.shutdown();
        server.done.await.unwrap().unwrap();
    }
}

/// Asks until there is an answer.
async fn until_answered(server: &Running, path: &str, body: &Value, what: &str) {
    let mut last = String::new();
    for _ in 0..2000 {
        last = read(&mut server.send(path, body).await).await;
        if last.starts_with("HTTP/1.1 200") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: {last}");
}

/// The limits that are not tried are far longer.
const OTHERS: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(300);

/// A limit of the time for something: what is sent, and what comes back at the end, if there is an answer.
type Time = (&'static str, fn(&mut ServerOptions), String, &'static str);

fn times() -> Vec<Time> {
    let head = "POST /completion HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let kept = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let body = endless(false).to_string();
    let length = body.len();
    vec![
        (
            "nothing",
            |options| options.head_timeout = SHORT,
            String::new(),
            "",
        ),
        (
            "head",
            |options| options.head_timeout = SHORT,
            head.to_string(),
            "",
        ),
        (
            "head of the second request",
            |options| options.head_timeout = SHORT,
            format!("{kept}{head}"),
            "{\"status\":\"ok\"}",
        ),
        (
            "body",
            |options| options.body_timeout = SHORT,
            format!("{head}content-length: 100\r\n\r\n{{\"prompt\""),
            "the body did not arrive in time",
        ),
        (
            "answer",
            |options| options.timeout = Some(10 * SHORT),
            format!("{head}content-length: {length}\r\n\r\n{body}"),
            "\"stop_type\":\"limit\"",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_too_long_ends() {
    for (what, options, sent, says) in times() {
        let server = start(|all| {
            (all.head_timeout, all.body_timeout) = (OTHERS, OTHERS);
            all.timeout = Some(OTHERS);
            options(all);
        })
        .await;
        let mut client = server.connect().await;
        client.write_all(sent.as_bytes()).await.unwrap();
        let text = ended(&mut client).await;
        assert!(text.contains(says), "{what}: {text}");
        assert_eq!(text.is_empty(), says.is_empty(), "{what}: {text}");
        // Nothing is left of it.
        server.until(RUNNING, "0").await;
        until_answered(&server, "/tokenize", &json!({ "content": "a" }), what).await;
        server.shutdown.shutdown();
        server.done.await.unwrap().unwrap();
    }
}

/// Everything that comes until the server closes the connection.
async fn ended(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let all = client.read_to_end(&mut bytes);
    let all = tokio::time::timeout(OTHERS / 2, all).await;
    // A connection that is cut off counts, too.
    let _ = all.expect("the server does not end it");
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn requests_without_time_are_refused() {
    let server = with(|options| options.timeout = Some(Duration::ZERO));
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "A fox" })),
        ("/v1/embeddings", json!({ "input": "A fox" })),
    ] {
        let reply = post(&server, path, body).await;
        assert_eq!(reply.status, 503, "{path}: {}", reply.text);
        assert!(reply.text.contains("deadline"), "{path}: {}", reply.text);
    }
}

/// A small text can become a large tree.
#[tokio::test]
async fn parsed_bodies_count_by_what_they_take() {
    let server = with(|options| options.bodies_memory = 1_500_000);
    let body = |lists: usize| json!({ "content": "a", "more": vec![json!([]); lists] });
    for (lists, status) in [(1000, 200), (2000, 413), (1000, 200)] {
        let reply = post(&server, "/tokenize", body(lists)).await;
        assert_eq!(reply.status, status, "{lists}: {}", reply.text);
    }
}

/// The oldest of the kept responses make room, and only as many as must.
#[tokio::test]
async fn as_many_responses_are_kept_as_memory_allows() {
    let server = with(|options| options.stored_responses = 100_000);
    let respond = async || {
        let body = json!({ "input": "A fox. ".repeat(40), "max_output_tokens": 1 });
        let reply = post(&server, "/v1/responses", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let id = reply.json()["id"].as_str().unwrap().to_string();
        format!("/v1/responses/{id}")
    };
    let mut paths = Vec::new();
    for _ in 0..30 {
        paths.push(respond().await);
    }
    // Asking counts as use, so the order of use stays.
    let mut kept = Vec::new();
    for path in &paths {
        match get(&server, path).await.status.as_u16() {
            200 => kept.push(path.clone()),
            status => assert!(status == 404 && kept.is_empty(), "{path}: {status}"),
        }
    }
    assert!((4..30).contains(&kept.len()), "{}", kept.len());
    // What is deleted makes room as well.
    let gone = kept.pop().unwrap();
    let deleted = send(&server, Method::DELETE, &gone, &[], Vec::new()).await;
    assert_eq!(deleted.status, 200);
    kept.push(respond().await);
    for path in &kept {
        assert_eq!(get(&server, path).await.status, 200, "{path}");
    }
    assert_eq!(get(&server, &gone).await.status, 404);
}
