//! Prefixes in host memory and on disk: they outlive eviction, those on disk the engine, too. They change no token, and damage is harmless.

mod common;

use common::*;
use std::path::Path;
use std::time::Duration;
use welte::{
    DeviceChoice, Engine, EngineOptions, Error, Model, Outcome, PrefixStoreOptions,
    PrefixStoreStatus, Request,
};

/// Positions of a page.
const PAGE: usize = 64;

fn with_pool(slots: u32, positions: u32) -> Model {
    with_pieces(slots, positions, options(DeviceChoice::CPU).prompt_rows)
}

fn with_pieces(slots: u32, positions: u32, rows: u32) -> Model {
    load(
        TINY,
        &with(options(DeviceChoice::CPU), |o| {
            o.prompt_rows = rows;
            (o.slots, o.context) = (slots, 512);
            o.cache_positions = positions;
            o.prefix_store = true;
        }),
    )
}

fn store(folder: &Path) -> EngineOptions {
    with(EngineOptions::default(), |o| {
        o.prefix_store = Some(PrefixStoreOptions {
            dir: folder.to_path_buf(),
            bytes: 1 << 30,
        });
    })
}

/// A text of `tokens` tokens of its own.
fn text(number: u32, tokens: usize, model: &Model) -> Vec<u32> {
    let mut text = prompt(tokens, model);
    text[0] = number;
    text
}

fn request(prompt: Vec<u32>, seed: u64) -> Request {
    with(Request::new(prompt), |r| {
        r.options.max_tokens = 12;
        r.options.ignore_end = true;
        r.options.sampling = sampled(seed);
        // Every hit then has the bits of a request alone.
        r.exact = true;
    })
}

fn answer(engine: &Engine, prompt: &[u32]) -> Outcome {
    let stream = engine.submit(request(prompt.to_vec(), 7)).unwrap();
    stream.complete().unwrap().1
}

/// Answers on an engine of its own, and what its store did.
fn answers(model: &Model, folder: &Path, prompts: &[&[u32]]) -> (Vec<Outcome>, PrefixStoreStatus) {
    let engine = Engine::new(model, &store(folder)).unwrap();
    let outcomes = prompts
        .iter()
        .map(|prompt| answer(&engine, prompt))
        .collect();
    engine.shutdown();
    (outcomes, engine.prefix_store().unwrap())
}

/// The tokens of the request without any cache.
fn alone(model: &Model, prompt: &[u32]) -> Vec<u32> {
    let engine = Engine::new(model, &EngineOptions::default()).unwrap();
    answer(&engine, prompt).tokens
}

#[test]
fn another_engine_finds_the_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_pool(1, 0);
    let text = text(1, 200, &model);
    let expected = alone(&model, &text);
    let (first, status) = answers(&model, folder.path(), &[&text]);
    assert_eq!((first[0].cached_tokens, &first[0].tokens), (0, &expected));
    // Three pages of the prompt, and the rest with the answer.
    assert_eq!(status.pages_written, 4);
    assert_eq!(status.problem, None);

    // Another load of the same model.
    let model = with_pool(1, 0);
    let (second, status) = answers(&model, folder.path(), &[&text, &text]);
    assert_eq!(
        (second[0].cached_tokens, &second[0].tokens),
        (3 * PAGE, &expected)
    );
    assert_eq!(second[1].tokens, expected);
    assert_eq!(status.pages_read, 3);
    assert!(status.bytes > 0 && status.read_rate > 0.0);

    // A shorter text, one that differs, and another model.
    let mut other = text.clone();
    other[100] ^= 1;
    let (rest, _) = answers(&model, folder.path(), &[&text[..150], &other]);
    assert_eq!(rest[0].cached_tokens, 2 * PAGE);
    // The page that differs has its beginning in the tree by now.
    assert_eq!(
        (rest[1].cached_tokens, rest[1].differs_at),
        (100, Some(100))
    );
    assert_eq!(rest[1].tokens, alone(&model, &other));
    // Both rates are known by now, and a new engine starts with them.
    let engine = Engine::new(&model, &store(folder.path())).unwrap();
    assert!(engine.prefix_store().unwrap().read_rate > 0.0);
    drop(engine);
    let other = with(options(DeviceChoice::CPU), |o| o.prefix_store = true);
    let model = load("synthetic:tiny:q4_0", &other);
    let (rest, _) = answers(&model, folder.path(), &[&text]);
    assert_eq!(rest[0].cached_tokens, 0);
}

/// Answers of the I/O thread go to the sequence that asked, and pages that were read count as used.
#[test]
fn two_prompts_are_restored_together() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_pool(2, 0);
    let texts = [text(1, 150, &model), text(2, 240, &model)];
    answers(&model, folder.path(), &[&texts[0], &texts[1]]);
    let files = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(5000);
    for file in files() {
        let file = std::fs::File::options().append(true).open(file).unwrap();
        file.set_modified(old).unwrap();
    }
    // Both are there before the first turn.
    let (engine, mut driver) =
        Engine::without_thread(&model, &store(folder.path()), Box::new(|context| context)).unwrap();
    let streams = texts.each_ref().map(|text| {
        let request = request(text.clone(), 7);
        engine.submit(request).unwrap()
    });
    while !driver.is_idle() {
        driver.turn().unwrap();
    }
    let cached = streams.map(|stream| stream.complete().unwrap().1.cached_tokens);
    assert_eq!(cached, [2 * PAGE, 3 * PAGE]);
    drop((engine, driver));
    let used = |path: &std::path::PathBuf| {
        let modified = path.metadata().unwrap().modified().unwrap();
        path.extension().is_some_and(|end| end == "page") && modified > old
    };
    assert_eq!(files().filter(used).count(), 5);
}

/// At its end an engine writes only what the store may hold: the pages nearest to the start of a text.
#[test]
fn a_small_store_keeps_the_start_of_a_text() {
    let model = with_pool(1, 0);
    let text = text(1, 240, &model);
    let large = tempfile::tempdir().unwrap();
    answers(&model, large.path(), &[&text]);
    let entries = std::fs::read_dir(large.path()).unwrap();
    let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap().len());
    let file = sizes.max().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = store(folder.path());
    options.prefix_store.as_mut().unwrap().bytes = 2 * file + file / 2;
    let ask = || {
        let engine = Engine::new(&model, &options).unwrap();
        let cached = answer(&engine, &text).cached_tokens;
        engine.shutdown();
        (cached, engine.prefix_store().unwrap())
    };
    let (_, status) = ask();
    assert_eq!((status.pages_written, status.pages_lost), (2, 0));
    assert_eq!(ask().0, 2 * PAGE);
}

#[test]
fn a_store_needs_a_model_that_was_loaded_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = load(TINY, &options(DeviceChoice::CPU));
    let refused = Engine::new(&model, &store(folder.path())).err();
    assert!(matches!(refused, Some(Error::NoFingerprint { .. })));
}

#[test]
fn a_conversation_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_pool(1, 0);
    let ask = |prompt: &[u32], exact: bool| {
        let engine = Engine::new(&model, &store(folder.path())).unwrap();
        let mut request = request(prompt.to_vec(), 3);
        request.options.max_tokens = 80;
        request.exact = exact;
        let stream = engine.submit(request).unwrap();
        stream.complete().unwrap().1
    };
    let mut text = text(1, 100, &model);
    let outcome = ask(&text, false);
    text.extend(outcome.tokens);
    text.extend([1, 2, 3]);
    // The last token of the answer was never fed.
    assert_eq!(ask(&text, false).cached_tokens, 179);
    // Where the answer was generated, a prompt would have other bits.
    assert_eq!(ask(&text, true).cached_tokens, PAGE);
}

#[test]
fn evicted_prefixes_come_back_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    // In pieces this small nobody learns how fast computing is, so reading is always tried.
    let model = with_pieces(1, 256, 16);
    let engine = Engine::new(&model, &store(folder.path())).unwrap();
    let texts: Vec<Vec<u32>> = (0..4).map(|i| text(i, 190, &model)).collect();
    let expected: Vec<Vec<u32>> = texts.iter().map(|text| alone(&model, text)).collect();
    // The pool has four pages, so each text drives out the one before. A slow disk may lose pages, but not for ever.
    let mut cached = Vec::new();
    for _ in 0..3000 {
        cached = (texts.iter().zip(&expected))
            .map(|(text, expected)| {
                let outcome = answer(&engine, text);
                assert_eq!(outcome.tokens, *expected);
                outcome.cached_tokens
            })
            .collect();
        if cached == [2 * PAGE; 4] {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(cached, [2 * PAGE; 4]);
}

#[test]
fn damaged_files_change_nothing() {
    let model = with_pool(1, 0);
    let text = text(1, 200, &model);
    let expected = alone(&model, &text);
    let original = tempfile::tempdir().unwrap();
    answers(&model, original.path(), &[&text]);
    let names: Vec<_> = std::fs::read_dir(original.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    for damaged in &names {
        let folder = tempfile::tempdir().unwrap();
        for name in &names {
            let mut bytes = std::fs::read(original.path().join(name)).unwrap();
            if name == damaged {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 64;
            }
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let (outcomes, status) = answers(&model, folder.path(), &[&text]);
        assert_eq!(outcomes[0].tokens, expected);
        // The fourth file holds the answer, so nobody reads it.
        let pages = outcomes[0].cached_tokens / PAGE;
        assert_eq!(pages < 3, status.files_rejected == 1);
    }
}

#[test]
fn a_folder_that_cannot_be_used_fails_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let model = with_pool(1, 0);
    let text = text(1, 100, &model);
    let (outcomes, status) = answers(&model, &file, &[&text]);
    assert_eq!(outcomes[0].tokens, alone(&model, &text));
    assert!(status.problem.unwrap().contains("file"));
}

/// Many requests share a pool that is too small for them, and texts that they also find on disk; some are cancelled.
#[test]
fn many_requests_with_a_store_get_the_tokens_of_a_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_pool(4, 512);
    let texts: Vec<Vec<u32>> = (0..12)
        .map(|i| text(i % 4, 60 + 13 * i as usize, &model))
        .collect();
    let expected: Vec<Vec<u32>> = texts.iter().map(|text| alone(&model, text)).collect();
    let mut read = 0;
    for round in 0..3 {
        let engine = Engine::new(&model, &store(folder.path())).unwrap();
        let mut streams = Vec::new();
        for i in 0..48 {
            let text = (i * 7 + round) % texts.len();
            let stream = engine.submit(request(texts[text].clone(), 7)).unwrap();
            // A stream that is dropped ends its request.
            if i % 5 != 4 {
                streams.push((text, stream));
            }
        }
        for (text, stream) in streams {
            let outcome = stream.complete().unwrap().1;
            assert_eq!(outcome.tokens, expected[text], "text {text}");
            // Also of a request that was preempted and read its own pages.
            assert!(outcome.cached_tokens < outcome.prompt_tokens);
        }
        engine.shutdown();
        let status = engine.prefix_store().unwrap();
        assert_eq!((status.files_rejected, status.problem), (0, None));
        read += status.pages_read;
    }
    assert!(read > 0);
}

/// An engine with host memory for so many pages.
fn with_host(model: &Model, options: EngineOptions, pages: u64) -> Result<Engine, Error> {
    let caches = &model.program().caches;
    let page: u64 = caches
        .iter()
        .map(|c| c.page_bytes(PAGE as u32).unwrap())
        .sum();
    let options = with(options, |o| o.prefix_host_bytes = pages * page + page / 2);
    Engine::new(model, &options)
}

/// Two conversations take turns in a pool that has room for one.
#[test]
fn host_memory_keeps_what_the_pool_has_no_room_for() {
    let model = with_pool(1, 5 * PAGE as u32);
    let [one, two] = [text(1, 200, &model), text(2, 230, &model)];
    let expected = [alone(&model, &one), alone(&model, &two)];
    let turns = |engine: &Engine| -> Vec<usize> {
        let turn = |nth: usize| {
            let answered = answer(engine, [&one, &two][nth % 2]);
            assert_eq!(answered.tokens, expected[nth % 2], "turn {nth}");
            answered.cached_tokens
        };
        (0..6).map(turn).collect()
    };
    let without = Engine::new(&model, &EngineOptions::default()).unwrap();
    let known = turns(&without);
    assert!(
        known[2..].iter().all(|cached| *cached < 2 * PAGE),
        "{known:?}"
    );

    let engine = with_host(&model, EngineOptions::default(), 8).unwrap();
    let whole = 3 * PAGE;
    assert_eq!(turns(&engine), [0, 0, whole, whole, whole, whole]);
    let status = engine.prefix_host().unwrap();
    assert!(status.pages_fetched >= 8 && status.pages <= 8, "{status:?}");
    engine.forget_prefixes();
    assert_eq!(answer(&engine, &one).cached_tokens, 0);

    // What has no room on the shelf goes to disk, and at the end everything.
    let folder = tempfile::tempdir().unwrap();
    let engine = with_host(&model, store(folder.path()), 2).unwrap();
    turns(&engine);
    engine.shutdown();
    assert!(engine.prefix_host().unwrap().pages_fetched > 0);
    let (later, _) = answers(&model, folder.path(), &[&one, &two]);
    for (later, expected) in later.iter().zip(&expected) {
        assert_eq!((later.cached_tokens, &later.tokens), (whole, expected));
    }
}

/// Generated tokens stay generated ones: a request that is exact computes them anew.
#[test]
fn host_memory_keeps_roles() {
    let model = with_pool(1, 5 * PAGE as u32);
    let engine = with_host(&model, EngineOptions::default(), 12).unwrap();
    let ask = |prompt: &[u32], max: usize, exact: bool| {
        let request = with(request(prompt.to_vec(), 7), |r| {
            (r.options.max_tokens, r.exact) = (max, exact);
        });
        engine.submit(request).unwrap().complete().unwrap().1
    };
    let between = || ask(&text(2, 250, &model), 1, true);
    let begin = text(1, PAGE + 6, &model);
    let mut all = [&begin[..], &ask(&begin, 130, false).tokens].concat();
    all.extend([5, 6, 7]);
    between();
    assert!(ask(&all, 1, false).cached_tokens >= 3 * PAGE);
    between();
    let exact = ask(&all, 1, true);
    assert_eq!(exact.cached_tokens, PAGE);
    assert_eq!(exact.tokens, alone(&model, &all)[..1]);
}

#[test]
fn host_memory_without_room_for_a_page_is_refused() {
    let model = with_pool(1, 0);
    let refused = |options| Engine::new(&model, &options).err().unwrap().to_string();
    let small = with(EngineOptions::default(), |o| o.prefix_host_bytes = 100);
    assert!(refused(small).contains("100 B, and a page takes"));
    let large = with(EngineOptions::default(), |o| o.prefix_host_bytes = u64::MAX);
    assert!(refused(large).contains("no memory for"));
}
