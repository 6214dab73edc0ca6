//! `ModelSpec`: a model as pure data.

mod sizes;

use std::fmt;
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
    /// Frequencies follow the number of positions once there are more than this. Longer contexts are refused.
    Dynamic { original: u32 },
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
            Scaling::Dynamic { original } => write!(f, "not scaled up to {original} positions"),
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
    /// Layer norm without weights.
    Plain,
}

/// Queries grow with their position: by `1 + beta * ln(1 + floor((position + ahead) / original))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// How fast.
    pub beta: f32,
    /// The original context, in positions.
    pub original: u32,
    /// Added to the position.
    pub ahead: u32,
    /// Only where there is no rope.
    pub still: bool,
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Over each head.
    Head,
    /// Over each head, without weights.
    Plain,
    /// Over all heads of a row together.
    Row,
    /// A layer norm over each head, whose weights differ from head to head.
    Each,
    /// A layer norm with a bias over all heads of a row together.
    LayerRow,
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
    /// The share of the one used expert multiplies its input, not its output.
    pub on_input: bool,
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
    /// Factor of the shared expert's output.
    pub shared_scale: f32,
    /// A dense feed-forward part runs beside the experts. Each of the two has norms of its own.
    pub beside: bool,
    /// The width in which the chosen experts compute, if it is not the model's. A matrix leads to it and one back.
    pub latent: Option<u32>,
}

/// Limits of a layer's gated activations: `min(act(gate), limit) * up`, with `up` within the limit of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Of the chosen experts, if they have one.
    pub experts: Option<f32>,
    /// Of the dense feed-forward part or the shared expert, if it has one.
    pub plain: Option<f32>,
}

/// The sizes that may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Width of the dense feed-forward part; 0 if the layer has none.
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

/// Chooses the positions that a row sees, by keys of its own (DeepSeek Sparse Attention). It is not computed where the context
/// is no longer than what it chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// Positions that a row sees at most.
    pub used: u32,
    /// Heads, which share one key.
    pub heads: u32,
    /// Elements of a query and of a key. The first ones are rotated, as many as those of the attention.
    pub head_dim: u32,
    /// Pairs of rotated elements are neighbours.
    pub interleaved: bool,
    /// The layers that choose. The others see what the last of these chose.
    pub chooses: Vec<bool>,
}

impl Indexer {
    /// Values that it makes of a layer's input: a key, and a weight of each head.
    pub(crate) fn inputs(&self) -> u32 {
        self.head_dim + self.heads
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

/// Streams of hidden states beside each other. A part of a layer reads a sum of them and adds its output to each of them, by sigmoids that
/// follow from all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The streams.
    pub streams: u32,
    /// Factor of what is added to them.
    pub magnitude: f32,
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
    /// A short convolution, then the state space model of Mamba-2 or Mamba-1.
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
    /// The elements of a key have decays apart from each other. These and the output's gates, which are sigmoids, have a low rank: that of
    /// a key and of a value (KDA).
    pub by_channel: bool,
}

/// What Mamba-1 has: inputs alone are projected and convolved. Keys, queries and time steps are products of them, the time steps of a
/// low rank; every input has a time step of its own, and every element of the state a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selective {
    /// The rank of the time steps.
    pub rank: u32,
    /// The norms of these, of keys and of queries.
    pub norms: SelectiveNorms,
    /// Their epsilon.
    pub eps: f32,
}

/// The norms of time steps, keys and queries of Mamba-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectiveNorms {
    /// No norms.
    None,
    /// Without weights.
    Plain,
    /// With weights.
    Weighted,
}

/// The layers with the state space model of Mamba-2, or of Mamba-1, whose inputs are dealt to heads.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// The gated output is normed.
    pub norm: bool,
    /// It runs beside attention in every layer. Both read the same norm.
    pub beside: bool,
    /// What Mamba-1 has.
    pub selective: Option<Selective>,
}

/// Factors of what matrices yield. Files of llama.cpp contain them in the matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Of queries and values.
    pub attention: f32,
    /// Of keys.
    pub keys: f32,
    /// Of attention's output.
    pub attention_out: f32,
    /// Of the state space model's gate, inputs, keys, queries and time steps.
    pub state_space: [f32; 5],
    /// Of its output.
    pub state_space_out: f32,
    /// Of the feed-forward part's gate.
    pub gate: f32,
    /// Of its output.
    pub down: f32,
}

impl Mamba {
    /// Values of a row of the result.
    pub(crate) fn values(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Keys and queries.
    pub(crate) fn keys_and_queries(&self) -> u32 {
        2 * self.groups * self.key_dim
    }

    /// Channels of the convolution: inputs, keys and queries; of Mamba-1 inputs only.
    pub(crate) fn channels(&self) -> u32 {
        match self.selective {
            None => self.values() + self.keys_and_queries(),
            Some(_) => self.values(),
        }
    }

    /// Floats of a row of all projections: the gate, the channels, a time step of every head or input.
    pub(crate) fn width(&self) -> u32 {
        let times = match self.selective {
            None => self.heads,
            Some(_) => self.values(),
        };
        self.values() + self.channels() + times
    }

    /// Floats of a row of inputs, keys and queries; of Mamba-1 also of time steps at their rank.
    pub(crate) fn convolved(&self) -> u32 {
        let rank = self.selective.map_or(0, |s| s.rank);
        self.values() + self.keys_and_queries() + rank
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

    /// Floats of a row of all projections: the channels, the gate, b and a of every head. With decays by channel: the channels, the gate and
    /// a in their low ranks, b of every head, a of every element of its key, the gate.
    pub(crate) fn width(&self) -> u32 {
        let all = self.channels() + self.values() + self.heads;
        if self.by_channel {
            all + self.ranks() + self.heads * self.key_dim
        } else {
            all + self.heads
        }
    }

    /// The low ranks of the gate and of a.
    pub(crate) fn ranks(&self) -> u32 {
        self.value_dim + self.key_dim
    }
}

/// What an encoder has and a decoder has not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoder {
    /// Learned positions; without them, layers have rope.
    pub positions: Option<Positions>,
    /// Entries in the table of segments; 0: no table.
    pub types: u32,
    /// Embeddings are normed.
    pub embedding_norm: bool,
    /// The stream is normed after each part was added to it. Otherwise norms are where decoders have them.
    pub norms_sums: bool,
    /// The stream is normed after the last layer.
    pub final_norm: bool,
    /// Scores of attention fall with the distance of rows, in each head by a slope of its own (ALiBi).
    pub slopes: bool,
    /// The sum after attention is added to the layer's input again, and normed again.
    pub second_norm: bool,
    /// A matrix of gate and up has up in its first rows.
    pub up_first: bool,
    /// The first layer's attention does not norm its input, because the embeddings are normed.
    pub first_is_normed: bool,
    /// The first of `dense` is part of the model, not a module after it.
    pub projects: bool,
    /// Layers between the pooled state and the vector.
    pub dense: Vec<Dense>,
    /// Activation between the two matrices of a classifier, if the checkpoint has one.
    pub classifier: Option<Act>,
    /// The checkpoint has a matrix that yields what a token weighs, so texts have sparse vectors, too (BGE-M3).
    pub weighs_tokens: bool,
    /// The checkpoint has the head of a masked language model ([`Pooling::Vocabulary`](crate::Pooling::Vocabulary)).
    pub masked_head: bool,
}

/// A table of learned positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Entry of the first position.
    pub first: u32,
    /// Positions.
    pub count: u32,
}

/// A dense layer after pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Values that it yields.
    pub outputs: u32,
    /// It adds a bias.
    pub bias: bool,
    /// It ends in the hyperbolic tangent.
    pub tanh: bool,
}

/// The gates of attention's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputGate {
    /// There is one for each head. Otherwise there is one for each value.
    pub per_head: bool,
    /// They are softplus. Otherwise they are sigmoids.
    pub softplus: bool,
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
    /// Of the sum of the chosen experts.
    pub experts_sum: bool,
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
    /// Factors of what matrices yield, if any.
    pub multipliers: Option<Multipliers>,
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
    /// The sizes of each layer, if they differ. Then `kv_heads`, `head_dim` and `ffn` are those of no layer in particular, and `heads` is
    /// the most.
    pub layer_shapes: Vec<LayerShape>,
    /// The layer whose keys and values each layer attends to. Empty: its own.
    pub kv_sources: Vec<u32>,
    /// The layers whose values are their keys before norm and rope. Empty: none.
    pub values_are_keys: Vec<bool>,
    /// Elements of a head's value, if they are fewer than those of its key. Caches keep it as wide as the key.
    pub value_dim: Option<u32>,
    /// Factor of the values. Other than 1 only if they are narrower.
    pub value_scale: f32,
    /// Each head of the values is normed, without a weight.
    pub value_norm: bool,
    /// Width of the embedding that each token has for each layer; 0 is none.
    pub per_layer_width: u32,
    /// The output of each layer is multiplied by a number.
    pub layer_scalars: bool,
    /// Several streams of hidden states, if any.
    pub altup: Option<AltUp>,
    /// Streams beside each other that all parts read and write, if any.
    pub hyper: Option<Hyper>,
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
    /// The limits of each layer's activations, which are SiLU. Empty: none.
    pub limits: Vec<Limits>,
    /// They are limits of the gate before its activation.
    pub limits_gate: bool,
    /// The feed-forward part multiplies the activation of a gate. Otherwise it is `down(act(up(x)))`.
    pub gated: bool,
    /// Constants of each layer's xIELU: those of the op `act`.
    pub xielu: Vec<[f32; 4]>,
    /// Attention and feed-forward parts read the same stream, and the same norm of it.
    pub parallel: bool,
    /// Parts that read the same stream norm it with weights of their own.
    pub own_norms: bool,
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
    /// What chooses the positions that a row sees, if any.
    pub indexer: Option<Indexer>,
    /// Positions that an indexer chooses which is not computed. Longer contexts are refused.
    pub indexed: Option<u32>,
    /// Queries and keys are normed after rope. Layers without rope do not norm them.
    pub qk_norm_late: bool,
    /// How queries grow with the position.
    pub position_scale: Option<PositionScale>,
    /// Attention and feed-forward parts norm their input.
    pub pre_norm: bool,
    /// Attention and feed-forward parts norm their output before it is added.
    pub post_norm: bool,
    /// The epsilon of those norms of the output, if it is another.
    pub post_eps: Option<f32>,
    /// Added to the weights of every norm.
    pub norm_add: f32,
    /// Nothing is added to those of the last norm.
    pub plain_final_norm: bool,
    /// The matrices with a bias.
    pub biases: Biases,
    /// The head is the embedding table.
    pub tied: bool,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Embeddings are normed, without weights.
    pub embedding_norm: bool,
    /// The attention window of each layer; 0 is none.
    pub windows: Vec<u32>,
    /// A window begins at a multiple of its size.
    pub chunks: bool,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// The layers whose heads have an attention sink each. Empty: none.
    pub sinks: Vec<bool>,
    /// The output of attention is scaled by gates.
    pub attention_gate: Option<OutputGate>,
    /// Soft cap of the attention scores; 0 is none.
    pub attention_softcap: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Soft cap of the logits; 0 is none.
    pub logit_softcap: f32,
    /// Layers after which a further part of their feature is added to rows of pictures, in the order of the parts.
    pub deep_features: Vec<u32>,
    /// The layers in which rows see nothing after themselves, whatever their reach. Empty: none.
    pub causal_layers: Vec<bool>,
    /// What an encoder has; `None` for decoders.
    pub encoder: Option<Encoder>,
}

// Real models stay far below these bounds. Values within them never overflow 64 bits or exhaust memory.
pub(crate) const MOST_LAYERS: u32 = 1024;
pub(crate) const MOST_DIM: u32 = 1 << 16;
pub(crate) const MOST_HEADS: u32 = 1024;
pub(crate) const MOST_HEAD_DIM: u32 = 1024;
pub(crate) const MOST_FFN: u32 = 1 << 20;
