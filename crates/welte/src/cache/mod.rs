//! Memory of many sequences: page pools, and the prefix tree that finds what has been computed before.
//!
//! Nothing here calls a device. The scheduler copies pages and sets page lists; these types say which.
//!
//! A *key* says what a position has read. A token's key has the role in which its keys and values were computed: the
//! token itself for the prompt pass, `token | GENERATED` for the decode pass. The two passes may differ in bits, so the
//! tree keeps them apart. A feature's key has the number of its medium and its place in it; equal numbers mean equal
//! features ([`MediaNumbers`]).

mod changes;
mod fingerprint;
mod lru;
mod media;
mod places;
mod pool;
mod store;
mod tree;

pub use changes::PrefixChange;
pub(crate) use fingerprint::{fingerprint, with_head};
pub(crate) use media::MediaNumbers;
pub(crate) use places::Places;
pub(crate) use pool::PagePool;
#[cfg(test)]
pub(crate) use store::SimulatedDisk;
pub(crate) use store::{
    FileId, Fill, Layout, Place, PrefixStore, Rates, Sha256, Staging, StoreMonitor, Stored, sha256,
};
pub use store::{PrefixStoreOptions, PrefixStoreStatus};
pub(crate) use tree::PrefixTree;

/// No page: an entry of a page list whose page was dropped, or a cache that a node has no page of.
pub(crate) const NO_PAGE: u32 = u32::MAX;

/// Marks the key of a token that went through the decode pass.
pub(crate) const GENERATED: Key = 1 << 31;

/// What a position has read.
pub(crate) type Key = u64;

/// The key without its role.
pub(crate) fn without_role(key: Key) -> Key {
    key & !GENERATED
}

/// The key of a feature: the number of its medium, from 1 on, and its place in the medium.
pub(crate) fn feature_key(medium: u32, index: u32) -> Key {
    Key::from(medium) << 32 | Key::from(index)
}

/// A key that was stored or will be: its token and role. `None` for a feature, which means nothing to another process.
pub(crate) fn token_key(key: Key) -> Option<u32> {
    u32::try_from(key).ok()
}

/// True if a held key may stand for a wanted one. A wanted key with the role "prompt" takes both roles unless `exact`.
pub(crate) fn matches(held: Key, wanted: Key, exact: bool) -> bool {
    held == wanted || (!exact && held == wanted | GENERATED)
}
