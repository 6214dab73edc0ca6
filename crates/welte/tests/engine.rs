//! What an engine promises to those who share it: arrival, cancellation, priorities, deadlines, limits, and faults that end
//! only the requests they touch.

mod common;
#[path = "common/spy.rs"]
mod spy;

use common::*;
use spy::{Spy, Watch};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use welte::{
    Clock, DeviceChoice, Driver, Engine, EngineOptions, Error, Model, Request, Status, StopReason,
    Stream,
};

/// A tiny model with `slots` slots.
fn with_slots(slots: u32) -> Model {
    load(TINY, &with(options(DeviceChoice::CPU), |o| o.slots = slots))
}

/// A request for exactly `tokens` tokens.
fn request(prompt: Vec<u32>, tokens: usize) -> Request {
    with(Request::new(prompt), |r| {
        r.options.max_tokens = tokens;
        r.options.ignore_end = true;
    })
}

/// Its text by itself.
fn alone(model: &Model, request: &Request) -> Vec<u32> {
    let engine = Engine::new(model, &EngineOptions::default()).unwrap();
    let request = with(request.clone(), |r| r.prefix_cache = false);
    engine.submit(request).unwrap().complete().unwrap().1.tokens
}

type Wrap = Box<dyn FnMut(Box<dyn welte::Context>) -> Box<dyn welte::Context> + Send>;

fn watched(watch: &Arc<Watch>) -> Wrap {
    let watch = watch.clone();
    Box::new(move |context| Box::new(Spy::new(context, &watch, None, true)))
}

fn by_hand(model: &Model, options: &EngineOptions) -> (Engine, Driver, Arc<Watch>) {
    let watch = Arc::default();
    let (engine, driver) = Engine::without_thread(model, options, watched(&watch)).unwrap();
    (engine, driver, watch)
}

/// The tokens that have come. `None` in the end: the stream goes on.
fn arrived(stream: &mut Stream) -> (Vec<u32>, Option<Result<(), Error>>) {
    let mut tokens = Vec::new();
    loop {
        match stream.poll_token() {
            Poll::Ready(Some(Ok(token))) => tokens.push(token),
            Poll::Ready(Some(Err(error))) => return (tokens, Some(Err(error))),
            Poll::Ready(None) => return (tokens, Some(Ok(()))),
            Poll::Pending => return (tokens, None),
        }
    }
}

/// Turns until the stream has ended.
fn finish(driver: &mut Driver, stream: &mut Stream) -> Result<Vec<u32>, Error> {
    let mut tokens = Vec::new();
    loop {
        let (more, end) = arrived(stream);
        tokens.extend(more);
        match end {
            Some(Ok(())) => return Ok(tokens),
            Some(Err(error)) => return Err(error),
            None => driver.turn()?,
        }
    }
}

#[test]
fn an_arriving_request_ends_a_chain_and_both_go_on_together() {
    let model = with_slots(2);
    let (first, second) = (
        request(prompt(9, &model), 100),
        request(prompt(5, &model), 20),
    );
    let wanted = (alone(&model, &first), alone(&model, &second));
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let mut one = engine.submit(first).unwrap();
    let mut tokens = vec![one.next_token().unwrap().unwrap()];
    let two = engine.submit(second).unwrap();
    assert_eq!(two.complete().unwrap().1.tokens, wanted.1);
    while let Some(token) = one.next_token() {
        tokens.push(token.unwrap());
    }
    assert_eq!(tokens, wanted.0);
}

#[test]
fn a_dropped_stream_ends_at_the_next_token() {
    let model = with_slots(1);
    let (engine, mut driver, watch) = by_hand(&model, &EngineOptions::default());
    let stream = engine.submit(request(prompt(9, &model), 200)).unwrap();
    drop(stream);
    driver.turn().unwrap();
    assert!(driver.is_idle());
    assert_eq!(watch.emitted.load(SeqCst), 0);
    // While it decodes.
    let mut stream = engine
        .submit(with(request(prompt(9, &model), 200), |r| {
            r.options.chain = Some(5)
        }))
        .unwrap();
    driver.turn().unwrap();
    assert_eq!(arrived(&mut stream).0.len(), 6);
    drop(stream);
    driver.turn().unwrap();
    assert_eq!(watch.emitted.load(SeqCst), 5);
    assert_eq!(engine.status().running, 0);
}

#[test]
fn cancelling_ends_a_chain_at_the_next_token() {
    let model = with_slots(1);
    let watch: Arc<Watch> = Arc::default();
    let engine = Engine::on_context(&model, &EngineOptions::default(), watched(&watch)).unwrap();
    let mut stream = engine.submit(request(prompt(9, &model), 240)).unwrap();
    let handle = stream.cancel_handle();
    stream.next_token().unwrap().unwrap();
    handle.cancel();
    assert!(stream.next_token().is_none());
    assert_eq!(stream.outcome().unwrap().stop, StopReason::Cancelled);
    assert_eq!(stream.outcome().unwrap().tokens.len(), 1);
    assert!(!handle.is_cancelled());
    // The slot is free again, for as long as nobody asks for more than there is.
    let next = engine.submit(request(prompt(4, &model), 3)).unwrap();
    assert_eq!(next.complete().unwrap().1.tokens.len(), 3);
}

#[test]
fn cancelling_a_prompt_keeps_the_pieces_that_are_done() {
    let model = with_slots(1);
    let (engine, mut driver, _) = by_hand(&model, &EngineOptions::default());
    let prompt = prompt(200, &model);
    let mut stream = engine.submit(request(prompt.clone(), 5)).unwrap();
    (0..3).for_each(|_| driver.turn().unwrap());
    stream.cancel_handle().cancel();
    driver.turn().unwrap();
    assert!(driver.is_idle());
    assert_eq!(finish(&mut driver, &mut stream).unwrap().len(), 0);
    let mut again = engine.submit(request(prompt, 5)).unwrap();
    finish(&mut driver, &mut again).unwrap();
    // Pieces have 32 rows.
    assert_eq!(again.outcome().unwrap().cached_tokens, 96);
}

#[test]
fn the_urgent_come_first_then_the_old() {
    let model = with_slots(1);
    let (engine, mut driver, _) = by_hand(&model, &EngineOptions::default());
    let mut streams: Vec<Stream> = [0, 1, 0, 1]
        .map(|priority| {
            let request = with(request(prompt(4, &model), 1), |r| r.priority = priority);
            engine.submit(request).unwrap()
        })
        .into();
    let mut order = Vec::new();
    while order.len() < 4 {
        driver.turn().unwrap();
        for (number, stream) in streams.iter_mut().enumerate() {
            if arrived(stream).1.is_some() && !order.contains(&number) {
                order.push(number);
            }
        }
    }
    assert_eq!(order, [1, 3, 0, 2]);
}

#[test]
fn deadlines_end_what_waits_and_what_runs() {
    let model = with_slots(1);
    let clock = Clock::simulated();
    let options = with(EngineOptions::default(), |o| o.clock = clock.clone());
    let (engine, mut driver, _) = by_hand(&model, &options);
    let soon = clock.now() + Duration::from_millis(50);
    let mut runs = engine
        .submit(with(request(prompt(4, &model), 200), |r| {
            r.deadline = Some(soon);
            r.options.chain = Some(3);
        }))
        .unwrap();
    let mut waits = engine
        .submit(with(request(prompt(4, &model), 5), |r| {
            r.deadline = Some(soon)
        }))
        .unwrap();
    driver.turn().unwrap();
    clock.advance(Duration::from_millis(50));
    let tokens = finish(&mut driver, &mut runs).unwrap();
    assert!(tokens.len() < 200);
    assert_eq!(runs.outcome().unwrap().stop, StopReason::Deadline);
    assert!(matches!(
        finish(&mut driver, &mut waits),
        Err(Error::Deadline)
    ));
}

#[test]
fn a_full_queue_refuses() {
    let model = with_slots(1);
    let options = with(EngineOptions::default(), |o| o.queue = 2);
    let (engine, mut driver, _) = by_hand(&model, &options);
    let submit = || engine.submit(request(prompt(4, &model), 1));
    let mut streams = [submit().unwrap(), submit().unwrap(), submit().unwrap()];
    let refused = submit().err().unwrap();
    assert!(matches!(refused, Error::Busy { queue: 2 }), "{refused}");
    for stream in &mut streams {
        assert_eq!(finish(&mut driver, stream).unwrap().len(), 1);
    }
    assert_eq!(
        finish(&mut driver, &mut submit().unwrap()).unwrap().len(),
        1
    );
}

#[test]
fn a_prompt_longer_than_the_pool_is_refused_with_numbers() {
    let options = with(options(DeviceChoice::CPU), |o| {
        (o.slots, o.cache_positions) = (4, 128);
    });
    let model = load(TINY, &options);
    assert_eq!(model.context(), 128);
    let refused = model
        .engine()
        .unwrap()
        .submit(request(prompt(128, &model), 1));
    assert!(matches!(
        refused.err().unwrap(),
        Error::ContextFull {
            prompt: 128,
            context: 128
        }
    ));
    // One that fits runs, whatever the others need.
    let fits = request(prompt(100, &model), 28);
    let wanted = alone(&model, &fits);
    let engine = model.engine().unwrap();
    let streams: Vec<Stream> = (0..4)
        .map(|_| engine.submit(fits.clone()).unwrap())
        .collect();
    for stream in streams {
        assert_eq!(stream.complete().unwrap().1.tokens, wanted);
    }
}

#[test]
fn a_preempted_request_does_not_notice() {
    let options = with(options(DeviceChoice::CPU), |o| {
        (o.slots, o.cache_positions) = (3, 256);
    });
    let model = load(TINY, &options);
    let requests = [3u32, 70, 40].map(|first| {
        let prompt = prompt(100, &model)[first as usize..].to_vec();
        with(request(prompt, 120), |r| {
            r.options.sampling = sampled(first.into());
            r.exact = true;
        })
    });
    let wanted = requests.clone().map(|request| alone(&model, &request));
    let (engine, mut driver, _) = by_hand(&model, &EngineOptions::default());
    let mut streams = requests.map(|request| engine.submit(request).unwrap());
    let mut preemptions = 0;
    for (stream, wanted) in streams.iter_mut().zip(&wanted) {
        assert_eq!(&finish(&mut driver, stream).unwrap(), wanted);
        preemptions += stream.outcome().unwrap().preemptions;
    }
    assert!(preemptions > 0);
    // The oldest is never preempted.
    assert_eq!(streams[0].outcome().unwrap().preemptions, 0);
}

/// How each request ended, and its text alone.
type Ends = Vec<(Result<Vec<u32>, Error>, Vec<u32>)>;

/// Two requests run; the call after `calls` further ones fails. Then a third comes.
fn fault(calls: usize, lost: bool) -> (Ends, Arc<Watch>) {
    let model = with_slots(2);
    // The second has a long prompt, so that steps and chains belong to one or both.
    let all = [
        request(prompt(9, &model), 40),
        request(prompt(150, &model), 40),
        request(prompt(20, &model), 10),
    ];
    let wanted: Vec<_> = all.iter().map(|r| alone(&model, r)).collect();
    let (engine, mut driver, watch) = by_hand(&model, &EngineOptions::default());
    watch.lost.store(usize::from(lost), SeqCst);
    let mut streams: Vec<Stream> = all.into_iter().map(|r| engine.submit(r).unwrap()).collect();
    watch.fail_in.store(calls, SeqCst);
    let results = streams.iter_mut().map(|s| finish(&mut driver, s));
    let ends = results.zip(wanted).collect();
    engine.forget_prefixes();
    driver.turn().unwrap();
    let Status {
        free_pages, pages, ..
    } = engine.status();
    assert_eq!(free_pages, pages);
    (ends, watch)
}

#[test]
fn a_fault_ends_the_requests_it_touched_and_no_others() {
    for lost in [false, true] {
        let mut outcomes = Vec::new();
        for calls in 1..12 {
            let (ends, watch) = fault(calls, lost);
            let mut failed = 0;
            for (result, wanted) in &ends {
                match result {
                    Ok(tokens) => assert_eq!(tokens, wanted, "call {calls}"),
                    Err(Error::Fault(error)) => {
                        assert!(error.to_string().contains("a planted fault"));
                        failed += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(watch.fail_in.load(SeqCst), 0, "the fault did not come");
            assert_eq!(watch.contexts.load(SeqCst), 1 + usize::from(lost));
            outcomes.push(failed);
        }
        // Steps of one, and chains of both.
        assert!(
            outcomes.contains(&1) && outcomes.contains(&2),
            "{outcomes:?}"
        );
        assert!(
            !outcomes.contains(&0) && !outcomes.contains(&3),
            "{outcomes:?}"
        );
    }
}

#[test]
fn a_panic_ends_all_requests_with_an_error() {
    let model = with_slots(2);
    let watch: Arc<Watch> = Arc::default();
    let engine = Engine::on_context(&model, &EngineOptions::default(), watched(&watch)).unwrap();
    watch.panics.store(1, SeqCst);
    watch.fail_in.store(3, SeqCst);
    let submit = || engine.submit(request(prompt(60, &model), 100));
    let streams = [submit(), submit(), submit()];
    for stream in streams.into_iter().flatten() {
        let error = stream.complete().err().unwrap();
        assert!(error.to_string().contains("a planted panic"), "{error}");
    }
    let error = submit().err().unwrap();
    assert!(
        matches!(error, Error::EngineStopped { why: Some(_) }),
        "{error}"
    );
}

#[test]
fn shutting_down_ends_what_runs() {
    let model = with_slots(1);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let mut stream = engine.submit(request(prompt(9, &model), 240)).unwrap();
    stream.next_token().unwrap().unwrap();
    engine.shutdown();
    let ended = std::iter::from_fn(|| stream.next_token()).last();
    assert!(matches!(
        ended,
        None | Some(Err(Error::EngineStopped { why: None }))
    ));
    let refused = engine.submit(request(prompt(9, &model), 1)).err().unwrap();
    assert!(matches!(refused, Error::EngineStopped { why: None }));
}

#[test]
fn a_chain_of_fewer_slots_than_run_is_replaced_by_steps() {
    let model = with_slots(3);
    let watch: Arc<Watch> = Arc::default();
    let (watched, all) = (watch.clone(), [5, 30, 60]);
    let wrap = move |context| -> Box<dyn welte::Context> {
        let spy = Spy::new(context, &watched, None, true).with_chain_slots(1);
        // Small pieces of prompts would let the last stream begin late, so that it is alone for longer.
        Box::new(spy.without_mixed_steps())
    };
    let (engine, mut driver) =
        Engine::without_thread(&model, &EngineOptions::default(), Box::new(wrap)).unwrap();
    let requests = all.map(|n| {
        with(request(prompt(n, &model), n), |r| {
            r.options.sampling = sampled(n as u64)
        })
    });
    let wanted = requests.clone().map(|request| alone(&model, &request));
    let mut streams = requests.map(|request| engine.submit(request).unwrap());
    for (stream, wanted) in streams.iter_mut().zip(&wanted) {
        assert_eq!(&finish(&mut driver, stream).unwrap(), wanted);
    }
    // Most tokens were made by steps: chains are for the one that is left.
    assert!(watch.emitted.load(SeqCst) <= 60 - 25);
}

/// Counts how often it is called.
struct Bell(std::thread::Thread);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_stream_can_be_awaited() {
    let model = demo(DeviceChoice::CPU);
    let asked = with(Request::new(story(&model)), |r| r.options.max_tokens = 30);
    let engine = model.engine().unwrap();
    let (wanted, _) = engine.submit(asked.clone()).unwrap().complete().unwrap();
    let stream = engine.submit(asked).unwrap();
    let text = async move {
        let (mut stream, mut text) = (pin!(stream), String::new());
        let next =
            |context: &mut Context<'_>| futures_core::Stream::poll_next(stream.as_mut(), context);
        let mut next = next;
        while let Some(piece) = std::future::poll_fn(&mut next).await {
            text.push_str(&piece.unwrap());
        }
        text
    };
    let mut text = pin!(text);
    let waker = Waker::from(Arc::new(Bell(std::thread::current())));
    let text = loop {
        match text.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(text) => break text,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(text, wanted);
    assert!(!text.is_empty());
}

#[test]
fn equal_prompts_are_computed_once() {
    let options = with(options(DeviceChoice::CPU), |o| {
        (o.slots, o.prompt_rows) = (4, 256)
    });
    let model = load(TINY, &options);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let page = model.program().page as usize;
    let submit = |seed| {
        let mut request = Request::new(prompt(150, &model));
        request.options.max_tokens = 5;
        request.options.sampling = sampled(seed);
        engine.submit(request).unwrap()
    };
    // A prompt that begins otherwise does not wait.
    let mut other = Request::new(prompt(150, &model)[1..].to_vec());
    other.options.max_tokens = 5;
    let streams: Vec<Stream> = (0..4).map(submit).collect();
    let other = engine.submit(other).unwrap();
    let outcomes = streams.into_iter().map(|s| s.complete().unwrap().1);
    let cached: Vec<usize> = outcomes.map(|outcome| outcome.cached_tokens).collect();
    assert_eq!(
        cached.iter().filter(|count| **count == 0).count(),
        1,
        "{cached:?}"
    );
    assert!(
        cached
            .iter()
            .all(|count| [0, 149 / page * page, 149].contains(count)),
        "{cached:?}"
    );
    assert_eq!(other.complete().unwrap().1.cached_tokens, 0);
}

/// Without a page for the copy of a state, nothing can be reused, and nothing is said to be.
#[test]
fn what_could_not_be_reused_is_not_reported_as_cached() {
    let options = with(options(DeviceChoice::CPU), |o| o.checkpoints = 0);
    let model = load(
        "synthetic:custom,arch=qwen35,layers=4,vocab=512:q8_0",
        &options,
    );
    let (engine, mut driver, _) = by_hand(&model, &EngineOptions::default());
    let mut computed = 0;
    for _ in 0..2 {
        let mut stream = engine.submit(request(prompt(132, &model), 3)).unwrap();
        finish(&mut driver, &mut stream).unwrap();
        engine.ask_snapshot();
        driver.turn().unwrap();
        let all = engine.take_snapshot().unwrap().prompt_tokens;
        let cached = stream.outcome().unwrap().cached_tokens as u64;
        assert_eq!(cached + all - computed, 132);
        computed = all;
    }
}

/// The steps of a prompt are cut between spans that attend both ways, also where the pieces of prompts are short because others
/// decode. What a span sees does not depend on the cuts.
#[test]
fn spans_that_attend_both_ways_are_never_cut() {
    let sized = |rows| {
        with(options(DeviceChoice::CPU), |o| {
            (o.slots, o.prompt_rows) = (2, rows);
        })
    };
    let (small, large) = (load(TINY, &sized(32)), load(TINY, &sized(128)));
    let spans = vec![5..9, 20..45, 45..75, 88..90];
    let plain = request(prompt(100, &small), 12);
    let spanned = with(plain.clone(), |r| r.both_ways = spans);
    // All in one step.
    let wanted = alone(&large, &spanned);
    assert_ne!(wanted, alone(&large, &plain));
    assert_eq!(alone(&small, &spanned), wanted);
    let engine = Engine::new(&small, &EngineOptions::default()).unwrap();
    let mut other = engine.submit(request(prompt(7, &small), 150)).unwrap();
    other.next_token().unwrap().unwrap();
    for _ in 0..2 {
        let stream = engine.submit(spanned.clone()).unwrap();
        assert_eq!(stream.complete().unwrap().1.tokens, wanted);
    }
}

fn one(span: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(span).collect()
}

#[test]
fn spans_that_no_step_could_have_are_refused() {
    let model = with_slots(2);
    let engine = model.engine().unwrap();
    let refused = |change: &dyn Fn(&mut Request)| {
        let request = with(request(prompt(60, &model), 5), change);
        match engine.submit(request) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("accepted"),
        }
    };
    let order = "must lie in the prompt, one after the other";
    let length = "a step takes 1 to 30";
    for (spans, why) in [
        (vec![5..9, 8..12], order),
        (vec![30..40, 5..9], order),
        (one(50..61), order),
        (one(5..36), "span 5..36 has 31 tokens"),
        (one(5..36), length),
        (vec![5..9, 10..10], length),
    ] {
        let said = refused(&|r| r.both_ways = spans.clone());
        assert!(said.contains(why), "{spans:?}: {said}");
    }
    let said = refused(&|r| {
        (r.both_ways, r.options.prompt_logprobs) = (one(5..9), Some(0));
    });
    assert!(said.contains("prompt_logprobs"), "{said}");
    let reversed = refused(&|r| r.both_ways = one(Range { start: 9, end: 5 }));
    assert!(reversed.contains(length), "{reversed}");
    let reference = with(options("reference".parse().unwrap()), |o| o.slots = 2);
    let reference = load(TINY, &reference);
    let spanned = with(request(prompt(20, &reference), 4), |r| {
        r.both_ways = one(5..9)
    });
    alone(&reference, &spanned);
}
