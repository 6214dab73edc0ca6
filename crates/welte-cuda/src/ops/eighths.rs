//! Products of decode rows on GPUs with warp-group products (`eighths.cu`). The order of their sums depends on k alone, so tiles are chosen
//! for the matrix, the GPU and the number of rows.

use super::columns::prepare;
use super::gemm::{GemmArgs, Job, Layout, for_rows};
use super::tile::flag;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::layout::{format_defines, planes};
use crate::lower::Lowering;
use crate::{Error, GpuInfo};
use welte_table::Format;

/// Elements of k of a stage: `CHUNK` of eighths.cu.
const CHUNK: u32 = 64;
/// Runs that k is cut into: `RUNS`.
const RUNS: u32 = 8;
/// Rows of x that a warp group multiplies.
const GROUP_ROWS: u32 = 64;
/// Threads of a warp group. The first one of a block copies.
const GROUP_THREADS: u32 = 128;
/// Numbers of blocks that may share the runs of a tile.
const SPLITS: [u32; 3] = [1, 4, 8];
/// The widest tiles of blocks with one and with two multiplying warp groups: sums are in registers.
const WIDEST: [u32; 2] = [160, 192];
/// Two boxes, whose rows come in eights because of the swizzle.
const WIDTH_STEP: u32 = 16;
/// Stages of a ring: fewer leave the memory idle, more only take room.
const FEWEST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 12;
/// Bytes of the two barriers of a stage, and the alignment of the ring.
const BARRIERS: u32 = 16;
const ALIGNMENT: u32 = 1024;
/// Bytes of shared memory that the system reserves per block.
const SYSTEM_SHARED: u32 = 1024;
/// The most blocks of a cluster on any GPU.
const MOST_CLUSTER: u32 = 8;
/// Not every multiprocessor finds a place in a cluster of four or eight: on an H100, 120 of 132 do.
const IN_CLUSTERS: (u32, u32) = (10, 11);

/// Rows of a step, and the kernel for up to so many. Steps of more rows have more blocks of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    rows: u32,
    /// Warp groups of a block that multiply.
    groups: u32,
    /// Blocks of a cluster that have other rows, and share the copies of weights.
    row_tiles: u32,
}

const CLASSES: [Class; 4] = [
    // Few rows have the same kernel, but fewer blocks that prepare them.
    Class {
        rows: 8,
        groups: 1,
        row_tiles: 1,
    },
    Class {
        rows: 64,
        groups: 1,
        row_tiles: 1,
    },
    Class {
        rows: 128,
        groups: 2,
        row_tiles: 1,
    },
    Class {
        rows: 256,
        groups: 2,
        row_tiles: 2,
    },
];

impl Class {
    /// Rows that a cluster multiplies.
    fn cluster_rows(self) -> u32 {
        GROUP_ROWS * self.groups * self.row_tiles
    }

    /// The classes that steps of up to `rows` rows need.
    fn needed(rows: u32) -> impl Iterator<Item = Class> {
        let enough = CLASSES.iter().position(|class| class.rows >= rows);
        CLASSES
            .into_iter()
            .take(enough.map_or(CLASSES.len(), |last| last + 1))
    }
}

/// `EighthsArgs` of `eighths.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct EighthsArgs {
    map: [u64; 16],
    gemm: GemmArgs,
}

/// Whether this kernel multiplies such weights.
pub(super) fn multiplies(format: Format, gpu: &GpuInfo) -> bool {
    gpu.arch == 90 && matches!(format, Format::BF16 | Format::F16)
}

/// The tiles of a launch. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiles {
    class: Class,
    /// Matrix rows of a tile.
    width: u32,
    /// Blocks that share the runs of a tile.
    split: u32,
    stages: u32,
    /// Blocks per multiprocessor.
    resident: u32,
}

impl Tiles {
    /// The fastest tiles for a matrix, as far as a simple model tells. `per_row` matrix rows become one value of y.
    fn of(columns: u32, per_row: u32, class: Class, gpu: &GpuInfo) -> Option<Tiles> {
        let widths = (1..=WIDEST[1] / WIDTH_STEP).map(|i| i * WIDTH_STEP);
        let all = widths.flat_map(|width| {
            let splits = SPLITS
                .into_iter()
                .flat_map(|split| [(split, 1), (split, 2)]);
            splits.map(move |(split, resident)| (width, split, resident))
        });
        let fitting = all.filter_map(|(width, split, resident)| {
            let tiles = Tiles {
                class,
                width,
                split,
                stages: 0,
                resident,
            }
            .with_stages(gpu)?;
            Some((tiles.cost(columns, per_row, gpu), tiles))
        });
        let best = fitting.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, tiles)| tiles)
    }

    fn with_stages(self, gpu: &GpuInfo) -> Option<Tiles> {
        let widest = WIDEST[self.class.groups as usize - 1];
        // Two blocks of two multiplying groups would have too few registers.
        let crowded = self.resident > 1 && self.class.groups > 1;
        if self.width > widest || crowded || self.cluster() > gpu.sms.min(MOST_CLUSTER) {
            return None;
        }
        let room = (gpu.shared_per_sm / self.resident).saturating_sub(SYSTEM_SHARED);
        let room = room.min(gpu.shared_per_block).saturating_sub(ALIGNMENT);
        let stages = (room / (self.stage() + BARRIERS)).min(MOST_STAGES);
        let fits = stages >= FEWEST_STAGES && self.published() <= stages * self.stage();
        fits.then_some(Tiles { stages, ..self })
    }

    fn cluster(self) -> u32 {
        self.split * self.class.row_tiles
    }

    /// Bytes of a stage.
    fn stage(self) -> u32 {
        (self.width + GROUP_ROWS * self.class.groups) * CHUNK * 2
    }

    /// Bytes of sums that a block leaves to the others of its tile, in place of the stages.
    fn published(self) -> u32 {
        let runs = if self.split == 1 {
            1
        } else {
            RUNS / self.split
        };
        runs * self.width * GROUP_ROWS * self.class.groups * 4
    }

    fn shared(self) -> u32 {
        self.stages * (self.stage() + BARRIERS) + ALIGNMENT
    }

    /// Blocks along the matrix.
    fn blocks(self, columns: u32, per_row: u32) -> u32 {
        columns.div_ceil(self.width / per_row) * self.cluster()
    }

    /// Time, in matrix rows that a multiprocessor takes one after the other. The numbers fit times on an H100: narrow tiles read x more often,
    /// sums of several blocks are exchanged, and two blocks per multiprocessor overlap.
    fn cost(self, columns: u32, per_row: u32, gpu: &GpuInfo) -> f64 {
        let (some, of) = if self.cluster() > 2 {
            IN_CLUSTERS
        } else {
            (1, 1)
        };
        let places = (gpu.sms * some / of * self.resident).max(1);
        let rounds = self.blocks(columns, per_row).div_ceil(places);
        let width = f64::from(self.width);
        let tile = match self.class.groups {
            1 => width + 8.0,
            _ => 0.75 * width + 48.0,
        };
        // Sums are exchanged at the end of a round, when nothing else hides it.
        let more = 0.3 * f64::from(rounds - 1);
        let exchange = match self.split {
            1 => 1.0,
            4 => 1.05 + more,
            _ => 1.15 + more,
        };
        let overlap = if self.resident > 1 { 0.95 } else { 1.0 };
        tile * f64::from(rounds * self.resident) / f64::from(self.split) * exchange * overlap
    }

    fn unit(self, format: Format) -> Unit {
        let mut defines = format_defines(format);
        defines.push(("BFLOAT", flag(format == Format::BF16)));
        let numbers = [
            ("TILE_N", self.width),
            ("GROUPS", self.class.groups),
            ("SPLIT", self.split),
            ("ROW_TILES", self.class.row_tiles),
            ("STAGES", self.stages),
            ("RESIDENT", self.resident),
        ];
        defines.extend(numbers.map(|(name, number)| (name, number.to_string())));
        Unit {
            file: "eighths.cu",
            generated: String::new(),
            defines,
        }
    }
}

/// Rows of the activations in private memory, and their bytes.
fn x_rows(rows: u32) -> u32 {
    let last = Class::needed(rows).last().unwrap_or(CLASSES[0]);
    rows.next_multiple_of(last.cluster_rows())
}

/// Bytes of private memory.
pub(super) fn scratch(k: u32, rows: u32) -> u64 {
    2 * u64::from(x_rows(rows)) * u64::from(k.next_multiple_of(CHUNK))
}

/// The kernels of a command.
pub(super) fn lower(cx: &Lowering<'_>, job: &Job, rows: u32) -> Result<Vec<Node>, Error> {
    let mut nodes = Vec::new();
    let mut least = 1;
    for class in Class::needed(rows) {
        let most = if class.rows >= rows || class == CLASSES[3] {
            rows
        } else {
            class.rows
        };
        let prepared = prepare(cx, job, Layout::Tiled, class.rows.min(most), x_rows(rows));
        let list = vec![prepared, Node::Kernel(product(cx, job, class, most, rows)?)];
        nodes.push(for_rows(least, most, list));
        least = most + 1;
    }
    Ok(nodes)
}

fn product(
    cx: &Lowering<'_>,
    job: &Job,
    class: Class,
    most: u32,
    rows: u32,
) -> Result<Launch, Error> {
    let weight = &job.weight;
    let per_row = weight.n / job.columns;
    let tiles = Tiles::of(job.columns, per_row, class, cx.gpu)
        .ok_or_else(|| Error::Program("no tiles fit this GPU's shared memory".to_string()))?;
    let stride = planes(weight.format)[0].stride(weight.k);
    let values = EighthsArgs {
        map: cx
            .device
            .tensor_map(weight, stride, [CHUNK, tiles.width / 2])?,
        gemm: GemmArgs {
            weight: weight.start,
            x: cx.places.scratch,
            y: job.y,
            step: cx.step,
            n: weight.n,
            k: weight.k,
            columns: job.columns,
            x_rows: x_rows(rows),
            y_stride: job.y_stride,
            act: job.act,
            epilogue: job.epilogue as u32,
            scale: job.scale(),
        },
    };
    Ok(Launch {
        unit: tiles.unit(weight.format),
        function: "eighths",
        grid: [
            tiles.blocks(job.columns, per_row),
            most.div_ceil(class.cluster_rows()),
            1,
        ],
        by_rows: ByRows::Axis {
            axis: 1,
            per: class.cluster_rows(),
        },
        block: GROUP_THREADS * (1 + class.groups),
        shared: tiles.shared(),
        args: args(&values),
    })
}

/// The units that tests compile.
pub(super) fn catalogue() -> Vec<Listed> {
    let gpu = crate::info::h200();
    let of = |columns, per_row, class| Tiles::of(columns, per_row, class, &gpu);
    let shapes = [(6144, 1), (2560, 1), (9728, 2), (512, 1)];
    let tiles = shapes.into_iter().flat_map(|(columns, per_row)| {
        CLASSES[1..]
            .iter()
            .filter_map(move |class| of(columns, per_row, *class))
    });
    let listed = tiles.flat_map(|tiles| {
        [Format::BF16, Format::F16].map(|format| Listed {
            unit: tiles.unit(format),
            hot: true,
        })
    });
    listed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::h200;

    #[test]
    fn tiles_fill_the_gpu_and_fit_it() {
        for sms in [8, 78, 114, 132] {
            let gpu = GpuInfo { sms, ..h200() };
            for (columns, per_row) in [(64, 1), (1024, 1), (2560, 1), (9728, 2), (151_936, 1)] {
                for class in CLASSES {
                    let tiles = Tiles::of(columns, per_row, class, &gpu).expect("tiles");
                    assert!(tiles.shared() <= gpu.shared_per_block);
                    assert!(tiles.resident * (tiles.shared() + SYSTEM_SHARED) <= gpu.shared_per_sm);
                    assert!(tiles.cluster() <= sms.min(MOST_CLUSTER), "{tiles:?}");
                }
            }
        }
    }

    /// The measured ones: docs/architecture/experiments.md.
    #[test]
    fn qwen3_4b_has_the_tiles_that_were_fastest() {
        let tiles = |columns, per_row, class: usize| {
            let tiles = Tiles::of(columns, per_row, CLASSES[class], &h200()).unwrap();
            (tiles.width, tiles.split, tiles.resident)
        };
        assert_eq!(tiles(6144, 1, 1), (48, 1, 1));
        assert_eq!(tiles(2560, 1, 1), (96, 4, 1));
        assert_eq!(tiles(9728, 2, 1), (80, 1, 2));
        assert_eq!(tiles(6144, 1, 2), (48, 1, 1));
        assert_eq!(tiles(2560, 1, 2), (176, 8, 1));
        assert_eq!(tiles(9728, 2, 2), (160, 1, 1));
        assert_eq!(tiles(6144, 1, 3), (96, 1, 1));
        assert_eq!(tiles(2560, 1, 3), (176, 4, 1));
        assert_eq!(tiles(9728, 2, 3), (160, 1, 1));
    }

    #[test]
    fn steps_have_the_classes_that_they_need() {
        let needed = |rows| Class::needed(rows).count();
        assert_eq!(
            [1, 8, 9, 64, 65, 129, 1000].map(needed),
            [1, 1, 2, 2, 3, 4, 4]
        );
        assert_eq!([1, 65, 129, 300].map(x_rows), [64, 128, 256, 512]);
    }
}
