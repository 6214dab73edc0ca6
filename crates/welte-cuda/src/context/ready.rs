//! Lowered passes with their kernels found, ready to be enqueued.

use crate::Error;
use crate::cublas::Gemm;
use crate::gpu::Kernel;
use crate::launch::{ByRows, Either, Launch, Node};
use crate::loaded::LoadedProgram;
use crate::lower::{Commands, LoweredPass, Lowering};
use crate::units::units_of;
use std::collections::BTreeSet;
use welte_table::{Pass, PassKind};

/// The decode pass: the first of a program, unless it is an encoder.
pub(super) const DECODE: usize = 0;

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
    Either(Either<Ready>),
}

impl Either<Ready> {
    /// The products of cuBLASLt.
    pub(super) fn products(&self) -> impl Iterator<Item = &Gemm> {
        self.library.iter().filter_map(|node| match node {
            Ready::Gemm(gemm) => Some(gemm),
            _ => None,
        })
    }

    /// The nodes in use.
    pub(super) fn chosen(&self) -> &[Ready] {
        let agrees = |gemm: &Gemm| gemm.plan.chosen().flatten().is_some();
        if self.products().all(agrees) {
            &self.library
        } else {
            &self.own
        }
    }
}

/// A pass, ready to be replayed.
pub(super) struct ReadyPass {
    pub(super) kind: PassKind,
    pub(super) rows: u32,
    /// Floats of one output row, and the address of the first.
    pub(super) width: u32,
    pub(super) result: u64,
    /// The first command that is launched for output rows.
    pub(super) outputs_from: usize,
    /// The nodes of each command, for any number of rows.
    pub(super) commands: Vec<Vec<Ready>>,
    /// For at most so many rows, fewest first.
    few: Vec<(u32, Vec<Vec<Ready>>)>,
}

impl ReadyPass {
    /// The nodes of each command for a number of rows.
    pub(super) fn commands(&self, rows: usize) -> &[Vec<Ready>] {
        let few = self.few.iter().find(|(most, _)| rows <= *most as usize);
        few.map_or(&self.commands, |(_, commands)| commands)
    }
}

/// A launch with its kernel found.
pub(super) fn ready_one(loaded: &LoadedProgram, launch: Launch) -> Result<Ready, Error> {
    Ok(Ready::Kernel {
        kernel: loaded.kernel(&launch)?,
        grid: launch.grid,
        by_rows: launch.by_rows,
        args: launch.args,
    })
}

/// Nodes with their kernels found.
fn ready(loaded: &LoadedProgram, nodes: Vec<Node>) -> Result<Vec<Ready>, Error> {
    let all = nodes.into_iter().map(|node| match node {
        Node::Gemm(gemm) => Ok(Ready::Gemm(gemm)),
        Node::Kernel(launch) => ready_one(loaded, launch),
        Node::ForRows { least, most, nodes } => Ok(Ready::ForRows {
            least,
            most,
            nodes: ready(loaded, nodes)?,
        }),
        Node::Either(either) => Ok(Ready::Either(Either {
            library: ready(loaded, either.library)?,
            own: ready(loaded, either.own)?,
            probe: either.probe,
        })),
    });
    all.collect()
}

/// All passes, lowered and with their kernels found.
pub(super) fn ready_passes(
    loaded: &LoadedProgram,
    cx: &Lowering<'_>,
) -> Result<Vec<ReadyPass>, Error> {
    let passes = &loaded.program.passes;
    let lowered = passes.iter().map(|pass| cx.pass(pass));
    let lowered: Vec<LoweredPass> = lowered.collect::<Result<_, Error>>()?;
    let units: BTreeSet<_> = lowered.iter().flat_map(units_of).collect();
    loaded.add_modules(&units.into_iter().collect::<Vec<_>>())?;
    let all = |commands: Commands| -> Result<Vec<Vec<Ready>>, Error> {
        commands
            .into_iter()
            .map(|nodes| ready(loaded, nodes))
            .collect()
    };
    let make = |(pass, lowered): (&Pass, LoweredPass)| {
        let few = lowered.few.into_iter();
        let few = few.map(|(rows, commands)| Ok((rows, all(commands)?)));
        Ok(ReadyPass {
            kind: pass.kind,
            rows: pass.rows,
            width: pass.width,
            result: cx.buffer(pass.result),
            // The command before reads all rows, but is launched for output rows.
            outputs_from: pass.outputs_from().map_or(usize::MAX, |from| from - 1),
            commands: all(lowered.commands)?,
            few: few.collect::<Result<_, Error>>()?,
        })
    };
    passes.iter().zip(lowered).map(make).collect()
}
