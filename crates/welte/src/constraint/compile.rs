//! Where constraints are compiled: on threads of their own with a large stack, a bounded number at a time, and only for a
//! while. Whatever a schema or grammar does to the compiler, the caller gets an error.

use super::{Constraint, Grammars, Matching, Progress};
use crate::devices::free_addresses;
use crate::{Error, Model};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::Builder;
use web_time::{Duration, Instant};

/// The compiler calls itself for the parts of a schema and for the rules of a grammar. [`super::measure`] bounds how often.
/// A thread takes only as much memory as it uses.
const STACK: usize = 256 << 20;
/// Addresses that a large stack leaves to the rest of the process.
const SPARE: u64 = 128 << 20;

/// How long a compilation may take. Builds for tests are slow, and so are their machines.
const PATIENCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 300 } else { 10 });

/// Compilations of the process.
static COMPILING: Workshop = Workshop::new(2, 64, PATIENCE);

/// Runs jobs on threads of their own. Late results are dropped, but a late job keeps its place until it ends.
struct Workshop {
    places: usize,
    most_waiting: usize,
    patience: Duration,
    jobs: Mutex<Jobs>,
    freed: Condvar,
}

struct Jobs {
    running: usize,
    waiting: usize,
}

/// Why a job has no result.
#[derive(Debug, PartialEq)]
enum Failed {
    /// Too many jobs wait.
    Full,
    Late,
    Panicked,
    NoThread(String),
}

/// A place of a running job.
struct Place(&'static Workshop);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.jobs().running -= 1;
        self.0.freed.notify_one();
    }
}

impl Workshop {
    const fn new(places: usize, most_waiting: usize, patience: Duration) -> Workshop {
        let jobs = Jobs {
            running: 0,
            waiting: 0,
        };
        Workshop {
            places,
            most_waiting,
            patience,
            jobs: Mutex::new(jobs),
            freed: Condvar::new(),
        }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place.
    fn place(&'static self, until: Instant) -> Result<Place, Failed> {
        let mut jobs = self.jobs();
        if jobs.running >= self.places && jobs.waiting >= self.most_waiting {
            return Err(Failed::Full);
        }
        jobs.waiting += 1;
        while jobs.running >= self.places {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                jobs.waiting -= 1;
                return Err(Failed::Full);
            }
            let waited = self.freed.wait_timeout(jobs, left);
            jobs = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        jobs.waiting -= 1;
        jobs.running += 1;
        Ok(Place(self))
    }

    fn run<T: Send + 'static>(
        &'static self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failed> {
        let place = self.place(Instant::now() + self.patience)?;
        let (send, receive) = mpsc::sync_channel(1);
        let work = move || {
            let done = catch_unwind(AssertUnwindSafe(job));
            // A late result may be large: it is gone before the next job begins.
            let _ = send.send(done);
            drop(send);
            drop(place);
        };
        let started = spawn("welte-compile", STACK, work);
        started.map_err(|error| Failed::NoThread(error.to_string()))?;
        match receive.recv_timeout(self.patience) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(Failed::Panicked),
            Err(_) => Err(Failed::Late),
        }
    }
}

/// Starts a thread with a large stack, unless too few addresses would be left.
pub(crate) fn spawn(
    name: &str,
    stack: usize,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if free_addresses().is_some_and(|free| free < stack as u64 + SPARE) {
        let problem = "the limit of the address space leaves no room for its stack";
        return Err(std::io::Error::new(ErrorKind::OutOfMemory, problem));
    }
    let thread = Builder::new().name(name.to_owned()).stack_size(stack);
    thread.spawn(work).map(drop)
}

/// Compiles a constraint, and finds what may come first.
pub(crate) fn compile(
    model: &Model,
    constraint: &Constraint,
    forces: bool,
) -> Result<(Matching, Progress), Error> {
    let kept = |grammars: &Grammars| grammars.kept(constraint, forces);
    if let Some(kept) = model.grammars().ok().and_then(kept) {
        return Ok(kept);
    }
    constraint.measure()?;
    // The vocabulary is prepared once, which may take longer than a constraint.
    model.grammars()?;
    let (model, compiled) = (model.clone(), constraint.clone());
    let job = move || -> Result<(Matching, Progress), Error> {
        let grammars = model.grammars()?;
        let mut matching = grammars.compile(&compiled, forces)?;
        let progress = matching.start();
        let progress = progress.map_err(|problem| compiled.refused(problem))?;
        grammars.keep(compiled, &matching, &progress);
        Ok((matching, progress))
    };
    COMPILING.run(job).unwrap_or_else(|failed| {
        Err(match failed {
            Failed::Full => Error::Busy {
                queue: COMPILING.most_waiting,
            },
            Failed::Late => {
                let most = COMPILING.patience.as_secs();
                constraint.refused(format!(
                    "it takes longer than {most} s to compile; simplify it"
                ))
            }
            Failed::Panicked => constraint.refused("the compiler fails on it; simplify it"),
            Failed::NoThread(why) => Error::Guidance {
                problem: format!("the compiler's thread cannot be started: {why}"),
            },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_job_keeps_its_place() {
        static SHOP: Workshop = Workshop::new(1, 0, Duration::from_millis(20));
        let (go, wait) = mpsc::channel::<()>();
        let late = SHOP.run(move || wait.recv().is_ok());
        assert_eq!(late, Err(Failed::Late));
        assert_eq!(SHOP.run(|| 3), Err(Failed::Full));
        go.send(()).unwrap();
        // The place is free once the thread has ended.
        let done = std::iter::repeat_with(|| SHOP.run(|| 3)).find(|done| done.is_ok());
        assert_eq!(done, Some(Ok(3)));
    }

    #[test]
    fn a_panic_is_an_error_and_frees_its_place() {
        static SHOP: Workshop = Workshop::new(1, 8, Duration::from_secs(600));
        for _ in 0..3 {
            let failed = SHOP.run(|| -> u32 { panic!("on purpose") });
            assert_eq!(failed, Err(Failed::Panicked));
        }
        assert_eq!(SHOP.run(|| 3), Ok(3));
    }

    #[test]
    fn jobs_have_a_large_stack() {
        fn deep(n: usize) -> usize {
            let frame = std::hint::black_box([n; 128]);
            if n == 0 {
                0
            } else {
                frame[5] - n + 1 + deep(n - 1)
            }
        }
        static SHOP: Workshop = Workshop::new(1, 8, Duration::from_secs(600));
        assert_eq!(SHOP.run(|| deep(50_000)), Ok(50_000));
    }
}
