//! Files that later processes use: compiled kernels, and what was measured. Compiled kernels may also come *ready*, from a package.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use welte_formats::files;

const MAGIC: &[u8; 8] = b"weltecu1";

/// The folder for compiled kernels.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("welte").join("kernels"))
}

/// Folders that may have ready kernels, the most explicit first: those of `WELTE_CUDA_KERNELS`, then `lib/welte/kernels` of the prefix that the
/// program is installed in.
pub(crate) fn ready_folders() -> &'static [PathBuf] {
    static FOLDERS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
        let named = std::env::var_os("WELTE_CUDA_KERNELS").unwrap_or_default();
        let named: Vec<PathBuf> = std::env::split_paths(&named).collect();
        let program = std::env::current_exe().and_then(|path| path.canonicalize());
        let installed = program.ok().and_then(|program| {
            let prefix = program.parent()?.parent()?;
            Some(prefix.join("lib").join("welte").join("kernels"))
        });
        let all = named.into_iter().chain(installed);
        all.filter(|folder| folder.is_dir()).collect()
    });
    &FOLDERS
}

/// A file name for a key.
pub(crate) fn hashed(key: &impl Hash) -> String {
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", hash(1), hash(2))
}

/// Changes with the bytes.
pub(crate) fn sum(image: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

/// Reads a cached file; `None` if it is missing or damaged.
pub(crate) fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let image = bytes.strip_prefix(MAGIC)?;
    let (stored, image) = image.split_at_checked(8)?;
    (stored == sum(image).to_le_bytes()).then(|| image.to_vec())
}

pub(crate) fn write_cached(path: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        files::create_folder(folder)?;
    }
    files::replace_file(path, &with_sum(image))
}

fn with_sum(image: &[u8]) -> Vec<u8> {
    [MAGIC, &sum(image).to_le_bytes()[..], image].concat()
}

/// Writes a ready kernel, which every user of the machine may read.
pub(crate) fn write_ready(path: &Path, image: &[u8]) -> std::io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, with_sum(image))
        .and_then(|()| std::fs::rename(&part, path))
        .inspect_err(|_| drop(std::fs::remove_file(&part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_cache_file_is_not_used() {
        let path = std::env::temp_dir().join(format!("welte-cubin-{}", std::process::id()));
        write_cached(&path, b"code").unwrap();
        assert_eq!(read_cached(&path).unwrap(), b"code");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[17] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read_cached(&path).is_none());
        std::fs::write(&path, &bytes[..5]).unwrap();
        assert!(read_cached(&path).is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(read_cached(&path).is_none());
    }
}
