//! The persistent kernels for models of many families: against the reference device, and against themselves.

mod common;

use common::{
    chain_of, difference, gpu, load, logits, long, oracle, prompt, replaying, rows, seed, set_slot,
    soak, step,
};
use std::time::Instant;
use welte_conformance::made::Numbers;
use welte_conformance::model::{self, Layer, Model};
use welte_conformance::program;
use welte_cuda::CudaContext;
use welte_device::{Context, Control, Replay};
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
        let program = welte_table::fuse(
            welte_models::compile(&spec, &checkpoint, &options).unwrap(),
            welte_table::PATTERNS,
        );
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

/// Heads of two sizes, layers that share keys and values, inputs per layer, layers with a factor.
fn gemma4() -> Vec<Case> {
    let sizes = "gemma4-small,dim=256,ffn=512,vocab=1003,window=40,heads=4,kv_heads=2";
    let made = |name, head_dim: u32, format: &str, kv_format, allowed| Case {
        name,
        shape: format!("{sizes},head_dim={head_dim}:{format}"),
        kv_format,
        allowed,
    };
    vec![
        made("gemma4 f32", 64, "f32", Format::F16, 3e-3),
        // Warps share a tile of such heads.
        made("gemma4 with large heads", 256, "f32", Format::F16, 3e-3),
        made("gemma4, cache in q8_0", 256, "f32", Format::Q8_0, 1e-2),
        made("gemma4 q8_0", 64, "q8_0", Format::F16, 5e-2),
    ]
}

/// Experts beside a dense part, and values that are keys. Rounding to 8 bits may change a close choice, so all experts are used there.
fn gemma4_mixtures() -> Vec<Case> {
    let sizes = "gemma4-moe-small,dim=256,vocab=1003,window=40,heads=4,kv_heads=2,head_dim=64";
    let made = |name, shape: &str, allowed| Case {
        name,
        shape: format!("{sizes},{shape}"),
        kv_format: Format::F16,
        allowed,
    };
    vec![
        made(
            "gemma4 with experts f32",
            "ffn=96,experts=16,used=3:f32",
            6e-3,
        ),
        made(
            "gemma4 with experts q8_0",
            "ffn=96,experts=4,used=4:q8_0",
            4e-2,
        ),
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
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    wrong
}

fn load_any(program: &Program, checkpoint: &dyn Checkpoint) -> CudaContext {
    let mut context = common::open(program, checkpoint, Replay::Persistent);
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
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
fn gemma4_agrees_with_the_reference() {
    check_chains(&gemma4());
}

#[test]
#[ignore = "needs a GPU"]
fn experts_beside_a_dense_part_agree_with_the_reference() {
    check_chains(&gemma4_mixtures());
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
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
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
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
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
            let start = Row::new(3, 0, 0);
            let tokens = common::chain(&mut context, start, &lengths);
            assert_eq!(replaying(&mut context), (Replay::Persistent, None));
            all.push((tokens, bits(&logits(&mut context))));
        }
        assert!(all[0] == all[1], "{}", case.name);
    }
}

const RECURRENT_SIZES: &str = "layers=4,dim=256,heads=4,kv_heads=2,head_dim=64,vocab=1003";

fn recurrent(name: &'static str, shape: String, allowed: f32) -> Case {
    Case {
        name,
        shape,
        kv_format: Format::F16,
        allowed,
    }
}

/// The gated delta rule and gated attention, with dense parts or with experts beside a shared one.
fn delta_rules() -> Vec<Case> {
    let qwen = |arch: &str| format!("custom,arch={arch},{RECURRENT_SIZES}");
    let dense = qwen("qwen35");
    let sparse = qwen("qwen35moe");
    // Heads of 128 x 128.
    let large = "qwen3.5-small,dim=256,ffn=512,vocab=1003,heads=4,kv_heads=2";
    vec![
        recurrent("qwen3.5 f32", format!("{dense},ffn=512:f32"), 3e-3),
        recurrent(
            "qwen3.5 with experts f32",
            format!("{sparse},ffn=96,experts=16,used=3:f32"),
            6e-3,
        ),
        recurrent(
            "qwen3.5 with experts q4_k_m",
            format!("{sparse},ffn=256,experts=4,used=4:q4_k_m"),
            1e-1,
        ),
        recurrent("qwen3.5 q4_k", format!("{large}:q4_k"), 4e-2),
    ]
}

/// Mamba-2, attention without rope, and experts beside a shared one without a gate.
fn state_space_models() -> Vec<Case> {
    let granite = format!("granite-4-h-tiny,{RECURRENT_SIZES},layers=6");
    vec![
        recurrent(
            "granite f32",
            format!("{granite},ffn=96,experts=16,used=3:f32"),
            6e-3,
        ),
        recurrent(
            "granite q4_0",
            format!("{granite},ffn=96,experts=4,used=4:q4_0"),
            1e-1,
        ),
    ]
}

/// Norms of groups of Mamba-2's results, and parts, experts and a shared expert without gates.
fn ungated_models() -> Vec<Case> {
    let [dense, sparse] =
        ["nemotron-h-small", "nemotron-3-small"].map(|s| format!("{s},{RECURRENT_SIZES}"));
    vec![
        recurrent(
            "nemotron-h f32",
            format!("{dense},layers=8,ffn=512:f32"),
            6e-3,
        ),
        recurrent(
            "nemotron-h q4_0",
            format!("{dense},layers=8,ffn=512:q4_0"),
            1e-1,
        ),
        recurrent(
            "nemotron 3 f32",
            format!("{sparse},layers=6,ffn=96,experts=16,used=3:f32"),
            6e-3,
        ),
        recurrent(
            "nemotron 3 q8_0",
            format!("{sparse},layers=6,ffn=96,experts=4,used=4:q8_0"),
            8e-2,
        ),
    ]
}

/// Convolutions between gates, and experts that a bias helps to choose.
fn gated_convolutions() -> Vec<Case> {
    let [dense, sparse] = ["lfm2-1.2b", "lfm2-8b-a1b"].map(|s| format!("{s},{RECURRENT_SIZES}"));
    vec![
        recurrent("lfm2 f32", format!("{dense}:f32"), 3e-3),
        recurrent("lfm2 q4_0", format!("{dense}:q4_0"), 8e-2),
        recurrent(
            "lfm2 with experts f32",
            format!("{sparse},ffn=96,experts=16,used=3:f32"),
            6e-3,
        ),
    ]
}

/// The recurrent states of slot 0.
fn states(context: &mut dyn Context) -> Vec<f32> {
    let program = context.program().clone();
    let mut all = Vec::new();
    for (cache, spec) in program.caches.iter().enumerate() {
        if matches!(spec.kind, CacheKind::Recurrent { .. }) {
            let mut bytes = vec![0; spec.page_bytes(program.page).unwrap() as usize];
            context.read_page(cache, 0, &mut bytes).unwrap();
            let words = bytes.as_chunks().0.iter();
            all.extend(words.map(|word| f32::from_ne_bytes(*word)));
        }
    }
    all
}

/// Cuts the products whose results are convolved in three: inside of the channels, and before the last five rows.
fn cut(mut program: Program) -> Program {
    let pass = &mut program.passes[0];
    let is_cut = |i: usize| {
        pass.commands[i].op == Op::NormMatmul && pass.commands[i + 1].op == Op::ShortConv
    };
    let all: Vec<usize> = (0..pass.commands.len() - 1)
        .filter(|i| is_cut(*i))
        .collect();
    assert!(!all.is_empty());
    for at in all.into_iter().rev() {
        let whole = pass.commands.remove(at);
        let label = pass.labels.remove(at);
        let p = params::NormMatmul::of(&whole.params);
        let ends = [100, p.n - 5, p.n];
        for (nth, (first, end)) in [0, ends[0], ends[1]].into_iter().zip(ends).enumerate() {
            let mut weight = program.weights[whole.weights[0] as usize].clone();
            weight.n = end - first;
            let Source::Parts(parts) = &mut weight.source else {
                panic!("rows of tensors");
            };
            // The part of each tensor that is between both rows.
            let mut row = 0;
            parts.retain_mut(|part| {
                let (from, to) = (
                    first.clamp(row, row + part.rows),
                    end.clamp(row, row + part.rows),
                );
                part.first_row += from - row;
                row += part.rows;
                part.rows = to - from;
                part.rows > 0
            });
            program.weights.push(weight);
            let mut command = whole;
            command.weights[0] = program.weights.len() as u32 - 1;
            command.params = params::NormMatmul {
                n: end - first,
                ..p
            }
            .words();
            command.buffers[1].offset += 4 * first;
            pass.commands.insert(at + nth, command);
            pass.labels.insert(at + nth, label.clone());
        }
    }
    cost::fill(&mut program);
    program
}

/// Parts of a recurrent layer's input as products of their own, one with fewer rows than there are blocks.
#[test]
#[ignore = "needs a GPU"]
fn products_of_parts_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = delta_rules()[0].program();
    let mut pair = Pair::of(&cut(program), &checkpoint, 3e-3);
    pair.chain(3);
    pair.prompt(20);
    pair.chain(4);
    assert_eq!(replaying(&mut pair.context), (Replay::Persistent, None));
}

/// A sequence on the persistent kernel and on the reference device. Both see the same tokens.
struct Pair {
    context: CudaContext,
    plain: Box<dyn Context>,
    next: Row,
    allowed: f32,
}

impl Pair {
    fn new(case: &Case) -> Pair {
        let (program, checkpoint) = case.program();
        Pair::of(&program, &checkpoint, case.allowed)
    }

    fn of(program: &Program, checkpoint: &dyn Checkpoint, allowed: f32) -> Pair {
        Pair {
            context: load_any(program, checkpoint),
            plain: oracle(program, checkpoint),
            next: Row::new(3, 0, 0),
            allowed,
        }
    }

    /// The reference device follows the tokens that the kernel has made. Compares the logits of the last one, and all states.
    fn follow(&mut self, tokens: &[u32]) {
        let mut want = Vec::new();
        for token in tokens {
            want = step(self.plain.as_mut(), PassKind::Decode, &[self.next]);
            self.next = Row::new(*token, self.next.position + 1, self.next.slot);
        }
        let at = self.next.position;
        let off = difference(&logits(&mut self.context), &want);
        // Beside a busy program the kernel may have given up.
        let by = replaying(&mut self.context);
        assert!(
            off <= self.allowed,
            "logits at {at} are off by {off}, {by:?}"
        );
        let off = difference(&states(&mut self.context), &states(self.plain.as_mut()));
        assert!(
            off <= self.allowed,
            "states at {at} are off by {off}, {by:?}"
        );
    }

    fn prompt(&mut self, count: u32) {
        let vocab = self.context.program().vocab;
        let rows = rows(&mut Numbers(9), vocab, self.next.position, count, 0);
        prompt(&mut self.context, &rows);
        prompt(self.plain.as_mut(), &rows);
        let next = self.next;
        self.next = Row::new(next.token(), next.position + count, next.slot);
    }

    fn chain(&mut self, count: usize) -> Vec<u32> {
        let tokens = chain_of(&mut self.context, self.next, count);
        self.follow(&tokens);
        tokens
    }
}

/// Chains from the first position on and after a prompt; one that follows another; with contexts that are split.
fn check_chains(cases: &[Case]) {
    if !gpu() {
        return;
    }
    for case in cases {
        eprintln!("{}", case.name);
        let mut pair = Pair::new(case);
        assert_eq!(pair.chain(1).len(), 1);
        assert_eq!(pair.chain(5).len(), 5);
        pair.prompt(30);
        assert_eq!(pair.chain(3).len(), 3);
        pair.prompt(110);
        assert_eq!(pair.chain(2).len(), 2);
        assert_eq!(replaying(&mut pair.context), (Replay::Persistent, None));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn delta_rules_agree_with_the_reference() {
    check_chains(&delta_rules());
}

#[test]
#[ignore = "needs a GPU"]
fn state_space_models_agree_with_the_reference() {
    check_chains(&state_space_models());
}

#[test]
#[ignore = "needs a GPU"]
fn models_without_gates_agree_with_the_reference() {
    check_chains(&ungated_models());
}

/// A short chain of one of them, for a pretend GPU. Experts once streamed wrong rows, which showed with 40 multiprocessors and not with 8.
#[test]
#[ignore = "needs a GPU"]
fn experts_without_gates_in_brief() {
    if gpu() {
        let mut pair = Pair::new(&ungated_models()[2]);
        assert_eq!(pair.chain(4).len(), 4);
        assert_eq!(replaying(&mut pair.context), (Replay::Persistent, None));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gated_convolutions_agree_with_the_reference() {
    check_chains(&gated_convolutions());
}

/// A chain that ends at an end token, or because the host wants no more of it, leaves the states of its last token. So does one in which
/// the kernel gives up.
#[test]
#[ignore = "needs a GPU"]
fn states_are_those_of_the_last_token_of_a_chain() {
    if !gpu() {
        return;
    }
    let all = [delta_rules(), state_space_models(), gated_convolutions()];
    for case in [&all[0][0], &all[0][1], &all[1][0], &all[2][0]] {
        eprintln!("{}", case.name);
        let mut pair = Pair::new(case);
        pair.prompt(10);
        let (start, count) = (pair.next, 6);
        let made = pair.chain(count);
        // The first token that is not among those before it.
        let end = (1..count)
            .find(|i| !made[..*i].contains(&made[*i]))
            .unwrap_or(0);
        let again = |pair: &mut Pair| {
            pair.next = Row::new(0, 0, 0);
            pair.prompt(10);
            pair.next = start;
        };
        again(&mut pair);
        set_slot(&mut pair.context, 0, &Sampling::default(), &[made[end]]);
        assert_eq!(pair.chain(count), made[..=end]);
        set_slot(&mut pair.context, 0, &Sampling::default(), &[]);
        for wanted in [1, 3] {
            again(&mut pair);
            assert_eq!(pair.chain(wanted), made[..wanted]);
            let bits_of = |pair: &mut Pair| {
                let logits = bits(&logits(&mut pair.context));
                (logits, bits(&states(&mut pair.context)))
            };
            let whole = bits_of(&mut pair);
            again(&mut pair);
            let tokens = common::chain_while(
                &mut pair.context,
                start,
                30,
                &Control::default(),
                &mut |tokens| tokens.len() < wanted,
            );
            assert_eq!(tokens, made[..wanted]);
            assert!(bits_of(&mut pair) == whole, "cut after {wanted}");
            pair.follow(&tokens);
            assert_eq!(pair.chain(count - wanted), made[wanted..]);
        }
        // Another sequence begins, whatever states the page holds.
        pair.next = Row::new(5, 0, 0);
        pair.chain(2);
        assert_eq!(replaying(&mut pair.context), (Replay::Persistent, None));
        again(&mut pair);
        pair.context.stall_block(1, 20_000);
        let tokens = pair.chain(count);
        assert_eq!(tokens.len(), count);
        assert_eq!(replaying(&mut pair.context).0, Replay::Graph);
        pair.chain(2);
    }
}

/// Chains in random pieces that the host cuts at random tokens, with a model of every family: always the text of one long chain, and
/// never a fault. Runs for `WELTE_SOAK` seconds.
#[test]
#[ignore = "needs a GPU"]
fn random_chains_of_every_family_give_the_text_of_one_long_chain() {
    if !gpu() {
        return;
    }
    let cases = [
        &gemma3()[0],
        &gemma4()[0],
        &gemma4_mixtures()[1],
        &mixtures()[2],
        &mixtures()[4],
        &delta_rules()[1],
        &state_space_models()[1],
        &ungated_models()[3],
        &gated_convolutions()[2],
    ];
    let most = long(200);
    let start = |token| Row::new(token, 0, 0);
    let mut models: Vec<(&str, CudaContext, Vec<Vec<u32>>)> = Vec::new();
    for case in cases {
        let (program, checkpoint) = case.program();
        let mut context = load_any(&program, &checkpoint);
        let texts = (0..4).map(|token| chain_of(&mut context, start(token), most));
        let texts = texts.collect();
        models.push((case.name, context, texts));
    }
    let until = Instant::now() + soak();
    let mut n = Numbers(seed(5));
    let mut chains = 0u32;
    while Instant::now() < until || chains < 20 {
        let model = n.below(models.len() as u32) as usize;
        let (name, context, texts) = &mut models[model];
        let token = n.below(4);
        let stop = n.below(most as u32) as usize + 1;
        let mut row = start(token);
        let mut got: Vec<u32> = Vec::new();
        while got.len() < stop {
            let before = got.len();
            let length = (n.below(most as u32 / 2) as usize + 1).min(most - before);
            let some =
                common::chain_while(context, row, length, &Control::default(), &mut |tokens| {
                    before + tokens.len() < stop
                });
            let last = some.last().copied().unwrap_or(row.token());
            row = Row::new(last, row.position + some.len() as u32, row.slot);
            got.extend(some);
        }
        assert_eq!(got, texts[token as usize][..got.len()], "{name}, {token}");
        assert_eq!(replaying(context), (Replay::Persistent, None), "{name}");
        chains += 1;
    }
    eprintln!("{chains} texts");
}
