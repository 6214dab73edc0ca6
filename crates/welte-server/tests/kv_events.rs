//! The events of a real server, as a router that listens gets them.

mod common;

use common::live::{read, start_with};
use common::model;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use welte_server::KvEvents;

/// Greets as a subscriber of everything.
async fn subscribe(server: &mut TcpStream) {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    server.write_all(&greeting).await.unwrap();
    server.read_exact(&mut [0; 64]).await.unwrap();
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    server.write_all(ready).await.unwrap();
    let mut theirs = [0; 27];
    server.read_exact(&mut theirs).await.unwrap();
    assert!(theirs.ends_with(b"PUB"), "{theirs:?}");
    server
        .write_all(b"\0\x01\x01\x04\x07\x04PING\0\0")
        .await
        .unwrap();
    // The subscription is known now.
    server.read_exact(&mut [0; 7]).await.unwrap();
}

/// The frames of the next message.
async fn message(from: &mut TcpStream) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let flags = from.read_u8().await.unwrap();
        let length = match flags & 2 {
            0 => u64::from(from.read_u8().await.unwrap()),
            _ => from.read_u64().await.unwrap(),
        };
        let mut body = vec![0; length as usize];
        from.read_exact(&mut body).await.unwrap();
        frames.push(body);
        if flags & 1 == 0 {
            return frames;
        }
    }
}

fn has(payload: &[u8], word: &[u8]) -> bool {
    payload.windows(word.len()).any(|part| part == word)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_is_told_what_is_cached() {
    let router = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", router.local_addr().unwrap());
    let events = KvEvents::new(&endpoint, None, "kv@here@{model}", "0").unwrap();
    let server = start_with(model(), |options| {
        options.kv_events = Some(events);
        options.metrics = true;
    })
    .await;
    let (mut told, _) = router.accept().await.unwrap();
    subscribe(&mut told).await;
    // Every token of this prompt is the same number of one byte.
    let prompt = vec![77; 200];
    let body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0 });
    let answer = read(&mut server.send("/v1/completions", &body).await).await;
    assert!(answer.contains("200 OK"), "{answer}");
    let metrics = server.get("/metrics").await;
    let info = metrics
        .lines()
        .find(|line| line.starts_with("vllm:cache_config_info{"));
    let size = info.unwrap().split("block_size=\"").nth(1).unwrap();
    let size: usize = size.split('"').next().unwrap().parse().unwrap();
    let frames = message(&mut told).await;
    assert_eq!(frames[0], b"kv@here@demo");
    assert_eq!(frames[1], 0u64.to_be_bytes());
    assert!(has(&frames[2], b"BlockStored") && has(&frames[2], &vec![77; size]));
    server.shutdown.shutdown();
    server.done.await.unwrap().unwrap();
    loop {
        let frames = message(&mut told).await;
        if has(&frames[2], b"AllBlocksCleared") {
            break;
        }
    }
}
