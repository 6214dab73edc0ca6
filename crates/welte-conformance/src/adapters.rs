//! Slots with adapters: low-rank parts of products, embeddings and experts. Devices without them are left out.

use super::case::{Case, Commands, Pair, bits, tolerance};
use super::made::Numbers;
use super::model::{ATTENTION, DENSE, EXPERTS, Layer, Model};
use super::program::make_fine;
use std::sync::Arc;
use welte_device::{Context, Device, SlotAdapter, SlotState};
use welte_formats::quant;
use welte_table::{AdaptOptions, Format, PassKind, Program, Row, adapt, fuse, verify};

const PLACES: u32 = 3;

/// The model's program with room for adapters. `None`: the device lacks what it needs.
fn case(device: &dyn Device, model: &Model, rank: u32) -> Option<Case> {
    let mut case = Case::new(device, model, Commands::Fused)?;
    let (mut program, _) = make_fine(model);
    let options = AdaptOptions {
        places: PLACES,
        rank,
        wanted: &|_, _, _| true,
    };
    adapt(&mut program, &options).expect("products that can have adapters");
    if let Some(missing) = device.missing(&program) {
        eprintln!("left out, the device lacks {missing}");
        return None;
    }
    let program = fuse(program, device.patterns());
    verify(&program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}: {}", case.what));
    case.program = Arc::new(program);
    Some(case)
}

/// Random pairs in a place of every bank. Some sets are left as they are.
fn fill(c: &mut dyn Context, place: u32, seed: u64) {
    let program = c.program().clone();
    let Some(adapters) = &program.adapters else {
        return;
    };
    for (number, spec) in adapters.banks.iter().enumerate() {
        let bank = &spec.bank;
        let mut n = Numbers(seed + 100 * number as u64);
        let size = bank.place_bytes().expect("a small bank");
        let mut values = vec![0.0; (size - bank.head_bytes()) as usize / 2];
        let scale = 1.0 / (bank.k.min(64) as f32).sqrt();
        values.iter_mut().for_each(|v| *v = n.float() * scale);
        let mut halves = vec![0; 2 * values.len()];
        quant::encode(Format::F16, &values, &mut halves);
        let mut bytes: Vec<u8> = Vec::new();
        for set in 0..bank.sets() {
            let rank = [bank.rank, 0, bank.rank.div_ceil(2)][(set + seed) as usize % 3];
            bytes.extend(rank.to_ne_bytes());
            bytes.extend((0.5 + set as f32 * 0.25).to_ne_bytes());
        }
        bytes.resize(bank.head_bytes() as usize, 0);
        bytes.extend(halves);
        let at = u64::from(place) * size;
        c.write_bytes(spec.buffer, at, &bytes).expect("a place");
    }
}

/// Slot `s` has the adapter at place `s`; the last one has none.
fn adapter(slot: u32) -> Option<SlotAdapter> {
    let (place, scale) = (slot, 1.0 - 0.5 * slot as f32);
    (slot < 2).then_some(SlotAdapter { place, scale })
}

fn set(c: &mut dyn Context) {
    for place in 0..PLACES {
        fill(c, place, u64::from(place));
    }
    for slot in 0..c.program().slots {
        let state = SlotState {
            adapter: adapter(slot),
            ..SlotState::default()
        };
        c.set_slot(slot, &state).expect("an adapter that fits");
    }
}

/// Rows with adapters agree with the oracle, and have the bits that they have alone. Rows without have those of a program without
/// adapters where they may share a step.
pub fn adapters(device: &dyn Device, oracle: &dyn Device) {
    if !device.adapts() {
        eprintln!("left out, the device has no adapters");
        return;
    }
    let dense = [Layer::Attention(ATTENTION), Layer::Dense(DENSE)];
    let mixed = [Layer::Attention(ATTENTION), Layer::Experts(EXPERTS)];
    let cases = [
        (&dense, Format::F32, 8, true),
        (&dense, Format::Q8_0, 5, false),
        (&mixed, Format::F32, 4, false),
    ];
    for (seed, (layers, format, rank, tied)) in (60..).zip(cases) {
        let model = Model {
            format,
            tied,
            layers: layers.to_vec(),
            prompt_outputs: 12,
            ..Model::small(seed)
        };
        let Some(case) = case(device, &model, rank) else {
            continue;
        };
        let mut pair = case.pair(device, oracle);
        pair.both(set);
        let plain = Case::new(device, &model, Commands::Fused).expect("the same without adapters");
        let mut plain = plain.open(device);
        let mixes = pair.device.mixes_adapters();
        for kind in [PassKind::Prompt, PassKind::Decode] {
            check(
                &mut pair,
                plain.as_mut(),
                &case.program,
                kind,
                mixes,
                tolerance(&model, 6),
            );
        }
    }
}

fn check(
    pair: &mut Pair<'_>,
    plain: &mut dyn Context,
    program: &Program,
    kind: PassKind,
    mixes: bool,
    most: f32,
) {
    let slots: &[u32] = if mixes { &[0, 1, 2] } else { &[0, 1] };
    let from = if kind == PassKind::Prompt { 0 } else { 2 };
    let rows = slots.iter().flat_map(|slot| {
        (from..from + 2).map(move |at| Row::new((7 * at + 3 * slot + 1) % program.vocab, at, *slot))
    });
    let rows: Vec<Row> = rows.collect();
    let every: Vec<u32> = match kind {
        PassKind::Prompt => (0..rows.len() as u32).collect(),
        _ => Vec::new(),
    };
    let together = pair.step(kind, &rows, &every, most);
    let width = program.vocab as usize;
    let mut last: Option<&[f32]> = None;
    for (row, want) in rows.iter().zip(together.chunks(width)) {
        let outputs: &[u32] = if every.is_empty() { &[] } else { &[0] };
        let alone = pair.step(kind, &[*row], outputs, most);
        assert!(bits(&alone) == bits(want), "{row:?} alone, {}", kind.name());
        if row.slot == 2 {
            let at = program.pass(kind).expect("a pass");
            let got = plain.step_rows(at, &[*row], outputs).expect("a valid step");
            assert!(bits(got) == bits(want), "{row:?} without adapters");
        }
        assert!(last != Some(want), "adapters that change nothing");
        last = Some(want);
    }
}
