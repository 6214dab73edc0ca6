//! An answer that another engine has begun goes on as it would have there: its tokens, its text and its probabilities.

mod common;

use common::*;
use welte::{
    Constraint, DeviceChoice, Engine, EngineOptions, Error, Logprobs, Model, Outcome, Request,
    StopReason,
};

/// What a request gave.
struct Alone {
    outcome: Outcome,
    text: String,
    /// Tokens and text after each piece.
    pieces: Vec<(usize, usize)>,
    /// All tokens, with those of the stop string.
    tokens: Vec<u32>,
    logprobs: Vec<Logprobs>,
}

fn engine(model: &Model) -> Engine {
    Engine::new(model, &EngineOptions::default()).unwrap()
}

fn alone(engine: &Engine, request: &Request) -> Alone {
    let mut stream = engine.submit(request.clone()).unwrap();
    let (mut text, mut tokens, mut pieces) = (String::new(), Vec::new(), Vec::new());
    while let Some(piece) = stream.next() {
        text.push_str(&piece.unwrap());
        if stream.outcome().is_none() {
            tokens.extend_from_slice(stream.take_tokens());
            pieces.push((tokens.len(), text.len()));
        }
    }
    let mut by_token = engine.submit(request.clone()).unwrap();
    let tokens = std::iter::from_fn(|| by_token.next_token()).map(Result::unwrap);
    Alone {
        tokens: tokens.collect(),
        logprobs: stream.take_logprobs().to_vec(),
        outcome: stream.outcome().unwrap().clone(),
        text,
        pieces,
    }
}

/// A request that continues another one after these tokens.
fn continued(request: &Request, answered: &[u32]) -> Request {
    let mut request = request.clone();
    request.prompt.extend(answered);
    request.answered = answered.len();
    request
}

/// Continues a request after every number of tokens, on an engine that has not computed any of it, and on one that has.
fn check(name: &str, model: &Model, request: &Request) -> Alone {
    let whole = alone(&engine(model), request);
    let used = engine(model);
    used.submit(request.clone()).unwrap().complete().unwrap();
    for known in 0..=whole.tokens.len() {
        let request = continued(request, &whole.tokens[..known]);
        let seen = whole
            .pieces
            .iter()
            .rev()
            .find(|(tokens, _)| *tokens <= known);
        let seen = seen.map_or(0, |(_, text)| *text);
        for (what, engine) in [("new", &engine(model)), ("used", &used)] {
            let mut stream = engine.submit(request.clone()).unwrap();
            let mut text = String::new();
            for piece in stream.by_ref() {
                text.push_str(&piece.unwrap());
            }
            let at = format!("{name}: {known} of {} tokens, {what}", whole.tokens.len());
            let outcome = stream.outcome().unwrap().clone();
            assert_eq!(outcome.tokens, whole.outcome.tokens, "{at}");
            assert_eq!(outcome.stop, whole.outcome.stop, "{at}");
            assert_eq!(outcome.prompt_tokens, whole.outcome.prompt_tokens, "{at}");
            let stopped = matches!(outcome.stop, StopReason::StopString(_));
            if stopped && known == whole.tokens.len() {
                // No stream gives the token that completes a stop string.
                assert_eq!(text, "", "{at}");
            } else {
                assert_eq!(text, whole.text[seen..], "{at}");
            }
            let new = whole.logprobs.len().saturating_sub(known);
            let logprobs = &whole.logprobs[whole.logprobs.len() - new..];
            assert_eq!(stream.take_logprobs(), logprobs, "{at}");
        }
    }
    whole
}

/// A request for some tokens of a story.
fn request(model: &Model, tokens: usize) -> Request {
    with(Request::new(story(model)), |r| {
        r.options.max_tokens = tokens
    })
}

/// As random as it gets, with everything that looks back.
fn wild(model: &Model, tokens: usize) -> Request {
    with(request(model, tokens), |r| {
        r.options.sampling = with(sampled(11), |s| {
            s.temperature = 1.5;
            (s.presence_penalty, s.frequency_penalty) = (0.3, 0.2);
            (s.dry_multiplier, s.dry_allowed_length) = (0.8, 2);
        });
        r.options.min_tokens = tokens / 2;
    })
}

#[test]
fn answers_continue_after_any_token() {
    // The reference device is slow.
    for (device, tokens) in [(DeviceChoice::CPU, 20), ("reference".parse().unwrap(), 6)] {
        let model = demo(device);
        check("greedy", &model, &request(&model, tokens));
        let whole = check("sampled", &model, &wild(&model, tokens));
        // A stop string that begins within one token and ends within another.
        let at = whole.text.len() / 2;
        let stop = whole.text.chars().skip(at).take(7).collect::<String>();
        let stopped = with(wild(&model, tokens), |r| {
            r.options.stop = [stop.clone()].into()
        });
        let stopped = check("stopped", &model, &stopped);
        assert_eq!(stopped.outcome.stop, StopReason::StopString(stop));
        assert!(stopped.tokens.len() > stopped.outcome.tokens.len() + 1);
    }
    let model = demo(DeviceChoice::CPU);
    let likely = with(request(&model, 60), |r| r.options.logprobs = Some(3));
    check("with probabilities", &model, &likely);
}

/// Rows of the answer are computed as generated rows, whose bits may differ from those of a prompt.
#[test]
fn bits_are_those_of_generated_rows() {
    for source in [TINY, "synthetic:tiny:q4_0"] {
        let options = with(options(DeviceChoice::CPU), |o| o.context = 128);
        let model = load(source, &options);
        let request = with(Request::new(prompt(40, &model)), |r| {
            (r.options.max_tokens, r.options.ignore_end) = (24, true);
            r.options.logprobs = Some(20);
            r.options.sampling = sampled(3);
        });
        check(source, &model, &request);
    }
}

/// Recurrent state, which is computed again from the beginning.
#[test]
fn recurrent_models_continue() {
    let source = "synthetic:custom,arch=qwen35,layers=4,vocab=512:q8_0";
    let model = load(source, &options(DeviceChoice::CPU));
    let request = with(Request::new(prompt(19, &model)), |r| {
        (r.options.max_tokens, r.options.ignore_end) = (12, true);
        r.options.logprobs = Some(5);
    });
    check("qwen35", &model, &request);
    // With latents beside it, and without any keys and values.
    for name in ["kimi_linear/q8_0.gguf", "mamba/q8_0.gguf"] {
        let file = welte_goldens::Golden::new(name);
        let path = file.path().to_str().unwrap();
        let model = load(path, &options(DeviceChoice::CPU));
        let request = with(Request::new(prompt(19, &model)), |r| {
            (r.options.max_tokens, r.options.ignore_end) = (12, true);
        });
        check(name, &model, &request);
    }
}

/// A constraint has seen the answer so far, forced tokens included.
#[test]
fn constrained_answers_continue() {
    let model = demo(DeviceChoice::CPU);
    let schema = serde_json::json!({
        "type": "object", "additionalProperties": false, "required": ["animal", "many"],
        "properties": { "animal": { "enum": ["fox", "bear"] }, "many": { "type": "integer" } },
    });
    for logprobs in [None, Some(0)] {
        let form = with(wild(&model, 40), |r| {
            r.options.min_tokens = 0;
            r.options.constraint = Some(Constraint::JsonSchema(schema.clone()));
            r.options.logprobs = logprobs;
        });
        let whole = check("schema", &model, &form);
        assert!(whole.text.contains("\"animal\""), "{}", whole.text);
    }
    let form = with(request(&model, 20), |r| {
        r.options.constraint = Some(Constraint::Regex("(fox|bear) and so on!".into()));
    });
    let other = model.encode("Once upon").unwrap();
    let refused = engine(&model).submit(continued(&form, &other)).err();
    let refused = refused.unwrap();
    assert!(matches!(refused, Error::Answered { .. }), "{refused}");
    assert!(refused.to_string().contains("constraint"), "{refused}");
}

/// What cannot be the beginning of the answer is refused.
#[test]
fn impossible_beginnings_are_refused() {
    let model = tiny(DeviceChoice::CPU);
    let engine = model.engine().unwrap();
    let request = with(Request::new(vec![1, 2, 3]), |r| {
        r.options.max_tokens = 4;
        r.options.stop_tokens = vec![9];
    });
    let refused = |request: Request| engine.submit(request).err().unwrap().to_string();
    let long = refused(continued(&request, &[5; 5]));
    assert!(long.contains("5 tokens are more than the 4"), "{long}");
    let ended = refused(continued(&request, &[9, 5]));
    assert!(ended.contains("has ended, with token 9"), "{ended}");
    let whole = engine.submit(continued(&request, &[5, 9])).unwrap();
    let (_, whole) = whole.complete().unwrap();
    assert_eq!(
        (whole.stop, &whole.tokens[..]),
        (StopReason::End(9), &[5][..])
    );
    let scored = with(request.clone(), |r| r.options.prompt_logprobs = Some(0));
    let scored = refused(continued(&scored, &[5]));
    assert!(scored.contains("prompt_logprobs"), "{scored}");
    for answered in [3, 4, usize::MAX] {
        let all = with(request.clone(), |r| r.answered = answered);
        let all = engine.submit(all).err();
        assert!(matches!(all, Some(Error::EmptyPrompt)), "{all:?}");
    }
    let unknown = continued(&request, &[model.vocab()]);
    let unknown = engine.submit(unknown).err();
    assert!(matches!(unknown, Some(Error::Token { .. })), "{unknown:?}");
}
