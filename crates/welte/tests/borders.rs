//! What holds at the borders: of chunks, spans, pools and checkpoints.

mod common;

use common::*;
use std::task::Poll;
use welte::{
    DeviceChoice, Driver, Engine, EngineOptions, Error, Model, Outcome, Request, divergence,
    perplexity,
};

fn by_hand(model: &Model) -> (Engine, Driver) {
    let options = EngineOptions::default();
    Engine::without_thread(model, &options, Box::new(|context| context)).unwrap()
}

/// A request for exactly `tokens` tokens.
fn request(prompt: Vec<u32>, tokens: usize) -> Request {
    with(Request::new(prompt), |r| {
        r.options.max_tokens = tokens;
        r.options.ignore_end = true;
    })
}

fn complete(engine: &Engine, request: Request) -> Outcome {
    engine.submit(request).unwrap().complete().unwrap().1
}

/// A chunk may be as long as the context, and a text has at least two chunks.
#[test]
fn chunks_fill_the_context() {
    let model = load(TINY, &with(options(DeviceChoice::CPU), |o| o.context = 16));
    let tokens = prompt(32, &model);
    let scores = |chunk: usize, tokens: &[u32]| {
        let (mut own, mut base) = (model.stepper().unwrap(), model.stepper().unwrap());
        let apart = divergence(&mut own, &mut base, tokens, chunk, None, &mut |_| true);
        let score = perplexity(&mut own, tokens, chunk, None, &mut |_| true);
        let apart = apart.map(|d| d.positions);
        (apart, score.map(|s| s.chunks))
    };
    for (chunk, chunks) in [(16, 2), (5, 6), (4, 8)] {
        let (apart, score) = scores(chunk, &tokens);
        assert!(apart.unwrap() > 0);
        assert_eq!(score.unwrap(), chunks);
    }
    for chunk in [3, 17] {
        let (apart, score) = scores(chunk, &tokens);
        assert!(matches!(apart, Err(Error::ChunkSize { .. })), "{chunk}");
        assert!(matches!(score, Err(Error::ChunkSize { .. })), "{chunk}");
    }
    let (apart, score) = scores(16, &tokens[..31]);
    assert!(matches!(apart, Err(Error::TooShort { .. })));
    assert!(matches!(score, Err(Error::TooShort { .. })));
}

#[test]
fn a_span_may_end_with_the_prompt() {
    let model = tiny(DeviceChoice::CPU);
    let engine = model.engine().unwrap();
    let spanned = |end: usize| {
        with(request(prompt(40, &model), 3), |r| {
            r.both_ways = vec![5..9, 20..end]
        })
    };
    assert_eq!(complete(&engine, spanned(40)).tokens.len(), 3);
    assert!(engine.submit(spanned(41)).is_err());
}

/// Pages that several requests share are held once.
#[test]
fn held_pages_are_counted_once() {
    let model = load(TINY, &with(options(DeviceChoice::CPU), |o| o.slots = 3));
    let (engine, mut driver) = by_hand(&model);
    let text = prompt(140, &model);
    let mut streams: Vec<_> = (0..3)
        .map(|_| engine.submit(request(text.clone(), 30)).unwrap())
        .collect();
    let mut most = 0;
    while !driver.is_idle() {
        driver.turn().unwrap();
        let status = engine.status();
        assert!(
            status.held_pages <= status.pages - status.free_pages,
            "{status:?}"
        );
        most = most.max(status.running);
        for stream in &mut streams {
            while let Poll::Ready(Some(token)) = stream.poll_token() {
                token.unwrap();
            }
        }
    }
    assert_eq!(most, 3);
    let status = engine.status();
    assert_eq!(
        (status.running, status.waiting, status.free_slots),
        (0, 0, 3)
    );
    assert_eq!(status.held_pages, 0);
}

/// The tokens of the pieces so far come in order, each once.
#[test]
fn tokens_are_taken_once() {
    let model = demo(DeviceChoice::CPU);
    let engine = model.engine().unwrap();
    let mut stream = engine.submit(request(story(&model), 40)).unwrap();
    let (mut taken, mut text) = (Vec::new(), String::new());
    while let Some(piece) = stream.next() {
        text.push_str(&piece.unwrap());
        if stream.outcome().is_none() {
            taken.extend_from_slice(stream.take_tokens());
            assert_eq!(model.tokenizer().unwrap().decode(&taken), text);
        }
    }
    assert!(taken.len() > 20, "{}", taken.len());
    taken.extend_from_slice(stream.take_tokens());
    assert!(stream.take_tokens().is_empty());
    assert_eq!(stream.outcome().unwrap().tokens, taken);
}

/// A guess that was right reads no weights again.
#[test]
fn bytes_are_those_of_the_steps() {
    let model = tiny(DeviceChoice::CPU);
    let engine = model.engine().unwrap();
    let plain = with(request(prompt(10, &model), 21), |r| r.speculate = false);
    let outcome = complete(&engine, plain);
    let bytes: u64 = (11..=30).map(|at| model.bytes_per_token(at)).sum();
    assert_eq!(outcome.timings.bytes, bytes);
    assert_eq!((outcome.timings.chosen, outcome.timings.decoded), (21, 20));
}

/// Recurrent state can be taken over at checkpoints only: at the last whole page before the end of a prompt, and regularly.
#[test]
fn recurrent_state_is_taken_over_at_checkpoints() {
    let source = "synthetic:custom,arch=qwen35,layers=4,vocab=512:q8_0";
    let options = with(options(DeviceChoice::CPU), |o| {
        (o.context, o.prompt_rows, o.checkpoints) = (1536, 256, 32);
    });
    let model = load(source, &options);
    let page = model.program().page as usize;
    let engine = model.engine().unwrap();
    let other = |n: usize, seed: u32| -> Vec<u32> {
        (0..n as u32)
            .map(|i| (i * 7 + seed) % model.vocab())
            .collect()
    };
    for (seed, length) in [(1, 2 * page), (2, 2 * page + 1), (3, 3 * page - 1)] {
        let text = other(length, seed);
        let first = complete(&engine, request(text.clone(), 2));
        let again = complete(&engine, request(text, 2));
        assert_eq!((first.cached_tokens, first.tokens), (0, again.tokens));
        assert_eq!(again.cached_tokens, (length - 1) / page * page, "{length}");
    }
    // A long prompt leaves regular ones, too.
    let text = other(1300, 5);
    complete(&engine, request(text.clone(), 2));
    for (shared, cached) in [(1100, 1024), (700, 512), (500, 0)] {
        let mut begun = text[..shared].to_vec();
        begun.extend([3, 1, 4, 1, 5]);
        let mut request = request(begun, 2);
        request.prefix_cache = true;
        assert_eq!(complete(&engine, request).cached_tokens, cached, "{shared}");
    }
}

#[test]
fn sequences_are_timed_together_as_long_as_there_is_room() {
    let model = load(
        TINY,
        &with(options(DeviceChoice::CPU), |o| {
            (o.slots, o.context) = (3, 64)
        }),
    );
    let mut stepper = model.stepper().unwrap();
    assert_eq!(stepper.chain_together(3, 4).unwrap(), 12);
    assert_eq!(stepper.chain_together(1, 0).unwrap(), 0);
    stepper.feed(&prompt(60, &model)).unwrap();
    assert_eq!(stepper.chain_together(2, 100).unwrap(), 8);
}

#[test]
fn the_memory_of_a_device_is_told_if_it_is_known() {
    let inspection = Model::inspect(TINY, &options(DeviceChoice::CPU)).unwrap();
    let known = welte::available_memory();
    assert_eq!(inspection.available().is_some(), known.is_some());
    assert!(inspection.fitted_context().is_none());
    let model = load(
        TINY,
        &with(options(DeviceChoice::CPU), |o| {
            (o.fit_context, o.context) = (true, 128);
        }),
    );
    assert_eq!(
        model.fitted_context().map(|fitted| fitted.context),
        Some(128)
    );
    assert!(tiny(DeviceChoice::CPU).fitted_context().is_none());
    assert!(
        welte::devices()
            .iter()
            .any(|report| report.id.kind == "cpu")
    );
}
