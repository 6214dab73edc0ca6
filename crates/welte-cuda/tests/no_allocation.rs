//! After a context is made nothing allocates on the host: a counting allocator proves it. A file of its own, because the
//! count is the process's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use welte_conformance::made::Numbers;
use welte_conformance::{model, program};
use welte_device::{
    ChainStart, Choice, Context, Control, DeviceOptions, Replay, ReplayTools, Role, SlotState,
    Step, StepOptions,
};
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
#[ignore = "needs a GPU"]
fn replay_allocates_nothing() {
    let (program, checkpoint) = program::make(&model::Model::small(1));
    let device = welte_cuda::CudaDevice::open(0, &DeviceOptions::default()).unwrap();
    let loaded = device.load_program(Arc::new(program), &checkpoint).unwrap();
    let mut context = loaded.cuda_context().unwrap();
    context.set_replay(Replay::Loop).unwrap();
    let mut n = Numbers(1);
    let mut row = |position, slot| Row::new(n.below(101), position, slot);
    let rows: Vec<Row> = (0..40).map(|position| row(position, 0)).collect();
    let batch: Vec<Row> = (0..3).map(|slot| row(40, slot)).collect();
    let prompt = Step::of(Role::Prompt, &rows, &[7, 39]);
    let decode = Step::of(Role::Generated, &batch, &[]);
    let sampled = Sampling {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        min_p: 0.01,
        repeat_penalty: 1.1,
        ..Sampling::default()
    };
    let history: Vec<u32> = rows.iter().map(|r| r.token()).collect();
    let control = Control::default();
    let before = COUNT.load(Ordering::Relaxed);
    for replay in [Replay::Launches, Replay::Graph, Replay::Loop] {
        for sampling in [Sampling::default(), sampled] {
            context.set_replay(replay).unwrap();
            context.set_pages(0, 1, 0, &[5, 4, 3]).unwrap();
            context.copy_page(0, 5, 6).unwrap();
            context.step(&prompt, StepOptions::default()).unwrap();
            let state = SlotState {
                sampling,
                bias: &[(1, 1.0)],
                history: &history,
                ends: &[2],
                ..SlotState::default()
            };
            context.set_slot(0, &state).unwrap();
            let pick = Choice {
                output: 1,
                slot: 0,
                position: 40,
                draft: None,
            };
            let mut token = [0];
            context.sample(&[pick], &mut token).unwrap();
            let start = ChainStart {
                slot: 0,
                token: token[0],
                position: 40,
                steps: 300,
                shift: 0,
            };
            context.chain(&[start], &control, &mut |_| true).unwrap();
            context.step(&decode, StepOptions::default()).unwrap();
        }
    }
    assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0);
}
