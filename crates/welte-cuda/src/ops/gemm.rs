//! Products of prompt rows on tensor cores.
//!
//! Rows are first normed and rounded to 16 bits (`prepare.cu`). Then there are two ways. Our tile kernel widens weights while it
//! multiplies (`gemm.cu`). Or cuBLASLt multiplies 16-bit weights: the matrix itself, or slabs that `dequant.cu` widens, each small
//! enough to stay in the L2 cache until it is read. The faster way depends on the number of live rows. A command therefore
//! becomes several lists of kernels, one of which runs. All lists give the same bits (`context/library.rs`).

use super::basic;
use super::need::MemoryNeed;
use super::tile::{MOST_TILE_ROWS, PANEL, Tile, flag};
use crate::Error;
use crate::cublas::{Gemm, Product, WORKSPACE, alignment};
use crate::launch::{ByRows, DeviceWeight, Either, Launch, Listed, Node, Probe, Unit, args};
use crate::layout::{format_defines, listed, planes};
use crate::lower::Lowering;
use crate::mirror::{self, mirrored};
use welte_table::{Command, Format, Op, params};

/// F16 activations without a norm are divided by this, and the sums are multiplied by it. An element may then be 4 million
/// before it is clamped, and the loss for small elements is below 2^-19.
pub(super) const HEADROOM: f32 = 64.0;

/// Bytes of 16-bit weights per slab. A slab larger than the L2 cache costs only memory. A small slab takes up to 1.5 times as
/// long, because cuBLASLt's blocks no longer fill the GPU (measured on an H200, over the products of a layer of Qwen3-4B).
const SLAB: u64 = 48 << 20;

/// Whether cuBLASLt takes the weights without conversion.
fn is_direct(format: Format) -> bool {
    matches!(format, Format::F16 | Format::BF16)
}

/// The epilogue (`gemm.cuh`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Epilogue {
    Store = 0,
    Add = 1,
    ActMul = 2,
    /// Of experts only.
    SquaredRelu = 3,
}

/// The order of prepared activations (`LAYOUT` of `prepare.cu`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Plain rows, for cuBLASLt.
    Rows = 0,
    /// The layout of `tile.cuh`.
    Tiled = 1,
    /// The order of `columns.cu`, and the same in the layout of `tile.cuh`.
    Operands = 2,
    TiledOperands = 3,
    /// FP8 in the layout of `tile.cuh`.
    Float8 = 4,
}

/// A product with its operands.
pub(super) struct Job {
    pub(super) weight: DeviceWeight,
    pub(super) normed: bool,
    /// Address of the norm's weights, or 0.
    pub(super) norm: u64,
    pub(super) eps: f32,
    pub(super) epilogue: Epilogue,
    pub(super) act: u32,
    /// Values per row of y.
    pub(super) columns: u32,
    pub(super) x: u64,
    pub(super) x_stride: u32,
    pub(super) y: u64,
    pub(super) y_stride: u32,
    /// The most rows.
    pub(super) rows: u32,
}

impl Job {
    pub(super) fn of(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Job, Error> {
        let weight = cx.weight(command.weights[0]);
        let mut job = Job {
            weight,
            normed: matches!(command.op, Op::NormMatmul | Op::NormMatmulActMul),
            norm: 0,
            eps: 0.0,
            epilogue: Epilogue::Store,
            act: 0,
            columns: weight.n,
            x: cx.buffer(command.buffers[0]),
            x_stride: 0,
            y: cx.buffer(command.buffers[1]),
            y_stride: 0,
            rows,
        };
        match command.op {
            Op::Matmul => {
                let p = params::Matmul::of(&command.params);
                (job.x_stride, job.y_stride) = (p.x_stride, p.y_stride);
            }
            Op::MatmulAdd => {
                let p = params::MatmulAdd::of(&command.params);
                (job.x_stride, job.y_stride) = (p.x_stride, p.y_stride);
                job.epilogue = Epilogue::Add;
            }
            Op::NormMatmul => {
                let p = params::NormMatmul::of(&command.params);
                (job.x_stride, job.y_stride) = (p.x_stride, p.y_stride);
                (job.norm, job.eps) = (cx.vector(command.weights[1]), p.eps);
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(&command.params);
                (job.x_stride, job.y_stride) = (p.x_stride, p.y_stride);
                (job.norm, job.eps) = (cx.vector(command.weights[1]), p.eps);
                (job.epilogue, job.act, job.columns) = (Epilogue::ActMul, p.act, p.n);
            }
            other => return Err(refuse(&format!("{} is not a matrix product", other.name()))),
        }
        let matrix_rows = if job.epilogue == Epilogue::ActMul {
            2
        } else {
            1
        };
        if job.columns.checked_mul(matrix_rows) != Some(weight.n) || weight.n == 0 || weight.k == 0
        {
            return Err(refuse("a matrix of the wrong size"));
        }
        Ok(job)
    }

    pub(super) fn bfloat(&self) -> bool {
        self.weight.format == Format::BF16
    }

    fn probe(&self) -> Probe {
        Probe {
            x: self.x,
            x_stride: self.x_stride,
            k: self.weight.k,
            y: self.y,
            y_stride: self.y_stride,
            columns: self.columns,
        }
    }

    /// The factor on the sums.
    pub(super) fn scale(&self) -> f32 {
        if self.bfloat() || self.normed {
            1.0
        } else {
            HEADROOM
        }
    }
}

fn refuse(problem: &str) -> Error {
    Error::Program(problem.to_string())
}

/// Addresses in the command's private memory.
struct Private {
    /// 16-bit activations.
    x: u64,
    /// cuBLASLt's workspace, then the slab, then gate and up.
    rest: u64,
    bytes: u64,
}

impl Private {
    fn of(start: u64, format: Format, n: u32, k: u32, rows: u32, act_mul: bool) -> Private {
        let x = u64::from(k.next_multiple_of(PANEL))
            * 2
            * u64::from(rows.next_multiple_of(MOST_TILE_ROWS));
        let slabs = Slabs::of(format, n, k, act_mul);
        let library = WORKSPACE + slabs.bytes() + slabs.gate_up_bytes(rows);
        Private {
            x: start,
            rest: start + x,
            bytes: x + library,
        }
    }
}

/// How a matrix is cut into slabs for cuBLASLt.
struct Slabs {
    columns: u32,
    /// Columns of y per slab.
    per: u32,
    /// Rows of the matrix per column of y.
    rows_per_column: u32,
    /// Elements from one row of a slab to the next.
    stride: u32,
    direct: bool,
}

impl Slabs {
    fn of(format: Format, n: u32, k: u32, act_mul: bool) -> Slabs {
        let rows_per_column = if act_mul { 2 } else { 1 };
        let columns = n / rows_per_column;
        let stride = k.next_multiple_of(32);
        let direct = is_direct(format);
        let per = if direct {
            columns
        } else {
            let row = u64::from(stride) * 2 * u64::from(rows_per_column);
            let most = (SLAB / row).clamp(1, columns.max(1).into()) as u32;
            columns
                .div_ceil(columns.div_ceil(most).max(1))
                .next_multiple_of(128)
                .min(columns)
        };
        Slabs {
            columns,
            per,
            rows_per_column,
            stride,
            direct,
        }
    }

    /// Bytes of the widened weights.
    fn bytes(&self) -> u64 {
        if self.direct {
            return 0;
        }
        (u64::from(self.per) * u64::from(self.rows_per_column) * u64::from(self.stride) * 2)
            .next_multiple_of(256)
    }

    /// Bytes of gate and up before the activation.
    fn gate_up_bytes(&self, rows: u32) -> u64 {
        if self.rows_per_column == 1 {
            return 0;
        }
        u64::from(self.per) * 2 * 4 * u64::from(rows)
    }

    /// The first column and the number of columns of each slab.
    fn each(&self) -> impl Iterator<Item = (u32, u32)> {
        let (columns, per) = (self.columns, self.per.max(1));
        (0..columns.div_ceil(per)).map(move |i| (i * per, per.min(columns - i * per)))
    }
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let job = Job::of(cx, command, rows)?;
    let format = job.weight.format;
    let act_mul = job.epilogue == Epilogue::ActMul;
    let private = Private::of(
        cx.places.scratch,
        format,
        job.weight.n,
        job.weight.k,
        rows,
        act_mul,
    );
    let mut nodes = Vec::new();
    let mut least = 1;
    for most in limits(rows) {
        let own = own(cx, &job, &private, most);
        let both = match library_for(cx, &job, &private, most) {
            Some(library) => vec![Node::Either(Either {
                library,
                own,
                probe: job.probe(),
            })],
            None => own,
        };
        nodes.push(for_rows(least, most, both));
        least = most + 1;
    }
    Ok(nodes)
}

/// The most rows of each list of kernels. Tiles and cuBLASLt's algorithms depend on it.
fn limits(rows: u32) -> impl Iterator<Item = u32> {
    let step = (rows / 8).next_multiple_of(64).max(64);
    let few = [16, 32, 64].into_iter();
    let many = (1..=rows / step).map(move |i| i * step);
    let all = few.chain(many.skip_while(|most| *most <= 64));
    all.take_while(move |most| *most < rows).chain([rows])
}

pub(super) fn for_rows(least: u32, most: u32, nodes: Vec<Node>) -> Node {
    Node::ForRows { least, most, nodes }
}

/// Private scratch of a command.
pub(crate) fn scratch(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    let act_mul = command.op == Op::NormMatmulActMul;
    need.weight(command).map_or(0, |weight| {
        let (format, n, k) = (weight.format, weight.n, weight.k);
        Private::of(0, format, n, k, need.rows, act_mul).bytes
    })
}

/// The units that tests compile: every format in the largest tile, and one format in all tiles.
pub(crate) fn catalogue() -> Vec<Listed> {
    let room = 227 << 10;
    #[rustfmt::skip]
    let tile = |wide, n, rows| Tile { wide, n, rows, room, alone: false };
    let (narrow, wide) = (|rows| tile(false, 128, rows), |rows| tile(true, 128, rows));
    let few = |rows| tile(false, 32, rows);
    let of_each = [
        narrow(16),
        narrow(32),
        narrow(64),
        few(16),
        few(32),
        wide(64),
        wide(256),
    ];
    let mut units: Vec<Unit> = of_each.map(|tile| tile.unit(Format::Q4_K)).into();
    for bfloat in [false, true] {
        let layouts = [
            Layout::Rows,
            Layout::Tiled,
            Layout::Operands,
            Layout::TiledOperands,
            Layout::Float8,
        ];
        units.extend(layouts.map(|layout| prepare_unit(bfloat, layout)));
    }
    for format in listed() {
        units.push(narrow(128).unit(format));
        units.push(few(64).unit(format));
        units.push(wide(128).unit(format));
        if !is_direct(format) {
            units.push(dequant_unit(format));
        }
    }
    let cold = |unit: Unit| Listed { unit, hot: false };
    units.into_iter().map(cold).collect()
}

/// Our own kernel for up to `most` live rows.
fn own(cx: &Lowering<'_>, job: &Job, private: &Private, most: u32) -> Vec<Node> {
    let tile = Tile::of(cx.gpu, job.weight.n, most);
    let row_tiles = most.div_ceil(tile.rows);
    let columns_per_tile = if job.epilogue == Epilogue::ActMul {
        tile.n / 2
    } else {
        tile.n
    };
    let tiles = job.columns.div_ceil(columns_per_tile);
    let x_rows = job.rows.next_multiple_of(MOST_TILE_ROWS);
    let gemm = GemmArgs {
        weight: job.weight.start,
        x: private.x,
        y: job.y,
        step: cx.step,
        n: job.weight.n,
        k: job.weight.k,
        columns: job.columns,
        x_rows,
        y_stride: job.y_stride,
        act: job.act,
        epilogue: job.epilogue as u32,
        scale: job.scale(),
    };
    let rows_of_tile = ByRows::Axis {
        axis: 1,
        per: tile.rows,
    };
    let padded = [tile.rows, row_tiles, 1];
    let x = Prepared {
        layout: Layout::Tiled,
        out: private.x,
        rows: x_rows,
        scales: 0,
    };
    vec![
        prepare(cx, job, &x, padded, rows_of_tile),
        Node::Kernel(Launch {
            unit: tile.unit(job.weight.format),
            function: if tile.wide { "gemm_wide" } else { "gemm" },
            grid: [row_tiles, tiles, 1],
            by_rows: ByRows::Axis {
                axis: 0,
                per: tile.rows,
            },
            block: tile.threads(),
            shared: tile.shared(job.weight.format),
            args: args(&gemm),
        }),
    ]
}

/// cuBLASLt's products for up to `rows` rows. `None` where it is missing.
fn library_for(cx: &Lowering<'_>, job: &Job, private: &Private, rows: u32) -> Option<Vec<Node>> {
    let act_mul = job.epilogue == Epilogue::ActMul;
    let weight = &job.weight;
    let slabs = Slabs::of(weight.format, weight.n, weight.k, act_mul);
    let slab = private.rest + WORKSPACE;
    let gate_up = slab + slabs.bytes();
    let grid = [rows, 1, 1];
    let each_row = ByRows::Axis { axis: 0, per: 1 };
    let x = Prepared {
        layout: Layout::Rows,
        out: private.x,
        rows,
        scales: 0,
    };
    let mut nodes = vec![prepare(cx, job, &x, grid, each_row)];
    for (first, columns) in slabs.each() {
        let (w, w_stride) = if slabs.direct {
            let stride = planes(weight.format).first()?.stride(weight.k);
            (
                weight.start + u64::from(first) * stride,
                (stride / 2) as u32,
            )
        } else {
            nodes.push(dequant(cx, job, &slabs, slab, first, columns));
            (slab, slabs.stride)
        };
        let y = job.y + u64::from(first) * 4;
        let (to, y_stride) = if act_mul {
            (gate_up, 2 * columns)
        } else {
            (y, job.y_stride)
        };
        let product = Product {
            bfloat: job.bfloat(),
            n: columns * slabs.rows_per_column,
            k: weight.k,
            rows,
            w_stride,
            x_stride: slabs.stride,
            y_stride,
            add: job.epilogue == Epilogue::Add,
            aligned: [alignment(w), alignment(private.x), alignment(to)],
        };
        if let Some(gpu) = cx.device {
            nodes.push(Node::Gemm(Gemm {
                plan: gpu.plan(product)?,
                w,
                x: private.x,
                y: to,
                workspace: private.rest,
                scale: job.scale(),
            }));
        }
        if act_mul {
            let (step, act) = (cx.step, job.act);
            let launch = basic::act_mul(step, to, y, columns, y_stride, job.y_stride, act, rows);
            nodes.push(Node::Kernel(launch));
        }
    }
    Some(nodes)
}

mirrored! {
    pub(super) struct PrepareArgs = "PrepareArgs" {
        pub(super) x: u64,
        pub(super) weight: u64,
        pub(super) out: u64,
        pub(super) step: u64,
        pub(super) k: u32,
        pub(super) x_stride: u32,
        pub(super) out_rows: u32,
        pub(super) out_stride: u32,
        pub(super) normed: u32,
        pub(super) eps: f32,
        pub(super) scale: f32,
        pub(super) each: u32,
        /// Of FP8 rows: a float for each.
        pub(super) scales: u64,
    }
}

/// Rows that `prepare.cu` writes.
pub(super) struct Prepared {
    pub(super) layout: Layout,
    pub(super) out: u64,
    pub(super) rows: u32,
    pub(super) scales: u64,
}

mirrored! {
    struct DequantArgs = "DequantArgs" {
        weight: u64,
        out: u64,
        n: u32,
        k: u32,
        first_row: u32,
        rows: u32,
        second_row: u32,
        both: u32,
        stride: u32,
        pad: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[mirror::Layout] =
    &[PrepareArgs::LAYOUT, DequantArgs::LAYOUT, GemmArgs::LAYOUT];

mirrored! {
    /// Without experts.
    pub(super) struct GemmArgs = "GemmArgs" if "!EXPERTS" {
    pub(super) weight: u64,
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) step: u64,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) columns: u32,
    pub(super) x_rows: u32,
    pub(super) y_stride: u32,
    pub(super) act: u32,
    pub(super) epilogue: u32,
    pub(super) scale: f32,
    }
}

impl Prepared {
    /// The kernel that writes them, in launches of `per` rows.
    pub(super) fn by(&self, cx: &Lowering<'_>, job: &Job, per: u32) -> Node {
        let grid = [per, self.rows.div_ceil(per), 1];
        prepare(cx, job, self, grid, ByRows::Axis { axis: 1, per })
    }
}

/// The kernel that norms and rounds rows, one block per row of the grid.
fn prepare(cx: &Lowering<'_>, job: &Job, to: &Prepared, grid: [u32; 3], by_rows: ByRows) -> Node {
    let values = PrepareArgs {
        x: job.x,
        weight: job.norm,
        out: to.out,
        step: cx.step,
        k: job.weight.k,
        x_stride: job.x_stride,
        out_rows: to.rows,
        out_stride: job.weight.k.next_multiple_of(32),
        normed: job.normed.into(),
        eps: job.eps,
        scale: 1.0 / job.scale(),
        each: 1,
        scales: to.scales,
    };
    Node::Kernel(Launch {
        unit: prepare_unit(job.bfloat(), to.layout),
        function: "prepare",
        grid,
        by_rows,
        block: 256,
        shared: 0,
        args: args(&values),
    })
}

/// Widens a slab: `columns` matrix rows from `first` on, and for gate and up as many rows of up after those of gate.
fn dequant(
    cx: &Lowering<'_>,
    job: &Job,
    slabs: &Slabs,
    slab: u64,
    first: u32,
    columns: u32,
) -> Node {
    let values = DequantArgs {
        weight: job.weight.start,
        out: slab,
        n: job.weight.n,
        k: job.weight.k,
        first_row: first,
        rows: columns,
        second_row: job.columns + first,
        both: slabs.rows_per_column - 1,
        stride: slabs.stride,
        pad: 0,
    };
    let units = u64::from(slabs.stride / 32) * u64::from(columns * slabs.rows_per_column);
    let blocks = units.div_ceil(256).min(u64::from(cx.gpu.sms.max(1)) * 8) as u32;
    Node::Kernel(Launch {
        unit: dequant_unit(job.weight.format),
        function: "dequant",
        grid: [blocks, 1, 1],
        by_rows: ByRows::Fixed,
        block: 256,
        shared: 0,
        args: args(&values),
    })
}

pub(super) fn prepare_unit(bfloat: bool, layout: Layout) -> Unit {
    Unit {
        file: "prepare.cu",
        generated: String::new(),
        defines: vec![
            ("BFLOAT", flag(bfloat)),
            ("LAYOUT", (layout as u32).to_string()),
        ],
    }
}

fn dequant_unit(format: Format) -> Unit {
    Unit {
        file: "dequant.cu",
        generated: String::new(),
        defines: format_defines(format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_cover_every_number_of_rows() {
        let all = |rows| limits(rows).collect::<Vec<_>>();
        assert_eq!(all(1), [1]);
        assert_eq!(all(16), [16]);
        assert_eq!(all(100), [16, 32, 64, 100]);
        assert_eq!(all(256), [16, 32, 64, 128, 192, 256]);
        assert_eq!(
            all(1000),
            [16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1000]
        );
    }

    #[test]
    fn slabs_cover_every_column_once() {
        for format in Format::ALL {
            for (n, k) in [
                (256, 256),
                (200, 768),
                (152_064, 2560),
                (19_456, 16_384),
                (2, 256),
            ] {
                for act_mul in [false, true] {
                    let slabs = Slabs::of(format, n, k, act_mul);
                    let mut next = 0;
                    for (first, columns) in slabs.each() {
                        assert_eq!(first, next);
                        assert!(columns > 0 && columns <= slabs.per);
                        next += columns;
                    }
                    assert_eq!(next, if act_mul { n / 2 } else { n });
                    assert!(slabs.bytes() <= SLAB.max(128 * 4 * u64::from(k)));
                }
            }
        }
    }
}
