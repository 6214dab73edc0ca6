//! The thread that reads and writes the files of the prefix store.

use super::file::{FileId, Layout, Staging, Stored};
use super::folder::Folder;
use super::rates::{Rates, RatesFile};
use super::shared::{PrefixStoreOptions, Shared, Write};
use crate::average::moving_average;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime};
use welte_formats::files::create_file;

/// Files written before the folder is listed anew, so that the size bound holds when other processes write too.
const LIST_AFTER: u32 = 64;

/// What the scheduler asks for.
pub(super) enum Job {
    Read { id: FileId, staging: Staging },
    Write { id: FileId, staging: Staging },
    Used(Vec<Stored>),
    Rates(Rates),
}

/// What became of it.
pub(super) enum Done {
    Read {
        id: FileId,
        staging: Staging,
    },
    /// The file is not there, or cannot be used.
    Missing {
        id: FileId,
        staging: Staging,
    },
    /// The buffer is free again.
    Idle(Staging),
}

/// The thread's side of the store.
pub(super) struct Io {
    pub(super) layout: Layout,
    pub(super) shared: Arc<Shared>,
    pub(super) options: PrefixStoreOptions,
    pub(super) write: Box<Write>,
    pub(super) rates: RatesFile,
    /// Files written since the folder was listed.
    pub(super) unlisted: u32,
    /// The time that a read takes in a simulation.
    pub(super) pretended: Option<Duration>,
}

impl Io {
    /// Does all jobs, in order, until the other side is gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, results: &Sender<Done>) {
        self.make_room(0);
        for job in jobs {
            if let Some(done) = self.job(job) {
                // If the other side is gone, nobody waits for this.
                let _ = results.send(done);
            }
        }
    }

    /// Does one job.
    pub(super) fn job(&mut self, job: Job) -> Option<Done> {
        match job {
            Job::Read { id, staging } => return Some(self.read(id, staging)),
            Job::Write { id, mut staging } => {
                self.write(&id, &mut staging);
                return Some(Done::Idle(staging));
            }
            Job::Used(chain) => self.touch(&chain),
            Job::Rates(rates) => self.keep_rates(rates),
        }
        None
    }

    fn read(&mut self, id: FileId, mut staging: Staging) -> Done {
        let start = Instant::now();
        let path = self.shared.folder().path_of(&id);
        let checked = match read_file(&path, &mut staging) {
            // Another process removed it, or it belongs to another user.
            Err(error) if is_out_of_reach(&error) => {
                self.shared.folder().forget(&id);
                return Done::Missing { id, staging };
            }
            Err(error) if is_damage(&error) => Err(error.to_string()),
            // The disk or the process has a problem that may pass, and the file may be good.
            Err(error) => {
                let problem = format!("{}: {error}", path.display());
                self.shared.status().problem = Some(problem);
                return Done::Missing { id, staging };
            }
            Ok(()) => staging.check(&self.layout, &id).map_err(str::to_string),
        };
        if let Err(problem) = checked {
            self.shared.folder().forget(&id);
            remove(&path);
            let mut status = self.shared.status();
            status.files_rejected += 1;
            status.problem = Some(format!("{}: {problem}", path.display()));
            return Done::Missing { id, staging };
        }
        let took = self.pretended.unwrap_or_else(|| start.elapsed());
        let rate = staging.len as f64 / took.as_secs_f64().max(1e-9);
        let mut status = self.shared.status();
        status.pages_read += 1;
        status.read_rate = moving_average(status.read_rate, rate, 0.25);
        Done::Read { id, staging }
    }

    fn write(&mut self, id: &FileId, staging: &mut Staging) {
        let bytes = staging.len as u64;
        if bytes > self.options.bytes {
            let problem = format!(
                "{}: a page of {bytes} bytes exceeds the limit of {}",
                self.options.dir.display(),
                self.options.bytes
            );
            return self.lost(problem);
        }
        if self.unlisted >= LIST_AFTER {
            self.unlisted = 0;
            let (folder, listed) = Folder::open(&self.options.dir, self.options.bytes);
            if listed.is_ok() {
                *self.shared.folder() = folder;
            }
        }
        self.make_room(bytes);
        staging.seal();
        let path = self.shared.folder().path_of(id);
        let unfinished = self.shared.folder().unfinished();
        let written = (self.write)(&unfinished, &staging.bytes[..staging.len])
            .and_then(|()| fs::rename(&unfinished, &path));
        match written {
            Ok(()) => {
                self.unlisted += 1;
                let mut folder = self.shared.folder();
                let now = folder.now();
                folder.note(*id, bytes, now);
                drop(folder);
                // The clock was set back. A simulation needs the order of its files.
                if cfg!(test) || now > SystemTime::now() {
                    set_time(&path, now);
                }
                self.shared.status().pages_written += 1;
            }
            Err(error) => {
                remove(&unfinished);
                self.lost(format!("{}: {error}", path.display()));
            }
        }
    }

    /// Writes a small file in place of the last one. If this fails, the next process measures again.
    fn keep_rates(&self, rates: Rates) {
        let unfinished = self.shared.folder().unfinished();
        let written = (self.write)(&unfinished, &self.rates.encode(rates))
            .and_then(|()| fs::rename(&unfinished, self.rates.path()));
        if written.is_err() {
            remove(&unfinished);
        }
    }

    fn lost(&self, problem: String) {
        let mut status = self.shared.status();
        status.pages_lost += 1;
        status.problem = Some(problem);
    }

    fn make_room(&self, bytes: u64) {
        let removed = self.shared.folder().make_room(bytes);
        for path in removed {
            remove(&path);
        }
    }

    /// From the last to the first, so that the first is the newest.
    fn touch(&self, chain: &[Stored]) {
        for stored in chain.iter().rev() {
            let (path, now) = {
                let mut folder = self.shared.folder();
                let now = folder.now();
                folder.touch(&stored.id, now);
                (folder.path_of(&stored.id), now)
            };
            set_time(&path, now);
        }
    }
}

fn is_out_of_reach(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied)
}

/// There is no file of ours in its place: a folder, or a file that is too long.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, IsADirectory};
    matches!(error.kind(), InvalidData | IsADirectory)
}

/// Says when a file was used. If this fails, the file is only removed sooner.
fn set_time(path: &Path, time: SystemTime) {
    let file = File::options().append(true).open(path);
    let _ = file.and_then(|file| file.set_modified(time));
}

/// Removes a file, or an empty folder in its place. What cannot be removed is not used either.
fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
}

/// Reads a whole file, and refuses one that is longer than the buffer.
fn read_file(path: &Path, staging: &mut Staging) -> io::Result<()> {
    let mut file = File::open(path)?;
    staging.len = 0;
    loop {
        match file.read(&mut staging.bytes[staging.len..]) {
            Ok(0) => break,
            Ok(n) => staging.len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    if staging.len == staging.bytes.len() && file.read(&mut [0])? > 0 {
        let problem = "it is too long";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(())
}

/// Writes a file and waits until it is on disk.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_file(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
