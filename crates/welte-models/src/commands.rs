//! The commands of a pass, as they are emitted.

use crate::weights::NormWeights;
use welte_table::{
    BufferId, BufferRef, BufferSpec, Command, Format, ModelPart, NO_WEIGHT, Op, Params, Pass,
    PassKind, Program, WeightId, WeightSpec, cost, params as p,
};

/// Commands with their names for people.
pub(crate) struct Commands<'a> {
    /// The program's weights.
    list: &'a [WeightSpec],
    /// Where the next commands belong.
    pub(crate) layer: Option<u32>,
    pub(crate) part: ModelPart,
    commands: Vec<Command>,
    labels: Vec<String>,
}

impl<'a> Commands<'a> {
    pub(crate) fn new(list: &'a [WeightSpec]) -> Commands<'a> {
        Commands {
            list,
            layer: None,
            part: ModelPart::Embedding,
            commands: Vec::new(),
            labels: Vec::new(),
        }
    }

    pub(crate) fn push(
        &mut self,
        what: &str,
        op: Op,
        weights: &[WeightId],
        buffers: &[BufferRef],
        params: Params,
    ) {
        let format = weights
            .first()
            .and_then(|w| self.list.get(*w as usize))
            .map_or(Format::F32, |w| w.format);
        self.commands.push(Command {
            layer: self.layer,
            part: self.part,
            ..Command::new(op, format, weights, buffers, params)
        });
        self.labels.push(what.to_string());
    }

    /// y = the output rows of x, of `dim` each.
    pub(crate) fn choose_rows(&mut self, dim: u32, x: BufferRef, y: BufferRef) {
        let params = p::SelectRows {
            n: dim,
            x_stride: dim,
            y_stride: dim,
        };
        self.push("chosen rows", Op::SelectRows, &[], &[x, y], params.words());
    }

    /// y = norm(x), by root mean square or by mean and variance, of a row of `dim`.
    pub(crate) fn norm(
        &mut self,
        what: &str,
        (norm, rms): (NormWeights, bool),
        (dim, eps): (u32, f32),
        buffers: [BufferRef; 2],
    ) {
        self.norm_strided(what, (norm, rms), (dim, eps), buffers, [dim; 2]);
    }

    /// The same for rows that lie so far apart.
    pub(crate) fn norm_strided(
        &mut self,
        what: &str,
        (norm, rms): (NormWeights, bool),
        (dim, eps): (u32, f32),
        buffers: [BufferRef; 2],
        [x_stride, y_stride]: [u32; 2],
    ) {
        if rms {
            let params = p::Norm {
                dim,
                groups: 1,
                eps,
                x_stride,
                y_stride,
            };
            self.push(what, Op::Norm, &[norm.weight], &buffers, params.words());
        } else {
            let params = p::LayerNorm {
                dim,
                groups: 1,
                eps,
                x_stride,
                y_stride,
            };
            let weights = [norm.weight, norm.bias.unwrap_or(NO_WEIGHT)];
            self.push(what, Op::LayerNorm, &weights, &buffers, params.words());
        }
    }

    /// y = attention of the rows of x, which have queries, keys and values ([`every_row`]).
    pub(crate) fn attend(&mut self, params: p::EncodeAttention, buffers: [BufferRef; 2]) {
        self.push(
            "attention",
            Op::EncodeAttention,
            &[],
            &buffers,
            params.words(),
        );
    }

    /// y = a convolution of each channel of x: a kernel, and a bias or none.
    pub(crate) fn convolve(
        &mut self,
        weights: [WeightId; 2],
        params: p::EncodeConv,
        buffers: [BufferRef; 2],
    ) {
        self.push(
            "convolution",
            Op::EncodeConv,
            &weights,
            &buffers,
            params.words(),
        );
    }

    /// The pass of these commands.
    pub(crate) fn pass(
        self,
        kind: PassKind,
        (rows, outputs): (u32, u32),
        (width, result): (u32, BufferRef),
    ) -> Pass {
        Pass {
            kind,
            adapted: false,
            rows,
            outputs,
            width,
            result,
            commands: self.commands,
            labels: self.labels,
        }
    }
}

/// Attention in which every row sees all rows of its run, whose scores are divided by the square root of a head's size.
pub(crate) fn every_row(
    (heads, head_dim): (u32, u32),
    [qkv_stride, y_stride]: [u32; 2],
) -> p::EncodeAttention {
    p::EncodeAttention {
        heads,
        kv_heads: heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: 0,
        qkv_stride,
        y_stride,
        by_axis: 0,
        unseen: 0,
        by_reach: 0,
        places: 0,
        softcap: 0.0,
    }
}

/// The place `elements` floats after the start of the first row.
pub(crate) fn at(buffer: BufferRef, elements: u32) -> BufferRef {
    BufferRef {
        offset: buffer.offset + 4 * elements,
        ..buffer
    }
}

/// A program of one pass over as many positions as it has rows.
pub(crate) fn one_pass(
    weights: Vec<WeightSpec>,
    buffers: Vec<BufferSpec>,
    (tokens, features): (BufferRef, BufferId),
    pass: Pass,
) -> Program {
    let mut program = Program {
        weights,
        buffers,
        caches: Vec::new(),
        vocab: 1,
        context: pass.rows,
        page: 64,
        slots: 1,
        tokens: tokens.buffer,
        features,
        adapters: None,
        block: None,
        passes: vec![pass],
    };
    cost::fill(&mut program);
    program
}
