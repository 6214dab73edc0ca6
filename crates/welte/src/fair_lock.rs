//! A lock that callers get in the order in which they ask for it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use web_time::Duration;

/// How often a caller who waits may think better of it.
const RETHINK: Duration = Duration::from_millis(20);

/// A value that one caller has at a time. Unlike a mutex it is never given to the caller who had it last while others wait.
pub(crate) struct FairLock<T> {
    line: Mutex<Line>,
    moved: Condvar,
    value: Mutex<T>,
}

#[derive(Default)]
struct Line {
    /// The caller who has the value, and those who wait for it.
    waiting: VecDeque<u64>,
    next: u64,
}

/// The value, until it is dropped.
pub(crate) struct FairGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _place: Place<'a, T>,
}

/// A place in the line, which is left when it is dropped.
struct Place<'a, T> {
    lock: &'a FairLock<T>,
    number: u64,
}

impl<T> FairLock<T> {
    pub(crate) fn new(value: T) -> FairLock<T> {
        FairLock {
            line: Mutex::default(),
            moved: Condvar::new(),
            value: Mutex::new(value),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the value; `None` if `waits` says that the caller no longer does.
    pub(crate) fn take(&self, waits: &mut dyn FnMut() -> bool) -> Option<FairGuard<'_, T>> {
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.waiting.push_back(number);
        let place = Place { lock: self, number };
        while line.waiting.front() != Some(&number) {
            let woken = self.moved.wait_timeout(line, RETHINK);
            let (still, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            line = still;
            if timeout.timed_out() {
                drop(line);
                if !waits() {
                    return None;
                }
                line = self.line();
            }
        }
        drop(line);
        Some(FairGuard {
            value: self.value.lock().unwrap_or_else(PoisonError::into_inner),
            _place: place,
        })
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        let mut line = self.lock.line();
        line.waiting.retain(|number| *number != self.number);
        drop(line);
        self.lock.moved.notify_all();
    }
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn callers_come_in_order_and_waiters_may_leave() {
        let lock = Arc::new(FairLock::new(Vec::new()));
        let first = lock.take(&mut || true).unwrap();
        let waiting = |count| {
            while lock.line().waiting.len() < count {
                std::thread::yield_now();
            }
        };
        let gone = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for number in 0..3 {
            let (lock, gone) = (lock.clone(), gone.clone());
            threads.push(std::thread::spawn(move || {
                let mut waits = || number != 1 || !gone.load(Ordering::Relaxed);
                match lock.take(&mut waits) {
                    Some(mut turn) => turn.push(number),
                    None => assert_eq!(number, 1),
                }
            }));
            waiting(number + 2);
        }
        gone.store(true, Ordering::Relaxed);
        threads.remove(1).join().unwrap();
        drop(first);
        // Whoever asks now comes after those who wait.
        lock.take(&mut || true).unwrap().push(9);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.take(&mut || true).unwrap(), [0, 2, 9]);
    }
}
