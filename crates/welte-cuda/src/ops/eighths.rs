//! Products on GPUs with warp-group products (`eighths.cu`): of decode rows, and of all rows with FP8 activations. The order of their sums
//! depends on k alone, so tiles are chosen for the matrix, the GPU and the number of rows.

use super::gemm::{GemmArgs, Job, Layout, Prepared, for_rows};
use super::need::MemoryNeed;
use super::tile::flag;
use crate::launch::{ByRows, Launch, Listed, Node, Unit, args};
use crate::layout::{Plane, format_defines, planes};
use crate::lower::Lowering;
use crate::mirror::{self, mirrored};
use crate::{Error, GpuInfo};
use welte_table::{Command, Format};

/// Bytes of a row of a plane of a stage, for weights and x.
const PLANE_ROW: u32 = 128;
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
/// The limit of [`Kind::Scaled`], which also keeps the sums of half a chunk.
const WIDEST_SCALED: u32 = 112;
/// Two boxes, whose rows come in eights because of the swizzle.
const WIDTH_STEP: u32 = 16;
/// Stages of a ring, with one plane and with two: fewer leave the memory idle, more only take room.
const FEWEST_STAGES: [u32; 2] = [3, 2];
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

/// Rows of a step, and the kernel for up to that number. Steps of more rows have more blocks of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    rows: u32,
    /// Warp groups of a block that multiply.
    groups: u32,
    /// Blocks of a cluster that have other rows, and share the copies of weights.
    row_tiles: u32,
}

const CLASSES: [Class; 5] = [
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
    Class {
        rows: 512,
        groups: 2,
        row_tiles: 2,
    },
];

impl Class {
    /// Rows that a cluster multiplies.
    fn cluster_rows(self) -> u32 {
        GROUP_ROWS * self.groups * self.row_tiles
    }

    /// Rows that a launch of `prepare.cu` writes at once. All of x are a multiple of it.
    fn prepared_at_once(self) -> u32 {
        self.rows.min(self.cluster_rows())
    }

    /// The classes that steps of up to `rows` rows need.
    fn needed(rows: u32) -> impl Iterator<Item = Class> {
        let enough = CLASSES.iter().position(|class| class.rows >= rows);
        CLASSES
            .into_iter()
            .take(enough.map_or(CLASSES.len(), |last| last + 1))
    }
}

mirrored! {
    struct EighthsArgs = "EighthsArgs" if "!FLOAT8" {
        maps: [[u64; 16]; 1],
        gemm: GemmArgs,
    }
}

mirrored! {
    struct Float8Args = "EighthsArgs" if "FLOAT8" {
        maps: [[u64; 16]; 2],
        gemm: GemmArgs,
        scales: u64,
        x_scales: u64,
        scale_stride: u32,
        /// The kernel's struct is a multiple of 64 bytes, as its maps are.
        pad: [u32; 11],
    }
}

/// The structs that the kernel checks.
pub(crate) const MIRRORS: &[mirror::Layout] = &[EighthsArgs::LAYOUT, Float8Args::LAYOUT];

/// Whether this kernel multiplies such weights with 16-bit activations.
pub(super) fn multiplies(format: Format, gpu: &GpuInfo) -> bool {
    gpu.arch == 90 && matches!(format, Format::BF16 | Format::F16)
}

/// Whether it multiplies them with activations in FP8.
pub(super) fn multiplies_float8(format: Format, gpu: &GpuInfo) -> bool {
    gpu.arch == 90 && format == Format::F8_E4M3
}

/// What is multiplied with what: `FLOAT8` and `SCALED` of eighths.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Weights and x have 16 bits.
    Half,
    /// Both are FP8. A matrix row has one scale.
    Float8,
    /// Both are FP8. A matrix row has a scale for each block.
    Scaled,
}

impl Kind {
    /// Planes of the weights. A chunk is 128 bytes of a row from each plane.
    fn planes(self) -> u32 {
        if self == Kind::Half { 1 } else { 2 }
    }

    /// Elements of k of a chunk: `CHUNK` of eighths.cu.
    fn chunk(self) -> u32 {
        if self == Kind::Half { 64 } else { 256 }
    }
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
    kind: Kind,
}

impl Tiles {
    /// The fastest tiles for a matrix, as far as a simple model tells. `per_row` matrix rows become one value of y.
    fn of(columns: u32, per_row: u32, class: Class, kind: Kind, gpu: &GpuInfo) -> Option<Tiles> {
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
                kind,
            }
            .with_stages(gpu)?;
            Some((tiles.cost(columns, per_row, gpu), tiles))
        });
        let best = fitting.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, tiles)| tiles)
    }

    fn with_stages(self, gpu: &GpuInfo) -> Option<Tiles> {
        let widest = match self.kind {
            Kind::Scaled => WIDEST_SCALED,
            _ => WIDEST[self.class.groups as usize - 1],
        };
        // Two blocks of two multiplying groups would have too few registers.
        let crowded = self.resident > 1 && self.class.groups > 1;
        if self.width > widest || crowded || self.cluster() > gpu.sms.min(MOST_CLUSTER) {
            return None;
        }
        let room = (gpu.shared_per_sm / self.resident).saturating_sub(SYSTEM_SHARED);
        let room = room.min(gpu.shared_per_block);
        let room = room.saturating_sub(ALIGNMENT + self.scales());
        let stages = (room / self.stage_with_barriers()).min(MOST_STAGES);
        let fits = stages >= FEWEST_STAGES[self.kind.planes() as usize - 1]
            && self.published() <= stages * self.stage();
        fits.then_some(Tiles { stages, ..self })
    }

    fn cluster(self) -> u32 {
        self.split * self.class.row_tiles
    }

    /// Bytes of a stage.
    fn stage(self) -> u32 {
        (self.width + GROUP_ROWS * self.class.groups) * PLANE_ROW * self.kind.planes()
    }

    /// A stage with its barriers and scales, which are stored after the ring.
    fn stage_with_barriers(self) -> u32 {
        let scales = match self.kind {
            Kind::Scaled => 2 * 4 * self.width,
            _ => 0,
        };
        self.stage() + BARRIERS + scales
    }

    /// Bytes of scales of whole rows.
    fn scales(self) -> u32 {
        match self.kind {
            Kind::Float8 => 4 * self.width,
            _ => 0,
        }
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
        self.stages * self.stage_with_barriers() + ALIGNMENT + self.scales()
    }

    /// Blocks along the matrix, for the rows of a cluster.
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
        let rows = self.class.rows.div_ceil(self.class.cluster_rows());
        let rounds = (self.blocks(columns, per_row) * rows).div_ceil(places);
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
        defines.push(("FLOAT8", flag(self.kind != Kind::Half)));
        defines.push(("SCALED", flag(self.kind == Kind::Scaled)));
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

/// Private scratch of a command.
pub(super) fn scratch(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    let weight = need.weight(command);
    weight.map_or(0, |weight| prepared(weight.format, weight.k, need.rows))
}

/// Bytes of x, and of a scale for each of its rows.
fn prepared(format: Format, k: u32, rows: u32) -> u64 {
    let kind = match format {
        Format::F8_E4M3 => Kind::Float8,
        _ => Kind::Half,
    };
    let panels = u64::from(k.div_ceil(kind.chunk()) * kind.planes());
    u64::from(x_rows(rows)) * (u64::from(PLANE_ROW) * panels + 4)
}

/// The kernels of a command.
pub(super) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let job = &Job::of(cx, command, rows)?;
    let format = job.weight.format;
    let (kind, layout) = match (format, job.weight.one_scale) {
        (Format::F8_E4M3, true) => (Kind::Float8, Layout::Float8),
        (Format::F8_E4M3, false) => (Kind::Scaled, Layout::Float8),
        _ => (Kind::Half, Layout::Tiled),
    };
    let x = Prepared {
        layout,
        out: cx.places.scratch,
        rows: x_rows(rows),
        scales: cx.places.scratch + prepared(format, job.weight.k, rows)
            - 4 * u64::from(x_rows(rows)),
    };
    let mut nodes = Vec::new();
    let mut least = 1;
    for class in Class::needed(rows) {
        let most = if class.rows >= rows || class == CLASSES[CLASSES.len() - 1] {
            rows
        } else {
            class.rows
        };
        let list = vec![
            x.by(cx, job, class.prepared_at_once().min(most)),
            Node::Kernel(product(cx, job, kind, &x, class, most)?),
        ];
        nodes.push(for_rows(least, most, list));
        least = most + 1;
    }
    Ok(nodes)
}

fn product(
    cx: &Lowering<'_>,
    job: &Job,
    kind: Kind,
    x: &Prepared,
    class: Class,
    most: u32,
) -> Result<Launch, Error> {
    let weight = &job.weight;
    let per_row = weight.n / job.columns;
    let tiles = Tiles::of(job.columns, per_row, class, kind, cx.gpu)
        .ok_or_else(|| Error::Program("no tiles fit this GPU's shared memory".to_string()))?;
    let gemm = GemmArgs {
        weight: weight.start,
        x: x.out,
        y: job.y,
        step: cx.step,
        n: weight.n,
        k: weight.k,
        columns: job.columns,
        x_rows: x.rows,
        y_stride: job.y_stride,
        act: job.act,
        epilogue: job.epilogue as u32,
        scale: job.scale(),
    };
    let stride = |plane: &Plane| plane.stride(weight.k);
    let all = planes(weight.format);
    let map = |start| match cx.device {
        Some(gpu) => gpu.tensor_map(weight, start, stride(&all[0]), tiles.width / 2),
        None => Ok([0; 16]),
    };
    let first = map(weight.start)?;
    let args = match kind {
        Kind::Half => args(&EighthsArgs {
            maps: [first],
            gemm,
        }),
        Kind::Float8 | Kind::Scaled => {
            let second = weight.start + u64::from(weight.n) * stride(&all[0]);
            args(&Float8Args {
                maps: [first, map(second)?],
                gemm,
                scales: second + u64::from(weight.n) * stride(&all[1]),
                x_scales: x.scales,
                scale_stride: (stride(&all[2]) / 4) as u32,
                pad: [0; 11],
            })
        }
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
        args,
    })
}

/// The units that tests compile.
pub(super) fn catalogue() -> Vec<Listed> {
    let gpu = crate::info::h200();
    let shapes = [(6144, 1), (2560, 1), (9728, 2), (512, 1)];
    let kinds = [
        (Format::BF16, Kind::Half),
        (Format::F16, Kind::Half),
        (Format::F8_E4M3, Kind::Float8),
        (Format::F8_E4M3, Kind::Scaled),
    ];
    let of = |kind, (columns, per_row), class| Tiles::of(columns, per_row, class, kind, &gpu);
    let units = kinds.into_iter().flat_map(|(format, kind)| {
        let tiles = shapes.into_iter().flat_map(move |shape| {
            let classes = CLASSES[1..].iter();
            classes.filter_map(move |class| of(kind, shape, *class))
        });
        tiles.map(move |tiles| tiles.unit(format))
    });
    units.map(|unit| Listed { unit, hot: true }).collect()
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
                    let of = |kind| Tiles::of(columns, per_row, class, kind, &gpu).expect("tiles");
                    for tiles in [of(Kind::Half), of(Kind::Float8), of(Kind::Scaled)] {
                        assert!(tiles.shared() <= gpu.shared_per_block);
                        assert!(
                            tiles.resident * (tiles.shared() + SYSTEM_SHARED) <= gpu.shared_per_sm
                        );
                        assert!(tiles.cluster() <= sms.min(MOST_CLUSTER), "{tiles:?}");
                    }
                }
            }
        }
    }

    /// The measured ones: docs/architecture/experiments.md.
    #[test]
    fn qwen3_4b_has_the_tiles_that_were_fastest() {
        let tiles = |columns, per_row, class: usize| {
            let tiles = Tiles::of(columns, per_row, CLASSES[class], Kind::Half, &h200()).unwrap();
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
    fn no_row_is_prepared_beyond_those_there_are() {
        for rows in 1..3000 {
            for class in Class::needed(rows) {
                let covered = rows.div_ceil(class.prepared_at_once()) * class.prepared_at_once();
                assert!(covered <= x_rows(rows), "{rows} rows, {class:?}");
            }
        }
    }

    #[test]
    fn steps_have_the_classes_that_they_need() {
        let needed = |rows| Class::needed(rows).count();
        assert_eq!(
            [1, 8, 9, 64, 65, 129, 1000].map(needed),
            [1, 1, 2, 2, 3, 4, 5]
        );
        assert_eq!([1, 65, 129, 300].map(x_rows), [64, 128, 256, 512]);
    }
}
