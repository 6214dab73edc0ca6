//! A checkpoint made of nothing but names and shapes.

#![allow(dead_code)] // Not every test uses every part.

use std::borrow::Cow;
use welte_formats::checkpoint::{Checkpoint, Dialect, Error, Metadata, TensorInfo, Value};
use welte_models::{ModelSpec, spec};
use welte_table::Format;

/// Names, shapes and metadata. Every value is 2, or 4 in tensors for long contexts, as F32.
pub(crate) struct Fake {
    pub(crate) dialect: Dialect,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Checkpoint for Fake {
    fn origin(&self) -> &str {
        "fake"
    }
    fn dialect(&self) -> Dialect {
        self.dialect
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }
    fn rows(&self, tensor: &TensorInfo, _: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let value: f32 = if tensor.name.contains("long") {
            4.0
        } else {
            2.0
        };
        Ok(Cow::Owned(value.to_le_bytes().repeat(tensor.k * rows)))
    }
}

/// What a fake is made from.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) architecture: &'static str,
    pub(crate) dialect: Dialect,
    pub(crate) layers: u32,
    pub(crate) dim: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) ffn: u32,
    pub(crate) vocab: u32,
    pub(crate) tied: bool,
    /// Of Q, K, gate, O, down.
    pub(crate) format: Format,
    /// Of V.
    pub(crate) v_format: Format,
    /// Of up.
    pub(crate) up_format: Format,
    pub(crate) mlp_bias: bool,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            architecture: "llama",
            dialect: Dialect::Gguf,
            layers: 3,
            dim: 256,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            ffn: 512,
            vocab: 300,
            tied: false,
            format: Format::Q4_K,
            v_format: Format::Q4_K,
            up_format: Format::Q4_K,
            mlp_bias: false,
        }
    }
}

impl Recipe {
    pub(crate) fn build(&self) -> Fake {
        let mut fake = Fake {
            dialect: self.dialect,
            metadata: Metadata::new(),
            tensors: Vec::new(),
        };
        self.metadata(&mut fake);
        self.tensors(&mut fake);
        fake
    }

    fn metadata(&self, fake: &mut Fake) {
        fake.set(
            "general.architecture",
            Value::String(self.architecture.into()),
        );
        let numbers = [
            ("block_count", "num_hidden_layers", self.layers),
            ("embedding_length", "hidden_size", self.dim),
            ("attention.head_count", "num_attention_heads", self.heads),
            (
                "attention.head_count_kv",
                "num_key_value_heads",
                self.kv_heads,
            ),
            ("attention.key_length", "head_dim", self.head_dim),
            ("feed_forward_length", "intermediate_size", self.ffn),
            ("context_length", "max_position_embeddings", 2048),
        ];
        for (gguf, hf, value) in numbers {
            let key = self.key(gguf, hf);
            fake.set(&key, Value::U64(value.into()));
        }
        fake.set(
            &self.key("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
            Value::F64(1e-5),
        );
        fake.set(
            &self.key("rope.freq_base", "rope_theta"),
            Value::F64(10000.0),
        );
        if self.dialect == Dialect::HuggingFace {
            fake.set("tie_word_embeddings", Value::Bool(self.tied));
        }
    }

    pub(crate) fn key(&self, gguf: &str, hf: &str) -> String {
        match self.dialect {
            Dialect::Gguf => format!("{}.{gguf}", self.architecture),
            Dialect::HuggingFace => hf.into(),
        }
    }

    fn tensors(&self, fake: &mut Fake) {
        let gguf = self.dialect == Dialect::Gguf;
        let pick = |a: &str, b: &str| if gguf { a.to_string() } else { b.to_string() };
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let f = self.format;
        fake.add(
            &pick("token_embd.weight", "model.embed_tokens.weight"),
            f,
            self.vocab,
            self.dim,
        );
        fake.add(
            &pick("output_norm.weight", "model.norm.weight"),
            Format::F32,
            1,
            self.dim,
        );
        if !self.tied {
            fake.add(
                &pick("output.weight", "lm_head.weight"),
                f,
                self.vocab,
                self.dim,
            );
        }
        for i in 0..self.layers {
            let at = pick("blk.", "model.layers.") + &i.to_string() + ".";
            let matrices = [
                (pick("attn_q", "self_attn.q_proj"), f, q, self.dim),
                (pick("attn_k", "self_attn.k_proj"), f, kv, self.dim),
                (
                    pick("attn_v", "self_attn.v_proj"),
                    self.v_format,
                    kv,
                    self.dim,
                ),
                (pick("attn_output", "self_attn.o_proj"), f, self.dim, q),
                (pick("ffn_gate", "mlp.gate_proj"), f, self.ffn, self.dim),
                (
                    pick("ffn_up", "mlp.up_proj"),
                    self.up_format,
                    self.ffn,
                    self.dim,
                ),
                (pick("ffn_down", "mlp.down_proj"), f, self.dim, self.ffn),
            ];
            for (j, (name, format, n, k)) in matrices.into_iter().enumerate() {
                fake.add(&format!("{at}{name}.weight"), format, n, k);
                if (j < 3 && self.architecture == "qwen2") || (j > 3 && self.mlp_bias) {
                    fake.add(&format!("{at}{name}.bias"), Format::F16, 1, n);
                }
            }
            let mut norms = vec![
                (pick("attn_norm", "input_layernorm"), self.dim),
                (pick("ffn_norm", "post_attention_layernorm"), self.dim),
            ];
            if self.architecture == "qwen3" {
                norms.push((pick("attn_q_norm", "self_attn.q_norm"), self.head_dim));
                norms.push((pick("attn_k_norm", "self_attn.k_norm"), self.head_dim));
            }
            for (name, k) in norms {
                fake.add(&format!("{at}{name}.weight"), Format::F32, 1, k);
            }
        }
    }
}

impl Fake {
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.metadata.insert(key.into(), value);
    }
    pub(crate) fn add(&mut self, name: &str, format: Format, n: u32, k: u32) {
        self.tensors.push(TensorInfo {
            name: name.into(),
            format,
            n: n as usize,
            k: k as usize,
            stack: 1,
        });
    }
    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut TensorInfo {
        self.tensors
            .iter_mut()
            .find(|t| t.name == name)
            .expect("the fake has that tensor")
    }
}

pub(crate) fn text(text: &str) -> Value {
    Value::String(text.into())
}

#[track_caller]
pub(crate) fn read(fake: &Fake) -> ModelSpec {
    spec(fake).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
pub(crate) fn refused(fake: &Fake, words: &[&str]) {
    let error = spec(fake).expect_err("must be refused").to_string();
    for word in words {
        assert!(error.contains(word), "'{error}' does not say '{word}'");
    }
}

/// A model of four layers in F32 with these values.
pub(crate) fn fake(architecture: &'static str, dialect: Dialect, values: &[(&str, Value)]) -> Fake {
    let mut fake = Recipe {
        architecture,
        dialect,
        layers: 4,
        format: Format::F32,
        v_format: Format::F32,
        up_format: Format::F32,
        ..Recipe::default()
    }
    .build();
    for (key, value) in values {
        match dialect {
            Dialect::Gguf => fake.set(&format!("{architecture}.{key}"), value.clone()),
            Dialect::HuggingFace => fake.set(key, value.clone()),
        }
    }
    fake
}

pub(crate) fn gguf(architecture: &'static str, values: &[(&str, Value)]) -> Fake {
    fake(architecture, Dialect::Gguf, values)
}

pub(crate) fn directory(architecture: &'static str, values: &[(&str, Value)]) -> Fake {
    fake(architecture, Dialect::HuggingFace, values)
}

/// Experts in the names of both dialects.
pub(crate) fn mixed(
    architecture: &'static str,
    dialect: Dialect,
    values: &[(&str, Value)],
) -> Fake {
    let number = Value::U64;
    let common = match dialect {
        Dialect::Gguf => [
            ("expert_count", number(8)),
            ("expert_used_count", number(2)),
            ("expert_feed_forward_length", number(64)),
        ],
        Dialect::HuggingFace => [
            ("num_experts", number(8)),
            ("num_experts_per_tok", number(2)),
            ("moe_intermediate_size", number(64)),
        ],
    };
    fake(architecture, dialect, &[common.as_slice(), values].concat())
}

pub(crate) const GGUF: Dialect = Dialect::Gguf;
pub(crate) const DIRECTORY: Dialect = Dialect::HuggingFace;
