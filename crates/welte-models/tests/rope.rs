//! How contexts beyond the original one change rope's frequencies and magnitude.

mod common;

use common::{Fake, Recipe};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{CompileOptions, compile, spec};
use welte_table::{Format, Op, Source, params};

/// Trained for 2048 positions, originally for 1024.
fn model(dialect: Dialect) -> Fake {
    let recipe = Recipe {
        dialect,
        ..Recipe::default()
    };
    let mut fake = recipe.build();
    let original = recipe.key(
        "rope.scaling.original_context_length",
        "original_max_position_embeddings",
    );
    fake.set(&original, Value::U64(1024));
    fake
}

/// Rope's 32 frequencies and the magnitude, compiled for this context.
fn rope(fake: &Fake, context: u32) -> (Vec<f32>, f32) {
    let options = CompileOptions {
        context,
        ..CompileOptions::default()
    };
    let program = welte_table::fuse(
        compile(&spec(fake).unwrap(), fake, &options).unwrap(),
        welte_table::PATTERNS,
    );
    let command = program.passes[0]
        .commands
        .iter()
        .find(|c| c.op == Op::RopeAppend)
        .unwrap();
    let Source::Constant(values) = &program.weights[command.weights[0] as usize].source else {
        panic!("rope's frequencies are constants")
    };
    let magnitude = params::RopeAppend::of(&command.params).magnitude;
    assert_eq!(values.len(), 32);
    (values.clone(), magnitude)
}

#[track_caller]
fn near(got: f32, expected: f32) {
    assert!((got / expected - 1.0).abs() < 1e-6, "{got} {expected}");
}

/// 10000^(-2/64), the second frequency before scaling.
const SECOND: f32 = 0.749_894_2;

/// LongRoPE with factors of 2 within the original context and 4 beyond it.
fn long(dialect: Dialect) -> Fake {
    let mut fake = model(dialect);
    match dialect {
        Dialect::Gguf => {
            fake.add("rope_factors_short.weight", Format::F32, 1, 32);
            fake.add("rope_factors_long.weight", Format::F32, 1, 32);
        }
        Dialect::HuggingFace => {
            let list = |value| Value::Array(vec![Value::F64(value); 32]);
            fake.set("rope_scaling.type", Value::String("longrope".into()));
            fake.set("rope_scaling.short_factor", list(2.0));
            fake.set("rope_scaling.long_factor", list(4.0));
        }
    }
    fake
}

#[test]
fn longrope_takes_the_long_factors_only_beyond_the_original_context() {
    for dialect in [Dialect::Gguf, Dialect::HuggingFace] {
        let fake = long(dialect);
        for (context, first) in [
            (16, 0.5),
            (1023, 0.5),
            (1024, 0.5),
            (1025, 0.25),
            (2048, 0.25),
        ] {
            let (frequencies, magnitude) = rope(&fake, context);
            assert_eq!(frequencies[0], first, "{dialect:?} {context}");
            near(frequencies[1], first * SECOND);
            // The root of 1 + ln 2 / ln 1024, whatever the context at hand.
            near(magnitude, 1.048_808_8);
        }
    }
}

#[test]
fn longropes_magnitude_is_one_without_stretch_or_as_the_file_says() {
    let mut fake = long(Dialect::Gguf);
    fake.set(
        "llama.rope.scaling.original_context_length",
        Value::U64(2048),
    );
    assert_eq!(rope(&fake, 16).1, 1.0);
    fake.set(
        "llama.rope.scaling.original_context_length",
        Value::U64(4096),
    );
    assert_eq!(rope(&fake, 16).1, 1.0);
    fake.set("llama.rope.scaling.attn_factor", Value::F64(1.25));
    assert_eq!(rope(&fake, 16).1, 1.25);
    let mut fake = long(Dialect::HuggingFace);
    fake.set("rope_scaling.factor", Value::F64(32.0));
    // The root of 1 + ln 32 / ln 1024.
    near(rope(&fake, 16).1, 1.224_744_9);
    fake.set("rope_scaling.attention_factor", Value::F64(1.19));
    assert_eq!(rope(&fake, 16).1, 1.19);
}

#[test]
fn yarns_magnitude_is_multiplied_by_attn_factor_in_gguf() {
    let mut fake = model(Dialect::Gguf);
    fake.set("llama.rope.scaling.type", Value::String("yarn".into()));
    fake.set("llama.rope.scaling.factor", Value::F64(4.0));
    // 0.1 ln 4 + 1.
    near(rope(&fake, 16).1, 1.138_629_4);
    fake.set("llama.rope.scaling.attn_factor", Value::F64(0.5));
    near(rope(&fake, 16).1, 0.569_314_7);
    fake.set("llama.rope.scaling.attn_factor", Value::F64(2.0));
    near(rope(&fake, 16).1, 2.277_258_9);
    fake.set("llama.rope.scaling.factor", Value::F64(1.0));
    near(rope(&fake, 16).1, 2.0);
}

#[test]
fn yarns_magnitude_is_replaced_by_attention_factor_in_directories() {
    let mut fake = model(Dialect::HuggingFace);
    fake.set("rope_scaling.rope_type", Value::String("yarn".into()));
    fake.set("rope_scaling.factor", Value::F64(4.0));
    near(rope(&fake, 16).1, 1.138_629_4);
    fake.set("rope_scaling.attention_factor", Value::F64(1.5));
    assert_eq!(rope(&fake, 16).1, 1.5);
}

/// Pairs of a number and the frequency with that number.
#[track_caller]
fn has(frequencies: &[f32], expected: &[(usize, f32)]) {
    for (i, expected) in expected {
        let got = frequencies[*i];
        assert!((got / expected - 1.0).abs() < 1e-6, "{i}: {got} {expected}");
    }
}

#[test]
fn yarns_ramp_begins_and_ends_at_its_turns() {
    // Computed by an independent script from the published formula.
    let usual = [
        (0, 1.0),
        (5, 0.237_137_4),
        (6, 0.167_568_6),
        (8, 0.082_692_31),
        (12, 0.018_852_04),
        (17, 0.002_307_367),
        (18, 0.001_405_853),
        (31, 3.333_804e-5),
    ];
    let other = [
        (0, 1.0),
        (6, 0.177_827_9),
        (8, 0.1),
        (10, 0.045_690_23),
        (14, 0.007_779_972),
        (16, 0.0025),
        (17, 0.001_874_736),
        (31, 3.333_804e-5),
    ];
    let mut gguf = model(Dialect::Gguf);
    gguf.set("llama.rope.scaling.type", Value::String("yarn".into()));
    gguf.set("llama.rope.scaling.factor", Value::F64(4.0));
    let mut directory = model(Dialect::HuggingFace);
    let original = directory.metadata["original_max_position_embeddings"].clone();
    directory.set("rope_scaling.original_max_position_embeddings", original);
    directory.set("rope_scaling.type", Value::String("yarn".into()));
    directory.set("rope_scaling.factor", Value::F64(4.0));
    for (fake, turns) in [
        (
            &mut gguf,
            [
                "llama.rope.scaling.yarn_beta_fast",
                "llama.rope.scaling.yarn_beta_slow",
            ],
        ),
        (
            &mut directory,
            ["rope_scaling.beta_fast", "rope_scaling.beta_slow"],
        ),
    ] {
        has(&rope(fake, 16).0, &usual);
        fake.set(turns[0], Value::F64(16.0));
        fake.set(turns[1], Value::F64(2.0));
        has(&rope(fake, 16).0, &other);
    }
    // Over a context so long every pair up to 53 turns often enough to be kept.
    directory.set(
        "rope_scaling.original_max_position_embeddings",
        Value::U64(1 << 30),
    );
    has(
        &rope(&directory, 16).0,
        &[(1, SECOND), (31, 1.333_521_4e-4)],
    );
    // With base 10 the ramp begins at pair 22 and would end at 71, but ends at the last element, 63.
    let mut steep = model(Dialect::Gguf);
    steep.set("llama.rope.scaling.type", Value::String("yarn".into()));
    steep.set("llama.rope.scaling.factor", Value::F64(4.0));
    steep.set("llama.rope.freq_base", Value::F64(10.0));
    has(
        &rope(&steep, 16).0,
        &[(22, 0.205_352_5), (31, 0.089_769_07)],
    );
}

#[test]
fn scaling_goes_by_its_names_in_files() {
    let frequencies = |values: &[(&str, Value)]| {
        let mut fake = model(Dialect::Gguf);
        for (key, value) in values {
            fake.set(key, value.clone());
        }
        rope(&fake, 16).0
    };
    let kind = |kind: &str| ("llama.rope.scaling.type", Value::String(kind.into()));
    let factor = ("llama.rope.scaling.factor", Value::F64(4.0));
    let old = ("llama.rope.scale_linear", Value::F64(8.0));
    assert_eq!(frequencies(&[])[0], 1.0);
    assert_eq!(frequencies(&[kind("none"), factor.clone()])[0], 1.0);
    assert_eq!(frequencies(&[kind("linear"), factor.clone()])[0], 0.25);
    assert_eq!(frequencies(std::slice::from_ref(&old))[0], 0.125);
    // The newer key wins.
    assert_eq!(frequencies(&[kind("none"), old])[0], 1.0);
    has(
        &frequencies(&[("llama.rope.freq_base", Value::F64(1e6))]),
        &[(0, 1.0), (1, 0.649_381_6), (31, 1.539_926_5e-6)],
    );
}

#[test]
fn the_base_goes_by_its_names_in_directories() {
    for key in [
        "rope_theta",
        "rope_parameters.rope_theta",
        "rope_parameters.full_attention.rope_theta",
    ] {
        let mut fake = model(Dialect::HuggingFace);
        fake.metadata.remove("rope_theta");
        fake.set(key, Value::F64(1e6));
        has(&rope(&fake, 16).0, &[(1, 0.649_381_6)]);
    }
}

#[test]
fn what_is_wrong_is_named() {
    #[track_caller]
    fn refused(fake: &Fake, words: &[&str]) {
        let compiled = spec(fake).and_then(|s| compile(&s, fake, &CompileOptions::default()));
        let error = compiled.expect_err("must be refused").to_string();
        for word in words {
            assert!(error.contains(word), "'{error}' does not say '{word}'");
        }
    }
    let directory = |kind: &str, values: &[(&str, Value)]| {
        let mut fake = model(Dialect::HuggingFace);
        fake.set("rope_scaling.rope_type", Value::String(kind.into()));
        for (key, value) in values {
            fake.set(&format!("rope_scaling.{key}"), value.clone());
        }
        fake
    };
    let float = Value::F64;
    for factor in [0.5, 0.999] {
        let fake = directory("yarn", &[("factor", float(factor))]);
        refused(&fake, &["rope_scaling.factor", "must be at least 1"]);
    }
    for high in [0.5, 0.9] {
        let values = [
            ("factor", float(8.0)),
            ("low_freq_factor", float(1.0)),
            ("high_freq_factor", float(high)),
            ("original_max_position_embeddings", Value::U64(64)),
        ];
        let fake = directory("llama3", &values);
        refused(
            &fake,
            &["high_freq_factor", "must not be below low_freq_factor, 1"],
        );
    }
    refused(&directory("su", &[]), &["'su'", "longrope"]);
    for (list, problem) in [
        (vec![float(2.0); 31], "must be 32 finite numbers above 0"),
        (vec![float(0.0); 32], "must be 32 finite numbers above 0"),
        (
            vec![float(f64::NAN); 32],
            "must be 32 finite numbers above 0",
        ),
        (
            vec![Value::I64(-1); 32],
            "must be 32 finite numbers above 0",
        ),
    ] {
        let mut fake = long(Dialect::HuggingFace);
        fake.set("rope_scaling.long_factor", Value::Array(list));
        refused(&fake, &["rope_scaling.long_factor", problem]);
    }
    let mut whole = long(Dialect::HuggingFace);
    whole.set(
        "rope_scaling.long_factor",
        Value::Array(vec![Value::U64(4); 32]),
    );
    assert_eq!(rope(&whole, 2048).0[0], 0.25);
    whole.metadata.remove("rope_scaling.long_factor");
    refused(&whole, &["long_factor", "is missing"]);
    for (format, n, k) in [
        (Format::F16, 1, 32),
        (Format::F32, 2, 32),
        (Format::F32, 1, 31),
    ] {
        let mut fake = long(Dialect::Gguf);
        let tensor = fake.tensor_mut("rope_factors_long.weight");
        (tensor.format, tensor.n, tensor.k) = (format, n, k);
        refused(
            &fake,
            &["rope_factors_long.weight", "expected F32 of 1 x 32"],
        );
    }
}
