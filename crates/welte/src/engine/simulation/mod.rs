//! The engine in simulated time: a device that costs time and fails, clients that stall and leave, pools that are too small,
//! and a disk that is slow, full or torn. One seed gives one schedule. After every turn the invariants of [`checks`] hold, and
//! every text is that of the request alone.
//!
//! `WELTE_SIMULATION_SEED` replays one schedule, `WELTE_SIMULATION_TRACE=1` prints its turns, and `WELTE_SIMULATION_SECONDS` says how long to go on with new ones
//! (`tools/simulate`). Constraints are not part of it: their guides are threads of their own.
//! `tools/simulation-faults.py` says which planted fault each invariant notices.

mod checks;
mod clients;
mod device;
mod encoders;
mod world;

use super::disk::Disk;
use super::draft::Speculator;
use super::host::Host;
use super::pages::Tiers;
use super::shared::Shared;
use super::thread::Driver;
use super::{Clock, Engine, EngineOptions, Handle, Scheduler, Speculation};
use crate::cache::{Layout, PrefixStore, SimulatedDisk};
use crate::{LoadOptions, Model, PrefixStoreOptions};
use checks::Checks;
use clients::{Clients, Counts};
use device::SimulatedContext;
use encoders::Encoders;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use web_time::{Duration, Instant};
use welte_device::Context;
use welte_formats::checkpoint::{Checkpoint, Metadata, Overlay, Value};
use welte_formats::synthetic::Synthetic;
use world::{END, Random, WORD, WORDS, World};

/// A model and an engine. The seed chooses one.
#[derive(Clone, Copy, Debug)]
struct Shape {
    model: &'static str,
    slots: u32,
    /// Requests that may wait.
    queue: usize,
    context: u32,
    /// Positions in the caches.
    positions: u32,
    page: u32,
    prompt_rows: u32,
    decode_rows: u32,
    checkpoints: u32,
    max_chain: u32,
    /// Slots of a chain.
    chain_slots: usize,
    /// The device has mixed steps.
    mixes: bool,
    /// Prompts and generated tokens have different bits.
    roles: bool,
    embeds: bool,
}

/// One cache, one with a window beside it, and recurrent state.
const PLAIN: &str = "synthetic:custom,vocab=280:q8_0";
const WINDOWED: &str = "synthetic:custom,arch=gemma3,layers=6,window=12,vocab=280:q8_0";
const RECURRENT: &str = "synthetic:custom,arch=qwen35,layers=4,vocab=280:q8_0";

const BASE: Shape = Shape {
    model: PLAIN,
    slots: 4,
    queue: 64,
    context: 96,
    positions: 160,
    page: 8,
    prompt_rows: 40,
    decode_rows: 12,
    checkpoints: 2,
    max_chain: 64,
    chain_slots: 16,
    mixes: false,
    roles: true,
    embeds: false,
};

#[rustfmt::skip]
const SHAPES: [Shape; 12] = [
    BASE,
    Shape { mixes: true, ..BASE },
    Shape { slots: 1, positions: 96, ..BASE },
    Shape { roles: false, page: 4, positions: 96, ..BASE },
    Shape { model: WINDOWED, ..BASE },
    Shape { model: WINDOWED, roles: false, mixes: true, slots: 3, page: 4, ..BASE },
    Shape { model: RECURRENT, ..BASE },
    Shape { model: RECURRENT, slots: 1, checkpoints: 0, positions: 96, ..BASE },
    Shape { slots: 6, queue: 2, chain_slots: 2, prompt_rows: 8, ..BASE },
    Shape { embeds: true, roles: false, ..BASE },
    Shape { slots: 8, positions: 400, mixes: true, max_chain: 5, prompt_rows: 96, ..BASE },
    Shape { model: RECURRENT, mixes: true, slots: 3, roles: false, checkpoints: 4, ..BASE },
];

/// A synthetic checkpoint with a vocabulary.
struct WithVocabulary {
    inner: Synthetic,
    metadata: Metadata,
}

impl WithVocabulary {
    fn open(source: &str) -> WithVocabulary {
        let inner = Synthetic::parse(source.strip_prefix("synthetic:").unwrap()).unwrap();
        let mut metadata = inner.metadata().clone();
        metadata.retain(|key, _| !key.starts_with("tokenizer."));
        let special = ["<unk>", "<s>", "</s>"].map(String::from);
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let words = WORDS.map(|word| word.replace(' ', "\u{2581}"));
        let tokens: Vec<String> = special.into_iter().chain(bytes).chain(words).collect();
        assert_eq!(tokens.len(), WORD as usize + WORDS.len());
        let types = (0..tokens.len()).map(|id| match id {
            0 => 2,
            1 | 2 => 3,
            id if id < WORD as usize => 6,
            _ => 1,
        });
        let types = types.map(Value::I64).collect();
        let scores = tokens.iter().map(|_| Value::F64(0.0)).collect();
        let tokens = tokens.into_iter().map(Value::String).collect();
        for (key, value) in [
            ("model", Value::String("llama".into())),
            ("tokens", Value::Array(tokens)),
            ("scores", Value::Array(scores)),
            ("token_type", Value::Array(types)),
            ("bos_token_id", Value::U64(1)),
            ("eos_token_id", Value::U64(END.into())),
        ] {
            metadata.insert(format!("tokenizer.ggml.{key}"), value);
        }
        WithVocabulary { inner, metadata }
    }
}

impl Overlay for WithVocabulary {
    fn base(&self) -> &dyn Checkpoint {
        &self.inner
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The models of the shapes, loaded once. Nothing is ever computed with their weights.
fn model(index: usize) -> &'static Model {
    static MODELS: [OnceLock<Model>; SHAPES.len()] = [const { OnceLock::new() }; SHAPES.len()];
    MODELS[index].get_or_init(|| {
        let shape = &SHAPES[index];
        let options = LoadOptions {
            device: "reference".parse().unwrap(),
            context: shape.context,
            prompt_rows: shape.prompt_rows,
            decode_rows: shape.decode_rows,
            slots: shape.slots,
            cache_positions: shape.positions,
            checkpoints: shape.checkpoints,
            embeddings: shape.embeds,
            max_chain: shape.max_chain,
            page: shape.page,
            ..LoadOptions::default()
        };
        let checkpoint = Box::new(WithVocabulary::open(shape.model));
        Model::from_checkpoint(checkpoint, &options, &mut |_| ()).unwrap()
    })
}

/// An engine whose device, disk and time are simulated.
fn engine(
    model: &Model,
    world: &Arc<World>,
    speculates: bool,
    disk: Option<(&Path, &mut Random)>,
) -> (Engine, Driver) {
    let program = model.inner.loaded.program();
    let shared = Arc::new(Shared::new(
        program.slots as usize,
        world.shape.queue,
        world.clock.clone(),
        0,
    ));
    let disk = disk.and_then(|(folder, random)| open(folder, random, program, &world.clock));
    let options = EngineOptions {
        speculate_always: speculates,
        ..EngineOptions::default()
    };
    let (own, other) = (program.clone(), world.clone());
    let mut make: super::thread::MakeContext =
        Box::new(move || Ok(Box::new(SimulatedContext::new(&own, &other)) as Box<dyn Context>));
    let mut context = make().unwrap();
    let host = host(world, context.as_mut(), disk.as_ref());
    let monitor = host.as_ref().map(Host::monitor);
    let scheduler = Scheduler::new(
        shared.clone(),
        program,
        model.inner.decode,
        model.inner.prompt,
        model.inner.embed,
        Tiers { host, disk },
        Speculator::of(model, &options.speculation, &options)
            .unwrap()
            .filter(|_| speculates),
    );
    let handle = Handle {
        shared: shared.clone(),
        thread: Mutex::default(),
        replaying: None,
        host: monitor,
        store: None,
        speculation: if speculates {
            Speculation::Ngram
        } else {
            Speculation::Off
        },
    };
    let driver = Driver::new(shared, scheduler, context, make);
    (Engine::of(model, Arc::new(handle)), driver)
}

/// A host tier, if the world has one and the caches can be kept.
fn host(world: &World, context: &mut dyn Context, disk: Option<&Disk>) -> Option<Host> {
    let program = context.program().clone();
    Layout::new(&program, &[0; 32], "").filter(|_| world.host_places > 0)?;
    let bytes = world.host_places * welte_device::Shelf::place_bytes(&program).unwrap();
    let made = Host::new(context, bytes, disk.map(Disk::layout), 64, String::new);
    Some(made.unwrap())
}

/// A store on a disk that may be slow or full. `None`: the caches cannot be stored.
fn open(
    folder: &Path,
    random: &mut Random,
    program: &welte_table::Program,
    clock: &Clock,
) -> Option<Disk> {
    let layout = Layout::new(program, &[7; 32], "simulated")?;
    let options = PrefixStoreOptions {
        dir: folder.to_path_buf(),
        bytes: [1 << 30, 1 << 16][random.below(2)],
    };
    let full = match random.below(3) {
        0 => random.from(1, 6),
        _ => usize::MAX,
    };
    let chance = Mutex::new(random.clone());
    let disk = SimulatedDisk {
        clock: clock.clone(),
        each: Duration::from_micros([10, 2_000, 50_000][random.below(3)]),
        write: Box::new(move |path, bytes| {
            if chance.lock().unwrap().once_in(full) {
                Err(std::io::Error::other("the disk is full"))
            } else {
                std::fs::write(path, bytes)
            }
        }),
    };
    let nodes = program.caches.iter().map(|cache| cache.pages as usize);
    let nodes = nodes.max().unwrap_or(0);
    Some(Disk::new(
        PrefixStore::simulated(&options, layout, disk),
        nodes,
    ))
}

/// Cuts and changes some files, as a machine that lost its power may have.
fn tear(folder: &Path, random: &mut Random) {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    for file in files {
        let mut bytes = std::fs::read(&file).unwrap();
        match random.below(6) {
            0 => bytes.truncate(random.below(bytes.len() + 1)),
            1 if !bytes.is_empty() => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            _ => continue,
        }
        let used = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::write(&file, bytes).unwrap();
        let file = std::fs::File::options().append(true).open(&file).unwrap();
        file.set_modified(used).unwrap();
    }
}

/// One schedule. An error says what went wrong.
fn schedule(seed: u64) -> Result<Counts, String> {
    let index = (seed % SHAPES.len() as u64) as usize;
    let (shape, model) = (SHAPES[index], model(index));
    let mut random = Random(world::mix(seed, 1));
    let clock = Clock::simulated();
    let speculates = random.once_in(2);
    // Real files are slow, so few schedules have a disk. Those live twice.
    let folder = random.once_in(6).then(|| tempfile::tempdir().unwrap());
    let lives = if folder.is_some() { 2 } else { 1 };
    let mut counts = Counts::default();
    let mut earlier = Vec::new();
    for life in 0..lives {
        let start = clock.now();
        let first = 1 + 1000 * life;
        let clients = Clients::new(&shape, &mut random, first, start, &mut earlier);
        let encoders = Encoders::new(&mut random, start);
        let world = World::new(shape, &mut random, clients, encoders, clock.clone());
        let world = Arc::new(world);
        let disk = folder.as_ref().map(|folder| (folder.path(), &mut random));
        let (engine, mut driver) = engine(model, &world, speculates, disk);
        world.clients.lock().unwrap().meet(&engine);
        let shared = &engine.handle.shared;
        world.encoders.lock().unwrap().meet(shared, &world);
        let lived = live(&world, &engine, &mut driver);
        world.clients.lock().unwrap().judge(&world, &mut counts);
        let clients = world.clients.lock().unwrap().describe();
        world.clients.lock().unwrap().leave();
        counts.encoded += world.encoders.lock().unwrap().ended;
        world.encoders.lock().unwrap().leave();
        let wrong = world.inner().wrong.first().cloned();
        if let Some(wrong) = lived.err().or(wrong) {
            return Err(format!("{wrong}\n{shape:?}\nlife {life}\n{clients}"));
        }
        if let Some(host) = engine.prefix_host() {
            counts.fetched += host.pages_fetched as usize;
        }
        driver.finish();
        if let Some(folder) = &folder {
            tear(folder.path(), &mut random);
        }
    }
    Ok(counts)
}

/// Turns until all clients have ended, and the engine is as it was at the start.
fn live(world: &Arc<World>, engine: &Engine, driver: &mut Driver) -> Result<(), String> {
    let clock = &world.clock;
    let mut checks = Checks::default();
    let clients = || world.clients.lock().unwrap();
    let encoders = || world.encoders.lock().unwrap();
    for turn in 0.. {
        clients().act(world);
        encoders().act();
        if driver.is_idle() {
            clients().look(world, true);
            let next = clients().next_event();
            let next = next.into_iter().chain(encoders().next_event()).min();
            match next {
                _ if clients().is_over() && encoders().is_over() => break,
                Some(next) => clock.advance(next.saturating_duration_since(clock.now())),
                None => return Err("a client waits although the engine is idle".into()),
            }
            continue;
        }
        if turn > 20_000 {
            return Err("no end is near".into());
        }
        checks.before(world, driver.scheduler());
        driver.turn().map_err(|error| error.to_string())?;
        checks.after(world, driver.scheduler())?;
        // A turn costs time even if it does nothing.
        clock.advance(Duration::from_micros(20));
        clients().look(world, false);
        if let Some(wrong) = world.inner().wrong.first() {
            return Err(format!("turn {turn}: {wrong}"));
        }
    }
    checks.at_the_end(world, driver.scheduler())?;
    engine.forget_prefixes();
    driver.turn().map_err(|error| error.to_string())?;
    let status = engine.status();
    if (status.free_pages, status.free_slots) == (status.pages, world.shape.slots as usize) {
        Ok(())
    } else {
        Err(format!("pages or slots are missing: {status:?}"))
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether every turn is printed.
fn traces() -> bool {
    static TRACES: OnceLock<bool> = OnceLock::new();
    *TRACES.get_or_init(|| variable("WELTE_SIMULATION_TRACE").is_some())
}

/// Runs a schedule, and says how to run it again if it fails.
fn run(seed: u64) -> Counts {
    let done = std::panic::catch_unwind(|| schedule(seed));
    match done {
        Ok(Ok(counts)) => counts,
        Ok(Err(wrong)) => panic!("seed {seed}: {wrong}\nreplay: WELTE_SIMULATION_SEED={seed}"),
        Err(panic) => {
            eprintln!("seed {seed} panicked; replay: WELTE_SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic)
        }
    }
}

#[test]
fn schedules_keep_the_invariants() {
    let mut counts = Counts::default();
    match variable("WELTE_SIMULATION_SEED") {
        Some(seed) => counts += run(seed),
        None => (0..3000).for_each(|seed| counts += run(seed)),
    }
    println!("{counts:?}");
    if variable("WELTE_SIMULATION_SEED").is_none() {
        let Counts {
            complete,
            stopped,
            cached,
            accepted,
            preempted,
            cut,
            failed,
            inexact,
            encoded,
            fetched,
        } = counts;
        let often = [
            complete, stopped, cached, accepted, preempted, cut, failed, inexact, encoded, fetched,
        ];
        assert!(often.iter().all(|count| *count > 50), "{counts:?}");
    }
}

/// One seed gives one schedule.
#[test]
fn a_schedule_repeats_itself() {
    for seed in 0..50 {
        let [one, other] = [run(seed), run(seed)].map(|counts| format!("{counts:?}"));
        assert_eq!(one, other, "seed {seed}");
    }
}

#[test]
#[ignore = "takes as long as WELTE_SIMULATION_SECONDS says"]
fn many_schedules() {
    let begun = Instant::now();
    let seconds = variable("WELTE_SIMULATION_SECONDS").unwrap_or(60);
    let first = variable("WELTE_SIMULATION_SEED").unwrap_or(1_000_000);
    let (mut counts, mut done) = (Counts::default(), 0);
    for seed in first.. {
        if begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        counts += run(seed);
        done += 1;
    }
    println!("{done} schedules from seed {first}: {counts:?}");
}
