//! Every op and format against the oracle.

use super::case::{
    Case, Commands, Pair, bits, difference, mixed_rows, poison, rows, some_outputs, tolerance,
};
use super::made::Numbers;
use super::model::{
    ATTENTION, Attention, DENSE, Delta, Dense, EXPERTS, Experts, Heads, Layer, Model, Streams,
};
use welte_device::Device;
use welte_formats::quant;
use welte_table::{CacheKind, Command, Format, Op, PATTERNS, PassKind, Row};

/// An architecture that no device has heard of, in fine ops and fused as the device declares.
pub fn made_up(device: &dyn Device, oracle: &dyn Device) {
    let model = Model::made_up();
    for commands in [Commands::Fused, Commands::Fine] {
        let case = Case::new(device, &model, commands).expect("ops that every device has");
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(77);
        for pass in 0..case.program.passes.len() {
            every_command(&mut pair, &model, &mut n, pass, 5);
        }
    }
}

/// Random programs: after every command all memory agrees with the oracle's.
pub fn ops(device: &dyn Device, oracle: &dyn Device) {
    let mut ran = 0;
    for seed in 0..36 {
        let model = Model::ugly(seed);
        let commands = match seed % 3 {
            0 => Commands::Fine,
            _ => Commands::Fused,
        };
        let Some(case) = Case::new(device, &model, commands) else {
            continue;
        };
        ran += 1;
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(seed + 1000);
        for pass in 0..case.program.passes.len() {
            let most = case.program.passes[pass].rows;
            let few = most.min(7);
            every_command(&mut pair, &model, &mut n, pass, few);
            every_command(&mut pair, &model, &mut n, pass, most);
        }
    }
    for seed in 0..12 {
        let model = Model {
            layers: vec![Layer::Delta(Delta::ugly(&mut Numbers(seed)))],
            ..Model::ugly(seed)
        };
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(seed + 2000);
        for pass in 0..case.program.passes.len() {
            let most = case.program.passes[pass].rows;
            every_command(&mut pair, &model, &mut n, pass, most);
        }
    }
    for seed in 0..8 {
        let model = Model {
            layers: vec![Layer::Streams(Streams::ugly(&mut Numbers(seed)))],
            ..Model::ugly(seed)
        };
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(seed + 3000);
        for pass in 0..case.program.passes.len() {
            let most = case.program.passes[pass].rows;
            every_command(&mut pair, &model, &mut n, pass, most);
        }
    }
    assert!(
        ran >= 8,
        "the device lacks features of nearly every program"
    );
}

/// Runs a pass up to each of its commands over poisoned memory, then goes on with one more row of each slot.
fn every_command(pair: &mut Pair<'_>, model: &Model, n: &mut Numbers, pass: usize, count: u32) {
    let program = pair.case.program.clone();
    let spec = &program.passes[pass];
    let mut next = vec![0; program.slots as usize];
    let rows = mixed_rows(n, &program, &mut next, count);
    let outputs = match spec.kind {
        PassKind::Decode => Vec::new(),
        _ => some_outputs(n, rows.len(), spec.outputs),
    };
    let tolerance = tolerance(model, rows.len());
    // A step does not sample.
    let commands = spec.commands.len() - usize::from(spec.kind == PassKind::Decode);
    for until in 0..=commands {
        pair.both(|c| {
            poison(c);
            let done = c.step_until(pass, &rows, &outputs, until);
            done.expect("a valid step");
        });
        let label = spec.labels[until.max(1) - 1].clone();
        let what = format!("{}, after {until} commands ({label})", spec.kind.name());
        pair.assert_same_so_far(&what, pass, until, tolerance);
    }
    let going_on: Vec<Row> = next
        .iter()
        .enumerate()
        .filter(|(_, position)| **position < program.context)
        .take(model.decode_rows as usize)
        .map(|(slot, position)| Row::new(n.below(program.vocab), *position, slot as u32))
        .collect();
    if !going_on.is_empty() {
        pair.step(PassKind::Decode, &going_on, &[], tolerance);
    }
}

/// Every weight format outside families, over few and many rows.
pub fn formats(device: &dyn Device, oracle: &dyn Device) {
    each_format(device, oracle, |f| {
        !matches!(f, Format::Affine(_) | Format::Integers(_))
    });
}

/// The formats of MLX, as [`formats`].
pub fn affine_formats(device: &dyn Device, oracle: &dyn Device) {
    each_format(device, oracle, |f| matches!(f, Format::Affine(_)));
}

/// Groups of integers, as [`formats`].
pub fn integer_formats(device: &dyn Device, oracle: &dyn Device) {
    each_format(device, oracle, |f| matches!(f, Format::Integers(_)));
}

fn each_format(device: &dyn Device, oracle: &dyn Device, is_meant: fn(Format) -> bool) {
    for format in Format::ALL.into_iter().filter(|f| is_meant(*f)) {
        // Compiling its kernels may take seconds.
        eprintln!("{}", format.name());
        let attention = Attention {
            heads: 8,
            ..ATTENTION
        };
        let dense = Dense {
            hidden: 512,
            ..DENSE
        };
        let model = Model {
            format,
            dim: 256,
            vocab: 203,
            layers: vec![Layer::Attention(attention), Layer::Dense(dense)],
            decode_rows: 12,
            ..Model::small(format.index() as u64)
        };
        let case = Case::required(device, &model);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(5);
        let mut at = 0;
        let (decode, prompt) = (PassKind::Decode, PassKind::Prompt);
        for (kind, count) in [
            (prompt, 40),
            (decode, 1),
            (decode, 7),
            (prompt, 3),
            (decode, 12),
        ] {
            let rows = rows(&mut n, model.vocab, 1, at, count);
            let outputs = match kind {
                PassKind::Prompt => vec![0, count - 1],
                _ => Vec::new(),
            };
            pair.step(kind, &rows, &outputs, tolerance(&model, rows.len()));
            at += count;
        }
    }
}

/// Matrices per head in every format: heads that begin inside a tile, one row and many.
pub fn heads(device: &dyn Device, oracle: &dyn Device) {
    for format in Format::ALL {
        let heads = Heads {
            heads: 3,
            n: 37,
            k: 256,
            tail: 5,
        };
        let model = Model {
            format,
            vocab: 31,
            layers: vec![Layer::Heads(heads)],
            prompt_rows: 67,
            ..Model::small(format.index() as u64)
        };
        let case = Case::required(device, &model);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(8);
        for (kind, count) in [
            (PassKind::Prompt, 67),
            (PassKind::Prompt, 5),
            (PassKind::Decode, 1),
            (PassKind::Decode, 8),
        ] {
            let rows = rows(&mut n, model.vocab, 1, 0, count);
            let outputs = match kind {
                PassKind::Prompt => vec![0, count - 1],
                _ => Vec::new(),
            };
            pair.step(kind, &rows, &outputs, tolerance(&model, rows.len()));
        }
    }
}

/// Mixtures of experts: ugly shapes, biases, every format.
pub fn experts(device: &dyn Device, oracle: &dyn Device) {
    let model = |seed: u64, format: Format, dim: u32, experts: Experts| Model {
        format,
        dim,
        vocab: 31,
        layers: vec![Layer::Experts(experts)],
        decode_rows: 16,
        prompt_rows: 67,
        tied: false,
        ..Model::small(seed)
    };
    let each = Format::ALL.into_iter().map(|format| {
        let experts = Experts {
            hidden: 256,
            ..EXPERTS
        };
        model(100 + format.index() as u64, format, 256, experts)
    });
    let ugly = (0..24).map(|seed| {
        let n = &mut Numbers(seed);
        let mut experts = Experts::ugly(n);
        if seed >= 12 {
            (experts.bias, experts.act) = (true, n.pick(&[3, 0, 4, 2]));
        }
        let dim = 16 * (1 + seed as u32 % 3);
        model(seed, Format::F32, dim, experts)
    });
    for model in ugly.chain(each) {
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(model.seed + 7);
        for (kind, count) in [
            (PassKind::Prompt, 67),
            (PassKind::Prompt, 5),
            (PassKind::Decode, 16),
            (PassKind::Decode, 1),
        ] {
            let rows = rows(&mut n, model.vocab, 0, 0, count);
            let outputs = match kind {
                PassKind::Prompt => vec![count - 1],
                _ => Vec::new(),
            };
            let tolerance = tolerance(&model, rows.len());
            pair.both(poison);
            pair.step(kind, &rows, &outputs, tolerance);
            pair.assert_same_memory(&format!("{} x {count}", kind.name()), tolerance);
        }
    }
}

/// Attention over long contexts: all shapes of heads, windows, softcaps and sinks, pages in disorder, positions around
/// the borders where a device may cut its work. The context is written into the cache; what lies beyond it is NaN.
pub fn contexts(device: &dyn Device, oracle: &dyn Device) {
    // Heads, heads of keys, their size, the cache's format and page, window, softcap, sinks.
    let shapes = [
        (1, 1, 128, Format::F16, 16, 0, 0.0, false),
        (2, 1, 128, Format::Q8_0, 64, 0, 0.0, true),
        (6, 2, 48, Format::F16, 7, 0, 5.0, false),
        (4, 1, 64, Format::Q8_0, 3, 100, 0.0, true),
        (7, 1, 80, Format::F16, 64, 9, 0.0, false),
        (8, 1, 32, Format::Q8_0, 1, 0, 5.0, false),
        (12, 1, 256, Format::F16, 100, 250, 0.0, false),
        (9, 1, 576, Format::F16, 16, 0, 0.0, false),
        (4, 2, 320, Format::Q8_0, 64, 300, 0.0, true),
        (3, 1, 264, Format::F16, 7, 0, 5.0, false),
        (16, 2, 128, Format::F16, 16, 0, 0.0, true),
        (30, 1, 24, Format::F16, 7, 30, 0.0, false),
        (6, 2, 24, Format::F16, 16, 40, 0.0, false),
        (5, 1, 64, Format::F16, 16, 70, 0.0, false),
        (4, 2, 128, Format::Q8_0, 64, 500, 0.0, true),
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        let (heads, kv_heads, head_dim, kv_format, page, window, softcap, sinks) = shape;
        let attention = Attention {
            heads,
            kv_heads,
            head_dim,
            rot: head_dim,
            window,
            chunked: seed >= 12,
            window_cache: seed % 2 == 0,
            softcap,
            sinks,
            ..ATTENTION
        };
        for format in [Format::F32, Format::BF16] {
            let model = Model {
                format,
                kv_format,
                page,
                context: 2600,
                slots: 1,
                prompt_rows: 110,
                ..Model::of_attention(attention, seed as u64 + 40)
            };
            let Some(case) = Case::new(device, &model, Commands::Fused) else {
                continue;
            };
            let mut pair = case.pair(device, oracle);
            let mut pages = welte_device::Checks::first_pages(&case.program, 0);
            pages.reverse();
            pair.set_pages(0, 0, &pages);
            let mut n = Numbers(seed as u64);
            let positions: &[u32] = match format {
                Format::F32 => &[0, 15, 63, 255, 256, 511, 1039, 2300],
                _ => &[0, 255, 511],
            };
            for &at in positions {
                fill_context(&mut pair, &mut n, &pages, at);
                // The oracle is slow.
                let many = if at > 600 { 17 } else { 110 };
                for (kind, count) in [
                    (PassKind::Decode, 1),
                    (PassKind::Decode, 3),
                    (PassKind::Prompt, 5),
                    (PassKind::Prompt, many),
                ] {
                    let rows = rows(&mut n, model.vocab, 0, at, count);
                    let outputs = match kind {
                        PassKind::Prompt => vec![0, count / 2, count - 1],
                        _ => Vec::new(),
                    };
                    pair.step(kind, &rows, &outputs, tolerance(&model, rows.len()));
                }
            }
        }
    }
}

/// One shape of [`contexts`] at few positions, for layouts whose kernels take long to compile: a row alone, and with others
/// in one step, where it has the same bits.
pub fn contexts_in_brief(device: &dyn Device, oracle: &dyn Device) {
    let attention = Attention {
        heads: 6,
        head_dim: 24,
        rot: 20,
        ..ATTENTION
    };
    let model = Model {
        page: 7,
        context: 2600,
        slots: 1,
        ..Model::of_attention(attention, 60)
    };
    let case = Case::required(device, &model);
    let mut pair = case.pair(device, oracle);
    let mut pages = welte_device::Checks::first_pages(&case.program, 0);
    pages.reverse();
    pair.set_pages(0, 0, &pages);
    let mut n = Numbers(17);
    let cache = case.program.caches[0].buffer;
    // In one split of the context, and in two and three.
    for at in [5, 300, 1039, 2300] {
        fill_context(&mut pair, &mut n, &pages, at);
        let rows = rows(&mut n, model.vocab, 0, at, 3);
        let most = tolerance(&model, 1);
        let alone = pair.step(PassKind::Decode, &rows[..1], &[], most);
        let cached = pair.device.read_buffer(cache).expect("the cache");
        pair.assert_same_caches("a row alone", most);
        let together = pair.step(PassKind::Decode, &rows, &[], most);
        pair.assert_same_caches("a row beside others", most);
        assert!(
            bits(&alone) == bits(&together[..alone.len()]),
            "position {at} alone and beside others: {}",
            case.what
        );
        // The others follow one by one, as in a chain.
        let mut context = case.open(device);
        context.set_pages(0, 0, 0, &pages).expect("a valid list");
        context.write_buffer(cache, &cached).expect("the cache");
        for (row, want) in rows.iter().zip(together.chunks(alone.len())).skip(1) {
            let pass = case.pass(PassKind::Decode);
            let got = context.step_rows(pass, &[*row], &[]).expect("a valid step");
            assert!(bits(got) == bits(want), "{row:?} alone: {}", case.what);
        }
        let mut caches = || {
            let both = [&mut context, &mut pair.device];
            both.map(|context| context.read_buffer(cache).expect("the cache"))
        };
        let [one, other] = caches();
        assert!(one == other, "caches from position {at}: {}", case.what);
    }
}

/// Writes random keys and values of the first `positions` positions into cache 0 of both, and NaN everywhere else.
fn fill_context(pair: &mut Pair<'_>, n: &mut Numbers, pages: &[u32], positions: u32) {
    let program = pair.case.program.clone();
    let cache = &program.caches[0];
    let CacheKind::Attention {
        format,
        layers,
        kv_heads,
        head_dim,
        ..
    } = cache.kind
    else {
        panic!("cache 0 holds keys and values");
    };
    let head = format.bytes(head_dim as usize).expect("whole blocks");
    let size = program.buffers[cache.buffer as usize].bytes as usize;
    let mut bytes = vec![0xff; size];
    for position in 0..positions {
        let page = pages[(position / program.page) as usize];
        for part in 0..2 * layers {
            for kv_head in 0..kv_heads {
                let row = (part * cache.pages + page) * kv_heads + kv_head;
                let at = (row * program.page + position % program.page) as usize * head;
                let values: Vec<f32> = (0..head_dim).map(|_| n.float()).collect();
                quant::encode(format, &values, &mut bytes[at..at + head]);
            }
        }
    }
    pair.both(|c| {
        let written = c.write_buffer(cache.buffer, &bytes);
        written.expect("a known buffer");
    });
}

/// Without its patterns a device runs the fine ops, and computes the same.
pub fn unfused(device: &dyn Device, oracle: &dyn Device) {
    let fused = |c: &Command| PATTERNS.iter().any(|pattern| pattern.op == c.op);
    for seed in 0..24 {
        let model = Model::ugly(seed);
        let Some(split) = Case::new(device, &model, Commands::Fine) else {
            continue;
        };
        let all = || split.program.passes.iter().flat_map(|pass| &pass.commands);
        assert!(!all().any(fused), "{}", split.what);
        assert!(all().any(|c| c.op == Op::Matmul), "{}", split.what);
        let whole = Case::new(oracle, &model, Commands::Fused).expect("the oracle runs all");
        let (mut got, mut want) = (split.open(device), whole.open(oracle));
        let mut n = Numbers(seed + 500);
        let mut next = vec![0; model.slots as usize];
        for kind in [PassKind::Prompt, PassKind::Decode, PassKind::Embed] {
            let Some(pass) = whole.program.pass(kind) else {
                continue;
            };
            let spec = &whole.program.passes[pass];
            let rows = mixed_rows(&mut n, &whole.program, &mut next, spec.rows);
            if rows.is_empty() {
                continue;
            }
            let outputs = match kind {
                PassKind::Decode => Vec::new(),
                _ => some_outputs(&mut n, rows.len(), spec.outputs),
            };
            let want = want.step_rows(pass, &rows, &outputs).expect("a valid step");
            let got = got.step_rows(pass, &rows, &outputs).expect("a valid step");
            let off = difference(got, want);
            let most = tolerance(&model, rows.len());
            assert!(off <= most, "{}: off by {off}: {}", kind.name(), whole.what);
        }
    }
}
