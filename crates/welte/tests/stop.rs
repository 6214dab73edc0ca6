//! How a generation ends: at a stop string, at an end token, or cancelled.

mod common;

use common::*;
use std::ops::ControlFlow;
use std::path::Path;
use welte::{
    CancelHandle, DeviceChoice, Driver, Engine, EngineOptions, GenerateOptions, Model, Request,
    Speculation, StopReason, Stream, SyntheticDraft,
};

fn at_most(max_tokens: usize) -> GenerateOptions {
    with(GenerateOptions::default(), |o| {
        o.max_tokens = max_tokens;
    })
}

/// A story without stop strings: its tokens, its text, and where each token ends in the text.
struct Story {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
    ends: Vec<usize>,
}

impl Story {
    fn tell(model: &Model) -> Story {
        let prompt = story(model);
        let (outcome, text) = generate(&mut model.session().unwrap(), &prompt, &at_most(60));
        assert_eq!(outcome.tokens.len(), 60, "{text}");
        let tokenizer = model.tokenizer().unwrap();
        let mut ends = Vec::new();
        for &token in &outcome.tokens {
            let end = ends.last().copied().unwrap_or(0) + tokenizer.token_bytes(token).len();
            ends.push(end);
        }
        assert_eq!(ends.last(), Some(&text.len()));
        assert!(text.is_ascii(), "{text}");
        Story {
            prompt,
            tokens: outcome.tokens,
            text,
            ends,
        }
    }

    fn start(&self, token: usize) -> usize {
        if token == 0 { 0 } else { self.ends[token - 1] }
    }

    /// The first token from the 8th on of at least `least` bytes, for which the text from `skip` bytes after its start
    /// until `reach` bytes after its end is nowhere before.
    fn find(&self, least: usize, skip: usize, reach: isize) -> (usize, &str) {
        (8..50)
            .find_map(|token| {
                let from = self.start(token) + skip;
                let to = self.ends[token].checked_add_signed(reach)?;
                let long_enough = self.ends[token] - self.start(token) >= least;
                let stop = self.text.get(from..to).filter(|_| long_enough)?;
                (self.text.find(stop) == Some(from)).then_some((token, stop))
            })
            .expect("the story has such a token")
    }
}

fn stop_strings_cut_text_and_tokens(device: DeviceChoice) {
    let model = demo(device);
    let story = Story::tell(&model);
    let next = &story.prompt[..3];
    // The stop string, the token in which it begins, and where.
    let at_the_start_of_a_token = story.find(2, 0, 2);
    let across_two_tokens = story.find(3, 1, 2);
    let within_a_token = story.find(4, 1, -1);
    let at_the_end_of_a_token = story.find(3, 2, 0);
    let whole_token = story.find(4, 0, 0);
    let first_token = (0, &story.text[..story.ends[1]]);
    let mut session = model.session().unwrap();
    for (case, (kept, stop)) in [
        at_the_start_of_a_token,
        across_two_tokens,
        within_a_token,
        at_the_end_of_a_token,
        whole_token,
        first_token,
    ]
    .into_iter()
    .enumerate()
    {
        let at = story.text.find(stop).unwrap();
        for chain in [None, Some(1), Some(5)] {
            let what = format!("case {case}, {stop:?} at {at}, token {kept}, chain {chain:?}");
            let options = with(at_most(60), |o| {
                o.stop = [stop.to_string()].into();
                o.chain = chain;
            });
            let (outcome, text) = generate(&mut session, &story.prompt, &options);
            assert_eq!(outcome.stop, StopReason::StopString(stop.into()), "{what}");
            assert_eq!(text, story.text[..at], "{what}");
            assert_eq!(outcome.tokens, story.tokens[..kept], "{what}");
            // The conversation goes on from the tokens before the stop string, and finds them in the cache.
            let known = [&story.prompt[..], &story.tokens[..kept], next].concat();
            let (went_on, _) = generate(&mut session, &known, &at_most(1));
            assert!(went_on.cached_tokens >= known.len() - next.len(), "{what}");
        }
    }
}

fn of_several_stop_strings_the_earliest_counts(device: DeviceChoice) {
    let model = demo(device);
    let story = Story::tell(&model);
    // One token brings two stops, of which the later one is longer. A third comes tokens later.
    let (early, late) = (8..50)
        .find_map(|token| {
            let from = story.start(token) + 1;
            let early = story.text.get(from..from + 2)?;
            let late = story.text.get(from + 1..from + 4)?;
            let both = story.ends[token] >= from + 4 && story.text.find(early) == Some(from);
            (both && story.text.find(late) == Some(from + 1)).then_some((early, late))
        })
        .expect("the story has such a token");
    let much_later = &story.text[story.start(50)..story.ends[52]];
    let at = story.text.find(early).unwrap();
    let stops = [early, late, much_later];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let options = with(at_most(60), |o| {
            o.stop = order.map(|i| stops[i].to_string()).into();
        });
        let (outcome, text) = generate(&mut model.session().unwrap(), &story.prompt, &options);
        assert_eq!(outcome.stop, StopReason::StopString(early.into()));
        assert_eq!(text, story.text[..at]);
    }
}

fn ignoring_end_tokens_forbids_them(device: DeviceChoice) {
    let model = demo(device);
    let prompt = story(&model);
    let (plain, _) = generate(&mut model.session().unwrap(), &prompt, &at_most(usize::MAX));
    let StopReason::End(end) = plain.stop else {
        panic!("{:?}", plain.stop)
    };
    assert!(model.end_tokens().contains(&end));
    // However much they are wanted.
    for bias in [vec![], vec![(end, 1e9)]] {
        let options = with(at_most(plain.tokens.len() + 20), |o| {
            o.ignore_end = true;
            o.bias = bias;
        });
        let (outcome, _) = generate(&mut model.session().unwrap(), &prompt, &options);
        assert_eq!(outcome.stop, StopReason::Length);
        assert_eq!(outcome.tokens.len(), plain.tokens.len() + 20);
        assert!(outcome.tokens.starts_with(&plain.tokens));
        for token in model.end_tokens() {
            assert!(!outcome.tokens.contains(token), "{token}");
        }
    }
}

fn penalties_count_the_prompt_and_what_was_generated(device: DeviceChoice) {
    let model = tiny(device);
    let prompt = prompt(30, &model);
    let session = || model.session().unwrap();
    for sampling in [
        welte::Sampling {
            presence_penalty: 1e6,
            ..Default::default()
        },
        welte::Sampling {
            frequency_penalty: 1e6,
            ..Default::default()
        },
    ] {
        let options = with(at_most(34), |o| {
            o.sampling = sampling;
            o.ignore_end = true;
        });
        let (outcome, _) = generate(&mut session(), &prompt, &options);
        let mut seen = [&prompt[..], &outcome.tokens].concat();
        assert_eq!(seen.len(), 64);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 64, "a token came twice");
    }
    // The other way round the most frequent token comes again and again.
    let options = with(at_most(10), |o| {
        o.sampling = welte::Sampling {
            frequency_penalty: -1e6,
            ..Default::default()
        };
        o.ignore_end = true;
    });
    let (outcome, _) = generate(&mut session(), &[3, 9, 3], &options);
    assert_eq!(outcome.tokens, [3; 10]);
}

on_devices!(
    stop_strings_cut_text_and_tokens,
    of_several_stop_strings_the_earliest_counts,
    ignoring_end_tokens_forbids_them,
    penalties_count_the_prompt_and_what_was_generated,
);

/// The best token by penalties written out here, from the logits that follow `known`.
fn penalised_choice(logits: &[f32], known: &[u32], sampling: &welte::Sampling) -> u32 {
    let recent = &known[known.len().saturating_sub(sampling.repeat_last_n as usize)..];
    let mut best = (f32::NEG_INFINITY, 0);
    for (token, &logit) in (0u32..).zip(logits) {
        let count = recent.iter().filter(|t| **t == token).count() as f32;
        let mut value = logit;
        if count > 0.0 {
            value = if logit > 0.0 {
                logit / sampling.repeat_penalty
            } else {
                logit * sampling.repeat_penalty
            };
            value -= count * sampling.frequency_penalty;
            value -= sampling.presence_penalty;
        }
        if value > best.0 {
            best = (value, token);
        }
    }
    best.1
}

#[test]
fn penalties_are_those_of_the_definition() {
    let model = tiny(DeviceChoice::CPU);
    let prompt = prompt(20, &model);
    let plain = welte::Sampling {
        repeat_last_n: 8,
        ..Default::default()
    };
    let mut texts = Vec::new();
    for sampling in [
        plain,
        welte::Sampling {
            repeat_penalty: 3.0,
            ..plain
        },
        welte::Sampling {
            repeat_penalty: 0.3,
            ..plain
        },
        welte::Sampling {
            frequency_penalty: -2.0,
            presence_penalty: 0.5,
            ..plain
        },
    ] {
        let options = with(at_most(40), |o| {
            o.sampling = sampling;
            o.ignore_end = true;
        });
        let (outcome, _) = generate(&mut model.session().unwrap(), &prompt, &options);
        let mut stepper = model.stepper().unwrap();
        let mut known = prompt.clone();
        let mut row = logits(&mut stepper, &prompt);
        for &token in &outcome.tokens {
            for end in model.end_tokens() {
                row[*end as usize] = f32::NEG_INFINITY;
            }
            assert_eq!(
                penalised_choice(&row, &known, &sampling),
                token,
                "{sampling:?}"
            );
            known.push(token);
            let see = &mut |_, logits: &[f32]| row = logits.to_vec();
            stepper.score(&[token], see).unwrap();
        }
        texts.push(outcome.tokens);
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 4, "two settings give the same text");
}

/// What a cancelled generation leaves for the next: nothing.
fn goes_on(session: &mut welte::Session, handle: &CancelHandle, prompt: &[u32]) {
    assert!(!handle.is_cancelled());
    let options = with(at_most(20), |o| {
        o.ignore_end = true;
    });
    let (outcome, _) = generate(session, prompt, &options);
    assert_eq!(
        (outcome.stop, outcome.tokens.len()),
        (StopReason::Length, 20)
    );
}

#[test]
fn cancelling_before_the_start_computes_nothing() {
    let model = tiny(DeviceChoice::CPU);
    // Four pieces of a prompt: 32, 32, 32 and 4.
    for length in [1, 32, 33, 100] {
        let prompt = prompt(length, &model);
        let mut session = model.session().unwrap();
        let handle = session.cancel_handle();
        handle.cancel();
        assert!(handle.is_cancelled());
        let (outcome, _) = generate(&mut session, &prompt, &at_most(50));
        assert_eq!(outcome.stop, StopReason::Cancelled);
        assert!(outcome.tokens.is_empty());
        goes_on(&mut session, &handle, &prompt);
    }
}

#[test]
fn cancelling_from_the_callback_ends_generation_at_the_next_token() {
    let model = demo(DeviceChoice::CPU);
    let story = Story::tell(&model);
    let mut session = model.session().unwrap();
    let handle = session.cancel_handle();
    let options = with(at_most(60), |o| {
        o.chain = Some(64);
    });
    let mut text = String::new();
    let outcome = session
        .generate(&story.prompt, &options, &mut |piece| {
            text.push_str(piece);
            if text.len() >= story.ends[4] {
                handle.cancel();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(outcome.stop, StopReason::Cancelled);
    assert_eq!(outcome.tokens, story.tokens[..5]);
    assert_eq!(text, story.text[..story.ends[4]]);
    assert!(!handle.is_cancelled());
}

#[test]
fn end_tokens_come_from_both_configurations() {
    for (generation_config, end_of_config, expected) in [
        (None, "", &[][..]),
        (None, r#""eos_token_id": 7,"#, &[7]),
        (None, r#""eos_token_id": [9, 7],"#, &[7, 9]),
        (Some(r#"{"eos_token_id": 5}"#), "", &[5]),
        (
            Some(r#"{"eos_token_id": [11, 5]}"#),
            r#""eos_token_id": 7,"#,
            &[5, 7, 11],
        ),
        // The same token in both counts once; what is not a token is left out.
        (
            Some(r#"{"eos_token_id": [7, -1, 4294967296, "x", null]}"#),
            r#""eos_token_id": 7,"#,
            &[7],
        ),
        (Some(r#"{"temperature": 1}"#), "", &[]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let files = generation_config.map(|text| ("generation_config.json", text));
        let model = directory(folder.path(), end_of_config, files.as_slice());
        assert_eq!(
            model.end_tokens(),
            expected,
            "{generation_config:?} {end_of_config}"
        );
    }
}

#[test]
fn each_end_token_ends_a_generation() {
    let folder = tempfile::tempdir().unwrap();
    let model = directory(
        folder.path(),
        r#""eos_token_id": 7,"#,
        &[("generation_config.json", r#"{"eos_token_id": [11, 5]}"#)],
    );
    let wants = |token, ignore_end| {
        let options = with(at_most(6), |o| {
            o.bias = vec![(token, 1e9)];
            o.ignore_end = ignore_end;
        });
        generate(&mut model.session().unwrap(), &[1, 2, 3], &options).0
    };
    for token in [5, 7, 11] {
        let outcome = wants(token, false);
        assert_eq!(
            (outcome.stop, outcome.tokens),
            (StopReason::End(token), vec![])
        );
        let outcome = wants(token, true);
        assert_eq!(outcome.stop, StopReason::Length);
        assert_eq!(outcome.tokens.len(), 6);
        assert!(!outcome.tokens.contains(&token));
    }
    let outcome = wants(6, false);
    assert_eq!(
        (outcome.stop, outcome.tokens),
        (StopReason::Length, vec![6; 6])
    );
}

/// A model with marks in its vocabulary, and this template.
fn marked(folder: &Path, template: &str) -> Model {
    let letter = |id| char::from_u32(0x100 + id).unwrap().to_string();
    let mut vocab: Vec<(String, u32)> = (0..247u32).map(|id| (letter(id), id)).collect();
    // As an ordinary piece the spelling means nothing.
    vocab.push(("<|eot_id|>".into(), 247));
    let added = [
        (248, "<|im_end|>", false),
        (249, "<end_of_turn>", true),
        (250, "<|mine|>", true),
    ];
    let added = added.map(|(id, content, special)| {
        serde_json::json!({ "id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
    });
    let vocab: serde_json::Map<_, _> = vocab.into_iter().map(|(t, id)| (t, id.into())).collect();
    let tokenizer = serde_json::json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added,
    });
    let files = [
        ("tokenizer.json", tokenizer.to_string()),
        (
            "tokenizer_config.json",
            serde_json::json!({ "chat_template": template }).to_string(),
        ),
    ];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    directory(folder, r#""eos_token_id": 7,"#, &files)
}

/// Whether a token that the model wants ends its answer.
fn ends(model: &Model, token: u32) -> bool {
    let options = with(at_most(3), |o| o.bias = vec![(token, 1e9)]);
    let outcome = generate(&mut model.session().unwrap(), &[1, 2, 3], &options).0;
    let ends = outcome.stop == StopReason::End(token);
    let expected = if ends {
        (StopReason::End(token), vec![])
    } else {
        (StopReason::Length, vec![token; 3])
    };
    assert_eq!((outcome.stop, outcome.tokens), expected);
    ends
}

/// By their spelling, as control tokens and as user-defined ones; others of the vocabulary do not end an answer.
#[test]
fn end_tokens_of_the_vocabulary_end_a_generation() {
    let folder = tempfile::tempdir().unwrap();
    let model = marked(folder.path(), "");
    assert_eq!(model.end_tokens(), [7, 248, 249]);
    for (token, expected) in [(247, false), (248, true), (249, true), (250, false)] {
        assert_eq!(ends(&model, token), expected, "{token}");
    }
}

/// A model that was trained with a mark of its own ends with it, although no list of end tokens has it.
#[test]
fn the_mark_that_a_template_writes_after_an_answer_ends_one() {
    for (message, expected) in [
        ("<|mine|>{{ m.content }}<|im_end|>\n", false),
        ("{{ m.role }}{{ m.content }}<|mine|>\n", true),
        ("{{ m.role }}{{ m.content }} <|mine|>", true),
        (
            "{% if m.role == 'user' %}{{ m.content }}{% else %}{{ m.content }}<|mine|>{% endif %}",
            true,
        ),
        // Marks of other turns, ordinary text, and a template that takes no answers.
        (
            "{% if m.role == 'user' %}{{ m.content }}<|mine|>{% else %}{{ m.content }}{% endif %}",
            false,
        ),
        ("{{ m.content }}\u{101}<|mine|>", false),
        (
            "{{ raise_exception('no') if m.role != 'user' }}{{ m.content }}<|mine|>",
            false,
        ),
    ] {
        let template = format!("{{% for m in messages %}}{message}{{% endfor %}}");
        let folder = tempfile::tempdir().unwrap();
        let model = marked(folder.path(), &template);
        assert_eq!(ends(&model, 250), expected, "{template}");
        assert!(ends(&model, 248) && !ends(&model, 1), "{template}");
    }
}

/// Runs a request until nothing is left to do, although nobody reads. Returns the tokens that were made, too.
fn unread(engine: &Engine, driver: &mut Driver, request: Request) -> (Stream, u64) {
    let made = |driver: &mut Driver| {
        engine.ask_snapshot();
        driver.turn().unwrap();
        engine.take_snapshot().unwrap().generated_tokens
    };
    let before = made(driver);
    let stream = engine.submit(request).unwrap();
    while !driver.is_idle() {
        driver.turn().unwrap();
    }
    (stream, made(driver) - before)
}

/// The sequence ends with the very token at which its text meets a stop string, whether or not anybody reads: random texts,
/// random stop strings, chains and guesses of every length.
#[test]
fn a_sequence_ends_where_its_text_meets_a_stop_string() {
    let model = demo(DeviceChoice::CPU);
    let prompt = story(&model);
    let how = with(EngineOptions::default(), |o| {
        (o.speculation, o.speculate_always) = (Speculation::Ngram, true);
    });
    let (engine, mut driver) =
        Engine::without_thread(&model, &how, Box::new(|context| context)).unwrap();
    let mut random = Random(1);
    let mut met = 0;
    for seed in 0..60 {
        let plain = with(Request::new(prompt.clone()), |r| {
            r.options = at_most(40);
            r.options.ignore_end = true;
            r.options.sampling = sampled(seed);
            r.options.sampling.temperature = 1.5;
        });
        let (mut stream, _) = unread(&engine, &mut driver, plain.clone());
        let tokens: Vec<u32> = std::iter::from_fn(|| stream.next_token())
            .map(Result::unwrap)
            .collect();
        let bytes = |token: &u32| model.tokenizer().unwrap().token_bytes(*token).to_vec();
        let text = String::from_utf8(tokens.iter().flat_map(bytes).collect()).unwrap();
        // A part of the text, one that is nowhere, and one that begins like the first.
        let from = random.below(text.len() as u64 - 8) as usize;
        let to = from + 1 + random.below(7) as usize;
        let Some(part) = text.get(from..to) else {
            continue;
        };
        let stops = vec![
            format!("{part}\u{1f98a}"),
            part.to_string(),
            "\u{1f98a}".into(),
        ];
        let at = text.find(part).unwrap();
        let mut length = 0;
        let ends: Vec<usize> = tokens
            .iter()
            .map(|token| {
                length += bytes(token).len();
                length
            })
            .collect();
        let last = ends.iter().position(|end| *end >= at + part.len()).unwrap();
        let kept = ends.iter().filter(|end| **end <= at).count();
        let stopping = with(plain, |r| {
            r.options.stop = stops.into();
            r.options.chain = random.once_in(2).then(|| 1 + random.below(20) as usize);
            r.options.min_tokens = random.below(30) as usize;
            r.speculate = random.once_in(2);
            r.synthetic_draft = random.once_in(2).then(|| SyntheticDraft {
                answer: tokens.clone(),
                agreement: 0.9,
                ..SyntheticDraft::default()
            });
        });
        let what = format!("seed {seed}: {part:?} in {text:?}");
        // A reader of text, and one of tokens.
        let (stream, made) = unread(&engine, &mut driver, stopping.clone());
        assert_eq!(made, last as u64 + 1, "{what}");
        let (said, outcome) = stream.complete().unwrap();
        assert_eq!(said, text[..at], "{what}");
        let (mut stream, made) = unread(&engine, &mut driver, stopping);
        assert_eq!(made, last as u64 + 1, "{what}");
        let taken: Vec<u32> = std::iter::from_fn(|| stream.next_token())
            .map(Result::unwrap)
            .collect();
        assert_eq!(taken, tokens[..=last], "{what}");
        for outcome in [&outcome, stream.outcome().unwrap()] {
            let stop = StopReason::StopString(part.into());
            assert_eq!(
                (&outcome.stop, outcome.timings.chosen),
                (&stop, last + 1),
                "{what}"
            );
            assert_eq!(outcome.tokens, tokens[..kept], "{what}");
        }
        met += 1;
    }
    assert!(met > 40, "only {met} texts");
}
