//! What guesses bring, from earlier text or from the draft layer or head of a model that has one: an engine that guesses and one that does
//! not, alternating. Two tasks repeat their prompt, a third one does not, and nobody can guess the fourth. Prints JSON.
//!
//! ```console
//! $ cargo run --release -p welte --example guesses -- MODEL [DEVICE] [TOKENS] [ROUNDS] [HEAD]
//! ```

use welte::{Engine, EngineOptions, LoadOptions, Model, Outcome, Request, Sampling, Speculation};

type Failure = Box<dyn std::error::Error>;

const STORY: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. One \
                     day, she saw a big red ball in the park. She ran to the ball and kicked it very hard. The ball \
                     flew over the fence and into the river. Lily was sad, but a kind dog swam to the ball and brought \
                     it back. Lily hugged the dog and they became best friends.\n\n";
const RECORD: &str = "{\"name\": \"Lily\", \"age\": 7, \"friends\": [\"Tom\", \"Max\"], \"likes\": \"the red ball\"}\n";

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let source = words.next().unwrap_or("models/demo.gguf".into());
    let device = words.next().unwrap_or("auto".into()).parse()?;
    let mut number = |default: usize| words.next().map_or(Ok(default), |word| word.parse());
    let (tokens, rounds) = (number(200)?, number(9)?);
    let mut options = LoadOptions::default();
    options.device = device;
    options.context = 2048;
    options.draft_head = words.next();
    let model = Model::load(&source, &options, &mut |_| ())?;
    let engine = |speculation: Speculation| {
        let mut options = EngineOptions::default();
        options.speculation = speculation;
        Engine::new(&model, &options)
    };
    let guessing = if model.has_draft_layer() {
        Speculation::Own
    } else {
        Speculation::Ngram
    };
    let engines = [engine(Speculation::Off)?, engine(guessing)?];
    let letter = |n: u32| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 27) as u8 % 26);
    let letters: String = (0..400).map(letter).collect();
    let tasks = [
        ("a story again", STORY.repeat(3), 0.0),
        ("a record again", RECORD.repeat(6), 0.0),
        ("another story", "Once upon a time".to_string(), 1.0),
        ("random letters", letters, 3.0),
    ];
    let mut results = Vec::new();
    for (task, prompt, temperature) in tasks {
        let mut request = Request::new(model.encode(&prompt)?);
        request.options.max_tokens = tokens;
        request.options.ignore_end = true;
        request.options.sampling.temperature = temperature;
        let (mut speeds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        let (mut drafted, mut accepted) = (0, 0);
        for round in 0..=rounds {
            request.options.sampling = Sampling {
                seed: round as u64,
                ..request.options.sampling
            };
            let run = |engine: &Engine| engine.submit(request.clone())?.complete();
            let ((plain, before), (text, after)) = (run(&engines[0])?, run(&engines[1])?);
            if text != plain {
                return Err("the texts differ".into());
            }
            // The first round is the warm-up.
            if round > 0 {
                let each = [speed(&before), speed(&after)];
                speeds
                    .iter_mut()
                    .zip(each)
                    .for_each(|(all, one)| all.push(one));
                ratios.push(each[1] / each[0]);
                drafted += after.speculated.drafted;
                accepted += after.speculated.accepted;
            }
        }
        let [plain, guessing] = speeds.map(median);
        results.push(serde_json::json!({
            "task": task, "plain": plain, "guessing": guessing, "ratio": median(ratios),
            "guesses": drafted, "right": accepted, "tokens": tokens * rounds,
        }));
    }
    println!("{:#}", serde_json::Value::from(results));
    Ok(())
}

/// Tokens per second after the first one.
fn speed(outcome: &Outcome) -> f64 {
    (outcome.tokens.len() as f64 - 1.0) / outcome.timings.generation.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
