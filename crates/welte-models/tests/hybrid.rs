//! Models with recurrent layers: what their programs hold, and what is refused.

mod common;

use common::{Fake, Recipe};
use welte_formats::checkpoint::{Checkpoint, Dialect, TensorInfo, Value};
use welte_formats::synthetic::Synthetic;
use welte_models::{
    CompileOptions, LayerKind, LayerRope, ModelSpec, Scoring, SelectiveNorms, compile, spec,
};
use welte_table::{CacheKind, Format, Op, Program, params, verify};

fn gguf() -> Fake {
    let made = Synthetic::parse("custom,arch=qwen35,layers=4:q8_0").unwrap();
    Fake {
        dialect: Dialect::Gguf,
        metadata: made.metadata().clone(),
        tensors: made.tensors().to_vec(),
    }
}

fn program(fake: &Fake, options: &CompileOptions) -> (ModelSpec, Program) {
    let spec = spec(fake).unwrap();
    let program = welte_table::fuse(
        compile(&spec, fake, options).unwrap(),
        welte_table::PATTERNS,
    );
    verify(&program).unwrap();
    (spec, program)
}

#[test]
fn each_layer_has_the_caches_of_its_kind() {
    let options = CompileOptions {
        slots: 3,
        checkpoints: 5,
        ..CompileOptions::default()
    };
    let (spec, program) = program(&gguf(), &options);
    use LayerKind::{Attention, Delta};
    assert_eq!(spec.layer_kinds, [Delta, Delta, Delta, Attention]);
    assert!(spec.attention_gate.is_some() && spec.delta.unwrap().tiled);
    assert_eq!(spec.rope.rot, 16);
    let recurrent = |floats| CacheKind::Recurrent { layers: 3, floats };
    // 2 x 2 heads of 32 for queries and keys, 4 of 32 for values: 3 earlier inputs; and 4 matrices of 32 x 32.
    let caches: Vec<_> = program.caches.iter().map(|c| (c.kind, c.pages)).collect();
    assert_eq!(caches[1], (recurrent(3 * 256), 8));
    assert_eq!(caches[2], (recurrent(4 * 32 * 32), 8));
    assert_eq!(program.caches[0].layers(), 1);
    let commands = &program.passes[0].commands;
    let rules = commands.iter().filter(|c| c.op == Op::GatedDelta);
    let layers: Vec<u32> = rules
        .map(|c| params::GatedDelta::of(&c.params).layer)
        .collect();
    assert_eq!(layers, [0, 1, 2]);
}

/// Each head's gate follows its query in the file. In the program all gates follow the values.
#[test]
fn the_gates_of_attention_are_columns_of_their_own() {
    let (_, program) = program(&gguf(), &CompileOptions::default());
    let commands = &program.passes[0].commands;
    let attention = commands.iter().find(|c| c.op == Op::Attention).unwrap();
    let gate = commands.iter().filter(|c| c.op == Op::Gate).nth(3).unwrap();
    let stride = params::Attention::of(&attention.params).q_stride;
    // 4 heads of 64, keys and values of 2 heads, 4 gates of 64.
    assert_eq!(stride, 4 * 64 + 2 * 2 * 64 + 4 * 64);
    assert_eq!(gate.buffers[0].offset, 4 * (4 * 64 + 2 * 2 * 64));
    assert_eq!(gate.buffers[0].buffer, attention.buffers[0].buffer);
    assert_eq!(params::Gate::of(&gate.params).act, 4);
}

#[test]
fn layers_that_guess_ahead_are_left_out() {
    let mut fake = gguf();
    fake.set("qwen35.block_count", Value::U64(5));
    fake.set("qwen35.nextn_predict_layers", Value::U64(1));
    fake.tensors.push(TensorInfo {
        name: "blk.4.nextn.enorm.weight".into(),
        format: Format::F32,
        n: 1,
        k: 256,
        stack: 1,
    });
    let (spec, _) = program(&fake, &CompileOptions::default());
    assert_eq!((spec.layers, spec.draft_layers), (4, 1));
    let unknown = TensorInfo {
        name: "blk.5.nextn.enorm.weight".into(),
        ..fake.tensors[fake.tensors.len() - 1].clone()
    };
    fake.tensors.push(unknown);
    let spec = welte_models::spec(&fake).unwrap();
    let error = compile(&spec, &fake, &CompileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("blk.5.nextn"), "{error}");
}

#[test]
fn keys_that_do_not_fit_are_named() {
    for (key, value, problem) in [
        (
            "ssm.group_count",
            Value::U64(3),
            "is 3, which does not divide 4 heads",
        ),
        (
            "ssm.inner_size",
            Value::U64(130),
            "is 130, which does not fit 4 heads",
        ),
        ("ssm.conv_kernel", Value::U64(1), "is 1; must be at least 2"),
        ("ssm.state_size", Value::U64(0), "is 0; must be from 1"),
        ("nextn_predict_layers", Value::U64(4), "is 4 of 4 layers"),
        (
            "full_attention_interval",
            Value::U64(0),
            "is 0; must be from 1",
        ),
        (
            "attention.recurrent_layers",
            Value::Array(vec![Value::Bool(true)]),
            "has 1 entries for 4 layers",
        ),
    ] {
        let mut fake = gguf();
        fake.set(&format!("qwen35.{key}"), value);
        let error = spec(&fake).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{error}");
    }
}

#[test]
fn only_the_first_layers_of_lfm2_moe_lack_experts() {
    let made = || {
        let mut fake = Recipe {
            architecture: "lfm2moe",
            layers: 4,
            ..Recipe::default()
        }
        .build();
        for (key, value) in [
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 64),
            ("leading_dense_block_count", 1),
            ("expert_gating_func", 2),
        ] {
            fake.set(&format!("lfm2moe.{key}"), Value::U64(value));
        }
        fake
    };
    let read = spec(&made()).unwrap();
    assert_eq!(read.expert_layers, [false, true, true, true]);
    let e = read.experts.expect("experts");
    assert_eq!((e.scoring, e.ffn), (Scoring::Sigmoid, 64));
    assert_eq!((e.renormalise, e.choice_bias), (true, false));
    assert_eq!(read.ffn, 512);
    let mut biased = made();
    biased.tensors.push(TensorInfo {
        name: "blk.1.exp_probs_b.bias".into(),
        format: Format::F32,
        n: 1,
        k: 4,
        stack: 1,
    });
    assert!(spec(&biased).unwrap().experts.unwrap().choice_bias);
    for (key, value, problem) in [
        ("expert_gating_func", 1, "is 1; supported is 2 (sigmoid)"),
        ("expert_count", 0, "LFM2-MoE has experts"),
        ("shortconv.l_cache", 1, "is 1; must be at least 2"),
    ] {
        let mut fake = made();
        fake.set(&format!("lfm2moe.{key}"), Value::U64(value));
        let error = spec(&fake).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{error}");
    }
}

fn nemotron() -> Fake {
    synthetic("nemotron-h-small,dim=256,heads=4,kv_heads=2,head_dim=64:q8_0")
}

fn synthetic(text: &str) -> Fake {
    let made = Synthetic::parse(text).unwrap();
    Fake {
        dialect: Dialect::Gguf,
        metadata: made.metadata().clone(),
        tensors: made.tensors().to_vec(),
    }
}

#[test]
fn a_layer_of_nemotron_h_is_one_part() {
    let (spec, program) = program(&nemotron(), &CompileOptions::default());
    use LayerKind::{Attention, Mamba, None};
    assert_eq!(
        spec.layer_kinds[..6],
        [Mamba, None, Mamba, None, Mamba, Attention]
    );
    assert!(spec.alone && !spec.gated);
    let commands = &program.passes[0].commands;
    let count = |op| commands.iter().filter(|c| c.op == op).count();
    assert_eq!(
        (count(Op::Mamba2), count(Op::Attention), count(Op::Act)),
        (6, 1, 6)
    );
    // The groups of the norm have weights of their own.
    assert_eq!(count(Op::Multiply), 6);
    let layers: Vec<u32> = commands
        .iter()
        .filter(|c| c.op == Op::Mamba2)
        .map(|c| params::Mamba2::of(&c.params).layer)
        .collect();
    assert_eq!(layers, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn configurations_of_nemotron_h_list_layers_by_letters_or_names() {
    let made = |key: &str, value: Value| {
        let mut fake = Recipe {
            architecture: "nemotron_h",
            dialect: Dialect::HuggingFace,
            ..Recipe::default()
        }
        .build();
        let table = "model.embed_tokens.weight";
        let tensor = fake.tensors.iter_mut().find(|t| t.name == table);
        tensor.unwrap().name = "model.embeddings.weight".into();
        fake.set(key, value);
        for (key, value) in [
            ("mamba_num_heads", 4),
            ("mamba_head_dim", 32),
            ("ssm_state_size", 16),
            ("n_groups", 2),
        ] {
            fake.set(key, Value::U64(value));
        }
        spec(&fake)
    };
    let text = |text: &str| Value::String(text.into());
    use LayerKind::{Attention, Mamba, None};
    let letters = made("hybrid_override_pattern", text("M-*")).unwrap();
    assert_eq!(letters.layer_kinds, [Mamba, None, Attention]);
    let names = ["linear_attention", "mlp", "full_attention"].map(text);
    let names = made("layers_block_type", Value::Array(names.to_vec())).unwrap();
    assert_eq!(names.layer_kinds, letters.layer_kinds);
    for (letters, problem) in [
        ("ME*", "n_routed_experts"),
        ("M-x", "has an unknown type"),
        ("M-", "has 2 entries for 3 layers"),
    ] {
        let error = made("hybrid_override_pattern", text(letters)).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

fn nemotron_3() -> Fake {
    synthetic(
        "nemotron-3-small,dim=256,heads=4,kv_heads=2,head_dim=64,ffn=96,experts=8,used=2:q8_0",
    )
}

#[test]
fn experts_of_nemotron_3_have_no_gates() {
    let (spec, program) = program(&nemotron_3(), &CompileOptions::default());
    let experts = spec.experts.unwrap();
    assert_eq!(experts.scoring, Scoring::Sigmoid);
    assert!(experts.choice_bias && experts.renormalise);
    assert_eq!((experts.scale, experts.shared.unwrap().ffn), (2.5, 3712));
    let layers = [false, true, false, true, false, false, true, false, true];
    assert_eq!(spec.expert_layers, layers);
    let commands = &program.passes[0].commands;
    let products = commands.iter().filter(|c| c.op == Op::ExpertsActMul);
    let products: Vec<_> = products.collect();
    assert_eq!(products.len(), 4);
    for command in products {
        let p = params::ExpertsActMul::of(&command.params);
        assert_eq!((p.act, p.matrices(), p.n, p.k), (4, 1, 96, 256));
        let matrix = &program.weights[command.weights[0] as usize];
        assert_eq!((matrix.n, matrix.k), (8 * 96, 256));
    }
}

#[test]
fn experts_may_compute_in_a_narrower_width() {
    let mut fake = nemotron_3();
    fake.set("nemotron_h_moe.moe_latent_size", Value::U64(128));
    for tensor in &mut fake.tensors {
        if tensor.name.ends_with("ffn_up_exps.weight") {
            tensor.k = 128;
        } else if tensor.name.ends_with("ffn_down_exps.weight") {
            tensor.n /= 2;
        }
    }
    let latent = |fake: &mut Fake, layer: u32, part: &str, n, k| {
        fake.tensors.push(TensorInfo {
            name: format!("blk.{layer}.ffn_latent_{part}.weight"),
            format: Format::Q8_0,
            n,
            k,
            stack: 1,
        });
    };
    for layer in [1, 3, 6, 8] {
        latent(&mut fake, layer, "down", 128, 256);
        latent(&mut fake, layer, "up", 256, 128);
    }
    let (spec, program) = program(&fake, &CompileOptions::default());
    assert_eq!(spec.experts.unwrap().latent, Some(128));
    let find = |op| {
        let commands = &program.passes[0].commands;
        commands.iter().find(|c| c.op == op).unwrap()
    };
    let (up, down) = (find(Op::ExpertsActMul), find(Op::ExpertsAdd));
    assert_eq!(params::ExpertsActMul::of(&up.params).k, 128);
    assert_eq!(params::ExpertsAdd::of(&down.params).n, 128);
    fake.set("nemotron_h_moe.moe_latent_size", Value::U64(257));
    let error = welte_models::spec(&fake).unwrap_err().to_string();
    assert!(
        error.contains("moe_latent_size") && error.contains("257"),
        "{error}"
    );
}

#[test]
fn layers_of_nemotron_3_that_guess_ahead_are_left_out() {
    let mut fake = nemotron_3();
    fake.set("nemotron_h_moe.nextn_predict_layers", Value::U64(1));
    // The last layer's tensors stay in the file, and are not refused.
    let (spec, _) = program(&fake, &CompileOptions::default());
    assert_eq!((spec.layers, spec.draft_layers), (8, 1));
    assert_eq!((spec.layer_kinds.len(), spec.expert_layers.len()), (8, 8));
}

#[test]
fn keys_that_do_not_fit_nemotron_h_are_named() {
    let short = Value::Array(vec![Value::U64(1)]);
    for (key, value, problem) in [
        (
            "ssm.group_count",
            Value::U64(3),
            "does not divide 128 heads",
        ),
        ("ssm.inner_size", Value::U64(8193), "does not fit 128 heads"),
        ("ssm.conv_kernel", Value::U64(1), "must be at least 2"),
        (
            "feed_forward_length",
            short.clone(),
            "has 1 entries for 13 layers",
        ),
        (
            "attention.head_count_kv",
            short,
            "has 1 entries for 13 layers",
        ),
    ] {
        let mut fake = nemotron();
        fake.set(&format!("nemotron_h.{key}"), value);
        let error = spec(&fake).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{error}");
    }
}

#[test]
fn too_many_checkpoints_are_refused() {
    let fake = gguf();
    let options = CompileOptions {
        checkpoints: u32::MAX,
        ..CompileOptions::default()
    };
    let spec = spec(&fake).unwrap();
    let error = compile(&spec, &fake, &options).unwrap_err();
    assert!(error.to_string().contains("checkpoints"), "{error}");
}

#[test]
fn kimi_linears_layers_are_those_that_its_configuration_lists() {
    let list = |of: &[u64]| Value::Array(of.iter().map(|n| Value::U64(*n)).collect());
    let made = |key: &str, value: Value| {
        let mut fake = Recipe {
            architecture: "kimi_linear",
            dialect: Dialect::HuggingFace,
            layers: 4,
            ..Recipe::default()
        }
        .build();
        fake.set("linear_attn_config.full_attn_layers", list(&[4]));
        for (key, value) in [
            ("linear_attn_config.num_heads", 8),
            ("linear_attn_config.head_dim", 32),
            ("kv_lora_rank", 64),
            ("qk_rope_head_dim", 16),
            ("qk_nope_head_dim", 32),
            ("v_head_dim", 32),
            ("num_experts", 8),
            ("num_experts_per_token", 2),
            ("moe_intermediate_size", 64),
            ("num_shared_experts", 1),
            ("first_k_dense_replace", 1),
        ] {
            fake.set(key, Value::U64(value));
        }
        fake.set(key, value);
        fake
    };
    use LayerKind::{Attention, Delta};
    let found = spec(&made("moe_renormalize", Value::Bool(false))).unwrap();
    assert_eq!(found.layer_kinds, [Delta, Delta, Delta, Attention]);
    let delta = found.delta.unwrap();
    assert!(delta.by_channel && !delta.tiled);
    assert_eq!((delta.key_heads, delta.heads, delta.taps), (8, 8, 4));
    assert_eq!((delta.key_dim, delta.value_dim), (32, 32));
    assert!(found.layer_ropes.iter().all(|r| *r == LayerRope::None));
    assert_eq!((found.kv_heads, found.head_dim), (1, 80));
    let experts = found.experts.unwrap();
    assert_eq!(
        (experts.used, experts.scoring, experts.renormalise),
        (2, Scoring::Sigmoid, false)
    );
    assert_eq!(found.expert_layers, [false, true, true, true]);
    for (key, value, problem) in [
        (
            "linear_attn_config.full_attn_layers",
            list(&[5]),
            "not a layer from 1 to 4",
        ),
        (
            "linear_attn_config.full_attn_layers",
            Value::Bool(false),
            "layer_types",
        ),
        ("linear_attn_config.head_dim", Value::U64(0), "from 1"),
        (
            "linear_attn_config.short_conv_kernel_size",
            Value::U64(1),
            "must be at least 2",
        ),
        ("mla_use_nope", Value::Bool(false), "without rope"),
        (
            "moe_router_activation_func",
            Value::String("softmax".into()),
            "supported is sigmoid",
        ),
    ] {
        let error = spec(&made(key, value)).unwrap_err().to_string();
        assert!(error.contains(problem), "{key}: {error}");
    }
}

#[test]
fn mamba_has_no_other_layers() {
    let made = |kind: &'static str, key: &str, value: Value| {
        let mut fake = Recipe {
            architecture: kind,
            dialect: Dialect::HuggingFace,
            ..Recipe::default()
        }
        .build();
        for missing in [
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "max_position_embeddings",
        ] {
            fake.metadata.remove(missing);
        }
        let table = "model.embed_tokens.weight";
        let tensor = fake.tensors.iter_mut().find(|t| t.name == table);
        tensor.unwrap().name = "backbone.embeddings.weight".into();
        fake.set("time_step_rank", Value::String("auto".into()));
        fake.set(key, value);
        spec(&fake)
    };
    let found = made("mamba", "expand", Value::U64(3)).unwrap();
    assert!(found.alone && found.layer_kinds.iter().all(|k| *k == LayerKind::Mamba));
    assert_eq!(found.context, 1 << 20);
    let names: Vec<String> = found.facts().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"Mamba-1".to_string()), "{names:?}");
    assert!(!names.contains(&"heads".to_string()), "{names:?}");
    let mamba = found.mamba.unwrap();
    assert_eq!((mamba.heads, mamba.value_dim, mamba.key_dim), (12, 64, 16));
    let own = mamba.selective.unwrap();
    assert_eq!((own.rank, own.norms), (16, SelectiveNorms::None));
    let falcon = made("falcon_mamba", "mixer_rms_eps", Value::F64(1e-3)).unwrap();
    let own = falcon.mamba.unwrap().selective.unwrap();
    assert_eq!((own.norms, own.eps), (SelectiveNorms::Plain, 1e-3));
    let usual = made("falcon_mamba", "expand", Value::U64(2)).unwrap();
    assert_eq!(usual.mamba.unwrap().selective.unwrap().eps, 1e-6);
    for eps in [0.0, -1e-6] {
        let error = made("falcon_mamba", "mixer_rms_eps", Value::F64(eps)).unwrap_err();
        assert!(error.to_string().contains("mixer_rms_eps"), "{error}");
    }
    for (key, value, problem) in [
        ("use_bias", Value::Bool(true), "is not supported"),
        ("conv_kernel", Value::U64(1), "must be at least 2"),
        ("state_size", Value::U64(0), "from 1"),
        (
            "time_step_rank",
            Value::String("many".into()),
            "is not a number",
        ),
        ("intermediate_size", Value::U64(1 << 30), "must be from 1"),
    ] {
        let error = made("mamba", key, value).unwrap_err().to_string();
        assert!(error.contains(problem), "{key}: {error}");
    }
}

#[test]
fn jambas_tensors_show_the_kinds_of_its_layers() {
    let made = |values: &[(&str, Value)]| {
        let mut fake = Recipe {
            architecture: "jamba",
            dialect: Dialect::HuggingFace,
            layers: 4,
            ..Recipe::default()
        }
        .build();
        let attends = |name: &str| name.starts_with("model.layers.1.");
        fake.tensors
            .retain(|t| !t.name.contains("self_attn") || attends(&t.name));
        for layer in [1, 3] {
            let name = format!("model.layers.{layer}.feed_forward.router.weight");
            fake.add(&name, Format::F32, 4, 256);
        }
        for (key, value) in [
            ("num_experts", 4),
            ("num_experts_per_tok", 2),
            ("attn_layer_period", 4),
            ("attn_layer_offset", 1),
        ] {
            fake.set(key, Value::U64(value));
        }
        for (key, value) in values {
            fake.set(key, value.clone());
        }
        fake
    };
    let found = spec(&made(&[])).unwrap();
    use LayerKind::{Attention, Mamba};
    assert_eq!(found.layer_kinds, [Mamba, Attention, Mamba, Mamba]);
    assert_eq!(found.expert_layers, [false, true, false, true]);
    assert!(found.layer_ropes.iter().all(|r| *r == LayerRope::None));
    assert!(!found.alone && !found.experts.unwrap().renormalise);
    let mamba = found.mamba.unwrap();
    assert_eq!((mamba.heads, mamba.value_dim, mamba.key_dim), (8, 64, 16));
    let own = mamba.selective.unwrap();
    assert_eq!((own.rank, own.norms), (16, SelectiveNorms::Weighted));
    let mut one = made(&[("num_experts", Value::U64(1))]);
    one.tensors.retain(|t| !t.name.contains("router"));
    let found = spec(&one).unwrap();
    assert!(found.experts.is_none() && !found.expert_layers.contains(&true));
    // Without keys the tensors count alone.
    one.metadata.remove("attn_layer_period");
    one.metadata.remove("attn_layer_offset");
    assert_eq!(spec(&one).unwrap().layer_kinds, found.layer_kinds);
    for (key, value, problem) in [
        (
            "attn_layer_offset",
            2,
            "model.layers.1.self_attn.q_proj.weight exists",
        ),
        (
            "attn_layer_period",
            2,
            "layers.3.self_attn.q_proj.weight is missing",
        ),
        ("attn_layer_period", 0, "must be from 1"),
        ("mamba_d_conv", 1, "must be at least 2"),
    ] {
        let error = spec(&made(&[(key, Value::U64(value))])).unwrap_err();
        assert!(error.to_string().contains(problem), "{key}: {error}");
    }
}
