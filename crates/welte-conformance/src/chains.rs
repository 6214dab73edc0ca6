//! Chains: any split gives the same tokens, several slots do not change each other, and a chain ends when it must.

use super::case::{Case, Commands, bits, chain, rows, set_slot, start, tokens_of};
use super::made::Numbers;
use super::model::{CONV, DELTA, Layer, Model};
use std::sync::mpsc;
use welte_device::{ChainStart, Choice, Context, Control, Device, Emitted, SlotState};
use welte_table::{Format, PassKind, Row, Sampling};

/// Greedy, and two mixes of filters and penalties.
fn samplings() -> [Sampling; 3] {
    [
        Sampling::default(),
        Sampling {
            temperature: 0.9,
            top_p: 0.95,
            repeat_penalty: 1.2,
            seed: 4,
            ..Sampling::default()
        },
        Sampling {
            temperature: 1.3,
            top_k: 20,
            min_p: 0.02,
            frequency_penalty: 0.3,
            presence_penalty: 0.2,
            repeat_last_n: 9,
            seed: 99,
            ..Sampling::default()
        },
    ]
}

/// Random logits of the next token for each token.
fn random_table(vocab: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut n = Numbers(seed);
    let mut row = || (0..vocab).map(|_| 4.0 * n.float()).collect();
    (0..vocab).map(|_| row()).collect()
}

/// A table in which token `t` is followed by `(5 t + 3) % 16`: a cycle through all 16 tokens.
fn cycle() -> Vec<Vec<f32>> {
    let row = |t: usize| {
        let mut row = vec![0.0; 16];
        row[(5 * t + 3) % 16] = 1.0;
        row
    };
    (0..16).map(row).collect()
}

/// The tokens of [`cycle`] after token 1.
const CYCLE: [u32; 16] = [8, 11, 10, 5, 12, 15, 14, 9, 0, 3, 2, 13, 4, 7, 6, 1];

/// How long the chains of the suite are.
const LENGTH: u32 = 120;

/// One chain, chains of one token, and any other split give the same tokens and leave the same cache.
pub fn chains(device: &dyn Device, oracle: &dyn Device) {
    let case = Case::look_up(device, &cycle(), 2, 400);
    let mut context = case.open(device);
    let emitted = chain(context.as_mut(), &[start(1, 1, 0, 32)]);
    assert_eq!(tokens_of(&emitted, 1, 1), [CYCLE, CYCLE].concat());
    splits(device, &case);
    against_the_oracle(device, oracle);
    for kv_format in [Format::F16, Format::Q8_0] {
        let model = Model {
            format: Format::Q8_0,
            kv_format,
            ..Model::small(11)
        };
        splits(device, &Case::required(device, &model));
    }
    let model = Model {
        layers: [
            Model::small(1).layers,
            vec![Layer::Conv(CONV), Layer::Delta(DELTA)],
        ]
        .concat(),
        ..Model::small(12)
    };
    if let Some(case) = Case::new(device, &model, Commands::Fused) {
        splits(device, &case);
    }
}

/// Feeds 11 tokens to slot 1, then decodes in chains of these lengths. Returns the tokens.
fn decode(context: &mut dyn Context, lengths: &[u32], sampling: Sampling) -> Vec<u32> {
    let prompt = feed(context, sampling, &[]);
    let mut tokens = vec![prompt];
    let mut position = 11;
    for &length in lengths {
        let last = tokens[tokens.len() - 1];
        let emitted = chain(context, &[start(1, last, position, length)]);
        let new = tokens_of(&emitted, 1, position + 1);
        assert_eq!(new.len() as u32, length, "tokens of a chain");
        tokens.extend(new);
        position += length;
    }
    tokens
}

/// Feeds 11 tokens to slot 1, sets its sampling state and chooses the token of position 11.
fn feed(context: &mut dyn Context, sampling: Sampling, ends: &[u32]) -> u32 {
    let program = context.program().clone();
    let prompt = program.pass(PassKind::Prompt).expect("a prompt pass");
    let vocab = program.vocab;
    let mut n = Numbers(4);
    let rows: Vec<Row> = (0..11)
        .flat_map(|at| rows(&mut n, vocab, 1, at, 1))
        .collect();
    let history: Vec<u32> = rows.iter().map(|r| r.token()).collect();
    // The look-up program takes 8 rows at a time.
    for (i, part) in rows.chunks(8).enumerate() {
        let last = [part.len() as u32 - 1];
        let outputs: &[u32] = if i == 1 { &last } else { &[] };
        context
            .step_rows(prompt, part, outputs)
            .expect("a valid step");
    }
    let state = SlotState {
        sampling,
        bias: &[(3, 0.5)],
        history: &history,
        ends,
        ..SlotState::default()
    };
    set_slot(context, 1, state);
    let pick = Choice {
        output: 0,
        slot: 1,
        position: 11,
        draft: None,
    };
    let mut token = [0];
    context.sample(&[pick], &mut token).expect("a valid pick");
    token[0]
}

fn splits(device: &dyn Device, case: &Case) {
    for sampling in samplings() {
        let mut first: Option<(Vec<u32>, Vec<u32>)> = None;
        let ones = vec![1; LENGTH as usize];
        let odd = [7, LENGTH / 3 * 2, LENGTH / 3 - 7];
        for lengths in [&[LENGTH][..], &ones, &odd] {
            let mut context = case.open(device);
            let tokens = decode(context.as_mut(), lengths, sampling);
            assert_eq!(tokens.len() as u32, LENGTH + 1);
            let row = Row::new(1, 11 + LENGTH, 1);
            let after = bits(context.step_rows(0, &[row], &[]).expect("a valid step"));
            match &first {
                None => first = Some((tokens, after)),
                Some((wanted, logits)) => {
                    assert_eq!(tokens, *wanted, "{sampling:?}: {}", case.what);
                    assert!(after == *logits, "the cache after it: {}", case.what);
                }
            }
        }
        let (tokens, _) = first.expect("three splits");
        assert!(tokens.iter().any(|t| *t != tokens[0]), "one token only");
    }
}

/// With looked-up logits a chain's tokens are the oracle's, and those of single steps.
fn against_the_oracle(device: &dyn Device, oracle: &dyn Device) {
    let case = Case::look_up(device, &random_table(50, 7), 2, 400);
    for sampling in samplings() {
        let mut pair = case.pair(device, oracle);
        let got = decode(pair.device.as_mut(), &[100], sampling);
        let want = decode(pair.oracle.as_mut(), &[100], sampling);
        assert_eq!(got, want, "{sampling:?}");
        let mut context = case.open(device);
        let mut token = [feed(context.as_mut(), sampling, &[])];
        for (at, wanted) in want.iter().enumerate() {
            assert_eq!(token[0], *wanted, "single step {at}: {sampling:?}");
            let position = 11 + at as u32;
            let row = Row::new(token[0], position, 1);
            context.step_rows(0, &[row], &[]).expect("a valid step");
            let pick = Choice {
                output: 0,
                slot: 1,
                position: position + 1,
                draft: None,
            };
            context.sample(&[pick], &mut token).expect("a valid pick");
        }
    }
}

/// Several slots in one chain: each has the tokens that it has alone, a step of all comes before the next one, and a
/// slot that stops leaves the others running.
pub fn slots_in_a_chain(device: &dyn Device, oracle: &dyn Device) {
    let table = random_table(50, 17);
    let model = Model {
        slots: 6,
        ..Model::small(18)
    };
    let cases = [
        (Case::look_up(device, &table, 6, 400), true),
        (Case::required(device, &model), false),
    ];
    for (case, exact) in cases {
        let mut context = case.open(device);
        let together = context.chain_slots().min(5);
        let most = case.program.passes[0].rows.min(case.program.slots);
        assert!((1..=most as usize).contains(&context.chain_slots()));
        // Slots in descending order, at different positions, for different times.
        let starts: Vec<ChainStart> = (0..together as u32)
            .map(|i| start(5 - i, 7 * i + 1, 3 * i, 10 + 5 * i))
            .collect();
        prepare(context.as_mut(), &starts);
        let emitted = chain(context.as_mut(), &starts);
        in_steps(&emitted, &starts);
        let mut other = case.open(if exact { oracle } else { device });
        prepare(other.as_mut(), &starts);
        for one in &starts {
            let alone = chain(other.as_mut(), &[*one]);
            let want = tokens_of(&alone, one.slot, one.position + 1);
            let got = tokens_of(&emitted, one.slot, one.position + 1);
            assert_eq!(got, want, "slot {}: {}", one.slot, case.what);
            assert_eq!(got.len() as u32, one.steps);
        }
    }
}

/// Fills the caches up to each start, and gives each slot sampling settings of its own.
fn prepare(context: &mut dyn Context, starts: &[ChainStart]) {
    let program = context.program().clone();
    let prompt = program.pass(PassKind::Prompt).expect("a prompt pass");
    for one in starts {
        let mut n = Numbers(one.slot.into());
        let rows = rows(&mut n, program.vocab, one.slot, 0, one.position);
        for part in rows.chunks(8) {
            context.step_rows(prompt, part, &[]).expect("a valid step");
        }
        let mut sampling = samplings()[one.slot as usize % 3];
        sampling.seed += u64::from(one.slot);
        let history = [one.slot, 2, one.token];
        let state = SlotState {
            sampling,
            bias: &[(one.slot, 0.7)],
            history: &history,
            ends: &[],
            ..SlotState::default()
        };
        set_slot(context, one.slot, state);
    }
}

/// Every slot that is still running has one token in each step.
fn in_steps(emitted: &[Emitted], starts: &[ChainStart]) {
    let mut rest = emitted;
    for step in 0.. {
        let mut live: Vec<u32> = starts
            .iter()
            .filter(|s| s.steps > step)
            .map(|s| s.slot)
            .collect();
        if live.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(live.len().min(rest.len()));
        let mut seen: Vec<u32> = now.iter().map(|e| e.slot).collect();
        seen.sort_unstable();
        live.sort_unstable();
        assert_eq!(seen, live, "slots of step {step}");
        rest = later;
    }
    assert!(rest.is_empty(), "tokens beyond the last step");
}

/// A slot stops at an end token, which is emitted; after its steps; when `emit` returns false. The others go on. What
/// was not emitted is not in the history.
pub fn stops(device: &dyn Device, _oracle: &dyn Device) {
    let cycle = Case::look_up(device, &cycle(), 3, 400);
    let mut context = cycle.open(device);
    let mut chained = |ends: &[u32], steps: u32| {
        let state = SlotState {
            ends,
            ..SlotState::default()
        };
        set_slot(context.as_mut(), 0, state);
        let emitted = chain(context.as_mut(), &[start(0, 1, 0, steps)]);
        tokens_of(&emitted, 0, 1)
    };
    assert_eq!(chained(&[9], 40), CYCLE[..8]);
    assert_eq!(chained(&[9, 10, 77], 40), CYCLE[..3]);
    assert_eq!(chained(&[8], 40), [8]);
    // The end token is the last of the budget, or comes right after it.
    assert_eq!(chained(&[9], 8), CYCLE[..8]);
    assert_eq!(chained(&[9], 7), CYCLE[..7]);
    // A token that is read does not end a chain; one that is made does.
    assert_eq!(chained(&[1], 40), CYCLE);
    assert_eq!(chained(&[], 5), CYCLE[..5]);
    assert_eq!(chained(&[], 0), [0u32; 0]);
    assert_eq!(chained(&[], 40).len(), 40);
    several_stops(context.as_mut());
    let model = Model::small(2);
    let table = random_table(50, 27);
    for case in [
        Case::look_up(device, &table, 2, 400),
        Case::required(device, &model),
    ] {
        refused_tokens(device, &case);
        sampled_end(device, &case);
    }
}

/// A sampled token that is among the ends is the last one.
fn sampled_end(device: &dyn Device, case: &Case) {
    let sampling = samplings()[1];
    let whole = decode(case.open(device).as_mut(), &[60], sampling);
    let end = whole[40];
    let first = whole[1..].iter().position(|t| *t == end);
    let first = first.expect("it is one of them") + 1;
    let mut context = case.open(device);
    let token = feed(context.as_mut(), sampling, &[100_000, end]);
    let emitted = chain(context.as_mut(), &[start(1, token, 11, 60)]);
    let tokens = tokens_of(&emitted, 1, 12);
    assert_eq!(tokens, whole[1..=first], "{}", case.what);
}

/// Three slots of which one meets an end token, one is refused, and one goes on.
fn several_stops(context: &mut dyn Context) {
    if context.chain_slots() < 3 {
        return;
    }
    for (slot, ends) in [(0, &[10][..]), (1, &[]), (2, &[77])] {
        let state = SlotState {
            ends,
            ..SlotState::default()
        };
        set_slot(context, slot, state);
    }
    let starts = [0, 1, 2].map(|slot| start(slot, 1, 10 * slot, 20));
    let mut emitted = Vec::new();
    let mut emit = |one: Emitted| {
        emitted.push(one);
        (one.slot, one.token) != (1, CYCLE[5])
    };
    let done = context.chain(&starts, &Control::default(), &mut emit);
    done.expect("a valid chain");
    assert_eq!(tokens_of(&emitted, 0, 1), CYCLE[..3]);
    assert_eq!(tokens_of(&emitted, 1, 11), CYCLE[..6]);
    let all = [&CYCLE[..], &CYCLE[..4]].concat();
    assert_eq!(tokens_of(&emitted, 2, 21), all);
}

/// Chains that `emit` ends one after the other make the tokens of one chain, with penalties that look at the history.
fn refused_tokens(device: &dyn Device, case: &Case) {
    let sampling = samplings()[1];
    let whole = decode(case.open(device).as_mut(), &[60], sampling);
    let mut context = case.open(device);
    let mut tokens = vec![feed(context.as_mut(), sampling, &[])];
    for length in [3, 1, 9, 20] {
        let (last, position) = (tokens[tokens.len() - 1], 10 + tokens.len() as u32);
        let mut left = length;
        let mut emit = |one: Emitted| {
            tokens.push(one.token);
            left -= 1;
            left > 0
        };
        let starts = [start(1, last, position, 50)];
        let done = context.chain(&starts, &Control::default(), &mut emit);
        done.expect("a valid chain");
        assert_eq!(left, 0, "the chain goes on after {length} tokens");
    }
    assert_eq!(tokens, whole[..34], "{}", case.what);
}

/// Another thread ends a chain within one token. The chain can go on later as if nothing had happened.
pub fn control(device: &dyn Device, _oracle: &dyn Device) {
    let model = Model::small(3);
    let table = random_table(50, 37);
    for case in [
        Case::look_up(device, &table, 2, 400),
        Case::required(device, &model),
    ] {
        let sampling = samplings()[2];
        let whole = decode(case.open(device).as_mut(), &[200], sampling);
        let mut context = case.open(device);
        let mut tokens = vec![feed(context.as_mut(), sampling, &[])];
        let control = Control::default();
        for length in [1, 5, 30] {
            let (last, position) = (tokens[tokens.len() - 1], 10 + tokens.len() as u32);
            let starts = [start(1, last, position, 150)];
            let mut new = Vec::new();
            stopped_by_a_thread(context.as_mut(), &starts, &control, length, &mut new);
            let count = new.len();
            let most = length + 1;
            assert!(
                (length..=most).contains(&count),
                "{count} tokens, stopped after {length}: {}",
                case.what
            );
            tokens.extend(new);
            // A chain that is stopped before it begins makes at most one token.
            let (last, position) = (tokens[tokens.len() - 1], 10 + tokens.len() as u32);
            let mut emit = |one: Emitted| {
                tokens.push(one.token);
                true
            };
            let starts = [start(1, last, position, 150)];
            let before = context.chain(&starts, &control, &mut emit);
            before.expect("a valid chain");
            assert!(tokens.len() as u32 - (position - 10) <= 1, "not stopped");
            control.clear();
        }
        let (last, position) = (tokens[tokens.len() - 1], 10 + tokens.len() as u32);
        let rest = chain(context.as_mut(), &[start(1, last, position, 50)]);
        tokens.extend(tokens_of(&rest, 1, position + 1));
        assert_eq!(tokens, whole[..tokens.len()], "{}", case.what);
    }
}

/// Runs a chain whose control another thread sets while token number `length` is being emitted.
fn stopped_by_a_thread(
    context: &mut dyn Context,
    starts: &[ChainStart],
    control: &Control,
    length: usize,
    tokens: &mut Vec<u32>,
) {
    let (asks, asked) = mpsc::channel::<()>();
    let (answers, answered) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Dropped before the thread is joined, so that a panic does not leave it waiting.
        let asks = asks;
        scope.spawn(move || {
            if asked.recv().is_ok() {
                control.stop();
                let _ = answers.send(());
            }
        });
        let mut emit = |one: Emitted| {
            tokens.push(one.token);
            if tokens.len() == length {
                asks.send(()).expect("the thread listens");
                answered.recv().expect("the thread answers");
            }
            true
        };
        let done = context.chain(starts, control, &mut emit);
        done.expect("a valid chain");
    });
}
