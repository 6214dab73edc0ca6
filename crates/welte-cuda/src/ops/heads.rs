//! A matrix for each head.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use welte_table::{Command, params};

/// Outputs of a head per block: `OUTPUTS` of `heads.cu`.
const OUTPUTS: u32 = 64;
/// Threads per block.
const THREADS: u32 = 256;

/// `HeadsArgs` of `heads.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeadsArgs {
    step: u64,
    matrices: u64,
    x: u64,
    y: u64,
    n: u32,
    k: u32,
    tail: u32,
    x_head: u32,
    y_head: u32,
    x_stride: u32,
    y_stride: u32,
    pad: u32,
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::HeadsMatmul::of(&command.params);
    let [x, y, ..] = command.buffers;
    Ok(vec![Node::Kernel(Launch {
        unit: unit(),
        function: match p.transposed {
            0 => "heads_matmul",
            _ => "heads_matmul_transposed",
        },
        grid: [rows.max(1), p.heads, p.n.div_ceil(OUTPUTS)],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(&HeadsArgs {
            step: cx.step,
            matrices: cx.vector(command.weights[0]),
            x: cx.buffer(x),
            y: cx.buffer(y),
            n: p.n,
            k: p.k,
            tail: p.tail,
            x_head: p.x_head,
            y_head: p.y_head,
            x_stride: p.x_stride,
            y_stride: p.y_stride,
            pad: 0,
        }),
    })])
}

fn unit() -> Unit {
    Unit {
        file: "heads.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(),
        hot: false,
    }]
}
