//! Gemma 4: sizes per layer, shared caches, embeddings per layer, experts beside a dense part.

mod common;

use common::Fake;
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, Error, LayerRope, ModelSpec, compile, spec};
use welte_table::{CacheKind, Command, Op, PassKind, Program, params as p, verify};

const EFFECTIVE: &str =
    "gemma4-e4b,layers=24,dim=64,heads=4,kv_heads=1,head_dim=32,ffn=96,vocab=1000,window=16:f16";
const MIXTURE: &str = "gemma4-26b-a4b,layers=6,dim=64,heads=4,kv_heads=2,head_dim=32,ffn=32,experts=4,used=2,vocab=1000,window=16:f16";

/// The headers of a synthetic model.
fn fake(shape: &str) -> Fake {
    let made = Synthetic::parse(shape).unwrap();
    Fake {
        dialect: Dialect::Gguf,
        metadata: made.metadata().clone(),
        tensors: made.tensors().to_vec(),
    }
}

fn compiled(model: &Fake) -> Result<(ModelSpec, Program), Error> {
    let spec = spec(model)?;
    let options = CompileOptions {
        context: 128,
        prompt_rows: 32,
        ..CompileOptions::default()
    };
    let program = welte_table::fuse(compile(&spec, model, &options)?, welte_table::PATTERNS);
    verify(&program).unwrap();
    Ok((spec, program))
}

/// The commands of a layer of the decode pass.
fn layer(program: &Program, layer: usize) -> Vec<Command> {
    let pass = &program.passes[program.pass(PassKind::Decode).unwrap()];
    let all = pass.commands.iter().copied();
    all.filter(|c| c.layer == Some(layer as u32)).collect()
}

fn count(commands: &[Command], op: Op) -> usize {
    commands.iter().filter(|c| c.op == op).count()
}

#[test]
fn last_layers_read_the_cache_of_the_last_one_of_their_kind() {
    let (spec, program) = compiled(&fake(EFFECTIVE)).unwrap();
    // Layers 0 to 5 have keys and values of their own; 5 is full.
    assert_eq!(spec.kv_sources[..6], [0, 1, 2, 3, 4, 5]);
    assert!(spec.kv_sources[6..].iter().all(|i| *i == 4 || *i == 5));
    assert_eq!((spec.kv_source(11), spec.kv_source(12)), (5, 4));
    let kinds: Vec<_> = program.caches.iter().map(|c| c.kind).collect();
    let shape = |layers, kv_heads, head_dim, window| CacheKind::Attention {
        format: welte_table::Format::F16,
        layers,
        kv_heads,
        head_dim,
        window,
    };
    assert_eq!(kinds, [shape(5, 1, 32, 16), shape(1, 2, 64, 0)]);
    let attention = |i: usize| {
        let commands = layer(&program, i);
        let c = commands.iter().find(|c| c.op == Op::Attention).unwrap();
        (c.buffers[1], p::Attention::of(&c.params).layer)
    };
    assert_eq!(attention(12), attention(4));
    assert_eq!(attention(23), attention(5));
    let (own, shared) = (layer(&program, 4), layer(&program, 12));
    assert_eq!((count(&own, Op::RopeAppend), count(&own, Op::Rope)), (1, 0));
    assert_eq!(count(&shared, Op::RopeAppend), 0);
    assert_eq!(count(&shared, Op::Rope), 1);
    assert_eq!(spec.layer_ropes[4..6], [LayerRope::Local, LayerRope::Main]);
    assert_eq!((spec.rope.rot, spec.local_rope.unwrap().rot), (64, 32));
}

#[test]
fn each_layer_has_its_part_of_the_embeddings() {
    let (spec, program) = compiled(&fake(EFFECTIVE)).unwrap();
    assert_eq!(spec.per_layer_width, 256);
    let offset = |i: usize| {
        let commands = layer(&program, i);
        let gate = commands.iter().find(|c| c.op == Op::Gate).unwrap();
        gate.buffers[1].offset
    };
    assert_eq!((offset(0), offset(7)), (0, 4 * 7 * 256));
    // The fake's factors are 2.
    let last = *layer(&program, 3).last().unwrap();
    assert_eq!(last.op, Op::Scale);
    assert_eq!(p::Scale::of(&last.params).scale, 2.0);
}

#[test]
fn experts_run_beside_a_dense_part() {
    let (spec, program) = compiled(&fake(MIXTURE)).unwrap();
    assert!(spec.experts.unwrap().beside);
    assert_eq!(
        spec.values_are_keys,
        [false, false, false, false, false, true]
    );
    let commands = layer(&program, 0);
    assert_eq!(count(&commands, Op::NormMatmulActMul), 1);
    assert_eq!(count(&commands, Op::ExpertsAdd), 1);
    let route = commands.iter().find(|c| c.op == Op::Route).unwrap();
    let scales = &program.weights[route.weights[1] as usize];
    assert_eq!(scales.name, "layer 0 experts' scales");
    // Experts are added to zeros, not to the stream.
    let zero = commands
        .iter()
        .find(|c| c.op == Op::Scale && p::Scale::of(&c.params).scale == 0.0);
    let experts = commands.iter().find(|c| c.op == Op::ExpertsAdd).unwrap();
    assert_eq!(zero.unwrap().buffers[0], experts.buffers[2]);
}

#[test]
fn parameters_are_counted() {
    for shape in [EFFECTIVE, MIXTURE] {
        let made = Synthetic::parse(shape).unwrap();
        // Rope's factors do not count as parameters.
        let tensors = made
            .tensors()
            .iter()
            .filter(|t| t.name != "rope_freqs.weight");
        let stored: usize = tensors.map(|t| t.n * t.k).sum();
        assert_eq!(spec(&made).unwrap().parameters(), stored as u64, "{shape}");
    }
}

#[test]
fn bad_keys_are_refused_by_name() {
    let number = |n: u64| Value::U64(n);
    let list = |values: &[u64]| Value::Array(values.iter().map(|n| Value::U64(*n)).collect());
    let cases: [(&str, &str, Value, &str); 7] = [
        (
            EFFECTIVE,
            "attention.shared_kv_layers",
            number(24),
            "is 24 of 24 layers",
        ),
        (
            EFFECTIVE,
            "attention.shared_kv_layers",
            number(20),
            "has no layer of its kind",
        ),
        (
            EFFECTIVE,
            "attention.head_count_kv",
            list(&[1; 5]),
            "has 5 entries for 24 layers",
        ),
        (
            EFFECTIVE,
            "attention.head_count_kv",
            list(&[0; 24]),
            "not a number from 1",
        ),
        (
            MIXTURE,
            "attention.head_count_kv",
            list(&[3; 6]),
            "does not divide 4 heads",
        ),
        (
            EFFECTIVE,
            "attention.sliding_window_pattern",
            number(6),
            "is missing or not a list",
        ),
        (
            EFFECTIVE,
            "embedding_length_per_layer_input",
            number(1 << 20),
            "at most 65536",
        ),
    ];
    for (shape, key, value, says) in cases {
        let mut model = fake(shape);
        model.set(&format!("gemma4.{key}"), value);
        let error = spec(&model).expect_err(key).to_string();
        assert!(error.contains(key) && error.contains(says), "{error}");
    }
    let mut model = fake(EFFECTIVE);
    model.tensors.retain(|t| t.name != "blk.3.inp_gate.weight");
    let error = compiled(&model)
        .expect_err("a tensor is missing")
        .to_string();
    assert!(error.contains("blk.3.inp_gate.weight"), "{error}");
}
