//! Ranks have the logits of a single device, bit for bit: small models of every family, in every format, dealt to two ranks and
//! more. The rest of the suite compares the single device with other implementations.

mod common;

use common::{TINY, generate, options, prompt, with};
use std::sync::Arc;
use std::time::Duration;
use welte::{
    AdapterSource, DeviceId, DeviceOptions, Error, Exchange, GenerateOptions, LoadOptions, Model,
    Sampling,
};
use welte_device::{
    ChainStart, Context, Control, Device, Guesses, Pick, Replay, Role, SlotAdapter, SlotState,
    Step, StepOptions, Want,
};
use welte_formats::{Checkpoint, WithDraft};
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

/// The CPU with one thread.
fn cpu() -> Arc<dyn Device> {
    let mut options = DeviceOptions::default();
    options.threads = Some(1);
    open(DeviceId::only("cpu"), options)
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
        "sparse.json",
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
        drafts: true,
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

/// The rows of the draft layer after those of a step, each of which reads the next token.
fn follow(program: &Program, rows: &[Row]) -> Step {
    let stays = program.guesses_stay();
    let next = |row: &Row| {
        row.later((row.token() + 7) % program.vocab, 0)
            .shifted(stays.into())
    };
    let rows: Vec<Row> = rows.iter().map(next).collect();
    let mut step = Step {
        guesses: match stays {
            true => Guesses::Staying(0),
            false => Guesses::Moving,
        },
        ..Step::default()
    };
    for rows in rows.chunk_by(|a, b| a.slot == b.slot) {
        let row = step.add(Role::Draft, rows.iter().copied()).end - 1;
        let want = Want::Token { draft: None };
        step.picks.push(Pick { row, want });
    }
    step
}

/// The draft logits after the rows of the last step, and guesses that follow guesses.
fn guesses(context: &mut dyn Context, rows: &[Row]) -> Vec<u32> {
    let program = context.program().clone();
    if program.pass(PassKind::Draft).is_none() {
        return Vec::new();
    }
    let mut step = follow(&program, rows);
    let wanted: Vec<u32> = (0..)
        .map(|nth| 4 - nth % 2)
        .take(step.picks.len())
        .collect();
    let mut tokens = vec![0; 4 * wanted.len()];
    let picks = step
        .picks
        .iter()
        .map(|pick| step.rows[pick.row as usize].slot);
    let places: Vec<Row> = picks.map(|slot| Row::new(9, 40, slot)).collect();
    context
        .draft(&mut step, &wanted, &mut tokens)
        .expect("guesses");
    // After the last guess that a pick wants there may be anything.
    let known = (0..).zip(&tokens).filter(|(at, _)| {
        let [nth, pick] = [at / wanted.len(), at % wanted.len()];
        nth < wanted[pick] as usize
    });
    let mut all: Vec<u32> = known.map(|(_, token)| *token).collect();
    // Hidden states of guesses are left behind, in the order of the picks.
    let outputs: Vec<u32> = (0..places.len() as u32).collect();
    let step = Step::of(Role::Draft, &places, &outputs);
    let values = context.step(&step, StepOptions::default()).expect("a step");
    all.extend(values.iter().map(|v| v.to_bits()));
    all
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
        all.extend(guesses(context, &rows));
    }
    let rows = [row(9, 0), row(10, 1)];
    let values = context.step_rows(pass(PassKind::Decode), &rows, &[]);
    all.extend(values.expect("a step").iter().map(|v| v.to_bits()));
    all.extend(guesses(context, &rows));
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
        problems.extend(difference(&format!("{path}: {count} ranks"), &got, &want));
    }
    problems
}

/// How many bits differ, in words; `None`: none do.
fn difference(what: &str, got: &[u32], want: &[u32]) -> Option<String> {
    let pairs = || got.iter().zip(want);
    let differing = pairs().filter(|(got, want)| got != want).count();
    if differing == 0 && got.len() == want.len() {
        return None;
    }
    let far = |(got, want): (&u32, &u32)| (f32::from_bits(*got) - f32::from_bits(*want)).abs();
    let most = pairs().map(far).fold(0.0, f32::max);
    let first = pairs().position(|(got, want)| got != want);
    Some(format!(
        "{what}: {differing} of {} and {} values differ, from {first:?} on, by {most} at most",
        got.len(),
        want.len()
    ))
}

/// A golden, and another one that drafts for it.
fn with_head(model: &str, head: Option<&str>) -> Box<dyn Checkpoint> {
    let open = |name: &str| {
        let golden = welte_goldens::Golden::new(name);
        welte_formats::open(golden.path()).expect("a checkpoint")
    };
    match head {
        Some(head) => Box::new(WithDraft::new(open(model).into(), open(head).into())),
        None => open(model),
    }
}

/// Draft layers, an EAGLE-3 head and a drafter of Gemma 4: their logits, and guesses that follow guesses.
#[test]
fn guesses_are_those_of_a_single_device() {
    let devices = [Devices::new(reference, &[2, 3]), Devices::new(cpu, &[2, 3])];
    guesses_on(&devices, |_| true);
}

#[test]
#[ignore = "needs a GPU"]
fn guesses_on_cuda() {
    guesses_on(&[on_gpus(2)], |_| true);
}

fn guesses_on(devices: &[Devices], wanted: impl Fn(&str) -> bool) {
    let mut problems = Vec::new();
    let all = [
        ("drafts/glm4_moe/hf", None),
        ("drafts/glm4_moe_lite/q8_0.gguf", None),
        ("drafts/qwen35/hf", None),
        ("llama/hf", Some("drafts/eagle3/hf")),
        ("gemma4/effective", Some("drafts/gemma4_assistant/hf")),
    ];
    for (model, head) in all.into_iter().filter(|(model, _)| wanted(model)) {
        let checkpoint = with_head(model, head);
        let program = compile(&*checkpoint);
        assert!(program.pass(PassKind::Draft).is_some(), "{model}");
        for devices in devices {
            let want = bits(&mut *context(&*devices.one, &program, &*checkpoint));
            for (count, ranks) in &devices.ranks {
                let got = bits(&mut *context(&**ranks, &program, &*checkpoint));
                let what = format!("{model}, {head:?}: {count} ranks");
                problems.extend(difference(&what, &got, &want));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Rows of several adapters and of none in one step, and chains of them. Adapters are replaced while the context lives.
#[test]
fn rows_with_adapters_are_those_of_a_single_device() {
    let devices = [Devices::new(reference, &[3]), Devices::new(cpu, &[2, 3])];
    adapters_on(&devices, |_| true);
}

#[test]
#[ignore = "needs a GPU"]
fn rows_with_adapters_on_cuda() {
    adapters_on(&[on_gpus(2)], |name| name == "adapters/llama-all");
}

fn adapters_on(devices: &[Devices], wanted: impl Fn(&str) -> bool) {
    let list = std::fs::read_to_string(welte_goldens::folder().join("adapters.json"));
    let list: Vec<serde_json::Value> =
        serde_json::from_str(&list.expect("the list")).expect("JSON");
    let mut problems = Vec::new();
    for entry in list
        .iter()
        .filter(|entry| wanted(entry["name"].as_str().expect("a name")))
    {
        let [path, adapter] = ["path", "adapter"].map(|key| entry[key].as_str().expect("a name"));
        let [model, adapter] = [path, adapter].map(welte_goldens::Golden::new);
        let options = with(options("reference".parse().expect("a device")), |o| {
            (o.context, o.slots, o.prompt_rows) = (64, 4, 24);
            (o.fused, o.max_adapters) = (false, 3);
            o.adapters = vec![AdapterSource {
                name: "one".into(),
                path: adapter.path().to_path_buf(),
                scale: 1.0,
                for_all: false,
            }];
        });
        let inspection = Model::inspect(&model.path().display().to_string(), &options);
        let inspection = inspection.expect("a plan");
        let (program, checkpoint) = (inspection.program(), &*inspection.checkpoint);
        let file = welte_formats::AdapterFile::open(adapter.path()).expect("an adapter");
        let dialect = checkpoint.dialect();
        let data = welte_models::adapter_data(program, &inspection.spec, dialect, &file);
        let data = data.expect("an adapter of this model");
        let run = |device: &dyn Device| {
            let mut context = context(device, program, checkpoint);
            let mut all = Vec::new();
            // The second time, the adapter is at another place.
            for place in [0, 2] {
                write_adapter(&mut *context, program, &data, place);
                for slot in 0..2 {
                    let scale = [1.0, -0.5][slot as usize];
                    let state = SlotState {
                        adapter: Some(SlotAdapter { place, scale }),
                        ..SlotState::default()
                    };
                    context.set_slot(slot, &state).expect("a slot");
                }
                all.extend(bits(&mut *context));
                erase_adapter(&mut *context, program, place);
            }
            let without = SlotState::default();
            (0..2).for_each(|slot| context.set_slot(slot, &without).expect("a slot"));
            let plain = bits(&mut *context);
            assert!(
                all[..plain.len()] != plain[..],
                "{path}: the adapter changes nothing"
            );
            all.extend(plain);
            all
        };
        for devices in devices {
            let want = run(&*devices.one);
            for (count, ranks) in &devices.ranks {
                let what = format!("{path}: {count} ranks");
                problems.extend(difference(&what, &run(&**ranks), &want));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The bytes of a place of each bank, and of its head.
fn banks(program: &Program) -> Vec<(u32, u64, u64)> {
    let banks = program.adapters.iter().flat_map(|adapters| &adapters.banks);
    let sizes = banks.map(|spec| {
        let bytes = spec.bank.place_bytes().expect("a size");
        (spec.buffer, bytes, spec.bank.head_bytes())
    });
    sizes.collect()
}

/// Writes what an adapter has to a place of all banks, as the engine does, in pieces.
fn write_adapter(
    context: &mut dyn Context,
    program: &Program,
    data: &welte_models::AdapterData,
    place: u32,
) {
    erase_adapter(context, program, place);
    for (buffer, each, _) in banks(program) {
        let of_bank = data.places.iter().find(|(bank, _)| *bank == buffer);
        let mut at = u64::from(place) * each;
        for bytes in of_bank.iter().flat_map(|(_, bytes)| bytes.chunks(1000)) {
            context.write_bytes(buffer, at, bytes).expect("room");
            at += bytes.len() as u64;
        }
    }
}

/// Makes a place one that adds nothing.
fn erase_adapter(context: &mut dyn Context, program: &Program, place: u32) {
    for (buffer, each, head) in banks(program) {
        let zeros = vec![0; head as usize];
        let at = u64::from(place) * each;
        context.write_bytes(buffer, at, &zeros).expect("room");
    }
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
    let dense = |path: &str| path.contains("qwen3/") || path.contains("llama/");
    let others = [
        "qwen3moe/",
        "deepseek_v2/",
        "sparse/",
        "qwen35/",
        "gemma2/",
        "gpt-oss/",
        "gemma3n/",
        "olmo2/",
    ];
    let own = paths(|path| dense(path) || others.iter().any(|family| path.contains(family)));
    compare(&Devices::new(cpu, &[2, 3, 4, 8]), &own);
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
    for ranks in [1, 2] {
        let named = with(dealt("cpu", ranks), |o| o.exchange = Some(Exchange::Host));
        assert!(refused(named).to_string().contains("--exchange is for"));
    }
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

/// Low-rank parts take no exchanges of their own, and a rank has its rows of the banks alone. Draft passes are dealt like others.
#[test]
fn adapters_and_guesses_are_dealt() {
    let [model, head] = ["llama/hf", "drafts/eagle3/hf"].map(welte_goldens::Golden::new);
    let options = with(options("reference".parse().expect("a device")), |o| {
        (o.fused, o.max_adapters) = (false, 2);
        o.draft_head = Some(head.path().display().to_string());
    });
    let inspection = Model::inspect(&model.path().display().to_string(), &options);
    let inspection = inspection.expect("a plan");
    let program = inspection.program();
    let bytes = |program: &Program| {
        let adapters = program.adapters.as_ref().expect("adapters");
        let banks = adapters.banks.iter();
        let sum: u64 = banks
            .map(|bank| program.buffers[bank.buffer as usize].bytes)
            .sum();
        sum
    };
    let shards = welte_table::shard(program, 2, 0).expect("two programs");
    for shard in &shards.ranks {
        for kind in [PassKind::Decode, PassKind::Prompt] {
            let passes = [false, true].map(|adapted| program.pass_with(kind, adapted));
            let [plain, adapted] = passes.map(|pass| shard.exchanges(pass.expect("a pass")));
            assert_eq!(plain, adapted, "{}", kind.name());
        }
        let draft = program.pass(PassKind::Draft).expect("a pass");
        // A layer's four, and the logits.
        assert_eq!(shard.exchanges(draft), 5);
        // A's are every rank's, and B's are dealt.
        let (own, all) = (bytes(&shard.program), bytes(program));
        assert!(own * 10 < all * 9 && own * 2 > all, "{own} of {all}");
    }
}

/// The first GPUs, or the first one as often.
fn gpus(count: usize, replay: Replay, exchange: Exchange) -> Vec<Arc<dyn Device>> {
    let mut options = DeviceOptions::default();
    (options.replay, options.exchange) = (Some(replay), exchange);
    let gpu = |number: u32| welte::open_device(DeviceId::numbered("cuda", number), &options);
    let first = gpu(0).expect("a GPU");
    let others = (1..count as u32).map(|number| gpu(number).unwrap_or_else(|_| first.clone()));
    std::iter::once(first.clone()).chain(others).collect()
}

/// One GPU, and several of them.
fn on_gpus(count: usize) -> Devices {
    let ranks = gpus(count, Replay::Graph, Exchange::Peers);
    let ranks = welte_ranks::device_by(ranks, 0, Duration::from_secs(60));
    Devices {
        one: gpus(1, Replay::Graph, Exchange::Peers).remove(0),
        ranks: vec![(count, ranks)],
    }
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
        all.extend(guesses(context, &row));
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
    let [one, ranks] = [1, 2].map(|count| gpus(count, Replay::Persistent, Exchange::Peers));
    let ranks = welte_ranks::device_by(ranks, 0, Duration::from_secs(60));
    let by = |context: &mut dyn Context| context.replays().expect("a GPU").replaying().to_string();
    let mut compared = 0;
    let wanted = |path: &str| named.split(' ').any(|name| path.contains(name));
    // One has a draft layer, which reads what steps of the kernel leave.
    let drafts = "synthetic:tiny,arch=qwen3,draft=true:q8_0".to_string();
    for path in paths(wanted).into_iter().chain([drafts]) {
        let golden = (!path.starts_with("synthetic")).then(|| welte_goldens::Golden::new(&path));
        let source = golden
            .as_ref()
            .map_or(path.clone(), |one| one.path().display().to_string());
        let checkpoint = welte::open(&source).expect("a checkpoint");
        let program = compile_for(1, 512, &*checkpoint);
        let mut alone = context(&*one[0], &program, &*checkpoint);
        if by(&mut *alone) != "persistent" {
            assert!(golden.is_some(), "{}", by(&mut *alone));
            continue;
        }
        let want = bits_of_one_stream(&mut *alone);
        let mut together = context(&*ranks, &program, &*checkpoint);
        // What is left of a small model may be no work for the kernel.
        if golden.is_some() && by(&mut *together) != "persistent" {
            continue;
        }
        assert_eq!(by(&mut *together), "persistent", "{path}");
        assert!(bits_of_one_stream(&mut *together) == want, "{path}");
        assert_eq!(by(&mut *together), "persistent", "{path}");
        compared += 1;
    }
    assert!(compared > 0);
}

/// Parts of many rows travel in several chunks, which were exchanged more or less often. None overwrites what a slow rank has not read:
/// `WELTE_PRETEND_LATE=50`.
#[test]
#[ignore = "needs two GPUs"]
fn chunks_keep_their_places_on_cuda() {
    let source = "synthetic:tiny,layers=1,dim=256,ffn=512,vocab=300:q8_0";
    let checkpoint = welte::open(source).expect("a checkpoint");
    let program = compile(&*checkpoint);
    let devices = on_gpus(2);
    let run = |device: &dyn Device| {
        let mut context = context(device, &program, &*checkpoint);
        let prompt = program.pass(PassKind::Prompt).expect("a pass");
        let mut all: Vec<u32> = Vec::new();
        for rows in [24, 5, 24, 14, 24] {
            let rows: Vec<Row> = (0..rows).map(|at| Row::new(3 + 7 * at, at, 0)).collect();
            let last = rows.len() as u32 - 1;
            let values = context.step_rows(prompt, &rows, &[last]).expect("a prompt");
            all.extend(values.iter().map(|v| v.to_bits()));
        }
        all
    };
    let want = run(&*devices.one);
    let got = run(&*devices.ranks[0].1);
    assert_eq!(difference("2 ranks", &got, &want), None);
}

#[test]
#[ignore = "needs a GPU"]
fn families_on_cuda() {
    families_of(Exchange::Peers);
}

/// GPUs that do not reach each other's memory have the bits of those that do.
#[test]
#[ignore = "needs a GPU"]
fn families_on_cuda_through_the_host() {
    families_of(Exchange::Host);
}

/// `WELTE_TEST_FAMILIES` names other ones.
fn families_of(exchange: Exchange) {
    let named = std::env::var("WELTE_TEST_FAMILIES");
    let named = named
        .unwrap_or_else(|_| "qwen3/ qwen3moe llama/q4_k gemma3/ deepseek_v2 qwen35/".to_string());
    let wanted = |path: &str| named.split(' ').any(|name| path.contains(name));
    let mut problems = Vec::new();
    for count in [2, 3] {
        let ranks = gpus(count, Replay::Graph, exchange);
        let ranks = welte_ranks::device_by(ranks, 0, Duration::from_secs(60));
        let devices = Devices {
            one: gpus(1, Replay::Graph, exchange).remove(0),
            ranks: vec![(count, ranks)],
        };
        for path in paths(wanted) {
            eprintln!("{count} ranks: {path}");
            problems.extend(differences(&devices, &[path]));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Two GPUs exchange through the host where the options say so, or where they do not reach each other: the plan says how.
#[test]
#[ignore = "needs two GPUs"]
fn the_memory_of_exchanges_is_chosen_on_cuda() {
    let fact = |model: &[(String, String)], name: &str| {
        let found = model.iter().find(|fact| fact.0 == name);
        found.map_or(String::new(), |fact| fact.1.clone())
    };
    let peers = with(dealt("cuda", 2), |o| o.exchange = Some(Exchange::Peers));
    let refused = Model::inspect(TINY, &peers).err();
    if let Some(why) = &refused {
        assert!(why.to_string().contains("--exchange host"), "{why}");
    }
    let load = |ranks, exchange| {
        let options = with(dealt("cuda", ranks), |o| {
            (o.exchange, o.replay, o.slots) = (exchange, None, 1);
        });
        let inspected = Model::inspect(TINY, &options).expect("a plan");
        let how = fact(&inspected.facts(), "exchange");
        let (model, tokens) = (common::load(TINY, &options), [5, 6, 7]);
        let memory: u64 = model
            .stepper()
            .expect("a context")
            .context()
            .allocated()
            .values()
            .sum();
        assert_eq!(memory, model.plan().total());
        let generating = with(GenerateOptions::default(), |o| {
            (o.max_tokens, o.ignore_end) = (12, true);
        });
        let mut session = model.session().expect("a session");
        let text = generate(&mut session, &tokens, &generating).0.tokens;
        let replaying = session.engine().replaying().expect("a GPU").to_string();
        (how, text, replaying)
    };
    let one = load(1, None);
    let host = load(2, Some(Exchange::Host));
    assert!(host.0.contains("through the host's memory"), "{}", host.0);
    assert!(
        host.2.starts_with("graph (not the persistent kernel"),
        "{}",
        host.2
    );
    let chosen = load(2, None);
    assert_eq!(
        chosen.0.contains("through the host"),
        refused.is_some(),
        "{}",
        chosen.0
    );
    assert_eq!((&chosen.1, &host.1), (&one.1, &one.1));
}

/// A model that one GPU lacks the memory for goes to as few as have it. Where all lack it, the error has the numbers.
/// `WELTE_PRETEND_GPUS=4 WELTE_PRETEND_MEMORY=2048`.
#[test]
#[ignore = "needs four pretended GPUs of 2 GiB"]
fn large_models_are_dealt_by_themselves_on_cuda() {
    let options = with(LoadOptions::default(), |o| {
        (o.context, o.prompt_rows, o.replay) = (256, 64, Some(Replay::Graph));
    });
    let planned = |layers: u32, options: &LoadOptions| {
        let source = format!("synthetic:qwen3-4b,layers={layers}:q8_0");
        Model::inspect(&source, options).expect("a plan")
    };
    let ranks = |inspection: &welte::Inspection| {
        let facts = inspection.facts();
        facts
            .iter()
            .filter(|fact| fact.0.starts_with("rank "))
            .count()
    };
    for (layers, wanted) in [(10, 0), (20, 2), (40, 4)] {
        let found = planned(layers, &options);
        assert_eq!(found.device().id.kind, "cuda", "{layers} layers");
        assert_eq!(ranks(&found), wanted, "{layers} layers");
    }
    let none = planned(100, &options);
    assert_eq!(none.device().id.kind, "cpu");
    let why = &none.skipped()[0].why;
    let Error::Memory {
        need,
        have,
        dealt: Some(dealt),
        ..
    } = why
    else {
        panic!("{why}");
    };
    assert_eq!((dealt.ranks, *have), (4, 2 << 30));
    assert!(
        dealt.need > dealt.have && dealt.need * 4 > *need && dealt.need * 3 < *need,
        "{why}"
    );
    assert!(
        why.to_string().contains("; dealt to 4, the fullest needs "),
        "{why}"
    );
    // Who names the ranks hears what the fullest lacks.
    let named = with(options.clone(), |o| {
        (o.device, o.ranks) = ("cuda".parse().expect("a device"), 2);
    });
    let loaded = Model::load("synthetic:qwen3-4b,layers=40:q8_0", &named, &mut |_| ());
    let why = loaded.expect_err("an error");
    assert!(
        matches!(why, Error::Memory { dealt: None, have, .. } if have == 2 << 30),
        "{why}"
    );
    let many = with(named, |o| o.ranks = 5);
    let why = Model::inspect(TINY, &many)
        .err()
        .expect("an error")
        .to_string();
    assert!(why.contains("GPU 4 does not exist"), "{why}");
}
