//! The cache that all Hugging Face programs share. A model is the folder `models--ORG--NAME` with `blobs` (named by
//! checksum), `snapshots` (a folder of links per commit) and `refs` (the commit of each branch or tag).

use crate::choose::openable;
use crate::{Error, name};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The deepest level at which folders of a snapshot are searched.
const DEEPEST: usize = 16;

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedRepo {
    /// `ORG/NAME`.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Bytes of its files, each counted once.
    pub bytes: u64,
    /// Bytes of downloads that were not finished.
    pub unfinished: u64,
    /// Its snapshots; those with a revision's name come first.
    pub snapshots: Vec<Snapshot>,
}

/// The cached files of a model at one commit.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// Branches and tags that point to it.
    pub revisions: Vec<String>,
    /// The files, by name.
    pub files: Vec<CachedFile>,
}

/// A file of a snapshot.
#[derive(Clone, Debug)]
pub struct CachedFile {
    /// Its path in the repository.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// The blob that the file links to.
    pub blob: Option<PathBuf>,
}

/// A cached model that can be opened.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// `ORG/NAME[@REVISION][:FILE]`
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// The file to open, or the directory.
    pub path: PathBuf,
}

/// The cache's folder.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) root: PathBuf,
    pub(crate) links: bool,
}

impl Cache {
    pub(crate) fn folder(&self, repo: &str) -> PathBuf {
        self.root.join(folder_name(repo))
    }

    pub(crate) fn blob(&self, repo: &str, tag: &str) -> PathBuf {
        self.folder(repo).join("blobs").join(tag)
    }

    pub(crate) fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.folder(repo).join("snapshots").join(commit)
    }

    pub(crate) fn locks(&self, repo: &str) -> PathBuf {
        self.root.join(".locks").join(folder_name(repo))
    }

    /// The commit that `revision` had when the hub was last asked.
    pub(crate) fn commit(&self, repo: &str, revision: &str) -> Option<String> {
        if name::is_commit(revision) {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(self.folder(repo).join("refs").join(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| name::is_commit(commit))
    }

    /// Records the commit of a revision. The file is replaced at once, so that no reader sees half of it.
    pub(crate) fn note_commit(
        &self,
        repo: &str,
        revision: &str,
        commit: &str,
    ) -> Result<(), Error> {
        if revision == commit || self.commit(repo, revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder(repo).join("refs").join(revision);
        let beside = beside(&path);
        create_parent(&path)?;
        fs::write(&beside, commit).map_err(Error::io(&beside))?;
        fs::rename(&beside, &path).map_err(Error::io(&path))
    }

    /// Names a blob in a snapshot. Without links, a `new` blob is moved: no other snapshot uses it yet. Any other is
    /// copied.
    pub(crate) fn link(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        tag: &str,
        new: bool,
    ) -> Result<(), Error> {
        let (blob, pointer) = (self.blob(repo, tag), self.snapshot(repo, commit).join(file));
        create_parent(&pointer)?;
        let beside = beside(&pointer);
        // Relative like those of huggingface_hub, so that the cache can be moved.
        let up = std::iter::repeat_n("..", 1 + file.split('/').count());
        let target: PathBuf = up.chain(["blobs", tag]).collect();
        if self.links && symlink(&target, &beside).is_ok() {
            return fs::rename(&beside, &pointer).map_err(Error::io(&pointer));
        }
        if new {
            return fs::rename(&blob, &pointer).map_err(Error::io(&pointer));
        }
        fs::copy(&blob, &beside).map_err(Error::io(&beside))?;
        fs::rename(&beside, &pointer).map_err(Error::io(&pointer))
    }

    /// The files of a snapshot; broken links are left out.
    pub(crate) fn files(&self, repo: &str, commit: &str) -> Result<Vec<CachedFile>, Error> {
        let mut files = Vec::new();
        walk(&self.snapshot(repo, commit), "", DEEPEST, &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// One model, or none if it has no folder.
    pub(crate) fn repo(&self, repo: &str) -> Result<Option<CachedRepo>, Error> {
        let folder = self.folder(repo);
        if !folder.is_dir() {
            return Ok(None);
        }
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        revisions(
            &folder.join("refs"),
            "",
            DEEPEST,
            &mut |revision, commit| {
                names.entry(commit).or_default().push(revision);
            },
        )?;
        let mut snapshots = Vec::new();
        for commit in entries(&folder.join("snapshots"))? {
            if name::is_commit(&commit) {
                snapshots.push(Snapshot {
                    files: self.files(repo, &commit)?,
                    revisions: names.remove(&commit).unwrap_or_default(),
                    commit,
                });
            }
        }
        snapshots.sort_by_key(|s| (s.revisions.is_empty(), s.revisions.clone()));
        let (mut blobs, mut unfinished) = (BTreeMap::new(), 0);
        for blob in entries(&folder.join("blobs"))? {
            let path = folder.join("blobs").join(&blob);
            let bytes = fs::metadata(&path).map_or(0, |m| m.len());
            if blob.ends_with(".incomplete") {
                unfinished += occupied(&path)
            } else {
                blobs.insert(path, bytes);
            }
        }
        let copies = snapshots
            .iter()
            .flat_map(|s| &s.files)
            .filter(|f| f.blob.is_none());
        let bytes = blobs.values().sum::<u64>() + copies.map(|f| f.bytes).sum::<u64>();
        Ok(Some(CachedRepo {
            name: repo.to_string(),
            folder,
            bytes,
            unfinished,
            snapshots,
        }))
    }

    pub(crate) fn repos(&self) -> Result<Vec<CachedRepo>, Error> {
        let mut repos = Vec::new();
        for folder in entries(&self.root)? {
            let repo = folder
                .strip_prefix("models--")
                .map(|n| n.replacen("--", "/", 1));
            if let Some(repo) = repo.filter(|repo| name::is_repo(repo)) {
                repos.extend(self.repo(&repo)?);
            }
        }
        Ok(repos)
    }
}

impl CachedRepo {
    /// The models that can be opened, each with its shortest name.
    pub fn models(&self) -> Vec<CachedModel> {
        let mut models = Vec::new();
        for snapshot in &self.snapshots {
            let names: Vec<&str> = snapshot.files.iter().map(|f| f.name.as_str()).collect();
            let folder = self.folder.join("snapshots").join(&snapshot.commit);
            let revision = match &snapshot.revisions[..] {
                revisions if revisions.iter().any(|r| r == "main") => String::new(),
                [revision, ..] => format!("@{revision}"),
                [] => format!("@{}", snapshot.commit),
            };
            for choice in openable(&names) {
                let size = |file: &&CachedFile| choice.files.contains(&file.name);
                let file = choice
                    .main
                    .as_ref()
                    .map_or(String::new(), |main| format!(":{main}"));
                models.push(CachedModel {
                    name: format!("{}{revision}{file}", self.name),
                    bytes: snapshot.files.iter().filter(size).map(|f| f.bytes).sum(),
                    path: choice
                        .main
                        .as_ref()
                        .map_or(folder.clone(), |main| folder.join(main)),
                });
            }
        }
        models
    }
}

fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// The names in a folder, sorted; none if there is no such folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<String>, Error> {
    let found = match fs::read_dir(folder) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        found => found.map_err(Error::io(folder))?,
    };
    let mut names: Vec<String> = found
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

fn walk(
    folder: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<CachedFile>,
) -> Result<(), Error> {
    for entry in entries(folder)? {
        let (path, name) = (folder.join(&entry), format!("{prefix}{entry}"));
        let link = fs::read_link(&path).ok();
        match fs::metadata(&path) {
            Ok(data) if data.is_file() => files.push(CachedFile {
                blob: link.map(|target| plain(&folder.join(target))),
                name,
                path,
                bytes: data.len(),
            }),
            Ok(data) if data.is_dir() && link.is_none() && depth > 0 => {
                walk(&path, &format!("{name}/"), depth - 1, files)?
            }
            // A broken link or a special file.
            _ => {}
        }
    }
    Ok(())
}

fn revisions(
    folder: &Path,
    prefix: &str,
    depth: usize,
    tell: &mut dyn FnMut(String, String),
) -> Result<(), Error> {
    for entry in entries(folder)? {
        let (path, name) = (folder.join(&entry), format!("{prefix}{entry}"));
        if path.is_dir() && depth > 0 {
            revisions(&path, &format!("{name}/"), depth - 1, tell)?;
        } else if let Ok(commit) = fs::read_to_string(&path) {
            tell(name, commit.trim().to_string());
        }
    }
    Ok(())
}

/// The path with `..` removed by name only. A link in a snapshot names its blob even if the blob is a link too.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}

/// A temporary name in the folder of `path`, unique to this thread.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    // Every state has its own keys, which the system drew. Containers that share the cache may share process ids.
    let number = || RandomState::new().hash_one(0);
    name.push(format!(".{:016x}{:016x}.tmp", number(), number()));
    path.with_file_name(name)
}

pub(crate) fn create_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(Error::io(parent))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Disk space that a file occupies; less than its length if it is sparse.
pub(crate) fn occupied(path: &Path) -> u64 {
    let Ok(data) = fs::metadata(path) else {
        return 0;
    };
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(&data) * 512;
    #[cfg(not(unix))]
    data.len()
}

/// Free space for this user on the disk of `folder`, which need not exist yet.
pub(crate) fn free(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|f| f.exists())?;
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(there).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = there;
        None
    }
}

/// A lock file that huggingface_hub respects too. Dropping it releases the lock.
pub(crate) struct Lock(#[allow(dead_code)] fs::File);

impl Lock {
    /// Takes the lock, unless another process holds it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Lock>, Error> {
        create_parent(path)?;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io(path))?;
        match file.try_lock() {
            // The previous holder may have deleted the file. A lock on a deleted file excludes nobody.
            Ok(()) => Ok(same_file(&file, path).then_some(Lock(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(source)) => Err(Error::io(path)(source)),
        }
    }

    /// Waits for the lock and calls `waiting` every 50 ms.
    pub(crate) fn take(path: &Path, waiting: &mut dyn FnMut()) -> Result<Lock, Error> {
        loop {
            if let Some(lock) = Lock::try_take(path)? {
                return Ok(lock);
            }
            waiting();
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[cfg(unix)]
fn same_file(file: &fs::File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn same_file(_: &fs::File, _: &Path) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Whoever holds a lock may delete its file before the next one has locked it.
    #[test]
    fn a_lock_counts_only_while_its_file_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        let file = fs::File::create(&path).unwrap();
        assert!(same_file(&file, &path));
        fs::remove_file(&path).unwrap();
        assert!(!same_file(&file, &path));
        let _another = fs::File::create(&path).unwrap();
        assert!(!same_file(&file, &path));
    }
}
