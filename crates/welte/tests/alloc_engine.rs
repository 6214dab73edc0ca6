//! From the first token of a batch to the last, the whole process allocates nothing.

#[path = "common/allocations.rs"]
mod allocations;
mod common;

use common::*;
use welte::{DeviceChoice, Engine, EngineOptions, Request, Stream};

#[test]
fn a_running_batch_allocates_nothing() {
    let options = with(options(DeviceChoice::CPU), |o| {
        // Pages run out, so sequences are preempted while allocations are counted.
        (o.slots, o.cache_positions) = (4, 512);
    });
    let model = load(TINY, &options);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    for round in 0..2u64 {
        let submit = |n: u64| {
            let mut request = Request::new(prompt(30 + 20 * n as usize, &model));
            request.options.max_tokens = 120;
            request.options.ignore_end = true;
            request.options.sampling = sampled(10 * round + n);
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
        let preemptions: u32 = outcomes.map(|outcome| outcome.preemptions).sum();
        assert!(preemptions > 0);
    }
}
