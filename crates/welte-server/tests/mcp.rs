//! Tools of MCP servers in `/v1/responses` and for the chat page: a program and an address, calls, questions to the user, and servers that fail.

mod common;

use axum::Router;
use common::scripted::scripted;
use common::{get, post, server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Mutex, mpsc};
use std::time::Duration;
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
            if std::env::var("TALKS").is_ok() {
                let text = "cubs ".repeat(4000);
                let result = json!({ "content": [{ "type": "text", "text": text }] });
                let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                writeln!(out, "\n{answer}").unwrap();
                continue;
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

/// The revision of the protocol that addresses choose: not the one that is offered.
const OLDER: &str = "2025-03-26";

/// A server at an address, which answers by turns in JSON and in a stream of events.
fn address(answer: impl Fn(&Value) -> Option<Value> + Send + 'static) -> String {
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
            // The session, the revision and the operator's header come back with every later message.
            let version = format!("mcp-protocol-version: {OLDER}\r\n");
            let knows = match begun {
                true => !head.contains("mcp-protocol-version"),
                false => head.contains("mcp-session-id: cubs") && head.contains(&version),
            };
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
        "talking": program(json!({ "TALKS": "1" })),
        "absent": { "command": "/nowhere/program" },
        "web": { "type": "http", "url": address(|request| of_version(request, OLDER)), "headers": { "x-key": "secret" } },
        "strange": { "url": address(|request| of_version(request, "1999-12-31")), "headers": { "x-key": "secret" } },
    } });
    served(model, servers)
}

/// [`answer`] in another revision of the protocol.
fn of_version(request: &Value, version: &str) -> Option<Value> {
    let mut answer = answer(request)?;
    if request["method"] == "initialize" {
        answer["result"]["protocolVersion"] = version.into();
    }
    Some(answer)
}

fn served(model: welte::Model, servers: Value) -> Router {
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
async fn the_page_lists_tools_and_calls_them() {
    const TOOLS: &str = "/welte/tools";
    let server = with_servers(scripted(ANSWER));
    let labels = get(&server, TOOLS).await.json();
    let known = ["absent", "dying", "strange", "talking", "web", "woods"];
    assert_eq!(labels, json!({ "servers": known }));
    let listed = get(&server, &format!("{TOOLS}/woods")).await.json();
    assert_eq!(listed["tools"][0]["name"], "den", "{listed}");
    assert_eq!(listed["tools"][0]["parameters"]["type"], "object");
    assert_eq!(get(&server, &format!("{TOOLS}/absent")).await.status, 502);
    assert_eq!(get(&server, &format!("{TOOLS}/else")).await.status, 404);

    let call = |label: &str, arguments: &str| json!({ "server": label, "name": "den", "arguments": arguments });
    for (arguments, said) in [
        (
            "{\"of\": \"fox\"}",
            json!({ "output": "Three cubs\nand a vixen." }),
        ),
        ("{\"of\": \"owl\"}", json!({ "error": "Nobody." })),
    ] {
        let answer = post(&server, TOOLS, call("woods", arguments)).await.json();
        assert_eq!(answer, said);
    }
    let broken = post(&server, TOOLS, call("woods", "{")).await.json();
    assert!(broken["error"].as_str().unwrap().starts_with("arguments: "));
    assert_eq!(post(&server, TOOLS, call("else", "{}")).await.status, 404);
    assert_eq!(
        post(&server, TOOLS, json!({ "server": "woods" }))
            .await
            .status,
        400
    );

    // Off unless the operator has named servers.
    let off = router(scripted(ANSWER), ServerOptions::default()).unwrap();
    assert_eq!(get(&off, TOOLS).await.json(), json!({ "servers": [] }));
    assert_eq!(post(&off, TOOLS, call("woods", "{}")).await.status, 404);
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
    // Without room for an answer the call is made, and the response ends.
    let mut short = reply(true);
    short["max_output_tokens"] = 0.into();
    let short = post(&server, PATH, short).await.json();
    assert_eq!(short["output"][0]["status"], "completed", "{short}");
    assert_eq!(short["status"], "incomplete", "{short}");
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
    let strange = post(&server, PATH, ask("strange", "never")).await;
    assert!(
        strange.status == 502 && strange.text.contains("1999-12-31"),
        "{}",
        strange.text
    );
    for (field, value, word) in [
        (
            "server_label",
            json!("elsewhere"),
            "none of the servers of --mcp-config: absent, dying, strange, talking, web, woods",
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
        ("require_approval", json!({}), "always or never"),
        (
            "require_approval",
            json!({ "often": { "tool_names": [] } }),
            "require_approval",
        ),
        (
            "require_approval",
            json!({ "never": { "tool_names": ["den"], "read_only": true } }),
            "nothing else",
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

#[tokio::test(flavor = "multi_thread")]
async fn lists_say_which_calls_need_the_user() {
    let server = with_servers(scripted(ANSWER));
    let list = |name: &str| json!({ "tool_names": [name] });
    for (approval, made) in [
        (json!({ "never": list("den") }), true),
        (json!({ "never": list("burrow") }), false),
        (json!({ "always": list("burrow") }), true),
        (json!({ "always": list("den"), "never": null }), false),
        (
            json!({ "always": list("burrow"), "never": list("den") }),
            true,
        ),
        (
            json!({ "always": list("den"), "never": list("burrow") }),
            false,
        ),
        // Neither says anything about it, or both do.
        (
            json!({ "always": list("burrow"), "never": list("burrow") }),
            false,
        ),
        (
            json!({ "always": list("den"), "never": list("den") }),
            false,
        ),
    ] {
        let mut asked = ask("woods", "never");
        asked["tools"][0]["require_approval"] = approval.clone();
        let response = post(&server, PATH, asked).await.json();
        let kind = if made {
            "mcp_call"
        } else {
            "mcp_approval_request"
        };
        assert_eq!(kinds(&response)[2], kind, "{approval}");
    }
}

/// The result is longer than the context, so that the model cannot go on.
#[tokio::test(flavor = "multi_thread")]
async fn results_are_kept_when_the_model_cannot_go_on() {
    let server = with_servers(scripted(ANSWER));
    let check = |response: &Value| {
        assert_eq!(response["status"], "failed", "{response}");
        let message = response["error"]["message"].as_str().unwrap();
        assert!(message.contains("2048"), "{message}");
        assert_eq!(kinds(response), ["mcp_list_tools", "message", "mcp_call"]);
        let call = &response["output"][2];
        let output = call["output"].as_str().unwrap();
        assert!(call["status"] == "completed" && output.starts_with("cubs cubs"));
        // What the first answer has used.
        assert!(response["usage"]["output_tokens"].as_u64().unwrap() > 0);
    };
    let whole = post(&server, PATH, ask("talking", "never")).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let whole = whole.json();
    check(&whole);
    check(
        &get(
            &server,
            &format!("{PATH}/{}", whole["id"].as_str().unwrap()),
        )
        .await
        .json(),
    );

    let mut asked = ask("talking", "never");
    asked["stream"] = true.into();
    let events = post(&server, PATH, asked).await.events();
    let [.., called, done, failed] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(called["type"], "response.mcp_call.completed");
    assert_eq!(done["type"], "response.output_item.done");
    assert_eq!(failed["type"], "response.failed");
    check(&failed["response"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_cancelled_response_have_failed() {
    let (arrived, arrivals) = mpsc::channel();
    let (gate, opened) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let url = address(move |request| {
        if request["method"] == "tools/call" {
            arrived.send(()).unwrap();
            // The gate opens by being dropped.
            let _ = opened.lock().unwrap().recv();
        }
        of_version(request, OLDER)
    });
    let servers =
        json!({ "mcpServers": { "slow": { "url": url, "headers": { "x-key": "secret" } } } });
    let server = served(scripted(ANSWER), servers);
    let mut asked = ask("slow", "never");
    asked["background"] = true.into();
    let begun = post(&server, PATH, asked).await.json();
    // Long, and only so that a call that never comes is a failure.
    let arrival = || arrivals.recv_timeout(Duration::from_secs(60)).unwrap();
    tokio::task::block_in_place(arrival);
    let place = format!("{PATH}/{}", begun["id"].as_str().unwrap());
    let reply = post(&server, &format!("{place}/cancel"), json!({})).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let ended = loop {
        let response = get(&server, &place).await.json();
        if response["status"] != "in_progress" {
            break response;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ended["status"], "cancelled");
    let call = &ended["output"][2];
    assert_eq!(
        (&call["type"], &call["status"]),
        (&json!("mcp_call"), &json!("failed"))
    );
    let error = call["error"].as_str().unwrap();
    assert!(error.contains("before the result"), "{error}");
    drop(gate);
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
