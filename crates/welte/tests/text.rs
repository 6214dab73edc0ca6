//! Text of the bundled model: callbacks, chat, perplexity.

mod common;

use common::*;
use std::ops::ControlFlow;
use welte::{DeviceChoice, GenerateOptions, StopReason};

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
    let mut stepper = model.stepper().unwrap();
    let score = welte::perplexity(&mut stepper, &tokens, 64, None, &mut |_| true).unwrap();
    assert_eq!(score.scored, score.chunks * 31);
    assert!(score.ppl > 1.0 && score.ppl < 20.0, "{score:?}");
}

on_devices!(
    a_callback_may_end_the_text,
    stories_end_by_themselves,
    perplexity_of_its_own_kind_of_text_is_low,
);
