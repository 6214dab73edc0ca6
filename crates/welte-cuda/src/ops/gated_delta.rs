//! The gated delta rule over a recurrent state.

use super::kv;
use crate::Error;
use crate::arithmetic::Arithmetic;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, params};

/// `THREADS` and `COLUMNS` of `state.cuh`.
const THREADS: u32 = 128;
const COLUMNS: u32 = 32;

mirrored! {
    /// `DeltaArgs` of `gated_delta.cu`.
    struct DeltaArgs = "DeltaArgs" {
        step: u64,
        states: u64,
        decay: u64,
        dt_bias: u64,
        x: u64,
        gates: u64,
        y: u64,
        state: u64,
        pages: u64,
        key_heads: u32,
        heads: u32,
        value_dim: u32,
        tiled: u32,
        eps: f32,
        x_stride: u32,
        gates_stride: u32,
        y_stride: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[DeltaArgs::LAYOUT];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, _rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::GatedDelta::of(&command.params);
    let [x, gates, y, state] = command.buffers;
    let cache = kv::index(cx.program, command);
    let cache = cache.ok_or_else(|| Error::Program("a delta rule without a state".to_string()))?;
    let pages = cx.program.caches[cache].pages;
    let page = u64::from(p.heads) * u64::from(p.key_dim) * u64::from(p.value_dim) * 4;
    Ok(vec![Node::Kernel(Launch {
        unit: unit(p.key_dim, p.by_channel),
        function: match cx.arithmetic {
            Arithmetic::Prompt => "gated_delta_rows",
            _ => "gated_delta",
        },
        grid: [p.value_dim.div_ceil(COLUMNS), p.heads, cx.program.slots],
        by_rows: ByRows::Fixed,
        block: THREADS,
        shared: 0,
        args: args(&DeltaArgs {
            step: cx.step,
            states: cx.places.states,
            decay: cx.vector(command.weights[0]),
            dt_bias: cx.vector(command.weights[1]),
            x: cx.buffer(x),
            gates: cx.buffer(gates),
            y: cx.buffer(y),
            state: cx.buffer(state) + u64::from(p.layer) * u64::from(pages) * page,
            pages: cx.places.page_tables.get(cache).copied().unwrap_or(0),
            key_heads: p.key_heads,
            heads: p.heads,
            value_dim: p.value_dim,
            tiled: p.tiled,
            eps: p.eps,
            x_stride: p.x_stride,
            gates_stride: p.gates_stride,
            y_stride: p.y_stride,
        }),
    })])
}

fn unit(key_dim: u32, by_channel: u32) -> Unit {
    Unit {
        file: "gated_delta.cu",
        generated: String::new(),
        defines: vec![
            ("KEY_DIM", key_dim.to_string()),
            ("BY_CHANNEL", by_channel.to_string()),
        ],
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    let listed = |by_channel| Listed {
        unit: unit(128, by_channel),
        hot: true,
    };
    [0, 1].map(listed).to_vec()
}
