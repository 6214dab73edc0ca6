//! Ranks have the logits of a single device, bit for bit: small models of every family, in every format, dealt to two ranks and
//! more. The rest of the suite compares the single device with other implementations.

mod common;

use common::{TINY, generate, options, prompt, with};
use std::sync::Arc;
use std::time::Duration;
use welte::{DeviceId, DeviceOptions, Error, GenerateOptions, LoadOptions, Model, Sampling};
use welte_device::{ChainStart, Context, Control, Device, Replay, SlotState};
use welte_formats::Checkpoint;
use welte_models::CompileOptions;
use welte_table::{Format, Op, PassKind, Program, Row};

/// The device with one rank and with several. Ranks deal every matrix, however small.
struct Devices {
    one: Arc<dyn Device>,
    ranks: Vec<(usize, Arc<dyn Device>)>,
}

impl Devices {
    fn new(open: impl Fn() -> Arc<dyn Device>, counts: &[usize]) -> Devices {
        let ranks = |count: &usize| {
            let devices = (0..*count).map(|_| open()).collect();
            (
                *count,
                welte_ranks::device_by(devices, 0, Duration::from_secs(60)),
            )
        };
        Devices {
            one: open(),
            ranks: counts.iter().map(ranks).collect(),
        }
    }
}

fn reference() -> Arc<dyn Device> {
    open(DeviceId::only("reference"), DeviceOptions::default())
}

fn open(id: DeviceId, options: DeviceOptions) -> Arc<dyn Device> {
    welte::open_device(id, &options).expect("a device")
}

/// The files of the goldens of a kind, as their indices name them.
fn paths(wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let folder = welte_goldens::folder();
    let mut all = Vec::new();
    for index in [
        "index.json",
        "formats.json",
        "packed.json",
        "mlx.json",
        "gpt-oss.json",
        "gemma4.json",
        "gemma3n.json",
        "hybrid.json",
        "plain.json",
    ] {
        let text = std::fs::read_to_string(folder.join(index)).expect("the index");
        let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("the index is JSON");
        all.extend(
            list.iter()
                .filter_map(|entry| Some(entry["path"].as_str()?.to_string())),
        );
    }
    all.retain(|path| wanted(path));
    all.sort();
    all.dedup();
    assert!(!all.is_empty());
    all
}

fn compile(checkpoint: &dyn Checkpoint) -> Program {
    compile_for(4, 64, checkpoint)
}

/// For as many slots, with contexts of that length.
fn compile_for(slots: u32, context: u32, checkpoint: &dyn Checkpoint) -> Program {
    let options = CompileOptions {
        context,
        page: 16,
        kv_format: Format::F16,
        prompt_rows: 24,
        prompt_outputs: 4,
        decode_rows: slots,
        slots,
        ..CompileOptions::default()
    };
    let spec = welte_models::spec(checkpoint).expect("a known model");
    welte_models::compile(&spec, checkpoint, &options).expect("a program")
}

fn context(
    device: &dyn Device,
    program: &Program,
    checkpoint: &dyn Checkpoint,
) -> Box<dyn Context> {
    assert_eq!(device.missing(program), None);
    let program = welte_table::fuse(program.clone(), device.patterns());
    let plan = device.plan(Arc::new(program)).expect("a plan");
    let loaded = device.load(plan, checkpoint, &mut |_| {}).expect("weights");
    loaded.context().expect("a context")
}

/// All that a context yields for a prompt, steps of several rows, and a chain.
fn bits(context: &mut dyn Context) -> Vec<u32> {
    let program = context.program().clone();
    let pass = |kind| program.pass(kind).expect("a pass");
    let row = |position: u32, slot| {
        Row::new(
            (7 + 13 * position + 5 * slot) % program.vocab,
            position,
            slot,
        )
    };
    let mut all = Vec::new();
    for slot in 0..2 {
        let rows: Vec<Row> = (0..9 + slot).map(|position| row(position, slot)).collect();
        let outputs = [1, rows.len() as u32 - 1];
        let values = context.step_rows(pass(PassKind::Prompt), &rows, &outputs);
        all.extend(values.expect("a prompt").iter().map(|v| v.to_bits()));
    }
    let rows = [row(9, 0), row(10, 1)];
    let values = context.step_rows(pass(PassKind::Decode), &rows, &[]);
    all.extend(values.expect("a step").iter().map(|v| v.to_bits()));
    let start = |slot: u32, position| ChainStart {
        slot,
        token: 3 + slot,
        position,
        steps: 4 + slot,
        shift: 0,
    };
    let starts = [start(0, 10), start(1, 11), start(2, 0)];
    let mut emit = |emitted: welte_device::Emitted| {
        all.push(emitted.token);
        true
    };
    context
        .chain(&starts, &Control::default(), &mut emit)
        .expect("a chain");
    all
}

fn compare(devices: &Devices, paths: &[String]) {
    let problems = differences(devices, paths);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn differences(devices: &Devices, paths: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for (nth, path) in paths.iter().enumerate() {
        let model = welte_goldens::Golden::new(path);
        let checkpoint = welte_formats::open(model.path()).expect("a checkpoint");
        let program = compile(&*checkpoint);
        let want = bits(&mut *context(&*devices.one, &program, &*checkpoint));
        // Files of one family take turns.
        let (count, ranks) = &devices.ranks[nth % devices.ranks.len()];
        let got = bits(&mut *context(&**ranks, &program, &*checkpoint));
        let differing = got
            .iter()
            .zip(&want)
            .filter(|(got, want)| got != want)
            .count();
        if differing > 0 || got.len() != want.len() {
            let far =
                |(got, want): (&u32, &u32)| (f32::from_bits(*got) - f32::from_bits(*want)).abs();
            let most = got.iter().zip(&want).map(far).fold(0.0, f32::max);
            let first = got.iter().zip(&want).position(|(got, want)| got != want);
            problems.push(format!(
                "{path}: {count} ranks: {differing} of {} values differ, from {first:?} on, by {most} at most",
                want.len()
            ));
        }
    }
    problems
}

/// One part of all goldens of architectures, on the reference devices.
fn reference_part(part: usize, parts: usize) {
    let paths = paths(|_| true);
    let own: Vec<String> = paths.into_iter().skip(part).step_by(parts).collect();
    compare(&Devices::new(reference, &[2, 3, 4, 8]), &own);
}

#[test]
fn families_on_the_reference_0() {
    reference_part(0, 4);
}

#[test]
fn families_on_the_reference_1() {
    reference_part(1, 4);
}

#[test]
fn families_on_the_reference_2() {
    reference_part(2, 4);
}

#[test]
fn families_on_the_reference_3() {
    reference_part(3, 4);
}

/// The CPU's kernels for parts of matrices give the bits of those for whole ones.
#[test]
fn families_on_the_cpu() {
    let on_cpu = || {
        let mut options = DeviceOptions::default();
        options.threads = Some(1);
        open(DeviceId::only("cpu"), options)
    };
    let dense = |path: &str| path.contains("qwen3/") || path.contains("llama/");
    let others = [
        "qwen3moe/",
        "deepseek_v2/",
        "qwen35/",
        "gemma2/",
        "gpt-oss/",
        "gemma3n/",
        "olmo2/",
    ];
    let own = paths(|path| dense(path) || others.iter().any(|family| path.contains(family)));
    compare(&Devices::new(on_cpu, &[2, 3, 4, 8]), &own);
}

/// Options with so many ranks.
fn dealt(device: &str, ranks: u32) -> LoadOptions {
    with(options(device.parse().unwrap()), |o| {
        o.ranks = ranks;
        o.slots = 3;
        o.fit_context = false;
    })
}

/// From load to text: prompts, chains with sampling and penalties, the prefix cache, guesses, probabilities, requests beside each
/// other. The engine notices no difference.
#[test]
fn texts_are_those_of_a_single_device() {
    let texts = |ranks: u32| {
        let model = common::load(TINY, &dealt("cpu", ranks));
        let (mut all, tokens) = (Vec::new(), prompt(40, &model));
        let sampled = with(Sampling::default(), |s| {
            s.temperature = 0.9;
            s.seed = 7;
            s.presence_penalty = 0.4;
        });
        for (nth, sampling) in [Sampling::default(), sampled].into_iter().enumerate() {
            for taken in [20, 40, 40] {
                let generating = with(GenerateOptions::default(), |o| {
                    o.max_tokens = 24;
                    o.ignore_end = true;
                    o.sampling = sampling;
                    o.logprobs = (nth == 1).then_some(2);
                });
                let mut session = model.session().expect("a session");
                all.push(
                    generate(&mut session, &tokens[..taken], &generating)
                        .0
                        .tokens,
                );
            }
        }
        all
    };
    let one = texts(1);
    assert!(one.iter().all(|tokens| tokens.len() == 24));
    for ranks in [2, 3] {
        assert_eq!(texts(ranks), one, "{ranks} ranks");
    }
}

#[test]
fn the_plan_shows_every_rank() {
    let inspection = Model::inspect(TINY, &dealt("cpu", 2)).expect("a plan");
    let facts = inspection.facts();
    let fact = |name: &str| {
        let found = facts.iter().find(|fact| fact.0 == name);
        found.map_or("", |fact| &fact.1)
    };
    for rank in ["rank 0", "rank 1"] {
        assert!(fact(rank).starts_with("cpu, weights "), "{facts:?}");
        assert!(fact(rank).contains(" heads of kv"), "{facts:?}");
    }
    assert!(fact("exchanges").contains("in a decode step"), "{facts:?}");
    let model = common::load(TINY, &dealt("cpu", 2));
    let mut stepper = model.stepper().expect("a context");
    let allocated: u64 = stepper.context().allocated().values().sum();
    assert_eq!(allocated, model.plan().total());
}

#[test]
fn what_cannot_be_dealt_is_refused_with_a_reason() {
    let refused = |options: LoadOptions| Model::inspect(TINY, &options).err().expect("an error");
    let many = refused(dealt("cpu", 65));
    assert!(matches!(many, Error::Ranks { .. }), "{many}");
    assert_eq!(many.to_string(), "ranks: there may be 64");
    let mixture = "synthetic:custom,arch=qwen3moe,layers=3:q8_0";
    let split = with(dealt("reference", 2), |o| o.cpu_experts = 1);
    let split = Model::inspect(mixture, &split).err().expect("an error");
    assert!(split.to_string().contains("experts on the CPU"), "{split}");
    let assumed = dealt("h200", 2);
    assert!(matches!(refused(assumed), Error::Ranks { .. }));
}

/// A dense model has four exchanges in a layer and one for its logits; queries, keys and values take none.
#[test]
fn exchanges_are_few() {
    for (path, per_layer) in [("qwen3/hf", 4), ("qwen3moe/hf", 4)] {
        let model = welte_goldens::Golden::new(path);
        let checkpoint = welte_formats::open(model.path()).expect("a checkpoint");
        let program = compile(&*checkpoint);
        let spec = welte_models::spec(&*checkpoint).expect("a known model");
        let shards = welte_table::shard(&program, 2, 0).expect("two programs");
        for shard in &shards.ranks {
            let decode = program.pass(PassKind::Decode).expect("a pass");
            let router = shard.program.passes[decode]
                .commands
                .iter()
                .filter(|c| c.op == Op::Route)
                .count();
            let all = shard.exchanges(decode) - router;
            assert_eq!(all, per_layer * spec.layers as usize + 1, "{path}");
        }
    }
}

/// The first GPUs, or the first one as often.
fn gpus(count: usize, replay: Replay) -> Vec<Arc<dyn Device>> {
    let mut options = DeviceOptions::default();
    options.replay = Some(replay);
    let gpu = |number: u32| welte::open_device(DeviceId::numbered("cuda", number), &options);
    let first = gpu(0).expect("a GPU");
    let others = (1..count as u32).map(|number| gpu(number).unwrap_or_else(|_| first.clone()));
    std::iter::once(first.clone()).chain(others).collect()
}

/// Logits of steps of one row, and tokens of chains, greedy and sampled, over a context that is split.
fn bits_of_one_stream(context: &mut dyn Context) -> Vec<u32> {
    let program = context.program().clone();
    let pass = |kind| program.pass(kind).expect("a pass");
    let token = |position: u32| (7 + 13 * position) % program.vocab;
    let rows = |from: u32, to: u32| -> Vec<Row> {
        (from..to).map(|at| Row::new(token(at), at, 0)).collect()
    };
    let mut all = Vec::new();
    for first in (0..288).step_by(24) {
        let rows = rows(first, first + 24);
        let values = context.step_rows(pass(PassKind::Prompt), &rows, &[23]);
        all.extend(values.expect("a prompt").iter().map(|v| v.to_bits()));
    }
    let mut position = 288;
    for temperature in [0.0, 0.8, 0.0] {
        let row = [Row::new(token(position), position, 0)];
        let values = context.step_rows(pass(PassKind::Decode), &row, &[]);
        all.extend(values.expect("a step").iter().map(|v| v.to_bits()));
        position += 1;
        let state = SlotState {
            sampling: Sampling {
                temperature,
                seed: 5,
                ..Sampling::default()
            },
            ..SlotState::default()
        };
        context.set_slot(0, &state).expect("a slot");
        let start = ChainStart {
            slot: 0,
            token: token(position),
            position,
            // More than one launch has.
            steps: 70,
            shift: 0,
        };
        // The caller stops the last chain.
        let mut left = if position > 400 { 30 } else { 70 };
        let mut emit = |emitted: welte_device::Emitted| {
            all.push(emitted.token);
            left -= 1;
            left > 0
        };
        context
            .chain(&[start], &Control::default(), &mut emit)
            .expect("a chain");
        position += 70;
    }
    all
}

/// The persistent kernel of several GPUs gives the bits of one GPU's. `WELTE_TEST_FAMILIES` names other files.
#[test]
#[ignore = "needs two GPUs"]
fn persistent_kernels_on_cuda() {
    let named = std::env::var("WELTE_TEST_FAMILIES");
    let named = named.unwrap_or_else(|_| "qwen3/q4_k qwen3/q8_0 qwen3moe llama/q4_k".to_string());
    let [one, ranks] = [1, 2].map(|count| gpus(count, Replay::Persistent));
    let ranks = welte_ranks::device_by(ranks, 0, Duration::from_secs(60));
    let by = |context: &mut dyn Context| context.replays().expect("a GPU").replaying().to_string();
    let mut compared = 0;
    for path in paths(|path: &str| named.split(' ').any(|name| path.contains(name))) {
        let model = welte_goldens::Golden::new(&path);
        let checkpoint = welte_formats::open(model.path()).expect("a checkpoint");
        let program = compile_for(1, 512, &*checkpoint);
        let mut alone = context(&*one[0], &program, &*checkpoint);
        if by(&mut *alone) != "persistent" {
            continue;
        }
        let want = bits_of_one_stream(&mut *alone);
        let mut together = context(&*ranks, &program, &*checkpoint);
        assert_eq!(by(&mut *together), "persistent", "{path}");
        assert!(bits_of_one_stream(&mut *together) == want, "{path}");
        assert_eq!(by(&mut *together), "persistent", "{path}");
        compared += 1;
    }
    assert!(compared > 0);
}

/// `WELTE_TEST_FAMILIES` names other ones.
#[test]
#[ignore = "needs a GPU"]
fn families_on_cuda() {
    let named = std::env::var("WELTE_TEST_FAMILIES");
    let named = named
        .unwrap_or_else(|_| "qwen3/ qwen3moe llama/q4_k gemma3/ deepseek_v2 qwen35/".to_string());
    let wanted = |path: &str| named.split(' ').any(|name| path.contains(name));
    let mut problems = Vec::new();
    for count in [2, 3] {
        let ranks = welte_ranks::device_by(gpus(count, Replay::Graph), 0, Duration::from_secs(60));
        let devices = Devices {
            one: gpus(1, Replay::Graph).remove(0),
            ranks: vec![(count, ranks)],
        };
        for path in paths(wanted) {
            eprintln!("{count} ranks: {path}");
            problems.extend(differences(&devices, &[path]));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
