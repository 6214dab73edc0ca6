//! Conversations of real agents, replayed: how many tokens each turn computes. A trace has the shape of what an agent sent
//! (`tools/agent-traces`), with sub-agents, an answer that was interrupted, and a conversation that was compacted. Texts are made up here.

mod common;

use common::*;
use std::task::Poll;
use welte::{DeviceChoice, Driver, Engine, EngineOptions, Model, Request, Speculation, Stream};

/// Characters that a token stands for. Real tokens have about four; longer ones keep the test quick.
const CHARACTERS: usize = 16;
/// Positions of a page, and between two checkpoints of a prompt.
const PAGE: usize = 64;
const CHECKPOINT_EVERY: usize = 512;

const PLAIN: &str = "synthetic:custom,vocab=512:q8_0";
const WINDOWED: &str = "synthetic:custom,arch=gemma3,layers=6,window=100,vocab=512:q8_0";
const RECURRENT: &str = "synthetic:custom,arch=qwen35,layers=4,vocab=512:q8_0";

/// A piece of a prompt.
enum Piece {
    /// The same number: the same text, after the same beginning.
    Text { number: u64, tokens: usize },
    /// What the model answered to an earlier request.
    Answer(usize),
}

struct Turn {
    pieces: Vec<Piece>,
    /// Tokens of the answer.
    answer: usize,
    cancelled: bool,
}

fn tokens_of(characters: &serde_json::Value) -> usize {
    (characters.as_u64().unwrap() as usize).div_ceil(CHARACTERS)
}

fn trace(agent: &str) -> Vec<Turn> {
    let path = format!("{}/tests/traces/{agent}.json", folder());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let piece = |piece: &serde_json::Value| match piece[0].as_u64() {
        Some(number) => Piece::Text {
            number,
            tokens: tokens_of(&piece[1]),
        },
        None => Piece::Answer(piece[1].as_u64().unwrap() as usize),
    };
    let turn = |request: &serde_json::Value| Turn {
        pieces: request["pieces"]
            .as_array()
            .unwrap()
            .iter()
            .map(piece)
            .collect(),
        // Half of an answer must be one, too.
        answer: tokens_of(&request["answer"]).max(4),
        cancelled: request["cancelled"].as_bool().unwrap(),
    };
    trace["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(turn)
        .collect()
}

/// What one turn did.
#[derive(Debug)]
struct Computed {
    prompt: Vec<u32>,
    /// Tokens of the prompt that came from the cache.
    cached: usize,
    answer: Vec<u32>,
}

impl Computed {
    /// The tokens whose keys and values were left: the last one of an answer is never computed.
    fn left(&self) -> Vec<u32> {
        let answer = &self.answer[..self.answer.len() - 1];
        [&self.prompt, answer].concat()
    }
}

fn run(engine: &Engine, driver: &mut Driver, turn: &Turn, prompt: Vec<u32>) -> Computed {
    let request = with(Request::new(prompt.clone()), |r| {
        r.options.max_tokens = turn.answer;
        r.options.ignore_end = true;
        // The chain of a turn that is cancelled ends where the client has read.
        r.options.chain = turn.cancelled.then_some(1);
    });
    let mut stream: Stream = engine.submit(request).unwrap();
    let mut answer = Vec::new();
    loop {
        match stream.poll_token() {
            Poll::Ready(Some(token)) => answer.push(token.unwrap()),
            Poll::Ready(None) => break,
            Poll::Pending => driver.turn().unwrap(),
        }
        if turn.cancelled && answer.len() == turn.answer / 2 {
            stream.cancel_handle().cancel();
        }
    }
    let cached = stream.outcome().unwrap().cached_tokens;
    Computed {
        prompt,
        cached,
        answer,
    }
}

/// Replays a trace.
fn replay(agent: &str, model: &Model) -> Vec<Computed> {
    let options = with(EngineOptions::default(), |o| {
        o.speculation = Speculation::Off
    });
    let same = Box::new(|context| context);
    let (engine, mut driver) = Engine::without_thread(model, &options, same).unwrap();
    let mut done: Vec<Computed> = Vec::new();
    for turn in trace(agent) {
        let mut prompt = Vec::new();
        for piece in &turn.pieces {
            match piece {
                Piece::Text { number, tokens } => {
                    let mut random = Random(*number);
                    prompt.extend((0..*tokens).map(|_| random.below(512) as u32));
                }
                Piece::Answer(number) => prompt.extend(&done[*number].answer),
            }
        }
        done.push(run(&engine, &mut driver, &turn, prompt));
    }
    done
}

fn model(source: &str, checkpoints: u32) -> Model {
    let options = with(options(DeviceChoice::CPU), |o| {
        o.context = 8192;
        o.cache_positions = 1 << 16;
        o.prompt_rows = 512;
        o.checkpoints = checkpoints;
    });
    load(source, &options)
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The most that a prompt can take over of a text that begins alike: all but its last token.
fn shared(text: &[u32], prompt: &[u32]) -> usize {
    common(text, prompt).min(prompt.len() - 1)
}

/// Every turn takes over all that an earlier one has computed. Returns the tokens that were computed.
fn takes_over_everything(agent: &str, source: &str) -> usize {
    let turns = replay(agent, &model(source, 0));
    let mut left: Vec<Vec<u32>> = Vec::new();
    for (number, turn) in turns.iter().enumerate() {
        let most = left.iter().map(|text| shared(text, &turn.prompt)).max();
        assert_eq!(turn.cached, most.unwrap_or(0), "turn {number}");
        left.push(turn.left());
    }
    computed(&turns)
}

fn computed(turns: &[Computed]) -> usize {
    turns
        .iter()
        .map(|turn| turn.prompt.len() - turn.cached)
        .sum()
}

/// With a place for every checkpoint, every turn goes on from the last one before it differs: at the end of an earlier text, at
/// the last whole page of its prompt, or at a multiple of 512.
fn goes_on_from_the_last_checkpoint(agent: &str) -> usize {
    let turns = replay(agent, &model(RECURRENT, 256));
    let mut left: Vec<(Vec<u32>, usize)> = Vec::new();
    for (number, turn) in turns.iter().enumerate() {
        let last = |(text, prompt): &(Vec<u32>, usize)| {
            let shared = shared(text, &turn.prompt);
            let ends = [text.len(), (prompt - 1) / PAGE * PAGE];
            let regular = shared.min(*prompt) / CHECKPOINT_EVERY * CHECKPOINT_EVERY;
            let ends = ends.into_iter().filter(|end| *end <= shared);
            ends.max().unwrap_or(0).max(regular)
        };
        let most = left.iter().map(last).max().unwrap_or(0);
        assert_eq!(turn.cached, most, "turn {number}");
        left.push((turn.left(), turn.prompt.len()));
    }
    computed(&turns)
}

#[test]
fn claude_code_on_a_plain_model() {
    assert_eq!(takes_over_everything("claude-code", PLAIN), 9049);
}

#[test]
fn claude_code_on_a_model_with_windows() {
    assert_eq!(takes_over_everything("claude-code", WINDOWED), 9049);
}

#[test]
fn claude_code_on_a_recurrent_model() {
    assert_eq!(goes_on_from_the_last_checkpoint("claude-code"), 9434);
}

#[test]
fn codex_on_a_plain_model() {
    assert_eq!(takes_over_everything("codex", PLAIN), 2865);
}

#[test]
fn codex_on_a_model_with_windows() {
    assert_eq!(takes_over_everything("codex", WINDOWED), 2865);
}

#[test]
fn codex_on_a_recurrent_model() {
    assert_eq!(goes_on_from_the_last_checkpoint("codex"), 3345);
}

/// The default has fewer places than checkpoints. A sub-agent's prompt must not drive out all states of the conversation that
/// goes on after it, and those that stay are spread over the whole text.
#[test]
fn few_checkpoints_serve_agents_too() {
    let few = welte::LoadOptions::default().checkpoints;
    let turns = |agent| replay(agent, &model(RECURRENT, few));
    let claude = turns("claude-code");
    for (number, cached) in [(7, 4096), (13, 4096), (16, 2048), (20, 4096)] {
        assert_eq!(claude[number].cached, cached, "turn {number}");
    }
    assert_eq!(computed(&claude), 12_237);
    assert_eq!(computed(&turns("codex")), 4072);
}
