//! Logits against transformers: small random models of each architecture in every format, and against MLX: models
//! that it quantised. On every instruction set of this machine, on the reference, on the portable GPU device, and on CUDA (with
//! `--include-ignored`).
//! Teacher-forced; the scripts in `tools/goldens` wrote the logits, and `welte-goldens` makes the weights.

#[path = "golden/blocks.rs"]
mod blocks;
#[path = "golden/drafts.rs"]
mod drafts;
#[path = "golden/long.rs"]
mod long;
#[path = "golden/rows.rs"]
mod rows;

use std::sync::{Arc, LazyLock};

use welte::{DeviceId, DeviceOptions, Replay};
use welte_device::Device;
use welte_formats::{Checkpoint, Metadata, TensorInfo};
use welte_models::{CompileOptions, as_directory, as_gguf};
use welte_table::{Format, Op, PassKind, Program, Row};

/// Largest error as a share of the logits' range: f32 activations. What is left is the keys and values in F16, which
/// transformers kept in F32: with its own rounded to F16 it is off by the same 2.4e-3 in the worst golden.
const EXACT: f32 = 3e-3;
/// Activations rounded to bf16, as the GPU does for many rows of BF16 weights: 6.3e-3 was the worst seen on the CPU,
/// 5.7e-3 on a GPU.
const BF16_ACTS: f32 = 1.2e-2;
/// Activations rounded to eight bits per block of 32: 2.7e-2 was the worst seen, the same on every instruction set.
const INT8_ACTS: f32 = 4e-2;
/// The same with gated delta layers, whose state carries the rounding on from position to position: 3.8e-2 was the worst seen
/// on the CPU, 7.1e-2 on a GPU.
const INT8_ACTS_GATED_DELTA: f32 = 8e-2;

/// Activations rounded to FP8, with a scale for each row: 5.0e-2 was the worst seen.
const FP8_ACTS: f32 = 8e-2;

/// One entry of `index.json` with its logits.
struct Golden {
    name: String,
    path: String,
    format: Format,
    prompt: Vec<u32>,
    first: usize,
    vocabulary: usize,
    logits: Vec<f32>,
}

fn goldens(architecture: &str) -> Vec<Golden> {
    goldens_of(|of, _| of == architecture)
}

/// The goldens whose architecture and path are wanted.
fn goldens_of(wanted: impl Fn(&str, &str) -> bool) -> Vec<Golden> {
    goldens_in(
        &[
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
            "families.json",
            "recurrent.json",
            "windowed.json",
            "later.json",
        ],
        wanted,
    )
}

/// The tokens of a prompt: a list, or a seed and a length.
fn prompt(prompt: &serde_json::Value, vocabulary: usize) -> Vec<u32> {
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    match prompt.as_array() {
        Some(list) => list.iter().map(|token| number(token) as u32).collect(),
        None => {
            let count = number(&prompt["tokens"]) as usize;
            welte_goldens::tokens(number(&prompt["seed"]), count, vocabulary)
        }
    }
}

/// The same of some lists.
fn goldens_in(files: &[&str], wanted: impl Fn(&str, &str) -> bool) -> Vec<Golden> {
    let folder = welte_goldens::folder();
    let list = |file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).expect("the index");
        let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("the index is JSON");
        list
    };
    let lists: Vec<_> = files.iter().map(|file| list(file)).collect();
    let index = lists.concat();
    let text =
        |entry: &serde_json::Value, key: &str| entry[key].as_str().expect("a text").to_owned();
    let number =
        |entry: &serde_json::Value, key: &str| entry[key].as_u64().expect("a number") as usize;
    // Only this architecture's files are read: a bundle may carry a part of them.
    let ours = index
        .iter()
        .filter(|entry| wanted(&text(entry, "architecture"), &text(entry, "path")));
    let all = ours.map(|entry| Golden {
        name: text(entry, "name"),
        path: text(entry, "path"),
        format: Format::from_name(&text(entry, "format")).expect("a format"),
        prompt: prompt(&entry["prompt"], number(entry, "vocabulary")),
        first: number(entry, "first"),
        vocabulary: number(entry, "vocabulary"),
        logits: std::fs::read(folder.join(text(entry, "logits")))
            .expect("the logits")
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    });
    all.collect()
}

/// A device with its options, and how far its logits may be off by the arithmetic of its activations.
struct Target {
    name: String,
    device: Arc<dyn Device>,
    tolerance: fn(Format) -> f32,
    /// How steps must be replayed.
    replay: Option<Replay>,
}

impl Target {
    fn new(id: DeviceId, options: &DeviceOptions, tolerance: fn(Format) -> f32) -> Target {
        let name = options.instructions.clone();
        Target {
            name: name.unwrap_or_else(|| id.to_string()),
            device: welte::open_device(id, options).unwrap_or_else(|error| panic!("{error}")),
            tolerance,
            replay: None,
        }
    }
}

fn exact(_: Format) -> f32 {
    EXACT
}

fn int8_activations(format: Format) -> f32 {
    if format.rounds_activations() {
        INT8_ACTS
    } else {
        EXACT
    }
}

/// Prompts in 16-bit formats use BF16 activations.
fn bf16_activations(format: Format) -> f32 {
    match format {
        Format::BF16 | Format::F8_E4M3 => BF16_ACTS,
        other => int8_activations(other),
    }
}

/// The reference.
fn reference() -> Vec<Target> {
    let id = DeviceId::only("reference");
    vec![Target::new(id, &DeviceOptions::default(), exact)]
}

/// The CPU with every instruction set of this machine.
fn cpu() -> Vec<Target> {
    let names = welte::instruction_sets();
    let bf16 = names.contains(&"avx512-bf16");
    let target = |name: &&'static str| {
        let mut options = DeviceOptions::default();
        options.threads = Some(2);
        options.instructions = Some(name.to_string());
        // Prompts use the BF16 instructions from `avx512-vnni` on, if the machine has them.
        let tolerance = match *name {
            "avx512-vnni" | "amx" | "avx512-bf16" | "amx-bf16" if bf16 => bf16_activations,
            _ => int8_activations,
        };
        Target::new(DeviceId::only("cpu"), &options, tolerance)
    };
    names.iter().map(target).collect()
}

/// The first GPU. Steps are replayed as a graph, so the persistent kernel is not compiled.
fn cuda() -> Vec<Target> {
    let mut options = DeviceOptions::default();
    options.replay = Some(Replay::Graph);
    vec![Target::new(
        DeviceId::numbered("cuda", 0),
        &options,
        bf16_activations,
    )]
}

/// The same, with activations in FP8.
fn cuda_float8() -> Vec<Target> {
    let mut options = DeviceOptions::default();
    options.activations = welte::Activations::Float8;
    vec![Target::new(DeviceId::numbered("cuda", 0), &options, |_| {
        FP8_ACTS
    })]
}

/// The first adapter of the portable device, software included. Tests share it, and so its compiled kernels. None on a machine
/// without an adapter, unless `WELTE_GPU_REQUIRED` is set.
fn gpu() -> Vec<Target> {
    static DEVICE: LazyLock<Option<Arc<dyn Device>>> = LazyLock::new(|| {
        let id = DeviceId::numbered("gpu", 0);
        match welte::open_device(id, &DeviceOptions::default()) {
            Ok(device) => Some(device),
            Err(why) if std::env::var_os("WELTE_GPU_REQUIRED").is_none() => {
                eprintln!("skipped: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    });
    let target = |device: &Arc<dyn Device>| Target {
        name: "gpu".to_string(),
        device: device.clone(),
        tolerance: int8_activations,
        replay: None,
    };
    DEVICE.iter().map(target).collect()
}

/// The first GPU, with steps by the persistent kernel.
fn persistent() -> Vec<Target> {
    let mut target = Target::new(
        DeviceId::numbered("cuda", 0),
        &DeviceOptions::default(),
        bf16_activations,
    );
    target.name += " (persistent)";
    target.replay = Some(Replay::Persistent);
    vec![target]
}

/// A device with the experts of all layers on another one, or of the first layer.
fn split(near: &[Target], far: &Arc<dyn Device>) -> Vec<Target> {
    let both = near.iter().flat_map(|near| {
        [u32::MAX, 1].map(|layers| Target {
            name: format!("{} with experts on {}", near.name, far.info().id),
            device: welte_split::device(near.device.clone(), far.clone(), layers),
            tolerance: bf16_activations,
            replay: None,
        })
    });
    both.collect()
}

/// The CPU with its best instruction set.
fn best_cpu() -> Vec<Target> {
    cpu().into_iter().last().into_iter().collect()
}

const PROMPT_ROWS: usize = 32;

/// The program for a device, or what the device lacks.
fn compile(
    checkpoint: &dyn Checkpoint,
    device: &dyn Device,
    features: u32,
) -> Result<Arc<Program>, String> {
    let options = CompileOptions {
        features,
        context: 64,
        page: 16,
        kv_format: Format::F16,
        prompt_rows: PROMPT_ROWS as u32,
        prompt_outputs: PROMPT_ROWS as u32,
        decode_rows: 16,
        ..CompileOptions::default()
    };
    compile_for(checkpoint, device, &options)
}

/// The same with other sizes.
fn compile_for(
    checkpoint: &dyn Checkpoint,
    device: &dyn Device,
    options: &CompileOptions,
) -> Result<Arc<Program>, String> {
    let spec = welte_models::spec(checkpoint).expect("a known model");
    let program = welte_models::compile(&spec, checkpoint, options).expect("a program");
    if let Some(what) = device.missing(&program) {
        return Err(what);
    }
    let program = welte_table::fuse(program, device.patterns());
    welte_table::verify(&program).expect("a valid program");
    Ok(Arc::new(program))
}

/// What is wrong with one row of logits: the largest error in shares of the range, and a changed winner.
fn compare(got: &[f32], want: &[f32], tolerance: f32) -> Result<f32, String> {
    let range = want.iter().copied().fold(f32::MIN, f32::max)
        - want.iter().copied().fold(f32::MAX, f32::min);
    let worst = got
        .iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |a: f32, b| if b.is_nan() { b } else { a.max(b) });
    if worst.is_nan() || worst > tolerance * range {
        return Err(format!(
            "error {:.2e} of the range, {tolerance:.0e} allowed",
            worst / range
        ));
    }
    let winner = |row: &[f32]| {
        (0..row.len())
            .max_by(|&a, &b| row[a].total_cmp(&row[b]))
            .unwrap_or(0)
    };
    let (ours, theirs) = (winner(got), winner(want));
    if want[theirs] - want[ours] > 2.0 * tolerance * range {
        return Err(format!("token {ours} wins in place of {theirs}"));
    }
    Ok(worst / range)
}

/// All ways to compute one golden on one device: rows of the decode pass, chosen rows of the prompt pass, and the last
/// row of a prompt followed by one token at a time.
fn check(
    golden: &Golden,
    program: Arc<Program>,
    checkpoint: &dyn Checkpoint,
    target: &Target,
) -> Result<f32, String> {
    let said = |error: welte_device::Error| error.to_string();
    let pass = |kind| program.pass(kind).expect("a pass of this kind");
    let (decode, prompt) = (pass(PassKind::Decode), pass(PassKind::Prompt));
    let plan = target.device.plan(program.clone()).map_err(said)?;
    let model = target
        .device
        .load(plan, checkpoint, &mut |_| ())
        .map_err(said)?;
    let rows: Vec<Row> = (0u32..)
        .zip(&golden.prompt)
        .map(|(position, &token)| Row::new(token, position, 0))
        .collect();
    let commands = &program.passes[decode].commands;
    let gated_delta = commands.iter().any(|c| c.op == Op::GatedDelta);
    let tolerance = match (target.tolerance)(golden.format) {
        INT8_ACTS if gated_delta => INT8_ACTS_GATED_DELTA,
        tolerance => tolerance,
    };
    let wanted: Vec<&[f32]> = golden.logits.chunks_exact(golden.vocabulary).collect();
    assert_eq!(wanted.len(), rows.len() - golden.first);
    let mut worst = 0.0f32;
    let mut judge = |path: &str, got: &[f32], want: &[f32]| match compare(got, want, tolerance) {
        Ok(error) => {
            worst = worst.max(error);
            Ok(())
        }
        Err(problem) => Err(format!("{path}: {problem}")),
    };

    let mut context = model.context().map_err(said)?;
    let mut got = Vec::new();
    for rows in rows.chunks(16) {
        got.extend_from_slice(context.step_rows(decode, rows, &[]).map_err(said)?);
    }
    let got = got.chunks_exact(golden.vocabulary);
    for (got, want) in got.skip(golden.first).zip(&wanted) {
        judge("rows", got, want)?;
    }

    let mut context = model.context().map_err(said)?;
    let most = rows.len().min(PROMPT_ROWS);
    let outputs: Vec<u32> = (golden.first as u32..most as u32).collect();
    let got = context
        .step_rows(prompt, &rows[..most], &outputs)
        .map_err(said)?;
    assert_eq!(got.len(), outputs.len() * golden.vocabulary);
    for (got, want) in got.chunks_exact(golden.vocabulary).zip(&wanted) {
        judge("prompt, chosen rows", got, want)?;
    }

    let mut context = model.context().map_err(said)?;
    let (first, rest) = rows.split_at(golden.first + 1);
    let got = context
        .step_rows(prompt, first, &[golden.first as u32])
        .map_err(said)?;
    judge("prompt", got, wanted[0])?;
    for (row, want) in rest.iter().zip(&wanted[1..]) {
        let got = context
            .step_rows(decode, std::slice::from_ref(row), &[])
            .map_err(said)?;
        judge("decode", got, want)?;
    }
    let replaying = context.replays().map(|tools| tools.replaying());
    match (target.replay, replaying) {
        (Some(wanted), Some(replaying)) if replaying.replay != wanted => Err(replaying.to_string()),
        _ => Ok(worst),
    }
}

fn check_all(architecture: &str, count: usize, targets: &[Target]) {
    let goldens = goldens(architecture);
    assert_eq!(goldens.len(), count, "a directory and files");
    check_each(&goldens, targets);
}

fn check_each(goldens: &[Golden], targets: &[Target]) {
    let mut problems = Vec::new();
    for golden in goldens {
        let model = welte_goldens::Golden::new(&golden.path);
        let checkpoint = welte_formats::open(model.path()).expect("a checkpoint");
        for target in targets {
            let name = &target.name;
            let program = match compile(&*checkpoint, &*target.device, 0) {
                Ok(program) => program,
                // Only a GPU may lack something.
                Err(what) if target.device.info().id.kind == "cuda" => {
                    eprintln!("{} skipped on {name}: no {what}", golden.name);
                    continue;
                }
                Err(what) => panic!("{} on {name}: no {what}", golden.name),
            };
            match check(golden, program, &*checkpoint, target) {
                Ok(worst) => println!("{} on {name}: {worst:.2e}", golden.name),
                Err(problem) => problems.push(format!("{} on {name}: {problem}", golden.name)),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Directories that cannot be written as GGUF yet, and a word of the reason.
const NOT_WRITTEN: &[(&str, &str)] = &[
    ("mixtral/hf", "no form in GGUF"),
    ("mlx/moe", "switch_mlp"),
    ("gpt-oss/hf", "experts.down_proj"),
    ("gpt-oss/mxfp4", "experts.down_proj"),
    ("gemma4/effective", "per_layer"),
    ("gemma4/mixture", "layer_scalar"),
    ("gemma3n/hf", "altup"),
    ("granitehybrid/hf", "A_log"),
    ("nemotronh/hf", "A_log"),
    ("nemotron3/hf", "A_log"),
    ("apertus/hf", "alpha_n"),
    ("apertus1p5/hf", "alpha_n"),
    ("phimoe/hf", "would be read"),
    ("falcon_h1/hf", "A_log"),
    ("mamba2/hf", "A_log"),
    ("muse_glimmer/hf", "qk_norm"),
    ("minimax_m3/hf", "index_k_norm"),
    ("hy_v4/hf", "hc_"),
];

/// A directory read as a GGUF file has the logits of the original.
#[test]
fn directories_read_as_gguf() {
    let folder = welte_goldens::folder();
    let goldens = goldens_of(|_, path| folder.join(path).is_dir());
    assert!(goldens.len() > 40, "{} directories", goldens.len());
    let target = best_cpu().remove(0);
    let (mut refused, mut problems) = (Vec::new(), Vec::new());
    for golden in &goldens {
        let model = welte_goldens::Golden::new(&golden.path);
        let original = welte_formats::open(model.path()).expect("a checkpoint");
        let written = match as_gguf(original, Metadata::new()) {
            Ok(written) => written,
            Err(error) => {
                refused.push(format!("{}: {error}", golden.name));
                continue;
            }
        };
        let program = compile(&written, &*target.device, 0).expect("a program");
        if let Err(problem) = check(golden, program, &written, &target) {
            problems.push(format!("{}: {problem}", golden.name));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let unexpected = refused.iter().filter(|text| {
        let known = |(name, why): &(&str, &str)| text.starts_with(name) && text.contains(why);
        !NOT_WRITTEN.iter().any(known)
    });
    let unexpected: Vec<_> = unexpected.cloned().collect();
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    assert_eq!(refused.len(), NOT_WRITTEN.len());
}

/// Architectures that are written as directories, by their folder of goldens.
const WRITTEN_BACK: [&str; 29] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "olmo3",
    "smollm3",
    "starcoder2",
    "exaone4",
    "seed_oss",
    "granite",
    "cohere2",
    "ernie4_5",
    "hunyuan",
    "hunyuan_moe",
    "dots1",
    "minimax_m2",
    "olmo",
    "olmoe",
    "phi2",
    "command_r",
    "arcee",
    "nemotron",
    "jais2",
    "vaultgemma",
];

/// A directory that became a GGUF file becomes the same directory again: its tensors bit by bit, and its logits.
#[test]
fn directories_come_back_from_gguf() {
    let folder = welte_goldens::folder();
    let goldens = goldens_of(|_, path| folder.join(path).is_dir());
    let target = best_cpu().remove(0);
    let (mut written, mut refused, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for golden in &goldens {
        let model = welte_goldens::Golden::new(&golden.path);
        let open = || welte_formats::open(model.path()).expect("a checkpoint");
        let Ok(gguf) = as_gguf(open(), Metadata::new()) else {
            continue;
        };
        let back = match as_directory(Box::new(gguf), &Metadata::new()) {
            Ok(back) => back,
            Err(error) => {
                refused.push(format!("{}: {error}", golden.name));
                continue;
            }
        };
        let original = open();
        for (key, value) in back.metadata() {
            let own = original.metadata().get(key);
            // One function has several names.
            let own = own.filter(|own| *own != value && key != "hidden_act");
            if let Some(own) = own {
                problems.push(format!("{}: {key} is {value:?}, not {own:?}", golden.name));
            }
        }
        let values = |checkpoint: &dyn Checkpoint, tensor: &TensorInfo| {
            let bytes = checkpoint.rows(tensor, 0, tensor.n).expect("rows");
            let mut values = vec![0f32; tensor.n * tensor.k];
            welte_formats::quant::decode(tensor.format, &bytes, &mut values);
            values
        };
        for tensor in back.tensors() {
            let Some(info) = original.tensor(&tensor.name) else {
                continue;
            };
            if values(&back, tensor) != values(&*original, info) {
                problems.push(format!("{}: {} differs", golden.name, tensor.name));
            }
        }
        let program = compile(&back, &*target.device, 0).expect("a program");
        if let Err(problem) = check(golden, program, &back, &target) {
            problems.push(format!("{}: {problem}", golden.name));
        }
        written.push(golden.path.clone());
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    for name in WRITTEN_BACK {
        let is_there = written
            .iter()
            .any(|path| path.starts_with(&format!("{name}/")));
        assert!(is_there, "{name}: {}", refused.join("\n"));
    }
}

/// FP8 weights with activations in FP8, in every pass.
#[test]
#[ignore = "needs a GPU"]
fn activations_in_fp8() {
    let mut float8 = goldens("formats");
    float8.retain(|golden| golden.format == Format::F8_E4M3);
    assert_eq!(float8.len(), 3, "scales by squares, by rows, and one");
    let targets = cuda_float8();
    check_each(&float8, &targets);
    for golden in &float8 {
        assert_rows_have_their_bits(golden, &targets[0]);
    }
}

/// A row of the decode pass has the same bits alone and beside others.
fn assert_rows_have_their_bits(golden: &Golden, target: &Target) {
    let model = welte_goldens::Golden::new(&golden.path);
    let checkpoint = welte_formats::open(model.path()).expect("a checkpoint");
    let program = compile(&*checkpoint, &*target.device, 0).expect("a program");
    let decode = program.pass(PassKind::Decode).expect("a decode pass");
    let plan = target.device.plan(program).expect("a plan");
    let loaded = target.device.load(plan, &*checkpoint, &mut |_| ());
    let loaded = loaded.expect("a loaded model");
    let steps_of = |size: usize| {
        let mut context = loaded.context().expect("a context");
        let rows: Vec<Row> = (0u32..)
            .zip(&golden.prompt)
            .map(|(position, &token)| Row::new(token, position, 0))
            .collect();
        let steps = rows.chunks(size).flat_map(|rows| {
            let logits = context.step_rows(decode, rows, &[]).expect("a step");
            logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        });
        steps.collect::<Vec<_>>()
    };
    let alone = steps_of(1);
    for size in [2, 7, 16] {
        assert!(steps_of(size) == alone, "{} by {size}", golden.name);
    }
}

/// Models whose layers the graph alone had: norms after a part, sinks, experts, recurrent layers. The small Nemotron and Gemma 4
/// models have sizes that the persistent kernel lacks.
mod persistent {
    macro_rules! families {
        ($($name:ident $count:literal),*) => {
            $(
                #[test]
                #[ignore = "needs a GPU"]
                fn $name() {
                    super::check_all(stringify!($name), $count, &super::persistent());
                }
            )*
        };
    }
    families!(
        gemma2 2, gemma3 2, qwen3moe 2, mixtral 2, gpt_oss 4, qwen35 2, qwen35moe 2, qwen3next 2, lfm2 2, lfm2moe 2,
        granitehybrid 2
    );
}

/// Experts on another device: of layers with and without a shared expert, biases, latent widths, a dense part beside them.
mod experts_elsewhere {
    use super::{best_cpu, check_all, cuda, gpu, reference, split};

    macro_rules! families {
        ($($name:ident $count:literal),*) => {
            $(
                #[test]
                fn $name() {
                    let (plain, fast) = (reference(), best_cpu());
                    let mut targets = split(&plain, &fast[0].device);
                    targets.extend(split(&fast, &plain[0].device));
                    check_all(stringify!($name), $count, &targets);
                }
            )*
            mod on_portable {
                use super::*;
                $(
                    #[test]
                    #[ignore = "slow on a software adapter: CI runs one"]
                    fn $name() {
                        check_all(stringify!($name), $count, &split(&gpu(), &best_cpu()[0].device));
                    }
                )*
            }
            mod on_nvidia {
                use super::*;
                $(
                    #[test]
                    #[ignore = "needs a GPU"]
                    fn $name() {
                        check_all(stringify!($name), $count, &split(&cuda(), &best_cpu()[0].device));
                    }
                )*
            }
        };
    }
    families!(qwen3moe 2, gpt_oss 4, qwen3next 2, deepseek_v2 2, nemotron3 2, lfm2moe 2, gemma4 7, afmoe 2, step35 2);
}

/// Tests of each architecture: on the reference, on the CPU, on the portable GPU device, and on CUDA. A directory and a file per format: 14; a directory and one
/// file: 2. Formats that came later, F8_E4M3 in four ways: 7. Formats that are unpacked: 12 files and 6 directories. MLX: a directory for each number of bits, one that mixes
/// them, and one with experts. gpt-oss: two directories and two files. Gemma 4: a directory and two files of each kind, and a file of a smaller one.
macro_rules! architectures {
    ($($name:ident $count:literal),* $(,)?) => {
        mod reference {
            $(
                #[test]
                fn $name() {
                    super::check_all(stringify!($name), $count, &super::reference());
                }
            )*
        }
        mod cpu {
            $(
                #[test]
                fn $name() {
                    super::check_all(stringify!($name), $count, &super::cpu());
                }
            )*
        }
        mod gpu {
            $(
                #[test]
                #[ignore = "slow on a software adapter: CI runs some"]
                fn $name() {
                    super::check_all(stringify!($name), $count, &super::gpu());
                }
            )*
        }
        mod cuda {
            $(
                #[test]
                #[ignore = "needs a GPU"]
                fn $name() {
                    super::check_all(stringify!($name), $count, &super::cuda());
                }
            )*
        }
    };
}

architectures! {
    llama 14, qwen2 14, qwen3 14, gemma 2, gemma2 2, gemma3 2, phi3 2, olmo2 2, smollm3 2, qwen3moe 2, mixtral 2,
    qwen3next 2, qwen35 2, qwen35moe 2, lfm2 2, granitehybrid 2, lfm2moe 2, nemotronh 2, nemotron3 2,
    formats 7, packed 18, mlx 8, gpt_oss 4, ministral3 2, cohere2 2, starcoder2 2, olmo3 2, exaone4 2, seed_oss 2, ernie4_5 2,
    hunyuan 2, apertus 2, granite 2, glm4_moe 2, ernie4_5_moe 2, deepseek_v2 2, deepseek_v3 2, glm4_moe_lite 2, mistral4 2,
    gemma4 7, gemma3n 2, phimoe 2,
    olmoe 2, qwen2moe 2, granitemoe 2, arcee 2, nemotron 2, minimax_m2 2, bailingmoe 2, bailingmoe2 2, dots1 2, hunyuan_moe 2, exaone_moe 2,
    afmoe 2, stablelm 2, stablelm_parallel 2, phi2 2, command_r 2, olmo 2, internlm2 2, minicpm 2, exaone 2, glm 2, command_r_plus 2, solar_open 2, youtu 2, falcon_h1 2, llama4 2,
    gptneox 2, gptneox_serial 2, glm4 2, minicpm3 2, deepseek_v32 2, glm_moe_dsa 2, sparse_deepseek_v32 2, sparse_glm_moe_dsa 2, laguna 2, laguna_full 2,
    step35 2, mimo2 2, mamba2 2, deepseek 2, hy_v3 2, mellum 2, deci 2, cohere2moe 2, muse_glimmer 2, granite_swa 2, granitemoe_swa 2,
    kimi_linear 2, mamba 2, falcon_mamba 2, jamba 2, lfm3 2, flex_olmo 2, apertus1p5 2, minimax_m3 2, hy_v4 2, jais2 2, hyperclovax 2, vaultgemma 2, flint 2,
}
