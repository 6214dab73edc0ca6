//! `welte serve` as a process: signals, and what is said when memory is short.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");

struct Server {
    process: Child,
    address: String,
    /// What it logs once it listens.
    later: Mutex<Receiver<String>>,
}

/// Starts a server from a shell, after `first`.
fn start(first: &str) -> Server {
    let welte = env!("CARGO_BIN_EXE_welte");
    let line = format!(
        "{first} exec {welte} serve -m {DEMO} --port 0 --device cpu -t 2 -c 2048 --drain 600 -v"
    );
    let process = Command::new("sh")
        .args(["-c", &line])
        .stderr(Stdio::piped())
        .spawn();
    let mut process = process.unwrap();
    let mut said = BufReader::new(process.stderr.take().unwrap()).lines();
    let address = said.find_map(|line| Some(line.ok()?.split_once("http://")?.1.to_string()));
    // What follows is read in any case, so that the server can write it.
    let (sender, later) = mpsc::channel();
    std::thread::spawn(move || {
        said.map_while(Result::ok)
            .for_each(|line| drop(sender.send(line)))
    });
    Server {
        process,
        address: address.expect("it listens"),
        later: Mutex::new(later),
    }
}

impl Server {
    fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status();
        assert!(sent.unwrap().success());
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> TcpStream {
        self.try_to_ask(method, path, body).unwrap()
    }

    /// Fails if the server does not read the whole body.
    fn try_to_ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<TcpStream> {
        let mut client = TcpStream::connect(&self.address)?;
        let length = body.len();
        write!(
            client,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        Ok(client)
    }

    fn is_healthy(&self) -> bool {
        let mut text = String::new();
        let read = self.ask("GET", "/health", "").read_to_string(&mut text);
        read.is_ok() && text.starts_with("HTTP/1.1 200")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether this test itself was started with SIGHUP ignored, which its servers inherit.
fn hang_ups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
}

#[test]
fn the_log_says_why_a_request_was_refused() {
    let server = start("");
    let body = r#"{"prompt":"Once upon a secret","temperature":-3}"#;
    let mut text = String::new();
    let mut client = server.ask("POST", "/completion", body);
    client.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 400"), "{text}");
    let line = server
        .later
        .lock()
        .unwrap()
        .iter()
        .find(|line| line.contains("/completion"));
    let line = line.expect("a line of the log");
    assert!(
        line.contains("400") && line.contains("temperature"),
        "{line}"
    );
    assert!(!line.contains("secret"), "{line}");
}

#[test]
fn signals_let_answers_finish() {
    for signals in [&["TERM"][..], &["HUP"], &["HUP", "HUP", "HUP"], &["INT"]] {
        if signals.contains(&"HUP") && hang_ups_are_ignored() {
            continue;
        }
        let mut server = start("");
        let body = r#"{"prompt":"Once upon","n_predict":1000,"ignore_eos":true,"stream":true}"#;
        let mut stream = server.ask("POST", "/completion", body);
        stream.read_exact(&mut [0; 16]).unwrap();
        for signal in signals {
            server.signal(signal);
        }
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(
            rest.contains("\"stop_type\":\"limit\""),
            "{signals:?}: {rest}"
        );
        let status = server.process.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signals:?}");
    }
}

/// What the events of a stream have under `/choices/0`.
fn choices(stream: TcpStream) -> impl Iterator<Item = serde_json::Value> {
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let event = |line: String| serde_json::from_str(line.strip_prefix("data: ")?).ok();
    let choice = |mut event: serde_json::Value| event["choices"][0].take();
    lines.filter_map(event).map(choice)
}

fn text_of(choices: &[serde_json::Value]) -> String {
    choices.iter().filter_map(|c| c["text"].as_str()).collect()
}

#[test]
fn another_server_continues_for_one_that_was_killed() {
    let body = serde_json::json!({
        "prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": true, "temperature": 1.2, "seed": 7,
        "repeat_penalty": 1.1, "stream": true, "return_token_ids": true,
    });
    let path = "/v1/completions";
    let (first, second) = (start(""), start(""));
    let ask = |server: &Server, body: &serde_json::Value| {
        choices(server.ask("POST", path, &body.to_string()))
    };
    let whole: Vec<_> = ask(&first, &body).collect();
    assert_eq!(whole.last().unwrap()["finish_reason"], "length");
    let mut stream = ask(&first, &body);
    let begun: Vec<_> = stream.by_ref().take(100).collect();
    first.signal("KILL");
    drop(stream);
    let tokens = begun.iter().filter_map(|c| c["token_ids"].as_array());
    let tokens: Vec<_> = tokens.flatten().collect();
    assert!((50..1000).contains(&tokens.len()), "{}", tokens.len());
    let mut again = body.clone();
    again["answered_tokens"] = serde_json::json!(tokens);
    let rest: Vec<_> = ask(&second, &again).collect();
    assert_eq!(text_of(&begun) + &text_of(&rest), text_of(&whole));
    assert_eq!(rest.last().unwrap()["finish_reason"], "length");
}

#[test]
fn a_server_under_nohup_outlives_its_terminal() {
    let mut server = start("trap '' HUP;");
    server.signal("HUP");
    assert!(server.is_healthy());
    server.signal("TERM");
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}

/// Whatever the limit of the address space: there is an answer, or the need is said.
#[test]
fn no_run_is_aborted_for_lack_of_memory() {
    let welte = env!("CARGO_BIN_EXE_welte");
    let (mut answered, mut refused) = (0, 0);
    for kilobytes in (80_000..=480_000).step_by(40_000) {
        let line = format!(
            "ulimit -v {kilobytes}; exec {welte} run Hello -m {DEMO} -n 2 --device cpu -t 2 < /dev/null"
        );
        let done = Command::new("sh").args(["-c", &line]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        match done.status.code() {
            Some(0) => answered += 1,
            Some(1) if said.contains("needs") && said.contains("available") => refused += 1,
            code => panic!("{kilobytes} kB: {code:?}: {said}"),
        }
    }
    assert!(answered > 0 && refused > 0, "{answered} and {refused}");
}

#[test]
fn a_server_with_little_memory_answers_whatever_comes() {
    let server = start("ulimit -v 600000;");
    let text = "fox ".repeat(900_000);
    let bodies = [
        ("/tokenize", format!("{{\"content\":\"{text}\"}}")),
        ("/completion", format!("{{\"prompt\":\"{text}\"}}")),
        (
            "/detokenize",
            format!("{{\"tokens\":[1{}]}}", ",1".repeat(900_000)),
        ),
        (
            "/completion",
            r#"{"prompt":"A","n_predict":4,"json_schema":{"type":"object"}}"#.to_owned(),
        ),
    ];
    std::thread::scope(|scope| {
        for (path, body) in bodies.iter().cycle().take(32) {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..2 {
                    let client = server.try_to_ask("POST", path, body);
                    let _ = client.map(|mut client| client.read_to_string(&mut String::new()));
                }
            });
        }
    });
    assert!(server.is_healthy());
}

#[test]
fn too_little_memory_is_said_with_what_to_do() {
    let welte = env!("CARGO_BIN_EXE_welte");
    // Kilobytes of address space: enough for the program, too few for these weights.
    let line = format!(
        "ulimit -v 1500000; exec {welte} serve -m synthetic:qwen3-4b:bf16 --port 0 --device cpu -t 2"
    );
    let done = Command::new("sh").args(["-c", &line]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("needs")
            && said.contains("GiB available")
            && said.contains("smaller quantisation"),
        "{said}"
    );
}
