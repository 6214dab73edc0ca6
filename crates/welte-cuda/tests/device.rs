//! The CUDA device against the CPU's oracle, and its invariants. Without a GPU every test says so and passes.

#[path = "../../welte-cpu/tests/common/mod.rs"]
mod common;

use common::experts::{Mixture, make_mixture};
use common::{Config, Made, Numbers, difference, fill_cost, make, reference, rows, split};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use welte_cuda::{Error, Model, Options, Plan, Replay, Session, info, weight_bytes};
use welte_table::*;

/// False, and says why, if there is no GPU here.
fn gpu() -> bool {
    match info(0) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            assert!(matches!(error, Error::Absent(_)), "{error}");
            false
        }
    }
}

/// So many tokens, or on the pretended GPU (`tests/pretend`), where a token takes a while, a quarter of them.
fn long(tokens: usize) -> usize {
    match info(0) {
        Ok(gpu) if gpu.name == "a pretended GPU" => tokens / 4,
        _ => tokens,
    }
}

fn options(replay: Replay) -> Options {
    Options { device: 0, replay }
}

fn load(program: &Program, checkpoint: &Made, replay: Replay) -> Session {
    let program = Arc::new(program.clone());
    let model = Model::load(program, checkpoint, &options(replay), &mut |_, _| {}).unwrap();
    let mut session = Session::new(&model).unwrap();
    poison(&mut session);
    session
}

/// Fills scratch and KV with NaN: what is not written shows, and what is read beyond the context too.
fn poison(session: &mut Session) {
    let buffers = session.model().program().buffers.clone();
    for (id, spec) in buffers.iter().enumerate() {
        if spec.class != Class::Tables {
            let bytes = vec![0xff; spec.bytes as usize];
            session.write_buffer(id as u32, &bytes).unwrap();
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// What differs between the float buffers of both sessions, if anything does.
fn differing(fast: &Session, plain: &welte_cpu::Session, tolerance: f32) -> Option<String> {
    let buffers = &plain.model().program().buffers;
    for (id, spec) in buffers.iter().enumerate() {
        if matches!(spec.class, Class::Tables | Class::Kv) {
            continue;
        }
        let got = floats(&fast.buffer(id as u32).unwrap());
        let want = floats(plain.buffer(id as u32).unwrap());
        let unlike = got
            .iter()
            .zip(&want)
            .position(|(g, w)| g.is_nan() != w.is_nan());
        if let Some(at) = unlike {
            let (g, w) = (got[at], want[at]);
            return Some(format!("{}[{at}] is {g}, not {w}", spec.name));
        }
        let live = |v: Vec<f32>| v.into_iter().filter(|v| !v.is_nan()).collect::<Vec<_>>();
        let off = difference(&live(got), &live(want));
        if off > tolerance {
            return Some(format!("{} is off by {off}", spec.name));
        }
    }
    None
}

fn assert_none(wrong: &[String]) {
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Products of many rows round activations to 16 bits, a Q8_0 cache to 8. The norm of a single value is its sign: where
/// that value is nearly 0, rounding shows.
fn tolerance(config: &Config, rows: u32) -> f32 {
    if config.dim == 1 {
        1e-1
    } else if config.kv_format == Format::Q8_0 || rows > 16 {
        2e-2
    } else {
        2e-3
    }
}

#[test]
fn every_op_agrees_with_the_reference() {
    if !gpu() {
        return;
    }
    let mut wrong = Vec::new();
    'seeds: for seed in 0..30 {
        let config = Config::ugly(seed);
        let (program, checkpoint) = make(&config);
        let program = if seed % 2 == 0 {
            program
        } else {
            split(&program)
        };
        let mut n = Numbers(seed + 1000);
        let mut fast = load(&program, &checkpoint, Replay::Graph);
        let mut plain = common::load(&program, &checkpoint, &reference());
        let first = config.rows.min(config.context - 1);
        let prompt = rows(&mut n, config.vocab, 0, first, config.sequences - 1);
        let tolerance = tolerance(&config, config.rows);
        for commands in 0..=program.tables[1].commands.len() {
            poison(&mut fast);
            common::poison(&mut plain);
            fast.step_until(1, &prompt, commands).unwrap();
            plain.step_until(1, &prompt, commands).unwrap();
            if let Some(problem) = differing(&fast, &plain, tolerance) {
                let name = program.tables[1].labels.get(commands.max(1) - 1);
                wrong.push(format!(
                    "seed {seed} {commands} {name:?}: {problem} {config:?}"
                ));
                continue 'seeds;
            }
        }
        let last = config.sequences - 1;
        let more = rows(
            &mut n,
            config.vocab,
            first,
            1.min(config.context - first),
            last,
        );
        for table in [0, 2] {
            let want = plain.step(table, &more).unwrap().to_vec();
            let off = difference(fast.step(table, &more).unwrap(), &want);
            if off > tolerance {
                wrong.push(format!(
                    "seed {seed}, table {table}: off by {off} {config:?}"
                ));
            }
        }
    }
    assert_none(&wrong);
}

/// All formats; of the affine family those that see every line of its kernels.
fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| match format {
        Format::Affine(a) if a.bits() == 4 => a.bf16() == (a.group() == 64),
        Format::Affine(a) => a.bf16() && a.group() == 64,
        _ => true,
    })
}

#[test]
fn every_format_agrees_with_the_reference() {
    if !gpu() {
        return;
    }
    let mut wrong = Vec::new();
    for format in formats() {
        let config = Config {
            format,
            dim: 256,
            hidden: 768,
            heads: 8,
            layers: 1,
            vocab: 203,
            ..Config::small(format.index() as u64)
        };
        let (mut program, checkpoint) = make(&config);
        // Batches are few rows, prompts many: both kinds of product.
        program.tables[2].shape = Shape::Batch(12);
        let mut fast = load(&program, &checkpoint, Replay::Graph);
        let mut plain = common::load(&program, &checkpoint, &reference());
        let mut n = Numbers(5);
        let tolerance = if format.is_quantised() { 4e-2 } else { 2e-2 };
        let mut at = 0;
        for (table, count) in [(1, 40), (0, 1), (2, 7), (1, 3), (2, 1), (2, 12)] {
            let some = rows(&mut n, config.vocab, at, count, 1);
            let want = plain.step(table, &some).unwrap().to_vec();
            let off = difference(fast.step(table, &some).unwrap(), &want);
            if off > tolerance {
                let name = format.name();
                wrong.push(format!("{name} table {table} x {count}: off by {off}"));
            }
            at += count;
        }
    }
    assert_none(&wrong);
}

#[test]
fn prompts_of_any_length_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    let mut wrong = Vec::new();
    let formats = [Format::Q4_K, Format::Q8_0, Format::BF16, Format::F32];
    for format in formats {
        // Matrices that are no whole number of tiles; k is split among blocks.
        let config = Config {
            format,
            dim: 512,
            hidden: 1280,
            heads: 8,
            kv_heads: 1,
            head_dim: 96,
            layers: 1,
            vocab: 61,
            rows: 301,
            ..Config::small(format.index() as u64 + 50)
        };
        let (program, checkpoint) = make(&config);
        let mut fast = load(&program, &checkpoint, Replay::Graph);
        let mut plain = common::load(&program, &checkpoint, &reference());
        let mut n = Numbers(6);
        for count in [18, 33, 65, 130, 301] {
            poison(&mut fast);
            common::poison(&mut plain);
            let some = rows(&mut n, config.vocab, 0, count, 0);
            plain.step(1, &some).unwrap();
            fast.step(1, &some).unwrap();
            if let Some(problem) = differing(&fast, &plain, 2e-2) {
                wrong.push(format!("{} x {count}: {problem}", format.name()));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn long_contexts_cross_splits_and_pages() {
    if !gpu() {
        return;
    }
    let mut wrong = Vec::new();
    for (kv_format, head_dim, heads, kv_heads) in [
        (Format::F16, 64, 4, 2),
        (Format::F16, 128, 16, 2),
        (Format::Q8_0, 128, 4, 4),
    ] {
        let config = Config {
            context: 2600,
            page: 16,
            layers: 1,
            kv_format,
            head_dim,
            rot: head_dim,
            heads,
            kv_heads,
            ..Config::small(3)
        };
        let (program, checkpoint) = make(&config);
        let mut fast = load(&program, &checkpoint, Replay::Graph);
        let mut plain = common::load(&program, &checkpoint, &common::options(2));
        let mut n = Numbers(8);
        // Pages in disorder. The CPU's kernels stand for the oracle, which would take too long.
        let mut pages = fast.pages().to_vec();
        pages.reverse();
        fast.set_pages(&pages).unwrap();
        plain.set_pages(&pages).unwrap();
        let mut at = 0;
        while at < long(2560) as u32 {
            let prompt = rows(&mut n, config.vocab, at, 40, 0);
            let want = plain.step(1, &prompt).unwrap().to_vec();
            let off = difference(fast.step(1, &prompt).unwrap(), &want);
            let tolerance = tolerance(&config, 40);
            if off > tolerance {
                wrong.push(format!("{kv_format:?} {head_dim} at {at}: off by {off}"));
            }
            at += 40;
            if [240, 280, 520, 1040, 2560].contains(&at) {
                for table in [0, 2] {
                    let one = rows(&mut n, config.vocab, at, 1, 0);
                    let want = plain.step(table, &one).unwrap().to_vec();
                    let off = difference(fast.step(table, &one).unwrap(), &want);
                    if off > tolerance {
                        wrong.push(format!(
                            "{kv_format:?} {head_dim} one row of table {table} at {at}: off by {off}"
                        ));
                    }
                }
            }
        }
    }
    assert_none(&wrong);
}

/// Feeds a prompt, then decodes in chains of these lengths.
fn decode_some(session: &mut Session, lengths: &[usize], settings: &Sampling) -> Vec<u32> {
    let prompt = rows(&mut Numbers(4), 101, 0, 11, 1);
    session.step(1, &prompt).unwrap();
    let history: Vec<u32> = prompt.iter().map(|r| r.token).collect();
    session.set_sampling(settings, &[(3, 0.5)], &history);
    let mut token = session.sample(11).unwrap();
    let mut tokens = vec![token];
    let mut position = 11;
    for &n in lengths {
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

fn samplings() -> [Sampling; 3] {
    [
        Sampling::default(),
        Sampling {
            temperature: 0.9,
            top_p: 0.95,
            repeat_penalty: 1.2,
            seed: 4,
            ..Sampling::default()
        },
        Sampling {
            temperature: 1.3,
            top_k: 20,
            min_p: 0.02,
            frequency_penalty: 0.3,
            presence_penalty: 0.2,
            seed: 99,
            ..Sampling::default()
        },
    ]
}

#[test]
fn chains_of_any_length_and_any_replay_agree() {
    if !gpu() {
        return;
    }
    let count = long(300);
    for kv_format in [Format::F16, Format::Q8_0] {
        let config = Config {
            format: Format::Q8_0,
            kv_format,
            ..Config::small(11)
        };
        let (program, checkpoint) = make(&config);
        for settings in samplings() {
            let mut all = Vec::new();
            let mut logits = Vec::new();
            for (replay, lengths) in [
                (Replay::Graph, vec![count]),
                (Replay::Eager, vec![count]),
                (Replay::Graph, vec![1; count]),
                (Replay::While, vec![7, count / 3 * 2, count / 3 - 7]),
            ] {
                let mut session = load(&program, &checkpoint, replay);
                all.push(decode_some(&mut session, &lengths, &settings));
                let row = Row {
                    token: 1,
                    position: 11 + count as u32,
                    sequence: 1,
                };
                logits.push(bits(session.step(0, &[row]).unwrap()));
            }
            assert_eq!(all[0].len(), count + 1);
            assert!(all.iter().all(|tokens| *tokens == all[0]), "{all:?}");
            assert!(logits.iter().all(|l| *l == logits[0]));
            assert!(all[0].iter().any(|t| *t != all[0][0]), "{settings:?}");
        }
    }
}

#[test]
fn the_sampler_chooses_as_the_plain_one_does() {
    if !gpu() {
        return;
    }
    let config = Config {
        vocab: 5003,
        ..Config::small(12)
    };
    let (program, checkpoint) = make(&config);
    let mut session = load(&program, &checkpoint, Replay::Graph);
    let mut n = Numbers(77);
    let mut wrong = Vec::new();
    for turn in 0..60u32 {
        let logits = session
            .step(1, &rows(&mut n, config.vocab, turn, 2, 0))
            .unwrap()
            .to_vec();
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
        let bias: Vec<(u32, f32)> = (0..n.below(4))
            .map(|_| (n.below(5003) as u32, 3.0 * n.float()))
            .collect();
        let history: Vec<u32> = (0..n.below(90)).map(|_| n.below(300) as u32).collect();
        session.set_sampling(&settings, &bias, &history);
        let got = session.sample(turn + 2).unwrap();
        let want = welte_cpu::choose_plainly(&logits, &settings, &bias, &history, turn + 2);
        if got != want {
            wrong.push(format!("{turn}: {got}, not {want}: {settings:?} {bias:?}"));
        }
    }
    assert_none(&wrong);
}

#[test]
fn rows_of_a_batch_do_not_change_each_other() {
    if !gpu() {
        return;
    }
    for format in [Format::Q4_0, Format::BF16, Format::Q6_K] {
        let config = Config {
            format,
            dim: 256,
            hidden: 512,
            heads: 8,
            rows: 12,
            ..Config::small(21)
        };
        let (program, checkpoint) = make(&config);
        let mut session = load(&program, &checkpoint, Replay::Graph);
        let mut n = Numbers(6);
        for sequence in 0..3 {
            let prompt = rows(&mut n, 101, 0, 5 + 3 * sequence, sequence);
            session.step(1, &prompt).unwrap();
        }
        let batch: Vec<Row> = (0..3)
            .flat_map(|s| rows(&mut n, 101, 5 + 3 * s, 1, s))
            .collect();
        let together = session.step(2, &batch).unwrap().to_vec();
        for (i, row) in batch.iter().enumerate() {
            let alone = bits(session.step(2, &[*row]).unwrap());
            let in_batch = &together[i * 101..(i + 1) * 101];
            assert_eq!(alone, bits(in_batch), "{format:?} row {i}");
            let decoded = session.step(0, &[*row]).unwrap();
            let off = difference(decoded, in_batch);
            assert!(off < 1e-3, "{format:?} row {i} decoded: off by {off}");
        }
    }
}

#[test]
fn a_chain_ends_when_told() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&Config::small(2));
    for replay in [Replay::Graph, Replay::Eager, Replay::While] {
        let mut session = load(&program, &checkpoint, replay);
        let tokens = decode_some(&mut session, &[200], &samplings()[1]);
        let start = Row {
            token: tokens[0],
            position: 11,
            sequence: 1,
        };
        let cancel = AtomicBool::new(false);
        let history: Vec<u32> = rows(&mut Numbers(4), 101, 0, 11, 1)
            .iter()
            .map(|r| r.token)
            .chain([tokens[0]])
            .collect();
        let mut chained = |end: &[u32], most: usize, stop_at: usize| {
            session.set_sampling(&samplings()[1], &[(3, 0.5)], &history);
            let mut seen = Vec::new();
            let count = session.chain(start, 200, end, &cancel, &mut |token| {
                seen.push(token);
                if seen.len() == stop_at {
                    cancel.store(true, Ordering::Relaxed);
                }
                seen.len() < most
            });
            assert_eq!(count.unwrap(), seen.len());
            seen
        };
        let first = tokens[1..].iter().position(|t| *t == tokens[40]).unwrap() + 1;
        assert_eq!(chained(&[100_000, tokens[40]], 999, 999), tokens[1..=first]);
        assert_eq!(chained(&[], 5, 999), tokens[1..=5]);
        assert_eq!(chained(&[], 999, 999), tokens[1..=200]);
        let cancelled = chained(&[], 999, 3);
        assert!(cancelled.len() >= 3 && cancelled.len() < 200);
        assert_eq!(cancelled, tokens[1..=cancelled.len()]);
        assert_eq!(chained(&[], 999, 999), [0u32; 0]);
        // What was cut short leaves nothing behind: the history is what was emitted.
        cancel.store(false, Ordering::Relaxed);
        session.set_sampling(&samplings()[1], &[(3, 0.5)], &history);
        let mut seen = Vec::new();
        let mut row = start;
        for length in [3, 1, 9] {
            let before = seen.len();
            let mut stop = |token| {
                seen.push(token);
                seen.len() < before + length
            };
            session.chain(row, 100, &[], &cancel, &mut stop).unwrap();
            row.position += length as u32;
            row.token = seen[seen.len() - 1];
        }
        assert_eq!(seen, tokens[1..14]);
    }
}

#[test]
fn impossible_rows_are_errors() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&Config::small(2));
    let mut session = load(&program, &checkpoint, Replay::Graph);
    let good = Row::default();
    for (table, rows) in common::impossible_rows() {
        let result = session.step(table, &rows);
        assert!(matches!(result, Err(Error::Step(_))), "{rows:?}");
    }
    let start = Row {
        position: 639,
        ..good
    };
    let never = AtomicBool::new(false);
    assert!(session.chain(start, 2, &[], &never, &mut |_| true).is_err());
    let one = session.chain(start, 1, &[], &never, &mut |_| true);
    assert_eq!(one.unwrap(), 1);
    assert!(session.set_pages(&[0]).is_err());
    assert!(session.buffer(999).is_err());
    assert!(session.write_buffer(0, &vec![0; 1 << 20]).is_err());
}

#[test]
fn what_is_allocated_is_what_was_planned() {
    if !gpu() {
        return;
    }
    let large = Config {
        format: Format::Q6_K,
        dim: 256,
        hidden: 256,
        ..Config::small(1)
    };
    for config in [Config::small(1), large] {
        let (program, checkpoint) = make(&config);
        let options = options(Replay::Graph);
        let mut plan = MemoryPlan::of(&program, &|w| weight_bytes(w, &options));
        let planned = Plan::of(Arc::new(program), &options).unwrap();
        for (name, class, bytes) in planned.device_bytes() {
            plan.add(name, class, bytes);
        }
        let mut last = 0;
        let mut progress = |done: u64, total: u64| {
            assert!(done >= last && done <= total);
            last = done;
        };
        let model = Model::load_planned(planned, &checkpoint, &mut progress).unwrap();
        assert_eq!(last, plan.bytes(Class::Weights));
        let session = Session::new(&model).unwrap();
        assert_eq!(session.allocated(), plan.by_class());
    }
}

#[test]
fn a_weight_that_is_missing_or_misshapen_is_an_error() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&Config::small(1));
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = program.clone();
        change(&mut program);
        fill_cost(&mut program);
        let program = Arc::new(program);
        Model::load(
            program,
            &checkpoint,
            &options(Replay::Graph),
            &mut |_, _| {},
        )
        .is_err()
    };
    let first_part = |program: &mut Program, change: &dyn Fn(&mut Part)| {
        if let Source::Parts(parts) = &mut program.weights[0].source {
            change(&mut parts[0]);
        }
    };
    assert!(!broken(&|_| {}));
    assert!(broken(
        &|p| first_part(p, &|part| part.tensor = "nowhere".into())
    ));
    assert!(broken(&|p| first_part(p, &|part| part.first_row = 90)));
    assert!(broken(&|p| first_part(p, &|part| part.rows -= 1)));
    assert!(broken(&|p| p.weights[0].k = 65));
}

#[test]
fn profiling_counts_every_op() {
    if !gpu() {
        return;
    }
    let (program, checkpoint) = make(&Config::small(1));
    let mut session = load(&program, &checkpoint, Replay::Graph);
    session.set_profiling(true).unwrap();
    session.step(0, &[Row::default()]).unwrap();
    let calls = |s: &Session, op: Op| s.profile().iter().find(|p| p.op == op).map(|p| p.calls);
    assert_eq!(calls(&session, Op::Attention), Some(2));
    assert_eq!(calls(&session, Op::Embed), Some(1));
    assert_eq!(calls(&session, Op::Sample), Some(0));
    let never = AtomicBool::new(false);
    let mut all = |_| true;
    session
        .chain(Row::default(), 3, &[], &never, &mut all)
        .unwrap();
    assert_eq!(calls(&session, Op::Sample), Some(3));
    assert_eq!(calls(&session, Op::Attention), Some(8));
    session.set_profiling(false).unwrap();
    assert!(session.profile().is_empty());
}

/// The experts that the first rows chose.
fn chosen(bytes: &[u8], program: &Program, c: &Mixture, count: u32) -> Vec<u32> {
    let spec = program.buffers.iter().find(|b| b.name == "choice").unwrap();
    let stride = spec.bytes as usize / c.rows as usize;
    let rows = bytes.chunks_exact(stride).take(count as usize);
    rows.flat_map(|row| bits(&floats(&row[..4 * c.used as usize])))
        .collect()
}

fn mixtures() -> Vec<Mixture> {
    let each = formats().map(|format| Mixture {
        format,
        // No whole number of chunks, and several.
        dim: 768,
        hidden: 256,
        experts: 20,
        used: 3,
        vocab: 13,
        rows: 45,
        ..Mixture::small(100 + format.index() as u64)
    });
    // Tiles that are full, of experts that all rows choose.
    let full = Mixture {
        format: Format::Q4_K,
        dim: 256,
        hidden: 512,
        experts: 4,
        used: 4,
        renormalise: 0,
        rows: 301,
        ..Mixture::small(9)
    };
    (0..10)
        .map(Mixture::ugly)
        .chain(each)
        .chain([full])
        .collect()
}

/// What a step of `count` rows leaves in any buffer, and its logits, against the oracle.
fn wrong_experts(c: &Mixture) -> Option<String> {
    let (program, checkpoint) = make_mixture(c);
    let mut fast = load(&program, &checkpoint, Replay::Graph);
    let mut plain = common::load(&program, &checkpoint, &reference());
    let choice = program.buffers.iter().position(|b| b.name == "choice")? as u32;
    let mut n = Numbers(c.seed + 7);
    for (table, count) in [(1, c.rows), (1, 5), (2, 16), (2, 3), (0, 1)] {
        let some = rows(&mut n, c.vocab, 0, count.min(c.rows), 0);
        let tolerance = match c.format.is_quantised() {
            true => 4e-2,
            false if some.len() > 16 => 2e-2,
            false => 2e-3,
        };
        // A step of the decode table would go on to the next token.
        let commands = program.tables[table].commands.len() - usize::from(table == 0);
        poison(&mut fast);
        common::poison(&mut plain);
        fast.step_until(table, &some, commands).unwrap();
        plain.step_until(table, &some, commands).unwrap();
        let count = some.len() as u32;
        let got = chosen(&fast.buffer(choice).unwrap(), &program, c, count);
        let want = chosen(plain.buffer(choice).unwrap(), &program, c, count);
        if got != want {
            return Some(format!(
                "table {table} x {count} chose {got:?}, not {want:?}"
            ));
        }
        if let Some(problem) = differing(&fast, &plain, tolerance) {
            return Some(format!("table {table} x {count}: {problem}"));
        }
        let want = plain.step(table, &some).unwrap().to_vec();
        let off = difference(fast.step(table, &some).unwrap(), &want);
        if off > tolerance {
            return Some(format!("table {table} x {count}: logits off by {off}"));
        }
    }
    None
}

#[test]
fn experts_agree_with_the_reference() {
    if !gpu() {
        return;
    }
    let all = mixtures();
    let wrong = all.iter().filter_map(|config| {
        let problem = wrong_experts(config)?;
        Some(format!("{problem} {config:?}"))
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn rows_with_experts_do_not_change_each_other() {
    if !gpu() {
        return;
    }
    for format in [Format::Q4_K, Format::BF16] {
        let config = Mixture {
            format,
            dim: 512,
            hidden: 256,
            experts: 16,
            used: 4,
            rows: 80,
            ..Mixture::small(9)
        };
        let (program, checkpoint) = make_mixture(&config);
        let mut session = load(&program, &checkpoint, Replay::Graph);
        let some = rows(&mut Numbers(2), config.vocab, 0, 80, 0);
        let batch = some[..16].to_vec();
        let together = bits(session.step(2, &batch).unwrap());
        for (row, want) in batch.iter().zip(together.chunks(config.vocab as usize)) {
            assert_eq!(bits(session.step(2, &[*row]).unwrap()), want, "{format:?}");
        }
        // Of a prompt the last row's logits are given: the same last row after other rows.
        let mut others = some.clone();
        others[..79].reverse();
        let want = bits(session.step(1, &some).unwrap());
        assert_eq!(bits(session.step(1, &others).unwrap()), want, "{format:?}");
        // Twice the same.
        assert_eq!(bits(session.step(1, &some).unwrap()), want, "{format:?}");
    }
}
