//! The small ops: norm, layer_norm, position_scale, bias, act, act_mul, gate, add, add_feature, spread, scale, select_rows, pool.

use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, Op, params};

/// Values of a row per block: `STRETCH` of `basic.cu`.
pub(super) const STRETCH: u32 = 1024;
/// Vectors longer than this are normalised by a block each, others by a warp.
const LONG: u32 = 256;
/// Threads per block.
const THREADS: u32 = 256;

mirrored! {
    /// `BasicArgs` of `basic.cu`.
    #[derive(Default)]
    struct Args = "BasicArgs" {
        step: u64,
        x: u64,
        y: u64,
        weight: u64,
        n: u32,
        groups: u32,
        x_stride: u32,
        y_stride: u32,
        single: u32,
        act: u32,
        a: f32,
        b: f32,
        c: f32,
        d: f32,
        bias: u64,
    }
}

mirrored! {
    /// `OutputArgs` of `basic.cu`.
    #[derive(Default)]
    struct OutputArgs = "OutputArgs" {
        step: u64,
        outputs: u64,
        x: u64,
        y: u64,
        n: u32,
        kind: u32,
        normalise: u32,
        x_stride: u32,
        y_stride: u32,
        group: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[Args::LAYOUT, OutputArgs::LAYOUT];

impl OutputArgs {
    fn of(cx: &Lowering<'_>, x: u64, y: u64) -> OutputArgs {
        OutputArgs {
            step: cx.places.step,
            outputs: cx.places.outputs,
            x,
            y,
            ..OutputArgs::default()
        }
    }
}

/// `blocks` blocks for each of `outputs` output rows.
fn output_launch(function: &'static str, outputs: u32, blocks: u32, a: &OutputArgs) -> Launch {
    Launch {
        unit: unit(),
        function,
        grid: [outputs, blocks, 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(a),
    }
}

fn unit() -> Unit {
    Unit {
        file: "basic.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}

/// A launch of `blocks` blocks for each of `rows` rows.
fn launch(function: &'static str, rows: u32, blocks: u32, mut a: Args) -> Launch {
    a.single = u32::from(rows == 1);
    Launch {
        unit: unit(),
        function,
        grid: [rows, blocks, 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(&a),
    }
}

/// `y = act(gate) * up` on plain addresses. Also used by products that compute gate and up separately.
#[allow(clippy::too_many_arguments)] // The op's operands.
pub(crate) fn act_mul(
    step: u64,
    x: u64,
    y: u64,
    n: u32,
    x_stride: u32,
    y_stride: u32,
    act: u32,
    rows: u32,
) -> Launch {
    let a = Args {
        step,
        x,
        y,
        n,
        x_stride,
        y_stride,
        act,
        ..Args::default()
    };
    launch("act_mul", rows, n.div_ceil(STRETCH), a)
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let [first, second, ..] = command.buffers;
    let weight = cx.vector(command.weights[0]);
    let (x, y) = match command.op {
        Op::Bias | Op::Scale | Op::Act | Op::PositionScale => (0, cx.buffer(first)),
        _ => (cx.buffer(first), cx.buffer(second)),
    };
    let a = Args {
        step: cx.step,
        x,
        y,
        weight,
        groups: 1,
        ..Args::default()
    };
    let stretched = |function, n: u32, a| launch(function, rows, n.div_ceil(STRETCH), a);
    let words = &command.params;
    let made = match command.op {
        Op::Norm => {
            let p = params::Norm::of(words);
            let (n, groups) = (p.dim, p.groups);
            let (x_stride, y_stride) = (p.x_stride, p.y_stride);
            #[rustfmt::skip]
            let a = Args { n, groups, x_stride, y_stride, a: p.eps, ..a };
            if n > LONG {
                launch("norm_long", rows, groups, a)
            } else {
                launch("norm_short", rows, groups.div_ceil(THREADS / 32), a)
            }
        }
        Op::LayerNorm => {
            let p = params::LayerNorm::of(words);
            let (n, groups) = (p.dim, p.groups);
            let (x_stride, y_stride) = (p.x_stride, p.y_stride);
            let bias = cx.vector(command.weights[1]);
            #[rustfmt::skip]
            let a = Args { n, groups, x_stride, y_stride, a: p.eps, bias, ..a };
            launch("layer_norm", rows, groups, a)
        }
        Op::PositionScale => {
            let p = params::PositionScale::of(words);
            let a = Args {
                n: p.n,
                groups: p.original,
                act: p.ahead,
                y_stride: p.y_stride,
                a: p.beta,
                ..a
            };
            stretched("position_scale", p.n, a)
        }
        Op::Act => {
            let p = params::Act::of(words);
            let a = Args {
                n: p.n,
                y_stride: p.y_stride,
                act: p.act,
                a: p.a,
                b: p.b,
                c: p.c,
                d: p.d,
                ..a
            };
            stretched("act", p.n, a)
        }
        Op::Bias => {
            let params::Bias { n, y_stride } = params::Bias::of(words);
            stretched("bias", n, Args { n, y_stride, ..a })
        }
        Op::ActMul => {
            let p = params::ActMul::of(words);
            act_mul(cx.step, x, y, p.n, p.x_stride, p.y_stride, p.act, rows)
        }
        Op::Gate => {
            let p = params::Gate::of(words);
            let (n, act) = (p.n, p.act);
            let (x_stride, y_stride) = (p.x_stride, p.y_stride);
            #[rustfmt::skip]
            let a = Args { n, groups: n / p.gates, act, x_stride, y_stride, ..a };
            stretched("gate", n, a)
        }
        Op::Add => {
            let p = params::Add::of(words);
            let (n, x_stride, y_stride) = (p.n, p.x_stride, p.y_stride);
            #[rustfmt::skip]
            let a = Args { n, x_stride, y_stride, ..a };
            stretched("add", n, a)
        }
        Op::Scale => {
            let p = params::Scale::of(words);
            let (n, y_stride) = (p.n, p.y_stride);
            #[rustfmt::skip]
            let a = Args { n, y_stride, a: p.scale, b: p.cap, ..a };
            stretched("scale", n, a)
        }
        Op::AddFeature => {
            let p = params::AddFeature::of(words);
            let part = 4 * u64::from(p.part) * u64::from(p.n);
            let a = Args {
                x: cx.features() + part,
                y: x,
                n: p.n,
                x_stride: cx.program.feature_width() as u32,
                y_stride: p.x_stride,
                ..a
            };
            stretched("add_feature", p.n, a)
        }
        Op::Spread => {
            let p = params::Spread::of(words);
            let (n, x_stride, y_stride) = (p.n, p.x_stride, p.y_stride);
            #[rustfmt::skip]
            let a = Args { n, x_stride, y_stride, ..a };
            stretched("spread", n, a)
        }
        Op::SelectRows => {
            let p = params::SelectRows::of(words);
            let (n, x_stride, y_stride) = (p.n, p.x_stride, p.y_stride);
            let a = OutputArgs {
                n,
                x_stride,
                y_stride,
                ..OutputArgs::of(cx, x, y)
            };
            output_launch("select_rows", rows, n.div_ceil(STRETCH), &a)
        }
        Op::Pool => {
            let p = params::Pool::of(words);
            let a = OutputArgs {
                n: p.n,
                kind: p.kind,
                normalise: p.normalise,
                x_stride: p.x_stride,
                y_stride: p.y_stride,
                group: p.group,
                ..OutputArgs::of(cx, x, y)
            };
            output_launch("pool", rows, 1, &a)
        }
        op => return Err(Error::Program(format!("{} is not a small op", op.name()))),
    };
    Ok(vec![Node::Kernel(made)])
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(),
        hot: true,
    }]
}
