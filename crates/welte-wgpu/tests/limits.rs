//! Adapters that have less: small bindings, which cut matrices into pieces, and too little for a program.

use std::sync::Arc;
use welte_device::conformance::made::Made;
use welte_device::conformance::model::Model;
use welte_device::conformance::program::make;
use welte_device::{Device, DeviceOptions, Error};
use welte_table::{Format, PassKind, Program, Row, legalize};
use welte_wgpu::{Api, device_of_bindings};

/// A device whose bindings have at most so many bytes. None on a machine without an adapter, unless `WELTE_GPU_REQUIRED` is set.
fn of_bindings(most: u64) -> Option<Arc<dyn Device>> {
    match device_of_bindings(Api::Gpu, 0, &DeviceOptions::default(), most) {
        Ok(device) => Some(device),
        Err(why) if std::env::var_os("WELTE_GPU_REQUIRED").is_none() => {
            eprintln!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Its output matrix takes a megabyte.
fn with_long_vocabulary(format: Format) -> Model {
    Model {
        format,
        dim: 256,
        vocab: 6001,
        ..Model::small(7)
    }
}

/// The logits of a prompt's last row and of the step after it.
fn logits(device: &dyn Device, mut program: Program, made: &Made) -> Vec<f32> {
    assert_eq!(device.missing(&program), None);
    legalize(&mut program, &|command| device.supports(command)).expect("a program for the device");
    let of = |kind| program.pass(kind).expect("the pass");
    let (prompt, decode) = (of(PassKind::Prompt), of(PassKind::Decode));
    let plan = device.plan(Arc::new(program)).expect("a plan");
    let loaded = device.load(plan, made, &mut |_| ()).expect("loaded");
    let mut context = loaded.context().expect("a context");
    let row = |position| Row {
        token: 40 * position + 1,
        position,
        slot: 0,
    };
    let rows: Vec<Row> = (0..20).map(row).collect();
    let mut all = context.step(prompt, &rows, &[19]).expect("a step").to_vec();
    let next = context.step(decode, &[row(20)], &[]).expect("a step");
    all.extend_from_slice(next);
    all
}

#[test]
fn a_matrix_larger_than_a_binding_is_cut_without_a_trace() {
    for format in [Format::F32, Format::Q8_0, Format::Q4_0] {
        let (Some(cut), Some(whole)) = (of_bindings(700_000), of_bindings(u64::MAX)) else {
            return;
        };
        let model = with_long_vocabulary(format);
        let (program, made) = make(&model);
        let largest = program.weights.iter().filter_map(|w| {
            let row = w.format.bytes(w.k as usize)?;
            Some(row * w.n as usize)
        });
        assert!(largest.max().unwrap_or(0) > 700_000, "nothing is cut");
        let (got, want) = (
            logits(&*cut, program.clone(), &made),
            logits(&*whole, program, &made),
        );
        assert_eq!(got.len(), 2 * 6001);
        // The order of every sum is the same.
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(&got) == bits(&want), "{}", format.name());
        assert!(got.iter().any(|value| *value != 0.0));
    }
}

#[test]
fn a_program_that_needs_more_is_refused_with_both_sizes() {
    let Some(device) = of_bindings(60_000) else {
        return;
    };
    let (program, _) = make(&with_long_vocabulary(Format::F32));
    let missing = device.missing(&program).expect("it lacks something");
    assert!(missing.starts_with("intermediates of "), "{missing}");
    assert!(missing.contains("binds at most 58.6 KiB"), "{missing}");
    let error = device.plan(Arc::new(program)).err();
    let Some(Error::Program { why, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*why, missing);
}
