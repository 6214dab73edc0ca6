//! The metadata of a translated checkpoint.

use crate::keys::Keys;
use crate::rope;
use crate::spec::{Limits, Scaling, Scoring};
use crate::{Latent, LayerKind, LayerRope, ModelSpec, NormKind, SelectiveNorms};
use welte_formats::checkpoint::{Metadata, Value};

/// Architectures whose files list the layers with a window.
const LISTS_WINDOWS: [&str; 8] = [
    "cohere2moe",
    "flint",
    "granite_swa",
    "lfm3",
    "mellum",
    "mimo2",
    "muse-glimmer",
    "step35",
];

/// What the reader asked for under the names of both dialects.
pub(super) fn noted(keys: &Keys<'_>, architecture: &str) -> Metadata {
    let mut metadata = Metadata::new();
    for (gguf, hf) in keys.both_names() {
        if let Some(value @ (Value::U64(_) | Value::I64(_) | Value::F64(_) | Value::Bool(_))) =
            keys.value(&hf)
        {
            metadata.insert(format!("{architecture}.{gguf}"), value.clone());
        }
    }
    metadata
}

/// Writes the keys whose values configurations spell in another way.
pub(super) fn write_spec(metadata: &mut Metadata, spec: &ModelSpec, architecture: &str) {
    let number = |value: u32| Some(Value::U64(value.into()));
    let float = |value: f32| Some(Value::F64(value.into()));
    metadata.insert(
        "general.architecture".into(),
        Value::String(architecture.into()),
    );
    metadata.insert("general.type".into(), Value::String("model".into()));
    let mut set = |key: &str, value: Option<Value>| {
        let key = format!("{architecture}.{key}");
        match value {
            Some(value) => metadata.insert(key, value),
            None => metadata.remove(&key),
        };
    };
    set("block_count", number(spec.layers));
    set("nextn_predict_layers", None);
    set("context_length", number(spec.context));
    set("embedding_length", number(spec.dim));
    set("vocab_size", number(spec.vocab));
    let each = |one: u32, of: &dyn Fn(crate::LayerShape) -> u32| {
        if spec.layer_shapes.is_empty() {
            return number(one);
        }
        let list = spec.layer_shapes.iter();
        Some(Value::Array(
            list.map(|shape| Value::U64(of(*shape).into())).collect(),
        ))
    };
    set(
        "attention.head_count",
        where_attended(spec, each(spec.heads, &|shape| shape.heads)),
    );
    set("feed_forward_length", each(spec.ffn, &|shape| shape.ffn));
    if let Some(l) = spec.latent {
        write_latents(spec, l, &mut set);
    } else {
        set(
            "attention.head_count_kv",
            where_attended(spec, each(spec.kv_heads, &|shape| shape.kv_heads)),
        );
        set("attention.key_length", number(spec.head_dim));
        let value = spec.value_dim.unwrap_or(spec.head_dim);
        set("attention.value_length", number(value));
    }
    let epsilon = match spec.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer { .. } | NormKind::Plain => "attention.layer_norm_epsilon",
    };
    set(epsilon, float(spec.eps));
    let window = spec.windows.iter().copied().find(|window| *window > 0);
    set("attention.sliding_window", window.and_then(number));
    if let Some(experts) = &spec.experts {
        set("expert_count", number(experts.count));
        set("expert_used_count", number(experts.used));
        set("expert_feed_forward_length", number(experts.ffn));
        let scoring = match experts.scoring {
            Scoring::Softmax | Scoring::Mixer => 1,
            Scoring::Sigmoid => 2,
        };
        set("expert_gating_func", number(scoring));
        let plain = spec.expert_layers.iter().take_while(|mixed| !**mixed);
        if let Ok(plain @ 1..) = u32::try_from(plain.count()) {
            set("leading_dense_block_count", number(plain));
        }
        if let Some(shared) = experts.shared {
            set("expert_shared_feed_forward_length", number(shared.ffn));
        }
    }
    // Those that configurations have in another form.
    if spec.residual_scale != 1.0 {
        set("embedding_scale", float(spec.embedding_scale));
        set("residual_scale", float(spec.residual_scale));
        // Granite divides by it.
        let divides = spec.architecture != "hyperclovax";
        let scale = spec.logit_scale;
        set(
            "logit_scale",
            float(if divides { 1.0 / scale } else { scale }),
        );
    }
    if let Some(scale) = spec.position_scale {
        set("attention.temperature_scale", float(scale.beta));
    }
    write_delta(spec, &mut set);
    if spec.layer_kinds.contains(&LayerKind::Conv) {
        set("attention.head_count_kv", Some(heads_by_layer(spec)));
    }
    if LISTS_WINDOWS.contains(&architecture) {
        let windows = spec.windows.iter();
        let list = windows.map(|window| Value::Bool(*window > 0)).collect();
        set("attention.sliding_window_pattern", Some(Value::Array(list)));
    }
    if architecture == "granite_swa" {
        let ropes = spec.layer_ropes.iter();
        let list = ropes.map(|rope| Value::Bool(*rope != LayerRope::None));
        let list = Value::Array(list.collect());
        set("attention.rope_pattern", Some(list));
    }
    if !spec.limits.is_empty() {
        type Of = fn(&Limits) -> Option<f32>;
        let of: [(&str, Of); 2] = [
            ("swiglu_clamp_exp", |limits| limits.experts),
            ("swiglu_clamp_shexp", |limits| limits.plain),
        ];
        for (key, of) in of {
            let limits = spec.limits.iter().map(of);
            let list = limits.map(|limit| Value::F64(limit.unwrap_or(0.0).into()));
            set(key, Some(Value::Array(list.collect())));
        }
    }
    write_selective(spec, &mut set);
    let rope = &spec.rope;
    set("rope.dimension_count", number(rope.rot));
    if spec.architecture == "step35" {
        // Half of this is meant for layers without a window.
        set("rope.dimension_count", number(2 * rope.rot));
    }
    set("rope.freq_base", float(rope.theta));
    if let Some(local) = &spec.local_rope {
        set("rope.freq_base_swa", float(local.theta));
        if local.rot != rope.rot || spec.architecture == "step35" {
            set("rope.dimension_count_swa", number(local.rot));
        }
    }
    if let Some(sections) = rope.sections {
        let pairs = sections.pairs.into_iter().chain([0]);
        let list = pairs.map(|pairs| Value::U64(pairs.into())).collect();
        set("rope.dimension_sections", Some(Value::Array(list)));
    }
    let kind = |name: &str| Some(Value::String(name.into()));
    match rope.scaling {
        Scaling::Linear { factor } => {
            set("rope.scaling.type", kind("linear"));
            set("rope.scaling.factor", float(factor));
        }
        Scaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            magnitude,
            ..
        } => {
            let plain = rope::yarn_magnitude(factor.into(), 1.0);
            set("rope.scaling.type", kind("yarn"));
            set("rope.scaling.factor", float(factor));
            set("rope.scaling.original_context_length", number(original));
            set(
                "rope.scaling.attn_factor",
                Some(Value::F64(f64::from(magnitude) / plain)),
            );
            set("rope.scaling.yarn_beta_fast", float(beta_fast));
            set("rope.scaling.yarn_beta_slow", float(beta_slow));
            if let Some(l) = spec.latent {
                // Converters write a tenth of DeepSeek's weight.
                let tenth = if architecture == "mistral4" { 1.0 } else { 0.1 };
                let weight = yarn_weight(spec, l, factor);
                let weight = Some(tenth * weight).filter(|weight| weight.abs() > 1e-6);
                set("rope.scaling.yarn_log_multiplier", weight.map(Value::F64));
            }
        }
        Scaling::Long {
            original,
            magnitudes,
        } => {
            set("rope.scaling.original_context_length", number(original));
            set("rope.scaling.attn_factor", float(magnitudes[0]));
        }
        Scaling::None
        | Scaling::Dynamic { .. }
        | Scaling::Llama3 { .. }
        | Scaling::Proportional { .. }
        | Scaling::Factors => (),
    }
}

/// Llama-Nemotron has no heads in layers without attention.
fn where_attended(spec: &ModelSpec, heads: Option<Value>) -> Option<Value> {
    match heads {
        Some(Value::Array(list)) if spec.architecture == "deci" => {
            let all = list.into_iter().zip(&spec.layer_kinds);
            let own = all.map(|(heads, kind)| match kind {
                LayerKind::Attention => heads,
                _ => Value::U64(0),
            });
            Some(Value::Array(own.collect()))
        }
        heads => heads,
    }
}

/// Writes the keys of layers with the gated delta rule.
fn write_delta(spec: &ModelSpec, set: &mut dyn FnMut(&str, Option<Value>)) {
    let Some(delta) = &spec.delta else {
        return;
    };
    let number = |value: u32| Some(Value::U64(value.into()));
    set("ssm.conv_kernel", number(delta.taps));
    if delta.by_channel {
        set("kda.head_dim", number(delta.key_dim));
        set("attention.head_count_kv", Some(heads_by_layer(spec)));
        return;
    }
    set("ssm.state_size", number(delta.key_dim));
    set("ssm.group_count", number(delta.key_heads));
    set("ssm.time_step_rank", number(delta.heads));
    set("ssm.inner_size", number(delta.values()));
    let attention = |kind: &LayerKind| *kind == LayerKind::Attention;
    let every = spec.layer_kinds.iter().position(attention);
    let every = every.map_or(spec.layers, |first| first as u32 + 1);
    let mut kinds = (1..).zip(&spec.layer_kinds);
    if kinds.all(|(at, kind)| attention(kind) == u32::is_multiple_of(at, every)) {
        set("full_attention_interval", number(every));
    } else {
        let kinds = spec.layer_kinds.iter();
        let kinds = kinds.map(|kind| Value::Bool(!attention(kind)));
        set(
            "attention.recurrent_layers",
            Some(Value::Array(kinds.collect())),
        );
    }
}

/// Heads of keys of each layer: none without attention.
fn heads_by_layer(spec: &ModelSpec) -> Value {
    let heads = spec.layer_kinds.iter().map(|kind| match kind {
        LayerKind::Attention => Value::U64(spec.kv_heads.into()),
        _ => Value::U64(0),
    });
    Value::Array(heads.collect())
}

/// Writes the keys of layers with the state space model of Mamba-1.
fn write_selective(spec: &ModelSpec, set: &mut dyn FnMut(&str, Option<Value>)) {
    let Some((mamba, selective)) = spec.mamba.and_then(|m| Some((m, m.selective?))) else {
        return;
    };
    let number = |value: u32| Some(Value::U64(value.into()));
    set("ssm.conv_kernel", number(mamba.taps));
    set("ssm.state_size", number(mamba.key_dim));
    set("ssm.inner_size", number(mamba.values()));
    set("ssm.time_step_rank", number(selective.rank));
    if spec.alone {
        let normed = selective.norms == SelectiveNorms::Plain;
        set("ssm.dt_b_c_rms", Some(Value::Bool(normed)));
        for absent in ["attention.head_count", "feed_forward_length"] {
            set(absent, number(0));
        }
        for absent in ["head_count_kv", "key_length", "value_length"] {
            set(&format!("attention.{absent}"), None);
        }
    } else {
        set("attention.head_count_kv", Some(heads_by_layer(spec)));
    }
}

/// Files of MiniCPM3 have one matrix, as directories have it.
pub(super) fn latents_are_whole(spec: &ModelSpec) -> bool {
    spec.architecture == "minicpm3"
}

/// Writes the sizes of latents and of heads.
fn write_latents(spec: &ModelSpec, l: Latent, set: &mut dyn FnMut(&str, Option<Value>)) {
    let number = |value: u32| Some(Value::U64(value.into()));
    let apart = |value: u32| number(value).filter(|_| !latents_are_whole(spec));
    set("attention.kv_lora_rank", number(l.rank));
    set("attention.q_lora_rank", l.query_rank.and_then(number));
    set("attention.key_length_mla", apart(l.query()));
    set("attention.value_length_mla", apart(l.value));
    let (heads, key) = match latents_are_whole(spec) {
        true => (spec.heads, l.query()),
        false => (1, l.width()),
    };
    set("attention.head_count_kv", number(heads));
    set("attention.key_length", number(key));
    set("attention.value_length", apart(l.rank));
    let Some(indexer) = &spec.indexer else {
        return;
    };
    set("attention.indexer.head_count", number(indexer.heads));
    set("attention.indexer.key_length", number(indexer.head_dim));
    set("attention.indexer.top_k", number(indexer.used));
    // A file of GLM without the list may be read as one of GLM-5.2.
    if indexer.chooses.contains(&false) || spec.context >= 1 << 20 {
        let list = indexer.chooses.iter().copied().map(Value::Bool);
        set(
            "attention.indexer.types",
            Some(Value::Array(list.collect())),
        );
    }
}

/// The weight of YaRN's factor that made the scale of scores.
fn yarn_weight(spec: &ModelSpec, l: Latent, factor: f32) -> f64 {
    let plain = 1.0 / f64::from(l.query()).sqrt();
    let stretch = (f64::from(spec.attention_scale) / plain).sqrt();
    (stretch - 1.0) / (0.1 * f64::from(factor).ln())
}
