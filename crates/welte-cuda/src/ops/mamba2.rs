//! The state space model of Mamba-2 over a recurrent state.

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
    /// `MambaArgs` of `mamba2.cu`.
    struct MambaArgs = "MambaArgs" {
        step: u64,
        states: u64,
        decay: u64,
        dt_bias: u64,
        skip: u64,
        x: u64,
        dt: u64,
        y: u64,
        state: u64,
        pages: u64,
        groups: u32,
        heads: u32,
        value_dim: u32,
        x_stride: u32,
        dt_stride: u32,
        y_stride: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[MambaArgs::LAYOUT];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, _rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::Mamba2::of(&command.params);
    let [x, dt, y, state] = command.buffers;
    let cache = kv::index(cx.program, command);
    let cache =
        cache.ok_or_else(|| Error::Program("a state space model without a state".to_string()))?;
    let pages = cx.program.caches[cache].pages;
    let page = u64::from(p.heads) * u64::from(p.key_dim) * u64::from(p.value_dim) * 4;
    Ok(vec![Node::Kernel(Launch {
        unit: unit(p.key_dim, p.by_channel),
        // Both give the same bits.
        function: match cx.arithmetic {
            Arithmetic::Prompt => "mamba2_rows",
            _ => "mamba2",
        },
        grid: [p.value_dim.div_ceil(COLUMNS), p.heads, cx.program.slots],
        by_rows: ByRows::Fixed,
        block: THREADS,
        shared: 0,
        args: args(&MambaArgs {
            step: cx.step,
            states: cx.places.states,
            decay: cx.vector(command.weights[0]),
            dt_bias: cx.vector(command.weights[1]),
            skip: cx.vector(command.weights[2]),
            x: cx.buffer(x),
            dt: cx.buffer(dt),
            y: cx.buffer(y),
            state: cx.buffer(state) + u64::from(p.layer) * u64::from(pages) * page,
            pages: cx.places.page_tables.get(cache).copied().unwrap_or(0),
            groups: p.groups,
            heads: p.heads,
            value_dim: p.value_dim,
            x_stride: p.x_stride,
            dt_stride: p.dt_stride,
            y_stride: p.y_stride,
        }),
    })])
}

fn unit(key_dim: u32, by_column: u32) -> Unit {
    Unit {
        file: "mamba2.cu",
        generated: String::new(),
        defines: vec![
            ("KEY_DIM", key_dim.to_string()),
            ("BY_COLUMN", by_column.to_string()),
        ],
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    let listed = |(key_dim, by_column)| Listed {
        unit: unit(key_dim, by_column),
        hot: true,
    };
    [(128, 0), (16, 1)].map(listed).to_vec()
}
