//! The persistent kernels for models of many families: against the reference device, and against themselves.

mod common;

use common::{
    chain_of, difference, gpu, load, logits, long, oracle, prompt, replaying, rows, set_slot, step,
};
use welte_cuda::CudaContext;
use welte_device::Replay;
use welte_device::conformance::made::Numbers;
use welte_device::conformance::model::{self, Layer, Model};
use welte_device::conformance::program;
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
    let sizes =
        "arch=gemma3,layers=7,dim=288,heads=4,kv_heads=1,head_dim=64,ffn=640,vocab=1003,window=40";
    vec![
        case("gemma3 q8_0", &format!("{sizes}:q8_0"), 4e-2),
        case("gemma3 bf16", &format!("{sizes}:bf16"), 1e-2),
        case("gemma3 f32", &format!("{sizes}:f32"), 3e-3),
    ]
}

/// Keys and values rounded to 8 bits, for heads of several sizes.
fn rounded_caches() -> Vec<Case> {
    let small = |head_dim: u32, arch: &str| {
        let sizes = format!("arch={arch},layers=2,dim=256,heads=4,kv_heads=2,ffn=512,vocab=1003");
        Case {
            kv_format: Format::Q8_0,
            ..case(
                "cache in q8_0",
                &format!("{sizes},head_dim={head_dim}:f32"),
                1e-2,
            )
        }
    };
    vec![
        small(32, "llama"),
        small(64, "qwen3"),
        small(96, "llama"),
        small(128, "qwen2"),
        small(256, "gemma3"),
    ]
}

/// Routers with a product of their own. Rounding to 8 bits may change a close choice, so all experts are used there.
fn mixtures() -> Vec<Case> {
    let qwen = "arch=qwen3moe,layers=3,dim=256,heads=4,kv_heads=2,head_dim=64,vocab=1003";
    let oss = "arch=gpt-oss,layers=3,heads=8,kv_heads=2,head_dim=64,vocab=1003,window=40";
    vec![
        case(
            "qwen3moe f32",
            &format!("{qwen},ffn=96,experts=16,used=3:f32"),
            3e-3,
        ),
        case(
            "qwen3moe bf16",
            &format!("{qwen},ffn=96,experts=4,used=4:bf16"),
            1e-2,
        ),
        case(
            "qwen3moe q4_k",
            &format!("{qwen},ffn=256,experts=4,used=4:q4_k"),
            4e-2,
        ),
        case(
            "gpt-oss f32",
            &format!("{oss},dim=256,ffn=96,experts=8,used=2:f32"),
            3e-3,
        ),
        case(
            "gpt-oss mxfp4",
            &format!("{oss},dim=288,ffn=288,experts=4,used=4:mxfp4_moe"),
            4e-2,
        ),
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
            wrong.push(format!(
                "{} at {position}: a step is not a chain",
                case.name
            ));
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

#[test]
#[ignore = "needs a GPU"]
fn caches_of_8_bits_agree_with_the_reference() {
    check(&rounded_caches());
}

#[test]
#[ignore = "needs a GPU"]
fn mixtures_of_experts_agree_with_the_reference() {
    check(&mixtures());
}

/// The choice is looked up by token, so both devices choose the same experts. Layers of experts follow each other directly.
#[test]
#[ignore = "needs a GPU"]
fn experts_of_every_shape_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    let some = model::EXPERTS;
    let experts = [
        (Format::Q4_0, some),
        (
            Format::Q8_0,
            model::Experts {
                experts: 130,
                used: 8,
                renormalise: 0,
                scales: true,
                ..some
            },
        ),
        (
            Format::F32,
            model::Experts {
                experts: 33,
                used: 5,
                bias: true,
                act: 3,
                ..some
            },
        ),
        (
            Format::Q4_0,
            model::Experts {
                experts: 40,
                used: 32,
                scoring: 1,
                choice_bias: true,
                bias: true,
                ..some
            },
        ),
        (
            Format::F16,
            model::Experts {
                experts: 1,
                used: 1,
                ..some
            },
        ),
        (
            Format::Q4_K,
            model::Experts {
                hidden: 512,
                experts: 7,
                used: 3,
                choice_bias: true,
                renormalise: 0,
                ..some
            },
        ),
    ];
    let mut wrong = Vec::new();
    for (i, (format, experts)) in experts.into_iter().enumerate() {
        let experts = model::Experts {
            hidden: experts.hidden.max(160),
            ..experts
        };
        let attention = Layer::Attention(model::Attention {
            heads: 4,
            head_dim: 64,
            rot: 64,
            ..model::ATTENTION
        });
        let mixed = Layer::Experts(experts);
        let (program, checkpoint) = program::make(&Model {
            format,
            dim: 256,
            vocab: 1003,
            slots: 1,
            prompt_rows: 64,
            layers: vec![attention, mixed, mixed, mixed, attention, mixed],
            ..Model::small(50 + i as u64)
        });
        let mut context = load(&program, &checkpoint);
        let mut plain = oracle(&program, &checkpoint);
        let mut n = Numbers(5);
        prompt(&mut context, &rows(&mut Numbers(1), 1003, 0, 20, 0));
        prompt(plain.as_mut(), &rows(&mut Numbers(1), 1003, 0, 20, 0));
        for row in rows(&mut n, 1003, 20, 6, 0) {
            let want = step(plain.as_mut(), PassKind::Decode, &[row]);
            chain_of(&mut context, row, 1);
            let got = logits(&mut context);
            let off = difference(&got, &want);
            let allowed = if format.rounds_activations() {
                8e-2
            } else {
                3e-3
            };
            if off > allowed {
                wrong.push(format!("{i} at {}: off by {off}", row.position));
            }
            if bits(&step(&mut context, PassKind::Decode, &[row])) != bits(&got) {
                wrong.push(format!("{i} at {}: a step is not a chain", row.position));
            }
        }
        assert_eq!(replaying(&context), (Replay::Persistent, None));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Steps of many rows and of one agree with launched kernels, as is checked when a model is loaded for the first time. Every layer has a
/// rope of its own, so attention is of several kinds.
#[test]
#[ignore = "needs a GPU"]
fn steps_agree_with_launched_kernels() {
    if !gpu() {
        return;
    }
    let experts = Layer::Experts(model::Experts {
        hidden: 160,
        ..model::EXPERTS
    });
    let attention = Layer::Attention(model::Attention {
        heads: 4,
        head_dim: 64,
        rot: 64,
        ..model::ATTENTION
    });
    let dense = Layer::Dense(model::Dense {
        hidden: 512,
        act: 0,
    });
    for (name, layers) in [
        ("dense", vec![attention, dense, attention, dense]),
        (
            "experts",
            vec![attention, experts, experts, attention, experts],
        ),
    ] {
        for kv_format in [Format::F16, Format::Q8_0] {
            let (program, checkpoint) = program::make(&Model {
                format: Format::Q4_0,
                kv_format,
                dim: 256,
                vocab: 1003,
                slots: 1,
                prompt_rows: 64,
                layers: layers.clone(),
                ..Model::small(50)
            });
            let mut context = load(&program, &checkpoint);
            for rows in [1, 2, 8] {
                let agrees = context.check_rows(rows).unwrap();
                assert_eq!(agrees, Some(true), "{name}, {kv_format:?}, {rows} rows");
            }
        }
    }
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
    for case in [&gemma3()[0], &mixtures()[2], &mixtures()[4]] {
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
