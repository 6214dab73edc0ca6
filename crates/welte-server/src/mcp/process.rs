//! An MCP server that is a program: one JSON message a line, on its standard streams. Its standard error is our log.

use super::link::{LARGEST, Link, PATIENCE, Problem, result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// What programs get of our environment: no keys.
const VARIABLES: [&str; 12] = [
    "HOME",
    "LANG",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "USER",
    "APPDATA",
    "SYSTEMROOT",
    "TEMP",
    "USERPROFILE",
];

type Waiting = Arc<Mutex<HashMap<u64, Sender<Value>>>>;

/// A program at work. Dropping it ends the program.
pub(super) struct Process {
    child: Mutex<Child>,
    input: Arc<Mutex<ChildStdin>>,
    waiting: Waiting,
    command: String,
}

impl Process {
    pub(super) fn start(
        command: &str,
        args: &[String],
        variables: &BTreeMap<String, String>,
        folder: Option<&Path>,
    ) -> Result<Process, Problem> {
        let broken = |error: &dyn std::fmt::Display| Problem::Broken(format!("{command}: {error}"));
        let mut start = Command::new(command);
        start.args(args).env_clear();
        let kept = VARIABLES
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        start.envs(kept).envs(variables);
        if let Some(folder) = folder {
            start.current_dir(folder);
        }
        start
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = start.spawn().map_err(|error| broken(&error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(broken(&"has no standard streams"));
        };
        let process = Process {
            child: Mutex::new(child),
            input: Arc::new(Mutex::new(input)),
            waiting: Waiting::default(),
            command: command.to_string(),
        };
        let (waiting, input) = (process.waiting.clone(), process.input.clone());
        // It ends with the program's output.
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            while let Some(message) = read(&mut output) {
                take(message, &waiting, &input);
            }
            // Those that wait learn that nothing comes any more.
            lock(&waiting).clear();
        });
        Ok(process)
    }

    fn send(&self, message: &Value) -> Result<(), Problem> {
        write(&self.input, message).map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> Problem {
        Problem::Broken(format!("{}: {error}", self.command))
    }
}

impl Link for Process {
    fn call(&self, request: &Value) -> Result<Value, Problem> {
        let id = request["id"].as_u64().unwrap_or_default();
        let (sender, answer) = mpsc::channel();
        lock(&self.waiting).insert(id, sender);
        let sent = self.send(request);
        let answer = sent.and_then(|()| {
            answer.recv_timeout(PATIENCE).map_err(|error| match error {
                RecvTimeoutError::Disconnected => self.broken(&"the program has ended"),
                RecvTimeoutError::Timeout => self.broken(&"no answer in time"),
            })
        });
        lock(&self.waiting).remove(&id);
        result(answer?)
    }

    fn tell(&self, notification: &Value) -> Result<(), Problem> {
        self.send(notification)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(input: &Mutex<ChildStdin>, message: &Value) -> std::io::Result<()> {
    let mut input = lock(input);
    input.write_all(format!("{message}\n").as_bytes())?;
    input.flush()
}

/// The next message; `None` at the end, or if a line is too long. Lines that are no messages are passed over: some programs log there.
fn read(output: &mut impl BufRead) -> Option<Value> {
    loop {
        let mut line = Vec::new();
        let most = LARGEST as u64;
        let count = output
            .by_ref()
            .take(most)
            .read_until(b'\n', &mut line)
            .ok()?;
        if count == 0 || count == LARGEST {
            return None;
        }
        if let Ok(message @ Value::Object(_)) = serde_json::from_slice(&line) {
            return Some(message);
        }
    }
}

/// Hands an answer to the call that waits for it. Requests of the server are answered: we offer it nothing.
fn take(message: Value, waiting: &Waiting, input: &Mutex<ChildStdin>) {
    if message.get("method").is_none() {
        let id = message["id"].as_u64();
        let waits = id.and_then(|id| lock(waiting).remove(&id));
        if let Some(waits) = waits {
            // The call may have given up.
            let _ = waits.send(message);
        }
        return;
    }
    let Some(id) = message.get("id") else { return };
    let answer = match message["method"].as_str() {
        Some("ping") => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
        _ => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "not offered" } })
        }
    };
    // A program that has ended needs no answer.
    let _ = write(input, &answer);
}
