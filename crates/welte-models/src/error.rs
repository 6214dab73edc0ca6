//! What can be wrong with a model.

/// Each error names the file, the place and what is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An architecture that we do not have.
    #[error("{origin}: the architecture '{name}' is not supported; supported are: {supported}")]
    Architecture {
        /// Which checkpoint.
        origin: String,
        /// What it says it is.
        name: String,
        /// What would work.
        supported: String,
    },
    /// A metadata key that is missing, of the wrong kind, or out of bounds.
    #[error("{origin}: {key}: {problem}")]
    Key {
        /// Which checkpoint.
        origin: String,
        /// Which key.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that is missing, of the wrong shape, or not understood.
    #[error("{origin}: tensor '{name}': {problem}")]
    Tensor {
        /// Which checkpoint.
        origin: String,
        /// Which tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A compile option that cannot be.
    #[error("{option}: {problem}")]
    Option {
        /// Which field of [`crate::CompileOptions`].
        option: &'static str,
        /// What is wrong and what would do.
        problem: String,
    },
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] welte_formats::Error),
}
