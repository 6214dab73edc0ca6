//! After a session is made nothing allocates on the host: a counting allocator proves it. A file of its own, because the
//! count is the process's. Without a GPU it says so and passes.

#[path = "../../welte-cpu/tests/common/mod.rs"]
mod common;

use common::{Config, Numbers, make, rows};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use welte_cuda::{Model, Options, Replay, Session, info};
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
    if let Err(error) = info(0) {
        eprintln!("skipped: {error}");
        return;
    }
    let (program, checkpoint) = make(&Config::small(1));
    let options = Options::default();
    let model = Model::load(Arc::new(program), &checkpoint, &options, &mut |_, _| {}).unwrap();
    let mut session = Session::new(&model).unwrap();
    session.set_replay(Replay::While).unwrap();
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
    for replay in [Replay::Eager, Replay::Graph, Replay::While] {
        for settings in [Sampling::default(), sampled] {
            session.set_replay(replay).unwrap();
            session.step(1, &prompt).unwrap();
            session.set_sampling(&settings, &[(1, 1.0)], &history);
            let token = session.sample(40).unwrap();
            let start = Row {
                token,
                position: 40,
                sequence: 0,
            };
            let mut all = |_| true;
            session.chain(start, 300, &[2], &cancel, &mut all).unwrap();
            session.step(2, &batch).unwrap();
        }
    }
    assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0);
}
