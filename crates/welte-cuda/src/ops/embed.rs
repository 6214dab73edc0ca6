//! `embed`: lowering.

use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use crate::{Error, layout};
use welte_table::{Command, Format, params};

/// Threads per block.
const THREADS: u32 = 128;

mirrored! {
    /// `EmbedArgs` of `embed.cu`.
    struct EmbedArgs = "EmbedArgs" {
        weight: u64,
        tokens: u64,
        x: u64,
        step: u64,
        features: u64,
        n: u32,
        k: u32,
        x_stride: u32,
        scale: f32,
        feature_stride: u32,
        pad: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[EmbedArgs::LAYOUT];

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::Embed::of(&command.params);
    let table = cx.weight(command.weights[0]);
    let unit = if table.format.rounds_activations() {
        32
    } else {
        8
    };
    Ok(vec![Node::Kernel(Launch {
        unit: unit_of(table.format),
        function: "embed",
        grid: [p.k.div_ceil(unit).div_ceil(THREADS).max(1), rows, 1],
        by_rows: ByRows::Axis { axis: 1, per: 1 },
        block: THREADS,
        shared: 0,
        args: args(&EmbedArgs {
            weight: table.start,
            tokens: cx.buffer(command.buffers[0]),
            x: cx.buffer(command.buffers[1]),
            step: cx.step,
            features: features(cx, command),
            n: table.n,
            k: p.k,
            x_stride: p.x_stride,
            scale: p.scale,
            feature_stride: cx.program.feature_width() as u32,
            pad: 0,
        }),
    })])
}

/// The address of the features that rows may read in place of tokens; 0 if the command takes none.
fn features(cx: &Lowering<'_>, command: &Command) -> u64 {
    if cx.program.takes_features(command) {
        cx.features()
    } else {
        0
    }
}

/// The unit that looks up rows of a format.
fn unit_of(format: Format) -> Unit {
    Unit {
        file: "embed.cu",
        generated: String::new(),
        defines: layout::format_defines(format),
    }
}

/// The units that tests compile: lookup and repacking of every format.
pub(crate) fn catalogue() -> Vec<Listed> {
    layout::listed()
        .flat_map(|format| [unit_of(format), layout::repack_unit(format)])
        .map(|unit| Listed { unit, hot: false })
        .collect()
}
