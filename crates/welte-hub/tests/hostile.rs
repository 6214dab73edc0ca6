//! Pulling from a hub that lies, breaks off and sends elsewhere.

mod mock;

use mock::{Answer, Asked, COMMIT, File, Lie, Mock};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use welte_hub::{Error, Hub, Pulled, Settings};

const REPO: &str = "org/model";
const FILE: &str = "m-Q4_0.gguf";

/// A lie about one answer.
type Change = fn(&mut Answer);

struct World {
    mock: Mock,
    bytes: Vec<u8>,
    folder: TempDir,
}

impl World {
    fn new(count: usize) -> World {
        let bytes: Vec<u8> = (0..count).map(|i| (i * 37 % 251) as u8).collect();
        let file = File {
            name: FILE.to_string(),
            tag: welte_hub::sha256(&bytes),
            bytes: bytes.clone(),
            large: true,
        };
        World {
            mock: Mock::new(REPO, vec![file]),
            bytes,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn pull(&self, change: impl FnOnce(&mut Settings)) -> Result<Pulled, Error> {
        let home = self.folder.path().as_os_str().to_os_string();
        let settings = Settings::from_variables(&|name| (name == "HF_HOME").then(|| home.clone()));
        let mut settings = Settings {
            endpoint: self.mock.url.clone(),
            part: 1000,
            connections: 2,
            pause: Duration::from_millis(1),
            silence: Duration::from_millis(300),
            token: Some("secret".to_string()),
            ..settings.unwrap()
        };
        change(&mut settings);
        Hub::new(settings).pull(&REPO.parse().unwrap(), &mut |report| {
            assert!(report.done <= report.total, "{report:?}");
        })
    }

    /// The file came whole.
    fn is_pulled(&self, change: impl FnOnce(&mut Settings), case: &str) {
        let pulled = self
            .pull(change)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(std::fs::read(pulled.path).unwrap(), self.bytes, "{case}");
    }

    /// The pull fails in these words, and nothing looks as if it were complete.
    fn is_refused(&self, case: &str, says: &str) {
        let error = self.pull(|_| {}).expect_err(case).to_string();
        assert!(
            error.contains(says),
            "{case}: {error:?} does not say {says:?}"
        );
        let repo = self.folder.path().join("hub/models--org--model");
        assert!(
            !repo.join("snapshots").join(COMMIT).join(FILE).exists(),
            "{case}"
        );
        assert!(!repo.join("refs/main").exists(), "{case}");
    }

    /// How often the hub was asked where the file is.
    fn addresses(&self) -> usize {
        let asked = self.mock.asked();
        asked.iter().filter(|a| a.method == "HEAD").count()
    }

    fn lie(&self, lie: impl Fn(&Asked, &mut Answer) + Send + Sync + 'static) {
        self.mock.set(|b| b.lie = Some(Arc::new(lie) as Lie));
    }
}

fn replace(answer: &mut Answer, name: &'static str, value: String) {
    answer.headers.retain(|(known, _)| *known != name);
    answer.headers.push((name, value));
}

/// The bytes of the file, from wherever they come.
fn is_file(asked: &Asked) -> bool {
    asked.there && asked.method == "GET"
}

#[test]
fn a_connection_may_close_after_any_byte() {
    // The questions: the list of files, the address of the file, its bytes.
    for (question, what) in ["list", "address", "bytes"].iter().enumerate() {
        for bytes in (0..).step_by(3) {
            let world = World::new(30);
            world.mock.set(|b| b.cut_wire = Some((question, bytes)));
            world.is_pulled(|_| {}, &format!("the {what}, cut after {bytes} bytes"));
            // Without a second try the answer was longer than the cut.
            if world.mock.asked().len() == 3 {
                assert!(bytes > 60, "the {what} has {bytes} bytes only");
                break;
            }
        }
    }
}

#[test]
fn a_slow_hub_is_waited_for() {
    let world = World::new(2500);
    world.mock.set(|b| b.pieces = 1);
    world.is_pulled(|s| s.silence = Duration::from_secs(30), "byte by byte");
    assert_eq!(
        world
            .mock
            .asked()
            .iter()
            .filter(|a| is_file(a))
            .map(|a| a.sent)
            .sum::<usize>(),
        2500
    );
}

#[test]
fn retries_are_renewed_by_progress_and_end_without_it() {
    let world = World::new(20_000);
    world.mock.set(|b| b.cut = (u32::MAX, 300));
    world.is_pulled(|s| s.retries = 1, "300 bytes at a time");

    let world = World::new(20_000);
    world.lie(|asked, answer| {
        if is_file(asked) {
            answer.body.clear();
            replace(answer, "content-length", "1000".to_string());
        }
    });
    let error = world
        .pull(|s| (s.retries, s.connections) = (3, 1))
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(world.mock.asked().iter().filter(|a| is_file(a)).count(), 4);
}

#[test]
fn lengths_and_ranges_that_are_wrong_never_make_a_file() {
    let world = World::new(2500);
    let refused: [(&str, Change, &str); 6] = [
        (
            "a range that begins elsewhere",
            |a| replace(a, "content-range", "bytes 1-999/2500".into()),
            "the answer is for bytes 1-999",
        ),
        ("no range", |a| a.headers.clear(), "no range"),
        (
            "other bytes",
            |a| a.body.iter_mut().for_each(|b| *b ^= 1),
            "checksum",
        ),
        (
            "a status without a body",
            |a| (a.status, a.body) = (204, vec![]),
            "unexpected HTTP status 204",
        ),
        (
            "a length that is not a number",
            |a| replace(a, "content-length", "many".into()),
            "",
        ),
        (
            "an encoding",
            |a| replace(a, "transfer-encoding", "chunked".into()),
            "",
        ),
    ];
    for (case, change, says) in refused {
        world.lie(move |asked, answer| {
            if is_file(asked) {
                change(answer);
            }
        });
        world.is_refused(case, says);
        // Another address would not help.
        assert_eq!(world.addresses(), 1, "{case}");
    }
    // The end of the connection is the end of the body: half of it is there.
    world.lie(|asked, answer| {
        if is_file(asked) {
            answer.body.truncate(answer.body.len().div_ceil(2));
            replace(answer, "content-length", String::new());
        }
    });
    world.is_pulled(|s| s.retries = 1, "half a body");
    // More bytes than were asked for are left where they are.
    world.lie(|asked, answer| {
        if is_file(asked) {
            answer.body.extend_from_slice(&[7; 500]);
        }
    });
    world.is_pulled(|_| {}, "too many bytes");
}

#[test]
fn a_list_or_an_address_that_is_wrong_is_refused_by_name() {
    let list = |asked: &Asked| asked.path.starts_with("/api/");
    let cases: [(&str, Change, &str); 4] = [
        ("not JSON", |a| a.body = b"<html>".to_vec(), "is not JSON"),
        (
            "nested without end",
            |a| a.body = vec![b'['; 1 << 20],
            "is not JSON",
        ),
        (
            "longer than it is",
            |a| replace(a, "content-length", u64::MAX.to_string()),
            "incomplete",
        ),
        (
            "a file outside",
            |a| {
                a.body = String::from_utf8_lossy(&a.body)
                    .replace(FILE, "../../x.gguf")
                    .into_bytes()
            },
            "not a path inside",
        ),
    ];
    for (case, change, says) in cases {
        let world = World::new(2500);
        world.lie(move |asked, answer| {
            if list(asked) {
                change(answer);
            }
        });
        world.is_refused(case, says);
    }
    let cases: [(&str, Change, &str); 4] = [
        (
            "another checksum",
            |a| replace(a, "x-linked-etag", format!("\"{}\"", "0".repeat(64))),
            "checksum differs",
        ),
        (
            "no checksum",
            |a| a.headers.retain(|(name, _)| *name == "location"),
            "",
        ),
        (
            "a path as its tag",
            |a| replace(a, "x-linked-etag", "\"../../x\"".into()),
            "",
        ),
        (
            "another size",
            |a| replace(a, "x-linked-size", "2499".into()),
            "2499 bytes, the list of files 2500",
        ),
    ];
    for (case, change, says) in cases {
        let world = World::new(2500);
        world.lie(move |asked, answer| {
            if asked.method == "HEAD" {
                change(answer);
            }
        });
        if says.is_empty() {
            // The list of files has a size and a checksum, too.
            world.is_pulled(|_| {}, case);
        } else {
            world.is_refused(case, says);
        }
        assert!(
            !world.folder.path().join("x").exists() && !Path::new("../../x").exists(),
            "{case}"
        );
    }
}

/// A file that the hub itself holds has no other address.
#[test]
fn a_refusal_of_the_hub_itself_is_final() {
    let world = World::new(2500);
    world.lie(|asked, answer| {
        if asked.path.contains("/resolve/") {
            answer.status = if asked.method == "HEAD" { 200 } else { 404 };
            answer.headers.retain(|(name, _)| *name != "location");
        }
    });
    world.is_refused("the hub itself", "404");
    assert_eq!(world.addresses(), 1);
}

#[test]
fn redirects_to_nowhere_end() {
    for target in [
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "//127.0.0.1/x",
        "x",
        "",
        "http://",
        "http://[::1",
        "/api/loop",
    ] {
        let world = World::new(2500);
        world.lie(move |_, answer| {
            answer.status = 302;
            replace(answer, "location", target.to_string());
        });
        world.is_refused(target, REPO);
        assert!(world.mock.asked().len() <= 60, "{target}");
    }
}

#[test]
fn the_token_never_leaves_its_origin() {
    // Where the hub sends every question first; it answers when the question comes back.
    let places: [fn(&str, &str) -> String; 3] = [
        |_, there| there.to_string(),
        // The same machine under another name is another origin.
        |home, _| home.replace("127.0.0.1", "localhost"),
        |home, there| format!("http://{}@{}", &home[7..], &there[7..]),
    ];
    for (case, place) in places.into_iter().enumerate() {
        let world = World::new(2500);
        let there = world.mock.there.clone();
        let elsewhere = place(&world.mock.url, &there);
        world.lie(move |asked, answer| {
            let first = asked.token.is_some();
            if first && !asked.there {
                answer.status = 307;
                answer.body.clear();
                answer.headers.clear();
                replace(answer, "location", format!("{elsewhere}{}", asked.path));
            }
        });
        // Whether the pull succeeds depends on what the other place answers; the token must not arrive there.
        let _ = world.pull(|_| {});
        let asked = world.mock.asked();
        assert!(
            asked[0].token.is_some(),
            "case {case}: the hub itself gets it"
        );
        let has_token = |a: &&Asked| a.token.as_deref() == Some("secret");
        let left: Vec<_> = asked.iter().skip(1).filter(has_token).collect();
        assert!(
            left.iter()
                .all(|a| !a.there && a.host == world.mock.url[7..]),
            "case {case}: {left:?}"
        );
        assert!(
            !asked.iter().all(|a| has_token(&a)),
            "case {case}: nobody followed the redirect: {asked:?}"
        );
    }
}
