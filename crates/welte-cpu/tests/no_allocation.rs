//! After a session is made nothing allocates: a counting allocator proves it. A file of its own, because the count is
//! the process's.

mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use welte_table::{Row, Sampling};

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn replay_allocates_nothing() {
    let (program, checkpoint) = make(&Config::small(1));
    let mut session = load(&program, &checkpoint, &options(3));
    let prompt = rows(&mut Numbers(1), 101, 0, 40, 0);
    let batch: Vec<Row> = (0..3)
        .flat_map(|s| rows(&mut Numbers(2), 101, 40, 1, s))
        .collect();
    let sampled = Sampling {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        min_p: 0.01,
        repeat_penalty: 1.1,
        ..Sampling::default()
    };
    let history: Vec<u32> = prompt.iter().map(|r| r.token).collect();
    let cancel = AtomicBool::new(false);
    let before = COUNT.load(Ordering::Relaxed);
    for settings in [Sampling::default(), sampled] {
        session.step(1, &prompt).unwrap();
        session.set_sampling(&settings, &[(1, 1.0)], &history);
        let token = session.sample(40);
        let start = Row {
            token,
            position: 40,
            sequence: 0,
        };
        session
            .chain(start, 300, &[], &cancel, &mut |_| true)
            .unwrap();
        session.step(2, &batch).unwrap();
    }
    assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0);
}
