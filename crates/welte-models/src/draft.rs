//! What a model's own draft layer is: the layers after the last one of a checkpoint, which guess tokens ahead.

mod assistant;
mod block;
mod eagle;
pub(crate) mod find;
mod placed;
mod tokens;

pub(crate) use placed::Placed;
pub(crate) use tokens::tokens as draft_tokens;

use crate::keys::Keys;
use crate::names::Names;
use crate::{Error, ModelSpec};
use welte_formats::checkpoint::Value;
use welte_table::Block;

/// A draft layer. It reads the embedding of a token and the hidden state before it.
pub(crate) struct DraftSpec {
    /// The layer as a model of one layer, or an assistant. Its vocabulary is that of its guesses.
    pub(crate) spec: ModelSpec,
    /// Its tensors; none of an assistant.
    pub(crate) names: DraftNames,
    /// Hidden states of the model that it reads besides.
    pub(crate) taps: Option<Taps>,
    /// What EAGLE-3 has and a layer of the model has not.
    pub(crate) eagle: Option<Eagle>,
    /// What a drafter of Gemma 4 has.
    pub(crate) assistant: Option<Assistant>,
    /// What a drafter of blocks has. Its layers are several.
    pub(crate) block: Option<BlockDraft>,
}

/// Hidden states of several layers of the model, side by side.
pub(crate) struct Taps {
    /// Layers whose inputs they are; the number of layers stands for the output of the last.
    pub(crate) layers: Vec<u32>,
    /// Their norm, if they are normed before they are joined.
    pub(crate) norm: Option<String>,
}

/// Names of tensors, without `.weight`.
#[derive(Default)]
pub(crate) struct DraftNames {
    /// What the names of the layer's own tensors begin with.
    pub(crate) layer: String,
    pub(crate) join: String,
    pub(crate) embedding_norm: String,
    pub(crate) hidden_norm: String,
    pub(crate) head_norm: String,
    /// These may be missing, or copies of the model's.
    pub(crate) embed: String,
    pub(crate) head: String,
}

/// What is special about an EAGLE-3 head. Its layer reads an embedding and a hidden state side by side, and adds to the hidden state.
pub(crate) struct Eagle {
    /// The layer adds to the normed hidden state.
    pub(crate) adds_to_norm: bool,
    /// Names of the layer's tensors.
    pub(crate) names: &'static Names,
}

/// What is special about a drafter of Gemma 4.
pub(crate) struct Assistant {
    /// For each of its layers, the layer of the model whose keys and values it reads.
    pub(crate) sources: Vec<u32>,
    /// The matrix from an embedding and a hidden state of the model, and the one to its next hidden state.
    pub(crate) down: &'static str,
    pub(crate) up: &'static str,
    /// Names of its tensors.
    pub(crate) names: &'static Names,
}

/// What is special about a drafter of blocks.
pub(crate) struct BlockDraft {
    pub(crate) block: Block,
    /// The norm of what `fc` makes of the taps.
    pub(crate) hidden_norm: &'static str,
    /// Names of its tensors.
    pub(crate) names: &'static Names,
}

/// Refuses a head that guesses more tokens than the model has.
fn check_vocab(keys: &Keys<'_>, vocab: u32, model: &ModelSpec) -> Result<(), Error> {
    if vocab <= model.vocab {
        return Ok(());
    }
    let problem = format!("guesses {vocab} tokens; the model has {}", model.vocab);
    Err(keys.error("draft_vocab_size", problem))
}

/// The layers of the model whose inputs a head reads, by the first of these keys that has a list. Beside each key: what is added to its
/// numbers, 1 if they name layers whose outputs are read.
fn taps(
    model: &ModelSpec,
    keys: &Keys<'_>,
    lists: &[(String, u32)],
) -> Result<Option<Vec<u32>>, Error> {
    let layers = model.layers;
    let found = lists.iter().find_map(|(key, ahead)| match keys.value(key) {
        Some(Value::Array(list)) if !list.is_empty() => Some((key, *ahead, list)),
        _ => None,
    });
    let Some((key, ahead, list)) = found else {
        return Ok(None);
    };
    if list.len() as u64 > u64::from(layers) + 1 {
        let problem = format!("names {} layers; the model has {layers}", list.len());
        return Err(keys.error(key, problem));
    }
    let number = |value: &Value| {
        let number = match value {
            Value::U64(n) => u32::try_from(*n).ok(),
            Value::I64(n) => u32::try_from(*n).ok(),
            _ => None,
        };
        let number = number.and_then(|n| n.checked_add(ahead));
        let problem = || format!("must name layers of the model, which has {layers}");
        number
            .filter(|n| *n <= layers)
            .ok_or_else(|| keys.error(key, problem()))
    };
    list.iter().map(number).collect::<Result<_, _>>().map(Some)
}
