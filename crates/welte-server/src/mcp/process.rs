//! An MCP server that is a program: one JSON message a line, on its standard streams. Its standard error is our log.

use super::link::{LARGEST, Link, Problem, result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

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

/// Messages that wait until the program reads them.
const QUEUE: usize = 64;
/// How long a program has to end once its input ends.
const ENDING: Duration = Duration::from_secs(2);

/// A program at work. Dropping it ends the program.
pub(super) struct Process {
    child: Mutex<Child>,
    /// To the thread that writes. Without it the program's input ends.
    input: Option<Arc<SyncSender<String>>>,
    waiting: Waiting,
    patience: Duration,
}

impl Process {
    pub(super) fn start(
        command: &str,
        args: &[String],
        variables: &BTreeMap<String, String>,
        folder: Option<&Path>,
        patience: Duration,
    ) -> Result<Process, Problem> {
        let mut start = Command::new(command);
        start.args(args).env_clear();
        let kept = VARIABLES
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        start.envs(kept).envs(variables);
        if let Some(folder) = folder {
            start.current_dir(folder);
        }
        // A terminal's Ctrl-C is for us: the program may be needed until the last answers are complete.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut start, 0);
        start
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let started = start.spawn();
        let mut child = started
            .map_err(|error| Problem::Broken(format!("the program does not start: {error}")))?;
        let (Some(mut stdin), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Problem::Broken("it has no standard streams".to_string()));
        };
        let (input, lines) = mpsc::sync_channel::<String>(QUEUE);
        // A program that does not read holds up this thread only.
        std::thread::spawn(move || {
            for line in lines {
                let written = stdin.write_all(line.as_bytes());
                if written.and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        let input = Arc::new(input);
        let process = Process {
            child: Mutex::new(child),
            input: Some(input.clone()),
            waiting: Waiting::default(),
            patience,
        };
        let (waiting, input) = (process.waiting.clone(), Arc::downgrade(&input));
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
        let sent = self.input.as_ref().map(|input| write(input, message));
        sent.unwrap_or_else(|| Err(Problem::Broken(ENDED.to_string())))
    }
}

const ENDED: &str = "the program has ended";

impl Link for Process {
    fn call(&self, request: &Value) -> Result<Value, Problem> {
        let id = request["id"].as_u64().unwrap_or_default();
        let (sender, answer) = mpsc::channel();
        lock(&self.waiting).insert(id, sender);
        let sent = self.send(request);
        let answer = sent.and_then(|()| {
            let answer = answer.recv_timeout(self.patience);
            answer.map_err(|error| {
                Problem::Broken(match error {
                    RecvTimeoutError::Disconnected => ENDED.to_string(),
                    RecvTimeoutError::Timeout => "no answer in time".to_string(),
                })
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
        // The end of its input asks it to end. What a launcher has started ends in this way only.
        self.input = None;
        let mut child = lock(&self.child);
        let begun = Instant::now();
        while begun.elapsed() < ENDING {
            if matches!(child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(input: &SyncSender<String>, message: &Value) -> Result<(), Problem> {
    input.try_send(format!("{message}\n")).map_err(|error| {
        Problem::Broken(match error {
            TrySendError::Full(_) => "the program does not read its input".to_string(),
            TrySendError::Disconnected(_) => ENDED.to_string(),
        })
    })
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
fn take(message: Value, waiting: &Waiting, input: &Weak<SyncSender<String>>) {
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
    // A program that has ended needs no answer, nor does one that does not read.
    let _ = input.upgrade().map(|input| write(&input, &answer));
}
