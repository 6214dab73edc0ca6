//! Tools of MCP servers in `/v1/responses`: a program and an address, calls, questions to the user, and servers that fail.

mod common;

use axum::Router;
use common::scripted::scripted;
use common::{post, server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use welte_server::{McpServers, ServerOptions, router};

const PATH: &str = "/v1/responses";
const ANSWER: &str =
    "I look.\n<tool_call>\n{\"name\": \"den\", \"arguments\": {\"of\": \"fox\"}}\n</tool_call>";

/// What the servers of these tests answer.
fn answer(request: &Value) -> Option<Value> {
    let id = request.get("id")?;
    let result = match request["method"].as_str()? {
        "initialize" => {
            json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": { "name": "den" } })
        }
        // The list has two pages.
        "tools/list" if request["params"]["cursor"] == "2" => {
            json!({ "tools": [{ "name": "burrow" }] })
        }
        "tools/list" => json!({ "nextCursor": "2", "tools": [{
            "name": "den", "description": "who lives there",
            "inputSchema": { "type": "object", "properties": { "of": { "type": "string" } } },
        }] }),
        "tools/call" if request["params"]["arguments"]["of"] == "fox" => {
            json!({ "content": [{ "type": "text", "text": "Three cubs" }, { "type": "text", "text": "and a vixen." }] })
        }
        "tools/call" => {
            json!({ "isError": true, "content": [{ "type": "text", "text": "Nobody." }] })
        }
        _ => {
            return Some(
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "unknown" } }),
            );
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// A server on its standard streams: this test is started as a program by the others.
#[test]
#[ignore = "a server for the other tests"]
fn program() {
    let mut out = std::io::stdout();
    let mut lines = std::io::stdin().lines();
    while let Some(line) = lines.next() {
        let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if request["method"] == "tools/call" {
            if std::env::var("DIES").is_ok() {
                std::process::exit(3);
            }
            // Clients must answer pings at any time, and not take them for answers.
            let ping = json!({ "jsonrpc": "2.0", "id": "alive?", "method": "ping" });
            writeln!(out, "\n{ping}").unwrap();
            out.flush().unwrap();
            let pong: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(
                (&pong["id"], &pong["result"]),
                (&json!("alive?"), &json!({}))
            );
        }
        if let Some(answer) = answer(&request) {
            writeln!(out, "\n{answer}").unwrap();
            out.flush().unwrap();
        }
    }
}

/// A server at an address, which answers by turns in JSON and in a stream of events.
fn address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/mcp", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (turn, client) in listener.incoming().enumerate() {
            let mut client = BufReader::new(client.unwrap());
            let (mut length, mut head) = (0, String::new());
            loop {
                let mut line = String::new();
                client.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                let line = line.to_ascii_lowercase();
                if let Some(count) = line.strip_prefix("content-length:") {
                    length = count.trim().parse().unwrap();
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            client.read_exact(&mut body).unwrap();
            let request: Value = serde_json::from_slice(&body).unwrap();
            let begun = request["method"] == "initialize";
            // The session and the operator's header come back with every later message.
            let knows = head.contains("mcp-session-id: cubs") || begun;
            let (status, kind, text) = match answer(&request) {
                _ if !knows || !head.contains("x-key: secret") => {
                    ("400 Bad Request", "text/plain", "no".into())
                }
                None => ("202 Accepted", "text/plain", String::new()),
                Some(answer) if turn % 2 == 0 => ("200 OK", "application/json", answer.to_string()),
                Some(answer) => {
                    let news = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": {} });
                    (
                        "200 OK",
                        "text/event-stream",
                        format!("event: message\ndata: {news}\n\ndata: {answer}\n\n"),
                    )
                }
            };
            let session = if begun {
                "mcp-session-id: cubs\r\n"
            } else {
                ""
            };
            let count = text.len();
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{session}content-length: {count}\r\nconnection: close\r\n\r\n"
            );
            client
                .get_mut()
                .write_all((head + &text).as_bytes())
                .unwrap();
        }
    });
    address
}

fn with_servers(model: welte::Model) -> Router {
    let program = |variables: Value| {
        json!({
            "command": std::env::current_exe().unwrap().to_str().unwrap(),
            "args": ["--exact", "program", "--ignored", "--nocapture"], "env": variables,
        })
    };
    let servers = json!({ "mcpServers": {
        "woods": program(json!({})), "dying": program(json!({ "DIES": "1" })),
        "absent": { "command": "/nowhere/program" },
        "web": { "type": "http", "url": address(), "headers": { "x-key": "secret" } },
    } });
    let mut options = ServerOptions::default();
    options.mcp = Some(McpServers::parse(&servers.to_string()).unwrap());
    router(model, options).unwrap()
}

fn ask(label: &str, approval: &str) -> Value {
    json!({
        "model": "scripted", "input": "Who lives there?", "temperature": 0, "max_tool_calls": 1,
        "tools": [{ "type": "mcp", "server_label": label, "require_approval": approval }],
    })
}

fn kinds(response: &Value) -> Vec<&str> {
    let output = response["output"]
        .as_array()
        .unwrap_or_else(|| panic!("{response}"));
    output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_made_and_the_model_goes_on() {
    let server = with_servers(scripted(ANSWER));
    for label in ["woods", "web"] {
        let whole = post(&server, PATH, ask(label, "never")).await.json();
        // Further calls are not made, so that the second one is text.
        assert_eq!(
            kinds(&whole),
            ["mcp_list_tools", "message", "mcp_call", "message"],
            "{whole}"
        );
        assert_eq!(whole["status"], "completed");
        let tools = whole["output"][0]["tools"].as_array().unwrap();
        assert_eq!((tools.len(), &tools[1]["name"]), (2, &json!("burrow")));
        let call = &whole["output"][2];
        assert_eq!(call["output"], "Three cubs\nand a vixen.");
        assert_eq!(
            (&call["status"], &call["server_label"]),
            (&json!("completed"), &json!(label))
        );
        let again = post(&server, PATH, json!({
            "model": "scripted", "previous_response_id": whole["id"], "input": "And?", "temperature": 0,
        })).await.json();
        // What was used by both rounds, and the result is part of what follows.
        let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
        assert!(tokens(&again) > 100 && tokens(&whole) > 200, "{again}");

        let mut streamed = ask(label, "never");
        streamed["stream"] = true.into();
        let events = post(&server, PATH, streamed).await.events();
        let at = |kind: &str| {
            let found = events.iter().position(|event| event["type"] == kind);
            found.unwrap_or_else(|| panic!("{kind}: {events:?}"))
        };
        assert!(at("response.created") < at("response.mcp_list_tools.completed"));
        assert!(at("response.mcp_call.in_progress") < at("response.mcp_call.completed"));
        let last = &events[events.len() - 1];
        assert_eq!(last["type"], "response.completed");
        assert_eq!(kinds(&last["response"]), kinds(&whole));
        assert_eq!(
            last["response"]["usage"]["output_tokens"],
            whole["usage"]["output_tokens"]
        );
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_is_asked_unless_the_client_says_otherwise() {
    let server = with_servers(scripted(ANSWER));
    let mut first = ask("woods", "always");
    first["tools"][0]
        .as_object_mut()
        .unwrap()
        .remove("require_approval");
    let first = post(&server, PATH, first).await.json();
    assert_eq!(
        kinds(&first),
        ["mcp_list_tools", "message", "mcp_approval_request"],
        "{first}"
    );
    let request = &first["output"][2];
    assert_eq!(
        (&request["name"], &request["arguments"]),
        (&json!("den"), &json!("{\"of\": \"fox\"}"))
    );
    let reply = |approve: bool| {
        let mut reply = ask("woods", "always");
        reply["previous_response_id"] = first["id"].clone();
        reply["input"] = json!([{
            "type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve,
        }]);
        reply
    };
    let agreed = post(&server, PATH, reply(true)).await.json();
    // The tools are known from before.
    assert_eq!(kinds(&agreed)[..2], ["mcp_call", "message"], "{agreed}");
    assert_eq!(agreed["output"][0]["output"], "Three cubs\nand a vixen.");
    assert_eq!(agreed["output"][0]["approval_request_id"], request["id"]);
    let refused = post(&server, PATH, reply(false)).await.json();
    assert_eq!(
        kinds(&refused),
        ["message", "mcp_approval_request"],
        "{refused}"
    );
    // It was made once.
    let mut later = ask("woods", "always");
    (later["previous_response_id"], later["input"]) = (agreed["id"].clone(), "And?".into());
    let later = post(&server, PATH, later).await.json();
    assert!(!kinds(&later).contains(&"mcp_call"), "{later}");
    let mut without = reply(true);
    without["tools"] = json!([]);
    let without = post(&server, PATH, without).await;
    assert!(
        without.status == 400 && without.text.contains("woods"),
        "{}",
        without.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_told_to_the_model_or_the_client() {
    let server = with_servers(scripted(&ANSWER.replace("fox", "owl")));
    let owl = post(&server, PATH, ask("woods", "never")).await.json();
    assert_eq!(
        kinds(&owl),
        ["mcp_list_tools", "message", "mcp_call", "message"],
        "{owl}"
    );
    assert_eq!(
        (&owl["output"][2]["error"], &owl["output"][2]["status"]),
        (&json!("Nobody."), &json!("failed"))
    );
    // A program that ends is started anew, but the call is not made twice.
    for _ in 0..2 {
        let died = post(&server, PATH, ask("dying", "never")).await.json();
        let error = died["output"][2]["error"].as_str().unwrap();
        assert!(error.contains("has ended"), "{died}");
    }
    let absent = post(&server, PATH, ask("absent", "never")).await;
    assert!(
        absent.status == 502 && absent.text.contains("absent") && !absent.text.contains("/nowhere"),
        "{}",
        absent.text
    );
    for (field, value, word) in [
        (
            "server_label",
            json!("elsewhere"),
            "none of the servers of --mcp-config: absent, dying, web, woods",
        ),
        ("server_url", json!("http://127.0.0.1/"), "server_url"),
        ("require_approval", json!("sometimes"), "require_approval"),
        (
            "require_approval",
            json!({ "never": ["den"] }),
            "require_approval",
        ),
        (
            "require_approval",
            json!({ "never": "den" }),
            "require_approval",
        ),
        (
            "allowed_tools",
            json!({ "read_only": true }),
            "allowed_tools",
        ),
    ] {
        let mut wrong = ask("woods", "never");
        wrong["tools"][0][field] = value;
        let refused = post(&server, PATH, wrong).await;
        assert!(
            refused.status == 400 && refused.text.contains(word),
            "{field}: {}",
            refused.text
        );
    }
    // Tools that are not allowed are not there.
    let mut none = ask("woods", "never");
    none["tools"][0]["allowed_tools"] = json!(["burrow"]);
    let none = post(&server, PATH, none).await.json();
    assert!(!kinds(&none).contains(&"mcp_call"), "{none}");
}

#[tokio::test]
async fn without_a_file_there_are_no_servers() {
    let mut asked = ask("woods", "never");
    (asked["max_output_tokens"], asked["model"]) = (4.into(), "demo".into());
    let reply = post(&server(), PATH, asked).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert!(
        reply.headers["x-welte-ignored"]
            .to_str()
            .unwrap()
            .contains("tools[].type")
    );
    for (text, word) in [
        ("{}", "mcpServers"),
        (
            "{\"mcpServers\": {\"a\": {}}}",
            "mcpServers.a: must have command",
        ),
        (
            "{\"mcpServers\": {\"a\": {\"url\": \"ftp://x\"}}}",
            "mcpServers.a.url",
        ),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"argv\": []}}}",
            "mcpServers.a",
        ),
    ] {
        let error = McpServers::parse(text).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}
