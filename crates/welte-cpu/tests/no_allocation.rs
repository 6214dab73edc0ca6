//! After a context is made nothing allocates: a counting allocator proves it. A file of its own, because the count is
//! the process's.

mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use welte_device::{ChainStart, Choice, Control, Role, SlotState, Step, StepOptions};
use welte_table::Sampling;

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
    let model = Model::new("tiny:q4_0", &options());
    let mut context = model.context(&*cpu(3, None));
    let first = rows(&model, 0, 0, 40);
    let batch: Vec<_> = (0..3).flat_map(|slot| rows(&model, slot, 40, 1)).collect();
    let (embed, prompt) = (
        Step::of(Role::Text, &first, &[3, 39]),
        Step::of(Role::Prompt, &first, &[39]),
    );
    let decode = Step::of(Role::Generated, &batch, &[]);
    let choosing = Step::choosing(&batch);
    let sampled = Sampling {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        min_p: 0.01,
        repeat_penalty: 1.1,
        ..Sampling::default()
    };
    let history: Vec<u32> = first.iter().map(|row| row.token()).collect();
    let control = Control::default();
    let before = COUNT.load(Ordering::Relaxed);
    for sampling in [Sampling::default(), sampled] {
        let state = SlotState {
            sampling,
            bias: &[(1, 1.0); SlotState::MOST_BIASES],
            history: &history,
            ends: &[u32::MAX; SlotState::MOST_ENDS],
            ..SlotState::default()
        };
        (0..3).for_each(|slot| context.set_slot(slot, &state).unwrap());
        context.step(&embed, StepOptions::default()).unwrap();
        context.step(&prompt, StepOptions::default()).unwrap();
        let pick = Choice {
            output: 0,
            slot: 0,
            position: 40,
            draft: None,
        };
        let mut token = [0];
        context.sample(&[pick], &mut token).unwrap();
        context.step(&decode, StepOptions::default()).unwrap();
        let mut tokens = [0; 3];
        let options = StepOptions::tokens(&mut tokens);
        context.step(&choosing, options).unwrap();
        let start = |slot: u32| ChainStart {
            slot,
            token: token[0],
            position: 41,
            steps: 100,
            shift: 0,
        };
        let starts = [start(0), start(1), start(2)];
        context.chain(&starts, &control, &mut |_| true).unwrap();
        context
            .chain(&starts[1..2], &control, &mut |_| true)
            .unwrap();
        context.set_pages(0, 1, 0, &[5, 6]).unwrap();
        context.copy_page(0, 5, 7).unwrap();
    }
    assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0);
}
