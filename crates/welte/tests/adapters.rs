//! Adapters: their logits against PEFT, their rows beside others, and how engines load, separate and unload them.

mod common;
#[path = "common/spy.rs"]
mod spy;

use common::*;
use spy::{Spy, Watch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use welte::{AdapterSource, Engine, EngineOptions, Error, LoadOptions, Model, Outcome, Request};
use welte_device::{Role, SlotAdapter, SlotState, Step, StepOptions};
use welte_goldens::Golden;
use welte_table::{PassKind, Row};

/// F32 activations, pairs in F16, keys and values in F16.
const EXACT: f32 = 4e-3;
/// Activations in BF16.
const BF16: f32 = 1.5e-2;
/// Prompts on CUDA: sums in another order besides.
const CUDA: f32 = 3e-2;

const PLACES: u32 = 3;

struct Case {
    name: String,
    base: Golden,
    adapter: Golden,
    prompt: Vec<u32>,
    first: usize,
    vocabulary: usize,
    logits: Vec<f32>,
}

fn list() -> Vec<serde_json::Value> {
    let folder = welte_goldens::folder();
    let text = std::fs::read_to_string(folder.join("adapters.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn case(entry: &serde_json::Value) -> Case {
    let text = |key: &str| entry[key].as_str().unwrap().to_string();
    let number = |key: &str| entry[key].as_u64().unwrap() as usize;
    let logits = std::fs::read(welte_goldens::folder().join(text("logits"))).unwrap();
    let (logits, _) = logits.as_chunks::<4>();
    let prompt = entry["prompt"].as_array().unwrap();
    Case {
        name: text("name"),
        base: Golden::new(&text("path")),
        adapter: Golden::new(&text("adapter")),
        prompt: prompt.iter().map(|t| t.as_u64().unwrap() as u32).collect(),
        first: number("first"),
        vocabulary: number("vocabulary"),
        logits: logits.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

fn named(name: &str) -> Case {
    let list = list();
    let known = list
        .iter()
        .find(|entry| entry["name"] == format!("adapters/{name}"));
    case(known.unwrap())
}

fn source(name: &str, path: &Path) -> AdapterSource {
    AdapterSource {
        name: name.into(),
        path: path.to_path_buf(),
        scale: 1.0,
        for_all: false,
    }
}

fn options(device: &str) -> LoadOptions {
    with(LoadOptions::default(), |o| {
        o.device = device.parse().unwrap();
        (o.context, o.slots, o.prompt_rows) = (128, 4, 32);
        o.max_adapters = PLACES;
    })
}

fn loaded(base: &Golden, options: &LoadOptions) -> Model {
    let path = base.path().display().to_string();
    Model::load(&path, options, &mut |_| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// Logits of all but the first positions of a prompt, by a pass, with one adapter or none.
fn logits(model: &Model, case: &Case, kind: PassKind, adapts: bool) -> Vec<f32> {
    let mut stepper = model.stepper().unwrap();
    if adapts {
        stepper.use_adapters().unwrap();
    }
    let context = stepper.context();
    let rows: Vec<Row> = (0..)
        .zip(&case.prompt)
        .map(|(at, t)| Row::new(*t, at, 0))
        .collect();
    let (before, last) = rows.split_at(case.first);
    let values: Vec<u32> = (0..last.len() as u32).collect();
    let role = Role::of(kind);
    let wanted: &[u32] = if kind == PassKind::Decode {
        &[]
    } else {
        &values
    };
    for rows in before.chunks(16) {
        context
            .step(&Step::of(role, rows, &[]), StepOptions::default())
            .unwrap();
    }
    context
        .step(&Step::of(role, last, wanted), StepOptions::default())
        .unwrap()
        .to_vec()
}

/// The largest error as a share of the logits' range.
fn off(got: &[f32], want: &[f32], vocabulary: usize) -> f32 {
    assert_eq!(got.len(), want.len());
    let rows = got.chunks(vocabulary).zip(want.chunks(vocabulary));
    rows.map(|(got, want)| {
        let largest = want.iter().copied().fold(f32::MIN, f32::max);
        let least = want.iter().copied().fold(f32::MAX, f32::min);
        let error = got
            .iter()
            .zip(want)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        error / (largest - least)
    })
    .fold(0.0, f32::max)
}

/// The adapter changes the logits by at least `most` tolerances.
fn check_goldens(device: &str, tolerance: f32, most: f32) {
    for entry in &list() {
        let case = case(entry);
        let with_adapter = with(options(device), |o| {
            o.adapters = vec![source("one", case.adapter.path())];
        });
        let model = loaded(&case.base, &with_adapter);
        for kind in [PassKind::Prompt, PassKind::Decode] {
            let got = logits(&model, &case, kind, true);
            let error = off(&got, &case.logits, case.vocabulary);
            assert!(
                error < tolerance,
                "{} {kind:?} on {device}: {error}",
                case.name
            );
            let plain = off(
                &logits(&model, &case, kind, false),
                &case.logits,
                case.vocabulary,
            );
            assert!(
                plain > most * tolerance,
                "{}: the adapter changes {plain}",
                case.name
            );
        }
    }
}

#[test]
fn the_reference_agrees_with_peft() {
    check_goldens("reference", EXACT, 10.0);
}

#[test]
fn the_cpu_agrees_with_peft() {
    check_goldens("cpu", BF16, 10.0);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_agrees_with_peft() {
    check_goldens("cuda", CUDA, 4.0);
}

#[test]
#[ignore = "needs a GPU with Vulkan"]
fn a_portable_gpu_agrees_with_peft() {
    check_goldens("gpu", EXACT, 10.0);
}

/// The rows of three slots, of which two have adapters, have the bits of each alone; the third has those of a load without banks. Where rows
/// with and without adapters cannot share a step, the third is alone.
fn check_batches(device: &str, base: &str, first: &str, second: &str) {
    let (one, two) = (named(first), named(second));
    assert!(
        one.base
            .path()
            .ends_with(two.base.path().file_name().unwrap()),
        "{base}"
    );
    let sources = vec![
        source("one", one.adapter.path()),
        source("two", two.adapter.path()),
    ];
    let model = loaded(&one.base, &with(options(device), |o| o.adapters = sources));
    let plain = loaded(&one.base, &with(options(device), |o| o.max_adapters = 0));
    let adapter = |slot: u32| {
        (slot < 2).then_some(SlotAdapter {
            place: slot,
            scale: 1.0,
        })
    };
    let run = |model: &Model, slots: &[u32], kind: PassKind| {
        let mut stepper = model.stepper().unwrap();
        if model.program().adapters.is_some() {
            stepper.use_adapters().unwrap();
        }
        let context = stepper.context();
        for slot in slots.iter().filter(|_| model.program().adapters.is_some()) {
            let state = SlotState {
                adapter: adapter(*slot),
                ..SlotState::default()
            };
            context.set_slot(*slot, &state).unwrap();
        }
        let mut all = vec![Vec::new(); 3];
        for piece in 0..3u32 {
            let mut step = Step::default();
            for slot in slots {
                let rows = (4 * piece..4 * piece + 4)
                    .map(|at| Row::new(one.prompt[at as usize] + slot, at, *slot));
                let rows: Vec<Row> = rows.collect();
                step.add_all(Role::of(kind), &rows);
            }
            if kind == PassKind::Prompt {
                let last = (0..slots.len() as u32).map(|i| 4 * i + 3);
                step.picks = Step::of(Role::Prompt, &step.rows, &last.collect::<Vec<_>>()).picks;
            }
            let values = context.step(&step, StepOptions::default()).unwrap();
            let each = values.len() / slots.len();
            for (slot, values) in slots.iter().zip(values.chunks(each)) {
                all[*slot as usize].extend_from_slice(values);
            }
        }
        all
    };
    for kind in [PassKind::Prompt, PassKind::Decode] {
        let mixes = model.stepper().unwrap().context().mixes_adapters();
        let at_once: &[u32] = if mixes { &[0, 1, 2] } else { &[0, 1] };
        let together = run(&model, at_once, kind);
        for slot in at_once.iter().copied() {
            let alone = run(&model, &[slot], kind);
            let (alone, together) = (&alone[slot as usize], &together[slot as usize]);
            assert_eq!(
                alone, together,
                "slot {slot} of {base} on {device}, {kind:?}"
            );
        }
        let without = run(&plain, &[2], kind);
        let with_banks = match mixes {
            true => together.clone(),
            false => run(&model, &[2], kind),
        };
        assert_eq!(
            without[2], with_banks[2],
            "no adapter, {base} on {device}, {kind:?}"
        );
        assert_ne!(together[0], together[1]);
    }
}

#[test]
fn rows_with_other_adapters_and_with_none_keep_their_bits() {
    for device in ["reference", "cpu"] {
        check_batches(device, "llama", "llama-all", "llama-ends");
        check_batches(device, "qwen3moe", "qwen3moe", "qwen3moe");
        check_batches(device, "qwen3next", "qwen3next", "qwen3next");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_on_cuda_keep_their_bits() {
    check_batches("cuda", "llama", "llama-all", "llama-ends");
    check_batches("cuda", "qwen3moe", "qwen3moe", "qwen3moe");
}

#[test]
#[ignore = "needs a GPU with Vulkan"]
fn rows_on_a_portable_gpu_keep_their_bits() {
    check_batches("gpu", "llama", "llama-all", "llama-ends");
    check_batches("gpu", "qwen3moe", "qwen3moe", "qwen3moe");
}

fn engine(sources: Vec<AdapterSource>, change: impl Fn(&mut LoadOptions)) -> (Engine, Case) {
    let case = named("llama-all");
    let options = with(options("cpu"), |o| {
        o.adapters = sources.clone();
        change(o);
    });
    let model = loaded(&case.base, &options);
    (
        Engine::new(&model, &EngineOptions::default()).unwrap(),
        case,
    )
}

fn ask(engine: &Engine, prompt: &[u32], adapter: Option<&str>, scale: f32) -> Request {
    with(Request::new(prompt.to_vec()), |r| {
        r.options.max_tokens = 12;
        r.options.ignore_end = true;
        r.exact = true;
        let adapter = adapter.map(|name| engine.adapter(name).unwrap().scaled(scale));
        r.options.adapter = adapter;
    })
}

fn answer(engine: &Engine, prompt: &[u32], adapter: Option<&str>) -> Outcome {
    let request = ask(engine, prompt, adapter, 1.0);
    engine.submit(request).unwrap().complete().unwrap().1
}

fn two() -> (Vec<AdapterSource>, [Golden; 2]) {
    let files = ["adapters/llama-all", "adapters/llama.gguf"].map(Golden::new);
    let sources = vec![
        source("all", files[0].path()),
        source("gguf", files[1].path()),
    ];
    (sources, files)
}

#[test]
fn requests_at_once_get_the_text_that_they_get_alone() {
    let (sources, _files) = two();
    let (engine, case) = engine(sources, |_| ());
    let which = [None, Some("all"), Some("gguf")];
    let alone: Vec<_> = which
        .map(|w| answer(&engine, &case.prompt, w).tokens)
        .into();
    assert!(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2]);
    let many = (0..12).map(|i| {
        engine
            .submit(ask(&engine, &case.prompt, which[i % 3], 1.0))
            .unwrap()
    });
    let many: Vec<_> = many.collect();
    for (i, stream) in many.into_iter().enumerate() {
        assert_eq!(
            stream.complete().unwrap().1.tokens,
            alone[i % 3],
            "request {i}"
        );
    }
    // A scale of 0 is no adapter, and half of one is neither.
    let scaled = |scale| {
        let request = ask(&engine, &case.prompt, Some("all"), scale);
        engine.submit(request).unwrap().complete().unwrap().1.tokens
    };
    assert_eq!(scaled(0.0), alone[0]);
    assert_eq!(scaled(1.0), alone[1]);
    assert!(![&alone[0], &alone[1]].contains(&&scaled(0.5)));
}

#[test]
fn prefixes_of_one_adapter_serve_no_other() {
    let (sources, files) = two();
    let (engine, case) = engine(sources, |o| (o.slots, o.cache_positions) = (1, 1024));
    let mut text = case.prompt.repeat(4);
    text.truncate(80);
    let cached = |engine: &Engine, adapter| answer(engine, &text, adapter).cached_tokens;
    for adapter in [None, Some("all"), Some("gguf")] {
        assert_eq!(cached(&engine, adapter), 0, "{adapter:?}");
        assert!(cached(&engine, adapter) >= 64, "{adapter:?}");
    }
    // Another strength is another adapter.
    let request = ask(&engine, &text, Some("all"), 0.5);
    let half = engine.submit(request).unwrap().complete().unwrap().1;
    assert_eq!(half.cached_tokens, 0);
    // The same adapter by another name is the same.
    engine.unload_adapter("gguf").unwrap();
    engine
        .load_adapter(&source("again", files[1].path()))
        .unwrap();
    assert!(cached(&engine, Some("again")) >= 64);
}

#[test]
fn a_conversation_may_change_its_adapter() {
    let (sources, _files) = two();
    let (engine, case) = engine(sources, |_| ());
    let mut text = case.prompt.clone();
    let (mut beside, mut turns) = (Vec::new(), Vec::new());
    for adapter in [Some("all"), None, Some("gguf"), Some("all")] {
        let tokens = answer(&engine, &text, adapter).tokens;
        text.extend_from_slice(&tokens);
        turns.push(tokens);
        beside.push(adapter);
    }
    // Each turn is what an engine says that has nothing cached.
    let mut text = case.prompt.clone();
    for (adapter, turn) in beside.into_iter().zip(turns) {
        let fresh = Engine::new(engine.model(), &EngineOptions::default()).unwrap();
        assert_eq!(answer(&fresh, &text, adapter).tokens, turn, "{adapter:?}");
        text.extend_from_slice(&turn);
    }
}

#[test]
fn adapters_come_and_go_while_requests_run() {
    let (sources, files) = two();
    let (engine, case) = engine(sources, |o| o.max_adapters = 2);
    let alone = answer(&engine, &case.prompt, Some("all")).tokens;
    let long = with(ask(&engine, &case.prompt, Some("all"), 1.0), |r| {
        r.options.max_tokens = 90
    });
    let whole = engine
        .submit(long.clone())
        .unwrap()
        .complete()
        .unwrap()
        .1
        .tokens;
    let mut stream = engine.submit(long.clone()).unwrap();
    let first = stream.next_token().unwrap().unwrap();
    // Enough of them to run while this thread looks.
    let others: Vec<_> = (0..16)
        .map(|_| engine.submit(long.clone()).unwrap())
        .collect();
    // No further request can name it; the one that runs keeps it.
    engine.unload_adapter("all").unwrap();
    assert!(engine.adapter("all").is_none());
    assert!(engine.unload_adapter("all").is_err());
    let full = engine.load_adapter(&source("third", files[0].path()));
    let full = full.unwrap_err().to_string();
    assert!(
        full.contains("2 places") && full.contains("1 are still used"),
        "{full}"
    );
    let (_, outcome) = stream.complete().unwrap();
    assert_eq!(outcome.tokens, whole);
    assert_eq!(outcome.tokens[0], first);
    drop((long, others));
    // Its place is free once the engine has let go of the request.
    let third = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        engine.load_adapter(&source("third", files[0].path())).ok()
    });
    assert_eq!(third.unwrap().rank(), 8);
    assert_eq!(answer(&engine, &case.prompt, Some("third")).tokens, alone);
    let names: Vec<_> = engine
        .adapters()
        .iter()
        .map(|a| a.name().to_string())
        .collect();
    assert_eq!(names, ["gguf", "third"]);
    let twice = engine.load_adapter(&source("third", files[1].path()));
    assert!(twice.unwrap_err().to_string().contains("loaded already"));
}

#[test]
fn a_place_that_was_half_written_is_written_again() {
    let (sources, _files) = two();
    let (whole, case) = engine(sources, |_| ());
    let which = ["all", "gguf"].map(Some);
    let wanted = which.map(|w| answer(&whole, &case.prompt, w).tokens);
    for fail_in in [1, 4, 20] {
        let watch: Arc<Watch> = Arc::default();
        watch.fail_write_in.store(fail_in, SeqCst);
        let watched = watch.clone();
        let wrap = move |context| -> Box<dyn welte::Context> {
            Box::new(Spy::new(context, &watched, None, true))
        };
        let options = EngineOptions::default();
        let model = whole.model();
        let (engine, mut driver) = Engine::without_thread(model, &options, Box::new(wrap)).unwrap();
        let requests = which.map(|w| ask(&engine, &case.prompt, w, 1.0));
        let streams = requests.map(|request| engine.submit(request).unwrap());
        while !driver.is_idle() {
            driver.turn().unwrap();
        }
        let got = streams.map(|stream| stream.complete().unwrap().1.tokens);
        assert_eq!(got, wanted, "{fail_in}");
        assert_eq!(watch.fail_write_in.load(SeqCst), 0);
        assert_eq!(watch.contexts.load(SeqCst), 2);
    }
}

/// A copy of an adapter of PEFT with a changed configuration.
fn changed(name: &str, change: &dyn Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let golden = Golden::new(name);
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden.path()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = folder.path().join("adapter_config.json");
    let mut json = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(config, json.to_string()).unwrap();
    folder
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (sources, files) = two();
    let (engine, _) = engine(vec![sources[0].clone()], |_| ());
    let refused = |path: &Path| -> String {
        let error = engine.load_adapter(&source("wrong", path)).unwrap_err();
        error.to_string()
    };
    let with_setting = |key: &'static str, value: serde_json::Value| {
        let folder = changed("adapters/llama-all", &|json| json[key] = value.clone());
        refused(folder.path())
    };
    let yes = serde_json::Value::Bool(true);
    assert!(with_setting("use_dora", yes).contains("DoRA"));
    assert!(
        with_setting("modules_to_save", serde_json::json!(["lm_head"])).contains("modules_to_save")
    );
    assert!(with_setting("peft_type", "IA3".into()).contains("IA3"));
    assert!(with_setting("bias", "all".into()).contains("bias"));
    assert!(with_setting("init_lora_weights", "pissa_niter_4".into()).contains("pissa"));
    assert!(
        with_setting("alpha_pattern", serde_json::json!({"(q|k)_proj": 1})).contains("(q|k)_proj")
    );
    assert!(with_setting("lora_alpha", "eight".into()).contains("lora_alpha"));
    // Another model's, by shape and by name.
    let qwen = Golden::new("adapters/qwen2");
    let said = refused(qwen.path());
    assert!(
        said.contains("embed_tokens") && said.contains("--lora"),
        "{said}"
    );
    let phi = Golden::new("adapters/phi3");
    let said = refused(phi.path());
    assert!(
        said.contains("model.layers.0.mlp.down_proj.weight"),
        "{said}"
    );
    assert!(
        said.contains("128 x 96") && said.contains("another model"),
        "{said}"
    );
    // Tensors without room: the embedding is not among those that the first adapter changes.
    let said = refused(files[1].path());
    assert!(
        said.contains("output.weight") && said.contains("--lora"),
        "{said}"
    );
    // Damaged files.
    let folder = changed("adapters/llama-all", &|_| ());
    let weights = folder.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    assert!(refused(folder.path()).contains("adapter_model.safetensors"));
    let mut nan = bytes.clone();
    let end = nan.len();
    nan[end - 2..].copy_from_slice(&[0xc0, 0x7f]);
    std::fs::write(&weights, &nan).unwrap();
    let said = refused(folder.path());
    assert!(
        said.contains("not numbers") && said.contains("lora_"),
        "{said}"
    );
    assert!(refused(&PathBuf::from("/nonexistent")).contains("nonexistent"));
    let model = Golden::new("llama/f32.gguf");
    assert!(refused(model.path()).contains("no adapter"));
    // Nothing of this has taken a place.
    assert_eq!(engine.adapters().len(), 1);
    for name in ["a", "b"] {
        engine
            .load_adapter(&source(name, files_of_all().path()))
            .unwrap();
    }
}

fn files_of_all() -> Golden {
    Golden::new("adapters/llama-all")
}

#[test]
fn a_rank_above_the_room_is_refused() {
    let (sources, _files) = two();
    let (engine, _) = engine(Vec::new(), |o| o.max_rank = 4);
    let error = engine.load_adapter(&sources[0]).unwrap_err().to_string();
    assert!(
        error.contains("rank 8") && error.contains("--max-rank 8"),
        "{error}"
    );
    let case = named("llama-all");
    let none = with(options("cpu"), |o| o.max_adapters = 0);
    let model = loaded(&case.base, &none);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let error = engine.load_adapter(&sources[0]).unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
    assert!(error.to_string().contains("without room"), "{error}");
}

#[test]
fn room_that_cannot_be_is_refused() {
    let (mut sources, _files) = two();
    sources.iter_mut().for_each(|source| source.for_all = true);
    let case = named("llama-all");
    let path = case.base.path().display().to_string();
    let refused = |change: &dyn Fn(&mut LoadOptions)| {
        let inspected = Model::inspect(&path, &with(options("cpu"), change));
        inspected.err().unwrap().to_string()
    };
    type Change<'a> = &'a dyn Fn(&mut LoadOptions);
    let cases: [(Change<'_>, &str); 3] = [
        (&|o| o.max_adapters = 4097, "max_adapters: 4097"),
        (&|o| o.max_rank = 1025, "max_rank: 1025"),
        (&|o| o.adapters = sources.clone(), "several are for all"),
    ];
    for (change, wanted) in cases {
        let said = refused(change);
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn control_vectors_agree_with_transformers() {
    let folder = welte_goldens::folder();
    let text = std::fs::read_to_string(folder.join("control.json")).unwrap();
    let list: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let mut entry = list[0].clone();
    // It has no adapter.
    entry["adapter"] = "adapters/llama-all".into();
    let case = case(&entry);
    let file = folder.join("adapters/control.gguf");
    for (device, tolerance) in [("reference", EXACT), ("cpu", BF16)] {
        let steered = with(options(device), |o| {
            o.control_vectors = vec![(file.clone(), 1.5), (file.clone(), 0.5)];
            o.control_layers = Some((2, 4));
        });
        let steered = loaded(&case.base, &steered);
        for kind in [PassKind::Prompt, PassKind::Decode] {
            let got = logits(&steered, &case, kind, false);
            let error = off(&got, &case.logits, case.vocabulary);
            assert!(error < tolerance, "{kind:?} on {device}: {error}");
        }
        let all = with(options(device), |o| {
            o.control_vectors = vec![(file.clone(), 2.0)]
        });
        let got = logits(&loaded(&case.base, &all), &case, PassKind::Prompt, false);
        assert!(off(&got, &case.logits, case.vocabulary) > 10.0 * tolerance);
    }
    let other = Golden::new("phi3/hf");
    let refused = |base: &Golden, file: &Path| {
        let options = with(options("cpu"), |o| {
            o.control_vectors = vec![(file.to_path_buf(), 1.0)]
        });
        let loaded = Model::load(&base.path().display().to_string(), &options, &mut |_| ());
        loaded.unwrap_err().to_string()
    };
    let said = refused(&other, &file);
    assert!(
        said.contains("direction.1 has 64 values") || said.contains("2 layers"),
        "{said}"
    );
    let said = refused(&case.base, Golden::new("llama/f32.gguf").path());
    assert!(said.contains("controlvector"), "{said}");
}

#[test]
fn banks_are_part_of_the_plan() {
    let case = named("llama-all");
    let path = case.base.path().display().to_string();
    let bytes = |places| {
        let options = with(options("cpu"), |o| o.max_adapters = places);
        let inspection = Model::inspect(&path, &options).unwrap();
        inspection.plan().bytes(welte_table::Class::Adapters)
    };
    assert_eq!(bytes(0), 0);
    assert!(bytes(1) > 0);
    assert_eq!(bytes(3), 3 * bytes(1));
}
