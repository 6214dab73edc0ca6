//! Threads of one process load programs, make contexts, replay them and drop them, all at the same time. Each round is a
//! process of its own that starts with an empty kernel cache, so that threads compile while others already replay.
//!
//! `WELTE_STRESS_ROUNDS` is the number of rounds, 2 unless set.

mod common;

use common::{Config, chain_of, config, long, make, rows, step};
use std::process::Command;
use std::sync::{Arc, Barrier};
use welte_conformance::made::{Made, Numbers};
use welte_device::{Replay, ReplayTools};
use welte_table::{Format, PassKind, Program, Row};

/// Set to the number of the round in a process that runs one.
const ROUND: &str = "WELTE_STRESS_ROUND";

/// One thread for each. Products of many rows go through cuBLASLt in all of them.
const FORMATS: [Format; 8] = [
    Format::Q4_0,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::F32,
    Format::F16,
    Format::Q6_K,
    Format::BF16,
];

#[test]
#[ignore = "needs a GPU"]
fn contexts_of_several_threads_do_not_disturb_each_other() {
    if let Ok(round) = std::env::var(ROUND) {
        return round_of_threads(round.parse().unwrap());
    }
    let rounds = std::env::var("WELTE_STRESS_ROUNDS").map_or(2, |n| n.parse().unwrap());
    for round in 0..rounds {
        let cache = std::env::temp_dir().join(format!("welte-stress-{}", std::process::id()));
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--include-ignored", "--nocapture"])
            .arg("contexts_of_several_threads_do_not_disturb_each_other")
            .env(ROUND, round.to_string())
            .env("XDG_CACHE_HOME", &cache)
            .output()
            .unwrap();
        // A round that compiled nothing was not cold.
        let compiled = std::fs::read_dir(cache.join("welte/kernels")).map_or(0, Iterator::count);
        std::fs::remove_dir_all(&cache).ok();
        let [out, err] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
        let status = done.status;
        assert!(status.success(), "round {round}: {status}\n{out}\n{err}");
        assert!(compiled > 0, "round {round} compiled nothing\n{out}\n{err}");
    }
}

/// What one round does.
fn round_of_threads(round: u64) {
    let start = Barrier::new(FORMATS.len());
    std::thread::scope(|scope| {
        for (thread, format) in FORMATS.into_iter().enumerate() {
            let start = &start;
            scope.spawn(move || {
                let config = Config {
                    format,
                    bias: thread % 2 == 0,
                    ..config(100 * round + thread as u64)
                };
                let (program, checkpoint) = make(&config);
                let program = Arc::new(program);
                // The persistent kernel compiles for long: one thread is enough.
                let replay = [Replay::Persistent, Replay::Graph][thread.min(1)];
                start.wait();
                let mut first = None;
                for _ in 0..long(4) {
                    let results = use_once(&program, &checkpoint, &config, replay);
                    let first = first.get_or_insert_with(|| results.clone());
                    assert_eq!(*first, results, "{format:?}");
                }
            });
        }
    });
}

/// Loads a program, makes two contexts of it, and drops everything. Returns the bits of a prompt's logits and the tokens of
/// chains, for each context.
fn use_once(
    program: &Arc<Program>,
    checkpoint: &Made,
    config: &Config,
    replay: Replay,
) -> Vec<(Vec<u32>, Vec<u32>)> {
    let loaded = common::device(replay).load_program(program.clone(), checkpoint);
    let loaded = loaded.unwrap();
    let use_context = |_| {
        let mut context = loaded.cuda_context().unwrap();
        let past = rows(&mut Numbers(config.seed), config.vocab, 0, 100, 0);
        let logits = step(&mut context, PassKind::Prompt, &past);
        let bits = logits.iter().map(|value| value.to_bits()).collect();
        let mut row = Row::new(7, 100, 0);
        let mut tokens = chain_of(&mut context, row, 8);
        context.set_replay(Replay::Loop).unwrap();
        row = Row::new(7, 108, 0);
        tokens.extend(chain_of(&mut context, row, 8));
        (bits, tokens)
    };
    [(); 2].map(use_context).into()
}
