//! From the first token of a batch to the last, the whole process allocates nothing.

#[path = "common/allocations.rs"]
mod allocations;
mod common;

use common::*;
use welte::{DeviceChoice, Engine, EngineOptions, Request, Speculation, Stream, SyntheticDraft};

#[test]
fn a_running_batch_allocates_nothing() {
    // One after the other, because other tests' allocations count.
    allocates_nothing(1);
    allocates_nothing(2);
}

fn allocates_nothing(ranks: u32) {
    let options = with(options(DeviceChoice::CPU), |o| {
        o.ranks = ranks;
        // Pages run out, so sequences are preempted while allocations are counted.
        (o.slots, o.cache_positions) = (4, 512);
    });
    let model = load(TINY, &options);
    // Guesses are verified wherever there are any.
    let engine = |speculation| {
        let how = with(EngineOptions::default(), |o| {
            (o.speculation, o.speculate_always) = (speculation, true);
        });
        Engine::new(&model, &how).unwrap()
    };
    let (plain, drafting) = (
        engine(Speculation::Off),
        engine(Speculation::Model(model.clone())),
    );
    let mut preemptions = 0;
    for round in 0..4u64 {
        let by_model = round % 2 == 1;
        let engine = if by_model { &drafting } else { &plain };
        let submit = |n: u64| {
            let mut request = Request::new(prompt(30 + 20 * n as usize, &model));
            request.options.max_tokens = 120;
            request.options.ignore_end = true;
            request.options.sampling = sampled(10 * round + n);
            request.synthetic_draft = (!by_model).then(|| SyntheticDraft {
                agreement: 0.5,
                ..SyntheticDraft::default()
            });
            engine.submit(request).unwrap()
        };
        let mut streams: Vec<Stream> = (0..4).map(submit).collect();
        for stream in &mut streams {
            stream.next_token().unwrap().unwrap();
        }
        let (tokens, allocated) = allocations::count(|| {
            let mut tokens = 0;
            for stream in &mut streams {
                // The last token ends the stream, and its outcome is allocated.
                for _ in 0..118 {
                    tokens += usize::from(matches!(stream.next_token(), Some(Ok(_))));
                }
            }
            tokens
        });
        assert_eq!((tokens, allocated), (4 * 118, 0));
        let outcomes = streams.into_iter().map(|s| s.complete().unwrap().1);
        let mut drafted = 0;
        for outcome in outcomes {
            preemptions += outcome.preemptions;
            drafted += outcome.speculated.drafted;
        }
        assert!(drafted > 0);
    }
    // Right guesses free pages early, so a round with a draft model may preempt nobody.
    assert!(preemptions > 0);
}
