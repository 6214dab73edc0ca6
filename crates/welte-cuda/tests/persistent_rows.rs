//! Steps of several rows by the persistent kernel, against the CPU's reference and the launched kernels. Without a GPU that can
//! run it every test says so and passes.

mod common;

use common::small::{self, Config, Made, Numbers, difference, make, rows};
use common::{chain, config, gpu, load, logits, long, seed, soak};
use std::time::Instant;
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

/// Compares steps at several depths, of one sequence and of two.
fn check(
    wrong: &mut Vec<String>,
    name: &str,
    config: &Config,
    (program, checkpoint): &(Program, Made),
    allowed: [f32; 2],
) {
    let mut session = load(program, checkpoint);
    let most = session.rows_together().unwrap();
    let mut oracle = small::load(program, checkpoint, &small::options(4));
    session.set_sampling(&Sampling::default(), &[], &[]);
    let mut n = Numbers(config.seed);
    let mut first = [0; 2];
    // Contexts without a past, of one split and of several; and more rows than splits.
    for (depths, counts) in [
        ([0, 0], [2, 0]),
        ([13, 5], [3, 2]),
        ([150, 131], [1, 1]),
        ([151, 132], [5, 3]),
    ] {
        let mut step = Vec::new();
        for sequence in 0..2 {
            let i = sequence as usize;
            let past = rows(
                &mut n,
                config.vocab,
                first[i],
                depths[i] - first[i],
                sequence,
            );
            for chunk in past.chunks(config.rows as usize) {
                session.step(PROMPT, chunk).unwrap();
                oracle.step(PROMPT, chunk).unwrap();
            }
            step.extend(rows(&mut n, config.vocab, depths[i], counts[i], sequence));
            first[i] = depths[i] + counts[i];
        }
        // Rows may come in any order.
        step.rotate_left(1);
        step.truncate(most as usize);
        let [fast, plain] = both(&mut session, BATCH, &step);
        let off = difference(&fast, oracle.step(BATCH, &step).unwrap());
        let apart = difference(&fast, &plain);
        // A comparison with `>` would accept NaN.
        let near = |off: f32, most: f32| matches!(off, x if x <= most);
        if !near(off, allowed[0]) || !near(apart, allowed[1]) {
            wrong.push(format!(
                "{name} at {depths:?}: off by {off}, from launched kernels by {apart}"
            ));
        }
    }
}

#[test]
fn logits_of_all_rows_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    let affine = Format::ALL
        .into_iter()
        .find(|f| matches!(f, Format::Affine(_)));
    let formats = [
        Format::F32,
        Format::BF16,
        Format::Q4_0,
        Format::Q8_0,
        Format::Q4_K,
        Format::Q6_K,
        Format::Q2_K,
        affine.unwrap(),
    ];
    let made: Vec<_> = formats
        .into_iter()
        .enumerate()
        .map(|(i, format)| {
            let config = Config {
                format,
                interleaved: u32::from(i % 3 == 1),
                qk_norm: i % 2 == 0,
                tied: i % 4 != 3,
                window: if i % 3 == 2 { 100 } else { 0 },
                softcap: if i == 5 { 20.0 } else { 0.0 },
                act: [0, 1, 2][i % 3],
                bias: i % 3 == 0,
                ..config(200 + i as u64)
            };
            let made = make(&config);
            (config, made)
        })
        .collect();
    // Compiling takes longest: compile all kernels at once, into the cache.
    std::thread::scope(|scope| {
        for (_, (program, checkpoint)) in &made {
            scope.spawn(|| drop(load(program, checkpoint)));
        }
    });
    let mut wrong = Vec::new();
    for (config, made) in &made {
        // In a small random model one rounding to 8 bits that falls the other way is visible.
        let allowed = if config.format.rounds_activations() {
            [8e-2, 4e-2]
        } else {
            [1e-2, 2e-3]
        };
        check(&mut wrong, config.format.name(), config, made, allowed);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A prompt gives the logits of its last row, and leaves in the cache what decoding needs.
#[test]
fn a_short_prompt_can_be_continued() {
    if !gpu() {
        return;
    }
    let config = Config {
        format: Format::BF16,
        ..config(41)
    };
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint);
    session.set_sampling(&Sampling::default(), &[], &[]);
    let mut oracle = small::load(&program, &checkpoint, &small::options(4));
    let mut n = Numbers(7);
    let mut position = 0;
    for count in [2, 5, 3, 8, 4] {
        let prompt = rows(&mut n, config.vocab, position, count, 2);
        let [fast, plain] = both(&mut session, PROMPT, &prompt);
        assert_eq!(fast.len(), config.vocab as usize);
        let want = oracle.step(PROMPT, &prompt).unwrap();
        assert!(difference(&fast, want) < 2e-3 && difference(&fast, &plain) < 2e-3);
        // Once more, so that the kernel is the last to write the cache.
        session.step(PROMPT, &prompt).unwrap();
        position += count;
        let row = rows(&mut n, config.vocab, position, 1, 2)[0];
        chain(&mut session, row, &[1], &[]);
        let off = difference(&logits(&session), oracle.step(0, &[row]).unwrap());
        assert!(off < 2e-3, "after {count} rows: off by {off}");
        position += 1;
    }
}

/// Heads of every size, groups of more than eight queries, windows that begin within a page, pages that are no multiple of a tile.
#[test]
fn attention_of_every_shape_agrees_with_launched_kernels() {
    if !gpu() {
        return;
    }
    let mut n = Numbers(22);
    let mut wrong = Vec::new();
    for (seed, head_dim) in [80, 128, 256].into_iter().enumerate() {
        let kv_heads = n.pick(&[1, 2, 3]);
        let config = Config {
            format: Format::F32,
            layers: 2,
            head_dim,
            kv_heads,
            heads: kv_heads * [9, 1, 3][seed],
            rot: if seed == 2 { head_dim / 2 } else { head_dim },
            interleaved: n.pick(&[0, 1]),
            qk_norm: n.pick(&[false, true]),
            window: if seed == 1 { 150 } else { 0 },
            page: if seed == 0 { 24 } else { 16 },
            ..config(50 + seed as u64)
        };
        let made = make(&config);
        check(
            &mut wrong,
            &format!("heads of {head_dim}"),
            &config,
            &made,
            [1e-2, 2e-3],
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Random steps, many times: always the bits of the first time, and never a fault. Runs for `WELTE_SOAK` seconds.
#[test]
fn random_steps_give_the_same_logits_each_time() {
    if !gpu() {
        return;
    }
    let (mut n, mut steps) = (Numbers(seed(31)), 0u32);
    for format in [Format::Q4_0, Format::BF16] {
        let config = Config {
            format,
            ..config(44)
        };
        let (program, checkpoint) = make(&config);
        let mut session = load(&program, &checkpoint);
        session.set_sampling(&Sampling::default(), &[], &[]);
        let most = session.rows_together().unwrap();
        let depths = [0, 131, long(700) as u32];
        for (sequence, depth) in (0..).zip(depths) {
            let past = rows(&mut n, config.vocab, 0, depth, sequence);
            for chunk in past.chunks(config.rows as usize) {
                session.step(PROMPT, chunk).unwrap();
            }
        }
        // A step writes all positions beyond the depth of its sequences that its rows attend to.
        let one = |n: &mut Numbers| {
            let count = 2 + n.below(u64::from(most) - 1) as usize;
            let mut step = Vec::new();
            for (sequence, depth) in (0..).zip(depths) {
                let left = count - step.len();
                let some = match sequence {
                    2 => left as u32,
                    _ => n.below(left as u64 + 1) as u32,
                };
                step.extend(rows(n, config.vocab, depth, some, sequence));
            }
            step.rotate_left(n.below(count as u64) as usize);
            step
        };
        let mut known = Vec::new();
        for _ in 0..long(16) {
            let step = one(&mut n);
            let [fast, plain] = both(&mut session, BATCH, &step);
            assert!(difference(&fast, &plain) < 4e-2);
            known.push((step, fast));
        }
        let until = Instant::now() + soak() / 2;
        while Instant::now() < until {
            let (step, logits) = &known[n.below(known.len() as u64) as usize];
            assert_eq!(session.step(BATCH, step).unwrap(), logits, "{step:?}");
            assert_eq!(session.note(), None);
            steps += 1;
        }
    }
    assert!(steps > 0);
    eprintln!("{steps} steps");
}

#[test]
fn a_stuck_block_ends_in_an_error_and_launched_kernels_continue() {
    if !gpu() {
        return;
    }
    let config = Config {
        format: Format::F32,
        ..config(42)
    };
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint);
    let mut n = Numbers(8);
    let step = rows(&mut n, config.vocab, 0, 4, 1);
    let [_, want] = both(&mut session, BATCH, &step);
    session.stall_block(5, 20_000_000);
    assert_eq!(session.step(BATCH, &step).unwrap(), want);
    let note = session.note().unwrap();
    assert!(
        note.contains("waited too long") && note.contains("several rows"),
        "{note}"
    );
    assert_eq!(session.replay_in_use(), Replay::Graph);
    assert!(session.rows_together().is_err());
    // Without the stalled block the kernel works again.
    session.stall_block(u32::MAX, 2_000_000_000);
    session.set_replay(Replay::Persistent).unwrap();
    assert!(difference(session.step(BATCH, &step).unwrap(), &want) < 2e-3);
    assert_eq!(session.replay_in_use(), Replay::Persistent);
}

/// More rows than there is room for, one row, and tables with other commands.
#[test]
fn other_steps_are_computed_by_launched_kernels() {
    if !gpu() {
        return;
    }
    let config = config(43);
    let (mut program, checkpoint) = make(&config);
    let mut n = Numbers(9);
    let step = rows(&mut n, config.vocab, 0, 12, 1);
    let mut session = load(&program, &checkpoint);
    for rows in [2, 8] {
        assert_eq!(session.check_rows(rows).unwrap(), Some(true));
    }
    assert_eq!(session.rows_together(), Ok(8));
    for count in [1, 9, 12] {
        let [fast, plain] = both(&mut session, BATCH, &step[..count]);
        assert_eq!(fast, plain, "{count} rows");
    }
    // A batch whose norm has other weights.
    let norm = |table: &Table| table.commands[1].weights[1];
    let other = program.tables[BATCH]
        .commands
        .iter()
        .rposition(|c| c.op == Op::NormMatmulActMul);
    let other = program.tables[BATCH].commands[other.unwrap()].weights[1];
    assert_ne!(norm(&program.tables[BATCH]), other);
    program.tables[BATCH].commands[1].weights[1] = other;
    let mut session = load(&program, &checkpoint);
    let [fast, plain] = both(&mut session, BATCH, &step[..4]);
    assert_eq!(fast, plain);
    program.tables[PROMPT].commands[1].weights[1] = other;
    let session = load(&program, &checkpoint);
    assert!(
        session
            .rows_together()
            .unwrap_err()
            .contains("no other table")
    );
}
