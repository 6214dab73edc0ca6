//! Subscribers that speak the protocol, over real connections.

use super::*;
use tokio::io::AsyncReadExt;

/// The two ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    (client, listener.accept().await.unwrap().0)
}

fn events() -> KvEvents {
    KvEvents::new("tcp://127.0.0.1:1", None, "kv@here@{model}", "0").unwrap()
}

/// The three frames of a message.
async fn read(from: &mut TcpStream) -> [Vec<u8>; 3] {
    let mut frames = Vec::new();
    loop {
        // Payloads may be longer than what peers may send.
        let flags = from.read_u8().await.unwrap();
        let length = match flags & 2 {
            0 => u64::from(from.read_u8().await.unwrap()),
            _ => from.read_u64().await.unwrap(),
        };
        let mut body = vec![0; length as usize];
        from.read_exact(&mut body).await.unwrap();
        frames.push(body);
        if flags & 1 == 0 {
            return frames.try_into().unwrap();
        }
    }
}

/// A subscriber of a topic, once that is known.
async fn subscriber(events: &KvEvents, topic: &[u8]) -> TcpStream {
    let (mut client, served) = pair().await;
    tokio::spawn(events.0.clone().publish(served));
    zmtp::greet(&mut client, "SUB", &["PUB"]).await.unwrap();
    let mut out = Vec::new();
    zmtp::add_frame(&mut out, &[&[1], topic].concat(), false);
    // The answer comes after the subscription was taken.
    out.extend(b"\x04\x07\x04PING\0\0");
    client.write_all(&out).await.unwrap();
    let pong = zmtp::read_frame(&mut client).await.unwrap();
    assert!(pong.is_command && pong.body == b"\x04PONG");
    client
}

fn page(node: u32) -> PrefixChange {
    PrefixChange::Stored {
        node,
        parent: None,
        tokens: vec![node; 4],
    }
}

fn contains(payload: &[u8], word: &str) -> bool {
    payload
        .windows(word.len())
        .any(|part| part == word.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_get_the_events_of_their_topic() {
    let events = events();
    let mut one = subscriber(&events, b"kv@here@a").await;
    let mut all = subscriber(&events, b"").await;
    let (a, b) = (events.watch("a", 4).unwrap(), events.watch("b", 4).unwrap());
    let mut numbers = Vec::new();
    for (model, to) in [("b", &b), ("a", &a)] {
        to.send(page(9)).unwrap();
        let [topic, number, payload] = read(&mut all).await;
        assert_eq!(topic, format!("kv@here@{model}").as_bytes());
        assert!(contains(&payload, "BlockStored") && contains(&payload, "GPU"));
        numbers.push(u64::from_be_bytes(number.try_into().unwrap()));
    }
    assert_eq!(numbers, [0, 1]);
    let [topic, number, _] = read(&mut one).await;
    assert_eq!(
        (topic.as_slice(), number),
        (&b"kv@here@a"[..], 1u64.to_be_bytes().to_vec())
    );
    // An engine that ends leaves nothing behind.
    drop(a);
    let [_, _, payload] = read(&mut one).await;
    assert!(contains(&payload, "AllBlocksCleared"));
}

/// Somebody who was away asks for what was missed.
#[tokio::test(flavor = "multi_thread")]
async fn past_events_can_be_asked_for() {
    let events = events();
    let mut live = subscriber(&events, b"").await;
    let a = events.watch("a", 4).unwrap();
    let mut sent = Vec::new();
    for node in 0..5 {
        a.send(page(node)).unwrap();
        let [_, number, payload] = read(&mut live).await;
        sent.push((number, payload));
    }
    let (mut client, served) = pair().await;
    tokio::spawn(events.0.clone().replay(served));
    zmtp::greet(&mut client, "DEALER", &["ROUTER"])
        .await
        .unwrap();
    for first in [3u64, 0, 99] {
        let mut out = Vec::new();
        zmtp::add_frame(&mut out, b"", true);
        zmtp::add_frame(&mut out, &first.to_be_bytes(), false);
        client.write_all(&out).await.unwrap();
        let mut got = Vec::new();
        loop {
            let [empty, number, payload] = read(&mut client).await;
            assert!(empty.is_empty());
            if number == END {
                assert!(payload.is_empty());
                break;
            }
            got.push((number, payload));
        }
        assert_eq!(got, sent[sent.len().min(first as usize)..], "from {first}");
    }
}

/// Nobody waits for a subscriber that does not read, and one that has gone is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn subscribers_hold_nobody_up() {
    let events = events();
    let lags = subscriber(&events, b"").await;
    let mut batch = vec![];
    for n in 0..3 * MOST_WAITING as u32 {
        batch.push(blocks::Event::Removed(vec![u64::from(n); 1000]));
        events.0.send("kv@here@a", 4, &mut batch);
    }
    assert_eq!(events.0.state().next, 3 * MOST_WAITING as u64);
    assert!(events.0.state().bytes <= MOST_BYTES);
    drop(lags);
    while !events.0.state().subscribers.is_empty() {
        batch.push(blocks::Event::Cleared);
        events.0.send("kv@here@a", 4, &mut batch);
        tokio::task::yield_now().await;
    }
}

#[test]
fn endpoints() {
    assert_eq!(address("tcp://*:5557"), Ok(("0.0.0.0:5557".into(), true)));
    assert_eq!(
        address("tcp://indexer:5557"),
        Ok(("indexer:5557".into(), false))
    );
    for wrong in [
        "",
        "5557",
        "tcp://",
        "tcp://:5557",
        "tcp://*",
        "tcp://*:99999",
        "ipc:///tmp/kv",
    ] {
        assert!(
            address(wrong).unwrap_err().contains("tcp://*:5557"),
            "{wrong}"
        );
    }
}
