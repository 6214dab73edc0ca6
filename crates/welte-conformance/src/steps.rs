//! Steps of several rows: batches, chosen outputs, pooled states.

use super::case::{
    Case, Commands, bits, chain, difference, mixed_rows, refused, rows, some_outputs, start,
    tolerance,
};
use super::made::Numbers;
use super::model::{ATTENTION, Attention, DENSE, Dense, EXPERTS, Experts, Layer, Model};
use welte_device::{Choice, Context, Device, Place, Role, Stage, Step, StepOptions};
use welte_table::{Format, Op, PassKind, Row};

/// A step gives the same bits in parts as at once, wherever it is cut: between commands or within them. Tokens may be chosen from
/// it. Without a step that was begun, there is nothing to run or to end.
pub fn parts(device: &dyn Device, oracle: &dyn Device) {
    let small = Model::small(25);
    let model = Model {
        layers: [small.layers.clone(), vec![Layer::Experts(EXPERTS)]].concat(),
        ..small
    };
    let case = Case::required(device, &model);
    let mut pair = case.pair(device, oracle);
    let mut context = case.open(device);
    let mut n = Numbers(9);
    let prompt = rows(&mut n, model.vocab, 0, 0, 9);
    let next = rows(&mut n, model.vocab, 0, 9, 2);
    for (kind, rows, outputs) in [
        (PassKind::Prompt, &prompt[..], &[3, 8][..]),
        (PassKind::Decode, &next[..1], &[][..]),
        (PassKind::Decode, &next[1..], &[][..]),
    ] {
        let pass = case.pass(kind);
        let all = case.program.passes[pass].commands.len();
        let whole = pair.step(kind, rows, outputs, tolerance(&model, rows.len()));
        let mut at_once: Vec<f32> = Vec::new();
        for (length, within) in
            [all, 1, 2, 5]
                .map(|n| (n, false))
                .into_iter()
                .chain([(1, true), (3, true), (4, true)])
        {
            let step = Step::of(Role::of(kind), rows, outputs);
            let run = |context: &mut dyn Context, part| {
                let done = context.step(&step, StepOptions::stage(part));
                done.expect("a part of a step").to_vec()
            };
            assert!(run(context.as_mut(), Stage::Begin).is_empty());
            refused(context.sample(&[pick(0)], &mut [0]), "a step that goes on");
            let mut places = places(context.as_ref(), all, within);
            let ends = places.split_off(1).into_iter().skip(length - 1);
            let mut from = places[0];
            // The last part may reach beyond the end.
            for to in ends.step_by(length).chain([Place::END]) {
                assert!(run(context.as_mut(), Stage::Run(from..to)).is_empty());
                from = to;
            }
            let got = run(context.as_mut(), Stage::End);
            if at_once.is_empty() {
                at_once.clone_from(&got);
            }
            assert!(
                bits(&got) == bits(&at_once),
                "{kind:?}, cut after {length}, within commands: {within}"
            );
            let off = difference(&got, &whole);
            assert!(
                off <= tolerance(&model, rows.len()),
                "off by {off} from a step"
            );
            // The greedy choice.
            let mut token = [0];
            let chosen = context.sample(&[pick(0)], &mut token);
            chosen.expect("a pick of the step");
            let first = &got[..model.vocab as usize];
            assert_eq!(token[0], welte_device::argmax(first).1);
        }
    }
    let step = Step::of(Role::Generated, &next[..1], &[]);
    for part in [Stage::run(0..1), Stage::End] {
        let done = context.step(&step, StepOptions::stage(part)).map(drop);
        refused(done, "a part of no step");
    }
    let decode = case.pass(PassKind::Decode);
    for end in [0, 1, 2] {
        let begin = StepOptions::stage(Stage::Begin);
        context.step(&step, begin).expect("a step");
        let longer = Step::of(Role::Generated, &next, &[]);
        match end {
            0 => drop(chain(context.as_mut(), &[start(0, 0, 9, 1)])),
            1 => drop(context.step_rows(decode, &next[..1], &[]).expect("a step")),
            _ => {
                let other = context.step(&longer, StepOptions::stage(Stage::run(0..1)));
                refused(other.map(drop), "parts of another step");
            }
        }
        let part = StepOptions::stage(Stage::run(0..1));
        let done = context.step(&step, part).map(drop);
        refused(done, "parts of a step that is over");
    }
}

/// Where the step at hand can be cut: before each of `commands` commands, and `within` them.
pub(crate) fn places(context: &dyn Context, commands: usize, within: bool) -> Vec<Place> {
    let parts = |command| if within { context.parts(command) } else { 1 };
    let of = |command| (0..parts(command)).map(move |part| Place { command, part });
    (0..commands).flat_map(of).collect()
}

fn pick(output: u32) -> Choice {
    Choice {
        output,
        slot: 0,
        position: 20,
        draft: None,
    }
}

/// Rows of a step do not change each other: the same row has the same bits beside any others, in any order.
pub fn batches(device: &dyn Device, oracle: &dyn Device) {
    for format in [Format::F32, Format::BF16, Format::Q4_0, Format::Q6_K] {
        let attention = Attention {
            heads: 8,
            ..ATTENTION
        };
        let dense = Dense {
            hidden: 512,
            ..DENSE
        };
        let experts = Experts {
            hidden: 256,
            ..EXPERTS
        };
        let model = Model {
            format,
            dim: 256,
            layers: vec![
                Layer::Attention(attention),
                Layer::Dense(dense),
                Layer::Experts(experts),
            ],
            slots: 6,
            prompt_outputs: 40,
            ..Model::small(21)
        };
        let case = Case::required(device, &model);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(6);
        let most = tolerance(&model, 1);
        for slot in 0..6 {
            let rows = rows(&mut n, model.vocab, slot, 0, 5 + 3 * slot);
            pair.step(PassKind::Prompt, &rows, &[], tolerance(&model, 40));
        }
        // One row of each slot, two of the last.
        let mut batch: Vec<Row> = (0..6)
            .flat_map(|slot| rows(&mut n, model.vocab, slot, 5 + 3 * slot, 1))
            .collect();
        batch.extend(rows(&mut n, model.vocab, 5, 21, 1));
        let width = model.vocab as usize;
        let together = pair.step(PassKind::Decode, &batch, &[], most);
        for (i, row) in batch.iter().enumerate() {
            let want = &together[i * width..(i + 1) * width];
            let alone = pair.step(PassKind::Decode, &[*row], &[], most);
            assert!(bits(&alone) == bits(want), "{format:?} row {i} alone");
            // Beside another row, in both orders.
            let other = batch[(i + 2) % batch.len()];
            for (rows, at) in [([*row, other], 0), ([other, *row], 1)] {
                let both = pair.step(PassKind::Decode, &rows, &[], most);
                let got = &both[at * width..(at + 1) * width];
                assert!(bits(got) == bits(want), "{format:?} row {i} beside another");
            }
        }
        let mut reversed = batch.clone();
        reversed.reverse();
        let backwards = pair.step(PassKind::Decode, &reversed, &[], most);
        for (i, got) in backwards.chunks(width).enumerate() {
            let at = batch.len() - 1 - i;
            let want = &together[at * width..(at + 1) * width];
            assert!(bits(got) == bits(want), "{format:?} row {at} in reverse");
        }
        a_prompt_of_many_slots(&mut pair, &model);
    }
}

/// A prompt step may hold rows of all slots, in any order.
fn a_prompt_of_many_slots(pair: &mut super::case::Pair<'_>, model: &Model) {
    let mut n = Numbers(31);
    let program = pair.case.program.clone();
    let mut next = vec![0; model.slots as usize];
    let rows = mixed_rows(&mut n, &program, &mut next, 40);
    let all: Vec<u32> = (0..40).collect();
    let most = tolerance(model, rows.len());
    let logits = pair.step(PassKind::Prompt, &rows, &all, most);
    // Slot by slot.
    let width = model.vocab as usize;
    for slot in 0..model.slots {
        let own: Vec<Row> = rows.iter().filter(|r| r.slot == slot).copied().collect();
        if own.is_empty() {
            continue;
        }
        let every: Vec<u32> = (0..own.len() as u32).collect();
        let alone = pair.step(PassKind::Prompt, &own, &every, most);
        let mine = rows.iter().enumerate().filter(|(_, r)| r.slot == slot);
        let want: Vec<f32> = mine
            .flat_map(|(i, _)| &logits[i * width..(i + 1) * width])
            .copied()
            .collect();
        assert!(bits(&alone) == bits(&want), "slot {slot} alone");
    }
}

/// A prompt yields the chosen rows' logits, in their order, and nothing if none is chosen.
pub fn outputs(device: &dyn Device, oracle: &dyn Device) {
    let model = Model {
        prompt_rows: 12,
        prompt_outputs: 12,
        ..Model::small(8)
    };
    let case = Case::required(device, &model);
    let mut pair = case.pair(device, oracle);
    let most = tolerance(&model, 12);
    let mut n = Numbers(14);
    let all_rows = rows(&mut n, model.vocab, 2, 0, 12);
    let width = model.vocab as usize;
    let none = pair.step(PassKind::Prompt, &all_rows, &[], most);
    assert!(none.is_empty(), "{} values of no output", none.len());
    let result = case.program.passes[1].result.buffer;
    let untouched = |context: &mut dyn Context| {
        let bytes = context.read_buffer(result).expect("the result");
        bytes.iter().all(|b| *b == 0xff)
    };
    assert!(untouched(pair.device.as_mut()), "logits without an output");
    pair.assert_same_memory("no outputs", most);
    let every: Vec<u32> = (0..12).collect();
    let all = pair.step(PassKind::Prompt, &all_rows, &every, most);
    assert_eq!(all.len(), 12 * width);
    let mut choices = vec![vec![0], vec![11], vec![0, 11], vec![3, 4, 9], every];
    choices.extend((0..6).map(|_| some_outputs(&mut n, 12, 12)));
    for chosen in choices {
        let got = pair.step(PassKind::Prompt, &all_rows, &chosen, most);
        assert_eq!(got.len(), chosen.len() * width, "{chosen:?}");
        for (row, got) in chosen.iter().zip(got.chunks(width)) {
            let want = &all[*row as usize * width..][..width];
            assert!(bits(got) == bits(want), "row {row} of {chosen:?}");
        }
    }
    // The prompt without outputs has filled the cache.
    let next = rows(&mut n, model.vocab, 2, 12, 1);
    pair.step(PassKind::Decode, &next, &[], tolerance(&model, 1));
}

/// The embed pass: each way of pooling, several slots in one step, against the rows that the device pools.
pub fn pooled(device: &dyn Device, oracle: &dyn Device) {
    for pool in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
        let model = Model {
            embed_rows: 30,
            pool,
            ..Model::small(13)
        };
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let mut pair = case.pair(device, oracle);
        let pass = case.pass(PassKind::Embed);
        let spec = &case.program.passes[pass];
        assert_eq!(spec.commands.last().map(|c| c.op), Some(Op::Pool));
        let hidden = spec.commands[spec.commands.len() - 1].buffers[0].buffer;
        let stride = model.dim as usize + 3;
        let mut n = Numbers(61);
        for count in [1, 7, 30] {
            let mut next = vec![0; 3];
            let rows = mixed_rows(&mut n, &case.program, &mut next, count);
            for outputs in [some_outputs(&mut n, rows.len(), 30), Vec::new()] {
                let most = tolerance(&model, rows.len());
                let got = pair.step(PassKind::Embed, &rows, &outputs, most);
                let before = spec.commands.len() - 1;
                let done = pair.device.step_until(pass, &rows, &outputs, before);
                done.expect("a valid step");
                let bytes = pair.device.read_buffer(hidden).expect("the hidden states");
                let words = bytes.chunks_exact(4);
                let x: Vec<f32> = words
                    .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
                    .collect();
                let want: Vec<f32> = outputs
                    .iter()
                    .flat_map(|o| pool_plainly(&x, stride, &rows, *o as usize, &model))
                    .collect();
                let off = difference(&got, &want);
                assert!(off <= 1e-5, "{pool:?} of {count} rows: off by {off}");
            }
        }
    }
}

/// What output `chosen` pools: the rows of its slot up to itself.
fn pool_plainly(x: &[f32], stride: usize, rows: &[Row], chosen: usize, model: &Model) -> Vec<f32> {
    let dim = model.dim as usize;
    let own: Vec<usize> = (0..=chosen)
        .filter(|i| rows[*i].slot == rows[chosen].slot)
        .collect();
    let value = |row: usize, i: usize| f64::from(x[row * stride + i]);
    let (first, last) = (own[0], own[own.len() - 1]);
    let pooled: Vec<f64> = (0..dim)
        .map(|i| match model.pool.0 {
            0 => value(last, i),
            1 => own.iter().map(|row| value(*row, i)).sum::<f64>() / own.len() as f64,
            _ => value(first, i),
        })
        .collect();
    let length = pooled.iter().map(|v| v * v).sum::<f64>().sqrt();
    let divisor = if model.pool.1 == 1 { length } else { 1.0 };
    pooled.iter().map(|v| (v / divisor) as f32).collect()
}
