//! What the plain architectures of later years, GLM-4.5 and DeepSeek add, and what they refuse.

mod common;

use common::{Fake, Recipe, read, refused, text};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{
    Act, CompileOptions, Groups, LayerRope, NormKind, PositionScale, QkNorm, Scoring, SharedExpert,
    compile, spec,
};
use welte_table::{Format, Op};

fn fake(architecture: &'static str, dialect: Dialect) -> Fake {
    Recipe {
        architecture,
        dialect,
        layers: 4,
        format: Format::F32,
        v_format: Format::F32,
        up_format: Format::F32,
        ..Recipe::default()
    }
    .build()
}

fn gguf(architecture: &'static str, values: &[(&str, Value)]) -> Fake {
    let mut fake = fake(architecture, Dialect::Gguf);
    for (key, value) in values {
        fake.set(&format!("{architecture}.{key}"), value.clone());
    }
    fake
}

fn directory(architecture: &'static str, values: &[(&str, Value)]) -> Fake {
    let mut fake = fake(architecture, Dialect::HuggingFace);
    for (key, value) in values {
        fake.set(key, value.clone());
    }
    fake
}

fn yarn() -> [(&'static str, Value); 4] {
    [
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", Value::F64(4.0)),
        ("rope.scaling.original_context_length", Value::U64(64)),
        ("rope.scaling.yarn_log_multiplier", Value::F64(1.0)),
    ]
}

#[test]
fn ministrals_queries_grow_beyond_the_original_context() {
    let beta = ("attention.temperature_scale", Value::F64(0.1));
    let values = [yarn().as_slice(), std::slice::from_ref(&beta)].concat();
    let model = gguf("mistral3", &values);
    let read = read(&model);
    let scale = PositionScale {
        beta: 0.1,
        original: 64,
        ahead: 0,
        still: false,
    };
    assert_eq!(read.position_scale, Some(scale));
    let scales = |context| {
        let options = CompileOptions {
            context,
            ..CompileOptions::default()
        };
        let program = compile(&read, &model, &options).expect("a program");
        let commands = program.passes[0].commands.iter();
        commands.filter(|c| c.op == Op::PositionScale).count()
    };
    // Up to the original context the factor is 1.
    assert_eq!((scales(64), scales(65)), (0, 4));
    refused(
        &gguf("mistral3", &[beta]),
        &["attention.temperature_scale", "needs YaRN"],
    );
}

#[test]
fn cohere_has_parallel_blocks_and_rope_in_windows_only() {
    let model = gguf("cohere2", &[("attention.sliding_window", Value::U64(8))]);
    let read = read(&model);
    assert_eq!(read.windows, [8, 8, 8, 0]);
    let (rope, none) = (LayerRope::Main, LayerRope::None);
    assert_eq!(read.layer_ropes, [rope, rope, rope, none]);
    assert_eq!(read.norm, NormKind::Layer { bias: false });
    assert!(read.parallel && read.rope.interleaved && read.tied);
    assert_eq!(read.logit_scale, 0.0625);
}

#[test]
fn starcoder_has_no_gate() {
    let model = gguf("starcoder2", &[]);
    let read = read(&model);
    assert_eq!(read.norm, NormKind::Layer { bias: true });
    assert!(!read.gated && read.act == Act::GeluTanh);
    let error = compile(&read, &model, &CompileOptions::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("blk.0.attn_norm.bias"), "{error}");
}

#[test]
fn phi_moe_mixes_two_experts() {
    let experts = [
        ("expert_count", Value::U64(4)),
        ("expert_used_count", Value::U64(2)),
    ];
    let model = gguf("phimoe", &experts);
    let found = read(&model);
    assert_eq!(found.norm, NormKind::Layer { bias: true });
    let e = found.experts.expect("experts");
    assert_eq!((e.scoring, e.renormalise), (Scoring::Mixer, false));
    assert_eq!((e.margin, e.ffn), (0.02, found.ffn));
    let error = compile(&found, &model, &CompileOptions::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("blk.0.attn_norm.bias"), "{error}");
    refused(
        &gguf("phimoe", &[]),
        &["phimoe.expert_count", "Phi-3.5-MoE has experts"],
    );
    let noise = ("router_jitter_noise", Value::F64(0.0));
    let local = ("num_local_experts", Value::U64(4));
    let used = ("num_experts_per_tok", Value::U64(2));
    refused(
        &directory("phimoe", &[noise, local, used]),
        &["router_jitter_noise", "must be above 0"],
    );
}

#[test]
fn apertus_needs_constants_for_every_layer() {
    let list = |n| Value::Array(vec![Value::F64(0.0); n]);
    let model = |positive: Option<Value>, negative: Value| {
        let mut fake = gguf("apertus", &[]);
        if let Some(positive) = positive {
            fake.set("xielu.alpha_p", positive);
        }
        fake.set("xielu.alpha_n", negative);
        fake
    };
    let read = read(&model(Some(list(4)), list(4)));
    let ln2 = std::f32::consts::LN_2;
    assert_eq!(read.xielu, [[ln2, 0.5 + ln2, 0.5, -1e-6]; 4]);
    assert!(!read.gated && read.act == Act::Xielu);
    refused(&model(None, list(4)), &["xielu.alpha_p", "is missing"]);
    let short = model(Some(list(3)), list(4));
    refused(&short, &["xielu.alpha_p", "3 entries for 4 layers"]);
    let words = Value::Array(vec![text("0"); 4]);
    let words = model(Some(list(4)), words);
    refused(&words, &["xielu.alpha_n", "is not a finite number"]);
    let silu = directory("apertus", &[("hidden_act", text("silu"))]);
    refused(&silu, &["hidden_act", "must be xielu"]);
}

#[test]
fn norms_and_ropes_of_others() {
    let exaone = read(&gguf("exaone4", &[]));
    assert_eq!(exaone.layer_ropes, [LayerRope::Main; 4]);
    assert_eq!(
        (exaone.pre_norm, exaone.post_norm, exaone.qk_norm),
        (false, true, QkNorm::Head)
    );
    let window = ("attention.sliding_window", Value::U64(8));
    let exaone = read(&gguf("exaone4", std::slice::from_ref(&window)));
    assert_eq!(exaone.layer_ropes[3], LayerRope::None);
    let olmo = read(&gguf("olmo2", &[window]));
    assert_eq!(olmo.layer_ropes[2..], [LayerRope::Local, LayerRope::Main]);
    assert!(read(&gguf("olmo2", &[])).local_rope.is_none());
    let alpha = [
        ("rope_scaling.type", text("dynamic")),
        ("rope_scaling.alpha", Value::F64(1000.0)),
    ];
    let hunyuan = read(&directory("hunyuan_v1_dense", &alpha));
    assert!(hunyuan.qk_norm_late);
    let theta = 10000.0 * 1000f64.powf(64.0 / 62.0);
    assert!((f64::from(hunyuan.rope.theta) / theta - 1.0).abs() < 1e-6);
    let factors = [
        ("embedding_multiplier", Value::F64(12.0)),
        ("attention_multiplier", Value::F64(0.25)),
        ("residual_multiplier", Value::F64(0.5)),
        ("logits_scaling", Value::F64(8.0)),
    ];
    let granite = read(&directory("granite", &factors));
    let read = (
        granite.embedding_scale,
        granite.attention_scale,
        granite.residual_scale,
        granite.logit_scale,
    );
    assert_eq!(read, (12.0, 0.25, 0.5, 0.125));
}

fn experts(architecture: &'static str, values: &[(&str, Value)]) -> Fake {
    let mut fake = gguf(
        architecture,
        &[
            ("expert_count", Value::U64(8)),
            ("expert_used_count", Value::U64(3)),
            ("expert_feed_forward_length", Value::U64(64)),
            ("leading_dense_block_count", Value::U64(1)),
            ("expert_shared_count", Value::U64(2)),
            ("expert_gating_func", Value::U64(2)),
        ],
    );
    for (key, value) in values {
        fake.set(&format!("{architecture}.{key}"), value.clone());
    }
    fake
}

#[test]
fn glm_counts_layers_that_guess_ahead() {
    let drafts = |n| experts("glm4moe", &[("nextn_predict_layers", Value::U64(n))]);
    let read = read(&drafts(1));
    assert_eq!((read.layers, read.draft_layers), (3, 1));
    assert_eq!(read.expert_layers, [false, true, true]);
    assert_eq!(read.windows.len(), 3);
    let e = read.experts.expect("experts");
    let shared = SharedExpert {
        ffn: 128,
        gated: false,
    };
    assert_eq!((e.scoring, e.shared), (Scoring::Sigmoid, Some(shared)));
    assert!(e.renormalise && !e.choice_bias && e.groups.is_none());
    let all = drafts(4);
    refused(&all, &["glm4moe.nextn_predict_layers", "is 4 of 4 layers"]);
}

#[test]
fn groups_must_fit_the_experts() {
    let groups = |count, used| {
        let values = [
            ("expert_group_count", Value::U64(count)),
            ("expert_group_used_count", Value::U64(used)),
        ];
        experts("glm4moe", &values)
    };
    let read = read(&groups(4, 2)).experts.expect("experts");
    let wanted = Groups {
        count: 4,
        used: 2,
        top: 2,
    };
    assert_eq!(read.groups, Some(wanted));
    for (count, used) in [(3, 2), (8, 4), (4, 1)] {
        let words = ["expert_group_count", "does not fit 8 experts"];
        refused(&groups(count, used), &words);
    }
    refused(&groups(4, 5), &["expert_group_used_count", "from 1 to 4"]);
    let gating = experts("glm4moe", &[("expert_gating_func", Value::U64(9))]);
    refused(&gating, &["expert_gating_func", "is 9"]);
}

fn latent(values: &[(&str, Value)]) -> Fake {
    let all = [
        ("attention.head_count_kv", Value::U64(1)),
        ("attention.key_length", Value::U64(144)),
        ("attention.value_length", Value::U64(128)),
        ("attention.key_length_mla", Value::U64(48)),
        ("attention.value_length_mla", Value::U64(32)),
        ("attention.kv_lora_rank", Value::U64(128)),
        ("rope.dimension_count", Value::U64(16)),
    ];
    experts("deepseek2", &[all.as_slice(), values].concat())
}

#[test]
fn latents_have_one_head_of_keys() {
    let read = read(&latent(&[]));
    let l = read.latent.expect("latents");
    assert_eq!((l.query_rank, l.rank, l.rope), (None, 128, 16));
    assert_eq!((l.plain, l.value), (32, 32));
    assert_eq!((read.kv_heads, read.head_dim, read.rope.rot), (1, 144, 16));
    assert_eq!(read.attention_scale, 1.0 / 48f32.sqrt());
    // The file has a tenth of YaRN's weight.
    let scaled = [
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", Value::F64(4.0)),
        ("rope.scaling.original_context_length", Value::U64(64)),
        ("rope.scaling.yarn_log_multiplier", Value::F64(0.1)),
    ];
    let scaled = spec(&latent(&scaled)).expect("a spec").attention_scale;
    let stretch = (0.1 * 4f32.ln() + 1.0).powi(2);
    assert!((scaled / read.attention_scale / stretch - 1.0).abs() < 1e-6);
}

#[test]
fn latents_of_wrong_sizes_are_refused() {
    for (key, value, problem) in [
        ("attention.kv_lora_rank", 1009, "at most 1024"),
        (
            "attention.key_length_mla",
            16,
            "is not above the 16 rotated",
        ),
        ("attention.value_length_mla", 0, "is 0"),
        ("rope.dimension_count", 0, "is 0"),
    ] {
        let fake = latent(&[(key, Value::U64(value))]);
        refused(&fake, &["deepseek2.", problem]);
    }
    let odd = latent(&[("rope.dimension_count", Value::U64(15))]);
    assert!(spec(&odd).is_err());
    let fake = latent(&[]);
    let read = read(&fake);
    let error = compile(&read, &fake, &CompileOptions::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("blk.0.attn_"), "{error}");
}

#[test]
fn graniteswa_lists_ropes_of_layers() {
    let list = |values: &[f64]| Value::Array(values.iter().copied().map(Value::F64).collect());
    let model = |bases: &[f64]| directory("granite_swa", &[("layer_rope_theta", list(bases))]);
    let (none, main, local) = (LayerRope::None, LayerRope::Main, LayerRope::Local);
    let found = read(&model(&[0.0, 500.0, 20.0, 500.0]));
    assert_eq!(found.layer_ropes, [none, main, local, main]);
    assert_eq!(found.rope.theta, 500.0);
    assert_eq!(found.local_rope.map(|rope| rope.theta), Some(20.0));
    assert_eq!(
        (found.windows, found.sinks),
        (vec![0, 128, 128, 128], vec![true; 4])
    );
    let key = "layer_rope_theta";
    refused(&model(&[1.0, 2.0, 3.0, 0.0]), &[key, "has 3 bases"]);
    refused(&model(&[0.5, 2.0, 2.0, 0.0]), &[key, "has 0.5"]);
    refused(&model(&[2.0; 3]), &[key, "has 3 entries for 4 layers"]);
    let flags = |flags: [bool; 4]| Value::Array(flags.map(Value::Bool).to_vec());
    let window = ("attention.sliding_window", Value::U64(8));
    let pattern = (
        "attention.sliding_window_pattern",
        flags([true, false, true, true]),
    );
    let both = [window, pattern];
    let found = read(&gguf("granite_swa", &both));
    assert_eq!(found.windows, [8, 0, 8, 8]);
    assert_eq!(found.layer_ropes, [main; 4]);
    let ropes = ("attention.rope_pattern", flags([false, true, true, false]));
    let found = read(&gguf("granite_swa", &[both.as_slice(), &[ropes]].concat()));
    assert_eq!(found.layer_ropes, [none, main, main, none]);
    refused(&gguf("granite_swa", &both[..1]), &["pattern", "is missing"]);
}

#[test]
fn muse_glimmers_norms_differ() {
    let found = read(&directory("muse_glimmer", &[]));
    assert_eq!((found.eps, found.post_eps), (1e-5, Some(1e-8)));
    assert!(found.embedding_norm && found.post_norm && found.plain_final_norm);
    assert_eq!((found.norm_add, found.qk_norm), (1.0, QkNorm::Plain));
    assert_eq!(found.windows, [2048, 2048, 2048, 0]);
    assert_eq!((found.logit_scale, found.logit_softcap), (1.0, 20.0));
    assert!((found.attention_scale - 3.87 / 8.0).abs() < 1e-6);
    let (none, main) = (LayerRope::None, LayerRope::Main);
    assert_eq!(found.layer_ropes, [main, main, main, none]);
    let bases = [5.0, 0.0, 0.0, 5.0].map(Value::F64).to_vec();
    let found = read(&directory(
        "muse_glimmer",
        &[("layer_rope_theta", Value::Array(bases))],
    ));
    assert_eq!(found.layer_ropes, [main, none, none, main]);
    let window = ("attention.sliding_window", Value::U64(8));
    let flags = [true, true, true, false].map(Value::Bool).to_vec();
    let pattern = ("attention.sliding_window_pattern", Value::Array(flags));
    let values = [window, pattern, ("rope.freq_base_swa", Value::F64(500.0))];
    refused(
        &gguf("muse-glimmer", &values),
        &["logit_scale", "is missing"],
    );
    let scale = ("logit_scale", Value::F64(0.5));
    let found = read(&gguf(
        "muse-glimmer",
        &[values.as_slice(), &[scale]].concat(),
    ));
    assert_eq!((found.norm_add, found.qk_norm), (0.0, QkNorm::Head));
    assert_eq!((found.logit_scale, found.logit_softcap), (0.5, 0.0));
    assert_eq!((found.rope.theta, found.post_eps), (500.0, Some(1e-8)));
}
