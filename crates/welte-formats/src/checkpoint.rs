//! The interface of all checkpoints.

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

/// Metadata by key. GGUF files keep their keys. For Hugging Face directories, `config.json` is flattened with dots
/// (`rope_scaling.factor`), and `general.architecture` is its `model_type`.
pub type Metadata = BTreeMap<String, Value>;

/// The naming convention of a checkpoint's keys and tensors.
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
    /// The storage format.
    pub format: Format,
    /// Rows.
    pub n: usize,
    /// Elements per row.
    pub k: usize,
    /// The number of matrices stacked in this tensor, such as one per expert; else 1.
    pub stack: usize,
}

impl TensorInfo {
    /// An error about this tensor.
    pub(crate) fn wrong(&self, origin: &Path, problem: impl Into<String>) -> Error {
        Error::malformed(origin, format!("tensor {}", self.name), problem)
    }
}

/// The files with tokenizer and template beside the weights. GGUF files have both in the metadata.
#[derive(Clone, Debug, Default)]
pub struct TextFiles {
    /// `tokenizer.json`
    pub tokenizer_json: Option<PathBuf>,
    /// Mistral's `tekken.json`
    pub tekken_json: Option<PathBuf>,
    /// `tokenizer_config.json`
    pub tokenizer_config_json: Option<PathBuf>,
    /// `generation_config.json`
    pub generation_config_json: Option<PathBuf>,
    /// `chat_template.jinja`, or `chat_template.json`, which has it as a field
    pub chat_template: Option<PathBuf>,
}

/// Named tensors with format and bytes, and the metadata.
pub trait Checkpoint: Send + Sync {
    /// The path, or a name such as `synthetic:qwen3-0.6b:q4_0`.
    fn origin(&self) -> &str;
    /// The naming convention.
    fn dialect(&self) -> Dialect;
    /// All metadata.
    fn metadata(&self) -> &Metadata;
    /// All tensors.
    fn tensors(&self) -> &[TensorInfo];
    /// One tensor by name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;
    /// The bytes of rows `first..first + rows` of a tensor, borrowed or made.
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error>;
    /// Takes what was read of mapped files out of this process's memory. The system still caches it, and it can be read again.
    fn release(&self) {}
    /// A tensor's dimensions in a GGUF file, those of a row first, where rows and stacked matrices do not say them: of the kernels of a
    /// convolution.
    fn dimensions(&self, _tensor: &TensorInfo) -> Option<&[usize]> {
        None
    }
    /// The stored types of the metadata, for writers that preserve them (GGUF only).
    fn kinds(&self) -> &Kinds {
        static NONE: Kinds = Kinds::new();
        &NONE
    }
    /// The text files beside the weights.
    fn text_files(&self) -> TextFiles {
        TextFiles::default()
    }
    /// The checkpoint of a head that drafts for the model, if it comes with one ([`WithDraft`](crate::WithDraft)).
    fn draft(&self) -> Option<&dyn Checkpoint> {
        None
    }
}

/// The tensor of a draft head that says which tokens it knows: integers of 64 bits, described as floats, twice as many.
pub const TOKEN_MAP: &str = "d2t";

/// A checkpoint over another one, which answers whatever it does not answer itself.
pub trait Overlay: Send + Sync {
    /// The other one.
    fn base(&self) -> &dyn Checkpoint;
    /// As [`Checkpoint::origin`].
    fn origin(&self) -> &str {
        self.base().origin()
    }
    /// As [`Checkpoint::metadata`].
    fn metadata(&self) -> &Metadata {
        self.base().metadata()
    }
    /// As [`Checkpoint::tensors`].
    fn tensors(&self) -> &[TensorInfo] {
        self.base().tensors()
    }
    /// As [`Checkpoint::tensor`].
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.base().tensor(name)
    }
    /// As [`Checkpoint::rows`].
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        self.base().rows(tensor, first, rows)
    }
    /// As [`Checkpoint::release`].
    fn release(&self) {
        self.base().release();
    }
    /// As [`Checkpoint::draft`].
    fn draft(&self) -> Option<&dyn Checkpoint> {
        self.base().draft()
    }
}

impl<T: Overlay> Checkpoint for T {
    fn origin(&self) -> &str {
        Overlay::origin(self)
    }
    fn dialect(&self) -> Dialect {
        self.base().dialect()
    }
    fn metadata(&self) -> &Metadata {
        Overlay::metadata(self)
    }
    fn tensors(&self) -> &[TensorInfo] {
        Overlay::tensors(self)
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        Overlay::tensor(self, name)
    }
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        Overlay::rows(self, tensor, first, rows)
    }
    fn release(&self) {
        Overlay::release(self);
    }
    fn dimensions(&self, tensor: &TensorInfo) -> Option<&[usize]> {
        self.base().dimensions(tensor)
    }
    fn kinds(&self) -> &Kinds {
        self.base().kinds()
    }
    fn text_files(&self) -> TextFiles {
        self.base().text_files()
    }
    fn draft(&self) -> Option<&dyn Checkpoint> {
        Overlay::draft(self)
    }
}

/// Errors of checkpoint files. Each names the file, the place and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file violates its format.
    #[error("{path}: {field}: {problem}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field or tensor.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The file is not of a supported kind.
    #[error("{path}: {problem}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is, and what is supported.
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
