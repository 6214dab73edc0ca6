//! Reads a spec from a checkpoint.

use crate::arch::{Architecture, unsupported};
use crate::keys::Keys;
use crate::names::{bias, resolve, weight};
use crate::spec::{
    Act, Biases, Experts, LayerKind, LayerRope, MOST_DIM, MOST_FFN, MOST_HEAD_DIM, MOST_HEADS,
    MOST_LAYERS, ModelSpec, NormKind, Scoring,
};
use crate::{Error, rope};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Value;

const MOST_EXPERTS: u32 = 1024;
/// What configurations call the width of the feed-forward part: most of them, and nomic-bert's.
/// The last of these names, here and below, is that of DistilBERT.
const FEED_FORWARD: [&str; 3] = ["intermediate_size", "n_inner", "hidden_dim"];
const MOST_VOCAB: u32 = 1 << 22;
const MOST_CONTEXT: u32 = 1 << 30;

/// Reads the spec from a checkpoint's metadata and its list of tensors.
pub(crate) fn spec(checkpoint: &dyn Checkpoint) -> Result<ModelSpec, Error> {
    let (arch, said) = Architecture::of(checkpoint)?;
    read(checkpoint, arch, &said)
}

/// Reads a checkpoint that calls its architecture `said` as this architecture.
pub(crate) fn read(
    checkpoint: &dyn Checkpoint,
    arch: &'static Architecture,
    said: &str,
) -> Result<ModelSpec, Error> {
    read_keys(&Keys::new(checkpoint, said), arch, said)
}

/// Reads a spec through these keys, which note what they were asked for.
pub(crate) fn read_keys(
    keys: &Keys<'_>,
    arch: &'static Architecture,
    said: &str,
) -> Result<ModelSpec, Error> {
    let checkpoint = keys.checkpoint;
    let names = arch.names(checkpoint.dialect());

    // Configurations of LLaVA leave out what LLaMA and Mistral have by default, those of Qwen2-Audio what Qwen2 has.
    let llava = matches!(said, "llava" | "llava_next" | "qwen2_audio");
    let mistral = keys.text("model_type")? == Some("mistral");
    let default = |llama: u32, other: u32| llava.then_some(if mistral { other } else { llama });
    let listed = listed_layers(keys).or(default(32, 32));
    let layers = keys.first_name(
        "block_count",
        &["num_hidden_layers", "num_layers", "n_layer", "n_layers"],
    );
    let layers = keys.size(&layers, listed, MOST_LAYERS)?;
    let dim = keys.first_name("embedding_length", &["hidden_size", "n_embd", "dim"]);
    let dim = keys.size(&dim, default(4096, 4096), MOST_DIM)?;
    let latent = keys.name("attention.kv_lora_rank", "kv_lora_rank");
    let latent = keys.value(&latent).is_some();
    let shape = if arch.attends {
        heads(keys, arch, [layers, dim], latent, &default)?
    } else {
        Heads {
            count: 1,
            kv: 1,
            dim: 2,
            value: None,
        }
    };
    let head_dim = shape.dim;
    // Models with experts in every layer may lack the key.
    let expert = keys.name("expert_feed_forward_length", "moe_intermediate_size");
    let ffn = keys.first_name("feed_forward_length", &FEED_FORWARD);
    let ffn = if arch.attends {
        // Those of Llama-Nemotron have none in common.
        let none = (arch.name == "deci" && !keys.is_gguf()).then_some(1);
        let usual = keys.u32(&expert)?.or(default(11008, 14336)).or(none);
        widest(keys, arch, layers, (&ffn, usual, MOST_FFN))?
    } else {
        1
    };
    let context = keys.first_name(
        "context_length",
        &["max_position_embeddings", "n_positions", "model_max_length"],
    );
    let usual = default(2048, 131072).or((!arch.attends).then_some(1 << 20));
    let context = keys.size(&context, usual, MOST_CONTEXT)?;
    let eps = epsilon(keys, arch)?;
    let vocab = vocabulary(keys, &weight(names.embed, 0))?;
    let rot = if latent || !arch.attends {
        head_dim
    } else {
        rotated(keys, head_dim)?
    };
    let has = |name: String| {
        let name = resolve(checkpoint, &name);
        checkpoint.tensor(&name).is_some()
    };
    let tied = if keys.is_gguf() {
        false
    } else {
        keys.bool("tie_word_embeddings")?.unwrap_or(false)
    } || !has(weight(names.head, 0));

    let mut spec = ModelSpec {
        architecture: arch.name.into(),
        layers,
        draft_layers: 0,
        layer_kinds: vec![LayerKind::Attention; layers as usize],
        alone: false,
        delta: None,
        conv_taps: 0,
        mamba: None,
        multipliers: None,
        dim,
        heads: shape.count,
        kv_heads: shape.kv,
        head_dim,
        ffn,
        layer_shapes: Vec::new(),
        kv_sources: Vec::new(),
        values_are_keys: Vec::new(),
        value_dim: shape.value,
        value_scale: 1.0,
        value_norm: false,
        per_layer_width: 0,
        layer_scalars: false,
        altup: None,
        hyper: None,
        cutoffs: Vec::new(),
        experts: experts(keys, arch, said)?,
        expert_layers: Vec::new(),
        vocab,
        context,
        eps: eps as f32,
        norm: NormKind::Rms,
        act: activation(keys)?,
        limits: Vec::new(),
        limits_gate: false,
        gated: true,
        xielu: Vec::new(),
        parallel: false,
        own_norms: false,
        residual_scale: 1.0,
        rope: rope::read(keys, rot, arch, context)?,
        local_rope: None,
        layer_ropes: vec![LayerRope::Main; layers as usize],
        qk_norm: arch.qk_norm,
        latent: None,
        indexer: None,
        indexed: None,
        qk_norm_late: false,
        position_scale: None,
        pre_norm: true,
        post_norm: false,
        post_eps: None,
        norm_add: 0.0,
        plain_final_norm: false,
        biases: Biases {
            qkv: has(bias(names.qkv, 0)),
            q: has(bias(names.q, 0)),
            k: has(bias(names.k, 0)),
            v: has(bias(names.v, 0)),
            o: has(bias(names.o, 0)),
            gate: has(bias(names.gate, 0)),
            up: has(bias(names.up, 0)),
            down: has(bias(names.down, 0)),
            head: false,
            router: false,
            experts: false,
            experts_sum: false,
        },
        tied,
        embedding_scale: 1.0,
        embedding_norm: false,
        windows: (arch.windows)(keys, layers)?,
        chunks: false,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        sinks: Vec::new(),
        attention_gate: None,
        attention_softcap: 0.0,
        logit_scale: 1.0,
        logit_softcap: 0.0,
        deep_features: Vec::new(),
        causal_layers: Vec::new(),
        encoder: None,
    };
    spec.expert_layers = vec![spec.experts.is_some(); layers as usize];
    (arch.finish)(&mut spec, keys)?;
    Ok(spec)
}

/// A key that may be a list where the architecture has lists, which `finish` reads: the largest number.
fn widest(
    keys: &Keys<'_>,
    arch: &Architecture,
    layers: u32,
    (key, default, max): (&str, Option<u32>, u32),
) -> Result<u32, Error> {
    let list = if arch.lists {
        // Only Llama-Nemotron's layers may lack the part.
        let least = u32::from(arch.name != "deci");
        keys.each_from(key, layers, least, max)?
    } else {
        None
    };
    match list {
        Some(list) => match list.into_iter().max().unwrap_or(0) {
            0 => Err(keys.error(key, "is 0 in all layers")),
            most => Ok(most),
        },
        None => keys.size(key, default, max),
    }
}

/// The heads of attention.
struct Heads {
    count: u32,
    kv: u32,
    dim: u32,
    value: Option<u32>,
}

/// Reads the heads of attention. With latents, `finish` reads their sizes.
fn heads(
    keys: &Keys<'_>,
    arch: &Architecture,
    [layers, dim]: [u32; 2],
    latent: bool,
    default: &dyn Fn(u32, u32) -> Option<u32>,
) -> Result<Heads, Error> {
    let size =
        |gguf: &str, hf: &str, default| keys.size(&keys.name(gguf, hf), default, MOST_HEAD_DIM);
    let key = keys.first_name(
        "attention.head_count",
        &["num_attention_heads", "n_head", "n_heads"],
    );
    let heads = widest(keys, arch, layers, (&key, default(32, 32), MOST_HEADS))?;
    let key = keys.first_name(
        "attention.head_count_kv",
        &["num_key_value_heads", "num_attention_groups"],
    );
    let usual = default(heads, 8.min(heads)).or(Some(heads));
    let kv_heads = widest(keys, arch, layers, (&key, usual, heads))?;
    if !heads.is_multiple_of(kv_heads) {
        let problem = format!("is {kv_heads}, which does not divide {heads} heads");
        return Err(keys.error(&key, problem));
    }
    let head_dim = if latent {
        size("rope.dimension_count", "qk_rope_head_dim", None)?
    } else {
        size("attention.key_length", "head_dim", Some(dim / heads))?
    };
    let narrow = arch.name == "mimo2";
    let key = if narrow { "v_head_dim" } else { "head_dim" };
    let key = keys.name("attention.value_length", key);
    let value = if latent { None } else { keys.u32(&key)? };
    let value = value.filter(|value| *value != head_dim);
    match value {
        Some(value) if !narrow || !(1..head_dim).contains(&value) => {
            let problem = format!("differs from the key size {head_dim}, which is not supported");
            Err(keys.error(&key, problem))
        }
        value => Ok(Heads {
            count: heads,
            kv: kv_heads,
            dim: head_dim,
            value,
        }),
    }
}

/// The number of layers, if a configuration only lists them.
fn listed_layers(keys: &Keys<'_>) -> Option<u32> {
    let lists = ["layers_block_type", "hybrid_override_pattern"];
    let count = match lists.iter().find_map(|key| keys.value(key))? {
        Value::Array(list) => list.len(),
        Value::String(text) => text.len(),
        _ => return None,
    };
    u32::try_from(count).ok()
}

/// The experts, if the checkpoint has any.
fn experts(keys: &Keys<'_>, arch: &Architecture, said: &str) -> Result<Option<Experts>, Error> {
    let hf = [
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
    ];
    let hf = hf.iter().find(|k| keys.value(k).is_some());
    let key = keys.name("expert_count", hf.unwrap_or(&"num_experts"));
    let count = keys.u32(&key)?.unwrap_or(0);
    // Feed-forward parts of a Jamba with one expert have no router, whatever number is used.
    if count == 0 || (count == 1 && arch.name == "jamba") {
        return Ok(None);
    }
    if !arch.experts {
        return Err(unsupported(
            keys.checkpoint,
            &format!("{said} with experts"),
        ));
    }
    let count = keys.size(&key, None, MOST_EXPERTS)?;
    let hf = [
        "num_experts_per_tok",
        "moe_k",
        "top_k_experts",
        "moe_topk",
        "moe_top_k",
        "num_experts_per_token",
    ];
    let hf = hf.iter().find(|k| keys.value(k).is_some());
    let used_key = keys.name("expert_used_count", hf.unwrap_or(&"num_experts_per_tok"));
    let used = keys.size(&used_key, None, count)?;
    // Some checkpoints give the width of an expert. In others it is the width of the feed-forward part.
    let own = keys.name("expert_feed_forward_length", "moe_intermediate_size");
    let key = match keys.value(&own) {
        Some(_) => own,
        None => keys.first_name("feed_forward_length", &FEED_FORWARD),
    };
    Ok(Some(Experts {
        count,
        used,
        ffn: keys.size(&key, None, MOST_FFN)?,
        renormalise: keys.bool("norm_topk_prob")?.unwrap_or(true),
        scale: 1.0,
        on_input: false,
        beside: false,
        latent: None,
        scoring: Scoring::Softmax,
        margin: 0.0,
        choice_bias: false,
        groups: None,
        shared: None,
        shared_scale: 1.0,
    }))
}

/// The epsilon of the norms. Configurations of models with layer norms have their own names for it.
fn epsilon(keys: &Keys<'_>, arch: &Architecture) -> Result<f64, Error> {
    let known = if keys.is_gguf() {
        [
            "attention.layer_norm_rms_epsilon",
            "attention.layer_norm_epsilon",
        ]
        .map(|name| keys.name(name, ""))
        .to_vec()
    } else {
        [
            "rms_norm_eps",
            "layer_norm_eps",
            "norm_epsilon",
            "layer_norm_epsilon",
            "layernorm_epsilon",
            "norm_eps",
        ]
        .map(String::from)
        .to_vec()
    };
    let found = known.iter().find(|key| keys.value(key).is_some());
    let key = found.or(known.first()).map_or("", String::as_str);
    keys.positive(key, (!keys.is_gguf()).then_some(arch.usual.eps))
}

fn vocabulary(keys: &Keys<'_>, embed: &str) -> Result<u32, Error> {
    let problem = if keys.checkpoint.tensors().is_empty() {
        "is missing: this file has no weights, only a vocabulary"
    } else {
        "is missing"
    };
    let fault = |problem: String| Error::Tensor {
        origin: keys.checkpoint.origin().into(),
        name: embed.into(),
        problem,
    };
    let info = keys
        .checkpoint
        .tensor(&resolve(keys.checkpoint, embed))
        .ok_or_else(|| fault(problem.into()))?;
    match u32::try_from(info.n) {
        Ok(n) if n > 0 && n <= MOST_VOCAB => Ok(n),
        _ => Err(fault(format!(
            "has {} rows; must be from 1 to {MOST_VOCAB}",
            info.n
        ))),
    }
}

/// Rotated elements of a head.
fn rotated(keys: &Keys<'_>, head_dim: u32) -> Result<u32, Error> {
    let key = keys.name("rope.dimension_count", "partial_rotary_factor");
    let rot = if keys.is_gguf() {
        keys.size(&key, Some(head_dim), MOST_HEAD_DIM)?
    } else {
        let nested = "rope_parameters.partial_rotary_factor";
        let key = if keys.value(nested).is_some() {
            nested
        } else {
            &key
        };
        (keys.positive(key, Some(1.0))? * f64::from(head_dim)) as u32
    };
    if rot == 0 || rot > head_dim || !rot.is_multiple_of(2) {
        return Err(keys.error(
            &key,
            format!("rotates {rot} of {head_dim} elements; the number must be even and at most the head size"),
        ));
    }
    Ok(rot)
}

fn activation(keys: &Keys<'_>) -> Result<Act, Error> {
    // GGUF files do not name the activation. Architectures with another one set it in `finish`.
    if keys.is_gguf() {
        return Ok(Act::Silu);
    }
    match keys.text("hidden_act")? {
        // MiniMax M3 names the limits of its activation so, and has them in keys of their own.
        None | Some("silu" | "swish" | "swigluoai") => Ok(Act::Silu),
        Some("relu2") => Ok(Act::Relu2),
        Some("xielu") => Ok(Act::Xielu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Act::GeluTanh),
        Some("gelu") => Ok(Act::Gelu),
        Some(_) => Err(keys.error(
            "hidden_act",
            "is not supported; supported are: silu, gelu, gelu_pytorch_tanh",
        )),
    }
}
