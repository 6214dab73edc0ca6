//! Gemma 2 and 3: what their GGUF files do not say, with the published sizes.

mod common;

use common::{Fake, Recipe};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{ModelSpec, Scaling, spec};

/// The sizes of a published model, by a file of this dialect.
fn model(
    architecture: &'static str,
    dialect: Dialect,
    layers: u32,
    dim: u32,
    heads: u32,
    head_dim: u32,
) -> Fake {
    let recipe = Recipe {
        architecture,
        dialect,
        layers,
        dim,
        heads,
        kv_heads: heads / 2,
        head_dim,
        ..Recipe::default()
    };
    let mut fake = recipe.build();
    let window = recipe.key("attention.sliding_window", "sliding_window");
    fake.set(&window, Value::U64(512));
    fake
}

fn gguf(architecture: &'static str, layers: u32, dim: u32, heads: u32, head_dim: u32) -> ModelSpec {
    spec(&model(
        architecture,
        Dialect::Gguf,
        layers,
        dim,
        heads,
        head_dim,
    ))
    .unwrap()
}

#[track_caller]
fn near(got: f32, expected: f32) {
    assert!((got / expected - 1.0).abs() < 1e-6, "{got} {expected}");
}

#[test]
fn the_largest_models_in_gguf_scale_scores_by_the_width_of_a_head_in_the_stream() {
    // 27B: 4608 / 32 = 144 in Gemma 2, 5376 / 32 = 168 in Gemma 3.
    near(
        gguf("gemma2", 46, 4608, 32, 128).attention_scale,
        1.0 / 12.0,
    );
    near(
        gguf("gemma3", 62, 5376, 32, 128).attention_scale,
        0.077_151_67,
    );
    // The others divide by the root of their head size, 256.
    near(gguf("gemma2", 26, 2304, 8, 256).attention_scale, 1.0 / 16.0);
    near(
        gguf("gemma2", 42, 3584, 16, 256).attention_scale,
        1.0 / 16.0,
    );
    near(gguf("gemma3", 26, 1152, 4, 256).attention_scale, 1.0 / 16.0);
    near(
        gguf("gemma3", 48, 3840, 16, 256).attention_scale,
        1.0 / 16.0,
    );
    // As many layers as the largest model of the other generation.
    near(gguf("gemma2", 62, 5376, 32, 64).attention_scale, 1.0 / 8.0);
    near(gguf("gemma3", 46, 4608, 32, 64).attention_scale, 1.0 / 8.0);
}

#[test]
fn directories_name_the_scale() {
    for (architecture, layers) in [("gemma2", 46), ("gemma3", 62)] {
        let mut fake = model(architecture, Dialect::HuggingFace, layers, 4608, 32, 256);
        near(spec(&fake).unwrap().attention_scale, 1.0 / 16.0);
        fake.set("query_pre_attn_scalar", Value::U64(144));
        near(spec(&fake).unwrap().attention_scale, 1.0 / 12.0);
    }
}

#[test]
fn what_sets_the_generations_apart() {
    let two = gguf("gemma2", 4, 1024, 4, 256);
    assert_eq!(two.windows, [512, 0, 512, 0]);
    assert_eq!((two.attention_softcap, two.logit_softcap), (50.0, 30.0));
    assert_eq!(two.local_rope, None);
    let three = gguf("gemma3", 7, 1024, 4, 256);
    assert_eq!(three.windows, [512, 512, 512, 512, 512, 0, 512]);
    assert_eq!((three.attention_softcap, three.logit_softcap), (0.0, 0.0));
    assert_eq!(three.local_rope.unwrap().theta, 10_000.0);
    // Base and scaling are those of layers without a window.
    let mut long = model("gemma3", Dialect::Gguf, 7, 1024, 4, 256);
    long.set("gemma3.rope.freq_base", Value::F64(1e6));
    long.set("gemma3.rope.scaling.type", Value::String("linear".into()));
    long.set("gemma3.rope.scaling.factor", Value::F64(8.0));
    let long = spec(&long).unwrap();
    assert_eq!(long.rope.theta, 1e6);
    let local = long.local_rope.unwrap();
    assert_eq!((local.theta, local.scaling), (10_000.0, Scaling::None));
    for spec in [two, three, gguf("gemma", 2, 1024, 4, 256)] {
        assert_eq!(spec.embedding_scale, 32.0);
        // GGUF stores norm weights with one added, directories without.
        assert_eq!(spec.norm_add, 0.0);
        assert!(spec.tied);
        assert_eq!(spec.post_norm, spec.architecture != "gemma");
    }
    let directory = model("gemma2", Dialect::HuggingFace, 2, 1024, 4, 256);
    assert_eq!(spec(&directory).unwrap().norm_add, 1.0);
}
