//! The persistent kernel against the CPU's reference, and its invariants. Without a GPU that can run it every test says so and
//! passes.

mod common;

use common::small::{self, Config, Made, Numbers, difference, make, rows};
use common::{chain, config, gpu, load, logits, long, seed, soak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use welte_cuda::{Model, Options, Replay, Session};
use welte_table::*;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every format; of MLX's family those that read differently.
fn formats() -> Vec<Format> {
    let wanted = |format: &Format| match format {
        Format::Affine(a) => a.group() == 64 && a.bf16(),
        _ => true,
    };
    Format::ALL.into_iter().filter(wanted).collect()
}

#[test]
fn logits_agree_with_the_reference_in_every_format() {
    if !gpu() {
        return;
    }
    let made: Vec<(u64, Format, Program, Made)> = formats()
        .into_iter()
        .enumerate()
        .map(|(i, format)| {
            let seed = i as u64;
            let config = Config {
                format,
                interleaved: u32::from(i % 3 == 1),
                qk_norm: i % 2 == 0,
                tied: i % 4 != 3,
                window: if i % 5 == 4 { 100 } else { 0 },
                rot: if i % 6 == 5 { 32 } else { 64 },
                softcap: if i % 7 == 6 { 20.0 } else { 0.0 },
                act: [0, 0, 1, 2][i % 4],
                bias: i % 3 == 0,
                ..config(100 + seed)
            };
            let (program, checkpoint) = make(&config);
            (seed, format, program, checkpoint)
        })
        .collect();
    // Compiling takes longest: compile all kernels at once, into the cache.
    std::thread::scope(|scope| {
        for (_, _, program, checkpoint) in &made {
            scope.spawn(|| drop(load(program, checkpoint)));
        }
    });
    let mut wrong = Vec::new();
    for (seed, format, program, checkpoint) in made {
        let config = config(100 + seed);
        let mut fast = load(&program, &checkpoint);
        let mut plain = small::load(&program, &checkpoint, &small::options(4));
        fast.set_sampling(&Sampling::default(), &[], &[]);
        let mut n = Numbers(seed + 5);
        // Contexts of one split, and of several.
        for (first, count) in [(0, 3), (3, 90), (93, 210), (303, 250), (553, 256)] {
            let prompt = rows(&mut n, config.vocab, first, count, 1);
            fast.step(1, &prompt).unwrap();
            plain.step(1, &prompt).unwrap();
            let row = Row {
                token: 7,
                position: first + count,
                sequence: 1,
            };
            chain(&mut fast, row, &[1], &[]);
            let got = logits(&fast);
            // In a small random model one rounding to 8 bits that falls the other way is visible.
            let off = difference(&got, plain.step(0, &[row]).unwrap());
            let apart = difference(&got, fast.step(0, &[row]).unwrap());
            if off > 8e-2 || apart > 4e-2 {
                let at = row.position;
                wrong.push(format!(
                    "{format:?} at {at}: off by {off}, from the graph by {apart}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Around the first split of a context.
#[test]
fn every_position_around_the_first_split_agrees_with_the_graph() {
    if !gpu() {
        return;
    }
    let config = config(17);
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint);
    session.set_sampling(&Sampling::default(), &[], &[]);
    let mut n = Numbers(9);
    let prompt = rows(&mut n, config.vocab, 0, 120, 1);
    session.step(1, &prompt).unwrap();
    let mut wrong = Vec::new();
    for row in rows(&mut n, config.vocab, 120, 24, 1) {
        chain(&mut session, row, &[1], &[]);
        let got = logits(&session);
        let off = difference(&got, session.step(0, &[row]).unwrap());
        if off > 2e-2 {
            wrong.push(format!("at {}: off by {off}", row.position));
        }
    }
    assert_eq!(session.note(), None);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Heads of every size, groups of more than eight queries, windows that begin within a page, pages that are no multiple of a tile,
/// ropes of a part of a head; contexts of one position, of one split and of many.
#[test]
fn attention_of_every_shape_agrees_with_the_graph() {
    if !gpu() {
        return;
    }
    let mut n = Numbers(21);
    let mut wrong = Vec::new();
    for (seed, head_dim) in [64, 80, 96, 128, 256].into_iter().enumerate() {
        let kv_heads = n.pick(&[1, 2, 3]);
        let config = Config {
            layers: 2,
            head_dim,
            kv_heads,
            heads: kv_heads * [4, 1, 9, 8, 3][seed],
            rot: if seed % 3 == 2 {
                head_dim / 2
            } else {
                head_dim
            },
            interleaved: n.pick(&[0, 1]),
            qk_norm: n.pick(&[false, true]),
            window: if seed % 2 == 1 { 150 } else { 0 },
            softcap: n.pick(&[0.0, 20.0]),
            page: if seed == 2 { 24 } else { 16 },
            ..config(30 + seed as u64)
        };
        let (program, checkpoint) = make(&config);
        let mut session = load(&program, &checkpoint);
        session.set_sampling(&Sampling::default(), &[], &[]);
        let mut first = 0;
        for position in [0, 127, 128, 300] {
            if position > first {
                let prompt = rows(&mut n, config.vocab, first, position - first, 1);
                for chunk in prompt.chunks(config.rows as usize) {
                    session.step(1, chunk).unwrap();
                }
            }
            let row = rows(&mut n, config.vocab, position, 1, 1)[0];
            chain(&mut session, row, &[1], &[]);
            let got = logits(&session);
            let off = difference(&got, session.step(0, &[row]).unwrap());
            // A comparison with `>` would accept NaN.
            if !matches!(off, 0.0..=2e-2) {
                wrong.push(format!("{head_dim} at {position}: off by {off}"));
            }
            first = position + 1;
        }
        assert_eq!(session.note(), None);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn samplings() -> [Sampling; 3] {
    let greedy = Sampling::default();
    [
        greedy,
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            seed: 5,
            ..greedy
        },
        Sampling {
            repeat_penalty: 1.3,
            frequency_penalty: 0.1,
            ..greedy
        },
    ]
}

#[test]
fn a_chain_equals_any_split_of_it() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(11));
    let start = Row {
        token: 3,
        position: 0,
        sequence: 1,
    };
    let count = long(400);
    for settings in samplings() {
        let mut all = Vec::new();
        for lengths in [
            vec![count],
            vec![1; count],
            vec![7, count / 2, count / 2 - 7],
        ] {
            let mut session = load(&program, &checkpoint);
            session.set_sampling(&settings, &[], &[]);
            let tokens = chain(&mut session, start, &lengths, &[]);
            assert_eq!(session.note(), None);
            all.push((tokens, bits(&logits(&session))));
        }
        assert_eq!(all[0].0.len(), count);
        assert!(all.iter().all(|one| *one == all[0]), "{settings:?}");
        assert!(all[0].0.iter().any(|t| *t != all[0].0[0]), "{settings:?}");
    }
}

#[test]
fn the_token_is_what_the_plain_sampler_chooses_from_the_logits() {
    if !gpu() {
        return;
    }
    let config = Config {
        vocab: 5003,
        ..config(12)
    };
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint);
    let mut n = Numbers(77);
    let mut wrong = Vec::new();
    for position in 0..60u32 {
        let settings = Sampling {
            temperature: n.pick(&[0.0, 0.3, 1.0, 2.5]),
            top_k: n.pick(&[0, 1, 5, 40, 3000, 9000]),
            top_p: n.pick(&[1.0, 0.95, 0.3, 0.0]),
            min_p: n.pick(&[0.0, 0.05, 0.5]),
            repeat_penalty: n.pick(&[1.0, 1.3]),
            frequency_penalty: n.pick(&[0.0, 0.4]),
            presence_penalty: n.pick(&[0.0, 0.1]),
            penalty_last_n: n.pick(&[0, 3, 64]),
            seed: n.next(),
        };
        let biases = n.below(4);
        let bias: Vec<(u32, f32)> = (0..biases)
            .map(|_| (n.below(5003) as u32, 3.0 * n.float()))
            .collect();
        let history: Vec<u32> = (0..n.below(90)).map(|_| n.below(300) as u32).collect();
        session.set_sampling(&settings, &bias, &history);
        let row = Row {
            token: n.below(5003) as u32,
            position,
            sequence: 0,
        };
        let got = chain(&mut session, row, &[1], &[])[0];
        let logits = logits(&session);
        let want = welte_cpu::choose_plainly(&logits, &settings, &bias, &history, position + 1);
        if got != want {
            wrong.push(format!(
                "{position}: {got}, not {want}: {settings:?} {bias:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn end_tokens_and_listeners_end_a_chain() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(13));
    let mut session = load(&program, &checkpoint);
    let settings = samplings()[1];
    let start = Row {
        token: 9,
        position: 0,
        sequence: 0,
    };
    session.set_sampling(&settings, &[], &[]);
    let count = long(400);
    let all = chain(&mut session, start, &[count], &[]);
    let end = all[57];
    let first = all.iter().position(|t| *t == end).unwrap();
    session.set_sampling(&settings, &[], &[]);
    assert_eq!(chain(&mut session, start, &[count], &[end]), all[..=first]);
    // A listener that returns false gets no more tokens, and the sequence continues from there.
    session.set_sampling(&settings, &[], &[]);
    let never = AtomicBool::new(false);
    let mut some = Vec::new();
    let mut take = |token| {
        some.push(token);
        some.len() < 20
    };
    assert_eq!(
        session.chain(start, count, &[], &never, &mut take).unwrap(),
        20
    );
    let row = Row {
        token: some[19],
        position: 20,
        ..start
    };
    some.extend(chain(&mut session, row, &[80], &[]));
    assert_eq!(some, all[..100]);
    // Cancelled from elsewhere.
    session.set_sampling(&settings, &[], &[]);
    let cancel = AtomicBool::new(false);
    let mut some = Vec::new();
    let mut take = |token| {
        some.push(token);
        cancel.store(some.len() == 31, Ordering::Relaxed);
        true
    };
    let made = session
        .chain(start, count, &[], &cancel, &mut take)
        .unwrap();
    assert_eq!(made, some.len());
    assert_eq!(some, all[..made]);
}

#[test]
fn a_stuck_block_ends_in_an_error_and_the_graph_continues() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(14));
    let start = Row {
        token: 9,
        position: 0,
        sequence: 0,
    };
    let mut session = load(&program, &checkpoint);
    session.set_sampling(&Sampling::default(), &[], &[]);
    session.set_replay(Replay::Graph).unwrap();
    let want = chain(&mut session, start, &[40], &[]);
    session.set_replay(Replay::Persistent).unwrap();
    session.stall_block(5, 20_000_000);
    session.set_sampling(&Sampling::default(), &[], &[]);
    assert_eq!(chain(&mut session, start, &[40], &[]), want);
    let note = session.note().unwrap();
    assert!(note.contains("waited too long"), "{note}");
    assert_eq!(session.replay_in_use(), Replay::Graph);
    // Without the stalled block the kernel works again.
    session.stall_block(u32::MAX, 2_000_000_000);
    session.set_replay(Replay::Persistent).unwrap();
    assert_eq!(chain(&mut session, start, &[40], &[]).len(), 40);
    assert_eq!(session.replay_in_use(), Replay::Persistent);
}

#[test]
fn a_timeline_has_the_work_of_every_block() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(16));
    let mut session = load(&program, &checkpoint);
    let start = Row {
        token: 9,
        position: 60,
        sequence: 0,
    };
    session.set_sampling(&Sampling::default(), &[], &[]);
    let timeline = session.timeline(start, 12).unwrap();
    assert_eq!((timeline.position, timeline.rows), (71, 1));
    let products = [Op::MatmulAdd, Op::NormMatmul, Op::NormMatmulActMul];
    for lane in &timeline.lanes {
        // Every block has rows of every product.
        for (index, timed) in timeline.commands.iter().enumerate() {
            let its = lane
                .iter()
                .filter(|span| span.index == index as u32)
                .count();
            assert!(
                its == 1 || its == 0 && !products.contains(&timed.op),
                "{}",
                timed.name()
            );
        }
        for pair in lane.windows(2) {
            assert!(pair[0].begin <= pair[0].end && pair[0].end <= pair[1].begin);
        }
    }
    assert!(timeline.kinds().iter().any(|kind| kind.op == Op::Attention));
    // Afterwards chains run as before, without clocks.
    assert_eq!(session.replay_in_use(), Replay::Persistent);
    assert_eq!(chain(&mut session, start, &[12], &[]).len(), 12);
    let far = Row {
        position: program.kv.context,
        ..start
    };
    assert!(session.timeline(far, 2).is_err());
}

#[test]
fn a_model_that_it_cannot_run_is_replayed_as_a_graph_with_the_reason() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&Config {
        kv_format: Format::Q8_0,
        ..config(15)
    });
    let program = Arc::new(program);
    let options = Options {
        device: 0,
        replay: Replay::Persistent,
    };
    let model = Model::load(program, &checkpoint, &options, &mut |_, _| {}).unwrap();
    let mut session = Session::new(&model).unwrap();
    assert_eq!(session.replay_in_use(), Replay::Graph);
    assert!(session.note().unwrap().contains("Q8_0"));
    let start = Row {
        token: 9,
        position: 0,
        sequence: 0,
    };
    assert_eq!(chain(&mut session, start, &[20], &[]).len(), 20);
}

/// Random prompts, lengths, end tokens and stops: always the text of one long chain, and never a fault. Runs for `WELTE_SOAK`
/// seconds.
#[test]
fn random_chains_give_the_text_of_one_long_chain() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(16));
    let mut session = load(&program, &checkpoint);
    let settings = samplings()[1];
    let start = |token: u32| Row {
        token,
        position: 0,
        sequence: token % 3,
    };
    let (count, most) = (long(8) as u32, long(500));
    let mut texts = Vec::new();
    for token in 0..count {
        session.set_sampling(&settings, &[], &[]);
        texts.push(chain(&mut session, start(token), &[most], &[]));
    }
    let until = Instant::now() + soak();
    let mut n = Numbers(seed(3));
    let mut chains = 0u32;
    while Instant::now() < until {
        let token = n.below(count.into()) as u32;
        let text = &texts[token as usize];
        session.set_sampling(&settings, &[], &[]);
        let ends: Vec<u32> = (0..n.below(3)).map(|_| n.below(1003) as u32).collect();
        let stop = n.below(most as u64) as usize + 1;
        let mut got = Vec::new();
        let never = AtomicBool::new(false);
        let mut row = start(token);
        let mut open = true;
        while open && got.len() < stop {
            let length = n.below(most as u64 / 2) as usize + 1;
            let before = got.len();
            let mut take = |token| {
                got.push(token);
                got.len() < stop
            };
            let made = session
                .chain(row, length.min(most - before), &ends, &never, &mut take)
                .unwrap();
            open = got.last().is_none_or(|t| !ends.contains(t)) && got.len() < most;
            row.position += made as u32;
            row.token = got.last().copied().unwrap_or(row.token);
        }
        assert_eq!(got, text[..got.len()], "token {token}");
        assert_eq!(session.note(), None);
        chains += 1;
    }
    assert!(chains > 0);
    eprintln!("{chains} texts");
}

/// Tuning measures time, so it must not change any result.
#[test]
fn tuning_changes_no_token_and_no_logit() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(18));
    let options = Options {
        device: 0,
        replay: Replay::Persistent,
    };
    let model = Model::load(Arc::new(program), &checkpoint, &options, &mut |_, _| {}).unwrap();
    let start = Row {
        token: 9,
        position: 0,
        sequence: 0,
    };
    let text = || {
        let mut session = Session::new(&model).unwrap();
        session.set_sampling(&samplings()[1], &[], &[]);
        let tokens = chain(&mut session, start, &[long(300)], &[]);
        (tokens, bits(&logits(&session)), session.tuning())
    };
    let before = text();
    // All sessions of a model use the same parameters.
    assert_eq!(text(), before);
    let mut last = (0, 0);
    model
        .tune(&mut |done, total| {
            assert!(last.0 <= done && done <= total);
            last = (done, total);
        })
        .unwrap();
    assert!(last.0 == last.1, "{last:?}");
    let after = text();
    assert_eq!((after.0, after.1), (before.0, before.1));
}
