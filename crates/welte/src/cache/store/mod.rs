//! The prefix store: pages of the prefix tree on disk, so that they outlive eviction and the process.
//!
//! One file per node. The scheduler decides what is written and read; an I/O thread does it, through a fixed number of
//! staging buffers. Nothing here can fail a request: a page that cannot be read is computed, a page that cannot be
//! written is lost, and [`PrefixStoreStatus`] says why.

mod file;
mod folder;
mod io;
mod rates;
mod shared;
#[cfg(test)]
mod simulated;

pub(crate) use file::{FileId, Fill, Layout, Place, Sha256, Staging, Stored, sha256};
pub(crate) use rates::Rates;
pub use shared::{PrefixStoreOptions, PrefixStoreStatus};
#[cfg(test)]
pub(crate) use simulated::SimulatedDisk;

use super::Key;
use folder::Folder;
use io::{Done, Io, Job};
use rates::RatesFile;
use shared::{Shared, Write};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pages that may be on their way to or from the disk at a time.
const STAGING: usize = 4;

/// Tells what a store does.
#[derive(Clone)]
pub(crate) struct StoreMonitor(Arc<Shared>);

impl StoreMonitor {
    pub(crate) fn status(&self) -> PrefixStoreStatus {
        PrefixStoreStatus {
            bytes: self.0.folder().total(),
            ..self.0.status().clone()
        }
    }
}

/// The answer to [`PrefixStore::read`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: FileId,
    /// The page; `None` if the file was missing or damaged. Give it back with [`PrefixStore::recycle`].
    pub(crate) page: Option<Staging>,
}

/// The scheduler's side of the store.
pub(crate) struct PrefixStore {
    layout: Layout,
    shared: Arc<Shared>,
    /// What an earlier process measured.
    kept: Rates,
    /// Staging buffers that nobody uses.
    free: Vec<Staging>,
    answers: VecDeque<Answer>,
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// In place of the thread.
    #[cfg(test)]
    simulated: Option<simulated::Worker>,
}

/// The ends of the queues to and from the thread.
struct Work {
    jobs: Sender<Job>,
    taken: Receiver<Job>,
    results: Sender<Done>,
}

impl PrefixStore {
    /// Opens a folder, and makes it if need be. If the folder cannot be used, the store finds nothing, writes nothing,
    /// and says so in its status. `device`: rates are kept for each device.
    pub(crate) fn open(options: &PrefixStoreOptions, layout: Layout, device: &str) -> PrefixStore {
        PrefixStore::open_with(options, layout, device, Box::new(io::write_file))
    }

    fn open_with(
        options: &PrefixStoreOptions,
        layout: Layout,
        device: &str,
        write: Box<Write>,
    ) -> PrefixStore {
        let (mut store, io, work, opened) =
            PrefixStore::without_thread(options, layout, device, write);
        let Work {
            jobs,
            taken,
            results,
        } = work;
        let thread = std::thread::Builder::new()
            .name("prefix store".to_string())
            .spawn(move || io.run(&taken, &results));
        match (opened, thread) {
            (Ok(()), Ok(thread)) => {
                store.jobs = Some(jobs);
                store.thread = Some(thread);
            }
            (Err(error), _) | (_, Err(error)) => {
                let problem = format!("{}: {error}", options.dir.display());
                store.shared.status().problem = Some(problem);
            }
        }
        store
    }

    /// A store that does nothing yet, what its thread needs, and whether the folder can be used.
    fn without_thread(
        options: &PrefixStoreOptions,
        layout: Layout,
        device: &str,
        write: Box<Write>,
    ) -> (PrefixStore, Io, Work, std::io::Result<()>) {
        let (folder, opened) = Folder::open(&options.dir, options.bytes);
        let rates = RatesFile::new(&options.dir, &layout, device);
        let kept = rates.read();
        let status = PrefixStoreStatus {
            read_rate: kept.read,
            ..PrefixStoreStatus::default()
        };
        let shared = Arc::new(Shared {
            folder: Mutex::new(folder),
            status: Mutex::new(status),
        });
        // The staging buffers bound both queues.
        let (jobs, taken) = channel();
        let (results, done) = channel();
        let store = PrefixStore {
            free: (0..STAGING).map(|_| Staging::new(&layout)).collect(),
            answers: VecDeque::with_capacity(STAGING),
            layout,
            shared,
            kept,
            jobs: None,
            done,
            thread: None,
            #[cfg(test)]
            simulated: None,
        };
        let io = Io {
            layout: store.layout.clone(),
            shared: store.shared.clone(),
            options: options.clone(),
            write,
            rates,
            unlisted: 0,
            pretended: None,
        };
        let work = Work {
            jobs,
            taken,
            results,
        };
        (store, io, work, opened)
    }

    /// The layout of its files.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Tells what the store does, also after it was closed.
    pub(crate) fn monitor(&self) -> StoreMonitor {
        StoreMonitor(self.shared.clone())
    }

    /// The rates that an earlier process measured.
    pub(crate) fn kept_rates(&self) -> Rates {
        self.kept
    }

    /// Keeps rates for later processes, if both are known and this process has read pages. Otherwise the kept ones would
    /// never grow old.
    pub(crate) fn keep_rates(&self, rates: Rates) {
        let new = rates.are_known() && rates.read != self.kept.read;
        if let Some(jobs) = self.jobs.as_ref().filter(|_| new) {
            let _ = jobs.send(Job::Rates(rates));
        }
    }

    /// Bytes per second at which pages are read; 0 if unknown.
    pub(crate) fn read_rate(&self) -> f64 {
        self.shared.status().read_rate
    }

    /// The most bytes of all files.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.shared.folder().max_bytes()
    }

    /// Finds the stored pages that continue a text at `place` with these keys, and appends them to `chain`. A key with
    /// the role "prompt" matches both roles unless `exact`.
    pub(crate) fn chain(&self, place: Place, keys: &[Key], exact: bool, chain: &mut Vec<Stored>) {
        if self.jobs.is_some() {
            let folder = self.shared.folder();
            let find = |id: &FileId| folder.find(id, exact);
            self.layout.chain(place, keys, find, chain);
        }
    }

    /// Asks for a page. False if no staging buffer is free: ask again after an answer. The I/O thread answers in order.
    pub(crate) fn read(&mut self, id: FileId) -> bool {
        let Some((jobs, staging)) = self.jobs.as_ref().zip(self.free.pop()) else {
            return false;
        };
        jobs.send(Job::Read { id, staging }).is_ok()
    }

    /// The next answer, if there is one.
    pub(crate) fn poll(&mut self) -> Option<Answer> {
        #[cfg(test)]
        self.simulate(Duration::ZERO);
        while let Ok(done) = self.done.try_recv() {
            self.sort(done);
        }
        self.answers.pop_front()
    }

    /// Sleeps until a job is done, or until some time has passed.
    pub(crate) fn wait(&mut self, at_most: Duration) {
        #[cfg(test)]
        if self.simulate(at_most) {
            return;
        }
        if let Ok(done) = self.done.recv_timeout(at_most) {
            self.sort(done);
        }
    }

    /// Waits until a job is done, or takes the buffer of an answer that nobody takes any more. False if nothing comes.
    fn next_free(&mut self) -> bool {
        if let Some(answer) = self.answers.pop_front() {
            self.free.extend(answer.page);
            return true;
        }
        #[cfg(test)]
        if self.simulate(Duration::MAX) {
            return true;
        }
        let done = self.done.recv();
        done.is_ok_and(|done| {
            self.sort(done);
            true
        })
    }

    fn sort(&mut self, done: Done) {
        match done {
            Done::Idle(staging) => self.free.push(staging),
            Done::Read { id, staging } => self.answers.push_back(Answer {
                id,
                page: Some(staging),
            }),
            Done::Missing { id, staging } => {
                self.free.push(staging);
                self.answers.push_back(Answer { id, page: None });
            }
        }
    }

    /// Takes back the page of an answer.
    pub(crate) fn recycle(&mut self, page: Staging) {
        self.free.push(page);
    }

    /// Marks pages as used, given from the start of a text. Those near the start count as used later, because without
    /// them the others are useless.
    pub(crate) fn used(&mut self, chain: Vec<Stored>) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only after this sender.
            let _ = jobs.send(Job::Used(chain));
        }
    }

    /// Writes a page, unless it is stored already. `fill` copies the page of each cache. If all staging buffers are
    /// in use, the page is lost, or with `wait` the call waits for one.
    pub(crate) fn write<E>(
        &mut self,
        parent: &Place,
        keys: &[Key],
        wait: bool,
        fill: &mut Fill<'_, E>,
    ) -> Result<(), E> {
        let id = FileId::new(parent, &parent.after(keys));
        if self.jobs.is_none() || self.shared.folder().contains(&id) {
            return Ok(());
        }
        while let Ok(done) = self.done.try_recv() {
            self.sort(done);
        }
        while wait && self.free.is_empty() && self.next_free() {}
        let Some(mut staging) = self.free.pop() else {
            self.shared.status().pages_lost += 1;
            return Ok(());
        };
        if let Err(error) = staging.encode(&self.layout, parent, keys, fill) {
            self.free.push(staging);
            return Err(error);
        }
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Job::Write { id, staging });
        }
        Ok(())
    }
}

impl Drop for PrefixStore {
    /// Finishes what has been asked for.
    fn drop(&mut self) {
        self.jobs = None;
        #[cfg(test)]
        self.finish_simulated();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
