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

/// Rope's first frequencies and the magnitude, compiled for this context.
fn rope(fake: &Fake, context: u32) -> ([f32; 2], f32) {
    let options = CompileOptions {
        context,
        ..CompileOptions::default()
    };
    let program = compile(&spec(fake).unwrap(), fake, &options).unwrap();
    let command = program.passes[0]
        .commands
        .iter()
        .find(|c| c.op == Op::RopeAppend)
        .unwrap();
    let Source::Constant(values) = &program.weights[command.weights[0] as usize].source else {
        panic!("rope's frequencies are constants")
    };
    let magnitude = params::RopeAppend::of(&command.params).magnitude;
    ([values[0], values[1]], magnitude)
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
