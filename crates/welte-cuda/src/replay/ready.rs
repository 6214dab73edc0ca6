//! Lowered tables with their kernels found, ready to be enqueued.

use crate::Error;
use crate::gpu::{Gpu, Kernel};
use crate::launch::{ByRows, Launch, Node, Unit};
use crate::load::{Inner, units_of};
use crate::lower::{LoweredTable, Lowering, Places};
use crate::ops::library::Gemm;
use std::collections::BTreeSet;
use std::sync::Arc;
use welte_table::Shape;

/// A node that is ready to be enqueued.
pub(super) enum Ready {
    Kernel {
        kernel: Kernel,
        grid: [u32; 3],
        by_rows: ByRows,
        args: Vec<u8>,
    },
    Gemm(Gemm),
    ForRows {
        least: u32,
        most: u32,
        nodes: Vec<Ready>,
    },
}

/// A table, ready to be replayed.
pub(super) struct ReadyTable {
    pub(super) shape: Shape,
    /// Per command: its nodes.
    pub(super) commands: Vec<Vec<Ready>>,
    pub(super) logits: u64,
    pub(super) sample: Vec<Ready>,
}

/// A launch with its kernel found.
pub(super) fn ready_one(inner: &Inner, launch: Launch) -> Result<Ready, Error> {
    Ok(Ready::Kernel {
        kernel: inner.kernel(&launch)?,
        grid: launch.grid,
        by_rows: launch.by_rows,
        args: launch.args,
    })
}

/// Nodes with their kernels found.
fn ready(inner: &Inner, nodes: Vec<Node>) -> Result<Vec<Ready>, Error> {
    let ready = nodes.into_iter().map(|node| match node {
        Node::Gemm(gemm) => Ok(Ready::Gemm(gemm)),
        Node::Kernel(launch) => ready_one(inner, launch),
        Node::ForRows { least, most, nodes } => Ok(Ready::ForRows {
            least,
            most,
            nodes: ready(inner, nodes)?,
        }),
    });
    ready.collect()
}

pub(super) fn ready_tables(
    inner: &Inner,
    gpu: &Arc<Gpu>,
    places: &Places,
) -> Result<Vec<ReadyTable>, Error> {
    let cx = Lowering::new(&inner.program, &gpu.info, gpu, &inner.weights, places);
    let lowered: Vec<LoweredTable> = inner
        .program
        .tables
        .iter()
        .map(|table| cx.lower(table))
        .collect::<Result<_, Error>>()?;
    let mut units: BTreeSet<_> = lowered.iter().flat_map(units_of).collect();
    units.insert(turn_unit());
    inner.add_modules(&units.into_iter().collect::<Vec<_>>())?;
    let make = |table: LoweredTable| -> Result<ReadyTable, Error> {
        let commands = table.commands.into_iter().map(|c| ready(inner, c));
        Ok(ReadyTable {
            shape: table.shape,
            commands: commands.collect::<Result<_, Error>>()?,
            logits: table.logits,
            sample: ready(inner, table.sample)?,
        })
    };
    lowered.into_iter().map(make).collect()
}

/// What the end of a loop's turn is compiled from.
pub(crate) fn turn_unit() -> Unit {
    Unit {
        file: "turn.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}
