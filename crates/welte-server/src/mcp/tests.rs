//! Servers that never answer or never end, and connections that many wait for.

use super::*;
use std::io::{Read, Write};

/// For servers that do not answer at all: any time is enough.
const SHORT: Duration = Duration::from_millis(20);

/// One of the programs below.
fn program(name: &str) -> Place {
    let test = format!("mcp::tests::{name}");
    let args = ["--exact", &test, "--ignored", "--nocapture"];
    Place::Program {
        command: std::env::current_exe().unwrap().display().to_string(),
        args: args.map(String::from).into(),
        env: BTreeMap::new(),
        cwd: None,
        _kind: None,
    }
}

#[test]
#[ignore = "a server for the other tests"]
fn silent() {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

#[test]
#[ignore = "a server for the other tests"]
fn endless_line() {
    while std::io::stdout().write_all(&[b'x'; 4096]).is_ok() {}
}

#[test]
#[ignore = "a server for the other tests"]
fn endless_news() {
    let news = json!({ "jsonrpc": "2.0", "method": "notifications/message" });
    while writeln!(std::io::stdout(), "\n{news}").is_ok() {}
}

fn problem(place: Place, patience: Duration) -> String {
    Server::new(place, patience).tools().unwrap_err()
}

#[test]
fn programs_that_never_answer_are_given_up() {
    assert_eq!(problem(program("silent"), SHORT), "no answer in time");
    assert_eq!(problem(program("endless_news"), SHORT), "no answer in time");
    // A line has an end, or the program is no server.
    let endless = problem(program("endless_line"), PATIENCE);
    assert_eq!(endless, "the program has ended");
}

#[cfg(feature = "hub")]
#[test]
fn addresses_that_never_answer_are_given_up() {
    // `part` follows `head` for ever; without one nothing comes at all.
    let address = |kind: &'static str, part: Option<&'static [u8]>| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            match part {
                None => _ = client.read_to_end(&mut Vec::new()),
                Some(part) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n");
                    client.write_all(head.as_bytes()).unwrap();
                    while client.write_all(&part.repeat(512)).is_ok() {}
                }
            }
        });
        Place::Address {
            url,
            headers: BTreeMap::new(),
            _kind: None,
        }
    };
    let silent = problem(address("", None), SHORT);
    assert!(silent.contains("timeout"), "{silent}");
    let events = address("text/event-stream", Some(b"data: {}\n\n"));
    let events = problem(events, PATIENCE);
    assert_eq!(events, "the stream ends without an answer");
    let json = problem(address("application/json", Some(b"        ")), PATIENCE);
    assert!(json.contains("EOF"), "{json}");
}

/// A server that is connected already.
struct Fake(Value);

impl Link for Fake {
    fn call(&self, _: &Value) -> Result<Value, Problem> {
        Ok(self.0.clone())
    }

    fn tell(&self, _: &Value) -> Result<(), Problem> {
        Ok(())
    }
}

#[test]
fn a_list_of_tools_has_an_end() {
    let tools = |page: Value| {
        let server = Server::new(program("silent"), PATIENCE);
        let made = server.connection.get(0, || Ok(Arc::new(Fake(page))));
        assert!(made.is_ok_and(|(_, new)| new));
        server.tools().unwrap_err()
    };
    let pages = tools(json!({ "tools": [], "nextCursor": "more" }));
    assert_eq!(pages, "lists its tools on more than 64 pages");
    let tool = json!({ "name": "den" });
    let many = tools(json!({ "tools": vec![tool; MOST_TOOLS + 1] }));
    assert_eq!(many, "has more than 512 tools");
}

#[test]
fn those_who_wait_for_a_connection_share_its_failure() {
    let connection = Connection::default();
    // Three begin while there is no connection. One of them tries.
    let seen = connection.attempts();
    let mut said = vec![connection.get(seen, || Err(Problem::Broken("dead".into())))];
    for _ in 0..2 {
        said.push(connection.get(seen, || unreachable!("it is not tried again")));
    }
    for said in said {
        assert_eq!(said.err().unwrap(), "dead");
    }
    // Those who come later try anew, and what they learn replaces the failure.
    let later = connection.attempts();
    let made = connection.get(later, || Ok(Arc::new(Fake(Value::Null))));
    let (link, new) = made.ok().unwrap();
    assert!(new);
    let again = connection.get(later, || unreachable!("there is one"));
    assert!(again.is_ok_and(|(_, new)| !new));
    connection.forget(&link);
    let made = connection.get(later, || Ok(Arc::new(Fake(Value::Null))));
    assert!(made.is_ok_and(|(_, new)| new));
}

#[tokio::test]
async fn calls_wait_for_a_place_and_not_for_ever() {
    let server = Arc::new(Server::new(program("silent"), SHORT));
    let places = server.places.clone();
    let servers = McpServers(Arc::new(BTreeMap::from([("full".to_string(), server)])));
    let held = places.acquire_many_owned(PLACES as u32).await.unwrap();
    let said = servers.call("full", "den".into(), "{}".into()).await;
    assert_eq!(said.unwrap_err(), "too many calls wait for it");
    drop(held);
    // With a place the call reaches the server.
    let said = servers.call("full", "den".into(), "{}".into()).await;
    assert_eq!(said.unwrap_err(), "no answer in time");
}
