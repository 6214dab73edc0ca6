//! Engines whose model is dealt to ranks: requests of every kind have the texts of a single device, alone and beside others.

mod common;
#[path = "../../welte-ranks/tests/faulty/mod.rs"]
mod faulty;

use common::*;
use faulty::{Call, Fault, Faulty, Plot};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use welte::{
    AdapterSource, Constraint, DeviceChoice, Engine, EngineOptions, LoadOptions, Model, Outcome,
    PrefixStoreOptions, Request, Sampling, Speculation, Stream, SyntheticDraft,
};
use welte_device::{Device, DeviceId, DeviceOptions};
use welte_goldens::Golden;

/// Its matrices are worth an exchange.
const DEALT: &str = "synthetic:tiny,layers=2,dim=512,ffn=2560:q8_0";

fn path(golden: &Golden) -> String {
    golden.path().display().to_string()
}

/// A model on the CPU, whole or dealt.
fn model(source: &str, ranks: u32, change: impl FnOnce(&mut LoadOptions)) -> Model {
    let options = with(options(DeviceChoice::CPU), |o| {
        (o.ranks, o.slots, o.threads) = (ranks, 4, Some(1));
        change(o);
    });
    load(source, &options)
}

/// The same, where ranks deal every matrix, however small.
fn dealt(source: &str, ranks: u32, change: impl FnOnce(&mut LoadOptions)) -> Model {
    let model = model(source, ranks, |o| {
        o.least_dealt = Some(0);
        change(o);
    });
    let facts = model.device_facts();
    let exchanges = facts.iter().find(|fact| fact.0 == "exchanges");
    // At least as often as layers.
    let count = |fact: &String| fact.split(' ').next()?.parse::<usize>().ok();
    let count = exchanges.and_then(|fact| count(&fact.1)).unwrap_or(0);
    assert_eq!(count >= model.spec().layers as usize, ranks > 1, "{count}");
    model
}

/// What requests that come together end with.
fn together(engine: &Engine, requests: &[Request]) -> Vec<Outcome> {
    let submit = |request: &Request| engine.submit(request.clone()).unwrap();
    let streams: Vec<Stream> = requests.iter().map(submit).collect();
    let outcomes = streams.into_iter();
    outcomes
        .map(|stream| stream.complete().unwrap().1)
        .collect()
}

fn texts(outcomes: &[Outcome]) -> Vec<&[u32]> {
    outcomes.iter().map(|outcome| &outcome.tokens[..]).collect()
}

/// Every second one takes the most probable tokens.
fn requests(model: &Model, count: usize) -> Vec<Request> {
    let request = |nth: usize| {
        with(Request::new(prompt(8 + 7 * nth, model)), |r| {
            r.options.max_tokens = 30 + nth % 5;
            r.options.ignore_end = true;
            r.prompt[0] = nth as u32;
            if nth % 2 == 1 {
                r.options.sampling = sampled(nth as u64);
            }
        })
    };
    (0..count).map(request).collect()
}

/// The texts of one device and of 2 and 3 ranks are the same. `run` is given how many there are.
fn alike<T: PartialEq + std::fmt::Debug>(run: impl Fn(u32) -> T) -> T {
    let one = run(1);
    for ranks in [2, 3] {
        assert!(run(ranks) == one, "{ranks} ranks have other texts");
    }
    one
}

#[test]
fn batches_of_many_requests() {
    alike(|ranks| {
        let model = model(DEALT, ranks, |o| (o.slots, o.cache_positions) = (6, 256));
        let exchanges = model
            .device_facts()
            .iter()
            .find(|fact| fact.0 == "exchanges");
        // Four in each of two layers; the matrix of the logits is small.
        assert_eq!(
            exchanges.is_some_and(|fact| fact.1.starts_with("8 in a decode step")),
            ranks > 1
        );
        let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
        // Pages run out, so some are preempted.
        let all = together(&engine, &requests(&model, 14));
        assert!(all.iter().all(|outcome| outcome.tokens.len() >= 30));
        let preempted: usize = all.iter().map(|outcome| outcome.preemptions as usize).sum();
        assert!(preempted > 0);
        texts(&all).concat()
    });
}

/// Masks of a grammar and of a schema, in steps and in chains, with guesses and without.
#[test]
fn constraints() {
    let demo = format!("{}/../../models/demo.gguf", folder());
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false});
    let constraints = [
        Constraint::JsonSchema(schema.clone()),
        Constraint::Gbnf("root ::= (\"ab\" | \"ba\" [0-9]{1,3})+ \"!\"".into()),
        Constraint::Choice(vec!["a fox".into(), "a wolf".into()]),
    ];
    let all = alike(|ranks| {
        let model = model(&demo, ranks, |o| o.context = 512);
        let mut all = Vec::new();
        for speculation in [Speculation::Off, Speculation::Ngram] {
            let how = with(EngineOptions::default(), |o| {
                (o.speculation, o.speculate_always) = (speculation, true);
            });
            let engine = Engine::new(&model, &how).unwrap();
            let request = |nth: usize| {
                let text = model.encode("Once upon a time").unwrap();
                with(Request::new(text), |r| {
                    r.options.constraint = Some(constraints[nth % 3].clone());
                    r.options.max_tokens = 120;
                    r.options.sampling = with(Sampling::default(), |s| {
                        (s.temperature, s.seed) = (2.0, nth as u64);
                    });
                })
            };
            let requests: Vec<Request> = (0..6).map(request).collect();
            let submit = |request: &Request| engine.submit(request.clone()).unwrap();
            let streams: Vec<Stream> = requests.iter().map(submit).collect();
            all.extend(
                streams
                    .into_iter()
                    .map(|stream| stream.complete().unwrap().0),
            );
        }
        all
    });
    for text in all.iter().step_by(3) {
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        assert!(jsonschema::is_valid(&schema, &value), "{text}");
    }
    assert!(["a fox", "a wolf"].contains(&&all[2][..]));
}

/// Guesses of n-grams, of another model and at random are verified.
#[test]
fn guesses() {
    alike(|ranks| {
        let own = model(DEALT, ranks, |_| ());
        // The other one is on one device.
        let other = model(&DEALT.replace("q8_0", "q5_0"), 1, |_| ());
        let mut all = Vec::new();
        for speculation in [
            Speculation::Off,
            Speculation::Ngram,
            Speculation::Model(other),
        ] {
            let is_model = matches!(speculation, Speculation::Model(_));
            let is_off = matches!(speculation, Speculation::Off);
            let how = with(EngineOptions::default(), |o| {
                (o.speculation, o.speculate_always) = (speculation, true);
            });
            let engine = Engine::new(&own, &how).unwrap();
            let mut requests = requests(&own, 8);
            for request in requests.iter_mut().filter(|_| is_off) {
                request.synthetic_draft =
                    Some(with(SyntheticDraft::default(), |d| d.agreement = 0.5));
            }
            let outcomes = together(&engine, &requests);
            let drafted: usize = outcomes.iter().map(|o| o.speculated.drafted).sum();
            let accepted: usize = outcomes.iter().map(|o| o.speculated.accepted).sum();
            assert!(
                drafted > 0 && (accepted > 0 || !is_model),
                "{accepted} of {drafted}"
            );
            all.push(texts(&outcomes).concat());
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
        all
    });
}

/// Draft layers, an EAGLE-3 head and a drafter of Gemma 4 guess for several requests; recurrent states go back after wrong guesses.
#[test]
fn own_guesses() {
    for (source, head) in [
        ("drafts/glm4_moe/hf", None),
        ("drafts/qwen35/hf", None),
        ("llama/hf", Some("drafts/eagle3/hf")),
        ("gemma4/effective", Some("drafts/gemma4_assistant/hf")),
    ] {
        let (file, head) = (Golden::new(source), head.map(Golden::new));
        alike(|ranks| {
            let model = dealt(&path(&file), ranks, |o| {
                o.draft_head = head.as_ref().map(path)
            });
            assert!(model.has_draft_layer());
            let all = [Speculation::Off, Speculation::Own].map(|speculation| {
                let guesses = matches!(speculation, Speculation::Own);
                let how = with(EngineOptions::default(), |o| {
                    (o.speculation, o.speculate_always, o.draft_max) = (speculation, true, 3);
                });
                let engine = Engine::new(&model, &how).unwrap();
                let outcomes = together(&engine, &requests(&model, 8));
                let drafted: usize = outcomes.iter().map(|o| o.speculated.drafted).sum();
                assert_eq!(drafted > 0, guesses, "{source}");
                texts(&outcomes).concat()
            });
            assert!(all[0] == all[1], "{source}, {ranks} ranks");
            all
        });
    }
}

#[test]
fn recurrent_states_go_back() {
    let file = Golden::new("qwen3next/hf");
    alike(|ranks| {
        let model = dealt(&path(&file), ranks, |o| o.checkpoints = 3);
        let how = with(EngineOptions::default(), |o| {
            (o.speculation, o.speculate_always) = (Speculation::Ngram, true);
        });
        let engine = Engine::new(&model, &how).unwrap();
        let mut requests = requests(&model, 8);
        for request in &mut requests {
            // Answers of three tokens repeat themselves, and often go on in another way.
            request.options.sampling = sampled(3);
            request.options.bias = vec![(5, 50.0), (6, 50.0), (7, 50.0)];
        }
        let outcomes = together(&engine, &requests);
        let of = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
        let (drafted, accepted) = (of(|o| o.speculated.drafted), of(|o| o.speculated.accepted));
        assert!(
            0 < accepted && accepted < drafted,
            "{accepted} of {drafted}"
        );
        texts(&outcomes).concat()
    });
}

/// Several adapters and none in one batch; some are loaded and removed while requests run.
#[test]
fn adapters() {
    let base = Golden::new("llama/hf");
    let files = ["adapters/llama-all", "adapters/llama.gguf"].map(Golden::new);
    let source = |name: &str, file: &Golden| AdapterSource {
        name: name.into(),
        path: file.path().to_path_buf(),
        scale: 1.0,
        for_all: false,
    };
    let all = alike(|ranks| {
        let model = dealt(&path(&base), ranks, |o| {
            o.adapters = vec![source("all", &files[0]), source("gguf", &files[1])];
        });
        let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
        engine.unload_adapter("gguf").unwrap();
        let ask = |adapter: Option<&str>, tokens: usize| {
            with(Request::new(prompt(20, &model)), |r| {
                (r.options.max_tokens, r.options.ignore_end) = (tokens, true);
                r.options.adapter = adapter.map(|name| engine.adapter(name).unwrap().scaled(1.0));
            })
        };
        let alone = |adapter| together(&engine, &[ask(adapter, 12)]).remove(0).tokens;
        let (none, first) = (alone(None), alone(Some("all")));
        // It comes while another one runs.
        let long = engine.submit(ask(Some("all"), 90)).unwrap();
        engine.load_adapter(&source("gguf", &files[1])).unwrap();
        let second = alone(Some("gguf"));
        let long = long.complete().unwrap().1.tokens;
        assert!(none != first && first != second && none != second);
        assert_eq!(long[..12], first);
        let names = [None, Some("all"), Some("gguf")];
        let batch: Vec<Request> = (0..9).map(|nth| ask(names[nth % 3], 12)).collect();
        for (nth, outcome) in together(&engine, &batch).iter().enumerate() {
            assert_eq!(
                outcome.tokens,
                [&none, &first, &second][nth % 3][..],
                "{nth}"
            );
        }
        // Another one takes the place of one that is gone.
        drop(batch);
        engine.unload_adapter("all").unwrap();
        let again = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            engine.load_adapter(&source("again", &files[1])).ok()
        });
        assert!(again.is_some());
        assert_eq!(alone(Some("again")), second);
        assert_eq!(alone(None), none);
        [none, first, second, long]
    });
    assert_eq!(all[3].len(), 90);
}

/// Pages that left the pool come back from host memory and from disk, and a prefix serves the next request.
#[test]
fn prefixes() {
    alike(|ranks| prefixes_of(DEALT, DeviceChoice::CPU, ranks));
}

/// GPUs keep their parts of pages themselves.
#[test]
#[ignore = "needs two GPUs"]
fn prefixes_on_cuda() {
    prefixes_of(TINY, gpu(), 2);
}

/// Texts with pages that came back.
fn prefixes_of(source: &str, device: DeviceChoice, ranks: u32) -> [Vec<u32>; 2] {
    const PAGE: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let load = || {
        model(source, ranks, |o| {
            (o.device, o.replay) = (device, Some(welte::Replay::Graph));
            (o.slots, o.context, o.cache_positions) = (1, 512, 5 * PAGE as u32);
            o.prefix_store = true;
        })
    };
    let model = load();
    let ask = |engine: &Engine, number: u32, tokens: usize| {
        let request = with(Request::new(prompt(tokens, &model)), |r| {
            r.prompt[0] = number;
            (r.options.max_tokens, r.options.ignore_end, r.exact) = (12, true, true);
        });
        let outcome = engine.submit(request).unwrap().complete().unwrap().1;
        (outcome.tokens, outcome.cached_tokens)
    };
    let alone = |number, tokens| {
        let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
        ask(&engine, number, tokens).0
    };
    let expected = [alone(1, 200), alone(2, 230)];
    let pages = model.program().caches.iter();
    let page: u64 = pages.map(|c| c.page_bytes(PAGE as u32).unwrap()).sum();
    let how = with(EngineOptions::default(), |o| {
        o.prefix_host_bytes = 8 * page + page / 2;
        o.prefix_store = Some(PrefixStoreOptions {
            dir: folder.path().to_path_buf(),
            bytes: 1 << 30,
        });
    });
    let engine = Engine::new(&model, &how).unwrap();
    for turn in 0..4 {
        let (tokens, cached) = ask(&engine, 1 + turn % 2, 200 + 30 * (turn % 2) as usize);
        assert_eq!(tokens, expected[turn as usize % 2], "{turn}");
        assert_eq!(cached, if turn < 2 { 0 } else { 3 * PAGE });
    }
    assert!(engine.prefix_host().unwrap().pages_fetched > 0);
    engine.shutdown();
    // Another load finds on disk what the first one left.
    let model = load();
    let engine = Engine::new(&model, &how).unwrap();
    let (tokens, cached) = ask(&engine, 2, 230);
    assert_eq!((&tokens, cached), (&expected[1], 3 * PAGE));
    assert!(engine.prefix_store().unwrap().pages_read > 0);
    // A part of a page.
    let (longer, cached) = ask(&engine, 2, 237);
    assert!(cached >= 3 * PAGE, "{cached}");
    [expected.concat(), longer]
}

/// An engine of a model on three CPU ranks that deal everything and can be made to fail. The answer to one request, and its guesses.
fn faulty_engine(
    source: &str,
    plot: &Plot,
    how: &EngineOptions,
) -> impl FnMut(usize) -> Result<Outcome, welte::Error> + use<> {
    // Long enough for a busy machine.
    const PATIENCE: Duration = Duration::from_millis(1500);
    let model = model(source, 3, |o| o.slots = 2);
    let checkpoint = welte::open(source).unwrap();
    let device = |_| -> Arc<dyn Device> {
        let options = with(DeviceOptions::default(), |o| o.threads = Some(1));
        Arc::new(Faulty {
            inner: welte::open_device(DeviceId::only("cpu"), &options).unwrap(),
            plot: plot.clone(),
        })
    };
    let ranks = welte_ranks::device_by((0..3).map(device).collect(), 0, PATIENCE);
    let plan = ranks.plan(model.program().clone().into()).unwrap();
    let loaded = ranks.load(plan, &*checkpoint, &mut |_| {}).unwrap();
    let wrap = move |_| loaded.context().unwrap();
    let (engine, mut driver) = Engine::without_thread(&model, how, Box::new(wrap)).unwrap();
    move |tokens| {
        let request = with(Request::new(prompt(20, &model)), |r| {
            (r.options.max_tokens, r.options.ignore_end) = (tokens, true);
        });
        let stream = engine.submit(request).unwrap();
        while !driver.is_idle() {
            driver.turn().unwrap();
        }
        stream.complete().map(|(_, outcome)| outcome)
    }
}

/// Nobody depends on guesses: a rank that fails while they are made ends no request, and the next ones are guessed for again.
#[test]
fn a_rank_that_fails_at_guesses_ends_nothing() {
    let plot = Plot::default();
    let how = with(EngineOptions::default(), |o| {
        (o.speculation, o.speculate_always) = (Speculation::Own, true);
    });
    let mut answer = faulty_engine("synthetic:tiny,draft=true:q8_0", &plot, &how);
    let want = answer(40).unwrap();
    *plot.call.lock().unwrap() = Call::Draft;
    for fault in [Fault::Fails, Fault::Panics, Fault::Sleeps(5000)] {
        *plot.fault.lock().unwrap() = Some(fault);
        let got = answer(40).unwrap();
        assert!(plot.fault.lock().unwrap().is_none());
        assert_eq!(got.tokens, want.tokens);
        assert!(got.speculated.drafted > 0);
    }
    assert_eq!(
        answer(40).unwrap().speculated.drafted,
        want.speculated.drafted
    );
}

/// A rank that fails, stalls or is stopped ends the requests with its name, in bounded time. The next request has its text, on new
/// contexts if the rank is lost.
#[test]
fn a_rank_that_does_not_go_on_is_named() {
    let plot = Plot::default();
    let mut answer = faulty_engine(TINY, &plot, &EngineOptions::default());
    let want = answer(40).unwrap().tokens;
    for (fault, call, words) in [
        (
            Fault::Fails,
            Call::Chain,
            "rank 1 of 3: reference: no power",
        ),
        (Fault::Fails, Call::Step, "rank 1 of 3: reference: no power"),
        (Fault::Panics, Call::Chain, "rank 1 of 3: it panicked"),
        // As a copy between GPUs that does not come.
        (
            Fault::Blames(0),
            Call::Step,
            "rank 2 of 3: the others waited for it in vain",
        ),
        (Fault::Sleeps(5000), Call::Chain, "rank 1 of 3: "),
        (Fault::Sleeps(5000), Call::Step, "rank 1 of 3: "),
    ] {
        *plot.call.lock().unwrap() = call;
        *plot.fault.lock().unwrap() = Some(fault);
        let begun = Instant::now();
        let error = answer(40).expect_err("an error");
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert!(error.is_of_rank(), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(answer(40).unwrap().tokens, want, "after {words}");
    }
}
