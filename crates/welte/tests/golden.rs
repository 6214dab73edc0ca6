//! Logits against transformers: small random models of each architecture in every format, and against MLX: models
//! that it quantised. On every instruction set of this machine, on the reference, and on a GPU (with `--include-ignored`).
//! Teacher-forced; the scripts in `tools/goldens` wrote the files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use welte_cpu::{Isa, Options};
use welte_formats::Checkpoint;
use welte_models::CompileOptions;
use welte_table::{Command, Format, Program, Row, Shape};

/// Largest error as a share of the logits' range: f32 activations. What is left is the keys and values in F16, which
/// transformers kept in F32: with its own rounded to F16 it is off by the same 2.4e-3 in the worst golden.
const EXACT: f32 = 3e-3;
/// Activations rounded to bf16, as the GPU does for many rows of BF16 weights: 6.3e-3 was the worst seen on the CPU,
/// 5.7e-3 on a GPU.
const BF16_ACTS: f32 = 1.2e-2;
/// Activations rounded to eight bits per block of 32: 2.7e-2 was the worst seen, the same on every instruction set.
const INT8_ACTS: f32 = 4e-2;

/// One entry of `index.json` with its logits.
struct Golden {
    name: String,
    path: PathBuf,
    architecture: String,
    format: Format,
    prompt: Vec<u32>,
    first: usize,
    vocabulary: usize,
    logits: Vec<f32>,
}

fn goldens(architecture: &str) -> Vec<Golden> {
    // At run time first: a bundle for a machine with a GPU carries the files elsewhere.
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR");
    let crate_folder = crate_folder.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let folder = Path::new(&crate_folder).join("tests/goldens");
    let list = |file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).expect("the index");
        let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("the index is JSON");
        list
    };
    let index = ["index.json", "formats.json", "mlx.json", "gpt-oss.json"]
        .map(list)
        .concat();
    let text =
        |entry: &serde_json::Value, key: &str| entry[key].as_str().expect("a text").to_owned();
    let number =
        |entry: &serde_json::Value, key: &str| entry[key].as_u64().expect("a number") as usize;
    let all = index.iter().map(|entry| Golden {
        name: text(entry, "name"),
        path: folder.join(text(entry, "path")),
        architecture: text(entry, "architecture"),
        format: Format::from_name(&text(entry, "format")).expect("a format"),
        prompt: entry["prompt"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|t| t.as_u64().expect("a token") as u32)
            .collect(),
        first: number(entry, "first"),
        vocabulary: number(entry, "vocabulary"),
        logits: std::fs::read(folder.join(text(entry, "logits")))
            .expect("the logits")
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    });
    all.filter(|golden| golden.architecture == architecture)
        .collect()
}

/// Where a golden is computed.
enum Configuration {
    Cpu(&'static str, Options),
    Cuda,
}

impl Configuration {
    fn name(&self) -> &'static str {
        match self {
            Configuration::Cpu(name, _) => name,
            Configuration::Cuda => "cuda",
        }
    }

    /// How far the logits may be off, by the arithmetic of the activations.
    fn tolerance(&self, format: Format) -> f32 {
        let floats = !format.rounds_activations();
        match self {
            Configuration::Cpu(_, options) if options.reference => EXACT,
            // The prompt has many rows: see `Kernel::for_prompt`.
            Configuration::Cpu(_, options)
                if matches!(format, Format::BF16 | Format::F8_E4M3)
                    && options.isa() >= Isa::Avx512Vnni
                    && Isa::Avx512Bf16.is_available() =>
            {
                BF16_ACTS
            }
            Configuration::Cpu(..) if floats => EXACT,
            Configuration::Cuda if matches!(format, Format::BF16 | Format::F8_E4M3) => BF16_ACTS,
            Configuration::Cuda if floats => EXACT,
            _ => INT8_ACTS,
        }
    }

    /// What the model needs that is not there.
    fn lacks(&self, checkpoint: &dyn Checkpoint) -> Option<String> {
        match self {
            Configuration::Cpu(..) => None,
            Configuration::Cuda => {
                let spec = welte_models::spec(checkpoint).expect("a known model");
                let options = CompileOptions::default();
                let program = welte_models::compile(&spec, checkpoint, &options);
                welte_cuda::missing(&program.expect("a program"))
            }
        }
    }

    fn supports(&self, command: &Command) -> bool {
        match self {
            Configuration::Cpu(..) => welte_cpu::supports(command),
            Configuration::Cuda => welte_cuda::supports(command),
        }
    }

    fn load(&self, program: &Arc<Program>, checkpoint: &dyn Checkpoint) -> Result<Model, String> {
        let program = program.clone();
        let mut quiet = |_, _| ();
        Ok(match self {
            Configuration::Cpu(_, options) => Model::Cpu(
                welte_cpu::Model::load(program, checkpoint, options, &mut quiet)
                    .map_err(|e| e.to_string())?,
            ),
            Configuration::Cuda => {
                // Steps go by the graph: the persistent kernel would be compiled for nothing.
                let options = welte_cuda::Options {
                    replay: welte_cuda::Replay::Graph,
                    ..Default::default()
                };
                Model::Cuda(
                    welte_cuda::Model::load(program, checkpoint, &options, &mut quiet)
                        .map_err(|e| e.to_string())?,
                )
            }
        })
    }
}

enum Model {
    Cpu(welte_cpu::Model),
    Cuda(welte_cuda::Model),
}

enum Session {
    Cpu(Box<welte_cpu::Session>),
    Cuda(Box<welte_cuda::Session>),
}

impl Model {
    fn session(&self) -> Result<Session, String> {
        Ok(match self {
            Model::Cpu(model) => Session::Cpu(Box::new(
                welte_cpu::Session::new(model).map_err(|e| e.to_string())?,
            )),
            Model::Cuda(model) => Session::Cuda(Box::new(
                welte_cuda::Session::new(model).map_err(|e| e.to_string())?,
            )),
        })
    }
}

impl Session {
    fn step(&mut self, table: usize, rows: &[Row]) -> Result<&[f32], String> {
        match self {
            Session::Cpu(session) => session.step(table, rows).map_err(|e| e.to_string()),
            Session::Cuda(session) => session.step(table, rows).map_err(|e| e.to_string()),
        }
    }
}

fn compile(checkpoint: &dyn Checkpoint, configuration: &Configuration) -> Arc<Program> {
    let options = CompileOptions {
        context: 64,
        page: 16,
        kv_format: Format::F16,
        prefill_rows: 32,
        batch_rows: 16,
        ..CompileOptions::default()
    };
    let spec = welte_models::spec(checkpoint).expect("a known model");
    let mut program = welte_models::compile(&spec, checkpoint, &options).expect("a program");
    welte_table::legalize(&mut program, &|command| configuration.supports(command))
        .expect("a program for this device");
    welte_table::verify(&program).expect("a sound program");
    Arc::new(program)
}

fn table(program: &Program, wanted: fn(&Shape) -> bool) -> usize {
    program
        .tables
        .iter()
        .position(|table| wanted(&table.shape))
        .expect("a table of this shape")
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

/// All paths of one golden on one configuration: batch, prompt, and one token at a time.
fn check(
    golden: &Golden,
    checkpoint: &dyn Checkpoint,
    configuration: &Configuration,
) -> Result<f32, String> {
    let program = &compile(checkpoint, configuration);
    let model = configuration.load(program, checkpoint)?;
    let rows: Vec<Row> = (0u32..)
        .zip(&golden.prompt)
        .map(|(position, &token)| Row {
            token,
            position,
            sequence: 0,
        })
        .collect();
    let tolerance = configuration.tolerance(golden.format);
    let wanted: Vec<&[f32]> = golden.logits.chunks_exact(golden.vocabulary).collect();
    let mut worst = 0.0f32;
    let mut judge = |path: &str, got: &[f32], want: &[f32]| match compare(got, want, tolerance) {
        Ok(error) => {
            worst = worst.max(error);
            Ok(())
        }
        Err(problem) => Err(format!("{path}: {problem}")),
    };

    let mut batch = model.session()?;
    let batch_table = table(program, |s| matches!(s, Shape::Batch(_)));
    let mut got = Vec::new();
    for rows in rows.chunks(16) {
        let logits = batch
            .step(batch_table, rows)
            .map_err(|e| format!("batch: {e}"))?;
        got.extend_from_slice(logits);
    }
    for (got, want) in got
        .chunks_exact(golden.vocabulary)
        .skip(golden.first)
        .zip(&wanted)
    {
        judge("batch", got, want)?;
    }

    let mut one = model.session()?;
    let (prefill, decode) = (
        table(program, |s| matches!(s, Shape::Prefill(_))),
        table(program, |s| matches!(s, Shape::Decode)),
    );
    let (prompt, rest) = rows.split_at(golden.first + 1);
    judge(
        "prefill",
        one.step(prefill, prompt)
            .map_err(|e| format!("prefill: {e}"))?,
        wanted[0],
    )?;
    for (row, want) in rest.iter().zip(&wanted[1..]) {
        let got = one
            .step(decode, std::slice::from_ref(row))
            .map_err(|e| format!("decode: {e}"))?;
        judge("decode", got, want)?;
    }
    Ok(worst)
}

/// The reference and every instruction set of this machine.
fn on_the_cpu() -> Vec<Configuration> {
    let reference = Options {
        threads: Some(1),
        isa: None,
        reference: true,
    };
    let mut configurations = vec![Configuration::Cpu("reference", reference)];
    configurations.extend(Isa::available().into_iter().map(|isa| {
        let options = Options {
            threads: Some(2),
            isa: Some(isa),
            reference: false,
        };
        Configuration::Cpu(isa.name(), options)
    }));
    configurations
}

fn check_all(architecture: &str, count: usize, configurations: &[Configuration]) {
    let goldens = goldens(architecture);
    assert_eq!(goldens.len(), count, "a directory and files");
    let mut problems = Vec::new();
    for golden in &goldens {
        let checkpoint = welte_formats::open(&golden.path).expect("a checkpoint");
        for configuration in configurations {
            let name = configuration.name();
            if let Some(what) = configuration.lacks(&*checkpoint) {
                eprintln!("{} skipped on {name}: no {what}", golden.name);
                continue;
            }
            match check(golden, &*checkpoint, configuration) {
                Ok(worst) => println!("{} on {name}: {worst:.2e}", golden.name),
                Err(problem) => problems.push(format!("{} on {name}: {problem}", golden.name)),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Two tests of each architecture: on the CPU, and on a GPU. A directory and a file per format: 14; a directory and one
/// file: 2. Formats that came later, F8_E4M3 in four ways: 7. MLX: a directory for each number of bits, one that mixes
/// them, and one with experts. gpt-oss: two directories and two files.
macro_rules! architectures {
    ($($name:ident $count:literal),* $(,)?) => {
        mod cpu {
            $(
                #[test]
                fn $name() {
                    super::check_all(stringify!($name), $count, &super::on_the_cpu());
                }
            )*
        }
        mod cuda {
            $(
                #[test]
                #[ignore = "needs a GPU"]
                fn $name() {
                    super::check_all(stringify!($name), $count, &[super::Configuration::Cuda]);
                }
            )*
        }
    };
}

architectures! {
    llama 14, qwen2 14, qwen3 14, gemma 2, gemma2 2, gemma3 2, phi3 2, olmo2 2, smollm3 2, qwen3moe 2, mixtral 2,
    formats 7, mlx 8, gpt_oss 4,
}
