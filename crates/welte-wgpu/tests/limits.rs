//! Adapters that have less: small bindings, which cut matrices into pieces, too little for a program, and no products of packed
//! integers.

use std::sync::Arc;
use welte_conformance::made::Made;
use welte_conformance::model::{Layer, Model};
use welte_conformance::program::make;
use welte_device::{Context, Device, DeviceOptions, Error};
use welte_table::{Class, Format, PassKind, Program, Row, fuse};
use welte_wgpu::{Abilities, Api, device_with};

/// A device whose bindings have at most `most` bytes. None on a machine without an adapter, unless `WELTE_GPU_REQUIRED` is set.
fn of_bindings(most: u64) -> Option<Arc<dyn Device>> {
    let abilities = Abilities {
        binding: most,
        ..Abilities::ALL
    };
    with(abilities)
}

fn with(abilities: Abilities) -> Option<Arc<dyn Device>> {
    match device_with(Api::Gpu, 0, &DeviceOptions::default(), abilities) {
        Ok(device) => Some(device),
        Err(why) if std::env::var_os("WELTE_GPU_REQUIRED").is_none() => {
            eprintln!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Its output matrix takes 1.7 MB and more.
fn with_long_vocabulary(format: Format) -> Model {
    Model {
        format,
        dim: 512,
        vocab: 6001,
        ..Model::small(7)
    }
}

/// Its vectors of 9,216 elements exceed what any adapter keeps in workgroup memory at once.
fn with_long_vectors(format: Format) -> Model {
    let mut model = with_long_vocabulary(format);
    for layer in &mut model.layers {
        if let Layer::Dense(dense) = layer {
            dense.hidden = 9216;
        }
    }
    model
}

/// A context of a program.
fn context(device: &dyn Device, program: Program, made: &Made) -> Box<dyn Context> {
    assert_eq!(device.missing(&program), None);
    let program = fuse(program, device.patterns());
    let plan = device.plan(Arc::new(program)).expect("a plan");
    let loaded = device.load(plan, made, &mut |_| ()).expect("loaded");
    loaded.context().expect("a context")
}

/// The logits of a prompt's last row and of a step of two rows after it.
fn logits(device: &dyn Device, program: Program, made: &Made) -> Vec<f32> {
    let mut context = context(device, program, made);
    let of = |kind| context.program().pass(kind).expect("the pass");
    let (prompt, decode) = (of(PassKind::Prompt), of(PassKind::Decode));
    let row = |position| Row::new(40 * position + 1, position, 0);
    let rows: Vec<Row> = (0..20).map(row).collect();
    let mut all = context
        .step_rows(prompt, &rows, &[19])
        .expect("a step")
        .to_vec();
    let next = [row(20), row(21)];
    let next = context.step_rows(decode, &next, &[]).expect("a step");
    all.extend_from_slice(next);
    all
}

#[test]
fn a_matrix_larger_than_a_binding_is_cut_without_a_trace() {
    for format in [Format::F32, Format::Q8_0, Format::Q4_0] {
        let (Some(cut), Some(whole)) = (of_bindings(1_200_000), of_bindings(u64::MAX)) else {
            return;
        };
        let model = with_long_vocabulary(format);
        let (program, made) = make(&model);
        let largest = program.weights.iter().filter_map(|w| {
            let row = w.format.bytes(w.k as usize)?;
            Some(row * w.n as usize)
        });
        assert!(largest.max().unwrap_or(0) > 1_200_000, "nothing is cut");
        let (got, want) = (
            logits(&*cut, program.clone(), &made),
            logits(&*whole, program, &made),
        );
        assert_eq!(got.len(), 3 * 6001);
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

#[test]
fn vectors_are_floats_without_products_of_packed_integers() {
    let without = Abilities {
        packed: false,
        ..Abilities::ALL
    };
    let (Some(floats), Some(packed)) = (with(without), with(Abilities::ALL)) else {
        return;
    };
    let packed_formats = [
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
    ];
    for format in packed_formats {
        let (program, made) = make(&with_long_vocabulary(format));
        let got = logits(&*floats, program.clone(), &made);
        let rounded = logits(&*packed, program, &made);
        let largest = got.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let off = got.iter().zip(&rounded).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0f32, f32::max) / largest;
        assert!(off > 0.0, "{}: nothing was rounded", format.name());
        assert!(off < 0.04, "{}: off by {off}", format.name());
    }
}

#[test]
fn products_laid_out_for_software_are_the_same() {
    let laid_out = |barriers| {
        with(Abilities {
            barriers: Some(barriers),
            ..Abilities::ALL
        })
    };
    let (Some(software), Some(hardware)) = (laid_out(false), laid_out(true)) else {
        return;
    };
    let models = [
        with_long_vocabulary(Format::Q8_0),
        with_long_vocabulary(Format::Q4_K),
        with_long_vectors(Format::F32),
        with_long_vectors(Format::BF16),
    ];
    for model in models {
        let format = model.format;
        let (program, made) = make(&model);
        let got = logits(&*software, program.clone(), &made);
        let want = logits(&*hardware, program, &made);
        let largest = want.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        // Other orders of sums may round an activation to the other side.
        let most = if format.is_quantised() { 0.02 } else { 1e-5 };
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0f32, f32::max) / largest;
        assert!(off < most, "{}: off by {off}", format.name());
    }
}

/// The programs of the suite end with a softcap, which must not make numbers of such logits.
#[test]
fn a_nan_in_the_cache_reaches_every_logit() {
    let Some(device) = with(Abilities::ALL) else {
        return;
    };
    let model = Model {
        format: Format::Q8_0,
        ..Model::small(7)
    };
    let (program, made) = make(&model);
    let mut context = context(&*device, program, &made);
    let program = context.program().clone();
    let row = |position| Row::new(3, position, 0);
    let rows: Vec<Row> = (20..25).map(row).collect();
    for (byte, nans) in [(0xff, true), (0, false)] {
        for (id, spec) in program.buffers.iter().enumerate() {
            if spec.class == Class::Cache {
                let bytes = vec![byte; spec.bytes as usize];
                let written = context.write_buffer(id as u32, &bytes);
                written.expect("a known buffer");
            }
        }
        for (kind, rows, outputs) in [
            (PassKind::Prompt, &rows[..], &[4][..]),
            (PassKind::Decode, &rows[..1], &[]),
            (PassKind::Decode, &rows[..], &[]),
        ] {
            let pass = program.pass(kind).expect("the pass");
            let logits = context.step_rows(pass, rows, outputs).expect("a step");
            assert!(!logits.is_empty());
            let all = logits.iter().all(|logit| logit.is_nan() == nans);
            assert!(all, "{kind:?}, {} rows, cache of {byte:#x}", rows.len());
        }
    }
}

/// Rows of 17 and 20 floats end within a unit of eight.
#[test]
fn a_row_of_nan_leaves_the_row_before_it_alone() {
    let on_hardware = Abilities {
        barriers: Some(true),
        ..Abilities::ALL
    };
    for (abilities, dim) in [(on_hardware, 17), (on_hardware, 20), (Abilities::ALL, 20)] {
        let Some(device) = with(abilities) else {
            return;
        };
        let model = Model {
            format: Format::F32,
            dim,
            ..Model::small(7)
        };
        let (program, made) = make(&model);
        let mut context = context(&*device, program, &made);
        let program = context.program().clone();
        for (id, spec) in program.buffers.iter().enumerate() {
            if spec.class == Class::Cache {
                let written = context.write_buffer(id as u32, &vec![0xff; spec.bytes as usize]);
                written.expect("a known buffer");
            }
        }
        // The first row sees itself alone, the other one a cache of NaN.
        let rows = [Row::new(3, 0, 0), Row::new(3, 20, 1)];
        let pass = program.pass(PassKind::Decode).expect("the pass");
        let mut bits = |rows: &[Row]| -> Vec<u32> {
            let logits = context.step_rows(pass, rows, &[]).expect("a step");
            logits.iter().map(|logit| logit.to_bits()).collect()
        };
        let together = bits(&rows);
        let (first, other) = together.split_at(together.len() / 2);
        assert!(other.iter().all(|bits| f32::from_bits(*bits).is_nan()));
        assert!(first.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        assert!(bits(&rows[..1]) == first, "rows of {dim}");
    }
}
