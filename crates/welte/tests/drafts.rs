//! A smaller model, or a model's own draft layer, guesses: the texts stay those of plain decoding. `WELTE_TEST_DEVICE` names the device.

mod common;
#[path = "common/spy.rs"]
mod spy;

use common::*;
use spy::{Spy, Watch};
use std::sync::Arc;
use welte::{
    DeviceChoice, Engine, EngineOptions, LoadOptions, Model, Outcome, Request, Speculated,
    Speculation, Stream,
};
use welte_device::{Guesses, Pick, Role, Step, StepOptions, Want};
use welte_table::{PassKind, Row};

/// Of guesses of the bundled model's drafter, three at a time.
const LEAST_RIGHT: f64 = 0.65;

fn device() -> DeviceChoice {
    let device = std::env::var("WELTE_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    device.parse().unwrap()
}

/// A model with two slots.
fn model(source: &str, change: impl FnOnce(&mut LoadOptions)) -> Model {
    let options = with(options(device()), |o| {
        o.slots = 2;
        change(o);
    });
    load(source, &options)
}

/// A request for exactly `tokens` tokens. Every second one takes the most probable tokens.
fn request(model: &Model, prompt_tokens: usize, tokens: usize, seed: u64) -> Request {
    with(Request::new(prompt(prompt_tokens, model)), |r| {
        r.options.max_tokens = tokens;
        r.options.ignore_end = true;
        if seed % 2 == 1 {
            r.options.sampling = sampled(seed);
        }
    })
}

/// An engine that verifies all guesses of a draft model.
fn engine(model: &Model, draft: Option<&Model>) -> Result<Engine, welte::Error> {
    let how = with(EngineOptions::default(), |o| {
        o.speculation = draft.map_or(Speculation::Off, |draft| Speculation::Model(draft.clone()));
        o.speculate_always = true;
    });
    Engine::new(model, &how)
}

/// The outcomes of requests that come together, and guesses that were made and right.
fn together(engine: &Engine, requests: &[Request]) -> (Vec<Outcome>, usize, usize) {
    let submit = |request: &Request| engine.submit(request.clone()).unwrap();
    let streams: Vec<Stream> = requests.iter().map(submit).collect();
    let outcomes = streams
        .into_iter()
        .map(|stream| stream.complete().unwrap().1);
    let outcomes: Vec<Outcome> = outcomes.collect();
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum();
    let (drafted, accepted) = (
        sum(|o| o.speculated.drafted),
        sum(|o| o.speculated.accepted),
    );
    (outcomes, drafted, accepted)
}

fn tokens_of(outcomes: &[Outcome]) -> Vec<&[u32]> {
    outcomes
        .iter()
        .map(|outcome| outcome.tokens.as_slice())
        .collect()
}

/// The same weights in another format often agree, and wrong guesses change nothing.
#[test]
fn guesses_of_another_model_are_verified() {
    let [own, draft] = ["qwen3/q8_0.gguf", "qwen3/q4_0.gguf"].map(|name| {
        let file = welte_goldens::Golden::new(name);
        model(file.path().to_str().unwrap(), |_| ())
    });
    let requests = [0, 1, 2, 3].map(|n| request(&own, 20 + n, 80, n as u64));
    let plain = together(&engine(&own, None).unwrap(), &requests);
    let guessed = together(&engine(&own, Some(&draft)).unwrap(), &requests);
    assert_eq!(tokens_of(&plain.0), tokens_of(&guessed.0));
    let (drafted, accepted) = (guessed.1, guessed.2);
    assert!(
        0 < accepted && accepted < drafted,
        "{accepted} of {drafted}"
    );
}

#[test]
fn a_draft_guesses_within_its_own_context() {
    let own = model(TINY, |_| ());
    let draft = model(TINY, |o| o.context = 64);
    let engine = engine(&own, Some(&draft)).unwrap();
    let run = |request: Request| {
        let (outcomes, drafted, _) = together(&engine, std::slice::from_ref(&request));
        let plain = together(&self::engine(&own, None).unwrap(), &[request]);
        assert_eq!(tokens_of(&outcomes), tokens_of(&plain.0));
        drafted
    };
    assert!(run(request(&own, 30, 30, 0)) > 10);
    // From position 64 on there are no guesses.
    let some = run(request(&own, 40, 100, 0));
    assert!(0 < some && some < 64 - 40, "{some}");
    assert_eq!(run(request(&own, 65, 30, 0)), 0);
    assert!(run(request(&own, 30, 30, 1)) > 10);
}

/// The model's own draft layer guesses for many requests, alone and together. Now and then it is right even with random weights.
#[test]
fn guesses_of_an_own_draft_layer_are_verified() {
    for name in [
        "drafts/glm4_moe/hf",
        "drafts/glm4_moe_lite/q8_0.gguf",
        "drafts/qwen35/hf",
    ] {
        let file = welte_goldens::Golden::new(name);
        let path = file.path().to_str().unwrap();
        let own = model(path, |o| o.slots = 4);
        assert!(own.has_draft_layer());
        let how = with(EngineOptions::default(), |o| {
            o.speculate_always = true;
            o.draft_max = 3;
        });
        let engine = Engine::new(&own, &how).unwrap();
        let plain = self::engine(&own, None).unwrap();
        let requests: Vec<Request> = (0..24)
            .map(|n| {
                let mut request = request(&own, 5 + 3 * n, 40 + n % 7, n as u64);
                request.prompt[0] = n as u32;
                request
            })
            .collect();
        let (outcomes, drafted, accepted) = together(&engine, &requests);
        assert_eq!(
            tokens_of(&outcomes),
            tokens_of(&together(&plain, &requests).0)
        );
        assert!(
            0 < accepted && accepted < drafted,
            "{accepted} of {drafted}"
        );
        for request in &requests[..6] {
            let alone = together(&engine, std::slice::from_ref(request)).0;
            let wanted = together(&plain, std::slice::from_ref(request)).0;
            assert_eq!(tokens_of(&alone), tokens_of(&wanted));
        }
    }
}

/// A draft layer has seen nothing of a chain. Before it guesses again, the chain's last tokens are computed once more, with the same bits.
#[test]
fn the_end_of_a_chain_is_computed_again() {
    let file = welte_goldens::Golden::new("drafts/glm4_moe/hf");
    let own = model(file.path().to_str().unwrap(), |_| ());
    let watch: Arc<Watch> = Arc::default();
    let watched = watch.clone();
    let wrap = move |context| -> Box<dyn welte::Context> {
        Box::new(Spy::new(context, &watched, None, true))
    };
    // Fewer guesses than tokens that are computed again.
    let how = with(EngineOptions::default(), |o| o.draft_max = 3);
    let (engine, mut driver) = Engine::without_thread(&own, &how, Box::new(wrap)).unwrap();
    // The first trial needs no such rows, and the next one comes after 512 tokens if it did not pay.
    let again = (1..40).any(|seed| {
        watch.rows.lock().unwrap().clear();
        let request = request(&own, 5, 180, seed);
        let stream = engine.submit(request.clone()).unwrap();
        while !driver.is_idle() {
            driver.turn().unwrap();
        }
        let (_, outcome) = stream.complete().unwrap();
        let plain = together(&self::engine(&own, None).unwrap(), &[request]);
        assert_eq!(outcome.tokens, plain.0[0].tokens);
        let rows = watch.rows.lock().unwrap();
        // More rows than verify guesses.
        rows.windows(5).any(|rows| {
            let first = rows[0].position as usize;
            let follow = rows.windows(2).all(|r| r[0].position + 1 == r[1].position);
            let tokens = rows.iter().map(welte_table::Row::token);
            let known = outcome.tokens.iter().skip(first.saturating_sub(5)).copied();
            first >= 5 && follow && known.take(5).eq(tokens)
        })
    });
    assert!(again);
}

/// Recurrent states go back after wrong guesses, alone and together, in small caches and after prefix hits.
#[test]
fn recurrent_models_take_wrong_guesses_back() {
    for name in [
        "qwen3next/hf",
        "lfm2/hf",
        "nemotronh/hf",
        "granitehybrid/hf",
        "mamba2/hf",
    ] {
        let file = welte_goldens::Golden::new(name);
        let path = file.path().to_str().unwrap();
        // Three sequences have room for copies of their states, and the fourth has not.
        let own = model(path, |o| (o.slots, o.checkpoints) = (4, 3));
        let how = with(EngineOptions::default(), |o| {
            o.speculation = Speculation::Ngram;
            o.speculate_always = true;
        });
        let engine = Engine::new(&own, &how).unwrap();
        let plain = self::engine(&own, None).unwrap();
        // Answers of three tokens repeat themselves, and often go on in another way.
        let requests: Vec<Request> = (0..16)
            .map(|n| {
                let mut request = request(&own, 12 + n, 40, 2 * n as u64 + 1);
                request.options.bias = vec![(5, 50.0), (6, 50.0), (7, 50.0)];
                request
            })
            .collect();
        for _ in 0..2 {
            let (outcomes, drafted, accepted) = together(&engine, &requests);
            let wanted = together(&plain, &requests).0;
            assert_eq!(tokens_of(&outcomes), tokens_of(&wanted), "{name}");
            assert!(
                0 < accepted && accepted < drafted,
                "{name}: {accepted} of {drafted}"
            );
        }
    }
}

/// An EAGLE-3 head that knows a part of the tokens guesses for a model, and the texts stay.
#[test]
fn guesses_of_a_head_are_verified() {
    guesses_of("llama/hf", "drafts/eagle3/hf");
}

/// A drafter that attends to the model's keys and values guesses, and the texts stay.
#[test]
fn guesses_of_an_assistant_are_verified() {
    guesses_of("gemma4/effective", "drafts/gemma4_assistant/hf");
    guesses_of("gemma4/effective", "drafts/gemma4_assistant/f16.gguf");
}

/// A drafter of blocks guesses all at once, also for a model with recurrent states, and the texts stay.
#[test]
fn guesses_of_blocks_are_verified() {
    guesses_of("qwen3/hf", "drafts/dflash/hf");
    guesses_of("gemma4/effective", "drafts/dflash/f16.gguf");
    guesses_of("qwen35/hf", "drafts/dflash/speculators");
}

/// A block is the last token and masks, which see each other, and the next step verifies what the masks have guessed. It ends with the context.
#[test]
fn blocks_follow_the_last_token() {
    let [file, head] = ["qwen3/hf", "drafts/dflash/hf"].map(welte_goldens::Golden::new);
    let own = model(file.path().to_str().unwrap(), |o| {
        o.context = 64;
        o.draft_head = Some(head.path().to_str().unwrap().to_string());
    });
    let block = own.program().block.unwrap();
    let watch: Arc<Watch> = Arc::default();
    let watched = watch.clone();
    let wrap = move |context| -> Box<dyn welte::Context> {
        Box::new(Spy::new(context, &watched, None, true))
    };
    let how = with(EngineOptions::default(), |o| {
        o.speculate_always = true;
        o.draft_max = 3;
    });
    let (engine, mut driver) = Engine::without_thread(&own, &how, Box::new(wrap)).unwrap();
    let request = request(&own, 9, 55, 0);
    let stream = engine.submit(request.clone()).unwrap();
    while !driver.is_idle() {
        driver.turn().unwrap();
    }
    let (_, outcome) = stream.complete().unwrap();
    let text = [request.prompt.clone(), outcome.tokens.clone()].concat();
    let rows = watch.rows.lock().unwrap();
    let (mut at, mut blocks, mut cut) = (0, 0, 0);
    while at < rows.len() {
        let first = &rows[at];
        let count = (first.reach - first.position) as usize + 1;
        let whole = &rows[at..at + count];
        at += count;
        if count == 1 {
            continue;
        }
        blocks += 1;
        cut += usize::from(count < block.size as usize);
        assert_eq!(
            count,
            (block.size as usize).min(64 - first.position as usize)
        );
        assert_eq!(first.token(), text[first.position as usize]);
        for (nth, row) in (0..).zip(whole) {
            assert_eq!(
                (row.position, row.reach),
                (first.position + nth, first.reach)
            );
            assert!(nth == 0 || row.token() == block.mask);
        }
        // A row for the last token, and one for each guess.
        let verified = &rows[at..];
        assert_eq!(
            verified[0],
            welte_table::Row::new(first.token(), first.position, first.slot)
        );
        let follow = verified
            .windows(2)
            .take_while(|two| two[1].position == two[0].position + 1);
        assert!((1..=3).contains(&follow.take(3).count()), "no guess");
    }
    assert!(blocks > 10 && cut > 0, "{blocks} blocks, {cut} of them cut");
}

/// Blocks read the same of the tokens before them, whatever the engine did before: wrong guesses, other sequences in the same steps, prefixes
/// that were kept, preemption, chains.
#[test]
fn blocks_see_all_tokens_before_them() {
    for (file, head) in [
        ("qwen3/hf", "drafts/dflash/hf"),
        ("gemma4/effective", "drafts/dflash/f16.gguf"),
    ] {
        let [file, head] = [file, head].map(welte_goldens::Golden::new);
        let own = model(file.path().to_str().unwrap(), |o| {
            o.slots = 3;
            o.cache_positions = 288;
            o.draft_head = Some(head.path().to_str().unwrap().to_string());
        });
        let first = request(&own, 40, 60, 1);
        let longer = with(request(&own, 60, 70, 3), |r| {
            r.prompt[..40].copy_from_slice(&first.prompt);
        });
        let others = [request(&own, 21, 110, 5), request(&own, 33, 90, 7)];
        let rounds = [vec![first], [vec![longer], others.to_vec()].concat()];
        let preemptions = replayed(&own, true, &rounds);
        assert!(preemptions > 0, "nobody was preempted");
        let (own, rounds) = (&own, [vec![request(&own, 30, 200, 9)]]);
        replayed(own, false, &rounds);
    }
}

/// Answers requests of one round after the other, and computes each block that followed once more, after nothing but its own sequence. Returns how often
/// sequences were preempted.
fn replayed(own: &Model, always: bool, rounds: &[Vec<Request>]) -> u32 {
    let watch: Arc<Watch> = Arc::default();
    let watched = watch.clone();
    let wrap = move |context| -> Box<dyn welte::Context> {
        Box::new(Spy::new(context, &watched, None, true))
    };
    let how = with(EngineOptions::default(), |o| {
        o.speculate_always = always;
        o.draft_max = 3;
    });
    let (engine, mut driver) = Engine::without_thread(own, &how, Box::new(wrap)).unwrap();
    let (mut texts, mut preemptions) = (Vec::new(), 0);
    for requests in rounds {
        let submit = |request: &Request| engine.submit(request.clone()).unwrap();
        let streams: Vec<Stream> = requests.iter().map(submit).collect();
        while !driver.is_idle() {
            driver.turn().unwrap();
        }
        for (request, stream) in requests.iter().zip(streams) {
            let (_, outcome) = stream.complete().unwrap();
            preemptions += outcome.preemptions;
            let text = [request.prompt.clone(), outcome.tokens].concat();
            let seed = request.options.sampling.seed;
            texts.push((seed, request.prompt.len(), text));
        }
    }
    let chains = watch.starts.lock().unwrap().len();
    let blocks = std::mem::take(&mut *watch.blocks.lock().unwrap());
    assert!(
        blocks.len() > if always { 20 } else { 0 },
        "{}",
        blocks.len()
    );
    assert!(chains > 0, "no chain");
    let again = move |mut context: Box<dyn welte::Context>| -> Box<dyn welte::Context> {
        for block in &blocks {
            let (_, prompt, text) = texts.iter().find(|text| text.0 == block.seed).unwrap();
            let first = block.rows[0].position as usize;
            for (kind, range) in [
                (PassKind::Prompt, 0..*prompt),
                (PassKind::Decode, *prompt..first),
            ] {
                let pass = context.program().pass(kind).unwrap();
                let most = context.program().passes[pass].rows as usize;
                let rows: Vec<Row> = range.map(|at| Row::new(text[at], at as u32, 0)).collect();
                for rows in rows.chunks(most) {
                    context.step_rows(pass, rows, &[]).unwrap();
                }
            }
            let own = |row: &Row| Row { slot: 0, ..*row };
            let mut step = Step::default();
            step.add(Role::Draft, block.rows.iter().map(own));
            step.guesses = Guesses::Masked;
            step.picks.extend(block.picked.iter().map(|row| Pick {
                row: *row as u32,
                want: Want::Values,
            }));
            let got = context.step(&step, StepOptions::default()).unwrap();
            assert_eq!(got.len(), block.logits.len());
            let far = got.iter().zip(&block.logits).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f32::max);
            assert!(far < 1e-3, "{far} at {first} of request {}", block.seed);
        }
        context
    };
    drop(Engine::without_thread(own, &how, Box::new(again)).unwrap());
    preemptions
}

/// Beside a directory it has the beginning of the name, beside a file it is in the same folder.
#[test]
fn a_drafter_of_blocks_is_found_beside_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let copy = |golden: &str, to: &str| {
        let golden = welte_goldens::Golden::new(golden);
        std::fs::create_dir(at(to)).unwrap();
        for file in std::fs::read_dir(golden.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(to).join(file.file_name())).unwrap();
        }
    };
    copy("qwen3/hf", "Tiny");
    let load = || {
        let options = with(options(device()), |o| o.draft_beside = true);
        Model::load(&at("Tiny"), &options, &mut |_| ())
    };
    let missing = load().map(drop).unwrap_err().to_string();
    assert!(
        missing.contains("no DFlash drafter lies beside it"),
        "{missing}"
    );
    // Neither heads of another kind nor drafters of another model are taken, unless there is no other one.
    copy("drafts/eagle3/hf", "Tiny-DFlash-a");
    assert!(load().is_err());
    copy("drafts/dflash/speculators", "Tiny-DFlash-a2");
    let why = load().map(drop).unwrap_err().to_string();
    assert!(why.contains("Tiny-DFlash-a2"), "{why}");
    copy("drafts/dflash/hf", "Tiny-DFlash-b5");
    let own = load().unwrap();
    assert!(own.has_draft_head() && own.program().block.is_some());
    let said = own
        .device_facts()
        .iter()
        .find(|(what, _)| what == "draft layer");
    assert!(said.is_some_and(|(_, said)| said.starts_with("DFlash, blocks of 5; loaded")));
    // A drafter is no model by itself.
    let alone = Model::load(&at("Tiny-DFlash-b5"), &options(device()), &mut |_| ());
    let why = alone.map(drop).unwrap_err().to_string();
    assert!(why.contains("name it with -md beside that model"), "{why}");
}

/// What does not fit the model is named.
#[test]
fn a_drafter_of_blocks_needs_its_model() {
    let file = |name: &str| welte_goldens::Golden::new(name);
    let refused = |model: &str, head: &str, change: &[(&str, &str)]| {
        let (model, head) = (file(model), file(head));
        let folder = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(head.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let path = folder.path().join("config.json");
        let mut config = std::fs::read_to_string(&path).unwrap();
        for (from, to) in change {
            assert!(config.contains(from), "{from}");
            config = config.replacen(from, to, 1);
        }
        std::fs::write(path, config).unwrap();
        let options = with(options(device()), |o| {
            o.draft_head = Some(folder.path().to_str().unwrap().to_string());
        });
        let loaded = Model::load(model.path().to_str().unwrap(), &options, &mut |_| ());
        loaded.map(drop).unwrap_err().to_string()
    };
    let hf = |change: &[(&str, &str)]| refused("qwen3/hf", "drafts/dflash/hf", change);
    for (change, why) in [
        (
            ("\"hidden_size\": 64", "\"hidden_size\": 32"),
            "hidden_size: is 32; the model has a width of 64",
        ),
        (
            ("\"vocab_size\": 251", "\"vocab_size\": 250"),
            "vocab_size: is 250; the model has 251 tokens",
        ),
        (
            ("\"mask_token_id\": 7", "\"mask_token_id\": 251"),
            "dflash_config.mask_token_id: is 251; the model has 251 tokens",
        ),
        (
            ("\"mask_token_id\": 7,", ""),
            "dflash_config.mask_token_id: is missing",
        ),
        (
            ("\"block_size\": 5", "\"block_size\": 1"),
            "block_size: is 1; must be from 2 to 256",
        ),
        (
            ("   0,\n   1\n", "   0,\n   2\n"),
            "dflash_config.target_layer_ids: must name layers of the model, which has 2",
        ),
        (
            ("\"model_type\": \"qwen3\"", "\"model_type\": \"laguna\""),
            "model_type: is 'laguna'",
        ),
        (
            (
                "\"mask_token_id\"",
                "\"selector_rank\": 8, \"mask_token_id\"",
            ),
            "dflash_config.selector_rank: is of DFlash 2",
        ),
        (
            ("DFlashDraftModel", "Qwen3DSparkModel"),
            "architectures: is of DSpark",
        ),
        (
            ("\"hidden_size\"", "\"markov_rank\": 256, \"hidden_size\""),
            "markov_rank: is of DSpark",
        ),
        (
            (
                "\"mask_token_id\"",
                "\"query_zero_predicts_next\": true, \"mask_token_id\"",
            ),
            "dflash_config.query_zero_predicts_next: is true; guesses of a block's first token",
        ),
        (
            (
                "\"hidden_size\"",
                "\"sample_from_anchor\": true, \"hidden_size\"",
            ),
            "sample_from_anchor: is true; guesses of a block's first token",
        ),
        (
            ("\"sliding_window\": 6", "\"sliding_window\": null"),
            "sliding_window: is missing; layers with a window need it",
        ),
    ] {
        let said = hf(&[change]);
        assert!(said.contains(why), "{change:?}: {said}");
    }
    let other = refused("granite/hf", "drafts/dflash/hf", &[]);
    assert!(
        other.contains("cannot draft for the architecture 'granite'"),
        "{other}"
    );
}

fn guesses_of(target: &str, head: &str) {
    let [file, head] = [target, head].map(welte_goldens::Golden::new);
    let path = |golden: &welte_goldens::Golden| golden.path().to_str().unwrap().to_string();
    assert!(welte::draft_head_kind(&path(&head)).unwrap().is_some());
    assert_eq!(welte::draft_head_kind(&path(&file)).unwrap(), None);
    let own = model(&path(&file), |o| {
        o.slots = 4;
        o.draft_head = Some(path(&head));
    });
    assert!(own.has_draft_layer() && own.has_draft_head());
    let how = with(EngineOptions::default(), |o| {
        o.speculate_always = true;
        o.draft_max = 4;
    });
    let engine = Engine::new(&own, &how).unwrap();
    let requests: Vec<Request> = (0..16)
        .map(|n| request(&own, 7 + 2 * n, 50, n as u64))
        .collect();
    let (outcomes, drafted, accepted) = together(&engine, &requests);
    let plain = self::engine(&own, None).unwrap();
    assert_eq!(
        tokens_of(&outcomes),
        tokens_of(&together(&plain, &requests).0)
    );
    assert!(
        0 < accepted && accepted < drafted,
        "{accepted} of {drafted}"
    );
    let by_position: Vec<u32> = (0..Speculated::POSITIONS)
        .map(|at| outcomes.iter().map(|o| o.speculated.by_position[at]).sum())
        .collect();
    assert_eq!(by_position.iter().sum::<u32>() as usize, accepted);
    assert!(by_position.is_sorted_by(|a, b| a >= b));
}

/// A drafter is no model, and drafts for the model that it was made for only.
#[test]
fn an_assistant_needs_its_model() {
    let file = |name: &str| welte_goldens::Golden::new(name);
    let text = |golden: &welte_goldens::Golden| golden.path().to_str().unwrap().to_string();
    let head = file("drafts/gemma4_assistant/hf");
    let refused = |model: &welte_goldens::Golden, head: Option<String>| {
        let options = with(options(device()), |o| o.draft_head = head);
        let loaded = Model::load(&text(model), &options, &mut |_| ());
        match loaded {
            Ok(_) => panic!("a refusal"),
            Err(why) => why.to_string(),
        }
    };
    let why = refused(&head, None);
    assert!(why.contains("name it with -md beside that model"), "{why}");
    let why = refused(&file("llama/hf"), Some(text(&head)));
    assert!(why.contains("drafts for Gemma 4, not for 'llama'"), "{why}");
    // Narrower, and with other heads.
    let why = refused(&file("gemma4/small-q8_0.gguf"), Some(text(&head)));
    assert!(
        why.contains("backbone_hidden_size: is 64; the model has a width of 32"),
        "{why}"
    );
    let why = refused(&file("gemma4/mixture"), Some(text(&head)));
    assert!(
        why.contains("layer 2 reads 2 heads of 64 (window 0)"),
        "{why}"
    );
}

/// Guesses of the bundled model's drafter are right as often as they were when it was trained, alone and beside others that want fewer.
#[test]
fn the_drafter_of_the_bundled_model_is_often_right() {
    let models = format!("{}/../../models", folder());
    let own = load(
        &format!("{models}/demo.gguf"),
        &with(LoadOptions::default(), |o| {
            o.device = device();
            (o.context, o.slots, o.threads) = (256, 4, Some(2));
            o.cache_positions = 4 * 256;
            o.draft_head = Some(format!("{models}/demo-drafter.gguf"));
        }),
    );
    let how = with(EngineOptions::default(), |o| {
        o.speculate_always = true;
        o.draft_max = 3;
    });
    let engine = Engine::new(&own, &how).unwrap();
    let tell = |what: &str, tokens: usize| {
        let template = own.chat_template().unwrap();
        let text = format!("Tell me a story about {what}.");
        let message = welte::Message::new("user", &text);
        let prompt = own.encode_chat(&template, &[message]).unwrap();
        with(Request::new(prompt), |r| {
            r.options.max_tokens = tokens;
            r.options.ignore_end = true;
        })
    };
    let stories = ["a fox", "a witch", "an owl", "a boat"];
    let alone = tell("a fox", 90);
    let several = stories.map(|what| tell(what, 60 + what.len()));
    for requests in [std::slice::from_ref(&alone), &several] {
        let (_, drafted, accepted) = together(&engine, requests);
        let rate = accepted as f64 / drafted as f64;
        println!("{accepted} of {drafted}: {rate:.2}");
        assert!(rate > LEAST_RIGHT, "{accepted} of {drafted}");
    }
}

/// 200 prompts, half of them sampled, alone and in batches. `WELTE_TEST_MODEL` names a model, and `WELTE_TEST_HEAD` a head that drafts
/// for it; without them it is the bundled model with its drafter.
#[test]
#[ignore = "takes minutes"]
fn texts_of_200_prompts_are_those_of_plain_decoding() {
    let variable = |name: &str| std::env::var(name).ok();
    let models = format!("{}/../../models", folder());
    let (source, head) = match variable("WELTE_TEST_MODEL") {
        Some(model) => (model, variable("WELTE_TEST_HEAD")),
        None => (
            format!("{models}/demo.gguf"),
            Some(format!("{models}/demo-drafter.gguf")),
        ),
    };
    let own = load(
        &source,
        &with(LoadOptions::default(), |o| {
            o.device = device();
            // Three guesses of each slot.
            (o.context, o.slots, o.decode_rows) = (512, 8, 32);
            o.cache_positions = 8 * 512;
            o.draft_head = head;
        }),
    );
    assert!(own.has_draft_layer());
    // Beginnings of stories, as many tokens as the request's number allows; a model of another vocabulary reads them as random tokens.
    let text = std::fs::read_to_string(format!("{models}/demo-validation.txt")).unwrap();
    let words: Vec<u32> = text.bytes().map(u32::from).collect();
    let tokens = |n: usize| -> Vec<u32> {
        let from = n * 211 % (words.len() - 400);
        let excerpt = &text[text.floor_char_boundary(from)..text.floor_char_boundary(from + 400)];
        let mut tokens = own.encode(excerpt).unwrap_or_default();
        if tokens.is_empty() {
            tokens.extend(
                words[from..from + 100]
                    .iter()
                    .map(|w| w * 7919 % own.vocab()),
            );
        }
        tokens.truncate(3 + n % 90);
        tokens
    };
    let requests: Vec<Request> = (0..200)
        .map(|n| {
            with(Request::new(tokens(n)), |r| {
                r.options.max_tokens = 40 + n % 23;
                r.options.ignore_end = true;
                if n % 2 == 1 {
                    r.options.sampling = sampled(n as u64);
                }
                if n % 4 == 3 {
                    r.options.sampling.repeat_penalty = 1.2;
                }
            })
        })
        .collect();
    let plain = engine(&own, None).unwrap();
    let wanted = together(&plain, &requests).0;
    for always in [true, false] {
        let how = with(EngineOptions::default(), |o| o.speculate_always = always);
        let guessing = Engine::new(&own, &how).unwrap();
        let (outcomes, drafted, accepted) = together(&guessing, &requests);
        assert_eq!(tokens_of(&outcomes), tokens_of(&wanted), "always: {always}");
        assert!(!always || accepted > 0 && drafted > 1000);
        let mut figures = (0, 0);
        for (request, wanted) in requests.iter().zip(&wanted) {
            let request = std::slice::from_ref(request);
            let (alone, drafted, accepted) = together(&guessing, request);
            assert_eq!(alone[0].tokens, wanted.tokens, "alone, always: {always}");
            figures = (figures.0 + drafted, figures.1 + accepted);
        }
        let rounds: usize = outcomes.iter().map(|o| o.speculated.rounds).sum();
        let first: u32 = outcomes.iter().map(|o| o.speculated.by_position[0]).sum();
        println!(
            "always {always}: {accepted} of {drafted} in batches ({first} first ones in {rounds} rounds), {} of {} alone",
            figures.1, figures.0
        );
    }
    for (request, wanted) in requests.iter().zip(&wanted).step_by(5) {
        let alone = together(&plain, std::slice::from_ref(request)).0;
        assert_eq!(alone[0].tokens, wanted.tokens, "plain decoding alone");
    }
}

/// Whoever asks for a draft layer must have one.
#[test]
fn a_missing_draft_layer_is_named() {
    let own = model(TINY, |_| ());
    let how = with(EngineOptions::default(), |o| {
        o.speculation = Speculation::Own
    });
    let error = Engine::new(&own, &how).map(drop).unwrap_err().to_string();
    assert!(error.contains("draft layer"), "{error}");
}

/// A token must mean the same to both.
#[test]
fn a_draft_has_the_vocabulary_of_the_model() {
    let with_vocabulary = |change: &dyn Fn(&mut Vec<String>)| {
        let letter = |id: u32| char::from_u32(0x100 + id).unwrap().to_string();
        let mut letters: Vec<String> = (0..251).map(letter).collect();
        change(&mut letters);
        let ids = letters.iter().cloned().zip((0..).map(|id: u32| id.into()));
        let vocab: serde_json::Map<String, serde_json::Value> = ids.collect();
        let tokenizer = serde_json::json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": [],
        });
        let folder = tempfile::tempdir().unwrap();
        directory(
            folder.path(),
            "",
            &[("tokenizer.json", &tokenizer.to_string())],
        )
    };
    let own = with_vocabulary(&|_| ());
    assert!(engine(&own, Some(&with_vocabulary(&|_| ()))).is_ok());
    for (draft, why) in [
        (
            with_vocabulary(&|all| all.swap(3, 4)),
            "token 3 is another one",
        ),
        (
            with_vocabulary(&|all| all.swap(249, 250)),
            "token 249 is another one",
        ),
        (
            with_vocabulary(&|all| drop(all.pop())),
            "its vocabulary has 250 tokens and the model's 251",
        ),
    ] {
        let error = engine(&own, Some(&draft))
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
}
