//! Encoders: programs of one embed pass without caches, whose rows see their whole text.

use super::case::{Case, Commands, bits, poison, tolerance};
use super::made::Numbers;
use super::model::{ATTENTION, Attention, DENSE, EncodeConv, Layer, Model};
use std::sync::Arc;
use welte_device::Device;
use welte_table::{Op, PassKind, Program, Row, cost, params, verify};

/// Texts of all lengths beside each other, in all shapes of heads, with and without windows and slopes. The vector of a text has the
/// same bits alone and beside others.
pub fn encoders(device: &dyn Device, oracle: &dyn Device) {
    // Heads, heads of keys, their size, the window, and the limit of products.
    let shapes = [
        (1, 1, 32, 0, 0.0),
        (4, 4, 12, 0, 0.8),
        (6, 2, 64, 9, 0.0),
        (5, 1, 17, 1, 1.5),
        (2, 2, 128, 70, 0.4),
        (3, 1, 256, 0, 0.0),
        (2, 1, 72, 30, 0.0),
    ];
    for (seed, (heads, kv_heads, head_dim, window, softcap)) in shapes.into_iter().enumerate() {
        let attention = Attention {
            heads,
            kv_heads,
            head_dim,
            window,
            softcap,
            slopes: seed % 2 == 1 || window == 9,
            ..ATTENTION
        };
        let taps = [1, 5, 15, 2][seed % 4];
        let conv = EncodeConv {
            channels: [19, 300, 48][seed % 3],
            taps,
            before: [0, taps - 1, taps / 2][seed % 3],
            bias: seed % 2 == 0,
        };
        let model = Model {
            layers: vec![
                Layer::Encode(attention),
                Layer::EncodeConv(conv),
                Layer::Dense(DENSE),
            ],
            dim: 40,
            context: 401,
            slots: 7,
            embed_rows: 330,
            pool: ([1, 5][seed % 2], 0),
            ..Model::small(seed as u64 + 70)
        };
        let Some(mut case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let mut program = (*case.program).clone();
        program.passes.retain(|pass| pass.kind == PassKind::Embed);
        assert!(program.caches.is_empty());
        case.program = Arc::new(program);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(seed as u64 + 7);
        // One strip of a kernel, several of them, more than a block of keys, and runs that begin anywhere.
        let lengths = [1, 2, 16, 33, 65, 5, 200];
        let mut texts: Vec<Vec<Row>> = Vec::new();
        for (slot, length) in lengths.into_iter().enumerate() {
            let row = |at: u32| {
                // The second half of a pair is in the other segment.
                let position = if at < length / 2 { at } else { at + 201 };
                Row::new(n.below(model.vocab), position, slot as u32)
            };
            texts.push((0..length).map(row).collect());
        }
        let ends: Vec<u32> = texts
            .iter()
            .scan(0, |end, text| {
                *end += text.len() as u32;
                Some(*end - 1)
            })
            .collect();
        let rows = texts.concat();
        let most = tolerance(&model, rows.len());
        pair.both(poison);
        let together = pair.step(PassKind::Embed, &rows, &ends, most);
        pair.assert_same_memory("all texts", most);
        let width = model.dim as usize;
        for (text, want) in texts.iter().zip(together.chunks(width)) {
            pair.both(poison);
            let end = [text.len() as u32 - 1];
            let alone = pair.step(PassKind::Embed, text, &end, most);
            assert!(bits(&alone) == bits(want), "a text of {} rows", text.len());
        }
    }
}

/// Makes every run end where the first axis changes, and lets outputs consist of `group` neighbours.
fn grouped(program: &mut Program, kind: u32, group: u32) {
    for pass in &mut program.passes {
        for c in &mut pass.commands {
            if c.op == Op::EncodeAttention {
                let mut p = params::EncodeAttention::of(&c.params);
                p.by_axis = 1;
                // Some runs are not longer than that.
                let plain = p.places == 0 && p.by_reach == 0;
                p.unseen = if kind == 3 && plain { 3 } else { 0 };
                c.params = p.words();
            }
            if c.op == Op::Pool {
                let mut p = params::Pool::of(&c.params);
                (p.kind, p.group, p.normalise) = (kind, group, 0);
                let width = p.width() as u32;
                p.y_stride = width;
                c.params = p.words();
                (pass.width, pass.result) = (width, c.buffers[1]);
            }
        }
        let bytes = 4 * u64::from(pass.outputs) * u64::from(pass.width);
        let buffer = &mut program.buffers[pass.result.buffer as usize];
        buffer.bytes = buffer.bytes.max(bytes);
    }
    cost::fill(program);
    verify(program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}"));
}

/// Pictures: rows attend within windows, and neighbours become one output. Devices that take no features refuse them.
pub fn pictures(device: &dyn Device, oracle: &dyn Device) {
    for (kind, group) in [(0, 4), (1, 9), (2, 2), (3, 4), (4, 4), (3, 1)] {
        let model = Model {
            layers: vec![Layer::Encode(ATTENTION), Layer::Dense(DENSE)],
            dim: 40,
            context: 144,
            embed_rows: 144,
            ..Model::small(u64::from(kind) + 90)
        };
        let Some(mut case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let mut program = (*case.program).clone();
        program.passes.retain(|pass| pass.kind == PassKind::Embed);
        grouped(&mut program, kind, group);
        if !device.takes_features() {
            let missing = device.missing(&program);
            assert_eq!(missing, program.needs_features(), "groups are refused");
            continue;
        }
        case.program = Arc::new(program);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(u64::from(kind) + 3);
        // Windows of all lengths; their numbers may come again.
        let mut rows: Vec<Row> = Vec::new();
        for (window, length) in [(3, 16), (4, 1), (3, 70), (0, 33), (7, 24)] {
            let first = rows.len() as u32;
            rows.extend((0..length).map(|at| {
                let position = first + at;
                let axes = [window, at, 2 * at];
                let token = n.below(model.vocab);
                Row {
                    axes,
                    ..Row::new(token, position, 0)
                }
            }));
        }
        let ends: Vec<u32> = (1..=144 / group).map(|i| i * group - 1).collect();
        let most = tolerance(&model, rows.len());
        pair.both(poison);
        pair.step(PassKind::Embed, &rows, &ends, most);
        pair.assert_same_memory("windows and groups", most);
    }
}

/// Scores that add something for the distance of places, in rectangles of all sides, with and without rows for what they lack; and rows
/// that see nothing after their reach.
pub fn places(device: &dyn Device, oracle: &dyn Device) {
    // Heads, heads of keys, their size, the side of the tables, whether rows are filled up, and whether they see by their reach.
    let shapes = [
        (2, 2, 16, 6, false, false),
        (3, 1, 64, 9, true, false),
        (2, 1, 17, 4, true, false),
        (1, 1, 72, 5, false, false),
        (4, 2, 32, 0, false, true),
        (2, 1, 32, 6, false, true),
        (1, 1, 17, 5, false, true),
    ];
    for (seed, (heads, kv_heads, head_dim, places, absent, by_reach)) in (0..).zip(shapes) {
        let attention = Attention {
            heads,
            kv_heads,
            head_dim,
            places,
            absent,
            ..ATTENTION
        };
        let model = Model {
            layers: vec![Layer::Encode(attention), Layer::Dense(DENSE)],
            dim: 40,
            context: 200,
            embed_rows: 200,
            ..Model::small(seed + 110)
        };
        let Some(mut case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let mut program = (*case.program).clone();
        program.passes.retain(|pass| pass.kind == PassKind::Embed);
        for c in program
            .passes
            .iter_mut()
            .flat_map(|pass| &mut pass.commands)
        {
            if c.op == Op::EncodeAttention {
                let mut p = params::EncodeAttention::of(&c.params);
                (p.by_axis, p.by_reach) = (1, u32::from(by_reach));
                c.params = p.words();
            }
        }
        grouped(&mut program, 3, 1);
        if !device.takes_features() {
            assert!(device.missing(&program).is_some(), "places are refused");
            continue;
        }
        case.program = Arc::new(program);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(seed + 3);
        // Rectangles of lines and columns; where they begin does not matter.
        let sides: &[[u32; 2]] = match (places, absent) {
            (0, _) => &[[9, 8], [1, 1], [14, 5]],
            (_, true) => &[[places, places], [places, 2], [1, places], [2, 3], [1, 1]],
            (_, false) => &[[places, places], [4, 3], [1, 2], [places - 1, places]],
        };
        let mut rows: Vec<Row> = Vec::new();
        for (window, [lines, columns]) in (5..).zip(sides) {
            let first = rows.len() as u32;
            let end = first + lines * columns;
            rows.extend((first..end).map(|position| {
                let at = position - first;
                // All rows of the first third see each other, later ones those before them.
                let reach = position.max(first + (end - first) / 3);
                Row {
                    axes: [window, 30 + at / columns, 7 + at % columns],
                    reach: if by_reach { reach } else { position },
                    ..Row::new(n.below(model.vocab), position, 0)
                }
            }));
        }
        let ends: Vec<u32> = (0..rows.len() as u32).collect();
        let most = tolerance(&model, rows.len());
        pair.both(poison);
        pair.step(PassKind::Embed, &rows, &ends, most);
        pair.assert_same_memory("places", most);
    }
}
