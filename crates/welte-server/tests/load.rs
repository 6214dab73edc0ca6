//! Many clients at once over real connections, a third of which leave in the middle of their answers: every text is that of
//! its lone run, and nothing is left behind.
//!
//! `WELTE_LOAD_SECONDS=600 WELTE_LOAD_CLIENTS=200` sets the load.

mod common;

use common::model;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use welte_server::{Server, ServerOptions};

/// Different requests.
const VARIANTS: usize = 48;

/// The body of a request: prompts share beginnings, and sizes differ.
fn body(variant: usize) -> Value {
    let shared = "The fox and the crow lived near the river. ".repeat(variant % 4);
    let prompt = format!("{shared}Once upon a time, number {variant}");
    let tokens = 1 + variant * 37 % 90;
    json!({
        "prompt": prompt, "n_predict": tokens, "ignore_eos": true, "temperature": 1.0, "seed": variant, "stream": true,
    })
}

/// What a client saw.
#[derive(Default)]
struct Seen {
    status: u16,
    text: String,
    /// The answer is complete.
    ended: bool,
    first: Option<Duration>,
    /// Times between pieces.
    between: Vec<Duration>,
}

/// Sends a request and reads the answer, or only `leave_after` pieces of it.
async fn ask(
    address: SocketAddr,
    body: &Value,
    leave_after: Option<usize>,
) -> std::io::Result<Seen> {
    let begun = Instant::now();
    let mut client = TcpStream::connect(address).await?;
    let body = body.to_string();
    let head = format!(
        "POST /completion HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).await?;
    let (mut seen, mut bytes) = (Seen::default(), Vec::new());
    let (mut at, mut pieces, mut last) = (0, 0, None);
    loop {
        let mut part = [0; 4096];
        let count = client.read(&mut part).await?;
        bytes.extend_from_slice(&part[..count]);
        while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&bytes[at..at + end]).into_owned();
            at += end + 1;
            if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
                seen.status = status[..3].parse().unwrap_or(0);
            }
            let Some(data) = line.strip_prefix("data: ") else {
                continue;
            };
            let event: Value = serde_json::from_str(data)?;
            assert!(event.get("error").is_none(), "{event}");
            let now = Instant::now();
            match last.replace(now) {
                None => seen.first = Some(now - begun),
                Some(last) => seen.between.push(now - last),
            }
            seen.text
                .push_str(event["content"].as_str().unwrap_or_default());
            seen.ended |= event["stop"] == true;
            pieces += 1;
            if leave_after == Some(pieces) {
                return Ok(seen);
            }
        }
        if count == 0 {
            return Ok(seen);
        }
    }
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    text
}

/// Open files of this process.
fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
}

#[derive(Default)]
struct Totals {
    whole: AtomicU64,
    left: AtomicU64,
    refused: AtomicU64,
}

fn percentile(times: &mut [Duration], part: f64) -> f64 {
    times.sort();
    let index = (times.len() as f64 * part) as usize;
    times
        .get(index.min(times.len().saturating_sub(1)))
        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_get_their_texts_and_leave_nothing_behind() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    let seconds = number("WELTE_LOAD_SECONDS").unwrap_or(4);
    let clients = number("WELTE_LOAD_CLIENTS").unwrap_or(60);
    let mut options = ServerOptions::default();
    // Fewer places than clients, so that some are refused.
    options.engine.queue = (clients as usize * 3 / 4).max(1);
    let server = Server::bind(model(), options, "127.0.0.1:0").await.unwrap();
    let (address, shutdown) = (server.address().unwrap(), server.shutdown_handle());
    let running = tokio::spawn(server.run());
    let mut alone = Vec::new();
    for variant in 0..VARIANTS {
        let seen = ask(address, &body(variant), None).await.unwrap();
        assert!(seen.ended && seen.status == 200, "{}", seen.text);
        alone.push(seen.text);
    }
    let (alone, totals) = (Arc::new(alone), Arc::new(Totals::default()));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = Vec::new();
    for client in 0..clients {
        let (alone, totals) = (alone.clone(), totals.clone());
        tasks.push(tokio::spawn(async move {
            let (mut firsts, mut betweens) = (Vec::new(), Vec::new());
            let mut turn = client as usize;
            while Instant::now() < end {
                turn = turn.wrapping_mul(29).wrapping_add(17 + client as usize);
                let variant = turn % VARIANTS;
                let leave = (turn / VARIANTS)
                    .is_multiple_of(3)
                    .then_some(1 + turn / 7 % 20);
                let seen = ask(address, &body(variant), leave).await.unwrap();
                if seen.status == 429 {
                    totals.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                assert_eq!(seen.status, 200);
                if seen.ended {
                    assert_eq!(seen.text, alone[variant], "request {variant}")
                } else {
                    assert!(
                        leave.is_some() && alone[variant].starts_with(&seen.text),
                        "request {variant}"
                    )
                }
                let counter = if seen.ended {
                    &totals.whole
                } else {
                    &totals.left
                };
                counter.fetch_add(1, Ordering::Relaxed);
                firsts.extend(seen.first);
                betweens.extend(seen.between);
            }
            (firsts, betweens)
        }));
    }
    // The first quarter warms up.
    tokio::time::sleep(Duration::from_secs(seconds) / 4).await;
    let warm = resident();
    let (mut firsts, mut betweens) = (Vec::new(), Vec::new());
    for task in tasks {
        let (first, between) = task.await.unwrap();
        firsts.extend(first);
        betweens.extend(between);
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let grown = resident().saturating_sub(warm) as f64 / f64::from(1 << 20);
    println!(
        "{clients} clients, {seconds} s: {} whole answers, {} left, {} refused; first piece p50 {:.1} ms, p99 {:.1}; \
         between pieces p50 {:.2} ms, p99 {:.2}; memory grew by {grown:.1} MiB after the first quarter",
        count(&totals.whole),
        count(&totals.left),
        count(&totals.refused),
        percentile(&mut firsts, 0.5),
        percentile(&mut firsts, 0.99),
        percentile(&mut betweens, 0.5),
        percentile(&mut betweens, 0.99),
    );
    assert!(count(&totals.whole) > 0 && count(&totals.left) > 0);
    assert!(grown < 64.0, "memory grew by {grown} MiB");
    // Everything is given back: slots, places, pages, connections.
    for round in 0.. {
        let text = get(address, "/welte/state").await;
        let json = &text[text.find("{").unwrap()..];
        let state: Value = serde_json::from_str(&json[..=json.rfind('}').unwrap()]).unwrap();
        let slots = state["slots"].as_array().unwrap();
        let pages = state["pools"][0]["pages"].as_str().unwrap();
        let idle = slots.iter().all(|slot| slot["state"] == "idle");
        // Two of this loop's own, and those that the test had before.
        let free = !pages.contains(['o', 's']) && state["queue"] == json!([]);
        if idle && free && files() < 40 {
            break;
        }
        assert!(round < 400, "{} open files, {state}", files());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    shutdown.shutdown();
    running.await.unwrap().unwrap();
}
