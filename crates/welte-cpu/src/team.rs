//! The thread team: persistent threads that run the phases of a step together.
//!
//! A step is a list of phases, each cut into chunks. `next` holds the step number and the next chunk to take, counted over
//! all phases. `done` holds the step number and how many chunks are finished. A thread takes a chunk only after all chunks
//! of earlier phases are done. So a thread that is descheduled between chunks holds nothing, and the others continue.
#![allow(unsafe_code)]

use crate::cores::Cores;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a waiting thread polls before it yields, and how often it yields before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 200;

/// How long a thread waits until it assumes that another thread has lost its core: `LOST` plus `LOST_CHUNKS` times the
/// duration of its own last chunk.
const LOST: Duration = Duration::from_micros(20);
const LOST_CHUNKS: u32 = 4;

/// One chunk of work: (phase, chunk, thread).
pub(crate) type Work<'a> = &'a (dyn Fn(usize, usize, usize) + Sync);

/// A thread of the team panicked.
#[derive(Debug)]
pub(crate) struct Panicked;

#[repr(align(128))]
struct Line<T>(T);

struct Job<'a> {
    work: Work<'a>,
}

struct Shared {
    /// Step number and next chunk.
    next: Line<AtomicU64>,
    /// Step number and finished chunks.
    done: Line<AtomicU64>,
    /// First chunk of each phase, and the end of the last.
    starts: Vec<AtomicU32>,
    phases: AtomicUsize,
    job: AtomicPtr<Job<'static>>,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
    started: AtomicUsize,
    /// Where each thread is.
    cores: Cores,
}

/// How long a thread has waited.
struct Waiting {
    thread: usize,
    tries: u32,
    since: Option<Instant>,
    /// How long its last chunk took.
    chunk: Duration,
    changed: bool,
}

impl Waiting {
    fn new(thread: usize) -> Waiting {
        Waiting {
            thread,
            tries: 0,
            since: None,
            chunk: Duration::ZERO,
            changed: false,
        }
    }

    /// A chunk was taken.
    fn end(&mut self) {
        self.tries = 0;
        self.since = None;
        self.changed = false;
    }

    /// True once per wait, when it takes longer than it could if every thread had a core.
    fn is_too_long(&mut self) -> bool {
        if self.changed || !self.tries.is_multiple_of(64) {
            return false;
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.changed = now - since > LOST + LOST_CHUNKS * self.chunk;
        self.changed
    }
}

/// Threads that live as long as the team; the caller of `run` is one of them.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<u32>,
}

/// The result of polling the shared state.
enum Look {
    /// This chunk was taken.
    Taken { phase: usize, chunk: usize },
    /// Another thread took it: poll again.
    Lost,
    /// Nothing to take now; the step may be over.
    Nothing,
}

fn pack(step: u32, count: u32) -> u64 {
    (step as u64) << 32 | count as u64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Takes the next chunk if all earlier phases are done. `cursor` is this thread's (step, phase), which saves a search
    /// from the first phase.
    fn look(&self, cursor: &mut (u32, usize)) -> Look {
        let next = self.next.0.load(SeqCst);
        let (step, ticket) = ((next >> 32) as u32, next as u32);
        if cursor.0 != step {
            *cursor = (step, 0);
        }
        let phases = self.phases.load(Acquire);
        // `starts` may already belong to another step. Then taking the chunk fails below.
        while cursor.1 < phases && self.starts[cursor.1 + 1].load(Acquire) <= ticket {
            cursor.1 += 1;
        }
        if cursor.1 >= phases {
            cursor.1 = 0;
            return Look::Nothing;
        }
        let first = self.starts[cursor.1].load(Acquire);
        let done = self.done.0.load(SeqCst);
        if (done >> 32) as u32 != step || (done as u32) < first || ticket < first {
            if ticket < first {
                cursor.1 = 0;
            }
            return Look::Nothing;
        }
        if self
            .next
            .0
            .compare_exchange(next, next + 1, SeqCst, Relaxed)
            .is_err()
        {
            return Look::Lost;
        }
        Look::Taken {
            phase: cursor.1,
            chunk: (ticket - first) as usize,
        }
    }

    /// Runs a chunk that was taken, and counts it.
    fn execute(&self, phase: usize, chunk: usize, waiting: &mut Waiting) {
        let thread = waiting.thread;
        let start = Instant::now();
        self.cores.begin(thread);
        // Read before the chunk is counted: afterwards the step may be over, and `starts` belongs to another one.
        let end = self.starts[phase + 1].load(Acquire);
        let job = self.job.load(Acquire);
        // SAFETY: `run` does not return, and so the job lives, before every chunk that was taken is counted below.
        let work = unsafe { (*job).work };
        if catch_unwind(AssertUnwindSafe(|| work(phase, chunk, thread))).is_err() {
            self.panicked.store(true, SeqCst);
        }
        self.cores.end(thread);
        waiting.end();
        waiting.chunk = start.elapsed();
        let done = self.done.0.fetch_add(1, SeqCst) + 1;
        if done as u32 == end {
            self.wake_sleepers();
        }
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
    }

    /// Waits until `over`, or until a chunk may be available.
    fn wait(&self, waiting: &mut Waiting, over: &dyn Fn() -> bool) {
        waiting.tries += 1;
        if waiting.is_too_long() && self.is_someone_behind() {
            self.cores.swap(waiting.thread);
        }
        if waiting.tries < SPINS {
            std::hint::spin_loop();
        } else if waiting.tries < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let guard = lock(&self.lock);
            self.sleepers.fetch_add(1, SeqCst);
            if !over() && !self.is_something_there() {
                drop(
                    self.wake
                        .wait(guard)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
            self.sleepers.fetch_sub(1, SeqCst);
            waiting.tries = 0;
        }
    }

    /// Whether other threads still run chunks of this step and none can be taken.
    fn is_someone_behind(&self) -> bool {
        let (next, done) = (self.next.0.load(SeqCst), self.done.0.load(SeqCst));
        next >> 32 == done >> 32 && (done as u32) < next as u32
    }

    /// Whether a chunk may be available. Also true while the state changes.
    fn is_something_there(&self) -> bool {
        let next = self.next.0.load(SeqCst);
        let done = self.done.0.load(SeqCst);
        let ticket = next as u32;
        if next >> 32 != done >> 32 {
            return true;
        }
        let phases = self.phases.load(Acquire);
        let phase = self.starts[..=phases].partition_point(|s| s.load(Acquire) <= ticket);
        phase > 0 && phase <= phases && done as u32 >= self.starts[phase - 1].load(Acquire)
    }

    fn work_until_stopped(&self, thread: usize) {
        self.cores.enter(thread);
        self.started.fetch_add(1, SeqCst);
        let mut cursor = (0, 0);
        let mut waiting = Waiting::new(thread);
        while !self.stop.load(SeqCst) {
            match self.look(&mut cursor) {
                Look::Taken { phase, chunk } => {
                    self.execute(phase, chunk, &mut waiting);
                }
                Look::Lost => {}
                Look::Nothing => self.wait(&mut waiting, &|| self.stop.load(SeqCst)),
            }
        }
    }
}

impl Team {
    /// A team of `threads`, the caller included, for steps of up to `max_phases` phases. The team has fewer threads if the
    /// system refuses some.
    pub(crate) fn new(threads: usize, max_phases: usize) -> Team {
        let shared = Arc::new(Shared {
            next: Line(AtomicU64::new(0)),
            done: Line(AtomicU64::new(0)),
            starts: (0..=max_phases).map(|_| AtomicU32::new(0)).collect(),
            phases: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            cores: Cores::new(threads.max(1)),
        });
        let mut workers = Vec::new();
        for thread in 1..threads {
            let shared = shared.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("welte-{thread}"))
                .spawn(move || shared.work_until_stopped(thread));
            match spawned {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        // Threads allocate while they start. Wait, so that nothing allocates afterwards.
        while shared.started.load(SeqCst) < workers.len() {
            std::thread::yield_now();
        }
        Team {
            shared,
            workers,
            turn: Mutex::new(0),
        }
    }

    /// How many threads work.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs phases of `counts[phase]` chunks, one phase after the other. The chunks of a phase run in any order on any
    /// thread. Allocates nothing.
    pub(crate) fn run(&self, counts: &[u32], work: Work<'_>) -> Result<(), Panicked> {
        if self.workers.is_empty() {
            return catch_unwind(AssertUnwindSafe(|| {
                for (phase, &count) in counts.iter().enumerate() {
                    for chunk in 0..count as usize {
                        work(phase, chunk, 0);
                    }
                }
            }))
            .map_err(|_| Panicked);
        }
        let shared = &*self.shared;
        assert!(
            counts.len() < shared.starts.len(),
            "more phases than the team was made for"
        );
        let mut turn = lock(&self.turn);
        *turn = turn.wrapping_add(1);
        let step = *turn;
        let mut total = 0u32;
        // Close the previous step first: no thread may take one of its chunks by the starts of this step.
        shared.next.0.store(pack(step, u32::MAX), SeqCst);
        for (start, &count) in shared.starts.iter().zip(counts) {
            start.store(total, Release);
            total = total.checked_add(count).expect("fewer than 2^32 chunks");
        }
        shared.starts[counts.len()].store(total, Release);
        shared.phases.store(counts.len(), Release);
        shared.panicked.store(false, SeqCst);
        let job = Job { work };
        let job = (&raw const job).cast_mut().cast::<Job<'static>>();
        shared.job.store(job, Release);
        shared.done.0.store(pack(step, 0), SeqCst);
        shared.next.0.store(pack(step, 0), SeqCst);
        shared.wake_sleepers();

        let over = || shared.done.0.load(SeqCst) as u32 == total;
        shared.cores.enter(0);
        let mut cursor = (step, 0);
        let mut waiting = Waiting::new(0);
        while !over() {
            match shared.look(&mut cursor) {
                Look::Taken { phase, chunk } => {
                    shared.execute(phase, chunk, &mut waiting);
                }
                Look::Lost => {}
                Look::Nothing => shared.wait(&mut waiting, &over),
            }
        }
        shared.cores.leave(0);
        if shared.panicked.load(SeqCst) {
            Err(Panicked)
        } else {
            Ok(())
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(lock(&self.shared.lock));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_once_and_phases_in_order() {
        for threads in [1, 2, 3, 7] {
            let team = Team::new(threads, 40);
            for round in 0..300 {
                let counts: Vec<u32> = (0..(round % 40)).map(|p| (p * 7 + round) % 5).collect();
                let finished: Vec<AtomicU32> = counts.iter().map(|_| AtomicU32::new(0)).collect();
                team.run(&counts, &|phase, chunk, thread| {
                    assert!(thread < threads && chunk < counts[phase] as usize);
                    for before in 0..phase {
                        assert_eq!(finished[before].load(SeqCst), counts[before]);
                    }
                    finished[phase].fetch_add(1, SeqCst);
                })
                .unwrap();
                for (f, c) in finished.iter().zip(&counts) {
                    assert_eq!(f.load(SeqCst), *c);
                }
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_team_lives_on() {
        for threads in [1, 3] {
            let team = Team::new(threads, 4);
            assert!(
                team.run(&[8, 8], &|p, c, _| assert!((p, c) != (0, 5), "on purpose"))
                    .is_err()
            );
            team.run(&[8, 8], &|_, _, _| {}).unwrap();
        }
    }

    #[test]
    fn sleeping_threads_wake() {
        let team = Team::new(3, 4);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(15));
            let count = AtomicU32::new(0);
            team.run(&[4, 1, 4], &|phase, _, _| {
                if phase == 1 {
                    std::thread::sleep(std::time::Duration::from_millis(15));
                }
                count.fetch_add(1, SeqCst);
            })
            .unwrap();
            assert_eq!(count.load(SeqCst), 9);
        }
    }
}
