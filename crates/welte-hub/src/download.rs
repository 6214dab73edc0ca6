//! Downloads one file over several connections and computes its checksum meanwhile.

use crate::checksum::{Kind, Sum};
use crate::http::{Client, Failure};
use crate::listing::{Listed, Source};
use crate::parts::Parts;
use crate::{Error, Progress};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;
use ureq::http::Uri;

/// The most parts per request: enough to hide the latency of a request.
const RUN: u64 = 8;
/// Bytes copied from a connection to the disk at a time.
const BUFFER: usize = 256 << 10;
/// How often progress is reported.
const TICK: Duration = Duration::from_millis(100);

/// A file to download.
pub(crate) struct Task<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repo: &'a str,
    pub(crate) commit: &'a str,
    pub(crate) file: &'a Listed,
    pub(crate) source: Source,
    pub(crate) connections: usize,
}

/// State shared by the connections.
struct Shared<'a> {
    task: &'a Task<'a>,
    parts: &'a Parts,
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes written, including those of earlier runs.
    bytes: AtomicU64,
    stop: AtomicBool,
    /// One stream from the beginning, for a server without range requests.
    whole: bool,
}

struct State {
    /// The current address of the bytes.
    url: String,
    /// Parts that are complete or being fetched.
    claimed: Vec<bool>,
    /// Parts that are complete.
    done: Vec<bool>,
    running: usize,
    failed: Option<FetchError>,
}

enum FetchError {
    /// The server ignores range requests.
    NoRanges,
    Failure(Failure),
}

impl From<Failure> for FetchError {
    fn from(failure: Failure) -> FetchError {
        FetchError::Failure(failure)
    }
}

impl From<Error> for FetchError {
    fn from(error: Error) -> FetchError {
        FetchError::Failure(Failure::Final(error))
    }
}

impl Task<'_> {
    /// Fetches what is missing in `parts`, checks it and gives the file its name.
    pub(crate) fn run(
        &self,
        parts: Parts,
        name: &Path,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let found = match self.fetch(&parts, false, progress) {
            Err(FetchError::NoRanges) => self.fetch(&parts, true, progress),
            other => other,
        };
        let found = found.map_err(|broken| match broken {
            FetchError::Failure(failure) => failure.into(),
            FetchError::NoRanges => self.client.bad_answer(
                &self.what(),
                "the server returned neither the range nor the whole file".to_string(),
            ),
        })?;
        if found
            .as_deref()
            .is_some_and(|sum| !sum.eq_ignore_ascii_case(&self.source.tag))
        {
            parts.discard()?;
            return Err(Error::Checksum {
                file: self.what(),
                expected: self.source.tag.clone(),
                found: found.unwrap_or_default(),
            });
        }
        parts.finish(name)
    }

    fn what(&self) -> String {
        format!("{}: {}", self.repo, self.file.name)
    }

    /// Fetches the missing parts. Returns the checksum if the tag is one.
    fn fetch(
        &self,
        parts: &Parts,
        whole: bool,
        progress: &mut Progress,
    ) -> Result<Option<String>, FetchError> {
        let there: Vec<bool> = (0..parts.count()).map(|i| !whole && parts.has(i)).collect();
        let missing = there.iter().filter(|there| !**there).count();
        let connections = if whole {
            1
        } else {
            self.connections.min(missing)
        };
        let shared = Shared {
            task: self,
            parts,
            state: Mutex::new(State {
                url: self.source.url.clone(),
                claimed: there.clone(),
                done: there,
                running: connections,
                failed: None,
            }),
            changed: Condvar::new(),
            bytes: AtomicU64::new(if whole { 0 } else { parts.bytes() }),
            stop: AtomicBool::new(false),
            whole,
        };
        std::thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| shared.work());
            }
            let sum = shared.watch(progress);
            shared.stop.store(true, Ordering::Relaxed);
            sum
        })
    }
}

impl Shared<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds complete parts to the checksum in their order, and reports progress.
    fn watch(&self, progress: &mut Progress) -> Result<Option<String>, FetchError> {
        let kind = Kind::of(&self.task.source.tag);
        let mut sum = kind.map(|kind| Sum::new(kind, self.parts.size));
        let mut file = self.parts.handle()?;
        let mut buffer = vec![0; BUFFER];
        for part in 0..self.parts.count() {
            let mut state = self.state();
            while !state.done[part as usize] {
                if let Some(broken) = state.failed.take() {
                    return Err(broken);
                }
                if state.running == 0 {
                    let problem = "a part is missing".to_string();
                    return Err(self
                        .task
                        .client
                        .bad_answer(&self.task.what(), problem)
                        .into());
                }
                state = self
                    .changed
                    .wait_timeout(state, TICK)
                    .unwrap_or_else(|e| e.into_inner())
                    .0;
                progress.at(self.bytes.load(Ordering::Relaxed));
            }
            drop(state);
            if let Some(sum) = &mut sum {
                let (start, end) = (self.parts.start(part), self.parts.start(part + 1));
                add(sum, &mut file, start, end, &mut buffer)
                    .map_err(Error::io(&self.parts.path))?;
            }
            progress.at(self.bytes.load(Ordering::Relaxed));
        }
        Ok(sum.map(Sum::hex))
    }

    /// One connection: fetches run after run until none is left or one fails.
    fn work(&self) {
        let mut result = self.parts.handle().map_err(FetchError::from);
        while let Ok(file) = &mut result {
            let Some((first, end)) = self.claim() else {
                break;
            };
            if let Err(broken) = self.fetch_run(file, first, end) {
                result = Err(broken);
            }
        }
        let mut state = self.state();
        state.running -= 1;
        if let Err(broken) = result {
            self.stop.store(true, Ordering::Relaxed);
            state.failed.get_or_insert(broken);
        }
        self.changed.notify_all();
    }

    /// Claims the next free parts.
    fn claim(&self) -> Option<(u64, u64)> {
        let mut state = self.state();
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let first = state.claimed.iter().position(|claimed| !claimed)?;
        let left = state.claimed.iter().filter(|claimed| !**claimed).count();
        // Runs shrink towards the end, so that all connections finish together.
        let run = (left / (2 * self.task.connections.max(1))).clamp(1, RUN as usize);
        let most = if self.whole { left } else { run };
        let free = state.claimed[first..]
            .iter()
            .take(most)
            .take_while(|claimed| !**claimed)
            .count();
        state.claimed[first..first + free].fill(true);
        Some((first as u64, (first + free) as u64))
    }

    /// Fetches parts `first..end`, resuming where a connection broke off.
    fn fetch_run(&self, file: &mut File, first: u64, end: u64) -> Result<(), FetchError> {
        let client = self.task.client;
        let mut position = self.parts.start(first);
        let mut retries = client.retries();
        while position < self.parts.start(end) && !self.stop.load(Ordering::Relaxed) {
            let before = position;
            let failure = match self.fetch_piece(file, &mut position, end) {
                Ok(()) => continue,
                Err(FetchError::NoRanges) => return Err(FetchError::NoRanges),
                Err(FetchError::Failure(failure)) => failure,
            };
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if position > before {
                retries = client.retries();
            }
            let stale = matches!(
                &failure,
                Failure::Final(Error::Refused {
                    status: 401 | 403 | 404 | 410,
                    ..
                })
            ) && !self.is_home();
            match failure {
                // The address has expired. Ask the hub for a new one.
                Failure::Final(error) if stale => {
                    retries.wait(Failure::Again(error, None))?;
                    let source = client.with_retries(|| {
                        client.source(self.task.repo, self.task.commit, self.task.file)
                    })?;
                    self.state().url = source.url;
                }
                failure => retries.wait(failure)?,
            }
        }
        Ok(())
    }

    fn is_home(&self) -> bool {
        let uri: Uri = self.state().url.parse().unwrap_or_default();
        self.task.client.is_home(&uri)
    }

    /// Writes the bytes of one request to their places.
    fn fetch_piece(&self, file: &mut File, position: &mut u64, end: u64) -> Result<(), FetchError> {
        let client = self.task.client;
        let what = self.task.what();
        let (start, stop) = (*position, self.parts.start(end));
        let everything = self.whole || start == 0 && stop == self.parts.size;
        let range = (!everything).then(|| (start, stop - 1));
        let url = self.state().url.clone();
        let (_, mut answer) = client.follow(&what, false, &url, range, &|_| false)?;
        match (answer.status().as_u16(), everything) {
            (200, true) => {}
            (206, false) => {
                let said = answer
                    .headers()
                    .get("content-range")
                    .and_then(|v| v.to_str().ok());
                if said.is_none_or(|said| !said.starts_with(&format!("bytes {start}-"))) {
                    let problem = format!(
                        "the request starts at byte {start}, the answer is for {}",
                        said.unwrap_or("no range")
                    );
                    return Err(client.bad_answer(&what, problem).into());
                }
            }
            (200, false) => return Err(FetchError::NoRanges),
            (status, _) => {
                let problem = format!("unexpected HTTP status {status}");
                return Err(client.bad_answer(&what, problem).into());
            }
        }
        let broken = |problem: String| FetchError::from(Failure::broken(&what, &url, problem));
        let disk = |source| Error::io(&self.parts.path)(source);
        let mut body = answer.body_mut().as_reader();
        let mut buffer = vec![0; BUFFER];
        if everything && start > 0 {
            // The stream starts from the beginning, but no byte is written twice: checked bytes stay as they are.
            let skipped = std::io::copy(&mut body.by_ref().take(start), &mut std::io::sink());
            if !matches!(skipped, Ok(n) if n == start) {
                return Err(broken("the connection ended too early".to_string()));
            }
        }
        file.seek(SeekFrom::Start(start)).map_err(disk)?;
        while *position < stop && !self.stop.load(Ordering::Relaxed) {
            let most = (stop - *position).min(BUFFER as u64) as usize;
            let read = body
                .read(&mut buffer[..most])
                .map_err(|e| broken(format!("the connection broke off: {e}")))?;
            if read == 0 {
                return Err(broken("the connection ended too early".to_string()));
            }
            file.write_all(&buffer[..read]).map_err(disk)?;
            let before = *position;
            *position += read as u64;
            self.bytes.fetch_add(read as u64, Ordering::Relaxed);
            self.mark(before, *position)?;
        }
        // Reading a body to its end frees the connection for the next request.
        let _ = body.read(&mut buffer[..1]);
        Ok(())
    }

    /// Records the parts that end between two positions.
    fn mark(&self, from: u64, to: u64) -> Result<(), FetchError> {
        let ends =
            |part: &u64| self.parts.start(part + 1) > from && self.parts.start(part + 1) <= to;
        for part in (from / self.parts.part..=(to - 1) / self.parts.part).filter(ends) {
            self.parts.mark(part)?;
            self.state().done[part as usize] = true;
            self.changed.notify_all();
        }
        Ok(())
    }
}

fn add(
    sum: &mut Sum,
    file: &mut File,
    start: u64,
    end: u64,
    buffer: &mut [u8],
) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    let mut left = end - start;
    while left > 0 {
        let most = left.min(buffer.len() as u64) as usize;
        file.read_exact(&mut buffer[..most])?;
        sum.add(&buffer[..most]);
        left -= most as u64;
    }
    Ok(())
}
