//! The metadata that a loader needs.

use super::keys::Keys;
use super::recipe::Recipe;
use super::shape::{Family, Shape, TAPS};
use super::{gemma3n, gemma4, hybrid, latent, vocabulary};
use crate::{Metadata, Value};

pub(super) fn metadata(shape: &Shape, name: &str, recipe: Recipe) -> Metadata {
    let text = |s: &str| Value::String(s.to_string());
    let general = [
        ("architecture", text(shape.architecture())),
        ("name", text(&format!("{name} (random weights)"))),
        ("file_type", Value::U64(recipe.file_type().into())),
        ("quantization_version", Value::U64(2)),
    ];
    let general = general.map(|(key, value)| (format!("general.{key}"), value));
    let mut keys = Keys {
        metadata: Metadata::from(general),
        shape,
    };
    keys.numbers(&[
        ("context_length", shape.context),
        ("embedding_length", shape.dim),
        ("block_count", shape.layers + usize::from(shape.draft)),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.vocab),
    ]);
    if shape.draft {
        keys.numbers(&[("nextn_predict_layers", 1)]);
    }
    keys.floats(&[
        ("rope.freq_base", shape.rope_base),
        ("attention.layer_norm_rms_epsilon", shape.norm_epsilon),
    ]);
    match &shape.family {
        Family::Llama | Family::Qwen2 | Family::Qwen3 => {}
        Family::Qwen3Moe | Family::PhiMoe => keys.experts(),
        Family::Gemma3 => keys.numbers(&[("attention.sliding_window", shape.window)]),
        Family::GptOss => gpt_oss(&mut keys),
        Family::Qwen35 => qwen35(&mut keys),
        Family::Qwen35Moe => {
            qwen35(&mut keys);
            keys.experts();
            keys.numbers(&[("expert_shared_feed_forward_length", shape.ffn)]);
        }
        Family::Gemma4(own) => gemma4::describe(&mut keys, own),
        Family::Gemma3n(own) => gemma3n::describe(&mut keys, own),
        Family::Hybrid(own) => hybrid::describe(&mut keys, own),
        Family::Latent(own) => latent::describe(&mut keys, own),
    }
    let pre = match shape.family {
        Family::Llama | Family::Gemma3 | Family::Gemma3n(_) | Family::Gemma4(_) => "llama-bpe",
        Family::GptOss => "gpt-4o",
        Family::Qwen35 | Family::Qwen35Moe => "qwen35",
        _ => "qwen2",
    };
    vocabulary::add(&mut keys.metadata, pre, shape.vocab);
    keys.metadata
}

fn gpt_oss(keys: &mut Keys<'_>) {
    let shape = keys.shape;
    keys.experts();
    keys.numbers(&[
        ("attention.sliding_window", shape.window),
        ("rope.scaling.original_context_length", 4096),
    ]);
    keys.put("rope.scaling.type", Value::String("yarn".to_string()));
    let factor = shape.scaling.map_or(32.0, |s| s.factor);
    keys.floats(&[("rope.scaling.factor", factor)]);
}

fn qwen35(keys: &mut Keys<'_>) {
    let shape = keys.shape;
    let delta = shape.delta;
    keys.numbers(&[
        ("rope.dimension_count", shape.head_dim / 4),
        ("full_attention_interval", shape.interval()),
        ("ssm.conv_kernel", TAPS),
        ("ssm.state_size", delta.dim),
        ("ssm.group_count", delta.key_heads),
        ("ssm.time_step_rank", delta.heads),
        ("ssm.inner_size", delta.heads * delta.dim),
    ]);
    // The rotated pairs of text and of the two dimensions of pictures.
    let pairs = shape.head_dim / 8;
    let sections = [pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3, 0];
    let sections = sections.map(|pairs| Value::U64(pairs as u64));
    keys.put("rope.dimension_sections", Value::Array(sections.into()));
}
