//! Files of caches and conversations: for their owner only, and complete or not there.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write as _};
use std::path::Path;

/// A name of 32 digits that nobody else chooses. Processes in several containers may share a folder and still have the
/// same process id, so an id does not do.
pub fn random_name() -> String {
    // Every state has its own keys, which the system drew.
    let number = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", number(), number())
}

/// Makes a folder and those above it, unless they exist. New ones are for their owner only.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// A new file to write, for its owner only. Fails if there is one.
pub fn create_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(path)
}

/// Writes a file for its owner only, in place of the last one. No reader sees half of it.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_file_name(format!(".{}.part", random_name()));
    let written = create_file(&beside)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            // Otherwise the name could outlive a loss of power, and the bytes not.
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // It may not be there.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_repeat() {
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| random_name()).collect();
        assert_eq!(names.len(), 1000);
        let digits =
            |name: &String| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(names.iter().all(digits));
    }

    #[cfg(unix)]
    #[test]
    fn files_and_folders_are_for_their_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let inner = folder.path().join("a/b");
        create_folder(&inner).unwrap();
        create_folder(&inner).unwrap();
        assert_eq!(
            (mode(&inner), mode(inner.parent().unwrap())),
            (0o700, 0o700)
        );
        let file = inner.join("c");
        for bytes in ["one", "two"] {
            replace_file(&file, bytes.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), bytes);
            assert_eq!(mode(&file), 0o600);
        }
        assert!(create_file(&file).is_err());
        assert!(replace_file(&folder.path().join("none/c"), b"").is_err());
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 1);
    }
}
