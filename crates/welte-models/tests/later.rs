//! What the latest families assume where configurations say nothing, and what they refuse.

mod common;

use common::{Fake, Recipe, read, refused, text};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{Act, LayerKind, LayerRope, NormKind, Scoring};
use welte_table::Format;

fn directory(architecture: &'static str, layers: u32, values: &[(&str, Value)]) -> Fake {
    let mut fake = Recipe {
        architecture,
        dialect: Dialect::HuggingFace,
        layers,
        format: Format::F32,
        v_format: Format::F32,
        up_format: Format::F32,
        ..Recipe::default()
    }
    .build();
    for (key, value) in values {
        fake.set(key, value.clone());
    }
    fake
}

fn texts(list: &[&str]) -> Value {
    Value::Array(list.iter().map(|one| text(one)).collect())
}

#[test]
fn lfm3s_layers_follow_from_their_number() {
    use LayerKind::{Attention, Conv};
    let found = read(&directory("lfm3", 6, &[]));
    let kinds = [Conv, Conv, Attention, Conv, Attention, Conv];
    assert_eq!(found.layer_kinds, kinds);
    assert_eq!(found.windows, [0, 0, 0, 0, 256, 0]);
    assert_eq!(found.layer_ropes[4], LayerRope::Local);
    assert_eq!((found.conv_taps, found.post_norm), (7, true));
    assert!(found.attention_gate.is_some_and(|gate| gate.per_head));
    assert_eq!(found.rope.scaling.to_string(), "0.5 of each head");
    let thetas = (found.rope.theta, found.local_rope.map(|rope| rope.theta));
    assert_eq!(thetas, (1e6, Some(1e4)));
    let plain = ["use_attention_gate", "use_sandwich_norm"].map(|key| (key, Value::Bool(false)));
    let found = read(&directory("lfm3", 6, &plain));
    assert!(found.attention_gate.is_none() && !found.post_norm);
}

#[test]
fn lfm3_refuses_other_kinds_of_layers_and_ropes() {
    let kinds = ("layer_types", texts(&["conv", "mamba"]));
    refused(
        &directory("lfm3", 2, &[kinds]),
        &["layer_types", "unknown type"],
    );
    let rope = ("rope_parameters.sliding_attention.rope_type", text("yarn"));
    refused(&directory("lfm3", 2, &[rope]), &["rope_type", "default"]);
}

#[test]
fn flex_olmos_shares_do_not_add_up_to_1() {
    let experts = [("num_experts", 4), ("num_experts_per_tok", 2)];
    let experts = experts.map(|(key, n)| (key, Value::U64(n)));
    let found = read(&directory("flex_olmo", 2, &experts));
    assert!(found.post_norm && !found.pre_norm);
    assert!(found.experts.is_some_and(|e| !e.renormalise && e.used == 2));
    refused(&directory("flex_olmo", 2, &[]), &["num_experts", "missing"]);
}

#[test]
fn apertus_knows_as_many_tokens_as_its_head() {
    let made = |rows: usize, said: Option<u64>| {
        let mut fake = directory("apertus1p5", 1, &[("hidden_act", text("xielu"))]);
        for name in ["alpha_p", "alpha_n"] {
            let name = format!("model.layers.0.mlp.act_fn.{name}");
            fake.add(&name, Format::F32, 1, 1);
        }
        fake.tensor_mut("lm_head.weight").n = rows;
        if let Some(said) = said {
            fake.set("output_vocab_size", Value::U64(said));
        }
        fake
    };
    assert_eq!(read(&made(200, Some(200))).vocab, 200);
    assert_eq!(read(&made(300, None)).vocab, 300);
    for said in [None, Some(250)] {
        refused(&made(200, said), &["output_vocab_size", "200 rows"]);
    }
}

fn minimax_m3(values: &[(&str, Value)]) -> Fake {
    let number = |n| Value::U64(n);
    let usual = [
        ("num_local_experts", number(4)),
        ("num_experts_per_tok", number(2)),
        ("dense_intermediate_size", number(512)),
        ("rotary_dim", number(32)),
    ];
    directory("minimax_m3_vl", 2, &[&usual, values].concat())
}

#[test]
fn minimax_m3_reads_published_and_later_keys() {
    let freq = Value::Array([0, 1].map(Value::U64).to_vec());
    let own = "sparse_attention_config.sparse_topk_blocks";
    let mut fake = minimax_m3(&[("moe_layer_freq", freq), (own, Value::U64(4))]);
    let found = read(&fake);
    assert_eq!((found.indexed, found.rope.rot), (None, 32));
    assert_eq!((found.norm_add, found.ffn), (1.0, 512));
    // Configurations may leave it out.
    assert_eq!(found.experts.map(|e| e.scale), Some(2.0));
    fake.set("hidden_act", Value::String("swigluoai".into()));
    assert_eq!(found.expert_layers, [false, true]);
    let name = "model.layers.1.self_attn.index_k_norm.weight";
    fake.add(name, Format::F32, 1, 64);
    assert_eq!(read(&fake).indexed, Some(4 * 128));
    fake.set("swiglu_limit", Value::F64(8.0));
    refused(&fake, &["swiglu_limit", "8"]);
}

#[test]
fn hunyuan_4_has_streams_limits_and_sinks() {
    let numbers = [
        ("n_routed_experts", 4),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 64),
        ("kv_lora_rank", 32),
        ("q_lora_rank", 64),
        ("qk_rope_head_dim", 16),
        ("qk_nope_head_dim", 32),
        ("v_head_dim", 32),
    ];
    let numbers = numbers.map(|(key, n)| (key, Value::U64(n)));
    let made = |more: &[(&str, Value)]| directory("hy_v4", 2, &[&numbers, more].concat());
    let mut fake = made(&[]);
    let found = read(&fake);
    assert_eq!(
        found.hyper.map(|h| (h.streams, h.magnitude)),
        Some((4, 2.0))
    );
    assert_eq!(found.limits[1].experts, Some(10.0));
    assert!(found.limits_gate && found.limits[1].plain.is_none());
    assert_eq!(found.sinks, [true, true]);
    assert_eq!((found.indexed, found.rope.interleaved), (None, false));
    let name = "model.layers.0.self_attn.indexer.wk.weight";
    fake.add(name, Format::F32, 128, 256);
    assert_eq!(read(&fake).usual_context(), 2048);
    let off = made(&[("swiglu_limit", Value::F64(0.0))]);
    assert!(read(&off).limits.is_empty());
    refused(
        &made(&[("hc_eps", Value::F64(0.1))]),
        &["hc_eps", "must be from 0"],
    );
    refused(
        &made(&[("hc_mult", Value::U64(0))]),
        &["hc_mult", "must be from 1"],
    );
}

#[test]
fn jais_2_has_no_gate() {
    let found = read(&directory("jais2", 2, &[("hidden_act", text("relu2"))]));
    assert_eq!((found.act, found.gated), (Act::Relu2, false));
    assert_eq!(found.norm, NormKind::Layer { bias: true });
    refused(&directory("jais2", 2, &[]), &["hidden_act", "relu2"]);
}

#[test]
fn hyperclovas_logits_are_multiplied() {
    let scale = ("logits_scaling", Value::F64(0.125));
    let found = read(&directory("hyperclovax", 2, std::slice::from_ref(&scale)));
    assert_eq!((found.logit_scale, found.post_norm), (0.125, true));
    let plain = [scale, ("use_post_norm", Value::Bool(false))];
    assert!(!read(&directory("hyperclovax", 2, &plain)).post_norm);
}

#[test]
fn vault_gemma_has_windows_and_no_norms_after_parts() {
    let window = ("sliding_window", Value::U64(512));
    let found = read(&directory("vaultgemma", 4, &[window]));
    assert!(found.pre_norm && !found.post_norm);
    assert_eq!(found.windows, [512, 0, 512, 0]);
    assert_eq!((found.attention_softcap, found.logit_softcap), (50.0, 30.0));
}

#[test]
fn flints_layers_follow_from_their_number() {
    let experts = [
        ("num_experts", 4),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 64),
    ];
    let experts = experts.map(|(key, n)| (key, Value::U64(n)));
    let found = read(&directory("flint", 8, &experts));
    assert_eq!(found.windows, [0, 0, 513, 513, 513, 0, 513, 0]);
    let (none, main) = (LayerRope::None, LayerRope::Main);
    assert_eq!(found.layer_ropes[..3], [none, none, main]);
    assert_eq!(found.expert_layers[..3], [false, false, true]);
    let mixture = found.experts.expect("experts");
    assert_eq!(mixture.scoring, Scoring::Sigmoid);
    assert!(mixture.renormalise && mixture.shared.is_some_and(|s| s.ffn == 1024));
    let list = Value::Array(vec![Value::U64(3)]);
    let dense = [experts.as_slice(), &[("mlp_only_layers", list)]].concat();
    let found = read(&directory("flint", 8, &dense));
    assert_eq!(found.expert_layers[..4], [true, true, true, false]);
}

#[test]
fn other_names_of_known_families() {
    let window = ("sliding_window", Value::U64(4096));
    let mut fake = directory("iquestcoder", 2, &[window]);
    assert_eq!(read(&fake).windows, [0, 0]);
    fake.set("use_sliding_window", Value::Bool(true));
    refused(&fake, &["use_sliding_window"]);
    let mut fake = directory("exaone4_5", 4, &[]);
    fake.set("text_config.model_type", text("exaone4_5_text"));
    assert_eq!(read(&fake).architecture, "exaone4");
}
