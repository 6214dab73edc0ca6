//! Families whose layers differ in heads, windows, ropes or widths, and what they refuse.

mod common;

use common::{DIRECTORY, GGUF, directory, gguf, mixed, read, refused, text};
use welte_formats::checkpoint::Value;
use welte_models::{LayerKind, OutputGate, QkNorm, Scaling, Scoring};
use welte_table::Format;

#[test]
fn steps_layers_differ_in_heads_rope_and_limits() {
    let list = |values: &[f64]| Value::Array(values.iter().copied().map(Value::F64).collect());
    let names = |kinds: &[&str]| Value::Array(kinds.iter().map(|kind| text(kind)).collect());
    let kinds = ["full_attention", "sliding_attention", "sliding_attention"];
    let kinds = [&kinds[..], &["full_attention"; 2]].concat();
    // As published: lists have an entry for the layer that guesses ahead.
    let published = [
        ("num_nextn_predict_layers", Value::U64(1)),
        ("layer_types", names(&kinds)),
        ("sliding_window", Value::U64(8)),
        ("attention_other_setting.num_attention_heads", Value::U64(6)),
        (
            "attention_other_setting.num_attention_groups",
            Value::U64(3),
        ),
        ("rope_theta", list(&[5e6, 1e4, 1e4, 5e6, 5e6])),
        ("partial_rotary_factors", list(&[0.5, 1.0, 1.0, 0.5, 0.5])),
        ("moe_layers_enum", text("2,3")),
        ("share_expert_dim", Value::U64(96)),
        ("moe_router_scaling_factor", Value::F64(3.0)),
        ("swiglu_limits.3", Value::F64(7.0)),
        ("swiglu_limits_shared", list(&[0.0, 0.0, 0.0, 16.0, 0.0])),
    ];
    let with = |values: &[(&str, Value)]| {
        let mut fake = mixed("step3p5", DIRECTORY, &[&published, values].concat());
        fake.add(
            "model.layers.0.self_attn.g_proj.weight",
            Format::F32,
            4,
            256,
        );
        fake
    };
    let found = read(&with(&[]));
    let shape = |layer: usize| (found.shape(layer).heads, found.shape(layer).kv_heads);
    assert_eq!((found.heads, shape(0), shape(1)), (6, (4, 2), (6, 3)));
    assert_eq!(found.windows, [0, 8, 8, 0]);
    let local = found.local_rope.expect("a rope of windowed layers");
    assert_eq!((found.rope.rot, found.rope.theta), (32, 5e6));
    assert_eq!((local.rot, local.theta), (64, 1e4));
    let gate = OutputGate {
        per_head: true,
        softplus: false,
    };
    assert_eq!(found.attention_gate, Some(gate));
    assert_eq!(found.expert_layers, [false, false, true, true]);
    assert_eq!((found.norm_add, found.draft_layers), (1.0, 1));
    let e = found.experts.expect("experts");
    assert_eq!((e.scoring, e.renormalise), (Scoring::Sigmoid, true));
    assert_eq!((e.scale, e.shared.map(|s| s.ffn)), (3.0, Some(96)));
    let last = found.limits(3);
    assert_eq!((last.experts, last.plain), (Some(7.0), Some(16.0)));
    assert_eq!(found.limits(2), Default::default());
    for (key, value, words) in [
        ("layer_types", names(&kinds[..3]), "has 3 entries"),
        ("rope_theta", list(&[1.0, 2.0, 3.0, 1.0]), "differs among"),
        ("swiglu_limits", list(&[0.0, -1.0, 0.0, 0.0]), "from 0 to"),
        ("swiglu_limits", text("7"), "is not a finite number"),
        ("sliding_window", Value::U64(0), "sliding_window"),
        (
            "rope_theta",
            list(&[1e300, 1e4, 1e4, 1e300]),
            "must be from 1 to",
        ),
        (
            "moe_layers_enum",
            text("2,x"),
            "is not a list of the numbers",
        ),
        (
            "attention_other_setting.num_attention_heads",
            Value::U64(5),
            "num_attention_heads",
        ),
        (
            "attention_other_setting.head_dim",
            Value::U64(128),
            "differs from 64",
        ),
    ] {
        refused(&with(&[(key, value)]), &[words]);
    }

    // Nulls are left out, so the last entry shows the length.
    let mut short = with(&[("swiglu_limits.2", Value::F64(7.0))]);
    short.metadata.remove("swiglu_limits.3");
    refused(
        &short,
        &["swiglu_limits", "has 3 entries or ends with null"],
    );
    short.set("swiglu_limits.4", Value::F64(0.0));
    assert_eq!(read(&short).limits(2).experts, Some(7.0));

    // Step 3.7 has it as a part.
    let mut part = with(&[]);
    part.set("general.architecture", text("step3p7"));
    let own = std::mem::take(&mut part.metadata);
    for (key, value) in own {
        let whole = key.starts_with("general.") || key == "tie_word_embeddings";
        let key = if whole {
            key
        } else {
            format!("text_config.{key}")
        };
        part.set(&key, value);
    }
    part.set("text_config.model_type", text("step3p5"));
    part.set("vision_config.hidden_size", Value::U64(64));
    for tensor in &mut part.tensors {
        tensor.name = tensor.name.replace("model.", "model.language_model.");
    }
    assert_eq!(read(&part), found);

    // As transformers writes it.
    let nested = |kind: &str, key: &str| format!("rope_parameters.{kind}_attention.{key}");
    let mut saved = mixed(
        "step3p5",
        DIRECTORY,
        &[
            ("layer_types", names(&kinds[..4])),
            ("sliding_window", Value::U64(8)),
            ("num_sliding_attention_heads", Value::U64(6)),
            (
                "mlp_layer_types",
                names(&["dense", "sparse", "sparse", "sparse"]),
            ),
        ],
    );
    saved.metadata.remove("rope_theta");
    for (kind, key, value) in [
        ("full", "rope_theta", 5e6),
        ("full", "partial_rotary_factor", 0.5),
        ("sliding", "rope_theta", 1e4),
    ] {
        saved.set(&nested(kind, key), Value::F64(value));
    }
    let found = read(&saved);
    assert_eq!((found.rope.rot, found.rope.theta), (32, 5e6));
    let local = found.local_rope.expect("a rope of windowed layers");
    assert_eq!((local.rot, local.theta), (64, 1e4));
    assert_eq!(found.expert_layers, [false, true, true, true]);
    assert!(found.limits.is_empty() && found.attention_gate.is_none());
    let parts = ["dense", "sparse", "dense", "sparse", "dense"];
    saved.set("mlp_layer_types", names(&parts));
    refused(&saved, &["mlp_layer_types", "has 5 entries"]);
    saved.set("num_nextn_predict_layers", Value::U64(1));
    assert_eq!(read(&saved).expert_layers, [false, true, false, true]);
    saved.set("mlp_layer_types", names(&["dense", "sparse", "moe", "moe"]));
    refused(&saved, &["mlp_layer_types", "neither dense nor sparse"]);

    // Files count the layer that guesses ahead, and mean half of what is rotated.
    let whole = |values: &[u64]| Value::Array(values.iter().copied().map(Value::U64).collect());
    let flags = [false, true, true, false, true].map(Value::Bool).to_vec();
    let file = mixed(
        "step35",
        GGUF,
        &[
            ("block_count", Value::U64(5)),
            ("nextn_predict_layers", Value::U64(1)),
            ("attention.head_count", whole(&[4, 6, 6, 4, 6])),
            ("attention.head_count_kv", whole(&[2, 3, 3, 2, 3])),
            ("attention.sliding_window", Value::U64(8)),
            ("attention.sliding_window_pattern", Value::Array(flags)),
            ("rope.freq_base_swa", Value::F64(1e4)),
            ("leading_dense_block_count", Value::U64(2)),
            ("swiglu_clamp_exp", list(&[0.0, 0.0, 0.0, 7.0, 0.0])),
        ],
    );
    let found = read(&file);
    assert_eq!((found.layers, found.draft_layers), (4, 1));
    assert_eq!((found.shape(1).heads, found.shape(1).kv_heads), (6, 3));
    let local = found.local_rope.expect("a rope of windowed layers");
    assert_eq!((found.rope.rot, local.rot), (32, 64));
    assert_eq!(found.limits(3).experts, Some(7.0));
    assert_eq!(found.norm_add, 0.0);
}

#[test]
fn mimos_values_are_narrower_than_its_keys() {
    let list = |values: &[u64]| Value::Array(values.iter().copied().map(Value::U64).collect());
    let published = [
        ("hybrid_layer_pattern", list(&[0, 1, 1, 0])),
        ("sliding_window", Value::U64(8)),
        ("sliding_window_size", Value::U64(8)),
        ("swa_num_key_value_heads", Value::U64(4)),
        ("v_head_dim", Value::U64(40)),
        ("partial_rotary_factor", Value::F64(0.3125)),
        ("swa_rope_theta", Value::F64(500.0)),
        ("attention_value_scale", Value::F64(0.707)),
    ];
    let with = |values: &[(&str, Value)]| {
        let mut fake = mixed("mimo_v2_flash", DIRECTORY, &[&published, values].concat());
        for layer in 1..4 {
            let name = format!("model.layers.{layer}.mlp.gate");
            fake.add(&format!("{name}.weight"), Format::F32, 8, 256);
            fake.add(
                &format!("{name}.e_score_correction_bias"),
                Format::F32,
                1,
                8,
            );
        }
        for layer in 1..3 {
            let name = format!("model.layers.{layer}.self_attn.attention_sink_bias");
            fake.add(&name, Format::F32, 1, 4);
        }
        fake
    };
    let found = read(&with(&[]));
    assert_eq!((found.head_dim, found.value_dim), (64, Some(40)));
    assert_eq!((found.value_scale, found.attention_scale), (0.707, 0.125));
    // The row itself is beside the window's size.
    assert_eq!(found.windows, [0, 9, 9, 0]);
    assert_eq!(found.sinks, [false, true, true, false]);
    assert_eq!((found.shape(0).kv_heads, found.shape(1).kv_heads), (2, 4));
    assert_eq!(found.expert_layers, [false, true, true, true]);
    let e = found.experts.expect("experts");
    assert_eq!((e.scoring, e.renormalise), (Scoring::Sigmoid, true));
    assert!(e.choice_bias && e.shared.is_none() && e.scale == 1.0);
    let local = found.local_rope.expect("a rope of windowed layers");
    assert_eq!((found.rope.rot, local.rot, local.theta), (20, 20, 500.0));
    for (key, value, words) in [
        ("v_head_dim", Value::U64(65), "v_head_dim"),
        ("v_head_dim", Value::U64(0), "v_head_dim"),
        ("swa_head_dim", Value::U64(32), "differs from 64"),
        ("swa_v_head_dim", Value::U64(64), "differs from 40"),
        ("swa_num_key_value_heads", Value::U64(3), "has 3"),
        ("hybrid_layer_pattern", list(&[0, 1]), "has 2 entries"),
        (
            "hybrid_layer_pattern",
            list(&[0, 1, 2, 0]),
            "neither 0 nor 1",
        ),
        ("hybrid_layer_pattern", text("swa"), "is missing or not"),
        ("attention_bias", Value::Bool(true), "is not supported"),
    ] {
        refused(&with(&[(key, value)]), &[key, words]);
    }
    let same = ("v_head_dim", Value::U64(64));
    refused(&with(&[same]), &["attention_value_scale", "is 0.707"]);
    let mut sizeless = with(&[]);
    sizeless.metadata.remove("sliding_window");
    sizeless.metadata.remove("sliding_window_size");
    refused(&sizeless, &["sliding_window", "is missing or 0"]);

    // As transformers writes it: it has no key for the heads of keys in layers with a window.
    let names = |kinds: &[&str]| Value::Array(kinds.iter().map(|kind| text(kind)).collect());
    let mut saved = mixed(
        "mimo_v2_flash",
        DIRECTORY,
        &[
            ("sliding_window", Value::U64(9)),
            ("v_head_dim", Value::U64(40)),
            (
                "layer_types",
                names(&[
                    "full_attention",
                    "sliding_attention",
                    "sliding_attention",
                    "full_attention",
                ]),
            ),
        ],
    );
    saved.metadata.remove("rope_theta");
    for (key, value) in [
        ("full_attention.rope_theta", 5e6),
        ("full_attention.partial_rotary_factor", 0.3125),
        ("sliding_attention.rope_theta", 500.0),
        ("sliding_attention.partial_rotary_factor", 0.5),
    ] {
        saved.set(&format!("rope_parameters.{key}"), Value::F64(value));
    }
    let found = read(&saved);
    assert_eq!((found.shape(0).kv_heads, found.shape(1).kv_heads), (2, 4));
    let local = found.local_rope.expect("a rope of windowed layers");
    assert_eq!((found.rope.theta, found.rope.rot), (5e6, 20));
    assert_eq!((local.theta, local.rot), (500.0, 32));

    // Files count the layers that guess ahead.
    let file = mixed(
        "mimo2",
        GGUF,
        &[
            ("block_count", Value::U64(5)),
            ("nextn_predict_layers", Value::U64(1)),
            ("attention.head_count_kv", list(&[2, 4, 4, 2, 4])),
            ("attention.sliding_window", Value::U64(8)),
            ("attention.sliding_window_pattern", list(&[0, 1, 1, 0, 1])),
            ("attention.value_length", Value::U64(40)),
            ("attention.value_scale", Value::F64(0.5)),
            ("rope.dimension_count", Value::U64(20)),
        ],
    );
    let found = read(&file);
    assert_eq!((found.layers, found.draft_layers), (4, 1));
    assert_eq!((found.value_dim, found.value_scale), (Some(40), 0.5));
    assert_eq!((found.shape(0).kv_heads, found.shape(1).kv_heads), (2, 4));
    assert_eq!((found.windows[1], found.rope.rot), (8, 20));
    assert!(found.sinks.is_empty());
}

#[test]
fn llama_nemotrons_layers_lack_parts() {
    let list = |values: &[u64]| Value::Array(values.iter().copied().map(Value::U64).collect());
    let file = |heads: &[u64], kv_heads: &[u64]| {
        let values = [
            ("attention.head_count", list(heads)),
            ("attention.head_count_kv", list(kv_heads)),
            ("feed_forward_length", list(&[512, 256, 0, 512])),
        ];
        gguf("deci", &values)
    };
    let found = read(&file(&[4, 0, 4, 4], &[2, 0, 1, 4]));
    let (attention, none) = (LayerKind::Attention, LayerKind::None);
    assert_eq!(found.layer_kinds, [attention, none, attention, attention]);
    let shapes = &found.layer_shapes;
    let kv_heads: Vec<u32> = shapes.iter().map(|shape| shape.kv_heads).collect();
    let widths: Vec<u32> = shapes.iter().map(|shape| shape.ffn).collect();
    assert_eq!(
        (kv_heads.as_slice(), widths.as_slice()),
        (&[2, 4, 1, 4][..], &[512, 256, 0, 512][..])
    );
    let key = "deci.attention.head_count";
    refused(
        &file(&[4, 2, 4, 4], &[2, 2, 1, 4]),
        &[key, "has 2 beside 4"],
    );
    // A matrix in place of attention.
    refused(
        &file(&[4; 4], &[2, 0, 1, 4]),
        &["head_count_kv", "has 0 in a layer"],
    );
    refused(
        &file(&[4; 4], &[2, 3, 1, 4]),
        &["head_count_kv", "has 3 in a layer"],
    );
    refused(&file(&[0; 4], &[0; 4]), &[key, "is 0 in all layers"]);

    let saved = |key: &str, value: Value| {
        let mut fake = directory("nemotron-nas", &[]);
        for key in ["num_key_value_heads", "intermediate_size"] {
            fake.metadata.remove(key);
        }
        for layer in 0..4 {
            let name = |key: &str| format!("block_configs.{layer}.{key}");
            fake.set(&name("attention.n_heads_in_group"), Value::U64(2));
            fake.set(&name("ffn.ffn_mult"), Value::F64(3.0));
        }
        fake.set("block_configs.1.attention.no_op", Value::Bool(true));
        fake.metadata.remove("block_configs.2.ffn.ffn_mult");
        fake.set(key, value);
        fake
    };
    let found = read(&saved("vocab_size", Value::U64(300)));
    assert_eq!(found.layer_kinds, [attention, none, attention, attention]);
    let widths: Vec<u32> = found.layer_shapes.iter().map(|shape| shape.ffn).collect();
    assert_eq!(widths, [512, 512, 0, 512]);
    for (key, value) in [
        (
            "block_configs.0.attention.replace_with_linear",
            Value::Bool(true),
        ),
        ("block_configs.0.attention.n_heads_in_group", Value::U64(3)),
        ("block_configs.0.attention.num_sink_tokens", Value::U64(4)),
        ("block_configs.3.ffn.ffn_mult", Value::F64(1e9)),
        ("block_configs.3.ffn.replace_with_linear", Value::Bool(true)),
    ] {
        refused(&saved(key, value), &[key]);
    }
    let mut short = saved("vocab_size", Value::U64(300));
    short
        .metadata
        .retain(|key, _| !key.starts_with("block_configs.3."));
    refused(&short, &["block_configs", "says nothing of layer 3 of 4"]);
}

#[test]
fn mellums_windows_have_a_rope_that_is_not_scaled() {
    let flags = [true, true, true, false].map(Value::Bool).to_vec();
    let file = mixed(
        "mellum",
        GGUF,
        &[
            ("attention.sliding_window", Value::U64(8)),
            ("attention.sliding_window_pattern", Value::Array(flags)),
            ("rope.freq_base_swa", Value::F64(500.0)),
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", Value::F64(4.0)),
            ("rope.scaling.original_context_length", Value::U64(512)),
        ],
    );
    let found = read(&file);
    assert_eq!(
        (found.windows.as_slice(), found.qk_norm),
        (&[8, 8, 8, 0][..], QkNorm::Head)
    );
    let local = found.local_rope.expect("a rope of windowed layers");
    assert!(local.scaling == Scaling::None && found.rope.scaling != Scaling::None);
    assert_eq!(local.theta, 500.0);
    let mut sizeless = file;
    sizeless.set("mellum.attention.sliding_window", Value::U64(0));
    refused(
        &sizeless,
        &["mellum.attention.sliding_window", "missing or 0"],
    );
    let dense = Value::Array(["dense", "sparse", "sparse", "sparse"].map(text).to_vec());
    let found = read(&mixed("mellum", DIRECTORY, &[("mlp_layer_types", dense)]));
    assert_eq!(found.expert_layers, [false, true, true, true]);
    assert!(found.local_rope.is_none());
}

#[test]
fn only_step_lists_the_bases_of_ropes() {
    let list = Value::Array(vec![Value::F64(1e6); 4]);
    let patterns = Value::Array(vec![Value::U64(0); 4]);
    for family in ["mimo_v2_flash", "llama"] {
        let values = [
            ("rope_theta", list.clone()),
            ("hybrid_layer_pattern", patterns.clone()),
        ];
        refused(&directory(family, &values), &["rope_theta"]);
    }
}
