//! Mixed steps: every row has the bits that it has in a step of its own pass. A device is compared with itself.

use super::arithmetic::{Logits, PROMPT_ROWS, Texts, caches, chosen, logits, models};
use super::case::{Case, Commands, bits};
use super::made::Numbers;
use super::model::Model;
use welte_device::{
    Choice, Context, Device, Error, Pick, Role, Span, Step, StepOptions, Want, argmax,
};
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
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let texts = Texts::new(&case.program);
        let loaded = case.load(device);
        let begin = || case.open_loaded(&*loaded);
        let mut alone = begin();
        if !alone.mixes() {
            refuses(alone.as_mut(), texts.row(0, 0));
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
            let step = mixed_step(&rows, generated, &outputs);
            mixed += usize::from(step.is_mixed());
            let at_once = n.below(2) == 0;
            check(context.as_mut(), &step, &wanted, at_once, &case.what);
        }
        assert!(mixed > 5, "only {mixed} steps were mixed: {}", case.what);
        let same = caches(context.as_mut()) == cached;
        assert!(same, "caches after mixed steps: {}", case.what);
        refuses(context.as_mut(), texts.row(0, 0));
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

/// The first rows are generated; `outputs` are chosen among the others.
fn mixed_step(rows: &[Row], generated: usize, outputs: &[u32]) -> Step {
    let mut step = Step::of(Role::Generated, &rows[..generated], &[]);
    step.add_all(Role::Prompt, &rows[generated..]);
    let want = Want::Values;
    step.picks
        .extend(outputs.iter().map(|row| Pick { row: *row, want }));
    step
}

/// Runs a mixed step. Compares its outputs with `wanted`, and the tokens that it yields with the largest of them; `at_once`:
/// the tokens alone.
fn check(context: &mut dyn Context, step: &Step, wanted: &Logits, at_once: bool, what: &str) {
    let vocab = context.program().vocab as usize;
    let outputs: Vec<u32> = (0..step.generated() as u32).chain(step.chosen()).collect();
    let rows: Vec<Row> = outputs.iter().map(|row| step.rows[*row as usize]).collect();
    let best = rows.iter().map(|row| {
        let bits = wanted[&(row.slot, row.position)].iter();
        let logits: Vec<f32> = bits.map(|bits| f32::from_bits(*bits)).collect();
        argmax(&logits).1
    });
    let best: Vec<u32> = best.collect();
    let mut choosing = step.clone();
    choosing.picks.clear();
    let want = Want::Token { draft: None };
    let picks = outputs.iter().map(|row| Pick { row: *row, want });
    choosing.picks.extend(picks);
    let mut tokens = vec![0; outputs.len()];
    if at_once {
        let done = context.step(&choosing, StepOptions::tokens(&mut tokens));
        assert!(done.is_ok(), "a valid step: {what}");
    } else {
        let values = context.step(step, StepOptions::default());
        let values = values.expect("a valid step").to_vec();
        assert_eq!(values.len(), outputs.len() * vocab);
        for (row, got) in rows.iter().zip(values.chunks_exact(vocab)) {
            let generated = step.generated();
            assert!(
                bits(got) == wanted[&(row.slot, row.position)],
                "{row:?} of a step of {generated} generated rows and {} of prompts: {what}",
                step.rows.len() - generated
            );
        }
        let choices: Vec<Choice> = choosing.choices().collect();
        let sampled = context.sample(&choices, &mut tokens);
        sampled.expect("valid choices");
    }
    assert_eq!(tokens, best, "tokens of a mixed step: {what}");
}

/// Wrong steps are refused; where a device does not mix, all mixed ones are.
fn refuses(context: &mut dyn Context, row: Row) {
    let other = Row::new(row.token(), 0, row.slot + 1);
    let mixes = context.mixes();
    let mut refused = |step: &Step| {
        let done = context.step(step, StepOptions::default());
        matches!(done, Err(Error::Request(_)))
    };
    let good = mixed_step(&[row, other], 1, &[1]);
    assert_eq!(refused(&good), !mixes, "a mixed step");
    assert!(
        refused(&mixed_step(&[row, other], 1, &[0])),
        "a generated row as an output"
    );
    assert!(
        refused(&mixed_step(&[row, other], 1, &[2])),
        "an output beyond the rows"
    );
    let mut step = good.clone();
    step.spans.reverse();
    assert!(refused(&step), "prompts before generated rows");
    step = good.clone();
    step.spans[1].rows = 2;
    assert!(refused(&step), "a span beyond the rows");
    step = good.clone();
    step.spans[1].role = Role::Text;
    assert!(refused(&step), "texts beside other rows");
    step = Step::of(Role::Prompt, &[row, other], &[]);
    step.spans = vec![Span {
        role: Role::Prompt,
        rows: 2,
    }];
    assert!(refused(&step), "a span of two slots");
    step = Step::of(Role::Prompt, &[row], &[]);
    step.rows[0].reach += 1;
    assert!(refused(&step), "a reach beyond the span");
}
