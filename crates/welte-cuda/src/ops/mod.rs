//! The ops, one family per file: the kernels of a command, and the private memory they need.

pub(crate) mod attention;
pub(crate) mod basic;
pub(crate) mod columns;
pub(crate) mod conv;
mod eighths;
pub(crate) mod embed;
pub(crate) mod encode;
pub(crate) mod experts;
pub(crate) mod gated_delta;
pub(crate) mod gemm;
pub(crate) mod heads;
pub(crate) mod kv;
pub(crate) mod library;
pub(crate) mod logprobs;
pub(crate) mod mamba2;
pub(crate) mod matmul;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod streams;
pub(crate) mod tile;
mod wide;

use crate::launch::{Listed, Node};
use crate::lower::Lowering;
use crate::{Error, GpuInfo};
use welte_table::{Command, Format, Op, Pass, PassKind, Program, WeightSpec};

/// The arithmetic of a pass. The bits of a row depend on its role, and not on the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Decode passes: matrix-vector kernels and flash decoding, for any number of rows.
    Generated,
    /// Decode passes of programs for several slots: products on tensor cores, otherwise as above.
    Batched,
    /// Prompt and embed passes: 16-bit activations on tensor cores and flash attention, for any number of rows.
    Prompt,
}

impl Role {
    /// The role of a pass. `decode` is that of decode passes, which the plan chooses.
    pub(crate) fn of(pass: PassKind, decode: Role) -> Role {
        match pass {
            PassKind::Decode => decode,
            PassKind::Prompt | PassKind::Embed => Role::Prompt,
        }
    }
}

/// How a product is computed. Its kernels, scratch and counters follow from this one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    /// Matrix-vector kernels.
    Vectors,
    /// Sums in eighths of k.
    Eighths,
    /// Columns for many rows of a decode pass.
    Columns,
    /// Tiles or the library, for prompts.
    Tiles,
}

impl Product {
    /// `None`: the command is no product.
    fn of(
        program: &Program,
        command: &Command,
        role: Role,
        float8: bool,
        gpu: &GpuInfo,
    ) -> Option<Product> {
        let format = product_format(program, command)?;
        Some(match role {
            _ if float8 && eighths::multiplies_float8(format, gpu) => Product::Eighths,
            Role::Generated => Product::Vectors,
            Role::Batched if eighths::multiplies(format, gpu) => Product::Eighths,
            Role::Batched => Product::Columns,
            Role::Prompt => Product::Tiles,
        })
    }
}

/// The format of a product's weights. `None`: the command is no product.
fn product_format(program: &Program, command: &Command) -> Option<Format> {
    use Op::{Matmul, MatmulAdd, NormMatmul, NormMatmulActMul};
    let weight = program.weights.get(command.weights[0] as usize)?;
    let is_product = matches!(
        command.op,
        Matmul | MatmulAdd | NormMatmul | NormMatmulActMul
    );
    is_product.then_some(weight.format)
}

/// Whether a command is a product that can be multiplied with activations in FP8.
pub(crate) fn is_float8_product(program: &Program, command: &Command, gpu: &GpuInfo) -> bool {
    let format = product_format(program, command);
    format.is_some_and(|format| eighths::multiplies_float8(format, gpu))
}

/// The most rows that the kernels of command `index` are launched for.
pub(crate) fn rows_of(pass: &Pass, index: usize) -> u32 {
    match pass.commands.get(index).map(|command| command.op) {
        // These read all rows, but have a block for each output row.
        Some(Op::SelectRows | Op::Pool) => pass.outputs,
        _ => pass.rows_at(index),
    }
}

/// The kernels of a command, for at most `rows` rows.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let float8 = cx.float8.is_some();
    match Product::of(cx.program, command, cx.role, float8, cx.gpu) {
        Some(Product::Vectors) => return matmul::lower(cx, command, rows),
        Some(Product::Eighths) => return eighths::lower(cx, command, rows),
        Some(Product::Columns) => return columns::lower(cx, command, rows),
        Some(Product::Tiles) => return gemm::lower(cx, command, rows),
        None => {}
    }
    match command.op {
        Op::Embed => embed::lower(cx, command, rows),
        Op::Norm
        | Op::LayerNorm
        | Op::PositionScale
        | Op::Bias
        | Op::Act
        | Op::ActMul
        | Op::Gate
        | Op::Add
        | Op::Scale
        | Op::SelectRows
        | Op::Pool => basic::lower(cx, command, rows),
        Op::Multiply | Op::Cutoff | Op::MatchSquares | Op::AltUpPredict | Op::AltUpCorrect => {
            streams::lower(cx, command, rows)
        }
        Op::HeadsMatmul => heads::lower(cx, command, rows),
        Op::GatedDelta => gated_delta::lower(cx, command, rows),
        Op::Mamba2 => mamba2::lower(cx, command, rows),
        Op::ShortConv => conv::lower(cx, command, rows),
        Op::EncodeAttention | Op::AddPosition => encode::lower(cx, command, rows),
        // Checking the program has refused products without a weight.
        Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul => {
            Err(Error::Program("a product has no weight".to_string()))
        }
        Op::Rope | Op::KvAppend | Op::RopeAppend => rope::lower(cx, command, rows),
        Op::Attention => attention::lower(cx, command, rows),
        Op::Route | Op::ExpertsActMul | Op::ExpertsAdd => experts::lower(cx, command, rows),
        Op::Sample => sample::lower(cx, command, rows),
    }
}

/// What decides a command's memory.
#[derive(Clone, Copy)]
pub(crate) struct Demand<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
    pub(crate) role: Role,
    /// The most rows.
    pub(crate) rows: u32,
    /// Whether FP8 weights are multiplied with activations in FP8.
    pub(crate) float8: bool,
}

impl Demand<'_> {
    /// The first weight of a command.
    fn weight(&self, command: &Command) -> Option<&WeightSpec> {
        self.program.weights.get(command.weights[0] as usize)
    }

    fn product(&self, command: &Command) -> Option<Product> {
        Product::of(self.program, command, self.role, self.float8, self.gpu)
    }
}

/// Bytes of private scratch, which is used only within the command.
pub(crate) fn scratch(demand: &Demand<'_>, command: &Command) -> u64 {
    match (demand.product(command), command.op) {
        (Some(Product::Vectors), _) => 0,
        (Some(Product::Eighths), _) => eighths::scratch(demand, command),
        (Some(Product::Columns), _) => columns::scratch(demand, command),
        (Some(Product::Tiles), _) => gemm::scratch(demand, command),
        (None, Op::Attention) => attention::scratch(demand, command),
        (None, Op::ExpertsActMul | Op::ExpertsAdd) => experts::scratch(demand, command),
        (None, Op::Sample) => sample::scratch(demand),
        (None, _) => 0,
    }
}

/// Bytes of counters, which are zero between commands.
pub(crate) fn counters(demand: &Demand<'_>, command: &Command) -> u64 {
    match (demand.product(command), command.op) {
        (Some(Product::Columns), _) => columns::counters(demand, command),
        (None, Op::Attention) => attention::counters(demand, command),
        (None, Op::Sample) => sample::counters(demand),
        _ => 0,
    }
}

/// The units that tests compile for every architecture.
pub(crate) fn catalogue() -> Vec<Listed> {
    let families = [
        embed::catalogue(),
        basic::catalogue(),
        conv::catalogue(),
        encode::catalogue(),
        heads::catalogue(),
        streams::catalogue(),
        gated_delta::catalogue(),
        mamba2::catalogue(),
        matmul::catalogue(),
        gemm::catalogue(),
        columns::catalogue(),
        rope::catalogue(),
        attention::catalogue(),
        sample::catalogue(),
        logprobs::catalogue(),
        experts::catalogue(),
        crate::floor::catalogue(),
        crate::persistent::catalogue(),
    ];
    families.into_iter().flatten().collect()
}
