//! Connections over real sockets: how many there may be, half of one, and the end of the server.

mod common;

use common::live::{RUNNING, Running, endless, is_closed, read, start};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far shorter than the time that the head of a request may take, and far longer than an answer.
const SOON: Duration = Duration::from_secs(15);

/// A request that any connection of a healthy server answers.
async fn tokenizes(server: &Running) -> bool {
    let asked = async {
        let mut client = server.send("/tokenize", &json!({ "content": "a" })).await;
        read(&mut client).await
    };
    let answered = tokio::time::timeout(SOON, asked).await;
    answered.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
}

async fn is_healthy(server: &Running) -> bool {
    let answered = tokio::time::timeout(SOON, server.get("/health")).await;
    answered.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
}

/// Sends a request over a connection that stays open, and reads the head of the answer and a body of this length.
async fn ask(client: &mut TcpStream, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = client.read(&mut part).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&part[..count]);
        let whole = String::from_utf8_lossy(&text);
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse::<usize>().unwrap() {
                return whole.into_owned();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_shut_nobody_out() {
    let server = start(|options| {
        (options.connections, options.connections_per_address) = (24, 16);
    })
    .await;
    // Nothing, a part of a head, and a whole request that was answered.
    for part in ["", "POST /completion HTTP/1.1\r\nhost: loc"] {
        let mut idle = Vec::new();
        for _ in 0..120 {
            let mut client = server.connect().await;
            client.write_all(part.as_bytes()).await.unwrap();
            idle.push(client);
        }
        assert!(tokenizes(&server).await && is_healthy(&server).await);
    }
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut client = server.connect().await;
        assert!(
            ask(&mut client, "/v1/models")
                .await
                .starts_with("HTTP/1.1 200")
        );
        idle.push(client);
    }
    assert!(tokenizes(&server).await);
    // The newest are still there, the oldest have made room.
    assert!(is_closed(&mut idle[0]).await);
    let answer = ask(&mut idle[39], "/v1/models").await;
    assert!(answer.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_hold_their_places() {
    for (all, per_address) in [(2, 8), (8, 2)] {
        let server = start(|options| {
            (options.connections, options.connections_per_address) = (all, per_address);
        })
        .await;
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut client = server.send("/completion", &endless(true)).await;
            client.read_exact(&mut [0; 16]).await.unwrap();
            streams.push(client);
        }
        // Others get /health, and an answer that says what to do.
        let _idle: Vec<TcpStream> = vec![server.connect().await, server.connect().await];
        assert!(is_healthy(&server).await);
        let mut refused = server
            .send("/v1/completions", &json!({ "prompt": "a" }))
            .await;
        let text = read(&mut refused).await;
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        assert!(
            text.contains("retry-after: 1") && text.contains("connection: close"),
            "{text}"
        );
        let flags = text.contains("--connections and --connections-per-address");
        assert!(flags && text.contains("\"error\":{\"message\":"), "{text}");
        // A spare place answers once.
        let mut client = server.connect().await;
        assert!(
            ask(&mut client, "/health")
                .await
                .starts_with("HTTP/1.1 200")
        );
        assert!(is_closed(&mut client).await);
        // The limit ends with its cause, and the streams have not been touched.
        let mut stream = streams.pop().unwrap();
        stream.read_exact(&mut [0; 16]).await.unwrap();
        drop(stream);
        while !tokenizes(&server).await {}
        streams[0].read_exact(&mut [0; 16]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_is_answered_whose_client_sends_nothing_more() {
    let server = start(|_| ()).await;
    for (path, end) in [
        ("/health", "{\"status\":\"ok\"}"),
        ("/v1/models", "}"),
        // Larger than the system's buffers hold.
        ("/page.js", ""),
    ] {
        let whole = server.get(path).await;
        for kept in ["", "connection: close\r\n"] {
            let mut client = server.connect().await;
            let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{kept}\r\n");
            client.write_all(head.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let text = read(&mut client).await;
            assert!(
                text.starts_with("HTTP/1.1 200") && text.ends_with(end),
                "{path}: {text}"
            );
            let body = |text: &str| text.split_once("\r\n\r\n").unwrap().1.len();
            assert_eq!(body(&text), body(&whole), "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_ascii_in_heads() {
    let server = start(|_| ()).await;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let head = |host: &[u8], id: &[u8]| {
        [
            &b"GET /health HTTP/1.1\r\nconnection: close\r\nhost: "[..],
            host,
            b"\r\nx-request-id: ",
            id,
            b"\r\n\r\n",
        ]
        .concat()
    };
    for host in ["löcalhost".as_bytes(), b"\xff", b"localhost\x80"] {
        let text = text(server.raw(&head(host, b"1")).await);
        assert!(
            text.starts_with("HTTP/1.1 400") && text.contains("host"),
            "{text}"
        );
    }
    for id in [&b"plain-1"[..], "größe".as_bytes(), b"\x80\xff"] {
        let bytes = server.raw(&head(b"localhost", id)).await;
        let line = [b"x-request-id: ", id, b"\r\n"].concat();
        assert!(bytes.windows(line.len()).any(|part| part == line));
        assert!(bytes.starts_with(b"HTTP/1.1 200"));
    }
    // Of an id that is too long nothing is kept.
    let bytes = server.raw(&head(b"localhost", &[b'a'; 129])).await;
    assert!(text(bytes).contains("x-request-id: req_"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ending_server_answers_until_its_last_answer() {
    let server = start(|_| ()).await;
    let mut kept = server.connect().await;
    assert!(ask(&mut kept, "/health").await.starts_with("HTTP/1.1 200"));
    let mut silent = server.connect().await;
    let mut stream = server.send("/completion", &endless(true)).await;
    stream.read_exact(&mut [0; 16]).await.unwrap();
    server.shutdown.shutdown();
    // Idle connections do not hold the server.
    assert!(is_closed(&mut kept).await && is_closed(&mut silent).await);
    for path in ["/health", "/v1/models", "/"] {
        let text = server.get(path).await;
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        assert!(
            text.contains("about to end") && text.contains("retry-after"),
            "{text}"
        );
    }
    let mut new = server.send("/completion", &endless(true)).await;
    let text = read(&mut new).await;
    assert!(
        text.starts_with("HTTP/1.1 503") && text.contains("about to end"),
        "{text}"
    );
    // The stream goes on, and the server ends with it.
    stream.read_exact(&mut [0; 64]).await.unwrap();
    assert!(!server.done.is_finished());
    drop(stream);
    server.done.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_lets_answers_finish() {
    let server = start(|_| ()).await;
    let body =
        json!({ "prompt": "Once upon", "n_predict": 64, "ignore_eos": true, "stream": true });
    let mut client = server.send("/completion", &body).await;
    let mut first = [0; 16];
    client.read_exact(&mut first).await.unwrap();
    server.shutdown.shutdown();
    let rest = read(&mut client).await;
    assert!(rest.contains("\"stop_type\":\"limit\""), "{rest}");
    server.done.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ending_server_finishes_background_responses_and_lets_them_be_read() {
    let server = start(|_| ()).await;
    // The slots are taken, so the response waits until the server has begun to end.
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = server.send("/completion", &endless(true)).await;
        client.read_exact(&mut [0; 16]).await.unwrap();
        held.push(client);
    }
    let body = json!({ "input": "Once", "background": true, "max_output_tokens": 1000, "ignore_eos": true });
    let begun = read(&mut server.send("/v1/responses", &body).await).await;
    let at = begun.find("resp_").unwrap();
    let path = format!("/v1/responses/{}", &begun[at..at + 29]);
    server.shutdown.shutdown();
    while !server.get("/health").await.starts_with("HTTP/1.1 503") {}
    drop(held);
    loop {
        let text = server.get(&path).await;
        // Connections without a request are closed when the end begins.
        if text.is_empty() {
            continue;
        }
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        if text.contains("\"status\":\"incomplete\"") {
            break;
        }
        assert!(text.contains("\"status\":\"in_progress\""), "{text}");
    }
    server.done.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_to_end_is_limited() {
    let server = start(|options| options.drain = Duration::from_millis(200)).await;
    let mut stream = server.send("/completion", &endless(true)).await;
    stream.read_exact(&mut [0; 16]).await.unwrap();
    server.until(RUNNING, "1").await;
    server.shutdown.shutdown();
    server.done.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_is_closed_after_the_last_answer() {
    let server = start(|_| ()).await;
    let mut client = server.connect().await;
    let body =
        json!({ "prompt": "Once upon", "n_predict": 64, "ignore_eos": true, "stream": true });
    let body = body.to_string();
    let head = format!(
        "POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).await.unwrap();
    client.read_exact(&mut [0; 16]).await.unwrap();
    server.shutdown.shutdown();
    let rest = read(&mut client).await;
    assert!(
        rest.contains("\"stop_type\":\"limit\"") && rest.ends_with("0\r\n\r\n"),
        "{rest}"
    );
    server.done.await.unwrap().unwrap();
}
