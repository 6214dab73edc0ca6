//! What the families that came with `families.py` add to the others, and what they refuse.

mod common;

use common::{DIRECTORY, GGUF, directory, gguf, mixed, read, refused, text};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{
    Act, CompileOptions, LayerKind, LayerRope, ModelSpec, NormKind, OutputGate, QkNorm, Scoring,
    SharedExpert, compile,
};
use welte_table::Format;

#[test]
fn softmax_is_not_scaled_to_one_where_the_family_does_not() {
    let olmoe = read(&mixed("olmoe", GGUF, &[]));
    let e = olmoe.experts.expect("experts");
    assert_eq!((e.scoring, e.renormalise), (Scoring::Softmax, false));
    assert_eq!((olmoe.qk_norm, olmoe.pre_norm), (QkNorm::Row, true));
    let width = ("expert_shared_feed_forward_length", Value::U64(96));
    let e = read(&mixed("qwen2moe", GGUF, std::slice::from_ref(&width))).experts;
    let e = e.expect("experts");
    let shared = SharedExpert {
        ffn: 96,
        gated: true,
    };
    assert_eq!((e.renormalise, e.shared), (false, Some(shared)));
    let granite = read(&mixed("granitemoe", GGUF, &[]));
    let e = granite.experts.expect("experts");
    assert_eq!((e.renormalise, e.shared), (true, None));
    refused(&gguf("olmoe", &[]), &["olmoe.expert_count", "is missing"]);
    let clipped = ("attention.clamp_kqv", Value::F64(8.0));
    refused(
        &mixed("olmoe", GGUF, std::slice::from_ref(&clipped)),
        &["attention.clamp_kqv", "is not supported"],
    );
    refused(&gguf("olmo", &[clipped]), &["attention.clamp_kqv"]);
}

#[test]
fn ling_says_by_its_norms_which_version_it_is() {
    let ling = |architecture, values: &[(&str, Value)]| {
        let mut fake = mixed(architecture, DIRECTORY, values);
        fake.add("model.word_embeddings.weight", Format::F32, 300, 256);
        fake
    };
    let one = read(&ling("bailing_moe", &[]));
    assert_eq!(one.architecture, "bailingmoe");
    assert_eq!((one.qk_norm, one.rope.rot), (QkNorm::None, 64));
    let e = one.experts.expect("experts");
    assert_eq!(e.scoring, Scoring::Softmax);
    let normed = ("use_qk_norm", Value::Bool(true));
    let values = [normed, ("first_k_dense_replace", Value::U64(1))];
    let two = read(&ling("bailing_moe", &values));
    assert_eq!(two.architecture, "bailingmoe2");
    assert_eq!((two.qk_norm, two.rope.rot), (QkNorm::Head, 32));
    assert_eq!(two.expert_layers, [false, true, true, true]);
    let e = two.experts.expect("experts");
    assert_eq!((e.scoring, e.renormalise), (Scoring::Sigmoid, true));
    assert_eq!(read(&ling("sarvam_moe", &[])).rope.rot, 64);
    let normed_head = ("norm_head", Value::Bool(true));
    refused(&ling("bailing_moe", &[normed_head]), &["norm_head", "GGUF"]);
}

#[test]
fn sigmoids_need_not_be_said() {
    for architecture in ["afmoe", "bailingmoe2", "dots1", "exaone-moe", "minimax-m2"] {
        let e = read(&mixed(architecture, GGUF, &[])).experts;
        let e = e.expect("experts");
        assert_eq!((e.scoring, e.renormalise), (Scoring::Sigmoid, true));
    }
    refused(
        &gguf("minimax-m2", &[]),
        &["minimax-m2.expert_count", "is missing"],
    );
    let rotated = |rot| mixed("minimax_m2", DIRECTORY, &[("rotary_dim", Value::U64(rot))]);
    let minimax = read(&rotated(32));
    assert_eq!((minimax.rope.rot, minimax.qk_norm), (32, QkNorm::Row));
    for rot in [0, 31, 66] {
        refused(&rotated(rot), &["rotary_dim", "even and at most 64"]);
    }
}

#[test]
fn trinity_gates_and_norms_what_its_parts_yield() {
    let window = ("attention.sliding_window", Value::U64(8));
    let model = mixed("afmoe", GGUF, &[window]);
    let found = read(&model);
    let (rope, none) = (LayerRope::Main, LayerRope::None);
    assert_eq!(found.layer_ropes, [rope, rope, rope, none]);
    assert_eq!(found.windows, [8, 8, 8, 0]);
    assert!(
        found.attention_gate == Some(OutputGate::default()) && found.pre_norm && found.post_norm
    );
    assert_eq!(found.embedding_scale, 16.0);
    assert_eq!(read(&mixed("afmoe", DIRECTORY, &[])).embedding_scale, 1.0);
    let error = compile(&found, &model, &CompileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("blk.0."), "{error}");
}

#[test]
fn hunyuans_shared_experts_are_one() {
    let lists = [
        ("num_experts", Value::U64(8)),
        ("moe_topk", Value::Array(vec![Value::U64(2); 4])),
        ("num_shared_expert", Value::Array(vec![Value::U64(3); 4])),
        (
            "moe_intermediate_size",
            Value::Array(vec![Value::U64(64); 4]),
        ),
    ];
    let found = read(&directory("hunyuan_v1_moe", &lists));
    assert!(found.qk_norm_late);
    let e = found.experts.expect("experts");
    let shared = SharedExpert {
        ffn: 3 * 512,
        gated: false,
    };
    assert_eq!((e.used, e.ffn, e.shared), (2, 64, Some(shared)));
    let cla = [lists.as_slice(), &[("use_cla", Value::Bool(true))]].concat();
    refused(&directory("hunyuan_v1_moe", &cla), &["use_cla"]);
}

#[test]
fn layer_norms_and_parts_of_heads() {
    let stable = read(&directory("stablelm", &[]));
    assert_eq!(stable.norm, NormKind::Layer { bias: true });
    assert_eq!((stable.rope.rot, stable.parallel), (16, false));
    let mut parallel = directory("stablelm", &[]);
    let norm = "post_attention_layernorm";
    parallel
        .tensors
        .retain(|tensor| !tensor.name.contains(norm));
    assert!(read(&parallel).parallel);
    let normed = directory("phi", &[("qk_layernorm", Value::Bool(true))]);
    refused(&normed, &["qk_layernorm", "is not supported"]);
    let mut normed = gguf("command-r", &[]);
    normed.add("blk.0.attn_q_norm.weight", Format::F32, 4, 64);
    assert_eq!(read(&normed).qk_norm, QkNorm::Each);
    let phi = read(&gguf("phi2", &[]));
    assert!(phi.parallel && !phi.gated && phi.act == Act::GeluTanh);
    let cohere = read(&gguf("command-r", &[("logit_scale", Value::F64(0.5))]));
    assert_eq!(cohere.layer_ropes, [LayerRope::Main; 4]);
    assert!(cohere.parallel && cohere.tied && cohere.logit_scale == 0.5);
    let olmo = directory("olmo", &[]);
    let found = read(&olmo);
    assert_eq!(found.norm, NormKind::Plain);
    let facts = found.facts();
    assert!(facts.contains(&("layer norm".into(), "without weights".into())));
}

#[test]
fn squared_relus_have_no_gate() {
    let act = ("hidden_act", text("relu2"));
    let nemotron = read(&directory("nemotron", std::slice::from_ref(&act)));
    assert_eq!((nemotron.norm_add, nemotron.rope.rot), (1.0, 32));
    assert_eq!(read(&gguf("nemotron", &[])).norm_add, 0.0);
    let arcee = read(&directory("arcee", &[act]));
    assert!(!arcee.gated && arcee.act == Act::Relu2);
    for architecture in ["arcee", "nemotron"] {
        let silu = directory(architecture, &[("hidden_act", text("silu"))]);
        refused(&silu, &["hidden_act", "must be relu2"]);
    }
}

#[test]
fn factors_of_minicpm() {
    let factors = |spec: ModelSpec| [spec.embedding_scale, spec.residual_scale, spec.logit_scale];
    // Old files are those of the first models.
    assert_eq!(factors(read(&gguf("minicpm", &[]))), [12.0, 0.7, 1.0]);
    let values = [
        ("embedding_scale", Value::F64(3.0)),
        ("residual_scale", Value::F64(0.25)),
        ("logit_scale", Value::F64(4.0)),
    ];
    let file = read(&gguf("minicpm", &values));
    assert_eq!(factors(file), [3.0, 0.25, 0.25]);
    let values = [
        ("scale_emb", Value::F64(3.0)),
        ("scale_depth", Value::F64(0.5)),
        ("dim_model_base", Value::U64(64)),
    ];
    let config = read(&directory("minicpm", &values));
    assert_eq!(factors(config), [3.0, 0.25, 0.25]);
}

#[test]
fn dynamic_ropes_end_at_the_trained_context() {
    let values = [
        ("rope_scaling.type", text("dynamic")),
        ("rope_scaling.factor", Value::F64(2.0)),
    ];
    let model = directory("internlm3", &values);
    let found = read(&model);
    let compiled = |context| {
        let options = CompileOptions {
            context,
            ..CompileOptions::default()
        };
        compile(&found, &model, &options)
    };
    assert!(compiled(2048).is_ok());
    let error = compiled(2049).unwrap_err().to_string();
    assert!(error.contains("beyond 2048 positions"), "{error}");
}

#[test]
fn falcon_has_a_state_space_beside_attention() {
    let sizes = [
        ("mamba_n_groups", Value::U64(2)),
        ("mamba_n_heads", Value::U64(4)),
        ("mamba_d_head", Value::U64(16)),
        ("mamba_d_state", Value::U64(24)),
        ("ssm_in_multiplier", Value::F64(0.5)),
        ("attention_in_multiplier", Value::F64(2.0)),
        ("key_multiplier", Value::F64(0.25)),
    ];
    let with =
        |values: &[(&str, Value)]| directory("falcon_h1", &[sizes.as_slice(), values].concat());
    let found = read(&with(&[]));
    let mamba = found.mamba.expect("a state space");
    assert!(mamba.beside && !mamba.norm);
    assert_eq!((mamba.heads, mamba.value_dim, mamba.key_dim), (4, 16, 24));
    let factors = found.multipliers.expect("factors");
    assert_eq!((factors.attention, factors.keys), (2.0, 0.5));
    assert_eq!(factors.state_space, [0.5; 5]);
    assert_eq!((factors.gate, factors.down), (1.0, 1.0));
    let list = |values: &[f64]| Value::Array(values.iter().copied().map(Value::F64).collect());
    for wrong in [list(&[1.0; 3]), list(&[f64::NAN, 1.0]), text("1")] {
        refused(
            &with(&[("mlp_multipliers", wrong)]),
            &["mlp_multipliers", "2 finite numbers"],
        );
    }
    let before = [
        ("mamba_rms_norm", Value::Bool(true)),
        ("mamba_norm_before_gate", Value::Bool(true)),
    ];
    refused(&with(&before), &["mamba_norm_before_gate"]);
}

#[test]
fn llama4_sees_parts_of_the_context() {
    let one = ("expert_used_count", Value::U64(1));
    let step = ("interleave_moe_layer_step", Value::U64(2));
    let with = |values: &[(&str, Value)]| {
        mixed(
            "llama4",
            GGUF,
            &[std::slice::from_ref(&one), values].concat(),
        )
    };
    let found = read(&with(std::slice::from_ref(&step)));
    let (rope, none) = (LayerRope::Main, LayerRope::None);
    assert_eq!(found.layer_ropes, [rope, rope, rope, none]);
    // Published files have neither size.
    assert_eq!(found.windows, [8192, 8192, 8192, 0]);
    let scale = found.position_scale.expect("growing queries");
    assert_eq!((scale.beta, scale.original, scale.ahead), (0.1, 8192, 1));
    assert!(found.chunks && found.qk_norm_late && scale.still);
    assert_eq!(found.qk_norm, QkNorm::Plain);
    assert_eq!(found.expert_layers, [false, true, false, true]);
    let e = found.experts.expect("experts");
    assert!(e.on_input && !e.renormalise && e.scoring == Scoring::Sigmoid);
    let whole = ("attention.sliding_window", Value::U64(0));
    let whole = read(&with(&[whole]));
    assert_eq!(
        (whole.layer_ropes, whole.windows),
        (vec![rope; 4], vec![0; 4])
    );
    let many = ("expert_count", Value::U64(128));
    assert_eq!(read(&with(&[many])).qk_norm, QkNorm::None);
    refused(
        &mixed("llama4", GGUF, &[]),
        &["expert_used_count", "only 1 is supported"],
    );
    refused(&gguf("llama4", &[]), &["llama4.expert_count", "is missing"]);
    let kinds = Value::Array(vec![text("sliding_attention"); 4]);
    let values = [
        ("num_experts_per_tok", Value::U64(1)),
        ("layer_types", kinds),
    ];
    refused(
        &mixed("llama4_text", DIRECTORY, &values),
        &["layer_types", "chunked_attention and full_attention"],
    );
    let values = [
        ("num_experts_per_tok", Value::U64(1)),
        ("attn_temperature_tuning", Value::U64(0)),
        ("attention_chunk_size", Value::U64(64)),
        ("no_rope_layers", Value::Array(Vec::new())),
        ("moe_layers", Value::Array(vec![Value::U64(2)])),
        ("intermediate_size_mlp", Value::U64(96)),
    ];
    let found = read(&mixed("llama4", DIRECTORY, &values));
    assert_eq!(found.windows, [64, 64, 64, 0]);
    assert_eq!((found.position_scale, found.ffn), (None, 96));
    assert_eq!(found.expert_layers, [false, false, true, false]);
}

/// Keys of latents, and those of an indexer.
fn sparse(dialect: Dialect, more: &[(&'static str, Value)]) -> Vec<(&'static str, Value)> {
    let number = Value::U64;
    let keys = match dialect {
        Dialect::Gguf => vec![
            ("attention.key_length", number(144)),
            ("attention.value_length", number(128)),
            ("attention.key_length_mla", number(48)),
            ("attention.value_length_mla", number(32)),
            ("attention.kv_lora_rank", number(128)),
            ("attention.q_lora_rank", number(64)),
            ("rope.dimension_count", number(16)),
            ("attention.indexer.top_k", number(64)),
            ("attention.indexer.head_count", number(4)),
            ("attention.indexer.key_length", number(32)),
        ],
        Dialect::HuggingFace => vec![
            ("qk_nope_head_dim", number(32)),
            ("qk_rope_head_dim", number(16)),
            ("v_head_dim", number(32)),
            ("kv_lora_rank", number(128)),
            ("q_lora_rank", number(64)),
            ("n_routed_experts", number(8)),
        ],
    };
    [&keys, more].concat()
}

#[test]
fn an_indexer_has_weights_where_the_context_is_longer_than_what_it_chooses() {
    for architecture in ["deepseek32", "glm-dsa"] {
        let model = mixed(architecture, GGUF, &sparse(GGUF, &[]));
        let found = read(&model);
        let indexer = found.indexer.clone().expect("an indexer");
        assert_eq!((indexer.used, indexer.heads, indexer.head_dim), (64, 4, 32));
        assert_eq!(indexer.interleaved, architecture == "glm-dsa");
        assert_eq!(indexer.chooses, [true; 4]);
    }
    let usual = read(&mixed("glm_moe_dsa", DIRECTORY, &sparse(DIRECTORY, &[]))).indexer;
    let usual = usual.expect("an indexer");
    assert_eq!((usual.used, usual.heads, usual.head_dim), (2048, 32, 128));
    let odd = [("attention.indexer.key_length", Value::U64(14))];
    refused(
        &mixed("glm-dsa", GGUF, &sparse(GGUF, &odd)),
        &["attention.indexer.key_length", "at least the 16"],
    );
    let no_latent = [("attention.q_lora_rank", Value::U64(0))];
    refused(
        &mixed("glm-dsa", GGUF, &sparse(GGUF, &no_latent)),
        &["attention.q_lora_rank", "the indexer needs it"],
    );
}

#[test]
fn layers_may_share_what_an_indexer_chooses() {
    let chooses = |architecture, dialect, more: &[(&'static str, Value)]| {
        let found = read(&mixed(architecture, dialect, &sparse(dialect, more)));
        found.indexer.expect("an indexer").chooses
    };
    let texts = |list: &[&str]| {
        let list = list.iter().map(|text| Value::String(text.to_string()));
        Value::Array(list.collect())
    };
    let shared = [true, false, true, false];
    let kinds = texts(&["full", "shared", "full", "shared"]);
    let pattern = Value::String("FSFS".into());
    for (key, value) in [
        ("indexer_types", kinds.clone()),
        ("index_topk_pattern", pattern),
    ] {
        assert_eq!(chooses("glm_moe_dsa", DIRECTORY, &[(key, value)]), shared);
    }
    let freq = [
        ("index_topk_freq", Value::U64(2)),
        ("index_skip_topk_offset", Value::U64(1)),
    ];
    assert_eq!(chooses("glm_moe_dsa", DIRECTORY, &freq), shared);
    assert_eq!(
        chooses("glm_moe_dsa", DIRECTORY, &freq[..1]),
        [true, true, false, true]
    );
    let none = ("index_skip_topk_offset", Value::U64(0));
    let keys = sparse(DIRECTORY, &[freq[0].clone(), none]);
    let fake = mixed("glm_moe_dsa", DIRECTORY, &keys);
    refused(&fake, &["index_skip_topk_offset", "is 0"]);
    let flags = Value::Array(shared.map(Value::Bool).to_vec());
    let flags = ("attention.indexer.types", flags);
    assert_eq!(chooses("glm-dsa", GGUF, &[flags]), shared);
    // A file of GLM-5.2 without the list.
    let long = ("context_length", Value::U64(1 << 20));
    assert_eq!(chooses("glm-dsa", GGUF, &[long]), [true, true, true, false]);
    // All layers of DeepSeek V3.2 choose.
    let all = chooses("deepseek_v32", DIRECTORY, &[("indexer_types", kinds)]);
    assert_eq!(all, [true; 4]);
    for (kinds, why) in [
        (texts(&["shared", "full", "full", "full"]), "must begin"),
        (
            texts(&["full", "half", "full", "full"]),
            "neither full nor shared",
        ),
        (texts(&["full"; 3]), "has 3 entries for 4 layers"),
    ] {
        let model = sparse(DIRECTORY, &[("indexer_types", kinds)]);
        refused(
            &mixed("glm_moe_dsa", DIRECTORY, &model),
            &["indexer_types", why],
        );
    }
}

#[test]
fn minicpm3_has_latents_and_factors() {
    let latents = [
        ("attention.key_length", Value::U64(48)),
        ("attention.kv_lora_rank", Value::U64(128)),
        ("rope.dimension_count", Value::U64(16)),
    ];
    let found = read(&gguf("minicpm3", &latents));
    let l = found.latent.expect("latents");
    // Files lack the size of a value.
    assert_eq!((l.plain, l.value, l.width()), (32, 64, 144));
    assert!(!found.rope.interleaved);
    let factors = [
        found.embedding_scale,
        found.residual_scale,
        found.logit_scale,
    ];
    assert_eq!(factors, [12.0, 0.7, 1.0]);
}

#[test]
fn parts_beside_each_other_may_have_norms_of_their_own() {
    let neox = |values: &[(&str, Value)]| {
        let mut fake = directory("gpt_neox", values);
        fake.add("gpt_neox.embed_in.weight", Format::F32, 300, 256);
        fake
    };
    let found = read(&neox(&[("rotary_emb_base", Value::F64(500.0))]));
    assert!(found.parallel && found.own_norms && !found.gated);
    // The fake says 10000 under another name, which counts.
    assert_eq!((found.rope.rot, found.rope.theta), (16, 10000.0));
    let serial = read(&neox(&[("use_parallel_residual", Value::Bool(false))]));
    assert!(!serial.parallel && !serial.own_norms);
    let odd = neox(&[("rotary_pct", Value::F64(0.05))]);
    refused(&odd, &["rotary_pct", "must be even"]);
}

#[test]
fn lagunas_layers_differ_in_heads_and_rope() {
    let list = |values: &[u64]| Value::Array(values.iter().copied().map(Value::U64).collect());
    let window = ("attention.sliding_window", Value::U64(8));
    let file = |heads: &[u64], values: &[(&str, Value)]| {
        let heads = ("attention.head_count", list(heads));
        let common = [heads, window.clone()];
        let mut fake = mixed("laguna", GGUF, &[&common, values].concat());
        fake.add("blk.0.attn_gate.weight", Format::F32, 4, 256);
        fake
    };
    let swa = [
        ("rope.dimension_count", Value::U64(32)),
        ("rope.dimension_count_swa", Value::U64(64)),
        ("rope.freq_base_swa", Value::F64(500.0)),
        ("leading_dense_block_count", Value::U64(1)),
        ("expert_shared_feed_forward_length", Value::U64(96)),
    ];
    let found = read(&file(&[4, 6, 6, 6], &swa));
    assert_eq!(
        (found.heads, found.shape(0).heads, found.shape(1).heads),
        (6, 4, 6)
    );
    assert_eq!(found.windows, [0, 8, 8, 8]);
    let local = found.local_rope.expect("a rope of windowed layers");
    assert_eq!((found.rope.rot, local.rot, local.theta), (32, 64, 500.0));
    let gate = OutputGate {
        per_head: true,
        softplus: true,
    };
    assert_eq!(found.attention_gate, Some(gate));
    assert_eq!(found.expert_layers, [false, true, true, true]);
    let e = found.experts.expect("experts");
    assert_eq!(
        (e.scoring, e.shared.map(|s| s.ffn)),
        (Scoring::Sigmoid, Some(96))
    );
    refused(
        &file(&[4, 3, 4, 4], &[]),
        &["laguna.attention.head_count", "has 3"],
    );
    let with = |values: &[(&str, Value)]| mixed("laguna", DIRECTORY, values);
    let found = read(&with(&[("gating", text("per-element"))]));
    assert!(!found.attention_gate.expect("gates").per_head);
    assert!(found.local_rope.is_none() && found.layer_shapes.is_empty());
    for (key, value) in [
        ("gating", Value::Bool(false)),
        ("moe_router_logit_softcapping", Value::F64(1.0)),
        ("moe_apply_router_weight_on_input", Value::Bool(true)),
        (
            "rope_parameters.full_attention.partial_rotary_factor",
            Value::F64(1.5),
        ),
    ] {
        refused(&with(&[(key, value)]), &[key]);
    }
}

#[test]
fn mamba_2_has_no_attention() {
    let file = |values: &[(&str, Value)]| {
        let state = [
            ("attention.head_count", Value::U64(0)),
            ("feed_forward_length", Value::U64(0)),
            ("ssm.conv_kernel", Value::U64(4)),
            ("ssm.inner_size", Value::U64(512)),
            ("ssm.state_size", Value::U64(128)),
            ("ssm.time_step_rank", Value::U64(8)),
            ("ssm.group_count", Value::U64(2)),
        ];
        gguf("mamba2", &[&state, values].concat())
    };
    let found = read(&file(&[]));
    let mamba = found.mamba.expect("a state space model");
    assert_eq!((mamba.heads, mamba.value_dim, mamba.key_dim), (8, 64, 128));
    assert!(mamba.norm && mamba.groups == 2 && found.alone);
    assert!(
        found
            .layer_kinds
            .iter()
            .all(|kind| *kind == LayerKind::Mamba)
    );
    let facts = found.facts();
    assert!(
        !facts
            .iter()
            .any(|(name, _)| name == "heads" || name == "rope")
    );
    refused(
        &file(&[("ssm.group_count", Value::U64(3))]),
        &["mamba2.ssm.group_count", "does not divide 8 heads"],
    );

    let saved = |values: &[(&str, Value)]| {
        let state = [
            ("num_heads", Value::U64(8)),
            ("head_dim", Value::U64(64)),
            ("state_size", Value::U64(128)),
            ("n_groups", Value::U64(1)),
            ("conv_kernel", Value::U64(4)),
            ("use_conv_bias", Value::Bool(false)),
            ("time_step_limit.0", Value::F64(0.0)),
        ];
        let mut fake = directory("mamba2", &[&state, values].concat());
        for key in [
            "max_position_embeddings",
            "num_attention_heads",
            "intermediate_size",
        ] {
            fake.metadata.remove(key);
        }
        fake.add("backbone.embeddings.weight", Format::F32, 300, 256);
        fake
    };
    let found = read(&saved(&[]));
    assert!(!found.mamba.expect("a state space model").bias);
    assert_eq!(found.context, 1 << 20);
    for (key, value) in [
        ("use_bias", Value::Bool(true)),
        (
            "time_step_limit",
            Value::Array(vec![Value::F64(0.0), Value::F64(0.1)]),
        ),
        ("time_step_limit", Value::F64(0.1)),
        ("time_step_limit.0", Value::F64(0.1)),
    ] {
        refused(&saved(&[(key, value)]), &[key.trim_end_matches(".0")]);
    }
}

#[test]
fn experts_of_nomic_bert_have_no_gate() {
    let published = [
        ("moe_every_n_layers", Value::U64(2)),
        ("moe_top_k", Value::U64(2)),
        ("num_experts", Value::U64(8)),
        ("activation_function", text("gelu")),
        ("rotary_emb_base", Value::F64(10000.0)),
    ];
    let with = |values: &[(&str, Value)]| {
        let mut fake = directory("nomic_bert", &[&published, values].concat());
        // Its keys are GPT-2's.
        for (key, own) in [
            ("hidden_size", "n_embd"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("intermediate_size", "n_inner"),
            ("max_position_embeddings", "n_positions"),
        ] {
            let value = fake.metadata.remove(key).expect("a key");
            fake.set(own, value);
        }
        for key in ["num_key_value_heads", "rope_theta"] {
            fake.metadata.remove(key);
        }
        fake.add("embeddings.word_embeddings.weight", Format::F32, 300, 256);
        fake.add("encoder.layers.1.mlp.experts.bias", Format::F32, 1, 256);
        fake
    };
    let found = read(&with(&[]));
    assert_eq!(found.architecture, "nomic-bert-moe");
    assert_eq!((found.dim, found.ffn, found.context), (256, 512, 2048));
    assert_eq!(found.expert_layers, [false, true, false, true]);
    let e = found.experts.expect("experts");
    assert_eq!((e.scoring, e.renormalise), (Scoring::Softmax, false));
    assert_eq!((e.count, e.used, e.ffn), (8, 2, 512));
    assert!(!found.gated && found.act == Act::Gelu && found.biases.experts_sum);
    for (key, value) in [
        ("activation_function", text("swiglu")),
        ("moe_normalize_expert_weights", Value::Bool(true)),
    ] {
        refused(&with(&[(key, value)]), &[key]);
    }
    let mut without = with(&[("moe_every_n_layers", Value::U64(0))]);
    without.metadata.remove("num_experts");
    assert_eq!(read(&without).architecture, "nomic-bert");
}
