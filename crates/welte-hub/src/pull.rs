//! Pulls a model, or finds it in the cache.

use crate::cache::{Lock, create_parent, free};
use crate::checksum::Kind;
use crate::choose::{Choice, choose, encoder};
use crate::download::Task;
use crate::http::Client;
use crate::listing::{Listed, MOST_JSON};
use crate::parts::Parts;
use crate::{Error, Event, Hub, ModelName, Progress, Report};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A model in the cache.
#[derive(Debug)]
pub struct Pulled {
    /// The file to open (the first part of a split model), or the directory.
    pub path: PathBuf,
    /// The number of files.
    pub files: usize,
    /// Bytes downloaded.
    pub bytes: u64,
    /// Files without a checksum, which some mirrors do not provide.
    pub unchecked: usize,
}

impl Hub {
    /// Brings the model into the cache as the hub has it now.
    pub fn pull(&self, name: &ModelName, tell: &mut dyn FnMut(&Report)) -> Result<Pulled, Error> {
        if self.settings.offline {
            let found = self.cached(name, false)?;
            return found.ok_or_else(|| self.offline(name));
        }
        let client = Client::new(&self.settings)?;
        let listing = client.listing(&name.repo, name.revision())?;
        let names: Vec<&str> = listing.files.iter().map(|f| f.name.as_str()).collect();
        let mut choice =
            choose(&names, name.choice.as_deref()).map_err(|problem| Error::Choice {
                repo: name.repo.clone(),
                problem,
            })?;
        let main = choice.main.as_deref().filter(|_| self.settings.encoders);
        let encoder = main.and_then(|main| encoder(&names, main));
        choice.files.extend(encoder.map(String::from));
        let snapshot = self.cache().snapshot(&name.repo, &listing.commit);
        let chosen = listing
            .files
            .iter()
            .filter(|f| choice.files.contains(&f.name));
        let mut missing: Vec<&Listed> = chosen
            .filter(|f| !snapshot.join(&f.name).exists())
            .collect();
        // Weights last: a snapshot that contains them then contains everything else.
        missing.sort_by_key(|f| (Some(f.name.as_str()) != encoder, f.size));
        self.check_space(
            &name.repo,
            missing
                .iter()
                .filter_map(|f| Some((f.tag.as_deref()?, f.size?))),
        )?;
        let mut progress = Progress {
            tell,
            file: String::new(),
            before: 0,
            fetched: 0,
            unchecked: 0,
            total: missing
                .iter()
                .filter_map(|f| f.size)
                .fold(0, u64::saturating_add),
        };
        for file in missing {
            progress.file.clone_from(&file.name);
            self.fetch(&client, &name.repo, &listing.commit, file, &mut progress)?;
        }
        self.cache()
            .note_commit(&name.repo, name.revision(), &listing.commit)?;
        Ok(Pulled {
            bytes: progress.fetched,
            unchecked: progress.unchecked,
            ..pulled(&snapshot, choice)
        })
    }

    /// The model from the cache, or pulled if it is not there.
    pub fn get(&self, name: &ModelName, tell: &mut dyn FnMut(&Report)) -> Result<Pulled, Error> {
        if let Some(found) = self.cached(name, !self.settings.offline)? {
            return Ok(found);
        }
        match self.pull(name, tell) {
            // If the hub cannot be reached, another cached quantisation is better than none.
            Err(error) if error.is_temporary() => self.cached(name, false)?.ok_or(error),
            pulled => pulled,
        }
    }

    /// The model if it is completely cached. With `exact`, a substitute for the usual file does not count.
    pub fn cached(&self, name: &ModelName, exact: bool) -> Result<Option<Pulled>, Error> {
        let cache = self.cache();
        let Some(commit) = cache.commit(&name.repo, name.revision()) else {
            return Ok(None);
        };
        let files = cache.files(&name.repo, &commit)?;
        let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
        let snapshot = cache.snapshot(&name.repo, &commit);
        let found = choose(&names, name.choice.as_deref()).ok();
        let usable = |choice: &Choice| {
            (choice.exact || !exact) && (choice.main.is_some() || is_complete(&snapshot))
        };
        Ok(found.filter(usable).map(|choice| pulled(&snapshot, choice)))
    }

    fn offline(&self, name: &ModelName) -> Error {
        Error::Offline {
            what: name.to_string(),
            cache: self.settings.cache.clone(),
        }
    }

    /// Fails if the files do not fit on the disk. Files of unknown size are ignored.
    fn check_space<'a>(
        &self,
        repo: &str,
        files: impl Iterator<Item = (&'a str, u64)>,
    ) -> Result<(), Error> {
        let (cache, part) = (self.cache(), self.settings.part);
        let needed: u64 = files
            .filter(|(tag, _)| !cache.blob(repo, tag).exists())
            .map(|(tag, size)| {
                size.saturating_sub(Parts::left_over(&self.unfinished(repo, tag), size, part))
            })
            .fold(0, u64::saturating_add);
        match free(&cache.root) {
            Some(free) if free < needed => Err(Error::Space {
                what: repo.to_string(),
                needed,
                free,
                folder: cache.root,
            }),
            _ => Ok(()),
        }
    }

    fn unfinished(&self, repo: &str, tag: &str) -> PathBuf {
        self.cache().blob(repo, &format!("{tag}.parts.incomplete"))
    }

    /// Brings one file into the cache. Other processes may want it at the same time.
    fn fetch(
        &self,
        client: &Client,
        repo: &str,
        commit: &str,
        file: &Listed,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let cache = self.cache();
        let known = file
            .tag
            .as_deref()
            .filter(|tag| cache.blob(repo, tag).exists());
        let source = match known {
            Some(_) => None,
            None => Some(client.with_retries(|| client.source(repo, commit, file))?),
        };
        let tag = known
            .or(source.as_ref().map(|s| s.tag.as_str()))
            .unwrap_or_default()
            .to_string();
        let lock = cache.locks(repo).join(format!("{tag}.lock"));
        let _lock = Lock::take(&lock, &mut || progress.say(0, Event::Waiting))?;
        let (blob, pointer) = (
            cache.blob(repo, &tag),
            cache.snapshot(repo, commit).join(&file.name),
        );
        let mut new = false;
        if pointer.exists() {
            progress.before += file.size.unwrap_or(0);
            return Ok(());
        }
        if !blob.exists() {
            // The blob may have been removed since it was seen.
            let source = match source {
                Some(source) => source,
                None => client.with_retries(|| client.source(repo, commit, file))?,
            };
            self.check_space(repo, [(tag.as_str(), source.size)].into_iter())?;
            create_parent(&blob)?;
            let parts = Parts::open(
                &self.unfinished(repo, &tag),
                source.size,
                self.settings.part,
            )?;
            let (size, there) = (source.size, parts.bytes());
            // The list gave no size for this file.
            progress.total = progress
                .total
                .saturating_add(size.saturating_sub(file.size.unwrap_or(0)));
            let task = Task {
                client,
                repo,
                commit,
                file,
                source,
                connections: self.settings.connections,
            };
            task.run(parts, &blob, progress)?;
            progress.before += size;
            progress.fetched += size - there;
            progress.unchecked += usize::from(Kind::of(&tag).is_none());
            new = true;
        } else {
            progress.before += file.size.unwrap_or(0);
        }
        cache.link(repo, commit, &file.name, &tag, new)?;
        progress.say(0, Event::Done);
        Ok(())
    }
}

fn pulled(snapshot: &Path, choice: Choice) -> Pulled {
    Pulled {
        path: choice
            .main
            .as_ref()
            .map_or(snapshot.to_path_buf(), |main| snapshot.join(main)),
        files: choice.files.len(),
        bytes: 0,
        unchecked: 0,
    }
}

/// True if a directory has all of its weights and a tokenizer.
fn is_complete(snapshot: &Path) -> bool {
    let has = |name: &str| snapshot.join(name).exists();
    let weights = |single: &str| {
        let index = snapshot.join(format!("{single}.index.json"));
        if !index.exists() {
            return has(single);
        }
        let size = fs::metadata(&index).map_or(u64::MAX, |m| m.len());
        if size > MOST_JSON {
            return false;
        }
        let index = fs::read(&index).unwrap_or_default();
        let index: Value = serde_json::from_slice(&index).unwrap_or_default();
        let shards = index["weight_map"]
            .as_object()
            .into_iter()
            .flat_map(|map| map.values());
        let shards: BTreeSet<&str> = shards.filter_map(Value::as_str).collect();
        !shards.is_empty() && shards.into_iter().all(has)
    };
    let texts = has("tokenizer.json") || has("tokenizer.model");
    let torch = "pytorch_model.bin";
    has("config.json") && texts && (weights("model.safetensors") || has(torch) || weights(torch))
}
