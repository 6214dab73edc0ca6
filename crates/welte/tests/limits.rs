//! Where generation ends, and what is refused.

mod common;

use common::*;
use std::ops::ControlFlow;
use welte::{DeviceChoice, Error, GenerateOptions, Model, Sampling, StopReason};

fn some(max_tokens: usize) -> GenerateOptions {
    with(GenerateOptions::default(), |o| {
        o.max_tokens = max_tokens;
        o.ignore_end = true;
    })
}

fn the_context_limit_names_both_numbers(device: DeviceChoice) {
    let model = tiny(device);
    let mut session = model.session().unwrap();
    let error = session
        .generate(prompt(300, &model), &some(1), &mut |_| {
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
        .generate(prompt(256, &model), &some(1), &mut |_| {
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
    let (outcome, _) = generate(&mut session, &prompt(255, &model), &some(100));
    assert_eq!(
        (outcome.stop, outcome.tokens.len(), outcome.prompt_tokens),
        (StopReason::ContextFull, 1, 255)
    );
    // Without a token to generate, the whole context may be fed.
    let mut stepper = model.stepper().unwrap();
    assert_eq!(logits(&mut stepper, &prompt(256, &model)).len(), 1024);
    assert!(matches!(
        stepper.feed(&[1]),
        Err(Error::ContextFull {
            prompt: 257,
            context: 256
        })
    ));
    stepper.clear();
    assert!(matches!(
        stepper.feed(&prompt(257, &model)),
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
    type Set = fn(&mut Sampling, f32);
    let wrong: [(&str, &[f32], Set); 6] = [
        ("temperature", &[-1.0, f32::INFINITY], |s, v| {
            s.temperature = v
        }),
        ("top_p", &[0.0, -0.5, 1.001], |s, v| s.top_p = v),
        ("min_p", &[-0.001, 2.0], |s, v| s.min_p = v),
        ("repeat_penalty", &[0.0, -1.0, f32::INFINITY], |s, v| {
            s.repeat_penalty = v
        }),
        ("frequency_penalty", &[f32::NEG_INFINITY], |s, v| {
            s.frequency_penalty = v
        }),
        ("presence_penalty", &[f32::INFINITY], |s, v| {
            s.presence_penalty = v
        }),
    ];
    for (name, values, set) in wrong {
        for value in [values, &[f32::NAN]].concat() {
            let options = with(some(1), |o| set(&mut o.sampling, value));
            let error = refused(&[1], options);
            assert!(
                matches!(error, Error::Sampling { field, .. } if field == name),
                "{name} {value}: {error}"
            );
        }
    }
    let stop = with(some(1), |o| {
        o.stop = ["a".to_string(), String::new()].into()
    });
    assert!(matches!(refused(&[1], stop), Error::EmptyStopString));
    let bias = with(some(1), |o| o.bias = vec![(1, f32::NAN)]);
    assert!(matches!(refused(&[1], bias), Error::Bias { token: 1 }));
    let bias = with(some(1), |o| o.bias = vec![(1, 0.5); 2000]);
    let refusal = refused(&[1], bias).to_string();
    assert!(
        refusal.contains("biases") && refusal.contains("1024"),
        "{refusal}"
    );
    let bias = with(some(1), |o| {
        o.bias = vec![(u32::MAX, 1.0)];
    });
    assert!(matches!(refused(&[1], bias), Error::Token { .. }));
}

fn what_does_not_fit_is_refused_with_numbers(device: DeviceChoice) {
    let large = "synthetic:qwen3-0.6b:q4_0";
    // More positions than any machine or GPU has memory for.
    let context = 64_000_000;
    let options = with(options(device), |o| o.context = context);
    let result = Model::load(large, &options, &mut |_| ());
    let Err(Error::Memory {
        device: refused_by,
        need,
        have,
        fits_context: Some(fits),
        ..
    }) = result
    else {
        panic!("{:?}", result.err())
    };
    assert_eq!(DeviceChoice::Named(refused_by), device);
    assert!(have < need && fits % 256 == 0 && fits < context);
    // The context that is said to fit does, and one that is longer by a tenth does not.
    let plan = |context| {
        let options = with(options.clone(), |o| o.context = context);
        Model::inspect(large, &options).unwrap().plan().total()
    };
    assert!(plan(fits) <= have);
    assert!(plan(fits + fits / 10) > have);
}

fn a_bias_of_minus_infinity_forbids_and_a_large_one_forces(device: DeviceChoice) {
    let model = tiny(device);
    let tokens = prompt(6, &model);
    let plain = generate(&mut model.session().unwrap(), &tokens, &some(1))
        .0
        .tokens[0];
    let forbid = with(some(8), |o| {
        o.bias = vec![(plain, f32::NEG_INFINITY)];
    });
    assert!(
        !generate(&mut model.session().unwrap(), &tokens, &forbid)
            .0
            .tokens
            .contains(&plain)
    );
    let force = with(some(8), |o| {
        o.bias = vec![(7, 1e9)];
    });
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
    what_does_not_fit_is_refused_with_numbers,
    a_bias_of_minus_infinity_forbids_and_a_large_one_forces,
);

#[test]
fn an_automatic_choice_says_which_devices_it_skipped() {
    // Instruction sets are an option of the CPU, so no GPU is chosen.
    let options = with(options(DeviceChoice::Auto), |o| {
        o.instructions = welte::instruction_sets()
            .first()
            .map(|name| name.to_string());
    });
    let model = load(TINY, &options);
    assert_eq!(DeviceChoice::Named(model.device().id), DeviceChoice::CPU);
    // The portable GPU device may be left out of the build.
    let kinds: Vec<&str> = model.skipped().iter().map(|s| s.device.kind).collect();
    assert!(matches!(kinds[..], ["cuda"] | ["cuda", "gpu"]), "{kinds:?}");
    assert!(matches!(model.skipped()[0].why, Error::Device(_)));
    let inspection = Model::inspect(TINY, &options).unwrap();
    assert_eq!(inspection.device(), model.device());
    assert_eq!(inspection.skipped().len(), kinds.len());
    // A device that was named is not replaced.
    let named = with(options.clone(), |o| o.device = gpu());
    let error = Model::inspect(TINY, &named).err().unwrap();
    assert!(matches!(error, Error::Device(_)), "{error}");
    let options = with(options, |o| o.instructions = Some("vibes".into()));
    assert!(Model::inspect(TINY, &options).is_err());
}

#[test]
fn a_cache_has_one_of_two_formats() {
    let options = with(options(DeviceChoice::CPU), |o| {
        o.kv_format = welte::Format::Q4_0;
    });
    assert!(matches!(
        Model::inspect(TINY, &options).err().unwrap(),
        Error::CacheFormat {
            format: welte::Format::Q4_0
        }
    ));
}
