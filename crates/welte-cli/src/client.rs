//! `welte ps` and `welte stop`: what a running server has loaded.

use crate::args::{AddressArgs, Plain, PsArgs, StopArgs};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;
use welte_report::human;

/// How long the server may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer.
const LONGEST: u64 = 16 << 20;

/// Lists the loaded models.
pub(crate) fn ps(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let answer = ask(&args.server, "GET", "/api/ps", None)?;
    let models = answer["models"].as_array();
    let models = models.context("the server's answer has no list of models")?;
    let mut out = std::io::stdout().lock();
    if args.output == Plain::Json {
        writeln!(out, "{:#}", answer["models"])?;
        return Ok(ExitCode::SUCCESS);
    }
    if models.is_empty() {
        eprintln!("no model is loaded");
    }
    for model in models {
        let bytes = model["size"].as_u64().unwrap_or(0);
        let name = model["name"].as_str().unwrap_or_default();
        writeln!(out, "{:>10}  {}", human(bytes), printable(name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Unloads a model once no request uses it.
pub(crate) fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    // A request for a model that is not loaded would load it.
    let loaded = ask(&args.server, "GET", "/api/ps", None)?;
    let named = |model: &Value| {
        model["name"]
            .as_str()
            .is_some_and(|name| is_called(name, &args.model))
    };
    let mut models = loaded["models"].as_array().into_iter().flatten();
    if !models.any(named) {
        bail!(
            "{}: not loaded; `welte ps` lists what is",
            printable(&args.model)
        );
    }
    let body = json!({ "model": args.model, "keep_alive": 0 });
    ask(&args.server, "POST", "/api/generate", Some(&body))?;
    eprintln!(
        "{}: unloaded as soon as no request uses it",
        printable(&args.model)
    );
    Ok(ExitCode::SUCCESS)
}

/// Whether these names are the same but for the tag.
fn is_called(name: &str, wanted: &str) -> bool {
    let plain = |name: &str| name.strip_suffix(":latest").unwrap_or(name).to_string();
    plain(name) == plain(wanted)
}

/// A text of the server without characters that control a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Sends a request, and reads the JSON of its answer.
fn ask(
    server: &AddressArgs,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let (host, port) = (server.host.trim_matches(['[', ']']), server.port);
    let place = format!("{host}:{port}");
    let none = || {
        format!(
            "{place}: no server answers; start one with `welte serve`, or name it with --host and --port"
        )
    };
    let address = (host, port).to_socket_addrs().with_context(none)?.next();
    let mut stream =
        TcpStream::connect_timeout(&address.with_context(none)?, PATIENCE).with_context(none)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    if let Some(key) = &server.api_key {
        anyhow::ensure!(!key.contains(['\r', '\n']), "--api-key: has a line break");
        head.push_str(&format!("Authorization: Bearer {key}\r\n"));
    }
    let mut answer = Vec::new();
    let sent = stream
        .write_all(format!("{head}\r\n{body}").as_bytes())
        .and_then(|()| stream.take(LONGEST).read_to_end(&mut answer));
    sent.with_context(|| format!("{place}: the server does not answer"))?;
    let (status, body) =
        read(&answer).with_context(|| format!("{place}: this is no HTTP server"))?;
    // The last line, if there are several.
    let line = body.lines().rfind(|line| !line.trim().is_empty());
    let value: Value = serde_json::from_str(line.unwrap_or("null")).unwrap_or(Value::Null);
    if status != 200 {
        let message = ["/error/message", "/error"];
        let message = message.iter().find_map(|at| value.pointer(at)?.as_str());
        bail!(
            "{place}: {}",
            printable(message.unwrap_or("the server refuses"))
        );
    }
    Ok(value)
}

/// The status and the body of an answer.
fn read(answer: &[u8]) -> Option<(u16, String)> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let (head, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?;
    let status = status.get(..3)?.parse().ok()?;
    let chunked = lines.any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("transfer-encoding:") && line.contains("chunked")
    });
    let body = match chunked {
        true => chunks(body)?,
        false => body.to_vec(),
    };
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

/// The content of chunks.
fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(all);
        }
        let from = end + 2;
        let to = from.checked_add(size)?;
        all.extend_from_slice(rest.get(from..to)?);
        rest = rest.get(to + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_with_a_length_or_in_chunks() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(read(plain), Some((200, "{}".to_string())));
        let chunked = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x=y\r\n\":1}\r\n0\r\n\r\n";
        assert_eq!(read(chunked), Some((404, "{\"a\":1}".to_string())));
        for broken in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
            b"",
        ] {
            assert_eq!(read(broken), None);
        }
    }
}
