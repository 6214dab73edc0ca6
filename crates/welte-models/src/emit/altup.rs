//! Several streams of hidden states. Layers compute the first one; each layer predicts all of them and corrects them by what it
//! computed.

use super::{Emitter, StreamSet, at};
use crate::weights::{AltUpLayer, Layer};
use welte_table::{BufferRef, NO_WEIGHT, Op, params as p};

impl Emitter<'_> {
    /// The first stream is the embedding, the others are projections of it with its mean square.
    pub(super) fn begin_streams(&mut self) {
        let (spec, set) = (self.spec, self.set);
        let (Some(weights), Some(buffers)) = (&self.weights.altup, set.streams) else {
            return;
        };
        let (dim, stride) = (spec.dim, self.streams_width());
        self.copy("first stream", set.x, dim, buffers.all, stride, NO_WEIGHT);
        for piece in &weights.split {
            let params = p::Matmul {
                n: piece.n,
                k: dim,
                x_stride: dim,
                y_stride: stride,
            };
            let operands = [set.x, at(buffers.all, dim + piece.at)];
            let what = "other streams";
            self.out
                .push(what, Op::Matmul, &[piece.weight], &operands, params.words());
        }
        let square = p::MatchSquares {
            dim,
            groups: stride / dim - 1,
            x_stride: dim,
            y_stride: stride,
        };
        let operands = [set.x, at(buffers.all, dim)];
        let what = "other streams' size";
        self.out
            .push(what, Op::MatchSquares, &[], &operands, square.words());
    }

    /// x = the prediction of the first stream.
    pub(super) fn predict_streams(&mut self, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (Some(weights), Some(buffers)) = (&layer.altup, set.streams) else {
            return;
        };
        let (dim, stride) = (spec.dim, self.streams_width());
        self.route_streams(weights, buffers.all, stride, buffers);
        let params = p::AltUpPredict {
            dim,
            streams: stride / dim,
            scale: 1.0 / dim as f32,
            x_stride: stride / dim,
            y_stride: stride,
        };
        self.out.push(
            "predictions",
            Op::AltUpPredict,
            &[weights.predictions],
            &[buffers.router, buffers.all],
            params.words(),
        );
        self.copy(
            "predicted stream",
            buffers.all,
            stride,
            set.x,
            dim,
            NO_WEIGHT,
        );
    }

    /// The path around attention reads the normed stream, and adds it to its output.
    pub(super) fn around_attention(&mut self, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (Some(weights), Some(buffers)) = (&layer.altup, set.streams) else {
            return;
        };
        let normed = set.norm;
        let rank = spec.altup.map_or(0, |a| a.rank);
        let mut matmul = |matrix, x, k, y, n| {
            let params = p::Matmul {
                n,
                k,
                x_stride: k,
                y_stride: n,
            };
            let what = "path around attention";
            self.out
                .push(what, Op::Matmul, &[matrix], &[x, y], params.words());
        };
        matmul(weights.down, normed, spec.dim, buffers.low, rank);
        matmul(weights.up, buffers.low, rank, buffers.around, spec.dim);
        let around = buffers.around;
        self.norm("path's norm", weights.norm, around, around);
        self.add("path's sum", normed, around);
    }

    /// x = (x + the path around attention) / sqrt(2)
    pub(super) fn add_around(&mut self, layer: &Layer) {
        let (set, Some(_)) = (self.set, &layer.altup) else {
            return;
        };
        let Some(buffers) = set.streams else { return };
        self.add("attention and path", buffers.around, set.x);
        self.scale_stream(
            "attention and path's scale",
            std::f32::consts::FRAC_1_SQRT_2,
        );
    }

    /// Corrects all streams by x. Then x is the first one times the layer's factors.
    pub(super) fn correct_streams(&mut self, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (Some(weights), Some(buffers)) = (&layer.altup, set.streams) else {
            return;
        };
        let (dim, stride) = (spec.dim, self.streams_width());
        self.route_streams(weights, set.x, dim, buffers);
        let params = p::AltUpCorrect {
            dim,
            streams: stride / dim,
            scale: 1.0 / dim as f32,
            now_stride: dim,
            x_stride: stride / dim,
            y_stride: stride,
        };
        self.out.push(
            "corrections",
            Op::AltUpCorrect,
            &[weights.corrections],
            &[set.x, buffers.router, buffers.all],
            params.words(),
        );
        self.copy(
            "corrected stream",
            buffers.all,
            stride,
            set.x,
            dim,
            weights.factors,
        );
    }

    /// Adds to all streams but the first.
    pub(super) fn add_to_other_streams(&mut self, from: BufferRef, buffers: StreamSet) {
        let (dim, stride) = (self.spec.dim, self.streams_width());
        for stream in 1..stride / dim {
            let params = p::Add {
                n: dim,
                x_stride: dim,
                y_stride: stride,
            };
            let operands = [from, at(buffers.all, stream * dim)];
            let what = format!("stream {stream} with its embedding");
            self.out
                .push(&what, Op::Add, &[], &operands, params.words());
        }
    }

    /// x = the mean of the first stream and of projections of the others with its mean square.
    pub(super) fn join_streams(&mut self) {
        let (spec, set) = (self.spec, self.set);
        let (Some(weights), Some(buffers)) = (&self.weights.altup, set.streams) else {
            return;
        };
        let (dim, stride) = (spec.dim, self.streams_width());
        let others = stride - dim;
        for (i, pieces) in (0..).zip(&weights.join) {
            for piece in pieces {
                let params = p::Matmul {
                    n: piece.n,
                    k: dim,
                    x_stride: stride,
                    y_stride: others,
                };
                let from = at(buffers.all, (i + 1) * dim);
                let operands = [from, at(buffers.joined, i * dim + piece.at)];
                let what = format!("stream {} to the result", i + 1);
                self.out.push(
                    &what,
                    Op::Matmul,
                    &[piece.weight],
                    &operands,
                    params.words(),
                );
            }
        }
        let square = p::MatchSquares {
            dim,
            groups: others / dim,
            x_stride: stride,
            y_stride: others,
        };
        let operands = [buffers.all, buffers.joined];
        let what = "size of the results";
        self.out
            .push(what, Op::MatchSquares, &[], &operands, square.words());
        self.copy("first result", buffers.all, stride, set.x, dim, NO_WEIGHT);
        for i in 0..others / dim {
            let params = p::Add {
                n: dim,
                x_stride: others,
                y_stride: dim,
            };
            let operands = [at(buffers.joined, i * dim), set.x];
            self.out.push(
                "sum of the results",
                Op::Add,
                &[],
                &operands,
                params.words(),
            );
        }
        self.scale_stream("mean of the results", dim as f32 / stride as f32);
    }

    /// A value per stream by the norm of x.
    fn route_streams(
        &mut self,
        weights: &AltUpLayer,
        x: BufferRef,
        x_stride: u32,
        buffers: StreamSet,
    ) {
        let (dim, streams) = (self.spec.dim, self.streams_width() / self.spec.dim);
        let normed = self.set.norm;
        let norm = p::Norm {
            dim,
            groups: 1,
            eps: self.spec.eps,
            x_stride,
            y_stride: dim,
        };
        let (weight, what) = ([weights.router_norm], "streams' router norm");
        self.out
            .push(what, Op::Norm, &weight, &[x, normed], norm.words());
        let params = p::Matmul {
            n: streams,
            k: dim,
            x_stride: dim,
            y_stride: streams,
        };
        let (matrix, what) = ([weights.router], "streams' router");
        let operands = [normed, buffers.router];
        self.out
            .push(what, Op::Matmul, &matrix, &operands, params.words());
    }

    /// y = x, or x times factors, both as wide as a stream.
    pub(super) fn copy(
        &mut self,
        what: &str,
        x: BufferRef,
        x_stride: u32,
        y: BufferRef,
        y_stride: u32,
        factors: welte_table::WeightId,
    ) {
        let params = p::Multiply {
            n: self.spec.dim,
            x_stride,
            y_stride,
        };
        self.out
            .push(what, Op::Multiply, &[factors], &[x, y], params.words());
    }

    pub(super) fn scale_stream(&mut self, what: &str, scale: f32) {
        let params = p::Scale {
            n: self.spec.dim,
            scale,
            cap: 0.0,
            y_stride: self.spec.dim,
        };
        self.out
            .push(what, Op::Scale, &[], &[self.set.x], params.words());
    }

    /// Floats of a row of all streams.
    fn streams_width(&self) -> u32 {
        self.spec.dim * self.spec.altup.map_or(1, |a| a.streams)
    }
}
