//! Steps of several rows by the persistent kernel, against the reference and the launched kernels.

mod common;

use common::{
    Config, chain, chain_of, config, difference, gpu, is_pretend, load, logits, long, make,
    make_with, open, open_with, oracle, prompt, replayed, replaying, rows, seed, set_slot, soak,
    step,
};
use std::time::{Duration, Instant};
use welte_conformance::made::{Made, Numbers};
use welte_conformance::model::{EXPERTS, Experts, Layer};
use welte_cuda::CudaContext;
use welte_device::{ChainStart, Context, Control, Emitted, Replay, ReplayTools, Steps};
use welte_table::*;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A step's logits by the persistent kernel, and by launched kernels.
fn both(context: &mut CudaContext, kind: PassKind, rows: &[Row]) -> [Vec<f32>; 2] {
    let fast = step(context, kind, rows);
    assert_eq!(replaying(context), (Replay::Persistent, None));
    context.set_replay(Replay::Graph).unwrap();
    let plain = step(context, kind, rows);
    context.set_replay(Replay::Persistent).unwrap();
    [fast, plain]
}

/// Compares steps at several depths, of one slot and of two.
fn check(
    wrong: &mut Vec<String>,
    name: &str,
    config: &Config,
    (program, checkpoint): &(Program, Made),
    allowed: [f32; 2],
) {
    let mut context = load(program, checkpoint);
    let most = context.rows_together().unwrap();
    let mut reference = oracle(program, checkpoint);
    let mut n = Numbers(config.seed);
    let mut first = [0; 2];
    // Contexts without a past, of one split and of several; and more rows than splits.
    for (depths, counts) in [
        ([0, 0], [2, 0]),
        ([13, 5], [3, 2]),
        ([150, 131], [1, 1]),
        ([151, 132], [5, 3]),
    ] {
        let mut several = Vec::new();
        for slot in 0..2 {
            let i = slot as usize;
            let past = rows(&mut n, config.vocab, first[i], depths[i] - first[i], slot);
            prompt(&mut context, &past);
            prompt(reference.as_mut(), &past);
            several.extend(rows(&mut n, config.vocab, depths[i], counts[i], slot));
            first[i] = depths[i] + counts[i];
        }
        // Rows may come in any order.
        several.rotate_left(1);
        several.truncate(most as usize);
        let [fast, plain] = both(&mut context, PassKind::Decode, &several);
        let want = step(reference.as_mut(), PassKind::Decode, &several);
        let (off, apart) = (difference(&fast, &want), difference(&fast, &plain));
        if off > allowed[0] || apart > allowed[1] {
            wrong.push(format!(
                "{name} at {depths:?}: off by {off}, from launched kernels by {apart}"
            ));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
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
                // Long rows have several chunks in BF16.
                hidden: if format == Format::BF16 { 10_760 } else { 768 },
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

#[test]
#[ignore = "needs a GPU"]
fn every_row_has_the_bits_of_a_chain() {
    if gpu() {
        rows_have_the_bits_of_a_chain(Replay::Persistent);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn every_row_of_launched_kernels_has_the_bits_of_a_chain() {
    rows_have_the_bits_of_a_chain(Replay::Graph);
}

/// Launched products on tensor cores have kernels for steps of up to 8, 16, 32, 64, 128 and 256 rows.
#[test]
#[ignore = "needs a GPU"]
fn rows_of_steps_of_any_size_have_the_bits_of_a_row_alone() {
    if !gpu() {
        return;
    }
    let mut wrong = Vec::new();
    for (seed, format, dim, hidden, experts) in [
        (400, Format::BF16, 320, 1000, 0),
        (401, Format::Q4_0, 256, 768, 0),
        (402, Format::Q6_K, 256, 1024, 0),
        (403, Format::Q4_K, 256, 256, 16),
        (404, Format::BF16, 320, 200, 16),
    ] {
        let config = Config {
            format,
            dim,
            hidden,
            layers: 1,
            // With this number of slots, rows are grouped by expert.
            slots: if experts == 0 { 5 } else { 32 },
            decode_rows: 160,
            ..config(seed)
        };
        let (program, checkpoint) = match experts {
            0 => make(&config),
            _ => make_with(
                &config,
                Layer::Experts(Experts {
                    hidden,
                    experts,
                    used: 3,
                    ..EXPERTS
                }),
            ),
        };
        let mut context = open(&program, &checkpoint, Replay::Graph);
        let mut n = Numbers(seed);
        let mut all = Vec::new();
        for slot in 0..config.slots {
            let depth = 7 * slot;
            prompt(&mut context, &rows(&mut n, config.vocab, 0, depth, slot));
            let each = config.decode_rows / config.slots;
            all.extend(rows(&mut n, config.vocab, depth, each, slot));
        }
        // This step also writes the keys that the rows of the others attend to.
        let whole = step(&mut context, PassKind::Decode, &all);
        let width = config.vocab as usize;
        let of = |place: usize| bits(&whole[place * width..][..width]);
        for first in [0, 1, 63, 64, 127, 128, 159] {
            for count in [1, 9, 30, 60, 100] {
                let count = count.min(all.len() - first);
                let got = step(&mut context, PassKind::Decode, &all[first..][..count]);
                let logits = got.chunks(width).enumerate();
                let off = logits.filter(|(i, logits)| bits(logits) != of(first + i));
                let off = off.count();
                if off > 0 {
                    wrong.push(format!("{format:?}: {off} of {count} rows from {first} on"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lets rows read 30 features, and ropes follow axes.
fn reads_pictures(program: &mut Program, interleaved: bool) {
    program.features = program.buffers.len() as u32;
    program.buffers.push(BufferSpec {
        name: "features".into(),
        class: Class::ScratchPrompt,
        bytes: 30 * 4 * u64::from(program.embedding()),
    });
    let commands = program
        .passes
        .iter_mut()
        .flat_map(|pass| &mut pass.commands);
    for command in commands.filter(|command| command.op == Op::RopeAppend) {
        let mut p = params::RopeAppend::of(&command.params);
        let pairs = [p.rot as u8 / 4, p.rot as u8 / 8, p.rot as u8 / 8];
        p.sections = Sections { pairs, interleaved }.word();
        command.params = p.words();
    }
}

/// Rows after a picture follow an axis that is not their position, in steps and in chains with the same bits.
#[test]
#[ignore = "needs a GPU"]
fn rows_after_pictures_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    for (seed, interleaved) in [(420, false), (421, true)] {
        let config = Config {
            layers: 1,
            ..config(seed)
        };
        let (mut program, checkpoint) = make(&config);
        reads_pictures(&mut program, interleaved);
        let mut context = load(&program, &checkpoint);
        let mut reference = oracle(&program, &checkpoint);
        let mut n = Numbers(seed);
        let floats = (0..30 * config.dim).flat_map(|_| n.float().to_ne_bytes());
        let floats: Vec<u8> = floats.collect();
        // A picture of four lines of six between texts.
        let mut past = rows(&mut n, config.vocab, 0, 40, 1);
        for (at, row) in past[9..33].iter_mut().enumerate() {
            row.input = Input::Feature(at as u32);
            row.axes = [9, 9 + at as u32 / 6, 9 + at as u32 % 6];
        }
        past[33..]
            .iter_mut()
            .for_each(|row| *row = row.shifted(-18));
        past.extend(rows(&mut n, config.vocab, 0, 20, 0));
        for context in [&mut context as &mut dyn Context, reference.as_mut()] {
            context.write_bytes(program.features, 0, &floats).unwrap();
            prompt(context, &past);
        }
        let after = |position: u32| Row::new(7, position, 1).shifted(-18);
        let feature = Row {
            input: Input::Feature(29),
            ..after(41)
        };
        let all = [after(40), feature, after(42), Row::new(9, 20, 0)];
        let [fast, plain] = both(&mut context, PassKind::Decode, &all);
        let want = step(reference.as_mut(), PassKind::Decode, &all);
        let (off, apart) = (difference(&fast, &want), difference(&fast, &plain));
        assert!(off < 8e-2 && apart < 4e-2, "{off}, {apart}");
        for (row, together) in all.iter().zip(fast.chunks(config.vocab as usize)) {
            let alone = step(&mut context, PassKind::Decode, &[*row]);
            assert_eq!(bits(&alone), bits(together), "{row:?} alone");
            if row.input.feature().is_none() {
                chain_of(&mut context, *row, 1);
                assert_eq!(
                    bits(&logits(&mut context)),
                    bits(together),
                    "{row:?} chained"
                );
            }
        }
        let text = step(&mut context, PassKind::Decode, &[Row::new(7, 42, 1)]);
        assert!(difference(&text, &step(&mut context, PassKind::Decode, &[after(42)])) > 1e-3);
        // Several launches of a chain, and the graph's kernels.
        for replay in [Replay::Persistent, Replay::Graph] {
            context.set_replay(replay).unwrap();
            let tokens = chain(&mut context, after(43), &[3, 9]);
            assert_eq!(tokens.len(), 12);
            let got = logits(&mut context);
            let read = [7].into_iter().chain(tokens).zip(43..).take(12);
            let steps = read.map(|(token, at)| Row::new(token, at, 1).shifted(-18));
            let want = steps.map(|row| step(reference.as_mut(), PassKind::Decode, &[row]));
            let off = difference(&got, &want.last().unwrap());
            assert!(off < 8e-2, "{replay:?}: {off}");
        }
        context.set_replay(Replay::Persistent).unwrap();
        // Launched kernels compute what a coordinate does not describe.
        let grid = Row {
            axes: [30, 3, 5],
            ..after(55)
        };
        let got = step(&mut context, PassKind::Decode, &[grid]);
        let off = difference(&got, &step(reference.as_mut(), PassKind::Decode, &[grid]));
        assert!(off < 8e-2, "{off}");
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    }
}

/// With [`Steps::Fast`] few rows have the bits of a load for few slots, and many those of a load for many.
#[test]
#[ignore = "needs a GPU"]
fn fast_steps_have_the_bits_of_the_kernels_for_so_many_rows() {
    if !gpu() {
        return;
    }
    for (seed, format) in [(410, Format::Q4_0), (411, Format::BF16)] {
        let made_for = |slots| {
            make(&Config {
                format,
                slots,
                decode_rows: slots,
                ..config(seed)
            })
        };
        let ((few, weights), (many, _)) = (made_for(3), made_for(24));
        let mut persistent = load(&few, &weights);
        let mut launched = open(&many, &weights, Replay::Persistent);
        let mut options = replayed(Replay::Persistent);
        options.steps = Steps::Fast;
        let mut fast = open_with(&many, &weights, &options);
        assert_eq!(replaying(&mut launched).0, Replay::Graph);
        assert_eq!(replaying(&mut fast), (Replay::Persistent, None));
        assert_eq!(fast.rows_together(), Ok(8));
        let all = [&mut persistent, &mut launched, &mut fast];
        let mut n = Numbers(seed);
        let (past, next) = (
            rows(&mut n, few.vocab, 0, 30, 2),
            rows(&mut n, few.vocab, 30, 20, 2),
        );
        let all = all.map(|context| {
            prompt(context, &past);
            [1, 3, 8, 9, 20].map(|count| {
                let most = context.program().passes[0].rows as usize;
                let rows = &next[..count.min(most)];
                bits(&step(context, PassKind::Decode, rows))
            })
        });
        let [persistent, launched, fast] = all;
        assert_eq!(fast[..2], persistent[..2], "{format:?}");
        assert_eq!(fast[3..], launched[3..], "{format:?}");
        assert_ne!(fast[2], launched[2], "{format:?}");
    }
}

/// A row's logits have the same bits in a chain, in a step of its own and in steps of any other rows. The shapes make lines of 2, 4, 8 and
/// more lanes, of one round and of several.
fn rows_have_the_bits_of_a_chain(replay: Replay) {
    let affine = Format::ALL
        .into_iter()
        .find(|f| matches!(f, Format::Affine(_)));
    let cases = [
        (Format::Q4_0, 512, 10_752),
        (Format::Q6_K, 768, 4096),
        (Format::BF16, 320, 10_760),
        (Format::BF16, 256, 5000),
        (Format::BF16, 256, 2560),
        (Format::Q4_0, 256, 768),
        (Format::Q4_0, 1024, 2560),
        (Format::Q8_0, 2560, 512),
        (Format::Q4_K, 512, 2560),
        (Format::Q2_K, 256, 2048),
        (affine.unwrap(), 512, 1536),
        (Format::F16, 320, 1000),
        (Format::F32, 256, 768),
        (Format::F8_E4M3, 256, 768),
    ];
    // The pretend GPU takes a minute for each, unless a soak is asked for.
    let most = if is_pretend() && soak() < Duration::from_secs(60) {
        3
    } else {
        cases.len()
    };
    let made: Vec<_> = (300..)
        .zip(&cases[..most])
        .map(|(seed, (format, dim, hidden))| {
            let config = Config {
                format: *format,
                dim: *dim,
                hidden: *hidden,
                layers: 1,
                window: if seed % 3 == 2 { 100 } else { 0 },
                act: [0, 1, 2][seed as usize % 3],
                bias: seed % 2 == 0,
                ..config(seed)
            };
            let made = make(&config);
            (config, made)
        })
        .collect();
    // Compiling takes longest: compile all kernels at once, into the cache.
    std::thread::scope(|scope| {
        for (_, (program, checkpoint)) in &made {
            scope.spawn(|| drop(open(program, checkpoint, replay)));
        }
    });
    let mut wrong = Vec::new();
    for (config, (program, checkpoint)) in &made {
        let mut context = open(program, checkpoint, replay);
        let mut n = Numbers(config.seed);
        let mut several = Vec::new();
        let depths = [0, 131, long(700) as u32];
        for (slot, depth) in (0..).zip(depths) {
            prompt(&mut context, &rows(&mut n, config.vocab, 0, depth, slot));
            several.extend(rows(&mut n, config.vocab, depth, 4, slot));
        }
        // Chains write the keys that later rows of the step attend to.
        let width = config.vocab as usize;
        let mut alone = Vec::new();
        for row in &several {
            chain_of(&mut context, *row, 1);
            let chained = logits(&mut context);
            if bits(&step(&mut context, PassKind::Decode, &[*row])) != bits(&chained) {
                wrong.push(format!("{:?}: {row:?} in a step of its own", config.format));
            }
            alone.push(chained);
        }
        for (first, count) in [(0, 2), (3, 5), (0, 8), (4, 3), (0, 12)] {
            let together = &mut several[first..first + count].to_vec();
            let mut places: Vec<usize> = (first..first + count).collect();
            // In any order: also more rows than one launch takes.
            together.rotate_left(count / 2);
            places.rotate_left(count / 2);
            let got = step(&mut context, PassKind::Decode, together);
            for (logits, place) in got.chunks(width).zip(places) {
                if bits(logits) != bits(&alone[place]) {
                    let off = difference(logits, &alone[place]);
                    wrong.push(format!(
                        "{:?}: row {place} among {count}: off by {off}",
                        config.format
                    ));
                }
            }
        }
        assert_eq!(replaying(&mut context), (replay, None));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Heads of every size, groups of more than eight queries, windows that begin within a page, pages that are not a multiple of a tile.
#[test]
#[ignore = "needs a GPU"]
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
        let name = format!("heads of {head_dim}");
        check(&mut wrong, &name, &config, &made, [1e-2, 2e-3]);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Random steps, many times: always the bits of the first time, and never a fault. Runs for `WELTE_SOAK` seconds.
#[test]
#[ignore = "needs a GPU"]
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
        let mut context = load(&program, &checkpoint);
        let most = context.rows_together().unwrap();
        let depths = [0, 131, long(700) as u32];
        for (slot, depth) in (0..).zip(depths) {
            prompt(&mut context, &rows(&mut n, config.vocab, 0, depth, slot));
        }
        // A step writes all positions beyond the depth of its slots that its rows attend to.
        let one = |n: &mut Numbers| {
            let count = 2 + n.below(most - 1) as usize;
            let mut several = Vec::new();
            for (slot, depth) in (0..).zip(depths) {
                let left = (count - several.len()) as u32;
                let some = match slot {
                    2 => left,
                    _ => n.below(left + 1),
                };
                several.extend(rows(n, config.vocab, depth, some, slot));
            }
            several.rotate_left(n.below(count as u32) as usize);
            several
        };
        let mut known = Vec::new();
        for _ in 0..long(16) {
            let several = one(&mut n);
            let [fast, plain] = both(&mut context, PassKind::Decode, &several);
            assert!(difference(&fast, &plain) < 4e-2);
            known.push((several, fast));
        }
        let until = Instant::now() + soak() / 2;
        while Instant::now() < until {
            let (several, logits) = &known[n.below(known.len() as u32) as usize];
            let got = step(&mut context, PassKind::Decode, several);
            assert_eq!(got, *logits, "{several:?}");
            assert_eq!(replaying(&mut context), (Replay::Persistent, None));
            steps += 1;
        }
    }
    assert!(steps > 0);
    eprintln!("{steps} steps");
}

#[test]
#[ignore = "needs a GPU"]
fn a_stuck_block_ends_in_an_error_and_launched_kernels_continue() {
    if !gpu() {
        return;
    }
    let config = Config {
        format: Format::F32,
        ..config(42)
    };
    let (program, checkpoint) = make(&config);
    let mut context = load(&program, &checkpoint);
    let mut n = Numbers(8);
    let several = rows(&mut n, config.vocab, 0, 4, 1);
    let [_, want] = both(&mut context, PassKind::Decode, &several);
    context.stall_block(5, 20_000_000);
    assert_eq!(step(&mut context, PassKind::Decode, &several), want);
    let (replay, note) = replaying(&mut context);
    assert_eq!(replay, Replay::Graph);
    let note = note.unwrap();
    assert!(
        note.contains("waited too long") && note.contains("in a step"),
        "{note}"
    );
    assert!(context.rows_together().is_err());
    // Without the stalled block the kernel works again.
    context.stall_block(u32::MAX, 2_000_000_000);
    context.set_replay(Replay::Persistent).unwrap();
    let again = step(&mut context, PassKind::Decode, &several);
    assert!(difference(&again, &want) < 2e-3);
    assert_eq!(replaying(&mut context), (Replay::Persistent, None));
}

/// Three slots at different depths, each with its own sampling, and their chains one by one.
fn three_slots(context: &mut CudaContext, config: &Config) -> [ChainStart; 3] {
    let mut n = Numbers(60);
    [(0, 140, 30), (1, 0, 9), (2, 17, 23)].map(|(slot, position, steps)| {
        prompt(context, &rows(&mut n, config.vocab, 0, position, slot));
        ChainStart {
            slot,
            token: 5 + slot,
            position,
            steps,
            shift: 0,
        }
    })
}

fn sample_in(context: &mut CudaContext, ends: &[u32]) {
    for slot in 0..3 {
        let sampling = Sampling {
            temperature: [0.0, 0.8, 1.2][slot as usize],
            top_k: 30,
            repeat_penalty: 1.1,
            seed: 77,
            ..Sampling::default()
        };
        set_slot(context, slot, &sampling, ends);
    }
}

fn chain_together(context: &mut CudaContext, starts: &[ChainStart]) -> [Vec<u32>; 3] {
    let mut tokens = [const { Vec::new() }; 3];
    let mut emit = |one: Emitted| {
        tokens[one.slot as usize].push(one.token);
        true
    };
    context
        .chain(starts, &Control::default(), &mut emit)
        .unwrap();
    tokens
}

/// Slots of one chain make the tokens that each makes alone, and stop where they stop alone.
#[test]
#[ignore = "needs a GPU"]
fn slots_of_a_chain_make_the_tokens_that_they_make_alone() {
    if !gpu() {
        return;
    }
    let config = config(61);
    let (program, checkpoint) = make(&config);
    let mut context = load(&program, &checkpoint);
    assert_eq!(context.chain_slots(), 3);
    let starts = three_slots(&mut context, &config);
    for ends in [&[][..], &[3, 100, 200, 300, 400, 500, 600]] {
        sample_in(&mut context, ends);
        let alone: Vec<Vec<u32>> = starts
            .iter()
            .map(|start| chain_together(&mut context, &[*start])[start.slot as usize].clone())
            .collect();
        sample_in(&mut context, ends);
        let together = chain_together(&mut context, &starts);
        assert_eq!(together.to_vec(), alone);
        // The keys and values that they left are the same.
        let rows: Vec<Row> = (0..3)
            .map(|slot| {
                Row::new(
                    1,
                    starts[slot].position + together[slot].len() as u32,
                    slot as u32,
                )
            })
            .collect();
        let after = step(&mut context, PassKind::Decode, &rows);
        sample_in(&mut context, ends);
        for start in &starts {
            chain_together(&mut context, &[*start]);
        }
        assert_eq!(
            bits(&after),
            bits(&step(&mut context, PassKind::Decode, &rows))
        );
        assert_eq!(replaying(&mut context), (Replay::Persistent, None));
    }
}

/// A chain of several slots whose kernel gives up emits no wrong token, and ends by launched kernels.
#[test]
#[ignore = "needs a GPU"]
fn a_stuck_block_does_not_end_a_chain_of_slots() {
    if !gpu() {
        return;
    }
    let config = config(62);
    let (program, checkpoint) = make(&config);
    let mut context = load(&program, &checkpoint);
    let starts = three_slots(&mut context, &config);
    context.set_replay(Replay::Graph).unwrap();
    sample_in(&mut context, &[]);
    let want = chain_together(&mut context, &starts);
    context.set_replay(Replay::Persistent).unwrap();
    context.stall_block(5, 20_000_000);
    sample_in(&mut context, &[]);
    assert_eq!(chain_together(&mut context, &starts), want);
    let (replay, note) = replaying(&mut context);
    assert_eq!(replay, Replay::Graph);
    assert!(note.unwrap().contains("waited too long"));
}

/// The check at load, and steps by launched kernels where these are asked for.
#[test]
#[ignore = "needs a GPU"]
fn steps_agree_with_launched_kernels_except_for_rounding() {
    if !gpu() {
        return;
    }
    let config = config(43);
    let (program, checkpoint) = make(&config);
    let mut n = Numbers(9);
    let many = rows(&mut n, config.vocab, 0, 12, 1);
    let mut context = load(&program, &checkpoint);
    for rows in [1, 2, 8, 12] {
        assert_eq!(context.check_rows(rows).unwrap(), Some(true));
    }
    assert_eq!(context.rows_together(), Ok(8));
    for count in [1, 9, 12] {
        let [fast, plain] = both(&mut context, PassKind::Decode, &many[..count]);
        let off = difference(&fast, &plain);
        assert!(off > 0.0 && off < 4e-2, "{count} rows: off by {off}");
    }
}
