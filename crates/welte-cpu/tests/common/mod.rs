//! Small models written by hand, with shapes as ugly as the tests want them.
#![allow(dead_code, unreachable_pub)]

pub mod experts;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use welte_cpu::{Model, Options, Session};
use welte_formats::checkpoint::Dialect;
use welte_formats::{Checkpoint, Error, Metadata, TensorInfo, quant};
use welte_table::*;

/// Numbers that look random and are the same every time.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 31);
        x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
    pub fn float(&mut self) -> f32 {
        (self.next() & 0xffff) as f32 / 32768.0 - 1.0
    }
}

/// A checkpoint in memory.
pub struct Made {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    bytes: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint for Made {
    fn origin(&self) -> &str {
        "made"
    }
    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }
    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let row = tensor.format.bytes(tensor.k).unwrap();
        Ok(Cow::Borrowed(
            &self.bytes[&tensor.name][first * row..(first + rows) * row],
        ))
    }
}

/// The shape of a made model.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub format: Format,
    pub kv_format: Format,
    pub layers: u32,
    pub dim: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rot: u32,
    pub interleaved: u32,
    pub hidden: u32,
    pub act: u32,
    pub vocab: u32,
    pub window: u32,
    pub softcap: f32,
    /// Only the CPU has them yet.
    pub sinks: bool,
    pub bias: bool,
    pub qk_norm: bool,
    pub tied: bool,
    pub page: u32,
    pub context: u32,
    pub sequences: u32,
    pub rows: u32,
}

impl Config {
    pub fn small(seed: u64) -> Config {
        Config {
            seed,
            format: Format::F32,
            kv_format: Format::F16,
            layers: 2,
            dim: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rot: 32,
            interleaved: 0,
            hidden: 96,
            act: 0,
            vocab: 101,
            window: 0,
            softcap: 0.0,
            sinks: false,
            bias: false,
            qk_norm: true,
            tied: true,
            page: 16,
            context: 640,
            sequences: 3,
            rows: 40,
        }
    }

    /// Anything that a program may be.
    pub fn ugly(seed: u64) -> Config {
        let n = &mut Numbers(seed);
        let kv_heads = n.pick(&[1, 2, 3]);
        let kv_format = n.pick(&[Format::F16, Format::Q8_0]);
        let head_dim = if kv_format == Format::F16 {
            n.pick(&[2, 10, 24, 40])
        } else {
            n.pick(&[32, 64])
        };
        let page = n.pick(&[1, 3, 16, 100]);
        Config {
            kv_format,
            layers: n.pick(&[1, 2]),
            dim: n.pick(&[1, 17, 40, 72]),
            heads: kv_heads * n.pick(&[1, 2, 5]),
            kv_heads,
            head_dim,
            rot: (head_dim / n.pick(&[1, 2]) / 2 * 2).max(2),
            interleaved: n.pick(&[0, 1]),
            hidden: n.pick(&[1, 30, 48]),
            act: n.pick(&[0, 1, 2]),
            vocab: n.pick(&[2, 37, 160]),
            window: n.pick(&[0, 0, 1, 7, 300]),
            softcap: n.pick(&[0.0, 5.0]),
            bias: n.pick(&[false, true]),
            qk_norm: n.pick(&[false, true]),
            tied: n.pick(&[false, true]),
            page,
            context: n.pick(&[9, 64, 515]),
            sequences: n.pick(&[1, 2]),
            rows: n.pick(&[1, 3, 37]),
            ..Config::small(seed)
        }
    }
}

struct Builder {
    config: Config,
    numbers: Numbers,
    checkpoint: Made,
    weights: Vec<WeightSpec>,
    buffers: Vec<BufferSpec>,
}

const NONE: BufferRef = BufferRef::NONE;

impl Builder {
    fn weight(
        &mut self,
        name: &str,
        format: Format,
        n: u32,
        k: u32,
        usage: Usage,
        mean: f32,
    ) -> WeightId {
        let format = if usage == Usage::Vector || !k.is_multiple_of(format.block() as u32) {
            Format::F32
        } else {
            format
        };
        let spread = if usage == Usage::Vector {
            0.2
        } else {
            1.5 / (k as f32).sqrt()
        };
        let values: Vec<f32> = (0..n * k)
            .map(|_| mean + spread * self.numbers.float())
            .collect();
        let mut bytes = vec![0; format.bytes(values.len()).unwrap()];
        quant::encode(format, &values, &mut bytes);
        let add = if usage == Usage::Vector && mean == 1.0 {
            0.25
        } else {
            0.0
        };
        self.checkpoint.bytes.insert(name.into(), bytes);
        self.checkpoint.tensors.push(TensorInfo {
            name: name.into(),
            format,
            n: n as usize,
            k: k as usize,
            stack: 1,
        });
        // Two parts, the second row range first checked: as concatenated matrices have them.
        let first = n / 2;
        let mut parts = vec![Part {
            tensor: name.into(),
            first_row: 0,
            rows: first,
        }];
        parts.push(Part {
            tensor: name.into(),
            first_row: first,
            rows: n - first,
        });
        parts.retain(|p| p.rows > 0);
        self.weights.push(WeightSpec {
            name: name.into(),
            format,
            n,
            k,
            usage,
            add,
            source: Source::Parts(parts),
        });
        self.weights.len() as u32 - 1
    }

    fn buffer(&mut self, name: &str, class: Class, bytes: u64) -> BufferRef {
        self.buffers.push(BufferSpec {
            name: name.into(),
            class,
            bytes,
        });
        BufferRef {
            buffer: self.buffers.len() as u32 - 1,
            offset: 0,
        }
    }

    fn command(
        &self,
        op: Op,
        weights: &[WeightId],
        buffers: &[BufferRef],
        params: Params,
    ) -> Command {
        let mut command = Command {
            op,
            patch: Patch::None,
            format: weights
                .first()
                .and_then(|w| self.weights.get(*w as usize))
                .map_or(Format::F32, |w| w.format),
            weights: [NO_WEIGHT; 3],
            buffers: [NONE; 4],
            params,
            bytes: 0,
            flops: 0,
        };
        command.weights[..weights.len()].copy_from_slice(weights);
        command.buffers[..buffers.len()].copy_from_slice(buffers);
        command
    }
}

/// A program of fused ops and its checkpoint.
pub fn make(config: &Config) -> (Program, Made) {
    let c = config.clone();
    let checkpoint = Made {
        metadata: Metadata::new(),
        tensors: Vec::new(),
        bytes: BTreeMap::new(),
    };
    let mut b = Builder {
        config: c.clone(),
        numbers: Numbers(c.seed ^ 99),
        checkpoint,
        weights: Vec::new(),
        buffers: Vec::new(),
    };
    let (q, kvw) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let qkv_width = q + 2 * kvw;
    let rows = c.rows as u64;
    let tokens = b.buffer("tokens", Class::Tables, 4 * (c.rows as u64 + 5));
    let pages = c.context.div_ceil(c.page) * c.sequences + 2;
    let layout = KvLayout {
        format: c.kv_format,
        layers: c.layers,
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        page: c.page,
        pages,
        sequences: c.sequences,
        context: c.context,
    };
    let kv = b.buffer("kv", Class::Kv, layout.bytes().unwrap());
    let mut sized =
        |name: &str, width: u32| b.buffer(name, Class::ScratchPrefill, 4 * rows * width as u64);
    // Rows are further apart than they are wide.
    let x = sized("x", c.dim + 3);
    let qkv = sized("qkv", qkv_width + 1);
    let attended = sized("attended", q + 2);
    let gated = sized("gated", c.hidden + 5);
    let last = sized("last", c.dim);
    let logits = sized("logits", c.vocab);
    let at = |mut r: BufferRef, elements: u32| {
        r.offset += 4 * elements;
        r
    };
    let usage = if c.tied { Usage::Both } else { Usage::Lookup };
    let embed = b.weight("embed", c.format, c.vocab, c.dim, usage, 0.0);
    let head = if c.tied {
        embed
    } else {
        b.weight("head", c.format, c.vocab, c.dim, Usage::Matrix, 0.0)
    };
    let freqs: Vec<f32> = (0..c.rot / 2).map(|i| 0.7f32.powi(i as i32)).collect();
    b.weights.push(WeightSpec {
        name: "freqs".into(),
        format: Format::F32,
        n: 1,
        k: (c.rot / 2).max(1),
        usage: Usage::Vector,
        add: 0.0,
        source: Source::Constant(if freqs.is_empty() { vec![1.0] } else { freqs }),
    });
    let freqs = b.weights.len() as u32 - 1;
    let mut body = Vec::new();
    let eps = 1e-5;
    let (xs, qs, ys, gs) = (c.dim + 3, qkv_width + 1, q + 2, c.hidden + 5);
    for layer in 0..c.layers {
        let name = |what: &str| format!("{layer}.{what}");
        let norm = b.weight(&name("norm"), Format::F32, 1, c.dim, Usage::Vector, 1.0);
        let w = b.weight(&name("qkv"), c.format, qkv_width, c.dim, Usage::Matrix, 0.0);
        let p = params::NormMatmul {
            n: qkv_width,
            k: c.dim,
            eps,
            x_stride: xs,
            y_stride: qs,
        };
        body.push(b.command(Op::NormMatmul, &[w, norm], &[x, qkv], p.words()));
        if c.bias {
            let bias = b.weight(&name("bias"), Format::F32, 1, qkv_width, Usage::Vector, 0.0);
            body.push(
                b.command(
                    Op::Bias,
                    &[bias],
                    &[qkv],
                    params::Bias {
                        n: qkv_width,
                        y_stride: qs,
                    }
                    .words(),
                ),
            );
        }
        let (mut qn, mut kn) = (NO_WEIGHT, NO_WEIGHT);
        if c.qk_norm {
            qn = b.weight(&name("qn"), Format::F32, 1, c.head_dim, Usage::Vector, 1.0);
            kn = b.weight(&name("kn"), Format::F32, 1, c.head_dim, Usage::Vector, 1.0);
        }
        let p = params::RopeAppend {
            layer,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            rot: c.rot,
            interleaved: c.interleaved,
            magnitude: 1.1,
            eps,
            qkv_stride: qs,
        };
        body.push(b.command(Op::RopeAppend, &[freqs, qn, kn], &[qkv, kv], p.words()));
        let p = params::Attention {
            layer,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            scale: 1.0 / (c.head_dim as f32).sqrt(),
            window: c.window,
            softcap: c.softcap,
            q_stride: qs,
            y_stride: ys,
        };
        let mut sinks = NO_WEIGHT;
        if c.sinks {
            sinks = b.weight(&name("sinks"), Format::F32, 1, c.heads, Usage::Vector, 1.0);
        }
        body.push(b.command(Op::Attention, &[sinks], &[qkv, kv, attended], p.words()));
        let w = b.weight(&name("o"), c.format, c.dim, q, Usage::Matrix, 0.0);
        let p = params::MatmulAdd {
            n: c.dim,
            k: q,
            x_stride: ys,
            y_stride: xs,
        };
        body.push(b.command(Op::MatmulAdd, &[w], &[attended, x], p.words()));
        let norm = b.weight(&name("norm2"), Format::F32, 1, c.dim, Usage::Vector, 1.0);
        let w = b.weight(
            &name("gu"),
            c.format,
            2 * c.hidden,
            c.dim,
            Usage::Matrix,
            0.0,
        );
        let p = params::NormMatmulActMul {
            n: c.hidden,
            k: c.dim,
            eps,
            act: c.act,
            x_stride: xs,
            y_stride: gs,
        };
        body.push(b.command(Op::NormMatmulActMul, &[w, norm], &[x, gated], p.words()));
        let w = b.weight(&name("down"), c.format, c.dim, c.hidden, Usage::Matrix, 0.0);
        let p = params::MatmulAdd {
            n: c.dim,
            k: c.hidden,
            x_stride: gs,
            y_stride: xs,
        };
        body.push(b.command(Op::MatmulAdd, &[w], &[gated, x], p.words()));
    }
    let norm = b.weight("norm", Format::F32, 1, c.dim, Usage::Vector, 1.0);
    let p = params::Embed {
        n: c.vocab,
        k: c.dim,
        scale: 1.5,
        x_stride: xs,
    };
    let first = b.command(Op::Embed, &[embed], &[tokens, x], p.words());
    let scale = params::Scale {
        n: c.vocab,
        scale: 0.9,
        cap: 30.0,
        y_stride: c.vocab,
    };
    let end = |from: BufferRef, stride: u32| {
        let p = params::NormMatmul {
            n: c.vocab,
            k: c.dim,
            eps,
            x_stride: stride,
            y_stride: c.vocab,
        };
        vec![
            b.command(Op::NormMatmul, &[head, norm], &[from, logits], p.words()),
            b.command(Op::Scale, &[], &[logits], scale.words()),
        ]
    };
    let table = |shape: Shape| {
        let mut commands = vec![first];
        commands.extend_from_slice(&body);
        match shape {
            Shape::Prefill(_) => {
                let p = params::CopyLast {
                    n: c.dim,
                    x_stride: xs,
                    y_stride: c.dim,
                };
                commands.push(b.command(Op::CopyLast, &[], &[x, last], p.words()));
                commands.extend(end(last, c.dim));
            }
            _ => commands.extend(end(x, xs)),
        }
        if shape == Shape::Decode {
            let p = params::Sample {
                n: c.vocab,
                logits_stride: c.vocab,
            };
            commands.push(b.command(Op::Sample, &[], &[logits, tokens], p.words()));
        }
        let labels = commands.iter().map(|c| c.op.name().to_string()).collect();
        Table {
            shape,
            commands,
            labels,
        }
    };
    let tables = vec![
        table(Shape::Decode),
        table(Shape::Prefill(c.rows)),
        table(Shape::Batch(c.rows)),
    ];
    let _ = at;
    let mut program = Program {
        weights: b.weights.clone(),
        buffers: b.buffers.clone(),
        kv: layout,
        vocab: c.vocab,
        tokens: tokens.buffer,
        tables,
    };
    fill_cost(&mut program);
    (program, b.checkpoint)
}

/// Costs as the table's own rules give them.
pub fn fill_cost(program: &mut Program) {
    welte_table::cost::fill(program);
}

/// The same program in fine ops.
pub fn split(program: &Program) -> Program {
    let mut program = program.clone();
    let fused = [
        Op::NormMatmul,
        Op::MatmulAdd,
        Op::NormMatmulActMul,
        Op::RopeAppend,
    ];
    legalize(&mut program, &|c: &Command| !fused.contains(&c.op)).unwrap();
    program
}

pub fn load(program: &Program, checkpoint: &Made, options: &Options) -> Session {
    let model = Model::load(
        Arc::new(program.clone()),
        checkpoint,
        options,
        &mut |_, _| {},
    )
    .unwrap();
    let mut session = Session::new(&model).unwrap();
    poison(&mut session);
    session
}

/// Fills scratch and KV with NaN: what is not written shows, and what is read beyond the context too.
pub fn poison(session: &mut Session) {
    let buffers = session.model().program().buffers.clone();
    for (id, spec) in buffers.iter().enumerate() {
        if spec.class != Class::Tables {
            session.buffer_mut(id as u32).unwrap().fill(0xff);
        }
    }
}

pub fn options(threads: usize) -> Options {
    Options {
        threads: Some(threads),
        ..Options::default()
    }
}

pub fn reference() -> Options {
    Options {
        threads: Some(1),
        reference: true,
        ..Options::default()
    }
}

/// Largest difference, against the largest value.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs() / largest);
    worst.fold(
        0.0,
        |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) },
    )
}

pub fn rows(n: &mut Numbers, vocab: u32, from: u32, count: u32, sequence: u32) -> Vec<Row> {
    (from..from + count)
        .map(|position| Row {
            token: n.below(vocab as u64) as u32,
            position,
            sequence,
        })
        .collect()
}

/// Tables of [`Config::small`] with rows that they cannot have.
pub fn impossible_rows() -> Vec<(usize, Vec<Row>)> {
    let good = Row::default();
    let later = Row {
        position: 1,
        ..good
    };
    let beyond = Row {
        position: 640,
        ..good
    };
    let stranger = Row {
        sequence: 3,
        ..good
    };
    vec![
        (0, vec![]),
        (0, vec![good, later]),
        (0, vec![Row { token: 101, ..good }]),
        (0, vec![beyond]),
        (0, vec![stranger]),
        (1, vec![good, good]),
        (7, vec![good]),
    ]
}
