//! Sparse attention: the choice of the positions that a row sees, and attention over these.

use super::gemm::for_rows;
use super::kv::{Kv, KvShape};
use super::need::MemoryNeed;
use crate::Error;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use welte_table::{Command, Format, params};

/// `SCORE_THREADS` and `CHOOSE_THREADS` of `choose_positions.cu`.
const SCORE_THREADS: u32 = 128;
const CHOOSE_THREADS: u32 = 512;
/// Rows whose scores are in memory at a time.
const SCORED_ROWS: u32 = 256;
/// `THREADS` and `TILE` of `attention_sparse.cu`.
const THREADS: u32 = 128;
const TILE: u32 = 32;
/// Heads of a block in steps of few rows, where many blocks count, and of others, where each position is better read for many heads.
const HEADS: [u32; 2] = [4, 8];
/// The most rows that are few.
const FEW_ROWS: u32 = 16;

mirrored! {
    /// `ChooseArgs` of `choose_positions.cu`.
    struct ChooseArgs = "ChooseArgs" {
        step: u64,
        q: u64,
        gates: u64,
        y: u64,
        kv: Kv,
        scores: u64,
        heads: u32,
        q_stride: u32,
        gates_stride: u32,
        y_stride: u32,
        used: u32,
        context: u32,
        single: u32,
        first: u32,
    }
}

mirrored! {
    /// `SparseArgs` of `attention_sparse.cu`.
    struct SparseArgs = "SparseArgs" {
        step: u64,
        q: u64,
        y: u64,
        kv: Kv,
        chosen: u64,
        heads: u32,
        q_stride: u32,
        y_stride: u32,
        chosen_stride: u32,
        used: u32,
        scale: f32,
        single: u32,
        unused: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[Layout] = &[ChooseArgs::LAYOUT, SparseArgs::LAYOUT];

/// The kernels of a choice: scores, then the best, of some rows at a time.
pub(crate) fn lower_choice(
    cx: &Lowering<'_>,
    command: &Command,
    rows: u32,
) -> Result<Vec<Node>, Error> {
    let p = params::ChoosePositions::of(&command.params);
    let kv = shape(cx, command)?;
    let [q, _, gates, y] = command.buffers;
    let context = cx.program.context;
    let both = |first: u32| {
        let count = (rows - first).min(SCORED_ROWS);
        let a = ChooseArgs {
            step: cx.step,
            q: cx.buffer(q),
            gates: cx.buffer(gates),
            y: cx.buffer(y),
            kv: Kv::of_command(cx, command, p.layer),
            scores: cx.places.scratch,
            heads: p.heads,
            q_stride: p.q_stride,
            gates_stride: p.gates_stride,
            y_stride: p.y_stride,
            used: p.used,
            context,
            single: u32::from(rows == 1),
            first,
        };
        let by_rows = |axis| match first {
            0 => ByRows::Axis { axis, per: 1 },
            _ => ByRows::Fixed,
        };
        let launch = |function, grid, axis, block| {
            Node::Kernel(Launch {
                unit: choice_unit(&kv),
                function,
                grid,
                by_rows: by_rows(axis),
                block,
                shared: 0,
                args: args(&a),
            })
        };
        let blocks = context.div_ceil(SCORE_THREADS);
        vec![
            launch("choose_scores", [blocks, count, 1], 1, SCORE_THREADS),
            launch("choose_positions", [count, 1, 1], 0, CHOOSE_THREADS),
        ]
    };
    let more = (SCORED_ROWS..rows).step_by(SCORED_ROWS as usize);
    let more = more.map(|first| for_rows(first + 1, rows, both(first)));
    Ok(both(0).into_iter().chain(more).collect())
}

/// Private scratch of a choice: scores.
pub(crate) fn scratch(need: &MemoryNeed<'_>) -> u64 {
    4 * u64::from(need.rows.min(SCORED_ROWS)) * u64::from(need.program.context)
}

/// The kernel of attention over chosen positions.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::SparseAttention::of(&command.params);
    let kv = shape(cx, command)?;
    let [q, _, chosen, y] = command.buffers;
    let heads = HEADS[usize::from(rows > FEW_ROWS)];
    let group = p.heads / p.kv_heads.max(1);
    Ok(vec![Node::Kernel(Launch {
        unit: unit(&kv, heads),
        function: "attention_sparse",
        grid: [rows, p.kv_heads * group.div_ceil(heads), 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: THREADS,
        shared: shared(&kv),
        args: args(&SparseArgs {
            step: cx.step,
            q: cx.buffer(q),
            y: cx.buffer(y),
            kv: Kv::of_command(cx, command, p.layer),
            chosen: cx.buffer(chosen),
            heads: p.heads,
            q_stride: p.q_stride,
            y_stride: p.y_stride,
            chosen_stride: p.chosen_stride,
            used: p.used,
            scale: p.scale,
            single: u32::from(rows == 1),
            unused: 0,
        }),
    })])
}

fn shape(cx: &Lowering<'_>, command: &Command) -> Result<KvShape, Error> {
    let shape = KvShape::of(cx.program, command);
    shape.ok_or_else(|| Error::Program("attention without a cache".to_string()))
}

/// Bytes of a tile: `STRIDE` of `attention_sparse.cu` for each position.
fn shared(kv: &KvShape) -> u32 {
    let row = match kv.format {
        Format::Q8_0 => kv.head_dim / 32 * 34,
        _ => kv.head_dim * 2,
    };
    TILE * (row + if row.is_multiple_of(16) { 16 } else { 2 })
}

fn choice_unit(kv: &KvShape) -> Unit {
    Unit {
        file: "choose_positions.cu",
        generated: String::new(),
        defines: kv.defines(),
    }
}

fn unit(kv: &KvShape, heads: u32) -> Unit {
    let mut defines = kv.defines();
    defines.push(("HEADS", heads.to_string()));
    Unit {
        file: "attention_sparse.cu",
        generated: String::new(),
        defines,
    }
}

/// The units that tests compile.
pub(crate) fn catalogue() -> Vec<Listed> {
    let layout = |head_dim, format| KvShape {
        format,
        head_dim,
        page: 64,
        context: 64,
    };
    let formats = [Format::F16, Format::Q8_0];
    let units = formats.into_iter().flat_map(|format| {
        let wide = layout(576, format);
        let attention = HEADS.map(|heads| unit(&wide, heads));
        [choice_unit(&layout(64, format))]
            .into_iter()
            .chain(attention)
    });
    units.map(|unit| Listed { unit, hot: false }).collect()
}
