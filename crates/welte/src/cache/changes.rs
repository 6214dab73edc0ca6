//! What comes into the prefix tree, and what leaves it, for whoever watches.

/// A change of the prefixes that an engine has in memory. Only whole pages of tokens are told, and none with a feature
/// in them or before them: its number means nothing to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixChange {
    /// A page of tokens can be reused.
    Stored {
        /// Its number, which may come again once it is removed.
        node: u32,
        /// The page before it.
        parent: Option<u32>,
        /// Its tokens.
        tokens: Vec<u32>,
    },
    /// A page can be reused no longer.
    Removed {
        /// Its number.
        node: u32,
    },
    /// No page can be reused.
    Cleared,
}
