//! The device against its oracle, and its invariants.

mod common;

use common::experts::{Mixture, make_mixture};
use common::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use welte_cpu::{Error, Isa, Model, Options, Session, device_bytes, weight_bytes};
use welte_table::*;

/// All live values of every float buffer that both sessions have, after the first `commands` commands.
fn compare_buffers(a: &Session, b: &Session, what: &str, tolerance: f32) {
    for (id, spec) in a.model().program().buffers.iter().enumerate() {
        if matches!(spec.class, Class::Tables | Class::Kv) {
            continue;
        }
        let floats = |s: &Session| -> Vec<f32> {
            let bytes = s.buffer(id as u32).unwrap();
            bytes
                .chunks_exact(4)
                .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
                .collect()
        };
        let (got, want) = (floats(a), floats(b));
        let unwritten = |v: &[f32]| v.iter().map(|v| v.is_nan()).collect::<Vec<_>>();
        assert_eq!(
            unwritten(&got),
            unwritten(&want),
            "{what}: {} is written elsewhere",
            spec.name
        );
        let live = |v: Vec<f32>| v.into_iter().filter(|v| !v.is_nan()).collect::<Vec<_>>();
        let off = difference(&live(got), &live(want));
        assert!(off <= tolerance, "{what}: {} is off by {off}", spec.name);
    }
}

#[test]
fn every_op_agrees_with_the_reference() {
    for seed in 0..40 {
        let ugly = Config::ugly(seed);
        let config = Config {
            sinks: seed % 3 == 1,
            act: if seed % 7 == 3 { 3 } else { ugly.act },
            ..ugly
        };
        let (program, checkpoint) = make(&config);
        let program = if seed % 2 == 0 {
            program
        } else {
            split(&program)
        };
        let mut n = Numbers(seed + 1000);
        let isas = Isa::available();
        let isa = Some(isas[seed as usize % isas.len()]).filter(|isa| *isa != Isa::Avx512Bf16);
        let options = Options {
            threads: Some(1 + seed as usize % 3),
            isa,
            reference: false,
        };
        let mut fast = load(&program, &checkpoint, &options);
        let mut plain = load(&program, &checkpoint, &reference());
        // Q8_0 rounds; a value on the edge may fall to either side.
        let tolerance = if config.kv_format == Format::Q8_0 {
            2e-2
        } else {
            2e-3
        };
        let first = config.rows.min(config.context - 1);
        let prompt = rows(&mut n, config.vocab, 0, first, config.sequences - 1);
        for commands in 0..=program.tables[1].commands.len() {
            let name = program.tables[1].labels.get(commands.max(1) - 1);
            for session in [&mut fast, &mut plain] {
                poison(session);
                session.step_until(1, &prompt, commands).unwrap();
            }
            compare_buffers(
                &fast,
                &plain,
                &format!("seed {seed} {name:?} {config:?}"),
                tolerance,
            );
        }
        let more = rows(
            &mut n,
            config.vocab,
            first,
            1.min(config.context - first),
            config.sequences - 1,
        );
        for table in [0, 2] {
            let want = plain.step(table, &more).unwrap().to_vec();
            let off = difference(fast.step(table, &more).unwrap(), &want);
            assert!(
                off <= tolerance,
                "seed {seed}, table {table}: off by {off} {config:?}"
            );
        }
    }
}

#[test]
fn every_format_agrees_with_the_reference() {
    for format in Format::ALL {
        let dim = 256;
        let config = Config {
            format,
            dim,
            hidden: 256,
            heads: 8,
            layers: 1,
            ..Config::small(format.index() as u64)
        };
        let (program, checkpoint) = make(&config);
        let mut fast = load(&program, &checkpoint, &options(2));
        let mut plain = load(&program, &checkpoint, &reference());
        let mut n = Numbers(5);
        let prompt = rows(&mut n, config.vocab, 0, 20, 1);
        let want = plain.step(1, &prompt).unwrap().to_vec();
        let off = difference(fast.step(1, &prompt).unwrap(), &want);
        let tolerance = match format {
            Format::BF16 => 1.2e-2,
            _ if format.is_quantised() => 4e-2,
            _ => 5e-3,
        };
        assert!(off <= tolerance, "{}: off by {off}", format.name());
    }
}

#[test]
fn long_contexts_cross_splits_and_pages() {
    for sinks in [false, true] {
        long_context(sinks);
    }
}

fn long_context(sinks: bool) {
    let config = Config {
        context: 640,
        page: 16,
        layers: 1,
        sinks,
        ..Config::small(3)
    };
    let (program, checkpoint) = make(&config);
    let mut fast = load(&program, &checkpoint, &options(2));
    let mut plain = load(&program, &checkpoint, &reference());
    let mut n = Numbers(8);
    // Pages in disorder.
    let mut pages = fast.pages().to_vec();
    pages.reverse();
    for session in [&mut fast, &mut plain] {
        session.set_pages(&pages).unwrap();
    }
    let mut at = 0;
    while at < 600 {
        let prompt = rows(&mut n, config.vocab, at, 40, 0);
        let want = plain.step(1, &prompt).unwrap().to_vec();
        assert!(
            difference(fast.step(1, &prompt).unwrap(), &want) < 2e-3,
            "at {at}"
        );
        at += 40;
        if [240, 280, 520, 600].contains(&at) {
            let one = rows(&mut n, config.vocab, at, 1, 0);
            let want = plain.step(0, &one).unwrap().to_vec();
            assert!(
                difference(fast.step(0, &one).unwrap(), &want) < 2e-3,
                "decode at {at}"
            );
        }
    }
}

/// The plain reference, then every instruction set, all with their pages in disorder.
fn everywhere(program: &Program, checkpoint: &Made) -> Vec<Session> {
    let mut sessions = vec![load(program, checkpoint, &reference())];
    for isa in Isa::available() {
        let options = Options {
            isa: Some(isa),
            ..options(2)
        };
        sessions.push(load(program, checkpoint, &options));
    }
    let mut pages = sessions[0].pages().to_vec();
    pages.reverse();
    for session in &mut sessions {
        session.set_pages(&pages).unwrap();
    }
    sessions
}

/// How far attention over a cache of this format may be from the reference.
fn tolerance(kv_format: Format) -> f32 {
    if kv_format == Format::Q8_0 {
        2e-2
    } else {
        2e-3
    }
}

/// Heads, heads of keys, their width, the cache's format and page, window and softcap.
type Shape = (u32, u32, u32, Format, u32, u32, f32);

fn one_layer(shape: Shape, seed: u64) -> Config {
    let (heads, kv_heads, head_dim, kv_format, page, window, softcap) = shape;
    Config {
        heads,
        kv_heads,
        head_dim,
        rot: head_dim,
        kv_format,
        page,
        window,
        softcap,
        layers: 1,
        ..Config::small(seed)
    }
}

/// One row at a time: groups that share passes in every way, heads of odd widths, windows that begin inside a split, on
/// every instruction set, in pages that lie in disorder.
#[test]
fn single_rows_agree_with_the_reference() {
    let shapes = [
        (1, 1, 128, Format::F16, 16, 0, 0.0),
        (2, 1, 128, Format::Q8_0, 64, 0, 0.0),
        (6, 2, 48, Format::F16, 7, 0, 5.0),
        (4, 1, 64, Format::Q8_0, 3, 100, 0.0),
        (7, 1, 80, Format::F16, 64, 9, 0.0),
        (8, 1, 32, Format::Q8_0, 1, 0, 5.0),
        (12, 1, 256, Format::F16, 100, 250, 0.0),
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        let config = Config {
            rows: 270,
            ..one_layer(shape, seed as u64 + 40)
        };
        let kv_format = config.kv_format;
        let (program, checkpoint) = make(&config);
        let mut sessions = everywhere(&program, &checkpoint);
        let mut at = 0;
        for (prompt, singles) in [(0, 3), (15, 1), (236, 3)] {
            let rows = rows(
                &mut Numbers(at.into()),
                config.vocab,
                at,
                prompt + singles,
                0,
            );
            let (rows, alone) = rows.split_at(prompt as usize);
            let (plain, fast) = sessions.split_first_mut().unwrap();
            if !rows.is_empty() {
                plain.step(1, rows).unwrap();
                fast.iter_mut().for_each(|session| {
                    session.step(1, rows).unwrap();
                });
            }
            for one in alone.chunks(1) {
                let want = plain.step(0, one).unwrap();
                for session in fast.iter_mut() {
                    let off = difference(session.step(0, one).unwrap(), want);
                    let position = one[0].position;
                    assert!(
                        off <= tolerance(kv_format),
                        "at {position}: {off} {shape:?}"
                    );
                }
            }
            at += prompt + singles;
        }
    }
}

/// Prompts of many rows: every shape of attention, exact and rounded to BF16, on every instruction set, in pages that
/// lie in disorder.
#[test]
fn prompts_agree_with_the_reference() {
    let shapes = [
        (1, 1, 40, Format::F16, 16, 0, 0.0),
        (4, 2, 10, Format::F16, 3, 0, 5.0),
        (7, 1, 64, Format::Q8_0, 100, 7, 0.0),
        (8, 1, 128, Format::F16, 64, 100, 0.0),
        (6, 2, 32, Format::Q8_0, 1, 0, 5.0),
        (30, 1, 24, Format::F16, 7, 30, 0.0),
    ];
    let formats = [Format::F32, Format::BF16];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for format in formats {
            let config = Config {
                sinks: seed % 2 == 1,
                rows: 110,
                format,
                ..one_layer(shape, seed as u64)
            };
            let kv_format = config.kv_format;
            let (program, checkpoint) = make(&config);
            let mut sessions = everywhere(&program, &checkpoint);
            let tolerance = match format {
                Format::BF16 => tolerance(kv_format) + 1.2e-2,
                _ => tolerance(kv_format),
            };
            let mut at = 0;
            for count in [17, 110, 63] {
                let prompt = rows(&mut Numbers(at.into()), config.vocab, at, count, 0);
                let (plain, fast) = sessions.split_first_mut().unwrap();
                let want = plain.step(1, &prompt).unwrap();
                for session in fast {
                    let off = difference(session.step(1, &prompt).unwrap(), want);
                    assert!(
                        off <= tolerance,
                        "{count} rows at {at}: {off} {format:?} {shape:?}"
                    );
                }
                at += count;
            }
        }
    }
}

/// As long as each piece has many rows, how a prompt is cut does not change a bit.
#[test]
fn prompts_in_large_pieces_give_the_same_bits() {
    let cases = [
        (Format::Q4_0, 0, false),
        (Format::Q6_K, 50, true),
        (Format::BF16, 0, false),
    ];
    for (format, window, sinks) in cases {
        let config = Config {
            format,
            window,
            sinks,
            dim: 256,
            hidden: 256,
            rows: 200,
            layers: 2,
            ..Config::small(9)
        };
        let (program, checkpoint) = make(&config);
        let whole = rows(&mut Numbers(3), config.vocab, 0, 200, 1);
        let mut first: Option<Vec<u32>> = None;
        for pieces in [&[200][..], &[17, 183], &[100, 100], &[40, 71, 89]] {
            let mut session = load(&program, &checkpoint, &options(2));
            let mut from = 0;
            let mut bits = Vec::new();
            for piece in pieces {
                let logits = session.step(1, &whole[from..from + piece]).unwrap();
                bits = logits.iter().map(|x| x.to_bits()).collect();
                from += piece;
            }
            let first = first.get_or_insert_with(|| bits.clone());
            assert!(*first == bits, "{format:?} in {pieces:?}");
        }
    }
}

fn decode_some(session: &mut Session, n: &[usize], settings: &Sampling) -> Vec<u32> {
    let prompt = rows(&mut Numbers(4), 101, 0, 11, 1);
    session.step(1, &prompt).unwrap();
    let history: Vec<u32> = prompt.iter().map(|r| r.token).collect();
    session.set_sampling(settings, &[(3, 0.5)], &history);
    let mut token = session.sample(11);
    let mut tokens = vec![token];
    let mut position = 11;
    for &n in n {
        let start = Row {
            token,
            position,
            sequence: 1,
        };
        let done = session.chain(start, n, &[], &AtomicBool::new(false), &mut |t| {
            tokens.push(t);
            true
        });
        assert_eq!(done.unwrap(), n);
        token = tokens[tokens.len() - 1];
        position += n as u32;
    }
    tokens
}

#[test]
fn chains_of_any_length_and_any_number_of_threads_agree() {
    for kv_format in [Format::F16, Format::Q8_0] {
        let config = Config {
            format: Format::Q8_0,
            kv_format,
            ..Config::small(11)
        };
        let (program, checkpoint) = make(&config);
        let sampled = Sampling {
            temperature: 0.9,
            top_p: 0.95,
            repeat_penalty: 1.2,
            seed: 4,
            ..Sampling::default()
        };
        for settings in [Sampling::default(), sampled] {
            let mut all = Vec::new();
            let mut logits = Vec::new();
            for (threads, split) in [(1, vec![300]), (2, vec![1; 300]), (3, vec![7, 200, 93])] {
                let mut session = load(&program, &checkpoint, &options(threads));
                all.push(decode_some(&mut session, &split, &settings));
                let row = Row {
                    token: 1,
                    position: 311,
                    sequence: 1,
                };
                logits.push(
                    session
                        .step(0, &[row])
                        .unwrap()
                        .iter()
                        .map(|v| v.to_bits())
                        .collect::<Vec<_>>(),
                );
            }
            assert_eq!(all[0].len(), 301);
            assert!(all.iter().all(|tokens| *tokens == all[0]), "{all:?}");
            assert!(logits.iter().all(|l| *l == logits[0]));
        }
    }
}

#[test]
fn rows_of_a_batch_do_not_change_each_other() {
    let config = Config {
        format: Format::Q4_0,
        ..Config::small(21)
    };
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint, &options(2));
    let mut n = Numbers(6);
    for sequence in 0..3 {
        session
            .step(1, &rows(&mut n, 101, 0, 5 + 3 * sequence, sequence))
            .unwrap();
    }
    let batch: Vec<Row> = (0..3)
        .flat_map(|s| rows(&mut n, 101, 5 + 3 * s, 1, s))
        .collect();
    let together = session.step(2, &batch).unwrap().to_vec();
    for (i, row) in batch.iter().enumerate() {
        let alone = session.step(2, &[*row]).unwrap();
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(
            bits(alone),
            bits(&together[i * 101..(i + 1) * 101]),
            "row {i}"
        );
        assert_eq!(
            bits(session.step(0, &[*row]).unwrap()),
            bits(&together[i * 101..(i + 1) * 101])
        );
    }
}

#[test]
fn a_chain_ends_when_told() {
    let (program, checkpoint) = make(&Config::small(2));
    let mut session = load(&program, &checkpoint, &options(2));
    let tokens = decode_some(&mut session, &[20], &Sampling::default());
    let start = Row {
        token: tokens[0],
        position: 11,
        sequence: 1,
    };
    let cancel = AtomicBool::new(false);
    let count = |session: &mut Session, end: &[u32], most: usize| {
        session.set_sampling(&Sampling::default(), &[(3, 0.5)], &[]);
        let mut seen = 0;
        session.chain(start, 20, end, &cancel, &mut |_| {
            seen += 1;
            seen < most
        })
    };
    let first = tokens[1..].iter().position(|t| *t == tokens[4]).unwrap() + 1;
    assert_eq!(count(&mut session, &[tokens[4]], 99).unwrap(), first);
    assert_eq!(count(&mut session, &[], 5).unwrap(), 5);
    cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut none = |_| true;
    assert_eq!(
        session.chain(start, 20, &[], &cancel, &mut none).unwrap(),
        0
    );
}

#[test]
fn impossible_rows_are_errors() {
    let (program, checkpoint) = make(&Config::small(2));
    let mut session = load(&program, &checkpoint, &options(1));
    let good = Row::default();
    for (table, rows) in impossible_rows() {
        assert!(
            matches!(session.step(table, &rows), Err(Error::Step(_))),
            "{rows:?}"
        );
    }
    let start = Row {
        position: 639,
        ..good
    };
    let never = AtomicBool::new(false);
    assert!(session.chain(start, 2, &[], &never, &mut |_| true).is_err());
    assert_eq!(
        session.chain(start, 1, &[], &never, &mut |_| true).unwrap(),
        1
    );
    assert!(session.set_pages(&[0]).is_err());
}

#[test]
fn what_is_allocated_is_what_was_planned() {
    for config in [
        Config::small(1),
        Config {
            format: Format::Q6_K,
            dim: 256,
            hidden: 256,
            ..Config::small(1)
        },
    ] {
        let (program, checkpoint) = make(&config);
        for options in [options(2), reference()] {
            let mut plan = MemoryPlan::of(&program, &|w| weight_bytes(w, &options));
            for (name, class, bytes) in device_bytes(&program, &options) {
                plan.add(name, class, bytes);
            }
            let mut last = 0;
            let mut progress = |done: u64, total: u64| {
                assert!(done >= last && done <= total);
                last = done;
            };
            let model = Model::load(
                Arc::new(program.clone()),
                &checkpoint,
                &options,
                &mut progress,
            )
            .unwrap();
            assert_eq!(last, plan.bytes(Class::Weights));
            assert_eq!(Session::new(&model).unwrap().allocated(), plan.by_class());
        }
    }
}

#[test]
fn a_weight_that_is_missing_or_misshapen_is_an_error() {
    let (program, checkpoint) = make(&Config::small(1));
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = program.clone();
        change(&mut program);
        fill_cost(&mut program);
        Model::load(Arc::new(program), &checkpoint, &options(2), &mut |_, _| {}).is_err()
    };
    let parts = |program: &mut Program| -> Part {
        match &mut program.weights[0].source {
            Source::Parts(parts) => parts.remove(0),
            Source::Constant(_) => unreachable!("the embedding comes from the checkpoint"),
        }
    };
    let put = |program: &mut Program, part: Part| {
        if let Source::Parts(parts) = &mut program.weights[0].source {
            parts.insert(0, part);
        }
    };
    assert!(!broken(&|_| {}));
    assert!(broken(&|p| {
        let part = parts(p);
        put(
            p,
            Part {
                tensor: "nowhere".into(),
                ..part
            },
        );
    }));
    assert!(broken(&|p| {
        let part = parts(p);
        put(
            p,
            Part {
                first_row: 90,
                ..part
            },
        );
    }));
    assert!(broken(&|p| drop(parts(p))));
    assert!(broken(&|p| p.weights[0].k = 65));
}

#[test]
fn profiling_counts_every_op() {
    let (program, checkpoint) = make(&Config::small(1));
    let mut session = load(&program, &checkpoint, &options(2));
    session.set_profiling(true);
    session.step(0, &[Row::default()]).unwrap();
    let calls = |s: &Session, op: Op| s.profile().iter().find(|p| p.op == op).map(|p| p.calls);
    assert_eq!(calls(&session, Op::Attention), Some(2));
    assert_eq!(calls(&session, Op::Embed), Some(1));
    session.set_profiling(false);
    assert!(session.profile().is_empty());
}

#[test]
fn experts_agree_with_the_reference() {
    let formats = Format::ALL.into_iter().map(|format| Mixture {
        format,
        dim: 256,
        hidden: 256,
        ..Mixture::small(format.index() as u64)
    });
    // Tiles have 16 rows.
    let ugly = (0..12).map(|seed| Mixture {
        dim: 16 * (1 + seed as u32 % 3),
        hidden: 16 * (1 + seed as u32 % 5),
        ..Mixture::ugly(seed)
    });
    let biased = (20..32).map(|seed| Mixture {
        dim: 16 * (1 + seed as u32 % 3),
        hidden: 16 * (1 + seed as u32 % 5),
        bias: true,
        act: [3, 0, 3, 2][seed as usize % 4],
        ..Mixture::ugly(seed)
    });
    for config in ugly.chain(biased).chain(formats) {
        let (program, checkpoint) = make_mixture(&config);
        let mut fast = load(&program, &checkpoint, &options(2));
        let mut plain = load(&program, &checkpoint, &reference());
        let mut n = Numbers(config.seed + 7);
        let tolerance = if config.format.is_quantised() {
            4e-2
        } else {
            5e-3
        };
        for (table, count) in [(1, config.rows), (2, config.rows.min(16)), (2, 1), (0, 1)] {
            let some = rows(&mut n, config.vocab, 0, count, 0);
            let last = program.tables[table].commands.len() - 1;
            for session in [&mut fast, &mut plain] {
                poison(session);
                session.step_until(table, &some, last).unwrap();
            }
            let what = format!("table {table} x {count} {config:?}");
            compare_buffers(&fast, &plain, &what, tolerance);
        }
    }
}
