//! What checkpoints say about an encoder, and the names of its own tensors.

use crate::Error;
use crate::keys::Keys;
use crate::names::{bias, weight};
use crate::spec::{Act, Dense, MOST_DIM};
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Value;

/// The names of an encoder's own tensors in one dialect.
pub(crate) struct EncoderNames {
    pub(crate) positions: &'static str,
    pub(crate) types: &'static str,
    pub(crate) embedding_norm: &'static str,
    /// By family: the first matrix of the classifier, its norm, and the second matrix.
    pub(crate) classifiers: &'static [[&'static str; 3]],
    /// What a token weighs.
    pub(crate) token_weight: &'static str,
    /// By family, of the head of a masked language model: its first matrix, the norm after it, the second matrix (that of the embeddings
    /// unless there is one), and the full name of its bias.
    pub(crate) masked_heads: &'static [[&'static str; 4]],
}

const GGUF: EncoderNames = EncoderNames {
    positions: "position_embd",
    types: "token_types",
    embedding_norm: "token_embd_norm",
    classifiers: &[["cls", "cls.norm", "cls.output"]],
    token_weight: "sparse",
    masked_heads: &[],
};

const HUGGING_FACE: EncoderNames = EncoderNames {
    positions: "embeddings.position_embeddings",
    types: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    classifiers: &[
        ["classifier.dense", "", "classifier.out_proj"],
        ["head.dense", "head.norm", "classifier"],
        ["pooler.dense", "", "classifier"],
    ],
    token_weight: "sparse_linear",
    masked_heads: &[
        [
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ],
        [
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head.decoder",
            "lm_head.bias",
        ],
        [
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector",
            "vocab_projector.bias",
        ],
    ],
};

impl EncoderNames {
    pub(crate) fn of(checkpoint: &dyn Checkpoint) -> &'static EncoderNames {
        match checkpoint.dialect() {
            welte_formats::Dialect::Gguf => &GGUF,
            welte_formats::Dialect::HuggingFace => &HUGGING_FACE,
        }
    }
}

/// The activation of the classifier, if the checkpoint has one.
pub(crate) fn classifier(keys: &Keys<'_>, act: Act) -> Option<Act> {
    let names = EncoderNames::of(keys.checkpoint);
    let has = |name: &str| {
        let name = crate::names::resolve(keys.checkpoint, &weight(name, 0));
        keys.checkpoint.tensor(&name).is_some()
    };
    let mut families = names.classifiers.iter();
    families.find(|f| has(f[2])).map(|_| act)
}

/// True if the checkpoint has the head of a masked language model.
pub(crate) fn masked_head(keys: &Keys<'_>) -> bool {
    let mut families = EncoderNames::of(keys.checkpoint).masked_heads.iter();
    families.any(|family| keys.checkpoint.tensor(&weight(family[0], 0)).is_some())
}

/// True if the checkpoint has a matrix that yields what a token weighs.
pub(crate) fn weighs_tokens(keys: &Keys<'_>) -> bool {
    let name = EncoderNames::of(keys.checkpoint).token_weight;
    keys.checkpoint.tensor(&weight(name, 0)).is_some()
}

/// The dense layers that follow pooling.
pub(crate) fn dense(keys: &Keys<'_>) -> Result<Vec<Dense>, Error> {
    let outputs = |name: &str| {
        let info = keys.checkpoint.tensor(&weight(name, 0));
        info.and_then(|info| u32::try_from(info.n).ok())
    };
    if keys.is_gguf() {
        let layers = ["dense_2", "dense_3"].into_iter().filter_map(outputs);
        return Ok(layers
            .map(|outputs| Dense {
                outputs,
                bias: false,
                tanh: false,
            })
            .collect());
    }
    let count = keys.u32("sentence_transformers.dense")?.unwrap_or(0);
    (0..count)
        .map(|i| {
            let name = dense_name(keys.is_gguf(), i);
            let outputs = outputs(&name).ok_or_else(|| Error::Tensor {
                origin: keys.checkpoint.origin().into(),
                name: weight(&name, 0),
                problem: "is missing".into(),
            })?;
            let key = format!("sentence_transformers.dense.{i}.activation_function");
            let class = keys
                .text(&key)?
                .unwrap_or("torch.nn.modules.activation.Tanh");
            let tanh = match class.rsplit('.').next() {
                Some("Tanh") => true,
                Some("Identity") => false,
                _ => {
                    let problem = format!("is {class}; supported are Tanh and Identity");
                    return Err(keys.error(&key, problem));
                }
            };
            Ok(Dense {
                outputs,
                bias: keys.checkpoint.tensor(&bias(&name, 0)).is_some(),
                tanh,
            })
        })
        .collect()
}

/// The name of the matrix with which EmbeddingGemma 2 ends. Texts are pooled before it, which yields the same.
const PROJECTION: &str = "model.embedding_projection";

/// That matrix.
pub(crate) fn projection(keys: &Keys<'_>) -> Result<Dense, Error> {
    let outputs = keys.size("embedding_dim", None, MOST_DIM)?;
    Ok(Dense {
        outputs,
        bias: false,
        tanh: false,
    })
}

/// The name of a layer after pooling.
pub(crate) fn step_name(gguf: bool, projects: bool, index: u32) -> String {
    match index.checked_sub(projects.into()) {
        None => PROJECTION.to_string(),
        Some(index) => dense_name(gguf, index),
    }
}

pub(crate) fn dense_name(gguf: bool, index: u32) -> String {
    if gguf {
        format!("dense_{}", index + 2)
    } else {
        format!("sentence_transformers.dense.{index}.linear")
    }
}

/// Refuses a configuration value other than this one.
pub(crate) fn must_be(keys: &Keys<'_>, key: &str, wanted: &str) -> Result<(), Error> {
    match keys.value(key) {
        None => Ok(()),
        Some(Value::String(said)) if said == wanted => Ok(()),
        Some(_) => Err(keys.error(key, format!("is not supported; it must be {wanted}"))),
    }
}

/// Tensors of heads that yield neither vectors nor scores, and constants that old exporters store.
pub(crate) fn is_spare(name: &str) -> bool {
    let name = ["bert.", "roberta.", "distilbert.", "model."]
        .into_iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let heads = [
        "pooler.",
        "cls.",
        "lm_head.",
        "head.",
        "decoder.",
        "classifier.",
        "embeddings.position_ids",
        "vocab_transform.",
        "vocab_layer_norm.",
        "vocab_projector.",
        "pre_classifier.",
        "sparse.",
        "sparse_linear.",
        "colbert.",
        "colbert_linear.",
    ];
    name == "cls" || heads.iter().any(|head| name.starts_with(head))
}
