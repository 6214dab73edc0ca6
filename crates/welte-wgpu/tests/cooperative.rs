//! Products and attention of prompts on cooperative matrices. Mesa's software driver has them from version 25 on; other adapters without them skip.

use std::sync::Arc;
use welte_conformance::made::Made;
use welte_conformance::model::{ATTENTION, Attention, Model};
use welte_conformance::program::make;
use welte_device::{Context, Device, DeviceOptions};
use welte_table::{Format, PassKind, Program, Row, fuse};
use welte_wgpu::{Abilities, Api, device_with};

fn device() -> Option<Arc<dyn Device>> {
    let abilities = Abilities {
        cooperative: Some(true),
        ..Abilities::ALL
    };
    match device_with(Api::Gpu, 0, &DeviceOptions::default(), abilities) {
        Ok(device) => Some(device),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn context(device: &dyn Device, program: Program, made: &Made) -> Box<dyn Context> {
    let program = fuse(program, device.patterns());
    let plan = device.plan(Arc::new(program)).expect("a plan");
    let loaded = device.load(plan, made, &mut |_| ()).expect("loaded");
    loaded.context().expect("a context")
}

/// The logits of all rows of a prompt, computed in pieces of these sizes.
fn logits(context: &mut dyn Context, pieces: &[u32]) -> Vec<f32> {
    let pass = context.program().pass(PassKind::Prompt).expect("the pass");
    let mut at = 0;
    let mut all = Vec::new();
    for count in pieces {
        let rows: Vec<Row> = (at..at + count)
            .map(|position| Row::new(position % 17 + 1, position, 0))
            .collect();
        let outputs: Vec<u32> = (0..*count).collect();
        all.extend_from_slice(context.step_rows(pass, &rows, &outputs).expect("a step"));
        at += count;
    }
    all
}

/// The logits of a prompt are near the reference's, and in pieces they have the same bits.
fn agrees(device: &dyn Device, name: &str, model: &Model, pieces: &[u32], most: f32) {
    let (program, made) = make(model);
    let whole = [pieces.iter().sum()];
    let reference = welte_reference::device();
    let want = logits(
        context(&*reference, program.clone(), &made).as_mut(),
        &whole,
    );
    let mut context = context(device, program, &made);
    let got = logits(context.as_mut(), &whole);
    let largest = want.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
    let off = off.fold(0.0f32, f32::max) / largest;
    eprintln!("{name}: off by {off}");
    assert!(off < most, "{name}: off by {off}");
    let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let cut = logits(context.as_mut(), pieces);
    assert!(bits(cut) == bits(got), "{name}: other bits");
}

/// Rows that are not whole slices (37 elements), outputs that are not whole quads (203), rows of several tiles.
#[test]
fn products_agree_with_the_reference_and_cuts_change_no_bit() {
    let Some(device) = device() else { return };
    for (format, dim, most) in [
        (Format::F16, 37, 4e-3),
        (Format::BF16, 96, 2e-3),
        (Format::Q4_0, 96, 4e-2),
        (Format::Q6_K, 256, 4e-2),
    ] {
        let model = Model {
            format,
            dim,
            vocab: 203,
            prompt_rows: 40,
            prompt_outputs: 40,
            ..Model::small(3)
        };
        agrees(&*device, format.name(), &model, &[3, 17, 20], most);
    }
}

/// Two squares of rows for each subgroup, one, and heads of an odd number of squares; a context of several steps.
#[test]
fn attention_agrees_with_the_reference_and_cuts_change_no_bit() {
    let Some(device) = device() else { return };
    for (head_dim, window, softcap) in [
        (128, 0, 0.0),
        (112, 100, 0.0),
        (192, 0, 20.0),
        (256, 0, 0.0),
        (256, 70, 20.0),
    ] {
        let attention = Attention {
            head_dim,
            window,
            softcap,
            ..ATTENTION
        };
        let model = Model {
            page: 64,
            prompt_rows: 150,
            prompt_outputs: 150,
            ..Model::of_attention(attention, 5)
        };
        let name = format!("heads of {head_dim}, a window of {window}");
        agrees(&*device, &name, &model, &[70, 3, 77], 4e-3);
    }
}
