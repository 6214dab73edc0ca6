//! The logits of drafters of blocks, over several rounds of which some guesses were right.

use super::drafts::{self, MORE};
use super::{Golden, Target, compare, cpu, goldens_in, reference};
use std::time::Duration;
use welte_device::{
    Context, DeviceId, DeviceOptions, Error, Guesses, Pick, Replaying, Role, SlotState, Step,
    StepOptions, Want,
};
use welte_table::{CacheKind, PassKind, Row, Sampling};

/// How long ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);
/// As in `tools/goldens/blocks.py`: each round begins so many tokens before the end of the text.
const AHEAD: [usize; 4] = [7, 4, 3, 1];

/// A block after the tokens before position `at` of a text, and its masks as output rows.
fn block(context: &dyn Context, text: &[u32], at: usize, slot: u32) -> (Vec<Row>, Vec<u32>) {
    let block = context.program().block.expect("a drafter of blocks");
    let last = at as u32 + block.size - 1;
    let rows = (at as u32..).zip(0..block.size).map(|(position, nth)| {
        let token = if nth == 0 { text[at] } else { block.mask };
        Row {
            reach: last,
            ..Row::new(token, position, slot)
        }
    });
    (rows.collect(), (1..block.size).collect())
}

/// Computes positions `first..end` of a text, by the pass that generates tokens or that of prompts.
fn compute(
    context: &mut dyn Context,
    kind: PassKind,
    text: &[u32],
    (first, end): (usize, usize),
) -> Result<(), Error> {
    let rows = (first..end).map(|at| Row::new(text[at], at as u32, 0));
    let rows: Vec<Row> = rows.collect();
    let pass = context.program().pass(kind).expect("a pass");
    context.step_rows(pass, &rows, &[]).map(drop)
}

/// The logits of all rounds. Between them a step verifies guesses, of which some were right, and computes wrong ones, too, unless a state
/// would have to go back after them.
fn logits(context: &mut dyn Context, text: &[u32], decoded: bool) -> Result<Vec<f32>, Error> {
    let size = context.program().block.expect("blocks").size as usize;
    let mut caches = context.program().caches.iter();
    let recurrent = caches.any(|cache| matches!(cache.kind, CacheKind::Recurrent { .. }));
    let first = text.len() - AHEAD[0];
    let kind = match decoded {
        true => PassKind::Decode,
        false => PassKind::Prompt,
    };
    compute(context, PassKind::Prompt, text, (0, 9))?;
    compute(context, kind, text, (9, first))?;
    let mut got = Vec::new();
    for (nth, ahead) in AHEAD.into_iter().enumerate() {
        let at = text.len() - ahead;
        let (rows, masks) = block(context, text, at, 0);
        let step = Step::of(Role::Draft, &rows, &masks);
        got.extend_from_slice(context.step(&step, StepOptions::default())?);
        let Some(next) = AHEAD.get(nth + 1) else {
            break;
        };
        let mut guessed = text[..text.len() - next].to_vec();
        if !recurrent {
            guessed.resize(at + size, 3);
        }
        compute(context, kind, &guessed, (at, guessed.len()))?;
    }
    Ok(got)
}

/// The worst error, and how chains are replayed afterwards.
fn check(golden: &Golden, target: &Target) -> (f32, Option<Replaying>) {
    let checkpoint = drafts::with_head(&golden.path, &golden.name);
    let program = drafts::program(checkpoint.as_ref(), target, 1);
    let plan = target.device.plan(program).expect("a plan");
    let loaded = target.device.load(plan, checkpoint.as_ref(), &mut |_| ());
    let loaded = loaded.expect("weights");
    let (mut worst, mut replayed) = (0.0f32, None);
    for decoded in [false, true] {
        let mut context = loaded.context().expect("a context");
        let got = logits(context.as_mut(), &golden.prompt, decoded);
        let mut got = got.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        got.retain(|logit| *logit != f32::MIN);
        assert_eq!(got.len(), golden.logits.len());
        let width = golden.vocabulary;
        let pairs = got.chunks(width).zip(golden.logits.chunks(width));
        for (row, (got, want)) in pairs.enumerate() {
            let tolerance = MORE * (target.tolerance)(golden.format);
            let error = compare(got, want, tolerance).unwrap_or_else(|problem| {
                let (name, device) = (&golden.name, &target.name);
                panic!("{name} on {device}, decoded: {decoded}, row {row}: {problem}")
            });
            worst = worst.max(error);
        }
        replayed = context.replays().map(|tools| tools.replaying());
    }
    (worst, replayed)
}

/// The tokens that masks guess in one call are those of their logits, of several slots with samplings of their own.
fn guesses(target: &Target) {
    let checkpoint = drafts::with_head("qwen3/hf", "drafts/dflash/hf");
    let program = drafts::program(checkpoint.as_ref(), target, 3);
    let plan = target.device.plan(program).expect("a plan");
    let loaded = target.device.load(plan, checkpoint.as_ref(), &mut |_| ());
    let mut context = loaded.expect("weights").context().expect("a context");
    let text: Vec<u32> = (0..20).map(|at| 11 + at * 37 % 200).collect();
    let prompt = context.program().pass(PassKind::Prompt).expect("a pass");
    let places = [(2u32, 5usize), (0, 9)];
    let mut all = Vec::new();
    for (slot, count) in places {
        all.extend((0..count).map(|at| Row::new(text[at], at as u32, slot)));
    }
    context.step_rows(prompt, &all, &[]).expect("a prompt");
    let samplings = [0.0, 2.0].map(|temperature| Sampling {
        temperature,
        seed: 5,
        ..Sampling::default()
    });
    let mut seen = Vec::new();
    for sampling in samplings {
        let mut step = Step {
            guesses: Guesses::Masked,
            ..Step::default()
        };
        for (slot, count) in places {
            let state = SlotState {
                sampling,
                ..SlotState::default()
            };
            context.set_slot(slot, &state).expect("a slot");
            let (rows, masks) = block(context.as_ref(), &text, count, slot);
            let begin = step.add(Role::Draft, rows).start;
            let want = Want::Token { draft: None };
            let picks = masks.into_iter().map(|row| Pick {
                row: begin + row,
                want,
            });
            step.picks.extend(picks);
        }
        let mut tokens = vec![0; step.picks.len()];
        let wanted = vec![1; tokens.len()];
        context
            .draft(&mut step.clone(), &wanted, &mut tokens)
            .expect("guesses");
        let mut one_step = vec![0; tokens.len()];
        let options = StepOptions::tokens(&mut one_step);
        context.step(&step, options).expect("a step");
        assert_eq!(tokens, one_step, "on {}", target.name);
        seen.push(tokens);
        let (two, mut room) = (vec![2; wanted.len()], vec![0; 2 * wanted.len()]);
        let refused = context.draft(&mut step, &two, &mut room);
        let why = refused.expect_err("a refusal").to_string();
        assert!(why.contains("2 guesses of a mask"), "{why}");
    }
    assert_ne!(seen[0], seen[1], "chosen at random");
}

fn all(targets: &[Target]) {
    let goldens = goldens_in(&["blocks.json"], |_, _| true);
    assert_eq!(goldens.len(), 3);
    for target in targets {
        for golden in &goldens {
            let (worst, replayed) = check(golden, target);
            let how = replayed
                .as_ref()
                .map_or(String::new(), |how| format!(", {how}"));
            println!("{} on {}{how}: {worst:.1e}", golden.name, target.name);
            let as_asked = target.replay == replayed.map(|how| how.replay);
            // Blocks of the persistent kernel have copies of Gemma 4's stream of their own, and Qwen3.5 has too many caches with its drafter.
            let by_graph = ["gemma4", "qwen35"];
            let by_graph = by_graph.iter().any(|start| golden.path.starts_with(start));
            let asked = target.replay.is_some() && !by_graph;
            assert!(!asked || as_asked, "{}{how}", golden.name);
        }
        guesses(target);
    }
}

#[test]
fn blocks_on_the_reference() {
    all(&reference());
}

#[test]
fn blocks_on_the_cpu() {
    all(&cpu());
}

/// Every matrix of drafter and model is dealt.
#[test]
fn blocks_on_cpu_ranks() {
    let mut options = DeviceOptions::default();
    options.threads = Some(1);
    let open = |_| welte::open_device(DeviceId::only("cpu"), &options).expect("a CPU");
    let target = |count: u32| Target {
        name: format!("{count} ranks"),
        device: welte_ranks::device_by((0..count).map(open).collect(), 0, PATIENCE),
        ..cpu().pop().expect("a CPU")
    };
    all(&[2, 3].map(target));
}

#[test]
fn blocks_on_portable() {
    all(&super::gpu());
}

#[test]
#[ignore = "needs a GPU"]
fn blocks_on_cuda() {
    all(&super::cuda());
}

#[test]
#[ignore = "needs a GPU"]
fn blocks_on_cuda_by_the_persistent_kernel() {
    all(&super::persistent());
}
