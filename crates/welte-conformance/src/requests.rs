//! Requests: impossible ones are refused and change nothing; the largest possible ones work.

use super::case::{
    Case, Commands, bits, chain, mixed_rows, refused, rows, start, tokens_of, tolerance,
};
use super::made::Numbers;
use super::model::{CONV, Layer, Model};
use welte_device::{ChainStart, Choice, Context, Control, Device, SlotState};
use welte_table::{PassKind, Row};

/// Every impossible request is refused as such, and the context works afterwards as before.
pub fn faults(device: &dyn Device, _oracle: &dyn Device) {
    let model = Model {
        embed_rows: 0,
        ..Model::small(2)
    };
    let case = Case::required(device, &model);
    let mut context = case.open(device);
    let c = context.as_mut();
    let mut n = Numbers(3);
    let prompt = rows(&mut n, 101, 0, 0, 5);
    let (step, sample) = (|c: &mut dyn Context| good_step(c, &prompt), pick_error);
    // Nothing has been yielded yet.
    sample(c, 0, 0, 1);
    let before = step(c);
    let good = prompt[0];
    let next = rows(&mut n, 101, 0, 1, 1)[0];
    let nine = rows(&mut n, 101, 0, 0, 9);
    let many = rows(&mut n, 101, 0, 0, 41);
    let bad_rows: [(&str, usize, &[Row], &[u32]); 14] = [
        ("no rows", 0, &[], &[]),
        ("no rows of a prompt", 1, &[], &[]),
        ("too many rows of a decode step", 0, &nine, &[]),
        ("too many rows of a prompt", 1, &many, &[]),
        (
            "a token beyond the vocabulary",
            0,
            &[Row::new(101, good.position, good.slot)],
            &[],
        ),
        (
            "a position beyond the context",
            0,
            &[Row::new(good.token(), 640, good.slot)],
            &[],
        ),
        (
            "an unknown slot",
            0,
            &[Row::new(good.token(), good.position, 3)],
            &[],
        ),
        ("the same row twice", 1, &[good, next, good], &[]),
        ("an unknown pass", 7, &[good], &[]),
        ("outputs of a decode step", 0, &[good], &[0]),
        ("too many outputs", 1, &prompt, &[0, 1, 2, 3]),
        ("an output beyond the rows", 1, &prompt, &[5]),
        ("outputs in disorder", 1, &prompt, &[2, 1]),
        ("an output twice", 1, &prompt, &[2, 2]),
    ];
    for (what, pass, rows, outputs) in bad_rows {
        refused(c.step_rows(pass, rows, outputs), what);
        refused(c.step_until(pass, rows, outputs, 1), what);
        assert!(step(c) == before, "after {what}");
    }
    let at = |slot, token, position, steps| start(slot, token, position, steps);
    let many: Vec<ChainStart> = (0..9).map(|slot| at(slot, 1, 0, 1)).collect();
    let bad_chains: [(&str, &[ChainStart]); 8] = [
        ("a chain of no slot", &[]),
        ("a chain of too many slots", &many),
        (
            "a chain from a token beyond the vocabulary",
            &[at(0, 101, 0, 1)],
        ),
        (
            "a chain from a position beyond the context",
            &[at(0, 1, 640, 0)],
        ),
        ("a chain of an unknown slot", &[at(3, 1, 0, 1)]),
        ("a chain beyond the context", &[at(0, 1, 639, 2)]),
        ("a chain of endless steps", &[at(0, 1, 0, u32::MAX)]),
        (
            "a chain of one slot twice",
            &[at(0, 1, 0, 1), at(0, 1, 5, 1)],
        ),
    ];
    for (what, starts) in bad_chains {
        let mut emit = |_| panic!("{what} emits a token");
        refused(c.chain(starts, &Control::default(), &mut emit), what);
        assert!(step(c) == before, "after {what}");
    }
    for (what, cache, slot, first, pages) in [
        ("an unknown cache", 1, 0, 0, &[0][..]),
        ("pages of an unknown slot", 0, 3, 0, &[0]),
        ("an unknown page", 0, 0, 0, &[1, 122]),
        ("a list that is too long", 0, 0, 38, &[1, 2, 3]),
        ("an entry beyond the list", 0, 0, 40, &[1]),
    ] {
        refused(c.set_pages(cache, slot, first, pages), what);
        assert!(step(c) == before, "after {what}");
    }
    for (what, cache, from, to) in [
        ("a copy in an unknown cache", 1, 0, 1),
        ("a copy of an unknown page", 0, 122, 1),
        ("a copy to an unknown page", 0, 1, 122),
    ] {
        refused(c.copy_page(cache, from, to), what);
        assert!(step(c) == before, "after {what}");
    }
    let page = case.page_bytes(0);
    for (what, cache, number, bytes) in [
        ("a page of an unknown cache", 1, 0, page),
        ("an unknown page", 0, 122, page),
        ("a page and a byte", 0, 1, page + 1),
        ("a page but a byte", 0, 1, page - 1),
        ("no byte of a page", 0, 1, 0),
    ] {
        let mut bytes = vec![0; bytes];
        refused(c.write_page(cache, number, &bytes), what);
        refused(c.read_page(cache, number, &mut bytes), what);
        assert!(step(c) == before, "after {what}");
    }
    refused(c.set_slot(3, &SlotState::default()), "an unknown slot");
    let (bias, ends) = (vec![(1, 0.5); 1025], vec![1; 257]);
    let many = SlotState {
        bias: &bias,
        ..SlotState::default()
    };
    refused(c.set_slot(0, &many), "too many biases");
    let many = SlotState {
        ends: &ends,
        ..SlotState::default()
    };
    refused(c.set_slot(0, &many), "too many end tokens");
    step(c);
    sample(c, 1, 0, 1);
    step(c);
    sample(c, 0, 3, 1);
    step(c);
    sample(c, 0, 0, 2);
    let unknown = case.program.buffers.len() as u32;
    refused(c.read_buffer(unknown), "reading an unknown buffer");
    refused(c.write_buffer(unknown, &[0]), "writing an unknown buffer");
    let size = case.program.buffers[0].bytes as usize;
    let long = vec![0; size + 1];
    refused(c.write_buffer(0, &long), "writing beyond a buffer");
    assert!(step(c) == before, "after all");
    broken_order(device);
}

/// The bits of a prompt's last logits.
fn good_step(context: &mut dyn Context, prompt: &[Row]) -> Vec<u32> {
    let last = [prompt.len() as u32 - 1];
    bits(context.step_rows(1, prompt, &last).expect("a valid step"))
}

/// A pick that must be refused; `tokens` is the room for its result.
fn pick_error(context: &mut dyn Context, output: u32, slot: u32, tokens: usize) {
    let pick = Choice {
        output,
        slot,
        position: 5,
        draft: None,
    };
    let what = format!("output {output} for slot {slot} into {tokens} tokens");
    refused(context.sample(&[pick], &mut vec![0; tokens]), &what);
}

/// Rows that do not follow each other are refused if the program has recurrent state.
fn broken_order(device: &dyn Device) {
    let model = Model {
        layers: vec![Layer::Conv(CONV)],
        ..Model::small(4)
    };
    let Some(case) = Case::new(device, &model, Commands::Fused) else {
        return;
    };
    let mut context = case.open(device);
    let row = |position| Row::new(1, position, 0);
    let before = bits(context.step_rows(0, &[row(0)], &[]).expect("a valid step"));
    refused(context.step_rows(1, &[row(0), row(2)], &[1]), "a gap");
    refused(context.step_rows(1, &[row(1), row(0)], &[1]), "a step back");
    let after = bits(context.step_rows(0, &[row(0)], &[]).expect("a valid step"));
    assert!(before == after, "after refused rows");
}

/// The largest steps, the last position, a chain up to the context's end, and the smallest program.
pub fn limits(device: &dyn Device, oracle: &dyn Device) {
    let model = Model {
        context: 33,
        page: 16,
        slots: 8,
        decode_rows: 8,
        prompt_rows: 40,
        prompt_outputs: 40,
        ..Model::small(6)
    };
    let case = Case::required(device, &model);
    let mut pair = case.pair(device, oracle);
    let mut n = Numbers(9);
    let most = tolerance(&model, 40);
    let mut next = vec![0; 8];
    let mut left = 8 * 33;
    while left > 0 {
        let rows = mixed_rows(&mut n, &case.program, &mut next, 40);
        let outputs: Vec<u32> = (0..rows.len() as u32).collect();
        pair.step(PassKind::Prompt, &rows, &outputs, most);
        left -= rows.len();
    }
    pair.assert_same_memory("every position of every slot", most);
    let last: Vec<Row> = (0..8)
        .flat_map(|slot| rows(&mut n, model.vocab, slot, 32, 1))
        .collect();
    pair.step(PassKind::Decode, &last, &[], most);
    // The token after the last position is made, but cannot be read.
    let context = pair.device.as_mut();
    let emitted = chain(context, &[start(7, 1, 30, 3)]);
    let tokens = tokens_of(&emitted, 7, 31);
    assert_eq!(tokens.len(), 3);
    let emitted = chain(context, &[start(7, 1, 32, 1)]);
    assert_eq!(tokens_of(&emitted, 7, 33).len(), 1);
    assert!(chain(context, &[start(7, 1, 32, 0)]).is_empty());
    // All slots that a chain may have.
    let starts: Vec<ChainStart> = (0..context.chain_slots() as u32)
        .map(|slot| start(slot, slot, 3 * slot, 33 - 3 * slot))
        .collect();
    let emitted = chain(context, &starts);
    for one in &starts {
        let tokens = tokens_of(&emitted, one.slot, one.position + 1);
        assert_eq!(tokens.len() as u32, one.steps, "slot {}", one.slot);
    }
    smallest(device, oracle);
}

/// One slot, one position, one row, one token.
fn smallest(device: &dyn Device, oracle: &dyn Device) {
    let model = Model {
        context: 1,
        page: 1,
        slots: 1,
        vocab: 1,
        decode_rows: 1,
        prompt_rows: 1,
        prompt_outputs: 1,
        pages: Some(1),
        ..Model::small(7)
    };
    let case = Case::required(device, &model);
    let mut pair = case.pair(device, oracle);
    let most = tolerance(&model, 1);
    pair.step(PassKind::Prompt, &[Row::default()], &[0], most);
    pair.step(PassKind::Decode, &[Row::default()], &[], most);
    pair.both(|c| {
        let emitted = chain(c, &[start(0, 0, 0, 1)]);
        assert_eq!(tokens_of(&emitted, 0, 1), [0]);
    });
}
