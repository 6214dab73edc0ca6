//! The prefix store on a real folder.

use super::*;
use crate::cache::{GENERATED, Key};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use welte_table::{CacheKind, CacheSpec, Format, Program};

const PAGE: usize = 4;
const DEVICE: &str = "a processor";

/// Two caches with pages of 64 and 32 bytes.
fn program() -> Program {
    let cache = |kv_heads| CacheSpec {
        name: "kv".to_string(),
        buffer: 0,
        pages: 10,
        kind: CacheKind::Attention {
            format: Format::F16,
            layers: 1,
            kv_heads,
            head_dim: 2,
            window: 0,
        },
    };
    Program {
        weights: Vec::new(),
        buffers: Vec::new(),
        caches: vec![cache(2), cache(1)],
        vocab: 100,
        context: 64,
        page: PAGE as u32,
        slots: 1,
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: Vec::new(),
    }
}

fn layout() -> Layout {
    Layout::new(&program(), &[7; 32], "cpu").unwrap()
}

fn options(folder: &TempDir) -> PrefixStoreOptions {
    PrefixStoreOptions {
        dir: folder.path().to_path_buf(),
        bytes: 1 << 20,
    }
}

fn open(folder: &TempDir) -> PrefixStore {
    PrefixStore::open(&options(folder), layout(), DEVICE)
}

/// What the pages of these keys hold in these tests.
fn content(keys: &[Key], cache: usize) -> u8 {
    keys.iter().fold(cache as u8 + 1, |sum, key| {
        sum.wrapping_mul(31).wrapping_add(*key as u8)
    })
}

/// Writes all pages of a text.
fn write(store: &mut PrefixStore, keys: &[Key]) {
    let mut place = store.layout().start();
    for chunk in keys.chunks(PAGE) {
        let written = store.write::<()>(&place, chunk, true, &mut |cache, bytes| {
            bytes.fill(content(chunk, cache));
            Ok(())
        });
        written.unwrap();
        place = place.after(chunk);
    }
}

/// Writes all pages of a text with a store that is then closed.
fn write_and_close(folder: &TempDir, keys: &[Key]) {
    write(&mut open(folder), keys);
}

fn chain(store: &PrefixStore, keys: &[Key], exact: bool) -> Vec<Stored> {
    let mut chain = Vec::new();
    store.chain(store.layout().start(), keys, exact, &mut chain);
    chain
}

/// Waits for the next answer.
fn answer(store: &mut PrefixStore) -> Answer {
    loop {
        match store.poll() {
            Some(answer) => return answer,
            None => std::thread::yield_now(),
        }
    }
}

/// Reads what the store has of a text, checks the pages, and returns the keys.
fn read(store: &mut PrefixStore, keys: &[Key], exact: bool) -> Vec<Key> {
    let mut found = Vec::new();
    for stored in chain(store, keys, exact) {
        assert!(store.read(stored.id));
        let answer = answer(store);
        assert_eq!(answer.id, stored.id);
        let Some(page) = answer.page else {
            break;
        };
        let keys: Vec<Key> = page.keys().collect();
        assert_eq!(keys.len(), stored.tokens);
        for (cache, size) in [64, 32].into_iter().enumerate() {
            assert_eq!(
                page.page(store.layout(), cache),
                vec![content(&keys, cache); size]
            );
        }
        found.extend(keys);
        store.recycle(page);
    }
    assert!(store.poll().is_none());
    found
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

const NOTHING: [Key; 0] = [];
const TEXT: [Key; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

#[test]
fn another_store_finds_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    write_and_close(&folder, &TEXT);
    assert_eq!(files(&folder).len(), 3);
    let mut store = open(&folder);
    assert_eq!(read(&mut store, &TEXT, true), TEXT);
    // The text goes on, ends earlier, differs, or is another one.
    let longer: Vec<Key> = TEXT.into_iter().chain([11, 12, 13]).collect();
    assert_eq!(read(&mut store, &longer, true), TEXT);
    assert_eq!(read(&mut store, &TEXT[..9], true), TEXT[..8]);
    assert_eq!(read(&mut store, &[1, 2, 3, 4, 5, 6, 7, 0], true), TEXT[..4]);
    assert_eq!(read(&mut store, &[0, 2, 3, 4, 5, 6, 7, 8], true), NOTHING);
    let status = store.monitor().status();
    assert_eq!((status.pages_read, status.files_rejected), (9, 0));
    assert_eq!(status.problem, None);
    assert!(status.read_rate > 0.0);
}

#[test]
fn a_page_of_one_place_is_no_page_of_another() {
    let folder = tempfile::tempdir().unwrap();
    write_and_close(&folder, &TEXT);
    assert_eq!(read(&mut open(&folder), &TEXT[4..], true), NOTHING);
}

#[test]
fn other_models_arithmetics_and_shapes_are_misses() {
    let folder = tempfile::tempdir().unwrap();
    write_and_close(&folder, &TEXT);
    let changed = |change: &dyn Fn(&mut Program), model: u8, arithmetic: &str| {
        let mut program = program();
        change(&mut program);
        let layout = Layout::new(&program, &[model; 32], arithmetic).unwrap();
        let store = PrefixStore::open(&options(&folder), layout, DEVICE);
        chain(&store, &TEXT, false).len()
    };
    let same = |_: &mut Program| ();
    assert_eq!(changed(&same, 7, "cpu"), 3);
    assert_eq!(changed(&|p| p.caches[0].pages = 99, 7, "cpu"), 3);
    assert_eq!(changed(&same, 8, "cpu"), 0);
    assert_eq!(changed(&same, 7, "gpu"), 0);
    assert_eq!(changed(&|p| p.page = 2, 7, "cpu"), 0);
    let format = |p: &mut Program| {
        if let CacheKind::Attention { format, .. } = &mut p.caches[0].kind {
            *format = Format::F32;
        }
    };
    assert_eq!(changed(&format, 7, "cpu"), 0);
}

#[test]
fn recurrent_caches_are_not_stored() {
    let mut program = program();
    program.caches[1].kind = CacheKind::Recurrent {
        layers: 1,
        floats: 1,
    };
    assert!(Layout::new(&program, &[7; 32], "cpu").is_none());
}

#[test]
fn roles_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = TEXT;
    for key in &mut keys[2..7] {
        *key |= GENERATED;
    }
    write_and_close(&folder, &keys);
    let mut store = open(&folder);
    assert_eq!(read(&mut store, &TEXT, true), NOTHING);
    assert_eq!(read(&mut store, &TEXT, false), keys);
    assert_eq!(read(&mut store, &keys, true), keys);
    // The role of the prompt is preferred.
    write(&mut store, &TEXT[..4]);
    drop(store);
    assert_eq!(read(&mut open(&folder), &TEXT, false), TEXT[..4]);
}

#[test]
fn an_error_of_the_device_loses_the_page_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder);
    let start = store.layout().start();
    for _ in 0..STAGING + 1 {
        let written = store.write(&start, &TEXT[..4], true, &mut |_, _| Err("device"));
        assert_eq!(written, Err("device"));
    }
    write(&mut store, &TEXT);
    drop(store);
    assert_eq!(files(&folder).len(), 3);
}

/// The only file of a text of one page, and its content.
fn one_file(folder: &TempDir) -> (PathBuf, Vec<u8>) {
    write_and_close(folder, &TEXT[..4]);
    let path = files(folder).remove(0);
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

/// The store refuses the file, removes it, and says so.
fn is_rejected(folder: &TempDir, what: &str) {
    let mut store = open(folder);
    assert_eq!(chain(&store, &TEXT, true).len(), 1, "{what}");
    assert_eq!(read(&mut store, &TEXT, true), NOTHING, "{what}");
    assert_eq!(chain(&store, &TEXT, true), [], "{what}");
    let status = store.monitor().status();
    assert_eq!((status.pages_read, status.files_rejected), (0, 1), "{what}");
    assert!(status.problem.is_some(), "{what}");
    assert_eq!(files(folder).len(), 0, "{what}");
}

#[test]
fn a_file_that_is_cut_short_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = one_file(&folder);
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        is_rejected(&folder, &format!("{length} bytes"));
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&mut open(&folder), &TEXT, true), TEXT[..4]);
}

#[test]
fn a_file_with_a_changed_byte_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = one_file(&folder);
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1 << (i % 8);
        fs::write(&path, &damaged).unwrap();
        is_rejected(&folder, &format!("byte {i}"));
    }
}

#[test]
fn a_file_that_is_too_long_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = one_file(&folder);
    for extra in [1, 1000, 100_000] {
        fs::write(&path, [&bytes[..], &vec![0; extra]].concat()).unwrap();
        is_rejected(&folder, &format!("{extra} bytes more"));
    }
}

/// A problem that may pass, as a process without descriptors has, costs no page.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_read_now_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = one_file(&folder);
    fs::remove_file(&path).unwrap();
    let mut store = {
        fs::write(&path, &bytes).unwrap();
        open(&folder)
    };
    fs::remove_file(&path).unwrap();
    // A link to itself cannot be opened (ELOOP).
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert_eq!(read(&mut store, &TEXT, true), NOTHING);
    let status = store.monitor().status();
    assert_eq!(status.files_rejected, 0);
    assert!(status.problem.is_some());
    assert!(path.symlink_metadata().is_ok());
    fs::remove_file(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&mut store, &TEXT, true), TEXT[..4]);
}

/// A valid checksum does not make a file the page of its name.
#[test]
fn a_file_under_a_wrong_name_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = one_file(&folder);
    let other = tempfile::tempdir().unwrap();
    write_and_close(&other, &[9, 9, 9, 9]);
    fs::copy(&files(&other)[0], &path).unwrap();
    is_rejected(&folder, "other keys");
    // The same keys, but of another model.
    let model = Layout::new(&program(), &[8; 32], "cpu").unwrap();
    let mut store = PrefixStore::open(&options(&other), model, DEVICE);
    write(&mut store, &TEXT[..4]);
    drop(store);
    for file in files(&other) {
        fs::copy(file, &path).unwrap();
        is_rejected(&folder, "another model");
    }
}

#[test]
fn foreign_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = one_file(&folder);
    let foreign = ["notes.txt", "00.page", "zz-zz-zz.page", "..page"];
    for name in foreign {
        fs::write(folder.path().join(name), "mine").unwrap();
    }
    fs::create_dir(folder.path().join("folder")).unwrap();
    let upper = path.file_name().unwrap().to_string_lossy().to_uppercase();
    fs::write(folder.path().join(upper.replace("PAGE", "page")), "mine").unwrap();
    let mut small = options(&folder);
    small.bytes = 1;
    let store = PrefixStore::open(&small, layout(), DEVICE);
    drop(store);
    assert_eq!(files(&folder).len(), foreign.len() + 2);
    assert!(!path.exists());
}

#[test]
fn a_folder_in_place_of_a_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = one_file(&folder);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    is_rejected(&folder, "folder");
}

#[test]
fn a_file_that_another_process_removed_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    write_and_close(&folder, &TEXT);
    let mut store = open(&folder);
    for file in files(&folder) {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(read(&mut store, &TEXT, true), NOTHING);
    assert_eq!(store.monitor().status().files_rejected, 0);
    assert_eq!(store.monitor().status().problem, None);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let options = PrefixStoreOptions {
        dir: file.join("store"),
        bytes: 1000,
    };
    let mut store = PrefixStore::open(&options, layout(), DEVICE);
    let problem = store.monitor().status().problem.unwrap();
    assert!(problem.contains("file/store"), "{problem}");
    write(&mut store, &TEXT);
    assert_eq!(read(&mut store, &TEXT, false), NOTHING);
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let full = |path: &Path, bytes: &[u8]| {
        fs::File::create_new(path)?.write_all(&bytes[..bytes.len() / 2])?;
        Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
    };
    let mut store = PrefixStore::open_with(&options(&folder), layout(), DEVICE, Box::new(full));
    write(&mut store, &TEXT);
    while store.monitor().status().pages_lost < 3 {
        std::thread::yield_now();
    }
    let problem = store.monitor().status().problem.unwrap();
    assert!(problem.contains(".page: "), "{problem}");
    assert_eq!(store.monitor().status().pages_written, 0);
    assert_eq!(read(&mut store, &TEXT, true), NOTHING);
    drop(store);
    assert_eq!(files(&folder).len(), 0);
}

#[test]
fn pages_that_the_disk_is_too_slow_for_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let slow = {
        let gate = gate.clone();
        move |path: &Path, bytes: &[u8]| {
            let _open = gate.lock();
            fs::write(path, bytes)
        }
    };
    let mut store = PrefixStore::open_with(&options(&folder), layout(), DEVICE, Box::new(slow));
    let mut place = store.layout().start();
    for page in 0..STAGING as Key + 3 {
        let keys = [page; PAGE];
        let written = store.write::<()>(&place, &keys, false, &mut |_, _| Ok(()));
        written.unwrap();
        place = place.after(&keys);
    }
    let monitor = store.monitor();
    // The disk goes on before anything is asserted: a store that is dropped waits for it.
    let lost = monitor.status().pages_lost;
    drop(closed);
    assert_eq!(lost, 3);
    drop(store);
    let status = monitor.status();
    assert_eq!(status.pages_written, STAGING as u64);
    assert_eq!(status.pages_lost, 3);
    assert_eq!(files(&folder).len(), STAGING);
}

/// Sets when a file was last used, `age` seconds ago.
fn set_age(path: &Path, age: u64) {
    let file = fs::File::options().append(true).open(path).unwrap();
    let time = SystemTime::now() - Duration::from_secs(age);
    file.set_modified(time).unwrap();
}

#[test]
fn the_size_bound_holds_and_the_oldest_files_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = one_file(&folder);
    let file = bytes.len() as u64;
    let mut options = options(&folder);
    options.bytes = 3 * file + file / 2;
    let total = || -> u64 {
        let sizes = files(&folder)
            .into_iter()
            .map(|f| f.metadata().unwrap().len());
        sizes.sum()
    };
    // Four more texts, of which the first is the oldest.
    for first in 20..24 {
        let before = files(&folder);
        write_and_close(&folder, &[first; 4]);
        let new = files(&folder).into_iter().find(|f| !before.contains(f));
        set_age(&new.unwrap(), 1000 - first);
    }
    // Reading makes a page as new as writing, also for the next process.
    let mut store = open(&folder);
    let used = chain(&store, &[20; 4], true);
    assert_eq!(used.len(), 1);
    store.used(used);
    drop(store);
    let mut store = PrefixStore::open(&options, layout(), DEVICE);
    for first in 30..40 {
        write(&mut store, &[first; 4]);
        while store.monitor().status().pages_written < (first - 29) {
            std::thread::yield_now();
        }
        assert!(total() <= options.bytes);
        assert!(store.monitor().status().bytes <= options.bytes);
        assert_eq!(chain(&store, &[first; 4], true).len(), 1);
        store.used(chain(&store, &[20; 4], true));
    }
    assert_eq!(read(&mut store, &[20; 4], true), [20; 4]);
    assert_eq!(read(&mut store, &[38; 4], true), [38; 4]);
    assert_eq!(chain(&store, &[22; 4], true), []);
    assert_eq!(chain(&store, &[37; 4], true), []);
    drop(store);
    // A file that does not fit at all is not written.
    options.bytes = file - 1;
    let mut store = PrefixStore::open(&options, layout(), DEVICE);
    write(&mut store, &[50; 4]);
    while store.monitor().status().pages_lost == 0 {
        std::thread::yield_now();
    }
    assert!(
        store
            .monitor()
            .status()
            .problem
            .unwrap()
            .contains("exceeds the limit")
    );
    drop(store);
    assert_eq!(files(&folder).len(), 0);
}

#[test]
fn two_stores_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2 as Key {
            let folder = &folder;
            scope.spawn(move || {
                let mut store = open(folder);
                for text in 0..100 {
                    // Every second text is written by both.
                    let first = text * (1 + writer * (text % 2));
                    write(&mut store, &[first, 2, 3, 4, 5, 6]);
                }
                assert_eq!(store.monitor().status().problem, None);
            });
        }
    });
    let mut store = open(&folder);
    for first in 0..100 {
        assert_eq!(read(&mut store, &[first, 2, 3, 4, 5, 6], true).len(), 6);
    }
    assert!(
        files(&folder)
            .iter()
            .all(|file| file.extension().unwrap() == "page")
    );
}

#[test]
fn only_old_unfinished_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("1-1.unfinished");
    let new = folder.path().join("1-2.unfinished");
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    set_age(&old, 4000);
    drop(open(&folder));
    assert_eq!(files(&folder), [new]);
}

#[test]
fn temporary_names_are_never_those_of_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let names = |folder: &TempDir| {
        let (folder, _) = folder::Folder::open(folder.path(), 1);
        (0..100).map(move |_| folder.unfinished())
    };
    // Two stores stand for two containers whose processes have the same number.
    let all: std::collections::BTreeSet<_> = names(&folder).chain(names(&folder)).collect();
    assert_eq!(all.len(), 200);
    let process = std::process::id().to_string();
    for path in all {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let digits = name.strip_suffix(".unfinished").unwrap();
        assert!(digits.len() == 32 && digits != process, "{name}");
    }
}

#[cfg(unix)]
#[test]
fn files_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder);
    options.dir = folder.path().join("new/prefixes");
    let mut store = PrefixStore::open(&options, layout(), DEVICE);
    write(&mut store, &TEXT);
    store.keep_rates(Rates {
        read: 3e9,
        compute: 50.0,
    });
    drop(store);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&options.dir), 0o700);
    let files: Vec<_> = fs::read_dir(&options.dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    assert!(
        files
            .iter()
            .any(|file| file.extension().unwrap() == "rates")
    );
    assert!(files.len() > 2);
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn the_oldest_files_go_first_although_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = one_file(&folder);
    let mut options = options(&folder);
    options.bytes = 3 * bytes.len() as u64;
    // What is there was written a year ahead of the clock of now.
    let ahead = SystemTime::now() + Duration::from_secs(365 * 24 * 3600);
    for path in files(&folder) {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(ahead).unwrap();
    }
    for first in 30..40 {
        let mut store = PrefixStore::open(&options, layout(), DEVICE);
        write(&mut store, &[first; 4]);
        drop(store);
        // Each process has its own view of the folder; the newest pages are in all of them.
        let store = open(&folder);
        for newest in first.saturating_sub(2).max(30)..=first {
            assert_eq!(
                chain(&store, &[newest; 4], true).len(),
                1,
                "{newest} of {first}"
            );
        }
    }
}

#[test]
fn unfinished_files_of_a_time_to_come_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.unfinished");
    fs::write(&path, "half").unwrap();
    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(7200))
        .unwrap();
    drop(open(&folder));
    assert!(files(&folder).is_empty());
}

#[test]
fn the_faster_way_is_taken() {
    let rates = |read, compute| Rates { read, compute };
    // 100 bytes take 1 second, 10 tokens take 2.
    assert!(rates(100.0, 5.0).reading_is_faster(100, 10));
    assert!(!rates(40.0, 5.0).reading_is_faster(100, 10));
    // Without both rates, reading is tried.
    assert!(rates(0.0, 5.0).reading_is_faster(100, 10));
    assert!(rates(1.0, 0.0).reading_is_faster(100, 10));
}

#[test]
fn rates_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let rates = Rates {
        read: 3e9,
        compute: 500.0,
    };
    let store = open(&folder);
    assert_eq!(store.kept_rates(), Rates::default());
    store.keep_rates(rates);
    drop(store);
    let store = open(&folder);
    assert_eq!(store.kept_rates(), rates);
    assert_eq!(store.read_rate(), 3e9);
    // An incomplete measurement does not replace them, nor does one without reading.
    for read in [0.0, 3e9] {
        let compute = 1.0;
        store.keep_rates(Rates { read, compute });
    }
    drop(store);
    assert_eq!(open(&folder).kept_rates(), rates);
    let other = PrefixStore::open(&options(&folder), layout(), "another processor");
    assert_eq!(other.kept_rates(), Rates::default());
}

#[test]
fn damaged_and_old_rates_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let rates = Rates {
        read: 3e9,
        compute: 500.0,
    };
    open(&folder).keep_rates(rates);
    let path = files(&folder).remove(0);
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        for content in [&damaged[..], &bytes[..at]] {
            fs::write(&path, content).unwrap();
            assert_eq!(open(&folder).kept_rates(), Rates::default(), "byte {at}");
        }
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(&folder).kept_rates(), rates);
    set_age(&path, 25 * 3600);
    assert_eq!(open(&folder).kept_rates(), Rates::default());
}

/// A store does not see what another process writes, so it lists the folder from time to time.
#[test]
fn files_of_another_process_count_too() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = one_file(&folder);
    let mut options = options(&folder);
    options.bytes = 100 * bytes.len() as u64;
    let mut store = PrefixStore::open(&options, layout(), DEVICE);
    let mut other = open(&folder);
    for text in 0..60 {
        write(&mut other, &[1000 + text; 4]);
    }
    drop(other);
    for text in 0..80 {
        write(&mut store, &[2000 + text; 4]);
    }
    drop(store);
    assert_eq!(files(&folder).len(), 100);
}
