//! Compile over every architecture, dialect and mix of formats: what comes out verifies, fuses, dumps.

mod common;

use common::Recipe;
use proptest::prelude::*;
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{CompileOptions, Scaling, compile, spec};
use welte_table::{
    CacheKind, Class, Command, Extent, Format, MemoryPlan, NO_BUFFER, NO_WEIGHT, Op, PATTERNS,
    PassKind, Program, Source, Usage, accesses, cost, from_lines, fuse, params, to_lines, verify,
};

const DIALECTS: [Dialect; 2] = [Dialect::Gguf, Dialect::HuggingFace];

fn recipe() -> impl Strategy<Value = Recipe> {
    let formats =
        || prop::sample::select(vec![Format::Q4_K, Format::Q6_K, Format::F16, Format::Q4_0]);
    (
        prop::sample::select(vec!["llama", "qwen2", "qwen3"]),
        prop::sample::select(DIALECTS.to_vec()),
        (
            1u32..4,
            1u32..3,
            1u32..4,
            1u32..4,
            prop::sample::select(vec![32u32, 64, 128]),
        ),
        (1u32..500, any::<bool>(), any::<bool>()),
        (formats(), formats(), formats()),
    )
        .prop_map(
            |(architecture, dialect, (layers, dim, kv_heads, group, head_dim), rest, formats)| {
                let (vocab, tied, mlp_bias) = rest;
                Recipe {
                    architecture,
                    dialect,
                    layers,
                    dim: 256 * dim,
                    // The output projection reads all heads, so they must be whole blocks.
                    heads: 8 * kv_heads * group,
                    kv_heads,
                    head_dim,
                    ffn: 768,
                    vocab,
                    tied,
                    format: formats.0,
                    v_format: formats.1,
                    up_format: formats.2,
                    mlp_bias,
                }
            },
        )
}

fn options() -> impl Strategy<Value = CompileOptions> {
    (
        (1u32..5000, 1u32..4, 1u32..200, 0u32..9),
        any::<bool>(),
        (1u32..20, 1u32..600, 1u32..20, 0u32..40),
    )
        .prop_map(
            |((context, slots, page, pages), q8, (decode, prompt, outputs, embed))| {
                CompileOptions {
                    context,
                    slots,
                    page,
                    pages,
                    checkpoints: pages,
                    kv_format: if q8 { Format::Q8_0 } else { Format::F16 },
                    decode_rows: decode,
                    prompt_rows: prompt,
                    prompt_outputs: outputs,
                    embed_rows: embed,
                    ..CompileOptions::default()
                }
            },
        )
}

fn fine(c: &Command) -> bool {
    !matches!(
        c.op,
        Op::NormMatmul | Op::MatmulAdd | Op::NormMatmulActMul | Op::RopeAppend
    )
}

fn program(recipe: &Recipe, options: &CompileOptions) -> Program {
    fuse(compiled(recipe, options), PATTERNS)
}

/// In fine ops.
fn compiled(recipe: &Recipe, options: &CompileOptions) -> Program {
    let fake = recipe.build();
    let spec = spec(&fake).unwrap();
    compile(&spec, &fake, options).unwrap()
}

/// Flops of the matrix products, which splitting must not change.
fn product_flops(p: &Program, pass: usize) -> u64 {
    let pairs = p.passes[pass].commands.iter().map(|c| match c.op {
        Op::Matmul => (
            params::Matmul::of(&c.params).n,
            params::Matmul::of(&c.params).k,
        ),
        Op::NormMatmul => (
            params::NormMatmul::of(&c.params).n,
            params::NormMatmul::of(&c.params).k,
        ),
        Op::MatmulAdd => (
            params::MatmulAdd::of(&c.params).n,
            params::MatmulAdd::of(&c.params).k,
        ),
        Op::NormMatmulActMul => {
            let q = params::NormMatmulActMul::of(&c.params);
            (2 * q.n, q.k)
        }
        _ => (0, 0),
    });
    pairs.map(|(n, k)| u64::from(n) * u64::from(k)).sum()
}

/// Every float of a buffer that a command reads has been written before, in this pass.
fn reads_what_was_written(p: &Program, pass: usize) {
    let mut written: Vec<Vec<bool>> = p
        .buffers
        .iter()
        .map(|b| vec![false; (b.bytes / 4).min(1 << 16) as usize])
        .collect();
    for (i, c) in p.passes[pass].commands.iter().enumerate() {
        for a in accesses(c) {
            let (Extent::Rows { width, .. } | Extent::Outputs { width, .. }) = a.extent else {
                continue;
            };
            let from = a.at.offset as usize / 4;
            let span = &mut written[a.at.buffer as usize][from..from + width as usize];
            let in_place = matches!(
                c.op,
                Op::Add | Op::Bias | Op::MatmulAdd | Op::Rope | Op::RopeAppend | Op::Scale
            );
            if !a.writes || in_place && a.extent != Extent::Cache && c.op != Op::Norm {
                assert!(
                    span.iter().all(|w| *w),
                    "command {i} {} reads what nobody wrote in '{}'",
                    c.op.name(),
                    a.role
                );
            }
            if a.writes {
                span.fill(true);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_compiles_verifies_fuses_and_reads_back(recipe in recipe(), options in options()) {
        let fused = program(&recipe, &options);
        prop_assert_eq!(verify(&fused), Ok(()));
        prop_assert_eq!(fused.passes.len(), if options.embed_rows > 0 { 3 } else { 2 });
        prop_assert_eq!(from_lines(&to_lines(&fused)).unwrap(), fused.clone());

        let split = fuse(compiled(&recipe, &options), &[]);
        prop_assert_eq!(verify(&split), Ok(()));
        prop_assert_eq!(from_lines(&to_lines(&split)).unwrap(), split.clone());
        for i in 0..fused.passes.len() {
            prop_assert!(split.passes[i].commands.iter().all(fine));
            prop_assert_eq!(product_flops(&fused, i), product_flops(&split, i));
            reads_what_was_written(&fused, i);
            reads_what_was_written(&split, i);
        }
        prop_assert_eq!(fuse(fused.clone(), PATTERNS), fused);
    }

    #[test]
    fn every_matrix_is_used_once_per_pass(recipe in recipe()) {
        let p = program(&recipe, &CompileOptions::default());
        for pass in &p.passes {
            let mut uses = vec![0; p.weights.len()];
            for id in pass.commands.iter().flat_map(|c| c.weights).filter(|w| *w != NO_WEIGHT) {
                uses[id as usize] += 1;
            }
            for (w, uses) in p.weights.iter().zip(uses) {
                match w.usage {
                    Usage::Matrix | Usage::Lookup => prop_assert_eq!(uses, 1, "{}", &w.name),
                    Usage::Both => prop_assert_eq!(uses, 2),
                    Usage::Vector => prop_assert!(uses > 0, "{}", &w.name),
                }
            }
        }
    }

    #[test]
    fn hostile_metadata_is_refused_or_verifies(recipe in recipe(), key in 0usize..12, value in prop::sample::select(
        vec![0u64, 1, 2, 3, 7, 1024, 1 << 20, u64::from(u32::MAX), 1 << 60, u64::MAX],
    )) {
        let mut fake = recipe.build();
        let keys: Vec<String> = fake.metadata.keys().cloned().collect();
        let key = keys[key % keys.len()].clone();
        fake.set(&key, Value::U64(value));
        if let Ok(spec) = spec(&fake)
            && let Ok(p) = compile(&spec, &fake, &CompileOptions::default())
        {
            prop_assert_eq!(verify(&p), Ok(()));
        }
    }
}

#[test]
fn one_layer_is_six_commands_when_formats_agree() {
    let p = program(&Recipe::default(), &CompileOptions::default());
    let ops: Vec<Op> = p.passes[0].commands.iter().map(|c| c.op).collect();
    let layer = [
        Op::NormMatmul,
        Op::RopeAppend,
        Op::Attention,
        Op::MatmulAdd,
        Op::NormMatmulActMul,
        Op::MatmulAdd,
    ];
    let mut wanted = vec![Op::Embed];
    wanted.extend(layer.repeat(3));
    wanted.extend([Op::NormMatmul, Op::Sample]);
    assert_eq!(ops, wanted);
    let prompt = &p.passes[1];
    assert_eq!(
        (prompt.kind, prompt.rows, prompt.outputs),
        (PassKind::Prompt, 512, 1)
    );
    let ops: Vec<Op> = prompt.commands.iter().map(|c| c.op).collect();
    wanted.truncate(19);
    wanted.extend([Op::SelectRows, Op::NormMatmul]);
    assert_eq!(ops, wanted);
    let from = prompt.outputs_from().unwrap();
    assert_eq!(from, 20);
    assert_eq!((prompt.rows_at(from - 1), prompt.rows_at(from)), (512, 1));
    let decode = &p.passes[0];
    assert_eq!((decode.rows, decode.outputs, decode.width), (16, 16, 300));
    assert_eq!(decode.outputs_from(), None);
}

#[test]
fn the_embed_pass_ends_in_pooled_hidden_states() {
    let options = CompileOptions {
        embed_rows: 40,
        ..CompileOptions::default()
    };
    let p = program(&Recipe::default(), &options);
    let embed = &p.passes[p.pass(PassKind::Embed).unwrap()];
    assert_eq!((embed.rows, embed.outputs, embed.width), (40, 40, 256));
    let last: Vec<Op> = embed.commands.iter().rev().take(2).map(|c| c.op).collect();
    assert_eq!(last, [Op::Pool, Op::Norm]);
}

#[test]
fn layers_with_windows_have_a_cache_of_their_own() {
    let mut fake = Recipe {
        architecture: "qwen2",
        dialect: Dialect::HuggingFace,
        ..Recipe::default()
    }
    .build();
    fake.set("sliding_window", Value::U64(64));
    fake.set("use_sliding_window", Value::Bool(true));
    let types =
        ["full_attention", "sliding_attention", "full_attention"].map(|s| Value::String(s.into()));
    fake.set("layer_types", Value::Array(types.to_vec()));
    let options = CompileOptions {
        context: 100,
        slots: 3,
        page: 16,
        ..CompileOptions::default()
    };
    let p = welte_table::fuse(
        compile(&spec(&fake).unwrap(), &fake, &options).unwrap(),
        welte_table::PATTERNS,
    );
    assert_eq!(verify(&p), Ok(()));
    let cache = |layers, window| CacheKind::Attention {
        format: Format::F16,
        layers,
        kv_heads: 2,
        head_dim: 64,
        window,
    };
    let kinds: Vec<_> = p.caches.iter().map(|c| c.kind).collect();
    assert_eq!(kinds, [cache(2, 0), cache(1, 64)]);
    let names: Vec<_> = p.caches.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["kv", "kv window 64"]);
    assert!(p.caches.iter().all(|c| c.pages == 7 * 3));
    let attention = p.passes[0]
        .commands
        .iter()
        .filter(|c| c.op == Op::Attention);
    let places: Vec<_> = attention
        .map(|c| {
            let q = params::Attention::of(&c.params);
            (p.cache_of(c).unwrap().name.as_str(), q.layer, q.window)
        })
        .collect();
    assert_eq!(
        places,
        [("kv", 0, 0), ("kv window 64", 0, 64), ("kv", 1, 0)]
    );
}

#[test]
fn parts_of_other_formats_are_separate_matrices_into_one_buffer() {
    let recipe = Recipe {
        v_format: Format::Q6_K,
        up_format: Format::Q5_K,
        ..Recipe::default()
    };
    let p = program(&recipe, &CompileOptions::default());
    let commands = &p.passes[0].commands;
    let ops: Vec<Op> = commands[1..4].iter().map(|c| c.op).collect();
    assert_eq!(ops, [Op::Norm, Op::Matmul, Op::Matmul]);
    assert_eq!(
        (commands[2].format, commands[3].format),
        (Format::Q4_K, Format::Q6_K)
    );
    let (qk, v) = (commands[2].buffers[1], commands[3].buffers[1]);
    assert_eq!(qk.buffer, v.buffer);
    assert_eq!((qk.offset, v.offset), (0, 4 * (4 + 2) * 64));
    assert!(p.buffers.iter().any(|b| b.name == "decode.gate_up"));
    match &p.weights[commands[2].weights[0] as usize].source {
        Source::Parts(parts) => assert_eq!(parts.len(), 2),
        _ => panic!("the weight of q and k comes from two tensors"),
    }
}

#[test]
fn the_plan_adds_up_by_class() {
    for kv_format in [Format::F16, Format::Q8_0] {
        let options = CompileOptions {
            kv_format,
            context: 100,
            slots: 2,
            page: 16,
            ..CompileOptions::default()
        };
        let p = program(&Recipe::default(), &options);
        let plan = MemoryPlan::of(&p, &cost::stored_bytes);
        let head = if kv_format == Format::F16 { 128 } else { 68 };
        assert_eq!(plan.bytes(Class::Cache), 3 * 2 * 7 * 2 * 16 * 2 * head);
        assert_eq!(plan.total(), plan.by_class().values().sum::<u64>());
        assert_eq!(
            plan.bytes(Class::Weights),
            p.weights.iter().map(cost::stored_bytes).sum::<u64>()
        );
        let logits = p.buffers.iter().find(|b| b.name == "logits").unwrap();
        assert_eq!(logits.bytes, 16 * 300 * 4);
    }
}

#[test]
fn features_take_memory_only_where_they_are_wanted() {
    let recipe = Recipe::default();
    let plain = program(&recipe, &CompileOptions::default());
    let options = CompileOptions {
        features: 7,
        ..CompileOptions::default()
    };
    let p = program(&recipe, &options);
    assert_eq!((plain.features, plain.feature_count()), (NO_BUFFER, 0));
    assert_eq!(p.feature_count(), 7);
    let total = |p| MemoryPlan::of(p, &cost::stored_bytes).total();
    assert_eq!(total(&p), total(&plain) + 7 * 4 * u64::from(p.embedding()));
    verify(&p).unwrap();
    assert_eq!(from_lines(&to_lines(&p)).unwrap(), p);
    // Nothing else differs.
    let mut without = p.clone();
    without.buffers.retain(|b| b.name != "features");
    without.features = NO_BUFFER;
    assert_eq!(without, plain);
}

#[test]
fn rope_is_interleaved_only_in_gguf_llama() {
    for architecture in ["llama", "qwen2", "qwen3"] {
        for dialect in DIALECTS {
            let fake = Recipe {
                architecture,
                dialect,
                ..Recipe::default()
            }
            .build();
            let wanted = architecture == "llama" && dialect == Dialect::Gguf;
            assert_eq!(spec(&fake).unwrap().rope.interleaved, wanted);
        }
    }
    let mut fake = Recipe {
        dialect: Dialect::HuggingFace,
        ..Recipe::default()
    }
    .build();
    fake.set("general.architecture", Value::String("mistral".into()));
    fake.set("sliding_window", Value::U64(77));
    let mistral = spec(&fake).unwrap();
    assert_eq!(
        (mistral.architecture.as_str(), mistral.windows.as_slice()),
        ("llama", [77; 3].as_slice())
    );
}

#[test]
fn qwen_windows_are_off_unless_switched_on() {
    let mut fake = Recipe {
        architecture: "qwen2",
        dialect: Dialect::HuggingFace,
        ..Recipe::default()
    }
    .build();
    fake.set("sliding_window", Value::U64(64));
    fake.set("use_sliding_window", Value::Bool(false));
    assert_eq!(spec(&fake).unwrap().windows, [0, 0, 0]);
    fake.set("use_sliding_window", Value::Bool(true));
    fake.set("max_window_layers", Value::U64(2));
    assert_eq!(spec(&fake).unwrap().windows, [0, 0, 64]);
    let types =
        ["full_attention", "sliding_attention", "full_attention"].map(|s| Value::String(s.into()));
    fake.set("layer_types", Value::Array(types.to_vec()));
    assert_eq!(spec(&fake).unwrap().windows, [0, 64, 0]);
}

fn frequencies(p: &Program) -> &[f32] {
    let found = p.weights.iter().find_map(|w| match &w.source {
        Source::Constant(values) => Some(values),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn llama3_scaling_is_the_same_from_old_and_new_configurations() {
    let base = Recipe {
        dialect: Dialect::HuggingFace,
        head_dim: 64,
        ..Recipe::default()
    };
    let numbers = [
        ("factor", Value::F64(8.0)),
        ("low_freq_factor", Value::F64(1.0)),
        ("high_freq_factor", Value::F64(4.0)),
        ("original_max_position_embeddings", Value::U64(8192)),
        ("rope_type", Value::String("llama3".into())),
    ];
    let mut old = base.build();
    old.set("rope_theta", Value::F64(500000.0));
    let mut new = base.build();
    new.metadata.remove("rope_theta");
    new.set("rope_parameters.rope_theta", Value::F64(500000.0));
    for (key, value) in numbers {
        old.set(&format!("rope_scaling.{key}"), value.clone());
        new.set(&format!("rope_parameters.{key}"), value);
    }
    let (old_spec, new_spec) = (spec(&old).unwrap(), spec(&new).unwrap());
    assert_eq!(old_spec, new_spec);
    let p = compile(&old_spec, &old, &CompileOptions::default()).unwrap();
    let f = frequencies(&p);
    assert_eq!(f.len(), 32);
    let plain = |i: i32| 500000f64.powf(-f64::from(i) / 32.0);
    assert_eq!(f[0], 1.0);
    assert!((f64::from(f[31]) * 8.0 / plain(31) - 1.0).abs() < 1e-6);
    // Between the two, a pair is kept as far as its turns over the original context go from 1 to 4.
    let turns = |i: i32| 8192.0 * plain(i) / std::f64::consts::TAU;
    let middle = (0..32).find(|i| (1.0..4.0).contains(&turns(*i))).unwrap();
    let keep = (turns(middle) - 1.0) / 3.0;
    let wanted = plain(middle) * (keep + (1.0 - keep) / 8.0);
    assert!((f64::from(f[middle as usize]) / wanted - 1.0).abs() < 1e-6);
    assert!(f.windows(2).all(|w| w[0] > w[1]));
}

#[test]
fn gguf_rope_factors_divide() {
    let mut fake = Recipe::default().build();
    let plain = program(&Recipe::default(), &CompileOptions::default());
    fake.add("rope_freqs.weight", Format::F32, 1, 32);
    let spec = spec(&fake).unwrap();
    assert_eq!(spec.rope.scaling, Scaling::Factors);
    let p = welte_table::fuse(
        compile(&spec, &fake, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    );
    for (a, b) in frequencies(&p).iter().zip(frequencies(&plain)) {
        assert_eq!(*a, b / 2.0);
    }
}

#[test]
fn linear_and_yarn_scaling() {
    let linear = |gguf: bool| {
        let recipe = Recipe {
            dialect: DIALECTS[usize::from(!gguf)],
            ..Recipe::default()
        };
        let mut fake = recipe.build();
        let (kind, factor) = ("rope.scaling.type", "rope.scaling.factor");
        fake.set(
            &recipe.key(kind, "rope_scaling.type"),
            Value::String("linear".into()),
        );
        fake.set(&recipe.key(factor, "rope_scaling.factor"), Value::F64(4.0));
        let spec = spec(&fake).unwrap();
        let program = compile(&spec, &fake, &CompileOptions::default()).unwrap();
        frequencies(&program).to_vec()
    };
    assert_eq!(linear(true)[0], 0.25);
    assert_eq!(linear(true), linear(false));

    let mut fake = Recipe {
        dialect: Dialect::HuggingFace,
        ..Recipe::default()
    }
    .build();
    fake.set("rope_scaling.rope_type", Value::String("yarn".into()));
    fake.set("rope_scaling.factor", Value::F64(4.0));
    fake.set(
        "rope_scaling.original_max_position_embeddings",
        Value::U64(512),
    );
    let yarn = spec(&fake).unwrap();
    let p = compile(&yarn, &fake, &CompileOptions::default()).unwrap();
    let p = fuse(p, PATTERNS);
    let f = frequencies(&p);
    assert_eq!(f[0], 1.0);
    assert!((f64::from(f[31]) * 4.0 / 10000f64.powf(-31.0 / 32.0) - 1.0).abs() < 1e-6);
    let rope = p.passes[0]
        .commands
        .iter()
        .find(|c| c.op == Op::RopeAppend)
        .unwrap();
    assert!(
        (params::RopeAppend::of(&rope.params).magnitude - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6
    );
}

#[test]
fn what_is_wrong_is_named() {
    let complaint = |change: &dyn Fn(&mut common::Fake)| {
        let mut fake = Recipe::default().build();
        change(&mut fake);
        let result = spec(&fake).and_then(|s| compile(&s, &fake, &CompileOptions::default()));
        result.err().map(|e| e.to_string()).unwrap_or_default()
    };
    let has = |text: String, words: &[&str]| {
        for word in words {
            assert!(text.contains(word), "'{text}' does not say '{word}'");
        }
    };
    let arch = |name: &str| Value::String(name.into());
    has(
        complaint(&|f| f.set("general.architecture", arch("rwkv7"))),
        &[
            "'rwkv7'",
            "gemma2, gemma3, gemma3_text, gemma3n, gemma3n_text, gemma4, gemma4_text",
        ],
    );
    has(
        complaint(&|f| f.set("llama.expert_count", Value::U64(8))),
        &["llama.expert_used_count", "is missing"],
    );
    has(
        complaint(&|f| f.set("llama.rope.scaling.type", arch("longrope"))),
        &["longrope", "yarn"],
    );
    has(
        complaint(&|f| f.set("llama.block_count", Value::U64(1 << 40))),
        &["llama.block_count"],
    );
    has(
        complaint(&|f| f.set("llama.attention.head_count_kv", Value::U64(3))),
        &["head_count_kv", "3"],
    );
    has(
        complaint(&|f| drop(f.metadata.remove("llama.embedding_length"))),
        &["llama.embedding_length", "missing"],
    );
    has(
        complaint(&|f| f.tensor_mut("blk.1.ffn_up.weight").n = 511),
        &["blk.1.ffn_up.weight", "511", "512 x 256"],
    );
    has(
        complaint(&|f| f.tensors.retain(|t| t.name != "blk.2.attn_k.weight")),
        &["blk.2.attn_k.weight", "missing"],
    );
    has(
        complaint(&|f| f.add("blk.0.ffn_gate_exps.weight", Format::F16, 1, 1)),
        &["ffn_gate_exps", "not part"],
    );
    has(
        complaint(&|f| f.add("blk.1.attn_q.bias", Format::F32, 1, 256)),
        &["blk.1.attn_q.bias"],
    );
    has(
        complaint(&|f| {
            f.set("llama.rope.scaling.type", arch("linear"));
            f.add("rope_freqs.weight", Format::F32, 1, 32);
        }),
        &["llama.rope.scaling.type", "'linear'", "rope_freqs.weight"],
    );
    has(complaint(&|f| f.tensors.clear()), &["no weights"]);
}

#[test]
fn tied_models_share_one_weight() {
    for dialect in DIALECTS {
        let p = program(
            &Recipe {
                tied: true,
                dialect,
                ..Recipe::default()
            },
            &CompileOptions::default(),
        );
        let both: Vec<_> = p
            .weights
            .iter()
            .filter(|w| w.usage == Usage::Both)
            .collect();
        assert_eq!(both.len(), 1);
        assert!(p.weights.iter().all(|w| w.usage != Usage::Lookup));
    }
}
