//! Clients over real connections: they leave, they queue, they are slow.

mod common;

use common::live::{RUNNING, endless, read, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ABORTED: &str = "vllm:request_success_total{model_name=\"demo\",finished_reason=\"abort\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_slot() {
    let server = start(|options| options.engine.queue = 8).await;
    for (round, stream) in [(1, true), (2, false)] {
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(server.send("/completion", &endless(stream)).await);
        }
        server.until(RUNNING, "2").await;
        // A request whose client leaves before it is read is none.
        let all = (6 * round).to_string();
        server.until("welte_requests_total", &all).await;
        drop(clients);
        server.until(ABORTED, &(6 * round).to_string()).await;
        server.until(RUNNING, "0").await;
    }
    assert!(server.get("/health").await.contains("200 OK"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_requests() {
    let server = start(|options| options.engine.queue = 1).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(server.send("/completion", &endless(true)).await);
        server
            .until("welte_requests_total", &clients.len().to_string())
            .await;
    }
    let mut refused = server.send("/completion", &endless(true)).await;
    let text = read(&mut refused).await;
    assert!(text.starts_with("HTTP/1.1 429"), "{text}");
    assert!(text.contains("retry-after: 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_heads_are_refused() {
    let server = start(|_| ()).await;
    for head in [
        format!(
            "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
            "a".repeat(200_000)
        ),
        format!(
            "GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n",
            "x: a\r\n".repeat(200)
        ),
    ] {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        // The server may close the connection before it has read everything.
        let _ = client.write_all(head.as_bytes()).await;
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text).await;
        let text = String::from_utf8_lossy(&text);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert!(server.get("/health").await.contains("200 OK"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_connection_counts_as_left() {
    let server = start(|_| ()).await;
    let mut client = server.send("/completion", &endless(false)).await;
    server.until(RUNNING, "1").await;
    client.shutdown().await.unwrap();
    server.until(RUNNING, "0").await;
    server.until(ABORTED, "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_heads_are_refused() {
    let server = start(|_| ()).await;
    for head in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}{}{}",
        b"POST /completion HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"GET http://example.org/ HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(head).await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text).await;
        let text = String::from_utf8_lossy(&text);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert!(server.get("/health").await.contains("200 OK"));
}
