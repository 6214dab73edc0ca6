//! Which core each thread of a team is on, and how a thread that waits gets a core for one that lost its own.
//!
//! When other processes want more cores than there are, the system makes one of our threads share its core. If it loses
//! the core in the middle of a chunk, the others wait for a whole slice of the scheduler (milliseconds), on a core that
//! would be free for it. So a thread that waits too long changes places with the one it waits for. Masks are only
//! narrowed for a moment: where threads may run stays as the user or the system set it.
#![allow(unsafe_code)]

use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

/// Not on a chunk.
const IDLE: u32 = u32::MAX;

/// Where one thread is.
#[repr(align(128))]
struct Place {
    /// The system's number of the thread; 0 while it must stay where it is.
    thread: AtomicI32,
    /// The core on which it took the chunk that it is working on.
    core: AtomicU32,
}

/// Where the threads of a team are.
pub(crate) struct Places {
    places: Vec<Place>,
    /// Somebody changes places: one at a time, or a mask that is narrow for a moment would be taken for the user's and
    /// restored for good.
    changing: AtomicBool,
}

impl Places {
    pub(crate) fn new(threads: usize) -> Places {
        let place = |_| Place {
            thread: AtomicI32::new(0),
            core: AtomicU32::new(IDLE),
        };
        Places {
            places: (0..threads).map(place).collect(),
            changing: AtomicBool::new(false),
        }
    }

    /// The calling thread is the team's number `own` from here on.
    pub(crate) fn enter(&self, own: usize) {
        self.places[own].thread.store(system::thread(), SeqCst);
    }

    /// It no longer is; nobody moves it after this returns.
    pub(crate) fn leave(&self, own: usize) {
        self.places[own].thread.store(0, SeqCst);
        while self.changing.load(SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Thread `own`, the caller, works on a chunk.
    pub(crate) fn begin(&self, own: usize) {
        self.places[own].core.store(system::core(), Relaxed);
    }

    /// It does no longer.
    pub(crate) fn end(&self, own: usize) {
        self.places[own].core.store(IDLE, Relaxed);
    }

    /// Thread `own`, the caller, which is not in the middle of a chunk, changes places with one that is and has
    /// probably lost its core: the first of the others.
    pub(crate) fn change(&self, own: usize) {
        if self.changing.swap(true, SeqCst) {
            return;
        }
        let here = system::core();
        let others = self.places.iter().enumerate().filter(|&(i, _)| i != own);
        for (_, place) in others {
            let (thread, core) = (place.thread.load(SeqCst), place.core.load(Relaxed));
            if core != IDLE && thread != 0 {
                system::change(thread, here);
                break;
            }
        }
        self.changing.store(false, SeqCst);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::mem::{size_of, zeroed};

    pub(super) fn thread() -> i32 {
        // SAFETY: a call without arguments.
        unsafe { libc::syscall(libc::SYS_gettid) as i32 }
    }

    pub(super) fn core() -> u32 {
        // SAFETY: a call without arguments; a refusal is -1, which reads as no core.
        unsafe { libc::sched_getcpu() as u32 }
    }

    fn mask(thread: i32) -> Option<libc::cpu_set_t> {
        // SAFETY: an empty set is zeroes, and the call writes no more than its size.
        unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            let size = size_of::<libc::cpu_set_t>();
            (libc::sched_getaffinity(thread, size, &mut set) == 0).then_some(set)
        }
    }

    /// Refusals change nothing but the speed.
    fn set(thread: i32, mask: &libc::cpu_set_t) {
        // SAFETY: the set is read only.
        unsafe {
            libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), mask);
        }
    }

    /// The other thread comes here, and the calling one goes elsewhere; each only where its mask allows it.
    pub(super) fn change(other: i32, here: u32) {
        let here = here as usize;
        let (Some(others), Some(own)) = (mask(other), mask(0)) else {
            return;
        };
        // SAFETY: `here` was given by the system, so it is inside the set; these write into our own sets.
        unsafe {
            if here >= libc::CPU_SETSIZE as usize
                || !libc::CPU_ISSET(here, &others)
                || libc::CPU_COUNT(&own) < 2
            {
                return;
            }
            let mut only: libc::cpu_set_t = zeroed();
            libc::CPU_SET(here, &mut only);
            set(other, &only);
            set(other, &others);
            let mut elsewhere = own;
            libc::CPU_CLR(here, &mut elsewhere);
            set(0, &elsewhere);
        }
        set(0, &own);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn thread() -> i32 {
        0
    }

    pub(super) fn core() -> u32 {
        0
    }

    pub(super) fn change(_: i32, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_as_before() {
        let threads = 3;
        let places = Places::new(threads);
        let before = allowed();
        let all = std::sync::Barrier::new(threads);
        let after: Vec<_> = std::thread::scope(|scope| {
            // Each works and changes places with the others at the same time, the worst that can be.
            let busy = |own| {
                let (places, all) = (&places, &all);
                scope.spawn(move || {
                    places.enter(own);
                    places.begin(own);
                    all.wait();
                    (0..2000).for_each(|_| places.change(own));
                    places.end(own);
                    places.leave(own);
                    allowed()
                })
            };
            let workers: Vec<_> = (0..threads).map(busy).collect();
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert_eq!(after, vec![before.clone(); threads]);
        assert_eq!(allowed(), before);
    }

    /// The line of the system that says where this thread may run.
    fn allowed() -> Option<String> {
        let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
        status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"))
            .map(str::to_string)
    }
}
