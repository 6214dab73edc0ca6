/// Errors of tokenizers and templates. Callers add the file name.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the vocabulary is invalid.
    #[error("{field}: {problem}")]
    Vocabulary {
        /// The field, as a GGUF key or a path in `tokenizer.json`.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The kind of tokenizer is unknown.
    #[error("tokenizer.ggml.model: unknown tokenizer model '{name}'; known are: {known}")]
    UnknownModel {
        /// Its name.
        name: String,
        /// The known kinds.
        known: String,
    },
    /// The pre-tokenizer is unknown. Using another one would give wrong tokens without any sign.
    #[error("tokenizer.ggml.pre: unknown pre-tokenizer '{name}'; known are: {known}")]
    UnknownPreTokenizer {
        /// Its name.
        name: String,
        /// The known pre-tokenizers.
        known: String,
    },
    /// The pre-tokenizer is known, but not supported.
    #[error("tokenizer.ggml.pre: the pre-tokenizer '{name}' is not supported: {why}")]
    RefusedPreTokenizer {
        /// Its name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// `tokenizer.json` or `tokenizer_config.json` cannot be read.
    #[error("{file}: {problem}")]
    Json {
        /// The file.
        file: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Text could not be tokenized.
    #[error("the tokenizer failed: {0}")]
    Backend(String),
    /// The chat template does not compile or failed.
    #[error("chat template, line {line}: {problem}")]
    Template {
        /// Line of the template, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Vocabulary {
            field: field.into(),
            problem: problem.into(),
        }
    }
}
