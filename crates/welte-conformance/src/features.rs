//! Rows that are not tokens of a text: they read features, have axes of their own, or attend beyond their own position.
//! Devices that take no such rows must refuse them.

use super::case::{
    Case, Commands, Pair, bits, chain, refused, rows, set_slot, start, tokens_of, tolerance,
};
use super::made::Numbers;
use super::model::{ATTENTION, Attention, Model};
use super::program::make_fine;
use std::sync::Arc;
use welte_device::{ChainStart, Context, Device, SlotState};
use welte_table::{
    BufferSpec, Class, Command, Format, Input, Op, PassKind, Program, Row, Sections, cost, params,
    verify,
};

/// Features of the programs.
const FEATURES: u32 = 5;

/// A case whose program was changed.
fn case(device: &dyn Device, model: &Model, change: impl FnOnce(&mut Program)) -> Case {
    let mut case = Case::required(device, model);
    let mut program = (*case.program).clone();
    change(&mut program);
    verify(&program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}"));
    case.program = Arc::new(program);
    case
}

fn add_features(program: &mut Program) {
    let bytes = 4 * u64::from(FEATURES * program.embedding());
    program.features = program.buffers.len() as u32;
    program.buffers.push(BufferSpec {
        name: "features".into(),
        class: Class::ScratchPrompt,
        bytes,
    });
}

/// A device that takes no such rows refuses them, and no other ones.
fn refuses(context: &mut dyn Context, row: Row, what: &str) {
    let text = Row::new(1, row.position, row.slot);
    for pass in 0..context.program().passes.len() {
        refused(context.step_rows(pass, &[row], &[]), what);
        let after = context.step_rows(pass, &[text], &[]);
        assert!(after.is_ok(), "text after {what}");
    }
}

/// A feature takes the place of an embedding, in both passes: between tokens, with the bits of a token that has the same embedding.
pub fn features(device: &dyn Device, oracle: &dyn Device) {
    for format in [Format::F32, Format::Q8_0] {
        let model = Model {
            format,
            prompt_outputs: 12,
            ..Model::small(40)
        };
        if !device.takes_features() {
            let (mut program, _) = make_fine(&model);
            add_features(&mut program);
            let missing = device.missing(&program);
            assert_eq!(missing, program.needs_features(), "features are refused");
            break;
        }
        let case = case(device, &model, add_features);
        let (number, width) = (case.program.features, case.program.embedding() as usize);
        let mut pair = case.pair(device, oracle);
        let feature = |input, position| Row {
            input: Input::Feature(input),
            ..Row::new(0, position, 1)
        };
        let mut n = Numbers(41);
        let values: Vec<f32> = (0..FEATURES as usize * width).map(|_| n.float()).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        pair.both(|c| c.write_bytes(number, 0, &bytes).expect("the features"));
        let mut mixed = rows(&mut n, model.vocab, 1, 0, 12);
        for (at, input) in [(0, 3), (4, 0), (5, 4), (6, 4), (11, 1)] {
            mixed[at] = feature(input, at as u32);
        }
        let most = tolerance(&model, mixed.len());
        let every: Vec<u32> = (0..12).collect();
        let got = pair.step(PassKind::Prompt, &mixed, &every, most);
        pair.assert_same_caches("features of a prompt", most);
        // One by one.
        let vocab = model.vocab as usize;
        for (row, want) in mixed.iter().zip(got.chunks(vocab)) {
            let alone = pair.step(PassKind::Prompt, &[*row], &[0], most);
            assert!(bits(&alone) == bits(want), "{row:?} alone");
        }
        let next = [feature(2, 12), feature(2, 13)];
        pair.step(PassKind::Decode, &next, &[], most);
        pair.assert_same_caches("features of a decode step", most);
        as_tokens(&mut pair, number, width, &model);
        let beyond = feature(FEATURES, 0);
        refused(
            pair.device.step_rows(0, &[beyond], &[]),
            "an unknown feature",
        );
    }
    let plain = Case::required(device, &Model::small(42));
    let mut context = plain.open(device);
    let row = Row {
        input: Input::Feature(0),
        ..Row::default()
    };
    refused(
        context.step_rows(0, &[row], &[]),
        "a feature of a program without",
    );
}

/// The later parts of a feature are added where the commands of a prompt say. Tokens stay as they are.
pub fn deep_features(device: &dyn Device, oracle: &dyn Device) {
    if !device.takes_features() {
        return;
    }
    let model = Model {
        prompt_outputs: 12,
        ..Model::small(43)
    };
    const PARTS: u32 = 3;
    let case = case(device, &model, |program| {
        let n = program.embedding();
        add_features(program);
        program.buffers[program.features as usize].bytes *= u64::from(PARTS);
        let mut passes = program.passes.iter_mut();
        let prompt = passes.find(|pass| pass.kind == PassKind::Prompt);
        let prompt = prompt.expect("a prompt pass");
        let x = prompt.commands[0].buffers[1];
        let x_stride = params::Embed::of(&prompt.commands[0].params).x_stride;
        for part in 1..PARTS {
            let params = params::AddFeature { n, part, x_stride };
            let add = Command::new(Op::AddFeature, Format::F32, &[], &[x], params.words());
            prompt.commands.insert(1, add);
            prompt.labels.insert(1, format!("part {part}"));
        }
        cost::fill(program);
    });
    assert_eq!(case.program.feature_count(), FEATURES);
    let width = case.program.feature_width() as usize;
    let mut pair = case.pair(device, oracle);
    let mut n = Numbers(44);
    let values: Vec<f32> = (0..FEATURES as usize * width).map(|_| n.float()).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    let number = case.program.features;
    pair.both(|c| c.write_bytes(number, 0, &bytes).expect("the features"));
    let mut mixed = rows(&mut n, model.vocab, 1, 0, 12);
    for (at, input) in [(0, 3), (4, 0), (5, 4), (6, 4), (11, 1)] {
        mixed[at].input = Input::Feature(input);
    }
    let most = tolerance(&model, mixed.len());
    let every: Vec<u32> = (0..12).collect();
    let before = pair.step(PassKind::Prompt, &mixed, &every, most);
    pair.assert_same_caches("deep features of a prompt", most);
    // The last part of feature 1 counts in the row that reads it.
    pair.both(|c| {
        let at = 4 * (2 * width - width / PARTS as usize) as u64;
        let written = c.write_bytes(number, at, &bytes[..4 * width / PARTS as usize]);
        written.expect("a part");
    });
    let after = pair.step(PassKind::Prompt, &mixed, &every, most);
    let vocab = model.vocab as usize;
    let changed: Vec<usize> = (0..12)
        .filter(|row| {
            let logits = row * vocab..(row + 1) * vocab;
            bits(&before[logits.clone()]) != bits(&after[logits])
        })
        .collect();
    assert_eq!(changed, [11], "rows that read the part");
    let generated = Row {
        input: Input::Feature(0),
        ..Row::new(0, 12, 1)
    };
    refused(
        pair.device.step_rows(0, &[generated], &[]),
        "a generated row with a feature of several parts",
    );
}

/// Copies a token's embedding to feature 0.
fn as_tokens(pair: &mut Pair<'_>, features: u32, width: usize, model: &Model) {
    let program = pair.case.program.clone();
    let context = pair.device.as_mut();
    for (pass, spec) in program.passes.iter().enumerate() {
        let outputs: &[u32] = if spec.kind == PassKind::Decode {
            &[]
        } else {
            &[0]
        };
        let token = Row::new(7 % model.vocab, 20, 2);
        let run = |context: &mut dyn Context, row: Row| {
            bits(
                context
                    .step_rows(pass, &[row], outputs)
                    .expect("a valid step"),
            )
        };
        let want = run(context, token);
        let done = context.step_until(pass, &[token], outputs, 1);
        done.expect("a valid step");
        let embed = &spec.commands[0];
        assert_eq!(embed.op, Op::Embed);
        let (mut vector, at) = (vec![0; 4 * width], embed.buffers[1]);
        let read = context.read_bytes(at.buffer, at.offset.into(), &mut vector);
        read.expect("the embedding");
        let written = context.write_bytes(features, 0, &vector);
        written.expect("a feature");
        let feature = Row {
            input: Input::Feature(0),
            ..token
        };
        assert!(run(context, feature) == want, "{:?}", spec.kind);
    }
}

/// Pairs of a head turn by the axes that their sections name. Text has the bits that it has without sections.
pub fn axes(device: &dyn Device, oracle: &dyn Device) {
    let shapes: [(u32, u32, [u8; 3], bool); 4] = [
        (32, 0, [8, 4, 4], false),
        (32, 1, [6, 5, 5], true),
        (24, 0, [4, 4, 4], true),
        (16, 1, [0, 3, 5], false),
    ];
    for (rot, interleaved, pairs, turns) in shapes {
        for qk_norm in [true, false] {
            let attention = Attention {
                rot,
                interleaved,
                qk_norm,
                ..ATTENTION
            };
            let model = Model {
                prompt_outputs: 30,
                ..Model::of_attention(attention, 50)
            };
            let word = Sections {
                pairs,
                interleaved: turns,
            }
            .word();
            let plain = Case::required(device, &model);
            let case = case(device, &model, |program| {
                let commands = program.passes.iter_mut().flat_map(|p| &mut p.commands);
                for command in commands {
                    if command.op == Op::RopeAppend {
                        let mut p = params::RopeAppend::of(&command.params);
                        p.sections = word;
                        command.params = p.words();
                    } else if command.op == Op::Rope {
                        let mut p = params::Rope::of(&command.params);
                        p.sections = word;
                        command.params = p.words();
                    }
                }
            });
            let mut n = Numbers(51);
            let text = rows(&mut n, model.vocab, 1, 0, 30);
            let every: Vec<u32> = (0..30).collect();
            let mut pair = case.pair(device, oracle);
            let most = tolerance(&model, text.len());
            let mut without = plain.open(device);
            let want = without.step_rows(1, &text, &every).expect("a valid step");
            let got = pair.step(PassKind::Prompt, &text, &every, most);
            assert!(bits(&got) == bits(want), "text: {}", case.what);
            let mut turned = text.clone();
            for row in &mut turned {
                row.axes = [row.position / 9, n.below(40), n.below(40)];
            }
            if !device.takes_features() {
                refuses(pair.device.as_mut(), turned[9], "axes");
                return;
            }
            let other = pair.step(PassKind::Prompt, &turned, &every, most);
            assert!(bits(&other) != bits(&got), "axes count: {}", case.what);
            pair.assert_same_caches("axes of a prompt", most);
            let mut next = Row::new(3, 30, 1);
            next.axes = [7, 19, 2];
            pair.step(PassKind::Decode, &[next], &[], most);
            shifted_chains(&mut pair, most);
        }
    }
}

/// Tokens of chains keep the distance of their axes from their positions, which is another one in each slot.
fn shifted_chains(pair: &mut Pair<'_>, most: f32) {
    let starts = [(1, 31, -9), (2, 0, 4)].map(|(slot, position, shift)| ChainStart {
        shift,
        ..start(slot, 5, position, 4)
    });
    let slots = pair.device.chain_slots().min(2);
    for one in &starts[..slots] {
        set_slot(pair.device.as_mut(), one.slot, SlotState::default());
    }
    let emitted = chain(pair.device.as_mut(), &starts[..slots]);
    for one in &starts[..slots] {
        let tokens = tokens_of(&emitted, one.slot, one.position + 1);
        assert_eq!(tokens.len(), 4);
        let read = [one.token].into_iter().chain(tokens).take(4);
        for (token, at) in read.zip(0..) {
            let row = one.row().later(token, at);
            let done = pair.oracle.step_rows(0, &[row], &[]);
            done.expect("a valid step");
        }
    }
    pair.assert_same_caches("shifted chains", most);
}

/// Rows attend up to their reach: the whole of their span, between spans that attend backwards only.
pub fn reach(device: &dyn Device, oracle: &dyn Device) {
    for (window, kv_format) in [(0, Format::F16), (0, Format::Q8_0), (11, Format::F16)] {
        for head_dim in [32, 20] {
            if kv_format == Format::Q8_0 && head_dim != 32 {
                continue;
            }
            let attention = Attention {
                window,
                head_dim,
                rot: 8,
                ..ATTENTION
            };
            let model = Model {
                kv_format,
                prompt_rows: 80,
                prompt_outputs: 80,
                ..Model::of_attention(attention, 60)
            };
            let Some(case) = Case::new(device, &model, Commands::Fused) else {
                continue;
            };
            let mut pair = case.pair(device, oracle);
            let mut n = Numbers(61);
            let mut all = rows(&mut n, model.vocab, 1, 0, 70);
            // An image between texts, and another sequence after it.
            for row in &mut all[9..48] {
                row.reach = 47;
            }
            all.extend(rows(&mut n, model.vocab, 2, 0, 10));
            let image = all[9..48].to_vec();
            let ahead = [
                Row {
                    reach: 10,
                    ..all[9]
                },
                Row::new(1, 10, 1),
            ];
            if !device.takes_features() {
                refused(pair.device.step_rows(1, &ahead, &[]), "a reach");
                return;
            }
            let most = tolerance(&model, all.len());
            let every: Vec<u32> = (0..80).collect();
            let got = pair.step(PassKind::Prompt, &all, &every, most);
            pair.assert_same_caches("a reach", most);
            // In steps of their own.
            let vocab = model.vocab as usize;
            let mut context = case.open(device);
            let mut done = 0;
            for part in [&all[..9], &image, &all[48..60], &all[60..70], &all[70..]] {
                let outputs = &every[..part.len()];
                let alone = context.step_rows(1, part, outputs).expect("a valid step");
                let want = &got[done * vocab..(done + part.len()) * vocab];
                assert!(bits(alone) == bits(want), "rows from {done}: {}", case.what);
                done += part.len();
            }
            // As text the image has other logits.
            let mut causal = case.open(device);
            let text: Vec<Row> = all[..48]
                .iter()
                .map(|row| Row::new(row.token(), row.position, 1))
                .collect();
            let plain = causal
                .step_rows(1, &text, &every[..48])
                .expect("a valid step");
            let (before, after) = (9 * vocab, 10 * vocab);
            assert!(bits(&plain[..before]) == bits(&got[..before]));
            assert!(bits(&plain[before..after]) != bits(&got[before..after]));
            // So it has where layers are causal whatever rows say.
            let without = self::case(device, &model, |program| {
                let passes = program.passes.iter_mut();
                for command in passes.flat_map(|pass| &mut pass.commands) {
                    if command.op == Op::Attention {
                        let mut p = params::Attention::of(&command.params);
                        p.causal = 1;
                        command.params = p.words();
                    }
                }
            });
            let mut context = without.open(device);
            let got = context.step_rows(1, &all[..48], &every[..48]);
            assert!(
                bits(got.expect("a valid step")) == bits(plain),
                "causal layers: {}",
                case.what
            );
            // Generated rows may reach ahead, too.
            let next = [
                Row {
                    reach: 71,
                    ..Row::new(5, 70, 1)
                },
                Row::new(6, 71, 1),
            ];
            pair.step(PassKind::Decode, &next, &[], most);
            let beyond = [Row {
                reach: 1,
                ..Row::new(5, 0, 0)
            }];
            refused(
                pair.device.step_rows(1, &beyond, &[]),
                "a reach beyond its span",
            );
        }
    }
}
