//! What models, inspections and engines say about themselves, and what a running request leaves in the caches.

mod common;

use common::*;
use std::time::Duration;
use welte::{DeviceChoice, Driver, Engine, EngineOptions, Model, Request, Snapshot};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
/// Five of six layers see the last 80 positions. A page has 64.
const WINDOWED: &str = "synthetic:custom,arch=gemma3,layers=6,window=80,vocab=512:q4_0";

fn value<'a>(facts: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let fact = facts.iter().find(|(known, _)| known == name)?;
    Some(&fact.1)
}

#[test]
fn an_inspection_has_facts_about_model_and_devices() {
    let inspection = Model::inspect(DEMO, &options(DeviceChoice::CPU)).unwrap();
    assert!(inspection.origin().ends_with("demo.gguf"));
    assert!(inspection.available().is_none_or(|bytes| bytes > 1 << 20));
    let facts = inspection.facts();
    assert_eq!(value(&facts, "architecture"), Some("qwen3"));
    assert!(value(&facts, "general.name").is_some_and(|name| !name.is_empty()));
    // How another device would run it, or why it cannot.
    let elsewhere =
        value(&facts, "replay on cuda").or_else(|| value(&facts, "not possible on cuda"));
    assert!(elsewhere.is_some_and(|how| how.len() > 10), "{facts:?}");
    assert!(!facts.iter().any(|(name, _)| name.ends_with(" on cpu")));
}

#[test]
fn a_model_has_facts_about_its_device() {
    let model = demo(DeviceChoice::CPU);
    assert!(!model.device_facts().is_empty());
    assert!(
        model
            .device_facts()
            .iter()
            .all(|(name, text)| name.len() > 1 && text != name)
    );
    assert!(model.read_bandwidth(0.01).unwrap() > 1e6);
    assert!(model.load_time() > Duration::ZERO);
    assert!(model.chat_template_source().unwrap().contains("messages"));
}

#[test]
fn the_begin_of_text_comes_once() {
    // The vocabulary of Llama 3 has a begin-of-text token, which some templates write themselves.
    let folder = tempfile::tempdir().unwrap();
    let config =
        r#"{"bos_token": "Ā", "add_bos_token": true, "tokenizer_class": "LlamaTokenizer"}"#;
    let model = directory(
        folder.path(),
        "\"eos_token_id\": 1, \"bos_token_id\": 0,",
        &[("tokenizer_config.json", config)],
    );
    let bos = model.tokenizer().unwrap().bos().unwrap();
    let begins = |text: &str| {
        let tokens = model.encode_rendered(&text.to_string().into()).unwrap();
        tokens.iter().take_while(|token| **token == bos).count()
    };
    let own = model.tokenizer().unwrap().token_text(bos).to_string();
    assert_eq!(begins(&own), 1);
    assert_eq!(
        begins(""),
        usize::from(model.encode("").unwrap().first() == Some(&bos))
    );
}

fn by_hand(model: &Model) -> (Engine, Driver) {
    let options = with(EngineOptions::default(), |o| o.queue = 3);
    Engine::without_thread(model, &options, Box::new(|context| context)).unwrap()
}

fn snapshot(engine: &Engine, driver: &mut Driver) -> Box<Snapshot> {
    engine.ask_snapshot();
    driver.turn().unwrap();
    engine.take_snapshot().expect("a turn fills a snapshot in")
}

/// A request of `tokens` tokens that goes on for a while, token by token.
fn request(model: &Model, tokens: usize) -> Request {
    with(Request::new(prompt(tokens, model)), |r| {
        r.options.max_tokens = 100;
        r.options.ignore_end = true;
        r.options.chain = Some(1);
    })
}

#[test]
fn a_snapshot_shows_slots_requests_and_figures() {
    let model = load(TINY, &with(options(DeviceChoice::CPU), |o| o.slots = 2));
    let (engine, mut driver) = by_hand(&model);
    assert_eq!(engine.queue(), 3);
    assert_eq!(engine.turns(), 0);
    let streams: Vec<_> = (0..3)
        .map(|_| engine.submit(request(&model, 40)).unwrap())
        .collect();
    let numbers: Vec<u64> = streams.iter().map(welte::Stream::number).collect();
    for _ in 0..4 {
        driver.turn().unwrap();
    }
    let shown = snapshot(&engine, &mut driver);
    assert_eq!(engine.turns(), 5);
    assert!(engine.take_snapshot().is_none(), "it is taken once");
    let mut running: Vec<u64> = shown.slots.iter().filter_map(|slot| slot.request).collect();
    running.sort_unstable();
    assert_eq!(running, numbers[..2]);
    let waiting: Vec<_> = shown
        .waiting
        .iter()
        .map(|w| (w.request, w.prompt_tokens))
        .collect();
    assert_eq!(waiting, [(numbers[2], 40)]);
    for slot in &shown.slots {
        assert_eq!((slot.prompt_tokens, slot.limit), (40, 140));
        assert!(slot.position >= 40 && !slot.in_prompt && slot.admitted.is_some());
        assert_eq!(slot.pages[0].len(), 1);
        let page = slot.pages[0][0];
        assert!(shown.references[0][page as usize] > 0);
    }
    // Equal prompts are computed once, but for the last token.
    let cached: usize = shown.slots.iter().map(|slot| slot.cached_tokens).sum();
    assert_eq!(shown.prompt_tokens as usize, 80 - cached);
    // The first token of each comes from the prompt, the others from decoding.
    let positions: usize = shown.slots.iter().map(|slot| slot.position).sum();
    assert_eq!(shown.generated_tokens as usize, 2 + positions - 80);
    assert!(shown.decode_steps > 0 && shown.decode_steps < shown.generated_tokens);
}

#[test]
fn a_running_request_leaves_full_pages_in_the_tree() {
    let model = tiny(DeviceChoice::CPU);
    let (engine, mut driver) = by_hand(&model);
    let stream = engine.submit(request(&model, 140)).unwrap();
    for _ in 0..8 {
        driver.turn().unwrap();
    }
    let shown = snapshot(&engine, &mut driver);
    let slot = &shown.slots[0];
    assert!(slot.request.is_some() && slot.position >= 140);
    assert_eq!(
        shown.nodes.iter().map(|node| node.tokens).sum::<usize>(),
        128
    );
    assert_eq!(
        shown
            .nodes
            .iter()
            .filter(|node| node.parent.is_none())
            .count(),
        1
    );
    drop(stream);
}

#[test]
fn a_window_gives_back_the_pages_before_it() {
    let model = load(
        WINDOWED,
        &with(options(DeviceChoice::CPU), |o| o.context = 640),
    );
    let (engine, mut driver) = by_hand(&model);
    let request = with(request(&model, 500), |r| r.prefix_cache = false);
    let stream = engine.submit(request).unwrap();
    // How many turns the prompt takes depends on the machine.
    let is_beyond = |shown: &Snapshot| shown.slots.first().is_some_and(|slot| slot.position > 500);
    let mut shown = snapshot(&engine, &mut driver);
    for _ in 0..1000 {
        if is_beyond(&shown) {
            break;
        }
        shown = snapshot(&engine, &mut driver);
    }
    let slot = &shown.slots[0];
    assert!(slot.position > 500, "{}", slot.position);
    let mut pages: Vec<usize> = slot.pages.iter().map(Vec::len).collect();
    pages.sort_unstable();
    // Positions 80 back lie in two or three pages; all of them in nine.
    let all = (slot.position + 1).div_ceil(64);
    assert!((2..=3).contains(&pages[0]), "{pages:?}");
    assert_eq!(pages[1], all);
    let used: usize = shown
        .references
        .iter()
        .flatten()
        .filter(|count| **count > 0)
        .count();
    assert_eq!(used, pages.iter().sum::<usize>());
    drop(stream);
}

/// A ping asks for one turn. An engine without work sleeps afterwards.
#[test]
fn an_idle_engine_does_not_turn() {
    let engine = demo(DeviceChoice::CPU).engine().unwrap();
    engine.ping();
    while engine.turns() == 0 {
        std::thread::yield_now();
    }
    // Turns without work take microseconds.
    std::thread::sleep(Duration::from_millis(100));
    assert!(engine.turns() < 4, "{}", engine.turns());
}
