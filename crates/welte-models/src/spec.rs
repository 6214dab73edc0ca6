//! `ModelSpec`: a model as pure data.

mod sizes;

use crate::arch::{Architecture, unsupported};
use crate::encoder::Encoder;
use crate::keys::Keys;
use crate::names::{bias, resolve, weight};
use crate::{Error, rope};
use std::fmt;
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Value;
use welte_table::Sections;

/// The activation between gate and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by tanh.
    GeluTanh,
    /// GELU by erf.
    Gelu,
    /// `g * sigmoid(1.702 g) * (u + 1)` with clamped gate `g` and up `u`.
    Clamped,
    /// `relu(x)^2`, without a gate only.
    Relu2,
    /// xIELU, without a gate only. Its constants are weights of each layer.
    Xielu,
    /// The hyperbolic tangent, without a gate only.
    Tanh,
}

impl Act {
    /// The number in commands.
    pub fn word(self) -> u32 {
        self as u32
    }

    fn name(self) -> &'static str {
        match self {
            Act::Silu => "SiLU",
            Act::GeluTanh => "GELU by tanh",
            Act::Gelu => "GELU",
            Act::Clamped => "clamped SiLU",
            Act::Relu2 => "squared ReLU",
            Act::Xielu => "xIELU",
            Act::Tanh => "tanh",
        }
    }
}

/// Rope scaling for contexts longer than the original.
#[allow(missing_docs)] // The fields have the names used in the papers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// All frequencies are divided by a factor.
    Linear { factor: f32 },
    /// Llama 3: the frequencies of long waves are divided, those of short waves kept.
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original: u32,
    },
    /// The first pairs of a head are rotated, as if all were; the others are not.
    Proportional {
        /// The share of pairs that are rotated.
        part: f32,
        /// Divides the frequencies.
        factor: f32,
    },
    /// YaRN: a ramp between kept and divided frequencies, and a larger magnitude.
    Yarn {
        factor: f32,
        original: u32,
        beta_fast: f32,
        beta_slow: f32,
        magnitude: f32,
        /// The ramp begins and ends at whole pairs.
        truncate: bool,
    },
    /// Frequencies are divided by the factors in a tensor of the checkpoint.
    Factors,
    /// LongRoPE: frequencies are divided by one list of factors up to the original length, and by another beyond it. Each has
    /// a magnitude of its own.
    Long { original: u32, magnitudes: [f32; 2] },
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scaling::None => write!(f, "not scaled"),
            Scaling::Linear { factor } => write!(f, "scaled by {factor}"),
            Scaling::Proportional { part, .. } => write!(f, "{part} of each head"),
            Scaling::Llama3 {
                factor, original, ..
            } => write!(f, "Llama 3 scaling by {factor} from {original} positions"),
            Scaling::Yarn {
                factor, original, ..
            } => write!(f, "YaRN scaling by {factor} from {original} positions"),
            Scaling::Factors => write!(f, "scaled by a tensor of factors"),
            Scaling::Long { original, .. } => {
                write!(f, "LongRoPE scaling from {original} positions")
            }
        }
    }
}

/// Rope: rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pairs are neighbours (2i, 2i+1); otherwise (i, i + rot/2).
    pub interleaved: bool,
    /// The base.
    pub theta: f32,
    /// Rotated elements of each head.
    pub rot: u32,
    /// Scaling.
    pub scaling: Scaling,
    /// Which axes of a row turn which pairs; `None`: its position turns all.
    pub sections: Option<Sections>,
}

impl Rope {
    /// The sections as a parameter of ops.
    pub(crate) fn sections_word(&self) -> u32 {
        self.sections.map_or(0, Sections::word)
    }
}

/// The rope of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRope {
    /// No rope.
    None,
    /// The model's rope.
    Main,
    /// The rope of windowed layers.
    Local,
}

/// The norm of the stream of hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm.
    Rms,
    /// Layer norm.
    Layer {
        /// It adds a bias.
        bias: bool,
    },
}

/// Queries grow with their position: by `1 + beta * ln(1 + floor(position / original))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// How fast.
    pub beta: f32,
    /// The original context, in positions.
    pub original: u32,
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Over each head.
    Head,
    /// Over all heads of a row together.
    Row,
}

/// How experts are scored by their logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// Softmax over the experts not yet chosen that are close to the best of them.
    Mixer,
}

/// Experts in groups of one size. Tokens use experts of the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The number of groups.
    pub count: u32,
    /// Groups used per token.
    pub used: u32,
    /// A group is rated by the sum of its best experts, this many.
    pub top: u32,
}

/// A mixture of experts as feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The number of experts.
    pub count: u32,
    /// Experts used per token.
    pub used: u32,
    /// Width of an expert.
    pub ffn: u32,
    /// The shares of the used experts are scaled to sum to 1.
    pub renormalise: bool,
    /// Factor of the shares.
    pub scale: f32,
    /// The scores.
    pub scoring: Scoring,
    /// How close, for [`Scoring::Mixer`]; otherwise 0.
    pub margin: f32,
    /// A bias is added to the scores for the choice.
    pub choice_bias: bool,
    /// The groups, if there are several.
    pub groups: Option<Groups>,
    /// An expert that every token uses, if any.
    pub shared: Option<SharedExpert>,
    /// A dense feed-forward part runs beside the experts. Each of the two has norms of its own.
    pub beside: bool,
    /// The width in which the chosen experts compute, if it is not the model's. A matrix leads to it and one back.
    pub latent: Option<u32>,
}

/// The sizes that may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Width of the dense feed-forward part.
    pub ffn: u32,
}

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its width.
    pub ffn: u32,
    /// Its output is scaled by a sigmoid gate of its own.
    pub gated: bool,
}

/// Attention over latents, from which keys and values of all heads are made. The cache holds one latent and one rotated key
/// per position: [`ModelSpec::head_dim`] values of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Size of the latent of queries, if they have one.
    pub query_rank: Option<u32>,
    /// Size of the latent.
    pub rank: u32,
    /// Rotated elements of a query, and of the key that all heads share.
    pub rope: u32,
    /// Elements of a query and of a key that are not rotated.
    pub plain: u32,
    /// Elements of a head's value.
    pub value: u32,
}

impl Latent {
    /// Elements of a query.
    pub fn query(&self) -> u32 {
        self.plain + self.rope
    }

    /// Elements of a position in the cache: the rotated part of the key, then the latent.
    pub fn width(&self) -> u32 {
        self.rope + self.rank
    }
}

/// Several streams of hidden states, of which layers compute the first (AltUp), and a path of low rank around attention (Laurel).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltUp {
    /// The streams.
    pub streams: u32,
    /// The rank of the path around attention.
    pub rank: u32,
}

/// What mixes positions in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Attention.
    Attention,
    /// A short convolution, then the gated delta rule.
    Delta,
    /// A short convolution between two gates.
    Conv,
    /// A short convolution, then the state space model of Mamba-2.
    Mamba,
    /// Nothing: the layer is a feed-forward part.
    None,
}

/// The layers with the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values.
    pub heads: u32,
    /// Elements of a query and of a key.
    pub key_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Taps of the convolution over queries, keys and values.
    pub taps: u32,
    /// Value head `h` has key head `h % key_heads`; otherwise neighbours share a key head.
    pub tiled: bool,
}

/// The layers with the state space model of Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba {
    /// Groups of heads that share keys and queries.
    pub groups: u32,
    /// Heads.
    pub heads: u32,
    /// Elements of a key and of a query.
    pub key_dim: u32,
    /// Elements of a head's input.
    pub value_dim: u32,
    /// Taps of the convolution over inputs, keys and queries.
    pub taps: u32,
    /// The convolution has a bias.
    pub bias: bool,
}

impl Mamba {
    /// Values of a row of the result.
    pub(crate) fn values(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Channels of the convolution: inputs, keys and queries.
    pub(crate) fn channels(&self) -> u32 {
        self.values() + 2 * self.groups * self.key_dim
    }

    /// Floats of a row of all projections: the gate, the channels, a time step of every head.
    pub(crate) fn width(&self) -> u32 {
        self.values() + self.channels() + self.heads
    }
}

impl Delta {
    /// Values of a row of the result.
    pub(crate) fn values(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub(crate) fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// Floats of a row of all projections: the channels, the gate, b and a of every head.
    pub(crate) fn width(&self) -> u32 {
        self.channels() + self.values() + 2 * self.heads
    }
}

/// The matrices with a bias.
#[allow(missing_docs)] // The fields are the usual names of the matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Of one matrix for Q, K and V.
    pub qkv: bool,
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub o: bool,
    pub gate: bool,
    pub up: bool,
    pub down: bool,
    pub head: bool,
    pub router: bool,
    /// Gate, up and down of the experts.
    pub experts: bool,
}

/// The spec of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Our name of the architecture, for example `qwen3`.
    pub architecture: String,
    /// Layers.
    pub layers: u32,
    /// Layers of the checkpoint after those, which guess tokens ahead. They are not computed.
    pub draft_layers: u32,
    /// What mixes positions in each layer.
    pub layer_kinds: Vec<LayerKind>,
    /// A layer either mixes positions or is a feed-forward part.
    pub alone: bool,
    /// The layers with the gated delta rule, if any.
    pub delta: Option<Delta>,
    /// Taps of the convolutions between gates; 0 without such layers.
    pub conv_taps: u32,
    /// The layers with the state space model, if any.
    pub mamba: Option<Mamba>,
    /// Width of the residual stream.
    pub dim: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Width of the feed-forward part in layers without experts.
    pub ffn: u32,
    /// The sizes of each layer, if they differ. Then `kv_heads`, `head_dim` and `ffn` are those of no layer in particular.
    pub layer_shapes: Vec<LayerShape>,
    /// The layer whose keys and values each layer attends to. Empty: its own.
    pub kv_sources: Vec<u32>,
    /// The layers whose values are their keys before norm and rope. Empty: none.
    pub values_are_keys: Vec<bool>,
    /// Each head of the values is normed, without a weight.
    pub value_norm: bool,
    /// Width of the embedding that each token has for each layer; 0 is none.
    pub per_layer_width: u32,
    /// The output of each layer is multiplied by a number.
    pub layer_scalars: bool,
    /// Several streams of hidden states, if any.
    pub altup: Option<AltUp>,
    /// Gates of each layer are cut off this many standard deviations above their mean. Empty: none.
    pub cutoffs: Vec<Option<f32>>,
    /// The experts, if any.
    pub experts: Option<Experts>,
    /// The layers with experts.
    pub expert_layers: Vec<bool>,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// The trained context, in positions.
    pub context: u32,
    /// The epsilon of every norm.
    pub eps: f32,
    /// The norm of the stream.
    pub norm: NormKind,
    /// Activation.
    pub act: Act,
    /// The feed-forward part multiplies the activation of a gate. Otherwise it is `down(act(up(x)))`.
    pub gated: bool,
    /// Constants of each layer's xIELU: those of the op `act`.
    pub xielu: Vec<[f32; 4]>,
    /// Attention and feed-forward parts read the same norm.
    pub parallel: bool,
    /// Factor of what attention and feed-forward parts add to the stream. The stream is kept divided by it, so that nothing
    /// has to be multiplied: embeddings are divided by it, and the epsilon of the stream's norms by its square.
    pub residual_scale: f32,
    /// Rope.
    pub rope: Rope,
    /// Rope of layers with an attention window, if different.
    pub local_rope: Option<Rope>,
    /// The rope of each layer.
    pub layer_ropes: Vec<LayerRope>,
    /// The norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Attention over latents, if any. [`ModelSpec::kv_heads`] is then 1.
    pub latent: Option<Latent>,
    /// Queries and keys are normed after rope.
    pub qk_norm_late: bool,
    /// How queries grow with the position.
    pub position_scale: Option<PositionScale>,
    /// Attention and feed-forward parts norm their input.
    pub pre_norm: bool,
    /// Attention and feed-forward parts norm their output before it is added.
    pub post_norm: bool,
    /// Added to the weights of every norm.
    pub norm_add: f32,
    /// The matrices with a bias.
    pub biases: Biases,
    /// The head is the embedding table.
    pub tied: bool,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// The attention window of each layer; 0 is none.
    pub windows: Vec<u32>,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// Each head has an attention sink.
    pub sinks: bool,
    /// The output of attention is scaled by a sigmoid gate for each value.
    pub attention_gate: bool,
    /// Soft cap of the attention scores; 0 is none.
    pub attention_softcap: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Soft cap of the logits; 0 is none.
    pub logit_softcap: f32,
    /// What an encoder has; `None` for decoders.
    pub encoder: Option<Encoder>,
}

// Real models stay far below these bounds. Values within them never overflow 64 bits or exhaust memory.
pub(crate) const MOST_LAYERS: u32 = 1024;
pub(crate) const MOST_HEADS: u32 = 1024;
pub(crate) const MOST_HEAD_DIM: u32 = 1024;
const MOST_DIM: u32 = 1 << 16;
pub(crate) const MOST_FFN: u32 = 1 << 20;
const MOST_EXPERTS: u32 = 1024;
const MOST_VOCAB: u32 = 1 << 22;
const MOST_CONTEXT: u32 = 1 << 30;

/// Reads the spec from a checkpoint's metadata and its list of tensors.
pub fn spec(checkpoint: &dyn Checkpoint) -> Result<ModelSpec, Error> {
    let (arch, said) = Architecture::of(checkpoint)?;
    read(checkpoint, arch, &said)
}

/// Reads a checkpoint that calls its architecture `said` as this architecture.
pub(crate) fn read(
    checkpoint: &dyn Checkpoint,
    arch: &'static Architecture,
    said: &str,
) -> Result<ModelSpec, Error> {
    let keys = Keys::new(checkpoint, said);
    let names = arch.names(checkpoint.dialect());
    let size = |gguf: &str, hf: &str, default, most| keys.size(&keys.name(gguf, hf), default, most);

    let listed = listed_layers(&keys);
    let layers = size("block_count", "num_hidden_layers", listed, MOST_LAYERS)?;
    let dim = size("embedding_length", "hidden_size", None, MOST_DIM)?;
    let heads = size(
        "attention.head_count",
        "num_attention_heads",
        None,
        MOST_HEADS,
    )?;
    // Where a list is allowed, `finish` reads it.
    let widest = |gguf: &str, hf: &str, default, most| {
        let key = keys.name(gguf, hf);
        let list = match arch.lists {
            true => keys.each(&key, layers, most)?,
            false => None,
        };
        match list {
            Some(list) => Ok(list.into_iter().max().unwrap_or(0)),
            None => keys.size(&key, default, most),
        }
    };
    let kv_heads = widest(
        "attention.head_count_kv",
        "num_key_value_heads",
        Some(heads),
        heads,
    )?;
    if !heads.is_multiple_of(kv_heads) {
        let key = keys.name("attention.head_count_kv", "num_key_value_heads");
        return Err(keys.error(
            &key,
            format!("is {kv_heads}, which does not divide {heads} heads"),
        ));
    }
    // With latents, `finish` reads the sizes of heads.
    let latent = keys.name("attention.kv_lora_rank", "kv_lora_rank");
    let latent = keys.value(&latent).is_some();
    let head_dim = match latent {
        true => size(
            "rope.dimension_count",
            "qk_rope_head_dim",
            None,
            MOST_HEAD_DIM,
        )?,
        false => size(
            "attention.key_length",
            "head_dim",
            Some(dim / heads),
            MOST_HEAD_DIM,
        )?,
    };
    let value_key = keys.name("attention.value_length", "head_dim");
    if !latent && keys.size(&value_key, Some(head_dim), MOST_HEAD_DIM)? != head_dim {
        return Err(keys.error(
            &value_key,
            format!("differs from the key size {head_dim}, which is not supported"),
        ));
    }
    // Models with experts in every layer may lack the key.
    let expert = keys.name("expert_feed_forward_length", "moe_intermediate_size");
    let ffn = widest(
        "feed_forward_length",
        "intermediate_size",
        keys.u32(&expert)?,
        MOST_FFN,
    )?;
    let context = size(
        "context_length",
        "max_position_embeddings",
        None,
        MOST_CONTEXT,
    )?;
    let eps = epsilon(&keys)?;
    let vocab = vocabulary(&keys, &weight(names.embed, 0))?;
    let rot = match latent {
        true => head_dim,
        false => rotated(&keys, head_dim)?,
    };
    let has = |name: String| {
        let name = resolve(checkpoint, &name);
        checkpoint.tensor(&name).is_some()
    };
    let tied = match keys.is_gguf() {
        true => false,
        false => keys.bool("tie_word_embeddings")?.unwrap_or(false),
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
        dim,
        heads,
        kv_heads,
        head_dim,
        ffn,
        layer_shapes: Vec::new(),
        kv_sources: Vec::new(),
        values_are_keys: Vec::new(),
        value_norm: false,
        per_layer_width: 0,
        layer_scalars: false,
        altup: None,
        cutoffs: Vec::new(),
        experts: experts(&keys, arch, said)?,
        expert_layers: Vec::new(),
        vocab,
        context,
        eps: eps as f32,
        norm: NormKind::Rms,
        act: activation(&keys)?,
        gated: true,
        xielu: Vec::new(),
        parallel: false,
        residual_scale: 1.0,
        rope: rope::read(&keys, rot, keys.is_gguf() && arch.gguf_interleaved, context)?,
        local_rope: None,
        layer_ropes: vec![LayerRope::Main; layers as usize],
        qk_norm: arch.qk_norm,
        latent: None,
        qk_norm_late: false,
        position_scale: None,
        pre_norm: true,
        post_norm: false,
        norm_add: 0.0,
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
        },
        tied,
        embedding_scale: 1.0,
        windows: (arch.windows)(&keys, layers)?,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        sinks: false,
        attention_gate: false,
        attention_softcap: 0.0,
        logit_scale: 1.0,
        logit_softcap: 0.0,
        encoder: None,
    };
    spec.expert_layers = vec![spec.experts.is_some(); layers as usize];
    (arch.finish)(&mut spec, &keys)?;
    Ok(spec)
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
    if keys.u32(&key)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    if !arch.experts {
        return Err(unsupported(
            keys.checkpoint,
            &format!("{said} with experts"),
        ));
    }
    let count = keys.size(&key, None, MOST_EXPERTS)?;
    let hf = ["num_experts_per_tok", "moe_k", "top_k_experts"];
    let hf = hf.iter().find(|k| keys.value(k).is_some());
    let used_key = keys.name("expert_used_count", hf.unwrap_or(&"num_experts_per_tok"));
    let used = keys.size(&used_key, None, count)?;
    // Some checkpoints give the width of an expert. In others it is the width of the feed-forward part.
    let own = keys.name("expert_feed_forward_length", "moe_intermediate_size");
    let key = match keys.value(&own) {
        Some(_) => own,
        None => keys.name("feed_forward_length", "intermediate_size"),
    };
    Ok(Some(Experts {
        count,
        used,
        ffn: keys.size(&key, None, MOST_FFN)?,
        renormalise: keys.bool("norm_topk_prob")?.unwrap_or(true),
        scale: 1.0,
        beside: false,
        latent: None,
        scoring: Scoring::Softmax,
        margin: 0.0,
        choice_bias: false,
        groups: None,
        shared: None,
    }))
}

/// The epsilon of the norms. Configurations of models with layer norms have their own names for it.
fn epsilon(keys: &Keys<'_>) -> Result<f64, Error> {
    let known = match keys.is_gguf() {
        true => [
            "attention.layer_norm_rms_epsilon",
            "attention.layer_norm_epsilon",
        ]
        .map(|name| keys.name(name, ""))
        .to_vec(),
        false => [
            "rms_norm_eps",
            "layer_norm_eps",
            "norm_epsilon",
            "layer_norm_epsilon",
        ]
        .map(String::from)
        .to_vec(),
    };
    let found = known.iter().find(|key| keys.value(key).is_some());
    let key = found.or(known.first()).map_or("", String::as_str);
    keys.positive(key, (!keys.is_gguf()).then_some(1e-6))
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
        None | Some("silu" | "swish") => Ok(Act::Silu),
        Some("xielu") => Ok(Act::Xielu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Act::GeluTanh),
        Some("gelu") => Ok(Act::Gelu),
        Some(_) => Err(keys.error(
            "hidden_act",
            "is not supported; supported are: silu, gelu, gelu_pytorch_tanh",
        )),
    }
}
