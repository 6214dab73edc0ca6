/// What can be wrong with a tokenizer or a template. A caller puts the file's name in front.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the vocabulary breaks its rules.
    #[error("{field}: {problem}")]
    Vocabulary {
        /// Which field, by its GGUF key or its path in `tokenizer.json`.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The kind of tokenizer is not one we know.
    #[error("tokenizer.ggml.model: unknown tokenizer model '{name}'; known are: {known}")]
    UnknownModel {
        /// Its name.
        name: String,
        /// Those known.
        known: String,
    },
    /// The pre-tokenizer is not one we know; a guess would tokenize wrongly without a sign.
    #[error("tokenizer.ggml.pre: unknown pre-tokenizer '{name}'; known are: {known}")]
    UnknownPreTokenizer {
        /// Its name.
        name: String,
        /// Those known.
        known: String,
    },
    /// `tokenizer.json` or `tokenizer_config.json` cannot be read.
    #[error("{file}: {problem}")]
    Json {
        /// Which of the two.
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
    /// An error about one field.
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Vocabulary {
            field: field.into(),
            problem: problem.into(),
        }
    }
}
