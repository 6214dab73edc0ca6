//! After load, prompts and decoding with experts on another device allocate nothing, if neither device does.

#[path = "common/allocations.rs"]
mod allocations;
mod common;

use std::sync::Arc;
use welte::{ChainStart, DeviceId, DeviceOptions};
use welte_device::{Choice, Control, Role, SlotState, Step, StepOptions};
use welte_models::CompileOptions;
use welte_table::Row;

#[test]
fn prefill_and_decode_with_experts_elsewhere_allocate_nothing() {
    let cpu = || {
        let options = common::with(DeviceOptions::default(), |o| o.threads = Some(2));
        welte::open_device(DeviceId::only("cpu"), &options).unwrap()
    };
    let device = welte_split::device(cpu(), cpu(), u32::MAX);
    let checkpoint = welte::open("synthetic:custom,arch=qwen3moe,layers=3:q8_0").unwrap();
    let spec = welte_models::spec(checkpoint.as_ref()).unwrap();
    let compile = CompileOptions {
        context: 128,
        slots: 2,
        prompt_rows: 32,
        ..CompileOptions::default()
    };
    let program = welte_table::fuse(
        welte_models::compile(&spec, checkpoint.as_ref(), &compile).unwrap(),
        welte_table::PATTERNS,
    );
    let plan = device.plan(Arc::new(program)).unwrap();
    let loaded = device.load(plan, checkpoint.as_ref(), &mut |_| ()).unwrap();
    let mut context = loaded.context().unwrap();
    let row = |position| Row::new(7 * position, position, 0);
    let rows: Vec<Row> = (0..30).map(row).collect();
    let start = |slot, position| ChainStart {
        slot,
        token: 5,
        position,
        steps: 20,
        shift: 0,
    };
    let prompt = Step::of(Role::Prompt, &rows, &[29]);
    let pick = Choice {
        output: 0,
        slot: 0,
        position: 30,
        draft: None,
    };
    let (mut made, mut token, control) = (0, [0], Control::default());
    let (done, allocated) = allocations::count(|| {
        for slot in 0..2 {
            let state = SlotState {
                sampling: common::sampled(3),
                logprobs: Some(2),
                ..SlotState::default()
            };
            context.set_slot(slot, &state)?;
        }
        context.step(&prompt, StepOptions::default())?;
        context.sample(&[pick], &mut token)?;
        context.chain(&[start(0, 30), start(1, 0)], &control, &mut |emitted| {
            made += usize::from(emitted.logprobs.is_some());
            true
        })
    });
    done.unwrap();
    assert_eq!((made, allocated), (40, 0));
}
