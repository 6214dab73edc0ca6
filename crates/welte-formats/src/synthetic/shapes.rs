//! The shapes that have names. Each says what differs from the one it is based on.

use super::shape::{
    DeltaShape, Family, Gemma3n, Gemma4, Hybrid, LatentShape, Shape, SsmShape, TINY,
};

/// A line for each: its name, what it is based on, and its sizes in the words of [`Synthetic::parse`](super::Synthetic::parse). Small
/// shapes have the same layers, but fewer; the smaller vocabulary keeps the head's share of the work.
const SHAPES: &str = "\
tiny
custom tiny
qwen3-0.6b tiny arch=qwen3,layers=28,dim=1024,heads=16,kv_heads=8,head_dim=128,ffn=3072,vocab=151936,context=40960,rope_base=1e6,norm_epsilon=1e-6
qwen3-4b qwen3-0.6b layers=36,dim=2560,heads=32,ffn=9728
qwen3-8b qwen3-4b dim=4096,ffn=12288,tied=false
qwen3-30b-a3b qwen3-8b arch=qwen3moe,layers=48,dim=2048,kv_heads=4,ffn=768,experts=128,used=8
qwen3-moe-small qwen3-30b-a3b layers=5,vocab=32000
qwen3.5-4b qwen3-0.6b arch=qwen35,layers=32,dim=2560,kv_heads=4,head_dim=256,ffn=9216,vocab=248320,context=262144,rope_base=1e7
qwen3.5-small qwen3.5-4b layers=4,vocab=32000
qwen3.5-35b-a3b qwen3.5-4b arch=qwen35moe,layers=40,dim=2048,kv_heads=2,ffn=512,experts=256,used=8,tied=false
qwen3.5-moe-small qwen3.5-35b-a3b layers=4,vocab=32000
llama-1b tiny layers=16,dim=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,context=131072,rope_base=5e5,rope_factor=32
llama-8b llama-1b layers=32,dim=4096,head_dim=128,ffn=14336,tied=false,rope_factor=8
tinyllama-1.1b tiny layers=22,dim=2048,heads=32,kv_heads=4,ffn=5632,vocab=32000,context=2048,tied=false
phi-moe tiny layers=32,dim=4096,heads=32,kv_heads=8,head_dim=128,ffn=6400,experts=16,vocab=32064,tied=false
gpt-oss-20b tiny arch=gpt-oss,layers=24,dim=2880,heads=64,kv_heads=8,ffn=2880,experts=32,used=4,vocab=201088,context=131072,rope_base=1.5e5
gpt-oss-small gpt-oss-20b layers=4,vocab=33536
gemma-3-1b tiny arch=gemma3,layers=26,dim=1152,kv_heads=1,head_dim=256,ffn=6912,vocab=262144,context=32768,window=512,rope_base=1e6,norm_epsilon=1e-6
gemma4-e4b gemma-3-1b layers=42,dim=2560,heads=8,kv_heads=2,ffn=10240,context=131072
gemma4-small gemma4-e4b layers=10,vocab=65536
gemma4-26b-a4b gemma4-e4b layers=30,dim=2816,heads=16,kv_heads=8,ffn=704,experts=128,used=8,window=1024
gemma4-moe-small gemma4-26b-a4b layers=6,vocab=65536
gemma-3n-e4b gemma4-e4b layers=35,dim=2048,ffn=16384,context=32768
gemma-3n-small gemma-3n-e4b layers=10,vocab=65536
lfm2-1.2b tiny layers=16,dim=2048,heads=32,kv_heads=8,ffn=8192,vocab=65536,context=128000,rope_base=1e6
lfm2-small lfm2-1.2b layers=8,vocab=32768
lfm2-8b-a1b lfm2-1.2b layers=24,experts=32,used=4,ffn=1792
lfm2-moe-small lfm2-8b-a1b layers=4,vocab=16384
granite-4-h-tiny tiny layers=40,dim=1536,heads=12,kv_heads=4,head_dim=128,experts=64,used=6,vocab=100352,context=131072
granite-4-small granite-4-h-tiny layers=10,vocab=25088
granite-4-h-micro granite-4-h-tiny dim=2048,heads=32,kv_heads=8,head_dim=64,ffn=8192
nemotron-h-8b tiny layers=52,dim=4096,heads=32,kv_heads=8,head_dim=128,ffn=21504,vocab=131072,context=8192,tied=false
nemotron-h-small nemotron-h-8b layers=13,vocab=32768
nemotron-3-nano nemotron-h-8b dim=2688,kv_heads=2,experts=128,used=6,ffn=1856
nemotron-3-small nemotron-3-nano layers=9,vocab=24576
deepseek-v2-lite tiny layers=27,dim=2048,heads=16,kv_heads=1,ffn=1408,experts=64,used=6,vocab=102400,context=163840,tied=false,norm_epsilon=1e-6
glm-4.7-flash deepseek-v2-lite layers=47,heads=20,ffn=1536,used=4,vocab=154880,context=202752,rope_base=1e6,norm_epsilon=1e-5
glm-flash-small glm-4.7-flash layers=5,vocab=32000";

/// Sets what the words of a shape do not say.
fn set_own(name: &str, s: &mut Shape) {
    let without_experts = |s: &mut Shape| (s.experts, s.used) = (0, 0);
    match name {
        "qwen3.5-4b" => {
            s.delta = DeltaShape {
                key_heads: 16,
                heads: 32,
                dim: 128,
            };
        }
        "phi-moe" => {
            s.family = Family::PhiMoe;
        }
        "gemma4-e4b" => {
            without_experts(s);
            s.family = Family::Gemma4(GEMMA4);
        }
        // Each layer has its own keys and values.
        "gemma4-small" => {
            s.family = Family::Gemma4(Gemma4 {
                shared: 4,
                ..GEMMA4
            });
        }
        "gemma4-26b-a4b" => {
            s.family = Family::Gemma4(Gemma4 {
                per_layer: 0,
                shared: 0,
                values_are_keys: true,
                dense: 2112,
                ..GEMMA4
            });
        }
        "gemma-3n-e4b" => s.family = Family::Gemma3n(GEMMA3N),
        // llama.cpp shares keys and values from layer 20 on, whatever the file says.
        "gemma-3n-small" => {
            s.family = Family::Gemma3n(Gemma3n {
                shared: 0,
                ..GEMMA3N
            });
        }
        "lfm2-1.2b" => {
            without_experts(s);
            s.family = Family::Hybrid(LFM2);
        }
        "lfm2-8b-a1b" => s.family = Family::Hybrid(LFM2_MIXTURE),
        "lfm2-moe-small" => {
            s.family = Family::Hybrid(Hybrid {
                pattern: "CC*C",
                dense_layers: 1,
                ..LFM2_MIXTURE
            });
        }
        "granite-4-h-tiny" => {
            s.family = Family::Hybrid(GRANITE);
        }
        "granite-4-h-micro" => {
            without_experts(s);
            let ssm = SsmShape {
                heads: 64,
                ..GRANITE.ssm
            };
            s.family = Family::Hybrid(Hybrid {
                shared: 8192,
                ssm,
                ..GRANITE
            });
        }
        "nemotron-h-8b" => {
            without_experts(s);
            s.family = Family::Hybrid(NEMOTRON_H);
        }
        "nemotron-h-small" => {
            s.family = Family::Hybrid(Hybrid {
                pattern: "M-M-M*-M-M-M-",
                ..NEMOTRON_H
            });
        }
        "nemotron-3-nano" => s.family = Family::Hybrid(NEMOTRON_3),
        "nemotron-3-small" => {
            s.family = Family::Hybrid(Hybrid {
                pattern: "MEMEM*EME",
                ..NEMOTRON_3
            });
        }
        "deepseek-v2-lite" => {
            s.family = Family::Latent(DEEPSEEK);
        }
        "glm-4.7-flash" => {
            s.family = Family::Latent(GLM);
        }
        _ => {}
    }
}

const GEMMA4: Gemma4 = Gemma4 {
    per_layer: 256,
    shared: 18,
    full_kv_heads: 2,
    values_are_keys: false,
    dense: 0,
};

const GEMMA3N: Gemma3n = Gemma3n {
    per_layer: 256,
    shared: 15,
    streams: 4,
    rank: 64,
};

const LFM2: Hybrid = Hybrid {
    architecture: "lfm2",
    pattern: "CC*CC*CC*C*C*C*C",
    alone: false,
    dense: 8192,
    dense_layers: 0,
    shared: 0,
    sigmoid: false,
    ssm: SsmShape {
        heads: 0,
        head_dim: 0,
        state: 0,
        groups: 1,
    },
};

const LFM2_MIXTURE: Hybrid = Hybrid {
    architecture: "lfm2moe",
    pattern: "CC*CCC*CCC*CCC*CCC*CC*CC",
    dense: 7168,
    dense_layers: 2,
    sigmoid: true,
    ..LFM2
};

const GRANITE: Hybrid = Hybrid {
    architecture: "granitehybrid",
    pattern: "MMMMM*MMMM",
    dense: 512,
    shared: 1024,
    ssm: SsmShape {
        heads: 48,
        head_dim: 64,
        state: 128,
        groups: 1,
    },
    ..LFM2
};

const NEMOTRON_H: Hybrid = Hybrid {
    architecture: "nemotron_h",
    pattern: "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    alone: true,
    dense: 21_504,
    ssm: SsmShape {
        heads: 128,
        head_dim: 64,
        state: 128,
        groups: 8,
    },
    ..LFM2
};

const NEMOTRON_3: Hybrid = Hybrid {
    architecture: "nemotron_h_moe",
    pattern: "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    dense: 1856,
    shared: 3712,
    sigmoid: true,
    ssm: SsmShape {
        heads: 64,
        ..NEMOTRON_H.ssm
    },
    ..NEMOTRON_H
};

const DEEPSEEK: LatentShape = LatentShape {
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
};

const GLM: LatentShape = LatentShape {
    query_rank: 768,
    plain: 192,
    value: 256,
    dense: 10_240,
    shared: 1,
    scale: 1.8,
    sigmoid: true,
    yarn: false,
    ..DEEPSEEK
};

/// The names of shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.lines().filter_map(|line| line.split(' ').next())
}

impl Shape {
    /// A shape by name. `custom` starts from `tiny`.
    pub fn named(name: &str) -> Option<Shape> {
        let mut lines = SHAPES.lines().map(|line| line.split(' '));
        let mut words =
            lines.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
        let Some(base) = words.next() else {
            return Some(TINY);
        };
        let mut shape = Shape::named(base)?;
        set_own(name, &mut shape);
        let sizes = words.flat_map(|sizes| sizes.split(','));
        for (key, value) in sizes.filter_map(|word| word.split_once('=')) {
            shape.set(key, value).ok()?;
        }
        Some(shape)
    }
}
