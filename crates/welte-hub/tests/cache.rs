//! The cache as other programs leave it, and taking things out of it.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use welte_hub::{Error, Hub, ModelName, Settings};

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

fn hub(root: &Path) -> Hub {
    let root = root.as_os_str().to_os_string();
    let settings = Settings::from_variables(&|name| match name {
        "HF_HUB_CACHE" => Some(root.clone()),
        "HF_HOME" => Some("/nowhere".into()),
        "HF_HUB_OFFLINE" => Some("1".into()),
        _ => None,
    });
    Hub::new(settings.unwrap())
}

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

/// A file of a snapshot, as the reference lays it out.
fn put(repo: &Path, commit: &str, file: &str, tag: &str, bytes: usize) -> PathBuf {
    let blob = repo.join("blobs").join(tag);
    fs::create_dir_all(repo.join("blobs")).unwrap();
    if !blob.exists() {
        fs::write(&blob, vec![7; bytes]).unwrap();
    }
    let pointer = repo.join("snapshots").join(commit).join(file);
    fs::create_dir_all(pointer.parent().unwrap()).unwrap();
    let up = "../".repeat(2 + file.matches('/').count());
    symlink(format!("{up}blobs/{tag}"), &pointer).unwrap();
    pointer
}

fn point(repo: &Path, revision: &str, commit: &str) {
    let path = repo.join("refs").join(revision);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, commit).unwrap();
}

/// Two revisions that share a file, and a second model.
fn world() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("models--org--model");
    put(&repo, OLD, "m-Q4_K_M.gguf", "old-four", 100);
    put(&repo, OLD, "m-Q8_0.gguf", "eight", 1000);
    put(&repo, NEW, "m-Q4_K_M.gguf", "new-four", 200);
    put(&repo, NEW, "m-Q8_0.gguf", "eight", 1000);
    put(&repo, NEW, "big/m-F16.gguf", "sixteen", 5000);
    point(&repo, "main", NEW);
    point(&repo, "refs/pr/1", OLD);
    fs::write(repo.join("blobs/other.incomplete"), vec![1; 8192]).unwrap();
    let other = folder.path().join("models--other");
    put(&other, NEW, "config.json", "c", 2);
    put(&other, NEW, "tokenizer.json", "t", 3);
    put(&other, NEW, "model.safetensors", "w", 50);
    point(&other, "main", NEW);
    fs::create_dir_all(folder.path().join("datasets--org--data/blobs")).unwrap();
    (folder, repo)
}

#[test]
fn what_other_programs_downloaded_is_found() {
    let (folder, repo) = world();
    let hub = hub(folder.path());
    let path = |text: &str| hub.get(&name(text), &mut |_| {}).unwrap().path;
    assert_eq!(
        path("org/model"),
        repo.join("snapshots").join(NEW).join("m-Q4_K_M.gguf")
    );
    assert_eq!(
        path("org/model@refs/pr/1:Q8_0"),
        repo.join("snapshots").join(OLD).join("m-Q8_0.gguf")
    );
    assert_eq!(
        path(&format!("org/model@{OLD}:Q8_0")),
        path("org/model@refs/pr/1:Q8_0")
    );
    assert_eq!(
        path("other"),
        folder.path().join("models--other/snapshots").join(NEW)
    );
    // A link to nothing is not there.
    fs::remove_file(repo.join("blobs/new-four")).unwrap();
    assert!(
        hub.cached(&name("org/model:Q4_K_M"), false)
            .unwrap()
            .is_none()
    );
}

#[test]
fn the_list_names_everything_that_can_be_run() {
    let (folder, _) = world();
    let repos = hub(folder.path()).repos().unwrap();
    let models: Vec<(String, u64)> = repos
        .iter()
        .flat_map(|r| r.models())
        .map(|m| (m.name, m.bytes))
        .collect();
    let expected = [
        ("org/model:big/m-F16.gguf", 5000),
        ("org/model:m-Q4_K_M.gguf", 200),
        ("org/model:m-Q8_0.gguf", 1000),
        ("org/model@refs/pr/1:m-Q4_K_M.gguf", 100),
        ("org/model@refs/pr/1:m-Q8_0.gguf", 1000),
        ("other", 55),
    ];
    assert_eq!(
        models,
        expected.map(|(name, bytes)| (name.to_string(), bytes))
    );
    assert_eq!(
        (repos[0].bytes, repos[0].unfinished, repos[1].bytes),
        (6300, 8192, 55)
    );
    for (name_, _) in models {
        assert!(
            hub(folder.path()).get(&name(&name_), &mut |_| {}).is_ok(),
            "{name_}"
        );
    }
}

#[test]
fn removing_frees_what_nothing_else_refers_to() {
    let (folder, repo) = world();
    let hub = hub(folder.path());
    // One revision: the shared file stays.
    let removal = hub.removal(&name("org/model@refs/pr/1")).unwrap();
    assert_eq!((removal.bytes, removal.files.len()), (100, 2));
    removal.apply().unwrap();
    assert!(!repo.join("snapshots").join(OLD).exists() && !repo.join("refs/refs/pr/1").exists());
    assert!(repo.join("blobs/eight").exists() && !repo.join("blobs/old-four").exists());
    // One file.
    let removal = hub.removal(&name("org/model:F16")).unwrap();
    assert_eq!(
        (removal.bytes, removal.files.as_slice()),
        (5000, &["big/m-F16.gguf".to_string()][..])
    );
    removal.apply().unwrap();
    assert!(!repo.join("snapshots").join(NEW).join("big").exists());
    assert!(hub.get(&name("org/model:Q8_0"), &mut |_| {}).is_ok());
    // The rest, with what was never finished.
    let removal = hub.removal(&name("org/model")).unwrap();
    assert_eq!(removal.bytes, 1200 + 8192);
    removal.apply().unwrap();
    assert!(!repo.exists());
    assert_eq!(hub.repos().unwrap().len(), 1);
    for text in ["org/model", "org/model@v2", "nobody/nothing"] {
        let error = hub.removal(&name(text)).unwrap_err();
        assert!(matches!(error, Error::NotCached { .. }), "{text}: {error}");
    }
    let error = hub.removal(&name("other:Q4_0")).unwrap_err().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
}

#[test]
fn a_file_in_two_revisions_goes_from_both() {
    let (folder, repo) = world();
    let removal = hub(folder.path()).removal(&name("org/model:Q8_0")).unwrap();
    assert_eq!(removal.bytes, 1000);
    removal.apply().unwrap();
    assert!(!repo.join("blobs/eight").exists());
    assert_eq!(
        hub(folder.path()).repo(&name("org/model")).unwrap().bytes,
        5300
    );
}

#[test]
fn a_model_that_is_being_downloaded_stays() {
    let (folder, repo) = world();
    let locks = folder.path().join(".locks/models--org--model");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join("sixteen.lock")).unwrap();
    lock.lock().unwrap();
    let error = hub(folder.path())
        .removal(&name("org/model"))
        .unwrap()
        .apply()
        .unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(repo.join("blobs/eight").exists());
    drop(lock);
    hub(folder.path())
        .removal(&name("org/model"))
        .unwrap()
        .apply()
        .unwrap();
    assert!(!repo.exists() && !locks.exists());
}

/// Folders deeper than any model's are not searched, and links to folders are not followed.
#[test]
fn a_snapshot_is_searched_within_bounds() {
    let (folder, repo) = world();
    let outside = tempfile::tempdir().unwrap();
    let kept = outside.path().join("m-Q2_K.gguf");
    fs::write(&kept, [1]).unwrap();
    symlink(outside.path(), repo.join("snapshots").join(NEW).join("to")).unwrap();
    let deep = |levels: usize, last: &str| format!("{}{last}", "d/".repeat(levels));
    for (levels, last) in [(16, "in"), (17, "out")] {
        put(&repo, NEW, &deep(levels, last), "deep", 1);
        point(&repo, &deep(levels, last), OLD);
    }
    let found = hub(folder.path()).repo(&name("org/model")).unwrap();
    let at = |commit: &str| found.snapshots.iter().find(|s| s.commit == commit);
    let files = at(NEW).unwrap().files.iter().map(|f| f.name.as_str());
    let deepest = deep(16, "in");
    assert_eq!(
        files.collect::<Vec<_>>(),
        ["big/m-F16.gguf", &deepest, "m-Q4_K_M.gguf", "m-Q8_0.gguf"]
    );
    assert_eq!(at(OLD).unwrap().revisions, [&deepest, "refs/pr/1"]);
    let removal = hub(folder.path()).removal(&name("org/model")).unwrap();
    removal.apply().unwrap();
    assert!(!repo.exists() && kept.exists());
}

/// A download that was given up leaves no snapshot.
#[test]
fn what_has_no_snapshot_can_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("models--org--model");
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::write(repo.join("blobs/x.incomplete"), vec![1; 8192]).unwrap();
    let removal = hub(folder.path()).removal(&name("org/model")).unwrap();
    assert_eq!(removal.bytes, 8192);
    removal.apply().unwrap();
    assert!(!repo.exists());
    let (folder, repo) = world();
    point(&repo, "gone", &OLD.replace('1', "3"));
    let error = hub(folder.path()).removal(&name("org/model@gone"));
    assert!(matches!(error, Err(Error::NotCached { .. })), "{error:?}");
}

#[test]
fn what_cannot_be_deleted_is_named() {
    let (folder, repo) = world();
    let removal = hub(folder.path()).removal(&name("org/model:F16")).unwrap();
    let pointer = repo.join("snapshots").join(NEW).join("big/m-F16.gguf");
    fs::remove_file(&pointer).unwrap();
    fs::create_dir(&pointer).unwrap();
    let error = removal.apply().unwrap_err();
    assert!(error.to_string().contains("m-F16.gguf"), "{error}");
}

const HASH: &str = "abababababababababababababababababababababababababababababababab";

/// A file in the store that models share.
fn store(root: &Path) -> PathBuf {
    let stored = root.join("blobs/ab").join(HASH);
    fs::create_dir_all(stored.parent().unwrap()).unwrap();
    fs::write(&stored, vec![1; 300]).unwrap();
    stored
}

/// A model whose file is that of the store.
fn link_to_store(root: &Path, model: &str) {
    let repo = root.join(format!("models--org--{model}"));
    fs::create_dir_all(repo.join("blobs")).unwrap();
    symlink(format!("../../blobs/ab/{HASH}"), repo.join("blobs/tag")).unwrap();
    put(&repo, NEW, "m-Q8_0.gguf", "tag", 0);
    point(&repo, "main", NEW);
}

#[test]
fn a_file_that_was_linked_since_the_plan_stays() {
    let folder = tempfile::tempdir().unwrap();
    let stored = store(folder.path());
    link_to_store(folder.path(), "one");
    let hub = hub(folder.path());
    let removal = hub.removal(&name("org/one")).unwrap();
    link_to_store(folder.path(), "two");
    removal.apply().unwrap();
    assert!(stored.exists());
    // Not every program notes who refers to a file.
    hub.removal(&name("org/two")).unwrap().apply().unwrap();
    assert!(!stored.exists());
}

#[test]
fn a_store_that_models_share_keeps_what_is_still_linked() {
    let folder = tempfile::tempdir().unwrap();
    let stored = store(folder.path());
    fs::write(stored.with_extension("refs"), "both").unwrap();
    for model in ["one", "two"] {
        link_to_store(folder.path(), model);
    }
    let hub = hub(folder.path());
    assert_eq!(
        hub.get(&name("org/one"), &mut |_| {})
            .unwrap()
            .path
            .metadata()
            .unwrap()
            .len(),
        300
    );
    for (repo, bytes) in [("org/one", 0), ("org/two", 300)] {
        let removal = hub.removal(&name(repo)).unwrap();
        assert_eq!(removal.bytes, bytes, "{repo}");
        removal.apply().unwrap();
        assert_eq!(stored.exists(), bytes == 0);
    }
    assert!(!stored.with_extension("refs").exists());
}
