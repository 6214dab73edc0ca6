//! Which core each thread of a team runs on, and how a waiting thread helps one that lost its core.
//!
//! If other processes need cores, the system lets one of our threads share its core. If that thread is descheduled within a
//! chunk, the others wait for a scheduler slice (milliseconds) while their own cores idle. So a thread that waits too long
//! swaps cores with the one that it waits for. Affinity masks are narrowed only for the swap and then restored.
#![allow(unsafe_code)]

use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

/// Not within a chunk.
const IDLE: u32 = u32::MAX;

/// The core of one thread.
#[repr(align(128))]
struct ThreadCore {
    /// The system's thread id; 0 while the thread must not be moved.
    thread: AtomicI32,
    /// The core on which it began its chunk.
    core: AtomicU32,
}

/// The cores of the threads of a team.
pub(crate) struct Cores {
    threads: Vec<ThreadCore>,
    /// A swap is in progress. Only one may be: another would save the narrowed mask and restore it for good.
    swapping: AtomicBool,
}

impl Cores {
    pub(crate) fn new(threads: usize) -> Cores {
        let thread = |_| ThreadCore {
            thread: AtomicI32::new(0),
            core: AtomicU32::new(IDLE),
        };
        Cores {
            threads: (0..threads).map(thread).collect(),
            swapping: AtomicBool::new(false),
        }
    }

    /// Registers the calling thread as number `own` of the team.
    pub(crate) fn enter(&self, own: usize) {
        self.threads[own].thread.store(system::thread(), SeqCst);
    }

    /// Removes it. No other thread moves it after this returns.
    pub(crate) fn leave(&self, own: usize) {
        self.threads[own].thread.store(0, SeqCst);
        while self.swapping.load(SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Thread `own`, the caller, begins a chunk.
    pub(crate) fn begin(&self, own: usize) {
        self.threads[own].core.store(system::core(), Relaxed);
    }

    /// It has ended its chunk.
    pub(crate) fn end(&self, own: usize) {
        self.threads[own].core.store(IDLE, Relaxed);
    }

    /// Thread `own`, the caller, is not within a chunk. It swaps cores with the first other thread that is: that one has
    /// probably lost its core.
    pub(crate) fn swap(&self, own: usize) {
        if self.swapping.swap(true, SeqCst) {
            return;
        }
        let here = system::core();
        let others = self.threads.iter().enumerate().filter(|&(i, _)| i != own);
        for (_, other) in others {
            let (thread, core) = (other.thread.load(SeqCst), other.core.load(Relaxed));
            if core != IDLE && thread != 0 {
                system::swap(thread, here);
                break;
            }
        }
        self.swapping.store(false, SeqCst);
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

    /// A refusal affects only speed.
    fn set(thread: i32, mask: &libc::cpu_set_t) {
        // SAFETY: the set is read only.
        unsafe {
            libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), mask);
        }
    }

    /// Moves the other thread here and the calling one elsewhere, as far as their masks allow.
    pub(super) fn swap(other: i32, here: u32) {
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

    pub(super) fn swap(_: i32, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_as_before() {
        let threads = 3;
        let cores = Cores::new(threads);
        let before = allowed();
        let all = std::sync::Barrier::new(threads);
        let after: Vec<_> = std::thread::scope(|scope| {
            // All threads work and swap at the same time: the worst case.
            let busy = |own| {
                let (cores, all) = (&cores, &all);
                scope.spawn(move || {
                    cores.enter(own);
                    cores.begin(own);
                    all.wait();
                    (0..2000).for_each(|_| cores.swap(own));
                    cores.end(own);
                    cores.leave(own);
                    allowed()
                })
            };
            let workers: Vec<_> = (0..threads).map(busy).collect();
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert_eq!(after, vec![before.clone(); threads]);
        assert_eq!(allowed(), before);
    }

    /// The cores that this thread may use, as the system prints them.
    fn allowed() -> Option<String> {
        let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
        status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"))
            .map(str::to_string)
    }
}
