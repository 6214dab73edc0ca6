//! The persistent kernel against the reference and the graph, and its invariants.

mod common;

use common::{
    Config, chain, chain_of, chain_while, config, difference, gpu, load, logits, long, make, open,
    oracle, prompt, replaying, rows, seed, set_slot, soak, step,
};
use std::sync::Arc;
use std::time::Instant;
use welte_conformance::made::{Made, Numbers};
use welte_conformance::{model, program};
use welte_cuda::CudaContext;
use welte_device::{
    ChainStart, Choice, Context, Control, Emitted, LogprobQuery, Logprobs, NO_MASK, Progress,
    Replay, ReplayTools, SlotState,
};
use welte_table::*;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every format; of MLX's family those that read differently.
fn formats() -> Vec<Format> {
    let wanted = |format: &Format| match format {
        Format::Affine(a) => a.group() == 64 && a.bf16(),
        // No persistent kernel reads them.
        Format::Integers(_) => false,
        _ => true,
    };
    Format::ALL.into_iter().filter(wanted).collect()
}

#[test]
#[ignore = "needs a GPU"]
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
        let mut fast = load(&program, &checkpoint);
        let mut plain = oracle(&program, &checkpoint);
        let mut n = Numbers(seed + 5);
        // Contexts of one split, and of several.
        for (first, count) in [(0, 3), (3, 90), (93, 210), (303, 250), (553, 256)] {
            let past = rows(&mut n, program.vocab, first, count, 1);
            prompt(&mut fast, &past);
            prompt(plain.as_mut(), &past);
            let row = Row::new(7, first + count, 1);
            chain_of(&mut fast, row, 1);
            let got = logits(&mut fast);
            // In a small random model one rounding to 8 bits that falls the other way is visible.
            let off = difference(&got, &step(plain.as_mut(), PassKind::Decode, &[row]));
            let apart = difference(&got, &step(&mut fast, PassKind::Decode, &[row]));
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

/// Compares the persistent kernel with the graph at a row. Describes the difference, if it is too large.
fn compare_with_graph(context: &mut CudaContext, row: Row) -> Option<String> {
    chain_of(context, row, 1);
    let got = logits(context);
    let off = difference(&got, &step(context, PassKind::Decode, &[row]));
    (off > 2e-2).then(|| format!("at {}: off by {off}", row.position))
}

#[test]
#[ignore = "needs a GPU"]
fn every_position_around_the_first_split_agrees_with_the_graph() {
    if !gpu() {
        return;
    }
    let config = config(17);
    let (program, checkpoint) = make(&config);
    let mut context = load(&program, &checkpoint);
    let mut n = Numbers(9);
    prompt(&mut context, &rows(&mut n, config.vocab, 0, 120, 1));
    let rows = rows(&mut n, config.vocab, 120, 24, 1).into_iter();
    let wrong: Vec<String> = rows
        .filter_map(|row| compare_with_graph(&mut context, row))
        .collect();
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs a GPU"]
fn rows_too_long_for_the_ring_are_multiplied_by_columns() {
    if !gpu() {
        return;
    }
    // A little more than a slot has.
    for (format, hidden) in [
        (Format::BF16, 16_512),
        (Format::F16, 16_640),
        (Format::F32, 16_896),
    ] {
        let config = Config {
            format,
            hidden,
            layers: 1,
            slots: 1,
            decode_rows: 1,
            ..config(31)
        };
        let (program, checkpoint) = make(&config);
        let mut fast = load(&program, &checkpoint);
        let mut plain = oracle(&program, &checkpoint);
        assert_eq!(replaying(&mut fast), (Replay::Persistent, None));
        for position in 0..2 {
            let row = Row::new(5 + position, position, 0);
            chain_of(&mut fast, row, 1);
            let off = difference(
                &logits(&mut fast),
                &step(plain.as_mut(), PassKind::Decode, &[row]),
            );
            assert!(off < 2e-2, "{format:?} {hidden}: off by {off}");
        }
    }
}

/// Heads of every size, groups of more than eight queries, windows that begin within a page, pages that are not a multiple of a tile,
/// ropes of a part of a head; contexts of one position, of one split and of many.
#[test]
#[ignore = "needs a GPU"]
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
        let mut context = load(&program, &checkpoint);
        let mut first = 0;
        for position in [0, 127, 128, 300] {
            let past = rows(&mut n, config.vocab, first, position - first, 1);
            prompt(&mut context, &past);
            let row = rows(&mut n, config.vocab, position, 1, 1)[0];
            let problem = compare_with_graph(&mut context, row);
            wrong.extend(problem.map(|problem| format!("{head_dim} {problem}")));
            first = position + 1;
        }
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Layers with and without a window, whose caches have page lists of their own in different orders.
#[test]
#[ignore = "needs a GPU"]
fn layers_in_several_caches_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    let plain = model::Attention {
        heads: 8,
        head_dim: 64,
        rot: 64,
        ..model::ATTENTION
    };
    let windowed = model::Attention {
        window: 50,
        window_cache: true,
        ..plain
    };
    let dense = model::Layer::Dense(model::Dense {
        hidden: 512,
        act: 0,
    });
    let attention = model::Layer::Attention;
    let (program, checkpoint) = program::make(&model::Model {
        dim: 256,
        vocab: 1003,
        prompt_rows: 64,
        layers: vec![attention(plain), dense, attention(windowed), dense],
        ..model::Model::small(23)
    });
    assert_eq!(program.caches.len(), 2);
    let mut context = load(&program, &checkpoint);
    let mut reference = oracle(&program, &checkpoint);
    let entries = program.caches[0].entries(&program);
    for (cache, first) in [(0, entries), (1, 0)] {
        let pages: Vec<u32> = (first..first + entries).rev().collect();
        context.set_pages(cache, 2, 0, &pages).unwrap();
        reference.set_pages(cache, 2, 0, &pages).unwrap();
    }
    let mut n = Numbers(4);
    let past = rows(&mut n, 1003, 0, 200, 2);
    prompt(&mut context, &past);
    prompt(reference.as_mut(), &past);
    for row in rows(&mut n, 1003, 200, 3, 2) {
        chain_of(&mut context, row, 1);
        let got = logits(&mut context);
        let want = step(reference.as_mut(), PassKind::Decode, &[row]);
        assert!(difference(&got, &want) < 1e-2, "{}", row.position);
    }
    let several = rows(&mut n, 1003, 203, 4, 2);
    let got = step(&mut context, PassKind::Decode, &several);
    let want = step(reference.as_mut(), PassKind::Decode, &several);
    assert!(difference(&got, &want) < 1e-2);
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
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

/// A row of slot `slot` at position 0.
fn start(token: u32, slot: u32) -> Row {
    Row::new(token, 0, slot)
}

#[test]
#[ignore = "needs a GPU"]
fn a_chain_equals_any_split_of_it() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(11));
    let count = long(400);
    for settings in samplings() {
        let mut all = Vec::new();
        for lengths in [
            vec![count],
            vec![1; count],
            vec![7, count / 2, count / 2 - 7],
        ] {
            let mut context = load(&program, &checkpoint);
            set_slot(&mut context, 1, &settings, &[]);
            let tokens = chain(&mut context, start(3, 1), &lengths);
            assert_eq!(replaying(&mut context), (Replay::Persistent, None));
            all.push((tokens, bits(&logits(&mut context))));
        }
        assert_eq!(all[0].0.len(), count);
        assert!(all.iter().all(|one| *one == all[0]), "{settings:?}");
        assert!(all[0].0.iter().any(|t| *t != all[0].0[0]), "{settings:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_token_is_the_choice_of_the_sampling_kernel_from_the_logits() {
    if !gpu() {
        return;
    }
    let config = Config {
        vocab: 5003,
        ..config(12)
    };
    let (program, checkpoint) = make(&config);
    let mut context = load(&program, &checkpoint);
    let result = program.passes[0].result.buffer;
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
            repeat_last_n: n.pick(&[0, 3, 64]),
            seed: n.next(),
            ..Sampling::default()
        };
        let bias: Vec<(u32, f32)> = (0..n.below(4))
            .map(|_| (n.below(5003), 3.0 * n.float()))
            .collect();
        let history: Vec<u32> = (0..n.below(90)).map(|_| n.below(300)).collect();
        let state = SlotState {
            sampling: settings,
            bias: &bias,
            history: &history,
            ends: &[],
            ..SlotState::default()
        };
        context.set_slot(0, &state).unwrap();
        let row = Row::new(n.below(5003), position, 0);
        let got = chain_of(&mut context, row, 1)[0];
        let chosen_from = logits(&mut context);
        let bytes: Vec<u8> = chosen_from.iter().flat_map(|v| v.to_ne_bytes()).collect();
        // tests/sampling.rs compares the sampling kernel with the reference.
        step(&mut context, PassKind::Decode, &[row]);
        context.write_buffer(result, &bytes).unwrap();
        context.set_slot(0, &state).unwrap();
        let pick = Choice {
            output: 0,
            slot: 0,
            position: position + 1,
            draft: None,
        };
        let mut want = [0];
        context.sample(&[pick], &mut want).unwrap();
        if got != want[0] {
            wrong.push(format!(
                "{position}: {got}, not {want:?}: {settings:?} {bias:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Chains report for each token what a query about its step answers, bit for bit: greedy and sampled, with vocabularies that give
/// a block many rows and few.
#[test]
#[ignore = "needs a GPU"]
fn chains_report_the_probabilities_of_steps() {
    if !gpu() {
        return;
    }
    for vocab in [5003, 301] {
        let config = Config {
            vocab,
            ..config(14)
        };
        let (program, checkpoint) = make(&config);
        let mut context = load(&program, &checkpoint);
        for (top, sampling) in [20, 0, 3].into_iter().zip(samplings()) {
            let state = SlotState {
                sampling,
                logprobs: Some(top),
                ..SlotState::default()
            };
            context.set_slot(1, &state).unwrap();
            let steps = long(30) as u32;
            let begin = ChainStart {
                slot: 1,
                token: 3,
                position: 0,
                steps,
                shift: 0,
            };
            let mut emitted = Vec::new();
            let mut emit = |one: Emitted| {
                emitted.push(one);
                true
            };
            context
                .chain(&[begin], &Control::default(), &mut emit)
                .unwrap();
            assert_eq!(replaying(&mut context), (Replay::Persistent, None));
            assert_eq!(emitted.len(), steps as usize);
            let mut row = start(3, 1);
            for one in emitted {
                step(&mut context, PassKind::Decode, &[row]);
                let query = LogprobQuery {
                    output: 0,
                    token: one.token,
                    top,
                };
                let mut answer = [Logprobs::default()];
                context.logprobs(&[query], &mut answer).unwrap();
                assert_eq!(one.logprobs, Some(answer[0]), "{row:?}, {sampling:?}");
                assert_eq!(answer[0].top().len(), top as usize);
                row = Row::new(one.token, one.position, row.slot);
            }
        }
    }
}

/// A mask of about half of the tokens, another one for each position.
fn mask(position: u32, vocab: u32) -> Vec<u32> {
    let mut n = Numbers(u64::from(position) + 100);
    (0..vocab.div_ceil(32)).map(|_| n.next() as u32).collect()
}

/// Masks are written while the kernel computes. The last one never comes, and the chain ends.
#[test]
#[ignore = "needs a GPU"]
fn tokens_are_chosen_within_their_masks() {
    if !gpu() {
        return;
    }
    let config = config(13);
    let (program, checkpoint) = make(&config);
    let allows = |position: u32, token: u32| {
        let words = mask(position, config.vocab);
        words[token as usize / 32] >> (token % 32) & 1 == 1
    };
    let count = long(80);
    let mut context = load(&program, &checkpoint);
    let masks = context.masks();
    for sampling in samplings() {
        let state = SlotState {
            sampling,
            masked: true,
            ..SlotState::default()
        };
        context.set_slot(1, &state).unwrap();
        let allow = |position: u32| masks.allow(1, position, &mask(position, config.vocab));
        allow(1);
        let mut go_on = |tokens: &[u32]| {
            if tokens.len() < count {
                allow(tokens.len() as u32 + 1);
            }
            true
        };
        let row = start(3, 1);
        let control = Control::default();
        let tokens = chain_while(&mut context, row, count + 9, &control, &mut go_on);
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
        assert_eq!((tokens.len(), tokens[count]), (count + 1, NO_MASK));
        for (position, token) in (1..).zip(&tokens[..count]) {
            assert!(allows(position, *token), "{token} at {position}");
        }
        // The step may be repeated, and the best allowed token wins.
        let at = Row::new(tokens[count - 1], count as u32, 1);
        allow(at.position + 1);
        let token = chain_of(&mut context, at, 1)[0];
        if sampling == Sampling::default() {
            let all = logits(&mut context);
            let allowed = (0..config.vocab).filter(|token| allows(at.position + 1, *token));
            let best = allowed.max_by(|a, b| all[*a as usize].total_cmp(&all[*b as usize]));
            assert_eq!(Some(token), best);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn end_tokens_and_listeners_end_a_chain() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(13));
    let mut context = load(&program, &checkpoint);
    let settings = samplings()[1];
    let start = start(9, 0);
    set_slot(&mut context, 0, &settings, &[]);
    let count = long(400);
    let all = chain_of(&mut context, start, count);
    assert_eq!(all.len(), count);
    let end = all[57];
    let first = all.iter().position(|t| *t == end).unwrap();
    set_slot(&mut context, 0, &settings, &[end]);
    assert_eq!(chain_of(&mut context, start, count), all[..=first]);
    // As many end tokens as a slot takes; the last one counts too.
    let others = SlotState::MOST_ENDS as u32 - 1;
    let many: Vec<u32> = (2000..2000 + others).chain([end]).collect();
    set_slot(&mut context, 0, &settings, &many);
    assert_eq!(chain_of(&mut context, start, count), all[..=first]);
    // A listener that returns false gets no more tokens, and the sequence continues from there.
    set_slot(&mut context, 0, &settings, &[]);
    let never = Control::default();
    let mut some = chain_while(&mut context, start, count, &never, &mut |t| t.len() < 20);
    assert_eq!(some, all[..20]);
    let row = Row::new(some[19], 20, start.slot);
    some.extend(chain_of(&mut context, row, 80));
    assert_eq!(some, all[..100]);
    // Stopped from elsewhere: the token of the step in flight is the last one. None is in flight if a launch has just ended.
    set_slot(&mut context, 0, &settings, &[]);
    let control = Control::default();
    let some = chain_while(&mut context, start, count, &control, &mut |t| {
        if t.len() == 31 {
            control.stop();
        }
        true
    });
    assert!((31..=32).contains(&some.len()), "{} tokens", some.len());
    assert_eq!(some, all[..some.len()]);
}

#[test]
#[ignore = "needs a GPU"]
fn a_stuck_block_ends_in_an_error_and_the_graph_continues() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(14));
    let start = start(9, 0);
    let mut context = load(&program, &checkpoint);
    let greedy = Sampling::default();
    context.set_replay(Replay::Graph).unwrap();
    let want = chain_of(&mut context, start, 40);
    context.set_replay(Replay::Persistent).unwrap();
    context.stall_block(5, 20_000_000);
    set_slot(&mut context, 0, &greedy, &[]);
    assert_eq!(chain_of(&mut context, start, 40), want);
    let (replay, note) = replaying(&mut context);
    assert_eq!(replay, Replay::Graph);
    assert!(
        note.as_ref().unwrap().contains("waited too long"),
        "{note:?}"
    );
    // Without the stalled block the kernel works again.
    context.stall_block(u32::MAX, 2_000_000_000);
    context.set_replay(Replay::Persistent).unwrap();
    assert_eq!(chain_of(&mut context, start, 40).len(), 40);
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
}

#[test]
#[ignore = "needs a GPU"]
fn a_timeline_has_the_work_of_every_block() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(16));
    let mut context = load(&program, &checkpoint);
    let start = ChainStart {
        slot: 0,
        token: 9,
        position: 60,
        steps: 12,
        shift: 0,
    };
    let timeline = context.timeline(start).unwrap();
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
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    let row = Row::new(9, 60, 0);
    assert_eq!(chain_of(&mut context, row, 12).len(), 12);
    let far = ChainStart {
        position: program.context,
        ..start
    };
    assert!(context.timeline(far).is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn a_model_that_it_cannot_run_is_replayed_as_a_graph_with_the_reason() {
    if !gpu() {
        return;
    }
    let layers = [
        model::Layer::Attention(model::ATTENTION),
        model::Layer::Delta(model::DELTA),
    ];
    let (program, checkpoint) = program::make(&model::Model {
        layers: layers.to_vec(),
        ..model::Model::small(15)
    });
    let mut context = open(&program, &checkpoint, Replay::Persistent);
    let (replay, note) = replaying(&mut context);
    assert_eq!(replay, Replay::Graph);
    let note = note.unwrap();
    assert!(note.contains("not convolved by a product"), "{note}");
    assert_eq!(chain_of(&mut context, start(9, 0), 20).len(), 20);
}

/// Random prompts, lengths, end tokens and stops: always the text of one long chain, and never a fault. Runs for `WELTE_SOAK`
/// seconds.
#[test]
#[ignore = "needs a GPU"]
fn random_chains_give_the_text_of_one_long_chain() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(16));
    let mut context = load(&program, &checkpoint);
    let settings = samplings()[1];
    let (count, most) = (long(8) as u32, long(500));
    let mut texts = Vec::new();
    for token in 0..count {
        let row = start(token, token % 3);
        set_slot(&mut context, row.slot, &settings, &[]);
        texts.push(chain_of(&mut context, row, most));
    }
    let until = Instant::now() + soak();
    let mut n = Numbers(seed(3));
    let mut chains = 0u32;
    while Instant::now() < until {
        let token = n.below(count);
        let text = &texts[token as usize];
        let ends: Vec<u32> = (0..n.below(3)).map(|_| n.below(1003)).collect();
        let mut row = start(token, token % 3);
        set_slot(&mut context, row.slot, &settings, &ends);
        let stop = n.below(most as u32) as usize + 1;
        let mut got: Vec<u32> = Vec::new();
        let mut open = true;
        while open && got.len() < stop {
            let length = n.below(most as u32 / 2) as usize + 1;
            let before = got.len();
            let never = Control::default();
            let length = length.min(most - before);
            let some = chain_while(&mut context, row, length, &never, &mut |tokens| {
                before + tokens.len() < stop
            });
            let position = row.position + some.len() as u32;
            got.extend(some);
            open = got.last().is_none_or(|t| !ends.contains(t)) && got.len() < most;
            row = Row::new(
                got.last().copied().unwrap_or(row.token()),
                position,
                row.slot,
            );
        }
        assert_eq!(got, text[..got.len()], "token {token}");
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
        chains += 1;
    }
    assert!(chains > 0);
    eprintln!("{chains} texts");
}

/// Tuning measures time, so it must not change any result.
#[test]
#[ignore = "needs a GPU"]
fn tuning_changes_no_token_and_no_logit() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&config(18));
    let loaded = common::device(Replay::Persistent).load_program(Arc::new(program), &checkpoint);
    let loaded = loaded.unwrap();
    let text = || {
        let mut context = loaded.cuda_context().unwrap();
        set_slot(&mut context, 0, &samplings()[1], &[]);
        let tokens = chain_of(&mut context, start(9, 0), long(300));
        (tokens, bits(&logits(&mut context)), context.tuning())
    };
    let before = text();
    // All contexts of a loaded program use the same parameters.
    assert_eq!(text(), before);
    let mut last = (0, 0);
    let mut progress = |progress| {
        let Progress::Tuning { done, total } = progress else {
            panic!("{progress:?}");
        };
        assert!(last.0 <= done && done <= total);
        last = (done, total);
    };
    loaded.tune(&mut progress).unwrap();
    assert!(last.0 == last.1, "{last:?}");
    let after = text();
    assert_eq!((after.0, after.1), (before.0, before.1));
}
