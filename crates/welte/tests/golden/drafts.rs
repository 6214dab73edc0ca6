//! The logits of draft layers: of the rows of a step, and of guesses that follow guesses.

use super::{Golden, Target, compare, cpu, goldens_in, reference};
use std::collections::BTreeSet;
use std::sync::Arc;
use welte_device::{
    Context, Error, Pick, Replay, Replaying, Role, SlotState, Step, StepOptions, Want,
    draft_by_steps,
};
use welte_formats::quantize::{Quantisation, Recipe, quantize};
use welte_formats::synthetic::Synthetic;
use welte_formats::{Checkpoint, Dialect, Metadata, WithDraft};
use welte_models::{AsGguf, CompileOptions};
use welte_table::{Format, PassKind, Program, Row, Sampling};

/// The rounding of activations passes through the draft layer again with every guess.
const MORE: f32 = 1.5;
/// Guesses after the first one at the end of each golden's prompt.
const GUESSES: usize = 2;

fn program(checkpoint: &dyn Checkpoint, target: &Target, slots: u32) -> Arc<Program> {
    let options = CompileOptions {
        context: 64,
        page: 16,
        prompt_rows: 32,
        prompt_outputs: 32,
        decode_rows: 16,
        drafts: true,
        slots,
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

/// The worst error, and how chains are replayed afterwards.
fn check(golden: &Golden, target: &Target) -> (f32, Option<Replaying>) {
    let file = welte_goldens::Golden::new(&golden.path);
    let checkpoint = welte_formats::open(file.path()).expect("a checkpoint");
    check_file(golden, checkpoint, target)
}

/// The same of another form of the golden's model.
fn check_file(
    golden: &Golden,
    mut checkpoint: Box<dyn Checkpoint>,
    target: &Target,
) -> (f32, Option<Replaying>) {
    // A golden of another model's name is a head that drafts for it.
    let head =
        (!golden.path.starts_with(&golden.name)).then(|| welte_goldens::Golden::new(&golden.name));
    if let Some(head) = &head {
        let head = welte_formats::open(head.path()).expect("a head");
        checkpoint = Box::new(WithDraft::new(checkpoint.into(), head.into()));
    }
    let program = program(checkpoint.as_ref(), target, 1);
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
    (worst, context.replays().map(|tools| tools.replaying()))
}

fn all(targets: &[Target]) {
    let goldens = goldens_in(&["drafts.json"], |_, _| true);
    assert!(goldens.len() >= 5);
    for target in targets {
        let mut replayed = Vec::new();
        for golden in &goldens {
            let (worst, replaying) = check(golden, target);
            let how = replaying
                .as_ref()
                .map_or(String::new(), |how| format!(", {how}"));
            println!("{} on {}{how}: {worst:.1e}", golden.name, target.name);
            replayed.extend(replaying.map(|how| how.replay));
        }
        // Latents go by the graph.
        let as_asked = |how: &&Replay| target.replay.is_none_or(|asked| **how == asked);
        let expected = if target.replay.is_some() {
            4
        } else {
            replayed.len()
        };
        assert_eq!(replayed.iter().filter(as_asked).count(), expected);
    }
}

/// Guesses of three slots in one call, which want different numbers of them, are those that steps give one by one. Some slots choose at
/// random, look back, or are left to the host by the device.
fn in_one_call(targets: &[Target]) {
    let golden = welte_goldens::Golden::new("drafts/glm4_moe/hf");
    let checkpoint = welte_formats::open(golden.path()).expect("a checkpoint");
    for target in targets {
        let program = program(checkpoint.as_ref(), target, 3);
        let plan = target.device.plan(program.clone()).expect("a plan");
        let loaded = target.device.load(plan, checkpoint.as_ref(), &mut |_| ());
        let mut context = loaded.expect("weights").context().expect("a context");
        let random = |seed| Sampling {
            temperature: 2.0,
            top_k: 20,
            seed,
            ..Sampling::default()
        };
        let penalised = Sampling {
            repeat_penalty: 1.5,
            repeat_last_n: 64,
            ..Sampling::default()
        };
        let on_host = Sampling {
            xtc_probability: 0.5,
            ..random(3)
        };
        let mut seen = BTreeSet::new();
        for (nth, wanted) in [[4, 4, 4], [1, 5, 3], [6, 1, 1]].into_iter().enumerate() {
            let samplings = [random(7 + nth as u64), penalised, on_host];
            for slots in [&[0u32, 1][..], &[0, 1, 2], &[1]] {
                let prompts = |context: &mut dyn Context| {
                    let mut all = Vec::new();
                    for slot in slots {
                        let state = SlotState {
                            sampling: samplings[*slot as usize],
                            history: &[1, 2, 3],
                            ends: &[5, 6, 7, 8],
                            masked: true,
                            ..SlotState::default()
                        };
                        context.set_slot(*slot, &state).expect("a slot");
                        let own = 5 + *slot;
                        all.extend((0..own).map(|at| Row::new(at * 7 % 90 + slot, at, *slot)));
                    }
                    let prompt = context.program().pass(PassKind::Prompt).expect("a pass");
                    context.step_rows(prompt, &all, &[]).expect("a prompt");
                    // Each row reads the next token; the last one of each slot guesses.
                    let next = |row: &Row| row.later((row.token() + 7) % 90, 0);
                    let rows: Vec<Row> = all.iter().map(next).collect();
                    let mut step = Step::default();
                    for rows in rows.chunk_by(|a, b| a.slot == b.slot) {
                        let row = step.add(Role::Draft, rows.iter().copied()).end - 1;
                        let want = Want::Token { draft: None };
                        step.picks.push(Pick { row, want });
                    }
                    step
                };
                let wanted = &wanted[..slots.len()];
                let most = *wanted.iter().max().expect("slots") as usize;
                let guesses = |one_call: bool, context: &mut dyn Context| {
                    let mut step = prompts(context);
                    let mut tokens = vec![0; most * slots.len()];
                    if one_call {
                        context.draft(&mut step, wanted, &mut tokens)?;
                    } else {
                        draft_by_steps(&mut step, wanted, &mut tokens, &mut |step, tokens| {
                            context.step(step, StepOptions::tokens(tokens)).map(drop)
                        })?;
                    }
                    let counts = (0..).zip(&tokens);
                    let counts = counts
                        .filter(|(at, _)| at / slots.len() < wanted[at % slots.len()] as usize);
                    Ok::<Vec<u32>, Error>(counts.map(|(_, token)| *token).collect())
                };
                let one_by_one = guesses(false, context.as_mut()).expect("guesses");
                let together = guesses(true, context.as_mut()).expect("guesses");
                assert_eq!(one_by_one, together, "{wanted:?} on {}", target.name);
                seen.extend(one_by_one);
            }
        }
        assert!(seen.len() > 8, "{seen:?}");
        // Without a pick nothing is guessed; and what cannot be is refused.
        let rows = [Row::new(1, 0, 0), Row::new(2, 1, 0)];
        let mut step = Step::of(Role::Draft, &rows, &[]);
        context.draft(&mut step, &[], &mut []).expect("a step");
        let refused = |context: &mut dyn Context, wanted: &[u32], room: usize| {
            let mut step = Step::of(Role::Draft, &[Row::new(1, 60, 0)], &[]);
            let want = Want::Token { draft: None };
            step.picks.push(Pick { row: 0, want });
            let drafted = context.draft(&mut step, wanted, &mut vec![0; room]);
            drafted.expect_err("a refusal").to_string()
        };
        let why = refused(context.as_mut(), &[2], 3);
        assert!(why.contains("room for 3"), "{why}");
        let why = refused(context.as_mut(), &[0], 0);
        assert!(why.contains("at least one"), "{why}");
        let why = refused(context.as_mut(), &[5], 5);
        assert!(why.contains("beyond the context of 64"), "{why}");
    }
}

/// A dense model's draft layer agrees with the reference. Of such models persistent kernels compute several rows at once.
fn dense(targets: &[Target]) {
    let checkpoint = Synthetic::parse("tiny,arch=qwen3,draft=true:q8_0").expect("a model");
    let prompt: Vec<u32> = (0..20).map(|at| at * 37 % 1000).collect();
    let rows = 12;
    let on = |target: &Target| {
        let program = program(&checkpoint, target, 2);
        let plan = target.device.plan(program).expect("a plan");
        let loaded = target.device.load(plan, &checkpoint, &mut |_| ());
        let mut context = loaded.expect("weights").context().expect("a context");
        let decoded = [0, rows, 3].map(|decoded| {
            // As many rows are compared.
            let rows = if decoded == 0 { rows } else { decoded };
            logits(context.as_mut(), &prompt, rows, decoded).expect("logits")
        });
        if let (Some(asked), Some(tools)) = (target.replay, context.replays()) {
            let Replaying { replay, note } = tools.replaying();
            assert_eq!((replay, note), (asked, None));
        }
        decoded
    };
    let [oracle] = &reference()[..] else {
        panic!("one reference");
    };
    let wanted = on(oracle);
    for target in targets {
        for (got, want) in on(target).iter().zip(&wanted) {
            assert_eq!(got.len(), want.len());
            for (row, (got, want)) in got.chunks(1024).zip(want.chunks(1024)).enumerate() {
                let error = compare(got, want, MORE * (target.tolerance)(Format::Q8_0));
                let error =
                    error.unwrap_or_else(|why| panic!("row {row} on {}: {why}", target.name));
                println!("row {row} on {}: {error:.1e}", target.name);
            }
        }
    }
}

#[test]
fn draft_layers_on_the_reference() {
    all(&reference());
    in_one_call(&reference());
}

#[test]
fn draft_layers_on_the_cpu() {
    all(&cpu());
    in_one_call(&super::best_cpu());
    dense(&cpu());
}

/// A directory that is written as a GGUF file keeps its draft layer, and so does a file in another format.
#[test]
fn draft_layers_are_written() {
    let target = &super::best_cpu()[0];
    let folder = tempfile::tempdir().expect("a folder");
    for golden in goldens_in(&["drafts.json"], |of, _| of == "glm4_moe" || of == "qwen35") {
        let file = welte_goldens::Golden::new(&golden.path);
        let opened = welte_formats::open(file.path()).expect("a checkpoint");
        let written = opened.dialect() == Dialect::Gguf;
        let gguf: Box<dyn Checkpoint> = match opened.dialect() {
            Dialect::Gguf => opened,
            Dialect::HuggingFace => {
                Box::new(AsGguf::new(opened, Metadata::new()).expect("a form in GGUF"))
            }
        };
        let path = folder.path().join("model.gguf");
        let to = Quantisation {
            recipe: Recipe::from_name("Q8_0").expect("a recipe"),
            overrides: Vec::new(),
            importance: None,
            threads: 1,
        };
        quantize(gguf.as_ref(), &path, &to, &mut |_, _| ()).expect("a file");
        if !written {
            check_file(&golden, gguf, target);
        }
        let file = welte_formats::open(&path).expect("a file");
        let spec = welte_models::spec(file.as_ref()).expect("a model");
        assert!(spec.has_draft_layer(file.as_ref()), "{}", golden.name);
        let rounded = Golden {
            format: Format::Q8_0,
            ..golden
        };
        check_file(&rounded, file, target);
    }
}

#[test]
fn draft_layers_on_portable() {
    all(&super::gpu());
    in_one_call(&super::gpu());
    dense(&super::gpu());
}

#[test]
#[ignore = "needs a GPU"]
fn draft_layers_on_cuda() {
    all(&super::cuda());
    in_one_call(&super::cuda());
    dense(&super::cuda());
}

#[test]
#[ignore = "needs a GPU"]
fn draft_layers_on_cuda_by_the_persistent_kernel() {
    all(&super::persistent());
    in_one_call(&super::persistent());
    dense(&super::persistent());
}
