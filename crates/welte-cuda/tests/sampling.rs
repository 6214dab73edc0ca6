//! The device's sampler against the plain one: the same token for the same logits. Without a GPU it says so and passes.

#[path = "../../welte-cpu/tests/common/mod.rs"]
mod common;

use common::{Config, Numbers, make};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use welte_cpu::choose_plainly;
use welte_cuda::{Model, Options, Replay, Session, info};
use welte_table::*;

/// A program that does nothing but sample from its logits.
fn sampling_only(vocab: u32) -> (Program, common::Made) {
    let (mut program, checkpoint) = make(&Config::small(1));
    let buffer = |buffer| BufferRef { buffer, offset: 0 };
    program.vocab = vocab;
    program.buffers.push(BufferSpec {
        name: "all logits".to_string(),
        class: Class::ScratchDecode,
        bytes: u64::from(vocab) * 4,
    });
    let logits = program.buffers.len() as u32 - 1;
    let sample = Command {
        op: Op::Sample,
        patch: Patch::OutputSlot,
        format: Format::F32,
        weights: [NO_WEIGHT; 3],
        buffers: [
            buffer(logits),
            buffer(program.tokens),
            BufferRef::NONE,
            BufferRef::NONE,
        ],
        params: params::Sample {
            n: vocab,
            logits_stride: vocab,
        }
        .words(),
        bytes: 0,
        flops: 0,
    };
    program.weights.clear();
    program.tables = vec![Table {
        shape: Shape::Decode,
        commands: vec![sample],
        labels: vec!["sample".to_string()],
    }];
    common::fill_cost(&mut program);
    (program, checkpoint)
}

/// Logits with many ties, huge gaps, infinities and NaN.
fn logits(n: &mut Numbers, vocab: usize) -> Vec<f32> {
    let kind = n.below(7);
    let mut values: Vec<f32> = (0..vocab)
        .map(|i| {
            let v = n.float() + n.float() + n.float();
            match kind {
                0 => v * 4.0,
                1 => (v * 3.0).trunc(),
                2 => 1.5,
                3 => v * 20.0 - 30.0,
                4 if i % 3 == 0 => f32::NEG_INFINITY,
                5 if n.below(50) == 0 => f32::NAN,
                6 => [0.0, -0.0, -1e-3][i % 3],
                _ => v * 2.0,
            }
        })
        .collect();
    match n.below(60) {
        0 => values.fill(f32::NEG_INFINITY),
        1 => values.fill(f32::NAN),
        2 => values[vocab / 2] = f32::INFINITY,
        _ => {}
    }
    values
}

fn settings(n: &mut Numbers) -> Sampling {
    Sampling {
        temperature: n.pick(&[0.0, 0.3, 1.0, 2.5, 1e-6, f32::NAN]),
        top_k: n.pick(&[0, 0, 1, 2, 40, 2000, 100_000]),
        top_p: n.pick(&[1.0, 1.0, 0.95, 0.5, 0.0, 0.999, f32::NAN]),
        min_p: n.pick(&[0.0, 0.0, 0.05, 0.5, 2.0]),
        repeat_penalty: n.pick(&[1.0, 1.3]),
        frequency_penalty: n.pick(&[0.0, 0.5]),
        presence_penalty: n.pick(&[0.0, 0.5]),
        penalty_last_n: n.pick(&[0, 5, 64, 1000]),
        seed: n.next() << 20 ^ n.next(),
    }
}

#[test]
fn the_device_chooses_as_the_plain_sampler_does() {
    if let Err(error) = info(0) {
        eprintln!("skipped: {error}");
        return;
    }
    let n = &mut Numbers(5);
    let mut wrong = Vec::new();
    for vocab in [1u32, 3, 70, 1000, 32_000, 151_936, 262_144] {
        let (program, checkpoint) = sampling_only(vocab);
        let id = program.buffers.len() as u32 - 1;
        let options = Options {
            device: 0,
            replay: Replay::Graph,
        };
        let model = Model::load(Arc::new(program), &checkpoint, &options, &mut |_, _| {}).unwrap();
        let mut session = Session::new(&model).unwrap();
        for case in 0..if vocab < 100_000 { 80 } else { 12 } {
            let values = logits(n, vocab as usize);
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
            session.write_buffer(id, &bytes).unwrap();
            let settings = settings(n);
            let below = if n.below(2) == 0 { 4 } else { vocab + 2 };
            let tokens = n.below(90);
            let mut history: Vec<u32> = (0..tokens)
                .map(|_| n.below(u64::from(below)) as u32)
                .collect();
            let biases = n.below(3).saturating_sub(1) * n.below(70);
            let bias: Vec<(u32, f32)> = (0..biases)
                .map(|_| {
                    let bias = n.pick(&[2.0, -1.5, f32::NEG_INFINITY]);
                    (n.below(u64::from(vocab.min(20)) + 1) as u32, bias)
                })
                .collect();
            session.set_sampling(&settings, &bias, &history);
            let position = n.below(100) as u32;
            let mut wanted = Vec::new();
            for step in 0..4 {
                let at = position + step;
                let token = choose_plainly(&values, &settings, &bias, &history, at);
                wanted.push(token);
                history.push(token);
            }
            // The first by itself, the others as a chain.
            let mut got = vec![session.sample(position).unwrap()];
            let start = Row {
                token: got[0],
                position,
                sequence: 0,
            };
            let emit = &mut |token| {
                got.push(token);
                true
            };
            let never = AtomicBool::new(false);
            session.chain(start, 3, &[], &never, emit).unwrap();
            if got != wanted {
                wrong.push(format!(
                    "vocab {vocab} case {case}: {got:?}, not {wanted:?}: {settings:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
