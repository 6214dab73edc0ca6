//! Mixtures of experts: `route`, `experts_act_mul` and `experts_add`.
//!
//! With few slots generated rows are multiplied one at a time with the matrices of their experts (`matmul.cu`). Prompt rows, and
//! generated rows of many slots, are grouped: entries (a row with one of its experts) are sorted by expert on the GPU, and tiles of
//! entries are multiplied with that expert's matrix (`gemm.cu`), which is thus read once. The host does not know the choice, so the
//! grid has room for the largest possible number of tiles.

use super::basic;
use super::gemm::{Epilogue, GemmArgs, HEADROOM, Layout, PrepareArgs, for_rows, prepare_unit};
use super::matmul::{GROUP, MatmulArgs, Output, Plan, Product};
use super::need::MemoryNeed;
use super::tile::{PANEL, Tile};
use crate::arithmetic::Arithmetic;
use crate::info::h200;
use crate::launch::{ByRows, DeviceWeight, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{self, mirrored};
use crate::{Error, GpuInfo, layout};
use welte_table::{Command, Format, Op, params};

/// `MOST_EXPERTS` of experts.cu.
const MOST_EXPERTS: u32 = 1024;

/// From this number of slots on, generated rows are grouped by expert. Fewer rows are faster one at a time.
const GROUPED_SLOTS: u32 = 32;

/// Whether rows are grouped by expert.
fn is_grouped(arithmetic: Arithmetic, slots: u32) -> bool {
    match arithmetic {
        Arithmetic::Generated => false,
        Arithmetic::Batched => slots >= GROUPED_SLOTS,
        Arithmetic::Prompt => true,
    }
}

/// A command of this family, with its operands.
#[derive(Clone, Copy)]
struct Job {
    weight: DeviceWeight,
    output: Output,
    act: u32,
    /// Output and input values of an expert.
    n: u32,
    k: u32,
    experts: u32,
    used: u32,
    choice_stride: u32,
    x_stride: u32,
    y_stride: u32,
}

impl Job {
    fn of(command: &Command, weight: DeviceWeight) -> Result<Job, Error> {
        let words = &command.params;
        let job = match command.op {
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(words);
                Job {
                    weight,
                    output: match p.act {
                        4 => Output::SquaredRelu,
                        // Without activation: gate and up are one matrix.
                        5 | 6 => Output::Store,
                        _ => Output::ActMul,
                    },
                    act: p.act,
                    n: p.width(),
                    k: p.k,
                    experts: p.experts,
                    used: p.used,
                    choice_stride: p.choice_stride,
                    x_stride: p.x_stride,
                    y_stride: p.y_stride,
                }
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(words);
                Job {
                    weight,
                    output: Output::Add,
                    act: 0,
                    n: p.n,
                    k: p.k,
                    experts: p.experts,
                    used: p.used,
                    choice_stride: p.choice_stride,
                    x_stride: p.x_stride,
                    y_stride: p.y_stride,
                }
            }
            op => return Err(refuse(format!("{} has no experts", op.name()))),
        };
        let rows = job.matrices().checked_mul(job.n);
        let same = rows == Some(weight.n) && job.k == weight.k && job.k > 0 && job.n > 0;
        if !same || job.used == 0 || job.used > job.experts || job.experts > MOST_EXPERTS {
            return Err(refuse(format!(
                "{}: {} of {} experts (at most {MOST_EXPERTS}) of n {} and k {} with a weight of {} x {}",
                command.op.name(),
                job.used,
                job.experts,
                job.n,
                job.k,
                weight.n,
                weight.k
            )));
        }
        Ok(job)
    }

    fn matrices(&self) -> u32 {
        let each = if self.output == Output::ActMul { 2 } else { 1 };
        self.experts.saturating_mul(each)
    }

    /// The outputs of a row's experts are added. Otherwise each is stored.
    fn adds(&self) -> bool {
        self.output == Output::Add
    }

    fn product(&self) -> Product {
        Product {
            format: self.weight.format,
            norm: false,
            output: self.output,
            n: self.n,
            k: self.k,
            used: self.used,
        }
    }

    fn bfloat(&self) -> bool {
        self.weight.format == Format::BF16
    }

    /// The rows of x that the tiles read. Where each expert has its own x, these are entries.
    fn x_rows(&self, rows: u32) -> u32 {
        if self.adds() {
            rows.saturating_mul(self.used)
        } else {
            rows
        }
    }

    /// The tile for `rows` rows that choose experts evenly. A tile's weights are widened once for all its entries, so one larger
    /// tile per expert is better than two.
    fn tile(&self, gpu: &GpuInfo, rows: u32) -> Tile {
        let mean = (u64::from(rows) * u64::from(self.used)).div_ceil(self.experts.into());
        Tile::of_entries(gpu, (mean + mean / 2).min(128) as u32)
    }

    /// The most tiles for `rows` rows.
    fn most_tiles(&self, tile: Tile, rows: u32) -> u32 {
        let entries = rows * self.used;
        (entries / tile.rows + self.experts).min(entries)
    }
}

fn refuse(problem: String) -> Error {
    Error::Program(problem)
}

/// `experts_add` reads the choice before it waits for its predecessor. This is sound only if `experts_act_mul` runs between
/// `route` and it, because that kernel lets nothing start before the choice is complete.
pub(crate) fn check_order(commands: &[Command]) -> Result<(), Error> {
    let mut made = false;
    for command in commands {
        match command.op {
            Op::Route => made = false,
            Op::ExpertsActMul => made = true,
            Op::ExpertsAdd if !made => {
                return Err(refuse(
                    "experts_add without experts_act_mul between route and it".to_string(),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    if command.op == Op::Route {
        return route(cx, command, rows);
    }
    let job = Job::of(command, cx.weight(command.weights[0]))?;
    let rows = rows.max(1);
    if rows.checked_mul(job.used).is_none() {
        return Err(refuse(format!(
            "{rows} rows with {} experts each",
            job.used
        )));
    }
    if !is_grouped(cx.arithmetic, cx.program.slots) {
        return Ok(vec![generated(cx, command, &job, rows)?]);
    }
    let mut nodes = Vec::new();
    let (mut least, mut most) = (0, 16u32);
    while least <= rows {
        most = most.min(rows);
        nodes.push(for_rows(
            least,
            most,
            grouped(cx, command, &job, rows, most),
        ));
        (least, most) = (most + 1, most.saturating_mul(8));
    }
    Ok(nodes)
}

mirrored! {
    /// `RouteArgs` of experts.cu.
    struct RouteArgs = "RouteArgs" {
        step: u64,
        x: u64,
        y: u64,
        scales: u64,
        experts: u32,
        used: u32,
        renormalise: u32,
        scale: f32,
        x_stride: u32,
        y_stride: u32,
        bias: u64,
        scoring: u32,
        groups: u32,
        used_groups: u32,
        group_top: u32,
        margin: f32,
        pad: u32,
    }
}

fn route(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let p = params::Route::of(&command.params);
    if p.used == 0 || p.used > p.experts || p.experts > MOST_EXPERTS {
        let (used, experts) = (p.used, p.experts);
        return Err(refuse(format!(
            "route to {used} of {experts} experts; there may be {MOST_EXPERTS}"
        )));
    }
    let values = RouteArgs {
        step: cx.step,
        x: cx.buffer(command.buffers[0]),
        y: cx.buffer(command.buffers[1]),
        scales: cx.vector(command.weights[1]),
        experts: p.experts,
        used: p.used,
        renormalise: p.renormalise,
        scale: p.scale,
        x_stride: p.x_stride,
        y_stride: p.y_stride,
        bias: cx.vector(command.weights[0]),
        scoring: p.scoring,
        groups: p.groups,
        used_groups: p.used_groups,
        group_top: p.group_top,
        margin: p.margin,
        pad: 0,
    };
    let by_logits = p.scoring == 0 && p.groups == 1 && values.bias == 0;
    Ok(vec![Node::Kernel(Launch {
        unit: unit(p.experts),
        function: if by_logits { "route" } else { "route_scored" },
        grid: [rows.max(1), 1, 1],
        by_rows: ByRows::Axis { axis: 0, per: 1 },
        block: 32,
        shared: 0,
        args: args(&values),
    })])
}

/// `experts.cu` for a number of experts.
fn unit(experts: u32) -> Unit {
    let per_lane = experts.div_ceil(32).next_power_of_two();
    Unit {
        file: "experts.cu",
        generated: String::new(),
        defines: vec![("PER_LANE", per_lane.to_string())],
    }
}

mirrored! {
    struct VectorArgs = "MatmulArgs" if "USED" extends MatmulArgs {
        choice: u64,
        choice_stride: u32,
        experts: u32,
        bias: u64,
    }
}

/// Matrix-vector products for up to `rows` rows.
fn generated(cx: &Lowering<'_>, command: &Command, job: &Job, rows: u32) -> Result<Node, Error> {
    let product = job.product();
    let plan = product.plan(1, cx.gpu)?;
    let outputs = match job.output {
        Output::ActMul => GROUP / 2,
        _ => GROUP,
    };
    let each = job.n.div_ceil(outputs);
    let groups = if job.adds() { each } else { each * job.used };
    let values = VectorArgs {
        plain: MatmulArgs {
            weight: job.weight.start,
            x: cx.buffer(command.buffers[0]),
            y: cx.buffer(command.buffers[2]),
            norm: 0,
            step: cx.step,
            n: job.n,
            k: job.k,
            x_stride: job.x_stride,
            y_stride: job.y_stride,
            first: 0,
            eps: 0.0,
            act: job.act,
            shares: 0,
        },
        choice: cx.buffer(command.buffers[1]),
        choice_stride: job.choice_stride,
        experts: job.experts,
        bias: cx.vector(command.weights[1]),
    };
    Ok(Node::Kernel(Launch {
        unit: product.unit(&plan),
        function: "matmul",
        grid: [(cx.gpu.sms * plan.blocks).clamp(1, groups), rows, 1],
        by_rows: ByRows::Axis { axis: 1, per: 1 },
        block: plan.warps * 32,
        shared: plan.shared,
        args: args(&values),
    }))
}

/// Addresses in the command's private memory, for a table of `rows` rows.
struct Private {
    /// 16-bit activations.
    x: u64,
    groups: u64,
    /// The experts' outputs, before they are added.
    parts: u64,
    end: u64,
}

impl Private {
    fn of(start: u64, job: &Job, rows: u32) -> Private {
        let aligned = |bytes: u64| bytes.next_multiple_of(256);
        let entries = u64::from(rows) * u64::from(job.used);
        let k = u64::from(job.k.next_multiple_of(PANEL));
        let groups = start + aligned(k * 2 * u64::from(job.x_rows(rows)));
        // The number of tiles, three words per tile (there are at most as many tiles as entries), and the entries.
        let parts = groups + aligned(4 * (1 + 4 * entries));
        let each = if job.adds() { job.n } else { 0 };
        Private {
            x: start,
            groups,
            parts,
            end: parts + aligned(4 * entries * u64::from(each)),
        }
    }
}

mirrored! {
    /// `GroupArgs` of experts.cu.
    struct GroupArgs = "GroupArgs" {
        step: u64,
        choice: u64,
        groups: u64,
        choice_stride: u32,
        used: u32,
        experts: u32,
        tile_rows: u32,
        most: u32,
        pad: u32,
    }
}

mirrored! {
    struct TileArgs = "GemmArgs" if "EXPERTS" extends GemmArgs {
        groups: u64,
        used: u32,
        sharing: u32,
        bias: u64,
    }
}

mirrored! {
    /// `CombineArgs` of experts.cu.
    struct CombineArgs = "CombineArgs" {
        step: u64,
        choice: u64,
        parts: u64,
        y: u64,
        choice_stride: u32,
        used: u32,
        n: u32,
        y_stride: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[mirror::Layout] = &[
    RouteArgs::LAYOUT,
    GroupArgs::LAYOUT,
    CombineArgs::LAYOUT,
    VectorArgs::LAYOUT,
    TileArgs::LAYOUT,
];

/// Products of tiles of entries, for up to `most` rows of a table of `rows`.
fn grouped(cx: &Lowering<'_>, command: &Command, job: &Job, rows: u32, most: u32) -> Vec<Node> {
    let private = Private::of(cx.places.scratch, job, rows);
    let choice = cx.buffer(command.buffers[1]);
    let y = cx.buffer(command.buffers[2]);
    let tile = job.tile(cx.gpu, most);
    let tiles = job.most_tiles(tile, most);
    let group = GroupArgs {
        step: cx.step,
        choice,
        groups: private.groups,
        choice_stride: job.choice_stride,
        used: job.used,
        experts: job.experts,
        tile_rows: tile.rows,
        most: tiles,
        pad: 0,
    };
    let kernel = |function, grid, by_rows, block, args| {
        Node::Kernel(Launch {
            unit: unit(job.experts),
            function,
            grid,
            by_rows,
            block,
            shared: 0,
            args,
        })
    };
    let each_row = |axis| ByRows::Axis { axis, per: 1 };
    let mut nodes = vec![
        kernel(
            "group",
            [1, 1, 1],
            ByRows::Fixed,
            MOST_EXPERTS,
            args(&group),
        ),
        prepare(cx, command, job, &private, rows, most),
        product(cx, command, job, &private, rows, tile, tiles),
    ];
    if job.adds() {
        let combine = CombineArgs {
            step: cx.step,
            choice,
            parts: private.parts,
            y,
            choice_stride: job.choice_stride,
            used: job.used,
            n: job.n,
            y_stride: job.y_stride,
        };
        let grid = [most, job.n.div_ceil(basic::STRETCH), 1];
        nodes.push(kernel("combine", grid, each_row(0), 256, args(&combine)));
    }
    nodes
}

/// Converts rows of x, or of each entry, to 16 bits.
fn prepare(
    cx: &Lowering<'_>,
    command: &Command,
    job: &Job,
    private: &Private,
    rows: u32,
    most: u32,
) -> Node {
    let each = job.x_rows(1);
    let values = PrepareArgs {
        x: cx.buffer(command.buffers[0]),
        weight: 0,
        out: private.x,
        step: cx.step,
        k: job.k,
        x_stride: job.x_stride,
        out_rows: job.x_rows(rows),
        out_stride: job.k.next_multiple_of(32),
        normed: 0,
        eps: 0.0,
        scale: 1.0 / scale(job),
        each,
        scales: 0,
    };
    Node::Kernel(Launch {
        unit: prepare_unit(job.bfloat(), Layout::Tiled),
        function: "prepare",
        grid: [each, most, 1],
        by_rows: ByRows::Axis { axis: 1, per: 1 },
        block: 256,
        shared: 0,
        args: args(&values),
    })
}

/// The factor on the sums.
fn scale(job: &Job) -> f32 {
    if job.bfloat() { 1.0 } else { HEADROOM }
}

fn product(
    cx: &Lowering<'_>,
    command: &Command,
    job: &Job,
    private: &Private,
    rows: u32,
    tile: Tile,
    tiles: u32,
) -> Node {
    let y = cx.buffer(command.buffers[2]);
    let (to, y_stride, epilogue, per_tile) = match job.output {
        Output::ActMul => (y, job.y_stride, Epilogue::ActMul, tile.n / 2),
        Output::SquaredRelu => (y, job.y_stride, Epilogue::SquaredRelu, tile.n),
        Output::Store => (y, job.y_stride, Epilogue::Store, tile.n),
        Output::Add => (private.parts, job.used * job.n, Epilogue::Store, tile.n),
    };
    let plain = GemmArgs {
        weight: job.weight.start,
        x: private.x,
        y: to,
        step: cx.step,
        n: job.weight.n,
        k: job.k,
        columns: job.n,
        x_rows: job.x_rows(rows),
        y_stride,
        act: job.act,
        epilogue: epilogue as u32,
        scale: scale(job),
    };
    let values = TileArgs {
        plain,
        groups: private.groups,
        used: job.used,
        sharing: if job.adds() { 1 } else { job.used },
        bias: cx.vector(command.weights[1]),
    };
    Node::Kernel(Launch {
        unit: tile.experts_unit(job.weight.format),
        function: "gemm",
        grid: [tiles, job.n.div_ceil(per_tile), 1],
        by_rows: ByRows::Fixed,
        block: tile.threads(),
        shared: tile.shared(job.weight.format),
        args: args(&values),
    })
}

/// Private scratch of a command. Matrix-vector kernels have none.
pub(crate) fn scratch(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    if !is_grouped(need.arithmetic, need.program.slots) {
        return 0;
    }
    let spec = need.program.weights.get(command.weights[0] as usize);
    let job = spec.and_then(|spec| {
        let weight = DeviceWeight {
            start: 0,
            format: spec.format,
            n: spec.n,
            k: spec.k,
            one_scale: false,
        };
        Job::of(command, weight).ok()
    });
    // Lowering refuses an invalid command.
    job.map_or(0, |job| Private::of(0, &job, need.rows).end)
}

/// The units that tests compile: every format for one row and for many.
pub(crate) fn catalogue() -> Vec<Listed> {
    let plan = Plan {
        columns: 1,
        warps: 8,
        blocks: 2,
        shares: 1,
        stages: 4,
        shared: 0,
    };
    let hot = |unit: Unit| Listed { unit, hot: true };
    let cold = |unit: Unit| Listed { unit, hot: false };
    let mut listed = vec![hot(unit(128)), cold(unit(MOST_EXPERTS))];
    let product = |format, (output, n, k)| Product {
        format,
        norm: false,
        output,
        n,
        k,
        used: 8,
    };
    listed.push(cold(
        product(Format::Q4_K, (Output::Store, 1536, 2048)).unit(&plan),
    ));
    for rows in [32, 64] {
        let tile = Tile::of_entries(&h200(), rows);
        listed.push(cold(tile.experts_unit(Format::Q4_K)));
    }
    for format in layout::listed() {
        for shape in [
            (Output::ActMul, 768, 2048),
            (Output::SquaredRelu, 1856, 2688),
            (Output::Add, 2048, 768),
        ] {
            listed.push(hot(product(format, shape).unit(&plan)));
        }
        let tile = Tile::of_entries(&h200(), 128);
        listed.push(cold(tile.experts_unit(format)));
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(output: Output, experts: u32, used: u32) -> Job {
        Job {
            weight: DeviceWeight {
                start: 0,
                format: Format::Q4_K,
                n: 0,
                k: 768,
                one_scale: false,
            },
            output,
            act: 0,
            n: 2048,
            k: 768,
            experts,
            used,
            choice_stride: 0,
            x_stride: 0,
            y_stride: 0,
        }
    }

    #[test]
    fn there_is_room_for_every_tile() {
        for (experts, used) in [(8, 2), (128, 8), (4, 4), (1, 1), (1000, 3)] {
            let job = job(Output::ActMul, experts, used);
            for rows in [17, 68, 512, 2048] {
                let tile = job.tile(&h200(), rows);
                let entries = rows * used;
                let most = job.most_tiles(tile, rows);
                // The most uneven choice: every expert but one has a single entry.
                let lone = (experts - 1).min(entries);
                let tiles = lone + (entries - lone).div_ceil(tile.rows);
                assert!(tiles <= most && most <= entries, "{tiles} of {most}");
                let private = Private::of(0, &job, rows);
                let list = 4 * u64::from(1 + 3 * most + entries);
                assert!(private.groups + list <= private.parts);
            }
        }
    }

    #[test]
    fn a_sum_before_its_parts_is_refused() {
        let command = |op| Command::new(op, Format::F32, &[], &[], [0; 16]);
        let route = command(Op::Route);
        let (parts, sum) = (command(Op::ExpertsActMul), command(Op::ExpertsAdd));
        assert!(check_order(&[route, parts, sum, route, parts, sum]).is_ok());
        assert!(check_order(&[route, parts, sum, route, sum]).is_err());
    }

    #[test]
    fn tiles_grow_with_the_entries_of_an_expert() {
        let rows =
            |experts, used, rows| job(Output::ActMul, experts, used).tile(&h200(), rows).rows;
        assert_eq!(rows(128, 8, 17), 32);
        assert_eq!(rows(128, 8, 512), 64);
        assert_eq!(rows(8, 2, 512), 128);
    }

    #[test]
    fn parts_are_kept_only_where_they_are_added_up() {
        let bytes = |output| {
            let private = Private::of(0, &job(output, 128, 8), 512);
            private.end - private.parts
        };
        let sizes = [Output::ActMul, Output::SquaredRelu, Output::Add].map(bytes);
        assert_eq!(sizes, [0, 0, 512 * 8 * 2048 * 4]);
    }
}
