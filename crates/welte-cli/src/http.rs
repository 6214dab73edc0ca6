//! Requests to a running server.

use crate::address::{AddressArgs, authority};
use anyhow::{Context, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long the server may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take to go on, once it streams.
const LONG_PATIENCE: Duration = Duration::from_secs(600);
/// The longest answer.
const LONGEST: u64 = 16 << 20;

/// A text of the server without characters that control a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A text of the server that may have several lines, without other control characters.
pub(crate) fn printable_lines(text: &str) -> String {
    let shown = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().filter(shown).collect()
}

/// The server's answer is an error.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Whether the error is what a server answers.
pub(crate) fn is_refused(error: &anyhow::Error) -> bool {
    error.is::<Refused>()
}

/// No server answers at an address.
#[derive(Debug)]
struct Absent(String);

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: no server answers; start one with `welte serve`, or name it with --host and --port",
            self.0
        )
    }
}

/// Whether the error is that no server answers.
pub(crate) fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Absent>().is_some()
}

/// Connects, and sends a request. Returns the connection and the name of the place.
fn send(
    server: &AddressArgs,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<(TcpStream, String)> {
    let (host, port) = server.place()?;
    let place = authority(&host, port);
    let none = || Absent(place.clone());
    let addresses = (host.as_str(), port).to_socket_addrs();
    let stream = addresses
        .with_context(none)?
        .find_map(|address| TcpStream::connect_timeout(&address, PATIENCE).ok());
    let mut stream = stream.with_context(none)?;
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
    let sent = stream.write_all(format!("{head}\r\n{body}").as_bytes());
    sent.with_context(|| format!("{place}: the server does not answer"))?;
    Ok((stream, place))
}

/// Sends a request whose answer is a stream of events, and calls `each` for every one as it comes.
pub(crate) fn stream(
    server: &AddressArgs,
    path: &str,
    body: &Value,
    each: &mut dyn FnMut(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (stream, place) = send(server, "POST", path, Some(body))?;
    stream.set_read_timeout(Some(LONG_PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    // The lines of the head are short.
    while !head.ends_with("\r\n\r\n") && head.len() < 1 << 16 {
        if reader.by_ref().take(1 << 16).read_line(&mut head)? == 0 {
            break;
        }
    }
    if !head.starts_with("HTTP/1.1 200") || !head.to_ascii_lowercase().contains("chunked") {
        let mut answer = head.into_bytes();
        reader.take(LONGEST).read_to_end(&mut answer)?;
        return whole(&answer, &place).map(|_| ());
    }
    let mut events = BufReader::new(Chunked::new(reader));
    let mut line = String::new();
    while events.by_ref().take(LONGEST).read_line(&mut line)? > 0 {
        match line.trim_end().strip_prefix("data: ") {
            None => {}
            Some("[DONE]") => break,
            Some(data) => {
                let event: Value = serde_json::from_str(data)
                    .with_context(|| format!("{place}: an event is not JSON"))?;
                if let Some(message) = event.pointer("/error/message").and_then(Value::as_str) {
                    bail!("{place}: {}", printable(message));
                }
                each(&event)?;
            }
        }
        line.clear();
    }
    Ok(())
}

/// The content of chunks, as they come.
struct Chunked<R> {
    inner: R,
    /// Bytes of the chunk at hand.
    left: usize,
    over: bool,
}

impl<R: BufRead> Chunked<R> {
    fn new(inner: R) -> Chunked<R> {
        Chunked {
            inner,
            left: 0,
            over: false,
        }
    }

    fn begin(&mut self) -> std::io::Result<()> {
        let mut line = String::new();
        self.inner.by_ref().take(1024).read_line(&mut line)?;
        if line == "\r\n" {
            // The end of the chunk before.
            line.clear();
            self.inner.by_ref().take(1024).read_line(&mut line)?;
        }
        let size = line.split(';').next().unwrap_or_default().trim();
        let wrong = |_| std::io::Error::other("a chunk without its size");
        self.left = usize::from_str_radix(size, 16).map_err(wrong)?;
        self.over = self.left == 0;
        Ok(())
    }
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && !self.over {
            self.begin()?;
        }
        if self.over || to.is_empty() {
            return Ok(0);
        }
        let most = to.len().min(self.left);
        let count = self.inner.read(&mut to[..most])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

/// Sends a request, and reads the JSON of its answer.
pub(crate) fn ask(
    server: &AddressArgs,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let (stream, place) = send(server, method, path, body)?;
    let mut answer = Vec::new();
    let read = stream.take(LONGEST).read_to_end(&mut answer);
    read.with_context(|| format!("{place}: the server does not answer"))?;
    whole(&answer, &place)
}

/// The JSON of a whole answer.
fn whole(answer: &[u8], place: &str) -> anyhow::Result<Value> {
    let (status, body) =
        read(answer).with_context(|| format!("{place}: this is not an HTTP server"))?;
    // The last line, if there are several.
    let line = body.lines().rfind(|line| !line.trim().is_empty());
    let value: Value = serde_json::from_str(line.unwrap_or("null")).unwrap_or(Value::Null);
    if status != 200 {
        let message = ["/error/message", "/error"];
        let message = message.iter().find_map(|at| value.pointer(at)?.as_str());
        let message = printable(message.unwrap_or("the server refuses"));
        return Err(Refused(format!("{place}: {message}")).into());
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
    let body = if chunked {
        chunks(body)?
    } else {
        body.to_vec()
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
    fn chunks_are_read_as_they_come() {
        let text = b"3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\n\r\n";
        let mut all = String::new();
        let read = Chunked::new(&text[..]).read_to_string(&mut all);
        assert_eq!((read.unwrap(), all.as_str()), (8, "abcdefgh"));
        for broken in [&b"3\r\nab"[..], b"x\r\n", b""] {
            let read = Chunked::new(broken).read_to_string(&mut all);
            assert!(read.is_err());
        }
    }

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
