//! Decode tables in the shapes of well-known models, for tests: what is compiled for every architecture without a GPU.

use super::{Inputs, ONE_ROW, Roll, record, record_rows};
use crate::GpuInfo;
use crate::info::h200;
use crate::launch::Listed;
use welte_table::*;

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) layers: u32,
    pub(crate) dim: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) ffn: u32,
    pub(crate) vocab: u32,
}

const LLAMA_1B: Sizes = Sizes {
    layers: 16,
    dim: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    vocab: 128_256,
};
const QWEN3_4B: Sizes = Sizes {
    layers: 36,
    dim: 2560,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 9728,
    vocab: 151_936,
};
const LLAMA_8B: Sizes = Sizes {
    layers: 32,
    dim: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 14_336,
    vocab: 128_256,
};

/// A program with a decode table of this size, with queries and keys normed, its matrices in two formats.
pub(crate) fn program(s: Sizes, format: Format, down: Format) -> Program {
    let mut weights = Vec::new();
    let mut weight = |format: Format, n: u32, k: u32, usage: Usage| {
        weights.push(WeightSpec {
            name: String::new(),
            format,
            n,
            k,
            usage,
            add: 0.0,
            source: Source::Constant(Vec::new()),
        });
        weights.len() as u32 - 1
    };
    let mut commands = Vec::new();
    let mut push = |op: Op, named: &[u32], buffers: &[u32], params: Params| {
        let mut command = Command {
            op,
            patch: Patch::None,
            format,
            weights: [NO_WEIGHT; 3],
            buffers: [BufferRef::NONE; 4],
            params,
            bytes: 0,
            flops: 0,
        };
        command.weights[..named.len()].copy_from_slice(named);
        for (place, buffer) in command.buffers.iter_mut().zip(buffers) {
            *place = BufferRef {
                buffer: *buffer,
                offset: 0,
            };
        }
        commands.push(command);
    };
    let [tokens, kv, x, qkv, attn, h, logits] = [0, 1, 2, 3, 4, 5, 6];
    let (dim, q) = (s.dim, s.heads * s.head_dim);
    let rows = (s.heads + 2 * s.kv_heads) * s.head_dim;
    let eps = 1e-6;
    let table = weight(format, s.vocab, dim, Usage::Both);
    let norm = weight(Format::F32, 1, dim, Usage::Vector);
    let head_norm = weight(Format::F32, 1, s.head_dim, Usage::Vector);
    let freqs = weight(Format::F32, 1, s.head_dim / 2, Usage::Vector);
    let embed = params::Embed {
        n: s.vocab,
        k: dim,
        scale: 1.0,
        x_stride: dim,
    };
    push(Op::Embed, &[table], &[tokens, x], embed.words());
    for layer in 0..s.layers {
        let matrix = weight(format, rows, dim, Usage::Matrix);
        let p = params::NormMatmul {
            n: rows,
            k: dim,
            eps,
            x_stride: dim,
            y_stride: rows,
        };
        push(Op::NormMatmul, &[matrix, norm], &[x, qkv], p.words());
        let p = params::RopeAppend {
            layer,
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            rot: s.head_dim,
            interleaved: 0,
            magnitude: 1.0,
            eps,
            qkv_stride: rows,
        };
        let named = [freqs, head_norm, head_norm];
        push(Op::RopeAppend, &named, &[qkv, kv], p.words());
        let p = params::Attention {
            layer,
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            scale: 0.1,
            window: 0,
            softcap: 0.0,
            q_stride: rows,
            y_stride: q,
        };
        push(Op::Attention, &[], &[qkv, kv, attn], p.words());
        let matrix = weight(format, dim, q, Usage::Matrix);
        let p = params::MatmulAdd {
            n: dim,
            k: q,
            x_stride: q,
            y_stride: dim,
        };
        push(Op::MatmulAdd, &[matrix], &[attn, x], p.words());
        let matrix = weight(format, 2 * s.ffn, dim, Usage::Matrix);
        let p = params::NormMatmulActMul {
            n: s.ffn,
            k: dim,
            eps,
            act: 0,
            x_stride: dim,
            y_stride: s.ffn,
        };
        push(Op::NormMatmulActMul, &[matrix, norm], &[x, h], p.words());
        let matrix = weight(down, dim, s.ffn, Usage::Matrix);
        let p = params::MatmulAdd {
            n: dim,
            k: s.ffn,
            x_stride: s.ffn,
            y_stride: dim,
        };
        push(Op::MatmulAdd, &[matrix], &[h, x], p.words());
    }
    let p = params::NormMatmul {
        n: s.vocab,
        k: dim,
        eps,
        x_stride: dim,
        y_stride: s.vocab,
    };
    push(Op::NormMatmul, &[table, norm], &[x, logits], p.words());
    let p = params::Sample {
        n: s.vocab,
        logits_stride: s.vocab,
    };
    push(Op::Sample, &[], &[logits, tokens], p.words());
    let floats = [64, 64, dim, rows, q, s.ffn, s.vocab];
    let buffers = floats.iter().map(|n| BufferSpec {
        name: String::new(),
        class: Class::ScratchDecode,
        bytes: u64::from(*n) * 4,
    });
    Program {
        weights,
        buffers: buffers.collect(),
        kv: KvLayout {
            format: Format::F16,
            layers: s.layers,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            page: 64,
            pages: 64,
            sequences: 1,
            context: 4096,
        },
        vocab: s.vocab,
        tokens,
        tables: vec![Table {
            shape: Shape::Decode,
            labels: vec![String::new(); commands.len()],
            commands,
        }],
    }
}

/// Records a made-up program.
pub(crate) fn roll(program: &Program, gpu: &GpuInfo) -> Result<Roll, String> {
    let inputs = Inputs { program, gpu };
    record(&inputs, &program.tables[0], ONE_ROW)
}

/// The same for steps of several rows.
pub(crate) fn several(program: &Program, gpu: &GpuInfo) -> Result<Roll, String> {
    record_rows(&Inputs { program, gpu }, &program.tables[0])
}

/// What is compiled for every architecture in tests.
pub(crate) fn catalogue() -> Vec<Listed> {
    let affine = crate::layout::listed().find(|f| matches!(f, Format::Affine(_)));
    let affine = affine.unwrap_or(Format::Q4_1);
    let made = [
        (QWEN3_4B, Format::Q4_0, Format::Q4_0),
        (LLAMA_8B, Format::BF16, Format::BF16),
        (LLAMA_8B, Format::Q4_K, Format::Q6_K),
        (LLAMA_1B, affine, Format::IQ4_XS),
    ];
    let several = made
        .into_iter()
        .filter_map(|(sizes, format, down)| several(&program(sizes, format, down), &h200()).ok());
    let several: Vec<Roll> = several.collect();
    let rolls = made
        .into_iter()
        .filter_map(|(sizes, format, down)| roll(&program(sizes, format, down), &h200()).ok());
    let rolls: Vec<Roll> = rolls.collect();
    let timed = rolls.first().map(|roll| Listed {
        unit: roll.timed_unit(),
        hot: false,
    });
    let plain = rolls.iter().chain(&several).map(|roll| Listed {
        unit: roll.unit.clone(),
        hot: true,
    });
    plain.chain(timed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Placed;
    use crate::persistent::{OUTPUTS, Parts, Share, TILE, row_bytes};

    type Way = fn(&Program, &GpuInfo) -> Result<Roll, String>;

    /// For chains, and for steps of several rows.
    const WAYS: [Way; 2] = [roll, several];

    /// The shares of instruction `i`, by block.
    fn shares(roll: &Roll, i: usize) -> Vec<Share> {
        let of_block = roll.shares.chunks_exact(roll.program.len());
        of_block.map(|shares| shares[i]).collect()
    }

    #[test]
    fn every_row_of_every_matrix_is_streamed_once_by_blocks_that_carry_alike() {
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
            let roll = way(&program, &gpu).unwrap();
            assert_eq!(roll.blocks, sms);
            let mut bytes = vec![0u64; sms as usize];
            for (i, command) in roll.commands.iter().enumerate() {
                let command = &program.tables[0].commands[*command];
                let Some(n) = crate::persistent::rows_of(command) else {
                    continue;
                };
                let mut rows: Vec<Share> = shares(&roll, i);
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

    /// What a variant says of itself.
    fn constant(body: &str, name: &str) -> u32 {
        let value = body.split(&format!("{name} = ")).nth(1).unwrap();
        let end = value.find([',', ';']).unwrap();
        value[..end].trim_end_matches('u').parse().unwrap()
    }

    /// Bytes of a product's slot.
    fn slot_bytes(body: &str) -> u32 {
        let named =
            |format: &&Format| body.contains(&format!("= {}::", format.name().to_lowercase()));
        let format = crate::layout::listed()
            .find(|format| named(&format))
            .unwrap();
        let sets = 1 + u32::from(body.contains("output = ACT_MUL"));
        let bytes = sets * constant(body, " rows") * row_bytes(format, constant(body, " k"));
        bytes.next_multiple_of(128)
    }

    #[test]
    fn what_a_slot_holds_can_be_handed_on_at_once() {
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
        for format in [Format::Q2_K, Format::Q4_0, Format::F32] {
            for (sms, way) in [8, 132]
                .into_iter()
                .flat_map(|sms| WAYS.map(|way| (sms, way)))
            {
                let gpu = GpuInfo { sms, ..h200() };
                let roll = way(&program(small, format, format), &gpu).unwrap();
                let defines = &roll.unit.defines;
                let define = |name: &str| &defines.iter().find(|(key, _)| *key == name).unwrap().1;
                let outputs: u32 = define("OUTPUTS").parse().unwrap();
                assert!(outputs <= OUTPUTS);
                let variants = defines.iter().find(|(key, _)| *key == "VARIANTS").unwrap();
                for body in variants
                    .1
                    .split("struct ")
                    .filter(|b| b.contains("lanes ="))
                {
                    let sets = 1 + u32::from(body.contains("output = ACT_MUL"));
                    let span = if body.contains("span =") {
                        constant(body, "span")
                    } else {
                        1
                    };
                    let rows = constant(body, " rows") * span;
                    assert!(rows > 0 && rows * sets <= outputs, "{body}");
                    checked += 1;
                }
            }
        }
        assert!(checked >= 48);
    }

    #[test]
    fn as_many_rows_as_there_is_room_for_go_together() {
        let made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
        let rows = |program: &Program, shared_per_block: u32| {
            let gpu = GpuInfo {
                shared_per_block,
                ..h200()
            };
            several(program, &gpu).map(|roll| roll.rows)
        };
        let all = h200().shared_per_block;
        assert_eq!(rows(&made, all), Ok(8));
        let half = rows(&made, all / 2).unwrap();
        assert!((2..8).contains(&half), "{half}");
        assert!(rows(&made, all / 5).unwrap_err().contains("shared memory"));
        // Longer inputs in more bytes leave room for fewer.
        let long = rows(&program(LLAMA_8B, Format::BF16, Format::BF16), all).unwrap();
        assert!((2..8).contains(&long), "{long}");
        // Each has its own vectors to exchange.
        let (one, eight) = (
            roll(&made, &h200()).unwrap(),
            several(&made, &h200()).unwrap(),
        );
        assert_eq!(one.exchange, eight.exchange);
        let vectors = |roll: &Roll| roll.memory().program - roll.memory().exchange;
        assert_eq!(8 * vectors(&one), vectors(&eight));
        assert_eq!(one.commands, eight.commands);
    }

    #[test]
    fn an_input_is_staged_again_for_weights_that_want_it_otherwise() {
        for (first, second, shared) in [
            (Format::Q4_0, Format::Q4_K, [true, true]),
            (Format::Q4_K, Format::Q6_K, [true, false]),
            (Format::BF16, Format::BF16, [true, true]),
            (Format::BF16, Format::F16, [true, false]),
            (Format::F32, Format::F16, [true, true]),
            (Format::Q4_0, Format::F16, [false, false]),
        ] {
            let mut made = program(LLAMA_1B, first, first);
            // The first product once more, with other weights.
            let (mut command, label) = {
                let table = &made.tables[0];
                (table.commands[1], table.labels[1].clone())
            };
            let mut weight = made.weights[command.weights[0] as usize].clone();
            weight.format = second;
            command.weights[0] = made.weights.len() as WeightId;
            made.weights.push(weight);
            made.tables[0].commands.insert(2, command);
            made.tables[0].labels.insert(2, label);
            for (way, shared) in WAYS.into_iter().zip(shared) {
                let flags = way(&made, &h200()).unwrap().program[2].flags;
                assert_eq!(
                    flags == crate::persistent::REUSES_INPUT,
                    shared,
                    "{second:?}"
                );
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
                let Ok(roll) = several(&program(sizes, format, down), &gpu) else {
                    continue;
                };
                let defines = &roll.unit.defines;
                let define = |name: &str| &defines.iter().find(|(key, _)| *key == name).unwrap().1;
                let number = |name: &str| -> u32 { define(name).parse().unwrap() };
                // What the kernel makes of it.
                let ring = |rows: u32| number("WORK_BYTES") - roll.work.of(rows);
                assert_eq!(ring(roll.rows), number("RING_BYTES"));
                let products = define("VARIANTS").split("struct ");
                for body in products.filter(|b| b.contains("span =")) {
                    let sets = 1 + u32::from(body.contains("output = ACT_MUL"));
                    let (lines, span) = (sets * constant(body, " rows"), constant(body, "span"));
                    let tiled = !body.contains("f16::Format");
                    assert!(!tiled || span == 1 || lines * span <= TILE, "{body}");
                    assert!(!tiled || lines <= 2 * TILE, "{body}");
                    for rows in 2..=roll.rows {
                        let needed = slot_bytes(body) * 3.max(span + 1);
                        assert!(ring(rows) >= needed, "{rows} rows: {body}");
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 150, "{checked}");
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
            let roll = roll(&program(sizes, format, Format::Q6_K), &gpu).unwrap();
            let define = |name: &str| {
                let found = roll.unit.defines.iter().find(|(key, _)| *key == name);
                found.unwrap().1.clone()
            };
            let ring: u32 = define("RING_BYTES").parse().unwrap();
            let variants = define("VARIANTS");
            let products = variants.split("struct ").filter(|b| b.contains("lanes ="));
            let slots: Vec<u32> = products.map(slot_bytes).collect();
            assert!(slots.len() > 3 && slots.iter().all(|slot| slot * 3 <= ring));
            assert!(ring < 99 << 10, "{ring}");
        }
    }

    #[test]
    fn who_reads_a_vector_waits_for_the_last_writing_of_it() {
        let roll = roll(&program(QWEN3_4B, Format::BF16, Format::BF16), &h200()).unwrap();
        let mut written = std::collections::BTreeMap::new();
        for (i, instruction) in roll.program.iter().enumerate() {
            let [reads, reads_per_turn, writes, writes_per_turn] = instruction.counts;
            if i > 0 {
                assert_eq!(written.get(&instruction.input), Some(&reads), "{i}");
                assert!(reads <= reads_per_turn);
            }
            // The head writes no vector.
            if i + 1 < roll.program.len() {
                let before = written.insert(instruction.output, writes);
                assert_eq!(writes, before.unwrap_or(0) + 1, "{i}");
                assert!(writes <= writes_per_turn);
            }
        }
        // x is written by the embedding and twice per layer, everything else once per layer.
        let counts: Vec<u8> = written.into_values().collect();
        assert_eq!(counts, [73, 36, 36, 36]);
    }

    /// Writes that no read separates are one write: a reader that waited for more would wait forever.
    #[test]
    fn parts_of_a_vector_that_are_written_together_count_as_one_write() {
        let made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
        let whole = roll(&made, &h200()).unwrap();
        // Each product of queries, keys and values becomes two: queries and keys, then values in another format.
        let (all, values) = ((32 + 2 * 8) * 128, 8 * 128);
        let mut parted = made.clone();
        let table = &mut parted.tables[0];
        (table.commands, table.labels) = Default::default();
        for command in &made.tables[0].commands {
            let p = params::NormMatmul::of(&command.params);
            if command.op != Op::NormMatmul || p.n != all {
                table.commands.push(*command);
                continue;
            }
            for (format, first, n) in [
                (Format::Q4_0, 0, all - values),
                (Format::Q6_K, all - values, values),
            ] {
                let mut weight = made.weights[command.weights[0] as usize].clone();
                (weight.format, weight.n) = (format, n);
                let mut part = *command;
                part.weights[0] = parted.weights.len() as WeightId;
                part.format = format;
                part.buffers[1].offset = 4 * first;
                part.params = params::NormMatmul { n, ..p }.words();
                parted.weights.push(weight);
                table.commands.push(part);
            }
        }
        table.labels = vec![String::new(); table.commands.len()];
        let parted = roll(&parted, &h200()).unwrap();
        assert_eq!(parted.program.len(), whole.program.len() + 36);
        // The embedding, then five instructions of a layer became six; the head is last.
        let layers = parted.program[1..1 + 6 * 36].chunks_exact(6);
        for ((layer, parts), one) in (1u8..).zip(layers).zip(whole.program[1..].chunks_exact(5)) {
            let [queries_and_keys, values, attention] = [parts[0], parts[1], parts[2]];
            assert_eq!(queries_and_keys.counts[2..], [layer, 36]);
            assert_eq!(values.counts[2..], [layer, 36]);
            assert_eq!(values.output, queries_and_keys.output + 5120);
            // Attention waits for the same write as when there is one product.
            assert_eq!(attention.counts, one[1].counts);
            assert_eq!(attention.counts[..2], [layer, 36]);
        }
    }

    #[test]
    fn at_least_two_slots_and_at_most_half_the_ring_are_in_flight() {
        let ahead = |sizes: Sizes, format: Format, sms: u32| {
            let gpu = GpuInfo { sms, ..h200() };
            let roll = roll(&program(sizes, format, format), &gpu).unwrap();
            let mut ahead = roll.ahead.to_vec();
            ahead.retain(|slots| *slots > 0);
            (
                ahead.iter().min().copied().unwrap(),
                ahead.iter().max().copied().unwrap(),
            )
        };
        let tiny = Sizes {
            layers: 2,
            dim: 256,
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
            ffn: 512,
            vocab: 32_000,
        };
        // A block has six rows of 144 bytes of the first product: 56 of such slots would be in flight.
        assert_eq!(ahead(tiny, Format::Q4_0, 132).1, 16);
        assert_eq!(ahead(tiny, Format::Q2_K, 132).1, 16);
        // 48 KiB are in flight: of the longest rows, of 8064 bytes, two slots of three rows.
        assert_eq!(ahead(LLAMA_8B, Format::Q4_0, 132), (2, 3));
        // A row of 14336 floats is larger than that.
        assert_eq!(ahead(LLAMA_8B, Format::F32, 132).0, 2);
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
            for head_dim in [16, 64, 80, 96, 112, 128, 192, 256] {
                for blocks in [1, 7, 60, 114, 132, 160] {
                    let a = attention(heads, kv_heads, head_dim);
                    let parts = Parts::of(&a, head_dim, blocks).unwrap();
                    let group = heads / kv_heads;
                    let mut seen = vec![0; heads as usize];
                    for job in 0..kv_heads * parts.units {
                        let (head, unit) = (job / parts.units, job % parts.units);
                        let left = group.checked_sub(unit * parts.queries).unwrap();
                        assert!(left > 0 && parts.queries <= 8);
                        for query in 0..parts.queries.min(left) {
                            seen[(head * group + unit * parts.queries + query) as usize] += 1;
                        }
                    }
                    assert!(seen.iter().all(|times| *times == 1), "{parts:?}");
                    let jobs = kv_heads * parts.units * parts.splits;
                    assert!(jobs <= blocks || parts.splits == 1, "{parts:?}");
                    // Blocks that have nothing to do are fewer than one more split would take.
                    assert!(jobs + kv_heads * parts.units > blocks || parts.splits == 64);
                    assert!(parts.work <= 48 << 10, "{parts:?}");
                    checked += 1;
                }
            }
        }
        assert_eq!(checked, 8 * 8 * 6);
        for (head_dim, rot) in [(72, 72), (272, 64), (0, 0), (64, 62), (64, 128)] {
            assert!(Parts::of(&attention(4, 2, head_dim), rot, 132).is_err());
        }
    }

    /// What a context cut off by a window leaves out must not look as if it were of the same writing.
    #[test]
    fn each_kind_of_attention_has_its_own_splits_and_numbers_them() {
        let mut made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
        let mut layers = 0;
        for command in &mut made.tables[0].commands {
            if command.op == Op::Attention {
                let mut p = params::Attention::of(&command.params);
                p.window = if layers % 6 == 5 { 0 } else { 512 };
                command.params = p.words();
                layers += 1;
            }
        }
        let roll = roll(&made, &h200()).unwrap();
        let commands = &made.tables[0].commands;
        let mut numbers = std::collections::BTreeMap::new();
        for (instruction, index) in roll.program.iter().zip(&roll.commands) {
            if commands[*index].op == Op::Attention {
                let of: &mut Vec<u32> = numbers.entry(instruction.variant).or_default();
                of.push(instruction.flags);
            }
        }
        let numbers: Vec<Vec<u32>> = numbers.into_values().collect();
        let flags = |of: u32| (1..=of).map(|nth| of << 16 | nth).collect::<Vec<_>>();
        assert_eq!(numbers, [flags(30), flags(6)]);
        let defines = &roll.unit.defines;
        let define = |name: &str| &defines.iter().find(|(key, _)| *key == name).unwrap().1;
        let splits = 16 * 32 * (128 + 4);
        assert!(define("VARIANTS").contains("partial = PARTIAL + 0,"));
        assert!(define("VARIANTS").contains(&format!("partial = PARTIAL + {splits},")));
        let partial: u32 = define("PARTIAL").parse().unwrap();
        assert_eq!(roll.exchange, partial + 2 * splits);
    }

    #[test]
    fn addresses_take_the_place_of_numbers() {
        let made = program(LLAMA_1B, Format::Q4_0, Format::Q6_K);
        let mut roll = roll(&made, &h200()).unwrap();
        let weights: Vec<Placed> = (1..=made.weights.len() as u64)
            .map(|i| Placed { start: i * 256 })
            .collect();
        roll.place(&weights);
        let start = |id: WeightId| weights.get(id as usize).map_or(0, |w| w.start);
        for (instruction, index) in roll.program.iter().zip(&roll.commands) {
            let command = &made.tables[0].commands[*index];
            if command.op == Op::Attention {
                let rope = &made.tables[0].commands[index - 1];
                let norms = [start(rope.weights[1]), start(rope.weights[2])];
                assert_eq!((instruction.weight, instruction.vectors), (0, norms));
            } else {
                assert_eq!(instruction.weight, start(command.weights[0]));
                assert!(instruction.weight > 0);
            }
        }
        assert!(roll.freqs[0] > 0 && roll.freqs[1..] == [0; 3]);
    }

    #[test]
    fn what_cannot_be_recorded_is_named() {
        let made = program(QWEN3_4B, Format::Q4_0, Format::Q4_0);
        let old = GpuInfo { arch: 89, ..h200() };
        assert!(roll(&made, &old).unwrap_err().contains("8.9"));
        let mut bytes = made.clone();
        bytes.kv.format = Format::Q8_0;
        assert!(roll(&bytes, &h200()).unwrap_err().contains("Q8_0"));
        let mut open = made.clone();
        open.tables[0].commands.remove(3);
        open.tables[0].labels.remove(3);
        assert!(roll(&open, &h200()).unwrap_err().contains("no attention"));
        let mut other = made;
        other.tables[0].commands[1].op = Op::Bias;
        assert!(roll(&other, &h200()).unwrap_err().contains("bias"));
    }
}
