//! Matrix-vector products for rows of a decode pass, optionally fused with a norm before and an activation or a sum after.

use super::gemm::for_rows;
use crate::launch::{ByRows, DeviceWeight, Launch, Listed, Node, Unit, args};
use crate::lower::Lowering;
use crate::mirror::{Layout, mirrored};
use crate::{Error, GpuInfo, layout};
use welte_table::{Command, Format, Op, params};

/// Weight rows that a warp reads together (`ROWS` of matmul.cu), and lanes that share a row (`LANES`).
pub(super) const GROUP: u32 = 4;
const LANES: u32 = 16;
/// Bytes of shared memory that the system reserves per block.
const RESERVED: u32 = 1024;
/// The fewest stages of a ring: one is read while one is in flight.
const FEWEST_STAGES: u32 = 2;

/// Launch parameters that were fastest in measurements.
#[derive(Clone, Copy, Debug)]
struct Tuned {
    /// Applies from this architecture on.
    arch: u32,
    /// The formats it applies to; empty for all.
    formats: &'static [Format],
    /// Warps per block.
    warps: u32,
    /// Blocks per multiprocessor.
    blocks: u32,
    /// Bytes of a block's rings, if they leave room for one more block: the next command's.
    ring: u32,
}

/// The first matching entry is used.
///
/// A block of the next command must find room, and fill its rings, before this command ends. On an H200, a block that took more
/// than half of a multiprocessor's shared memory cost a quarter of the speed.
const TUNED: &[Tuned] = &[
    Tuned {
        arch: 90,
        formats: &[Format::F32, Format::F16, Format::BF16, Format::F8_E4M3],
        warps: 8,
        blocks: 2,
        ring: 48 << 10,
    },
    Tuned {
        arch: 90,
        formats: &[],
        warps: 8,
        blocks: 2,
        ring: 56 << 10,
    },
    Tuned {
        arch: 0,
        formats: &[],
        warps: 8,
        blocks: 1,
        ring: 40 << 10,
    },
];

mirrored! {
    /// Without experts.
    pub(super) struct MatmulArgs = "MatmulArgs" if "!USED" {
    pub(super) weight: u64,
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) norm: u64,
    pub(super) step: u64,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) x_stride: u32,
    pub(super) y_stride: u32,
    pub(super) first: u32,
    pub(super) eps: f32,
    pub(super) act: u32,
    pub(super) shares: u32,
    }
}

/// The struct that the kernel checks.
pub(crate) const MIRRORS: &[Layout] = &[MatmulArgs::LAYOUT];

/// The epilogue of a product (`OUTPUT` of matmul.cu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Store = 0,
    Add = 1,
    ActMul = 2,
    /// Of experts only.
    SquaredRelu = 3,
}

/// A product, as the kernel is specialised for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) format: Format,
    pub(super) norm: bool,
    pub(super) output: Output,
    pub(super) n: u32,
    pub(super) k: u32,
    /// Experts per row, 0 for a plain product. `n` and `k` are those of one expert.
    pub(super) used: u32,
}

/// The launch configuration of a product. Warps and shares decide the order of sums, so they do not depend on the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows of x per launch.
    pub(super) columns: u32,
    pub(super) warps: u32,
    /// Blocks per multiprocessor, and shares of the matrix that a block multiplies.
    pub(super) blocks: u32,
    pub(super) shares: u32,
    pub(super) stages: u32,
    pub(super) shared: u32,
}

impl Product {
    /// Elements of a row that a warp reads together.
    fn chunk(&self) -> u32 {
        LANES * if self.format.is_quantised() { 32 } else { 16 }
    }

    /// `k` in whole chunks.
    fn padded(&self) -> u64 {
        u64::from(self.k).next_multiple_of(self.chunk().into())
    }

    /// Bytes of one row of x in shared memory (`x_bytes` of quantise.cuh).
    fn x_bytes(&self) -> u64 {
        // Experts with separate inputs have them concatenated.
        let each = if self.output == Output::Add {
            self.used.max(1)
        } else {
            1
        };
        let padded = self.padded() * u64::from(each);
        if !self.format.rounds_activations() {
            return 4 * padded;
        }
        padded + padded / 32 * u64::from(layout::side_bytes(self.format))
    }

    /// Bytes of a warp's stage.
    fn stage(&self) -> u64 {
        let chunk = self.chunk();
        layout::planes(self.format)
            .iter()
            .map(|p| u64::from(GROUP * (chunk / p.elements) * p.bytes))
            .sum::<u64>()
            .next_multiple_of(16)
    }

    /// Bytes of shared memory without the rings.
    fn fixed(&self, columns: u32, warps: u32) -> u64 {
        // Parts of the norm's sum, two incomplete groups per warp, and the numbers and shares of experts.
        let rows = u64::from(columns) * (self.x_bytes() + u64::from(warps * (1 + 2 * GROUP) * 4));
        (rows + 8 * u64::from(self.used)).next_multiple_of(16)
    }

    /// Threads and shared memory for up to `rows` rows. If shared memory is too small for all rows, there are several launches.
    pub(super) fn plan(&self, rows: u32, gpu: &GpuInfo) -> Result<Plan, Error> {
        let plan = self.plan_alone(rows, gpu)?;
        let shares = self.plan_alone(1, gpu)?.blocks / plan.blocks;
        Ok(Plan { shares, ..plan })
    }

    /// The same, with one share per block.
    fn plan_alone(&self, rows: u32, gpu: &GpuInfo) -> Result<Plan, Error> {
        let tuned = TUNED
            .iter()
            .find(|t| {
                gpu.arch >= t.arch && (t.formats.is_empty() || t.formats.contains(&self.format))
            })
            .ok_or_else(|| Error::Program("no tuning of matmul".to_string()))?;
        let most = u64::from(gpu.shared_per_block);
        let fits = |columns: u32, warps: u32| {
            let rings = u64::from(FEWEST_STAGES * warps) * self.stage();
            self.fixed(columns, warps) + rings <= most
        };
        let (mut columns, mut warps) = (rows.clamp(1, 16).next_power_of_two(), tuned.warps);
        while warps > 1 && !fits(1, warps) {
            warps /= 2;
        }
        while columns > 1 && !fits(columns, warps) {
            columns /= 2;
        }
        let stage = u64::from(warps) * self.stage();
        let fixed = self.fixed(columns, warps);
        let room = most.checked_sub(fixed).map_or(0, |room| room / stage);
        if room < u64::from(FEWEST_STAGES) {
            return Err(Error::Program(format!(
                "a {} matrix with rows of {} elements: this GPU's blocks have {most} bytes of shared memory, too few for one row of activations; use the CPU",
                self.format.name(),
                self.k
            )));
        }
        // Leave room for one block of the next command, or at least for the blocks of this one.
        let wanted = if columns == 1 { tuned.blocks } else { 1 };
        let beside = |blocks: u32| {
            let part = (gpu.shared_per_sm / blocks).saturating_sub(RESERVED);
            u64::from(part).saturating_sub(fixed) / stage
        };
        let (blocks, most) = [(wanted, wanted + 1), (wanted, wanted)]
            .map(|(blocks, resident)| (blocks, beside(resident).min(room)))
            .into_iter()
            .find(|(_, stages)| *stages >= FEWEST_STAGES.into())
            .unwrap_or((1, room));
        let stages = (u64::from(tuned.ring) / stage).clamp(FEWEST_STAGES.into(), most);
        Ok(Plan {
            columns,
            warps,
            blocks,
            shares: 1,
            stages: stages as u32,
            shared: (fixed + stages * stage) as u32,
        })
    }

    pub(super) fn unit(&self, plan: &Plan) -> Unit {
        let rounds = (self.padded() / 4).div_ceil(u64::from(plan.warps * 32));
        Unit {
            file: "matmul.cu",
            generated: String::new(),
            defines: [
                layout::format_defines(self.format),
                vec![
                    ("NORM", u32::from(self.norm).to_string()),
                    ("OUTPUT", (self.output as u32).to_string()),
                    ("COLUMNS", plan.columns.to_string()),
                    ("WARPS", plan.warps.to_string()),
                    ("STAGES", plan.stages.to_string()),
                    ("ROUNDS", rounds.to_string()),
                    (
                        "WHOLE",
                        u32::from(self.k.is_multiple_of(self.chunk())).to_string(),
                    ),
                    (
                        "RESIDENT",
                        if plan.columns == 1 { "2" } else { "1" }.to_string(),
                    ),
                    ("USED", self.used.to_string()),
                    ("SHARES", plan.shares.to_string()),
                ],
            ]
            .concat(),
        }
    }
}

/// The kernels of a command.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let words = &command.params;
    let matrix = cx.weight(command.weights[0]);
    let mut norm = 0;
    let (output, eps, act, n, k, x_stride, y_stride) = match command.op {
        Op::Matmul => {
            let p = params::Matmul::of(words);
            (Output::Store, 0.0, 0, p.n, p.k, p.x_stride, p.y_stride)
        }
        Op::MatmulAdd => {
            let p = params::MatmulAdd::of(words);
            (Output::Add, 0.0, 0, p.n, p.k, p.x_stride, p.y_stride)
        }
        Op::NormMatmul => {
            let p = params::NormMatmul::of(words);
            norm = cx.vector(command.weights[1]);
            (Output::Store, p.eps, 0, p.n, p.k, p.x_stride, p.y_stride)
        }
        Op::NormMatmulActMul => {
            let p = params::NormMatmulActMul::of(words);
            norm = cx.vector(command.weights[1]);
            (
                Output::ActMul,
                p.eps,
                p.act,
                p.n,
                p.k,
                p.x_stride,
                p.y_stride,
            )
        }
        op => return Err(Error::Program(format!("{} is not a product", op.name()))),
    };
    let product = Product {
        format: matrix.format,
        norm: matches!(command.op, Op::NormMatmul | Op::NormMatmulActMul),
        output,
        n,
        k,
        used: 0,
    };
    let args = MatmulArgs {
        weight: matrix.start,
        x: cx.buffer(command.buffers[0]),
        y: cx.buffer(command.buffers[1]),
        norm,
        step: cx.step,
        n,
        k,
        x_stride,
        y_stride,
        first: 0,
        eps,
        act,
        shares: 0,
    };
    check(command, &product, &matrix)?;
    let plan = product.plan(rows, cx.gpu)?;
    let mut nodes = Vec::new();
    for first in (0..rows.max(1)).step_by(plan.columns as usize) {
        let launch = launch(&product, &plan, MatmulArgs { first, ..args }, cx.gpu);
        nodes.push(match first {
            0 => Node::Kernel(launch),
            _ => for_rows(first + 1, rows, vec![Node::Kernel(launch)]),
        });
    }
    Ok(nodes)
}

/// Checks that the weight has the size that the parameters declare.
fn check(command: &Command, product: &Product, matrix: &DeviceWeight) -> Result<(), Error> {
    let halves = if product.output == Output::ActMul {
        2
    } else {
        1
    };
    if product.n.checked_mul(halves) == Some(matrix.n) && product.k == matrix.k && product.k > 0 {
        return Ok(());
    }
    Err(Error::Program(format!(
        "{} of n {} and k {} with a weight of {} x {}",
        command.op.name(),
        product.n,
        product.k,
        matrix.n,
        matrix.k
    )))
}

fn launch(product: &Product, plan: &Plan, values: MatmulArgs, gpu: &GpuInfo) -> Launch {
    let outputs = if product.output == Output::ActMul {
        GROUP / 2
    } else {
        GROUP
    };
    let shares = product
        .n
        .div_ceil(outputs)
        .clamp(1, gpu.sms * plan.blocks * plan.shares);
    Launch {
        unit: product.unit(plan),
        function: "matmul",
        // All shares are even. The kernel reads the number of live rows from the step.
        grid: [shares.div_ceil(plan.shares), 1, 1],
        by_rows: ByRows::Fixed,
        block: plan.warps * 32,
        shared: plan.shared,
        args: args(&MatmulArgs { shares, ..values }),
    }
}

/// The units that tests compile: every format, alone and fused, for one row and for many.
pub(crate) fn catalogue() -> Vec<Listed> {
    let kinds = [
        (false, Output::Store, 1),
        (false, Output::Add, 1),
        (true, Output::Store, 1),
        (true, Output::ActMul, 1),
        (true, Output::ActMul, 16),
    ];
    layout::listed()
        .flat_map(|format| kinds.map(|kind| (format, kind)))
        .map(|(format, (norm, output, columns))| {
            let product = Product {
                format,
                norm,
                output,
                n: 4096,
                k: 4096,
                used: 0,
            };
            let plan = Plan {
                columns,
                warps: 8,
                blocks: 1,
                shares: if columns == 1 { 1 } else { 2 },
                stages: 4,
                shared: 0,
            };
            Listed {
                unit: product.unit(&plan),
                hot: columns == 1,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(arch: u32, block: u32, sm: u32) -> GpuInfo {
        GpuInfo {
            device: 0,
            devices: 1,
            name: String::new(),
            arch,
            sms: 132,
            memory: 0,
            shared_per_block: block,
            shared_per_sm: sm,
            l2_bytes: 0,
            driver: 13000,
            clock_khz: 0,
            bandwidth: 0,
        }
    }

    fn product(format: Format, k: u32) -> Product {
        Product {
            format,
            norm: false,
            output: Output::Add,
            n: 4096,
            k,
            used: 0,
        }
    }

    #[test]
    fn every_plan_fits() {
        for gpu in [
            gpu(80, 163 << 10, 164 << 10),
            gpu(89, 99 << 10, 100 << 10),
            gpu(90, 227 << 10, 228 << 10),
        ] {
            for format in Format::ALL {
                for (k, rows) in [(256, 1), (4096, 1), (14336, 1), (14336, 7), (4096, 16)] {
                    let product = product(format, k);
                    let plan = product.plan(rows, &gpu).expect("it fits");
                    assert!(plan.shared <= gpu.shared_per_block, "{product:?} {plan:?}");
                    assert!(plan.stages >= FEWEST_STAGES && plan.columns >= 1);
                    let rings = u64::from(plan.stages * plan.warps) * product.stage();
                    assert_eq!(
                        u64::from(plan.shared),
                        product.fixed(plan.columns, plan.warps) + rings
                    );
                }
            }
        }
    }

    /// Warps and shares decide the order of sums.
    #[test]
    fn any_number_of_rows_has_the_warps_and_shares_of_one() {
        let mut launches = 0;
        for gpu in [gpu(80, 163 << 10, 164 << 10), gpu(90, 227 << 10, 228 << 10)] {
            for format in Format::ALL {
                for k in [256, 2560, 14336, 28672] {
                    let product = product(format, k);
                    let Ok(one) = product.plan(1, &gpu) else {
                        continue;
                    };
                    for rows in [2, 7, 16, 64] {
                        let plan = product.plan(rows, &gpu).expect("it fits");
                        assert_eq!(plan.warps, one.warps);
                        assert_eq!(plan.blocks * plan.shares, one.blocks, "{plan:?}");
                        launches += 1;
                    }
                }
            }
        }
        assert!(launches > 500, "{launches}");
    }

    #[test]
    fn decode_leaves_room_for_the_next_command() {
        let gpu = gpu(90, 227 << 10, 228 << 10);
        for format in [Format::BF16, Format::Q4_0, Format::Q4_K, Format::Q8_0] {
            for k in [1024, 2560, 4096] {
                let plan = product(format, k).plan(1, &gpu).expect("it fits");
                let resident = (plan.blocks + 1) * (plan.shared + RESERVED);
                assert!(
                    plan.blocks == 2 && resident <= gpu.shared_per_sm,
                    "{plan:?}"
                );
            }
        }
        // Wide rows of floats: two blocks at least.
        let plan = product(Format::BF16, 14336).plan(1, &gpu).expect("it fits");
        assert_eq!((plan.blocks, plan.stages), (2, 3));
    }

    #[test]
    fn a_row_too_wide_is_refused() {
        let error = product(Format::F32, 1 << 20)
            .plan(1, &gpu(90, 227 << 10, 228 << 10))
            .expect_err("4 MiB do not fit");
        assert!(error.to_string().contains("shared memory"));
    }
}
