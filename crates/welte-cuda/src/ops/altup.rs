//! Ops of several streams of hidden states, and of sparse activations.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, Op, params};

/// Elements of a vector per block: `STRETCH` of `streams.cu`.
const STRETCH: u32 = 256;
/// Threads per block.
const THREADS: u32 = 256;

mirrored! {
    /// `StreamArgs` of `streams.cu`.
    #[derive(Default)]
    struct StreamArgs = "StreamArgs" {
        step: u64,
        now: u64,
        x: u64,
        y: u64,
        weight: u64,
        dim: u32,
        streams: u32,
        now_stride: u32,
        x_stride: u32,
        y_stride: u32,
        scale: f32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[StreamArgs::LAYOUT];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let [first, second, third, _] = command.buffers;
    let words = &command.params;
    let common = StreamArgs {
        step: cx.step,
        weight: cx.vector(command.weights[0]),
        streams: 1,
        ..StreamArgs::default()
    };
    let (function, blocks, a) = match command.op {
        Op::Multiply => {
            let p = params::Multiply::of(words);
            let a = StreamArgs {
                x: cx.buffer(first),
                y: cx.buffer(second),
                dim: p.n,
                x_stride: p.x_stride,
                y_stride: p.y_stride,
                ..common
            };
            ("multiply", p.n.div_ceil(STRETCH), a)
        }
        Op::Cutoff => {
            let p = params::Cutoff::of(words);
            let a = StreamArgs {
                y: cx.buffer(first),
                dim: p.n,
                y_stride: p.y_stride,
                scale: p.deviations,
                ..common
            };
            ("cutoff", 1, a)
        }
        Op::MatchSquares => {
            let p = params::MatchSquares::of(words);
            let a = StreamArgs {
                x: cx.buffer(first),
                y: cx.buffer(second),
                dim: p.dim,
                x_stride: p.x_stride,
                y_stride: p.y_stride,
                ..common
            };
            ("match_squares", p.groups, a)
        }
        Op::AltUpPredict => {
            let p = params::AltUpPredict::of(words);
            let a = StreamArgs {
                x: cx.buffer(first),
                y: cx.buffer(second),
                dim: p.dim,
                streams: p.streams,
                x_stride: p.x_stride,
                y_stride: p.y_stride,
                scale: p.scale,
                ..common
            };
            ("altup_predict", p.dim.div_ceil(STRETCH), a)
        }
        Op::AltUpCorrect => {
            let p = params::AltUpCorrect::of(words);
            let a = StreamArgs {
                now: cx.buffer(first),
                x: cx.buffer(second),
                y: cx.buffer(third),
                dim: p.dim,
                streams: p.streams,
                now_stride: p.now_stride,
                x_stride: p.x_stride,
                y_stride: p.y_stride,
                scale: p.scale,
                ..common
            };
            ("altup_correct", p.dim.div_ceil(STRETCH), a)
        }
        op => return Err(Error::Program(format!("{} has no streams", op.name()))),
    };
    Ok(vec![Node::Kernel(Launch {
        unit: unit(),
        function,
        grid: [rows.max(1), blocks, 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(&a),
    })])
}

fn unit() -> Unit {
    Unit {
        file: "streams.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(),
        hot: true,
    }]
}
