//! Decode passes in the shapes of well-known models, for tests that compile kernels without a GPU.

use super::{Inputs, ONE_ROW, Recording, record, record_rows};
use crate::GpuInfo;
use crate::info::h200;
use crate::launch::Listed;
use welte_table::*;

/// Rows of the decode pass.
const ROWS: u32 = 8;

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

pub(super) const LLAMA_1B: Sizes = Sizes {
    layers: 16,
    dim: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    vocab: 128_256,
};
pub(super) const QWEN3_4B: Sizes = Sizes {
    layers: 36,
    dim: 2560,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 9728,
    vocab: 151_936,
};
pub(super) const LLAMA_8B: Sizes = Sizes {
    layers: 32,
    dim: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 14_336,
    vocab: 128_256,
};

/// A program with a decode pass of this size, with queries and keys normed, its matrices in two formats.
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
        let at = |buffer: &u32| BufferRef {
            buffer: *buffer,
            offset: 0,
        };
        let buffers: Vec<BufferRef> = buffers.iter().map(at).collect();
        commands.push(Command::new(op, format, named, &buffers, params));
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
            sections: 0,
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
            causal: 0,
            chunked: 0,
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
        bytes: u64::from(*n) * 4 * u64::from(ROWS),
    });
    Program {
        weights,
        buffers: buffers.collect(),
        caches: vec![CacheSpec {
            name: String::new(),
            buffer: kv,
            pages: 64,
            kind: CacheKind::Attention {
                format: Format::F16,
                layers: s.layers,
                kv_heads: s.kv_heads,
                head_dim: s.head_dim,
                window: 0,
            },
        }],
        vocab: s.vocab,
        context: 4096,
        page: 64,
        slots: 1,
        tokens,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: vec![Pass {
            kind: PassKind::Decode,
            adapted: false,
            rows: ROWS,
            outputs: ROWS,
            width: s.vocab,
            result: BufferRef {
                buffer: logits,
                offset: 0,
            },
            labels: vec![String::new(); commands.len()],
            commands,
        }],
    }
}

/// Lets rows read features, and ropes follow axes.
pub(super) fn reads_pictures(program: &mut Program) {
    program.features = program.buffers.len() as u32;
    program.buffers.push(BufferSpec {
        name: String::new(),
        class: Class::ScratchPrompt,
        bytes: 64 * 4 * u64::from(program.embedding()),
    });
    for command in &mut program.passes[0].commands {
        if command.op == Op::RopeAppend {
            let mut p = params::RopeAppend::of(&command.params);
            let [height, width] = [p.rot as u8 / 8; 2];
            let pairs = [p.rot as u8 / 2 - height - width, height, width];
            let interleaved = false;
            p.sections = Sections { pairs, interleaved }.word();
            command.params = p.words();
        }
    }
}

/// Rank 0 of two, of a made-up program.
fn first_of_two(mut program: Program) -> Program {
    let pass = &mut program.passes[0];
    let commands = std::mem::take(&mut pass.commands);
    for mut command in commands {
        let half = |command: &mut Command, names: &[&str]| {
            for (name, word) in command.op.params().iter().zip(&mut command.params) {
                if names.contains(name) {
                    *word /= 2;
                }
            }
        };
        let y = match command.op {
            Op::Attention => command.buffers[2],
            _ => command.buffers[1],
        };
        let stride = command.word("y_stride").unwrap_or(0);
        let dealt = match command.op {
            Op::NormMatmul if y != pass.result => &["n", "y_stride"][..],
            Op::RopeAppend => &["heads", "kv_heads", "qkv_stride"],
            Op::Attention => &["heads", "kv_heads", "q_stride"],
            Op::NormMatmul | Op::MatmulAdd | Op::NormMatmulActMul => &["n"],
            _ => &[],
        };
        half(&mut command, dealt);
        let exchanged = dealt.contains(&"n") && !dealt.contains(&"y_stride");
        let exchanged = exchanged || command.op == Op::Attention;
        pass.commands.push(command);
        if exchanged {
            let p = params::Exchange {
                rank: 0,
                ranks: 2,
                groups: 1,
                per: stride / 32,
                unit: 32,
                vectors: 1,
                part_stride: stride,
                y_stride: stride,
            };
            let exchange = Command::new(Op::Exchange, Format::F32, &[], &[y, y], p.words());
            pass.commands.push(exchange);
        }
    }
    pass.labels = vec![String::new(); pass.commands.len()];
    program
}

/// Lets a draft pass read what a matrix makes of the inputs of three layers.
pub(super) fn has_draft_head(program: &mut Program) {
    let (dim, x) = (program.embedding(), 2);
    let captured = program.buffers.len() as u32;
    for floats in [3 * dim, dim] {
        program.buffers.push(BufferSpec {
            name: String::new(),
            class: Class::ScratchPrompt,
            bytes: u64::from(floats) * 4 * u64::from(ROWS),
        });
    }
    program.weights.push(WeightSpec {
        n: dim,
        k: 3 * dim,
        usage: Usage::Matrix,
        ..program.weights[0].clone()
    });
    let place = |buffer, offset| BufferRef { buffer, offset };
    let pass = &mut program.passes[0];
    // Layers begin with these, and so does the head.
    let begins = |c: &Command| c.op == Op::NormMatmul && c.buffers[0] == place(x, 0);
    let layers: Vec<usize> = (0..pass.commands.len())
        .filter(|at| begins(&pass.commands[*at]))
        .collect();
    let end = layers.len() - 1;
    let format = program.weights[0].format;
    let join = params::Matmul {
        n: dim,
        k: 3 * dim,
        x_stride: 3 * dim,
        y_stride: dim,
    };
    let buffers = [place(captured, 0), place(captured + 1, 0)];
    let matrix = [program.weights.len() as u32 - 1];
    let join = Command {
        part: ModelPart::Draft,
        ..Command::new(Op::Matmul, format, &matrix, &buffers, join.words())
    };
    pass.commands.insert(layers[end], join);
    for (nth, layer) in [2, end / 2, end - 1].into_iter().enumerate().rev() {
        let copy = params::Multiply {
            n: dim,
            x_stride: dim,
            y_stride: 3 * dim,
        };
        let buffers = [place(x, 0), place(captured, nth as u32 * dim * 4)];
        let copy = Command::new(Op::Multiply, format, &[NO_WEIGHT], &buffers, copy.words());
        pass.commands.insert(layers[layer], copy);
    }
    pass.labels = vec![String::new(); pass.commands.len()];
    let draft = Pass {
        kind: PassKind::Draft,
        commands: Vec::new(),
        labels: Vec::new(),
        ..pass.clone()
    };
    program.passes.push(draft);
}

/// Records a made-up program for chains.
pub(crate) fn one_row(program: &Program, gpu: &GpuInfo) -> Result<Recording, String> {
    record(&Inputs { program, gpu }, ONE_ROW)
}

/// Records it for steps of several rows.
pub(crate) fn several_rows(program: &Program, gpu: &GpuInfo) -> Result<Recording, String> {
    record_rows(&Inputs { program, gpu })
}

/// What is compiled for every architecture in tests.
pub(crate) fn catalogue() -> Vec<Listed> {
    let affine = crate::layout::listed().find(|f| matches!(f, Format::Affine(_)));
    let affine = affine.unwrap_or(Format::Q4_1);
    let made = [
        (QWEN3_4B, Format::Q4_0, Format::Q4_0),
        (QWEN3_4B, Format::BF16, Format::BF16),
        (LLAMA_8B, Format::BF16, Format::BF16),
        (LLAMA_8B, Format::Q4_K, Format::Q6_K),
        (LLAMA_1B, affine, Format::IQ4_XS),
    ];
    let mut programs = made.map(|(sizes, format, down)| program(sizes, format, down));
    reads_pictures(&mut programs[4]);
    has_draft_head(&mut programs[3]);
    let record = |way: Way| {
        let recordings = programs.iter().map(move |program| way(program, &h200()));
        recordings.filter_map(Result::ok)
    };
    let recordings: Vec<Recording> = record(one_row).chain(record(several_rows)).collect();
    let timed = recordings.first().map(|recording| Listed {
        unit: recording.timed_unit(),
        hot: false,
    });
    let ranks = made.map(|(sizes, format, down)| first_of_two(program(sizes, format, down)));
    let ranks = ranks[..2]
        .iter()
        .filter_map(|rank| one_row(rank, &h200()).ok());
    let ranks = ranks.map(|recording| Listed {
        unit: recording.unit(),
        hot: false,
    });
    let plain = recordings.iter().map(|recording| Listed {
        unit: recording.unit(),
        hot: true,
    });
    plain.chain(timed).chain(ranks).collect()
}

/// A way of recording.
pub(super) type Way = fn(&Program, &GpuInfo) -> Result<Recording, String>;
