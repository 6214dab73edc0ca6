//! What the two threads of the prefix store share.

use super::folder::Folder;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where evicted prefixes are kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixStoreOptions {
    /// The folder. It may be shared by processes and by models.
    pub dir: PathBuf,
    /// The most bytes that its files take. The least recently used ones are removed first.
    pub bytes: u64,
}

/// What a prefix store has done since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PrefixStoreStatus {
    /// Pages read and used.
    pub pages_read: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Pages not written because the disk was too slow or because of an error.
    pub pages_lost: u64,
    /// Files that were damaged or misnamed. They have been removed.
    pub files_rejected: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes per second at which pages are read and checked, in this process or an earlier one; 0 if unknown.
    pub read_rate: f64,
    /// The last error, in words.
    pub problem: Option<String>,
}

/// What the two threads share.
pub(super) struct Shared {
    pub(super) folder: Mutex<Folder>,
    pub(super) status: Mutex<PrefixStoreStatus>,
}

impl Shared {
    pub(super) fn folder(&self) -> MutexGuard<'_, Folder> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> MutexGuard<'_, PrefixStoreStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a file that must be on disk when the function returns.
pub(super) type Write = dyn Fn(&Path, &[u8]) -> std::io::Result<()> + Send;
