//! The ops, one family per file: the kernels of a command, and the private memory they need.

pub(crate) mod adapters;
pub(crate) mod altup;
pub(crate) mod attention;
pub(crate) mod basic;
pub(crate) mod batched_matmul;
pub(crate) mod conv;
mod cublas;
pub(crate) mod eighths;
pub(crate) mod embed;
pub(crate) mod encode;
pub(crate) mod exchange;
pub(crate) mod experts;
pub(crate) mod gated_delta;
pub(crate) mod gemm;
pub(crate) mod heads;
pub(crate) mod hidden;
pub(crate) mod kv;
pub(crate) mod logprobs;
pub(crate) mod mamba2;
pub(crate) mod matmul;
pub(crate) mod need;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod sparse;
pub(crate) mod tile;
mod wide_attention;

use crate::arithmetic::{Arithmetic, Rounding};
use crate::launch::Node;
use crate::lower::{Commands, LoweredPass, Lowering};
use crate::{Error, GpuInfo};
use need::MemoryNeed;
use welte_table::{Command, Format, Op, Pass, PassKind, Program};

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
    /// `None`: the command is not a product.
    fn of(
        program: &Program,
        command: &Command,
        arithmetic: Arithmetic,
        float8: bool,
        gpu: &GpuInfo,
    ) -> Option<Product> {
        let format = product_format(program, command)?;
        Some(match arithmetic {
            _ if float8 && eighths::multiplies_float8(format, gpu) => Product::Eighths,
            Arithmetic::Generated => Product::Vectors,
            Arithmetic::Batched if eighths::multiplies(format, gpu) => Product::Eighths,
            Arithmetic::Batched => Product::Columns,
            Arithmetic::Prompt => Product::Tiles,
        })
    }
}

/// The format of a product's weights. `None`: the command is not a product.
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

/// How a command rounds the rows that it reads, if it does so before anything else. Products of prompt passes round `x`, if there is no
/// norm, to the 16 bits of tensor cores.
fn rounding(cx: &Lowering<'_>, command: &Command) -> Option<Rounding> {
    let float8 = cx.float8.is_some();
    let product = Product::of(cx.program, command, cx.arithmetic, float8, cx.gpu);
    let plain = matches!(command.op, Op::Matmul | Op::MatmulAdd);
    (product == Some(Product::Tiles) && plain).then(|| match product_format(cx.program, command) {
        Some(Format::BF16) => Rounding::Bf16,
        _ => Rounding::F16,
    })
}

/// The most rows that the kernels of command `index` are launched for.
pub(crate) fn rows_of(pass: &Pass, index: usize) -> u32 {
    match pass.commands.get(index).map(|command| command.op) {
        // These read all rows, but have a block for each output row.
        Some(Op::SelectRows | Op::Pool) => pass.outputs,
        _ => pass.rows_at(index),
    }
}

/// Numbers of rows up to which a pass has kernels of its own, and their arithmetic; fewest first. Nothing but guesses depends on the
/// bits of a draft pass, so a few of its rows are computed as decode passes compute them: the weights are read once, and faster.
pub(crate) fn few_rows(pass: &Pass, decode: Arithmetic) -> Vec<(u32, Arithmetic)> {
    match pass.kind {
        PassKind::Decode => vec![(1, decode)],
        PassKind::Draft if pass.outputs > 1 => vec![(1, decode), (pass.outputs, decode)],
        PassKind::Draft => vec![(1, decode)],
        PassKind::Prompt | PassKind::Embed => Vec::new(),
    }
}

/// The kernels of a command, for at most `rows` rows.
pub(crate) fn lower(cx: &Lowering<'_>, command: &Command, rows: u32) -> Result<Vec<Node>, Error> {
    let float8 = cx.float8.is_some();
    match Product::of(cx.program, command, cx.arithmetic, float8, cx.gpu) {
        Some(Product::Vectors) => return matmul::lower(cx, command, rows),
        Some(Product::Eighths) => return eighths::lower(cx, command, rows),
        Some(Product::Columns) => return batched_matmul::lower(cx, command, rows),
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
        | Op::AddFeature
        | Op::Spread
        | Op::Scale
        | Op::SelectRows
        | Op::Pool => basic::lower(cx, command, rows),
        Op::Multiply | Op::Cutoff | Op::MatchSquares | Op::AltUpPredict | Op::AltUpCorrect => {
            altup::lower(cx, command, rows)
        }
        Op::AdaptDown
        | Op::AdaptLookup
        | Op::AdaptUp
        | Op::AdaptExpertsDown
        | Op::AdaptExpertsUp => adapters::lower(cx, command, rows),
        Op::Exchange => exchange::lower(cx, command, rows),
        Op::HeadsMatmul => heads::lower(cx, command, rows),
        Op::GatedDelta => gated_delta::lower(cx, command, rows),
        Op::Mamba2 => mamba2::lower(cx, command, rows),
        Op::ShortConv => conv::lower(cx, command, rows),
        Op::EncodeAttention | Op::EncodeConv | Op::AddPosition => encode::lower(cx, command, rows),
        // Checking the program has refused products without a weight.
        Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul => {
            Err(Error::Program("a product has no weight".to_string()))
        }
        Op::Rope | Op::KvAppend | Op::RopeAppend => rope::lower(cx, command, rows),
        Op::Attention => attention::lower(cx, command, rows),
        Op::CrossAttention => attention::lower_cross(cx, command, rows),
        Op::ChoosePositions => sparse::lower_choice(cx, command, rows),
        Op::SparseAttention => sparse::lower(cx, command, rows),
        Op::Route | Op::ExpertsActMul | Op::ExpertsAdd => experts::lower(cx, command, rows),
        Op::Sample => sample::lower(cx, command, rows),
    }
}

fn product_of(need: &MemoryNeed<'_>, command: &Command) -> Option<Product> {
    Product::of(
        need.program,
        command,
        need.arithmetic,
        need.float8,
        need.gpu,
    )
}

/// Bytes of private scratch, which is used only within the command.
pub(crate) fn scratch(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    match (product_of(need, command), command.op) {
        (Some(Product::Vectors), _) => 0,
        (Some(Product::Eighths), _) => eighths::scratch(need, command),
        (Some(Product::Columns), _) => batched_matmul::scratch(need, command),
        (Some(Product::Tiles), _) => gemm::scratch(need, command),
        (None, Op::Attention) => attention::scratch(need, command),
        (None, Op::ChoosePositions) => sparse::scratch(need),
        (None, Op::ExpertsActMul | Op::ExpertsAdd) => experts::scratch(need, command),
        (None, Op::Sample) => sample::scratch(need),
        (None, _) => 0,
    }
}

/// Bytes of counters, which are zero between commands.
pub(crate) fn counters(need: &MemoryNeed<'_>, command: &Command) -> u64 {
    match (product_of(need, command), command.op) {
        (Some(Product::Columns), _) => batched_matmul::counters(need, command),
        (None, Op::Attention) => attention::counters(need, command),
        (None, Op::Sample) => sample::counters(need),
        _ => 0,
    }
}

impl Lowering<'_> {
    /// Lowers a pass, for few rows as well.
    pub(crate) fn pass(&self, pass: &Pass) -> Result<LoweredPass, Error> {
        experts::check_order(&pass.commands)?;
        let few = few_rows(pass, self.decode);
        let suffices = few.last().is_some_and(|(rows, _)| *rows >= pass.rows);
        let few = few.into_iter().map(|(rows, arithmetic)| {
            let commands = self.commands(pass, arithmetic, Some(rows))?;
            Ok((rows, commands))
        });
        let few = few.collect::<Result<_, Error>>()?;
        let commands = if suffices {
            Vec::new()
        } else {
            self.commands(pass, Arithmetic::of(pass.kind, self.decode), None)?
        };
        Ok(LoweredPass { commands, few })
    }

    /// Lowers all commands, for `rows` rows or for as many as the pass takes.
    fn commands(
        &self,
        pass: &Pass,
        arithmetic: Arithmetic,
        rows: Option<u32>,
    ) -> Result<Commands, Error> {
        let from = pass.outputs_from().unwrap_or(usize::MAX);
        let lowered = pass.commands.iter().enumerate().map(|(index, command)| {
            let rows = rows.unwrap_or(rows_of(pass, index));
            let mut cx = *self;
            cx.arithmetic = arithmetic;
            if index >= from {
                cx.step = self.places.outputs;
            }
            if command.op == Op::Exchange {
                cx.rounding = exchange::rounding(pass, command, |reader| rounding(&cx, reader));
            }
            lower(&cx, command, rows)
        });
        lowered.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::h200;
    use crate::lower::Places;
    use welte_formats::synthetic::Synthetic;
    use welte_models::CompileOptions;
    use welte_table::{PATTERNS, fuse, shard};

    /// Attention's output and the feed-forward part are read by products alone; the stream is added to, and logits are results.
    #[test]
    fn what_prompts_round_anyway_travels_in_16_bits() {
        for (shape, half) in [
            ("qwen3-0.6b,layers=3:q4_k", Rounding::F16),
            ("qwen3-0.6b,layers=3:bf16", Rounding::Bf16),
        ] {
            let checkpoint = Synthetic::parse(shape).unwrap();
            let spec = welte_models::spec(&checkpoint).unwrap();
            let program = welte_models::compile(&spec, &checkpoint, &CompileOptions::default());
            let mut ranks = shard(&program.unwrap(), 2, 0).unwrap().ranks;
            let program = fuse(ranks.remove(0).program, PATTERNS);
            let (gpu, places) = (h200(), Places::default());
            let generated = Arithmetic::Generated;
            let mut cx = Lowering::new(&program, &gpu, None, &[], &places, generated, None);
            let mut count = |kind: PassKind, wanted: Rounding| {
                let pass = &program.passes[program.pass(kind).unwrap()];
                cx.arithmetic = Arithmetic::of(kind, generated);
                let all = pass.commands.iter().filter(|c| c.op == Op::Exchange);
                all.filter(|c| {
                    exchange::rounding(pass, c, |reader| rounding(&cx, reader)) == wanted
                })
                .count()
            };
            assert_eq!(count(PassKind::Prompt, half), 2 * 3, "{shape}");
            assert_eq!(
                count(PassKind::Prompt, Rounding::Whole),
                2 * 3 + 1,
                "{shape}"
            );
            assert_eq!(
                count(PassKind::Decode, Rounding::Whole),
                4 * 3 + 1,
                "{shape}"
            );
        }
    }
}
