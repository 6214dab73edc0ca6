//! The folder of the prefix store: which files there are, how much they take, and which one goes first.

use super::file::FileId;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use welte_formats::files::{create_folder, random_name};

/// Ends the name of a file that is being written.
const UNFINISHED: &str = ".unfinished";
/// Unfinished files of a process that died are removed after this time.
const ABANDONED: Duration = Duration::from_secs(3600);
/// The least time between two uses; file systems keep at least this much of it.
const TICK: Duration = Duration::from_micros(1);

/// Whether a file of this time is being written no more. A clock that was set back or forth makes it seem older or of a
/// time to come.
fn is_abandoned(written: SystemTime) -> bool {
    let age = written.elapsed().unwrap_or_else(|ahead| ahead.duration());
    age > ABANDONED
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
}

/// What this process knows of the folder. Other processes may add and remove files at any time.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    max_bytes: u64,
    entries: BTreeMap<FileId, Entry>,
    total: u64,
    /// When the file that was used last was used.
    newest: SystemTime,
}

impl Folder {
    /// Makes the folder if need be, and lists it.
    pub(super) fn open(path: &Path, max_bytes: u64) -> (Folder, io::Result<()>) {
        let mut folder = Folder {
            path: path.to_path_buf(),
            max_bytes,
            entries: BTreeMap::new(),
            total: 0,
            newest: SystemTime::UNIX_EPOCH,
        };
        let result = create_folder(path).and_then(|()| folder.list());
        (folder, result)
    }

    fn list(&mut self) -> io::Result<()> {
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_string_lossy();
            let Ok(data) = file.metadata() else {
                continue;
            };
            let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if let Some(id) = FileId::parse(&name) {
                self.note(id, data.len(), used);
            } else if name.ends_with(UNFINISHED) && is_abandoned(used) {
                // Another process may have been faster.
                let _ = fs::remove_file(file.path());
            }
        }
        Ok(())
    }

    pub(super) fn path_of(&self, id: &FileId) -> PathBuf {
        self.path.join(id.file_name())
    }

    /// Where a file is written before it gets its name: a new path each time.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.path.join(format!("{}{UNFINISHED}", random_name()))
    }

    /// The time for a file that is used now: later than that of every other file, also after the clock was set back.
    pub(super) fn now(&mut self) -> SystemTime {
        let later = self.newest.checked_add(TICK).unwrap_or(self.newest);
        self.newest = SystemTime::now().max(later);
        self.newest
    }

    pub(super) fn contains(&self, id: &FileId) -> bool {
        self.entries.contains_key(id)
    }

    /// See [`FileId::find`].
    pub(super) fn find(&self, id: &FileId, exact: bool) -> Option<FileId> {
        id.find(&self.entries, exact)
    }

    /// Bytes of all files.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The bound.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Notes a file that exists.
    pub(super) fn note(&mut self, id: FileId, bytes: u64, used: SystemTime) {
        self.forget(&id);
        self.newest = self.newest.max(used);
        self.entries.insert(id, Entry { bytes, used });
        self.total += bytes;
    }

    /// Notes that a file does not exist.
    pub(super) fn forget(&mut self, id: &FileId) {
        if let Some(entry) = self.entries.remove(id) {
            self.total -= entry.bytes;
        }
    }

    /// Marks a file as used at this time.
    pub(super) fn touch(&mut self, id: &FileId, now: SystemTime) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.used = now;
        }
    }

    /// Forgets the files that have not been used for the longest time until `bytes` more fit. The caller removes them.
    pub(super) fn make_room(&mut self, bytes: u64) -> Vec<PathBuf> {
        let limit = self.max_bytes.saturating_sub(bytes);
        let mut removed = Vec::new();
        while self.total > limit {
            let Some((id, _)) = self.entries.iter().min_by_key(|(_, entry)| entry.used) else {
                break;
            };
            let id = *id;
            self.forget(&id);
            removed.push(self.path_of(&id));
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes may write the same page.
    #[test]
    fn a_file_that_is_noted_again_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut folder, opened) = Folder::open(dir.path(), 1000);
        opened.unwrap();
        let id = |n: u8| FileId {
            trail: [n; 16],
            parent: [n; 8],
            name: [n; 32],
        };
        let at = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n);
        folder.note(id(1), 400, at(1));
        folder.note(id(2), 400, at(2));
        folder.note(id(1), 300, at(3));
        assert_eq!(folder.total(), 700);
        // The other one has not been used for longer.
        assert_eq!(folder.make_room(500), [folder.path_of(&id(2))]);
        assert_eq!(folder.total(), 300);
        folder.forget(&id(1));
        folder.forget(&id(1));
        assert_eq!(folder.total(), 0);
    }
}
