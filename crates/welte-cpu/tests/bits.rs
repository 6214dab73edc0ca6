//! What only the CPU promises: instruction sets that agree with the reference, and bits that depend neither on threads
//! nor on the rows beside a row.

mod common;

use common::*;
use std::sync::Arc;
use welte_conformance as conformance;
use welte_device::{ChainStart, Choice, Context, Control, SlotState};
use welte_models::CompileOptions;
use welte_table::{CacheKind, Format, PassKind, Row, Sampling};

const MODELS: [&str; 5] = [
    "tiny:q4_0",
    "tiny:bf16",
    "custom,arch=gemma3,layers=3,window=50:q6_k",
    "custom,arch=gpt-oss,layers=2,window=30,heads=8:mxfp4_moe",
    "custom,arch=qwen3moe,heads=6,head_dim=40:q8_0",
];

/// The largest distance of two vectors, relative to the largest value.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs() / largest);
    // `max` would ignore NaN.
    differences.fold(0.0, |m, d| if d <= m { m } else { d })
}

#[test]
fn every_instruction_set_agrees_with_the_reference() {
    // Without the experts: a rounding may change their choice.
    let kv_formats = [Format::F16, Format::Q8_0, Format::F16];
    for (name, kv_format) in MODELS.into_iter().zip(kv_formats) {
        let options = CompileOptions {
            kv_format,
            ..options()
        };
        let model = Model::new(name, &options);
        let mut plain = model.context(&*welte_reference::device());
        reverse_pages(&mut *plain);
        let mut fast: Vec<_> = welte_cpu::instruction_sets()
            .into_iter()
            .map(|isa| (isa, model.context(&*cpu(2, Some(isa)))))
            .collect();
        fast.iter_mut().for_each(|(_, c)| reverse_pages(&mut **c));
        let mut check = |pass, rows: &[_], outputs: &[u32]| {
            let want = plain.step_rows(pass, rows, outputs).unwrap();
            for (isa, context) in &mut fast {
                let off = distance(context.step_rows(pass, rows, outputs).unwrap(), want);
                let position = rows[0].position;
                assert!(off < 4e-2, "{name} on {isa} at {position}: {off}");
            }
        };
        let (prompt, decode) = (model.pass(PassKind::Prompt), model.pass(PassKind::Decode));
        let mut at = 0;
        for count in [17, 110, 3, 63] {
            let outputs = [0, count / 2, count - 1];
            check(prompt, &rows(&model, 1, at, count), &outputs);
            at += count;
            check(decode, &rows(&model, 1, at, 1), &[]);
            at += 1;
        }
        check(
            model.pass(PassKind::Embed),
            &rows(&model, 0, 0, 30),
            &[12, 29],
        );
    }
}

/// How a prompt is cut does not change a bit, for any number of threads.
#[test]
fn prompts_in_pieces_give_the_same_bits() {
    for name in MODELS {
        let model = Model::new(name, &options());
        let prompt = model.pass(PassKind::Prompt);
        let whole = rows(&model, 1, 0, 200);
        let mut first: Option<Vec<u32>> = None;
        let all = [
            &[200][..],
            &[17, 183],
            &[1, 99, 100],
            &[40, 71, 80, 5, 2, 1, 1],
        ];
        for (threads, pieces) in (1..).zip(all) {
            let mut context = model.context(&*cpu(threads, None));
            let mut from = 0;
            let mut last = Vec::new();
            for &piece in pieces {
                let outputs = [piece as u32 - 1];
                let logits = context.step_rows(prompt, &whole[from..from + piece], &outputs);
                last = bits(logits.unwrap());
                from += piece;
            }
            let first = first.get_or_insert_with(|| last.clone());
            assert!(*first == last, "{name} in {pieces:?}");
        }
    }
}

/// How many rows are chosen as outputs does not change their logits, nor does choosing none change the caches.
#[test]
fn the_number_of_outputs_changes_no_bit() {
    for name in MODELS {
        let model = Model::new(name, &options());
        let prompt = model.pass(PassKind::Prompt);
        let vocab = model.program.vocab as usize;
        let mut context = model.context(&*cpu(2, None));
        let rows = rows(&model, 0, 0, 60);
        let all: Vec<u32> = (0..40).map(|i| i + 20).collect();
        let together = bits(context.step_rows(prompt, &rows, &all).unwrap());
        for output in [20, 43, 59] {
            assert!(context.step_rows(prompt, &rows, &[]).unwrap().is_empty());
            let alone = bits(context.step_rows(prompt, &rows, &[output]).unwrap());
            let at = (output as usize - 20) * vocab;
            assert!(alone == together[at..at + vocab], "{name}, row {output}");
        }
    }
}

/// A head without layers has the same bits in both passes: prompts round the activations of layers only.
#[test]
fn logits_of_prompts_are_exact() {
    let model = conformance::model::Model {
        format: Format::BF16,
        layers: Vec::new(),
        decode_rows: 20,
        prompt_outputs: 20,
        ..conformance::model::Model::small(5)
    };
    let (program, checkpoint) = conformance::program::make(&model);
    let device = cpu(2, None);
    let plan = device.plan(Arc::new(program)).unwrap();
    let loaded = device.load(plan, &checkpoint, &mut |_| {}).unwrap();
    let mut context = loaded.context().unwrap();
    let row = |position| Row::new(position * 5 + 1, position, 0);
    let rows: Vec<Row> = (0..20).map(row).collect();
    let all: Vec<u32> = (0..20).collect();
    let decoded = bits(context.step_rows(0, &rows, &[]).unwrap());
    let prompt = context.program().pass(PassKind::Prompt).unwrap();
    assert!(bits(context.step_rows(prompt, &rows, &all).unwrap()) == decoded);
}

#[test]
fn rows_of_a_decode_step_change_no_bit_of_each_other() {
    for name in MODELS {
        let model = Model::new(name, &options());
        let (prompt, decode) = (model.pass(PassKind::Prompt), model.pass(PassKind::Decode));
        let vocab = model.program.vocab as usize;
        let mut context = model.context(&*cpu(2, None));
        for slot in 0..3 {
            let rows = rows(&model, slot, 0, 100 + 80 * slot);
            for piece in rows.chunks(130) {
                context.step_rows(prompt, piece, &[]).unwrap();
            }
        }
        // Sixteen rows: more than one of a slot, in any order.
        let mut batch = Vec::new();
        for slot in [2, 0, 1] {
            batch.extend(rows(&model, slot, 100 + 80 * slot, 6));
        }
        batch.truncate(16);
        let together = bits(context.step_rows(decode, &batch, &[]).unwrap());
        for (row, together) in batch.iter().zip(together.chunks(vocab)) {
            let alone = bits(context.step_rows(decode, &[*row], &[]).unwrap());
            assert!(alone == together, "{name}, {row:?}");
        }
    }
}

/// What three slots emit in chains of these lengths.
fn chains(model: &Model, threads: usize, steps: &[u32], sampling: Sampling) -> Vec<Vec<u32>> {
    let mut context = model.context(&*cpu(threads, None));
    let prompt = model.pass(PassKind::Prompt);
    let mut starts = Vec::new();
    for slot in 0..3 {
        let rows = rows(model, slot, 0, 11 + slot);
        let history: Vec<u32> = rows.iter().map(|row| row.token()).collect();
        let state = SlotState {
            sampling: Sampling {
                seed: u64::from(slot),
                ..sampling
            },
            bias: &[(3, 0.5)],
            history: &history,
            ends: &[],
            ..SlotState::default()
        };
        context.set_slot(slot, &state).unwrap();
        context.step_rows(prompt, &rows, &[10 + slot]).unwrap();
        let position = 11 + slot;
        let pick = Choice {
            output: 0,
            slot,
            position,
            draft: None,
        };
        let mut token = [0];
        context.sample(&[pick], &mut token).unwrap();
        starts.push(ChainStart {
            slot,
            token: token[0],
            position,
            steps: 0,
            shift: 0,
        });
    }
    let mut emitted: Vec<Vec<u32>> = starts.iter().map(|start| vec![start.token]).collect();
    for &steps in steps {
        starts.iter_mut().for_each(|start| start.steps = steps);
        let mut positions = [0; 3];
        context
            .chain(&starts, &Control::default(), &mut |made| {
                emitted[made.slot as usize].push(made.token);
                positions[made.slot as usize] = made.position;
                true
            })
            .unwrap();
        for start in &mut starts {
            start.position += steps;
            assert_eq!(positions[start.slot as usize], start.position);
            start.token = *emitted[start.slot as usize].last().unwrap();
        }
    }
    emitted
}

#[test]
fn chains_of_any_length_and_any_number_of_threads_agree() {
    let model = Model::new("tiny:q8_0", &options());
    let sampled = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        repeat_penalty: 1.2,
        ..Sampling::default()
    };
    for sampling in [Sampling::default(), sampled] {
        let whole = chains(&model, 1, &[120], sampling);
        assert!(whole.iter().all(|tokens| tokens.len() == 121));
        assert_ne!(whole[0], whole[1]);
        assert_eq!(chains(&model, 2, &[1; 120], sampling), whole);
        assert_eq!(chains(&model, 3, &[7, 70, 43], sampling), whole);
    }
}

/// Pages before the window belong to others: whatever they hold, results stay the same.
#[test]
fn what_lies_before_a_window_is_not_read() {
    let model = Model::new("custom,arch=gemma3,layers=3,window=50:bf16", &options());
    let (prompt, decode) = (model.pass(PassKind::Prompt), model.pass(PassKind::Decode));
    let windowed = |kind| matches!(kind, CacheKind::Attention { window: 50, .. });
    let cache = model.program.caches.iter().position(|c| windowed(c.kind));
    let cache = cache.expect("a cache for the window");
    let mut context = model.context(&*cpu(2, None));
    let run = |context: &mut dyn Context, poison: bool| {
        for piece in rows(&model, 0, 0, 200).chunks(100) {
            context.step_rows(prompt, piece, &[]).unwrap();
        }
        if poison {
            // Positions up to 143 lie before the window of position 200.
            let foreign = model.program.caches[cache].pages - 1;
            let entries = vec![foreign; 9];
            context.set_pages(cache, 0, 0, &entries).unwrap();
            let spec = &model.program.caches[cache];
            let mut bytes = context.read_buffer(spec.buffer).unwrap();
            let runs = spec.page_runs(model.program.page, foreign).unwrap();
            for run in 0..runs.count {
                let at = (runs.first + run * runs.stride) as usize;
                // NaN in F16.
                bytes[at..at + runs.bytes as usize].fill(0xff);
            }
            context.write_buffer(spec.buffer, &bytes).unwrap();
        }
        let mut all = bits(
            context
                .step_rows(prompt, &rows(&model, 0, 200, 40), &[0, 39])
                .unwrap(),
        );
        for row in rows(&model, 0, 240, 2) {
            all.extend(bits(context.step_rows(decode, &[row], &[]).unwrap()));
        }
        all
    };
    let clean = run(&mut *context, false);
    assert!(run(&mut *context, true) == clean);
}
