//! The logits of draft layers: of the rows of a step, and of guesses that follow guesses.

use super::{Golden, Target, compare, cpu, reference};
use std::sync::Arc;
use welte_device::{Context, Error, Role, Step, StepOptions};
use welte_formats::{Checkpoint, WithDraft};
use welte_models::CompileOptions;
use welte_table::{PassKind, Program, Row};

/// The rounding of activations passes through the draft layer again with every guess.
const MORE: f32 = 1.5;
/// Guesses after the first one at the end of each golden's prompt.
const GUESSES: usize = 2;

fn program(checkpoint: &dyn Checkpoint, target: &Target) -> Arc<Program> {
    let options = CompileOptions {
        context: 64,
        page: 16,
        prompt_rows: 32,
        prompt_outputs: 32,
        decode_rows: 16,
        drafts: true,
        ..CompileOptions::default()
    };
    let spec = welte_models::spec(checkpoint).expect("a known model");
    let program = welte_models::compile(&spec, checkpoint, &options).expect("a program");
    let program = welte_table::fuse(program, target.device.patterns());
    welte_table::verify(&program).expect("a valid program");
    Arc::new(program)
}

/// The rows of the draft layer after positions `first..end`.
fn follow(tokens: &[u32], first: usize, end: usize) -> Vec<Row> {
    let rows = (first..end).map(|at| Row::new(tokens[at + 1], at as u32, 0));
    rows.collect()
}

/// The draft logits of the last `rows` positions, and of the guesses after them. The last `decoded` positions are computed as
/// generated tokens are.
fn logits(
    context: &mut dyn Context,
    tokens: &[u32],
    rows: usize,
    decoded: usize,
) -> Result<Vec<f32>, Error> {
    let count = tokens.len() - 1 - GUESSES;
    let own: Vec<Row> = (0..count)
        .map(|at| Row::new(tokens[at], at as u32, 0))
        .collect();
    let pass = |context: &dyn Context, kind| context.program().pass(kind).expect("a pass");
    let guess = |context: &mut dyn Context, rows: &[Row], wanted: &[u32]| {
        let step = Step::of(Role::Draft, rows, wanted);
        context
            .step(&step, StepOptions::default())
            .map(<[f32]>::to_vec)
    };
    let mut got = Vec::new();
    let from = count - decoded;
    let last = decoded.max(rows);
    // The second time only the last position goes on.
    for wanted in [rows, 1] {
        let (prompt, decode) = (
            pass(context, PassKind::Prompt),
            pass(context, PassKind::Decode),
        );
        context.step_rows(prompt, &own[..from], &[])?;
        let (mut rows, mut numbers) = (follow(tokens, 0, from), 0..from as u32);
        if decoded > 0 {
            guess(context, &rows, &[])?;
            context.step_rows(decode, &own[from..], &[])?;
            (rows, numbers) = (follow(tokens, from, count), 0..decoded as u32);
        }
        assert!(last >= wanted && numbers.len() >= wanted);
        let numbers: Vec<u32> = numbers.rev().take(wanted).rev().collect();
        let values = guess(context, &rows, &numbers)?;
        if got.is_empty() {
            got = values;
        }
    }
    for at in count..count + GUESSES {
        got.extend(guess(context, &follow(tokens, at, at + 1), &[0])?);
    }
    Ok(got)
}

fn check(golden: &Golden, target: &Target) -> f32 {
    let file = welte_goldens::Golden::new(&golden.path);
    let mut checkpoint = welte_formats::open(file.path()).expect("a checkpoint");
    // A golden of another model's name is a head that drafts for it.
    let head =
        (!golden.path.starts_with(&golden.name)).then(|| welte_goldens::Golden::new(&golden.name));
    if let Some(head) = &head {
        let head = welte_formats::open(head.path()).expect("a head");
        checkpoint = Box::new(WithDraft::new(checkpoint.into(), head.into()));
    }
    let program = program(checkpoint.as_ref(), target);
    let plan = target.device.plan(program).expect("a plan");
    let loaded = target.device.load(plan, checkpoint.as_ref(), &mut |_| ());
    let mut context = loaded.expect("weights").context().expect("a context");
    let rows = golden.prompt.len() - golden.first;
    let mut worst = 0.0f32;
    for decoded in [0, rows - GUESSES, 9] {
        let got = logits(context.as_mut(), &golden.prompt, rows - GUESSES, decoded);
        let got = got.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert_eq!(got.len(), golden.logits.len());
        let pairs = got
            .chunks(golden.vocabulary)
            .zip(golden.logits.chunks(golden.vocabulary));
        for (row, (got, want)) in pairs.enumerate() {
            let error = compare(got, want, MORE * (target.tolerance)(golden.format));
            let error = error.unwrap_or_else(|problem| {
                let (name, device) = (&golden.name, &target.name);
                panic!("{name} on {device}, {decoded} decoded, row {row}: {problem}")
            });
            worst = worst.max(error);
        }
    }
    worst
}

fn all(targets: &[Target]) {
    let goldens = super::goldens_in(&["drafts.json"], |_, _| true);
    assert!(goldens.len() >= 5);
    for golden in &goldens {
        for target in targets {
            let worst = check(golden, target);
            println!("{} on {}: {worst:.1e}", golden.name, target.name);
        }
    }
}

#[test]
fn draft_layers_on_the_reference() {
    all(&reference());
}

#[test]
fn draft_layers_on_the_cpu() {
    all(&cpu());
}
