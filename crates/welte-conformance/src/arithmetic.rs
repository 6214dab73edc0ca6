//! One arithmetic: the bits of a row depend on its pass, its sequence and its position. They do not depend on the rows
//! beside it, on their number or order, on the cut of a prompt, or on steps or chains. A device is compared with itself.

use super::case::{Case, Commands, bits, chain, start, tokens_of};
use super::made::Numbers;
use super::model::{
    ATTENTION, Attention, CONV, DELTA, DENSE, Delta, Dense, EXPERTS, Experts, Heads, Layer, Model,
};
use std::collections::BTreeMap;
use welte_device::{Context, Device};
use welte_table::{BufferId, Format, PassKind, Program, Row};

/// Slots of a decode program.
const SLOTS: u32 = 17;
/// Tokens that each slot decodes.
const DECODED: u32 = 5;
/// Rows of decode steps: all that there are, in sizes where devices change their kernels.
const BATCHES: [usize; 6] = [2, 3, 64, 7, 5, 4];

/// Rows of a prompt program's steps.
pub(super) const PROMPT_ROWS: u32 = 64;
/// Positions of its sequences.
const PROMPTS: [u32; 3] = [100, 33, 9];

/// A model for each format (of the affine and super-block ones only some), each with other layers.
pub(super) fn models() -> impl Iterator<Item = Model> {
    let formats = Format::ALL.into_iter().enumerate();
    let formats = formats.filter(|(i, f)| match f {
        Format::Affine(_) => i.is_multiple_of(9),
        Format::Integers(_) => i.is_multiple_of(7),
        Format::Q2_K | Format::Q5_K | Format::IQ4_XS => false,
        Format::IQ1_M | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ3_S => false,
        Format::TQ1_0 | Format::NVFP4 => false,
        _ => true,
    });
    formats.enumerate().map(|(i, (_, format))| model(i, format))
}

fn model(i: usize, format: Format) -> Model {
    // Products of as many elements are whole blocks.
    let dim = format.block().max(64) as u32;
    let heads = dim / 32;
    let full = Attention {
        heads,
        kv_heads: heads / [1, 2, heads][i % 3],
        softcap: [0.0, 0.0, 5.0, 0.0][i % 4],
        ..ATTENTION
    };
    // Heads of other sizes, whose products are not whole blocks of every format.
    let windowed = Attention {
        heads: 6,
        kv_heads: [2, 3, 6, 1][i % 4],
        head_dim: [64, 32, 96, 128, 288][i / 2 % 5],
        window: [1, 20, 300, 63][i % 4],
        chunked: i % 3 == 1,
        window_cache: i.is_multiple_of(2),
        ..ATTENTION
    };
    let dense = Dense {
        hidden: dim,
        ..DENSE
    };
    let experts = Experts {
        hidden: dim,
        ..EXPERTS
    };
    let last = match i % 3 {
        0 => Layer::Experts(experts),
        1 => Layer::Attention(windowed),
        _ if i.is_multiple_of(2) => Layer::Delta(Delta {
            mamba: i.is_multiple_of(4),
            by_channel: i.is_multiple_of(7),
            // More than a device takes together.
            value_dim: 40,
            ..DELTA
        }),
        _ => Layer::Conv(CONV),
    };
    let mut layers = vec![
        Layer::Attention(full),
        Layer::Dense(dense),
        Layer::Attention(windowed),
        last,
    ];
    // Large matrices take long on slow devices.
    layers.truncate(if dim > 128 { 2 } else { 4 });
    // One format of each kind that devices decode in their own way.
    use Format::{BF16, F8_E4M3, F16, F32, Q4_K, Q8_0};
    if matches!(format, F32 | F16 | BF16 | F8_E4M3 | Q8_0 | Q4_K) {
        layers.push(Layer::Heads(Heads {
            heads: 3,
            n: 37,
            k: dim,
            tail: 5,
        }));
    }
    Model {
        format,
        kv_format: [Format::F16, Format::Q8_0][i % 2],
        dim,
        layers,
        page: [16, 32, 5][i % 3],
        context: 264,
        slots: SLOTS,
        decode_rows: *BATCHES.iter().max().expect("sizes") as u32,
        prompt_rows: PROMPT_ROWS,
        prompt_outputs: PROMPT_ROWS,
        ..Model::small(70 + i as u64)
    }
}

/// Random tokens for every position of every slot.
pub(super) struct Texts(Vec<Vec<u32>>);

impl Texts {
    pub(super) fn new(program: &Program) -> Texts {
        let mut n = Numbers(u64::from(program.slots));
        let mut text = |_| {
            (0..program.context)
                .map(|_| n.below(program.vocab))
                .collect()
        };
        Texts((0..program.slots).map(&mut text).collect())
    }

    pub(super) fn row(&self, slot: u32, position: u32) -> Row {
        Row::new(self.0[slot as usize][position as usize], position, slot)
    }

    pub(super) fn rows(&self, slot: u32, from: u32, count: u32) -> Vec<Row> {
        (from..from + count).map(|at| self.row(slot, at)).collect()
    }
}

/// The logits' bits of a row, by slot and position.
pub(super) type Logits = BTreeMap<(u32, u32), Vec<u32>>;

/// Runs a step and checks its outputs against `wanted`.
fn check(
    context: &mut dyn Context,
    kind: PassKind,
    rows: &[Row],
    outputs: &[u32],
    wanted: &Logits,
    what: &str,
) {
    for (row, got) in logits(context, kind, rows, outputs) {
        let (slot, position) = row;
        assert!(
            got == wanted[&row],
            "position {position} of slot {slot} in a {} step of {} rows: {what}",
            kind.name(),
            rows.len()
        );
    }
}

/// Runs a step. Returns its outputs; those of a decode step are all rows.
pub(super) fn logits(
    context: &mut dyn Context,
    kind: PassKind,
    rows: &[Row],
    outputs: &[u32],
) -> Logits {
    let program = context.program().clone();
    let pass = program.pass(kind).expect("the program has the pass");
    let values = context
        .step_rows(pass, rows, outputs)
        .expect("a valid step");
    let values = values.chunks_exact(program.vocab as usize).map(bits);
    let of = |row: &Row| (row.slot, row.position);
    match kind {
        PassKind::Decode => rows.iter().map(of).zip(values).collect(),
        _ => {
            let chosen = outputs.iter().map(|o| of(&rows[*o as usize]));
            chosen.zip(values).collect()
        }
    }
}

/// The buffers of all caches with their bytes.
pub(super) fn caches(context: &mut dyn Context) -> Vec<(BufferId, Vec<u8>)> {
    let program = context.program().clone();
    let ids = program.caches.iter().map(|cache| cache.buffer);
    ids.map(|id| (id, context.read_buffer(id).expect("a known buffer")))
        .collect()
}

/// Numbers from 0 to `count` in random order.
fn shuffled(n: &mut Numbers, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        all.swap(i, n.below(i as u32 + 1) as usize);
    }
    all
}

/// Decode passes: a row alone, in batches of any size, order and neighbours, several rows of one sequence, and chains.
pub fn decode_arithmetic(device: &dyn Device, _oracle: &dyn Device) {
    for model in models() {
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let texts = Texts::new(&case.program);
        let loaded = case.load(device);
        // Some models have a prompt that ends before a multiple of 256, where attention may be split.
        let long = if model.seed.is_multiple_of(3) {
            254
        } else {
            40
        };
        let length = |slot: u32| match slot {
            0 => long,
            _ => 3 + slot * 3 % 8,
        };
        let open = || case.open_loaded(&*loaded);
        let mut prompts = open();
        for slot in 0..SLOTS {
            let rows = texts.rows(slot, 0, length(slot));
            for part in rows.chunks(PROMPT_ROWS as usize) {
                logits(prompts.as_mut(), PassKind::Prompt, part, &[]);
            }
        }
        let prompts = caches(prompts.as_mut());
        let begin = || {
            let mut context = open();
            for (id, bytes) in &prompts {
                let written = context.write_buffer(*id, bytes);
                written.expect("a known buffer");
            }
            context
        };
        let mut alone = begin();
        let mut wanted = Logits::new();
        for slot in 0..SLOTS {
            for row in texts.rows(slot, length(slot), DECODED) {
                wanted.extend(logits(alone.as_mut(), PassKind::Decode, &[row], &[]));
            }
        }
        let cached = caches(alone.as_mut());
        // Batches of rows that come next in their slots, often several of one slot.
        let mut batched = begin();
        let mut n = Numbers(model.seed);
        let mut done = vec![0; SLOTS as usize];
        for size in BATCHES {
            let mut batch = Vec::new();
            while batch.len() < size && done.iter().any(|d| *d < DECODED) {
                let slot = n.below(SLOTS);
                if done[slot as usize] < DECODED {
                    batch.push(texts.row(slot, length(slot) + done[slot as usize]));
                    done[slot as usize] += 1;
                }
            }
            if !model.has_state() {
                let order = shuffled(&mut n, batch.len());
                batch = order.into_iter().map(|i| batch[i]).collect();
            }
            if !batch.is_empty() {
                check(
                    batched.as_mut(),
                    PassKind::Decode,
                    &batch,
                    &[],
                    &wanted,
                    &case.what,
                );
            }
        }
        assert!(done.iter().all(|d| *d == DECODED), "rows are left");
        assert!(
            caches(batched.as_mut()) == cached,
            "caches of batches: {}",
            case.what
        );
        // All rows of one slot together, as speculation verifies them.
        let mut verified = begin();
        for slot in 0..SLOTS {
            let rows = texts.rows(slot, length(slot), DECODED);
            check(
                verified.as_mut(),
                PassKind::Decode,
                &rows,
                &[],
                &wanted,
                &case.what,
            );
        }
        assert!(
            caches(verified.as_mut()) == cached,
            "caches of verified rows: {}",
            case.what
        );
        chains_and_steps(&begin, &texts, &length, &case.what);
    }
}

/// Chains of as many slots as the device takes, with different lengths, against single steps.
fn chains_and_steps(
    begin: &dyn Fn() -> Box<dyn Context>,
    texts: &Texts,
    length: &dyn Fn(u32) -> u32,
    what: &str,
) {
    let (mut chained, mut stepped) = (begin(), begin());
    let most = chained.chain_slots() as u32;
    for first in (0..SLOTS).step_by(most as usize) {
        let starts: Vec<_> = (first..SLOTS.min(first + most))
            .map(|slot| {
                let row = texts.row(slot, length(slot));
                start(slot, row.token(), row.position, DECODED - slot % 3)
            })
            .collect();
        let emitted = chain(chained.as_mut(), &starts);
        for one in starts {
            let tokens = tokens_of(&emitted, one.slot, one.position + 1);
            assert_eq!(tokens.len() as u32, one.steps);
            let mut token = one.token;
            for (position, next) in (one.position..).zip(tokens) {
                let row = Row::new(token, position, one.slot);
                let step = stepped.step_rows(0, &[row], &[]).expect("a valid step");
                let largest = step.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
                let best = step.iter().position(|v| *v == largest);
                assert_eq!(best, Some(next as usize), "{row:?} of a chain: {what}");
                token = next;
            }
        }
    }
    assert!(
        caches(chained.as_mut()) == caches(stepped.as_mut()),
        "caches of chains: {what}"
    );
}

/// Prompt passes: any cut of a prompt, any rows of other sequences beside it, any choice of outputs.
pub fn prompt_arithmetic(device: &dyn Device, _oracle: &dyn Device) {
    for model in models() {
        let model = Model {
            slots: PROMPTS.len() as u32,
            ..model
        };
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let texts = Texts::new(&case.program);
        let loaded = case.load(device);
        let begin = || case.open_loaded(&*loaded);
        // Each sequence alone, in the largest pieces, all rows chosen.
        let mut alone = begin();
        let mut wanted = Logits::new();
        for (slot, length) in (0..).zip(PROMPTS) {
            for part in texts.rows(slot, 0, length).chunks(PROMPT_ROWS as usize) {
                let all: Vec<u32> = (0..part.len() as u32).collect();
                wanted.extend(logits(alone.as_mut(), PassKind::Prompt, part, &all));
            }
        }
        let cached = caches(alone.as_mut());
        let mut n = Numbers(model.seed);
        for cut in cuts(&mut n) {
            let mut context = begin();
            for (slot, length) in (0..).zip(PROMPTS) {
                let (mut at, mut pieces) = (0, cut.iter().cycle());
                while at < length {
                    let count = (length - at).min(*pieces.next().expect("a piece"));
                    let rows = texts.rows(slot, at, count);
                    let outputs = chosen(&mut n, rows.len());
                    let what = format!("pieces of {cut:?}: {}", case.what);
                    check(
                        context.as_mut(),
                        PassKind::Prompt,
                        &rows,
                        &outputs,
                        &wanted,
                        &what,
                    );
                    at += count;
                }
            }
            assert!(
                caches(context.as_mut()) == cached,
                "caches after pieces of {cut:?}: {}",
                case.what
            );
        }
        for whole in [true, false] {
            let mut context = begin();
            let mut next = [0; PROMPTS.len()];
            while next != PROMPTS {
                let rows = beside(&mut n, &texts, &mut next, whole);
                let outputs = chosen(&mut n, rows.len());
                let what = format!("beside others: {}", case.what);
                check(
                    context.as_mut(),
                    PassKind::Prompt,
                    &rows,
                    &outputs,
                    &wanted,
                    &what,
                );
            }
            let same = caches(context.as_mut()) == cached;
            assert!(same, "caches after mixed steps: {}", case.what);
        }
    }
}

/// Sizes of a prompt's pieces, which repeat until it ends.
fn cuts(n: &mut Numbers) -> Vec<Vec<u32>> {
    let mut odd: Vec<u32> = (0..20).map(|_| 1 + n.below(PROMPT_ROWS / 2)).collect();
    odd[..4].copy_from_slice(&[2, 16, 17, 1]);
    vec![vec![1], odd]
}

/// Some of a step's rows, in half of the cases none.
pub(super) fn chosen(n: &mut Numbers, rows: usize) -> Vec<u32> {
    match n.below(2) {
        0 => Vec::new(),
        _ => super::case::some_outputs(n, rows, rows as u32),
    }
}

/// The next rows of several sequences: pieces one after the other, or rows in turn.
fn beside(n: &mut Numbers, texts: &Texts, next: &mut [u32], whole: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    let most = if whole { 24 } else { 1 };
    let mut room = 2 + n.below(PROMPT_ROWS - 1);
    while room > 0 && next.iter().zip(PROMPTS).any(|(at, end)| *at < end) {
        let slot = n.below(next.len() as u32);
        let at = &mut next[slot as usize];
        let left = PROMPTS[slot as usize] - *at;
        let count = (1 + n.below(most)).min(left).min(room);
        rows.extend(texts.rows(slot, *at, count));
        *at += count;
        room -= count;
    }
    rows
}
