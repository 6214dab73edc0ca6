//! Text of the bundled model: stop strings, callbacks, chat, perplexity.

mod common;

use common::*;
use std::ops::ControlFlow;
use welte::{DeviceChoice, GenerateOptions, Message, Model, StopReason};

fn story(model: &Model) -> Vec<u32> {
    let template = model.chat_template().unwrap();
    let message = Message::new("user", "Tell me a story about a fox.");
    model.encode_chat(&template, &[message]).unwrap()
}

fn stop_strings_end_the_text_and_rewind(device: DeviceChoice) {
    let model = demo(device);
    let tokens = story(&model);
    let mut session = model.session().unwrap();
    let (plain, text) = generate(
        &mut session,
        &tokens,
        &GenerateOptions {
            max_tokens: 60,
            ..Default::default()
        },
    );
    assert!(text.contains(' ') && text.len() > 40, "{text}");
    // A stop string from the middle of a word, across tokens.
    let stop = text.chars().skip(23).take(6).collect::<String>();
    let at = text.find(&stop).unwrap();
    for chain in [None, Some(1), Some(5)] {
        let options = GenerateOptions {
            max_tokens: 60,
            stop: vec![stop.clone()],
            chain,
            ..Default::default()
        };
        let (stopped, cut) = generate(&mut session, &tokens, &options);
        assert_eq!(stopped.stop, StopReason::StopString(stop.clone()));
        assert_eq!(cut, text[..at]);
        assert!(
            plain.tokens.starts_with(&stopped.tokens) && stopped.tokens.len() < plain.tokens.len()
        );
        let kept = model.tokenizer().unwrap().decode(&stopped.tokens);
        assert!(
            cut.ends_with(kept.trim_start()) || cut.starts_with(&kept),
            "{kept:?} {cut:?}"
        );
        assert!(session.tokens().len() <= tokens.len() + stopped.tokens.len());
    }
}

fn a_callback_may_end_the_text(device: DeviceChoice) {
    let model = demo(device);
    let tokens = story(&model);
    let mut pieces = 0;
    let outcome =
        model
            .session()
            .unwrap()
            .generate(&tokens, &GenerateOptions::default(), &mut |_| {
                pieces += 1;
                if pieces == 3 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
    assert_eq!(outcome.unwrap().stop, StopReason::Callback);
    assert_eq!(pieces, 3);
}

fn stories_end_by_themselves(device: DeviceChoice) {
    let model = demo(device);
    let (outcome, text) = generate(
        &mut model.session().unwrap(),
        &story(&model),
        &GenerateOptions::default(),
    );
    assert!(
        matches!(outcome.stop, StopReason::End(_)),
        "{:?}: {text}",
        outcome.stop
    );
    assert!(text.contains("fox"), "{text}");
}

fn perplexity_of_its_own_kind_of_text_is_low(device: DeviceChoice) {
    let model = demo(device);
    let mut session = model.session().unwrap();
    let (_, text) = generate(&mut session, &story(&model), &GenerateOptions::default());
    let mut tokens = model.encode(&text).unwrap();
    while tokens.len() < 128 {
        let again = tokens.clone();
        tokens.extend(again);
    }
    let score = welte::perplexity(&mut session, &tokens, 64, None, &mut |_| true).unwrap();
    assert_eq!(score.scored, score.chunks * 31);
    assert!(score.ppl > 1.0 && score.ppl < 20.0, "{score:?}");
}

on_devices!(
    stop_strings_end_the_text_and_rewind,
    a_callback_may_end_the_text,
    stories_end_by_themselves,
    perplexity_of_its_own_kind_of_text_is_low,
);
