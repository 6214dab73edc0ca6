//! Attention of every width, over rows of several sequences, against the CPU's oracle. Without a GPU it says so and passes.

#[path = "../../welte-cpu/tests/common/mod.rs"]
mod common;

use common::{Config, Numbers, difference, make, reference};
use std::sync::Arc;
use welte_cuda::{Model, Options, Replay, Session, info};
use welte_table::*;

/// `count` rows that go on where each of the sequences stands, in random turns.
fn mixed(n: &mut Numbers, at: &mut [u32], count: usize, vocab: u32) -> Vec<Row> {
    (0..count)
        .map(|_| {
            let sequence = n.below(at.len() as u64) as u32;
            let position = &mut at[sequence as usize];
            *position += 1;
            Row {
                token: n.below(u64::from(vocab)) as u32,
                position: *position - 1,
                sequence,
            }
        })
        .collect()
}

#[test]
fn attention_agrees_for_every_width() {
    if let Err(error) = info(0) {
        eprintln!("skipped: {error}");
        return;
    }
    let mut wrong = Vec::new();
    let (f16, q8) = (Format::F16, Format::Q8_0);
    for (head_dim, kv_format, page, heads, kv_heads, window, softcap) in [
        (80, f16, 48, 3, 1, 0, 0.0),
        (96, q8, 16, 6, 2, 50, 0.0),
        (96, f16, 64, 4, 4, 0, 7.0),
        (128, q8, 64, 8, 2, 33, 0.0),
        (128, f16, 16, 10, 1, 0, 0.0),
        (256, f16, 64, 4, 2, 100, 5.0),
        (256, q8, 32, 2, 1, 0, 0.0),
        (100, f16, 64, 2, 1, 0, 0.0),
        (64, f16, 10, 4, 2, 20, 0.0),
    ] {
        let config = Config {
            head_dim,
            rot: head_dim,
            kv_format,
            page,
            heads,
            kv_heads,
            window,
            softcap,
            ..Config::small(7)
        };
        let (program, checkpoint) = make(&config);
        let options = Options {
            device: 0,
            replay: Replay::Graph,
        };
        let shared = Arc::new(program.clone());
        let model = Model::load(shared, &checkpoint, &options, &mut |_, _| {}).unwrap();
        let mut fast = Session::new(&model).unwrap();
        let mut plain = common::load(&program, &checkpoint, &reference());
        let n = &mut Numbers(2);
        let mut at = [0u32; 3];
        // Batches of the matrix products and of the matrix-vector products.
        for count in [40, 1, 33, 16, 40, 40, 5, 40, 40, 1] {
            let rows = mixed(n, &mut at, count, config.vocab);
            let want = plain.step(2, &rows).unwrap().to_vec();
            let off = difference(fast.step(2, &rows).unwrap(), &want);
            if off > 2e-2 {
                wrong.push(format!("{count} rows off by {off}: {config:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
