//! A GGUF file read as the Hugging Face directory of the same model: the names of [`as_gguf`](super::as_gguf) read the other way. What the
//! translation makes is read as any directory, and a spec that differs from the file's is an error.

use super::translated::{Order, Source, Tensors, Translated};
use super::{differing, layer_names};
use crate::arch::Architecture;
use crate::keys::Keys;
use crate::names::{self, Names, bias, weight};
use crate::read::{read, read_keys};
use crate::rope::{self, long_factors};
use crate::spec::{Act, Scaling};
use crate::{Error, LayerKind, LayerRope, ModelSpec, NormKind, QkNorm};
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, Value};
use welte_formats::quant;

/// An architecture that is written as a directory.
struct Class {
    /// Its name in a [`ModelSpec`].
    architecture: &'static str,
    /// The first that fits and has the same spec counts.
    forms: &'static [Form],
    /// What its configuration calls the epsilon of norms.
    eps: &'static str,
}

/// `model_type`, the class in transformers, and the models that this class computes: it may ignore keys that Welte reads.
type Form = (&'static str, &'static str, fn(&ModelSpec) -> bool);

const fn class(architecture: &'static str, forms: &'static [Form]) -> Class {
    Class {
        architecture,
        forms,
        eps: "rms_norm_eps",
    }
}

fn any(_: &ModelSpec) -> bool {
    true
}

fn dense(spec: &ModelSpec) -> bool {
    spec.experts.is_none()
}

fn mixed(spec: &ModelSpec) -> bool {
    spec.experts.is_some()
}

fn without_windows(spec: &ModelSpec) -> bool {
    spec.windows.iter().all(|window| *window == 0)
}

/// Those of Command-R+ are matrices, which files store as vectors.
fn without_head_norms(spec: &ModelSpec) -> bool {
    spec.qk_norm == QkNorm::None
}

const CLASSES: &[Class] = &[
    class(
        "llama",
        &[
            ("llama", "LlamaForCausalLM", dense),
            ("mistral", "MistralForCausalLM", dense),
            ("mixtral", "MixtralForCausalLM", mixed),
        ],
    ),
    class("qwen2", &[("qwen2", "Qwen2ForCausalLM", any)]),
    class("qwen3", &[("qwen3", "Qwen3ForCausalLM", any)]),
    class("qwen3moe", &[("qwen3_moe", "Qwen3MoeForCausalLM", any)]),
    class("gemma", &[("gemma", "GemmaForCausalLM", any)]),
    class("gemma2", &[("gemma2", "Gemma2ForCausalLM", any)]),
    class("gemma3", &[("gemma3_text", "Gemma3ForCausalLM", any)]),
    class("phi2", &[("phi", "PhiForCausalLM", any)]),
    class("phi3", &[("phi3", "Phi3ForCausalLM", any)]),
    class("olmo", &[("olmo", "OlmoForCausalLM", any)]),
    class(
        "olmo2",
        &[
            ("olmo2", "Olmo2ForCausalLM", without_windows),
            ("olmo3", "Olmo3ForCausalLM", any),
        ],
    ),
    class("olmoe", &[("olmoe", "OlmoeForCausalLM", any)]),
    class("smollm3", &[("smollm3", "SmolLM3ForCausalLM", any)]),
    Class {
        eps: "norm_epsilon",
        ..class(
            "starcoder2",
            &[("starcoder2", "Starcoder2ForCausalLM", any)],
        )
    },
    class("exaone4", &[("exaone4", "Exaone4ForCausalLM", any)]),
    class("seed_oss", &[("seed_oss", "SeedOssForCausalLM", any)]),
    class("granite", &[("granite", "GraniteForCausalLM", any)]),
    class("glm4", &[("glm4", "Glm4ForCausalLM", any)]),
    class("dots1", &[("dots1", "Dots1ForCausalLM", any)]),
    Class {
        eps: "layer_norm_eps",
        ..class("cohere2", &[("cohere2", "Cohere2ForCausalLM", any)])
    },
    Class {
        eps: "layer_norm_eps",
        ..class(
            "command-r",
            &[("cohere", "CohereForCausalLM", without_head_norms)],
        )
    },
    class("ernie4_5", &[("ernie4_5", "Ernie4_5ForCausalLM", any)]),
    class(
        "hunyuan-dense",
        &[("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", any)],
    ),
    class(
        "hunyuan-moe",
        &[("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", any)],
    ),
    class("arcee", &[("arcee", "ArceeForCausalLM", any)]),
    Class {
        eps: "norm_eps",
        ..class("nemotron", &[("nemotron", "NemotronForCausalLM", any)])
    },
    Class {
        eps: "layer_norm_eps",
        ..class("jais2", &[("jais2", "Jais2ForCausalLM", any)])
    },
    class(
        "vaultgemma",
        &[("vaultgemma", "VaultGemmaForCausalLM", any)],
    ),
    class("minimax-m2", &[("minimax_m2", "MiniMaxM2ForCausalLM", any)]),
];

/// Reads a GGUF file as a Hugging Face directory. `extra` has more of the configuration.
pub fn as_directory(from: Box<dyn Checkpoint>, extra: &Metadata) -> Result<Translated, Error> {
    let (arch, said) = Architecture::of(&*from)?;
    let keys = Keys::new(&*from, &said);
    if from.dialect() != Dialect::Gguf {
        return Err(keys.error("model_type", "is a directory already"));
    }
    let spec = read_keys(&keys, arch, &said)?;
    let Some(class) = CLASSES.iter().find(|class| class.architecture == arch.name) else {
        let known: Vec<&str> = CLASSES.iter().map(|class| class.architecture).collect();
        let problem = format!(
            "{said} cannot be written as a directory yet; known are {}",
            known.join(", ")
        );
        return Err(keys.error("general.architecture", problem));
    };
    if !class.forms.iter().any(|(_, _, fits)| fits(&spec)) {
        let problem = format!("no class of transformers computes this {said}");
        return Err(keys.error("general.architecture", problem));
    }
    let noted = noted(&keys, &said);
    let mut first = None;
    let mut from = Some(from);
    for (model_type, name, _) in class.forms.iter().filter(|form| (form.2)(&spec)) {
        let Some(own) = from.take() else { break };
        let named = |a: &&Architecture| a.hugging_face.contains(model_type);
        let form = Architecture::all().find(named).unwrap_or(arch);
        let mut metadata = noted.clone();
        write_spec(&mut metadata, &*own, &spec, class)?;
        let text = |text: &str| Value::String(text.into());
        metadata.insert("model_type".into(), text(model_type));
        metadata.insert("general.architecture".into(), text(model_type));
        metadata.insert("architectures".into(), Value::Array(vec![text(name)]));
        metadata.extend(extra.clone());
        let names = [&form.hugging_face_names, &arch.gguf_names];
        let tensors = tensors(&*own, names, &spec)?;
        let mut directory = Translated::new(own, Dialect::HuggingFace, metadata, tensors);
        let read_back = read(&directory, form, model_type)?;
        match same(&directory, &spec, &read_back) {
            Ok(()) => {
                directory.restore(&form.hugging_face_names, &spec, &read_back);
                return Ok(directory);
            }
            Err(error) => {
                first.get_or_insert(error);
                from = Some(directory.from);
            }
        }
    }
    Err(first.unwrap_or_else(|| Error::Key {
        origin: String::new(),
        key: "model_type".into(),
        problem: "is missing".into(),
    }))
}

/// What the reader asked for under the names of both dialects.
fn noted(keys: &Keys<'_>, said: &str) -> Metadata {
    let mut metadata = Metadata::new();
    for (gguf, hf) in keys.both_names() {
        let value = keys.value(&format!("{said}.{gguf}"));
        if let Some(value @ (Value::U64(_) | Value::I64(_) | Value::F64(_) | Value::Bool(_))) =
            value
        {
            metadata.insert(hf, value.clone());
        }
    }
    // Other spellings, or values that follow from others.
    for key in [
        "partial_rotary_factor",
        "num_nextn_predict_layers",
        "vocab_size",
    ] {
        metadata.remove(key);
    }
    metadata
}

/// Writes the configuration's own spellings.
fn write_spec(
    metadata: &mut Metadata,
    from: &dyn Checkpoint,
    spec: &ModelSpec,
    class: &Class,
) -> Result<(), Error> {
    let number = |value: u32| Value::U64(value.into());
    // As a person would write it: the shortest decimal number that is the same value.
    let float = |value: f32| Value::F64(value.to_string().parse().unwrap_or(value.into()));
    let mut set = |key: &str, value: Value| metadata.insert(key.to_string(), value);
    let text = |text: &str| Value::String(text.into());
    set("num_hidden_layers", number(spec.layers));
    set("hidden_size", number(spec.dim));
    set("intermediate_size", number(spec.ffn));
    set("num_attention_heads", number(spec.heads));
    set("num_key_value_heads", number(spec.kv_heads));
    set("head_dim", number(spec.head_dim));
    set("vocab_size", number(spec.vocab));
    set("max_position_embeddings", number(spec.context));
    set("tie_word_embeddings", Value::Bool(spec.tied));
    set(class.eps, float(spec.eps));
    let act = match spec.act {
        Act::GeluTanh => "gelu_pytorch_tanh",
        Act::Gelu => "gelu",
        Act::Relu2 => "relu2",
        _ => "silu",
    };
    set("hidden_act", text(act));
    if class.architecture.contains("gemma") {
        set("hidden_activation", text(act));
        let scalar = (1e3 / f64::from(spec.attention_scale).powi(2)).round() / 1e3;
        let scalar = match scalar.fract() {
            0.0 => Value::U64(scalar as u64),
            _ => Value::F64(scalar),
        };
        set("query_pre_attn_scalar", scalar);
        let cap = |cap: f32| if cap > 0.0 { Some(float(cap)) } else { None };
        for (key, value) in [
            ("attn_logit_softcapping", cap(spec.attention_softcap)),
            ("final_logit_softcapping", cap(spec.logit_softcap)),
        ] {
            if let Some(value) = value {
                set(key, value);
            }
        }
    }
    let biases = &spec.biases;
    set("attention_bias", Value::Bool(biases.q));
    set("attention_out_bias", Value::Bool(biases.o));
    set("mlp_bias", Value::Bool(biases.up));
    if matches!(spec.norm, NormKind::Layer { bias: true }) {
        set("use_bias", Value::Bool(biases.q));
    }
    match class.architecture {
        "granite" => {
            set("embedding_multiplier", float(spec.embedding_scale));
            set("attention_multiplier", float(spec.attention_scale));
            set("residual_multiplier", float(spec.residual_scale));
            set("logits_scaling", float(1.0 / spec.logit_scale));
        }
        "cohere2" | "command-r" => {
            set("logit_scale", float(spec.logit_scale));
        }
        "smollm3" => {
            let turns = spec.layer_ropes.iter();
            let turns = turns.map(|rope| Value::U64(u64::from(*rope != LayerRope::None)));
            set("no_rope_layers", Value::Array(turns.collect()));
        }
        _ => {}
    }
    if let Some(experts) = &spec.experts {
        set("num_experts", number(experts.count));
        set("num_local_experts", number(experts.count));
        set("num_experts_per_tok", number(experts.used));
        set("moe_intermediate_size", number(experts.ffn));
        set("norm_topk_prob", Value::Bool(experts.renormalise));
        set("decoder_sparse_step", number(1));
        let plain = (0..).zip(&spec.expert_layers).filter(|(_, mixed)| !**mixed);
        let plain = plain.map(|(layer, _)| number(layer)).collect();
        set("mlp_only_layers", Value::Array(plain));
    }
    let window = spec.windows.iter().copied().max().unwrap_or(0);
    if window > 0 {
        set("sliding_window", number(window));
        set("use_sliding_window", Value::Bool(true));
        let kinds = spec.windows.iter().map(|own| match own {
            0 => text("full_attention"),
            _ => text("sliding_attention"),
        });
        set("layer_types", Value::Array(kinds.collect()));
    } else {
        metadata.remove("sliding_window");
    }
    write_rope(metadata, from, spec)?;
    if class.architecture == "olmo2" && spec.local_rope.is_some() {
        rope_of_kinds(metadata);
    }
    Ok(())
}

/// Says the scaling as that of full layers only.
fn rope_of_kinds(metadata: &mut Metadata) {
    const FLAT: &str = "rope_scaling.";
    let kind = |kind: &str, key: &str| format!("rope_parameters.{kind}.{key}");
    let flat = metadata.keys().filter(|key| key.starts_with(FLAT));
    for key in flat.cloned().collect::<Vec<_>>() {
        if let Some(value) = metadata.remove(&key) {
            metadata.insert(kind("full_attention", &key[FLAT.len()..]), value);
        }
    }
    let plain = Value::String("default".into());
    metadata.insert(kind("sliding_attention", "rope_type"), plain);
    if let Some(theta) = metadata.remove("rope_theta") {
        metadata.insert(kind("sliding_attention", "rope_theta"), theta.clone());
        metadata.insert(kind("full_attention", "rope_theta"), theta);
    }
}

fn write_rope(
    metadata: &mut Metadata,
    from: &dyn Checkpoint,
    spec: &ModelSpec,
) -> Result<(), Error> {
    let rope = &spec.rope;
    let float = |value: f32| Value::F64(value.to_string().parse().unwrap_or(value.into()));
    let number = |value: u32| Value::U64(value.into());
    let mut set = |key: &str, value: Value| metadata.insert(key.to_string(), value);
    set("rope_theta", float(rope.theta));
    if rope.rot != spec.head_dim {
        let part = f64::from(rope.rot) / f64::from(spec.head_dim);
        set("partial_rotary_factor", Value::F64(part));
    }
    if let Some(local) = &spec.local_rope
        && spec.architecture.starts_with("gemma3")
    {
        set("rope_local_base_freq", float(local.theta));
    }
    let mut scaling = |kind: &str, fields: Vec<(&str, Value)>| {
        let kind = ("rope_type", Value::String(kind.into()));
        for (key, value) in fields.into_iter().chain([kind]) {
            set(&format!("rope_scaling.{key}"), value);
        }
    };
    match rope.scaling {
        Scaling::Linear { factor } => scaling("linear", vec![("factor", float(factor))]),
        Scaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            magnitude,
            ..
        } => scaling(
            "yarn",
            vec![
                ("factor", float(factor)),
                ("original_max_position_embeddings", number(original)),
                ("beta_fast", float(beta_fast)),
                ("beta_slow", float(beta_slow)),
                ("attention_factor", float(magnitude)),
            ],
        ),
        Scaling::Factors => match llama3(from, spec)? {
            Scaling::Llama3 {
                factor,
                low,
                high,
                original,
            } => scaling(
                "llama3",
                vec![
                    ("factor", float(factor)),
                    ("low_freq_factor", float(low)),
                    ("high_freq_factor", float(high)),
                    ("original_max_position_embeddings", number(original)),
                ],
            ),
            _ => {
                return Err(Error::Tensor {
                    origin: from.origin().into(),
                    name: weight(names::GGUF.rope_factors, 0),
                    problem: "has factors that no configuration describes".into(),
                });
            }
        },
        Scaling::Long {
            original,
            magnitudes,
        } => {
            let list = |long: bool| {
                let name = long_factors(long);
                let info = from.tensor(&name);
                let bytes = info.map(|info| from.rows(info, 0, info.n)).transpose();
                let mut values = vec![0.0; info.map_or(0, |info| info.n * info.k)];
                if let (Ok(Some(bytes)), Some(info)) = (&bytes, info) {
                    quant::decode(info.format, bytes, &mut values);
                }
                Value::Array(values.into_iter().map(float).collect())
            };
            scaling(
                "longrope",
                vec![
                    ("long_factor", list(true)),
                    ("short_factor", list(false)),
                    ("attention_factor", float(magnitudes[0])),
                ],
            );
            set("original_max_position_embeddings", number(original));
        }
        _ => {}
    }
    Ok(())
}

/// The settings of Llama 3 that have the factors of a file; what the file says if there are none.
fn llama3(from: &dyn Checkpoint, spec: &ModelSpec) -> Result<Scaling, Error> {
    let plain = crate::Rope {
        scaling: Scaling::None,
        ..spec.rope
    };
    let (wanted, _) = rope::frequencies(&spec.rope, from, spec.context)?;
    let (unscaled, _) = rope::frequencies(&plain, from, spec.context)?;
    // The slowest pairs are divided by the factor itself.
    let last = unscaled.iter().zip(&wanted).map(|(plain, own)| plain / own);
    let factor = last.fold(1f32, f32::max).round();
    // Published models have 8192.
    for original in [8192].into_iter().chain((4..20).map(|power| 1 << power)) {
        let scaling = Scaling::Llama3 {
            factor,
            low: 1.0,
            high: 4.0,
            original,
        };
        let rope = crate::Rope {
            scaling,
            ..spec.rope
        };
        let (own, _) = rope::frequencies(&rope, from, spec.context)?;
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs();
        if own.len() == wanted.len() && own.iter().zip(&wanted).all(near) {
            return Ok(scaling);
        }
    }
    Ok(spec.rope.scaling)
}

/// The tensors of the directory and their sources.
fn tensors(
    from: &dyn Checkpoint,
    [hf, gguf]: [&Names; 2],
    spec: &ModelSpec,
) -> Result<Tensors, Error> {
    let mut all = Tensors::default();
    let pair = |all: &mut Tensors, hf: &str, gguf: &str, layer: u32| {
        all.copy(from, &weight(gguf, layer), &weight(hf, layer));
        all.copy(from, &bias(gguf, layer), &bias(hf, layer));
    };
    pair(&mut all, hf.embed, gguf.embed, 0);
    for layer in 0..spec.layers {
        // One name means a matrix of its own, or two in one.
        let fused = spec.gated && from.tensor(&weight(gguf.gate, layer)).is_none();
        for (hf_name, gguf_name) in layer_names(hf, gguf, spec) {
            let other = if fused { hf.up } else { hf.gate_up };
            if hf_name != other {
                pair(&mut all, hf_name, gguf_name, layer);
            }
        }
        experts(&mut all, from, hf, gguf, spec, layer);
        let nth = |name: &str| name.replace("{}", &layer.to_string());
        let [own, written] = [gguf, hf].map(|names| nth(names.choice_bias));
        all.copy(from, &own, &written);
    }
    pair(&mut all, hf.final_norm, gguf.final_norm, 0);
    if !spec.tied {
        pair(&mut all, hf.head, gguf.head, 0);
    }
    let is_factors = |name: &str| {
        name == weight(names::GGUF.rope_factors, 0)
            || [true, false].iter().any(|long| name == long_factors(*long))
    };
    let known = |name: &String| {
        all.used.contains(name)
            || is_factors(name)
            || names::is_leftover(name)
            || names::is_of_draft_layer(name, spec.layers, spec.draft_layers)
    };
    let unknown = from.tensors().iter().find(|info| !known(&info.name));
    match unknown {
        None => Ok(all),
        Some(info) => Err(Error::Tensor {
            origin: from.origin().into(),
            name: info.name.clone(),
            problem: format!(
                "cannot be written as a directory yet: {} has a tensor without a known name there",
                spec.architecture
            ),
        }),
    }
}

/// The matrices of each expert.
fn experts(
    all: &mut Tensors,
    from: &dyn Checkpoint,
    hf: &Names,
    gguf: &Names,
    spec: &ModelSpec,
    layer: u32,
) {
    let Some(experts) = &spec.experts else {
        return;
    };
    let count = experts.count as usize;
    for (hf, gguf) in hf.experts.into_iter().zip(gguf.experts) {
        let info = from.tensor(&weight(gguf, layer)).cloned();
        let Some(info) = info.filter(|info| info.n % count == 0 && hf.contains("[]")) else {
            continue;
        };
        let rows = info.n / count;
        for expert in 0..count {
            let name = weight(&hf.replace("[]", &expert.to_string()), layer);
            let parts = vec![all.part(&info, expert * rows, rows)];
            all.push(&name, &info, rows, 1, parts);
        }
    }
}

impl Translated {
    /// Undoes what the other dialect's conventions changed: pairs of rope as neighbours, and norms with what is added to them.
    fn restore(&mut self, hf: &Names, spec: &ModelSpec, read_back: &ModelSpec) {
        let apart = spec.rope.interleaved && !read_back.rope.interleaved;
        let more = spec.norm_add - read_back.norm_add;
        let halves = Order::Halves {
            head: spec.head_dim as usize,
            rot: spec.rope.rot as usize,
        };
        let norms = [
            hf.attn_norm,
            hf.q_norm,
            hf.k_norm,
            hf.post_attn_norm,
            hf.ffn_norm,
            hf.post_ffn_norm,
            hf.final_norm,
        ];
        for layer in 0..spec.layers {
            let rotated = [hf.q, hf.k].into_iter().filter(|_| apart);
            for name in rotated.flat_map(|name| [weight(name, layer), bias(name, layer)]) {
                if let Some(Source::Rows { order, .. }) = self.source_mut(&name) {
                    *order = Some(halves);
                }
            }
            for name in norms.map(|norm| weight(norm, layer)) {
                if let Some(Source::Rows { change, .. }) = self.source_mut(&name) {
                    *change = super::translated::Change::Add(more);
                }
            }
        }
    }
}

/// An error if the directory reads as another model. What the dialects store differently may differ.
fn same(directory: &Translated, spec: &ModelSpec, read_back: &ModelSpec) -> Result<(), Error> {
    let mut expected = ModelSpec {
        architecture: read_back.architecture.clone(),
        draft_layers: 0,
        norm_add: read_back.norm_add,
        ..spec.clone()
    };
    expected.rope.interleaved = read_back.rope.interleaved;
    if let (Some(local), Some(other)) = (&mut expected.local_rope, &read_back.local_rope) {
        local.interleaved = other.interleaved;
    }
    match (&mut expected.rope.scaling, &read_back.rope.scaling) {
        (scaling @ Scaling::Factors, other @ Scaling::Llama3 { .. }) => *scaling = *other,
        (
            Scaling::Yarn { magnitude, .. },
            Scaling::Yarn {
                magnitude: other, ..
            },
        ) if (*magnitude - other).abs() < 1e-6 * magnitude.abs() => {
            *magnitude = *other;
        }
        _ => (),
    }
    let near = |a: f32, b: f32| (a - b).abs() <= 1e-6 * a.abs();
    if near(expected.attention_scale, read_back.attention_scale) {
        expected.attention_scale = read_back.attention_scale;
    }
    if near(expected.logit_scale, read_back.logit_scale) {
        expected.logit_scale = read_back.logit_scale;
    }
    if spec
        .layer_kinds
        .iter()
        .all(|kind| *kind == LayerKind::Attention)
        && expected == *read_back
    {
        return Ok(());
    }
    let (ours, theirs) = differing(&expected, read_back);
    Err(Error::Key {
        origin: directory.origin().into(),
        key: spec.architecture.clone(),
        problem: format!(
            "cannot be written as a directory yet: '{ours}' would be read as '{theirs}'"
        ),
    })
}
