//! Synthetic checkpoints of real shapes go all the way to a verified program; only headers are read for it.

use std::collections::HashSet;
use welte_formats::checkpoint::Checkpoint;
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, Scaling, compile, spec};
use welte_table::{MemoryPlan, cost, from_lines, to_lines, verify};

#[test]
fn named_shapes_compile() {
    for (name, millions) in [
        ("qwen3-0.6b:q4_0", 596),
        ("qwen3-4b:q8_0", 4022),
        ("qwen3-8b:q4_k", 8190),
        ("llama-1b:bf16", 1235),
        ("llama-8b:q6_k", 8030),
        ("tinyllama-1.1b:q4_0", 1100),
    ] {
        let checkpoint = Synthetic::parse(name).unwrap();
        let spec = spec(&checkpoint).unwrap();
        assert_eq!(spec.parameters() / 1_000_000, millions, "{name}");
        let program = welte_table::fuse(
            compile(&spec, &checkpoint, &CompileOptions::default()).unwrap(),
            welte_table::PATTERNS,
        );
        assert_eq!(verify(&program), Ok(()), "{name}");
        assert_eq!(from_lines(&to_lines(&program)).unwrap(), program);
        let plan = MemoryPlan::of(&program, &cost::stored_bytes);
        assert!(plan.total() > plan.bytes(welte_table::Class::Weights));
        let names: HashSet<_> = checkpoint.tensors().iter().map(|t| &t.name).collect();
        assert_eq!(names.len(), checkpoint.tensors().len());
    }
}

/// Parameters in millions, without biases: the published models have as many. 0 for shapes that are made smaller.
#[test]
fn shapes_of_later_families_compile() {
    let mut wrong = Vec::new();
    for (name, millions) in [
        ("lfm2-1.2b", 1170),
        ("lfm2-8b-a1b", 8339),
        ("granite-4-h-tiny", 6938),
        ("granite-4-h-micro", 3191),
        ("nemotron-h-8b", 8100),
        ("nemotron-3-nano", 31577),
        ("nemotron-3-small", 0),
        ("deepseek-v2-lite", 15706),
        ("glm-4.7-flash", 29943),
        ("phi-moe", 41872),
        ("qwen3.5-35b-a3b", 34660),
        ("gemma-3n-e4b", 6834),
        ("gemma-3n-small", 0),
        ("gemma4-e4b", 7463),
        ("gemma4-26b-a4b", 25233),
        ("lfm2-small", 0),
        ("lfm2-moe-small", 0),
        ("granite-4-small", 0),
        ("nemotron-h-small", 0),
        ("glm-flash-small", 0),
        ("qwen3.5-moe-small", 0),
        ("gemma4-small", 0),
        ("gemma4-moe-small", 0),
    ] {
        let checkpoint = Synthetic::parse(&format!("{name}:q8_0")).unwrap();
        let spec = spec(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
        let found = spec.parameters() / 1_000_000;
        if millions > 0 && found != millions {
            wrong.push(format!("{name}: {found}"));
        }
        let program = compile(&spec, &checkpoint, &CompileOptions::default());
        let program = program.unwrap_or_else(|error| panic!("{name}: {error}"));
        let program = welte_table::fuse(program, welte_table::PATTERNS);
        assert_eq!(verify(&program), Ok(()), "{name}");
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn gpt_oss_compiles() {
    let checkpoint = Synthetic::parse("gpt-oss-20b:mxfp4_moe").unwrap();
    let spec = spec(&checkpoint).unwrap();
    // Without its biases and sinks, of which there are 6.8 million.
    assert_eq!(spec.parameters() / 1_000_000, 20_907);
    assert_eq!(spec.windows[..4], [128, 0, 128, 0]);
    let program = welte_table::fuse(
        compile(&spec, &checkpoint, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    );
    assert_eq!(verify(&program), Ok(()));
    assert_eq!(from_lines(&to_lines(&program)).unwrap(), program);
    let plan = MemoryPlan::of(&program, &cost::stored_bytes);
    let gigabytes = plan.bytes(welte_table::Class::Weights) / 1_000_000_000;
    assert_eq!(gigabytes, 12);
}

#[test]
fn synthetic_llama_brings_its_rope_factors() {
    let checkpoint = Synthetic::parse("llama-1b:q8_0").unwrap();
    assert_eq!(spec(&checkpoint).unwrap().rope.scaling, Scaling::Factors);
}
