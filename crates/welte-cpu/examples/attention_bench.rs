//! How fast attention reads keys and values (one row) or multiplies (rows of a prompt), beside a plain read of memory. The
//! program has only attention layers, over a cache of random numbers.
//!
//!     attention_bench [key=value …]
//!     threads=2 depth=4096 rows=1 layers=28 heads=16 kv_heads=8 head_dim=128 cache=f16 isa=avx512-vnni turns=12

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use welte_device::{Context, DeviceOptions};
use welte_formats::checkpoint::Dialect;
use welte_formats::{Checkpoint, Error, Metadata, TensorInfo};
use welte_table::*;

/// A checkpoint without tensors.
struct Empty(Metadata);

impl Checkpoint for Empty {
    fn origin(&self) -> &str {
        "empty"
    }
    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }
    fn metadata(&self) -> &Metadata {
        &self.0
    }
    fn tensors(&self) -> &[TensorInfo] {
        &[]
    }
    fn tensor(&self, _: &str) -> Option<&TensorInfo> {
        None
    }
    fn rows(&self, tensor: &TensorInfo, _: usize, _: usize) -> Result<Cow<'_, [u8]>, Error> {
        unreachable!("there is no tensor {}", tensor.name)
    }
}

#[derive(Clone, Copy)]
struct Shapes {
    layers: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rows: u32,
}

/// Passes of attention only: decode with one row, and a prompt.
fn program(s: Shapes, cache: Format, context: u32) -> Program {
    const PAGE: u32 = 64;
    const VOCAB: u32 = 16;
    let kv = CacheSpec {
        name: "kv".to_string(),
        buffer: 1,
        pages: context.div_ceil(PAGE),
        kind: CacheKind::Attention {
            format: cache,
            layers: s.layers,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            window: 0,
        },
    };
    let kv_bytes = kv.bytes(PAGE).expect("heads that the cache stores");
    let width = s.heads * s.head_dim;
    let buffer = |name: &str, class, bytes| BufferSpec {
        name: name.to_string(),
        class,
        bytes,
    };
    let floats = 4 * u64::from(s.rows * width);
    let buffers = vec![
        buffer("tokens", Class::Tables, 4 * u64::from(s.rows)),
        buffer("kv", Class::Cache, kv_bytes),
        buffer("q", Class::ScratchPrompt, floats),
        buffer("y", Class::ScratchPrompt, floats),
        buffer(
            "logits",
            Class::ScratchPrompt,
            floats.max(4 * u64::from(VOCAB)),
        ),
    ];
    let at = |buffer: u32| BufferRef { buffer, offset: 0 };
    let command = |op, used: &[u32], params| {
        let used: Vec<BufferRef> = used.iter().map(|id| at(*id)).collect();
        Command::new(op, Format::F32, &[], &used, params)
    };
    let attention = |layer| {
        let p = params::Attention {
            layer,
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            scale: 1.0 / (s.head_dim as f32).sqrt(),
            window: 0,
            softcap: 0.0,
            q_stride: width,
            y_stride: width,
            causal: 0,
            chunked: 0,
        };
        command(Op::Attention, &[2, 1, 3], p.words())
    };
    let sample = params::Sample {
        n: VOCAB,
        logits_stride: VOCAB,
    };
    let select = params::SelectRows {
        n: VOCAB,
        x_stride: width,
        y_stride: VOCAB,
    };
    let pass = |kind, rows, last| {
        let mut commands: Vec<Command> = (0..s.layers).map(attention).collect();
        commands.extend(last);
        let labels = commands.iter().map(|c| c.op.name().to_string()).collect();
        Pass {
            kind,
            adapted: false,
            rows,
            outputs: 1,
            width: VOCAB,
            result: at(4),
            commands,
            labels,
        }
    };
    let scale = params::Scale {
        n: VOCAB,
        scale: 1.0,
        cap: 0.0,
        y_stride: VOCAB,
    };
    let decode = [
        command(Op::Scale, &[4], scale.words()),
        command(Op::Sample, &[4, 0], sample.words()),
    ];
    let prompt = [command(Op::SelectRows, &[3, 4], select.words())];
    let mut program = Program {
        weights: Vec::new(),
        buffers,
        caches: vec![kv],
        vocab: VOCAB,
        context,
        page: PAGE,
        slots: 1,
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: vec![
            pass(PassKind::Decode, 1, decode.to_vec()),
            pass(PassKind::Prompt, s.rows, prompt.to_vec()),
        ],
    };
    cost::fill(&mut program);
    program
}

/// Fills the cache and the queries with small random numbers.
fn fill(context: &mut dyn Context, cache: Format) {
    let mut seed = 1u64;
    let mut number = move || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..1 << 16).map(|_| number()).collect();
    let mut encoded = vec![0; cache.bytes(values.len()).expect("whole blocks")];
    welte_formats::quant::encode(cache, &values, &mut encoded);
    let mut kv = context.read_buffer(1).expect("the cache");
    for piece in kv.chunks_mut(encoded.len()) {
        piece.copy_from_slice(&encoded[..piece.len()]);
    }
    context.write_buffer(1, &kv).expect("the cache");
    let mut queries = context.read_buffer(2).expect("the queries");
    for q in queries.chunks_exact_mut(4) {
        q.copy_from_slice(&number().to_le_bytes());
    }
    context.write_buffer(2, &queries).expect("the queries");
}

fn main() {
    let mut args: BTreeMap<String, String> = std::env::args()
        .skip(1)
        .filter_map(|a| {
            a.split_once('=')
                .map(|(k, v)| (k.to_string(), v.to_string()))
        })
        .collect();
    let mut text = |key: &str, otherwise: &str| args.remove(key).unwrap_or(otherwise.to_string());
    let cache = match text("cache", "f16").as_str() {
        "q8_0" => Format::Q8_0,
        _ => Format::F16,
    };
    let best = welte_cpu::Isa::best().name();
    let isa = text("isa", best);
    let mut number =
        |key: &str, otherwise: u32| text(key, &otherwise.to_string()).parse().expect("a number");
    let (threads, depth, turns) = (
        number("threads", 2) as usize,
        number("depth", 4096),
        number("turns", 12),
    );
    let shapes = Shapes {
        layers: number("layers", 28),
        heads: number("heads", 16),
        kv_heads: number("kv_heads", 8),
        head_dim: number("head_dim", 128),
        rows: number("rows", 1),
    };
    assert!(args.is_empty(), "unknown: {args:?}");
    let program = program(shapes, cache, depth + shapes.rows);
    let mut options = DeviceOptions::default();
    options.threads = Some(threads);
    options.instructions = Some(isa.clone());
    let device = welte_cpu::device(&options).expect("an instruction set of this machine");
    let plan = device.plan(Arc::new(program)).expect("a program that fits");
    let loaded = device.load(plan, &Empty(Metadata::new()), &mut |_| {});
    let loaded = loaded.expect("no weights");
    let mut context = loaded.context().expect("memory");
    fill(&mut *context, cache);
    let rows: Vec<Row> = (0..shapes.rows)
        .map(|i| Row::new(0, depth + i, 0))
        .collect();
    let (pass, outputs) = match shapes.rows {
        1 => (0, Vec::new()),
        rows => (1, vec![rows - 1]),
    };
    let mut seconds: Vec<f64> = (0..turns)
        .map(|_| {
            let start = Instant::now();
            context.step_rows(pass, &rows, &outputs).expect("a step");
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let seen: f64 = rows.iter().map(|r| f64::from(r.position) + 1.0).sum();
    let row_bytes = cache.bytes(shapes.head_dim as usize).unwrap_or(0) as f64;
    let read = f64::from(depth + shapes.rows) * 2.0 * row_bytes * f64::from(shapes.kv_heads);
    let (read, flops) = (
        read * f64::from(shapes.layers),
        seen * 4.0 * f64::from(shapes.heads * shapes.head_dim * shapes.layers),
    );
    let floor = device.read_bandwidth(0.3).unwrap_or(f64::NAN);
    let (best, middle) = (seconds[0], seconds[seconds.len() / 2]);
    println!(
        "{} {} {threads} threads, depth {depth}, {} rows: median {:.2} ms, {:.1} GB/s ({:.1} at best) of {:.1}, {:.1} Gflop/s ({:.1} at best)",
        cache.name(),
        isa,
        shapes.rows,
        1e3 * middle,
        read / middle / 1e9,
        read / best / 1e9,
        floor / 1e9,
        flops / middle / 1e9,
        flops / best / 1e9,
    );
}
