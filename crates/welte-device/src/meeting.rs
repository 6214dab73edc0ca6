//! Where the ranks of a program meet: devices that each hold a part of a model, and give each other what they compute.
//!
//! A meeting belongs to one context of every rank. How values travel is the devices' affair: they may use the host's memory
//! ([`Seat::exchange`]), or tell each other addresses of their own ([`Seat::share`]) and never come here again while
//! they run. A rank that fails says so ([`Seat::fail`]); everybody who waits for it, here or on a device that looks at
//! [`Seat::check`], then stops with an error that names it.

use crate::{Error, MaskBoard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use web_time::{Duration, Instant};
use welte_table::{Op, Program, params};

/// A meeting of ranks. They hold [`Seat`]s.
pub struct Meeting {
    ranks: u32,
    patience: Duration,
    /// How often a waiting rank polls before it yields.
    spins: u32,
    /// By rank: how often it has come.
    arrived: Vec<Line>,
    /// By rank: what it gives, in turns.
    outboxes: Vec<OnceLock<[Box<[AtomicU32]>; 2]>>,
    masks: OnceLock<Arc<MaskBoard>>,
    shared: Mutex<Shared>,
    changed: Condvar,
    failed: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

/// A counter that shares no cache line with another one.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

#[derive(Clone)]
struct Fault {
    rank: u32,
    why: String,
}

/// Words that ranks share.
#[derive(Default)]
struct Shared {
    round: u64,
    given: Vec<Option<Vec<u64>>>,
    all: Arc<Vec<Vec<u64>>>,
}

/// How long a rank waits for another one if nothing else is said. Ranks do the same work, so they wait for moments.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a waiting rank polls before it yields if every rank has a core, and how often it yields before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meeting {
    /// The seats of a new meeting, by rank.
    pub fn seats(ranks: u32) -> Vec<Seat> {
        Meeting::patient(ranks, PATIENCE)
    }

    /// The same for ranks that wait at most this long for each other.
    pub fn patient(ranks: u32, patience: Duration) -> Vec<Seat> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let meeting = Arc::new(Meeting {
            ranks,
            patience,
            spins: if cores < ranks as usize { 0 } else { SPINS },
            arrived: (0..ranks).map(|_| Line::default()).collect(),
            outboxes: (0..ranks).map(|_| OnceLock::new()).collect(),
            masks: OnceLock::new(),
            shared: Mutex::new(Shared {
                given: vec![None; ranks as usize],
                ..Shared::default()
            }),
            changed: Condvar::new(),
            failed: AtomicBool::new(false),
            fault: Mutex::new(None),
        });
        let seat = |rank| Seat {
            rank,
            meeting: meeting.clone(),
        };
        (0..ranks).map(seat).collect()
    }

    fn check(&self) -> Result<(), Error> {
        if !self.failed.load(Acquire) {
            return Ok(());
        }
        let fault = lock(&self.fault).clone();
        let (rank, why) = fault.map_or((0, String::new()), |fault| (fault.rank, fault.why));
        Err(Error::Rank {
            rank,
            ranks: self.ranks,
            why,
        })
    }

    fn fail(&self, rank: u32, why: String) {
        lock(&self.fault).get_or_insert(Fault { rank, why });
        self.failed.store(true, Release);
        drop(lock(&self.shared));
        self.changed.notify_all();
    }

    /// Waits until something is true. `late` names a rank that it waits for.
    fn wait(&self, is_true: impl Fn() -> bool, late: impl Fn() -> u32) -> Result<(), Error> {
        let failed = || self.check().is_err();
        if !self.poll(|| is_true() || failed(), self.patience) {
            let patience = self.patience.as_secs_f32();
            self.fail(
                late(),
                format!("the others waited {patience} s for it in vain"),
            );
        }
        if is_true() { Ok(()) } else { self.check() }
    }

    /// Waits until something is true, at most so long.
    fn poll(&self, is_true: impl Fn() -> bool, patience: Duration) -> bool {
        let mut tries = 0u32;
        let mut since = None;
        while !is_true() {
            tries = tries.saturating_add(1);
            if tries < self.spins {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if now - *since.get_or_insert(now) > patience {
                return false;
            }
            if tries < self.spins + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
        true
    }
}

/// A rank's place in a meeting.
#[derive(Clone)]
pub struct Seat {
    rank: u32,
    meeting: Arc<Meeting>,
}

impl Seat {
    /// Its number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.meeting.ranks
    }

    /// Floats that the rank of a program gives in its largest exchange.
    pub fn floats(program: &Program) -> usize {
        let passes = program.passes.iter();
        let of_pass = passes.flat_map(|pass| {
            let commands = pass.commands.iter().enumerate();
            let exchanges = commands.filter(|(_, command)| command.op == Op::Exchange);
            exchanges.map(|(index, command)| {
                let q = params::Exchange::of(&command.params);
                q.part(q.rank).len() * q.vectors as usize * pass.rows_at(index) as usize
            })
        });
        of_pass.max().unwrap_or(0)
    }

    /// Bytes of the host's memory through which the rank of a program exchanges.
    pub fn bytes(program: &Program) -> u64 {
        2 * 4 * Seat::floats(program) as u64
    }

    /// Allocates the memory of this rank's exchanges, once.
    pub fn reserve(&self, program: &Program) {
        self.meeting.outboxes[self.rank as usize].get_or_init(|| {
            let floats = Seat::floats(program);
            [(); 2].map(|()| (0..floats).map(|_| AtomicU32::new(0)).collect())
        });
    }

    /// Gives every other rank what `give` writes, once all of them do the same: `take` reads it, rank by rank. Needs
    /// [`Seat::reserve`] of every rank.
    pub fn exchange(
        &self,
        give: impl FnOnce(&[AtomicU32]),
        mut take: impl FnMut(u32, &[AtomicU32]),
    ) -> Result<(), Error> {
        // A rank comes here again only after it has read what the others gave, so two outboxes in turn are enough.
        let turn = self.meeting.arrived[self.rank as usize].0.load(Relaxed) as usize % 2;
        if let Some(outbox) = self.meeting.outboxes[self.rank as usize].get() {
            give(&outbox[turn]);
        }
        self.arrive()?;
        for rank in (0..self.ranks()).filter(|rank| *rank != self.rank) {
            if let Some(outbox) = self.meeting.outboxes[rank as usize].get() {
                take(rank, &outbox[turn]);
            }
        }
        Ok(())
    }

    /// Waits until every rank has come as often as this one.
    pub fn arrive(&self) -> Result<(), Error> {
        let meeting = &*self.meeting;
        meeting.check()?;
        let times = meeting.arrived[self.rank as usize].0.fetch_add(1, AcqRel) + 1;
        let has_come = |line: &Line| line.0.load(Acquire) >= times;
        let late = || meeting.arrived.iter().position(|line| !has_come(line));
        meeting.wait(
            || meeting.arrived.iter().all(has_come),
            || late().unwrap_or(0) as u32,
        )
    }

    /// Tells every rank some words, such as addresses of a device's memory, and returns those of all ranks. Waits for
    /// them. For the time before the first step: it allocates.
    pub fn share(&self, words: &[u64]) -> Result<Arc<Vec<Vec<u64>>>, Error> {
        let meeting = &*self.meeting;
        meeting.check()?;
        let mut shared = lock(&meeting.shared);
        shared.given[self.rank as usize] = Some(words.to_vec());
        if shared.given.iter().all(Option::is_some) {
            let all = shared.given.iter_mut().filter_map(Option::take).collect();
            shared.all = Arc::new(all);
            shared.round += 1;
            meeting.changed.notify_all();
            return Ok(shared.all.clone());
        }
        let (round, begun) = (shared.round, Instant::now());
        while shared.round == round {
            meeting.check()?;
            if begun.elapsed() > meeting.patience {
                let late = shared.given.iter().position(Option::is_none).unwrap_or(0);
                drop(shared);
                meeting.fail(late as u32, "it did not start like the others".to_string());
                shared = lock(&meeting.shared);
                continue;
            }
            let waited = meeting
                .changed
                .wait_timeout(shared, Duration::from_millis(100));
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(shared.all.clone())
    }

    /// The masks that all ranks read. The first rank that asks makes them.
    pub fn masks(&self, make: impl FnOnce() -> MaskBoard) -> Arc<MaskBoard> {
        let made = || Arc::new(make().agreeing());
        self.meeting.masks.get_or_init(made).clone()
    }

    /// Says that this rank cannot go on. The first rank that says so is named everywhere.
    pub fn fail(&self, why: impl Into<String>) {
        self.meeting.fail(self.rank, why.into());
    }

    /// The same of any error. One that names a rank blames that one: a device may find out by itself who does not come.
    pub fn fail_by(&self, error: Error) {
        match error {
            Error::Rank { rank, why, .. } => self.meeting.fail(rank, why),
            error => self.fail(error.to_string()),
        }
    }

    /// The error that names a rank which has failed, if one has.
    pub fn check(&self) -> Result<(), Error> {
        self.meeting.check()
    }

    /// Begins anew after a failure. No rank may be at work.
    pub fn reset(&self) {
        let meeting = &*self.meeting;
        meeting
            .arrived
            .iter()
            .for_each(|line| line.0.store(0, Release));
        lock(&meeting.shared).given.fill(None);
        *lock(&meeting.fault) = None;
        meeting.failed.store(false, Release);
    }

    /// Waits until something is true, whatever fails. `false`: it has not become true in this time.
    pub fn wait_out(&self, is_true: impl Fn() -> bool, patience: Duration) -> bool {
        self.meeting.poll(is_true, patience)
    }

    /// Waits until something is true that another rank makes true, or a rank fails. `late` names the rank it waits for.
    pub fn wait(&self, is_true: impl Fn() -> bool, late: u32) -> Result<(), Error> {
        self.meeting.wait(is_true, || late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each<T: Send>(seats: &[Seat], act: impl Fn(&Seat) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = seats.iter().map(|seat| scope.spawn(|| act(seat))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    fn with_outboxes(seats: &[Seat], floats: usize) {
        for seat in seats {
            let outbox = || [(); 2].map(|()| (0..floats).map(|_| AtomicU32::new(0)).collect());
            seat.meeting.outboxes[seat.rank as usize].get_or_init(outbox);
        }
    }

    #[test]
    fn ranks_get_what_the_others_gave() {
        let seats = Meeting::seats(3);
        with_outboxes(&seats, 1);
        each(&seats, |seat| {
            for round in 0..2000 {
                let mut got = Vec::new();
                seat.exchange(
                    |outbox| outbox[0].store(round * 3 + seat.rank(), Relaxed),
                    |rank, inbox| got.push((rank, inbox[0].load(Relaxed))),
                )
                .unwrap();
                let others = (0..3).filter(|rank| *rank != seat.rank());
                let wanted: Vec<_> = others.map(|rank| (rank, round * 3 + rank)).collect();
                assert_eq!(got, wanted);
            }
        });
        for round in 0..3 {
            let all = each(&seats, |seat| {
                seat.share(&[seat.rank().into(), round]).unwrap()
            });
            assert!(
                all.iter()
                    .all(|all| **all == [[0, round], [1, round], [2, round]])
            );
        }
    }

    #[test]
    fn who_fails_is_named_and_nobody_waits() {
        let seats = Meeting::seats(3);
        let errors = each(&seats, |seat| {
            if seat.rank() == 1 {
                seat.fail("no power");
                seat.fail("another reason");
            }
            let first = seat.arrive().unwrap_err().to_string();
            assert_eq!(first, seat.share(&[]).unwrap_err().to_string());
            first
        });
        assert_eq!(errors, ["rank 1 of 3: no power"; 3]);
        seats[0].reset();
        assert!(
            each(&seats, |seat| seat.arrive().is_ok())
                .iter()
                .all(|ok| *ok)
        );
    }

    #[test]
    fn who_does_not_come_is_named() {
        let seats = Meeting::patient(3, Duration::from_millis(30));
        let errors = each(&seats[..2], |seat| seat.arrive().unwrap_err().to_string());
        for error in errors {
            assert!(
                error.starts_with("rank 2 of 3: the others waited"),
                "{error}"
            );
        }
        seats[0].reset();
        let errors = each(&seats[1..], |seat| seat.share(&[]).unwrap_err().to_string());
        for error in errors {
            assert!(error.starts_with("rank 0 of 3"), "{error}");
        }
    }
}
