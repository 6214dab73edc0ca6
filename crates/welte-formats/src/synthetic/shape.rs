//! Shapes of synthetic models.

/// Taps of convolutions.
pub(super) const TAPS: usize = 4;

/// The model family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// Llama and similar models.
    Llama,
    /// Adds biases on q, k and v.
    Qwen2,
    /// Adds norms on q and k.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Norms on q and k and after each part; a window in five of six layers.
    Gemma3,
    /// Embeddings per layer, or experts beside a dense part; head sizes that differ by layer.
    Gemma4(Gemma4),
    /// Gemma 4's embeddings per layer; several streams, a path around attention, sparse activations.
    Gemma3n(Gemma3n),
    /// Experts, attention sinks, biases on all matrices; a window in every second layer.
    GptOss,
    /// The gated delta rule in three of four layers, gated attention in the others.
    Qwen35,
    /// Qwen3.5 with experts beside a shared one.
    Qwen35Moe,
    /// Experts, layer norms with bias, biases around attention and of the head.
    PhiMoe,
    /// Recurrent layers of other kinds.
    Hybrid(Hybrid),
    /// Attention over latents, and experts beside shared ones.
    Latent(LatentShape),
}

/// What mixes positions in a layer of [`Hybrid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixer {
    Attention,
    /// The state space model of Mamba-2.
    Ssm,
    /// A short convolution.
    Conv,
}

/// The sizes of the state space model of Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SsmShape {
    pub heads: usize,
    pub head_dim: usize,
    pub state: usize,
    pub groups: usize,
}

/// What LFM2, Granite 4 and Nemotron-H have beside the common sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// The architecture in GGUF files.
    pub architecture: &'static str,
    /// The layers, repeated as often as needed: `*` attention, `M` state space model, `C` convolution, others none.
    pub pattern: &'static str,
    /// Feed-forward parts are layers of their own, without gates.
    pub alone: bool,
    /// Width of dense feed-forward parts.
    pub dense: usize,
    /// The first layers, which have no experts.
    pub dense_layers: usize,
    /// Width of the shared expert; 0 is none.
    pub shared: usize,
    /// Experts are scored by sigmoids, and chosen with a bias.
    pub sigmoid: bool,
    /// The state space model, if there is one.
    pub ssm: SsmShape,
}

/// What models with attention over latents have beside the common sizes. The first layer has no experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentShape {
    /// Size of the queries' latent; 0 is none.
    pub query_rank: usize,
    /// Size of the latent of keys and values.
    pub rank: usize,
    /// Rotated elements of a query.
    pub rope: usize,
    /// Elements of a query that are not rotated.
    pub plain: usize,
    /// Elements of a value.
    pub value: usize,
    /// Width of the dense layer.
    pub dense: usize,
    /// Shared experts, as wide as the others.
    pub shared: usize,
    /// Factor of the experts' shares.
    pub scale: f32,
    /// Experts are scored by sigmoids, and chosen with a bias.
    pub sigmoid: bool,
    /// The context is stretched by YaRN.
    pub yarn: bool,
}

/// The layers with the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeltaShape {
    pub key_heads: usize,
    pub heads: usize,
    /// Elements of a key and of a value.
    pub dim: usize,
}

/// The sizes that only Gemma 4 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemma4 {
    /// Width of the embeddings per layer; 0 is none.
    pub per_layer: usize,
    /// The last layers, which share keys and values of earlier ones.
    pub shared: usize,
    /// Key and value heads of full layers.
    pub full_kv_heads: usize,
    /// Full layers have no values of their own.
    pub values_are_keys: bool,
    /// Width of the dense part beside experts.
    pub dense: usize,
}

/// The sizes that only Gemma 3n has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemma3n {
    /// Width of the embeddings per layer.
    pub per_layer: usize,
    /// The last layers, which share keys and values of earlier ones.
    pub shared: usize,
    /// Streams of hidden states.
    pub streams: usize,
    /// Rank of the path around attention.
    pub rank: usize,
}

/// The frequency scaling of Llama 3.1 and later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// The factor by which long waves are stretched.
    pub factor: f32,
    /// Waves longer than `context / low` are fully stretched.
    pub low: f32,
    /// Waves shorter than `context / high` are kept.
    pub high: f32,
    /// The original context.
    pub context: f32,
}

/// A model's sizes.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Shape {
    pub family: Family,
    pub layers: usize,
    pub dim: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of the feed-forward part, or of one expert.
    pub ffn: usize,
    /// Experts per layer, and experts used per token.
    pub experts: usize,
    pub used: usize,
    pub vocab: usize,
    pub context: usize,
    /// Window of windowed layers, in positions.
    pub window: usize,
    pub delta: DeltaShape,
    /// The output matrix is the token embedding.
    pub tied: bool,
    /// A layer that guesses further tokens follows the others.
    pub draft: bool,
    pub rope_base: f32,
    pub norm_epsilon: f32,
    pub scaling: Option<Llama3Scaling>,
}

/// For tests and examples: loads immediately.
pub(super) const TINY: Shape = Shape {
    family: Family::Llama,
    layers: 2,
    dim: 256,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    ffn: 512,
    experts: 4,
    used: 2,
    vocab: 1024,
    context: 4096,
    window: 128,
    delta: DeltaShape {
        key_heads: 2,
        heads: 4,
        dim: 32,
    },
    tied: true,
    draft: false,
    rope_base: 1e4,
    norm_epsilon: 1e-5,
    scaling: None,
};

impl Shape {
    /// Sets one field from `key=value`.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |max: usize| match value.parse::<usize>() {
            Ok(v) if (1..=max).contains(&v) => Ok(v),
            _ => Err(format!("{key}={value}: expected a number from 1 to {max}")),
        };
        let float = || match value.parse::<f32>() {
            Ok(v) if v.is_finite() && v > 0.0 => Ok(v),
            _ => Err(format!("{key}={value}: expected a number above 0")),
        };
        let truth = || {
            let parsed = value.parse::<bool>();
            parsed.map_err(|_| format!("{key}={value}: expected true or false"))
        };
        match key {
            "arch" => {
                self.family = match value {
                    "llama" => Family::Llama,
                    "qwen2" => Family::Qwen2,
                    "qwen3" => Family::Qwen3,
                    "qwen3moe" => Family::Qwen3Moe,
                    "gemma3" => Family::Gemma3,
                    "qwen35" => Family::Qwen35,
                    "qwen35moe" => Family::Qwen35Moe,
                    "gpt-oss" => {
                        self.tied = false;
                        Family::GptOss
                    }
                    _ => {
                        return Err(format!(
                            "arch={value}: expected llama, qwen2, qwen3, qwen3moe, qwen35, qwen35moe, gemma3 or gpt-oss"
                        ));
                    }
                }
            }
            "layers" => self.layers = number(1024)?,
            "dim" => self.dim = number(1 << 17)?,
            "heads" => self.heads = number(1024)?,
            "kv_heads" => self.kv_heads = number(1024)?,
            "head_dim" => self.head_dim = number(1024)?,
            "ffn" => {
                self.ffn = number(1 << 20)?;
                // Without experts it is the size of the dense parts.
                if let Family::Hybrid(own) = &mut self.family
                    && self.experts == 0
                {
                    own.dense = self.ffn;
                }
            }
            "experts" => self.experts = number(1024)?,
            "used" => self.used = number(1024)?,
            "window" => self.window = number(1 << 24)?,
            "vocab" => self.vocab = number(1 << 20)?,
            "context" => self.context = number(1 << 24)?,
            "tied" => self.tied = truth()?,
            "draft" => self.draft = truth()?,
            "rope_base" => self.rope_base = float()?,
            "norm_epsilon" => self.norm_epsilon = float()?,
            "rope_factor" => {
                self.scaling = Some(Llama3Scaling {
                    factor: float()?,
                    low: 1.0,
                    high: 4.0,
                    context: 8192.0,
                });
            }
            _ => {
                return Err(format!(
                    "{key}: unknown; known are arch, layers, dim, heads, kv_heads, head_dim, ffn, experts, used, vocab, \
                     context, window, tied, draft, rope_base, rope_factor, norm_epsilon, seed"
                ));
            }
        }
        Ok(())
    }

    /// Checks the sizes.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "heads={} is not a multiple of kv_heads={}",
                self.heads, self.kv_heads
            ));
        }
        if let Family::Gemma4(own) = self.family
            && own.shared + 6 > self.layers
            && own.shared > 0
        {
            return Err(format!(
                "layers={} leaves no layer of each kind beside the {} that share keys and values",
                self.layers, own.shared
            ));
        }
        let known = matches!(
            self.family,
            Family::Llama | Family::Qwen2 | Family::Qwen3 | Family::Qwen35
        );
        if self.draft && !known {
            let architecture = self.architecture();
            return Err(format!(
                "draft=true with arch={architecture}; llama, qwen2, qwen3 and qwen35 can have a draft layer"
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head_dim={} is odd", self.head_dim));
        }
        if self.has_experts() && self.used > self.experts {
            let (used, experts) = (self.used, self.experts);
            return Err(format!("used={used} is more than experts={experts}"));
        }
        if self.vocab < super::vocabulary::LEAST {
            return Err(format!(
                "vocab={} is less than {}",
                self.vocab,
                super::vocabulary::LEAST
            ));
        }
        Ok(())
    }

    /// The architecture in GGUF files, and the prefix of its keys.
    pub(super) fn architecture(&self) -> &'static str {
        match self.family {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Qwen3Moe => "qwen3moe",
            Family::Gemma3 => "gemma3",
            Family::Gemma3n(_) => "gemma3n",
            Family::Gemma4(_) => "gemma4",
            Family::GptOss => "gpt-oss",
            Family::Qwen35 => "qwen35",
            Family::Qwen35Moe => "qwen35moe",
            Family::PhiMoe => "phimoe",
            Family::Hybrid(own) => own.architecture,
            Family::Latent(_) => "deepseek2",
        }
    }

    /// One layer in this number has attention; the others have the gated delta rule.
    pub(super) fn interval(&self) -> usize {
        match self.family {
            Family::Qwen35 | Family::Qwen35Moe => self.layers.clamp(1, 4),
            _ => 1,
        }
    }

    /// True if the layer has the gated delta rule.
    pub(super) fn is_delta(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.interval())
    }

    /// True if attention has gates beside its queries.
    pub(super) fn is_gated(&self) -> bool {
        matches!(self.family, Family::Qwen35 | Family::Qwen35Moe)
    }

    /// True if feed-forward parts are experts.
    pub(super) fn has_experts(&self) -> bool {
        match self.family {
            Family::Qwen3Moe | Family::GptOss | Family::Qwen35Moe => true,
            Family::PhiMoe | Family::Latent(_) => true,
            Family::Gemma4(_) | Family::Hybrid(_) => self.experts > 0,
            _ => false,
        }
    }

    /// The factor by which each wavelength of a head is stretched (`rope_freqs.weight`). gpt-oss scales differently.
    pub(super) fn rope_factors(&self) -> Option<Vec<f32>> {
        let Llama3Scaling {
            factor,
            low,
            high,
            context,
        } = self.scaling.filter(|_| self.family != Family::GptOss)?;
        let one = |i: usize| {
            let exponent = 2.0 * i as f64 / self.head_dim as f64;
            let wave = 2.0 * std::f64::consts::PI * f64::from(self.rope_base).powf(exponent);
            let turns = f64::from(context) / wave;
            let (factor, low, high) = (f64::from(factor), f64::from(low), f64::from(high));
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - kept) / factor + kept)) as f32
        };
        Some((0..self.head_dim / 2).map(one).collect())
    }
}
