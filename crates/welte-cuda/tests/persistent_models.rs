//! The persistent kernels for models of many families: against the reference device, and against themselves.

mod common;

use common::{
    chain_of, difference, gpu, load, logits, long, oracle, prompt, replaying, rows, set_slot, step,
};
use welte_cuda::CudaContext;
use welte_device::conformance::made::Numbers;
use welte_device::conformance::model::{self, Layer, Model};
use welte_device::conformance::program;
use welte_device::Replay;
use welte_formats::Checkpoint;
use welte_formats::synthetic::Synthetic;
use welte_models::CompileOptions;
use welte_table::*;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A made-up model: its sizes, and its name in messages.
struct Case {
    name: &'static str,
    /// As `Synthetic::parse` reads it.
    shape: String,
    kv_format: Format,
    /// The largest difference from the reference, relative to the largest logit.
    allowed: f32,
}

impl Case {
    fn program(&self) -> (Program, Synthetic) {
        let checkpoint = Synthetic::parse(&self.shape).unwrap();
        let spec = welte_models::spec(&checkpoint).unwrap();
        let options = CompileOptions {
            context: 512,
            kv_format: self.kv_format,
            slots: 1,
            decode_rows: 4,
            prompt_rows: 64,
            ..CompileOptions::default()
        };
        let program = welte_models::compile(&spec, &checkpoint, &options).unwrap();
        (program, checkpoint)
    }
}

fn case(name: &'static str, shape: &str, allowed: f32) -> Case {
    Case {
        name,
        shape: format!("custom,{shape}"),
        kv_format: Format::F16,
        allowed,
    }
}

/// Norms after a part; a window and another rope in five of six layers.
fn gemma3() -> Vec<Case> {
    let sizes = "arch=gemma3,layers=7,dim=288,heads=4,kv_heads=1,head_dim=64,ffn=640,vocab=1003,window=40";
    vec![
        case("gemma3 q8_0", &format!("{sizes}:q8_0"), 4e-2),
        case("gemma3 bf16", &format!("{sizes}:bf16"), 1e-2),
        case("gemma3 f32", &format!("{sizes}:f32"), 3e-3),
    ]
}

/// Describes the differences of the persistent kernel's logits from the reference, in chains; and of its steps from its chains.
fn problems(case: &Case) -> Vec<String> {
    let (program, checkpoint) = case.program();
    let mut context = load_any(&program, &checkpoint);
    let mut plain = oracle(&program, &checkpoint);
    let mut n = Numbers(7);
    let mut wrong = Vec::new();
    let mut first = 0;
    for position in [0, 1, 33, 127, 128, 200] {
        let past = rows(&mut n, program.vocab, first, position - first, 0);
        prompt(&mut context, &past);
        prompt(plain.as_mut(), &past);
        let row = rows(&mut n, program.vocab, position, 1, 0)[0];
        let want = step(plain.as_mut(), PassKind::Decode, &[row]);
        chain_of(&mut context, row, 1);
        let got = logits(&mut context);
        let off = difference(&got, &want);
        if off > case.allowed {
            wrong.push(format!("{} at {position}: off by {off}", case.name));
        }
        if bits(&step(&mut context, PassKind::Decode, &[row])) != bits(&got) {
            wrong.push(format!("{} at {position}: a step is not a chain", case.name));
        }
        first = position + 1;
    }
    assert_eq!(replaying(&context), (Replay::Persistent, None));
    wrong
}

fn load_any(program: &Program, checkpoint: &dyn Checkpoint) -> CudaContext {
    let context = common::open(program, checkpoint, Replay::Persistent);
    assert_eq!(replaying(&context), (Replay::Persistent, None));
    context
}

fn check(cases: &[Case]) {
    if !gpu() {
        return;
    }
    let wrong: Vec<String> = cases.iter().flat_map(problems).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs a GPU"]
fn norms_after_a_part_agree_with_the_reference() {
    check(&gemma3());
}

/// Rows of a step, in any order, have the bits of a chain, where the kernel for chains computes them one by one.
#[test]
#[ignore = "needs a GPU"]
fn rows_of_a_step_have_the_bits_of_a_chain() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = gemma3()[0].program();
    let mut context = load_any(&program, &checkpoint);
    assert_eq!(context.rows_together(), Ok(1));
    let mut n = Numbers(3);
    prompt(&mut context, &rows(&mut n, program.vocab, 0, 60, 0));
    let mut several = rows(&mut n, program.vocab, 60, 4, 0);
    let each: Vec<Vec<u32>> = several
        .iter()
        .map(|row| {
            chain_of(&mut context, *row, 1);
            bits(&logits(&mut context))
        })
        .collect();
    several.rotate_left(1);
    let together = bits(&step(&mut context, PassKind::Decode, &several));
    let width = program.vocab as usize;
    for (i, row) in several.iter().enumerate() {
        let want = &each[(row.position - 60) as usize];
        assert_eq!(together[i * width..][..width], want[..], "row {i}");
    }
}

/// Attention sinks, with one split and with several, also beside a soft cap.
#[test]
#[ignore = "needs a GPU"]
fn attention_with_sinks_agrees_with_the_reference() {
    if !gpu() {
        return;
    }
    for softcap in [0.0, 20.0] {
        let attention = Layer::Attention(model::Attention {
            heads: 8,
            head_dim: 64,
            rot: 64,
            sinks: true,
            softcap,
            ..model::ATTENTION
        });
        let dense = Layer::Dense(model::Dense {
            hidden: 512,
            act: 3,
        });
        let (program, checkpoint) = program::make(&Model {
            dim: 256,
            vocab: 1003,
            prompt_rows: 64,
            layers: vec![attention, dense],
            ..Model::small(31)
        });
        let mut context = load(&program, &checkpoint);
        let mut plain = oracle(&program, &checkpoint);
        let mut n = Numbers(4);
        let mut first = 0;
        for position in [0, 5, 128, 400] {
            let past = rows(&mut n, 1003, first, position - first, 2);
            prompt(&mut context, &past);
            prompt(plain.as_mut(), &past);
            let row = rows(&mut n, 1003, position, 1, 2)[0];
            chain_of(&mut context, row, 1);
            let got = logits(&mut context);
            let want = step(plain.as_mut(), PassKind::Decode, &[row]);
            let off = difference(&got, &want);
            assert!(off < 3e-3, "{position}: off by {off}");
            let alone = step(&mut context, PassKind::Decode, &[row]);
            assert_eq!(bits(&alone), bits(&got), "{position}");
            first = position + 1;
        }
        assert_eq!(replaying(&context), (Replay::Persistent, None));
    }
}

/// A chain repeats itself, whatever its division into launches.
#[test]
#[ignore = "needs a GPU"]
fn a_chain_of_every_family_equals_its_parts() {
    if !gpu() {
        return;
    }
    for case in [&gemma3()[0]] {
        let (program, checkpoint) = case.program();
        let count = long(120);
        let mut all = Vec::new();
        for lengths in [vec![count], vec![count / 2 + 1, count - count / 2 - 1]] {
            let mut context = load_any(&program, &checkpoint);
            set_slot(&mut context, 0, &Sampling::default(), &[]);
            let start = Row {
                token: 3,
                position: 0,
                slot: 0,
            };
            let tokens = common::chain(&mut context, start, &lengths);
            assert_eq!(replaying(&context), (Replay::Persistent, None));
            all.push((tokens, bits(&logits(&mut context))));
        }
        assert!(all[0] == all[1], "{}", case.name);
    }
}
