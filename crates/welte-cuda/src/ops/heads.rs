//! A matrix for each head.

use super::Role;
use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use welte_table::{Command, params};

/// Outputs of a head per block: `OUTPUTS`, `COLUMNS` and `TILE` of `heads.cu`.
const OUTPUTS: u32 = 16;
const COLUMNS: u32 = 64;
const TILE: u32 = 64;
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
    transposed: u32,
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::HeadsMatmul::of(&command.params);
    let [x, y, ..] = command.buffers;
    // The order of sums is that of the role, so it does not depend on the number of rows.
    let (function, per, outputs) = match (cx.role, p.transposed) {
        (Role::Prompt, _) => ("heads_matmul_rows", TILE, TILE),
        (_, 0) => ("heads_matmul", 1, OUTPUTS),
        _ => ("heads_matmul_transposed", 1, COLUMNS),
    };
    let contiguous = if p.transposed == 0 { p.k } else { p.n };
    Ok(vec![Node::Kernel(Launch {
        unit: unit(contiguous.is_multiple_of(4)),
        function,
        grid: [rows.max(1).div_ceil(per), p.heads, p.n.div_ceil(outputs)],
        by_rows: ByRows::Axis { axis: 0, per },
        block: THREADS,
        shared: if per == 1 { p.k * 4 } else { 0 },
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
            transposed: p.transposed,
        }),
    })])
}

/// `aligned`: rows of the matrices begin at multiples of 16 bytes.
fn unit(aligned: bool) -> Unit {
    Unit {
        file: "heads.cu",
        generated: String::new(),
        defines: vec![("VEC", if aligned { "4" } else { "1" }.to_string())],
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    [true, false]
        .map(|aligned| Listed {
            unit: unit(aligned),
            hot: aligned,
        })
        .into()
}
