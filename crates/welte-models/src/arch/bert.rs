//! Encoders of the BERT family: BERT, RoBERTa and XLM-R with learned positions; nomic-bert, with and without experts, and Jina v3 with
//! rope. Sums are layer-normed. BGE, E5, MiniLM and their rerankers are of this family.

use super::architecture::{Architecture, Usual, has, no_windows};
use crate::encoder::{self, must_be};
use crate::keys::Keys;
use crate::names::{self, Names, TransposedExperts, weight};
use crate::spec::{Act, LayerRope, NormKind};
use crate::spec::{Encoder, Positions};
use crate::{Error, ModelSpec, QkNorm};

pub(super) const BERT: Architecture = Architecture {
    name: "bert",
    gguf: &["bert"],
    hugging_face: &["bert"],
    gguf_names: GGUF,
    hugging_face_names: HUGGING_FACE,
    gguf_interleaved: false,
    qk_norm: QkNorm::None,
    experts: false,
    lists: false,
    attends: true,
    usual: Usual::PLAIN,
    windows: no_windows,
    finish: |spec, keys| learned(spec, keys, 0),
};

/// Without segments. The activation has a name of its own.
pub(super) const DISTILBERT: Architecture = Architecture {
    name: "distilbert",
    gguf: &[],
    hugging_face: &["distilbert"],
    hugging_face_names: Names {
        q: "transformer.layer.{}.attention.q_lin",
        k: "transformer.layer.{}.attention.k_lin",
        v: "transformer.layer.{}.attention.v_lin",
        o: "transformer.layer.{}.attention.out_lin",
        post_attn_norm: "transformer.layer.{}.sa_layer_norm",
        up: "transformer.layer.{}.ffn.lin1",
        down: "transformer.layer.{}.ffn.lin2",
        post_ffn_norm: "transformer.layer.{}.output_layer_norm",
        ..HUGGING_FACE
    },
    finish: |spec, keys| {
        learned(spec, keys, 0)?;
        must_be(keys, "activation", "gelu")?;
        (spec.act, spec.eps) = (Act::Gelu, 1e-12);
        if let Some(encoder) = &mut spec.encoder {
            encoder.types = 0;
        }
        Ok(())
    },
    ..BERT
};

/// Positions begin after the number of the padding token.
pub(super) const ROBERTA: Architecture = Architecture {
    name: "roberta",
    gguf: &[],
    hugging_face: &["roberta", "xlm-roberta", "camembert"],
    finish: |spec, keys| {
        let padding = keys.u32("pad_token_id")?.unwrap_or(1);
        learned(spec, keys, padding.saturating_add(1))
    },
    ..BERT
};

pub(super) const NOMIC_BERT: Architecture = Architecture {
    name: "nomic-bert",
    gguf: &["nomic-bert"],
    hugging_face: &["nomic_bert"],
    hugging_face_names: HUGGING_FACE_ROPE,
    finish: |spec, keys| {
        common(spec, keys)?;
        spec.act = Act::Silu;
        spec.gated = true;
        Ok(())
    },
    ..BERT
};

/// Every second layer has experts without a gate, whose shares are not scaled to sum to 1.
pub(super) const NOMIC_BERT_MOE: Architecture = Architecture {
    name: "nomic-bert-moe",
    gguf: &["nomic-bert-moe"],
    hugging_face: &["nomic_bert_moe"],
    hugging_face_names: Names {
        up: "encoder.layers.{}.mlp.fc1",
        router: "encoder.layers.{}.mlp.router.layer",
        fused_experts: [
            "encoder.layers.{}.mlp.experts.mlp.w1",
            "encoder.layers.{}.mlp.experts.mlp.w2",
        ],
        transposed_experts: TransposedExperts::Down,
        expert_sum_bias: "encoder.layers.{}.mlp.experts.bias",
        ..HUGGING_FACE_ROPE
    },
    experts: true,
    finish: |spec, keys| {
        common(spec, keys)?;
        must_be(keys, "activation_function", "gelu")?;
        spec.act = Act::Gelu;
        let normalised = "moe_normalize_expert_weights";
        if keys.bool(normalised)? == Some(true) {
            return Err(keys.error(normalised, "is true, which is not supported"));
        }
        let every = keys.name("moe_every_n_layers", "moe_every_n_layers");
        let every = keys.size(&every, None, spec.layers)?;
        let Some(experts) = &mut spec.experts else {
            let key = keys.name("expert_count", "num_experts");
            return Err(keys.error(&key, "is missing"));
        };
        experts.renormalise = false;
        spec.expert_layers = (0..spec.layers).map(|i| i % every == 1 % every).collect();
        let first = spec.expert_layers.iter().position(|mixed| *mixed);
        spec.biases.experts_sum = first.is_some_and(|first| {
            let first = first.to_string();
            has(spec, keys, |names| {
                names.expert_sum_bias.replace("{}", &first)
            })
        });
        Ok(())
    },
    ..BERT
};

pub(super) const JINA_V3: Architecture = Architecture {
    name: "jina-bert-v3",
    gguf: &["jina-bert-v3"],
    hugging_face: &["jina_embeddings_v3", "jina_clip"],
    hugging_face_names: Names {
        qkv: "encoder.layers.{}.mixer.Wqkv",
        o: "encoder.layers.{}.mixer.out_proj",
        up: "encoder.layers.{}.mlp.fc1",
        ..HUGGING_FACE_ROPE
    },
    finish: common,
    ..BERT
};

/// Jina v2 (JinaBERT): ALiBi in place of positions, and gated feed-forward parts.
pub(super) const JINA_V2: Architecture = Architecture {
    name: "jina-bert-v2",
    gguf: &["jina-bert-v2"],
    hugging_face: &["jina_bert_v2"],
    gguf_names: Names {
        ffn_norm: "blk.{}.attn_norm_2",
        ..GGUF
    },
    hugging_face_names: Names {
        gate_up: "encoder.layer.{}.mlp.gated_layers",
        down: "encoder.layer.{}.mlp.wo",
        post_ffn_norm: "encoder.layer.{}.mlp.layernorm",
        ..HUGGING_FACE
    },
    finish: jina_v2,
    ..BERT
};

/// Jina's model of code norms queries and keys, and the sum after attention twice. Its matrix of gate and up has up first.
pub(super) const JINA_V2_CODE: Architecture = Architecture {
    name: "jina-bert-v2-code",
    gguf: &[],
    hugging_face: &["jina_bert_v2_code"],
    hugging_face_names: Names {
        q_norm: "encoder.layer.{}.attention.self.layer_norm_q",
        k_norm: "encoder.layer.{}.attention.self.layer_norm_k",
        ffn_norm: "encoder.layer.{}.layer_norm_1",
        gate_up: "encoder.layer.{}.mlp.up_gated_layer",
        down: "encoder.layer.{}.mlp.down_layer",
        post_ffn_norm: "encoder.layer.{}.layer_norm_2",
        ..HUGGING_FACE
    },
    ..JINA_V2
};

/// What a directory whose configuration says `bert` holds.
pub(super) fn kind_of(keys: &Keys<'_>) -> Result<&'static str, Error> {
    if keys.text("position_embedding_type")? != Some("alibi") {
        return Ok("bert");
    }
    let of_code = ".mlp.up_gated_layer.weight";
    let mut tensors = keys.checkpoint.tensors().iter();
    Ok(match tensors.any(|tensor| tensor.name.ends_with(of_code)) {
        true => "jina_bert_v2_code",
        false => "jina_bert_v2",
    })
}

fn jina_v2(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    common(spec, keys)?;
    if !keys.is_gguf() {
        must_be(keys, "feed_forward_type", "geglu")?;
    }
    let first = |name: fn(&Names) -> &'static str| has(spec, keys, |names| weight(name(names), 0));
    let (gate, second_norm) = (first(|names| names.gate), first(|names| names.ffn_norm));
    let both = first(|names| names.q_norm);
    // A matrix of up alone is as high as the feed-forward part is wide.
    let up = keys.checkpoint.tensor(&weight(names::GGUF.up, 0));
    spec.gated = gate || !keys.is_gguf() || up.is_some_and(|up| up.n != spec.ffn as usize);
    if both {
        spec.qk_norm = QkNorm::LayerRow;
    }
    if let Some(encoder) = &mut spec.encoder {
        encoder.slopes = true;
        encoder.second_norm = second_norm;
        encoder.up_first = second_norm && !gate;
    }
    spec.layer_ropes = vec![LayerRope::None; spec.layers as usize];
    Ok(())
}

const GGUF: Names = Names {
    post_attn_norm: "blk.{}.attn_output_norm",
    post_ffn_norm: "blk.{}.layer_output_norm",
    ..names::GGUF
};

const HUGGING_FACE: Names = Names {
    embed: "embeddings.word_embeddings",
    q: "encoder.layer.{}.attention.self.query",
    k: "encoder.layer.{}.attention.self.key",
    v: "encoder.layer.{}.attention.self.value",
    o: "encoder.layer.{}.attention.output.dense",
    post_attn_norm: "encoder.layer.{}.attention.output.LayerNorm",
    up: "encoder.layer.{}.intermediate.dense",
    down: "encoder.layer.{}.output.dense",
    post_ffn_norm: "encoder.layer.{}.output.LayerNorm",
    ..names::HUGGING_FACE
};

const HUGGING_FACE_ROPE: Names = Names {
    embed: "embeddings.word_embeddings",
    qkv: "encoder.layers.{}.attn.Wqkv",
    o: "encoder.layers.{}.attn.out_proj",
    post_attn_norm: "encoder.layers.{}.norm1",
    gate: "encoder.layers.{}.mlp.fc12",
    up: "encoder.layers.{}.mlp.fc11",
    down: "encoder.layers.{}.mlp.fc2",
    post_ffn_norm: "encoder.layers.{}.norm2",
    ..names::HUGGING_FACE
};

/// With a table of positions; `first` is the entry of the first position in Hugging Face checkpoints.
fn learned(spec: &mut ModelSpec, keys: &Keys<'_>, first: u32) -> Result<(), Error> {
    common(spec, keys)?;
    must_be(keys, "position_embedding_type", "absolute")?;
    let (first, key) = if keys.is_gguf() {
        (0, keys.name("context_length", ""))
    } else {
        (first, "max_position_embeddings".to_string())
    };
    let count = spec.context.checked_sub(first).filter(|count| *count > 0);
    let count = count.ok_or_else(|| {
        keys.error(
            &key,
            format!("is {}; the first position is {first}", spec.context),
        )
    })?;
    spec.context = count;
    if let Some(encoder) = &mut spec.encoder {
        encoder.positions = Some(Positions { first, count });
    }
    spec.layer_ropes = vec![LayerRope::None; spec.layers as usize];
    Ok(())
}

fn common(spec: &mut ModelSpec, keys: &Keys<'_>) -> Result<(), Error> {
    if keys.bool("is_decoder")? == Some(true) {
        return Err(keys.error("is_decoder", "is true; only encoders are supported"));
    }
    spec.norm = NormKind::Layer { bias: true };
    (spec.pre_norm, spec.post_norm) = (false, true);
    (spec.gated, spec.tied) = (false, true);
    if keys.is_gguf() {
        spec.act = Act::Gelu;
    }
    let types = keys.name("token_type_count", "type_vocab_size");
    let types = if keys.is_gguf() {
        "tokenizer.ggml.token_type_count".to_string()
    } else {
        types
    };
    // Files of DistilBERT have no table.
    let no_table = keys.is_gguf() && keys.checkpoint.tensor("token_types.weight").is_none();
    spec.encoder = Some(Encoder {
        types: match keys.u32(&types)? {
            _ if no_table => 0,
            Some(types) => types,
            None if keys.is_gguf() => 1,
            None => 2,
        },
        embedding_norm: true,
        norms_sums: true,
        dense: encoder::dense(keys)?,
        classifier: encoder::classifier(keys, Act::Tanh),
        weighs_tokens: encoder::weighs_tokens(keys),
        masked_head: encoder::masked_head(keys),
        ..Encoder::default()
    });
    Ok(())
}
