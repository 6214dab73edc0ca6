//! The end of prompts of 8,192 tokens, against transformers (`tools/goldens/long.py`): scaled positions, windows, latents and
//! recurrent states after many steps.

use super::{
    EXACT, Golden, Target, bf16_activations, compare, compile_for, cpu, goldens_in, gpu, reference,
};
use welte::{DeviceId, DeviceOptions};
use welte_device::Context;
use welte_models::CompileOptions;
use welte_table::{PassKind, Row};

/// Rows of a piece. A prime, so that pieces end anywhere in pages, windows and chunks.
const PIECE: usize = 509;

fn golden(name: &str) -> Golden {
    let mut found = goldens_in(&["long.json"], |architecture, _| architecture == name);
    assert_eq!(found.len(), 1, "{name}");
    found.remove(0)
}

/// Computes the prompt in pieces of at most `piece` rows, and the tokens after the first row with logits by the decode pass if
/// `decode`. All logits must be those of the golden.
fn check(golden: &Golden, target: &Target, piece: usize, decode: bool) {
    let model = welte_goldens::Golden::new(&golden.path);
    let checkpoint = welte_formats::open(model.path()).expect("a checkpoint");
    let options = CompileOptions {
        context: golden.prompt.len() as u32,
        prompt_rows: piece as u32,
        prompt_outputs: 8,
        decode_rows: 1,
        ..CompileOptions::default()
    };
    let program = compile_for(&*checkpoint, &*target.device, &options).expect("a program");
    let plan = target.device.plan(program.clone()).expect("a plan");
    let loaded = target.device.load(plan, &*checkpoint, &mut |_| ());
    let loaded = loaded.expect("a loaded model");
    let mut context = loaded.context().expect("a context");
    let tokens = (0u32..).zip(&golden.prompt);
    let rows: Vec<Row> = tokens
        .map(|(position, &token)| Row::new(token, position, 0))
        .collect();
    let end = if decode { golden.first + 1 } else { rows.len() };
    let pass = |kind| program.pass(kind).expect("a pass of this kind");
    let mut got = Vec::new();
    let mut step = |context: &mut dyn Context, kind, rows: &[Row], outputs: &[u32]| {
        let logits = context.step_rows(pass(kind), rows, outputs);
        got.extend_from_slice(logits.unwrap_or_else(|error| panic!("{error}")));
    };
    for rows in rows[..end].chunks(piece) {
        let outputs = (0..rows.len() as u32)
            .filter(|row| rows[*row as usize].position as usize >= golden.first)
            .collect::<Vec<_>>();
        step(context.as_mut(), PassKind::Prompt, rows, &outputs);
    }
    for row in &rows[end..] {
        step(context.as_mut(), PassKind::Decode, &[*row], &[]);
    }
    assert_eq!(got.len(), golden.logits.len());
    let got = got.chunks_exact(golden.vocabulary);
    let wanted = golden.logits.chunks_exact(golden.vocabulary);
    // Sharp scores double what rounded activations do.
    let tolerance = match (target.tolerance)(golden.format) {
        EXACT => EXACT,
        rounded => 2.0 * rounded,
    };
    let mut worst = 0.0f32;
    for (row, (got, want)) in got.zip(wanted).enumerate() {
        match compare(got, want, tolerance) {
            Ok(error) => worst = worst.max(error),
            Err(why) => panic!("{} on {}, row {row}: {why}", golden.name, target.name),
        }
    }
    println!("{} on {} by {piece}: {worst:.2e}", golden.name, target.name);
}

/// In one step on the CPU as it is, and in pieces on an instruction set that does not round activations.
fn check_quickly(name: &str) {
    let golden = golden(name);
    let mut options = DeviceOptions::default();
    options.threads = Some(2);
    let plain = Target::new(DeviceId::only("cpu"), &options, bf16_activations);
    check(&golden, &plain, golden.prompt.len(), false);
    let targets = cpu();
    let precise = |target: &&Target| (target.tolerance)(golden.format) == EXACT;
    let precise = targets.iter().rfind(precise).expect("one that is exact");
    check(&golden, precise, PIECE, true);
}

/// On other devices, and on every instruction set.
fn check_everywhere(name: &str) {
    let golden = golden(name);
    for target in reference().iter().chain(&cpu()).chain(&gpu()) {
        check(&golden, target, PIECE, true);
    }
}

macro_rules! long {
    ($($name:ident $architecture:literal),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                check_quickly($architecture);
            }
        )*
        mod everywhere {
            $(
                #[test]
                #[ignore = "slow: tools/evidence runs it"]
                fn $name() {
                    super::check_everywhere($architecture);
                }
            )*
        }
    };
}

long! {
    llama "llama", gpt_oss "gpt-oss", gemma3 "gemma3", olmo3 "olmo3", gemma4 "gemma4", deepseek_v2 "deepseek_v2", qwen35 "qwen35",
    granitehybrid "granitehybrid", falcon_h1 "falcon_h1", lfm2 "lfm2",
}
