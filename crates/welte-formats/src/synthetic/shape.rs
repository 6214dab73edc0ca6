//! Shapes of synthetic models.

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
    pub rope_base: f32,
    pub norm_epsilon: f32,
    pub scaling: Option<Llama3Scaling>,
}

/// The names of shapes.
pub const NAMES: [&str; 38] = [
    "gemma-3n-e4b",
    "gemma-3n-small",
    "qwen3.5-4b",
    "qwen3.5-small",
    "qwen3.5-35b-a3b",
    "qwen3.5-moe-small",
    "lfm2-1.2b",
    "lfm2-small",
    "lfm2-8b-a1b",
    "lfm2-moe-small",
    "granite-4-h-tiny",
    "granite-4-h-micro",
    "granite-4-small",
    "nemotron-h-8b",
    "nemotron-h-small",
    "nemotron-3-nano",
    "nemotron-3-small",
    "deepseek-v2-lite",
    "glm-4.7-flash",
    "glm-flash-small",
    "phi-moe",
    "gemma4-small",
    "gemma4-moe-small",
    "qwen3-0.6b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "qwen3-moe-small",
    "gemma-3-1b",
    "gemma4-e4b",
    "gemma4-26b-a4b",
    "gpt-oss-20b",
    "gpt-oss-small",
    "llama-1b",
    "llama-8b",
    "tinyllama-1.1b",
    "tiny",
    "custom",
];

const fn qwen3(layers: usize, dim: usize, heads: usize, ffn: usize, tied: bool) -> Shape {
    Shape {
        family: Family::Qwen3,
        layers,
        dim,
        heads,
        kv_heads: 8,
        head_dim: 128,
        ffn,
        experts: 0,
        used: 0,
        vocab: 151_936,
        context: 40_960,
        window: 0,
        delta: SMALL_DELTA,
        tied,
        rope_base: 1e6,
        norm_epsilon: 1e-6,
        scaling: None,
    }
}

const fn llama3(
    layers: usize,
    dim: usize,
    head_dim: usize,
    ffn: usize,
    tied: bool,
    factor: f32,
) -> Shape {
    Shape {
        family: Family::Llama,
        layers,
        dim,
        heads: 32,
        kv_heads: 8,
        head_dim,
        ffn,
        experts: 0,
        used: 0,
        vocab: 128_256,
        context: 131_072,
        window: 0,
        delta: SMALL_DELTA,
        tied,
        rope_base: 5e5,
        norm_epsilon: 1e-5,
        scaling: Some(Llama3Scaling {
            factor,
            low: 1.0,
            high: 4.0,
            context: 8192.0,
        }),
    }
}

/// Heads that fit `TINY`.
const SMALL_DELTA: DeltaShape = DeltaShape {
    key_heads: 2,
    heads: 4,
    dim: 32,
};

/// For tests and examples: loads immediately.
const TINY: Shape = Shape {
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
    delta: SMALL_DELTA,
    tied: true,
    rope_base: 1e4,
    norm_epsilon: 1e-5,
    scaling: None,
};

const MIXTURE: Shape = Shape {
    family: Family::Qwen3Moe,
    kv_heads: 4,
    experts: 128,
    used: 8,
    ..qwen3(48, 2048, 32, 768, false)
};

const QWEN35: Shape = Shape {
    family: Family::Qwen35,
    kv_heads: 4,
    head_dim: 256,
    vocab: 248_320,
    context: 262_144,
    rope_base: 1e7,
    delta: DeltaShape {
        key_heads: 16,
        heads: 32,
        dim: 128,
    },
    ..qwen3(32, 2560, 16, 9216, true)
};

const GPT_OSS: Shape = Shape {
    family: Family::GptOss,
    layers: 24,
    dim: 2880,
    heads: 64,
    kv_heads: 8,
    head_dim: 64,
    ffn: 2880,
    experts: 32,
    used: 4,
    vocab: 201_088,
    context: 131_072,
    window: 128,
    delta: SMALL_DELTA,
    tied: false,
    rope_base: 1.5e5,
    norm_epsilon: 1e-5,
    scaling: None,
};

const GEMMA4_E4B: Shape = Shape {
    family: Family::Gemma4(Gemma4 {
        per_layer: 256,
        shared: 18,
        full_kv_heads: 2,
        values_are_keys: false,
        dense: 0,
    }),
    layers: 42,
    dim: 2560,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    ffn: 10_240,
    experts: 0,
    used: 0,
    vocab: 262_144,
    context: 131_072,
    window: 512,
    tied: true,
    rope_base: 1e6,
    norm_epsilon: 1e-6,
    scaling: None,
    delta: SMALL_DELTA,
};

const GEMMA3N_SIZES: Gemma3n = Gemma3n {
    per_layer: 256,
    shared: 15,
    streams: 4,
    rank: 64,
};

const GEMMA3N: Shape = Shape {
    family: Family::Gemma3n(GEMMA3N_SIZES),
    layers: 35,
    dim: 2048,
    ffn: 16_384,
    context: 32_768,
    ..GEMMA4_E4B
};

const GEMMA4_MIXTURE: Shape = Shape {
    family: Family::Gemma4(Gemma4 {
        per_layer: 0,
        shared: 0,
        full_kv_heads: 2,
        values_are_keys: true,
        dense: 2112,
    }),
    layers: 30,
    dim: 2816,
    heads: 16,
    kv_heads: 8,
    ffn: 704,
    experts: 128,
    used: 8,
    window: 1024,
    ..GEMMA4_E4B
};

const QWEN35_MIXTURE: Shape = Shape {
    family: Family::Qwen35Moe,
    layers: 40,
    dim: 2048,
    kv_heads: 2,
    ffn: 512,
    experts: 256,
    used: 8,
    tied: false,
    ..QWEN35
};

const NO_SSM: SsmShape = SsmShape {
    heads: 0,
    head_dim: 0,
    state: 0,
    groups: 1,
};

const LFM2: Shape = Shape {
    family: Family::Hybrid(Hybrid {
        architecture: "lfm2",
        pattern: "CC*CC*CC*C*C*C*C",
        alone: false,
        dense: 8192,
        dense_layers: 0,
        shared: 0,
        sigmoid: false,
        ssm: NO_SSM,
    }),
    layers: 16,
    dim: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    experts: 0,
    used: 0,
    vocab: 65_536,
    context: 128_000,
    rope_base: 1e6,
    ..TINY
};

const LFM2_MIXTURE: Shape = Shape {
    family: Family::Hybrid(Hybrid {
        architecture: "lfm2moe",
        pattern: "CC*CCC*CCC*CCC*CCC*CC*CC",
        alone: false,
        dense: 7168,
        dense_layers: 2,
        shared: 0,
        sigmoid: true,
        ssm: NO_SSM,
    }),
    layers: 24,
    ffn: 1792,
    experts: 32,
    used: 4,
    ..LFM2
};

const GRANITE_SSM: SsmShape = SsmShape {
    heads: 48,
    head_dim: 64,
    state: 128,
    groups: 1,
};

const GRANITE: Hybrid = Hybrid {
    architecture: "granitehybrid",
    pattern: "MMMMM*MMMM",
    alone: false,
    dense: 512,
    dense_layers: 0,
    shared: 1024,
    sigmoid: false,
    ssm: GRANITE_SSM,
};

const GRANITE_MIXTURE: Shape = Shape {
    family: Family::Hybrid(GRANITE),
    layers: 40,
    dim: 1536,
    heads: 12,
    kv_heads: 4,
    head_dim: 128,
    ffn: 512,
    experts: 64,
    used: 6,
    vocab: 100_352,
    context: 131_072,
    ..TINY
};

const NEMOTRON_H: Shape = Shape {
    family: Family::Hybrid(Hybrid {
        architecture: "nemotron_h",
        pattern: "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        alone: true,
        dense: 21_504,
        dense_layers: 0,
        shared: 0,
        sigmoid: false,
        ssm: SsmShape {
            heads: 128,
            head_dim: 64,
            state: 128,
            groups: 8,
        },
    }),
    layers: 52,
    dim: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 21_504,
    experts: 0,
    used: 0,
    vocab: 131_072,
    context: 8192,
    tied: false,
    ..TINY
};

const NEMOTRON_3_NANO: Shape = Shape {
    family: Family::Hybrid(Hybrid {
        architecture: "nemotron_h_moe",
        pattern: "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        alone: true,
        dense: 1856,
        dense_layers: 0,
        shared: 3712,
        sigmoid: true,
        ssm: SsmShape {
            heads: 64,
            head_dim: 64,
            state: 128,
            groups: 8,
        },
    }),
    layers: 52,
    dim: 2688,
    heads: 32,
    kv_heads: 2,
    head_dim: 128,
    ffn: 1856,
    experts: 128,
    used: 6,
    vocab: 131_072,
    context: 8192,
    tied: false,
    ..TINY
};

const DEEPSEEK_LITE: Shape = Shape {
    family: Family::Latent(LatentShape {
        query_rank: 0,
        rank: 512,
        rope: 64,
        plain: 128,
        value: 128,
        dense: 10_944,
        shared: 2,
        scale: 1.0,
        sigmoid: false,
        yarn: true,
    }),
    layers: 27,
    dim: 2048,
    heads: 16,
    kv_heads: 1,
    head_dim: 64,
    ffn: 1408,
    experts: 64,
    used: 6,
    vocab: 102_400,
    context: 163_840,
    tied: false,
    norm_epsilon: 1e-6,
    ..TINY
};

const GLM_FLASH: Shape = Shape {
    family: Family::Latent(LatentShape {
        query_rank: 768,
        rank: 512,
        rope: 64,
        plain: 192,
        value: 256,
        dense: 10_240,
        shared: 1,
        scale: 1.8,
        sigmoid: true,
        yarn: false,
    }),
    layers: 47,
    heads: 20,
    ffn: 1536,
    used: 4,
    vocab: 154_880,
    context: 202_752,
    rope_base: 1e6,
    norm_epsilon: 1e-5,
    ..DEEPSEEK_LITE
};

/// The same with other layers.
const fn hybrid(family: Family, pattern: &'static str, dense_layers: usize) -> Family {
    match family {
        Family::Hybrid(own) => Family::Hybrid(Hybrid {
            pattern,
            dense_layers,
            ..own
        }),
        other => other,
    }
}

impl Shape {
    /// A shape by name. `custom` starts from `tiny`.
    pub fn named(name: &str) -> Option<Shape> {
        Some(match name {
            "qwen3-0.6b" => qwen3(28, 1024, 16, 3072, true),
            "qwen3-4b" => qwen3(36, 2560, 32, 9728, true),
            "qwen3-8b" => qwen3(36, 4096, 32, 12_288, false),
            "qwen3-30b-a3b" => MIXTURE,
            "qwen3.5-4b" => QWEN35,
            // The same layers, but fewer; the smaller vocabulary keeps the head's share of the work.
            "qwen3.5-small" => Shape {
                layers: 4,
                vocab: 32_000,
                ..QWEN35
            },
            // The same experts in fewer layers; the smaller vocabulary keeps the head's share of the work.
            "qwen3-moe-small" => Shape {
                layers: 5,
                vocab: 32_000,
                ..MIXTURE
            },
            "gemma-3-1b" => Shape {
                family: Family::Gemma3,
                layers: 26,
                dim: 1152,
                heads: 4,
                kv_heads: 1,
                head_dim: 256,
                ffn: 6912,
                experts: 0,
                used: 0,
                vocab: 262_144,
                context: 32_768,
                window: 512,
                delta: SMALL_DELTA,
                tied: true,
                rope_base: 1e6,
                norm_epsilon: 1e-6,
                scaling: None,
            },
            "gemma4-e4b" => GEMMA4_E4B,
            "gemma-3n-e4b" => GEMMA3N,
            // llama.cpp shares keys and values from layer 20 on, whatever the file says.
            "gemma-3n-small" => Shape {
                family: Family::Gemma3n(Gemma3n {
                    shared: 0,
                    ..GEMMA3N_SIZES
                }),
                layers: 10,
                vocab: 65_536,
                ..GEMMA3N
            },
            "gemma4-26b-a4b" => GEMMA4_MIXTURE,
            // A fifth of the layers, each with its own keys and values; the smaller vocabulary keeps the head's share of the work.
            "gemma4-small" => Shape {
                family: Family::Gemma4(Gemma4 {
                    per_layer: 256,
                    shared: 4,
                    full_kv_heads: 2,
                    values_are_keys: false,
                    dense: 0,
                }),
                layers: 10,
                vocab: 65_536,
                ..GEMMA4_E4B
            },
            "gemma4-moe-small" => Shape {
                layers: 6,
                vocab: 65_536,
                ..GEMMA4_MIXTURE
            },
            "qwen3.5-35b-a3b" => QWEN35_MIXTURE,
            "qwen3.5-moe-small" => Shape {
                layers: 4,
                vocab: 32_000,
                ..QWEN35_MIXTURE
            },
            "lfm2-1.2b" => LFM2,
            "lfm2-small" => Shape {
                layers: 8,
                vocab: 32_768,
                ..LFM2
            },
            "lfm2-8b-a1b" => LFM2_MIXTURE,
            "lfm2-moe-small" => Shape {
                layers: 4,
                vocab: 16_384,
                family: hybrid(LFM2_MIXTURE.family, "CC*C", 1),
                ..LFM2_MIXTURE
            },
            "granite-4-h-tiny" => GRANITE_MIXTURE,
            "granite-4-small" => Shape {
                layers: 10,
                vocab: 25_088,
                ..GRANITE_MIXTURE
            },
            "granite-4-h-micro" => Shape {
                family: Family::Hybrid(Hybrid {
                    dense: 8192,
                    shared: 8192,
                    ssm: SsmShape {
                        heads: 64,
                        ..GRANITE_SSM
                    },
                    ..GRANITE
                }),
                dim: 2048,
                heads: 32,
                kv_heads: 8,
                head_dim: 64,
                ffn: 8192,
                experts: 0,
                used: 0,
                ..GRANITE_MIXTURE
            },
            "nemotron-h-8b" => NEMOTRON_H,
            // As many layers of each kind, relative to the others; the smaller vocabulary keeps the head's share of the work.
            "nemotron-h-small" => Shape {
                family: hybrid(NEMOTRON_H.family, "M-M-M*-M-M-M-", 0),
                layers: 13,
                vocab: 32_768,
                ..NEMOTRON_H
            },
            "nemotron-3-nano" => NEMOTRON_3_NANO,
            "nemotron-3-small" => Shape {
                family: hybrid(NEMOTRON_3_NANO.family, "MEMEM*EME", 0),
                layers: 9,
                vocab: 24_576,
                ..NEMOTRON_3_NANO
            },
            "deepseek-v2-lite" => DEEPSEEK_LITE,
            "glm-4.7-flash" => GLM_FLASH,
            "glm-flash-small" => Shape {
                layers: 5,
                vocab: 32_000,
                ..GLM_FLASH
            },
            // Phi-3.5-MoE. For names with "phi-3" llama.cpp expects certain tokens.
            "phi-moe" => Shape {
                family: Family::PhiMoe,
                layers: 32,
                dim: 4096,
                heads: 32,
                kv_heads: 8,
                head_dim: 128,
                ffn: 6400,
                experts: 16,
                used: 2,
                vocab: 32_064,
                context: 4096,
                tied: false,
                ..TINY
            },
            "gpt-oss-20b" => GPT_OSS,
            // The same experts in fewer layers; the smaller vocabulary keeps the head's share of the work.
            "gpt-oss-small" => Shape {
                layers: 4,
                vocab: 33_536,
                ..GPT_OSS
            },
            "llama-1b" => llama3(16, 2048, 64, 8192, true, 32.0),
            "llama-8b" => llama3(32, 4096, 128, 14_336, false, 8.0),
            "tinyllama-1.1b" => Shape {
                layers: 22,
                dim: 2048,
                heads: 32,
                kv_heads: 4,
                ffn: 5632,
                vocab: 32_000,
                context: 2048,
                tied: false,
                ..TINY
            },
            "tiny" | "custom" => TINY,
            _ => return None,
        })
    }

    /// Sets one field from `key=value`.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |most: usize| match value.parse::<usize>() {
            Ok(v) if (1..=most).contains(&v) => Ok(v),
            _ => Err(format!("{key}={value}: expected a number from 1 to {most}")),
        };
        let float = || match value.parse::<f32>() {
            Ok(v) if v.is_finite() && v > 0.0 => Ok(v),
            _ => Err(format!("{key}={value}: expected a number above 0")),
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
            "tied" => {
                self.tied = value
                    .parse()
                    .map_err(|_| format!("tied={value}: expected true or false"))?;
            }
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
                     context, window, tied, rope_base, rope_factor, norm_epsilon, seed"
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

    /// Every so many layers, one has attention; the others have the gated delta rule.
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
