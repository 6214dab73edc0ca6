//! The threads of all ranks but the first. Each holds its context at a desk; the caller leaves a job there and goes on with
//! rank 0. Between jobs the caller may use the contexts itself.

use crate::chain::Follower;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use web_time::Duration;
use welte_device::{ChainStart, Choice, Context, Control, Error, Seat, Stage, Step, StepOptions};

/// How often a thread looks for a job before it sleeps.
const SPINS: u32 = 2_000;
/// How long it sleeps at most.
const AWAKE: Duration = Duration::from_secs(1);

/// What a rank shall do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Job {
    /// Run a stage of the step at the desk, and choose tokens.
    Step { stage: Stage, tokens: bool },
    /// Guess, from the step at the desk on.
    Draft,
    /// Choose tokens from the last step.
    Sample,
    /// Decode.
    Chain,
}

/// A rank's place: its context, and room for what a job needs.
pub(crate) struct Desk {
    pub(crate) context: Box<dyn Context>,
    pub(crate) step: Step,
    /// How many guesses each pick of the step wants.
    pub(crate) wanted: Vec<u32>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) starts: Vec<ChainStart>,
    pub(crate) tokens: Vec<u32>,
    job: Option<Job>,
    stop: bool,
}

struct Member {
    seat: Seat,
    desk: Mutex<Desk>,
    /// Dropped after the desk: if this rank is lost and nobody waits for it any more, what it may still write to.
    kept: Mutex<Option<Kept>>,
    abandoned: AtomicBool,
    wake: Condvar,
    /// Jobs that were left, and jobs that were done.
    left: AtomicU32,
    done: AtomicU32,
}

/// The contexts of rank 0 and of the others.
type Kept = (Arc<Mutex<Vec<Box<dyn Context>>>>, Vec<Arc<Member>>);

/// The threads of ranks 1 and up.
pub(crate) struct Crew {
    members: Vec<Arc<Member>>,
    threads: Vec<Option<JoinHandle<()>>>,
    patience: Duration,
    /// Ranks that have not come back from a job, and never may.
    lost: Vec<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    pub(crate) fn new(
        ranks: Vec<(Seat, Box<dyn Context>)>,
        rows: usize,
        slots: usize,
        follower: &Follower,
        patience: Duration,
    ) -> Result<Crew, Error> {
        let mut crew = Crew {
            members: Vec::new(),
            threads: Vec::new(),
            patience,
            lost: Vec::with_capacity(ranks.len()),
        };
        for (seat, context) in ranks {
            let rank = seat.rank();
            let member = Arc::new(Member {
                seat,
                desk: Mutex::new(Desk {
                    context,
                    step: Step::with_room(rows),
                    wanted: Vec::with_capacity(rows),
                    choices: Vec::with_capacity(rows),
                    starts: Vec::with_capacity(slots),
                    tokens: Vec::with_capacity(rows),
                    job: None,
                    stop: false,
                }),
                kept: Mutex::new(None),
                abandoned: AtomicBool::new(false),
                wake: Condvar::new(),
                left: AtomicU32::new(0),
                done: AtomicU32::new(0),
            });
            let (own, follower) = (member.clone(), follower.clone());
            let thread = std::thread::Builder::new()
                .name(format!("welte-rank-{rank}"))
                .spawn(move || own.work(&follower));
            let thread = thread.map_err(|error| Error::Rank {
                rank,
                ranks: member.seat.ranks(),
                why: format!("its thread did not start: {error}"),
            })?;
            crew.members.push(member);
            crew.threads.push(Some(thread));
        }
        Ok(crew)
    }

    /// Refuses work if a rank is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.lost.first() {
            Some(rank) => Err(Error::Rank {
                rank: *rank,
                ranks: self.members.len() as u32 + 1,
                why: "it is lost: it has not come back from its last step".to_string(),
            }),
            None => Ok(()),
        }
    }

    /// The desks of all ranks but the first and those that are lost, who may hold theirs for ever. No other rank may be at work.
    pub(crate) fn desks(&self) -> impl Iterator<Item = MutexGuard<'_, Desk>> {
        let here = |member: &&Arc<Member>| !self.lost.contains(&member.seat.rank());
        self.members
            .iter()
            .filter(here)
            .map(|member| lock(&member.desk))
    }

    /// The desk of a rank from 1 on.
    pub(crate) fn desk(&self, rank: u32) -> MutexGuard<'_, Desk> {
        lock(&self.members[rank as usize - 1].desk)
    }

    /// Leaves a job at every desk, where `prepare` puts what it needs. It is given the rank.
    pub(crate) fn begin(&self, prepare: impl Fn(u32, &mut Desk) -> Job) {
        for member in &self.members {
            let mut desk = lock(&member.desk);
            let job = prepare(member.seat.rank(), &mut desk);
            desk.job = Some(job);
            member.left.fetch_add(1, Release);
            drop(desk);
            member.wake.notify_one();
        }
    }

    /// Drops rank 0's context, unless ranks are lost: until these come back from their last step, all contexts stay.
    pub(crate) fn keep(&self, first: Vec<Box<dyn Context>>) {
        let first = Arc::new(Mutex::new(first));
        for member in &self.members {
            let rank = member.seat.rank();
            if self.lost.contains(&rank) {
                let others = self.members.iter().filter(|m| m.seat.rank() != rank);
                *lock(&member.kept) = Some((first.clone(), others.cloned().collect()));
                member.abandoned.store(true, Release);
                // It may have come back meanwhile.
                member.wake.notify_one();
            }
        }
    }

    /// Waits until all have done their job.
    pub(crate) fn finish(&mut self) {
        for member in &self.members {
            let is_done = || member.done.load(Acquire) == member.left.load(Acquire);
            // Others may have failed, but this one may still be at work.
            if !member.seat.wait_out(is_done, self.patience) {
                member.seat.fail("it has not come back from its last step");
                self.lost.push(member.seat.rank());
            }
        }
    }
}

impl Member {
    fn work(&self, follower: &Follower) {
        loop {
            let Some((mut desk, job)) = self.next() else {
                // Its last step is over. Others that are lost keep this one's context.
                drop(lock(&self.kept).take());
                return;
            };
            let done = catch_unwind(AssertUnwindSafe(|| desk.run(&job, follower, &self.seat)));
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.seat.fail_by(error),
                Err(_) => self.seat.fail("it panicked"),
            }
            drop(desk);
            self.done.fetch_add(1, Release);
        }
    }

    /// The next job; `None` if there will be none.
    fn next(&self) -> Option<(MutexGuard<'_, Desk>, Job)> {
        let done = self.done.load(Acquire);
        for _ in 0..SPINS {
            if self.left.load(Acquire) != done {
                break;
            }
            std::hint::spin_loop();
        }
        let mut desk = lock(&self.desk);
        loop {
            if desk.stop || self.abandoned.load(Acquire) {
                return None;
            }
            if let Some(job) = desk.job.take() {
                return Some((desk, job));
            }
            // `Crew::keep` cannot take the lock of a desk at work, so its call may be missed.
            let woken = self.wake.wait_timeout(desk, AWAKE);
            desk = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Desk {
    /// Makes room for tokens.
    pub(crate) fn make_room(&mut self, tokens: usize) {
        self.tokens.clear();
        self.tokens.resize(tokens, 0);
    }

    fn run(&mut self, job: &Job, follower: &Follower, seat: &Seat) -> Result<(), Error> {
        match job {
            Job::Step { stage, tokens } => {
                let options = StepOptions {
                    stage: stage.clone(),
                    tokens: tokens.then_some(&mut self.tokens[..]),
                };
                self.context.step(&self.step, options).map(drop)
            }
            Job::Draft => self
                .context
                .draft(&mut self.step, &self.wanted, &mut self.tokens),
            Job::Sample => self.context.sample(&self.choices, &mut self.tokens),
            Job::Chain => {
                let mut events = follower.of(seat, self.starts.len());
                // Rank 0 hears of the caller's wishes, and the others of rank 0's decisions.
                let control = Control::default();
                let emit = &mut |emitted| events.next(emitted);
                self.context.chain(&self.starts, &control, emit)
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (member, thread) in self.members.iter().zip(&mut self.threads) {
            if self.lost.contains(&member.seat.rank()) {
                // It may hold its desk for ever.
                continue;
            }
            lock(&member.desk).stop = true;
            member.wake.notify_one();
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}
