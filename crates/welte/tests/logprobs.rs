//! Probabilities of tokens, end tokens of a request, and the least number of tokens.

mod common;

use common::*;
use welte::{
    DeviceChoice, Engine, EngineOptions, Logprobs, Model, Request, StopReason, Stream,
    SyntheticDraft,
};

on_devices!(
    probabilities_are_those_of_the_logits,
    asking_changes_no_text,
    guesses_change_no_probability,
    stop_tokens_end_a_request_after_the_least_number,
);

/// `log softmax` of a row, in double precision.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |v: &f32| f64::from(*v) - f64::from(largest);
    let sum: f64 = logits.iter().map(|v| above(v).exp()).sum();
    logits.iter().map(|v| above(v) - sum.ln()).collect()
}

/// The probabilities after each token of a text, the first `prompt` of which are its prompt.
fn expected(model: &Model, tokens: &[u32], prompt: usize) -> Vec<Vec<f64>> {
    let mut stepper = model.stepper().unwrap();
    let mut rows = Vec::new();
    for end in 1..=prompt {
        stepper.clear();
        rows.push(log_softmax(stepper.feed(&tokens[..end]).unwrap()));
    }
    let generated = &tokens[prompt..];
    let mut see = |_: usize, logits: &[f32]| rows.push(log_softmax(logits));
    stepper.score(generated, &mut see).unwrap();
    rows
}

/// The answers agree with the rows: entry `i` with the probability of token `i` after row `i`.
#[track_caller]
fn agree(answers: &[Logprobs], tokens: &[u32], rows: &[Vec<f64>], top: usize) {
    assert_eq!(answers.len(), tokens.len());
    for ((answer, token), row) in answers.iter().zip(tokens).zip(rows) {
        let near = |got: f32, token: u32| {
            let want = row[token as usize];
            assert!((f64::from(got) - want).abs() < 1e-4, "{got} {want}");
        };
        assert_eq!(answer.token(), *token);
        near(answer.logprob(), *token);
        assert_eq!(answer.top().len(), top);
        assert!(answer.top().is_sorted_by(|a, b| a.1 >= b.1));
        for (token, logprob) in answer.top() {
            near(*logprob, *token);
        }
        let least = answer.top().last().map_or(f32::INFINITY, |(_, l)| *l);
        let above = row.iter().filter(|l| **l > f64::from(least) + 1e-4).count();
        assert!(above < top.max(1), "{above} tokens are likelier");
    }
}

fn request(model: &Model, length: usize, seed: u64) -> Request {
    let mut request = Request::new(prompt(length, model));
    request.options.max_tokens = 20;
    request.options.ignore_end = true;
    request.options.sampling = sampled(seed);
    request
}

fn tokens_of(stream: &mut Stream) -> Vec<u32> {
    std::iter::from_fn(|| stream.next_token())
        .map(Result::unwrap)
        .collect()
}

fn probabilities_are_those_of_the_logits(device: DeviceChoice) {
    let options = with(options(device), |o| o.slots = 3);
    let model = load(TINY, &options);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    // One request wants everything, one only its prompt's, one nothing. The prompts take several steps.
    let mut all = request(&model, 70, 1);
    (all.options.logprobs, all.options.prompt_logprobs) = (Some(5), Some(20));
    let mut only_prompt = request(&model, 40, 2);
    only_prompt.options.prompt_logprobs = Some(0);
    only_prompt.options.max_tokens = 0;
    let nothing = request(&model, 55, 3);
    let mut streams = [&all, &only_prompt, &nothing].map(|r| engine.submit(r.clone()).unwrap());
    let [first, second, third] = &mut streams;
    let mut taken = Vec::new();
    let mut tokens = all.prompt.clone();
    while let Some(token) = first.next_token() {
        tokens.push(token.unwrap());
        // Each probability comes with its token.
        taken.extend_from_slice(first.take_logprobs());
        assert_eq!(all.prompt.len() + taken.len(), tokens.len());
    }
    assert_eq!(taken.len(), 20);
    let rows = expected(&model, &tokens, 70);
    agree(&taken, &tokens[70..], &rows[69..], 5);
    agree(&first.prompt_logprobs(), &tokens[1..70], &rows, 20);
    assert!(tokens_of(second).is_empty());
    let rows = expected(&model, &only_prompt.prompt, 40);
    agree(
        &second.prompt_logprobs(),
        &only_prompt.prompt[1..],
        &rows,
        0,
    );
    assert_eq!(tokens_of(third).len(), 20);
    assert!(third.take_logprobs().is_empty() && third.prompt_logprobs().is_empty());
}

fn asking_changes_no_text(device: DeviceChoice) {
    let model = tiny(device);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let plain = request(&model, 50, 4);
    let mut asking = plain.clone();
    (asking.options.logprobs, asking.options.prompt_logprobs) = (Some(0), Some(3));
    let want = tokens_of(&mut engine.submit(plain.clone()).unwrap());
    assert_eq!(tokens_of(&mut engine.submit(asking.clone()).unwrap()), want);
    // By pieces, the probabilities of a piece's tokens come with it, and all in the end.
    let mut stream = engine.submit(asking).unwrap();
    let mut count = 0;
    while let Some(piece) = stream.next() {
        piece.unwrap();
        count += stream.take_logprobs().len();
    }
    count += stream.take_logprobs().len();
    assert_eq!(count, want.len());
}

fn guesses_change_no_probability(device: DeviceChoice) {
    let options = with(options(device), |o| o.slots = 2);
    let model = load(TINY, &options);
    let options = with(EngineOptions::default(), |o| o.speculate_always = true);
    let engine = Engine::new(&model, &options).unwrap();
    let mut plain = request(&model, 40, 7);
    plain.options.logprobs = Some(3);
    plain.speculate = false;
    let mut stream = engine.submit(plain.clone()).unwrap();
    let tokens = tokens_of(&mut stream);
    let want = stream.take_logprobs().to_vec();
    let mut guessed = plain.clone();
    guessed.speculate = true;
    guessed.synthetic_draft = Some(SyntheticDraft {
        answer: tokens.clone(),
        agreement: 0.7,
        ..SyntheticDraft::default()
    });
    // Another request guesses, too, and wants no probabilities.
    let mut beside = guessed.clone();
    beside.options.logprobs = None;
    let mut streams = [guessed, beside].map(|request| engine.submit(request).unwrap());
    for stream in &mut streams {
        assert_eq!(tokens_of(stream), tokens);
    }
    assert_eq!(streams[0].take_logprobs(), want);
    assert!(streams[1].take_logprobs().is_empty());
    for stream in &streams {
        let figures = stream.outcome().unwrap().speculated;
        let wrong = figures.drafted - figures.accepted;
        assert!(figures.accepted > 0 && wrong > 0, "{figures:?}");
    }
}

fn stop_tokens_end_a_request_after_the_least_number(device: DeviceChoice) {
    let model = tiny(device);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let plain = request(&model, 30, 5);
    let whole = tokens_of(&mut engine.submit(plain.clone()).unwrap());
    let ended = |min_tokens: usize, stop_tokens: &[u32]| {
        let mut request = plain.clone();
        request.options.min_tokens = min_tokens;
        request.options.stop_tokens = stop_tokens.to_vec();
        let mut stream = engine.submit(request).unwrap();
        let tokens = tokens_of(&mut stream);
        (tokens, stream.outcome().unwrap().stop.clone())
    };
    let stop = whole[7];
    let first = whole.iter().position(|token| *token == stop).unwrap();
    let (tokens, why) = ended(0, &[stop]);
    assert_eq!((&tokens[..], why), (&whole[..first], StopReason::End(stop)));
    let (tokens, why) = ended(first, &[stop]);
    assert_eq!((&tokens[..], why), (&whole[..first], StopReason::End(stop)));
    // All tokens end the request, but the most likely of the others would be chosen before.
    let every: Vec<u32> = whole.clone();
    let (tokens, _) = ended(6, &every);
    assert!(tokens.len() >= 6, "{tokens:?}");
    assert!(tokens.iter().all(|token| !every.contains(token)));
    let (tokens, why) = ended(20, &every);
    assert_eq!((tokens.len(), why), (20, StopReason::Length));
}

#[test]
fn constrained_tokens_have_the_probabilities_of_free_ones() {
    let model = demo(DeviceChoice::CPU);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let mut request = Request::new(model.encode("Once upon a time").unwrap());
    // Only one token is possible after the first word. Without probabilities it would be taken without a choice.
    let texts = ["yes, that is how it was", "no, that is not how it was"];
    let texts = texts.map(String::from).to_vec();
    request.options.constraint = Some(welte::Constraint::Choice(texts));
    request.options.logprobs = Some(2);
    let mut stream = engine.submit(request).unwrap();
    let tokens = tokens_of(&mut stream);
    let answers = stream.take_logprobs();
    let of: Vec<u32> = answers.iter().map(Logprobs::token).collect();
    assert_eq!(of, tokens);
    assert!(answers.iter().all(|a| a.top().len() == 2), "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|a| a.logprob() < 0.0 && a.logprob().is_finite())
    );
}

#[test]
fn impossible_options_are_refused() {
    let model = tiny(DeviceChoice::CPU);
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let refused = |change: &dyn Fn(&mut Request)| {
        let mut request = request(&model, 10, 6);
        change(&mut request);
        engine.submit(request).map(drop).unwrap_err().to_string()
    };
    let error = refused(&|r| r.options.logprobs = Some(21));
    assert_eq!(error, "21 likeliest tokens; a request can have 20");
    let error = refused(&|r| r.options.prompt_logprobs = Some(99));
    assert_eq!(error, "99 likeliest tokens; a request can have 20");
    let vocab = model.vocab();
    let error = refused(&|r| r.options.stop_tokens = vec![1, vocab]);
    assert!(error.contains("outside the vocabulary"), "{error}");
    let error = refused(&|r| r.options.stop_tokens = vec![1; 257]);
    assert!(
        error.contains("end tokens; a request can have 256"),
        "{error}"
    );
}
