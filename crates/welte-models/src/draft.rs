//! What a model's own draft layer is: the layers after the last one of a checkpoint, which guess tokens ahead.

mod assistant;
mod eagle;
pub(crate) mod find;
mod tokens;

pub(crate) use tokens::tokens as draft_tokens;

use crate::ModelSpec;
use crate::names::Names;

/// A draft layer. It reads the embedding of a token and the hidden state before it.
pub(crate) struct DraftSpec {
    /// The layer as a model of one layer, or an assistant. Its vocabulary is that of its guesses.
    pub(crate) spec: ModelSpec,
    /// Its tensors; none of an assistant.
    pub(crate) names: DraftNames,
    /// What EAGLE-3 has and a layer of the model has not.
    pub(crate) eagle: Option<Eagle>,
    /// What a drafter of Gemma 4 has.
    pub(crate) assistant: Option<Assistant>,
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
    /// Layers of the model whose inputs it reads; the number of layers stands for the output of the last.
    pub(crate) taps: Vec<u32>,
    /// The norm of these inputs, if they are normed before they are joined.
    pub(crate) tap_norm: Option<String>,
    /// The layer adds to the normed hidden state.
    pub(crate) adds_to_norm: bool,
    /// Tokens of the model.
    pub(crate) vocab: u32,
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
