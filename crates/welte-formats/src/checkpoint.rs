//! What every kind of checkpoint offers.

use crate::gguf::Kinds;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use welte_table::Format;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    U64(u64),
    /// Any signed integer.
    I64(i64),
    /// Any float.
    F64(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    String(String),
    /// A list.
    Array(Vec<Value>),
}

/// Metadata by key. A GGUF file's own keys as they stand; of a Hugging Face directory `config.json` flattened with
/// dots (`rope_scaling.factor`), and `general.architecture` = its `model_type`.
pub type Metadata = BTreeMap<String, Value>;

/// Which family of names a checkpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// GGUF keys and tensor names.
    Gguf,
    /// transformers' configuration keys and tensor names.
    HuggingFace,
}

/// A tensor: `n` rows of `k` elements (a vector has n = 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the checkpoint.
    pub name: String,
    /// How it is stored.
    pub format: Format,
    /// Rows.
    pub n: usize,
    /// Elements per row.
    pub k: usize,
    /// Matrices that lie one below the other, of as many rows each: those of all experts. Else 1.
    pub stack: usize,
}

/// The text side of a checkpoint: for GGUF it is in the metadata, for a directory in files beside the weights.
#[derive(Clone, Debug, Default)]
pub struct TextFiles {
    /// `tokenizer.json`
    pub tokenizer_json: Option<PathBuf>,
    /// `tokenizer_config.json`
    pub tokenizer_config_json: Option<PathBuf>,
    /// `generation_config.json`
    pub generation_config_json: Option<PathBuf>,
    /// `chat_template.jinja`
    pub chat_template: Option<PathBuf>,
}

/// Weights on disk (or made up): named tensors with their format and bytes, and the metadata.
pub trait Checkpoint: Send + Sync {
    /// What people call it: its path, or `synthetic:qwen3-0.6b:q4_0`.
    fn origin(&self) -> &str;
    /// Whose names it speaks.
    fn dialect(&self) -> Dialect;
    /// All metadata.
    fn metadata(&self) -> &Metadata;
    /// All tensors.
    fn tensors(&self) -> &[TensorInfo];
    /// One tensor by name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;
    /// The bytes of rows `first..first + rows` of a tensor: borrowed from the map, or made up.
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error>;
    /// The stored types of the metadata, for a writer that keeps them (GGUF only).
    fn kinds(&self) -> &Kinds {
        static NONE: Kinds = Kinds::new();
        &NONE
    }
    /// Files of the text side.
    fn text_files(&self) -> TextFiles {
        TextFiles::default()
    }
}

/// What can be wrong with a file: each names the file, the place and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file breaks its format's rules.
    #[error("{path}: {field}: {problem}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Which field or tensor.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// It is no file that we know.
    #[error("{path}: {problem}")]
    Unsupported {
        /// Which file.
        path: PathBuf,
        /// What it is and what would work.
        problem: String,
    },
    /// A weight does not fit the program.
    #[error("{origin}: {weight}: {problem}")]
    Weight {
        /// The checkpoint.
        origin: String,
        /// The weight or tensor.
        weight: String,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
        Error::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    pub(crate) fn malformed(
        path: &Path,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Error {
        Error::Malformed {
            path: path.to_path_buf(),
            field: field.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn unsupported(path: &Path, problem: impl Into<String>) -> Error {
        Error::Unsupported {
            path: path.to_path_buf(),
            problem: problem.into(),
        }
    }
}
