//! Stored pages on their way to a sequence.

use crate::cache::{Sha256, Stored};

/// Stored pages that are on their way to a sequence.
pub(crate) struct Restore {
    /// The pages, from the first that the sequence lacks.
    pub(super) chain: Vec<Stored>,
    /// Pages asked for.
    pub(super) asked: usize,
    /// Pages that have arrived.
    pub(super) done: usize,
    /// Name of the page before the next one.
    pub(super) before: Sha256,
    /// Takes only pages in the roles that the sequence asks for.
    pub(super) exact: bool,
    /// They count as cached tokens of the prompt.
    pub(super) first: bool,
}

/// Pages that are on their way from host memory, all at once.
#[derive(Clone, Copy)]
pub(crate) struct Fetching {
    /// Their tokens.
    pub(super) tokens: usize,
    /// They count as cached tokens of the prompt.
    pub(super) first: bool,
}
