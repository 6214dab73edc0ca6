//! What a recording promises, checked on decode passes of well-known shapes.

use super::Recording;
use super::arrangement::{AttentionJobs, Chunks, TILE, row_bytes, slots_in_flight};
use super::examples::{
    LLAMA_1B, LLAMA_8B, QWEN3_4B, Sizes, Way, has_draft_head, one_row, program, several_rows,
};
use super::instruction::{Instruction, REUSES_INPUT};
use super::memory::MAX_OUTPUTS;
use super::recorder::rows_of;
use super::share::Share;
use super::variants::{Attention, NO_LAYER, Output, Product, Variant};
use crate::GpuInfo;
use crate::info::h200;
use crate::lower::Placed;
use welte_conformance::model::{self, Layer, Model};
use welte_formats::synthetic::Synthetic;
use welte_table::*;

/// For chains, and for steps of several rows.
const WAYS: [Way; 2] = [one_row, several_rows];

/// The shares of instruction `i`, by block.
fn shares(recording: &Recording, i: usize) -> Vec<Share> {
    let of_block = recording.shares.chunks_exact(recording.program.len());
    of_block.map(|shares| shares[i]).collect()
}

#[test]
fn every_row_is_streamed_once_and_blocks_stream_equally_many_bytes() {
    let mut checked = 0;
    let cases = [
        (LLAMA_1B, 132),
        (QWEN3_4B, 132),
        (LLAMA_8B, 114),
        (QWEN3_4B, 60),
    ];
    for ((sizes, sms), way) in cases
        .into_iter()
        .flat_map(|case| WAYS.map(|way| (case, way)))
    {
        let gpu = GpuInfo { sms, ..h200() };
        let program = program(sizes, Format::Q4_0, Format::Q6_K);
        let recording = way(&program, &gpu).unwrap();
        assert_eq!(recording.blocks, sms);
        let mut bytes = vec![0u64; sms as usize];
        for (i, command) in recording.commands.iter().enumerate() {
            let command = &program.passes[0].commands[*command];
            let Some(n) = rows_of(command) else {
                continue;
            };
            let mut rows: Vec<Share> = shares(&recording, i);
            let matrix = &program.weights[command.weights[0] as usize];
            let row = matrix.format.bytes(matrix.k as usize).unwrap() as u64;
            for (share, sum) in rows.iter().zip(&mut bytes) {
                assert!(
                    share.rows > 0,
                    "a block without a row would not be waited for"
                );
                *sum += u64::from(share.rows) * row;
            }
            rows.sort_by_key(|share| share.first);
            let mut next = 0;
            for share in rows {
                assert_eq!(share.first, next);
                next += share.rows;
            }
            assert_eq!(next, n);
            checked += 1;
        }
        let (most, least) = (bytes.iter().max().unwrap(), bytes.iter().min().unwrap());
        assert!(
            (most - least) as f64 / *most as f64 <= 0.03,
            "{least} to {most}"
        );
    }
    assert!(checked > 800);
}

/// The products among a recording's variants.
fn products(recording: &Recording) -> Vec<(Format, Product)> {
    let all = recording.variants.all.iter();
    let products = all.filter_map(|variant| match variant {
        Variant::Product(format, product) => Some((*format, *product)),
        _ => None,
    });
    products.collect()
}

/// Matrices whose rows come in pairs.
fn sets(product: &Product) -> u32 {
    1 + u32::from(product.output == Output::ActMul)
}

/// Bytes of a product's slot.
fn slot_bytes(recording: &Recording, format: Format, product: &Product) -> u32 {
    let line = match Chunks::of(format, product.k) {
        Some(chunks) if recording.is_step => chunks.bytes,
        _ => row_bytes(format, product.k),
    };
    (sets(product) * product.rows * line).next_multiple_of(128)
}

/// A macro that the kernel is compiled with.
fn define(recording: &Recording, name: &str) -> u32 {
    let unit = recording.unit();
    let found = unit.defines.iter().find(|(key, _)| *key == name);
    found.unwrap().1.parse().unwrap()
}

#[test]
fn the_rows_of_a_slot_can_be_published_together() {
    // Rows so short that hundreds would fit.
    let small = Sizes {
        layers: 2,
        dim: 256,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        ffn: 512,
        vocab: 32_000,
    };
    let mut checked = 0;
    for format in [Format::Q2_K, Format::Q4_0, Format::F32, Format::BF16] {
        for (sms, way) in [8, 132]
            .into_iter()
            .flat_map(|sms| WAYS.map(|way| (sms, way)))
        {
            let gpu = GpuInfo { sms, ..h200() };
            let recording = way(&program(small, format, format), &gpu).unwrap();
            let outputs = define(&recording, "OUTPUTS");
            assert!(outputs <= MAX_OUTPUTS);
            for (_, product) in products(&recording) {
                let rows = product.rows * product.span;
                assert!(rows > 0 && rows * sets(&product) <= outputs, "{product:?}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 48);
}

#[test]
fn a_step_has_as_many_rows_as_shared_memory_has_room_for() {
    let made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
    let rows = |program: &Program, shared_per_block: u32| {
        let gpu = GpuInfo {
            shared_per_block,
            ..h200()
        };
        several_rows(program, &gpu).map(|recording| recording.rows)
    };
    let all = h200().shared_per_block;
    assert_eq!(rows(&made, all), Ok(8));
    let half = rows(&made, all / 2).unwrap();
    assert!((3..8).contains(&half), "{half}");
    assert!(rows(&made, all / 5).unwrap_err().contains("shared memory"));
    // The rule of `MIN_ROWS`: with one slot, and with many.
    for (sizes, format, one, many) in [
        (LLAMA_1B, Format::Q4_0, 8, Some(8)),
        (QWEN3_4B, Format::Q8_0, 8, Some(8)),
        (QWEN3_4B, Format::BF16, 8, None),
        (QWEN3_4B, Format::F16, 3, None),
        (LLAMA_8B, Format::Q4_0, 6, Some(6)),
        (LLAMA_8B, Format::BF16, 6, None),
    ] {
        let mut made = program(sizes, format, format);
        assert_eq!(rows(&made, all), Ok(one), "{format:?}");
        made.slots = 16;
        assert_eq!(rows(&made, all).ok(), many, "{format:?}");
        made.slots = one;
        assert_eq!(rows(&made, all), Ok(one), "{format:?}");
    }
    // Each row has an exchange of its own.
    let (one, eight) = (
        one_row(&made, &h200()).unwrap(),
        several_rows(&made, &h200()).unwrap(),
    );
    assert_eq!(one.exchange, eight.exchange);
    let vectors = |recording: &Recording| recording.memory().program - recording.memory().exchange;
    assert_eq!(8 * vectors(&one), vectors(&eight));
    assert_eq!(one.commands, eight.commands);
}

#[test]
fn an_input_is_staged_again_where_weights_need_another_arrangement() {
    for (first, second, shared) in [
        (Format::Q4_0, Format::Q4_K, [true, true]),
        (Format::Q4_K, Format::Q6_K, [true, false]),
        (Format::BF16, Format::BF16, [true, true]),
        (Format::BF16, Format::F16, [false, false]),
        (Format::F32, Format::F16, [true, true]),
        (Format::Q4_0, Format::F16, [false, false]),
    ] {
        let mut made = program(LLAMA_1B, first, first);
        // The first product once more, with other weights.
        let (mut command, label) = {
            let pass = &made.passes[0];
            (pass.commands[1], pass.labels[1].clone())
        };
        let mut weight = made.weights[command.weights[0] as usize].clone();
        weight.format = second;
        command.weights[0] = made.weights.len() as WeightId;
        made.weights.push(weight);
        made.passes[0].commands.insert(2, command);
        made.passes[0].labels.insert(2, label);
        for (way, shared) in WAYS.into_iter().zip(shared) {
            let flags = way(&made, &h200()).unwrap().program[2].flags;
            assert_eq!(flags == REUSES_INPUT, shared, "{second:?}");
        }
    }
}

#[test]
fn a_tile_fits_the_ring_that_the_rows_leave() {
    let mut checked = 0;
    for (sizes, format, down) in [
        (QWEN3_4B, Format::Q4_0, Format::Q4_0),
        (QWEN3_4B, Format::Q8_0, Format::Q8_0),
        (LLAMA_8B, Format::Q4_K, Format::Q6_K),
        (LLAMA_8B, Format::BF16, Format::BF16),
        (LLAMA_1B, Format::BF16, Format::Q2_K),
        (LLAMA_1B, Format::F16, Format::F16),
    ] {
        for part in [1, 2] {
            let gpu = GpuInfo {
                shared_per_block: h200().shared_per_block / part,
                ..h200()
            };
            let Ok(recording) = several_rows(&program(sizes, format, down), &gpu) else {
                continue;
            };
            // The kernel divides shared memory in the same way.
            let both = define(&recording, "SCRATCHPAD_BYTES");
            let ring = |rows: u32| both - recording.scratchpad.of(rows);
            assert_eq!(ring(recording.rows), define(&recording, "RING_BYTES"));
            for (format, product) in products(&recording) {
                let (lines, span) = (sets(&product) * product.rows, product.span);
                let tiled = format.rounds_activations();
                assert!(!tiled || span == 1 || lines * span <= TILE, "{product:?}");
                assert!(!tiled || lines <= 2 * TILE, "{product:?}");
                for rows in 1..=recording.rows {
                    let needed = slot_bytes(&recording, format, &product) * 3.max(span + 1);
                    assert!(ring(rows) >= needed, "{rows} rows: {product:?}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 150, "{checked}");
}

/// Rows of a slot fill tiles of four lines, in chains and in steps.
#[test]
fn bf16_rows_are_divided_into_chunks() {
    let chunks = |k: u32| Chunks::of(Format::BF16, k).map(|chunks| (chunks.count, chunks.bytes));
    assert_eq!(chunks(2560), Some((1, 5120)));
    assert_eq!(chunks(4096), Some((2, 4096)));
    assert_eq!(chunks(5000), Some((2, 313 * 16)));
    assert_eq!(chunks(14_336), Some((4, 7168)));
    assert_eq!(chunks(28_672), None);
    assert_eq!(Chunks::of(Format::F16, 4096), None);
    for (sizes, way, tile) in [
        (QWEN3_4B, WAYS[0], None),
        (QWEN3_4B, WAYS[1], Some(4)),
        (LLAMA_8B, WAYS[0], None),
        (LLAMA_8B, WAYS[1], Some(4)),
    ] {
        let recording = way(&program(sizes, Format::BF16, Format::BF16), &h200()).unwrap();
        for (_, product) in products(&recording) {
            let lines = sets(&product) * product.rows;
            let tile = tile.unwrap_or(4 / product.chunks);
            assert!(lines > 0 && lines.is_multiple_of(tile), "{product:?}");
            // Only a step stages the input of long rows, which has no norm, in pieces.
            let whole = !recording.is_step || product.norm || product.chunks < 4;
            let staged = if whole { product.chunks } else { 1 };
            assert_eq!(product.staged, staged, "{product:?}");
        }
    }
}

#[test]
fn a_gpu_with_little_shared_memory_has_smaller_slots() {
    // A graphics card.
    let gpu = GpuInfo {
        arch: 120,
        sms: 170,
        shared_per_block: 99 << 10,
        ..h200()
    };
    for (sizes, format) in [(QWEN3_4B, Format::Q4_K), (LLAMA_8B, Format::Q4_0)] {
        let recording = one_row(&program(sizes, format, Format::Q6_K), &gpu).unwrap();
        let ring = define(&recording, "RING_BYTES");
        let slots = products(&recording);
        let slots: Vec<u32> = slots
            .iter()
            .map(|(f, p)| slot_bytes(&recording, *f, p))
            .collect();
        assert!(slots.len() > 3 && slots.iter().all(|slot| slot * 3 <= ring));
        assert!(ring < 99 << 10, "{ring}");
    }
}

#[test]
fn a_reader_waits_for_the_last_write_of_its_vector() {
    let recording = one_row(&program(QWEN3_4B, Format::BF16, Format::BF16), &h200()).unwrap();
    let mut written = std::collections::BTreeMap::new();
    for (i, instruction) in recording.program.iter().enumerate() {
        if i > 0 {
            let reads = instruction.reads;
            assert_eq!(written.get(&instruction.input), Some(&reads), "{i}");
            assert!(reads <= instruction.reads_per_turn);
        }
        // The head writes no vector.
        if i + 1 < recording.program.len() {
            let writes = instruction.writes;
            let before = written.insert(instruction.output, writes);
            assert_eq!(writes, before.unwrap_or(0) + 1, "{i}");
            assert!(writes <= instruction.writes_per_turn);
        }
    }
    // The residual is written by the embedding and twice per layer, everything else once per layer.
    let counts: Vec<u8> = written.into_values().collect();
    assert_eq!(counts, [73, 36, 36, 36]);
}

fn attention(heads: u32, kv_heads: u32, head_dim: u32) -> params::Attention {
    params::Attention {
        layer: 0,
        heads,
        kv_heads,
        head_dim,
        scale: 1.0,
        window: 0,
        softcap: 0.0,
        q_stride: 0,
        y_stride: 0,
        causal: 0,
        chunked: 0,
    }
}

#[test]
fn every_query_has_one_job_and_every_split_a_place() {
    let mut checked = 0;
    for (heads, kv_heads) in [
        (32, 8),
        (64, 8),
        (14, 2),
        (28, 4),
        (71, 1),
        (9, 1),
        (40, 40),
        (160, 160),
    ] {
        for head_dim in [16, 64, 80, 96, 112, 128, 192, 256, 512] {
            for blocks in [1, 7, 60, 114, 132, 160] {
                let a = attention(heads, kv_heads, head_dim);
                let parts = AttentionJobs::of(&a, head_dim, blocks, false).unwrap();
                let group = heads / kv_heads;
                let mut seen = vec![0; heads as usize];
                for job in 0..kv_heads * parts.query_groups {
                    let (head, unit) = (job / parts.query_groups, job % parts.query_groups);
                    let left = group.checked_sub(unit * parts.queries).unwrap();
                    assert!(left > 0 && parts.queries <= 8);
                    for query in 0..parts.queries.min(left) {
                        seen[(head * group + unit * parts.queries + query) as usize] += 1;
                    }
                }
                assert!(seen.iter().all(|times| *times == 1), "{parts:?}");
                let jobs = kv_heads * parts.query_groups * parts.splits;
                assert!(jobs <= blocks || parts.splits == 1, "{parts:?}");
                // Blocks that have nothing to do are fewer than one more split would take.
                assert!(jobs + kv_heads * parts.query_groups > blocks || parts.splits == 64);
                assert!(parts.scratchpad <= 64 << 10, "{parts:?}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 8 * 9 * 6);
    for (head_dim, rot) in [(72, 72), (272, 64), (0, 0), (64, 62), (64, 128)] {
        assert!(AttentionJobs::of(&attention(4, 2, head_dim), rot, 132, false).is_err());
    }
}

/// A context that a window cuts off may have fewer splits. Results that it does not overwrite must not look fresh.
#[test]
fn each_kind_of_attention_has_its_own_splits_and_numbers_them() {
    let mut made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
    let mut layers = 0;
    for command in &mut made.passes[0].commands {
        if command.op == Op::Attention {
            let mut p = params::Attention::of(&command.params);
            p.window = if layers % 6 == 5 { 0 } else { 512 };
            command.params = p.words();
            layers += 1;
        }
    }
    let recording = one_row(&made, &h200()).unwrap();
    let commands = &made.passes[0].commands;
    let mut numbers = std::collections::BTreeMap::new();
    for (instruction, index) in recording.program.iter().zip(&recording.commands) {
        if commands[*index].op == Op::Attention {
            let of: &mut Vec<u32> = numbers.entry(instruction.variant).or_default();
            of.push(instruction.flags);
        }
    }
    let numbers: Vec<Vec<u32>> = numbers.into_values().collect();
    let flags = |of: u32| (1..=of).map(|nth| of << 16 | nth).collect::<Vec<_>>();
    assert_eq!(numbers, [flags(30), flags(6)]);
    let split_floats = 16 * 32 * (128 + 4);
    let starts = recording.variants.all.iter().filter_map(|v| match v {
        Variant::Attention(attention) => Some(attention.splits_start),
        _ => None,
    });
    let starts: Vec<u32> = starts.collect();
    let vectors = starts[0];
    assert_eq!(starts, [vectors, vectors + split_floats]);
    assert_eq!(recording.exchange, vectors + 2 * split_floats);
}

#[test]
fn addresses_take_the_place_of_numbers() {
    let made = program(LLAMA_1B, Format::Q4_0, Format::Q6_K);
    let mut recording = one_row(&made, &h200()).unwrap();
    let weights: Vec<Placed> = (1..=made.weights.len() as u64)
        .map(|i| Placed { start: i * 256 })
        .collect();
    recording.place(&weights);
    let start = |id: WeightId| weights.get(id as usize).map_or(0, |w| w.start);
    for (instruction, index) in recording.program.iter().zip(&recording.commands) {
        let command = &made.passes[0].commands[*index];
        if command.op == Op::Attention {
            let rope = &made.passes[0].commands[index - 1];
            let norms = [start(rope.weights[1]), start(rope.weights[2])];
            assert_eq!((instruction.weight, instruction.vectors), (0, norms));
        } else {
            assert_eq!(instruction.weight, start(command.weights[0]));
            assert!(instruction.weight > 0);
        }
    }
    assert!(recording.freqs[0] > 0 && recording.freqs[1..] == [0; 3]);
}

#[test]
fn what_cannot_be_recorded_is_named() {
    let made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
    let old = GpuInfo { arch: 75, ..h200() };
    assert!(one_row(&made, &old).unwrap_err().contains("7.5"));
    let mut bytes = made.clone();
    let CacheKind::Attention { format, .. } = &mut bytes.caches[0].kind else {
        panic!("an attention cache");
    };
    *format = Format::Q4_0;
    let why = one_row(&bytes, &h200()).unwrap_err();
    assert!(why.contains("a KV cache in Q4_0"), "{why}");
    let mut formats = made.clone();
    formats.caches.push(formats.caches[0].clone());
    let CacheKind::Attention { format, .. } = &mut formats.caches[1].kind else {
        panic!("an attention cache");
    };
    *format = Format::Q8_0;
    let why = one_row(&formats, &h200()).unwrap_err();
    assert!(why.contains("different formats"), "{why}");
    let mut state = made.clone();
    state.caches.push(CacheSpec {
        kind: CacheKind::Recurrent {
            layers: 1,
            floats: 1,
        },
        ..made.caches[0].clone()
    });
    let why = several_rows(&state, &h200()).unwrap_err();
    assert!(why.contains("recurrent"), "{why}");
    let mut gate = made.clone();
    gate.passes[0].commands[4].op = Op::Gate;
    let why = one_row(&gate, &h200()).unwrap_err();
    assert!(why.contains("a gate"), "{why}");
    let mut open = made.clone();
    open.passes[0].commands.remove(3);
    open.passes[0].labels.remove(3);
    assert!(
        one_row(&open, &h200())
            .unwrap_err()
            .contains("no attention")
    );
    let mut other = made;
    other.passes[0].commands[1].op = Op::Bias;
    assert!(one_row(&other, &h200()).unwrap_err().contains("bias"));
}

/// A made-up model's recording for chains on an H200.
fn recorded(shape: &str) -> (Program, Recording) {
    let checkpoint = Synthetic::parse(shape).unwrap();
    let spec = welte_models::spec(&checkpoint).unwrap();
    let options = welte_models::CompileOptions {
        context: 256,
        ..Default::default()
    };
    let program = welte_table::fuse(
        welte_models::compile(&spec, &checkpoint, &options).unwrap(),
        welte_table::PATTERNS,
    );
    let recording = one_row(&program, &h200()).unwrap();
    (program, recording)
}

/// The recorder goes by ops and operands, so an architecture that it has not met is recorded as well.
#[test]
fn a_made_up_architecture_is_recorded() {
    let (program, _) = welte_conformance::program::make(&Model::made_up());
    let recording = one_row(&program, &h200()).unwrap();
    let wanted = [Op::RopeAppend, Op::Norm, Op::Sample];
    let recorded = |op: Op| {
        recording
            .commands
            .iter()
            .any(|c| program.passes[0].commands[*c].op == op)
    };
    assert!(recorded(Op::Attention) && recorded(Op::ExpertsAdd) && recorded(Op::NormMatmulActMul));
    // Parts of other instructions.
    assert!(!wanted.into_iter().any(recorded));
}

/// Whatever follows a norm, its words are not taken for those of another op.
#[test]
fn a_norm_may_stand_before_a_router() {
    let attention = Layer::Attention(model::Attention {
        heads: 4,
        head_dim: 64,
        rot: 64,
        ..model::ATTENTION
    });
    let experts = Layer::Experts(model::EXPERTS);
    let (program, _) = welte_conformance::program::make(&Model {
        dim: 256,
        layers: vec![attention, experts],
        ..Model::small(1)
    });
    let commands = &program.passes[0].commands;
    let routed = commands.windows(2);
    let routed = routed.filter(|pair| pair[0].op == Op::Norm && pair[1].op != Op::RopeAppend);
    assert!(routed.count() > 0);
    one_row(&program, &h200()).unwrap();
}

/// Where instructions begin whose commands are these, one after the other.
fn runs_of(program: &Program, recording: &Recording, wanted: &[Op]) -> Vec<usize> {
    let commands = &program.passes[0].commands;
    let ops: Vec<Op> = recording.commands.iter().map(|c| commands[*c].op).collect();
    let starts = 0..ops.len();
    starts.filter(|i| ops[*i..].starts_with(wanted)).collect()
}

/// The attention instructions of a recording, with their constants.
fn attentions(recording: &Recording) -> Vec<(Instruction, Attention)> {
    let all = recording.program.iter();
    let attentions = all.filter_map(|i| match recording.variants.all[i.variant as usize] {
        Variant::Attention(attention) => Some((*i, attention)),
        _ => None,
    });
    attentions.collect()
}

/// The last layers of Gemma 4 read this turn's keys and values where the layer whose cache they share publishes them.
#[test]
fn a_layer_publishes_the_keys_and_values_that_others_share() {
    let (_, recording) = recorded("gemma4-small:q4_0");
    let all = attentions(&recording);
    let shares: Vec<bool> = all.iter().map(|(_, a)| a.shares).collect();
    assert_eq!(shares, [[false; 6].as_slice(), &[true; 4]].concat());
    for (i, (instruction, a)) in all.iter().enumerate() {
        let (dims, team, heads) = if i % 6 == 5 || i == 9 {
            (512, 4, 8)
        } else {
            (256, 2, 8)
        };
        assert_eq!(
            (a.head_dim, a.team, a.queries * a.kv_heads),
            (dims, team, heads)
        );
        assert_eq!(a.value_norm, !a.shares);
        assert_eq!(instruction.vectors[1] == u64::from(NO_WEIGHT), a.shares);
        let mut sources = all.iter().filter(|(source, other)| {
            other.source_layer == source.layer && other.cache == a.cache && !other.shares
        });
        let (source, made) = sources.next().unwrap();
        assert_eq!(sources.count(), 0);
        assert_eq!(a.shared_at, made.shared_at);
        if a.shares {
            assert_eq!(
                (instruction.layer, a.source_layer),
                (source.layer, NO_LAYER)
            );
        }
        // No instruction writes another vector there.
        let end = a.shared_at + 2 * a.kv_heads * a.head_dim;
        assert!((recording.program.iter()).all(|i| !(a.shared_at..end).contains(&i.output)));
    }
}

/// Tags tell a value from the one three writes before only if every write writes all of its vector.
#[test]
fn rows_of_another_width_are_another_vector() {
    let (program, recording) = recorded("gemma4-small:q4_0");
    let mut widths = std::collections::BTreeMap::new();
    for (instruction, index) in recording.program.iter().zip(&recording.commands) {
        let command = &program.passes[0].commands[*index];
        if let Some(n) = rows_of(command).filter(|n| *n < program.vocab) {
            let width = widths.entry(instruction.output).or_insert(n);
            assert_eq!(*width, n, "{command:?}");
        }
    }
    for (instruction, a) in attentions(&recording) {
        let rows = if a.shares {
            a.heads
        } else {
            a.heads + 2 * a.kv_heads
        };
        assert_eq!(widths[&instruction.input], rows * a.head_dim);
        let width = widths
            .entry(instruction.output)
            .or_insert(a.heads * a.head_dim);
        assert_eq!(*width, a.heads * a.head_dim);
    }
    // Queries, keys and values of four kinds of layers; results of two.
    assert!(widths.len() >= 6, "{widths:?}");
}

/// So do layers of different kinds that share a buffer: dense and experts, attention and state.
#[test]
fn layers_of_different_kinds_have_vectors_of_their_own() {
    for shape in ["lfm2-moe-small:q4_0", "granite-4-h-tiny,layers=16:q4_0"] {
        let (program, recording) = recorded(shape);
        let mut widths = std::collections::BTreeMap::new();
        for (instruction, index) in recording.program.iter().zip(&recording.commands) {
            let command = &program.passes[0].commands[*index];
            let n = match command.op {
                Op::ShortConv | Op::GatedDelta | Op::Mamba2 | Op::Attention => {
                    command.word("y_stride")
                }
                // A product with a state after it has instructions of other kinds, too.
                _ if shape.starts_with("granite") => None,
                _ => rows_of(command).filter(|n| *n < program.vocab),
            };
            let Some(n) = n else { continue };
            let width = widths.entry(instruction.output).or_insert(n);
            assert_eq!(*width, n, "{shape}: {command:?}");
        }
        assert!(widths.len() >= 2, "{shape}: {widths:?}");
    }
}

/// Experts beside a dense part: the choice is made before most of the dense part is computed, and each part has a vector of its own.
#[test]
fn the_router_comes_before_a_dense_part_beside_experts() {
    let (program, recording) = recorded("gemma4-moe-small:q4_0");
    let commands = &program.passes[0].commands;
    let layer = [
        Op::Matmul,
        Op::NormMatmulActMul,
        Op::Route,
        Op::Matmul,
        Op::ExpertsActMul,
        Op::ExpertsAdd,
        Op::Norm,
        // What the one before has no place for.
        Op::Norm,
    ];
    let found = runs_of(&program, &recording, &layer);
    assert_eq!(found.len(), 6, "{found:?}");
    for at in found {
        let [router, gate_up, route, down, up, sum, add, more] = &recording.program[at..at + 8]
        else {
            panic!("too few instructions");
        };
        assert_eq!((route.input, down.input), (router.output, gate_up.output));
        assert_ne!(gate_up.output, up.output);
        assert_eq!(
            (sum.input, add.input, more.input),
            (up.output, down.output, sum.output)
        );
        let variant = |i: &Instruction| recording.variants.all[i.variant as usize];
        let (Variant::Route(choice), Variant::AddNormed(added), Variant::Product(_, product)) =
            (variant(route), variant(add), variant(sum))
        else {
            panic!("other instructions");
        };
        assert_eq!(choice.logit_scale, 1.0 / 2816f32.sqrt());
        assert!(added.beside && added.rescales && product.output == Output::Store);
        let factor = commands[recording.commands[at + 6]..]
            .iter()
            .find(|c| c.op == Op::Scale);
        let factor = params::Scale::of(&factor.unwrap().params).scale;
        assert_eq!(f32::from_bits(add.flags), factor);
    }
    // Values of full layers are their keys.
    let full = attentions(&recording)
        .into_iter()
        .filter(|(_, a)| a.values_are_keys);
    assert_eq!(full.count(), 1);
}

/// The first part of a shared expert comes before the choice, and its sum is a write of its own.
#[test]
fn a_shared_expert_begins_before_the_choice() {
    let (program, recording) = recorded("qwen3.5-moe-small,layers=4:q4_k");
    let layer = [
        Op::Matmul,
        Op::Matmul,
        Op::Matmul,
        Op::Route,
        Op::ExpertsActMul,
        Op::ExpertsAdd,
        Op::MatmulAdd,
        // What the one before has no place for.
        Op::MatmulAdd,
    ];
    let found = runs_of(&program, &recording, &layer);
    assert_eq!(found.len(), 4, "{found:?}");
    for at in found {
        let [router, gate_up, score, _, up, down, last, more] = &recording.program[at..at + 8]
        else {
            panic!("too few instructions");
        };
        assert_eq!((router.reads, gate_up.reads), (up.reads, score.reads));
        assert_eq!((last.input, more.input), (gate_up.output, score.output));
        assert_eq!((last.output, last.writes), (down.output, down.writes + 1));
        assert_eq!((down.writes, more.reads), (up.reads + 1, score.writes));
        let Variant::Product(_, product) = recording.variants.all[last.variant as usize] else {
            panic!("a product");
        };
        assert!(product.gated && product.follows);
        let rows = shares(&recording, at + 2);
        assert_eq!(rows.iter().map(|share| share.rows).sum::<u32>(), 1);
    }
    assert_eq!(recording.blocks, h200().sms);
}

/// Parts of a layer's input may have different formats. Convolved channels begin anywhere in them.
#[test]
fn products_take_over_the_convolution_of_their_channels() {
    let (program, recording) = recorded("granite-4-small:q4_k");
    let convolved = recording
        .variants
        .all
        .iter()
        .filter_map(|variant| match variant {
            Variant::Product(_, p) if p.taps > 0 => Some((p.conv_begin, p.conv_n, p.n)),
            _ => None,
        });
    let conv = program.passes[0]
        .commands
        .iter()
        .find(|c| c.op == Op::ShortConv);
    let conv = conv.unwrap();
    let n = params::ShortConv::of(&conv.params).n;
    let begins = conv.buffers[0].offset / 4;
    let convolved: Vec<_> = convolved.collect();
    assert!(!convolved.is_empty());
    assert!(
        convolved
            .iter()
            .all(|(begin, of, rows)| *begin == begins && *of == n && *rows > begins + n)
    );
    assert!(recording.states > 0 && recording.memory().bytes > recording.states);
}

#[test]
fn variants_and_layouts_are_written_as_typed_cpp() {
    let mut made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
    // A whole number is still a float.
    for command in &mut made.passes[0].commands {
        if command.op == Op::Embed {
            let mut p = params::Embed::of(&command.params);
            p.scale = 16.0;
            command.params = p.words();
        }
    }
    let text = one_row(&made, &h200()).unwrap().unit().generated;
    for part in [
        "struct V0 {\n    using Format = q4_0::Format;\n    static constexpr u32 n = 151936u;\n",
        "    static constexpr float scale = 16.0f;\n",
        "    static constexpr bool norm = true;\n",
        "    static constexpr Output output = Output::ActMul;\n",
        "    case 0: REPLAY_EMBED(V0); break;",
        "    FILL_ROPE(V2, 0);",
        "OFFSET_OF(Instruction, reads_per_turn) == 17 ",
        "sizeof(ChainArgs) == ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn parts_that_are_written_without_a_read_in_between_are_one_write() {
    let mut made = program(LLAMA_1B, Format::Q4_0, Format::Q4_0);
    // Queries by one product, keys and values by another.
    let queries = LLAMA_1B.heads * LLAMA_1B.head_dim;
    let mut rest = made.passes[0].commands[1];
    let mut p = params::NormMatmul::of(&rest.params);
    p.n -= queries;
    rest.params = p.words();
    rest.buffers[1].offset = queries * 4;
    p.n = queries;
    made.passes[0].commands[1].params = p.words();
    made.passes[0].commands.insert(2, rest);
    made.passes[0].labels.insert(2, String::new());
    let recording = one_row(&made, &h200()).unwrap();
    let [_, first, second, attention, ..] = &recording.program[..] else {
        panic!("too few instructions");
    };
    assert_eq!((first.writes, second.writes, attention.reads), (1, 1, 1));
    assert_eq!(second.output, first.output + queries);
    assert_eq!(first.writes_per_turn, LLAMA_1B.layers as u8);
    assert_eq!(attention.reads_per_turn, LLAMA_1B.layers as u8);
}

#[test]
fn about_48_kilobytes_are_in_flight_before_tuning() {
    let slots = [1, 1 << 10, 6 << 10, 8 << 10, 20 << 10, 24 << 10, 100 << 10];
    assert_eq!(slots.map(slots_in_flight), [16, 16, 8, 6, 2, 2, 2]);
    let recording = one_row(&program(QWEN3_4B, Format::Q4_0, Format::Q4_0), &h200()).unwrap();
    let products = recording.variants.all.iter().map(|variant| match variant {
        Variant::Product(format, product) => {
            slots_in_flight(sets(product) * product.rows * row_bytes(*format, product.k))
        }
        _ => 0,
    });
    let products: Vec<u8> = products.collect();
    assert_eq!(recording.in_flight[..products.len()], products);
    assert_eq!(
        recording.in_flight[products.len()..],
        vec![0; 16 - products.len()]
    );
}

/// The recordings of the ranks of a synthetic model.
fn recordings_of(ranks: u32, shape: &str) -> Vec<(Program, Recording)> {
    let checkpoint = Synthetic::parse(shape).unwrap();
    let spec = welte_models::spec(&checkpoint).unwrap();
    let whole = welte_models::compile(&spec, &checkpoint, &Default::default()).unwrap();
    let shards = shard(&whole, ranks, 1 << 20).unwrap();
    let ranks = shards.ranks.into_iter().map(|rank| {
        let program = fuse(rank.program, PATTERNS);
        let recording = one_row(&program, &h200()).unwrap();
        (program, recording)
    });
    ranks.collect()
}

#[test]
fn ranks_publish_what_all_of_them_need_at_the_same_places() {
    // Exchanges of a layer: attention, its output, the feed-forward part, its output; and the router's logits.
    for (shape, in_layer) in [
        ("qwen3-8b,layers=2:bf16", 4),
        ("qwen3-30b-a3b,layers=2:q4_k", 5),
    ] {
        let [(program, first), (_, second)] = recordings_of(2, shape).try_into().unwrap();
        assert_eq!((first.ranks, define(&first, "RANKS")), (2, 2));
        assert_eq!(first.signature(), second.signature());
        let pass = &program.passes[0].commands;
        let exchanges = pass.iter().filter(|c| c.op == Op::Exchange).count();
        assert_eq!(exchanges, 2 * in_layer + 1);
        let exchanged = |recording: &Recording, instruction: &Instruction| match recording
            .variants
            .all[instruction.variant as usize]
        {
            Variant::Product(_, p) => p.exchanged.then_some(p.first_id),
            Variant::Attention(a) => a.exchanged.then_some(0),
            _ => None,
        };
        let published = |recording: &Recording| -> Vec<(u32, u32)> {
            let all = recording.program.iter();
            let all = all.filter_map(|i| Some((i.output, exchanged(recording, i)?)));
            all.collect()
        };
        let (of_first, of_second) = (published(&first), published(&second));
        assert_eq!(of_first.len(), exchanges);
        assert_eq!(of_second.len(), exchanges);
        // The second rank's part begins where the first one's ends, in the same vector.
        let pairs = of_first.iter().zip(&of_second);
        let mut instructions = first.program.iter();
        for ((at, id), (other, other_id)) in pairs {
            let found = instructions
                .find(|i| exchanged(&first, i).is_some())
                .unwrap();
            let n = match first.variants.all[found.variant as usize] {
                Variant::Product(_, p) => p.n,
                Variant::Attention(a) => a.heads * a.head_dim,
                _ => unreachable!(),
            };
            assert_eq!((other + other_id) - (at + id), n, "{shape}");
        }
    }
}

#[test]
fn parts_of_different_sizes_do_not_go_together() {
    let signatures = |ranks, shape: &str| -> Vec<u64> {
        let all = recordings_of(ranks, shape);
        all.iter()
            .map(|(_, recording)| recording.signature())
            .collect()
    };
    let four = signatures(4, "qwen3-8b,layers=2:bf16");
    assert!(four.iter().all(|one| *one == four[0]));
    // Eight heads of keys are 2, 3 and 3.
    let three = signatures(3, "qwen3-8b,layers=2:bf16");
    assert_ne!(three[0], three[1]);
    assert_ne!(four[0], signatures(4, "qwen3-8b,layers=3:bf16")[0]);
}

/// Chains and steps keep what a draft head reads, and the command that joins it is launched after them.
#[test]
fn a_draft_head_reads_copies_within_the_exchange() {
    let plain = program(LLAMA_8B, Format::Q4_K, Format::Q4_K);
    let mut made = plain.clone();
    has_draft_head(&mut made);
    for way in WAYS {
        let (before, after) = (way(&plain, &h200()).unwrap(), way(&made, &h200()).unwrap());
        let tap = after.tap.as_ref().unwrap();
        assert!(before.tap.is_none());
        let dim = LLAMA_8B.dim;
        assert_eq!((tap.n, tap.stride), (3 * dim, 3 * dim));
        assert_eq!(tap.commands.len(), 1);
        assert_eq!(made.passes[0].commands[tap.commands.start].op, Op::Matmul);
        assert!(!after.commands.contains(&tap.commands.start));
        // Three copies side by side, each of another write of the stream.
        let is_copy =
            |i: &&Instruction| matches!(after.variants.all[i.variant as usize], Variant::Copy(_));
        let copies: Vec<&Instruction> = after.program.iter().filter(is_copy).collect();
        assert_eq!(copies.len(), 3);
        assert_eq!(after.program.len(), before.program.len() + 3);
        for (nth, copy) in (0..).zip(&copies) {
            assert_eq!(copy.output, tap.start + nth * dim);
            assert_eq!((copy.writes, copy.writes_per_turn), (1, 1));
        }
        assert_eq!(
            copies.iter().map(|c| c.reads).collect::<Vec<_>>(),
            [5, 33, 63]
        );
    }
    // What a drafter of blocks stores is launched, too.
    let mut stores = made.clone();
    let pass = &mut stores.passes[0];
    let join = pass
        .commands
        .iter()
        .position(|c| c.part == ModelPart::Draft);
    let join = join.unwrap();
    let joined = pass.commands[join].buffers[1];
    let norm = params::Norm {
        dim: LLAMA_8B.dim,
        groups: 1,
        eps: 1e-5,
        x_stride: LLAMA_8B.dim,
        y_stride: LLAMA_8B.dim,
    };
    let norm = Command {
        part: ModelPart::Draft,
        ..Command::new(
            Op::Norm,
            Format::F32,
            &[NO_WEIGHT],
            &[joined; 2],
            norm.words(),
        )
    };
    pass.commands.insert(join + 1, norm);
    pass.labels.push(String::new());
    for way in WAYS {
        let (before, after) = (way(&made, &h200()).unwrap(), way(&stores, &h200()).unwrap());
        assert_eq!(after.tap.as_ref().unwrap().commands, join..join + 2);
        assert_eq!(after.program.len(), before.program.len());
        assert!(!after.commands.contains(&(join + 1)));
    }
    // Nothing joins the copies.
    let mut other = made.clone();
    let command = &mut other.passes[0].commands;
    command.retain(|c| c.op != Op::Matmul);
    other.passes[0].labels.pop();
    let why = one_row(&other, &h200()).unwrap_err();
    assert!(why.contains("without hidden states"), "{why}");
}
