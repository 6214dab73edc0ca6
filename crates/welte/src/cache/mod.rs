//! Memory of many sequences: page pools, and the prefix tree that finds what has been computed before.
//!
//! Nothing here calls a device. The scheduler copies pages and sets page lists; these types say which.
//!
//! A *key* is a token with the role in which its keys and values were computed: the token itself for the prompt pass,
//! `token | GENERATED` for the decode pass. The two passes may differ in bits, so the tree keeps them apart.

mod fingerprint;
mod lru;
mod pool;
mod store;
mod tree;

pub(crate) use fingerprint::fingerprint;
pub(crate) use pool::PagePool;
#[cfg(test)]
pub(crate) use store::SimulatedDisk;
pub(crate) use store::{Layout, Place, PrefixStore, Rates, Sha256, Staging, StoreMonitor, Stored};
pub use store::{PrefixStoreOptions, PrefixStoreStatus};
pub(crate) use tree::PrefixTree;

/// No page: an entry of a page list whose page was dropped, or a cache that a node has no page of.
pub(crate) const NO_PAGE: u32 = u32::MAX;

/// Marks the key of a token that went through the decode pass.
pub(crate) const GENERATED: u32 = 1 << 31;

/// The token of a key.
pub(crate) fn token_of(key: u32) -> u32 {
    key & !GENERATED
}

/// True if a held key may stand for a wanted one. A wanted key with the role "prompt" takes both roles unless `exact`.
pub(crate) fn matches(held: u32, wanted: u32, exact: bool) -> bool {
    held == wanted || (!exact && held == wanted | GENERATED)
}
