//! Causal convolutions with a recurrent state.

use super::kv;
use crate::Error;
use crate::arithmetic::Arithmetic;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, params};

/// Generated rows: threads per block. Each takes one channel of all rows.
const THREADS: u32 = 256;
/// Prompt rows: channels of a block, and the runs of rows that it divides them into (`conv.cu`).
const CHANNELS: u32 = 32;
const RUNS: u32 = 16;

mirrored! {
    /// `ConvArgs` of `conv.cu`.
    struct ConvArgs = "ConvArgs" {
        step: u64,
        states: u64,
        kernel: u64,
        bias: u64,
        x: u64,
        y: u64,
        state: u64,
        pages: u64,
        n: u32,
        act: u32,
        x_stride: u32,
        y_stride: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[ConvArgs::LAYOUT];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, _rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::ShortConv::of(&command.params);
    let [x, y, state, _] = command.buffers;
    let cache = kv::index(cx.program, command);
    let cache = cache.ok_or_else(|| Error::Program("a convolution without a state".to_string()))?;
    let spec = &cx.program.caches[cache];
    let layer_bytes = u64::from(spec.pages) * u64::from(p.taps - 1) * u64::from(p.n) * 4;
    let (function, channels, block) = match cx.arithmetic {
        Arithmetic::Prompt => ("short_conv_rows", CHANNELS, CHANNELS * RUNS),
        _ => ("short_conv", THREADS, THREADS),
    };
    Ok(vec![Node::Kernel(Launch {
        unit: unit(p.taps),
        function,
        grid: [p.n.div_ceil(channels), 1, 1],
        by_rows: ByRows::Fixed,
        block,
        shared: 0,
        args: args(&ConvArgs {
            step: cx.step,
            states: cx.places.states,
            kernel: cx.vector(command.weights[0]),
            bias: cx.vector(command.weights[1]),
            x: cx.buffer(x),
            y: cx.buffer(y),
            state: cx.buffer(state) + u64::from(p.layer) * layer_bytes,
            pages: cx.places.page_tables.get(cache).copied().unwrap_or(0),
            n: p.n,
            act: p.act,
            x_stride: p.x_stride,
            y_stride: p.y_stride,
        }),
    })])
}

fn unit(taps: u32) -> Unit {
    Unit {
        file: "conv.cu",
        generated: String::new(),
        defines: vec![("TAPS", taps.to_string())],
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    vec![Listed {
        unit: unit(4),
        hot: false,
    }]
}
