//! Memory that several callers share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that callers hold together at most. They get them in turn, so a caller who wants many is not passed by.
pub(crate) struct Budget {
    turn: Mutex<()>,
    free: Mutex<u64>,
    given_back: Condvar,
    all: u64,
}

/// Bytes of a budget, until it is dropped.
pub(crate) struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(all: u64) -> Budget {
        Budget {
            turn: Mutex::default(),
            free: Mutex::new(all),
            given_back: Condvar::new(),
            all,
        }
    }

    fn free(&self) -> MutexGuard<'_, u64> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for bytes: all of them for a caller who wants more than there are.
    pub(crate) fn take(&self, bytes: u64) -> Share<'_> {
        let bytes = bytes.min(self.all);
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.free();
        let free = self.given_back.wait_while(free, |free| *free < bytes);
        *free.unwrap_or_else(PoisonError::into_inner) -= bytes;
        Share {
            budget: self,
            bytes,
        }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.budget.free() += self.bytes;
        self.budget.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn no_more_is_held_than_there_is() {
        let (budget, held, most) = (Budget::new(100), AtomicU64::new(0), AtomicU64::new(0));
        let work = |bytes: u64| {
            for _ in 0..50 {
                let _share = budget.take(bytes);
                let bytes = bytes.min(100);
                most.fetch_max(held.fetch_add(bytes, SeqCst) + bytes, SeqCst);
                std::thread::yield_now();
                held.fetch_sub(bytes, SeqCst);
            }
        };
        std::thread::scope(|scope| {
            for bytes in [60, 30, 45, 1000] {
                let work = &work;
                scope.spawn(move || work(bytes));
            }
        });
        assert_eq!(most.into_inner(), 100);
        assert_eq!(*budget.free(), 100);
    }
}
