//! Encoders: attention over whole texts without a cache, and learned positions.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use welte_table::{Command, Op, params};

/// Threads per block: `THREADS` of `encode.cu`.
const THREADS: u32 = 128;

/// `EncodeArgs` of `encode.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct EncodeArgs {
    step: u64,
    qkv: u64,
    y: u64,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    window: u32,
    qkv_stride: u32,
    y_stride: u32,
    scale: f32,
    pad: u32,
}

/// `PositionArgs` of `encode.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PositionArgs {
    step: u64,
    x: u64,
    positions: u64,
    types: u64,
    k: u32,
    period: u32,
    offset: u32,
    x_stride: u32,
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let launch = |unit, function, blocks, args| Launch {
        unit,
        function,
        grid: [rows, blocks, 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args,
    };
    let [first, second, ..] = command.buffers;
    let made = match command.op {
        Op::EncodeAttention => {
            let p = params::EncodeAttention::of(&command.params);
            let a = EncodeArgs {
                step: cx.step,
                qkv: cx.buffer(first),
                y: cx.buffer(second),
                heads: p.heads,
                kv_heads: p.kv_heads,
                head_dim: p.head_dim,
                window: p.window,
                qkv_stride: p.qkv_stride,
                y_stride: p.y_stride,
                scale: p.scale,
                pad: 0,
            };
            launch(
                unit(Some(p.head_dim)),
                "encode_attention",
                p.heads,
                args(&a),
            )
        }
        _ => {
            let p = params::AddPosition::of(&command.params);
            let a = PositionArgs {
                step: cx.step,
                x: cx.buffer(first),
                positions: cx.vector(command.weights[0]),
                types: cx.vector(command.weights[1]),
                k: p.k,
                period: p.period,
                offset: p.offset,
                x_stride: p.x_stride,
            };
            let blocks = p.k.div_ceil(THREADS);
            launch(unit(None), "add_position", blocks, args(&a))
        }
    };
    Ok(vec![Node::Kernel(made)])
}

/// The unit of attention over heads of this size, or of positions.
fn unit(head_dim: Option<u32>) -> Unit {
    let define = |dim: u32| ("HEAD_DIM", dim.to_string());
    Unit {
        file: "encode.cu",
        generated: String::new(),
        defines: head_dim.map(define).into_iter().collect(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    [None, Some(32), Some(64), Some(256)]
        .into_iter()
        .map(|head_dim| Listed {
            unit: unit(head_dim),
            hot: false,
        })
        .collect()
}
