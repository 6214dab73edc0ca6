//! Vectors of texts: which rows they come from, and what the checkpoint says about prompts and length.

use crate::Error;
use crate::keys::Keys;
use welte_formats::checkpoint::{Checkpoint, Value};

/// The rows of a text that make its vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The last row.
    #[default]
    Last,
    /// The mean of all rows.
    Mean,
    /// The first row.
    First,
    /// No row: the largest logit of each token of the vocabulary over all rows, in models with the head of a masked language model
    /// (SPLADE). Vectors are sparse.
    Vocabulary,
}

impl Pooling {
    /// Every kind.
    pub const ALL: [Pooling; 4] = [
        Pooling::Last,
        Pooling::Mean,
        Pooling::First,
        Pooling::Vocabulary,
    ];

    /// The number in commands.
    pub fn word(self) -> u32 {
        match self {
            Pooling::Last => 0,
            Pooling::Mean => 1,
            Pooling::First => 2,
            Pooling::Vocabulary => 5,
        }
    }

    /// The name, as llama.cpp and Text Embeddings Inference have it.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Last => "last",
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Vocabulary => "splade",
        }
    }

    /// The kind of this name: that of llama.cpp or of sentence-transformers.
    pub fn from_name(name: &str) -> Option<Pooling> {
        match name {
            "last" | "lasttoken" => Some(Pooling::Last),
            "mean" => Some(Pooling::Mean),
            "cls" | "first" => Some(Pooling::First),
            "splade" => Some(Pooling::Vocabulary),
            _ => None,
        }
    }
}

/// What a checkpoint says about vectors of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VectorSettings {
    /// The pooling, if the checkpoint names it.
    pub pooling: Option<Pooling>,
    /// The model scores pairs of texts.
    pub scores: bool,
    /// Vectors have length 1.
    pub normalise: bool,
    /// Texts to put before a text, by name.
    pub prompts: Vec<(String, String)>,
    /// The prompt to use if none is named.
    pub default_prompt: Option<String>,
    /// Rows of a prompt are not pooled.
    pub leaves_out_prompts: bool,
    /// Texts are made lower case.
    pub lower_case: bool,
    /// Tokens of the longest text that the model was made for.
    pub longest: Option<u32>,
    /// The pooling of a classifier, if the checkpoint names it.
    pub score_pooling: Option<Pooling>,
}

impl VectorSettings {
    /// The prompt of this name, if the model has it.
    pub fn prompt(&self, name: &str) -> Option<&str> {
        let found = self.prompts.iter().find(|(known, _)| known == name);
        found.map(|(_, text)| text.as_str())
    }
}

/// Reads what a checkpoint says about vectors.
pub fn vector_settings(checkpoint: &dyn Checkpoint) -> Result<VectorSettings, Error> {
    let said = Keys::new(checkpoint, "").text("general.architecture")?;
    let keys = Keys::new(checkpoint, said.unwrap_or(""));
    if keys.is_gguf() {
        gguf(&keys)
    } else {
        sentence_transformers(&keys)
    }
}

fn gguf(keys: &Keys<'_>) -> Result<VectorSettings, Error> {
    let key = keys.name("pooling_type", "");
    let (pooling, scores) = match keys.u32(&key)? {
        None | Some(0) => (None, false),
        Some(1) => (Some(Pooling::Mean), false),
        Some(2) => (Some(Pooling::First), false),
        Some(3) => (Some(Pooling::Last), false),
        Some(4) => (None, true),
        Some(n) => {
            let problem = format!("is {n}; must be from 0 (none) to 4 (rank)");
            return Err(keys.error(&key, problem));
        }
    };
    Ok(VectorSettings {
        pooling,
        scores,
        normalise: true,
        ..VectorSettings::default()
    })
}

/// True if the model was saved with a classifier.
fn classifies(keys: &Keys<'_>) -> bool {
    let classifies = |name: &Value| match name {
        Value::String(name) => name.ends_with("ForSequenceClassification"),
        _ => false,
    };
    match keys.value("architectures") {
        Some(Value::Array(names)) => names.iter().any(classifies),
        _ => false,
    }
}

fn sentence_transformers(keys: &Keys<'_>) -> Result<VectorSettings, Error> {
    let key = |name: &str| format!("sentence_transformers.{name}");
    if let Some(module) = keys.text(&key("module"))? {
        let problem = format!(
            "{module} is not supported; supported are Transformer, Pooling, Dense, Normalize"
        );
        return Err(keys.error("modules.json", problem));
    }
    let pooling = match keys.text(&key("pooling"))? {
        None => None,
        Some(name) => Some(Pooling::from_name(name).ok_or_else(|| {
            let problem = format!("is {name}; supported are mean, cls, lasttoken, splade");
            keys.error(&key("pooling"), problem)
        })?),
    };
    let (start, metadata) = (key("prompts."), keys.checkpoint.metadata());
    let prompts = metadata.iter().filter_map(|(name, value)| match value {
        Value::String(text) => Some((name.strip_prefix(&start)?.to_string(), text.clone())),
        _ => None,
    });
    // Without `modules.json` nothing is said, and lengths do not matter to any model.
    let modules = keys.value(&key("dense")).is_some();
    Ok(VectorSettings {
        pooling,
        scores: classifies(keys),
        normalise: !modules || keys.bool(&key("normalize"))?.unwrap_or(false),
        prompts: prompts.collect(),
        default_prompt: keys.text(&key("default_prompt_name"))?.map(str::to_string),
        leaves_out_prompts: keys.bool(&key("include_prompt"))? == Some(false),
        lower_case: keys.bool(&key("do_lower_case"))?.unwrap_or(false),
        score_pooling: keys
            .text("classifier_pooling")?
            .and_then(Pooling::from_name),
        longest: keys
            .u32(&key("max_seq_length"))?
            .filter(|longest| *longest > 0),
    })
}
