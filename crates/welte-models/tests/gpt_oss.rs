//! gpt-oss: what its program holds, and what is refused.

mod common;

use common::Fake;
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, TensorInfo, Value};
use welte_formats::synthetic::Synthetic;
use welte_models::{Act, CompileOptions, Scaling, compile, spec};
use welte_table::{Format, NO_WEIGHT, Op, Program, Source, WeightId, params, verify};

fn program(fake: &Fake) -> Result<Program, welte_models::Error> {
    let spec = spec(fake)?;
    compile(&spec, fake, &CompileOptions::default())
        .map(|p| welte_table::fuse(p, welte_table::PATTERNS))
}

fn gguf() -> Fake {
    let made = Synthetic::parse("custom,arch=gpt-oss,layers=3,window=9:mxfp4_moe").unwrap();
    Fake {
        dialect: Dialect::Gguf,
        metadata: made.metadata().clone(),
        tensors: made.tensors().to_vec(),
    }
}

/// The same as the published directories say it.
fn hugging_face() -> Fake {
    let gguf = gguf();
    let pairs = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_output", "self_attn.o_proj"),
        ("output.", "lm_head."),
        ("blk.", "model.layers."),
        ("post_attention_norm", "post_attention_layernorm"),
        ("attn_norm", "input_layernorm"),
        ("attn_sinks.weight", "self_attn.sinks"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("ffn_gate_inp", "mlp.router"),
        ("ffn_gate_exps", "mlp.experts.gate_proj"),
        ("ffn_up_exps", "mlp.experts.up_proj"),
        ("ffn_down_exps", "mlp.experts.down_proj"),
    ];
    let renamed = |t: &TensorInfo| TensorInfo {
        name: pairs
            .iter()
            .fold(t.name.clone(), |name, (a, b)| name.replace(a, b)),
        ..t.clone()
    };
    let mut bare = Fake {
        dialect: Dialect::HuggingFace,
        metadata: Metadata::new(),
        tensors: gguf.tensors.iter().map(renamed).collect(),
    };
    bare.set("general.architecture", Value::String("gpt_oss".into()));
    for (key, value) in [
        ("num_hidden_layers", 3),
        ("hidden_size", 256),
        ("intermediate_size", 512),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 64),
        ("num_local_experts", 4),
        ("num_experts_per_tok", 2),
        ("sliding_window", 9),
        ("max_position_embeddings", 4096),
        ("rope_scaling.original_max_position_embeddings", 4096),
    ] {
        bare.set(key, Value::U64(value));
    }
    bare.set("rope_theta", Value::F64(1e4));
    bare.set("rms_norm_eps", Value::F64(1e-5));
    bare.set("rope_scaling.rope_type", Value::String("yarn".into()));
    bare.set("rope_scaling.factor", Value::F64(32.0));
    bare.set("rope_scaling.truncate", Value::Bool(false));
    bare
}

/// The command of an op in the decode pass, in that layer.
fn command(program: &Program, op: Op, layer: usize) -> &welte_table::Command {
    let commands = &program.passes[0].commands;
    commands.iter().filter(|c| c.op == op).nth(layer).unwrap()
}

fn frequencies(program: &Program) -> &[f32] {
    let id = command(program, Op::RopeAppend, 0).weights[0];
    match &program.weights[id as usize].source {
        Source::Constant(values) => values,
        _ => panic!("rope's frequencies are constants"),
    }
}

#[test]
fn the_program_holds_everything_from_either_source() {
    for bare in [gguf(), hugging_face()] {
        let spec = spec(&bare).unwrap();
        assert_eq!(spec.windows, [9, 0, 9]);
        assert_eq!(spec.act, Act::Clamped);
        assert!(
            matches!(
                spec.rope.scaling,
                Scaling::Yarn {
                    truncate: false,
                    ..
                }
            ),
            "{:?}",
            spec.rope
        );
        let program = program(&bare).unwrap();
        assert_eq!(verify(&program), Ok(()));
        let weight = |id: WeightId| &program.weights[id as usize];
        let sinks = command(&program, Op::Attention, 2).weights[0];
        assert_eq!((weight(sinks).k, weight(sinks).format), (4, Format::F32));
        let act_mul = command(&program, Op::ExpertsActMul, 1);
        assert_eq!(params::ExpertsActMul::of(&act_mul.params).act, 3);
        assert_eq!(weight(act_mul.weights[0]).format, Format::MXFP4);
        let bias = weight(act_mul.weights[1]);
        assert_eq!(bias.k, 4 * 2 * 512);
        // Gate and up of each expert in turn, as in the matrix.
        let Source::Parts(parts) = &bias.source else {
            panic!("its bias is in the file")
        };
        let rows: Vec<_> = parts.iter().map(|p| (p.first_row, p.rows)).collect();
        assert_eq!(rows[..4], [(0, 1), (0, 1), (1, 1), (1, 1)]);
        assert!(parts[0].tensor.contains("gate") && parts[1].tensor.contains("up"));
        let add = command(&program, Op::ExpertsAdd, 0);
        assert_eq!(weight(add.weights[1]).k, 4 * 256);
        // Queries, keys and values; attention's output; the router; in each of three layers.
        let biases = &program.passes[0].commands;
        assert_eq!(biases.iter().filter(|c| c.op == Op::Bias).count(), 9);
    }
    let qwen = Synthetic::parse("custom,arch=qwen3moe:q4_0").unwrap();
    let qwen_spec = spec(&qwen).unwrap();
    let program = compile(&qwen_spec, &qwen, &CompileOptions::default()).unwrap();
    let none = |op| command(&program, op, 0).weights[usize::from(op != Op::Attention)];
    for op in [Op::Attention, Op::ExpertsActMul, Op::ExpertsAdd] {
        assert_eq!(none(op), NO_WEIGHT);
    }
}

#[test]
fn yarns_ramp_ends_where_it_is_told() {
    let mut bare = hugging_face();
    // Over 4096 positions 32 turns are at pair 10.47, one turn at 22.51 (of heads of 64 at base 10000).
    let (low, high) = (10.47224, 22.51344);
    let ramp = |low: f64, high: f64| move |i: f64| ((i - low) / (high - low)).clamp(0.0, 1.0);
    let blend = |i: usize, ramp: &dyn Fn(f64) -> f64| {
        let plain = 1e4f64.powf(-(i as f64) / 32.0);
        plain / 32.0 * ramp(i as f64) + plain * (1.0 - ramp(i as f64))
    };
    let check = |bare: &Fake, ramp: &dyn Fn(f64) -> f64| {
        for (i, got) in frequencies(&program(bare).unwrap()).iter().enumerate() {
            let want = blend(i, ramp);
            assert!(
                (f64::from(*got) / want - 1.0).abs() < 1e-4,
                "{i}: {got} {want}"
            );
        }
    };
    check(&bare, &ramp(low, high));
    bare.set("rope_scaling.truncate", Value::Bool(true));
    check(&bare, &ramp(10.0, 23.0));
    bare.metadata.remove("rope_scaling.truncate");
    check(&bare, &ramp(10.0, 23.0));
    // GGUF does not say it, and gpt-oss never rounds.
    check(&gguf(), &ramp(low, high));
}

#[test]
fn what_is_wrong_is_named() {
    #[track_caller]
    fn has(mut bare: Fake, change: impl Fn(&mut Fake), words: &[&str]) {
        change(&mut bare);
        let error = program(&bare).expect_err("must be refused").to_string();
        for word in words {
            assert!(error.contains(word), "'{error}' does not say '{word}'");
        }
    }
    fn without(part: &'static str) -> impl Fn(&mut Fake) {
        move |b| b.tensors.retain(|t| !t.name.contains(part))
    }
    fn reshaped(part: &'static str, n: usize, k: usize) -> impl Fn(&mut Fake) {
        move |b| {
            let tensor = b.tensors.iter_mut().find(|t| t.name.contains(part));
            let tensor = tensor.unwrap();
            (tensor.n, tensor.k) = (n, k);
        }
    }
    let float = |key: &'static str, value: f64| move |b: &mut Fake| b.set(key, Value::F64(value));
    has(
        gguf(),
        without("attn_sinks"),
        &["blk.0.attn_sinks.weight", "is missing"],
    );
    has(
        hugging_face(),
        without("self_attn.sinks"),
        &["model.layers.0.self_attn.sinks'", "is missing"],
    );
    has(
        gguf(),
        reshaped("attn_sinks", 1, 5),
        &["attn_sinks", "1 x 5", "1 x 4"],
    );
    has(
        gguf(),
        without("ffn_gate_inp.bias"),
        &["ffn_gate_inp.bias", "is missing"],
    );
    has(
        gguf(),
        without("ffn_up_exps.bias"),
        &["ffn_up_exps.bias", "is missing"],
    );
    has(
        gguf(),
        without("attn_output.bias"),
        &["attn_output.bias", "is missing"],
    );
    has(
        gguf(),
        reshaped("ffn_down_exps.bias", 3, 256),
        &["ffn_down_exps.bias", "3 x 256", "4 x 256"],
    );
    has(
        hugging_face(),
        reshaped("up_proj.weight", 2048, 224),
        &["up_proj", "2048 x 224"],
    );
    has(
        hugging_face(),
        |b| b.set("attention_bias", Value::Bool(false)),
        &["bias", "is not part of the architecture"],
    );
    has(
        hugging_face(),
        float("swiglu_limit", 6.0),
        &["swiglu_limit", "is 6", "only 7"],
    );
    has(
        hugging_face(),
        float("swiglu_alpha", 1.0),
        &["swiglu_alpha", "only 1.702"],
    );
    has(
        hugging_face(),
        float("swiglu_alpha", f64::NAN),
        &["swiglu_alpha", "finite"],
    );
    has(
        hugging_face(),
        |b| b.set("rope_scaling.truncate", Value::String("no".into())),
        &["rope_scaling.truncate", "not a boolean"],
    );
    has(
        hugging_face(),
        |b| drop(b.metadata.remove("sliding_window")),
        &["sliding_window", "is missing"],
    );
    has(
        gguf(),
        |b| drop(b.metadata.remove("gpt-oss.attention.sliding_window")),
        &["gpt-oss.attention.sliding_window", "is missing"],
    );
    has(
        hugging_face(),
        |b| drop(b.metadata.remove("num_local_experts")),
        &["num_local_experts", "is missing"],
    );
    has(
        hugging_face(),
        |b| {
            b.set(
                "layer_types",
                Value::Array(vec![Value::String("full_attention".into())]),
            )
        },
        &["layer_types", "1 entries for 3 layers"],
    );
}
