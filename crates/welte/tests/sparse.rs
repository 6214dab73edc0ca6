//! Models whose indexer chooses the positions that rows see, in the engine. An answer does not depend on other streams, on a hit of the
//! prefix cache, on the cut of its prompt or on guesses. A short context gives what a long one does.

mod common;

use common::*;
use welte::{
    DeviceChoice, Engine, EngineOptions, LoadOptions, Model, Outcome, Request, Speculation,
};

const MODELS: [&str; 2] = [
    "sparse/deepseek_v32/f16.gguf",
    "sparse/glm_moe_dsa/f16.gguf",
];
/// Positions that the indexer of these models chooses.
const CHOSEN: usize = 12;

fn model(name: &str, change: impl FnOnce(&mut LoadOptions)) -> Model {
    let file = welte_goldens::Golden::new(name);
    let options = with(options(DeviceChoice::CPU), |o| {
        (o.slots, o.context) = (3, 160);
        change(o);
    });
    load(file.path().to_str().unwrap(), &options)
}

fn engine(model: &Model, speculation: Speculation) -> Engine {
    let how = with(EngineOptions::default(), |o| {
        o.speculation = speculation;
        o.speculate_always = true;
    });
    Engine::new(model, &how).unwrap()
}

fn request(prompt: &[u32], tokens: usize) -> Request {
    with(Request::new(prompt.to_vec()), |r| {
        r.options.max_tokens = tokens;
        r.options.ignore_end = true;
    })
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    let token = |i: u32| 2 + (i * (seed * 2 + 7) + seed * 31) % 240;
    (0..count as u32).map(token).collect()
}

fn answer(engine: &Engine, prompt: &[u32], count: usize) -> Outcome {
    let stream = engine.submit(request(prompt, count)).unwrap();
    stream.complete().unwrap().1
}

#[test]
fn answers_are_the_same_alone_and_beside_others_and_after_a_hit() {
    for name in MODELS {
        let model = model(name, |_| ());
        let alone = |prompt: &[u32]| answer(&engine(&model, Speculation::Off), prompt, 40).tokens;
        let prompts = [90, 50, 7].map(|count| tokens(count, count as u32));
        let wanted: Vec<Vec<u32>> = prompts.iter().map(|prompt| alone(prompt)).collect();
        let plain = engine(&model, Speculation::Off);
        let streams: Vec<_> = prompts
            .iter()
            .map(|prompt| plain.submit(request(prompt, 40)).unwrap())
            .collect();
        for (stream, want) in streams.into_iter().zip(&wanted) {
            assert_eq!(stream.complete().unwrap().1.tokens, *want, "{name}");
        }
        // The conversation goes on: all that was computed is found, with the indexer's keys.
        let longer = [&prompts[1][..], &wanted[1], &tokens(9, 5)].concat();
        let hit = answer(&plain, &longer, 20);
        assert_eq!(hit.cached_tokens, 50 + 39, "{name}");
        assert_eq!(
            hit.tokens,
            answer(&engine(&model, Speculation::Off), &longer, 20).tokens
        );
        let guessed = answer(&engine(&model, Speculation::Ngram), &longer, 40);
        let tokens = answer(&engine(&model, Speculation::Off), &longer, 40).tokens;
        assert_eq!(guessed.tokens, tokens, "{name}");
    }
}

#[test]
fn a_short_context_needs_no_indexer() {
    for name in MODELS {
        let long = model(name, |_| ());
        let short = model(name, |o| o.context = CHOSEN as u32);
        let caches = |model: &Model| model.program().caches.len();
        assert_eq!((caches(&short), caches(&long)), (1, 2), "{name}");
        let prompt = tokens(6, 3);
        let both =
            [&short, &long].map(|model| answer(&engine(model, Speculation::Off), &prompt, 6));
        assert_eq!(both[0].tokens, both[1].tokens, "{name}");
    }
}

#[test]
fn pieces_of_a_prompt_make_no_difference() {
    for name in MODELS {
        let prompt = tokens(100, 9);
        let answers = [100, 33, 5].map(|rows| {
            let model = model(name, |o| o.prompt_rows = rows);
            answer(&engine(&model, Speculation::Off), &prompt, 30).tokens
        });
        assert_eq!(answers[0], answers[1], "{name}");
        assert_eq!(answers[0], answers[2], "{name}");
    }
}
