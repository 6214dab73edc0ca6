//! A matrix for each head.

use crate::arithmetic::Arithmetic;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use crate::{Error, layout};
use welte_table::{Command, Format, params};

/// Outputs of a group of lanes, and rows and outputs of a block: `EACH` and `TILE` of `heads.cu`.
const EACH: u32 = 2;
const TILE: u32 = 64;
/// Threads per block.
const THREADS: u32 = 256;
/// The most loads of a lane that are in flight at once.
const MOST_HELD: u32 = 4;

mirrored! {
    /// `HeadsArgs` of `heads.cu`.
    struct HeadsArgs = "HeadsArgs" {
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
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[HeadsArgs::LAYOUT];

/// How a generated row's product is cut.
struct Plan {
    /// Elements of a load.
    unit: u32,
    /// Lanes that share an output.
    lanes: u32,
    held: u32,
}

impl Plan {
    fn of(format: Format, k: u32) -> Plan {
        let unit = if format.rounds_activations() { 32 } else { 8 };
        let units = k.div_ceil(unit);
        let lanes = units.next_power_of_two().min(32);
        Plan {
            unit,
            lanes,
            held: units.div_ceil(lanes).min(MOST_HELD),
        }
    }

    /// Bytes of the inputs, with a float left out after each unit.
    fn shared(&self, k: u32) -> u32 {
        k.div_ceil(self.unit) * (self.unit + 1) * 4
    }

    fn code(&self, format: Format) -> Unit {
        let mut defines = layout::format_defines(format);
        defines.push(("LANES", self.lanes.to_string()));
        defines.push(("HELD", self.held.to_string()));
        Unit {
            file: "heads.cu",
            generated: String::new(),
            defines,
        }
    }
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::HeadsMatmul::of(&command.params);
    let weight = cx.weight(command.weights[0]);
    if p.heads.checked_mul(p.n) != Some(weight.n) || p.k != weight.k {
        return Err(Error::Program(format!(
            "heads_matmul of {} heads of {} x {} with a weight of {} x {}",
            p.heads, p.n, p.k, weight.n, weight.k
        )));
    }
    let plan = Plan::of(weight.format, p.k);
    let [x, y, ..] = command.buffers;
    // The order of sums is that of the arithmetic, so it does not depend on the number of rows.
    let (function, per, outputs, shared) = match cx.arithmetic {
        Arithmetic::Prompt => ("heads_matmul_rows", TILE, TILE, 0),
        _ => {
            let outputs = THREADS / plan.lanes * EACH;
            ("heads_matmul", 1, outputs, plan.shared(p.k))
        }
    };
    Ok(vec![Node::Kernel(Launch {
        unit: plan.code(weight.format),
        function,
        grid: [rows.max(1).div_ceil(per), p.heads, p.n.div_ceil(outputs)],
        by_rows: ByRows::Axis { axis: 0, per },
        block: THREADS,
        shared,
        args: args(&HeadsArgs {
            step: cx.step,
            matrices: weight.start,
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

/// The units that tests compile: one format of each kind that decodes in its own way, with the latents of large models.
pub(crate) fn catalogue() -> Vec<Listed> {
    use Format::{BF16, F8_E4M3, F16, F32, Q4_K, Q5_0, Q6_K, Q8_0};
    [F32, F16, BF16, F8_E4M3, Q4_K, Q5_0, Q6_K, Q8_0]
        .map(|format| Listed {
            unit: Plan::of(format, 512).code(format),
            hot: matches!(format, F16 | BF16 | Q8_0),
        })
        .into()
}
