//! Errors of models.

/// An error with the checkpoint and the key, tensor or option.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The architecture is not supported.
    #[error("{origin}: the architecture '{name}' is not supported; supported are: {supported}")]
    Architecture {
        /// The checkpoint.
        origin: String,
        /// Its architecture.
        name: String,
        /// The supported architectures.
        supported: String,
    },
    /// It writes down speech, so it has no language model of its own.
    #[error(
        "{origin}: is a model of speech; use it with `welte transcribe -m {origin} FILE` or `welte serve --speech {origin}`"
    )]
    Speech {
        /// The checkpoint.
        origin: String,
    },
    /// It drafts for a model, and is none itself.
    #[error("{origin}: drafts for another model; name it with -md beside that model")]
    Drafter {
        /// The checkpoint.
        origin: String,
    },
    /// A metadata key is missing, has the wrong type or is out of bounds.
    #[error("{origin}: {key}: {problem}")]
    Key {
        /// The checkpoint.
        origin: String,
        /// The key.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor is missing, has the wrong shape or is unknown.
    #[error("{origin}: tensor '{name}': {problem}")]
    Tensor {
        /// The checkpoint.
        origin: String,
        /// The tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A compile option is invalid.
    #[error("{option}: {problem}")]
    Option {
        /// The field of [`crate::CompileOptions`].
        option: &'static str,
        /// What is wrong, and the valid values.
        problem: String,
    },
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
}

impl Error {
    /// True if the checkpoint differs from every supported architecture: by its name, its keys or its tensors.
    pub fn is_of_contents(&self) -> bool {
        matches!(
            self,
            Error::Architecture { .. }
                | Error::Speech { .. }
                | Error::Drafter { .. }
                | Error::Key { .. }
                | Error::Tensor { .. }
        )
    }
}
