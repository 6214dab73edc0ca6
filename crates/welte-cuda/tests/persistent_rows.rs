//! Steps of several rows by the persistent kernel, against the CPU's oracle and the launched kernels. Without a GPU that it runs
//! on every test says so and passes.

mod common;

use common::small::{self, Config, Made, Numbers, difference, make, rows};
use common::{chain, config, gpu, load};
use welte_cuda::{Replay, Session};
use welte_table::*;

const PROMPT: usize = 1;
const BATCH: usize = 2;

/// A step's logits by the persistent kernel, and by launched kernels.
fn both(session: &mut Session, table: usize, rows: &[Row]) -> [Vec<f32>; 2] {
    let fast = session.step(table, rows).unwrap().to_vec();
    assert_eq!(session.note(), None);
    session.set_replay(Replay::Graph).unwrap();
    let plain = session.step(table, rows).unwrap().to_vec();
    session.set_replay(Replay::Persistent).unwrap();
    [fast, plain]
}

/// So many tokens of a sequence before `first`.
fn fill(session: &mut Session, n: &mut Numbers, config: &Config, first: u32, sequence: u32) {
    let prompt = rows(n, config.vocab, 0, first, sequence);
    for chunk in prompt.chunks(config.rows as usize) {
        session.step(PROMPT, chunk).unwrap();
    }
}

#[test]
fn first_try() {
    if !gpu() {
        return;
    }
    let config = config(40);
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint);
    eprintln!("{:?}", session.rows_together());
    let mut n = Numbers(3);
    for (depth, count) in [(0, 2), (40, 3), (300, 8)] {
        fill(&mut session, &mut n, &config, depth, 1);
        let step = rows(&mut n, config.vocab, depth, count, 1);
        let [fast, plain] = both(&mut session, BATCH, &step);
        eprintln!("{depth} {count}: {}", difference(&fast, &plain));
    }
}
