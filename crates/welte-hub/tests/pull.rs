//! Pulling from a hub on this machine.

mod mock;

use mock::{COMMIT, File, Mock};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use welte_hub::{Error, Event, Hub, ModelName, Proxies, Pulled, Settings};

const REPO: &str = "org/model";

/// Bytes that repeat nowhere near.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8)
        .collect()
}

fn large(name: &str, count: usize) -> File {
    let bytes = noise(count);
    File {
        name: name.to_string(),
        tag: welte_hub::sha256(&bytes),
        bytes,
        large: true,
    }
}

fn small(name: &str, text: &str) -> File {
    File {
        name: name.to_string(),
        tag: welte_hub::git_blob(text.as_bytes()),
        bytes: text.as_bytes().to_vec(),
        large: false,
    }
}

struct World {
    mock: Mock,
    folder: TempDir,
}

impl World {
    fn new(files: Vec<File>) -> World {
        World {
            mock: Mock::new(REPO, files),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn settings(&self) -> Settings {
        let home = self.folder.path().as_os_str().to_os_string();
        let settings = Settings::from_variables(&|name| (name == "HF_HOME").then(|| home.clone()));
        Settings {
            endpoint: self.mock.url.clone(),
            part: 1000,
            connections: 4,
            pause: Duration::from_millis(1),
            ..settings.unwrap()
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.settings())
    }

    fn pull(&self, name: &str) -> Result<Pulled, Error> {
        self.hub().pull(&name.parse().unwrap(), &mut |_| {})
    }

    /// It must fail and say all of this.
    fn refused(&self, name: &str, says: &[&str]) {
        let error = self.pull(name).unwrap_err().to_string();
        for word in says {
            assert!(error.contains(word), "{error:?} does not say {word:?}");
        }
    }

    fn repo(&self) -> PathBuf {
        self.folder.path().join("hub/models--org--model")
    }

    fn blobs(&self) -> BTreeSet<String> {
        let names = std::fs::read_dir(self.repo().join("blobs"))
            .into_iter()
            .flatten()
            .flatten();
        names
            .map(|e| e.file_name().into_string().unwrap())
            .collect()
    }
}

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

#[test]
fn a_large_file_is_pulled_by_several_connections_and_laid_out_as_others_do() {
    let file = large("sub/m-Q4_K_M.gguf", 100_003);
    let world = World::new(vec![file.clone(), large("m-Q8_0.gguf", 10)]);
    world.mock.set(|b| b.token = Some("secret".to_string()));
    let settings = Settings {
        token: Some("secret".to_string()),
        retries: 0,
        ..world.settings()
    };
    let mut reports = Vec::new();
    let pulled = Hub::new(settings)
        .pull(&name(REPO), &mut |r| {
            reports.push((r.done, r.total, r.event))
        })
        .unwrap();
    assert_eq!((pulled.bytes, pulled.files), (100_003, 1));
    let pointer = world
        .repo()
        .join("snapshots")
        .join(COMMIT)
        .join("sub/m-Q4_K_M.gguf");
    assert_eq!(pulled.path, pointer);
    assert_eq!(std::fs::read(&pointer).unwrap(), file.bytes);
    let link = std::fs::read_link(&pointer).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(&file.tag));
    assert_eq!(
        std::fs::read_to_string(world.repo().join("refs/main")).unwrap(),
        COMMIT
    );
    assert_eq!(world.blobs(), BTreeSet::from([file.tag.clone()]));
    assert_eq!(reports.last(), Some(&(100_003, 100_003, Event::Done)));
    assert!(reports.windows(2).all(|w| w[0].0 <= w[1].0), "{reports:?}");
    let (there, here): (Vec<_>, Vec<_>) = world.mock.asked().into_iter().partition(|a| a.there);
    // Each byte was asked for once, in ranges that leave nothing out.
    let mut ranges: Vec<_> = there.iter().map(|a| a.range.unwrap()).collect();
    ranges.sort_unstable();
    assert!(ranges.len() > 8, "{ranges:?}");
    assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (0, 100_002));
    assert!(
        ranges.windows(2).all(|w| w[0].1 + 1 == w[1].0),
        "{ranges:?}"
    );
    // The token goes to the hub and not to where it sends us.
    assert!(there.iter().all(|a| a.token.is_none()));
    assert!(here.iter().all(|a| a.token.as_deref() == Some("secret")));
    assert_eq!(here.len(), 2);
    // A second time only the list is asked for.
    let again = world.hub().get(&name(REPO), &mut |_| {}).unwrap();
    assert_eq!((again.path, again.bytes), (pointer, 0));
    assert!(world.mock.asked().is_empty());
    // What did not change is not written.
    world.mock.set(|b| b.token = None);
    let (note, same) = (world.repo().join("refs/main"), format!("{COMMIT}\n"));
    std::fs::write(&note, &same).unwrap();
    world.pull(REPO).unwrap();
    assert_eq!(std::fs::read_to_string(note).unwrap(), same);
}

#[test]
fn a_file_is_pulled_without_any_setting() {
    let file = large("m-Q4_0.gguf", 5000);
    let world = World::new(vec![file.clone()]);
    let home = world.folder.path().as_os_str().to_os_string();
    let settings = Settings::from_variables(&|name| (name == "HF_HOME").then(|| home.clone()));
    let settings = Settings {
        endpoint: world.mock.url.clone(),
        ..settings.unwrap()
    };
    let pulled = Hub::new(settings).pull(&name(REPO), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
}

/// The tag of a mirror may be no checksum, or the other one.
#[test]
fn a_file_is_checked_by_whichever_checksum_is_known() {
    let file = large("m-Q4_0.gguf", 3000);
    let git = welte_hub::git_blob(&file.bytes);
    for (tag, counts) in [("abc-123", &file.tag), (&git, &git)] {
        let world = World::new(vec![file.clone()]);
        let quoted = format!("\"{tag}\"");
        let lie = move |_: &mock::Asked, answer: &mut mock::Answer| {
            let tags = answer.headers.iter_mut();
            for (_, value) in tags.filter(|(name, _)| *name == "x-linked-etag") {
                value.clone_from(&quoted);
            }
        };
        world.mock.set(|b| b.lie = Some(Arc::new(lie)));
        assert_eq!(world.pull(REPO).unwrap().unchecked, 0, "{tag}");
        assert_eq!(world.blobs(), BTreeSet::from([counts.clone()]), "{tag}");
    }
}

#[test]
fn sizes_and_tags_come_from_the_file_where_the_list_has_none() {
    let file = large("m-Q4_0.gguf", 5000);
    let world = World::new(vec![file.clone()]);
    world.mock.set(|b| b.bare_list = true);
    let pulled = world.pull(REPO).unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
}

#[test]
fn a_file_without_a_checksum_is_taken_and_counted() {
    let mut file = large("m-Q4_0.gguf", 5000);
    file.tag = "v1-of-a-mirror".to_string();
    let world = World::new(vec![file.clone()]);
    let pulled = world.pull(REPO).unwrap();
    assert_eq!((pulled.unchecked, pulled.bytes), (1, 5000));
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
}

#[test]
fn a_server_without_ranges_gives_the_whole_file() {
    let file = large("m-Q4_0.gguf", 50_001);
    let world = World::new(vec![file.clone()]);
    world
        .mock
        .set(|b| (b.no_ranges, b.cut) = (true, (2, 20_000)));
    // The first answer shows that there are no ranges. The second breaks off, and the third has its bytes once more.
    let settings = Settings {
        connections: 1,
        ..world.settings()
    };
    let pulled = Hub::new(settings).pull(&name(REPO), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
}

#[test]
fn a_connection_that_breaks_off_goes_on_where_it_was() {
    let file = large("m-Q4_0.gguf", 50_001);
    let world = World::new(vec![file.clone()]);
    world.mock.set(|b| b.cut = (12, 700));
    let pulled = world.pull(REPO).unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
    let sent: usize = world
        .mock
        .asked()
        .iter()
        .filter(|a| a.there)
        .map(|a| a.sent)
        .sum();
    assert_eq!(sent, 50_001, "no byte is sent twice");
}

#[test]
fn an_interrupted_pull_is_resumed_by_the_next() {
    let file = large("m-Q4_0.gguf", 50_001);
    let world = World::new(vec![file.clone()]);
    world.mock.set(|b| b.cut = (u32::MAX, 1700));
    let settings = Settings {
        retries: 0,
        connections: 2,
        ..world.settings()
    };
    let error = Hub::new(settings)
        .pull(&name(REPO), &mut |_| {})
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(!world.repo().join("snapshots").exists());
    assert_eq!(world.blobs().len(), 1, "what was downloaded is kept");
    assert!(world.hub().cached(&name(REPO), false).unwrap().is_none());
    world.mock.asked();
    world.mock.set(|b| b.cut = (0, 0));
    let pulled = world.pull(REPO).unwrap();
    assert!(
        pulled.bytes <= 49_001 && pulled.bytes > 40_000,
        "{}",
        pulled.bytes
    );
    let sent: usize = world
        .mock
        .asked()
        .iter()
        .filter(|a| a.there)
        .map(|a| a.sent)
        .sum();
    assert_eq!(sent as u64, pulled.bytes);
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
    assert_eq!(world.blobs(), BTreeSet::from([file.tag]));
}

#[test]
fn a_wrong_checksum_deletes_what_came() {
    for file in [
        large("m-Q4_0.gguf", 3000),
        small("m-Q4_0.gguf", "not large"),
    ] {
        let world = World::new(vec![file.clone()]);
        world.mock.set(|b| b.corrupt = true);
        world.refused(
            REPO,
            &["org/model: m-Q4_0.gguf", "checksum", &file.tag, "deleted"],
        );
        assert!(world.blobs().is_empty());
        assert!(!world.repo().join("refs/main").exists());
        world.mock.set(|b| b.corrupt = false);
        assert!(world.pull(REPO).is_ok());
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let world = World::new(vec![large("m-Q4_0.gguf", 3000)]);
    let say = |size| {
        world
            .mock
            .set(|b| (b.size, b.listed_size) = (Some(size), Some(size)));
    };
    say(1 << 43);
    world.refused(REPO, &["needs 8.0 TiB", "free", "HF_HUB_CACHE"]);
    // The largest size that is believed, and the next.
    say(1 << 44);
    world.refused(REPO, &["needs 16.0 TiB"]);
    say((1 << 44) + 1);
    world.refused(REPO, &["m-Q4_0.gguf has 17592186044417 bytes"]);
    say(u64::MAX);
    world.refused(REPO, &["m-Q4_0.gguf has 18446744073709551615 bytes"]);
    // A mirror may list names only.
    world.mock.set(|b| b.bare_list = true);
    say(1 << 44);
    world.refused(REPO, &["needs 16.0 TiB"]);
    for size in [(1 << 44) + 1, u64::MAX] {
        say(size);
        world.refused(
            REPO,
            &[
                "m-Q4_0.gguf",
                &format!("has {size} bytes, more than 16 TiB"),
            ],
        );
    }
    assert!(world.blobs().is_empty());
}

#[test]
fn sizes_that_contradict_each_other_are_refused() {
    let world = World::new(vec![large("m-Q4_0.gguf", 3000)]);
    for (there, listed) in [(2999, 3000), (3001, 3000), (3000, 2999), (3000, 3001)] {
        world
            .mock
            .set(|b| (b.size, b.listed_size) = (Some(there), Some(listed)));
        world.refused(
            REPO,
            &[
                "m-Q4_0.gguf",
                &format!("the server reports {there} bytes, the list of files {listed}"),
            ],
        );
        assert!(world.blobs().is_empty());
    }
    world
        .mock
        .set(|b| (b.size, b.listed_size) = (Some(3000), Some(3000)));
    assert_eq!(world.pull(REPO).unwrap().bytes, 3000);
}

#[test]
fn refusals_say_what_to_do() {
    let world = World::new(vec![large("m-Q4_0.gguf", 3000)]);
    let refuse = |count, status, code| world.mock.set(|b| b.refuse = (count, status, code));
    refuse(1, 401, "");
    world.refused(REPO, &["org/model:", "HF_TOKEN", "401"]);
    refuse(1, 403, "GatedRepo");
    world.refused(REPO, &["accept the terms", "/org/model", "HF_TOKEN", "403"]);
    refuse(1, 404, "RevisionNotFound");
    world.refused("org/model@v2", &["org/model@v2", "no such revision", "404"]);
    world.refused("org/other", &["org/other", "not found", "404"]);
    refuse(u32::MAX, 503, "");
    world.refused(REPO, &["try again later", "503"]);
    assert!(world.mock.asked().len() > 5);
    refuse(u32::MAX, 429, "");
    world.refused(REPO, &["too many", "429"]);
    let settings = Settings {
        token: Some("mine".to_string()),
        ..world.settings()
    };
    for (status, code, says) in [
        (403, "GatedRepo", "your token has no access"),
        (401, "", "your token is not valid"),
    ] {
        refuse(1, status, code);
        let hub = Hub::new(settings.clone());
        let error = hub.pull(&name(REPO), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // Some refusals pass.
    refuse(3, 429, "");
    assert!(world.pull(REPO).is_ok());
}

#[test]
fn an_address_that_is_no_longer_good_is_asked_for_again() {
    let file = large("m-Q4_0.gguf", 30_000);
    let world = World::new(vec![file.clone()]);
    world.mock.set(|b| b.refuse_there = (3, 403));
    let pulled = world.pull(REPO).unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
    let heads = world
        .mock
        .asked()
        .iter()
        .filter(|a| a.method == "HEAD")
        .count();
    assert!(heads >= 2, "{heads}");
}

#[test]
fn nobody_there_is_said_with_what_to_check() {
    let world = World::new(vec![]);
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let settings = Settings {
        endpoint: format!("http://{closed}"),
        ..world.settings()
    };
    let error = Hub::new(settings)
        .pull(&name(REPO), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no answer from 127.0.0.1") && error.contains("HTTPS_PROXY"),
        "{error}"
    );
}

#[test]
fn offline_takes_what_is_there_and_asks_nobody() {
    let world = World::new(vec![large("m-Q8_0.gguf", 3000)]);
    let offline = Hub::new(Settings {
        offline: true,
        ..world.settings()
    });
    let error = offline
        .get(&name(REPO), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("HF_HUB_OFFLINE") && error.contains("org/model"),
        "{error}"
    );
    world.pull(REPO).unwrap();
    world.mock.asked();
    for text in [
        REPO,
        "org/model:Q8_0",
        "org/model:m-Q8_0.gguf",
        &format!("org/model@{COMMIT}"),
    ] {
        assert!(offline.get(&name(text), &mut |_| {}).is_ok(), "{text}");
        assert!(offline.pull(&name(text), &mut |_| {}).is_ok(), "{text}");
    }
    for text in ["org/model:Q4_0", "org/model@v2", "org/other"] {
        let error = offline.get(&name(text), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Offline { .. }), "{text}: {error}");
    }
    assert!(world.mock.asked().is_empty());
}

#[test]
fn the_next_best_file_in_the_cache_is_used_only_if_the_hub_cannot_be_asked() {
    let world = World::new(vec![large("m-Q8_0.gguf", 3000)]);
    let eight = world.pull("org/model:Q8_0").unwrap().path;
    world.mock.set(|b| b.refuse = (u32::MAX, 503, ""));
    assert_eq!(
        world.hub().get(&name(REPO), &mut |_| {}).unwrap().path,
        eight
    );
    world.mock.set(|b| b.refuse = (u32::MAX, 404, ""));
    let refused = world.hub().get(&name(REPO), &mut |_| {});
    assert!(matches!(refused, Err(Error::Refused { status: 404, .. })));
    world.mock.set(|b| {
        b.refuse.0 = 0;
        b.files.push(large("m-Q4_K_M.gguf", 2000));
    });
    let four = world.hub().get(&name(REPO), &mut |_| {}).unwrap().path;
    assert!(four.ends_with("m-Q4_K_M.gguf"), "{}", four.display());
}

#[test]
fn a_split_model_and_a_directory_are_pulled_whole() {
    let parts = [
        "q/m-Q6_K-00001-of-00002.gguf",
        "q/m-Q6_K-00002-of-00002.gguf",
    ];
    let world = World::new(vec![
        large(parts[1], 2500),
        large(parts[0], 1500),
        large("m-Q8_0.gguf", 10),
    ]);
    let pulled = world.pull("org/model:Q6_K").unwrap();
    assert!(pulled.path.ends_with(parts[0]));
    assert!(
        pulled
            .path
            .with_file_name("m-Q6_K-00002-of-00002.gguf")
            .is_file()
    );
    assert_eq!((pulled.files, pulled.bytes), (2, 4000));
    world.refused("org/model:Q2_K", &["Q2_K", "m-Q8_0.gguf", parts[0]]);

    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let world = World::new(vec![
        small("config.json", "{}"),
        small("added_tokens.json", ""),
        small("tokenizer.json", "{\"a\": 1}"),
        small("model.safetensors.index.json", index),
        large("model-00001-of-00002.safetensors", 2000),
        large("model-00002-of-00002.safetensors", 3000),
        large("pytorch_model.bin", 10),
        small("README.md", "read me"),
    ]);
    let pulled = world.pull(REPO).unwrap();
    assert_eq!(pulled.path, world.repo().join("snapshots").join(COMMIT));
    assert_eq!(pulled.files, 6);
    assert!(
        !pulled.path.join("pytorch_model.bin").exists() && !pulled.path.join("README.md").exists()
    );
    assert_eq!(
        std::fs::read_to_string(pulled.path.join("tokenizer.json")).unwrap(),
        "{\"a\": 1}"
    );
    assert!(world.hub().cached(&name(REPO), true).unwrap().is_some());
    // With a shard gone it is not there, and comes back.
    std::fs::remove_file(pulled.path.join("model-00002-of-00002.safetensors")).unwrap();
    assert!(world.hub().cached(&name(REPO), true).unwrap().is_none());
    assert_eq!(
        world.hub().get(&name(REPO), &mut |_| {}).unwrap().bytes,
        0,
        "the blob is still there"
    );
    std::fs::remove_file(pulled.path.join("tokenizer.json")).unwrap();
    assert!(world.hub().cached(&name(REPO), true).unwrap().is_none());
}

#[test]
fn the_encoder_of_images_comes_along_and_goes_with_the_last_model() {
    let world = World::new(vec![
        large("m-Q4_K_M.gguf", 3000),
        large("m-Q8_0.gguf", 5000),
        large("mmproj-BF16.gguf", 70),
        large("mmproj-F16.gguf", 7000),
        large("mmproj-F32.gguf", 80),
    ]);
    let alone = Hub::new(Settings {
        encoders: false,
        ..world.settings()
    });
    let pulled = alone.pull(&name(REPO), &mut |_| {}).unwrap();
    assert_eq!((pulled.files, pulled.bytes), (1, 3000));
    // Asked again, the hub has what is missing.
    let pulled = world.pull(REPO).unwrap();
    assert_eq!((pulled.files, pulled.bytes), (2, 7000));
    assert!(pulled.path.ends_with("m-Q4_K_M.gguf"));
    let encoder = pulled.path.with_file_name("mmproj-F16.gguf");
    assert_eq!(std::fs::read(&encoder).unwrap().len(), 7000);
    assert_eq!(world.pull("org/model:Q8_0").unwrap().bytes, 5000);
    // Asked for by name, it brings nothing.
    assert_eq!(world.pull("org/model:mmproj-F32.gguf").unwrap().files, 1);
    let remove = |what: &str| {
        let removal = world.hub().removal(&name(what)).unwrap();
        let files = removal.files.clone();
        removal.apply().unwrap();
        files
    };
    assert_eq!(remove("org/model:Q8_0"), ["m-Q8_0.gguf"]);
    assert!(encoder.exists());
    let last = remove("org/model:Q4_K_M");
    assert_eq!(
        last,
        ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]
    );
    assert!(!world.repo().exists());
}

#[test]
fn several_that_want_the_same_file_download_it_once() {
    let file = large("m-Q4_0.gguf", 20_000);
    let world = World::new(vec![file.clone()]);
    let gate = Arc::new(Mutex::new(()));
    world.mock.set(|b| b.gate = Some(gate.clone()));
    let closed = gate.lock().unwrap();
    let waiting = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let pull = || {
            let mut waited = false;
            let tell = &mut |r: &welte_hub::Report| {
                if r.event == Event::Waiting && !std::mem::replace(&mut waited, true) {
                    waiting.fetch_add(1, Ordering::Relaxed);
                }
            };
            let pulled = world.hub().pull(&name(REPO), tell).unwrap();
            assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(pull)).collect();
        // The file comes once both others wait.
        while waiting.load(Ordering::Relaxed) < 2 && !threads.iter().any(|t| t.is_finished()) {
            std::thread::yield_now();
        }
        drop(closed);
    });
    assert_eq!(waiting.load(Ordering::Relaxed), 2);
    let sent: usize = world
        .mock
        .asked()
        .iter()
        .filter(|a| a.there)
        .map(|a| a.sent)
        .sum();
    assert_eq!(sent, 20_000);
}

#[test]
fn without_links_the_file_itself_lies_in_the_snapshot() {
    let file = large("m-Q4_0.gguf", 2000);
    let world = World::new(vec![file.clone()]);
    let hub = Hub::new(Settings {
        links: false,
        ..world.settings()
    });
    let path = hub.pull(&name(REPO), &mut |_| {}).unwrap().path;
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(std::fs::read(&path).unwrap(), file.bytes);
    assert!(world.blobs().is_empty());
    assert_eq!(hub.repos().unwrap()[0].bytes, 2000);
    let removal = hub.removal(&name(REPO)).unwrap();
    assert_eq!(removal.bytes, 2000);
    removal.apply().unwrap();
    assert!(!world.repo().exists());
}

/// A proxy that opens a way for whoever asks, and counts them.
fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let asked = count.clone();
    std::thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            asked.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && near.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let mut far = TcpStream::connect(head.split(' ').nth(1).unwrap()).unwrap();
                near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let _ = std::io::copy(&mut far, &mut near);
            });
        }
    });
    (address, count)
}

#[test]
fn a_proxy_is_asked_unless_the_host_is_excepted() {
    let file = large("m-Q4_0.gguf", 3000);
    for (except, through) in [(vec![], true), (vec!["127.0.0.1".to_string()], false)] {
        let world = World::new(vec![file.clone()]);
        let (address, count) = proxy();
        let proxies = Proxies {
            http: Some(address),
            https: None,
            except,
        };
        let hub = Hub::new(Settings {
            proxies,
            ..world.settings()
        });
        let pulled = hub.pull(&name(REPO), &mut |_| {}).unwrap();
        assert_eq!(std::fs::read(pulled.path).unwrap(), file.bytes);
        assert_eq!(count.load(Ordering::Relaxed) > 0, through);
    }
    let world = World::new(vec![]);
    let proxies = Proxies {
        https: Some("not an address".to_string()),
        ..Proxies::default()
    };
    let hub = Hub::new(Settings {
        proxies,
        ..world.settings()
    });
    let error = hub.pull(&name(REPO), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("HTTPS_PROXY"), "{error}");
}
