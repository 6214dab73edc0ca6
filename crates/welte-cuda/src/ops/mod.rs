//! The ops, one family per file: the kernels of a command, and the private memory they need.

pub(crate) mod attention;
pub(crate) mod basic;
pub(crate) mod conv;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gemm;
pub(crate) mod kv;
pub(crate) mod library;
pub(crate) mod matmul;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod tile;

use crate::launch::{Listed, Node};
use crate::lower::Lowering;
use crate::{Error, GpuInfo};
use welte_table::{Command, Op, Pass, Program};

/// The most rows of the matrix-vector kernels. More rows use matrix products.
pub(crate) const MOST_VECTOR_ROWS: u32 = 16;

macro_rules! family {
    ($command:expr, $rows:expr, $function:ident ( $($argument:expr),* )) => {
        match $command.op {
            Op::Embed => embed::$function($($argument),*),
            Op::Norm | Op::Bias | Op::ActMul | Op::Add | Op::Scale | Op::SelectRows | Op::Pool => {
                basic::$function($($argument),*)
            }
            Op::ShortConv => conv::$function($($argument),*),
            Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul
                if $rows <= MOST_VECTOR_ROWS =>
            {
                matmul::$function($($argument),*)
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
    family!(command, rows, lower(cx, command, rows))
}

/// Bytes of private scratch, which is used only within the command.
pub(crate) fn scratch(program: &Program, command: &Command, rows: u32, gpu: &GpuInfo) -> u64 {
    family!(command, rows, scratch(program, command, rows, gpu))
}

/// Bytes of counters, which are zero between commands.
pub(crate) fn counters(program: &Program, command: &Command, rows: u32, gpu: &GpuInfo) -> u64 {
    family!(command, rows, counters(program, command, rows, gpu))
}

/// The units that tests compile for every architecture.
pub(crate) fn catalogue() -> Vec<Listed> {
    let families = [
        embed::catalogue(),
        basic::catalogue(),
        conv::catalogue(),
        matmul::catalogue(),
        gemm::catalogue(),
        rope::catalogue(),
        attention::catalogue(),
        sample::catalogue(),
        experts::catalogue(),
        crate::floor::catalogue(),
        crate::persistent::catalogue(),
    ];
    families.into_iter().flatten().collect()
}
