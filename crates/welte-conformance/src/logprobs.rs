//! Probabilities of tokens, against the oracle.

use super::case::{Case, chain, refused, set_slot, start};
use super::made::Numbers;
use welte_device::{Context, Device, LogprobQuery, Logprobs, SlotState, Step, StepOptions};
use welte_table::{Row, Sampling};

/// The largest difference between a device's logarithm and the oracle's, for logarithms down to -64. Below, it is this
/// part of 1/64 of the value.
const TOLERANCE: f32 = 2e-5;

/// Random rows of small and large vocabularies, several at a time, against the oracle; invalid queries are refused.
pub fn logprobs(device: &dyn Device, oracle: &dyn Device) {
    let n = &mut Numbers(8);
    for vocab in [1u32, 3, 70, 1000, 5003] {
        let table: Vec<Vec<f32>> = (0..vocab.min(40)).map(|_| n.logits(vocab)).collect();
        let table: Vec<Vec<f32>> = (0..vocab as usize)
            .map(|t| table[t % table.len()].clone())
            .collect();
        let case = Case::look_up(device, &table, 4, 100);
        let (mut context, mut plain) = (case.open(device), case.open(oracle));
        for turn in 0..20 {
            let rows = [0, 1, 2, 3].map(|slot| Row::new(n.below(vocab), turn, slot));
            let queries: Vec<LogprobQuery> = (0..6)
                .map(|_| LogprobQuery {
                    output: n.below(4),
                    token: n.below(vocab),
                    top: n.pick(&[0, 1, 5, 20]),
                })
                .collect();
            let got = ask(context.as_mut(), &rows, &queries);
            let want = ask(plain.as_mut(), &rows, &queries);
            for ((got, want), query) in got.iter().zip(&want).zip(&queries) {
                let what = format!("vocabulary {vocab}, turn {turn}, {query:?}");
                assert_eq!(got.token(), query.token, "{what}");
                close(got.logprob(), want.logprob(), &what);
                assert_eq!(got.top().len(), want.top().len(), "{what}");
                for (got, want) in got.top().iter().zip(want.top()) {
                    assert_eq!(got.0, want.0, "{what}");
                    close(got.1, want.1, &what);
                }
                let own = rows[query.output as usize];
                let row = Row::new(own.token(), own.position, 0);
                let alone = LogprobQuery {
                    output: 0,
                    ..*query
                };
                let alone = ask(context.as_mut(), &[row], &[alone])[0];
                assert_eq!(alone, *got, "alone and together: {what}");
            }
            let sampled = ask_sampled(context.as_mut(), &rows, &queries);
            assert_eq!(
                sampled, got,
                "vocabulary {vocab}, turn {turn}: after sampling"
            );
        }
    }
    refusals(device);
}

/// Chains of one slot and of several report for each token what a query about its step answers. Slots that want other numbers of
/// likeliest tokens, or none, do not change each other.
pub fn logprobs_of_chains(device: &dyn Device, _oracle: &dyn Device) {
    const STEPS: u32 = 12;
    let n = &mut Numbers(31);
    for vocab in [3u32, 70, 5003] {
        let table: Vec<Vec<f32>> = (0..vocab.min(40)).map(|_| n.logits(vocab)).collect();
        let table: Vec<Vec<f32>> = (0..vocab as usize)
            .map(|t| table[t % table.len()].clone())
            .collect();
        let case = Case::look_up(device, &table, 3, 100);
        let mut context = case.open(device);
        let most = context.chain_slots().min(3);
        for (temperature, tops) in [
            (0.0, [Some(20), Some(0), None]),
            (0.9, [Some(3), None, Some(20)]),
        ] {
            for slots in [1, most] {
                let mut starts = Vec::new();
                for (slot, logprobs) in (0..slots as u32).zip(tops) {
                    let sampling = Sampling {
                        temperature,
                        seed: n.next(),
                        repeat_penalty: if slot == 1 { 1.1 } else { 1.0 },
                        ..Sampling::default()
                    };
                    let state = SlotState {
                        sampling,
                        logprobs,
                        ..SlotState::default()
                    };
                    set_slot(context.as_mut(), slot, state);
                    starts.push(start(slot, n.below(vocab), 0, STEPS - slot));
                }
                let emitted = chain(context.as_mut(), &starts);
                for begin in &starts {
                    let mut token = begin.token;
                    let own = emitted.iter().filter(|one| one.slot == begin.slot);
                    assert_eq!(own.clone().count() as u32, begin.steps);
                    for one in own {
                        let row = Row::new(token, one.position - 1, one.slot);
                        token = one.token;
                        let want = tops[one.slot as usize].map(|top| {
                            let output = 0;
                            let query = LogprobQuery { output, token, top };
                            ask(context.as_mut(), &[row], &[query])[0]
                        });
                        let what = format!("vocabulary {vocab}, {slots} slots, {row:?}");
                        assert_eq!(one.logprobs, want, "{what}");
                    }
                }
            }
        }
        let state = SlotState {
            logprobs: Some(21),
            ..SlotState::default()
        };
        refused(context.set_slot(0, &state), "too many of the likeliest");
    }
}

/// The answers after a step over these rows.
fn ask(context: &mut dyn Context, rows: &[Row], queries: &[LogprobQuery]) -> Vec<Logprobs> {
    context.step_rows(0, rows, &[]).expect("a valid step");
    let mut answers = vec![Logprobs::default(); queries.len()];
    context
        .logprobs(queries, &mut answers)
        .expect("valid queries");
    answers
}

/// The answers after a step that has sampled for each of these rows.
fn ask_sampled(context: &mut dyn Context, rows: &[Row], queries: &[LogprobQuery]) -> Vec<Logprobs> {
    for row in rows {
        set_slot(context, row.slot, SlotState::default());
    }
    let mut tokens = vec![0; rows.len()];
    let options = StepOptions::tokens(&mut tokens);
    let sampled = context.step(&Step::choosing(rows), options);
    sampled.expect("a valid step");
    let mut answers = vec![Logprobs::default(); queries.len()];
    let answered = context.logprobs(queries, &mut answers);
    answered.expect("valid queries");
    answers
}

#[track_caller]
fn close(got: f32, want: f32, what: &str) {
    let allowed = TOLERANCE * (want.abs() / 64.0).max(1.0);
    let same = got == want || (got - want).abs() <= allowed;
    assert!(same, "{got}, the oracle says {want}: {what}");
}

fn refusals(device: &dyn Device) {
    let table = vec![vec![0.0, 1.0, 2.0]; 3];
    let case = Case::look_up(device, &table, 2, 10);
    let mut context = case.open(device);
    let query = |output, token, top| LogprobQuery { output, token, top };
    let mut answer = [Logprobs::default()];
    let early = context.logprobs(&[query(0, 0, 0)], &mut answer);
    refused(early, "a query before the first step");
    let rows = [Row::default()];
    context.step_rows(0, &rows, &[]).expect("a valid step");
    for (what, asked) in [
        ("an unknown output", query(1, 0, 0)),
        ("a token beyond the vocabulary", query(0, 3, 0)),
        ("too many of the likeliest", query(0, 0, 21)),
    ] {
        refused(context.logprobs(&[asked], &mut answer), what);
    }
    let no_room = context.logprobs(&[query(0, 0, 0)], &mut []);
    refused(no_room, "a query without room for its answer");
    assert_eq!(
        ask(context.as_mut(), &rows, &[query(0, 2, 20)])[0]
            .top()
            .len(),
        3
    );
}
