//! Mixed steps: every row has the bits that it has in a step of its own pass. A device is compared with itself.

use super::arithmetic::{Logits, PROMPT_ROWS, Texts, caches, chosen, logits, models};
use super::case::{Case, Commands, bits, poison};
use super::made::Numbers;
use super::model::Model;
use crate::{Context, Device, Error, MixedStep, Pick, argmax};
use welte_table::{PassKind, Row};

/// Tokens of each slot's prompt.
const PROMPTS: [u32; 6] = [3, 90, 9, 33, 70, 17];
/// Generated tokens that follow each prompt.
const GENERATED: u32 = 12;

/// Random mixed steps: several prompts and several sequences that decode, some of them with several rows.
pub fn mixed_arithmetic(device: &dyn Device, _oracle: &dyn Device) {
    for (number, model) in models().enumerate() {
        let model = Model {
            slots: PROMPTS.len() as u32,
            ..model
        };
        let Some(case) = Case::new(device, &model, Commands::Supported) else {
            continue;
        };
        let texts = Texts::new(&case.program);
        let loaded = case.load(device);
        let begin = || {
            let mut context = loaded.context().expect("a context");
            poison(context.as_mut());
            context
        };
        let mut alone = begin();
        if !alone.mixes() {
            refuses(alone.as_mut(), &[texts.row(0, 0)]);
            // A device that mixes at all mixes the first model.
            match number {
                0 => return,
                _ => continue,
            }
        }
        let mut wanted = Logits::new();
        for (slot, length) in (0..).zip(PROMPTS) {
            for part in texts.rows(slot, 0, length).chunks(PROMPT_ROWS as usize) {
                let all: Vec<u32> = (0..part.len() as u32).collect();
                wanted.extend(logits(alone.as_mut(), PassKind::Prompt, part, &all));
            }
            for row in texts.rows(slot, length, GENERATED) {
                wanted.extend(logits(alone.as_mut(), PassKind::Decode, &[row], &[]));
            }
        }
        let cached = caches(alone.as_mut());
        let mut context = begin();
        let mut n = Numbers(model.seed);
        let mut next = [0; PROMPTS.len()];
        let mut mixed = 0;
        while next
            .iter()
            .zip(PROMPTS)
            .any(|(at, end)| *at < end + GENERATED)
        {
            let (rows, generated) = some_rows(&mut n, &texts, &mut next);
            if rows.is_empty() {
                continue;
            }
            let mut outputs = chosen(&mut n, rows.len());
            outputs.retain(|row| *row as usize >= generated);
            mixed += usize::from(generated > 0 && generated < rows.len());
            let step = MixedStep {
                pass: case.pass(PassKind::Prompt),
                rows: &rows,
                generated,
                outputs: &outputs,
            };
            check(context.as_mut(), &step, &wanted, &case.what);
        }
        assert!(mixed > 5, "only {mixed} steps were mixed: {}", case.what);
        let same = caches(context.as_mut()) == cached;
        assert!(same, "caches after mixed steps: {}", case.what);
        refuses(context.as_mut(), &[texts.row(0, 0)]);
    }
}

/// The next rows of some sequences that decode, then pieces of some prompts. Returns the number of the former.
fn some_rows(n: &mut Numbers, texts: &Texts, next: &mut [u32]) -> (Vec<Row>, usize) {
    let mut rows = Vec::new();
    let slots = PROMPTS.len() as u32;
    for (slot, length) in (0..).zip(PROMPTS) {
        let at = &mut next[slot as usize];
        if *at >= length && n.below(3) > 0 {
            let count = (1 + n.below(5) / 4).min(length + GENERATED - *at);
            rows.extend(texts.rows(slot, *at, count));
            *at += count;
        }
    }
    let generated = rows.len();
    for _ in 0..n.below(4) {
        let slot = n.below(slots);
        let length = PROMPTS[slot as usize];
        let at = &mut next[slot as usize];
        // What this step generates comes after the whole prompt.
        if *at < length {
            let count = (1 + n.below(12)).min(length - *at);
            rows.extend(texts.rows(slot, *at, count));
            *at += count;
        }
    }
    (rows, generated)
}

/// Runs a mixed step. Compares its outputs with `wanted`, and the tokens that it yields with its outputs.
fn check(context: &mut dyn Context, step: &MixedStep<'_>, wanted: &Logits, what: &str) {
    let vocab = context.program().vocab as usize;
    let values = context.step_mixed(step).expect("a valid step").to_vec();
    let generated = 0..step.generated as u32;
    let outputs: Vec<u32> = generated.chain(step.outputs.iter().copied()).collect();
    assert_eq!(values.len(), outputs.len() * vocab);
    for (output, got) in outputs.iter().zip(values.chunks_exact(vocab)) {
        let row = &step.rows[*output as usize];
        assert!(
            bits(got) == wanted[&(row.slot, row.position)],
            "row {output}, {row:?}, of a step of {} generated rows and {} of prompts: {what}",
            step.generated,
            step.rows.len() - step.generated
        );
    }
    let pick = |(output, row): (u32, &u32)| Pick {
        output,
        slot: step.rows[*row as usize].slot,
        position: step.rows[*row as usize].position + 1,
        draft: None,
    };
    let picks: Vec<Pick> = (0..).zip(&outputs).map(pick).collect();
    let mut tokens = vec![0; picks.len()];
    context.sample(&picks, &mut tokens).expect("valid picks");
    let best = values.chunks_exact(vocab).map(|row| argmax(row).1);
    assert!(
        tokens.into_iter().eq(best),
        "tokens of a mixed step: {what}"
    );
}

/// Wrong mixed steps are refused; where a device has none, all are.
fn refuses(context: &mut dyn Context, rows: &[Row]) {
    let pass = context
        .program()
        .pass(PassKind::Prompt)
        .expect("a prompt pass");
    let mixes = context.mixes();
    let mut refused = |pass: usize, generated: usize, outputs: &[u32]| {
        let step = MixedStep {
            pass,
            rows,
            generated,
            outputs,
        };
        matches!(context.step_mixed(&step), Err(Error::Request(_)))
    };
    assert_eq!(refused(pass, 1, &[]), !mixes, "a generated row alone");
    assert!(refused(pass, 2, &[]), "more generated rows than rows");
    assert!(refused(pass, 1, &[0]), "an output that is generated");
    assert!(refused(pass, 0, &[1]), "an output beyond the rows");
    assert!(refused(0, 1, &[]), "a mixed step of the decode pass");
}
