//! Counts allocations while a model runs. A test program that uses it has one test only, because allocations of other
//! tests would be counted too.
#![allow(unsafe_code)]

use super::common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use welte::DeviceChoice;

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ON.load(Ordering::Relaxed) {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` returns, and how often the process allocates meanwhile.
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> (T, usize) {
    COUNT.store(0, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    let result = work();
    ON.store(false, Ordering::Relaxed);
    (result, COUNT.load(Ordering::Relaxed))
}

/// A stepper on this device allocates nothing, whatever it does.
#[allow(dead_code)]
pub(crate) fn allocates_nothing(device: DeviceChoice) {
    let model = tiny(device);
    let mut stepper = model.stepper().unwrap();
    let tokens = prompt(100, &model);
    for sampling in [welte::Sampling::default(), sampled(5)] {
        stepper.clear();
        let (results, allocated) = count(|| {
            let fed = stepper.feed(&tokens[..99]).map(<[f32]>::len);
            let done = stepper
                .set_sampling(&sampling, &[(3, 1.5)], &[])
                .and_then(|()| stepper.sample())
                .and_then(|first| stepper.chain(first, 32, &mut |_| true));
            (fed, done, stepper.score(&tokens[..20], &mut |_, _| ()))
        });
        assert_eq!(results.0.unwrap(), model.vocab() as usize);
        assert_eq!(results.1.unwrap(), 32);
        results.2.unwrap();
        assert_eq!(allocated, 0);
    }
}
