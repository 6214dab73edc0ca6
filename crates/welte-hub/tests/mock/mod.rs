//! A hub of one model on this machine: a list of files, redirects to another port, ranges, and every kind of trouble.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the model.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) tag: String,
    /// Large files are listed with SHA-256 and lie behind a redirect.
    pub(crate) large: bool,
}

/// What there is, and how it misbehaves.
#[derive(Clone)]
pub(crate) struct Behaviour {
    pub(crate) repo: String,
    pub(crate) commit: String,
    pub(crate) files: Vec<File>,
    /// The list gives names only.
    pub(crate) bare_list: bool,
    /// The token that is asked for.
    pub(crate) token: Option<String>,
    /// Questions to the hub itself that fail: how many, with which status and code.
    pub(crate) refuse: (u32, u16, &'static str),
    /// Questions to the other place that fail: how many, with which status.
    pub(crate) refuse_there: (u32, u16),
    /// Bodies that break off: how many, after how many bytes.
    pub(crate) cut: (u32, usize),
    pub(crate) no_ranges: bool,
    pub(crate) corrupt: bool,
    /// The size by the redirect, where it is not the true one.
    pub(crate) size: Option<u64>,
    /// The size by the list of files, where it is not the true one.
    pub(crate) listed_size: Option<u64>,
    /// Pause before a body.
    pub(crate) slow: Duration,
    /// Bodies of the other place come while nobody holds this.
    pub(crate) gate: Option<Arc<Mutex<()>>>,
    /// The connection closes in the answer to this question (counted from 0), after this many bytes with the head.
    pub(crate) cut_wire: Option<(usize, usize)>,
    /// Answers are sent in pieces of this many bytes.
    pub(crate) pieces: usize,
    /// Changes an answer before it is sent. A `content-length` among its headers replaces the true one; an empty one
    /// leaves the header out, and the connection closes after the body.
    pub(crate) lie: Option<Lie>,
}

pub(crate) type Lie = Arc<dyn Fn(&Asked, &mut Answer) + Send + Sync>;

/// A question that was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) token: Option<String>,
    /// The host and port that the question names.
    pub(crate) host: String,
    /// Bytes of body that were sent.
    pub(crate) sent: usize,
    /// To the place that the hub sends to.
    pub(crate) there: bool,
}

pub(crate) struct Mock {
    pub(crate) url: String,
    /// The place that the hub sends to.
    pub(crate) there: String,
    behaviour: Arc<Mutex<Behaviour>>,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Mock {
    pub(crate) fn new(repo: &str, files: Vec<File>) -> Mock {
        let behaviour = Arc::new(Mutex::new(Behaviour {
            repo: repo.to_string(),
            commit: COMMIT.to_string(),
            files,
            bare_list: false,
            token: None,
            refuse: (0, 0, ""),
            refuse_there: (0, 0),
            cut: (0, 0),
            no_ranges: false,
            corrupt: false,
            size: None,
            listed_size: None,
            slow: Duration::ZERO,
            gate: None,
            cut_wire: None,
            pieces: usize::MAX,
            lie: None,
        }));
        let log = Arc::new(Mutex::new(Vec::new()));
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, there) = (listen(), listen());
        let url = |l: &TcpListener| format!("http://{}", l.local_addr().unwrap());
        let (hub_url, there_url) = (url(&hub), url(&there));
        for (listener, is_there) in [(hub, false), (there, true)] {
            let (behaviour, log, there_url) = (behaviour.clone(), log.clone(), there_url.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (behaviour, log, there_url) =
                        (behaviour.clone(), log.clone(), there_url.clone());
                    std::thread::spawn(move || {
                        serve(stream, is_there, &there_url, &behaviour, &log)
                    });
                }
            });
        }
        Mock {
            url: hub_url,
            there: there_url,
            behaviour,
            log,
        }
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    /// What was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

fn serve(
    stream: TcpStream,
    there: bool,
    there_url: &str,
    behaviour: &Mutex<Behaviour>,
    log: &Mutex<Vec<Asked>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(mut asked) = question(&mut reader, there) {
        let mut b = behaviour.lock().unwrap();
        let mut answer = answer(&asked, &mut b, there_url);
        if let Some(lie) = &b.lie {
            lie(&asked, &mut answer);
        }
        let body_comes = asked.method == "GET" && answer.status < 300;
        let mut sent = answer.body.len();
        let cut = body_comes && asked.path != api(&b) && b.cut.0 > 0 && answer.body.len() > b.cut.1;
        if cut {
            b.cut.0 -= 1;
            sent = b.cut.1;
        }
        let (slow, pieces) = (b.slow, b.pieces);
        let gate = b.gate.clone().filter(|_| there);
        let number = log.lock().unwrap().len();
        let cut_wire = b.cut_wire.take_if(|(question, _)| *question == number);
        drop(b);
        if asked.method == "HEAD" {
            sent = 0;
        }
        asked.sent = sent;
        log.lock().unwrap().push(asked);
        let mut head = format!("HTTP/1.1 {} x\r\n", answer.status);
        if !answer
            .headers
            .iter()
            .any(|(name, _)| *name == "content-length")
        {
            head.push_str(&format!("content-length: {}\r\n", answer.body.len()));
        }
        let endless = ("content-length", String::new());
        for (name, value) in answer.headers.iter().filter(|header| **header != endless) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        if body_comes {
            drop(gate.as_ref().map(|gate| gate.lock()));
            std::thread::sleep(slow);
        }
        let mut wire = [head.as_bytes(), &answer.body[..sent]].concat();
        let ends = cut_wire.is_some_and(|(_, bytes)| bytes < wire.len());
        if let Some((_, bytes)) = cut_wire {
            wire.truncate(bytes);
        }
        let sent = wire
            .chunks(pieces)
            .try_for_each(|piece| stream.write_all(piece));
        if sent.is_err() || cut || ends || answer.headers.contains(&endless) {
            return;
        }
    }
}

fn question(reader: &mut impl BufRead, there: bool) -> Option<Asked> {
    let mut line = String::new();
    reader.by_ref().take(4096).read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let mut asked = Asked {
        method: words.next()?.to_string(),
        path: words.next()?.to_string(),
        range: None,
        token: None,
        host: String::new(),
        sent: 0,
        there,
    };
    loop {
        let mut line = String::new();
        reader.by_ref().take(4096).read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            return line.trim().is_empty().then_some(asked);
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                asked.range = Some((first.parse().ok()?, last.parse().ok()?));
            }
            "host" => asked.host = value.to_string(),
            "authorization" => asked.token = Some(value.trim_start_matches("Bearer ").to_string()),
            _ => {}
        }
    }
}

fn api(b: &Behaviour) -> String {
    format!("/api/models/{}/revision/main?blobs=true", b.repo)
}

fn answer(asked: &Asked, b: &mut Behaviour, there_url: &str) -> Answer {
    let plain = |status, headers| Answer {
        status,
        headers,
        body: Vec::new(),
    };
    if asked.there {
        if b.refuse_there.0 > 0 {
            b.refuse_there.0 -= 1;
            return plain(b.refuse_there.1, vec![]);
        }
        let number: Option<usize> = asked
            .path
            .strip_prefix("/bytes/")
            .and_then(|n| n.parse().ok());
        return match number.and_then(|n| b.files.get(n)) {
            Some(file) => bytes(file, asked, b),
            None => plain(404, vec![]),
        };
    }
    if b.token.is_some() && b.token != asked.token {
        return plain(401, vec![]);
    }
    if b.refuse.0 > 0 {
        b.refuse.0 -= 1;
        let retry = ("retry-after", "0".to_string());
        return plain(
            b.refuse.1,
            vec![("x-error-code", b.refuse.2.to_string()), retry],
        );
    }
    if asked.path == api(b) {
        return Answer {
            status: 200,
            headers: vec![],
            body: list(b).into_bytes(),
        };
    }
    let prefix = format!("/{}/resolve/{}/", b.repo, b.commit);
    let name = asked.path.strip_prefix(&prefix);
    let Some(number) = b.files.iter().position(|f| Some(f.name.as_str()) == name) else {
        return plain(404, vec![]);
    };
    let file = &b.files[number];
    let commit = ("x-repo-commit", b.commit.clone());
    if !file.large {
        let mut answer = bytes(file, asked, b);
        answer
            .headers
            .extend([("etag", format!("\"{}\"", file.tag)), commit]);
        return answer;
    }
    let size = b.size.unwrap_or(file.bytes.len() as u64);
    plain(
        302,
        vec![
            ("location", format!("{there_url}/bytes/{number}")),
            ("x-linked-etag", format!("\"{}\"", file.tag)),
            ("x-linked-size", size.to_string()),
            ("etag", "\"something else\"".to_string()),
            commit,
        ],
    )
}

fn bytes(file: &File, asked: &Asked, b: &Behaviour) -> Answer {
    let mut body = file.bytes.clone();
    if b.corrupt {
        body[0] ^= 1;
    }
    match asked.range.filter(|_| !b.no_ranges) {
        Some((first, last)) => Answer {
            status: 206,
            headers: vec![(
                "content-range",
                format!("bytes {first}-{last}/{}", body.len()),
            )],
            body: body[first as usize..=last as usize].to_vec(),
        },
        None => Answer {
            status: 200,
            headers: vec![],
            body,
        },
    }
}

fn list(b: &Behaviour) -> String {
    let file = |f: &File| {
        let (name, tag) = (&f.name, &f.tag);
        let size = b.listed_size.unwrap_or(f.bytes.len() as u64);
        match (b.bare_list, f.large) {
            (true, _) => format!(r#"{{"rfilename":"{name}"}}"#),
            (_, true) => format!(
                r#"{{"rfilename":"{name}","size":{size},"blobId":"p","lfs":{{"sha256":"{tag}","size":{size},"pointerSize":1}}}}"#
            ),
            (_, false) => format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{tag}"}}"#),
        }
    };
    let files: Vec<String> = b.files.iter().map(file).collect();
    format!(
        r#"{{"id":"{}","sha":"{}","siblings":[{}]}}"#,
        b.repo,
        b.commit,
        files.join(",")
    )
}
