//! A store without a thread: jobs take simulated time, and files are damaged on purpose.

use super::io::{Io, Job};
use super::{Done, Layout, PrefixStore, PrefixStoreOptions, Write};
use crate::engine::Clock;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;
use web_time::Instant;

/// A disk for simulations.
pub(crate) struct SimulatedDisk {
    pub(crate) clock: Clock,
    /// How long a job takes.
    pub(crate) each: Duration,
    /// Writes a file, or does not.
    pub(crate) write: Box<Write>,
}

/// Does the jobs in place of the thread, one after the other.
pub(super) struct Worker {
    io: Io,
    jobs: Receiver<Job>,
    results: Sender<Done>,
    clock: Clock,
    each: Duration,
    /// The job at hand, and when it is done.
    current: Option<(Instant, Job)>,
}

impl Worker {
    /// Does what is done by now.
    fn work(&mut self) {
        loop {
            let now = self.clock.now();
            let job = match self.current.take() {
                Some((done, job)) if done <= now => job,
                Some(later) => {
                    self.current = Some(later);
                    return;
                }
                None => match self.jobs.try_recv() {
                    Ok(job) => {
                        self.current = Some((now + self.each, job));
                        continue;
                    }
                    Err(_) => return,
                },
            };
            if let Some(done) = self.io.job(job) {
                let _ = self.results.send(done);
            }
        }
    }
}

impl PrefixStore {
    /// A store on a simulated disk.
    pub(crate) fn simulated(
        options: &PrefixStoreOptions,
        layout: Layout,
        disk: SimulatedDisk,
    ) -> PrefixStore {
        let SimulatedDisk { clock, each, write } = disk;
        let (mut store, mut io, work, opened) =
            PrefixStore::without_thread(options, layout, "simulated", write);
        opened.unwrap();
        io.pretended = Some(each);
        store.jobs = Some(work.jobs);
        store.simulated = Some(Worker {
            io,
            jobs: work.taken,
            results: work.results,
            clock,
            each,
            current: None,
        });
        store
    }

    /// Does all jobs.
    pub(super) fn finish_simulated(&mut self) {
        while let Some(worker) = &mut self.simulated {
            worker.clock.advance(worker.each);
            worker.work();
            if worker.current.is_none() {
                return;
            }
        }
    }

    /// Does what is done after some time at most, which passes if nothing is done before. False if the disk is real.
    pub(super) fn simulate(&mut self, at_most: Duration) -> bool {
        let Some(worker) = &mut self.simulated else {
            return false;
        };
        worker.work();
        if !at_most.is_zero() {
            let left = match &worker.current {
                Some((done, _)) => done.saturating_duration_since(worker.clock.now()),
                None => worker.each,
            };
            worker.clock.advance(left.min(at_most));
            worker.work();
        }
        while let Ok(done) = self.done.try_recv() {
            self.sort(done);
        }
        true
    }
}
