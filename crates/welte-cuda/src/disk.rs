//! Files that later processes use: compiled kernels, and what was measured.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
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

/// A file name for a key.
pub(crate) fn hashed(key: &impl Hash) -> String {
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", hash(1), hash(2))
}

fn sum(image: &[u8]) -> u64 {
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
    let bytes = [MAGIC, &sum(image).to_le_bytes()[..], image].concat();
    files::replace_file(path, &bytes)
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
