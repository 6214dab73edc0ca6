//! Which core each thread of a team runs on, and how a waiting thread helps one that lost its core.
//!
//! If other processes need cores, the system lets one of our threads share its core. If that thread is descheduled within a
//! chunk, the others wait for a scheduler slice (milliseconds) while their own cores idle. So a thread that waits too long
//! swaps cores with the one that it waits for. Affinity masks are narrowed only for the swap and then restored.
#![allow(unsafe_code)]

use crate::machine::Place;
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
    /// By thread: the processors that it is bound to, if it is.
    masks: Vec<Option<system::Mask>>,
    /// A swap is in progress. Only one may be: another would save the narrowed mask and restore it for good.
    swapping: AtomicBool,
}

impl Cores {
    pub(crate) fn new(places: &[Place]) -> Cores {
        let thread = |_| ThreadCore {
            thread: AtomicI32::new(0),
            core: AtomicU32::new(IDLE),
        };
        Cores {
            threads: (0..places.len()).map(thread).collect(),
            masks: places
                .iter()
                .map(|place| system::mask_of(&place.cpus))
                .collect(),
            swapping: AtomicBool::new(false),
        }
    }

    /// Binds the calling thread, number `own` of the team, for good.
    pub(crate) fn settle(&self, own: usize) {
        if let Some(mask) = &self.masks[own] {
            system::set(0, mask);
        }
    }

    /// Binds the calling thread as the first of the team until the result is dropped: it belongs to the caller, and threads
    /// that it starts have its mask.
    pub(crate) fn bind(&self) -> Option<Bound> {
        let mask = self.masks[0].as_ref()?;
        let before = system::mask(0)?;
        system::set(0, mask);
        Some(Bound(before))
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

/// The affinity mask that a thread had before it was bound.
pub(crate) struct Bound(system::Mask);

impl Drop for Bound {
    fn drop(&mut self) {
        system::set(0, &self.0);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::mem::{size_of, zeroed};

    pub(super) type Mask = libc::cpu_set_t;

    /// The mask of these processors; `None` if there are none, or one that masks of this size do not have.
    pub(super) fn mask_of(cpus: &[usize]) -> Option<Mask> {
        let fits = |cpu: &usize| *cpu < libc::CPU_SETSIZE as usize;
        if cpus.is_empty() || !cpus.iter().all(fits) {
            return None;
        }
        // SAFETY: an empty set is zeroes, and every number lies inside it.
        unsafe {
            let mut set: Mask = zeroed();
            cpus.iter().for_each(|cpu| libc::CPU_SET(*cpu, &mut set));
            Some(set)
        }
    }

    pub(super) fn thread() -> i32 {
        // SAFETY: a call without arguments.
        unsafe { libc::syscall(libc::SYS_gettid) as i32 }
    }

    pub(super) fn core() -> u32 {
        // SAFETY: a call without arguments; a refusal is -1, which reads as no core.
        unsafe { libc::sched_getcpu() as u32 }
    }

    pub(super) fn mask(thread: i32) -> Option<Mask> {
        // SAFETY: an empty set is zeroes, and the call writes no more than its size.
        unsafe {
            let mut set: Mask = zeroed();
            let size = size_of::<Mask>();
            (libc::sched_getaffinity(thread, size, &mut set) == 0).then_some(set)
        }
    }

    /// A refusal affects only speed.
    pub(super) fn set(thread: i32, mask: &Mask) {
        // SAFETY: the set is read only.
        unsafe {
            libc::sched_setaffinity(thread, size_of::<Mask>(), mask);
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
            let mut only: Mask = zeroed();
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
    /// There are no masks.
    pub(super) enum Mask {}

    pub(super) fn mask_of(_: &[usize]) -> Option<Mask> {
        None
    }

    pub(super) fn mask(_: i32) -> Option<Mask> {
        None
    }

    pub(super) fn set(_: i32, mask: &Mask) {
        match *mask {}
    }

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
        let cores = Cores::new(&vec![Place::default(); threads]);
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

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_bound_for_a_step() {
        let before = allowed();
        let own = system::core() as usize;
        let cores = Cores::new(&[Place {
            cpus: vec![own],
            node: 0,
        }]);
        let bound = cores.bind();
        let within = allowed().unwrap();
        drop(bound);
        assert_eq!(allowed(), before);
        // The mask is printed in hexadecimal words.
        let digits: String = within
            .chars()
            .skip_while(|c| *c != '\t')
            .filter(|c| c.is_ascii_hexdigit())
            .collect();
        assert_eq!(u128::from_str_radix(&digits, 16), Ok(1 << own));
        assert!(Cores::new(&[Place::default()]).bind().is_none());
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
