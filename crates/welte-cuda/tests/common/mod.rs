//! Small models that the persistent kernels take, and sessions of them.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../welte-cpu/tests/common/mod.rs"]
pub mod small;

use small::{Config, Made};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use welte_cuda::{Model, Options, Replay, Session, info};
use welte_table::*;

/// False, and says why, if there is no GPU for the kernel here.
pub fn gpu() -> bool {
    match info(0) {
        Ok(gpu) if gpu.arch >= 90 => true,
        Ok(gpu) => {
            eprintln!("skipped: {} is too old", gpu.name);
            false
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// So many tokens, or on the pretended GPU (`tests/pretend`), where a token takes a while, a quarter of them.
pub fn long(tokens: usize) -> usize {
    match info(0) {
        Ok(gpu) if gpu.name == "a pretended GPU" => tokens / 4,
        _ => tokens,
    }
}

/// How long a soak goes on: as many seconds as `WELTE_SOAK` says, or two.
pub fn soak() -> Duration {
    let said = std::env::var("WELTE_SOAK").ok();
    Duration::from_secs(said.and_then(|s| s.parse().ok()).unwrap_or(2))
}

/// What random numbers of a test begin with, so that two that run side by side do not do the same: `WELTE_SEED`, or the usual.
pub fn seed(usual: u64) -> u64 {
    let said = std::env::var("WELTE_SEED").ok();
    said.and_then(|s| s.parse().ok()).unwrap_or(usual)
}

/// A model that the kernel takes.
pub fn config(seed: u64) -> Config {
    Config {
        format: Format::Q4_0,
        layers: 3,
        dim: 256,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        rot: 64,
        hidden: 768,
        vocab: 1003,
        context: 2048,
        rows: 256,
        ..Config::small(seed)
    }
}

pub fn load(program: &Program, checkpoint: &Made) -> Session {
    let options = Options {
        device: 0,
        replay: Replay::Persistent,
    };
    let program = Arc::new(program.clone());
    let model = Model::load(program, checkpoint, &options, &mut |_, _| {}).unwrap();
    let session = Session::new(&model).unwrap();
    assert_eq!(session.note(), None);
    assert_eq!(session.replay_in_use(), Replay::Persistent);
    session
}

/// Decodes in chains of these lengths.
pub fn chain(session: &mut Session, mut row: Row, lengths: &[usize], ends: &[u32]) -> Vec<u32> {
    let mut tokens = Vec::new();
    for length in lengths {
        let never = AtomicBool::new(false);
        let mut take = |token| {
            tokens.push(token);
            true
        };
        let made = session
            .chain(row, *length, ends, &never, &mut take)
            .unwrap();
        row.position += made as u32;
        row.token = tokens.last().copied().unwrap_or(row.token);
        if made < *length {
            break;
        }
    }
    tokens
}

/// The logits that the last token was chosen from.
pub fn logits(session: &Session) -> Vec<f32> {
    let program = session.model().program();
    let sample = program.tables[0].commands.last().unwrap();
    let bytes = session.buffer(sample.buffers[0].buffer).unwrap();
    let words = bytes.chunks_exact(4).take(program.vocab as usize);
    words
        .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}
