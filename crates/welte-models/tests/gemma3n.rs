//! Gemma 3n: streams of hidden states, a path around attention, sparse activations.

mod common;

use common::Fake;
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};
use welte_formats::synthetic::Synthetic;
use welte_models::{AltUp, CompileOptions, compile, spec};
use welte_table::{NO_WEIGHT, Op, Source, params, verify};

fn fake() -> Fake {
    let shape =
        "gemma-3n-small,dim=64,heads=4,kv_heads=1,head_dim=32,ffn=96,vocab=1000,window=16:f16";
    let made = Synthetic::parse(shape).unwrap();
    let mut fake = Fake {
        dialect: Dialect::Gguf,
        metadata: made.metadata().clone(),
        tensors: made.tensors().to_vec(),
    };
    fake.set("gemma3n.attention.shared_kv_layers", Value::U64(5));
    fake
}

#[test]
fn layers_predict_and_correct_all_streams() {
    let model = fake();
    let spec = spec(&model).unwrap();
    assert_eq!(
        spec.altup,
        Some(AltUp {
            streams: 4,
            rank: 64
        })
    );
    assert_eq!(spec.kv_sources[3..], [3, 4, 3, 3, 3, 3, 4]);
    let program = welte_table::fuse(
        compile(&spec, &model, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    );
    verify(&program).unwrap();
    let commands = &program.passes[0].commands;
    let count = |op| commands.iter().filter(|c| c.op == op).count();
    assert_eq!((count(Op::AltUpPredict), count(Op::AltUpCorrect)), (10, 10));
    // All ten layers of the shape are sparse.
    assert_eq!((count(Op::Cutoff), count(Op::MatchSquares)), (10, 2));
    let copies = commands.iter().filter(|c| c.op == Op::Multiply);
    let copies = copies.filter(|c| c.weights[0] == NO_WEIGHT);
    // The first stream before the layers and after them, and each layer's prediction.
    assert_eq!(copies.count(), 12);
    let cutoff = commands.iter().find(|c| c.op == Op::Cutoff).unwrap();
    let cutoff = params::Cutoff::of(&cutoff.params);
    assert_eq!((cutoff.n, cutoff.y_stride), (96, 192));
}

#[test]
fn tokens_without_an_embedding_per_layer_have_that_of_token_0() {
    let mut model = fake();
    let table = "per_layer_token_embd.weight";
    let tensor = model.tensors.iter_mut().find(|t| t.name == table);
    tensor.unwrap().n = 997;
    let spec = spec(&model).unwrap();
    let program = welte_table::fuse(
        compile(&spec, &model, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    );
    let found = program
        .weights
        .iter()
        .find(|w| w.name == "embeddings per layer");
    let Source::Parts(parts) = &found.unwrap().source else {
        panic!("parts");
    };
    let rows: Vec<_> = parts.iter().map(|p| (p.first_row, p.rows)).collect();
    assert_eq!(rows, [(0, 997), (0, 1), (0, 1), (0, 1)]);
}

#[test]
fn keys_that_do_not_fit_are_named() {
    let list = |value| Value::Array(vec![value; 10]);
    for (key, value, problem) in [
        ("altup.active_idx", Value::U64(1), "is 1; supported is 0"),
        (
            "altup.num_inputs",
            Value::U64(1),
            "is 1; must be at least 2",
        ),
        ("altup.num_inputs", Value::U64(9), "must be from 1 to 8"),
        ("attention.shared_kv_layers", Value::U64(10), "is 10 of 10"),
        (
            "embedding_length_per_layer_input",
            Value::U64(0),
            "missing or 0",
        ),
        (
            "activation_sparsity_scale",
            list(Value::F64(f64::NAN)),
            "out of range",
        ),
        ("activation_sparsity_scale", Value::U64(1), "is not a list"),
        (
            "activation_sparsity_scale",
            Value::Array(vec![Value::F64(1.6)]),
            "has 1 entries for 10 layers",
        ),
    ] {
        let mut model = fake();
        model.set(&format!("gemma3n.{key}"), value);
        let error = spec(&model).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{error}");
    }
    let mut model = fake();
    model
        .tensors
        .retain(|t| t.name != "blk.3.altup_router.weight");
    let spec = spec(&model).unwrap();
    let error = compile(&spec, &model, &CompileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("blk.3.altup_router"), "{error}");
}
