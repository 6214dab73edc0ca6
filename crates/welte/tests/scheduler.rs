//! Thousands of random requests on a small pool: every text and every logit is that of the same request alone, and
//! nothing leaks. `WELTE_TEST_SEED` repeats a run, `WELTE_TEST_DEVICE` names the device, and `WELTE_SOAK_SECONDS` makes
//! rounds for so long.

mod common;
#[path = "common/spy.rs"]
mod spy;

use common::*;
use spy::{Spy, Watch};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};
use welte::{
    Constraint, Engine, EngineOptions, Error, LoadOptions, Medium, MediumAt, Model, Request,
    Sampling, Speculation, Stream, SyntheticDraft,
};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What a model must have in common with the others: short context, several slots, and too few pages for all of them.
fn small_pool(slots: u32) -> LoadOptions {
    let device = std::env::var("WELTE_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    with(LoadOptions::default(), |o| {
        o.device = device.parse().unwrap();
        o.context = 448;
        o.threads = Some(1);
        o.prompt_rows = 40;
        o.slots = slots;
        o.cache_positions = 640;
        // Too few for the media of all slots.
        o.features = if device == "cpu" { 40 } else { 0 };
    })
}

/// A request and what it gives alone.
struct Case {
    request: Request,
    tokens: Vec<u32>,
}

/// Random requests. Some prompts begin like others, or continue what an earlier request generates.
fn requests(model: &Model, random: &mut Random, count: usize) -> Vec<Request> {
    let vocab = u64::from(model.vocab());
    let mut all: Vec<Request> = Vec::new();
    let pool = media(model, random);
    for number in 0..count as u64 {
        let (mut prompt, mut begun) = (Vec::new(), Vec::new());
        if let Some(other) = all.get(random.below(number + 4) as usize) {
            let keep = random.below(other.prompt.len() as u64 + 1) as usize;
            prompt.extend_from_slice(&other.prompt[..keep]);
            let kept = |at: &&MediumAt| at.at + at.medium.rows() <= keep;
            begun.extend(other.media.iter().filter(kept).cloned());
        }
        let most = if random.once_in(4) { 150 } else { 40 };
        let more = 1 + random.below(most);
        prompt.extend((0..more).map(|_| random.below(vocab) as u32));
        prompt.truncate(300);
        let mut request = Request::new(prompt);
        request.exact = true;
        let options = &mut request.options;
        options.max_tokens = random.below(70) as usize;
        options.sampling = if random.once_in(2) {
            Sampling::default()
        } else {
            Sampling {
                temperature: 1.0,
                top_k: [0, 40][random.below(2) as usize],
                repeat_penalty: 1.2,
                frequency_penalty: 0.1,
                repeat_last_n: [8, 64][random.below(2) as usize],
                ..Sampling::default()
            }
        };
        // The spy tells requests apart by their seeds.
        options.sampling.seed = number + 1;
        if random.once_in(8) {
            let s = &mut options.sampling;
            (s.dry_multiplier, s.dry_penalty_last_n) = (0.5 * random.below(3) as f32, 100);
            (s.typical_p, s.top_n_sigma) = (0.9, 2.0 * random.below(2) as f32);
            (s.xtc_probability, s.dynatemp_range) = (0.5, 0.3 * random.below(2) as f32);
        }
        // While these run, there are no chains.
        if number % 20 == 7 {
            options.logprobs = Some(random.below(4) as u32);
            options.prompt_logprobs = random.once_in(2).then_some(2);
        }
        options.min_tokens = random.below(2) as usize * 5;
        options.ignore_end = random.once_in(2);
        if model.tokenizer().is_ok() && random.once_in(2) {
            options.ignore_end = false;
            options.constraint = Some(constraint(random));
        }
        if random.once_in(5) {
            options.bias = vec![(random.below(vocab) as u32, 2.0)];
        }
        options.chain = random.once_in(3).then(|| 1 + random.below(20) as usize);
        if model.device().id.kind == "cpu" && options.prompt_logprobs.is_none() {
            let prompt = request.prompt.len();
            request.media = with_media(random, &pool, begun, prompt);
            if request.media.is_empty() {
                request.both_ways = both_ways(random, prompt);
            }
        }
        all.push(request);
    }
    all
}

/// A few media, if the model takes any. Half of them attend both ways, and half of them have axes.
fn media(model: &Model, random: &mut Random) -> Vec<Arc<Medium>> {
    let all = (0..6).take_while(|_| model.feature_room() > 0);
    let made = all.map(|nth: u32| {
        let grid = [1 + nth, 4];
        let medium = random_medium(model.feature_width(), grid, random);
        let medium = match nth % 2 {
            0 => medium,
            _ => medium.attending_both_ways(),
        };
        Arc::new(medium)
    });
    made.collect()
}

/// For some prompts: media after those that they have.
fn with_media(
    random: &mut Random,
    pool: &[Arc<Medium>],
    mut placed: Vec<MediumAt>,
    prompt: usize,
) -> Vec<MediumAt> {
    let mut from = placed.last().map_or(0, |m| m.at + m.medium.rows());
    while !pool.is_empty() && random.once_in(2) {
        let at = from + random.below(30) as usize;
        let medium = pool[random.below(pool.len() as u64) as usize].clone();
        from = at + medium.rows();
        if from > prompt {
            break;
        }
        placed.push(MediumAt { at, medium });
    }
    placed
}

/// For some prompts: spans that attend both ways.
fn both_ways(random: &mut Random, prompt: usize) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut from = 0;
    while random.once_in(3) {
        let start = from + random.below(30) as usize;
        from = start + 1 + random.below(24) as usize;
        if from > prompt {
            break;
        }
        spans.push(start..from);
    }
    spans
}

/// Constraints with and without forced tokens.
fn constraint(random: &mut Random) -> Constraint {
    let name = random.below(1000);
    match random.below(4) {
        0 => Constraint::Json,
        1 => Constraint::Regex(format!("({name}|[a-z ]+){{1,9}}")),
        2 => Constraint::JsonSchema(serde_json::json!({
            "type": "object",
            "properties": {
                format!("a long name that is forced {name}"): {"type": "integer"},
                "and another one": {"type": "array", "items": {"enum": ["red", "green"]}},
            },
            "required": ["and another one"],
            "additionalProperties": false,
        })),
        _ => Constraint::Choice(vec![
            format!("{name} is the number"),
            "there is no number".into(),
        ]),
    }
}

/// Whether a run has mixed steps, if the device has.
fn mixes(seed: u64) -> bool {
    seed / 2 % 3 < 2
}

fn engine(
    model: &Model,
    watch: &Arc<Watch>,
    seed: u64,
    plain: bool,
    speculation: Speculation,
) -> (Engine, welte::Driver) {
    let watch = watch.clone();
    let wrap = move |context| -> Box<dyn welte::Context> {
        let spy = Spy::new(context, &watch, Some(seed), plain);
        Box::new(if mixes(seed) {
            spy
        } else {
            spy.without_mixed_steps()
        })
    };
    let options = with(EngineOptions::default(), |o| {
        o.speculation = speculation;
        // What pays depends on the machine.
        o.speculate_always = true;
        o.draft_max = [16, 5, 1][seed as usize % 3];
    });
    Engine::without_thread(model, &options, Box::new(wrap)).unwrap()
}

/// Each request by itself, with nothing cached.
fn alone(model: &Model, requests: Vec<Request>, watch: &Arc<Watch>) -> Vec<Case> {
    let (engine, mut driver) = engine(model, watch, 1, false, Speculation::Off);
    let mut cases = Vec::new();
    for request in requests {
        let lone = with(request.clone(), |r| {
            (r.prefix_cache, r.speculate) = (false, false);
        });
        let mut stream = engine.submit(lone).unwrap();
        let mut tokens = Vec::new();
        loop {
            match stream.poll_token() {
                Poll::Ready(Some(token)) => tokens.push(token.unwrap()),
                Poll::Ready(None) => break,
                Poll::Pending => driver.turn().unwrap(),
            }
        }
        assert_eq!(stream.outcome().unwrap().tokens, tokens);
        cases.push(Case { request, tokens });
    }
    cases
}

/// A request in flight: its case, its stream, what came, and after how many tokens it is given up.
struct Flight {
    case: usize,
    stream: Stream,
    tokens: Vec<u32>,
    budget: usize,
    leave_at: usize,
}

#[derive(Default, Debug)]
struct Counts {
    complete: usize,
    left: usize,
    expired: usize,
    busy: usize,
    preemptions: u32,
    cached: usize,
    drafted: usize,
    accepted: usize,
    /// The same of requests with a constraint, and of those that want probabilities.
    guided: usize,
    scored: usize,
}

/// Submits `count` random variants of the cases, and compares each with its case.
fn together(
    cases: &[Case],
    engine: &Engine,
    driver: &mut welte::Driver,
    random: &mut Random,
    count: usize,
) -> Counts {
    let mut counts = Counts::default();
    let mut flights: Vec<Flight> = Vec::new();
    let (mut submitted, mut turns) = (0, 0);
    while submitted < count || !flights.is_empty() {
        let arrivals = if random.once_in(3) && flights.len() < 60 {
            random.below(6)
        } else {
            0
        };
        for _ in 0..arrivals.min((count - submitted) as u64) {
            submitted += 1;
            let case = random.below(cases.len() as u64) as usize;
            let Case { request, tokens } = &cases[case];
            let mut request = request.clone();
            let budget = random.below(tokens.len() as u64 + 20) as usize;
            if random.once_in(2) {
                request.options.max_tokens = request.options.max_tokens.min(budget);
            }
            request.priority = random.below(3) as i32;
            request.speculate = random.once_in(2);
            request.synthetic_draft = random.once_in(3).then(|| SyntheticDraft {
                answer: tokens.clone(),
                agreement: [0.3, 0.7, 0.95][random.below(3) as usize],
                ..SyntheticDraft::default()
            });
            request.prefix_cache = !random.once_in(8);
            request.exact = !random.once_in(10);
            if !request.exact {
                request.options.sampling.seed = 1_000_000 + submitted as u64;
            }
            if random.once_in(20) {
                request.deadline = Some(Instant::now());
            }
            let leave_at = if random.once_in(6) {
                random.below(30) as usize
            } else {
                usize::MAX
            };
            let (exact, budget) = (request.exact, request.options.max_tokens);
            match engine.submit(request) {
                Ok(stream) => flights.push(Flight {
                    // What reuses other roles has other bits, so it is only there to disturb.
                    case: if exact { case } else { usize::MAX },
                    stream,
                    tokens: Vec::new(),
                    budget,
                    leave_at,
                }),
                Err(Error::Busy { .. }) => counts.busy += 1,
                Err(error) => panic!("{error}"),
            }
        }
        driver.turn().unwrap();
        turns += 1;
        assert!(turns < 1000 * count, "no progress");
        flights.retain_mut(|flight| !is_over(flight, cases, random, &mut counts));
    }
    counts
}

/// Reads what has come. True if the request has ended or was given up.
fn is_over(flight: &mut Flight, cases: &[Case], random: &mut Random, counts: &mut Counts) -> bool {
    let ended = loop {
        if flight.tokens.len() >= flight.leave_at {
            break None;
        }
        match flight.stream.poll_token() {
            Poll::Ready(Some(Ok(token))) => flight.tokens.push(token),
            Poll::Ready(Some(Err(error))) => break Some(Err(error)),
            Poll::Ready(None) => break Some(Ok(())),
            Poll::Pending => return false,
        }
    };
    let case = cases.get(flight.case);
    if let Some(case) = case {
        assert!(
            case.tokens.starts_with(&flight.tokens),
            "case {}: {:?} is not a beginning of {:?}",
            flight.case,
            flight.tokens,
            case.tokens
        );
    }
    match ended {
        None if random.once_in(2) => {
            flight.stream.cancel_handle().cancel();
            assert!(matches!(flight.stream.poll_token(), Poll::Ready(None)));
            counts.left += 1;
        }
        // Dropped.
        None => counts.left += 1,
        Some(Err(Error::Deadline)) => counts.expired += 1,
        Some(Err(error)) => panic!("case {}: {error}", flight.case),
        Some(Ok(())) => {
            let outcome = flight.stream.outcome().unwrap();
            assert_eq!(outcome.tokens, flight.tokens);
            if let Some(case) = case {
                let whole = case.tokens.len().min(flight.budget);
                assert_eq!(flight.tokens.len(), whole, "{:?}", outcome.stop);
            }
            counts.complete += 1;
            counts.preemptions += outcome.preemptions;
            counts.cached += outcome.cached_tokens;
            counts.drafted += outcome.speculated.drafted;
            counts.accepted += outcome.speculated.accepted;
            let options = case.map(|case| &case.request.options);
            if options.is_some_and(|options| options.constraint.is_some()) {
                counts.guided += outcome.speculated.accepted;
            }
            if options.is_some_and(|options| options.logprobs.is_some()) {
                counts.scored += outcome.speculated.accepted;
            }
        }
    }
    true
}

/// Everything is as it was at the start.
fn is_clean(engine: &Engine, driver: &mut welte::Driver) {
    // Requests that were given up last end in the next turn, and leave their pages in the tree.
    while !driver.is_idle() {
        driver.turn().unwrap();
    }
    engine.forget_prefixes();
    driver.turn().unwrap();
    let status = engine.status();
    assert_eq!((status.running, status.waiting), (0, 0));
    assert_eq!(status.free_pages, status.pages);
    assert_eq!(status.free_slots, engine.model().program().slots as usize);
    assert!(driver.is_idle());
}

fn round(source: &str, seed: u64, count: usize) -> Counts {
    let mut random = Random(seed);
    let slots = [12, 6, 3, 1][seed as usize % 4];
    let model = load(source, &small_pool(slots));
    let watch = Arc::new(Watch::default());
    let requests = requests(&model, &mut random, 60);
    let mut cases = alone(&model, requests, &watch);
    // The same request again, with what it generated as part of the prompt: the roles differ.
    let continued: Vec<Request> = (0..20u64)
        .map(|number| {
            let case = &cases[random.below(cases.len() as u64) as usize];
            let mut request = case.request.clone();
            request.prompt.extend_from_slice(&case.tokens);
            request.options.sampling.seed = 1000 + number;
            request
        })
        .collect();
    cases.extend(alone(&model, continued, &watch));
    assert!(watch.differing.lock().unwrap().is_empty());
    let lone: HashMap<(u64, u32), u64> = watch.logits.lock().unwrap().clone();
    let plain = seed % 4 == 3;
    let watch = Arc::new(Watch::default());
    // A file has no shape.
    let shape = source.rsplit_once(':').map(|(shape, _)| shape);
    let recurrent = source.contains("qwen35");
    let speculation = match shape.filter(|_| seed % 2 == 1) {
        // Recurrent state cannot go back, so nobody guesses.
        _ if recurrent => Speculation::Off,
        None => Speculation::Ngram,
        // The same weights in another format often agree.
        Some(shape) => Speculation::Model(load(&format!("{shape}:q5_0"), &small_pool(slots))),
    };
    let (engine, mut driver) = engine(&model, &watch, seed, plain, speculation);
    let counts = together(&cases, &engine, &mut driver, &mut random, count);
    is_clean(&engine, &mut driver);
    let seen = watch.logits.lock().unwrap().clone();
    let mut compared = 0;
    for (key, hash) in seen.iter() {
        if let Some(alone) = lone.get(key) {
            compared += 1;
            assert_eq!(alone, hash, "seed {} position {} of {source}", key.0, key.1);
        }
    }
    println!("{source} seed {seed}: {counts:?}, {compared} rows of logits");
    assert!(watch.differing.lock().unwrap().is_empty());
    assert!(counts.complete > count / 3 && counts.left > 0 && counts.expired > 0);
    assert!(counts.cached > 0, "nothing was cached");
    let wrong = counts.drafted - counts.accepted;
    // How many depends on what the steps cost meanwhile. Nothing is guessed in mixed steps.
    let few = if mixes(seed) { 0 } else { count / 8 };
    let often = counts.accepted > few && wrong > few;
    // A trained model repeats itself less than random weights.
    assert!(often || shape.is_none() || recurrent, "{counts:?}");
    assert!(plain || compared > 300, "only {compared} rows compared");
    // Their number depends on the time that steps take.
    let mixed = watch.mixed.load(Ordering::SeqCst);
    println!("{mixed} mixed steps");
    let on_cpu = std::env::var("WELTE_TEST_DEVICE").is_err();
    assert!(
        !on_cpu || !mixes(seed) || slots == 1 || mixed > 0,
        "no mixed step"
    );
    counts
}

/// Models whose caches differ: one cache, a window, and recurrent state.
const SOURCES: [&str; 3] = [
    "synthetic:custom,vocab=512:q8_0",
    "synthetic:custom,arch=gemma3,layers=6,window=80,vocab=512:q4_0",
    "synthetic:custom,arch=qwen35,layers=4,vocab=512:q8_0",
];

#[test]
fn every_request_gets_what_it_gets_alone() {
    let seed = variable("WELTE_TEST_SEED").unwrap_or(1);
    let sources = (seed..).zip(SOURCES.iter().cycle().take(6));
    let scored = sources.map(|(seed, source)| round(source, seed, 400).scored);
    assert!(scored.sum::<usize>() > 0, "no guess beside probabilities");
}

/// The bundled model has a vocabulary, so half of its requests have constraints.
#[test]
fn constrained_requests_get_what_they_get_alone() {
    let seed = variable("WELTE_TEST_SEED").unwrap_or(1);
    let folder = std::env::var("CARGO_MANIFEST_DIR");
    let folder = folder.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    let source = format!("{folder}/../../models/demo.gguf");
    let guided = [seed, seed + 1].map(|seed| round(&source, seed, 200).guided);
    assert!(
        guided.iter().sum::<usize>() > 0,
        "no guess within a constraint"
    );
}

#[test]
#[ignore = "takes as long as WELTE_SOAK_SECONDS says"]
fn soak() {
    let begun = Instant::now();
    let seconds = variable("WELTE_SOAK_SECONDS").unwrap_or(60);
    let first = variable("WELTE_TEST_SEED").unwrap_or(1000);
    for seed in first.. {
        if begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        round(SOURCES[seed as usize % SOURCES.len()], seed, 2000);
    }
}
