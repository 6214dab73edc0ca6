//! The commands of architectures that differ from Llama, operand by operand.

mod common;

use common::{Fake, Recipe};
use welte_formats::checkpoint::Value;
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, Error, compile, spec};
use welte_table::{
    BufferRef, Command, Format, NO_WEIGHT, Op, Part, Pass, Program, Source, params as p,
};

fn compiled(fake: &Fake) -> Program {
    let spec = spec(fake).unwrap();
    welte_table::fuse(
        compile(&spec, fake, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    )
}

/// The decode commands of a layer.
fn layer(program: &Program, index: u32) -> Vec<Command> {
    let pass = &program.passes[0];
    let commands = pass.commands.iter().enumerate();
    let mine = commands.filter(|(i, _)| pass.layer_of(*i) == Some(index));
    mine.map(|(_, c)| *c).collect()
}

fn ops(commands: &[Command]) -> Vec<Op> {
    commands.iter().map(|c| c.op).collect()
}

/// A place in a buffer of the decode pass.
fn at(program: &Program, name: &str, floats: u32) -> BufferRef {
    let name = format!("decode.{name}");
    let buffer = program.buffers.iter().position(|b| b.name == name);
    BufferRef {
        buffer: buffer.unwrap() as u32,
        offset: 4 * floats,
    }
}

fn weight(program: &Program, id: u32) -> &str {
    &program.weights[id as usize].name
}

/// A model with other norms: these of each layer, with their widths.
fn with_norms(recipe: &Recipe, norms: &[(&str, u32)]) -> Fake {
    let mut fake = recipe.build();
    fake.tensors
        .retain(|t| !t.name.contains("attn_norm") && !t.name.contains("ffn_norm"));
    for i in 0..recipe.layers {
        for (name, k) in norms {
            fake.add(&format!("blk.{i}.{name}.weight"), Format::F32, 1, *k);
        }
    }
    fake
}

#[test]
fn norms_over_all_heads_are_commands_of_their_own() {
    let recipe = Recipe {
        architecture: "olmo2",
        ..Recipe::default()
    };
    let norms = [
        ("attn_q_norm", 256),
        ("attn_k_norm", 128),
        ("post_attention_norm", 256),
        ("post_ffw_norm", 256),
    ];
    let program = compiled(&with_norms(&recipe, &norms));
    let commands = layer(&program, 1);
    assert_eq!(
        ops(&commands),
        [
            Op::Matmul,
            Op::Norm,
            Op::Norm,
            Op::RopeAppend,
            Op::Attention,
            Op::Matmul,
            Op::Norm,
            Op::Add,
            Op::Matmul,
            Op::ActMul,
            Op::Matmul,
            Op::Norm,
            Op::Add,
        ]
    );
    // 4 heads of queries, 2 of keys and 2 of values, 64 elements each.
    let norm = |dim| p::Norm {
        dim,
        groups: 1,
        eps: 1e-5,
        x_stride: 512,
        y_stride: 512,
    };
    let (q, k) = (at(&program, "qkv", 0), at(&program, "qkv", 256));
    assert_eq!(p::Norm::of(&commands[1].params), norm(256));
    assert_eq!(commands[1].buffers[..2], [q, q]);
    assert_eq!(
        weight(&program, commands[1].weights[0]),
        "layer 1 query norm"
    );
    assert_eq!(p::Norm::of(&commands[2].params), norm(128));
    assert_eq!(commands[2].buffers[..2], [k, k]);
    assert_eq!(weight(&program, commands[2].weights[0]), "layer 1 key norm");
    assert_eq!(commands[3].weights[1..], [NO_WEIGHT; 2]);
    // The output is normed before it is added.
    let (x, t) = (at(&program, "x", 0), at(&program, "norm", 0));
    assert_eq!(commands[5].buffers[1], t);
    assert_eq!(commands[6].buffers[..2], [t, t]);
    assert_eq!(
        weight(&program, commands[6].weights[0]),
        "layer 1 norm after attention"
    );
    assert_eq!(commands[7].buffers[..2], [t, x]);
    assert_eq!(
        weight(&program, commands[11].weights[0]),
        "layer 1 norm after feed-forward"
    );
}

#[test]
fn norms_of_each_head_are_a_part_of_the_append() {
    let recipe = Recipe {
        architecture: "qwen3",
        ..Recipe::default()
    };
    let program = compiled(&recipe.build());
    let commands = layer(&program, 2);
    assert_eq!(ops(&commands)[..2], [Op::NormMatmul, Op::RopeAppend]);
    let [_, q, k] = commands[1].weights.map(|w| weight(&program, w));
    assert_eq!((q, k), ("layer 2 query norm", "layer 2 key norm"));
    let append = p::RopeAppend {
        layer: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rot: 64,
        interleaved: 0,
        magnitude: 1.0,
        eps: 1e-5,
        qkv_stride: 512,
        sections: 0,
    };
    assert_eq!(p::RopeAppend::of(&commands[1].params), append);
    let attention = p::Attention {
        layer: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        scale: 0.125,
        window: 0,
        softcap: 0.0,
        q_stride: 512,
        y_stride: 256,
        causal: 0,
        chunked: 0,
    };
    assert_eq!(p::Attention::of(&commands[2].params), attention);
}

#[test]
fn layers_without_rope_append_only() {
    let recipe = Recipe {
        architecture: "smollm3",
        layers: 4,
        ..Recipe::default()
    };
    let program = compiled(&recipe.build());
    assert_eq!(
        ops(&layer(&program, 2))[..2],
        [Op::NormMatmul, Op::RopeAppend]
    );
    let commands = layer(&program, 3);
    assert_eq!(
        ops(&commands)[..3],
        [Op::NormMatmul, Op::KvAppend, Op::Attention]
    );
    let append = p::KvAppend {
        layer: 3,
        kv_heads: 2,
        head_dim: 64,
        k_stride: 512,
        v_stride: 512,
    };
    assert_eq!(p::KvAppend::of(&commands[1].params), append);
    let (k, v) = (at(&program, "qkv", 256), at(&program, "qkv", 384));
    assert_eq!(commands[1].buffers[..2], [k, v]);
}

fn gemma(architecture: &'static str, layers: u32) -> Program {
    let recipe = Recipe {
        architecture,
        layers,
        tied: true,
        ..Recipe::default()
    };
    let mut norms = vec![
        ("attn_norm", 256),
        ("ffn_norm", 256),
        ("post_attention_norm", 256),
        ("post_ffw_norm", 256),
    ];
    if architecture == "gemma3" {
        norms.extend([("attn_q_norm", 64), ("attn_k_norm", 64)]);
    }
    let mut fake = with_norms(&recipe, &norms);
    let window = recipe.key("attention.sliding_window", "");
    fake.set(&window, Value::U64(512));
    compiled(&fake)
}

#[test]
fn windowed_layers_of_gemma_3_have_a_rope_of_their_own() {
    let program = gemma("gemma3", 7);
    let rope = |index| {
        let commands = layer(&program, index);
        let c = commands.iter().find(|c| c.op == Op::RopeAppend).unwrap();
        weight(&program, c.weights[0]).to_string()
    };
    for index in 0..7 {
        let name = match index {
            5 => "rope frequencies",
            _ => "rope frequencies of windowed layers",
        };
        assert_eq!(rope(index), name);
    }
}

#[test]
fn gemma_2_caps_scores_and_logits() {
    let program = gemma("gemma2", 2);
    let pass: &Pass = &program.passes[0];
    let embed = p::Embed::of(&pass.commands[0].params);
    assert_eq!(embed.scale, 16.0);
    let scores = layer(&program, 0)
        .into_iter()
        .find(|c| c.op == Op::Attention);
    let scores = p::Attention::of(&scores.unwrap().params);
    assert_eq!((scores.softcap, scores.window), (50.0, 512));
    let last = &pass.commands[pass.commands.len() - 3..];
    assert_eq!(ops(last), [Op::NormMatmul, Op::Scale, Op::Sample]);
    let scale = p::Scale {
        n: 300,
        scale: 1.0,
        cap: 30.0,
        y_stride: 300,
    };
    assert_eq!(p::Scale::of(&last[1].params), scale);
}

#[test]
fn scratch_has_only_what_the_commands_need() {
    let scratch = |recipe: &Recipe| {
        let program = compiled(&recipe.build());
        let names = program.buffers.iter().map(|b| b.name.clone());
        let mine = names.filter_map(|n| n.strip_prefix("decode.").map(String::from));
        mine.collect::<Vec<_>>()
    };
    let plain = Recipe::default();
    assert_eq!(scratch(&plain), ["x", "qkv", "attn", "h"]);
    let values = Recipe {
        v_format: Format::Q6_K,
        ..plain.clone()
    };
    assert_eq!(scratch(&values), ["x", "qkv", "attn", "h", "norm"]);
    let up = Recipe {
        up_format: Format::Q6_K,
        ..plain.clone()
    };
    assert_eq!(scratch(&up), ["x", "qkv", "attn", "h", "norm", "gate_up"]);
    let biases = Recipe {
        mlp_bias: true,
        ..plain
    };
    assert_eq!(scratch(&biases), ["x", "qkv", "attn", "h", "gate_up"]);
}

#[test]
fn only_layers_of_mixed_formats_lose_the_fused_gate() {
    let mut fake = Recipe::default().build();
    fake.tensor_mut("blk.1.ffn_up.weight").format = Format::Q6_K;
    let program = compiled(&fake);
    let gate = |index| ops(&layer(&program, index))[4..].to_vec();
    assert_eq!(gate(0), [Op::NormMatmulActMul, Op::MatmulAdd]);
    assert_eq!(
        ops(&layer(&program, 1))[4..],
        [Op::Norm, Op::Matmul, Op::Matmul, Op::ActMul, Op::MatmulAdd]
    );
    assert_eq!(gate(2), gate(0));
}

#[test]
fn fused_tensors_are_used_as_they_are() {
    let recipe = Recipe {
        architecture: "phi3",
        ..Recipe::default()
    };
    let mut fake = recipe.build();
    let apart = ["attn_q.", "attn_k.", "attn_v.", "ffn_gate.", "ffn_up."];
    fake.tensors
        .retain(|t| !apart.iter().any(|name| t.name.contains(name)));
    for i in 0..3 {
        fake.add(&format!("blk.{i}.attn_qkv.weight"), Format::Q4_K, 512, 256);
        fake.add(&format!("blk.{i}.ffn_up.weight"), Format::Q4_K, 1024, 256);
    }
    let program = compiled(&fake);
    for (name, tensor, rows) in [
        ("layer 1 qkv", "blk.1.attn_qkv.weight", 512),
        ("layer 1 gate and up", "blk.1.ffn_up.weight", 1024),
    ] {
        let weight = program.weights.iter().find(|w| w.name == name).unwrap();
        let part = Part {
            tensor: tensor.into(),
            first_row: 0,
            rows,
        };
        assert_eq!(
            (weight.n, &weight.source),
            (rows, &Source::Parts(vec![part]))
        );
    }
    let commands = layer(&program, 1);
    assert_eq!(
        ops(&commands)[3..],
        [Op::MatmulAdd, Op::NormMatmulActMul, Op::MatmulAdd]
    );
}

#[test]
fn parts_of_other_formats_are_named_by_their_first_row() {
    let recipe = Recipe {
        v_format: Format::Q6_K,
        ..Recipe::default()
    };
    let program = compiled(&recipe.build());
    let names = program.weights.iter().map(|w| w.name.as_str());
    let mine = names.filter(|n| n.starts_with("layer 0 ") && !n.ends_with("norm"));
    assert_eq!(
        mine.collect::<Vec<_>>(),
        [
            "layer 0 qkv from row 0",
            "layer 0 qkv from row 384",
            "layer 0 attention output",
            "layer 0 gate and up",
            "layer 0 down",
        ]
    );
}

#[test]
fn a_bias_of_some_outputs_is_added_in_their_place() {
    let mut fake = Recipe::default().build();
    for i in 0..3 {
        fake.add(&format!("blk.{i}.attn_v.bias"), Format::F32, 1, 128);
    }
    let program = compiled(&fake);
    let bias = layer(&program, 1)[1];
    assert_eq!(bias.op, Op::Bias);
    assert_eq!(bias.buffers[0], at(&program, "qkv", 384));
    let expected = p::Bias {
        n: 128,
        y_stride: 512,
    };
    assert_eq!(p::Bias::of(&bias.params), expected);
}

#[test]
fn each_expert_has_its_rows_of_the_stacked_tensors() {
    // 4 experts of width 512 in a stream of 256.
    let checkpoint = Synthetic::parse("tiny,arch=qwen3moe:f16").unwrap();
    let spec = spec(&checkpoint).unwrap();
    let program = welte_table::fuse(
        compile(&spec, &checkpoint, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    );
    let parts = |name: &str| {
        let weight = program.weights.iter().find(|w| w.name == name).unwrap();
        let Source::Parts(parts) = &weight.source else {
            panic!("experts come from tensors")
        };
        let rows = parts
            .iter()
            .map(|p| (p.tensor.clone(), p.first_row, p.rows));
        rows.collect::<Vec<_>>()
    };
    let (gate, up) = ("blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight");
    let expected = [0, 512, 1024, 1536]
        .into_iter()
        .flat_map(|first| [gate, up].map(|tensor| (tensor.to_string(), first, 512)));
    let expected: Vec<_> = expected.collect();
    assert_eq!(parts("layer 1 experts' gate and up"), expected);
    let down = "blk.1.ffn_down_exps.weight".to_string();
    let expected = [0, 256, 512, 768].map(|first| (down.clone(), first, 256));
    assert_eq!(parts("layer 1 experts' down"), expected);
}

/// A change to the options, and the field that the error names.
type Case = (&'static str, fn(&mut CompileOptions));

#[test]
fn options_have_limits() {
    let fake = Recipe::default().build();
    let spec = spec(&fake).unwrap();
    let compile = |change: fn(&mut CompileOptions)| {
        let mut options = CompileOptions::default();
        change(&mut options);
        compile(&spec, &fake, &options)
    };
    let refused: [Case; 17] = [
        ("context", |o| o.context = 0),
        ("context", |o| o.context = (1 << 26) + 1),
        ("slots", |o| o.slots = 0),
        ("slots", |o| o.slots = 4097),
        ("page", |o| o.page = 0),
        ("page", |o| o.page = (1 << 16) + 1),
        ("decode_rows", |o| o.decode_rows = 0),
        ("decode_rows", |o| o.decode_rows = 4097),
        ("prompt_rows", |o| o.prompt_rows = 0),
        ("prompt_rows", |o| o.prompt_rows = (1 << 16) + 1),
        ("prompt_outputs", |o| o.prompt_outputs = 0),
        ("prompt_outputs", |o| o.prompt_outputs = 4097),
        ("embed_rows", |o| o.embed_rows = (1 << 16) + 1),
        ("kv_format", |o| o.kv_format = Format::F32),
        ("kv_format", |o| o.kv_format = Format::Q4_0),
        ("slots", |o| (o.slots, o.context, o.page) = (64, 1 << 26, 1)),
        ("slots", |o| {
            (o.slots, o.context, o.page) = (4096, 1 << 20, 1)
        }),
    ];
    for (name, change) in refused {
        match compile(change) {
            Err(Error::Option { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {:?}", other.map(|_| ())),
        }
    }
    let accepted: [Case; 8] = [
        ("context", |o| o.context = 1 << 26),
        ("context", |o| o.context = 1),
        ("slots", |o| o.slots = 4096),
        ("page", |o| o.page = 1 << 16),
        ("decode_rows", |o| o.decode_rows = 4096),
        ("prompt_rows", |o| o.prompt_rows = 1 << 16),
        ("prompt_outputs", |o| o.prompt_outputs = 4096),
        ("kv_format", |o| o.kv_format = Format::Q8_0),
    ];
    for (name, change) in accepted {
        assert!(compile(change).is_ok(), "{name}");
    }
    let narrow = Recipe {
        head_dim: 48,
        heads: 16,
        ..Recipe::default()
    };
    let fake = narrow.build();
    let spec = welte_models::spec(&fake).unwrap();
    let options = CompileOptions {
        kv_format: Format::Q8_0,
        ..CompileOptions::default()
    };
    let error = welte_models::compile(&spec, &fake, &options).unwrap_err();
    assert!(
        error.to_string().contains("divisible by 32; it is 48"),
        "{error}"
    );
}
