//! The thread team: persistent threads that run the phases of a step together.
//!
//! A step is a list of phases, each cut into chunks. Every thread has a share of each phase's chunks, which it takes one by
//! one; then it takes what is left of the others' shares. So a thread that is descheduled between chunks keeps nothing from
//! the others, and threads that are equally fast touch no memory of each other while they work. Who finishes the last chunk
//! of a phase opens the next phase, and that is all that waiting threads look at.
#![allow(unsafe_code)]

use crate::cores::Cores;
use crate::machine::Place;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a waiting thread polls before it yields, and how often it yields before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 200;

/// How long a thread waits until it assumes that another thread has lost its core: `LOST` plus `LOST_CHUNKS` times the
/// duration of one of its own last chunks.
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
    /// Step and phase whose chunks may be taken.
    open: Line<AtomicU64>,
    /// Finished chunks of the step.
    done: Line<AtomicU32>,
    /// By thread: step, phase, and how many chunks of its share of that phase are taken. No chunk of its share of a later
    /// phase is taken.
    taken: Vec<Line<AtomicU64>>,
    /// By thread: the threads whose shares it takes from, in order.
    helps: Vec<Vec<u16>>,
    /// First chunk of each phase, and the end of the last. They change only while no chunk of the step at hand is left.
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
    /// How long one of its last chunks took.
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

    /// What it waited for is there.
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

/// Of `chunks` chunks, the first of the share of thread `nth`. The share ends where the next one begins.
pub(crate) fn share(chunks: u32, nth: usize, threads: usize) -> u32 {
    (chunks as usize * nth / threads) as u32
}

/// The threads whose shares thread `own` takes from, in order: its own, then those of its node, then the others.
fn helps(own: usize, places: &[Place]) -> Vec<u16> {
    let others = (0..places.len()).map(|nth| (own + nth) % places.len());
    let (near, far): (Vec<usize>, Vec<usize>) =
        others.partition(|other| places[*other].node == places[own].node);
    near.into_iter()
        .chain(far)
        .map(|other| other as u16)
        .collect()
}

/// Threads that live as long as the team; the caller of `run` is one of them.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<u32>,
}

/// The phase of `open` between steps.
const OVER: usize = (1 << PHASE_BITS) - 1;
/// Bits of a phase's number and of a number of chunks in `taken`; the step's number has the rest. The numbers of steps
/// begin again some day: a thread would have to sleep through exactly as many steps to mistake one for another.
const PHASE_BITS: u32 = 16;
const CHUNK_BITS: u32 = 24;
const STEPS: u32 = (1 << (64 - PHASE_BITS - CHUNK_BITS)) - 1;

fn pack(step: u32, phase: usize, chunks: u32) -> u64 {
    let step = (step as u64) << (PHASE_BITS + CHUNK_BITS);
    step | (phase as u64) << CHUNK_BITS | chunks as u64
}

/// Step, phase and chunks.
fn unpack(packed: u64) -> (u32, usize, u32) {
    let step = packed >> (PHASE_BITS + CHUNK_BITS);
    let phase = (packed >> CHUNK_BITS) as usize & OVER;
    (step as u32, phase, packed as u32 & ((1 << CHUNK_BITS) - 1))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Takes the next chunk of a thread's share, which has `len` chunks. `None` if all are taken, or the phase is over.
    fn take(&self, owner: usize, step: u32, phase: usize, len: u32) -> Option<u32> {
        let taken = &self.taken[owner].0;
        let mut seen = taken.load(SeqCst);
        loop {
            let (of_step, of_phase, count) = unpack(seen);
            let next = if of_phase < phase { 0 } else { count };
            if of_step != step || of_phase > phase || next >= len {
                return None;
            }
            let after = pack(step, phase, next + 1);
            match taken.compare_exchange_weak(seen, after, SeqCst, SeqCst) {
                Ok(_) => return Some(next),
                Err(changed) => seen = changed,
            }
        }
    }

    /// Runs chunks of a phase until all are taken: first its own share, then what is left of the others'.
    fn help(&self, step: u32, phase: usize, waiting: &mut Waiting) {
        let thread = waiting.thread;
        // If the step is over, these may belong to another one. Then no chunk can be taken.
        let (first, end) = (
            self.starts[phase].load(Acquire),
            self.starts[phase + 1].load(Acquire),
        );
        let threads = self.taken.len();
        let share = |nth: usize| first + share(end.wrapping_sub(first), nth, threads);
        let mut finished = 0;
        let mut begun = None;
        for &owner in &self.helps[thread] {
            let owner = usize::from(owner);
            let (from, to) = (share(owner), share(owner + 1));
            while let Some(chunk) = self.take(owner, step, phase, to.wrapping_sub(from)) {
                if begun.is_none() {
                    begun = Some(Instant::now());
                    self.cores.begin(thread);
                }
                self.execute(phase, (from - first + chunk) as usize, thread);
                finished += 1;
            }
        }
        let Some(begun) = begun else {
            return;
        };
        self.cores.end(thread);
        waiting.chunk = begun.elapsed() / finished;
        let done = self.done.0.fetch_add(finished, SeqCst) + finished;
        if done == end {
            self.open_next(step, phase, done);
        }
    }

    /// Runs a chunk that was taken.
    fn execute(&self, phase: usize, chunk: usize, thread: usize) {
        let job = self.job.load(Acquire);
        // SAFETY: `run` does not return, and so the job lives, before every chunk that was taken is counted in `done`.
        let work = unsafe { (*job).work };
        if catch_unwind(AssertUnwindSafe(|| work(phase, chunk, thread))).is_err() {
            self.panicked.store(true, SeqCst);
        }
    }

    /// Opens the first phase from `phase` on that has chunks after the first `done` ones, or ends the step.
    fn open_next(&self, step: u32, phase: usize, done: u32) {
        let phases = self.phases.load(Acquire);
        let next = (phase..phases).find(|&phase| self.starts[phase + 1].load(Acquire) > done);
        let open = pack(step, next.unwrap_or(OVER), 0);
        self.open.0.store(open, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
    }

    /// Waits a little for `open` to change from what was seen.
    fn wait(&self, waiting: &mut Waiting, seen: u64) {
        waiting.tries += 1;
        if unpack(seen).1 != OVER && waiting.is_too_long() {
            self.cores.swap(waiting.thread);
        }
        if waiting.tries < SPINS {
            std::hint::spin_loop();
        } else if waiting.tries < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let guard = lock(&self.lock);
            self.sleepers.fetch_add(1, SeqCst);
            if self.open.0.load(SeqCst) == seen && !self.stop.load(SeqCst) {
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

    /// Helps with every phase that opens, until `ends` says of what is open that this thread is no longer needed.
    fn work(&self, waiting: &mut Waiting, ends: impl Fn(u64) -> bool) {
        let mut seen = None;
        loop {
            let open = self.open.0.load(SeqCst);
            if ends(open) {
                return;
            }
            if seen == Some(open) {
                self.wait(waiting, open);
                continue;
            }
            seen = Some(open);
            waiting.end();
            let (step, phase, _) = unpack(open);
            if phase != OVER {
                self.help(step, phase, waiting);
            }
        }
    }
}

impl Team {
    /// A team with a thread at each of these places, the caller of `run` at the first of them, for steps of up to
    /// `max_phases` phases. The team has fewer threads if the system refuses some.
    pub(crate) fn new(places: &[Place], max_phases: usize) -> Team {
        let threads = places.len();
        assert!(!places.is_empty(), "a team has threads");
        assert!(max_phases < OVER, "a phase's number fits its bits");
        let taken = |_| Line(AtomicU64::new(pack(0, 0, 0)));
        let shared = Arc::new(Shared {
            open: Line(AtomicU64::new(pack(0, OVER, 0))),
            done: Line(AtomicU32::new(0)),
            taken: (0..threads).map(taken).collect(),
            helps: (0..threads).map(|own| helps(own, places)).collect(),
            starts: (0..=max_phases).map(|_| AtomicU32::new(0)).collect(),
            phases: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            cores: Cores::new(places),
        });
        let mut workers = Vec::new();
        for thread in 1..threads {
            let shared = shared.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("welte-{thread}"))
                .spawn(move || {
                    shared.cores.settle(thread);
                    shared.cores.enter(thread);
                    shared.started.fetch_add(1, SeqCst);
                    shared.work(&mut Waiting::new(thread), |_| shared.stop.load(SeqCst));
                });
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
            let _bound = self.shared.cores.bind();
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
        *turn = (*turn + 1) & STEPS;
        let step = *turn;
        // First close the step before: no thread may take one of its chunks by the starts of this step.
        for taken in &shared.taken {
            taken.0.store(pack(step, 0, 0), SeqCst);
        }
        let mut total = 0u32;
        for (start, &count) in shared.starts.iter().zip(counts) {
            start.store(total, Release);
            assert!(count >> CHUNK_BITS == 0, "a phase's chunks fit their bits");
            total = total.checked_add(count).expect("fewer than 2^32 chunks");
        }
        shared.starts[counts.len()].store(total, Release);
        shared.phases.store(counts.len(), Release);
        shared.panicked.store(false, SeqCst);
        let job = Job { work };
        let job = (&raw const job).cast_mut().cast::<Job<'static>>();
        shared.job.store(job, Release);
        shared.done.0.store(0, SeqCst);
        let bound = shared.cores.bind();
        shared.cores.enter(0);
        shared.open_next(step, 0, 0);
        let over = pack(step, OVER, 0);
        shared.work(&mut Waiting::new(0), |open| open == over);
        shared.cores.leave(0);
        drop(bound);
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
            let team = Team::new(&vec![Place::default(); threads], 40);
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
            let team = Team::new(&vec![Place::default(); threads], 4);
            assert!(
                team.run(&[8, 8], &|p, c, _| assert!((p, c) != (0, 5), "on purpose"))
                    .is_err()
            );
            team.run(&[8, 8], &|_, _, _| {}).unwrap();
        }
    }

    #[test]
    fn shares_of_the_own_node_come_first() {
        let place = |node| Place {
            cpus: Vec::new(),
            node,
        };
        let places = [0, 0, 0, 1, 1].map(place);
        assert_eq!(helps(1, &places), [1, 2, 0, 3, 4]);
        assert_eq!(helps(4, &places), [4, 3, 0, 1, 2]);
        let shares: Vec<u32> = (0..=5).map(|nth| share(12, nth, 5)).collect();
        assert_eq!(shares, [0, 2, 4, 7, 9, 12]);
    }

    #[test]
    fn sleeping_threads_wake() {
        let team = Team::new(&vec![Place::default(); 3], 4);
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
