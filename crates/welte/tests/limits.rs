//! Where generation ends, and what is refused.

mod common;

use common::*;
use std::ops::ControlFlow;
use welte::{DeviceChoice, Error, GenerateOptions, LoadOptions, Model, Sampling, StopReason};

fn some(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignore_end: true,
        ..Default::default()
    }
}

fn the_context_limit_names_both_numbers(device: DeviceChoice) {
    let model = tiny(device);
    let mut session = model.session().unwrap();
    let error = session
        .generate(&prompt(300, &model), &some(1), &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("300") && text.contains("256"), "{text}");
    assert!(matches!(
        error,
        Error::ContextFull {
            prompt: 300,
            context: 256
        }
    ));
}

fn a_prompt_must_leave_room_for_one_token(device: DeviceChoice) {
    let model = tiny(device);
    let mut session = model.session().unwrap();
    let error = session
        .generate(&prompt(256, &model), &some(1), &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::ContextFull {
                prompt: 256,
                context: 256
            }
        ),
        "{error}"
    );
    assert!(session.tokens().is_empty());
    let (outcome, _) = generate(&mut session, &prompt(255, &model), &some(100));
    assert_eq!(
        (outcome.stop, outcome.tokens.len(), outcome.prompt_tokens),
        (StopReason::ContextFull, 1, 255)
    );
    // Without a token to generate, the whole context may be fed.
    session.clear();
    assert_eq!(logits(&mut session, &prompt(256, &model)).len(), 1024);
    assert!(matches!(
        session.feed(&[1]),
        Err(Error::ContextFull {
            prompt: 257,
            context: 256
        })
    ));
    session.clear();
    assert!(matches!(
        session.feed(&prompt(257, &model)),
        Err(Error::ContextFull {
            prompt: 257,
            context: 256
        })
    ));
}

fn generation_ends_where_the_context_does(device: DeviceChoice) {
    let model = tiny(device);
    let (outcome, _) = generate(
        &mut model.session().unwrap(),
        &prompt(250, &model),
        &some(100),
    );
    assert_eq!(
        (outcome.stop, outcome.tokens.len()),
        (StopReason::ContextFull, 6)
    );
    // As many tokens as there is room for are not too many.
    let (outcome, _) = generate(
        &mut model.session().unwrap(),
        &prompt(250, &model),
        &some(6),
    );
    assert_eq!(
        (outcome.stop, outcome.tokens.len()),
        (StopReason::Length, 6)
    );
    let (outcome, _) = generate(
        &mut model.session().unwrap(),
        &prompt(250, &model),
        &some(4),
    );
    assert_eq!(
        (outcome.stop, outcome.tokens.len()),
        (StopReason::Length, 4)
    );
    let (outcome, _) = generate(&mut model.session().unwrap(), &prompt(5, &model), &some(0));
    assert_eq!(
        (outcome.stop, outcome.tokens.len()),
        (StopReason::Length, 0)
    );
}

fn nonsense_is_refused(device: DeviceChoice) {
    let model = tiny(device);
    let mut session = model.session().unwrap();
    let mut refused = |prompt: &[u32], options: GenerateOptions| {
        session
            .generate(prompt, &options, &mut |_| ControlFlow::Continue(()))
            .unwrap_err()
    };
    assert!(matches!(refused(&[], some(1)), Error::EmptyPrompt));
    assert!(matches!(
        refused(&[model.vocab()], some(1)),
        Error::Token { .. }
    ));
    let with = |sampling| GenerateOptions {
        sampling,
        ..some(1)
    };
    for sampling in [
        Sampling {
            temperature: f32::NAN,
            ..Default::default()
        },
        Sampling {
            temperature: -1.0,
            ..Default::default()
        },
        Sampling {
            top_p: 0.0,
            ..Default::default()
        },
        Sampling {
            min_p: 2.0,
            ..Default::default()
        },
        Sampling {
            repeat_penalty: 0.0,
            ..Default::default()
        },
        Sampling {
            presence_penalty: f32::INFINITY,
            ..Default::default()
        },
    ] {
        assert!(matches!(
            refused(&[1], with(sampling)),
            Error::Option { .. }
        ));
    }
    let bias = GenerateOptions {
        bias: vec![(u32::MAX, 1.0)],
        ..some(1)
    };
    assert!(matches!(refused(&[1], bias), Error::Token { .. }));
}

fn what_does_not_fit_is_refused_with_numbers_and_a_way_out(device: DeviceChoice) {
    let options = LoadOptions {
        context: 64_000_000,
        ..options(device)
    };
    // More than any machine or GPU has.
    let large = "synthetic:qwen3-0.6b:q4_0";
    let Err(error) = Model::load(large, &options, &mut |_, _| ()) else {
        panic!("loaded")
    };
    let text = error.to_string();
    assert!(
        text.contains("needs") && text.contains("available") && text.contains("-c "),
        "{text}"
    );
}

fn a_bias_of_minus_infinity_forbids_and_a_large_one_forces(device: DeviceChoice) {
    let model = tiny(device);
    let tokens = prompt(6, &model);
    let plain = generate(&mut model.session().unwrap(), &tokens, &some(1))
        .0
        .tokens[0];
    let forbid = GenerateOptions {
        bias: vec![(plain, f32::NEG_INFINITY)],
        ..some(8)
    };
    assert!(
        !generate(&mut model.session().unwrap(), &tokens, &forbid)
            .0
            .tokens
            .contains(&plain)
    );
    let force = GenerateOptions {
        bias: vec![(7, 1e9)],
        ..some(8)
    };
    assert_eq!(
        generate(&mut model.session().unwrap(), &tokens, &force)
            .0
            .tokens,
        [7; 8]
    );
}

on_devices!(
    the_context_limit_names_both_numbers,
    a_prompt_must_leave_room_for_one_token,
    generation_ends_where_the_context_does,
    nonsense_is_refused,
    what_does_not_fit_is_refused_with_numbers_and_a_way_out,
    a_bias_of_minus_infinity_forbids_and_a_large_one_forces,
);
