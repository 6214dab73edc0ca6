//! The sampling kernel against the reference, for vocabularies that many blocks share.

use std::sync::Arc;
use welte_conformance::made::{Made, Numbers};
use welte_conformance::random_settings;
use welte_device::{
    ChainStart, Choice, Context, Control, Device, DeviceOptions, Replay, SlotState,
};
use welte_table::*;

/// A program whose logits are whatever its only buffer of them holds, for steps of up to `rows` rows.
fn sampling_only(vocab: u32, rows: u32) -> Program {
    let buffer = |name: &str, class, bytes| BufferSpec {
        name: name.to_string(),
        class,
        bytes,
    };
    let at = |buffer| BufferRef { buffer, offset: 0 };
    let command =
        |op, buffers: [BufferRef; 2], params| Command::new(op, Format::F32, &[], &buffers, params);
    let scale = params::Scale {
        n: vocab,
        scale: 1.0,
        cap: 0.0,
        y_stride: vocab,
    };
    let sample = params::Sample {
        n: vocab,
        logits_stride: vocab,
    };
    let commands = vec![
        command(Op::Scale, [at(1), BufferRef::NONE], scale.words()),
        command(Op::Sample, [at(1), at(0)], sample.words()),
    ];
    let mut program = Program {
        weights: Vec::new(),
        buffers: vec![
            buffer("tokens", Class::Tables, 4 * u64::from(rows)),
            buffer(
                "logits",
                Class::ScratchDecode,
                u64::from(vocab) * u64::from(rows) * 4,
            ),
        ],
        caches: Vec::new(),
        vocab,
        context: 256,
        page: 16,
        slots: rows.max(2),
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: vec![Pass {
            kind: PassKind::Decode,
            adapted: false,
            rows,
            outputs: rows,
            width: vocab,
            result: at(1),
            labels: vec!["scale".to_string(), "sample".to_string()],
            commands,
        }],
    };
    cost::fill(&mut program);
    verify(&program).unwrap();
    program
}

fn context(device: &dyn Device, program: &Program) -> Box<dyn Context> {
    let plan = device.plan(Arc::new(program.clone())).unwrap();
    let loaded = device.load(plan, &Made::default(), &mut |_| {}).unwrap();
    loaded.context().unwrap()
}

/// One token from a step's logits, and three more as a chain.
fn tokens(context: &mut dyn Context, values: &[f32], state: &SlotState<'_>) -> Vec<u32> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    context.write_buffer(1, &bytes).unwrap();
    context.set_slot(1, state).unwrap();
    let row = Row::new(0, 0, 1);
    context.step_rows(0, &[row], &[]).unwrap();
    let pick = Choice {
        output: 0,
        slot: 1,
        position: 9,
        draft: None,
    };
    let mut tokens = vec![0];
    context.sample(&[pick], &mut tokens).unwrap();
    let start = ChainStart {
        slot: 1,
        token: tokens[0],
        position: 9,
        steps: 3,
        shift: 0,
    };
    let mut emit = |one: welte_device::Emitted| {
        tokens.push(one.token);
        true
    };
    context
        .chain(&[start], &Control::default(), &mut emit)
        .unwrap();
    tokens
}

#[test]
#[ignore = "needs a GPU"]
fn the_device_chooses_as_the_reference_does() {
    let mut options = DeviceOptions::default();
    options.replay = Some(Replay::Graph);
    let device = welte_cuda::device(0, &options).unwrap();
    let n = &mut Numbers(5);
    let mut wrong = Vec::new();
    for vocab in [1u32, 3, 70, 1000, 32_000, 151_936, 262_144] {
        let program = sampling_only(vocab, 1);
        let mut fast = context(&*device, &program);
        let mut plain = context(&*welte_reference::device(), &program);
        for case in 0..if vocab < 100_000 { 80 } else { 12 } {
            let values = n.logits(vocab);
            let settings = random_settings(n);
            let below = if n.below(2) == 0 { 4 } else { vocab + 2 };
            let history: Vec<u32> = (0..n.below(90)).map(|_| n.below(below)).collect();
            let biases = n.below(3).saturating_sub(1) * n.below(70);
            let bias: Vec<(u32, f32)> = (0..biases)
                .map(|_| {
                    let bias = n.pick(&[2.0, -1.5, f32::NEG_INFINITY]);
                    (n.below(vocab.min(20) + 1), bias)
                })
                .collect();
            let state = SlotState {
                sampling: settings,
                bias: &bias,
                history: &history,
                ends: &[],
                ..SlotState::default()
            };
            let got = tokens(fast.as_mut(), &values, &state);
            let wanted = tokens(plain.as_mut(), &values, &state);
            if got != wanted {
                wrong.push(format!(
                    "vocab {vocab} case {case}: {got:?}, not {wanted:?}: {settings:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rows are divided among fewer blocks the more there are. No token changes.
#[test]
#[ignore = "needs a GPU"]
fn rows_together_choose_as_the_reference_does() {
    let mut options = DeviceOptions::default();
    options.replay = Some(Replay::Graph);
    let device = welte_cuda::device(0, &options).unwrap();
    let n = &mut Numbers(6);
    let mut wrong = Vec::new();
    for (vocab, rows) in [(70, 20), (32_000, 70), (151_936, 9), (262_144, 5)] {
        let program = sampling_only(vocab, rows);
        let mut contexts = [&*device, &*welte_reference::device()].map(|d| context(d, &program));
        for case in 0..6 {
            let values: Vec<f32> = (0..rows).flat_map(|_| n.logits(vocab)).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let settings: Vec<Sampling> = (0..rows)
                .map(|_| match case {
                    0 => Sampling::default(),
                    1 => Sampling {
                        temperature: 1.0,
                        seed: n.next(),
                        ..Sampling::default()
                    },
                    _ => random_settings(n),
                })
                .collect();
            let history: Vec<u32> = (0..n.below(90)).map(|_| n.below(vocab)).collect();
            let all: Vec<Row> = (0..rows).map(|slot| Row::new(0, 0, slot)).collect();
            let picks: Vec<Choice> = (0..rows)
                .map(|slot| Choice {
                    output: slot,
                    slot,
                    position: 9,
                    draft: None,
                })
                .collect();
            let [got, wanted] = contexts.each_mut().map(|context| {
                context.write_buffer(1, &bytes).unwrap();
                for (slot, settings) in (0..).zip(&settings) {
                    let state = SlotState {
                        sampling: *settings,
                        history: &history,
                        ..SlotState::default()
                    };
                    context.set_slot(slot, &state).unwrap();
                }
                context.step_rows(0, &all, &[]).unwrap();
                let mut tokens = vec![0; rows as usize];
                context.sample(&picks, &mut tokens).unwrap();
                tokens
            });
            for (row, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                if got != wanted {
                    let settings = settings[row];
                    wrong.push(format!(
                        "vocab {vocab} case {case} row {row}: {got}, not {wanted}: {settings:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
