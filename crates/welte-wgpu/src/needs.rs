//! What commands and matrices need, known before anything is allocated.

use crate::gpu::Gpu;
use crate::kernels;
use crate::kernels::cooperative::{Cooperative, rounded_words};
use crate::kernels::products::most_prepared;
use std::collections::BTreeSet;
use welte_table::{
    CacheKind, CacheSpec, Command, Format, ModelPart, Op, PassKind, Program, WeightId, params,
};

/// The fewest positions of a split.
pub(crate) const LEAST_SPLIT: u32 = 256;

/// The same where one workgroup walks a split faster than another launch joins two.
pub(crate) const LONG_SPLIT: u32 = 1024;

/// A command of experts whose rows can be grouped by expert.
#[derive(Clone, Copy)]
pub(crate) struct Grouped {
    pub(crate) k: u32,
    pub(crate) experts: u32,
    pub(crate) used: u32,
    /// Rows of inputs of each row.
    pub(crate) inputs: u32,
    /// Outputs of an expert.
    pub(crate) each: u32,
    pub(crate) choice_stride: u32,
}

impl Grouped {
    /// None if its activation is another command, or if rows are not whole quads.
    pub(crate) fn of(command: &Command) -> Option<Grouped> {
        let (grouped, strides) = match command.op {
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(&command.params);
                let grouped = Grouped {
                    k: p.k,
                    experts: p.experts,
                    used: p.used,
                    inputs: 1,
                    each: 2 * p.n,
                    choice_stride: p.choice_stride,
                };
                (
                    (p.act < 4).then_some(grouped)?,
                    [p.n, p.x_stride, p.y_stride],
                )
            }
            Op::ExpertsAdd => {
                let p = params::ExpertsAdd::of(&command.params);
                let grouped = Grouped {
                    k: p.k,
                    experts: p.experts,
                    used: p.used,
                    inputs: p.used,
                    each: p.n,
                    choice_stride: p.choice_stride,
                };
                (grouped, [p.n, p.x_stride, p.y_stride])
            }
            _ => return None,
        };
        let whole = strides.iter().chain([&grouped.k]);
        whole
            .into_iter()
            .all(|n| n.is_multiple_of(4))
            .then_some(grouped)
    }

    /// The most tiles of at least eight rows that `rows` rows make.
    fn most_tiles(&self, rows: u32) -> u32 {
        rows * self.used / 8 + self.experts
    }

    /// Where its parts lie in the scratch, in words: the list of entries, the tiles, rounded rows, outputs, and the end.
    pub(crate) fn parts(&self, rows: u32) -> [u64; 5] {
        let rows64 = u64::from(rows);
        let sizes = [
            rows64 * u64::from(self.used),
            4 * (1 + u64::from(self.most_tiles(rows))),
            rows64 * u64::from(self.inputs * rounded_words(self.k)),
            rows64 * u64::from(self.used) * u64::from(self.each),
        ];
        let mut parts = [0; 5];
        for (i, size) in sizes.into_iter().enumerate() {
            parts[i + 1] = parts[i] + size.next_multiple_of(4);
        }
        parts
    }
}

/// The most launches of a command whose weight has `pieces` pieces.
pub(crate) fn most_launches(op: Op, pieces: usize) -> usize {
    match op {
        Op::NormMatmul | Op::Matmul | Op::MatmulAdd => pieces + 1,
        Op::NormMatmulActMul => pieces + 2,
        Op::Attention => 3,
        Op::ChoosePositions => 2,
        Op::Sample => 5,
        Op::ExpertsActMul | Op::ExpertsAdd => (pieces + 1).max(4),
        _ => pieces,
    }
}

/// Words of scratch for a row of `k` values that is normed or rounded, whichever takes more.
pub(crate) fn scratch_words(k: u32) -> u32 {
    k.next_multiple_of(4).max(rounded_words(k))
}

/// The matrices that products on cooperative matrices take.
pub(crate) fn rounded_weights(program: &Program, gpu: &Gpu) -> BTreeSet<WeightId> {
    let mut all = BTreeSet::new();
    let prompts = program.passes.iter();
    let prompts = prompts.filter(|pass| gpu.cooperative.is_some() && pass.kind != PassKind::Decode);
    for pass in prompts {
        let before = pass.outputs_from().unwrap_or(pass.commands.len());
        let products = pass.commands[..before].iter().filter(|command| {
            let is_product = matches!(
                command.op,
                Op::Matmul | Op::MatmulAdd | Op::NormMatmul | Op::NormMatmulActMul
            );
            let is_product = is_product || Grouped::of(command).is_some();
            is_product && Cooperative::takes(command.format)
        });
        all.extend(products.map(|command| command.weights[0]));
    }
    all
}

/// Bytes of the powers of two of these matrices.
pub(crate) fn power_bytes(program: &Program, rounded: &BTreeSet<WeightId>) -> u64 {
    let rows = rounded.iter().map(|id| program.weights[*id as usize].n);
    rows.map(powers_of).sum()
}

/// Bytes of the powers of `rows` rows.
pub(crate) fn powers_of(rows: u32) -> u64 {
    4 * u64::from(rows)
}

/// Words of scratch for a row of `n` logits from which a token is sampled.
pub(crate) fn sampled_words(n: u32) -> u32 {
    let (parts, _) = kernels::parts(n);
    n + parts * kernels::PART_WORDS
}

/// Bytes of scratch that a command takes for `rows` rows; `matrices`: the adapter has cooperative ones.
pub(crate) fn scratch(
    program: &Program,
    command: &Command,
    decodes: bool,
    rows: u32,
    matrices: bool,
) -> u64 {
    let floats = |row: u64| 4 * u64::from(rows) * row;
    match command.op {
        Op::NormMatmul if !decodes => {
            let k = params::NormMatmul::of(&command.params).k;
            floats(scratch_words(k).into())
        }
        Op::Matmul | Op::MatmulAdd if !decodes => {
            let k = params::Matmul::of(&command.params).k;
            floats(rounded_words(k).into())
        }
        Op::NormMatmulActMul => {
            let p = params::NormMatmulActMul::of(&command.params);
            floats(u64::from(scratch_words(p.k)) + 2 * u64::from(p.n))
        }
        Op::ExpertsActMul | Op::ExpertsAdd
            if !decodes && matrices && Cooperative::takes(command.format) =>
        {
            Grouped::of(command).map_or(0, |grouped| 4 * grouped.parts(rows)[4])
        }
        // The chosen token of each row comes first.
        Op::Sample => floats(1 + u64::from(sampled_words(params::Sample::of(&command.params).n))),
        Op::Attention if decodes => {
            let p = params::Attention::of(&command.params);
            let partial = u64::from(p.heads) * (u64::from(p.head_dim) + 2);
            floats(partial * u64::from(splits(program, LEAST_SPLIT).0))
        }
        Op::ChoosePositions => floats(program.context.into()),
        _ => 0,
    }
}

/// Outputs for which routers have the kernels of decoding in prompts too: they would make few tiles.
const FEW_OUTPUTS: u32 = 256;

/// Whether it is such a router. Of other formats, rows would be rounded to integers.
pub(crate) fn routes(command: &Command, gpu: &Gpu) -> bool {
    let outputs = match command.op {
        Op::Matmul => params::Matmul::of(&command.params).n,
        Op::NormMatmul => params::NormMatmul::of(&command.params).n,
        _ => return false,
    };
    let fits = outputs <= FEW_OUTPUTS && command.format == Format::F32;
    command.part == ModelPart::Router && fits && gpu.geometry.single
}

/// Bytes of prepared rows that a command takes for `rows` rows, if its product has the kernels of decoding.
pub(crate) fn prepared(command: &Command, gpu: &Gpu, decodes: bool, rows: u32) -> u64 {
    let (k, vectors) = match command.op {
        Op::Matmul | Op::MatmulAdd => (params::Matmul::of(&command.params).k, 1),
        Op::NormMatmul => (params::NormMatmul::of(&command.params).k, 1),
        Op::NormMatmulActMul => (params::NormMatmulActMul::of(&command.params).k, 1),
        Op::ExpertsActMul => (params::ExpertsActMul::of(&command.params).k, 1),
        Op::ExpertsAdd => {
            let p = params::ExpertsAdd::of(&command.params);
            (p.k, p.used)
        }
        _ => return 0,
    };
    if decodes || routes(command, gpu) {
        4 * u64::from(rows) * u64::from(vectors) * u64::from(most_prepared(k))
    } else {
        0
    }
}

/// Format and head size of an attention cache.
pub(crate) fn attention_cache(cache: Option<&CacheSpec>) -> (Format, u32) {
    match cache.map(|cache| cache.kind) {
        Some(CacheKind::Attention {
            format, head_dim, ..
        }) => (format, head_dim),
        _ => (Format::F16, 1),
    }
}

/// How many splits a context has when it is decoded, and their positions, at least `least`.
pub(crate) fn splits(program: &Program, least: u32) -> (u32, u32) {
    const MOST: u32 = 64;
    let split = program.context.div_ceil(MOST).next_multiple_of(least);
    (program.context.div_ceil(split).max(1), split)
}
