//! Which core each thread of a team is on, and how a thread that waits gets a core for one that lost its own.
//!
//! When other processes want more cores than there are, the system makes one of our threads share its core. If it loses
//! the core in the middle of a chunk, the others wait for a whole slice of the scheduler (milliseconds), on a core that
//! would be free for it. So a thread that waits too long changes places with the one it waits for. Masks are only
//! narrowed for a moment: where threads may run stays as the user or the system set it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

/// Not on a chunk.
const IDLE: u32 = u32::MAX;

/// Where one thread is.
#[repr(align(128))]
pub(crate) struct Place {
    /// The system's number of the thread; 0 if it has none (yet).
    thread: AtomicI32,
    /// The core on which it took the chunk that it is working on.
    core: AtomicU32,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place {
            thread: AtomicI32::new(0),
            core: AtomicU32::new(IDLE),
        }
    }

    /// The calling thread lives here.
    pub(crate) fn enter(&self) {
        self.thread.store(system::thread(), Relaxed);
    }

    /// The calling thread works on a chunk.
    pub(crate) fn begin(&self) {
        self.core.store(system::core(), Relaxed);
    }

    /// It does no longer.
    pub(crate) fn end(&self) {
        self.core.store(IDLE, Relaxed);
    }
}

/// The calling thread, which is not in the middle of a chunk, changes places with one that is and has probably lost
/// its core: the first of the others that took a chunk on another core, or shares this one.
pub(crate) fn change(places: &[Place], own: usize) {
    let here = system::core();
    for (i, place) in places.iter().enumerate() {
        let (thread, core) = (place.thread.load(Relaxed), place.core.load(Relaxed));
        if i != own && core != IDLE && thread != 0 {
            system::change(thread, here);
            return;
        }
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
        let places = [Place::new(), Place::new()];
        let before = allowed();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                places[1].enter();
                places[1].begin();
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
                allowed()
            });
            while places[1].core.load(Relaxed) == IDLE {
                std::thread::yield_now();
            }
            places[0].enter();
            (0..20).for_each(|_| change(&places, 0));
            stop.store(true, Relaxed);
            assert_eq!(other.join().ok(), Some(before.clone()));
        });
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
