//! What is read out of metadata: sizes, their limits and defaults, and what sets architectures apart.

mod common;

use common::{Fake, Recipe};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{
    Act, CompileOptions, Error, Experts, LayerRope, ModelSpec, QkNorm, Scaling, Scoring, compile,
    spec,
};
use welte_table::Format;

fn fake(architecture: &'static str, dialect: Dialect) -> Fake {
    Recipe {
        architecture,
        dialect,
        ..Recipe::default()
    }
    .build()
}

fn llama() -> Fake {
    fake("llama", Dialect::Gguf)
}

fn directory(architecture: &'static str) -> Fake {
    fake(architecture, Dialect::HuggingFace)
}

/// The spec of a fake with these values besides its own.
fn with(mut fake: Fake, values: &[(&str, Value)]) -> Result<ModelSpec, Error> {
    for (key, value) in values {
        fake.set(key, value.clone());
    }
    spec(&fake)
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

#[track_caller]
fn refused(result: Result<ModelSpec, Error>, words: &[&str]) {
    let error = result.expect_err("must be refused").to_string();
    for word in words {
        assert!(error.contains(word), "'{error}' does not say '{word}'");
    }
}

#[test]
fn sizes_have_limits() {
    for (key, most) in [
        ("llama.block_count", 1024),
        ("llama.embedding_length", 1 << 16),
        ("llama.attention.head_count", 1024),
        ("llama.attention.key_length", 1024),
        ("llama.feed_forward_length", 1 << 20),
        ("llama.context_length", 1 << 30),
    ] {
        let read = |n: u64| with(llama(), &[(key, Value::U64(n))]);
        assert!(read(most).is_ok(), "{key} {most}");
        refused(read(most + 1), &[key, &format!("must be from 1 to {most}")]);
        refused(read(0), &[key, "is 0"]);
        refused(read(1 << 32), &[key, "not a number from 0 to 4294967295"]);
    }
    for (rows, ok) in [
        (0, false),
        (1, true),
        (1 << 22, true),
        ((1 << 22) + 1, false),
    ] {
        let mut model = llama();
        model.tensor_mut("token_embd.weight").n = rows;
        let result = spec(&model);
        if ok {
            assert_eq!(result.unwrap().vocab, rows as u32)
        } else {
            refused(result, &["token_embd.weight", "must be from 1 to 4194304"])
        }
    }
}

#[test]
fn numbers_are_read_from_lists_and_signed_values() {
    let heads = |value| {
        let result = with(llama(), &[("llama.attention.head_count_kv", value)]);
        result.map(|spec| spec.kv_heads)
    };
    let list = |numbers: &[u64]| Value::Array(numbers.iter().map(|n| Value::U64(*n)).collect());
    assert_eq!(heads(Value::I64(2)).unwrap(), 2);
    assert_eq!(heads(list(&[4, 4, 4])).unwrap(), 4);
    assert_eq!(heads(list(&[1])).unwrap(), 1);
    for (value, problem) in [
        (list(&[4, 2, 4]), "differs from layer to layer"),
        (list(&[4, 4, 2]), "differs from layer to layer"),
        (list(&[]), "differs from layer to layer"),
        (Value::I64(-2), "not a number from 0 to 4294967295"),
        (Value::F64(2.0), "not a number from 0 to 4294967295"),
        (text("2"), "not a number from 0 to 4294967295"),
    ] {
        let error = heads(value).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn floats_must_be_positive_in_single_precision() {
    let eps = |value| {
        with(
            llama(),
            &[("llama.attention.layer_norm_rms_epsilon", value)],
        )
    };
    assert_eq!(eps(Value::F64(1e-6)).unwrap().eps, 1e-6);
    assert_eq!(eps(Value::U64(1)).unwrap().eps, 1.0);
    assert_eq!(eps(Value::I64(1)).unwrap().eps, 1.0);
    for bad in [0.0, -1e-6, 1e-60, 1e60] {
        refused(eps(Value::F64(bad)), &["rms_epsilon", "must be above 0"]);
    }
    for bad in [Value::F64(f64::NAN), Value::F64(f64::INFINITY), text("1")] {
        refused(eps(bad), &["rms_epsilon", "not a finite number"]);
    }
}

#[test]
fn what_is_missing_has_a_default_or_is_an_error() {
    let without = |mut fake: Fake, keys: &[&str]| {
        for key in keys {
            assert!(fake.metadata.remove(*key).is_some(), "{key}");
        }
        spec(&fake)
    };
    let kv = without(llama(), &["llama.attention.head_count_kv"]).unwrap();
    assert_eq!(kv.kv_heads, 4);
    // 256 / 4.
    let head = without(llama(), &["llama.attention.key_length"]).unwrap();
    assert_eq!(head.head_dim, 64);
    let theta = without(llama(), &["llama.rope.freq_base"]).unwrap();
    assert_eq!(theta.rope.theta, 10_000.0);
    refused(
        without(llama(), &["llama.attention.layer_norm_rms_epsilon"]),
        &["layer_norm_rms_epsilon", "is missing"],
    );
    let eps = without(directory("llama"), &["rms_norm_eps"]).unwrap();
    assert_eq!(eps.eps, 1e-6);
    refused(
        with(llama(), &[("llama.attention.value_length", Value::U64(32))]),
        &["value_length", "differs from the key size 64"],
    );
    let same = with(llama(), &[("llama.attention.value_length", Value::U64(64))]);
    assert_eq!(same.unwrap().attention_scale, 0.125);
}

#[test]
fn the_head_is_tied_where_it_is_said_or_missing() {
    let tied = |dialect, tied, said| {
        let mut model = Recipe {
            dialect,
            tied,
            ..Recipe::default()
        }
        .build();
        if let Some(said) = said {
            model.set("tie_word_embeddings", Value::Bool(said));
        }
        spec(&model).unwrap().tied
    };
    // Files do not say it.
    assert!(!tied(Dialect::Gguf, false, Some(true)));
    assert!(tied(Dialect::Gguf, true, None));
    assert!(!tied(Dialect::HuggingFace, false, Some(false)));
    assert!(tied(Dialect::HuggingFace, false, Some(true)));
    assert!(tied(Dialect::HuggingFace, true, Some(false)));
}

#[test]
fn a_part_of_a_head_may_turn() {
    let rot = |fake: Fake, key: &str, value| with(fake, &[(key, value)]).map(|s| s.rope.rot);
    let gguf = |n| rot(llama(), "llama.rope.dimension_count", Value::U64(n));
    assert_eq!(spec(&llama()).unwrap().rope.rot, 64);
    assert_eq!(gguf(2).unwrap(), 2);
    assert_eq!(gguf(64).unwrap(), 64);
    for bad in [0, 3, 66] {
        assert!(gguf(bad).is_err(), "{bad}");
    }
    for key in [
        "partial_rotary_factor",
        "rope_parameters.partial_rotary_factor",
    ] {
        let part = |factor| rot(directory("llama"), key, Value::F64(factor));
        assert_eq!(part(0.5).unwrap(), 32);
        assert_eq!(part(1.0).unwrap(), 64);
        for bad in [0.01, 0.05, 1.1] {
            let error = part(bad).unwrap_err().to_string();
            assert!(
                error.contains("must be even and at most the head size"),
                "{error}"
            );
        }
    }
}

#[test]
fn activations_by_name() {
    for (name, act) in [
        ("silu", Act::Silu),
        ("swish", Act::Silu),
        ("gelu_pytorch_tanh", Act::GeluTanh),
        ("gelu_new", Act::GeluTanh),
        ("gelu", Act::Gelu),
    ] {
        let spec = with(directory("llama"), &[("hidden_act", text(name))]).unwrap();
        assert_eq!(spec.act, act, "{name}");
    }
    let relu = with(directory("llama"), &[("hidden_act", text("relu"))]);
    refused(relu, &["hidden_act", "is not supported"]);
    // Files name none.
    let gguf = with(llama(), &[("hidden_act", text("relu"))]).unwrap();
    assert_eq!(gguf.act, Act::Silu);
    let words = [Act::Silu, Act::GeluTanh, Act::Gelu, Act::Clamped].map(Act::word);
    assert_eq!(words, [0, 1, 2, 3]);
}

#[test]
fn layers_kinds_of_attention_are_known_by_name() {
    let windows = |types: &[&str]| {
        let types = types.iter().map(|t| text(t)).collect();
        let values = [
            ("use_sliding_window", Value::Bool(true)),
            ("sliding_window", Value::U64(64)),
            ("layer_types", Value::Array(types)),
        ];
        with(directory("qwen2"), &values).map(|spec| spec.windows)
    };
    let (full, sliding) = ("full_attention", "sliding_attention");
    assert_eq!(windows(&[full, sliding, full]).unwrap(), [0, 64, 0]);
    for bad in [&[full, "chunked_attention", full][..], &[full, sliding]] {
        let error = windows(bad).unwrap_err().to_string();
        assert!(error.contains("layer_types"), "{error}");
    }
    let later = |from| {
        let values = [
            ("use_sliding_window", Value::Bool(true)),
            ("sliding_window", Value::U64(64)),
            ("max_window_layers", Value::U64(from)),
        ];
        with(directory("qwen2"), &values).unwrap().windows
    };
    assert_eq!(later(0), [64, 64, 64]);
    assert_eq!(later(1), [0, 64, 64]);
    assert_eq!(later(3), [0, 0, 0]);
    let gguf = with(
        fake("qwen2", Dialect::Gguf),
        &[("qwen2.attention.sliding_window", Value::U64(9))],
    );
    assert_eq!(gguf.unwrap().windows, [9, 9, 9]);
    let gpt_oss = |key: &str, value| {
        let values = [
            ("sliding_window", Value::U64(9)),
            ("num_local_experts", Value::U64(4)),
            ("num_experts_per_tok", Value::U64(2)),
            (key, value),
        ];
        with(directory("gpt_oss"), &values)
    };
    let plain = gpt_oss("attention_bias", Value::Bool(true)).unwrap();
    assert_eq!(plain.windows, [9, 0, 9]);
    assert!(plain.biases.q && plain.biases.k && plain.biases.v && plain.biases.o);
    assert!(plain.biases.router && plain.biases.experts && !plain.biases.down);
    let without = gpt_oss("attention_bias", Value::Bool(false)).unwrap();
    assert!(!(without.biases.q || without.biases.k || without.biases.v || without.biases.o));
    let types = ["full_attention", "sliding_attention", "full_attention"].map(text);
    let listed = gpt_oss("layer_types", Value::Array(types.to_vec())).unwrap();
    assert_eq!(listed.windows, [0, 9, 0]);
}

#[test]
fn experts_are_read_where_an_architecture_may_have_them() {
    let qwen = |values: &[(&str, Value)]| {
        let mut all = vec![
            ("num_experts", Value::U64(8)),
            ("num_experts_per_tok", Value::U64(2)),
            ("moe_intermediate_size", Value::U64(96)),
        ];
        all.extend(values.iter().cloned());
        with(directory("qwen3_moe"), &all)
    };
    let plain = qwen(&[]).unwrap();
    let expected = Experts {
        shared: None,
        shared_scale: 1.0,
        count: 8,
        used: 2,
        ffn: 96,
        renormalise: false,
        scale: 1.0,
        on_input: false,
        beside: false,
        latent: None,
        margin: 0.0,
        scoring: Scoring::Softmax,
        choice_bias: false,
        groups: None,
    };
    assert_eq!(plain.experts, Some(expected));
    assert_eq!(plain.expert_layers, [true, true, true]);
    assert_eq!(plain.qk_norm, QkNorm::Head);
    let renormalised = qwen(&[("norm_topk_prob", Value::Bool(true))]).unwrap();
    assert!(renormalised.experts.unwrap().renormalise);
    let sparse = qwen(&[("decoder_sparse_step", Value::U64(2))]).unwrap();
    assert_eq!(sparse.expert_layers, [false, true, false]);
    let some = qwen(&[(
        "mlp_only_layers",
        Value::Array(vec![Value::U64(0), Value::U64(2)]),
    )])
    .unwrap();
    assert_eq!(some.expert_layers, [false, true, false]);
    refused(
        qwen(&[("num_experts_per_tok", Value::U64(9))]),
        &["num_experts_per_tok", "must be from 1 to 8"],
    );
    refused(
        qwen(&[("num_experts", Value::U64(1025))]),
        &["num_experts", "must be from 1 to 1024"],
    );
    let none = qwen(&[("num_experts", Value::U64(0))]).unwrap();
    assert_eq!(none.experts, None);
    let gguf = with(
        fake("qwen3moe", Dialect::Gguf),
        &[
            ("qwen3moe.expert_count", Value::U64(8)),
            ("qwen3moe.expert_used_count", Value::U64(3)),
            ("qwen3moe.decoder_sparse_step", Value::U64(2)),
        ],
    )
    .unwrap();
    let expected = Experts {
        shared: None,
        shared_scale: 1.0,
        used: 3,
        // Files that do not name the experts' own width use that of the feed-forward part, and all renormalise.
        ffn: 512,
        renormalise: true,
        ..expected
    };
    assert_eq!(gguf.experts, Some(expected));
    assert_eq!(gguf.expert_layers, [true, true, true]);
    let mixtral = with(
        directory("mixtral"),
        &[
            ("num_local_experts", Value::U64(8)),
            ("num_experts_per_tok", Value::U64(3)),
        ],
    );
    assert_eq!(mixtral.unwrap().experts, Some(expected));
    for other in ["qwen3", "phi3", "olmo2"] {
        refused(
            with(directory(other), &[("num_experts", Value::U64(8))]),
            &[&format!("'{other} with experts'"), "mixtral"],
        );
    }
    refused(
        with(directory("gpt_oss"), &[("sliding_window", Value::U64(9))]),
        &["num_local_experts", "experts in every layer"],
    );
}

#[test]
fn layers_without_rope() {
    use LayerRope::{Main, None};
    let smol = |values: &[(&str, Value)]| {
        let mut model = Recipe {
            architecture: "smollm3",
            dialect: Dialect::HuggingFace,
            layers: 5,
            ..Recipe::default()
        }
        .build();
        for (key, value) in values {
            model.set(key, value.clone());
        }
        spec(&model)
    };
    assert_eq!(
        smol(&[]).unwrap().layer_ropes,
        [Main, Main, Main, None, Main]
    );
    let every = smol(&[("no_rope_layer_interval", Value::U64(2))]).unwrap();
    assert_eq!(every.layer_ropes, [Main, None, Main, None, Main]);
    let list = |list: &[u64]| {
        let list = list.iter().map(|n| Value::U64(*n)).collect();
        smol(&[("no_rope_layers", Value::Array(list))])
    };
    let listed = list(&[1, 1, 0, 0, 1]).unwrap();
    assert_eq!(listed.layer_ropes, [Main, Main, None, None, Main]);
    refused(list(&[1, 0]), &["no_rope_layers", "2 entries for 5 layers"]);
}

#[test]
fn norms_by_architecture() {
    let norms = |architecture| {
        let spec = spec(&directory(architecture)).unwrap();
        (spec.qk_norm, spec.pre_norm, spec.post_norm, spec.norm_add)
    };
    assert_eq!(norms("llama"), (QkNorm::None, true, false, 0.0));
    assert_eq!(norms("qwen3"), (QkNorm::Head, true, false, 0.0));
    assert_eq!(norms("olmo2"), (QkNorm::Row, false, true, 0.0));
    assert_eq!(norms("gemma2"), (QkNorm::None, true, true, 1.0));
    assert_eq!(norms("gemma3"), (QkNorm::Head, true, true, 1.0));
}

#[test]
fn a_missing_tensor_is_called_as_its_architecture_calls_it() {
    let missing = |model: &Fake| {
        let spec = spec(model).unwrap();
        compile(&spec, model, &CompileOptions::default())
            .unwrap_err()
            .to_string()
    };
    #[track_caller]
    fn says(error: String, name: &str) {
        assert!(
            error.contains(&format!("{name}'")) && error.contains("missing"),
            "{error}"
        );
    }
    let at = |rest: &str| format!("model.layers.0.{rest}.weight");
    let mut gemma = directory("gemma2");
    gemma.set("sliding_window", Value::U64(9));
    says(missing(&gemma), &at("pre_feedforward_layernorm"));
    gemma.add(&at("pre_feedforward_layernorm"), Format::F32, 1, 256);
    says(missing(&gemma), &at("post_feedforward_layernorm"));
    let mut mixtral = directory("mixtral");
    mixtral.set("num_local_experts", Value::U64(4));
    mixtral.set("num_experts_per_tok", Value::U64(2));
    let part = |rest: &str| at(&format!("block_sparse_moe.{rest}"));
    says(missing(&mixtral), &part("gate"));
    mixtral.add(&part("gate"), Format::F16, 4, 256);
    // Gate and up of each expert, then down of each.
    let pairs = (0..4).flat_map(|expert| ["w1", "w3"].map(|weight| (expert, weight, 512, 256)));
    for (expert, weight, rows, width) in pairs.chain((0..4).map(|e| (e, "w2", 256, 512))) {
        let name = part(&format!("experts.{expert}.{weight}"));
        says(missing(&mixtral), &name);
        mixtral.add(&name, Format::F16, rows, width);
    }
    assert!(missing(&mixtral).contains("model.layers.1.block_sparse_moe.gate.weight"));
}

/// A language model beside other senses: its keys and tensors have other names.
fn part_of_a_larger_one(prefix: &str) -> Fake {
    let mut model = directory("llama");
    for key in [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
    ] {
        let value = model.metadata.remove(key).unwrap();
        model.set(&format!("text_config.{key}"), value);
    }
    for tensor in &mut model.tensors {
        tensor.name = match tensor.name.strip_prefix("model.") {
            Some(rest) => format!("{prefix}{rest}"),
            None if prefix.starts_with("language") => format!("language_model.{}", tensor.name),
            None => tensor.name.clone(),
        };
    }
    model
}

#[test]
fn a_language_model_may_be_a_part_of_a_larger_one() {
    let compiled = |model: &Fake| {
        let spec = spec(model)?;
        compile(&spec, model, &CompileOptions::default())
    };
    for prefix in ["language_model.model.", "model.language_model."] {
        let mut model = part_of_a_larger_one(prefix);
        for other in [
            "vision_tower.a.weight",
            "model.vision_tower.b.weight",
            "multi_modal_projector.c.weight",
            "embed_vision.d.weight",
            "audio_tower.e.weight",
        ] {
            model.add(other, Format::F16, 4, 4);
        }
        let program = compiled(&model).unwrap();
        assert_eq!(program.vocab, 300);
        model.add("vision.f.weight", Format::F16, 4, 4);
        let error = compiled(&model).unwrap_err().to_string();
        assert!(error.contains("vision.f.weight"), "{error}");
    }
    // A model that is no part of another has no other senses.
    for model in [llama(), directory("llama")] {
        let mut model = model;
        model.add("vision_tower.a.weight", Format::F16, 4, 4);
        let error = compiled(&model).unwrap_err().to_string();
        assert!(error.contains("vision_tower.a.weight"), "{error}");
    }
    // A file that says such a thing is still a file.
    let mut gguf = llama();
    gguf.set("text_config.hidden_size", Value::U64(1));
    gguf.add("vision_tower.a.weight", Format::F16, 4, 4);
    assert!(compiled(&gguf).is_err());
    let mut leftovers = directory("llama");
    for name in [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "blk.0.attn_rot_embd.weight",
        "model.layers.1.self_attn.masked_bias",
    ] {
        leftovers.add(name, Format::F32, 1, 32);
    }
    compiled(&leftovers).unwrap();
}

/// Configurations of LLaVA leave out what the language model has by default.
#[test]
fn sizes_of_llava_have_defaults() {
    let mut model = part_of_a_larger_one("language_model.model.");
    for key in [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
    ] {
        model.metadata.remove(&format!("text_config.{key}"));
    }
    let missing = |model: &Fake| spec(model).unwrap_err().to_string();
    assert!(missing(&model).contains("num_hidden_layers"));
    model.set("general.architecture", Value::String("llava".into()));
    for (text, kv_heads, ffn) in [("llama", 32, 11008), ("mistral", 8, 14336)] {
        model.set("text_config.model_type", Value::String(text.into()));
        let spec = spec(&model).unwrap();
        assert_eq!((spec.layers, spec.dim, spec.heads), (32, 4096, 32));
        assert_eq!((spec.kv_heads, spec.ffn), (kv_heads, ffn));
    }
}

#[test]
fn an_unknown_version_of_minicpm_v_is_named() {
    let mut model = directory("llama");
    model.set("general.architecture", Value::String("minicpmv".into()));
    for (version, known) in [(4.0, true), (4.6, false)] {
        model.set("version", Value::F64(version));
        let error = spec(&model).err().map(|error| error.to_string());
        assert_eq!(error.is_none(), known, "{error:?}");
        assert!(known || error.is_some_and(|e| e.contains("supported are 2.6, 4.0 and 4.5")));
    }
}

#[test]
fn parameters_are_counted_from_the_sizes() {
    // 256 wide, 4 heads and 2 of keys and values of 64, 512 in the middle, 300 tokens, 3 layers.
    // A layer has 196,608 in attention, 393,216 in the feed-forward part, 512 in norms.
    let layer = 196_608 + 393_216 + 512;
    let count = |fake: Fake, values: &[(&str, Value)]| with(fake, values).unwrap().parameters();
    assert_eq!(count(llama(), &[]), 3 * layer + 2 * 76_800 + 256);
    let tied = [("tie_word_embeddings", Value::Bool(true))];
    assert_eq!(count(directory("llama"), &tied), 3 * layer + 76_800 + 256);
    assert_eq!(
        count(directory("qwen3"), &[]),
        3 * (layer + 128) + 153_600 + 256
    );
    assert_eq!(
        count(directory("olmo2"), &[]),
        3 * (layer + 384) + 153_600 + 256
    );
    assert_eq!(
        count(directory("gemma2"), &[]),
        3 * (layer + 512) + 76_800 + 256
    );
    // Four experts of 96 with a router in one layer of three.
    let experts = [
        ("num_experts", Value::U64(4)),
        ("num_experts_per_tok", Value::U64(2)),
        ("moe_intermediate_size", Value::U64(96)),
        ("decoder_sparse_step", Value::U64(2)),
    ];
    let mixture = 4 * (3 * 256 * 96 + 256);
    assert_eq!(
        count(directory("qwen3_moe"), &experts),
        3 * (layer + 128) - 393_216 + mixture + 153_600 + 256
    );
}

#[test]
fn facts_say_what_a_model_is() {
    let facts = |fake: Fake, values: &[(&str, Value)]| {
        let facts = with(fake, values).unwrap().facts();
        let lines: Vec<String> = facts.iter().map(|(k, v)| format!("{k}: {v}")).collect();
        lines
    };
    assert_eq!(
        facts(llama(), &[]),
        [
            "architecture: llama",
            "parameters: 1.92 M",
            "layers: 3",
            "width: 256",
            "heads: 4 (2 for keys and values) of 64",
            "feed-forward: 512 (SiLU)",
            "vocabulary: 300",
            "trained context: 2048",
            "rope: theta 10000, not scaled",
        ]
    );
    let gemma = facts(
        directory("gemma3"),
        &[
            ("sliding_window", Value::U64(9)),
            ("sliding_window_pattern", Value::U64(2)),
        ],
    );
    for fact in [
        "vocabulary: 300, tied",
        "feed-forward: 512 (GELU by tanh)",
        "query and key norm: per head",
        "norms: before and after each part",
        "rope of windowed layers: theta 10000, not scaled",
        "attention window: 9 in 2 layers",
    ] {
        assert!(gemma.iter().any(|f| f == fact), "{gemma:?} lacks {fact}");
    }
    let olmo = facts(directory("olmo2"), &[]);
    for fact in ["query and key norm: per row", "norms: after each part"] {
        assert!(olmo.iter().any(|f| f == fact), "{olmo:?} lacks {fact}");
    }
    let smol = facts(
        directory("smollm3"),
        &[("no_rope_layer_interval", Value::U64(2))],
    );
    assert!(smol.contains(&"layers without rope: 1".into()), "{smol:?}");
    let oss = facts(
        directory("gpt_oss"),
        &[
            ("sliding_window", Value::U64(9)),
            ("num_local_experts", Value::U64(4)),
            ("num_experts_per_tok", Value::U64(2)),
        ],
    );
    for fact in [
        "feed-forward: 2 of 4 experts of 512 (clamped SiLU)",
        "attention sinks: one per head",
        "attention window: 9 in 2 layers",
    ] {
        assert!(oss.iter().any(|f| f == fact), "{oss:?} lacks {fact}");
    }
    let linear = [
        ("llama.rope.scaling.type", text("linear")),
        ("llama.rope.scaling.factor", Value::F64(4.0)),
    ];
    assert_eq!(
        with(llama(), &linear).unwrap().rope.scaling,
        Scaling::Linear { factor: 4.0 }
    );
    let rope = "rope: theta 10000, scaled by 4".to_string();
    assert!(facts(llama(), &linear).contains(&rope));
}

#[test]
fn scalings_are_named() {
    let (factor, original, magnitude) = (4.0, 512, 1.0);
    let yarn = Scaling::Yarn {
        factor,
        original,
        beta_fast: 32.0,
        beta_slow: 1.0,
        magnitude,
        truncate: true,
    };
    let llama3 = Scaling::Llama3 {
        factor,
        low: 1.0,
        high: 4.0,
        original,
    };
    let long = Scaling::Long {
        original,
        magnitudes: [magnitude; 2],
    };
    for (scaling, name) in [
        (yarn, "YaRN scaling by 4 from 512 positions"),
        (llama3, "Llama 3 scaling by 4 from 512 positions"),
        (long, "LongRoPE scaling from 512 positions"),
        (Scaling::Factors, "scaled by a tensor of factors"),
    ] {
        assert_eq!(scaling.to_string(), name);
    }
}

#[test]
fn sections_of_axes() {
    let list = |numbers: &[u64]| Value::Array(numbers.iter().map(|n| Value::U64(*n)).collect());
    let sections = |spec: ModelSpec| spec.rope.sections.map(|s| (s.pairs, s.interleaved));
    let key = "rope_scaling.mrope_section";
    let of = |numbers: &[u64]| with(directory("qwen2_vl_text"), &[(key, list(numbers))]);
    assert_eq!(sections(with(directory("qwen2"), &[]).unwrap()), None);
    assert_eq!(
        sections(of(&[8, 12, 12]).unwrap()),
        Some(([8, 12, 12], false))
    );
    let turns = [
        ("rope_parameters.mrope_section", list(&[12, 10, 10])),
        ("rope_parameters.mrope_interleaved", Value::Bool(true)),
    ];
    let turns = with(directory("qwen2_vl_text"), &turns).unwrap();
    assert_eq!(sections(turns), Some(([12, 10, 10], true)));
    let gguf = [("qwen2vl.rope.dimension_sections", list(&[8, 12, 12, 0]))];
    let gguf = with(fake("qwen2vl", Dialect::Gguf), &gguf).unwrap();
    assert_eq!(sections(gguf), Some(([8, 12, 12], false)));
    refused(
        of(&[8, 12, 13]),
        &[key, "adds up to 33; must be 32, half of 64"],
    );
    for wrong in [&[8, 24][..], &[8, 12, 12, 1], &[300, 0, 0], &[]] {
        refused(of(wrong), &[key, "is not a list of three numbers"]);
    }
    let text = with(directory("qwen2_vl_text"), &[(key, text("8"))]);
    refused(text, &[key, "is not a list"]);
}

/// What Qwen3-VL needs for images is not guessed.
#[test]
fn keys_of_images_that_are_missing_are_named() {
    let list = |numbers: &[u64]| Value::Array(numbers.iter().map(|n| Value::U64(*n)).collect());
    let axes = ("rope_scaling.mrope_section", list(&[12, 10, 10]));
    let vision = ("vision_config.hidden_size", Value::U64(48));
    let deep_key = "vision_config.deepstack_visual_indexes";
    let of = |values: &[(&str, Value)]| with(directory("qwen3_vl"), values);
    refused(of(&[]), &["rope_scaling.mrope_section", "is missing"]);
    assert!(
        of(std::slice::from_ref(&axes))
            .unwrap()
            .deep_features
            .is_empty()
    );
    let both = [axes, vision];
    refused(of(&both), &[deep_key, "is missing"]);
    let [axes, vision] = both;
    let wrong = (deep_key, Value::U64(2));
    refused(
        of(&[axes.clone(), vision.clone(), wrong]),
        &[deep_key, "is not a list"],
    );
    let deep = (deep_key, list(&[0, 1]));
    assert_eq!(of(&[axes, vision, deep]).unwrap().deep_features, [0, 1]);
    let gguf = |values: &[(&str, Value)]| with(fake("qwen3vl", Dialect::Gguf), values);
    let axes = ("qwen3vl.rope.dimension_sections", list(&[12, 10, 10, 0]));
    refused(gguf(&[]), &[axes.0, "is missing"]);
    let deep_key = "qwen3vl.n_deepstack_layers";
    refused(gguf(std::slice::from_ref(&axes)), &[deep_key, "is missing"]);
    let deep = (deep_key, Value::U64(1));
    assert_eq!(gguf(&[axes, deep]).unwrap().deep_features, [0]);
}

/// Granite Vision 4 in GGUF numbers the parts of features by the layers that they are added before.
#[test]
fn parts_of_features_are_numbered_by_layers() {
    let key = "granite.deepstack_mapping";
    let of = |numbers: &[i64]| {
        let list = numbers.iter().map(|n| Value::I64(*n)).collect();
        with(fake("granite", Dialect::Gguf), &[(key, Value::Array(list))])
    };
    assert!(of(&[-1, -1]).unwrap().deep_features.is_empty());
    assert_eq!(of(&[-1, 1]).unwrap().deep_features, [0]);
    assert_eq!(of(&[-1, 1, 2]).unwrap().deep_features, [0, 1]);
    for wrong in [&[-1, 2][..], &[1, -1], &[-1, 2, 1]] {
        refused(of(wrong), &[key, "does not number parts"]);
    }
    refused(of(&[-1, 1, -1, -1, 2]), &[key, "names layer 4 of 3"]);
    let text = with(fake("granite", Dialect::Gguf), &[(key, text("8"))]);
    refused(text, &[key, "is not a list"]);
}
