//! Products of decode rows on tensor cores (`columns.cu`, `columns_wide.cu`, `eighths.cu`): the family of models that are loaded for several
//! slots.
//!
//! A launch reads the weights once for up to 128 rows, or 256 where warp groups multiply. The division of a matrix among blocks, and with
//! it the order of sums, depends on the matrix and the GPU alone.

use super::gemm::{GemmArgs, Job, Layout, Prepared, for_rows};
use super::need::MemoryNeed;
use super::tile::flag;
use super::{eighths, matmul};
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::layout::{format_defines, listed, planes};
use crate::lower::Lowering;
use crate::mirror::{self, mirrored};
use crate::{Error, GpuInfo};
use welte_table::{Command, Format, WeightSpec};

/// Matrix rows of a tile, and elements of k of a chunk: `TILE` and `CHUNK` of columns.cuh.
const TILE: u32 = 128;
const CHUNK: u32 = 128;
const THREADS: u32 = 256;
/// Rows of a step per launch.
const COLUMNS: [u32; 6] = [8, 16, 32, 64, 128, 256];
/// The most of them without products of warp groups: more sums need too many registers.
const MOST_BY_WARPS: u32 = 128;
/// From this number of columns on, a kernel has a multiprocessor to itself: its sums need the registers.
const ALONE: u32 = 64;
/// From this number of columns on, warp groups multiply where a GPU has these products (`columns_wide.cu`).
const WIDE_COLUMNS: u32 = 64;
/// Threads of a block of `columns_wide.cu`: a warp group that copies, and two that multiply.
const WIDE_THREADS: u32 = 384;
/// Alignment of stages, in bytes; and of the rings of `columns_wide.cu`.
const ALIGNMENT: u32 = 128;
const WIDE_ALIGNMENT: u32 = 1024;
/// Panels of the ring of x of `columns_wide.cu`, half a chunk each: from the most to the fewest. More than the fewest leave room for
/// `FULL_STAGES` of weights.
const PANELS: [u32; 3] = [8, 6, 4];
const FULL_STAGES: u32 = 4;
/// Bytes of the two barriers of a stage or panel.
const BARRIERS: u32 = 16;
/// Stages of a ring. With two stages a single chunk is in flight, and the memory idles. More than eight only take room.
const FEWEST_STAGES: u32 = 2;
const ENOUGH_STAGES: u32 = 3;
const MOST_STAGES: u32 = 8;
/// Bytes of shared memory per block besides the ring: the kernel's own, and what the system reserves beyond the block's limit.
const STATIC_SHARED: u32 = 128;
const SYSTEM_SHARED: u32 = 1024;

mirrored! {
    /// `ColumnsArgs` of `columns.cu`.
    struct ColumnsArgs = "ColumnsArgs" {
        gemm: GemmArgs,
        partials: u64,
        counters: u64,
        first: u32,
        pad: u32,
    }
}

/// The structs that the kernels check.
pub(crate) const MIRRORS: &[mirror::Layout] = &[ColumnsArgs::LAYOUT];

/// Whether warp groups multiply. Sums are the same.
fn is_wide(columns: u32, gpu: &GpuInfo) -> bool {
    gpu.arch == 90 && columns >= WIDE_COLUMNS
}

/// Bytes of the weights of a chunk.
fn weights(format: Format) -> u32 {
    let weights = planes(format).iter().map(|plane| {
        let entries = (CHUNK / plane.elements).max(1);
        TILE * (entries * plane.bytes).max(4)
    });
    weights.sum::<u32>().next_multiple_of(ALIGNMENT)
}

/// Bytes of a stage of the ring of `columns.cu`.
fn stage(format: Format, columns: u32) -> u32 {
    (weights(format) + columns * CHUNK * 2).next_multiple_of(ALIGNMENT)
}

/// The rings of `columns_wide.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rings {
    /// Chunks of weights.
    stages: u32,
    /// Half chunks of x.
    panels: u32,
}

impl Rings {
    /// The rings that fit a block. `None` if even the shortest do not.
    fn of(format: Format, columns: u32, gpu: &GpuInfo) -> Option<Rings> {
        let rings = PANELS.map(|panels| {
            let left = gpu
                .shared_per_block
                .saturating_sub(Rings { stages: 0, panels }.bytes(format, columns));
            // The kernel's own shared memory is rounded up to the alignment.
            let left = left.saturating_sub(WIDE_ALIGNMENT);
            let stages = left / (weights(format) + BARRIERS);
            Rings {
                stages: stages.min(MOST_STAGES),
                panels,
            }
        });
        let roomy = rings.into_iter().find(|ring| ring.stages >= FULL_STAGES);
        let shortest = rings.into_iter().last();
        roomy
            .or(shortest)
            .filter(|rings| rings.stages >= FEWEST_STAGES)
    }

    /// Bytes of shared memory of a block.
    fn bytes(self, format: Format, columns: u32) -> u32 {
        let x = self.panels * (columns * CHUNK + BARRIERS);
        x + self.stages * (weights(format) + BARRIERS)
    }
}

/// The stages of the ring of `columns.cu`. With few columns it leaves room for a block of the next kernel, which fills its ring
/// meanwhile, unless too few stages would remain.
fn stages(format: Format, columns: u32, gpu: &GpuInfo) -> u32 {
    let blocks = if columns < ALONE { 2 } else { 1 };
    let most = gpu.shared_per_block.saturating_sub(STATIC_SHARED);
    let room = (gpu.shared_per_sm / blocks).saturating_sub(SYSTEM_SHARED + STATIC_SHARED);
    let beside = room.min(most) / stage(format, columns);
    let alone = most / stage(format, columns);
    let stages = if beside < ENOUGH_STAGES {
        alone
    } else {
        beside
    };
    stages.min(MOST_STAGES)
}

/// The numbers of columns that fit. None for F32, whose weights would lose precision.
fn widths(format: Format, gpu: &GpuInfo) -> impl Iterator<Item = u32> {
    let fit = move |columns: &u32| {
        if is_wide(*columns, gpu) {
            Rings::of(format, *columns, gpu).is_some()
        } else {
            *columns <= MOST_BY_WARPS && stages(format, *columns, gpu) >= FEWEST_STAGES
        }
    };
    let all = COLUMNS.into_iter().filter(fit);
    all.filter(move |_| format != Format::F32)
}

/// Private memory of a command.
struct Private {
    /// 16-bit activations.
    x: u64,
    partials: u64,
    bytes: u64,
    /// Rows of the activations.
    x_rows: u32,
}

impl Private {
    fn of(start: u64, k: u32, rows: u32, widest: u32, gpu: &GpuInfo) -> Private {
        let x_rows = rows.next_multiple_of(widest);
        let x = 2 * u64::from(x_rows) * u64::from(k.next_multiple_of(CHUNK));
        // A block shares at most two tiles with others.
        let partials = 2 * u64::from(gpu.sms) * u64::from(TILE * widest) * 4;
        Private {
            x: start,
            partials: start + x,
            bytes: x + partials,
            x_rows,
        }
    }
}

/// The widest launch that steps of `rows` rows need.
fn widest(format: Format, rows: u32, gpu: &GpuInfo) -> Option<u32> {
    let enough = widths(format, gpu).find(|columns| *columns >= rows);
    enough.or(widths(format, gpu).last())
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let job = Job::of(cx, command, rows)?;
    let (format, k) = (job.weight.format, job.weight.k);
    let Some(widest) = widest(format, rows, cx.gpu) else {
        return matmul::lower(cx, command, rows);
    };
    let private = Private::of(cx.places.scratch, k, rows, widest, cx.gpu);
    let mut nodes = Vec::new();
    let mut least = 1;
    for columns in widths(format, cx.gpu).take_while(|columns| *columns <= widest) {
        let most = if columns == widest { rows } else { columns };
        let layout = if is_wide(columns, cx.gpu) {
            Layout::TiledOperands
        } else {
            Layout::Operands
        };
        let x = Prepared {
            layout,
            out: private.x,
            rows: private.x_rows,
            scales: 0,
        };
        let mut list = vec![x.by(cx, &job, columns)];
        for first in (0..most).step_by(columns as usize) {
            let launch = Node::Kernel(product(cx, &job, &private, columns, first));
            list.push(match first {
                0 => launch,
                _ => for_rows(first + 1, rows, vec![launch]),
            });
        }
        nodes.push(for_rows(least, most, list));
        least = most + 1;
    }
    Ok(nodes)
}

fn product(cx: &Lowering<'_>, job: &Job, private: &Private, columns: u32, first: u32) -> Launch {
    let values = ColumnsArgs {
        gemm: GemmArgs {
            weight: job.weight.start,
            x: private.x,
            y: job.y,
            step: cx.step,
            n: job.weight.n,
            k: job.weight.k,
            columns: job.columns,
            x_rows: private.x_rows,
            y_stride: job.y_stride,
            act: job.act,
            epilogue: job.epilogue as u32,
            scale: job.scale(),
        },
        partials: private.partials,
        counters: cx.places.counters,
        first,
        pad: 0,
    };
    let format = job.weight.format;
    let chunks = tiles(job.weight.n).saturating_mul(job.weight.k.div_ceil(CHUNK));
    let grid = [chunks.clamp(1, cx.gpu.sms), 1, 1];
    let whole = job.weight.k.is_multiple_of(CHUNK);
    let rings = Rings::of(format, columns, cx.gpu).filter(|_| is_wide(columns, cx.gpu));
    match rings {
        Some(rings) => Launch {
            unit: wide_unit(format, columns, whole, rings),
            function: "columns_wide",
            grid,
            by_rows: ByRows::Fixed,
            block: WIDE_THREADS,
            shared: rings.bytes(format, columns),
            args: args(&values),
        },
        None => {
            let stages = stages(format, columns, cx.gpu);
            Launch {
                unit: unit(format, columns, whole, stages),
                function: "columns",
                grid,
                by_rows: ByRows::Fixed,
                block: THREADS,
                shared: stages * stage(format, columns),
                args: args(&values),
            }
        }
    }
}

/// Tiles of a matrix. Gate and up share tiles.
fn tiles(n: u32) -> u32 {
    n.div_ceil(TILE)
}

fn unit(format: Format, columns: u32, whole: bool, stages: u32) -> Unit {
    let mut defines = shared_defines(format, columns, whole, stages);
    let resident = if columns < ALONE { 2 } else { 1 };
    defines.push(("RESIDENT", resident.to_string()));
    Unit {
        file: "columns.cu",
        generated: String::new(),
        defines,
    }
}

fn wide_unit(format: Format, columns: u32, whole: bool, rings: Rings) -> Unit {
    let mut defines = shared_defines(format, columns, whole, rings.stages);
    defines.push(("PANELS", rings.panels.to_string()));
    Unit {
        file: "columns_wide.cu",
        generated: String::new(),
        defines,
    }
}

fn shared_defines(
    format: Format,
    columns: u32,
    whole: bool,
    stages: u32,
) -> Vec<(&'static str, String)> {
    let mut defines = format_defines(format);
    defines.push(("BFLOAT", flag(format == Format::BF16)));
    defines.push(("COLUMNS", columns.to_string()));
    defines.push(("WHOLE", flag(whole)));
    defines.push(("STAGES", stages.to_string()));
    defines
}

/// Private scratch of a product.
pub(crate) fn scratch(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    let widest = |weight: &WeightSpec| {
        let widest = widest(weight.format, need.rows, need.gpu)?;
        Some(Private::of(0, weight.k, need.rows, widest, need.gpu).bytes)
    };
    need.weight(command).and_then(widest).unwrap_or(0)
}

/// Bytes of a product's counters: one for each tile.
pub(crate) fn counters(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    let weight = need.weight(command);
    weight.map_or(0, |weight| 4 * u64::from(tiles(weight.n)))
}

/// The units that tests compile: every format with the fewest and the most columns, and one format with all numbers.
pub(crate) fn catalogue() -> Vec<Listed> {
    let formats = listed().filter(|format| *format != Format::F32);
    let some = formats.flat_map(|format| [8, 128, 256].map(|columns| (format, columns)));
    let all = COLUMNS.map(|columns| (Format::BF16, columns));
    let ways = |(format, columns): (Format, u32)| {
        let whole = columns == 128;
        let rings = Rings {
            stages: 3,
            panels: 4,
        };
        let wide = (columns >= WIDE_COLUMNS).then(|| wide_unit(format, columns, whole, rings));
        let by_warps = (columns <= MOST_BY_WARPS).then(|| unit(format, columns, whole, 3));
        let units = wide.into_iter().chain(by_warps);
        units.map(|unit| Listed { unit, hot: true })
    };
    let all = some.chain(all).flat_map(ways);
    all.chain(eighths::catalogue()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::h200;

    #[test]
    fn every_ring_fits() {
        for (arch, block, sm) in [(80, 163, 164), (89, 99, 100), (90, 227, 228)] {
            let gpu = GpuInfo {
                arch,
                shared_per_block: block << 10,
                shared_per_sm: sm << 10,
                ..h200()
            };
            for format in Format::ALL.into_iter().filter(|f| *f != Format::F32) {
                assert!(widths(format, &gpu).count() > 0, "{format:?} on {arch}");
                for columns in widths(format, &gpu) {
                    let (stages, bytes) = if is_wide(columns, &gpu) {
                        let rings = Rings::of(format, columns, &gpu).expect("rings");
                        let bytes = rings.bytes(format, columns);
                        (rings.stages, bytes + WIDE_ALIGNMENT)
                    } else {
                        let stages = stages(format, columns, &gpu);
                        (stages, stages * stage(format, columns) + STATIC_SHARED)
                    };
                    assert!(stages >= FEWEST_STAGES && bytes <= block << 10);
                }
            }
        }
    }

    #[test]
    fn steps_have_the_narrowest_launch_that_takes_all_rows() {
        let widest = |rows| widest(Format::BF16, rows, &h200());
        assert_eq!([1, 8, 9, 64, 65].map(widest), [8, 8, 16, 64, 128].map(Some));
        assert_eq!([129, 300].map(widest), [Some(256); 2]);
        assert_eq!(super::widest(Format::F32, 1, &h200()), None);
    }
}
