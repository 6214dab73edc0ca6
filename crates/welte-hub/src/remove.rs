//! Removes models from the cache.

use crate::cache::{Cache, CachedFile, Lock, entries, occupied};
use crate::choose::{choose, has_models, is_encoder};
use crate::{Error, ModelName, name};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A planned removal.
#[derive(Debug)]
pub struct Removal {
    /// The names of the files.
    pub files: Vec<String>,
    /// Bytes that become free. Files that something else in the cache uses do not count.
    pub bytes: u64,
    cache: Cache,
    repo: String,
    folder: PathBuf,
    locks: PathBuf,
    /// The names to delete in snapshots.
    names: Vec<PathBuf>,
    blobs: BTreeSet<PathBuf>,
    /// Files to delete in the store that several models share.
    stored: BTreeSet<PathBuf>,
    /// Delete the whole folder of the model.
    everything: bool,
}

impl Removal {
    /// Plans the removal of a model, of one revision, or of some files.
    pub(crate) fn plan(cache: &Cache, name: &ModelName) -> Result<Removal, Error> {
        let absent = || Error::NotCached {
            what: name.to_string(),
            cache: cache.root.clone(),
        };
        let repo = cache.repo(&name.repo)?.ok_or_else(absent)?;
        let commit = match &name.revision {
            Some(revision) => Some(cache.commit(&name.repo, revision).ok_or_else(absent)?),
            None => None,
        };
        let meant = |c: &str| commit.as_deref().is_none_or(|commit| commit == c);
        let mut gone: Vec<&CachedFile> = Vec::new();
        let mut problem = None;
        for snapshot in repo.snapshots.iter().filter(|s| meant(&s.commit)) {
            match &name.choice {
                None => gone.extend(&snapshot.files),
                Some(wanted) => {
                    let names: Vec<&str> = snapshot.files.iter().map(|f| f.name.as_str()).collect();
                    match choose(&names, Some(wanted)) {
                        Ok(choice) => {
                            let goes = |name: &str| choice.files.iter().any(|gone| gone == name);
                            let left = names.iter().copied().filter(|name| !goes(name));
                            // With the last model goes the encoder of its images.
                            let last = !has_models(&left.collect::<Vec<_>>());
                            let goes =
                                |f: &&CachedFile| goes(&f.name) || last && is_encoder(&f.name);
                            gone.extend(snapshot.files.iter().filter(goes));
                        }
                        Err(why) => problem = Some(why),
                    }
                }
            }
        }
        if let (true, Some(problem)) = (gone.is_empty(), problem) {
            return Err(Error::Choice {
                repo: name.repo.clone(),
                problem,
            });
        }
        let all: Vec<&CachedFile> = repo.snapshots.iter().flat_map(|s| &s.files).collect();
        let folder = repo.folder.join("blobs");
        let mut stored = entries(&folder)?.into_iter();
        // Another file may be on its way.
        let unfinished = stored.any(|blob| {
            Path::new(&blob)
                .extension()
                .is_some_and(|e| e == UNFINISHED)
        });
        let everything = name.revision.is_none() && name.choice.is_none()
            || gone.len() == all.len() && !unfinished;
        if gone.is_empty() && !everything {
            return Err(absent());
        }
        let going: BTreeSet<&Path> = gone.iter().map(|f| f.path.as_path()).collect();
        let kept: BTreeSet<&Path> = all
            .iter()
            .filter(|f| !going.contains(f.path.as_path()))
            .filter_map(|f| f.blob.as_deref())
            .collect();
        let mut blobs: BTreeSet<PathBuf> = gone
            .iter()
            .filter_map(|f| f.blob.clone())
            .filter(|blob| !kept.contains(blob.as_path()) && blob.starts_with(&repo.folder))
            .collect();
        if everything {
            blobs.extend(entries(&folder)?.into_iter().map(|blob| folder.join(blob)));
        }
        let stored = shared(cache, &blobs)?;
        let copies = gone
            .iter()
            .filter(|f| f.blob.is_none())
            .map(|f| f.path.clone());
        let on_disk = copies
            .chain(blobs.iter().cloned())
            .chain(stored.iter().cloned());
        let is_link = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink());
        let bytes = on_disk
            .filter(|path| !is_link(path))
            .map(|path| size(&path))
            .sum();
        Ok(Removal {
            files: gone
                .iter()
                .map(|f| f.name.clone())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            bytes,
            repo: name.repo.clone(),
            locks: cache.locks(&name.repo),
            folder: repo.folder,
            names: gone.iter().map(|f| f.path.clone()).collect(),
            cache: cache.clone(),
            blobs,
            stored,
            everything,
        })
    }

    /// Deletes the files, unless another process is downloading the model.
    pub fn apply(self) -> Result<(), Error> {
        let mut locks = Vec::new();
        for lock in entries(&self.locks)? {
            let busy = || Error::Busy {
                repo: self.repo.clone(),
            };
            locks.push(Lock::try_take(&self.locks.join(lock))?.ok_or_else(busy)?);
        }
        for path in self.names.iter().chain(&self.blobs) {
            delete(path)?;
        }
        for file in &self.stored {
            // Another program may have linked to it since the plan was made.
            let lock = Lock::try_take(&file.with_extension("lock"))?;
            if lock.is_some() && linked(&self.cache, file)? == 0 {
                delete(&file.with_extension("refs"))?;
                delete(file)?;
            }
        }
        if self.everything {
            fs::remove_dir_all(&self.folder).map_err(Error::io(&self.folder))?;
            drop(locks);
            let _ = fs::remove_dir_all(&self.locks);
            return Ok(());
        }
        tidy(&self.folder.join("snapshots"))?;
        forget(&self.folder.join("refs"), &self.folder.join("snapshots"))
    }
}

/// The extension of a file that is being downloaded.
const UNFINISHED: &str = "incomplete";

/// Bytes that deleting a file frees.
fn size(path: &Path) -> u64 {
    if path.extension().is_some_and(|e| e == UNFINISHED) {
        occupied(path)
    } else {
        fs::metadata(path).map_or(0, |m| m.len())
    }
}

/// Files in the store shared by models (`blobs/XX/HASH`) that only the blobs in `going` link to. Some programs keep
/// files there and make each blob a link.
fn shared(cache: &Cache, going: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>, Error> {
    let Ok(store) = cache.root.join("blobs").canonicalize() else {
        return Ok(BTreeSet::new());
    };
    let mut stored = BTreeSet::new();
    for file in going
        .iter()
        .filter_map(|blob| target(blob))
        .filter(|t| t.starts_with(&store))
    {
        let links = going
            .iter()
            .filter(|blob| target(blob).as_ref() == Some(&file))
            .count();
        if linked(cache, &file)? == links {
            stored.insert(file);
        }
    }
    Ok(stored)
}

/// The target of a blob that is a link.
fn target(blob: &Path) -> Option<PathBuf> {
    fs::read_link(blob)
        .ok()
        .and_then(|_| blob.canonicalize().ok())
}

/// How many blobs of all models link to a file.
fn linked(cache: &Cache, file: &Path) -> Result<usize, Error> {
    let mut count = 0;
    for folder in entries(&cache.root)? {
        let blobs = cache.root.join(folder).join("blobs");
        let links = entries(&blobs)?
            .into_iter()
            .filter_map(|blob| target(&blobs.join(blob)));
        count += links.filter(|t| t == file).count();
    }
    Ok(count)
}

fn delete(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
}

/// Deletes empty folders.
fn tidy(folder: &Path) -> Result<(), Error> {
    for entry in entries(folder)? {
        let path = folder.join(entry);
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir()) {
            tidy(&path)?;
            // Fails if the folder is not empty, as intended.
            let _ = fs::remove_dir(&path);
        }
    }
    Ok(())
}

/// Deletes the refs of commits whose snapshot is gone.
fn forget(refs: &Path, snapshots: &Path) -> Result<(), Error> {
    for entry in entries(refs)? {
        let path = refs.join(entry);
        if path.is_dir() {
            forget(&path, snapshots)?;
        } else if let Ok(commit) = fs::read_to_string(&path)
            && name::is_commit(commit.trim())
            && !snapshots.join(commit.trim()).exists()
        {
            delete(&path)?;
        }
    }
    Ok(())
}
