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
use welte_table::{Command, Op, Pass, PassKind, Program};

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

macro_rules! family {
    ($command:expr, $role:expr, $function:ident ( $($argument:expr),* )) => {
        match $command.op {
            Op::Embed => embed::$function($($argument),*),
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
            | Op::Pool => basic::$function($($argument),*),
            Op::Multiply
            | Op::Cutoff
            | Op::MatchSquares
            | Op::AltUpPredict
            | Op::AltUpCorrect => streams::$function($($argument),*),
            Op::HeadsMatmul => heads::$function($($argument),*),
            Op::GatedDelta => gated_delta::$function($($argument),*),
            Op::Mamba2 => mamba2::$function($($argument),*),
            Op::ShortConv => conv::$function($($argument),*),
            Op::EncodeAttention | Op::AddPosition => encode::$function($($argument),*),
            Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul
                if $role == Role::Generated =>
            {
                matmul::$function($($argument),*)
            }
            Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul
                if $role == Role::Batched =>
            {
                columns::$function($($argument),*)
            }
            Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul => {
                gemm::$function($($argument),*)
            }
            Op::Rope | Op::KvAppend | Op::RopeAppend => rope::$function($($argument),*),
            Op::Attention => attention::$function($($argument),*),
            Op::Route | Op::ExpertsActMul | Op::ExpertsAdd => experts::$function($($argument),*),
            Op::Sample => sample::$function($($argument),*),
        }
    };
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
    if let Some(job) = float8_job(cx, command, rows)? {
        return eighths::lower(cx, &job, rows);
    }
    family!(command, cx.role, lower(cx, command, rows))
}

/// Whether a command is a product that can be multiplied with activations in FP8.
pub(crate) fn is_float8_product(program: &Program, command: &Command, gpu: &GpuInfo) -> bool {
    let weight = program.weights.get(command.weights[0] as usize);
    let format = weight.map(|weight| weight.format);
    is_product(command) && format.is_some_and(|format| eighths::multiplies_float8(format, gpu))
}

/// The product of a command, if it is multiplied with activations in FP8.
fn float8_job(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Option<gemm::Job>, Error> {
    let is_float8 = cx.float8.is_some() && is_float8_product(cx.program, command, cx.gpu);
    is_float8
        .then(|| gemm::Job::of(cx, command, rows))
        .transpose()
}

fn is_product(command: &Command) -> bool {
    use Op::{Matmul, MatmulAdd, NormMatmul, NormMatmulActMul};
    matches!(
        command.op,
        Matmul | MatmulAdd | NormMatmul | NormMatmulActMul
    )
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

/// Bytes of private scratch, which is used only within the command.
pub(crate) fn scratch(demand: &Demand<'_>, command: &Command) -> u64 {
    match command.op {
        _ if is_product(command) => {
            let weight = demand.program.weights.get(command.weights[0] as usize);
            let is_float8 = demand.float8 && is_float8_product(demand.program, command, demand.gpu);
            match weight.filter(|_| is_float8) {
                Some(w) => eighths::scratch(w.format, w.k, demand.rows),
                None => gemm::scratch(demand, command).max(columns::scratch(demand, command)),
            }
        }
        Op::Attention => attention::scratch(demand, command),
        Op::ExpertsActMul | Op::ExpertsAdd => experts::scratch(demand, command),
        Op::Sample => sample::scratch(demand),
        _ => 0,
    }
}

/// Bytes of counters, which are zero between commands.
pub(crate) fn counters(demand: &Demand<'_>, command: &Command) -> u64 {
    match command.op {
        Op::Attention => attention::counters(demand, command),
        Op::Sample => sample::counters(demand),
        _ if is_product(command) => columns::counters(demand, command),
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
